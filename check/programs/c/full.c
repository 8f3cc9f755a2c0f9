/* A program that has taken every number that RLIMIT_NOFILE allows: calls that return no descriptor go on as ever, by name and by
   descriptor, in several threads, in children of fork and of vfork. A plain directory must answer the same. */
#include "check.h"
#include <dirent.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <utime.h>

enum { FULL_MAX = 4096, THREADS = 4, ROUNDS = 8 };

static int taken[FULL_MAX], taken_count;
/* A symlink outside that leads to the directory. */
static char way[64];

/* Takes what is left: the library may have given up descriptors of its own. */
static void take_rest(void)
{
    for (int fd; (fd = fcntl(0, F_DUPFD_CLOEXEC, 0)) >= 0;)
        taken[taken_count++] = fd;
}

/* Takes every number: by copies of standard input, or by files of the directory as far as there are any. */
static void take(int by_files)
{
    for (int fd; by_files && taken_count < 300; taken_count++) {
        char name[32];
        snprintf(name, sizeof name, "held-%d", taken_count);
        if ((fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0644)) < 0)
            break;
        taken[taken_count] = fd;
    }
    take_rest();
    SHOW(dup(0));
}

/* An open that finds no number makes nothing. */
static void open_one(const char *name, int flags)
{
    int fd = open(name, flags, 0644), error = errno;
    MUST(fd >= 0 || error == EMFILE);
    if (fd >= 0)
        taken[taken_count++] = fd;
    if (flags & O_CREAT) {
        struct stat stat;
        MUST((lstat(name, &stat) == 0) == (fd >= 0));
        MUST(fd < 0 || unlink(name) == 0);
    }
}

static void give_back(void)
{
    while (taken_count)
        MUST(close(taken[--taken_count]) == 0);
}

static int count_open(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    MUST(directory);
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

static void by_name(int dir)
{
    struct stat stat;
    struct statx statx_;
    struct statfs statfs_;
    char text[256];
    struct timespec times[2] = { { 1000, 5 }, { 2000, 6 } };
    struct timeval old[2] = { { 1000, 5 }, { 2000, 6 } };
    struct utimbuf oldest = { 1000, 2000 };
    SHOW(lstat("data", &stat));
    SHOW(stat.st_size);
    SHOW(fstatat(dir, "inner", &stat, 0));
    SHOW(fstatat(dir, "../link", &stat, AT_SYMLINK_NOFOLLOW));
    SHOW(statx(dir, "inner", 0, STATX_ALL, &statx_));
    SHOW(statx_.stx_size);
    SHOW(lstat("nothing", &stat));
    SHOW(lstat("data/under", &stat));
    SHOW(access("data", R_OK | W_OK));
    SHOW(access("data", X_OK));
    SHOW(faccessat(dir, "inner", F_OK, 0));
    SHOW(faccessat(dir, "inner", W_OK, AT_EACCESS));
    SHOW(chmod("data", 0600));
    SHOW(fchmodat(dir, "inner", 0640, 0));
    SHOW(chown("data", getuid(), getgid()));
    SHOW(lchown("link", getuid(), getgid()));
    SHOW(fchownat(dir, "inner", -1, getgid(), 0));
    SHOW(truncate("data", 70000));
    SHOW(truncate("data", 100));
    SHOW(truncate("nothing", 100));
    SHOW(utimensat(AT_FDCWD, "data", times, 0));
    SHOW(utimensat(dir, "inner", times, AT_SYMLINK_NOFOLLOW));
    SHOW(utimes("data", old));
    SHOW(utime("data", &oldest));
    SHOW(fstatat(AT_FDCWD, "link", &stat, 0));
    SHOW(stat.st_mtime);
    SHOW(stat.st_mode);
    SHOW(rename("data", "moved"));
    SHOW(renameat(AT_FDCWD, "moved", dir, "moved"));
    SHOW(renameat2(dir, "moved", dir, "inner", RENAME_NOREPLACE));
    SHOW(renameat2(dir, "moved", dir, "inner", RENAME_EXCHANGE));
    SHOW(renameat2(dir, "moved", dir, "inner", RENAME_EXCHANGE));
    SHOW(renameat(dir, "moved", AT_FDCWD, "data"));
    SHOW(link("data", "second"));
    SHOW(linkat(dir, "inner", AT_FDCWD, "third", 0));
    SHOW(link("data", "second"));
    SHOW(lstat("second", &stat));
    SHOW(stat.st_nlink);
    SHOW(unlink("second"));
    SHOW(unlinkat(dir, "../third", 0));
    SHOW(unlink("second"));
    SHOW(symlink("data", "pointer"));
    SHOW(symlinkat("inner", dir, "pointer"));
    memset(text, 0, sizeof text);
    SHOW(readlink("pointer", text, sizeof text));
    printf("%s\n", text);
    SHOW(readlinkat(dir, "pointer", text, sizeof text));
    printf("%.5s\n", text);
    SHOW(readlink("data", text, sizeof text));
    SHOW(unlink("pointer"));
    SHOW(unlinkat(dir, "pointer", 0));
    SHOW(mkdir("made", 0755));
    SHOW(mkdirat(dir, "made", 0700));
    SHOW(mkdir("made", 0755));
    SHOW(rename("data", "made/data"));
    SHOW(rmdir("made"));
    SHOW(rename("made/data", "data"));
    SHOW(rmdir("made"));
    SHOW(unlinkat(dir, "made", AT_REMOVEDIR));
    SHOW(mknod("node", S_IFREG | 0644, 0));
    SHOW(mknodat(dir, "fifo", S_IFIFO | 0644, 0));
    SHOW(unlink("node"));
    SHOW(unlinkat(dir, "fifo", 0));
    SHOW(statfs("data", &statfs_));
    SHOW(setxattr("data", "user.full", "value", 5, 0));
    SHOW(lsetxattr("data", "user.other", "v", 1, XATTR_CREATE));
    SHOW(setxattr("data", "user.full", "value", 5, XATTR_CREATE));
    memset(text, 0, sizeof text);
    SHOW(getxattr("data", "user.full", text, sizeof text));
    printf("%s\n", text);
    SHOW(lgetxattr("data", "user.other", text, sizeof text));
    SHOW(listxattr("data", text, sizeof text) > 0);
    SHOW(llistxattr("data", text, sizeof text) > 0);
    SHOW(removexattr("data", "user.full"));
    SHOW(lremovexattr("data", "user.other"));
    SHOW(removexattr("data", "user.full"));
    SHOW(chdir("sub"));
    SHOW(lstat("inner", &stat));
    MUST(getcwd(text, sizeof text));
    printf("%s\n", strrchr(text, '/'));
    SHOW(chdir(".."));
    SHOW(access("data", F_OK));
    /* Through what is open. */
    snprintf(text, sizeof text, "/proc/self/fd/%d/inner", dir);
    MUST(access(text, F_OK) == 0);
    /* By a symlink that lies elsewhere. */
    MUST(chdir(way) == 0 && chdir("sub") == 0 && access("inner", F_OK) == 0 && chdir("..") == 0);
    char name[300];
    snprintf(name, sizeof name, "%s/made", way);
    SHOW(mkdir(name, 0755));
    SHOW(access("made", F_OK));
    SHOW(chmod(name, 0700));
    SHOW(lstat("made", &stat));
    SHOW(stat.st_mode);
    snprintf(text, sizeof text, "%s/sub/made", way);
    SHOW(rename(name, text));
    SHOW(rmdir(text));
    SHOW(access("sub/made", F_OK));
    snprintf(text, sizeof text, "%s/data", way);
    SHOW(truncate(text, 150));
    SHOW(access(text, X_OK));
    SHOW(rename(text, name));
    SHOW(link("made", text));
    SHOW(unlink(name));
    open_one("data", O_RDONLY);
    open_one("sub", O_PATH);
    open_one("never-made", O_RDWR | O_CREAT);
}

static void by_descriptor(int fd, int dir)
{
    static unsigned char block[150000], back[sizeof block];
    struct stat stat;
    struct statfs statfs_;
    char text[256];
    struct iovec parts[2] = { { block, 1000 }, { block + 1000, 3000 } };
    struct timespec times[2] = { { 3000, 0 }, { 4000, 0 } };
    fill(block, sizeof block, 7);
    SHOW(ftruncate(fd, 0));
    SHOW(lseek(fd, 0, SEEK_SET));
    SHOW(write(fd, block, 5000));
    SHOW(pwrite(fd, block, sizeof block, 3));
    SHOW(pwritev(fd, parts, 2, 200000));
    SHOW(write(fd, block, 10));
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(pread(fd, back, sizeof back, 3) == sizeof back);
    MUST(memcmp(back + 5007, block + 5007, sizeof block - 5007) == 0);
    SHOW(lseek(fd, 0, SEEK_SET));
    SHOW(read(fd, back, 100));
    SHOW(fstat(fd, &stat));
    SHOW(stat.st_size);
    SHOW(fsync(fd));
    SHOW(fdatasync(fd));
    SHOW(fchmod(fd, 0604));
    SHOW(fchown(fd, getuid(), getgid()));
    SHOW(futimens(fd, times));
    SHOW(fstatfs(fd, &statfs_));
    SHOW(fallocate(fd, 0, 300000, 5000));
    SHOW(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1000, 100000));
    SHOW(ftruncate(fd, 500000));
    SHOW(ftruncate(fd, 4000));
    SHOW(lseek(fd, 0, SEEK_HOLE) > 0);
    SHOW(fsetxattr(fd, "user.open", "xyz", 3, 0));
    SHOW(fgetxattr(fd, "user.open", text, sizeof text));
    SHOW(flistxattr(fd, text, sizeof text) > 0);
    SHOW(fremovexattr(fd, "user.open"));
    SHOW(posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED));
    SHOW(syncfs(fd));
    SHOW(fstatat(fd, "", &stat, AT_EMPTY_PATH));
    SHOW(fchownat(fd, "", -1, getgid(), AT_EMPTY_PATH));
    SHOW(fchdir(dir));
    SHOW(access("inner", F_OK));
    SHOW(chdir(".."));
    SHOW(fchmod(dir, 0750));
    SHOW(fsync(dir));
    SHOW(lseek(dir, 0, SEEK_SET));
    DIR *listed = fdopendir(dir);
    MUST(listed);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(listed));)
        count++;
    SHOW(count);
    /* Numbers that are given another meaning. */
    SHOW(dup2(0, taken[0]) == taken[0]);
    SHOW(dup3(fd, taken[0], O_CLOEXEC) == taken[0]);
    SHOW(fstat(taken[0], &stat));
    SHOW(stat.st_size);
    take_rest();
    SHOW(fcntl(fd, F_DUPFD, 0));
    SHOW(fcntl(fd, F_DUPFD_CLOEXEC, 3));
    SHOW(dup2(0, taken[0]) == taken[0]);
}

static void *work(void *argument)
{
    int index = (int)(intptr_t)argument;
    char first[32], second[32];
    struct stat stat;
    snprintf(first, sizeof first, "thread-%d", index);
    snprintf(second, sizeof second, "sub/thread-%d", index);
    for (int round = 0; round < ROUNDS; round++) {
        MUST(mkdir(first, 0755) == 0);
        MUST(rename(first, second) == 0);
        MUST(lstat(first, &stat) < 0 && errno == ENOENT);
        MUST(chmod(second, 0700) == 0);
        MUST(lstat(second, &stat) == 0 && (stat.st_mode & 0777) == 0700);
        MUST(rmdir(second) == 0);
    }
    return NULL;
}

static void in_threads(void)
{
    pthread_t threads[THREADS];
    for (int index = 0; index < THREADS; index++)
        MUST(pthread_create(&threads[index], NULL, work, (void *)(intptr_t)index) == 0);
    for (int index = 0; index < THREADS; index++)
        MUST(pthread_join(threads[index], NULL) == 0);
    printf("threads are done\n");
}

static void in_children(int fd)
{
    struct stat stat;
    int status;
    fflush(stdout);
    for (int kind = 0; kind < 3; kind++) {
        pid_t child = kind == 1 ? vfork() : fork();
        MUST(child >= 0);
        if (child == 0) {
            if (kind == 2) {
                execl("/bin/true", "true", NULL);
                _exit(77);
            }
            int failed = lstat("data", &stat) != 0;
            failed |= (chmod("data", 0644 + kind) != 0) << 1;
            failed |= (rename("data", "child") != 0 || rename("child", "data") != 0) << 2;
            failed |= (ftruncate(fd, 300 + kind) != 0) << 3;
            failed |= (pwrite(fd, "x", 1, 3000) != 1) << 4;
            failed |= (mkdir("child", 0700) != 0 || rmdir("child") != 0) << 5;
            _exit(failed);
        }
        MUST(waitpid(child, &status, 0) == child);
        printf("child %d: %#x\n", kind, status);
    }
}

/* Returns whether a call answers that its descriptor is none. */
static int is_none(int result)
{
    return result == -1 && errno == EBADF;
}

/* A number that the program has not got is none for it, also where the array has found no other room for its own. */
static void strangers(int fd, int dir)
{
    static char got[FULL_MAX];
    int answered = 0;
    memset(got, 0, sizeof got);
    got[0] = got[1] = got[2] = got[fd] = got[dir] = 1;
    for (int index = 0; index < taken_count; index++)
        got[taken[index]] = 1;
    for (int number = 0; number < FULL_MAX; number++) {
        char byte;
        struct stat stat;
        if (got[number])
            continue;
        answered += !is_none(fcntl(number, F_GETFD)) + !is_none(fstat(number, &stat));
        answered += !is_none(read(number, &byte, 1)) + !is_none(pread(number, &byte, 1, 0));
        answered += !is_none(write(number, "x", 1)) + !is_none(pwrite(number, "x", 1, 8));
        answered += !is_none(fallocate(number, 0, 0, 1)) + !is_none(ftruncate(number, 0)) + !is_none(fsync(number));
    }
    SHOW(answered);
}

static void filled(int by_files)
{
    MUST(close_range(3, FULL_MAX, 0) == 0);
    int fd = open("data", O_RDWR | O_CREAT | O_TRUNC, 0644), dir = open("sub", O_RDONLY | O_DIRECTORY);
    MUST(fd >= 0 && dir >= 0);
    MUST(fchmod(fd, 0644) == 0);
    int before = count_open();
    take(by_files);
    by_name(dir);
    by_descriptor(fd, dir);
    in_threads();
    in_children(fd);
    strangers(fd, dir);
    give_back();
    MUST(access("data", F_OK) == 0);
    printf("%d more open\n", count_open() - before);
    MUST(close(fd) == 0);
    MUST((fd = open("data", O_RDWR)) >= 0);
    MUST(pwrite(fd, "back", 4, 0) == 4 && close(fd) == 0 && close(dir) == 0);
    show_content("./data");
}

int main(int argc, char **arguments)
{
    /* Below the first of these the array itself needs more than a hard limit gives. */
    enum { HARD_MIN = 64 };
    static const int limits[] = { 10, 16, 36, 64, 100, 256, 1024 };
    MUST(argc >= 2 && chdir(arguments[1]) == 0);
    snprintf(way, sizeof way, "/tmp/cxlraid-full-%d", argc > 4 ? atoi(arguments[4]) : getpid());
    if (argc > 3) {
        filled(arguments[3][0] == 'f');
        fflush(stdout);
        _exit(0);
    }
    char own[16], directory[4096];
    snprintf(own, sizeof own, "%d", getpid());
    MUST(getcwd(directory, sizeof directory) && symlink(directory, way) == 0);
    struct rlimit before;
    MUST(getrlimit(RLIMIT_NOFILE, &before) == 0);
    MUST(mkdir("sub", 0755) == 0 && mkdir("sub/deep", 0755) == 0 && symlink("data", "link") == 0);
    MUST(close(open("sub/inner", O_RDWR | O_CREAT, 0644)) == 0);
    const char *only = argc > 2 ? arguments[2] : NULL;
    for (unsigned index = 0; index < 4 * (sizeof limits / sizeof *limits); index++) {
        char text[16], *how = index % 2 ? "files" : "copies";
        int limit = only ? atoi(only) : limits[index / 4], hard = index / 2 % 2;
        snprintf(text, sizeof text, "%d", limit);
        if (only && index >= 4)
            break;
        if (hard && limit < HARD_MIN && !only)
            continue;
        printf("limit %d, %s, filled by %s\n", limit, hard ? "hard" : "soft", how);
        fflush(stdout);
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            struct rlimit few = { limit, hard ? (rlim_t)limit : before.rlim_max };
            MUST(setrlimit(RLIMIT_NOFILE, &few) == 0);
            execv("/proc/self/exe", (char *[]) { arguments[0], arguments[1], text, how, own, NULL });
            MUST(0);
        }
        int status;
        MUST(waitpid(child, &status, 0) == child);
        printf("%#x\n", status);
    }
    MUST(unlink(way) == 0);
    return 0;
}
