/* How paths lead: restrictions of openat2, symlinks of the host that lead into the directory, paths through /proc, long names, loops. A plain
   directory must answer the same. */
#include "check.h"
#include <dirent.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static char *d;

static int restricted(int base, const char *path, long flags, int mode, long resolve)
{
    struct open_how how = { .flags = flags, .mode = mode, .resolve = resolve };
    return syscall(SYS_openat2, base, path, &how, sizeof how);
}

static void make(const char *path, const char *text)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    MUST(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0);
}

static void show(const char *path)
{
    char text[100] = "";
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        printf("%s: %s\n", path[0] == '/' ? strrchr(path, '/') : path, strerrorname_np(errno));
    else
        printf("%s: %zd %s\n", path[0] == '/' ? strrchr(path, '/') : path, read(fd, text, 99), text);
    close(fd);
}

/* Whether a descriptor came, and what can be read by it. */
#define OPENED(call)                                                                               \
    do {                                                                                           \
        char opened_text[100] = "";                                                                \
        errno = 0;                                                                                 \
        int opened_fd = (call);                                                                    \
        if (opened_fd < 0)                                                                         \
            printf("%s: %s\n", #call, strerrorname_np(errno));                                     \
        else                                                                                       \
            printf("%s: %zd %s\n", #call, read(opened_fd, opened_text, 99), opened_text);           \
        close(opened_fd);                                                                          \
    } while (0)

static void restrictions(void)
{
    MUST(mkdir(in(d, "dir"), 0755) == 0 && mkdir(in(d, "dir/sub"), 0755) == 0);
    make(in(d, "dir/file"), "in dir");
    make(in(d, "file"), "above");
    MUST(symlink("file", in(d, "dir/link")) == 0 && symlink("../file", in(d, "dir/up")) == 0);
    MUST(symlink("/file", in(d, "dir/absolute")) == 0 && symlink("sub", in(d, "dir/way")) == 0);
    make(in(d, "dir/sub/deep"), "deep");
    int dir = open(in(d, "dir"), O_RDONLY | O_DIRECTORY), at = open(in(d, "dir"), O_PATH | O_DIRECTORY);
    const long kinds[] = { RESOLVE_BENEATH, RESOLVE_IN_ROOT, RESOLVE_NO_SYMLINKS, RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS };
    for (int kind = 0; kind < 5; kind++) {
        long how = kinds[kind];
        printf("-- resolve %lx\n", how);
        OPENED(restricted(dir, "file", O_RDONLY, 0, how));
        OPENED(restricted(at, "sub/deep", O_RDONLY, 0, how));
        OPENED(restricted(dir, "way/deep", O_RDONLY, 0, how));
        OPENED(restricted(dir, "link", O_RDONLY, 0, how));
        OPENED(restricted(dir, "link", O_RDONLY | O_NOFOLLOW, 0, how));
        OPENED(restricted(dir, "up", O_RDONLY, 0, how));
        OPENED(restricted(dir, "absolute", O_RDONLY, 0, how));
        OPENED(restricted(dir, "../file", O_RDONLY, 0, how));
        OPENED(restricted(dir, "sub/../file", O_RDONLY, 0, how));
        OPENED(restricted(dir, "sub/../../file", O_RDONLY, 0, how));
        /* Where the directory is mounted is not the point. */
        if (how != RESOLVE_IN_ROOT && how != RESOLVE_NO_XDEV)
            OPENED(restricted(dir, in(d, "file"), O_RDONLY, 0, how));
        OPENED(restricted(dir, "none", O_RDONLY, 0, how));
        OPENED(restricted(dir, "made", O_RDWR | O_CREAT | O_EXCL, 0600, how));
        SHOW(unlinkat(dir, "made", 0));
        OPENED(restricted(dir, "sub/made", O_RDWR | O_CREAT, 0640, how));
        SHOW(unlinkat(dir, "sub/made", 0));
        OPENED(restricted(dir, "file", O_RDWR | O_CREAT | O_EXCL, 0600, how));
        OPENED(restricted(dir, "../made", O_RDWR | O_CREAT, 0600, how));
        SHOW(unlinkat(dir, "../made", 0) == 0 || unlinkat(dir, "made", 0) == 0);
        OPENED(restricted(dir, ".", O_RDONLY | O_DIRECTORY, 0, how));
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", open(in(d, "file"), O_RDONLY));
        if (how != RESOLVE_IN_ROOT && how != RESOLVE_NO_XDEV)
            OPENED(restricted(dir, path, O_RDONLY, 0, how));
    }
    OPENED(restricted(dir, "file", O_RDONLY, 0, 0x1000));
    OPENED(restricted(dir, "file", O_RDONLY | 1l << 40, 0, 0));
    OPENED(restricted(dir, "file", O_RDONLY, 0644, 0));
    OPENED(restricted(dir, "file", O_RDONLY | O_CREAT, 010000644, 0));
    OPENED(restricted(dir, "file", O_RDONLY | O_TRUNC, 0, RESOLVE_CACHED));
    struct { struct open_how how; long more; } larger = { { .flags = O_RDONLY }, 0 };
    OPENED(syscall(SYS_openat2, dir, "file", &larger, sizeof larger));
    larger.more = 1;
    OPENED(syscall(SYS_openat2, dir, "file", &larger, sizeof larger));
    OPENED(syscall(SYS_openat2, dir, "file", &larger, 8));
    close(dir), close(at);
}

/* Symlinks beside the directory, on the host, that lead into it. */
static void from_the_host(void)
{
    struct stat stat_;
    char text[4096] = "";
    mkdir("links", 0755);
    MUST(symlink(d, "links/whole") == 0 && symlink(in(d, "dir"), "links/dir") == 0 && symlink(in(d, "file"), "links/file") == 0);
    MUST(symlink(in(d, "new"), "links/new") == 0 && symlink("dir", "links/twice") == 0 && symlink(in(d, "nothing/x"), "links/dangling") == 0);
    show("links/file");
    show("links/dir/file");
    show("links/twice/sub/deep");
    show("links/whole/file");
    show("links/whole/dir/../file");
    show("links/dangling");
    show("links/whole/none");
    SHOW(stat("links/file", &stat_));
    printf("size %lld, link %d\n", (long long)stat_.st_size, S_ISLNK(stat_.st_mode));
    SHOW(lstat("links/file", &stat_));
    printf("link %d\n", S_ISLNK(stat_.st_mode));
    SHOW(lstat("links/dir/file", &stat_));
    SHOW(access("links/dir/file", R_OK));
    SHOW(readlink("links/dir/link", text, sizeof text));
    make("links/new", "made through a link");
    show(in(d, "new"));
    make("links/dir/made", "made below a link");
    show(in(d, "dir/made"));
    SHOW(mkdir("links/dir/folder", 0755));
    SHOW(rename("links/dir/made", "links/dir/folder/moved"));
    SHOW(rename("links/dir/folder/moved", "links/outside"));
    SHOW(link("links/dir/folder/moved", "links/whole/linked"));
    SHOW(symlink("folder/moved", "links/dir/symbolic"));
    show(in(d, "dir/symbolic"));
    SHOW(truncate("links/dir/folder/moved", 4));
    SHOW(chmod("links/dir/folder/moved", 0600));
    show(in(d, "linked"));
    SHOW(unlink("links/dir/symbolic"));
    SHOW(unlink("links/whole/linked"));
    DIR *list = opendir("links/dir");
    int count = 0;
    MUST(list);
    while (readdir(list))
        count++;
    closedir(list);
    printf("%d entries\n", count);
    list = opendir("links/whole");
    MUST(list);
    for (count = 0; readdir(list);)
        count++;
    closedir(list);
    printf("%d entries\n", count);
    char *home = getcwd(NULL, 0);
    SHOW(chdir("links/dir"));
    show("file");
    show("../file");
    SHOW(strcmp(getcwd(text, sizeof text), in(d, "dir")));
    SHOW(chdir(home));
    SHOW(chdir("links/whole"));
    show("file");
    show("/proc/self/cwd/file");
    SHOW(chdir(home));
    int dir = open("links/twice", O_RDONLY | O_DIRECTORY), host = open("links", O_RDONLY | O_DIRECTORY);
    MUST(dir >= 0 && host >= 0);
    OPENED(openat(dir, "file", O_RDONLY));
    OPENED(openat(host, "dir/file", O_RDONLY));
    snprintf(text, sizeof text, "/proc/self/fd/%d/file", dir);
    show(text);
    snprintf(text, sizeof text, "/proc/%d/fd/%d/sub/deep", getpid(), dir);
    show(text);
    SHOW(unlink("links/file"));
    SHOW(unlink("links/dir"));
    show(in(d, "file"));
    free(home);
    SHOW(system("rm -r links"));
}

static void standard(void)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int fd = open(in(d, "file"), O_RDWR);
        MUST(dup2(fd, 0) == 0);
        show("/dev/stdin");
        show("/dev/fd/0");
        show("/proc/self/fd/0");
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

/* Components of 255 and 256 bytes, paths of 4095 and 4096, loops. */
static void lengths(void)
{
    static char path[6000];
    char name[300];
    for (int length = 255; length <= 256; length++) {
        memset(name, 'n', length);
        name[length] = 0;
        SHOW(close(open(in(d, name), O_CREAT | O_RDWR, 0600)));
        SHOW(mkdirat(AT_FDCWD, in(d, name), 0700));
        SHOW(unlink(in(d, name)));
    }
    for (int length = 4094; length <= 4097; length++) {
        int at = sprintf(path, "%s", d);
        while (at < length)
            path[at] = (at % 2) ? '/' : '.', at++;
        strcpy(path + length - 5, "/file");
        for (int index = strlen(d); index < length - 5; index++)
            path[index] = (index - strlen(d)) % 2 ? '.' : '/';
        if (path[length - 6] == '/')
            path[length - 6] = '/';
        printf("length %d\n", length);
        OPENED(open(path, O_RDONLY));
        SHOW(access(path, F_OK));
        SHOW(mkdir(path, 0700));
        SHOW(rename(path, path));
        SHOW(symlink("x", path));
    }
    char target[5000];
    memset(target, 't', sizeof target);
    target[4095] = 0;
    SHOW(symlink(target, in(d, "long-link")));
    SHOW(readlink(in(d, "long-link"), target, sizeof target));
    target[4095] = 't', target[4096] = 0;
    SHOW(symlink(target, in(d, "longer-link")));
    SHOW(symlink("", in(d, "empty-link")));
    MUST(symlink("b", in(d, "a")) == 0 && symlink("a", in(d, "b")) == 0);
    SHOW(open(in(d, "a"), O_RDONLY));
    SHOW(open(in(d, "a/x"), O_RDONLY));
    SHOW(chmod(in(d, "a"), 0600));
    SHOW(rename(in(d, "a/x"), in(d, "c")));
    char link[32], next[32];
    for (int index = 0; index < 42; index++) {
        snprintf(link, sizeof link, "chain-%d", index);
        snprintf(next, sizeof next, index == 41 ? "file" : "chain-%d", index + 1);
        MUST(symlink(next, in(d, link)) == 0);
    }
    OPENED(open(in(d, "chain-2"), O_RDONLY));
    OPENED(open(in(d, "chain-1"), O_RDONLY));
}

/* A directory that is removed while programs are in it leads on to the directory above. */
static void removed(void)
{
    for (int moved = 0; moved < 2; moved++) {
        printf("-- removed %d\n", moved);
        MUST(mkdir(in(d, "gone"), 0755) == 0 && chdir(in(d, "gone")) == 0);
        MUST(rmdir(in(d, "gone")) == 0);
        OPENED(open("file", O_RDWR | O_CREAT, 0600));
        SHOW(mkdir("sub", 0700));
        SHOW(syscall(SYS_getcwd, (char[5000]){ 0 }, 5000));
        make("../from-gone", "above");
        OPENED(open("../from-gone", O_RDONLY));
        SHOW(mkdir("../made", 0700));
        SHOW(rename("../from-gone", "../made/x"));
        SHOW(access(".", F_OK));
        SHOW(access("..", F_OK));
        SHOW(link("../made/x", "./y"));
        SHOW(unlink("../made/x"));
        SHOW(rmdir("../made"));
        int up = open("..", O_RDONLY | O_DIRECTORY);
        SHOW(close(openat(up, "by-descriptor", O_RDWR | O_CREAT, 0600)));
        MUST(close(up) == 0);
        SHOW(chdir(moved ? "./.." : ".."));
        char now[5000];
        printf("where it was: %d\n", strcmp(getcwd(now, sizeof now), d));
        SHOW(unlink("by-descriptor"));
        SHOW(mkdir("behind", 0700));
        SHOW(rmdir(in(d, "behind")));
    }
    MUST(chdir("/") == 0);
}

/* A path that begins at a file leads nowhere, whatever the flags. (A directory makes whiteouts where the array makes none.) */
static void from_a_file(void)
{
    MUST(chdir(d) == 0);
    make("base", "no directory");
    make("named", "a file");
    int base = open("base", O_RDONLY);
    MUST(base >= 0);
    for (unsigned flags = 0; flags < 6; flags++) {
        SHOW(renameat2(AT_FDCWD, "named", base, "new", flags));
        SHOW(renameat2(base, "named", AT_FDCWD, "new", flags));
        SHOW(renameat2(AT_FDCWD, "nothing", base, "new", flags));
    }
    MUST(close(base) == 0 && chdir("/") == 0);
}

int main(int argc, char **argv)
{
    (void)argc;
    d = argv[1];
    umask(022);
    restrictions();
    from_the_host();
    standard();
    lengths();
    removed();
    from_a_file();
    return 0;
}
