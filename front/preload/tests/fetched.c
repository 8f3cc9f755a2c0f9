/* pidfd_getfd: who takes a descriptor out of another process shares its offset, whichever side moves it, and while the other side writes. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
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
    return failures != 0;
}
