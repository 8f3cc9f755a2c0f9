/* Changes the directory it is started in by an empty path (AT_EMPTY_PATH), as does a child that shares its memory. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

static int failures;

static void must(int holds, const char *what)
{
    if (!holds) {
        printf("%s\n", what);
        failures++;
    }
}

int main(int argc, char **argv)
{
    struct timespec times[2] = { { 1000000000, 5 }, { 1100000000, 7 } };
    (void)argc;
    must(mkdir(argv[1], 0755) == 0 && chdir(argv[1]) == 0, "a directory");
    must(utimensat(AT_FDCWD, "", times, AT_EMPTY_PATH) == 0, "times");
    must(syscall(SYS_fchmodat2, AT_FDCWD, "", 0711, AT_EMPTY_PATH) == 0, "mode");
    must(fchownat(AT_FDCWD, "", -1, getgid(), AT_EMPTY_PATH) == 0, "group");
    must(mkdir("child", 0755) == 0 && chdir("child") == 0, "a directory for the child");
    pid_t child = vfork();
    if (child == 0)
        _exit(syscall(SYS_fchmodat2, AT_FDCWD, "", 0750, AT_EMPTY_PATH) != 0);
    int status;
    must(waitpid(child, &status, 0) == child && status == 0, "mode by a child");
    return failures != 0;
}
