/* RLIMIT_FSIZE: what a process may make a file grow to. Short writes up to the limit, then EFBIG and SIGXFSZ; a plain directory must
   answer the same. */
#include "check.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <sys/wait.h>

static volatile int signalled;
static unsigned char block[200000];

static void count(int signal)
{
    (void)signal;
    signalled++;
}

static void limit(long long bytes)
{
    struct rlimit limit = { bytes < 0 ? RLIM_INFINITY : (rlim_t)bytes, RLIM_INFINITY };
    MUST(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

/* The call, its result, how many signals it brought and the file's size then. */
#define LIMITED(call)                                                                              \
    do {                                                                                           \
        struct stat limited_stat;                                                                  \
        signalled = 0;                                                                             \
        errno = 0;                                                                                 \
        long long limited_result = (long long)(call);                                              \
        const char *limited_error = limited_result == -1 ? strerrorname_np(errno) : "";            \
        MUST(fstat(fd, &limited_stat) == 0);                                                       \
        printf("%s = %lld %s, signals %d, size %lld\n", #call, limited_result, limited_error,      \
               signalled, (long long)limited_stat.st_size);                                        \
    } while (0)

static void growing(const char *path, int flags)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | flags, 0644);
    MUST(fd >= 0);
    limit(100000);
    LIMITED(write(fd, block, 1000));
    LIMITED(write(fd, block, 90000));
    LIMITED(write(fd, block, 20000));
    LIMITED(write(fd, block, 1));
    LIMITED(write(fd, block, 0));
    LIMITED(pwrite(fd, block, 10, 99995));
    LIMITED(pwrite(fd, block, 10, 100000));
    LIMITED(pwrite(fd, block, 10, 5000000));
    struct iovec parts[2] = { { block, 60000 }, { block + 60000, 60000 } };
    LIMITED(ftruncate(fd, 50000));
    LIMITED(pwritev(fd, parts, 2, 40000));
    LIMITED(ftruncate(fd, 100000));
    LIMITED(ftruncate(fd, 100001));
    LIMITED(truncate(path, 100001));
    LIMITED(truncate(path, 70000));
    LIMITED(fallocate(fd, 0, 90000, 10000));
    LIMITED(fallocate(fd, 0, 90000, 10001));
    LIMITED(posix_fallocate(fd, 100000, 5) > 0);
    int from = open("/proc/self/exe", O_RDONLY);
    LIMITED(ftruncate(fd, 99000));
    LIMITED(lseek(fd, 99000, SEEK_SET));
    if (!(flags & O_APPEND)) {
        LIMITED(sendfile(fd, from, NULL, 1000));
        LIMITED(sendfile(fd, from, NULL, 1000));
    }
    close(from);
    limit(10);
    LIMITED(pwrite(fd, block, 20, 5));
    LIMITED(pwrite(fd, block, 20, 50));
    LIMITED(ftruncate(fd, 40));
    LIMITED(ftruncate(fd, 41));
    limit(-1);
    LIMITED(pwrite(fd, block, 50000, 150000));
    LIMITED(close(dup(fd)));
    close(fd);
    show_content(path);
}

/* What a file may not take stays in the pipe, and a copy that is cut short brings the signal. */
static void spliced(const char *path)
{
    static unsigned char rest[70000];
    int ends[2], fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644), from = open("/proc/self/exe", O_RDONLY);
    MUST(fd >= 0 && from >= 0 && pipe(ends) == 0 && write(ends[1], block, 200) == 200);
    limit(100);
    MUST(lseek(fd, 50, SEEK_SET) == 50);
    LIMITED(splice(ends[0], NULL, fd, NULL, 200, 0));
    LIMITED(splice(ends[0], NULL, fd, NULL, 200, 0));
    LIMITED(lseek(fd, 0, SEEK_CUR));
    SHOW(read(ends[0], rest, sizeof rest));
    MUST(memcmp(rest, block + 50, 150) == 0);
    LIMITED(sendfile(fd, from, &(off_t){ 0 }, 10));
    LIMITED(lseek(fd, 40, SEEK_SET));
    LIMITED(sendfile(fd, from, NULL, 100));
    SHOW(lseek(from, 0, SEEK_CUR));
    LIMITED(fallocate(fd, 0, INT64_MAX - 10, 4096));
    limit(-1);
    /* A splice that waits for the pipe. */
    pid_t child = fork();
    if (child == 0) {
        usleep(50000);
        _exit(write(ends[1], block, 60000) != 60000);
    }
    loff_t at = 1000;
    MUST(splice(ends[0], NULL, fd, &at, 10, 0) == 10 && at == 1010);
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    LIMITED(splice(ends[0], NULL, fd, &at, 100000, 0));
    close(ends[1]);
    LIMITED(splice(ends[0], NULL, fd, &at, 100000, 0));
    close(ends[0]);
    close(from);
    close(fd);
    show_content(path);
}

/* Without a handler the process dies of it; ignored it only fails. */
static void dying(const char *path)
{
    for (int ignored = 0; ignored < 2; ignored++) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            signal(SIGXFSZ, ignored ? SIG_IGN : SIG_DFL);
            struct rlimit none = { 0, 0 };
            setrlimit(RLIMIT_CORE, &none);
            int fd = open(path, O_RDWR | O_CREAT, 0644);
            limit(5000);
            long count = 0, done;
            while ((done = pwrite(fd, block, 700, count)) > 0)
                count += done;
            printf("%ld bytes, then %s\n", count, strerrorname_np(errno));
            fflush(stdout);
            _exit(7);
        }
        int status;
        MUST(waitpid(child, &status, 0) == child);
        printf("ignored %d: exit %d signal %d\n", ignored, WIFEXITED(status) ? WEXITSTATUS(status) : -1,
               WIFSIGNALED(status) ? WTERMSIG(status) : 0);
        show_content(path);
        unlink(path);
    }
}

/* A limit set before the program began holds too. */
static int begin_limited(const char *directory)
{
    int fd = open(in(directory, "limited"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    MUST(fd >= 0);
    LIMITED(write(fd, block, 60000));
    LIMITED(write(fd, block, 60000));
    close(fd);
    return 0;
}

int main(int argc, char **argv)
{
    fill(block, sizeof block, 3);
    signal(SIGXFSZ, count);
    if (argc > 2)
        return begin_limited(argv[1]);
    growing(in(argv[1], "grown"), 0);
    growing(in(argv[1], "appended"), O_APPEND);
    spliced(in(argv[1], "spliced"));
    dying(in(argv[1], "dying"));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        limit(65600);
        execl("/proc/self/exe", argv[0], argv[1], "limited", NULL);
        _exit(98);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    show_content(in(argv[1], "limited"));
    return 0;
}
