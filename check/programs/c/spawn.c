/* Children and what they inherit: fork, vfork and posix_spawn, offsets shared across processes, exec with open files. */
#include "check.h"
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;
static const char *d;
static char self[4096];

static int wait_for(pid_t pid)
{
    int status;
    MUST(pid > 0 && waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static int run(char *const arguments[], posix_spawn_file_actions_t *actions, char *const environment[])
{
    pid_t pid;
    int error = posix_spawnp(&pid, arguments[0], actions, NULL, arguments, environment);
    if (error) {
        printf("%s: %s\n", arguments[0], strerrorname_np(error));
        return -1;
    }
    return wait_for(pid);
}

/* The program started with an open descriptor: it writes, reads back and moves the shared offset. */
static int child(int fd, const char *text)
{
    char first[6] = { 0 };
    struct stat stat;
    MUST(fstat(fd, &stat) == 0 && pread(fd, first, 5, 0) == 5);
    MUST(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    dprintf(1, "child: begins with '%s', now at %lld\n", first, (long long)lseek(fd, 0, SEEK_CUR));
    return 7;
}

static void make_script(const char *directory, const char *text)
{
    char name[8192];
    MUST(mkdir(directory, 0755) == 0);
    snprintf(name, sizeof name, "%s/script", directory);
    int fd = open(name, O_WRONLY | O_CREAT, 0755);
    MUST(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0);
}

/* A script that is named relative to a directory's descriptor is that one, whatever the current directory has of that name. */
static void script_by_descriptor(void)
{
    char here[4096], there[4096];
    snprintf(here, sizeof here, "%s/here", d);
    snprintf(there, sizeof there, "%s/there", d);
    make_script(here, "#!/bin/sh\nexit 11\n");
    make_script(there, "#!/bin/sh\nexit 12\n");
    int directory = open(there, O_RDONLY | O_DIRECTORY);
    MUST(directory >= 0);
    pid_t pid = fork();
    if (pid == 0) {
        MUST(chdir(here) == 0);
        execveat(directory, "script", (char *[]) { "script", NULL }, environ, 0);
        _exit(99);
    }
    printf("script by descriptor: %d\n", wait_for(pid));
    MUST(close(directory) == 0);
}

static void forking(void)
{
    int fd = open(in(d, "forked"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    MUST(write(fd, "parent 1\n", 9) == 9);
    pid_t pid = fork();
    if (pid == 0) {
        char text[10] = { 0 };
        MUST(pread(fd, text, 9, 0) == 9 && strcmp(text, "parent 1\n") == 0);
        MUST(write(fd, "child 1\n", 8) == 8);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            MUST(write(fd, "grandchild\n", 11) == 11);
            close(fd);
            _exit(3);
        }
        MUST(wait_for(grandchild) == 3 && write(fd, "child 2\n", 8) == 8);
        _exit(4);
    }
    printf("fork: %d\n", wait_for(pid));
    printf("the offset moved on to %lld\n", (long long)lseek(fd, 0, SEEK_CUR));
    MUST(write(fd, "parent 2\n", 9) == 9);
    close(fd);
    show_content(in(d, "forked"));
}

static void many_at_once(void)
{
    int fd = open(in(d, "many"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    pid_t pids[4];
    for (int index = 0; index < 4; index++) {
        if ((pids[index] = fork()) == 0) {
            char record[64];
            memset(record, 'a' + index, sizeof record);
            for (int count = 0; count < 250; count++)
                MUST(write(fd, record, sizeof record) == sizeof record);
            _exit(0);
        }
    }
    for (int index = 0; index < 4; index++)
        MUST(wait_for(pids[index]) == 0);
    int counts[4] = { 0 };
    char record[64];
    MUST(lseek(fd, 0, SEEK_SET) == 0);
    while (read(fd, record, sizeof record) == sizeof record) {
        MUST(record[0] >= 'a' && record[0] < 'e');
        counts[record[0] - 'a'] += memcmp(record, record + 1, sizeof record - 1) == 0;
    }
    printf("records through one shared offset: %d %d %d %d\n", counts[0], counts[1], counts[2], counts[3]);
    close(fd);
    MUST(unlink(in(d, "many")) == 0);
}

static void vforking(void)
{
    int fd = open(in(d, "vforked"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    MUST(write(fd, "hello world\n", 12) == 12);
    char number[16];
    snprintf(number, sizeof number, "%d", fd);
    pid_t pid = vfork();
    if (pid == 0) {
        close(fd + 100);
        execl(self, self, "child", number, "from an executed child\n", (char *)0);
        _exit(88);
    }
    printf("vfork: %d\n", wait_for(pid));
    printf("parent is at %lld\n", (long long)lseek(fd, 0, SEEK_CUR));
    pid = vfork();
    if (pid == 0) {
        close(fd);
        _exit(5);
    }
    printf("a vforked child that closes: %d\n", wait_for(pid));
    MUST(write(fd, "still open\n", 11) == 11);
    close(fd);
    show_content(in(d, "vforked"));
}

static void spawning(void)
{
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, in(d, "spawned"), O_WRONLY | O_CREAT | O_TRUNC, 0640);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    printf("echo: %d\n", run((char *[]){ "echo", "into", "the array", 0 }, &actions, environ));
    show_content(in(d, "spawned"));
    posix_spawn_file_actions_destroy(&actions);

    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, in(d, "spawned"), O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, in(d, "copied"), O_WRONLY | O_CREAT | O_APPEND, 0640);
    for (int round = 0; round < 3; round++)
        printf("cat: %d\n", run((char *[]){ "cat", 0 }, &actions, environ));
    show_content(in(d, "copied"));
    posix_spawn_file_actions_destroy(&actions);

    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, in(d, "none/there"), O_WRONLY | O_CREAT, 0640);
    printf("bad action: %d\n", run((char *[]){ "echo", "x", 0 }, &actions, environ));
    posix_spawn_file_actions_destroy(&actions);

    /* A program that clears the environment of its child. */
    int fd = open(in(d, "cleaned"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    char number[16];
    snprintf(number, sizeof number, "%d", fd);
    MUST(write(fd, "clean\n", 6) == 6);
    char *nothing[] = { "LC_ALL=C", 0 };
    printf("with a clean environment: %d\n", run((char *[]){ self, "child", number, "cleaned\n", 0 }, NULL, nothing));
    close(fd);
    show_content(in(d, "cleaned"));
}

static void close_on_exec(void)
{
    int kept = open(in(d, "kept"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    int closed = open(in(d, "closed"), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    char script[200];
    snprintf(script, sizeof script, "echo kept >&%d; (echo closed >&%d) 2>/dev/null || echo was closed", kept, closed);
    fflush(stdout);
    printf("sh: %d\n", run((char *[]){ "sh", "-c", script, 0 }, NULL, environ));
    close(kept), close(closed);
    show_content(in(d, "kept"));
    show_content(in(d, "closed"));
    FILE *stream = popen("cat", "w");
    MUST(stream);
    fputs("through popen\n", stream);
    pclose(stream);
    char command[4200];
    snprintf(command, sizeof command, "wc -c <'%s/kept'", d);
    MUST(system(command) == 0);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    if (argc > 3 && strcmp(argv[1], "child") == 0)
        return child(atoi(argv[2]), argv[3]);
    d = argv[1];
    MUST(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    script_by_descriptor();
    forking();
    many_at_once();
    vforking();
    spawning();
    close_on_exec();
    return 0;
}
