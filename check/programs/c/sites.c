/* Calls that do not come from libc's wrappers: syscall(), the instruction in the program itself, and in a library opened later. */
#include "check.h"
#include <dlfcn.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#endif

static long in_program(long number, long a, long b, long c, long e)
{
    long result;
    register long r10 __asm__("r10") = e;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return result;
}

static void use(const char *what, const char *path, long (*call)(long, long, long, long, long))
{
    static unsigned char bytes[70000], back[70000];
    fill(bytes, sizeof bytes, 21);
    long fd = call(SYS_openat, AT_FDCWD, (long)path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    MUST(fd >= 0);
    long written = call(SYS_write, fd, (long)bytes, 60000, 0);
    long more = call(SYS_pwrite64, fd, (long)bytes, 10000, 60000);
    long read_back = call(SYS_pread64, fd, (long)back, sizeof back, 0);
    struct stat stat;
    long stated = call(SYS_fstat, fd, (long)&stat, 0, 0);
    printf("%s: %ld %ld %ld, %s, size %lld (%ld)\n", what, written, more, read_back,
           memcmp(bytes, back, 60000) || memcmp(bytes, back + 60000, 10000) ? "different" : "the same", (long long)stat.st_size, stated);
    MUST(call(SYS_close, fd, 0, 0, 0) == 0);
    show_content(path);
    printf("gone: %ld\n", call(SYS_openat, AT_FDCWD, (long)"/none/such", O_RDONLY, 0));
}

static long through_libc(long number, long a, long b, long c, long e)
{
    long result = syscall(number, a, b, c, e);
    return result == -1 ? -errno : result;
}

/* Opens and closes the library `count` times and makes a call in it, in a process of its own. */
static void open_often(int count, int forbids_executable)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        MUST(dup2(open("/dev/null", O_WRONLY), 2) == 2);
        MUST(!forbids_executable || prctl(PR_SET_MDWE, 1, 0, 0, 0) == 0);
        for (int round = 0; round < count; round++) {
            void *library = dlopen(in(getenv("A"), "bin/library.so"), RTLD_NOW | RTLD_LOCAL);
            MUST(library);
            long (*in_library)(long, long, long, long, long) = (long (*)(long, long, long, long, long))dlsym(library, "in_library");
            MUST(in_library(SYS_openat, AT_FDCWD, (long)"/none/such", O_RDONLY, 0) == -ENOENT);
            dlclose(library);
        }
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child);
    printf("opened %d times: status %d\n", count, status);
}

int main(int argc, char **argv)
{
    (void)argc;
    /* A process that may not make memory executable any more opens a library with a system call of its own. */
    open_often(1, 1);
    /* More often than there are areas for trampolines. */
    open_often(1100, 0);
    use("syscall()", strdup(in(argv[1], "by-syscall")), through_libc);
    use("in the program", strdup(in(argv[1], "by-program")), in_program);
    for (int round = 0; round < 2; round++) {
        void *library = dlopen(in(getenv("A"), "bin/library.so"), RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            printf("%s\n", dlerror());
            return 1;
        }
        long (*in_library)(long, long, long, long, long) = (long (*)(long, long, long, long, long))dlsym(library, "in_library");
        int (*through_stdio)(const char *) = (int (*)(const char *))dlsym(library, "through_stdio");
        use("in a library", strdup(in(argv[1], round ? "by-library-again" : "by-library")), in_library);
        printf("stdio of a library: %d\n", through_stdio(in(argv[1], "by-library-stdio")));
        dlclose(library);
    }
    show_content(in(argv[1], "by-library-stdio"));
    return 0;
}
