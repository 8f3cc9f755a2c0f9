/* Children that have a file of the array as their standard output: redirected DIRECTORY WAY, while other threads work on files. */
#include "children.h"

enum { CHILDREN = 30, AT_ONCE = 4 };
static const char *d;

static pid_t start(const char *way, int log, const char *script)
{
    char *const arguments[] = { "sh", "-c", (char *)script, NULL };
    pid_t pid;
    if (strcmp(way, "vfork") == 0) {
        if ((pid = vfork()) == 0) {
            if (dup2(log, 1) == 1 && close(log) == 0)
                execve("/bin/sh", arguments, environ);
            _exit(88);
        }
        return pid;
    }
    if (strcmp(way, "fork") == 0) {
        if ((pid = fork()) == 0) {
            if (dup2(log, 1) == 1 && close(log) == 0)
                execve("/bin/sh", arguments, environ);
            _exit(88);
        }
        return pid;
    }
    posix_spawn_file_actions_t actions;
    MUST(posix_spawn_file_actions_init(&actions) == 0);
    MUST(posix_spawn_file_actions_adddup2(&actions, log, 1) == 0 && posix_spawn_file_actions_addclose(&actions, log) == 0);
    pid = spawn(arguments, &actions, NULL);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
}

/* Lines of the parent and of each child, one after the other. */
static void in_turns(const char *way, const char *name, int flags)
{
    char text[100];
    off_t expected = 0;
    int log = open(in(d, name), O_RDWR | O_CREAT | O_TRUNC | flags, 0644);
    MUST(log >= 0);
    for (int index = 0; index < CHILDREN; index++) {
        int length = snprintf(text, sizeof text, "parent %d\n", index);
        ssize_t count = write(log, text, length);
        if (count != length)
            wrong("%s: write gave %zd (%s)", name, count, strerrorname_np(errno));
        snprintf(text, sizeof text, "echo child %d; echo again %d", index, index);
        int status = wait_for(start(way, log, text));
        if (status != 0)
            wrong("%s: child %d ended with %d", name, index, status);
        expected += length + snprintf(NULL, 0, "child %d\nagain %d\n", index, index);
        off_t offset = lseek(log, 0, SEEK_CUR);
        if (offset != expected)
            wrong("%s: the offset after child %d is %lld, must be %lld", name, index, (long long)offset, (long long)expected);
    }
    MUST(close(log) == 0);
    show_content(in(d, name));
}

/* Several children at once and the parent: which line comes first is their business, but all are there and whole. */
static void at_once(const char *way, const char *name, int flags)
{
    enum { LINES = 40 };
    pid_t pids[AT_ONCE];
    char text[200];
    int log = open(in(d, name), O_RDWR | O_CREAT | O_TRUNC | flags, 0644), counts[AT_ONCE + 1] = { 0 }, number, line;
    MUST(log >= 0);
    for (int index = 0; index < AT_ONCE; index++) {
        snprintf(text, sizeof text, "i=0; while [ $i -lt %d ]; do echo %d:$i; i=$((i+1)); done", LINES, index);
        pids[index] = start(way, log, text);
    }
    for (int index = 0; index < LINES; index++) {
        int length = snprintf(text, sizeof text, "%d:%d\n", AT_ONCE, index);
        MUST(write(log, text, length) == length);
    }
    for (int index = 0; index < AT_ONCE; index++)
        MUST(wait_for(pids[index]) == 0);
    MUST(lseek(log, 0, SEEK_SET) == 0);
    FILE *stream = fdopen(log, "r");
    while (fscanf(stream, "%d:%d\n", &number, &line) == 2) {
        if (number < 0 || number > AT_ONCE || line != counts[number])
            wrong("%s: line %d of child %d out of order", name, line, number);
        counts[number]++;
    }
    if (!feof(stream))
        wrong("%s: a line that nobody wrote at %ld", name, ftell(stream));
    fclose(stream);
    printf("%s:", name);
    for (int index = 0; index <= AT_ONCE; index++)
        printf(" %d", counts[index]);
    printf(" lines\n");
    MUST(unlink(in(d, name)) == 0);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    d = argv[1];
    company_begins(d);
    in_turns(argv[2], "appended", O_APPEND);
    in_turns(argv[2], "continued", 0);
    at_once(argv[2], "appended-at-once", O_APPEND);
    at_once(argv[2], "continued-at-once", 0);
    company_ends();
    return 0;
}
