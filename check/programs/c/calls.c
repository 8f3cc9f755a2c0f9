/* One call after the other, with its result or error: a plain directory must answer the same. */
#include "check.h"
#include <dirent.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <utime.h>

static char *d;
static unsigned char block[200000], back[200000];

static void opening(void)
{
    int fd;
    MUST(mkdir(in(d, "dir"), 0755) == 0);
    close(make_in(d, "file", block, 100));
    MUST(symlink("file", in(d, "link")) == 0 && symlink("loop", in(d, "loop")) == 0 && symlink("none", in(d, "dangling")) == 0);
    char *file = strdup(in(d, "file")), *dir = strdup(in(d, "dir"));
    SHOW(fd = open(file, O_RDONLY));
    SHOW(open(file, O_RDONLY | O_DIRECTORY));
    SHOW(open(dir, O_RDWR));
    SHOW(open(file, O_CREAT | O_EXCL | O_WRONLY, 0600));
    SHOW(open(in(d, "none"), O_RDONLY));
    SHOW(open(in(d, "file/below"), O_RDONLY));
    SHOW(open(in(d, "file/"), O_RDONLY));
    SHOW(open(in(d, "dir/none/x"), O_CREAT | O_WRONLY, 0600));
    SHOW(open(in(d, "link"), O_RDONLY | O_NOFOLLOW));
    SHOW(open(in(d, "loop"), O_RDONLY));
    SHOW(open(in(d, "dangling"), O_RDONLY));
    SHOW(close(open(in(d, "dangling"), O_CREAT | O_WRONLY, 0604)));
    SHOW(open(in(d, "link"), O_CREAT | O_EXCL | O_WRONLY, 0600));
    SHOW(open("", O_RDONLY));
    char name[300];
    memset(name, 'n', 299);
    name[299] = 0;
    SHOW(open(in(d, name), O_CREAT | O_WRONLY, 0600));
    SHOW(open((char *)8, O_RDONLY));
    SHOW(write(fd, "x", 1));
    SHOW(ftruncate(fd, 5));
    SHOW(close(fd));
    SHOW(close(fd));
    SHOW(read(fd, back, 1));
    int at = open(d, O_RDONLY | O_DIRECTORY);
    SHOW(close(openat(at, "file", O_RDONLY)));
    SHOW(openat(at, "dir/../none", O_RDONLY));
    SHOW(openat(at, "../none", O_RDONLY));
    SHOW(close(openat(at, "dir/../file", O_RDONLY)));
    SHOW(close(openat(-100, file, O_RDONLY)));
    SHOW(openat(99, "file", O_RDONLY));
    SHOW(read(at, back, 10));
    SHOW(write(at, back, 10));
    SHOW(close(at));
    SHOW(fd = open(d, O_TMPFILE | O_RDWR, 0600));
    if (fd >= 0) {
        SHOW(write(fd, block, 70000));
        SHOW(pread(fd, back, 70000, 0));
        printf("unnamed file: %s\n", memcmp(block, back, 70000) ? "different" : "the same");
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        SHOW(linkat(AT_FDCWD, path, AT_FDCWD, in(d, "was-unnamed"), AT_SYMLINK_FOLLOW));
        SHOW(close(fd));
        show_content(in(d, "was-unnamed"));
    }
    SHOW(fd = open(file, O_PATH));
    SHOW(read(fd, back, 1));
    struct stat stat;
    SHOW(fstat(fd, &stat));
    printf("size by O_PATH %lld\n", (long long)stat.st_size);
    SHOW(close(fd));
    SHOW(fd = creat(in(d, "created"), 0600));
    SHOW(close(fd));
}

static void reading_and_writing(void)
{
    int fd = make_in(d, "rw", block, 100000);
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(lseek(fd, -1, SEEK_SET));
    SHOW(lseek(fd, 10, SEEK_END));
    SHOW(read(fd, back, 10));
    SHOW(lseek(fd, 99990, SEEK_SET));
    SHOW(read(fd, back, 100));
    SHOW(read(fd, back, 100));
    SHOW(lseek(fd, 0, 77));
    SHOW(pread(fd, back, 10, -1));
    SHOW(pwrite(fd, back, 10, -1));
    SHOW(pread(fd, back, 0, 5));
    SHOW(pwrite(fd, block, 0, 200000));
    SHOW(pread(fd, back, 50, 100001));
    SHOW(read(fd, (void *)8, 10));
    SHOW(write(fd, (void *)8, 10));
    SHOW(pread(fd, (void *)8, 10, 0));
    SHOW(pwrite(fd, (void *)8, 10, 0));
    SHOW(lseek(fd, 0, SEEK_CUR));
    struct iovec parts[3] = { { block, 1000 }, { block + 5000, 0 }, { block + 2000, 7777 } };
    struct iovec into[2] = { { back, 500 }, { back + 500, 20000 } };
    SHOW(writev(fd, parts, 3));
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(pwritev(fd, parts, 3, 130000));
    SHOW(preadv(fd, into, 2, 120000));
    printf("sum %016llx\n", (unsigned long long)sum(back, 20500, 0));
    SHOW(readv(fd, into, 2));
    SHOW(lseek(fd, 0, SEEK_SET));
    SHOW(readv(fd, into, 2));
    SHOW(readv(fd, into, -1));
    SHOW(readv(fd, into, 2000));
    /* Of the number of buffers the kernel takes the lower 32 bits. */
    SHOW(syscall(SYS_readv, fd, into, 1L << 32));
    SHOW(syscall(SYS_readv, fd, into, (1L << 32) + 1025));
    SHOW(syscall(SYS_preadv, fd, into, (1L << 32) + 2, 120000, 0));
    SHOW(syscall(SYS_writev, fd, parts, (1L << 63) + 1));
    SHOW(syscall(SYS_pwritev2, fd, parts, -1L << 32 | 2, 130000, 0, 0));
    SHOW(preadv2(fd, into, 2, 50, 0));
    SHOW(preadv2(fd, into, 2, -1, 0));
    SHOW(pwritev2(fd, parts, 3, 60, RWF_DSYNC));
    SHOW(pwritev2(fd, parts, 1, 0, RWF_APPEND));
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(lseek(fd, 0, SEEK_END));
    SHOW(pwrite(fd, "beyond", 6, 1 << 20));
    SHOW(lseek(fd, 0, SEEK_END));
    SHOW(pread(fd, back, 100, 1 << 19));
    printf("hole reads as zeros: %d\n", back[0] == 0 && memcmp(back, back + 1, 99) == 0);
    SHOW(fsync(fd));
    SHOW(fdatasync(fd));
    SHOW(sync_file_range(fd, 0, 4096, SYNC_FILE_RANGE_WRITE));
    SHOW(syncfs(fd));
    SHOW(posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL));
    SHOW(readahead(fd, 0, 4096));
    SHOW(close(fd));
    fd = open(in(d, "rw"), O_WRONLY);
    SHOW(read(fd, back, 1));
    SHOW(close(fd));
    show_content(in(d, "rw"));
}

/* Vectored writes of more than the library keeps on its heap at a time. */
static void wide_vectors(void)
{
    static unsigned char wide[5 << 20];
    struct iovec parts[3] = { { wide, 1 << 20 }, { wide + (1 << 20), 1500000 }, { wide + 3000000, 2000000 } };
    fill(wide, sizeof wide, 3);
    int fd = open(in(d, "wide"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    SHOW(writev(fd, parts, 3));
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(pwritev(fd, parts, 2, 4000000));
    SHOW(pwritev2(fd, parts, 2, 0, RWF_APPEND));
    parts[1].iov_base = (void *)8;
    SHOW(pwritev(fd, parts, 3, 9000000));
    SHOW(lseek(fd, 0, SEEK_END));
    SHOW(close(fd));
    show_content(in(d, "wide"));
}

static void sizes(void)
{
    int fd = make_in(d, "sizes", block, 70000);
    struct stat stat;
    SHOW(ftruncate(fd, 30000));
    SHOW(ftruncate(fd, 150000));
    show_content(in(d, "sizes"));
    SHOW(ftruncate(fd, -1));
    SHOW(truncate(in(d, "sizes"), 66666));
    SHOW(truncate(in(d, "none"), 1));
    SHOW(truncate(in(d, "dir"), 1));
    show_content(in(d, "sizes"));
    SHOW(fallocate(fd, 0, 60000, 40000));
    SHOW(fstat(fd, &stat));
    printf("size %lld\n", (long long)stat.st_size);
    SHOW(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 200000));
    SHOW(fstat(fd, &stat));
    printf("size %lld\n", (long long)stat.st_size);
    SHOW(fallocate(fd, 0, -1, 5));
    SHOW(fallocate(fd, 0, 0, 0));
    show_content(in(d, "sizes"));
    SHOW(posix_fallocate(fd, 0, 123456));
    SHOW(ftruncate(fd, 0));
    SHOW(pwrite(fd, "end", 3, 99997));
    show_content(in(d, "sizes"));
    SHOW(ftruncate(fd, 99999));
    SHOW(ftruncate(fd, 100003));
    show_content(in(d, "sizes"));
    SHOW(lseek(fd, 200000, SEEK_DATA));
    SHOW(lseek(fd, 200000, SEEK_HOLE));
    SHOW(close(fd));
    fd = make_in(d, "full", block, 90000);
    SHOW(lseek(fd, 5, SEEK_DATA));
    SHOW(lseek(fd, 5, SEEK_HOLE));
    SHOW(close(fd));
}

static void punching(void)
{
    int fd = make_in(d, "punched", block, 150000);
    SHOW(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 10000, 90000) == 0 || errno == EOPNOTSUPP);
    int zeros = pread(fd, back, 90000, 10000) == 90000 && back[0] == 0 && memcmp(back, back + 1, 89999) == 0;
    int kept = memcmp(back, block + 10000, 90000) == 0;
    printf("either all of it is zeros or nothing changed: %d\n", zeros || kept);
    MUST(ftruncate(fd, 0) == 0);
    close(fd);
}

static void duplicates(void)
{
    int fd = make_in(d, "dup", block, 5000), other, third;
    SHOW(other = dup(fd));
    SHOW(lseek(fd, 100, SEEK_SET));
    SHOW(read(other, back, 50));
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(third = fcntl(fd, F_DUPFD, 20));
    SHOW(read(third, back, 50));
    SHOW(fcntl(third, F_GETFD));
    SHOW(close(third));
    SHOW(third = fcntl(fd, F_DUPFD_CLOEXEC, 20));
    SHOW(fcntl(third, F_GETFD));
    SHOW(dup2(fd, third));
    SHOW(fcntl(third, F_GETFD));
    SHOW(dup2(fd, fd));
    SHOW(dup3(fd, fd, 0));
    SHOW(dup3(fd, third, O_CLOEXEC));
    SHOW(close(fd));
    SHOW(fd = open(in(d, "file"), O_RDONLY));
    SHOW(write(other, "still here", 10));
    SHOW(lseek(third, 0, SEEK_CUR));
    SHOW(fcntl(other, F_GETFL) & (O_ACCMODE | O_APPEND | O_NONBLOCK));
    SHOW(fcntl(other, F_SETFL, O_APPEND));
    SHOW(fcntl(third, F_GETFL) & (O_ACCMODE | O_APPEND | O_NONBLOCK));
    SHOW(write(third, "appended", 8));
    SHOW(lseek(other, 0, SEEK_CUR));
    SHOW(pwrite(other, "appended too", 12, 0));
    SHOW(fcntl(other, F_SETFL, 0));
    SHOW(pwrite(other, "at zero", 7, 0));
    SHOW(dup2(99, 98));
    SHOW(dup2(0, other));
    SHOW(lseek(third, 0, SEEK_CUR));
    SHOW(close_range(third, third, 0));
    SHOW(read(third, back, 1));
    SHOW(close(other));
    SHOW(close(fd));
    show_content(in(d, "dup"));
}

static void copying(void)
{
    int from = make_in(d, "from", block, 150000), to = make_in(d, "to", block, 10), pipes[2];
    off_t at = 1000, target = 0;
    MUST(pipe(pipes) == 0);
    int host = open("host-copy", O_RDWR | O_CREAT | O_TRUNC, 0600);
    MUST(host >= 0);
    SHOW(sendfile(host, from, &at, 60000));
    printf("at %lld\n", (long long)at);
    SHOW(lseek(from, 500, SEEK_SET));
    SHOW(sendfile(to, from, NULL, 40000));
    SHOW(lseek(from, 0, SEEK_CUR));
    SHOW(lseek(host, 0, SEEK_SET));
    SHOW(sendfile(to, host, NULL, 60000));
    SHOW(lseek(to, 0, SEEK_CUR));
    at = 5;
    ssize_t count = copy_file_range(from, &at, host, &target, 20000, 0);
    printf("array to host: %s\n", count == 20000 || errno == EXDEV ? "fine" : strerrorname_np(errno));
    MUST(count == 20000 || (pread(from, back, 20000, 5) == 20000 && pwrite(host, back, 20000, 0) == 20000));
    at = 7;
    target = 99;
    count = copy_file_range(from, &at, to, &target, 30000, 0);
    if (count < 0 && (errno == EXDEV || errno == EOPNOTSUPP || errno == ENOSYS)) {
        MUST(pread(from, back, 30000, 7) == 30000 && pwrite(to, back, 30000, 99) == 30000);
        count = 30000;
    }
    printf("within: %zd\n", count);
    /* splice may be refused (EINVAL), as file systems do that cannot: programs fall back. */
    at = 3;
    count = splice(from, &at, pipes[1], NULL, 4000, 0);
    int refused = count == -1 && errno == EINVAL;
    MUST(refused || (count == 4000 && read(pipes[0], back, 4000) == 4000 && memcmp(back, block + 3, 4000) == 0));
    SHOW(write(pipes[1], block, 3000));
    target = 50000;
    count = splice(pipes[0], NULL, to, &target, 3000, 0);
    refused = count == -1 && errno == EINVAL;
    MUST(count == 3000 || (refused && read(pipes[0], back, 3000) == 3000 && pwrite(to, back, 3000, 50000) == 3000));
    close(from), close(to), close(host), close(pipes[0]), close(pipes[1]);
    show_content(in(d, "to"));
    show_content("./host-copy");
    unlink("host-copy");
}

static void show_stat(const char *name, int result, const struct stat *stat)
{
    if (result)
        printf("%s: %s\n", name, strerrorname_np(errno));
    else
        printf("%s: mode %o, %lld bytes, %ld links, %ld.%09ld\n", name, stat->st_mode,
               S_ISDIR(stat->st_mode) ? 0ll : (long long)stat->st_size, S_ISDIR(stat->st_mode) ? 0l : (long)stat->st_nlink,
               (long)stat->st_mtim.tv_sec, stat->st_mtim.tv_nsec);
}

static void attributes(void)
{
    struct stat stat;
    struct statx statx_;
    struct timespec times[2] = { { 1000000000, 5 }, { 1100000000, 123456789 } };
    close(make_in(d, "attributes", block, 12345));
    char *path = strdup(in(d, "attributes"));
    SHOW(chmod(path, 06751));
    SHOW(utimensat(AT_FDCWD, path, times, 0));
    show_stat("stat", lstat(path, &stat), &stat);
    SHOW(statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &statx_));
    printf("statx: %llo %llu\n", (unsigned long long)statx_.stx_mode, (unsigned long long)statx_.stx_size);
    int fd = open(path, O_RDWR);
    SHOW(fchmod(fd, 0600));
    SHOW(fchown(fd, 0 + getuid(), getgid()));
    SHOW(futimens(fd, times));
    show_stat("fstat", fstat(fd, &stat), &stat);
    SHOW(write(fd, "x", 1));
    fstat(fd, &stat);
    printf("writing moves the time: %d\n", stat.st_mtim.tv_sec > 1100000000);
    SHOW(close(fd));
    show_stat("link", lstat(in(d, "link"), &stat) ? -1 : (stat.st_mtim = (struct timespec){ 0 }, 0), &stat);
    show_stat("none", lstat(in(d, "none-here"), &stat), &stat);
    SHOW(access(path, R_OK | W_OK));
    SHOW(access(in(d, "none"), F_OK) == 0 || errno == ENOENT);
    SHOW(faccessat(AT_FDCWD, path, X_OK, AT_EACCESS));
    SHOW(link(path, in(d, "second-name")));
    SHOW(lstat(path, &stat));
    printf("links %ld\n", (long)stat.st_nlink);
    SHOW(lsetxattr(path, "user.colour", "green", 5, 0));
    SHOW(getxattr(path, "user.colour", back, 100));
    SHOW(getxattr(path, "user.none", back, 100));
    SHOW(listxattr(in(d, "second-name"), (char *)back, 1000));
    SHOW(removexattr(path, "user.colour"));
    SHOW(listxattr(path, (char *)back, 1000));
    struct statfs fs;
    SHOW(statfs(d, &fs));
    printf("there is room: %d\n", fs.f_blocks > 0 && fs.f_bavail <= fs.f_blocks);
    struct statvfs vfs;
    SHOW(statvfs(path, &vfs));
    struct utimbuf old = { 5, 6 };
    SHOW(utime(path, &old));
    show_stat("stat", lstat(path, &stat), &stat);
    free(path);
}

static void names(void)
{
    char target[100] = { 0 };
    SHOW(mkdir(in(d, "dir"), 0700));
    SHOW(mkdir(in(d, "dir/sub"), 0700));
    SHOW(mkdir(in(d, "none/sub"), 0700));
    SHOW(mkdir(in(d, "file/sub"), 0700));
    SHOW(rmdir(in(d, "dir")));
    SHOW(rmdir(in(d, "file")));
    SHOW(unlink(in(d, "dir")));
    SHOW(unlink(in(d, "nothing")));
    SHOW(rename(in(d, "file"), in(d, "dir")));
    SHOW(rename(in(d, "dir"), in(d, "file")));
    SHOW(rename(in(d, "dir"), in(d, "dir/sub/below")));
    SHOW(rename(in(d, "nothing"), in(d, "x")));
    SHOW(rename(in(d, "file"), in(d, "dir/sub/moved")));
    SHOW(rename(in(d, "dir/sub/moved"), in(d, "file")));
    close(make_in(d, "a", block, 10));
    close(make_in(d, "b", block, 20000));
    SHOW(renameat2(AT_FDCWD, in(d, "a"), AT_FDCWD, in(d, "b"), RENAME_NOREPLACE));
    SHOW(renameat2(AT_FDCWD, in(d, "a"), AT_FDCWD, in(d, "b"), RENAME_EXCHANGE));
    show_content(in(d, "a"));
    show_content(in(d, "b"));
    SHOW(rename(in(d, "b"), in(d, "a")));
    SHOW(rename(in(d, "a"), "host-name"));
    SHOW(link(in(d, "a"), "host-name"));
    SHOW(symlink("target", in(d, "file")));
    SHOW(symlink("dir/sub", in(d, "to-sub")));
    SHOW(readlink(in(d, "to-sub"), target, sizeof target));
    SHOW(readlink(in(d, "file"), target, sizeof target));
    printf("%s\n", target);
    close(make_in(d, "to-sub/through", block, 5));
    show_content(in(d, "dir/sub/through"));
    SHOW(mkfifo(in(d, "pipe"), 0600));
    struct stat stat;
    SHOW(lstat(in(d, "pipe"), &stat) == 0 && S_ISFIFO(stat.st_mode));
    SHOW(unlink(in(d, "pipe")));
    int fd = make_in(d, "unlinked", block, 70000);
    SHOW(unlink(in(d, "unlinked")));
    SHOW(pread(fd, back, 70000, 0));
    SHOW(pwrite(fd, block, 70000, 70000));
    SHOW(fstat(fd, &stat));
    printf("%lld bytes without a name, %ld links\n", (long long)stat.st_size, (long)stat.st_nlink);
    SHOW(close(fd));
    SHOW(rmdir(in(d, "dir/sub/.")));
    SHOW(rmdir(in(d, "dir/sub/..")));
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void directories(void)
{
    struct dirent **entries;
    int count = scandir(d, &entries, NULL, by_name);
    for (int index = 0; index < count; index++)
        printf("%s type %d\n", entries[index]->d_name, entries[index]->d_type);
    DIR *many;
    MUST(mkdir(in(d, "many"), 0755) == 0 && (many = opendir(in(d, "many"))));
    char name[64];
    for (int index = 0; index < 700; index++) {
        snprintf(name, sizeof name, "name-%d", index);
        MUST(mknodat(dirfd(many), name, S_IFREG | 0600, 0) == 0);
    }
    int seen = 0;
    for (struct dirent *entry; (entry = readdir(many));)
        if (entry->d_name[0] == 'n' && unlinkat(dirfd(many), entry->d_name, 0) == 0)
            seen++;
    printf("%d entries removed while reading\n", seen);
    rewinddir(many);
    seen = 0;
    while (readdir(many))
        seen++;
    printf("%d left\n", seen);
    closedir(many);
    SHOW(rmdir(in(d, "many")));
}

static void locks(void)
{
    int fd = make_in(d, "locked", block, 10), other = open(in(d, "locked"), O_RDWR);
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 5 };
    SHOW(flock(fd, LOCK_EX | LOCK_NB));
    SHOW(flock(other, LOCK_EX | LOCK_NB));
    SHOW(flock(fd, LOCK_UN));
    SHOW(flock(other, LOCK_SH | LOCK_NB));
    SHOW(fcntl(fd, F_SETLK, &lock));
    SHOW(fcntl(other, F_OFD_SETLK, &lock));
    SHOW(lockf(other, F_TLOCK, 1));
    SHOW(close(fd));
    SHOW(fcntl(other, F_OFD_SETLK, &lock));
    SHOW(close(other));
    SHOW(ioctl(0 + open(in(d, "locked"), O_RDONLY), 0x5401 /* TCGETS */, back));
}

/* A lock of a range of any length leaves an executable file one that may be opened for writing. */
static void long_locks(void)
{
    struct { off_t start, length; } ranges[] = { { 0, INT64_MAX }, { 10, INT64_MAX - 9 }, { INT64_MAX - 1, 1 }, { INT64_MAX, 0 }, { INT64_MAX, 2 } };
    int fd = make_in(d, "program", block, 100);
    MUST(fchmod(fd, 0755) == 0);
    for (int index = 0; index < 5; index++) {
        struct flock lock = { .l_type = F_WRLCK, .l_start = ranges[index].start, .l_len = ranges[index].length };
        printf("range %d\n", index);
        SHOW(fcntl(fd, F_OFD_SETLK, &lock));
        int other;
        SHOW((other = open(in(d, "program"), O_WRONLY)) >= 0);
        struct flock asked = { .l_type = F_WRLCK, .l_start = 5, .l_len = 1 };
        SHOW(fcntl(other, F_OFD_GETLK, &asked));
        SHOW(asked.l_type != F_UNLCK);
        close(other);
        lock.l_type = F_UNLCK;
        SHOW(fcntl(fd, F_OFD_SETLK, &lock));
    }
    close(fd);
}

/* fallocate moves the times also where it changes nothing. */
static void idle_space(void)
{
    int modes[] = { FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_KEEP_SIZE, 0 };
    int fd = make_in(d, "idle", block, 10000);
    for (int index = 0; index < 3; index++) {
        struct stat before, after;
        MUST(fstat(fd, &before) == 0 && usleep(20000) == 0);
        MUST(fallocate(fd, modes[index], index == 0 ? 20000 : 0, 4096) == 0 && fstat(fd, &after) == 0);
        printf("mode %x: times moved %d %d\n", modes[index],
               before.st_mtim.tv_sec != after.st_mtim.tv_sec || before.st_mtim.tv_nsec != after.st_mtim.tv_nsec,
               before.st_ctim.tv_sec != after.st_ctim.tv_sec || before.st_ctim.tv_nsec != after.st_ctim.tv_nsec);
    }
    close(fd);
}

static void requests(void)
{
    int fd = make_in(d, "asked", block, 10), value = 0;
    MUST(lseek(fd, 100, SEEK_SET) == 100);
    SHOW(ioctl(fd, FIONREAD, &value));
    SHOW(value);
    MUST(ftruncate(fd, (5ll << 30) + 7) == 0);
    SHOW(ioctl(fd, FIONREAD, &value));
    SHOW(value);
    value = 0;
    SHOW(ioctl(fd, FIOASYNC, &value));
    value = 1;
    SHOW(ioctl(fd, FIOASYNC, &value));
    SHOW(ioctl(fd, FIOASYNC, (void *)8));
    MUST(ftruncate(fd, 10) == 0);
    close(fd);
}

int main(int argc, char **argv)
{
    (void)argc;
    d = argv[1];
    umask(022);
    fill(block, sizeof block, 11);
    opening();
    reading_and_writing();
    wide_vectors();
    sizes();
    punching();
    duplicates();
    copying();
    attributes();
    names();
    locks();
    long_locks();
    idle_space();
    requests();
    directories();
    return 0;
}
