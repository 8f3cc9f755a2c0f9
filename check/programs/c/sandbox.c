/* A program that locks itself into a sandbox (seccomp): reads and writes of a file it has open go on, what it forbade itself stays so. */
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define ALLOW(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

/* stdio may ask for memory, which the sandbox forbids. */
static void say(const char *format, ...)
{
    char text[200];
    va_list values;
    va_start(values, format);
    int length = vsnprintf(text, sizeof text, format, values);
    if (write(1, text, length) != length)
        _exit(1);
}

/* A process that is ended for openat2(2), which it does not make itself, opens a file outside the array. */
static int opens_outside(void)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        struct sock_filter filter[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
        MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
        _exit(open("/dev/null", O_RDONLY) < 0);
    }
    MUST(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main(int argc, char **argv)
{
    (void)argc;
    static unsigned char bytes[200000], back[200000];
    const char *path = strdup(in(argv[1], "sandbox"));
    fill(bytes, sizeof bytes, 5);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    MUST(fd >= 0 && pwrite(fd, bytes, sizeof bytes, 0) == sizeof bytes);
    say("outside %d\n", opens_outside());
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_read), ALLOW(SYS_write), ALLOW(SYS_pread64), ALLOW(SYS_pwrite64), ALLOW(SYS_exit_group),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    fill(bytes + 60000, 90000, 6);
    say("written %zd\n", pwrite(fd, bytes + 60000, 90000, 60000));
    ssize_t count = pread(fd, back, sizeof back, 0);
    say("read %zd, %s\n", count, memcmp(bytes, back, sizeof bytes) ? "different" : "the same");
    say("opened %d, %d\n", open(path, O_RDONLY), errno == EPERM);
    _exit(0);
}
