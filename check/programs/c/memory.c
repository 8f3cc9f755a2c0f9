/* What a program asks of memory and of a file's space, with a file of the directory mapped all the while: refused mappings, refused advice, stacks that grow down by themselves until they meet
   something, holes, and children that are waited for. A plain directory must answer the same; whatever the library does about faults and files must not be seen. */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#ifndef MAP_SHARED_VALIDATE
#define MAP_SHARED_VALIDATE 3
#endif
#ifndef MADV_FREE
#define MADV_FREE 8
#endif
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#define MADV_KEEPONFORK 19
#endif
#ifndef MADV_COLD
#define MADV_COLD 20
#define MADV_PAGEOUT 21
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

static char *d;
static long page;
static unsigned char block[200000];

/* Whether a mapping is made, and the error if not. */
static void try_map(const char *what, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    errno = 0;
    char *at = mmap(NULL, bytes, protection, flags, fd, offset);
    printf("%s: %s\n", what, at == MAP_FAILED ? strerrorname_np(errno) : "mapped");
    if (at != MAP_FAILED)
        MUST(munmap(at, bytes) == 0);
}

static void refused_mappings(void)
{
    const char *name = in(d, "refused");
    int both = make_in(d, "refused", block, 10000), reads = open(name, O_RDONLY), writes = open(name, O_WRONLY);
    int names = open(name, O_PATH), directory = open(d, O_RDONLY | O_DIRECTORY), closed = dup(both);
    close(closed);
    try_map("no bytes", 0, PROT_READ, MAP_SHARED, both, 0);
    try_map("no kind", page, PROT_READ, MAP_FILE, both, 0);
    try_map("both kinds and another", page, PROT_READ, 0xf, both, 0);
    try_map("an odd offset", page, PROT_READ, MAP_SHARED, both, 1);
    try_map("an offset before the file", page, PROT_READ, MAP_PRIVATE, both, -page);
    try_map("behind the file", page, PROT_READ, MAP_SHARED, both, 100 * page);
    for (int kind = MAP_SHARED; kind <= MAP_SHARED_VALIDATE; kind++) {
        printf("kind %d\n", kind);
        for (int protection = 0; protection < 8; protection++) {
            printf("%d\n", protection);
            try_map("to read and write", page, protection, kind, both, 0);
            try_map("to read", page, protection, kind, reads, 0);
            try_map("to write", page, protection, kind, writes, 0);
            try_map("a name", page, protection, kind, names, 0);
            try_map("a directory", page, protection, kind, directory, 0);
            try_map("nothing", page, protection, kind, closed, 0);
        }
        for (int bit = 7; bit < 31; bit++) {
            /* Huge pages are of their own file system, and memory that is locked has a limit. */
            if (1 << bit == MAP_HUGETLB || 1 << bit == MAP_LOCKED)
                continue;
            printf("bit %d\n", bit);
            try_map("with one more flag", page, PROT_READ, kind | 1 << bit, both, 0);
        }
    }
    close(both), close(reads), close(writes), close(names), close(directory);
}

static void refused_advice(void)
{
    int fd = make_in(d, "advised", block, 100000);
    char *shared = mmap(NULL, 10 * page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *private = mmap(NULL, 10 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    MUST(shared != MAP_FAILED && private != MAP_FAILED);
    static const int advice[] = { MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_DONTNEED, MADV_FREE, MADV_REMOVE, MADV_DONTFORK, MADV_DOFORK, MADV_MERGEABLE,
        MADV_UNMERGEABLE, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_DONTDUMP, MADV_DODUMP, MADV_WIPEONFORK, MADV_KEEPONFORK, MADV_COLD, MADV_PAGEOUT, MADV_POPULATE_READ, MADV_POPULATE_WRITE,
        5, 6, 7, 1000, -1 };
    for (int index = 0; index < (int)(sizeof advice / sizeof *advice); index++) {
        printf("advice %d\n", advice[index]);
        SHOW(madvise(shared + 1, page, advice[index]));
        SHOW(madvise(shared, (size_t)-page, advice[index]));
        SHOW(madvise(shared, 0, advice[index]));
        SHOW(madvise(shared + 2 * page, page + 1, advice[index]));
        SHOW(madvise(private + 2 * page, page + 1, advice[index]));
    }
    /* A hole between two parts, and parts that are kept in memory. */
    MUST(munmap(shared + 4 * page, page) == 0 && mlock(shared, page) == 0);
    static const int few[] = { MADV_NORMAL, MADV_DONTNEED, MADV_REMOVE, MADV_COLD, MADV_PAGEOUT, MADV_POPULATE_READ };
    for (int index = 0; index < (int)(sizeof few / sizeof *few); index++) {
        printf("advice %d\n", few[index]);
        SHOW(madvise(shared, page, few[index]));
        SHOW(madvise(shared + 2 * page, 6 * page, few[index]));
        SHOW(madvise(shared, 6 * page, few[index]));
    }
    SHOW(msync(shared, page, MS_SYNC | MS_INVALIDATE));
    SHOW(msync(shared + 2 * page, 6 * page, MS_SYNC));
    SHOW(munlock(shared, page));
    SHOW(msync(shared, page, MS_SYNC | MS_INVALIDATE));
    MUST(munmap(shared, 10 * page) == 0 && munmap(private, 10 * page) == 0);
    close(fd);
    show_content(in(d, "advised"));
}

/* Uses so many pages of stack, and stores to each. */
static __attribute__((noinline)) int deep(int pages)
{
    volatile char room[4096];
    room[0] = pages;
    return pages == 0 ? 0 : deep(pages - 1) + (room[0] == (char)pages);
}

static void *grows(void *pages)
{
    return (void *)(long)deep((long)pages);
}

/* A child with a thread whose stack is to grow down into what is free below it. What ended it is printed. */
static void growing_stack(int pages, int free_pages, int touches)
{
    enum { START = 16, GAP = 300 };
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct rlimit limit = { 0, 0 };
        setrlimit(RLIMIT_CORE, &limit);
        size_t all = (size_t)(START + GAP + free_pages) * page;
        char *place = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        MUST(place != MAP_FAILED && munmap(place, all) == 0);
        char *top = place + all;
        char *stack = mmap(top - START * page, START * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_GROWSDOWN, -1, 0);
        MUST(stack != MAP_FAILED);
        /* The kernel keeps a gap of 256 pages free below such a mapping. */
        if (touches)
            MUST(mmap(top - (START + 8 + 256) * page, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED);
        pthread_attr_t attributes;
        pthread_t thread;
        pthread_attr_init(&attributes);
        MUST(pthread_attr_setstack(&attributes, top - START * page, START * page) == 0);
        MUST(pthread_create(&thread, &attributes, grows, (void *)(long)pages) == 0);
        void *result;
        MUST(pthread_join(thread, &result) == 0);
        _exit((long)result == pages ? 0 : 1);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child);
    printf("%d pages of %d, %d in the way: exit %d, signal %d\n", pages, free_pages, touches, WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

static void space(void)
{
    struct stat found;
    int fd = open(in(d, "space"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    SHOW(fallocate(fd, 0, 0, 12 * page));
    SHOW(fstat(fd, &found));
    printf("size %lld, blocks %d\n", (long long)found.st_size, found.st_blocks > 0);
    fill(block, 12 * page, 5);
    SHOW(write(fd, block, 12 * page));
    SHOW(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, page, page));
    SHOW(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 3 * page + 100, 2 * page));
    SHOW(fallocate(fd, FALLOC_FL_PUNCH_HOLE, page, page));
    SHOW(fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, page));
    SHOW(fallocate(fd, FALLOC_FL_INSERT_RANGE, 0, page));
    SHOW(fallocate(fd, FALLOC_FL_KEEP_SIZE, 11 * page, 10 * page));
    SHOW(fallocate(fd, 0, -1, 10));
    SHOW(fallocate(fd, 0, 0, 0));
    SHOW(fallocate(fd, 0, 0x7ffffffffffff000, 4096));
    SHOW(lseek(fd, 0, SEEK_END));
    SHOW(lseek(fd, 20 * page, SEEK_DATA));
    close(fd);
    show_content(in(d, "space"));
}

/* Children of every kind are the program's own, and there are no others. */
static void waiting(void)
{
    int status;
    SHOW(waitpid(-1, &status, WNOHANG));
    SHOW(waitpid(-1, &status, __WALL | WNOHANG));
    fflush(stdout);
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        if (child == 0) {
            space();
            SHOW(waitpid(-1, &status, 0));
            fflush(stdout);
            _exit(round);
        }
        siginfo_t told;
        MUST(waitid(P_ALL, 0, &told, WEXITED | WNOWAIT) == 0 && told.si_pid == child);
        MUST(wait(&status) == child);
        printf("child %d ended with %d\n", round, status);
    }
    SHOW(waitpid(-1, &status, 0));
    SHOW(waitpid(-1, &status, __WALL));
}

int main(int argc, char **argv)
{
    (void)argc;
    d = argv[1];
    page = sysconf(_SC_PAGESIZE);
    umask(022);
    fill(block, sizeof block, 3);
    int fd = make_in(d, "mapped", block, 50000);
    char *mapped = mmap(NULL, 50000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(mapped != MAP_FAILED);
    mapped[10] = 'x';
    refused_mappings();
    refused_advice();
    for (int round = 0; round < 5; round++) {
        mapped[4096 * round] = round;
        growing_stack(12, 300, 0);
        growing_stack(200, 300, 0);
        growing_stack(100, 300, 1);
    }
    space();
    waiting();
    mapped[40000] = 'y';
    SHOW(msync(mapped, 50000, MS_SYNC));
    MUST(munmap(mapped, 50000) == 0 && close(fd) == 0);
    show_content(in(d, "mapped"));
    return 0;
}
