/* Calls that a handler could take for others than the kernel does, or that could reach one member alone: numbers with bits in the upper half of their register,
 * attributes by descriptor, a longer structure, a long environment, a call of several steps by a thread with descriptors of its own. */
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#define WIDE 0x100000000L
/* fchmodat2, setxattrat and removexattrat, which older headers lack. */
enum { CHANGE_MODE = 452, SET_ATTRIBUTE = 463, REMOVE_ATTRIBUTE = 466, BYTES = 3 << 20 };
static const char *d;

static void numbers(void)
{
    close(make_in(d, "from", "from", 4));
    close(make_in(d, "to", "to", 2));
    SHOW(syscall(WIDE | SYS_renameat2, AT_FDCWD, in(d, "from"), AT_FDCWD, in(d, "to"), WIDE | 1));
    SHOW(syscall(WIDE | SYS_openat, AT_FDCWD, "/nothing", 0));
    SHOW(syscall(WIDE | SYS_newfstatat, AT_FDCWD, in(d, "nothing"), NULL, 0));
    SHOW(syscall(WIDE | CHANGE_MODE, AT_FDCWD, in(d, "from"), WIDE | 0600, AT_SYMLINK_NOFOLLOW));
    struct stat stat;
    MUST(lstat(in(d, "from"), &stat) == 0);
    printf("mode %o\n", stat.st_mode);
}

/* The kernel lets a file have the attribute; an array has no such calls, and then the file has none on any member. */
static void attribute(int number, int fd, const char *path, int flags, const char *name)
{
    struct { uint64_t value; uint32_t size, flags; } value = { (uint64_t)(uintptr_t)"v", 1, 0 };
    errno = 0;
    long result = number == SET_ATTRIBUTE ? syscall(number, fd, path, flags, name, &value, sizeof value) : syscall(number, fd, path, flags, name);
    int why = errno;
    MUST(on_array() ? result == -1 && why == ENOSYS : result == 0 || why == ENODATA || why == ENOSYS);
}

static void attributes(void)
{
    char link[40], host[] = "/tmp/cxlraid-wide-XXXXXX", names[100];
    int fd = make_in(d, "attributes", "x", 1);
    MUST(mkdtemp(host));
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    MUST(symlink(link, in(host, "link")) == 0);
    attribute(SET_ATTRIBUTE, fd, "", AT_EMPTY_PATH, "user.x");
    attribute(SET_ATTRIBUTE, AT_FDCWD, link, 0, "user.x");
    attribute(SET_ATTRIBUTE, AT_FDCWD, in(host, "link"), 0, "user.x");
    attribute(SET_ATTRIBUTE, AT_FDCWD, in(d, "attributes"), 0, "user.x");
    attribute(REMOVE_ATTRIBUTE, fd, "", AT_EMPTY_PATH, on_array() ? "user.cxlraid" : "user.x");
    removexattr(in(d, "attributes"), "user.x");
    printf("names: %zd\n", listxattr(in(d, "attributes"), names, sizeof names));

    /* What is behind the known part of the structure is zero. */
    uint64_t how[4] = { O_RDWR, 0, 0, 0 };
    int again = syscall(SYS_openat2, AT_FDCWD, in(host, "link"), how, sizeof how);
    MUST(again >= 0 && write(again, "longer", 6) == 6 && close(again) == 0 && close(fd) == 0);
    show_content(in(d, "attributes"));
    MUST(unlink(in(host, "link")) == 0 && rmdir(host) == 0);
}

static void environment(void)
{
    static char libraries[6000] = "LD_LIBRARY_PATH=/";
    memset(libraries + strlen(libraries), 'x', sizeof libraries - 1 - strlen(libraries));
    char *variables[] = { libraries, NULL }, *arguments[] = { "sh", "-c", "echo by the next program >&9", NULL };
    int fd = make_in(d, "environment", NULL, 0), status;
    MUST(dup2(fd, 9) == 9 && close(fd) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        execve("/bin/sh", arguments, variables);
        _exit(99);
    }
    MUST(waitpid(pid, &status, 0) == pid && status == 0 && close(9) == 0);
    show_content(in(d, "environment"));
}

static void *send_apart(void *argument)
{
    int *ends = argument, fd = open(in(d, "sent"), O_RDONLY);
    MUST(unshare(CLONE_FILES) == 0 && fd >= 0);
    printf("sent: %zd\n", sendfile(ends[0], fd, NULL, BYTES));
    printf("offset: %lld\n", (long long)lseek(fd, 0, SEEK_CUR));
    MUST(shutdown(ends[0], SHUT_WR) == 0);
    return NULL;
}

static void steps(void)
{
    static unsigned char bytes[BYTES], back[BYTES + 1];
    int ends[2];
    pthread_t thread;
    size_t total = 0;
    fill(bytes, sizeof bytes, 5);
    close(make_in(d, "sent", bytes, sizeof bytes));
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && pthread_create(&thread, NULL, send_apart, ends) == 0);
    for (ssize_t count; total < sizeof back && (count = read(ends[1], back + total, sizeof back - total)) > 0;)
        total += count;
    MUST(pthread_join(thread, NULL) == 0);
    printf("received: %zu, %s\n", total, memcmp(bytes, back, BYTES) ? "other bytes" : "the same");
}

int main(int count, char **arguments)
{
    MUST(count == 2);
    d = arguments[1];
    setvbuf(stdout, NULL, _IOLBF, 0);
    numbers();
    attributes();
    environment();
    steps();
    return 0;
}
