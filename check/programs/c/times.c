/* Times of files, and what else is asked of a file beside its bytes: blocks, F_CREATED_QUERY, flags of inodes, advice. A plain directory must answer the same, but for what is documented. */
#include "check.h"
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <time.h>

#define CREATED_QUERY 1028

static char *d;
static char block[8192];

static long long ns(struct timespec time) { return time.tv_sec * 1000000000ll + time.tv_nsec; }

/* A little less than a tick of the kernel's coarse clock. */
enum { HELD_UP_NS = 3000000 };

static long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return ns(now);
}

/* What is written and closed at once has one time, and not one before the program began. */
static void written_and_closed(void)
{
    int apart = 0, early = 0, moved = 0;
    for (int round = 0; round < 50; round++) {
        struct stat told, now;
        time_t before = time(NULL);
        long long begun = now_ns();
        int fd = open(in(d, "times"), O_RDWR | O_CREAT | (round % 2 ? O_TRUNC : 0), 0644);
        MUST(write(fd, block, 100 + 5000 * (round % 3 == 0)) > 0 && close(fd) == 0 && stat(in(d, "times"), &now) == 0);
        /* The time at which a file is closed cannot be set (st_ctime). A process that does not run for a while between its write and its close has two times. */
        int is_held_up = now_ns() - begun > HELD_UP_NS;
        apart += ns(now.st_mtim) != ns(now.st_ctim) && !is_held_up;
        early += now.st_mtime < before;
        /* What was told of an open file stays when it is closed. */
        fd = open(in(d, "times"), O_RDWR);
        begun = now_ns();
        MUST(pwrite(fd, block, 100, 50) == 100 && fstat(fd, &told) == 0);
        is_held_up = now_ns() - begun > HELD_UP_NS;
        apart += ns(told.st_mtim) != ns(told.st_ctim) && !is_held_up;
        usleep(round % 5 == 0 ? 11000 : 100);
        MUST(close(fd) == 0 && stat(in(d, "times"), &now) == 0);
        moved += ns(told.st_mtim) != ns(now.st_mtim);
    }
    printf("mtime is not ctime: %d, before the program: %d, moved by close: %d\n", apart, early, moved);
}

/* What is written after another file was looked at is not older than that one. */
static void in_order(void)
{
    static char large[100000];
    int older = 0, fd = make_in(d, "large", large, sizeof large);
    for (int round = 0; round < 300; round++) {
        struct stat seen, now;
        int small = open(in(d, "small"), O_WRONLY | O_CREAT | O_TRUNC, 0644);
        MUST(write(small, block, 1 + round) > 0 && close(small) == 0 && stat(in(d, "small"), &seen) == 0);
        MUST(pwrite(fd, block, 100, 70000) == 100 && fstat(fd, &now) == 0);
        older += ns(now.st_mtim) < ns(seen.st_mtim);
    }
    printf("older than what was looked at before: %d\n", older);
    close(fd);
}

static void read_times(void)
{
    int fd = make_in(d, "read", block, 5000);
    struct timespec past[2] = { { 1000, 0 }, { 2000, 0 } };
    struct stat stat;
    for (int read_by = 0; read_by < 3; read_by++) {
        MUST(futimens(fd, past) == 0 && fstat(fd, &stat) == 0);
        printf("set: atime %lld mtime %lld\n", (long long)stat.st_atime, (long long)stat.st_mtime);
        MUST(read_by == 0 ? pread(fd, block, 10, 0) == 10 : read_by == 1 ? lseek(fd, 0, SEEK_SET) == 0 && read(fd, block, 10) == 10 : 1);
        MUST(fstat(fd, &stat) == 0);
        printf("read: atime is %s, mtime %lld\n", stat.st_atime > 1000 ? "new" : "old", (long long)stat.st_mtime);
    }
    int quiet = open(in(d, "read"), O_RDONLY | O_NOATIME);
    MUST(futimens(fd, past) == 0 && read(quiet, block, 10) == 10 && fstat(fd, &stat) == 0);
    printf("read with O_NOATIME: atime is %s\n", stat.st_atime > 1000 ? "new" : "old");
    printf("blocks: %lld\n", (long long)stat.st_blocks);
    close(quiet), close(fd);
}

static void made(void)
{
    int fd = open(in(d, "made"), O_RDWR | O_CREAT, 0644);
    SHOW(fcntl(fd, CREATED_QUERY));
    int twin = dup(fd);
    SHOW(fcntl(twin, CREATED_QUERY));
    close(twin), close(fd);
    fd = open(in(d, "made"), O_RDWR | O_CREAT, 0644);
    SHOW(fcntl(fd, CREATED_QUERY));
    SHOW(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
    SHOW(readahead(fd, 0, 4096));
    int flags = 0;
    SHOW(ioctl(fd, FS_IOC_GETFLAGS, &flags));
    /* Documented: flags would be one member's alone. */
    int dir = open(d, O_RDONLY | O_DIRECTORY);
    flags = FS_APPEND_FL;
    if (on_array())
        MUST(ioctl(fd, FS_IOC_SETFLAGS, &flags) < 0 && errno == EOPNOTSUPP && ioctl(dir, FS_IOC_SETFLAGS, &flags) < 0 && errno == EOPNOTSUPP);
    MUST(ioctl(dir, FS_IOC_GETFLAGS, &flags) < 0 || !(flags & FS_APPEND_FL));
    close(dir), close(fd);
}

int main(int count, char **arguments)
{
    d = arguments[1];
    written_and_closed();
    in_order();
    read_times();
    made();
    return 0;
}
