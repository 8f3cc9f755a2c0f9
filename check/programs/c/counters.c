/* Counters and a ring that several processes map, as perf and its like do: forked and started programs and threads add, a program dies in
   the middle, others read with pread meanwhile. No addition is lost, none is seen that was not made, and what a dead program stored stays. */
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { PAGES = 90, COUNTERS = 128, ADDS = 60000, WORKERS = 6, SLOTS = 300, RECORDS = 20000, LEFT = 300000 };

typedef _Atomic uint64_t counter;

/* 56 bytes: records lie across lines, pages and chunks. */
struct record {
    uint64_t number, words[6];
};

struct ring {
    counter head;
    char between[120];
    counter tail;
    char more[120];
    struct record records[SLOTS];
};

static void *map_file(const char *path, size_t bytes)
{
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    struct stat status;
    MUST(fd >= 0 && fstat(fd, &status) == 0);
    if (status.st_size < (off_t)bytes)
        MUST(ftruncate(fd, bytes) == 0);
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(map != MAP_FAILED && close(fd) == 0);
    return map;
}

static size_t place(int index)
{
    return (size_t)(index * 37 % PAGES) * 4096 + (size_t)(index * 264 % 4096);
}

static counter *counter_of(char *map, int index)
{
    return (counter *)(map + place(index));
}

static int which(int worker, int n)
{
    return (n * (2 * worker + 1) + worker * 11) % COUNTERS;
}

static void add(char *map, int worker)
{
    for (int n = 0; n < ADDS; n++)
        atomic_fetch_add_explicit(counter_of(map, which(worker, n)), 1 + worker, memory_order_relaxed);
}

static void *add_in_thread(void *map)
{
    add(map, 0);
    return NULL;
}

/* What a program adds is in the file when it dies; what it stores into the file "left" until then is nobody's affair but redundancy's. */
static void add_and_die(const char *d, int worker)
{
    char *left = map_file(in(d, "left"), LEFT);
    add(map_file(in(d, "counters"), PAGES * 4096), worker);
    MUST(write(1, "x", 1) == 1);
    for (uint64_t n = 1;; n++)
        left[n * 0x9e3779b97f4a7c15ull % LEFT] += n;
}

static pid_t start(const char *program, const char *d, const char *role, int worker, int out)
{
    char number[12];
    sprintf(number, "%d", worker);
    pid_t pid = fork();
    if (pid == 0) {
        if (out >= 0)
            dup2(out, 1);
        execl(program, program, d, role, number, NULL);
        _exit(98);
    }
    MUST(pid > 0);
    return pid;
}

/* Counters only grow, also for who reads the file. Returns what they come to. */
static uint64_t look(int fd, uint64_t *seen)
{
    uint64_t total = 0;
    for (int index = 0; index < COUNTERS; index++) {
        uint64_t value;
        MUST(pread(fd, &value, sizeof value, place(index)) == sizeof value);
        if (value < seen[index])
            printf("counter %d: %llu after %llu\n", index, (unsigned long long)value, (unsigned long long)seen[index]);
        total += seen[index] = value;
    }
    return total;
}

static void ended(pid_t pid, const char *what)
{
    int status;
    MUST(waitpid(pid, &status, 0) == pid);
    printf("%s: status %x\n", what, status);
}

static void count(const char *program, const char *d)
{
    static uint64_t seen[COUNTERS];
    char *map = map_file(in(d, "counters"), PAGES * 4096), byte;
    int fd = open(in(d, "counters"), O_RDONLY), pipes[2], died = 0, status;
    MUST(fd >= 0 && pipe2(pipes, O_CLOEXEC) == 0);
    pthread_t thread;
    pid_t victim = start(program, d, "die", 5, pipes[1]);
    MUST(close(pipes[1]) == 0);
    pid_t started[2] = { start(program, d, "add", 3, -1), start(program, d, "add", 4, -1) }, forked[2];
    for (int worker = 1; worker < 3; worker++)
        if ((forked[worker - 1] = fork()) == 0) {
            add(map, worker);
            MUST(worker == 1 || msync(map, PAGES * 4096, MS_ASYNC) == 0);
            _exit(0);
        }
    MUST(pthread_create(&thread, NULL, add_in_thread, map) == 0);
    fcntl(pipes[0], F_SETFL, O_NONBLOCK);
    for (int round = 0; !died; round++) {
        look(fd, seen);
        /* Its byte, or its end. */
        died = read(pipes[0], &byte, 1) >= 0;
        if (round % 16 == 0)
            MUST(fdatasync(fd) == 0);
    }
    usleep(20000);
    MUST(kill(victim, SIGKILL) == 0);
    ended(victim, "killed");
    MUST(pthread_join(thread, NULL) == 0);
    for (int index = 0; index < 2; index++) {
        ended(forked[index], "forked");
        ended(started[index], "started");
    }
    uint64_t wrong = 0, expected[COUNTERS] = { 0 };
    for (int worker = 0; worker < WORKERS; worker++)
        for (int n = 0; n < ADDS; n++)
            expected[which(worker, n)] += 1 + worker;
    for (int index = 0; index < COUNTERS; index++)
        wrong += atomic_load(counter_of(map, index)) != expected[index];
    MUST(msync(map, PAGES * 4096, MS_SYNC) == 0);
    printf("%llu counters are wrong, read they come to %llu\n", (unsigned long long)wrong, (unsigned long long)look(fd, seen));
    MUST(munmap(map, PAGES * 4096) == 0 && close(fd) == 0);
    MUST(waitpid(-1, &status, 0) == -1 && errno == ECHILD);
    show_content(in(d, "counters"));
}

static void fill_record(struct record *record, uint64_t number)
{
    record->number = number;
    for (int word = 0; word < 6; word++)
        record->words[word] = (number + word) * 0x9e3779b97f4a7c15ull;
}

static void produce(const char *d)
{
    struct ring *ring = map_file(in(d, "ring"), sizeof *ring);
    for (uint64_t number = 0; number < RECORDS; number++) {
        while (number - atomic_load_explicit(&ring->tail, memory_order_acquire) == SLOTS)
            sched_yield();
        fill_record(&ring->records[number % SLOTS], number);
        atomic_store_explicit(&ring->head, number + 1, memory_order_release);
    }
}

static void consume(const char *program, const char *d)
{
    struct ring *ring = map_file(in(d, "ring"), sizeof *ring);
    pid_t producer = start(program, d, "produce", 0, -1);
    int broken = 0;
    for (uint64_t number = 0; number < RECORDS; number++) {
        struct record expected;
        while (atomic_load_explicit(&ring->head, memory_order_acquire) == number)
            sched_yield();
        fill_record(&expected, number);
        broken += memcmp(&expected, &ring->records[number % SLOTS], sizeof expected) != 0;
        atomic_store_explicit(&ring->tail, number + 1, memory_order_release);
    }
    ended(producer, "producer");
    printf("%d of %d records broken\n", broken, RECORDS);
    MUST(munmap(ring, sizeof *ring) == 0);
    show_content(in(d, "ring"));
}

int main(int argc, char **argv)
{
    const char *d = argv[1], *role = argc > 2 ? argv[2] : "";
    int worker = argc > 3 ? atoi(argv[3]) : 0;
    if (strcmp(role, "add") == 0)
        add(map_file(in(d, "counters"), PAGES * 4096), worker);
    else if (strcmp(role, "die") == 0)
        add_and_die(d, worker);
    else if (strcmp(role, "produce") == 0)
        produce(d);
    else {
        count(argv[0], d);
        consume(argv[0], d);
    }
    return 0;
}
