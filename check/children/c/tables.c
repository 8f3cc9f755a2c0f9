/* Processes and threads that share some of what a process has and not the rest: descriptor table, directory, umask, signal actions.
 * tables DIRECTORY WAY, while other threads work on files. Each way prints what parent and child find afterwards. */
#include "children.h"
#include <linux/close_range.h>
#include <sys/prctl.h>

enum { A = 200, B = 201, C = 202, D = 203, HOST = 204 };
static const char *d;
static char directories[3][4096];
static pthread_barrier_t barrier;

static void take_turns(void)
{
    pthread_barrier_wait(&barrier);
}

/* Files under numbers that no other thread uses: A and B on the array, HOST not. */
static void prepare(void)
{
    snprintf(directories[0], sizeof directories[0], "%s/one", d);
    snprintf(directories[1], sizeof directories[1], "%s/two", d);
    MUST(mkdir(directories[0], 0755) == 0 && mkdir(directories[1], 0755) == 0 && chdir(directories[0]) == 0);
    umask(027);
    open_as(A, in(d, "a"), O_RDWR | O_CREAT | O_TRUNC, 0666);
    open_as(B, in(d, "b"), O_RDWR | O_CREAT | O_TRUNC, 0666);
    open_as(HOST, "/dev/null", O_RDWR, 0);
    MUST(write(A, "written by the parent\n", 22) == 22 && write(B, "written by the parent\n", 22) == 22);
}

static const char *action(int signal)
{
    struct sigaction action;
    MUST(sigaction(signal, NULL, &action) == 0);
    return action.sa_handler == SIG_DFL ? "default" : action.sa_handler == SIG_IGN ? "ignored" : "caught";
}

/* What the caller has; all of it goes to standard output at once, since who prints may share its buffer with nobody. */
static void show_state(const char *who)
{
    struct stat stat;
    for (int fd = A; fd <= HOST; fd++)
        show_offset(who, fd);
    show_directory(who, d);
    unlink("made");
    int fd = open("made", O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (fd < 0 || fstat(fd, &stat) != 0 || close(fd) != 0)
        printf("%s: made: %s\n", who, strerrorname_np(errno));
    else
        printf("%s: a new file has mode %o\n", who, stat.st_mode & 07777);
    printf("%s: SIGUSR1 is %s\n", who, action(SIGUSR1));
}

static void show_files(void)
{
    const char *names[] = { "a", "b", "c", "one/made", "two/made", "one/relative", "two/relative", "late" };
    for (size_t index = 0; index < sizeof names / sizeof *names; index++)
        show_content(in(d, names[index]));
}

/* The other thread: its table is its own from here on. */
static void *table_apart(void *way)
{
    take_turns();
    if (strcmp(way, "close-range") == 0)
        MUST(close_range(B, B, CLOSE_RANGE_UNSHARE) == 0);
    else
        MUST(unshare(CLONE_FILES) == 0 && close(B) == 0);
    SHOW(write(B, "to a closed descriptor\n", 23));
    SHOW(write(A, "by the thread\n", 14));
    open_as(C, in(d, "c"), O_RDWR | O_CREAT | O_TRUNC, 0666);
    take_turns();
    /* Now the main thread writes by its B and A. */
    take_turns();
    show_offset("thread", A);
    open_as(B, in(d, "late"), O_RDWR | O_CREAT | O_TRUNC, 0666);
    SHOW(write(B, "the thread's B is another file\n", 31));
    take_turns();
    /* Now the main thread closes A, and has another file as C. */
    take_turns();
    SHOW(write(A, "still open here\n", 16));
    SHOW(write(C, "C of the thread\n", 16));
    SHOW(lseek(C, 0, SEEK_CUR));
    show_offset("thread", D);
    return NULL;
}

static void apart(const char *way)
{
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, table_apart, (void *)way) == 0);
    take_turns();
    take_turns();
    show_offset("main", A);
    show_offset("main", C);
    SHOW(write(B, "still open in the main thread\n", 30));
    SHOW(write(A, "by the main thread\n", 19));
    take_turns();
    take_turns();
    show_offset("main", B);
    SHOW(write(B, "and still the same\n", 19));
    SHOW(close(A));
    open_as(C, in(d, "one/relative"), O_RDWR | O_CREAT | O_TRUNC, 0666);
    SHOW(write(C, "C of the main thread\n", 21));
    open_as(D, in(d, "a"), O_RDONLY, 0);
    take_turns();
    MUST(pthread_join(thread, NULL) == 0);
    show_state("main");
}

/* The other thread: its directory and its umask are its own. */
static void *directory_apart(void *argument)
{
    (void)argument;
    take_turns();
    MUST(unshare(CLONE_FS) == 0 && chdir(directories[1]) == 0);
    umask(077);
    MUST(close(open("relative", O_WRONLY | O_CREAT, 0666)) == 0);
    show_directory("thread", d);
    take_turns();
    take_turns();
    show_directory("thread", d);
    SHOW(access("relative", F_OK));
    SHOW(rename("relative", "../c"));
    return NULL;
}

static void fs_apart(void)
{
    pthread_t thread;
    struct stat stat;
    MUST(pthread_create(&thread, NULL, directory_apart, NULL) == 0);
    take_turns();
    take_turns();
    show_directory("main", d);
    SHOW(access("relative", F_OK));
    show_state("main");
    MUST(chdir(d) == 0);
    take_turns();
    MUST(pthread_join(thread, NULL) == 0);
    MUST(lstat(in(d, "c"), &stat) == 0);
    printf("c has mode %o\n", stat.st_mode & 07777);
    show_state("main");
}

/* What a child has done before it ends; where it may be in its parent's memory it touches nothing there. */
static int work(int shares_memory)
{
    char back[40];
    struct stat stat;
    if (write(A, "by the child\n", 13) != 13 || lseek(B, 3, SEEK_SET) != 3)
        return 11;
    int fd = open(in(d, "c"), O_RDWR | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || write(fd, "made by the child\n", 18) != 18 || pread(fd, back, sizeof back, 0) != 18 || memcmp(back, "made by", 7) != 0)
        return 12;
    if (dup2(fd, C) != C || close(fd) != 0 || ftruncate(C, 10) != 0 || fstat(C, &stat) != 0 || stat.st_size != 10)
        return 13;
    if (close(HOST) != 0 || dup2(B, D) != D || close(B) != 0 || write(B, "x", 1) != -1)
        return 14;
    if (stat.st_mode != (S_IFREG | 0640) || chdir(directories[1]) != 0)
        return 15;
    umask(077);
    fd = open("relative", O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (fd < 0 || fstat(fd, &stat) != 0 || stat.st_mode != (S_IFREG | 0600) || close(fd) != 0)
        return 16;
    if (lstat("../c", &stat) != 0 || stat.st_size != 10 || lseek(C, 0, SEEK_CUR) != 18)
        return 17;
    if (shares_memory >= 0 && signal(SIGUSR1, SIG_IGN) == SIG_ERR)
        return 18;
    return 0;
}

/* How the child ends: by _exit, by a program, by a program that is not there, by a signal. */
static int ending;

static int child(void *shares_memory)
{
    char *const nothing[] = { "true", NULL };
    int failed = work((int)(intptr_t)shares_memory);
    if (failed)
        _exit(failed);
    switch (ending) {
    case 1:
        execve("/bin/true", nothing, environ);
        _exit(88);
    case 2:
        execve(in(d, "no-such-program"), nothing, environ);
        _exit(errno == ENOENT ? 0 : 89);
    case 3:
        kill(getpid(), SIGKILL);
    }
    _exit(0);
}

/* A child of clone(2) by these flags, on a stack of its own or on a copy of ours. */
static pid_t clone_by(int flags, int own_stack)
{
    if (own_stack)
        return clone(child, (char *)new_stack() + STACK_BYTES, flags | SIGCHLD, (void *)(intptr_t)((flags & CLONE_VM) != 0));
    pid_t pid = syscall(SYS_clone, flags | SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid == 0)
        child((void *)0);
    return pid;
}

static void by_clone(int flags, int own_stack)
{
    static const char *const endings[] = { "_exit", "a program", "no program", "SIGKILL" };
    for (ending = 0; ending < 4; ending++) {
        printf("the child ends by %s\n", endings[ending]);
        fflush(stdout);
        printf("child: %d\n", wait_for(clone_by(flags, own_stack)));
        show_state("parent");
        show_files();
        /* All as before the child. */
        MUST(chdir(directories[0]) == 0);
        umask(027);
        signal(SIGUSR1, SIG_DFL);
        close(C), close(D);
        open_as(B, in(d, "b"), O_RDWR, 0);
        open_as(HOST, "/dev/null", O_RDWR, 0);
        MUST(unlink("../two/relative") == 0 && write(A, "by the parent\n", 14) == 14);
    }
}

/* The same by vfork(3), whose child is on its parent's stack. */
static void by_vfork(void)
{
    for (ending = 0; ending < 4; ending++) {
        fflush(stdout);
        pid_t pid = vfork();
        if (pid == 0)
            child((void *)1);
        printf("child: %d\n", wait_for(pid));
        show_state("parent");
        show_files();
        MUST(unlink("../two/relative") == 0 && write(A, "by the parent\n", 14) == 14);
    }
}

/* Many children after each other, while the parent's other threads are at work. */
static void many(int flags, int count)
{
    char *stack = (char *)new_stack() + STACK_BYTES;
    int failed = 0;
    for (int index = 0; index < count; index++) {
        ending = index % 4;
        pid_t pid = clone(child, stack, flags | SIGCHLD, (void *)(intptr_t)((flags & CLONE_VM) != 0));
        int status = wait_for(pid);
        failed += status != (ending == 3 ? 1000 + SIGKILL : 0);
        MUST(unlink("../two/relative") == 0);
    }
    printf("%d children, %d failed\n", count, failed);
    show_state("parent");
    show_files();
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    d = argv[1];
    setvbuf(stdout, NULL, _IONBF, 0);
    MUST(pthread_barrier_init(&barrier, NULL, 2) == 0);
    prepare();
    company_begins(d);
    const char *way = argv[2];
    const struct {
        const char *way;
        int flags, own_stack;
    } clones[] = {
        { "clone", 0, 0 },
        { "clone-stack", 0, 1 },
        { "clone-files", CLONE_FILES, 0 },
        { "clone-files-stack", CLONE_FILES, 1 },
        { "clone-fs", CLONE_FS, 0 },
        { "clone-fs-stack", CLONE_FS, 1 },
        { "clone-files-fs", CLONE_FILES | CLONE_FS, 1 },
        { "vfork-stack", CLONE_VM | CLONE_VFORK, 1 },
        { "vfork-files", CLONE_VM | CLONE_VFORK | CLONE_FILES, 1 },
        { "vfork-fs", CLONE_VM | CLONE_VFORK | CLONE_FS, 1 },
        { "vfork-signals", CLONE_VM | CLONE_VFORK | CLONE_SIGHAND, 1 },
        { "vfork-all", CLONE_VM | CLONE_VFORK | CLONE_FILES | CLONE_FS | CLONE_SIGHAND, 1 },
        { "clone-vm", CLONE_VM, 1 },
    };
    if (strcmp(way, "close-range") == 0 || strcmp(way, "unshare-files") == 0)
        apart(way);
    else if (strcmp(way, "unshare-fs") == 0)
        fs_apart();
    else if (strcmp(way, "vfork") == 0)
        by_vfork();
    else if (strcmp(way, "many-vfork") == 0)
        many(CLONE_VM | CLONE_VFORK, 40);
    else if (strcmp(way, "many-clone") == 0)
        many(0, 100);
    for (size_t index = 0; index < sizeof clones / sizeof *clones; index++)
        if (strcmp(way, clones[index].way) == 0)
            by_clone(clones[index].flags, clones[index].own_stack);
    show_files();
    company_ends();
    return 0;
}
