/* posix_spawn and what it does in the child before the program: actions DIRECTORY WAY, while other threads work on files. */
#include "children.h"

enum { LOG = 200, OTHER = 201 };
static const char *d;
static char self[4096];

/* The child: what it has, on standard output. */
static int tell(void)
{
    sigset_t mask;
    struct sigaction action;
    char name[300], text[100];
    MUST(sigprocmask(SIG_BLOCK, NULL, &mask) == 0);
    printf("blocked:");
    for (int signal = 1; signal < 32; signal++)
        if (sigismember(&mask, signal) == 1)
            printf(" %s", sigabbrev_np(signal));
    printf("\nignored:");
    for (int signal = 1; signal < 32; signal++)
        if (sigaction(signal, NULL, &action) == 0 && action.sa_handler == SIG_IGN)
            printf(" %s", sigabbrev_np(signal));
    snprintf(name, sizeof name, "/%s", getcwd(text, sizeof text) ? basename(text) : strerrorname_np(errno));
    printf("\nin %s\n", name);
    int fd = open("told", O_WRONLY | O_CREAT | O_APPEND, 0666);
    MUST(fd >= 0 && write(fd, "told\n", 5) == 5 && close(fd) == 0);
    ssize_t count = read(0, text, 20);
    printf("standard input: %zd bytes, %.*s\n", count, count > 0 ? (int)count : 0, text);
    errno = 0;
    printf("%d at %lld, %d: %s\n", LOG, (long long)lseek(LOG, 0, SEEK_CUR), OTHER, fcntl(OTHER, F_GETFD) < 0 ? strerrorname_np(errno) : "open");
    return 0;
}

static int run(const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes)
{
    return wait_for(spawn((char *[]){ self, "tell", NULL }, actions, attributes));
}

static void show_parent(void)
{
    struct sigaction action;
    sigset_t mask;
    MUST(pthread_sigmask(SIG_BLOCK, NULL, &mask) == 0 && sigaction(SIGUSR1, NULL, &action) == 0);
    show_offset("parent", LOG);
    show_offset("parent", OTHER);
    show_directory("parent", d);
    printf("parent: SIGUSR2 %s, SIGUSR1 %s\n", sigismember(&mask, SIGUSR2) ? "blocked" : "not blocked",
           action.sa_handler == SIG_IGN ? "ignored" : "not ignored");
    show_content(in(d, "out"));
    show_content(in(d, "log"));
    show_content(in(d, "told"));
    show_content(in(d, "below/told"));
}

/* Standard output by addopen, once truncated and once appended to; standard input from a file; another descriptor closed. */
static void files(int round)
{
    posix_spawn_file_actions_t actions;
    MUST(posix_spawn_file_actions_init(&actions) == 0);
    int flags = round % 3 == 2 ? O_APPEND : O_TRUNC;
    MUST(posix_spawn_file_actions_addopen(&actions, 1, in(d, "out"), O_WRONLY | O_CREAT | flags, 0640) == 0);
    MUST(posix_spawn_file_actions_addopen(&actions, 0, in(d, "quiet-00"), O_RDONLY, 0) == 0);
    MUST(posix_spawn_file_actions_addclose(&actions, OTHER) == 0);
    printf("files: %d\n", run(&actions, NULL));
    posix_spawn_file_actions_destroy(&actions);
}

/* The log, of which parent and child share the offset, as standard output; the child's LOG is what the parent has as OTHER. */
static void duplicates(void)
{
    posix_spawn_file_actions_t actions;
    MUST(posix_spawn_file_actions_init(&actions) == 0);
    MUST(posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0) == 0);
    MUST(posix_spawn_file_actions_adddup2(&actions, LOG, 1) == 0);
    MUST(posix_spawn_file_actions_adddup2(&actions, OTHER, LOG) == 0);
    MUST(posix_spawn_file_actions_addclose(&actions, OTHER) == 0);
    printf("duplicates: %d\n", run(&actions, NULL));
    posix_spawn_file_actions_destroy(&actions);
}

/* Another directory, by name and by descriptor; names of later actions are relative to it. */
static void directories(void)
{
    posix_spawn_file_actions_t actions;
    MUST(posix_spawn_file_actions_init(&actions) == 0);
    MUST(posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0) == 0);
    MUST(posix_spawn_file_actions_addchdir_np(&actions, in(d, "below")) == 0);
    MUST(posix_spawn_file_actions_addopen(&actions, 1, "../out", O_WRONLY | O_CREAT | O_TRUNC, 0640) == 0);
    printf("chdir: %d\n", run(&actions, NULL));
    posix_spawn_file_actions_destroy(&actions);
    show_parent();
    int top = open(d, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    MUST(top >= 0 && posix_spawn_file_actions_init(&actions) == 0);
    MUST(posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0) == 0);
    MUST(posix_spawn_file_actions_addfchdir_np(&actions, top) == 0);
    MUST(posix_spawn_file_actions_addopen(&actions, 1, "out", O_WRONLY | O_CREAT | O_APPEND, 0640) == 0);
    printf("fchdir: %d\n", run(&actions, NULL));
    posix_spawn_file_actions_destroy(&actions);
    MUST(close(top) == 0);
}

/* What cannot be done in the child is the error of posix_spawn, and changes nothing. */
static void mistakes(void)
{
    posix_spawn_file_actions_t actions;
    pid_t pid;
    char *const arguments[] = { self, "tell", NULL };
    MUST(posix_spawn_file_actions_init(&actions) == 0);
    MUST(posix_spawn_file_actions_addopen(&actions, 1, in(d, "out"), O_WRONLY | O_CREAT | O_TRUNC, 0640) == 0);
    MUST(posix_spawn_file_actions_adddup2(&actions, 1, LOG) == 0);
    MUST(posix_spawn_file_actions_addopen(&actions, 2, in(d, "none/such"), O_WRONLY | O_CREAT, 0640) == 0);
    printf("no such directory: %s\n", strerrorname_np(posix_spawn(&pid, self, &actions, NULL, arguments, environ)));
    posix_spawn_file_actions_destroy(&actions);
    printf("no such program: %s\n", strerrorname_np(posix_spawn(&pid, in(d, "none"), NULL, NULL, arguments, environ)));
}

static void attributes(void)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t mask, defaults;
    sigemptyset(&mask), sigaddset(&mask, SIGALRM), sigaddset(&mask, SIGSEGV);
    sigemptyset(&defaults), sigaddset(&defaults, SIGUSR1), sigaddset(&defaults, SIGBUS);
    MUST(posix_spawn_file_actions_init(&actions) == 0 && posix_spawnattr_init(&attributes) == 0);
    MUST(posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0) == 0);
    MUST(posix_spawn_file_actions_addopen(&actions, 1, in(d, "out"), O_WRONLY | O_CREAT | O_TRUNC, 0640) == 0);
    MUST(posix_spawnattr_setsigmask(&attributes, &mask) == 0 && posix_spawnattr_setsigdefault(&attributes, &defaults) == 0);
    const short flags[] = { 0, POSIX_SPAWN_SETSIGMASK, POSIX_SPAWN_SETSIGDEF, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF };
    for (int index = 0; index < 4; index++) {
        MUST(posix_spawnattr_setflags(&attributes, flags[index]) == 0);
        printf("flags %d: %d\n", index, run(&actions, &attributes));
        show_parent();
    }
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "tell") == 0)
        return tell();
    if (argc < 3)
        return 2;
    d = argv[1];
    setvbuf(stdout, NULL, _IONBF, 0);
    MUST(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    MUST(mkdir(in(d, "below"), 0755) == 0 && chdir(d) == 0);
    umask(027);
    open_as(LOG, in(d, "log"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    open_as(OTHER, in(d, "other"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    MUST(write(LOG, "by the parent\n", 14) == 14 && write(OTHER, "12345", 5) == 5);
    sigset_t mask;
    sigemptyset(&mask), sigaddset(&mask, SIGUSR2);
    MUST(pthread_sigmask(SIG_BLOCK, &mask, NULL) == 0 && signal(SIGUSR1, SIG_IGN) != SIG_ERR);
    company_begins(d);
    for (int round = 0; round < 6; round++) {
        if (strcmp(argv[2], "files") == 0)
            files(round);
        else if (strcmp(argv[2], "duplicates") == 0)
            duplicates();
        else if (strcmp(argv[2], "directories") == 0)
            directories();
        else if (strcmp(argv[2], "mistakes") == 0)
            mistakes();
        else
            attributes();
        show_parent();
        MUST(write(LOG, "by the parent\n", 14) == 14);
    }
    show_content(in(d, "log"));
    company_ends();
    return 0;
}
