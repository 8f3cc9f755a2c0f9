/* Code made at run time makes system calls that no patcher can know of; Syscall User Dispatch must show each, whoever makes it. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static long (*raw)(long number, long a, long b, long c);
static const char *path;

#define MUST(condition) do { if (!(condition)) { printf("line %d: %s\n", __LINE__, #condition); exit(1); } } while (0)

static void never(int signal)
{
    (void)signal;
    write(1, "a handler was called\n", 21);
    _exit(1);
}

static void *thread(void *unused)
{
    raw(SYS_access, (long)path, F_OK, 0);
    return unused;
}

int main(int argc, char **argv)
{
    /* mov rax, rdi; mov rdi, rsi; mov rsi, rdx; mov rdx, rcx; syscall; ret */
    static const unsigned char code[] = {0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x48, 0x89, 0xd6, 0x48, 0x89, 0xca, 0x0f, 0x05, 0xc3};
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(page != MAP_FAILED);
    memcpy(page, code, sizeof code);
    raw = (long (*)(long, long, long, long))page;
    path = argv[1];
    if (argc > 2) {
        raw(SYS_rmdir, (long)path, 0, 0);
        return 0;
    }
    /* Shells have a handler for every signal that ends them. */
    MUST(signal(SIGSYS, never) == SIG_DFL);
    MUST(raw(SYS_getpid, 0, 0, 0) == getpid());
    MUST(raw(SYS_chdir, (long)"/proc", 0, 0) == 0);
    MUST(raw(SYS_chdir, (long)"/", 0, 0) == 0);
    int fd = open(path, O_RDONLY);
    MUST(fd >= 0);
    char byte;
    MUST(raw(SYS_openat, AT_FDCWD, (long)path, O_RDONLY) < 0); /* the host has no such file */
    raw(SYS_pread64, fd, (long)&byte, 1);
    pthread_t other;
    MUST(pthread_create(&other, NULL, thread, NULL) == 0 && pthread_join(other, NULL) == 0);
    int status;
    pid_t child = fork();
    if (child == 0) {
        raw(SYS_chmod, (long)path, 0600, 0);
        _exit(0);
    }
    MUST(waitpid(child, &status, 0) == child && status == 0);
    child = vfork();
    if (child == 0) {
        raw(SYS_mkdir, (long)path, 0700, 0);
        _exit(0);
    }
    MUST(waitpid(child, &status, 0) == child && status == 0);
    child = vfork();
    if (child == 0) {
        execl("/proc/self/exe", argv[0], path, "executed", NULL);
        _exit(1);
    }
    MUST(waitpid(child, &status, 0) == child && status == 0);
    return 0;
}
