/* What may be done to a descriptor: flags of read and write calls, fcntl, ioctl, locks, leases, copies, mappings of the descriptor in /proc.
   A plain directory must answer the same. */
#include "check.h"
#include <dirent.h>
#include <linux/fs.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#ifndef RWF_NOAPPEND
#define RWF_NOAPPEND 0x20
#endif
#ifndef F_DUPFD_QUERY
#define F_DUPFD_QUERY 1027
#endif

static char *d;
static unsigned char block[200000], back[200000];

static void flags_of_vectored_calls(void)
{
    int fd = make_in(d, "vectored", block, 10000);
    struct iovec part = { back, 100 };
    for (int flag = 1; flag < 0x40; flag <<= 1) {
        /* tmpfs cannot; ext4 can, and so does an array. */
        if (flag == RWF_NOWAIT)
            continue;
        printf("flag %x\n", flag);
        SHOW(preadv2(fd, &part, 1, 0, flag));
        SHOW(pwritev2(fd, &part, 1, 0, flag));
        SHOW(lseek(fd, 0, SEEK_END));
    }
    SHOW(preadv2(fd, &part, 1, 0, 0x40000000));
    SHOW(pwritev2(fd, &part, 1, 0, RWF_APPEND | RWF_NOAPPEND));
    SHOW(preadv2(fd, &part, 1, -2, 0));
    int appending = open(in(d, "vectored"), O_WRONLY | O_APPEND);
    SHOW(pwritev2(appending, &part, 1, 5, RWF_NOAPPEND));
    SHOW(pwritev2(appending, &part, 1, 5, 0));
    SHOW(pwritev2(appending, &part, 1, -1, RWF_NOAPPEND));
    SHOW(lseek(appending, 0, SEEK_CUR));
    SHOW(lseek(fd, 0, SEEK_END));
    close(appending), close(fd);
    show_content(in(d, "vectored"));
}

static void commands(void)
{
    int fd = make_in(d, "commands", block, 5000), other = open(in(d, "commands"), O_RDONLY), twin = dup(fd);
    SHOW(fcntl(fd, F_DUPFD_QUERY, twin));
    SHOW(fcntl(fd, F_DUPFD_QUERY, other));
    SHOW(fcntl(fd, F_GETPIPE_SZ));
    SHOW(fcntl(fd, F_SETPIPE_SZ, 4096));
    SHOW(fcntl(fd, F_GETOWN));
    SHOW(fcntl(fd, F_SETOWN, getpid()));
    SHOW(fcntl(fd, F_GETSIG));
    SHOW(fcntl(fd, F_ADD_SEALS, 1) == -1);
    SHOW(fcntl(fd, 9999));
    SHOW(fcntl(fd, F_NOTIFY, DN_MODIFY));
    SHOW(fcntl(other, F_GETLEASE));
    SHOW(fcntl(other, F_SETLEASE, F_WRLCK));
    SHOW(fcntl(fd, F_SETFL, O_APPEND | O_NONBLOCK | O_RDONLY | O_CREAT));
    SHOW(fcntl(twin, F_GETFL) & ~O_LARGEFILE);
    SHOW(lseek(fd, 0, SEEK_SET));
    SHOW(write(twin, "end", 3));
    SHOW(fcntl(fd, F_SETFL, O_ASYNC) == 0 || errno == EINVAL || errno == ENOTTY);
    SHOW(fcntl(twin, F_SETFL, 0));
    SHOW(lseek(fd, 0, SEEK_SET));
    SHOW(write(fd, "start", 5));
    SHOW(fcntl(fd, F_SETFD, FD_CLOEXEC));
    SHOW(fcntl(fd, F_GETFD));
    SHOW(fcntl(twin, F_GETFD));
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_CUR, .l_start = 0, .l_len = 5 };
    SHOW(fcntl(fd, F_OFD_SETLK, &lock));
    lock.l_pid = 1;
    SHOW(fcntl(fd, F_OFD_SETLK, &lock));
    /* Relative to the position and to the end: both are the program's. */
    lock = (struct flock){ .l_type = F_WRLCK, .l_whence = SEEK_END, .l_start = -10, .l_len = 5 };
    SHOW(fcntl(fd, F_SETLK, &lock));
    lseek(fd, 100, SEEK_SET);
    lock = (struct flock){ .l_type = F_WRLCK, .l_whence = SEEK_CUR, .l_start = 5, .l_len = 5 };
    SHOW(fcntl(fd, F_SETLK, &lock));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        off_t at[4] = { 0, 100, 104, 4990 };
        for (int index = 0; index < 4; index++) {
            struct flock seen = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at[index], .l_len = 0 };
            MUST(fcntl(open(in(d, "commands"), O_RDWR), F_GETLK, &seen) == 0);
            printf("lock from %lld: type %d at %lld for %lld\n", (long long)at[index], seen.l_type, (long long)seen.l_start,
                   (long long)seen.l_len);
        }
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    SHOW(lockf(fd, F_TEST, 10));
    SHOW(flock(fd, LOCK_EX | LOCK_NB));
    SHOW(flock(other, LOCK_SH | LOCK_NB));
    SHOW(flock(twin, LOCK_UN));
    SHOW(flock(other, LOCK_SH | LOCK_NB));
    SHOW(flock(fd, 99));
    close(fd), close(other), close(twin);
    show_content(in(d, "commands"));
}

/* A lock that another process sees. */
static void show_lock(const char *name)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct flock seen = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 0 };
        MUST(fcntl(open(in(d, name), O_RDWR), F_GETLK, &seen) == 0);
        printf("lock: type %d at %lld for %lld\n", seen.l_type, (long long)seen.l_start, (long long)seen.l_len);
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

/* An exec that is refused takes no lock away. */
static void locks_and_refusals(void)
{
    int fd = make_in(d, "locked", block, 5000);
    char *arguments[] = { "locked", NULL };
    struct flock lock = { .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 4, .l_len = 1 };
    MUST(fcntl(fd, F_SETLK, &lock) == 0);
    SHOW(execve(in(d, "locked"), arguments, environ));
    SHOW(fexecve(fd, arguments, environ));
    show_lock("locked");
    close(fd);
}

/* A call with a number that is not open acts on nothing, whatever a library has there. */
static void write_to_closed(const char *open_ones)
{
    int taken = 0;
    for (int fd = 0; fd < 64; fd++)
        if (!open_ones[fd] && (write(fd, block, 8) != -1 || errno != EBADF || dup(fd) != -1))
            taken++;
    printf("numbers that are closed and can be used: %d\n", taken);
}

static void note_open(char *open_ones)
{
    for (int fd = 0; fd < 64; fd++)
        open_ones[fd] = fcntl(fd, F_GETFD) >= 0;
}

/* A file that is locked and may only be read is opened for writing once it may be written to. */
static void locked_then_written(void)
{
    char open_ones[64];
    close(make_in(d, "late", block, 5000));
    MUST(chmod(in(d, "late"), 0444) == 0 && chmod(d, 0777) == 0);
    MUST(geteuid() != 0 || chown(in(d, "late"), 65534, 65534) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        MUST(geteuid() != 0 || setresuid(65534, 65534, 65534) == 0);
        note_open(open_ones);
        struct flock lock = { .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 4, .l_len = 1 };
        int reader = open(in(d, "late"), O_RDONLY);
        MUST(reader >= 0 && fcntl(reader, F_SETLK, &lock) == 0);
        SHOW(open(in(d, "late"), O_RDWR));
        MUST(chmod(in(d, "late"), 0666) == 0);
        show_lock("late");
        int writer = open(in(d, "late"), O_RDWR);
        MUST(writer >= 0);
        show_lock("late");
        open_ones[reader] = open_ones[writer] = 1;
        write_to_closed(open_ones);
        MUST(pwrite(writer, "written", 7, 10) == 7);
        char *base = mmap(NULL, 5000, PROT_READ, MAP_SHARED, reader, 0);
        MUST(base != MAP_FAILED && memcmp(base + 10, "written", 7) == 0 && munmap(base, 5000) == 0);
        show_lock("late");
        /* Closing any of them gives the lock back. */
        MUST(close(writer) == 0);
        show_lock("late");
        fflush(stdout);
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    show_content(in(d, "late"));
}

/* With a limit that was lowered a library finds no room for its descriptors above the program's. */
static void limit_lowered(void)
{
    char open_ones[64];
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct rlimit limit = { 200, 200 };
        /* A trace knows the library's own descriptors by their high numbers. */
        MUST(getenv("CXLRAID_TRACE") || setrlimit(RLIMIT_NOFILE, &limit) == 0);
        note_open(open_ones);
        int fd = make_in(d, "lowered", block, 5000);
        open_ones[fd] = 1;
        write_to_closed(open_ones);
        show_content(in(d, "lowered"));
        /* The lowest free numbers are the program's, and it may choose others. */
        char name[16];
        for (int i = 0; i < 12; i++) {
            snprintf(name, sizeof name, "low%d", i);
            int other = make_in(d, name, block, 5);
            printf("number %d, ", other - fd);
            MUST(pwrite(other, name, 5, 0) == 5);
        }
        printf("\n");
        for (int to = fd + 20; to < fd + 60; to += 13) {
            MUST(dup2(fd, to) == to && pwrite(to, "chosen", 6, to) == 6 && close(to) == 0);
            show_content(in(d, "lowered"));
        }
        show_content(in(d, "low7"));
        fflush(stdout);
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
}

/* Sets the soft limit of descriptors, to the hard one at most. */
static void set_limit(rlim_t current)
{
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = current < limit.rlim_max ? current : limit.rlim_max;
    /* A trace knows the library's own descriptors by their high numbers. */
    MUST(getenv("CXLRAID_TRACE") || setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

/* A lock stays over an exec before which the program has raised its limit. */
static void lock_over_raised_limit(char **argv)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        set_limit(200);
        execl(argv[0], argv[0], d, "lock", (char *)NULL);
        _exit(127);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
}

/* The programs that lock_over_raised_limit executes. */
static int executed(char **argv)
{
    if (strcmp(argv[2], "lock") == 0) {
        int fd = make_in(d, "raised", block, 5000);
        struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 4, .l_len = 1 };
        MUST(fcntl(fd, F_SETFD, 0) == 0 && fcntl(fd, F_SETLK, &lock) == 0);
        set_limit(8192);
        execl(argv[0], argv[0], d, "locked", (char *)NULL);
        return 127;
    }
    show_lock("raised");
    return 0;
}

static void controls(void)
{
    int fd = make_in(d, "controls", block, 5000), dir = open(d, O_RDONLY | O_DIRECTORY), count = -1, flags = 0;
    long version;
    SHOW(lseek(fd, 1000, SEEK_SET));
    SHOW(ioctl(fd, FIONREAD, &count));
    printf("%d to read\n", count);
    SHOW(ioctl(fd, FIONBIO, &(int){ 1 }));
    SHOW(fcntl(fd, F_GETFL) & O_NONBLOCK);
    SHOW(ioctl(fd, FIOCLEX));
    SHOW(fcntl(fd, F_GETFD));
    SHOW(ioctl(fd, FIONCLEX));
    SHOW(ioctl(fd, FIGETBSZ, &count));
    SHOW(ioctl(fd, 0x5401 /* TCGETS */, back));
    SHOW(ioctl(fd, FIBMAP, &count) == -1);
    SHOW(ioctl(fd, FICLONE, fd) == -1);
    SHOW(ioctl(fd, FITRIM, back) == -1);
    SHOW(ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0 || errno == ENOTTY);
    SHOW(ioctl(dir, FIONREAD, &count) == -1);
    (void)version;
    struct pollfd poll_ = { fd, POLLIN | POLLOUT, 0 };
    SHOW(poll(&poll_, 1, 0));
    printf("events %x\n", poll_.revents);
    int epoll = epoll_create1(0);
    SHOW(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &(struct epoll_event){ EPOLLIN }));
    close(epoll), close(fd), close(dir);
}

static void copies(void)
{
    int fd = make_in(d, "copies", block, 100000), pipes[2], other = open(in(d, "copies"), O_RDWR);
    loff_t from = 0, to = 50000;
    MUST(pipe(pipes) == 0);
    SHOW(copy_file_range(fd, &from, fd, &to, 10000, 0));
    from = 0, to = 5000;
    SHOW(copy_file_range(fd, &from, fd, &to, 10000, 0));
    SHOW(copy_file_range(fd, &from, other, &to, 10000, 0));
    from = 100000, to = 0;
    SHOW(copy_file_range(fd, &from, other, &to, 10, 0));
    from = 99990, to = 200000;
    SHOW(copy_file_range(fd, &from, other, &to, 100, 0));
    printf("from %lld to %lld\n", (long long)from, (long long)to);
    from = 0, to = 0;
    SHOW(copy_file_range(fd, &from, other, &to, 10, 1));
    from = -1;
    SHOW(copy_file_range(fd, &from, other, &to, 10, 0));
    int reading = open(in(d, "copies"), O_RDONLY), writing = open(in(d, "copies"), O_WRONLY);
    SHOW(copy_file_range(writing, NULL, fd, NULL, 10, 0));
    SHOW(copy_file_range(fd, NULL, reading, NULL, 10, 0));
    int appending = open(in(d, "copies"), O_WRONLY | O_APPEND);
    SHOW(copy_file_range(reading, NULL, appending, NULL, 10, 0));
    SHOW(sendfile(appending, reading, NULL, 10));
    SHOW(sendfile(writing, pipes[0], NULL, 10));
    SHOW(sendfile(reading, fd, NULL, 10));
    SHOW(sendfile(fd, writing, NULL, 10));
    SHOW(sendfile(pipes[1], reading, NULL, 1000));
    SHOW(read(pipes[0], back, 2000));
    SHOW(sendfile(pipes[1], reading, &(off_t){ -5 }, 1000));
    SHOW(copy_file_range(pipes[0], NULL, fd, NULL, 10, 0));
    SHOW(copy_file_range(fd, NULL, pipes[1], NULL, 10, 0));
    int dir = open(d, O_RDONLY | O_DIRECTORY);
    SHOW(copy_file_range(dir, NULL, fd, NULL, 10, 0));
    SHOW(copy_file_range(fd, NULL, dir, NULL, 10, 0));
    SHOW(sendfile(fd, dir, NULL, 10));
    close(dir), close(fd), close(other), close(reading), close(writing), close(appending), close(pipes[0]), close(pipes[1]);
    show_content(in(d, "copies"));
}

static void splices(void)
{
    int fd = make_in(d, "splices", block, 100000), pipes[2];
    loff_t at = 500;
    MUST(pipe(pipes) == 0);
    SHOW(splice(fd, &at, pipes[1], NULL, 3000, 0));
    printf("at %lld\n", (long long)at);
    SHOW(lseek(fd, 70000, SEEK_SET));
    SHOW(splice(fd, NULL, pipes[1], NULL, 3000, 0));
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(read(pipes[0], back, 6000));
    printf("sum %016llx\n", (unsigned long long)sum(back, 6000, 0));
    SHOW(write(pipes[1], block, 5000));
    at = 99000;
    SHOW(splice(pipes[0], NULL, fd, &at, 2000, SPLICE_F_MOVE));
    printf("at %lld\n", (long long)at);
    SHOW(splice(pipes[0], NULL, fd, NULL, 5000, SPLICE_F_MORE));
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(splice(pipes[0], NULL, fd, NULL, 5000, SPLICE_F_NONBLOCK));
    at = 200000;
    SHOW(splice(fd, &at, pipes[1], NULL, 100, 0));
    SHOW(splice(fd, NULL, fd, NULL, 100, 0));
    at = -1;
    SHOW(splice(fd, &at, pipes[1], NULL, 100, 0));
    SHOW(splice(fd, NULL, pipes[1], &at, 100, 0));
    int appending = open(in(d, "splices"), O_WRONLY | O_APPEND), reading = open(in(d, "splices"), O_RDONLY);
    SHOW(write(pipes[1], block, 100));
    SHOW(splice(pipes[0], NULL, appending, NULL, 100, 0));
    SHOW(splice(pipes[0], NULL, reading, NULL, 100, 0));
    SHOW(splice(appending, NULL, pipes[1], NULL, 100, 0));
    SHOW(splice(reading, NULL, pipes[1], NULL, 100, 0x100));
    struct iovec part = { block, 300 };
    SHOW(vmsplice(pipes[1], &part, 1, 0));
    SHOW(splice(pipes[0], NULL, fd, NULL, 400, 0));
    /* A full pipe takes what fits. */
    MUST(fcntl(pipes[1], F_SETPIPE_SZ, 4096) == 4096);
    at = 0;
    SHOW(splice(fd, &at, pipes[1], NULL, 50000, SPLICE_F_NONBLOCK) > 0);
    SHOW(splice(fd, &at, pipes[1], NULL, 50000, SPLICE_F_NONBLOCK));
    close(fd), close(appending), close(reading), close(pipes[0]), close(pipes[1]);
    show_content(in(d, "splices"));
}

static void reopening(void)
{
    int fd = make_in(d, "reopened", block, 5000), again;
    char path[64];
    const char *forms[] = { "/proc/self/fd/%d", "/dev/fd/%d", "/proc/thread-self/fd/%d" };
    for (int form = 0; form < 3; form++) {
        snprintf(path, sizeof path, forms[form], fd);
        SHOW(again = open(path, O_RDWR) >= 0);
        again = open(path, O_RDONLY);
        SHOW(lseek(again, 0, SEEK_CUR));
        SHOW(read(again, back, 5));
        SHOW(write(again, back, 5));
        struct stat found;
        SHOW(stat(path, &found));
        printf("size %lld\n", (long long)found.st_size);
        SHOW(truncate(path, 4000 + form));
        SHOW(chmod(path, 0640 + form));
        SHOW(access(path, R_OK));
        close(again);
    }
    snprintf(path, sizeof path, "/proc/%d/fd/%d", getpid(), fd);
    SHOW(again = open(path, O_RDWR) >= 0);
    SHOW(pread(open(path, O_RDONLY), back, 200000, 0));
    int dir = open(in(d, "."), O_RDONLY | O_DIRECTORY);
    snprintf(path, sizeof path, "/proc/self/fd/%d/reopened", dir);
    SHOW(pread(open(path, O_RDONLY), back, 200000, 0));
    SHOW(unlink(in(d, "reopened")));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    SHOW((again = open(path, O_RDWR)) >= 0);
    SHOW(pread(again, back, 200000, 0));
    SHOW(pwrite(again, "new", 3, 0));
    SHOW(pread(fd, back, 3, 0));
    printf("%.3s\n", back);
    int by_path = openat(dir, "../none", O_PATH);
    SHOW(by_path);
    close(make_in(d, "by-path", block, 100));
    by_path = open(in(d, "by-path"), O_PATH);
    SHOW(read(by_path, back, 1));
    SHOW(fchmod(by_path, 0600));
    SHOW(ioctl(by_path, FIONREAD, &again));
    SHOW(lseek(by_path, 0, SEEK_SET));
    SHOW(ftruncate(by_path, 0));
    SHOW(fsync(by_path));
    SHOW(fcntl(by_path, F_GETFL) & O_PATH);
    SHOW(fcntl(by_path, F_SETFL, O_APPEND));
    SHOW(fgetxattr(by_path, "user.x", back, 10));
    SHOW(flock(by_path, LOCK_SH));
    snprintf(path, sizeof path, "/proc/self/fd/%d", by_path);
    SHOW(read(open(path, O_RDONLY), back, 1000));
    SHOW(fchdir(by_path));
    close(fd), close(dir), close(by_path);
}

static void direct(void)
{
    int fd = make_in(d, "direct", block, 20000);
    close(fd);
    fd = open(in(d, "direct"), O_RDWR | O_DIRECT);
    void *aligned = (void *)(((uintptr_t)back + 4095) & ~4095ul);
    SHOW(pread(fd, aligned, 4096, 4096));
    SHOW(pwrite(fd, aligned, 4096, 8192));
    SHOW(fcntl(fd, F_GETFL) & O_DIRECT ? 1 : 0);
    close(fd);
}

int main(int argc, char **argv)
{
    d = argv[1];
    umask(022);
    fill(block, sizeof block, 11);
    if (argc > 2)
        return executed(argv);
    /* These come first: the numbers are used for the first time. */
    limit_lowered();
    lock_over_raised_limit(argv);
    locked_then_written();
    flags_of_vectored_calls();
    commands();
    locks_and_refusals();
    controls();
    copies();
    splices();
    reopening();
    direct();
    return 0;
}
