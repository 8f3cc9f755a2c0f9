/* Threads on many open files under a small RLIMIT_NOFILE, while others give numbers another meaning, fork, or have the same
   descriptors. A plain directory must answer the same. */
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { LIMIT = 512, FILES_MAX = 150, ROUNDS = 1500, FORKS = 40 };

/* How many files are open: as many as there is room for also where nothing is parked (docs/processes.md). */
static int file_count;
static int descriptors[FILES_MAX];
static volatile int is_over;

static void *cut(void *argument)
{
    int file = (int)(intptr_t)argument;
    struct stat stat;
    for (int round = 0; round < ROUNDS && !is_over; round++) {
        long length = round % 2 ? 10 : 70000;
        MUST(ftruncate(descriptors[file], length) == 0);
        MUST(fstat(descriptors[file], &stat) == 0 && stat.st_size == length);
    }
    return NULL;
}

static void start(pthread_t *threads, int count)
{
    is_over = 0;
    for (int index = 0; index < count; index++)
        MUST(pthread_create(&threads[index], NULL, cut, (void *)(intptr_t)(file_count - 1 - index)) == 0);
}

static void finish(pthread_t *threads, int count)
{
    for (int index = 0; index < count; index++)
        MUST(pthread_join(threads[index], NULL) == 0);
}

/* The lowest free number is given to a file of the host again and again. */
static void numbers(void)
{
    char path[] = "/tmp/cxlraid-crowded-XXXXXX";
    struct stat stat;
    pthread_t threads[2];
    int host = mkstemp(path);
    MUST(host >= 0 && unlink(path) == 0 && ftruncate(host, 5555) == 0);
    int lowest = dup(host);
    MUST(lowest >= 0 && close(lowest) == 0);
    start(threads, 2);
    for (int round = 0; round < 20 * ROUNDS; round++) {
        MUST(dup2(host, lowest) == lowest);
        MUST(fstat(lowest, &stat) == 0 && stat.st_size == 5555);
        MUST(close(lowest) == 0);
    }
    finish(threads, 2);
    MUST(fstat(host, &stat) == 0 && stat.st_size == 5555 && close(host) == 0);
    printf("numbers keep their meaning\n");
}

/* A child of fork waits for no thread of its parent's, and has no numbers of theirs. */
static void forks(void)
{
    pthread_t threads[3];
    int lowest = dup(0);
    MUST(lowest >= 0 && close(lowest) == 0);
    start(threads, 3);
    for (int round = 0; round < FORKS; round++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            struct flock lock = { .l_type = F_WRLCK, .l_start = 100 + getpid(), .l_len = 1 };
            for (int file = file_count - 3; file < file_count; file++)
                MUST(fcntl(descriptors[file], F_SETLK, &lock) == 0);
            MUST(dup(0) == lowest);
            _exit(0);
        }
        int status;
        MUST(waitpid(child, &status, 0) == child && status == 0);
    }
    is_over = 1;
    finish(threads, 3);
    printf("children are apart\n");
}

/* All numbers are taken, and more threads need one than are reserved. */
static void full(void)
{
    static int taken[LIMIT];
    pthread_t threads[12];
    int count = 0;
    for (int fd; (fd = dup(0)) >= 0;)
        taken[count++] = fd;
    start(threads, 12);
    finish(threads, 12);
    while (count > 0)
        MUST(close(taken[--count]) == 0);
    printf("no call lacks a number\n");
}

static int lock_it(void *argument)
{
    struct flock lock = { .l_type = F_WRLCK };
    return fcntl(*(int *)argument, F_SETLK, &lock) == 0 ? 0 : 1;
}

/* A lock that was taken by a process with the same descriptors is there until one of both closes the file. */
static void shared(void)
{
    static char stack[65536] __attribute__((aligned(16)));
    int status;
    pid_t child = clone(lock_it, stack + sizeof stack, CLONE_FILES | SIGCHLD, &descriptors[file_count - 1]);
    MUST(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    MUST(ftruncate(descriptors[file_count - 1], 100000) == 0);
    child = fork();
    MUST(child >= 0);
    if (child == 0) {
        struct flock lock = { .l_type = F_WRLCK };
        MUST(fcntl(descriptors[file_count - 1], F_GETLK, &lock) == 0);
        _exit(lock.l_type != F_UNLCK);
    }
    MUST(waitpid(child, &status, 0) == child);
    printf("the lock is there: %d\n", WEXITSTATUS(status));
}

int main(int argc, char **arguments)
{
    MUST(argc >= 2 && chdir(arguments[1]) == 0);
    if (argc == 2) {
        struct rlimit limit = { LIMIT, LIMIT };
        MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        execv("/proc/self/exe", (char *[]) { arguments[0], arguments[1], "limited", NULL });
        MUST(0);
    }
    file_count = may_park() ? FILES_MAX : 50;
    if (file_count < FILES_MAX)
        fprintf(stderr, "NOT RUN with parked files: io_uring is not permitted here\n");
    char name[32];
    for (int file = 0; file < file_count; file++) {
        snprintf(name, sizeof name, "crowded-%d", file);
        MUST((descriptors[file] = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644)) >= 0);
        MUST(write(descriptors[file], name, strlen(name)) == (ssize_t)strlen(name));
    }
    numbers();
    forks();
    full();
    shared();
    for (int file = 0; file < file_count; file++) {
        MUST(close(descriptors[file]) == 0);
        snprintf(name, sizeof name, "crowded-%d", file);
        MUST(file < file_count - 12 || truncate(name, 4) == 0);
    }
    return 0;
}
