/* Children of every kind: what a vfork child opens and closes is its own, offsets are shared after fork, descriptors travel. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static int failures;
static char buffer[64];
#define CHECK(what) ((what) ? (void)0 : (void)(failures++, printf("%s:%d: %s\n", __FILE__, __LINE__, #what)))

static int status_of(pid_t child) {
    int status;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
}

static void vfork_child(const char *own) {
    int other = open(own, O_RDWR | O_CREAT | O_TRUNC, 0644), file = 9;
    pid_t child;
    pwrite(file, "parent", 6, 0);
    child = vfork();
    if (!child) {
        int null;
        dup2(other, 10);
        write(10, "in the child", 12);
        close(file);
        null = open("/dev/null", O_WRONLY);
        dup2(null, file);
        write(file, "lost", 4);
        _exit(7);
    }
    CHECK(status_of(child) == 7);
    CHECK(write(10, "x", 1) == -1);
    CHECK(pread(file, buffer, 64, 0) == 6 && !memcmp(buffer, "parent", 6));
    CHECK(pread(other, buffer, 64, 0) == 12 && !memcmp(buffer, "in the child", 12));
    child = vfork();
    if (!child) {
        dup2(other, file);
        child = fork();
        if (!child)
            _exit(pread(file, buffer, 64, 0) == 12 ? 5 : 6);
        _exit(status_of(child));
    }
    CHECK(status_of(child) == 5);
    CHECK(pread(file, buffer, 64, 0) == 6);
    close(other);
}

static int run_on_stack(void *unused) { return pread(9, buffer, 16, 0) == 6 ? 8 : 1; }

static void every_kind(void) {
    char *arguments[] = {"sh", "-c", "exit 5", 0}, *stack = malloc(1 << 17);
    struct clone_args fork_like = {.exit_signal = SIGCHLD};
    pid_t child = fork();
    if (!child)
        _exit(run_on_stack(0));
    CHECK(status_of(child) == 8);
    CHECK(!posix_spawn(&child, "/bin/sh", 0, 0, arguments, environ) && status_of(child) == 5);
    CHECK(system("exit 6") / 256 == 6);
    CHECK(status_of(clone(run_on_stack, stack + (1 << 17), SIGCHLD, 0)) == 8);
    CHECK(status_of(clone(run_on_stack, stack + (1 << 17), CLONE_VM | CLONE_VFORK | SIGCHLD, 0)) == 8);
    child = syscall(SYS_clone3, &fork_like, sizeof fork_like);
    if (!child)
        _exit(run_on_stack(0));
    CHECK(status_of(child) == 8);
}

static void message(int file) {
    char byte = 'm', control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
    int pair[2];
    pid_t child;
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    child = fork();
    if (!child) {
        int received;
        close(file);
        recvmsg(pair[1], &header, 0);
        memcpy(&received, CMSG_DATA(rights), sizeof received);
        _exit(read(received, buffer, 4) == 4 && !memcmp(buffer, "rent", 4) ? 3 : 4);
    }
    lseek(file, 2, SEEK_SET);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof file);
    memcpy(CMSG_DATA(rights), &file, sizeof file);
    CHECK(sendmsg(pair[0], &header, 0) == 1);
    CHECK(status_of(child) == 3);
    CHECK(lseek(file, 0, SEEK_CUR) == 6);
}

/* A program of the array that cannot be executed for its arguments: nothing of it stays open, and it may be written to. */
static void too_long_arguments(const char *file) {
    char path[512], part[65536], *too_long = malloc(1 << 18), *arguments[] = {"program", too_long, 0};
    int from = open("/proc/self/exe", O_RDONLY), to, status;
    ssize_t bytes;
    snprintf(path, sizeof path, "%s.program", file);
    to = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0755);
    while ((bytes = read(from, part, sizeof part)) > 0)
        CHECK(write(to, part, bytes) == bytes);
    close(to);
    close(from);
    memset(too_long, 'x', (1 << 18) - 1);
    too_long[(1 << 18) - 1] = 0;
    for (int i = 0; i < 40; i++) {
        CHECK(execv(path, arguments) == -1 && errno == E2BIG);
        if (vfork() == 0)
            _exit(execv(path, arguments) == -1 && errno == E2BIG ? 4 : 1);
        wait(&status);
        CHECK(WEXITSTATUS(status) == 4);
        to = open(path, O_RDWR);
        CHECK(to >= 0 && to < 12);
        close(to);
    }
    /* As many as the library may have open, and the files that programs are copied from go away. */
    struct rlimit limit = {64, 64}, old;
    getrlimit(RLIMIT_NOFILE, &old);
    limit.rlim_max = old.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    for (int i = 0; i < 100; i++)
        CHECK(execv(path, arguments) == -1 && errno == E2BIG);
    setrlimit(RLIMIT_NOFILE, &old);
    if (vfork() == 0) {
        char *good[] = {"program", "executed", 0};
        execv(path, good);
        _exit(1);
    }
    wait(&status);
    CHECK(WEXITSTATUS(status) == 3);
    free(too_long);
    unlink(path);
}

int main(int count, char **arguments) {
    if (!strcmp(arguments[1], "executed"))
        return 3;
    char own[512];
    int file = open(arguments[1], O_RDWR | O_TRUNC);
    snprintf(own, sizeof own, "%s.child", arguments[1]);
    dup2(file, 9);
    vfork_child(own);
    every_kind();
    message(9);
    too_long_arguments(arguments[1]);
    return failures != 0;
}
