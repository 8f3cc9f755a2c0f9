/* Children that share their parent's memory and do not stop it: loose DIRECTORY block|files, with thread memory of their own (as runtimes make them), and
 * loose DIRECTORY killed: vfork children that another thread kills in the middle of their calls. */
#include "children.h"
#include <time.h>

enum { CHILDREN = 100, KILLED = 100, FILE_BYTES = 5000 };
static const char *d;
static int flags;
static int child_files[2];

/* A thread control block for a child: the dynamic linker's, with this thread's secrets (glibc, tcbhead_t: itself at 0 and 16, canary at 40, pointer guard
 * at 48). */
extern void *_dl_allocate_tls(void *memory);

static void *new_block(void)
{
    char *block = _dl_allocate_tls(NULL);
    MUST(block != NULL);
    *(void **)block = *(void **)(block + 16) = block;
    __asm__("mov %%fs:40, %%rax; mov %%rax, 40(%0); mov %%fs:48, %%rax; mov %%rax, 48(%0)" : : "r"(block) : "rax", "memory");
    return block;
}

/* Works on a file of its own; tells the parent by its exit status. It takes no lock of the C library. */
static int work(void *argument)
{
    static unsigned char bytes[FILE_BYTES], back[FILE_BYTES];
    int number = (int)(intptr_t)argument;
    memset(bytes, 'a' + number % 26, sizeof bytes);
    int fd = open(in(d, number % 2 ? "child-odd" : "child-even"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || write(fd, bytes, sizeof bytes) != sizeof bytes || lseek(fd, 0, SEEK_SET) != 0)
        _exit(11);
    if (read(fd, back, sizeof back) != sizeof back || memcmp(bytes, back, sizeof back) != 0)
        _exit(12);
    if (write(child_files[0], bytes, 10) != 10 || (!(flags & CLONE_FILES) && close(child_files[1]) != 0))
        _exit(13);
    if (!(flags & CLONE_FS) && chdir("/") != 0)
        _exit(14);
    if (open(in(d, "no-such-file"), O_RDONLY) != -1 || errno != ENOENT || close(fd) != 0)
        _exit(15);
    _exit(0);
}

/* The parent works on while the child runs. */
static void beside(void)
{
    char *stack = (char *)new_stack() + STACK_BYTES;
    static unsigned char bytes[FILE_BYTES], back[FILE_BYTES];
    void *block = new_block();
    for (int index = 0; index < CHILDREN; index++) {
        pid_t pid = clone(work, stack, CLONE_VM | CLONE_SETTLS | flags | SIGCHLD, (void *)(intptr_t)index, NULL, block);
        if (pid < 0)
            wrong("clone: %s", strerrorname_np(errno));
        fill(bytes, sizeof bytes, index);
        int fd = open(in(d, "parent"), O_RDWR | O_CREAT | O_TRUNC, 0644);
        MUST(fd >= 0 && write(fd, bytes, sizeof bytes) == sizeof bytes && lseek(fd, 0, SEEK_CUR) == sizeof bytes);
        MUST(pread(fd, back, sizeof back, 0) == sizeof back && close(fd) == 0);
        same_bytes("the parent's file", back, bytes, sizeof bytes, 0);
        int status = wait_for(pid);
        if (status != 0)
            wrong("child %d ended with %d", index, status);
        off_t offset = lseek(child_files[0], 0, SEEK_CUR);
        if (offset != 10 * (index + 1))
            wrong("the shared offset is %lld after %d children", (long long)offset, index + 1);
    }
    show_offset("parent", child_files[1]);
    show_directory("parent", d);
    show_content(in(d, "log"));
    show_content(in(d, "parent"));
    show_content(in(d, "child-odd"));
    show_content(in(d, "child-even"));
}

static volatile pid_t victim;
static atomic_int over;

/* Kills each child some time after it began. A child does not end by itself, so its number is its own until it is waited for. */
static void *kill_children(void *argument)
{
    unsigned state = (unsigned)(uintptr_t)argument;
    while (!atomic_load(&over)) {
        pid_t pid = __atomic_exchange_n(&victim, 0, __ATOMIC_ACQ_REL);
        if (pid == 0)
            continue;
        struct timespec begun, now;
        long pause_ns = rand_r(&state) % 300 * 1000;
        clock_gettime(CLOCK_MONOTONIC, &begun);
        do
            clock_gettime(CLOCK_MONOTONIC, &now);
        while ((now.tv_sec - begun.tv_sec) * 1000000000 + now.tv_nsec - begun.tv_nsec < pause_ns);
        MUST(kill(pid, SIGKILL) == 0);
    }
    return NULL;
}

__attribute__((noreturn)) static void work_for_ever(void)
{
    static unsigned char bytes[FILE_BYTES];
    victim = getpid();
    for (;;) {
        int fd = open(in(d, "victim"), O_RDWR | O_CREAT | O_TRUNC, 0644);
        if (fd < 0 || write(fd, bytes, sizeof bytes) != sizeof bytes || pread(fd, bytes, sizeof bytes, 0) != sizeof bytes || close(fd) != 0)
            _exit(11);
    }
}

static void killed(void)
{
    static unsigned char bytes[FILE_BYTES], back[FILE_BYTES];
    pthread_t killer;
    MUST(pthread_create(&killer, NULL, kill_children, (void *)1) == 0);
    for (int index = 0; index < KILLED; index++) {
        pid_t pid = vfork();
        if (pid == 0)
            work_for_ever();
        int status = wait_for(pid);
        if (status != 1000 + SIGKILL)
            wrong("child %d ended with %d", index, status);
        /* The parent goes on, also with that file. */
        fill(bytes, sizeof bytes, index);
        int fd = open(in(d, "victim"), O_RDWR | O_CREAT | O_TRUNC, 0644);
        if (fd < 0)
            wrong("after child %d: open: %s", index, strerrorname_np(errno));
        ssize_t count = write(fd, bytes, sizeof bytes);
        if (count != sizeof bytes)
            wrong("after child %d: write gave %zd (%s)", index, count, strerrorname_np(errno));
        MUST(pread(fd, back, sizeof back, 0) == sizeof back && close(fd) == 0);
        same_bytes("the file of killed children", back, bytes, sizeof bytes, 0);
    }
    atomic_store(&over, 1);
    MUST(pthread_join(killer, NULL) == 0);
    show_content(in(d, "victim"));
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    d = argv[1];
    setvbuf(stdout, NULL, _IONBF, 0);
    MUST(chdir(d) == 0);
    child_files[0] = open_as(200, in(d, "log"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    child_files[1] = open_as(201, in(d, "kept"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    company_begins(d);
    if (strcmp(argv[2], "files") == 0)
        flags = CLONE_FILES | CLONE_FS;
    if (strcmp(argv[2], "killed") == 0)
        killed();
    else
        beside();
    company_ends();
    return 0;
}
