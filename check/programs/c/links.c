/* Links that lie outside of the directory under test and lead to what /proc says of this process: its open files, its directory, what it has mapped. A log file that is a symlink to /dev/stdout is
 * the usual one. Whatever leads there, the file is the open one. */
#include "check.h"
#include <dirent.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#define BYTES 200000
static const char *d;
static char outside[] = "/tmp/cxlraid-links.XXXXXX";
static unsigned char bytes[BYTES], found[2 * BYTES];

static void show(const char *what, int fd)
{
    struct stat stat;
    MUST(fstat(fd, &stat) == 0);
    ssize_t count = pread(fd, found, sizeof found, 0);
    MUST(count >= 0);
    printf("%s: %lld bytes, mode %o, %llx\n", what, (long long)stat.st_size, stat.st_mode, (unsigned long long)sum(found, count, 0));
}

static void show_name(const char *name)
{
    int fd = open(in(d, name), O_RDONLY);
    if (fd < 0) {
        printf("%s: %s\n", name, strerrorname_np(errno));
        return;
    }
    show(name, fd);
    MUST(close(fd) == 0);
}

static int make(const char *name)
{
    int fd = open(in(d, name), O_RDWR | O_CREAT | O_TRUNC, 0644);
    MUST(fd >= 0 && write(fd, bytes, BYTES) == BYTES);
    return fd;
}

/* Opens, writes to it at `offset`, or appends if that is -1. */
static void store(const char *path, int flags, off_t offset)
{
    int fd = open(path, flags, 0644);
    printf("open %o: %s\n", flags, fd >= 0 ? "opened" : strerrorname_np(errno));
    if (fd < 0)
        return;
    MUST((offset < 0 ? write(fd, bytes + 7, 70000) : pwrite(fd, bytes + 7, 70000, offset)) == 70000);
    MUST(close(fd) == 0);
}

static void list(void)
{
    struct dirent **entries;
    int count = scandir(d, &entries, NULL, alphasort);
    for (int index = 0; index < count; index++)
        printf(" %s", entries[index]->d_name), free(entries[index]);
    printf("\n");
    free(entries);
}

/* Every way to one open file, which path leads to. */
static void through(const char *path, int fd)
{
    struct stat about;
    char list[256];
    SHOW(lstat(path, &about));
    MUST(stat(path, &about) == 0 && about.st_size == lseek(fd, 0, SEEK_END));
    store(path, O_RDWR, 100000);
    show("stored", fd);
    store(path, O_WRONLY | O_APPEND, -1);
    show("appended", fd);
    store(path, O_WRONLY | O_CREAT | O_APPEND, -1);
    show("appended, perhaps made", fd);
    SHOW(truncate(path, 180000));
    show("cut", fd);
    SHOW(chmod(path, 0600));
    SHOW(setxattr(path, "user.one", "1", 1, 0));
    SHOW(listxattr(path, list, sizeof list));
    SHOW(removexattr(path, "user.one"));
    show("changed", fd);
    int named = open(path, O_PATH);
    MUST(named >= 0);
    char again[64];
    snprintf(again, sizeof again, "/proc/self/fd/%d", named);
    store(again, O_RDWR, 65000);
    MUST(close(named) == 0);
    show("named", fd);
    store(path, O_RDWR | O_TRUNC, 1000);
    show("emptied", fd);
    MUST(ftruncate(fd, 0) == 0 && pwrite(fd, bytes, BYTES, 0) == BYTES && fchmod(fd, 0644) == 0);
}

static void files(void)
{
    static const char *ways[] = { "named", "unlinked", "renamed" };
    for (int way = 0; way < 3; way++) {
        char target[64];
        int fd = make("f");
        printf("-- %s\n", ways[way]);
        if (way == 1)
            MUST(unlink(in(d, "f")) == 0);
        if (way == 2)
            MUST(rename(in(d, "f"), in(d, "g")) == 0);
        snprintf(target, sizeof target, "/proc/self/fd/%d", fd);
        char *link = strdup(in(outside, "link")), *further = strdup(in(outside, "further"));
        MUST(symlink(target, link) == 0 && symlink("link", further) == 0);
        through(link, fd);
        through(further, fd);
        MUST(chdir("/proc") == 0);
        through(target + strlen("/proc/"), fd);
        MUST(chdir("/") == 0);
        snprintf(target, sizeof target, "/proc/self/../self/fd/%d", fd);
        through(target, fd);
        if (geteuid() == 0) {
            char *memory = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0), mapped[64];
            MUST(memory != MAP_FAILED);
            snprintf(mapped, sizeof mapped, "/proc/self/map_files/%lx-%lx", (long)memory, (long)memory + 4096);
            store(mapped, O_RDWR, 500);
            show("by what is mapped", fd);
            MUST(munmap(memory, 4096) == 0);
        }
        snprintf(target, sizeof target, "/proc/self/fd/0%d", fd);
        SHOW(open(target, O_RDONLY));
        list();
        MUST(close(fd) == 0 && unlink(link) == 0 && unlink(further) == 0);
        unlink(in(d, "f"));
        unlink(in(d, "g"));
    }
}

static void directories(void)
{
    char target[64], path[4096];
    MUST(mkdir(in(d, "sub"), 0755) == 0);
    int fd = open(in(d, "sub"), O_RDONLY | O_DIRECTORY);
    snprintf(target, sizeof target, "/proc/self/fd/%d", fd);
    MUST(symlink(target, in(outside, "fd")) == 0 && symlink("/proc/self/cwd", in(outside, "cwd")) == 0);
    MUST(chdir(in(d, "sub")) == 0);
    static const char *ways[] = { "fd", "cwd" };
    for (int way = 0; way < 2; way++) {
        char *base = strdup(in(outside, ways[way]));
        printf("-- by %s\n", ways[way]);
        MUST(close(make("sub/a")) == 0 && close(make("sub/b")) == 0);
        snprintf(path, sizeof path, "%s/a", base);
        store(path, O_RDWR, 100000);
        SHOW(truncate(path, 150000));
        SHOW(chmod(path, 0640));
        show_name("sub/a");
        SHOW(rename(path, in(d, "sub/c")));
        snprintf(path, sizeof path, "%s/c", base);
        SHOW(unlink(path));
        show_name("sub/c");
        snprintf(path, sizeof path, "%s/new", base);
        store(path, O_RDWR | O_CREAT, 0);
        show_name("sub/new");
        SHOW(unlink(path));
        SHOW(mkdir(path, 0755));
        SHOW(rmdir(path));
        int at = open(base, O_RDONLY | O_DIRECTORY), file;
        MUST(at >= 0 && (file = openat(at, "b", O_RDWR)) >= 0);
        MUST(pwrite(file, bytes, 1000, 120000) == 1000 && close(file) == 0 && close(at) == 0);
        show_name("sub/b");
        MUST(unlink(in(d, "sub/b")) == 0);
    }
    MUST(chdir("/") == 0 && close(fd) == 0);
}

/* A program that logs to what is a link to its standard output. */
static void logged(void)
{
    int status, fd = make("log");
    MUST(symlink("/dev/stdout", in(outside, "log")) == 0);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        MUST(dup2(fd, 1) == 1);
        execl("/bin/sh", "sh", "-c", "echo begun >> $0; cat /etc/passwd >> $0; truncate -s 150000 $0; stat -Lc %s $0", in(outside, "log"), (char *)NULL);
        _exit(127);
    }
    MUST(waitpid(pid, &status, 0) == pid);
    printf("-- log: %d\n", status);
    show("log", fd);
    MUST(close(fd) == 0);
}

int main(int count, char **arguments)
{
    if (count < 2)
        return 2;
    d = arguments[1];
    MUST(mkdtemp(outside) != NULL);
    fill(bytes, BYTES, 11);
    files();
    directories();
    logged();
    fflush(stdout);
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", outside);
    return system(command);
}
