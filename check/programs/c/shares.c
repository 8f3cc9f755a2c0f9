/* Executes a program in a child that has in common with its parent what flags of clone(2) say (in hexadecimal), and prints where the parent is then. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
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
    pid_t made = clone(child, stack + sizeof stack, strtol(arguments[1], 0, 16) | SIGCHLD, arguments + 2);
    if (made < 0 || waitpid(made, &status, 0) != made || status)
        printf("clone: %s, status %#x\n", strerror(errno), status);
    close(open("parent", O_CREAT | O_WRONLY, 0644));
    printf("parent in %s\n", getcwd(path, sizeof path));
    return 0;
}
