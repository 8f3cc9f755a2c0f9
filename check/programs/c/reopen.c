/* Files that are opened again and again while others change them: what a library keeps of a closed file must never show. */
#include "check.h"
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>

extern char **environ;
static const char *d;

static int wait_for(pid_t pid)
{
    int status;
    MUST(pid > 0 && waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static int run(const char *program, const char *one, const char *two)
{
    char *arguments[] = { (char *)program, (char *)one, (char *)two, NULL };
    pid_t pid;
    int error = posix_spawnp(&pid, program, NULL, NULL, arguments, environ);
    if (error) {
        printf("%s: %s\n", strrchr(program, '/') ? strrchr(program, '/') + 1 : program, strerrorname_np(error));
        return -1;
    }
    return wait_for(pid);
}

static void put(const char *name, const char *text, int mode)
{
    int fd = open(in(d, name), O_WRONLY | O_CREAT | O_TRUNC, mode);
    MUST(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0);
}

/* Opens and closes a few times, as it takes for a file to be kept. */
static void touch(const char *name)
{
    for (int i = 0; i < 3; i++) {
        int fd = open(in(d, name), O_RDWR);
        MUST(fd >= 0 && close(fd) == 0);
    }
}

static void show(const char *name)
{
    char text[64] = { 0 };
    int fd = open(in(d, name), O_RDONLY);
    if (fd < 0) {
        printf("%s: %s\n", name, strerrorname_np(errno));
        return;
    }
    MUST(read(fd, text, 63) >= 0 && close(fd) == 0);
    printf("%s: %s\n", name, text);
}

static void by_children(void)
{
    put("f", "first", 0600), touch("f");
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        show("f"), put("f", "by the child", 0600), touch("f");
        MUST(rename(in(d, "f"), in(d, "g")) == 0);
        put("f", "another", 0600), touch("f"), touch("g");
        fflush(stdout);
        _exit(5);
    }
    printf("child: %d\n", wait_for(pid));
    show("f"), show("g");
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        touch("f"), touch("g"), unlink(in(d, "g"));
        kill(getpid(), SIGKILL);
    }
    printf("killed: %d\n", wait_for(pid));
    show("f"), show("g");
    put("g", "made anew", 0600), touch("g"), show("g");
    fflush(stdout);
    pid = vfork();
    if (pid == 0) {
        int fd = open(in(d, "f"), O_RDWR);
        _exit(fd >= 0 && write(fd, "VFORK", 5) == 5 && close(fd) == 0 ? 6 : 1);
    }
    printf("vfork: %d\n", wait_for(pid));
    touch("f"), show("f");
}

/* A program that was written here, becomes executable elsewhere and is executed. */
static void executed(void)
{
    put("script", "#!/bin/sh\nexit 11\n", 0600), touch("script");
    MUST(run("cp", "/bin/true", in(d, "true")) == 0);
    MUST(chmod(in(d, "true"), 0600) == 0);
    touch("true");
    printf("not yet executable\n"), run(in(d, "true"), NULL, NULL);
    MUST(run("chmod", "700", in(d, "true")) == 0 && run("chmod", "700", in(d, "script")) == 0);
    printf("true: %d, script: %d\n", run(in(d, "true"), NULL, NULL), run(in(d, "script"), NULL, NULL));
    touch("true");
    printf("true: %d\n", run(in(d, "true"), NULL, NULL));
    MUST(chmod(in(d, "true"), 0600) == 0);
    touch("true");
    MUST(chmod(in(d, "true"), 0700) == 0);
    printf("true: %d\n", run(in(d, "true"), NULL, NULL));
}

/* What the opener may not do now it may not do because it once could. */
static void permissions(void)
{
    put("f", "secret", 0600), touch("f");
    if (geteuid() != 0)
        return;
    MUST(chmod(d, 0777) == 0);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        touch("f");
        MUST(setresuid(65534, 65534, 65534) == 0);
        const char *f = in(d, "f");
        SHOW(open(f, O_RDONLY) >= 0 ? 0 : -1);
        SHOW(open(f, O_WRONLY) >= 0 ? 0 : -1);
        fflush(stdout);
        _exit(0);
    }
    MUST(wait_for(pid) == 0);
    MUST(chmod(in(d, "f"), 0444) == 0);
    show("f");
}

static void descriptors(void)
{
    put("f", "still here", 0600), touch("f");
    /* Every number there is, but for long stretches in which nothing can be. */
    int middle = sysconf(_SC_OPEN_MAX) / 2;
    for (int fd = 3; fd < 200; fd++)
        close(fd);
    for (int fd = middle - 10; fd < middle + 200; fd++)
        close(fd);
    show("f"), touch("f");
    closefrom(3);
    show("f");
    int first = open("/dev/null", O_RDONLY);
    printf("the lowest number: %d\n", first);
    close(first);
    /* In a program of its own, so that the limit is there from its start. */
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit limit = { 100, 100 };
        /* A trace knows the library's own descriptors by their high numbers. */
        MUST(getenv("CXLRAID_TRACE") || setrlimit(RLIMIT_NOFILE, &limit) == 0);
        execl("/proc/self/exe", "reopen", d, "few", NULL);
        _exit(1);
    }
    MUST(wait_for(pid) == 0);
}

/* With few descriptors, the program's own come before what is kept. */
static void few(void)
{
    char name[32];
    for (int i = 0; i < 50; i++)
        snprintf(name, sizeof name, "many%d", i), put(name, name, 0600), touch(name);
    show("many0"), show("many49");
    int count = 0;
    while (count < 60 && open("/dev/null", O_RDONLY) >= 0)
        count++;
    printf("ordinary descriptors: %s\n", count >= 60 ? "enough" : "too few");
    closefrom(3);
    for (int i = 0; i < 50; i++)
        snprintf(name, sizeof name, "many%d", i), unlink(in(d, name));
}

int main(int count, char **arguments)
{
    if (count < 2)
        return 2;
    d = arguments[1];
    MUST(chdir(d) == 0);
    if (count > 2 && strcmp(arguments[2], "few") == 0) {
        few();
        return 0;
    }
    if (count > 2) {
        /* After exec nothing is held that was. */
        show("f"), touch("f");
        MUST(unlink(in(d, "f")) == 0);
        show("f");
        return 0;
    }
    by_children();
    executed();
    permissions();
    descriptors();
    put("f", "before exec", 0600), touch("f");
    fflush(stdout);
    execl("/proc/self/exe", "reopen", d, "again", NULL);
    return 1;
}
