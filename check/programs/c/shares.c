/* Executes a program in a child that has memory and current directory in common with its parent, and prints where the parent is then. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int child(void *arguments)
{
    execv(((char **)arguments)[0], arguments);
    _exit(126);
}

int main(int count, char **arguments)
{
    static char stack[1 << 16] __attribute__((aligned(16)));
    char path[4096];
    int status = -1;
    pid_t made = clone(child, stack + sizeof stack, CLONE_VM | CLONE_VFORK | CLONE_FS | SIGCHLD, arguments + 1);
    if (made < 0 || waitpid(made, &status, 0) != made || status)
        printf("clone: %s, status %#x\n", strerror(errno), status);
    printf("parent in %s\n", getcwd(path, sizeof path));
    return 0;
}
