/* Executes a program in a child that has in common with its parent what flags of clone(2) say (in hexadecimal), and prints where the parent is then. The program is given the
   number of a descriptor, of which is printed whether the parent's next program would have it. With a second program the child executes that if the first cannot be. */
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
    char **list = arguments;
    execv(list[0], list);
    if (!list[2])
        _exit(126);
    /* Descriptors are the child's own here, or the parent's as before. */
    int made = open("child", O_CREAT | O_APPEND | O_WRONLY, 0644);
    if (write(made, "x", 1) != 1 || close(made) || write(7, "y", 1) != 1)
        _exit(125);
    execv(list[2], list);
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
    if (count > 3)
        printf("%s is %s\n", arguments[3], fcntl(atoi(arguments[3]), F_GETFD) ? "marked" : "kept");
    close(open("parent", O_CREAT | O_WRONLY, 0644));
    printf("parent in %s\n", getcwd(path, sizeof path));
    return 0;
}
