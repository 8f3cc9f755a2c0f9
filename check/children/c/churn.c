/* Children that do nothing with files, made one way or another while two threads write and read files: churn DIRECTORY WAY COUNT. */
#include "children.h"

static pid_t make(const char *way)
{
    char *const nothing[] = { "true", NULL };
    pid_t pid;
    if (strcmp(way, "spawn") == 0)
        return spawn(nothing, NULL, NULL);
    if (strcmp(way, "vfork") == 0) {
        if ((pid = vfork()) == 0) {
            execve("/bin/true", nothing, environ);
            _exit(88);
        }
        return pid;
    }
    if (strcmp(way, "vfork-exit") == 0) {
        if ((pid = vfork()) == 0)
            _exit(0);
        return pid;
    }
    if (strcmp(way, "fork") == 0) {
        if ((pid = fork()) == 0) {
            execl("/bin/true", "true", (char *)NULL);
            _exit(88);
        }
        return pid;
    }
    wrong("no such way: %s", way);
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    int count = atoi(argv[3]), failed = 0;
    company_begins(argv[1]);
    for (int index = 0; index < count; index++)
        failed += wait_for(make(argv[2])) != 0;
    company_ends();
    printf("%s: %d children, %d failed\n", argv[2], count, failed);
    return failed != 0;
}
