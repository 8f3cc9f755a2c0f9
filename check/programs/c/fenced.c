/* A program that a sandbox (landlock(7)) keeps from what lies outside of one directory, and from cutting files: on an array the directory is that of one member. What it may do there and not on the others is made good
 * by others, and no member is given up for it. */
#include "check.h"
#include <linux/landlock.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define TRUNCATES (1ull << 14)

/* Everything is kept from this process but what `allowed` says, below `directory`. */
static int fence(const char *directory, unsigned long long handled, unsigned long long allowed)
{
    struct landlock_ruleset_attr rules = { .handled_access_fs = handled };
    int ruleset = syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0);
    if (ruleset < 0)
        return -1;
    struct landlock_path_beneath_attr below = { .allowed_access = allowed, .parent_fd = open(directory, O_PATH) };
    MUST(below.parent_fd >= 0 && (allowed == 0 || syscall(SYS_landlock_add_rule, ruleset, 1, &below, 0) == 0));
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && syscall(SYS_landlock_restrict_self, ruleset, 0) == 0);
    return 0;
}

int main(int argc, char **argv)
{
    (void)argc;
    const char *directory = strdup(argv[1]), *names[] = { "gone", "stays", "log" };
    int fds[3], status;
    for (int index = 0; index < 3; index++)
        fds[index] = make_in(directory, names[index], names[index], 4);
    MUST(mkdir(in(directory, "inner"), 0755) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        /* Rights of the first version: without those the program goes on unfenced, on a plain directory as well. */
        fence(directory, 0x1fff, 0x1fff);
        _exit(unlink(in(directory, "gone")) == 0 ? 0 : 1);
    }
    MUST(waitpid(child, &status, 0) == child);
    printf("removed: %d, there: %d\n", status, access(in(directory, "gone"), F_OK) == 0);
    child = fork();
    if (child == 0) {
        if (fence(directory, TRUNCATES, 0) < 0)
            _exit(0);
        char bytes[100] = "";
        /* What it may write and what it may not depends on how the bytes come to the members. */
        (void)!pwrite(fds[2], bytes, sizeof bytes, 1000000);
        (void)!pwrite(fds[2], bytes, sizeof bytes, 0);
        (void)!fsync(fds[2]);
        _exit(0);
    }
    MUST(waitpid(child, &status, 0) == child);
    printf("ended: %d\n", status);
    SHOW(rename(in(directory, "stays"), in(directory, "inner/moved")));
    SHOW(ftruncate(fds[2], 300000));
    SHOW(pwrite(fds[2], "back", 4, 299990));
    SHOW(ftruncate(fds[2], 0));
    SHOW(fsync(fds[1]));
    return 0;
}
