/* pidfd_getfd: who takes a descriptor out of another process shares its offset, whichever side moves it, and while the other side writes. Nobody else waits for it: not a child
   that the other process forks meanwhile, and not a process that makes a file while the other process is stopped. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int failures;
static _Atomic int *turn;
#define CHECK(what) ((what) ? (void)0 : (void)(failures++, printf("%s:%d: %s\n", __FILE__, __LINE__, #what)))

static void await(int value) {
    while (atomic_load(turn) < value)
        usleep(100);
}

/* The other side: began before the file was open. */
static int fetcher(int file) {
    char back[8] = "";
    int pidfd, fd;
    await(1);
    pidfd = syscall(SYS_pidfd_open, getppid(), 0);
    fd = syscall(SYS_pidfd_getfd, pidfd, file, 0);
    CHECK(pidfd >= 0 && fd >= 0);
    CHECK(lseek(fd, 0, SEEK_CUR) == 8);
    CHECK(write(fd, "fetched.", 8) == 8);
    atomic_store(turn, 2);
    await(3);
    CHECK(lseek(fd, 0, SEEK_CUR) == 24);
    CHECK(pread(fd, back, 8, 16) == 8 && !memcmp(back, "again...", 8));
    CHECK(syscall(SYS_pidfd_getfd, pidfd, 999, 0) == -1);
    close(fd);
    /* While the owner writes: each record is written once, by its offset. */
    fd = syscall(SYS_pidfd_getfd, pidfd, file + 1, 0);
    CHECK(fd >= 0);
    for (int index = 0; index < 1000; index++)
        CHECK(write(fd, "by the fetcher.\n", 16) == 16);
    return failures != 0;
}

/* A process without open files forks while descriptors are taken from it all the time: its children read. */
static void fork_while_fetched(const char *name) {
    int status;
    atomic_store(turn, 0);
    pid_t fetcher = fork();
    if (!fetcher) {
        int pidfd = syscall(SYS_pidfd_open, getppid(), 0);
        while (atomic_load(turn) < 2) {
            int fd = syscall(SYS_pidfd_getfd, pidfd, 1, 0);
            if (fd < 0)
                _exit(1);
            close(fd);
            atomic_store(turn, 1);
        }
        _exit(0);
    }
    await(1);
    for (int round = 0; round < 300 && !failures; round++) {
        pid_t child = fork();
        if (!child) {
            char bytes[8];
            alarm(5);
            int file = open(name, O_RDONLY);
            _exit(read(file, bytes, 8) != 8);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        atomic_store(turn, 1);
    }
    while (waitpid(fetcher, &status, WNOHANG) == 0)
        atomic_store(turn, 2);
    CHECK(status == 0);
}

enum { PIECES = 64, PIECE_BYTES = 262144 };

/* Reads by the offset of descriptor 22 without an end. */
static void read_on(const char *name) {
    static char piece[PIECE_BYTES];
    struct iovec pieces[PIECES];
    int file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    for (int index = 0; index < PIECES; index++) {
        pieces[index] = (struct iovec){piece, PIECE_BYTES};
        if (write(file, piece, PIECE_BYTES) != PIECE_BYTES)
            _exit(1);
    }
    dup2(file, 22);
    close(file);
    for (;;) {
        lseek(22, 0, SEEK_SET);
        if (readv(22, pieces, PIECES) < 0)
            _exit(1);
        atomic_store(turn, 1);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* A process is stopped in the middle of a read, and its descriptor is fetched meanwhile. */
static void make_while_stopped(const char *name) {
    char made[512];
    int status, waited = 0;
    snprintf(made, sizeof made, "%s.made", name);
    for (int attempt = 0; attempt < 50 && !waited; attempt++) {
        atomic_store(turn, 0);
        pid_t reader = fork();
        if (!reader)
            read_on(name);
        await(1);
        usleep(attempt * 500);
        kill(reader, SIGSTOP);
        pid_t fetcher = fork();
        if (!fetcher) {
            int pidfd = syscall(SYS_pidfd_open, reader, 0);
            _exit(syscall(SYS_pidfd_getfd, pidfd, 22, 0) < 0);
        }
        usleep(300000);
        waited = waitpid(fetcher, &status, WNOHANG) == 0;
        if (waited) {
            double begin = now();
            int file = open(made, O_RDWR | O_CREAT, 0644);
            CHECK(file >= 0 && !unlink(made));
            CHECK(now() - begin < 3);
            close(file);
            kill(reader, SIGCONT);
            CHECK(waitpid(fetcher, &status, 0) == fetcher && status == 0);
        }
        kill(reader, SIGKILL);
        waitpid(reader, &status, 0);
    }
    CHECK(waited);
}

int main(int count, char **arguments) {
    char name[512], back[64] = "", *all;
    struct stat stat;
    int file, other, status, written = 0;
    turn = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    pid_t child = fork();
    if (!child)
        _exit(fetcher(20));
    file = open(arguments[1], O_RDWR | O_TRUNC);
    dup2(file, 20);
    close(file);
    snprintf(name, sizeof name, "%s.records", arguments[1]);
    other = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    dup2(other, 21);
    close(other);
    CHECK(write(20, "private.", 8) == 8);
    atomic_store(turn, 1);
    await(2);
    CHECK(lseek(20, 0, SEEK_CUR) == 16);
    CHECK(write(20, "again...", 8) == 8);
    CHECK(pread(20, back, 24, 0) == 24 && !memcmp(back, "private.fetched.again...", 24));
    atomic_store(turn, 3);
    while (waitpid(child, &status, WNOHANG) == 0) {
        CHECK(write(21, "by the owner...\n", 16) == 16);
        written++;
    }
    CHECK(status == 0);
    fstat(21, &stat);
    CHECK(stat.st_size == (written + 1000) * 16 && lseek(21, 0, SEEK_CUR) == stat.st_size);
    all = malloc(stat.st_size);
    CHECK(pread(21, all, stat.st_size, 0) == stat.st_size);
    for (off_t at = 0; at < stat.st_size; at += 16)
        CHECK(!memcmp(all + at, "by the fetcher.\n", 16) || !memcmp(all + at, "by the owner...\n", 16));
    close(20);
    close(21);
    fork_while_fetched(arguments[1]);
    make_while_stopped(name);
    return failures != 0;
}
