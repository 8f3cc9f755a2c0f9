/* The links under /proc that lead to open files: every call that takes a path, on every kind of open file. What such a link leads to is the
 * file that is open, whatever it is called by now and whatever has its name. */
#include "check.h"
#include <dirent.h>
#include <linux/openat2.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <utime.h>

#define BYTES 70001
static const char *d;
static unsigned char bytes[BYTES];

/* The kinds of open files. Each begins with a file `f` of BYTES bytes. */
enum { READS = 1, WRITES = 2, NAMES = 4 };
static const struct kind {
    const char *name;
    int mode;
    int flags;
    enum { NAMED, UNLINKED, RENAMED, REPLACED, ANEW, LINKED, TEMPORARY, NEVER, DIRECTORY, GONE_DIRECTORY, MOVED_DIRECTORY, SYMLINK, FIFO } way;
} kinds[] = {
    { "named", 0644, O_RDWR, NAMED },
    { "named, to read", 0644, O_RDONLY, NAMED },
    { "named, to write", 0644, O_WRONLY, NAMED },
    { "named, O_PATH", 0644, O_PATH, NAMED },
    { "named, mode 0444", 0444, O_RDONLY, NAMED },
    { "named, mode 0222", 0222, O_WRONLY, NAMED },
    { "named, mode 0", 0, O_PATH, NAMED },
    { "unlinked", 0644, O_RDWR, UNLINKED },
    { "unlinked, to read", 0644, O_RDONLY, UNLINKED },
    { "unlinked, to write", 0644, O_WRONLY, UNLINKED },
    { "unlinked, mode 0444", 0444, O_RDONLY, UNLINKED },
    { "unlinked, mode 0", 0, O_RDWR, UNLINKED },
    { "renamed", 0644, O_RDONLY, RENAMED },
    { "renamed, O_PATH", 0644, O_PATH, RENAMED },
    { "replaced", 0644, O_RDWR, REPLACED },
    { "replaced, to read", 0640, O_RDONLY, REPLACED },
    { "made anew", 0644, O_RDWR, ANEW },
    { "made anew, to write", 0640, O_WRONLY, ANEW },
    { "with another name", 0644, O_RDONLY, LINKED },
    { "O_TMPFILE", 0644, O_RDWR, TEMPORARY },
    { "O_TMPFILE, to write, mode 0", 0, O_WRONLY, TEMPORARY },
    { "O_TMPFILE and O_EXCL", 0600, O_RDWR, NEVER },
    { "directory", 0755, O_RDONLY, DIRECTORY },
    { "directory, O_PATH", 0755, O_PATH, DIRECTORY },
    { "removed directory", 0755, O_RDONLY, GONE_DIRECTORY },
    { "renamed directory", 0755, O_RDONLY, MOVED_DIRECTORY },
    { "symlink, O_PATH", 0777, O_PATH, SYMLINK },
    { "fifo", 0644, O_RDWR, FIFO },
    { NULL }
};

static int put(const char *name, const void *content, size_t count)
{
    int fd = open(in(d, name), O_RDWR | O_CREAT | O_TRUNC, 0644);
    MUST(fd >= 0 && write(fd, content, count) == (ssize_t)count);
    return fd;
}

/* Makes an open file `f` one of this kind. */
static int finish(const struct kind *kind, int fd)
{
    const char *f = in(d, "f");
    MUST(fd >= 0);
    switch (kind->way) {
    case UNLINKED:
        MUST(unlink(f) == 0);
        break;
    case RENAMED:
        MUST(rename(f, in(d, "g")) == 0);
        break;
    case REPLACED:
        MUST(close(put("g", "another", 7)) == 0 && rename(in(d, "g"), f) == 0);
        break;
    case ANEW:
        MUST(unlink(f) == 0 && close(put("f", "made anew", 9)) == 0);
        break;
    case LINKED:
        MUST(link(f, in(d, "g")) == 0 && unlink(f) == 0);
        break;
    default:
        break;
    }
    return fd;
}

/* An open file of this kind; what it needs beside it lies in the directory. */
static int prepare(const struct kind *kind)
{
    int fd;
    const char *f = in(d, "f");
    switch (kind->way) {
    case TEMPORARY:
    case NEVER:
        fd = open(d, O_TMPFILE | kind->flags | (kind->way == NEVER ? O_EXCL : 0), 0600);
        MUST(fd >= 0 && write(fd, bytes, BYTES) == BYTES && fchmod(fd, kind->mode) == 0);
        return fd;
    case DIRECTORY:
    case GONE_DIRECTORY:
    case MOVED_DIRECTORY:
        MUST(mkdir(f, kind->mode) == 0 && (fd = open(f, kind->flags | O_DIRECTORY)) >= 0);
        MUST(kind->way == GONE_DIRECTORY || mkdir(in(d, "f/x"), 0755) == 0);
        if (kind->way == GONE_DIRECTORY)
            MUST(rmdir(f) == 0);
        if (kind->way == MOVED_DIRECTORY)
            MUST(rename(f, in(d, "g")) == 0);
        return fd;
    case SYMLINK:
        MUST(symlink("target", f) == 0 && (fd = open(f, O_PATH | O_NOFOLLOW)) >= 0);
        return fd;
    case FIFO:
        MUST(mkfifo(f, kind->mode) == 0 && (fd = open(f, kind->flags)) >= 0);
        return fd;
    default:
        break;
    }
    fd = put("f", bytes, BYTES);
    MUST(fchmod(fd, kind->mode) == 0);
    if (kind->way == UNLINKED && kind->mode == 0) {
        MUST(unlink(f) == 0);
        return fd;
    }
    MUST(close(fd) == 0);
    return finish(kind, open(f, kind->flags));
}

/* How the link is written. */
static const char *forms[] = { "/proc/self/fd/%d", "/dev/fd/%d", "/proc/thread-self/fd/%d", "/proc/%2$d/fd/%1$d", "//proc/./self//fd/%d",
    "/proc/self/task/%2$d/fd/%1$d", "%d", "link" };
enum { RELATIVE = 6, BY_SYMLINK = 7, FORM_COUNT = 8 };

static int base = AT_FDCWD;
static char path[4096];
static int tmp;

static void write_link(int form, int fd)
{
    base = AT_FDCWD;
    if (form == RELATIVE)
        MUST((base = open("/proc/self/fd", O_RDONLY | O_DIRECTORY)) >= 0);
    if (form == BY_SYMLINK) {
        char target[64];
        snprintf(target, sizeof target, "/proc/self/fd/%d", fd);
        snprintf(path, sizeof path, "%s", in(d, "link"));
        MUST(symlink(target, path) == 0);
        return;
    }
    snprintf(path, sizeof path, forms[form], fd, getpid());
}

static long result_of(long result)
{
    return result < 0 ? -errno : result;
}

static void describe(const struct stat *stat)
{
    printf(" [%06o size %lld links %d owner %d:%d blocks %d mtime %s]", stat->st_mode, S_ISDIR(stat->st_mode) ? 0 : (long long)stat->st_size,
        (int)stat->st_nlink, (int)stat->st_uid, (int)stat->st_gid, stat->st_blocks > 0, stat->st_mtime < 2000000 ? "old" : "new");
}

/* What is in an open file, as far as it can be told. */
static void show_open(int fd)
{
    struct stat stat;
    static unsigned char buffer[BYTES + 4096];
    if (fstat(fd, &stat) != 0) {
        printf(" fstat %s", strerrorname_np(errno));
        return;
    }
    describe(&stat);
    ssize_t count = S_ISREG(stat.st_mode) ? pread(fd, buffer, sizeof buffer, 0) : -1;
    if (count >= 0)
        printf(" %llx", (unsigned long long)sum(buffer, count, 0));
}

static int opened(int fd, int original)
{
    if (fd < 0)
        return -1;
    struct stat one, two;
    MUST(fstat(fd, &one) == 0);
    MUST(fstat(original, &two) == 0);
    int flags = fcntl(fd, F_GETFL);
    printf(" opened: %s, flags %o", one.st_ino == two.st_ino && one.st_dev == two.st_dev ? "the same" : "another", flags & ~O_LARGEFILE);
    if (S_ISREG(one.st_mode)) {
        if ((flags & O_ACCMODE) != O_RDONLY && !(flags & O_PATH))
            MUST(write(fd, "written anew", 12) == 12);
        show_open(fd);
    }
    MUST(close(fd) == 0);
    return 0;
}

static int by_openat2(int flags, int mode, int resolve, int original)
{
    struct open_how how = { .flags = flags, .mode = mode, .resolve = resolve };
    return opened(syscall(SYS_openat2, base, path, &how, sizeof how), original);
}

static int same(int result, const struct stat *stat, int original)
{
    struct stat own;
    if (result == 0) {
        MUST(fstat(original, &own) == 0);
        if (S_ISLNK(stat->st_mode))
            printf(" a link");
        else
            printf(own.st_ino == stat->st_ino ? " the same" : " another"), describe(stat);
    }
    return result;
}

static int by_statx(int flags, int original)
{
    struct statx found;
    int result = statx(base, path, flags, STATX_BASIC_STATS, &found);
    struct stat stat = { .st_mode = found.stx_mode, .st_size = found.stx_size, .st_nlink = found.stx_nlink, .st_uid = found.stx_uid,
        .st_gid = found.stx_gid, .st_ino = found.stx_ino, .st_blocks = found.stx_blocks, .st_mtime = found.stx_mtime.tv_sec };
    return same(result, &stat, original);
}

static int handle(int flags)
{
    char room[256] = { 0 };
    struct file_handle *handle = (void *)room;
    int mount;
    handle->handle_bytes = 128;
    return name_to_handle_at(base, path, handle, &mount, flags) == 0 ? 0 : -1;
}

static int watch(int mask, int original)
{
    int fd = inotify_init1(IN_NONBLOCK);
    int result = inotify_add_watch(fd, path, mask | IN_ATTRIB);
    if (result >= 0 && mask == 0) {
        struct pollfd ready = { fd, POLLIN };
        fchmod(original, 0640);
        printf(" seen %d", poll(&ready, 1, 0));
        result = 0;
    }
    MUST(close(fd) == 0);
    return result >= 0 ? 0 : -1;
}

static int target(int result, const char *text)
{
    if (result > 0) {
        const char *name = memrchr(text, '/', result);
        int cut = name ? result - (name - text) : result;
        /* A file without a name is called by its inode's number. */
        printf(" -> %.*s", name && name[1] == '#' ? 2 : cut, name ? name : text);
    }
    return result < 0 ? -1 : 0;
}

static int listed(int result, const char *names)
{
    for (int at = 0; at < result; at += strlen(names + at) + 1)
        if (strncmp(names + at, "user.", 5) == 0)
            printf(" %s", names + at);
    return result < 0 ? -1 : 0;
}

static const char *with(const char *behind)
{
    static char longer[4200];
    snprintf(longer, sizeof longer, "%s%s", path, behind);
    return longer;
}

static struct stat found;
static struct statfs figures;
static char text[4096];
static const struct timespec times[2] = { { 1000000, 5 }, { 1000001, 6 } };
static const struct timeval moments[2] = { { 1000000, 5 }, { 1000001, 6 } };
static const struct utimbuf seconds = { 1000000, 1000001 };

/* Every call. Those without a directory argument are made where the path is not relative to one. */
#define CALLS                                                                                                          \
    AT(same(fstatat(base, path, &found, 0), &found, fd))                                                                                   \
    AT(same(fstatat(base, path, &found, AT_SYMLINK_NOFOLLOW), &found, fd))                                                                 \
    CWD(same(syscall(SYS_stat, path, &found), &found, fd))                                                                                 \
    CWD(same(syscall(SYS_lstat, path, &found), &found, fd))                                                                                \
    AT(by_statx(0, fd))                                                                                                                    \
    AT(by_statx(AT_SYMLINK_NOFOLLOW, fd))                                                                                                  \
    CWD(access(path, F_OK))                                                                                                                \
    CWD(access(path, R_OK))                                                                                                                \
    CWD(access(path, W_OK))                                                                                                                \
    AT(syscall(SYS_faccessat, base, path, X_OK))                                                                                           \
    AT(syscall(SYS_faccessat2, base, path, R_OK | W_OK, AT_EACCESS))                                                                       \
    AT(syscall(SYS_faccessat2, base, path, R_OK, AT_SYMLINK_NOFOLLOW))                                                                     \
    CWD(truncate(path, 5))                                                                                                                 \
    CWD(truncate(path, 200000))                                                                                                            \
    CWD(truncate(path, -1))                                                                                                                \
    CWD(chmod(path, 0604))                                                                                                                 \
    AT(syscall(SYS_fchmodat, base, path, 0604))                                                                                            \
    AT(syscall(452 /* fchmodat2 */, base, path, 0604, AT_SYMLINK_NOFOLLOW))                                                                      \
    CWD(chown(path, own, own))                                                                                                             \
    CWD(lchown(path, own, own))                                                                                                            \
    AT(fchownat(base, path, own, own, 0))                                                                                                  \
    AT(fchownat(base, path, own, own, AT_SYMLINK_NOFOLLOW))                                                                                \
    CWD(utime(path, &seconds))                                                                                                             \
    CWD(utimes(path, moments))                                                                                                             \
    AT(syscall(SYS_futimesat, base, path, moments))                                                                                        \
    AT(utimensat(base, path, times, 0))                                                                                                    \
    AT(utimensat(base, path, NULL, 0))                                                                                                     \
    AT(utimensat(base, path, times, AT_SYMLINK_NOFOLLOW))                                                                                  \
    CWD(setxattr(path, "user.two", "value", 5, 0))                                                                                         \
    CWD(setxattr(path, "user.one", "value", 5, XATTR_CREATE))                                                                              \
    CWD(lsetxattr(path, "user.two", "value", 5, 0))                                                                                        \
    CWD(getxattr(path, "user.one", text, sizeof text))                                                                                     \
    CWD(getxattr(path, "user.cxlraid", text, sizeof text))                                                                                 \
    CWD(lgetxattr(path, "user.one", text, sizeof text))                                                                                    \
    CWD(listed(listxattr(path, text, sizeof text), text))                                                                                  \
    CWD(listed(llistxattr(path, text, sizeof text), text))                                                                                 \
    CWD(removexattr(path, "user.one"))                                                                                                     \
    CWD(lremovexattr(path, "user.one"))                                                                                                    \
    CWD(statfs(path, &figures))                                                                                                            \
    AT(handle(AT_SYMLINK_FOLLOW))                                                                                                          \
    AT(handle(0))                                                                                                                          \
    CWD(watch(0, fd))                                                                                                                      \
    CWD(watch(IN_DONT_FOLLOW, fd))                                                                                                         \
    AT(target(readlinkat(base, path, text, sizeof text), text))                                                                            \
    AT(opened(openat(base, path, O_RDONLY), fd))                                                                                           \
    AT(opened(openat(base, path, O_WRONLY | O_NONBLOCK), fd))                                                                              \
    AT(opened(openat(base, path, O_RDWR | O_APPEND), fd))                                                                                  \
    AT(opened(openat(base, path, O_RDWR | O_CREAT, 0600), fd))                                                                             \
    AT(opened(openat(base, path, O_RDWR | O_CREAT | O_EXCL, 0600), fd))                                                                    \
    AT(opened(openat(base, path, O_RDWR | O_TRUNC), fd))                                                                                   \
    AT(opened(openat(base, path, O_RDONLY | O_TRUNC), fd))                                                                                 \
    AT(opened(openat(base, path, O_RDONLY | O_NOFOLLOW), fd))                                                                              \
    AT(opened(openat(base, path, O_RDONLY | O_CREAT | O_NOFOLLOW, 0600), fd))                                                              \
    AT(opened(openat(base, path, O_PATH), fd))                                                                                             \
    AT(opened(openat(base, path, O_RDONLY | O_DIRECTORY), fd))                                                                             \
    AT(tmp = openat(base, path, O_RDWR | O_TMPFILE, 0600), tmp < 0 ? -1 : close(tmp))                                                      \
    CWD(opened(creat(path, 0600), fd))                                                                                                     \
    AT(by_openat2(O_RDWR, 0, 0, fd))                                                                                                       \
    AT(by_openat2(O_RDWR | O_CREAT, 0600, 0, fd))                                                                                          \
    AT(by_openat2(O_RDONLY, 0, RESOLVE_NO_MAGICLINKS, fd))                                                                                 \
    AT(by_openat2(O_RDONLY, 0, RESOLVE_NO_SYMLINKS, fd))                                                                                   \
    AT(by_openat2(O_RDONLY, 0, RESOLVE_BENEATH, fd))                                                                                       \
    AT(by_openat2(O_RDONLY, 0, RESOLVE_IN_ROOT, fd))                                                                                       \
    AT(by_openat2(O_RDONLY, 0, RESOLVE_NO_XDEV, fd))                                                                                       \
    CWD(unlink(path))                                                                                                                      \
    AT(unlinkat(base, path, AT_REMOVEDIR))                                                                                                 \
    CWD(mkdir(path, 0700))                                                                                                                 \
    CWD(mknod(path, S_IFREG | 0600, 0))                                                                                                    \
    CWD(symlink("x", path))                                                                                                                \
    AT(linkat(base, path, AT_FDCWD, in(d, "new"), 0))                                                                                      \
    AT(linkat(base, path, AT_FDCWD, in(d, "new"), AT_SYMLINK_FOLLOW))                                                                      \
    CWD(link(in(d, "other"), path))                                                                                                        \
    CWD(rename(path, in(d, "new")))                                                                                                        \
    CWD(rename(in(d, "other"), path))                                                                                                      \
    CWD(chdir(path) == 0 ? chdir(d) : -1)                                                                                                  \
    CWD(same(syscall(SYS_stat, with("/"), &found), &found, fd))                                                                            \
    CWD(same(syscall(SYS_stat, with("/x"), &found), &found, fd))                                                                           \
    CWD(same(syscall(SYS_lstat, with("/."), &found), &found, fd))                                                                          \
    CWD(mkdir(with("/new"), 0700))                                                                                                         \
    CWD(opened(open(with("/new"), O_RDWR | O_CREAT, 0600), fd))                                                                            \
    CWD(rmdir(with("/x")))

/* What lies in the directory. */
static void show_directory(void)
{
    struct dirent **entries;
    int count = scandir(d, &entries, NULL, alphasort);
    MUST(count >= 2);
    for (int index = 0; index < count; index++) {
        struct stat stat;
        const char *name = entries[index]->d_name;
        if (name[0] != '.' && lstat(in(d, name), &stat) == 0)
            printf(" %s:%o:%lld", name, stat.st_mode, S_ISDIR(stat.st_mode) || S_ISLNK(stat.st_mode) ? 0 : (long long)stat.st_size);
        free(entries[index]);
    }
    free(entries);
}

static void clear(void)
{
    const char *names[] = { "f", "g", "new", "other", "link", "#", "f (deleted)" };
    for (size_t index = 0; index < sizeof names / sizeof *names; index++) {
        if (index < 2)
            chmod(in(d, names[index]), 0700);
        rmdir(in(in(d, names[index]), "x"));
        unlink(in(in(d, names[index]), "new"));
        rmdir(in(in(d, names[index]), "new"));
        if (unlink(in(d, names[index])) != 0)
            rmdir(in(d, names[index]));
    }
}

/* One call on one kind of file. */
static void one(const struct kind *kind, int form, const char *call, int number, int own)
{
    int count = 0, fd;
    long result = 0;
    clear();
    MUST(close(put("other", "other", 5)) == 0);
    fd = prepare(kind);
    if (kind->way < DIRECTORY)
        fsetxattr(fd, "user.one", "1", 1, 0);
    write_link(form, fd);
    printf("%s, form %d: %.60s:", kind->name, form, call);
#define AT(...)                                                                                                        \
    if (count++ == number)                                                                                             \
        errno = 0, result = result_of((__VA_ARGS__));
#define CWD(...)                                                                                                       \
    if (count++ == number && base == AT_FDCWD)                                                                         \
        errno = 0, result = result_of((__VA_ARGS__));
    CALLS
#undef AT
#undef CWD
    printf(" %s;", result < 0 ? strerrorname_np(-result) : result ? "more" : "0");
    show_open(fd);
    printf(" xattrs");
    listed(flistxattr(fd, text, sizeof text), text);
    show_directory();
    printf("\n");
    MUST(close(fd) == 0);
    if (base != AT_FDCWD)
        MUST(close(base) == 0);
}

/* What is said to differ (README.md): who may not read a file may not write to it. And where a symlink leads by a restricted way. */
static int is_told(const struct kind *kind, int form, const char *call, int own)
{
    int unreadable = own != 1 && !(kind->mode & 0400);
    return !(form == BY_SYMLINK && strstr(call, "RESOLVE_")) && !unreadable;
}

/* All of it takes minutes: other forms, and those who may less, have their turn with some; and fewer where each call is traced. */
static int every(int form, int own)
{
    int rest = getenv("TRACED") ? 13 : 1;
    return rest * (form == 0 ? (own == 1 ? 1 : 2) : form >= RELATIVE ? 7 : 24);
}

static void all(int own)
{
#define AT(...) #__VA_ARGS__,
#define CWD(...) #__VA_ARGS__,
    static const char *calls[] = { CALLS NULL };
#undef AT
#undef CWD
    for (const struct kind *kind = kinds; kind->name; kind++)
        for (int form = 0; form < FORM_COUNT; form++)
            for (int number = 0; calls[number]; number++)
                if (is_told(kind, form, calls[number], own) && (number + form + (kind - kinds)) % every(form, own) == 0)
                    one(kind, form, calls[number], number, own);
    clear();
}

/* By another process, which does not have the file open. */
static void by_another(const struct kind *kind)
{
    clear();
    int fd = prepare(kind);
    write_link(3, fd);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        struct stat found;
        char start[9] = { 0 };
        MUST(close(fd) == 0);
        printf("%s, by another process:", kind->name);
        MUST(stat(path, &found) == 0);
        describe(&found);
        int again = open(path, O_RDWR);
        MUST(again >= 0 && pwrite(again, "by child", 8, 60000) == 8 && close(again) == 0);
        MUST(truncate(path, 65000) == 0 && chmod(path, 0604) == 0 && stat(path, &found) == 0);
        describe(&found);
        again = open(path, O_RDONLY);
        MUST(again >= 0 && pread(again, start, 8, 60000) == 8 && close(again) == 0);
        printf(" %s;", start);
        fflush(stdout);
        _exit(0);
    }
    int status;
    MUST(waitpid(pid, &status, 0) == pid && status == 0);
    show_open(fd);
    show_directory();
    printf("\n");
    MUST(close(fd) == 0);
}

/* A program is executed by its link, too. */
static void executed(void)
{
    /* Where a member holds the file itself, it is busy as long as anybody has it open, by whatever path it is executed. */
    const char *level = getenv("CXLRAID_LEVEL");
    int busy = level && strcmp(level, "1") == 0;
    static const int ways[] = { NAMED, UNLINKED, RENAMED, REPLACED, ANEW, LINKED };
    static const char *names[] = { "named", "unlinked", "renamed", "replaced", "made anew", "with another name" };
    for (int index = 0; index < 12; index++) {
        struct kind kind = { names[index % 6], 0755, O_RDONLY, ways[index % 6] };
        clear();
        char command[9000];
        snprintf(command, sizeof command, "cp /bin/true %s/f && chmod 755 %s/f", d, d);
        MUST(system(command) == 0);
        int fd = finish(&kind, open(in(d, "f"), O_RDONLY | O_CLOEXEC));
        write_link(0, fd);
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            char *arguments[] = { "true", NULL };
            index < 6 ? execv(path, arguments) : fexecve(fd, arguments, environ);
            _exit(busy && errno == ETXTBSY ? 0 : errno);
        }
        int status;
        MUST(waitpid(pid, &status, 0) == pid);
        printf("%s, executed by %s: %d\n", kind.name, index < 6 ? "its link" : "descriptor", status);
        MUST(close(fd) == 0);
    }
    clear();
}

/* A thread with descriptors of its own: what /proc says of them, and what is opened by what it says. */
static void *apart(void *unused)
{
    static const char *const forms[] = { "/proc/thread-self/fd/%d", "/proc/self/task/%2$ld/fd/%1$d", "/proc/%2$ld/fd/%1$d" };
    char link[64], target[PATH_MAX];
    MUST(unshare(CLONE_FILES) == 0);
    int fd = open("apart", O_RDWR | O_CREAT, 0600);
    MUST(fd >= 0 && write(fd, "0123456789", 10) == 10);
    for (int form = 0; form < 4; form++) {
        if (form == 3)
            strcpy(link, "/proc/thread-self/cwd");
        else
            snprintf(link, sizeof link, forms[form], fd, syscall(SYS_gettid));
        ssize_t bytes = readlink(link, target, sizeof target - 1);
        MUST(bytes > 0);
        target[bytes] = 0;
        printf("%d: %s\n", form, strncmp(target, d, strlen(d)) == 0 ? target + strlen(d) : target);
        int again = open(target, form == 3 ? O_PATH : O_WRONLY);
        if (form < 3)
            MUST(pwrite(again, "X", 1, form) == 1);
        MUST(close(again) == 0);
    }
    char text[11] = "";
    MUST(pread(fd, text, 10, 0) == 10);
    printf("%s\n", text);
    MUST(close(fd) == 0 && unlink("apart") == 0);
    return unused;
}

int main(int count, char **arguments)
{
    if (count < 2)
        return 2;
    d = arguments[1];
    fill(bytes, BYTES, 7);
    umask(022);
    MUST(chdir(d) == 0);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, apart, NULL) == 0 && pthread_join(thread, NULL) == 0);
    for (const struct kind *kind = kinds; kind->way < DIRECTORY; kind++)
        /* Of a file that only another name leads to, nobody else knows that name. */
        if (geteuid() == 0 && kind->way != LINKED)
            by_another(kind);
    executed();
    all(1);
    fflush(stdout);
    if (geteuid() != 0)
        return 0;
    /* The same by one who may not do everything. */
    MUST(mkdir(in(d, "others"), 0777) == 0 && chmod(in(d, "others"), 0777) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        d = strdup(in(d, "others"));
        MUST(setresuid(65534, 65534, 65534) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0 && chdir(d) == 0);
        all(65534);
        fflush(stdout);
        _exit(0);
    }
    int status;
    MUST(waitpid(pid, &status, 0) == pid && status == 0);
    return 0;
}
