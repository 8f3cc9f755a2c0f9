/* Shared mappings of a file of the array: what is stored through them is read by everybody, and its redundancy follows.
   Arguments: the file, then what to do. The test looks at the members' files afterwards. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            printf("line %d: %s (errno %d)\n", __LINE__, #condition, errno); \
            exit(1); \
        } \
    } while (0)

static const char *path;

static int open_file(int flags) {
    int fd = open(path, flags, 0600);
    CHECK(fd >= 0);
    return fd;
}

static char *map(int fd, size_t bytes, off_t offset) {
    char *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset);
    CHECK(start != MAP_FAILED);
    return start;
}

static uint32_t seed = 2463534242u;
static uint32_t next(void) {
    seed ^= seed << 13;
    seed ^= seed >> 17;
    return seed ^= seed << 5;
}

static void scatter(char *start, size_t bytes, int count) {
    while (count-- > 0) start[next() % bytes] = (char)next();
}

static sigjmp_buf back;
static volatile int caught;
static void on_fault(int signal, siginfo_t *info, void *context) {
    (void)context;
    caught = signal * 100 + info->si_code;
    siglongjmp(back, 1);
}

/* The signal and code that touching an address gives; 0 for none. */
static int touch(volatile char *at, int store) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &action, NULL);
    sigaction(SIGSEGV, &action, NULL);
    caught = 0;
    if (!sigsetjmp(back, 1)) {
        if (store) *at = 1;
        else (void)*at;
    }
    return caught;
}

static double seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* msync, munmap and the end of the process each bring redundancy up to date. */
static void stores(const char *how) {
    int fd = open_file(O_RDWR);
    struct stat stat;
    CHECK(fstat(fd, &stat) == 0);
    size_t bytes = stat.st_size;
    char *start = map(fd, bytes, 0);
    scatter(start, bytes, 2000);
    if (!strcmp(how, "msync")) {
        CHECK(msync(start, bytes, MS_SYNC) == 0);
        _exit(0);
    }
    if (!strcmp(how, "fsync")) CHECK(fsync(fd) == 0);
    if (!strcmp(how, "munmap")) {
        /* The middle first: what is left is two mappings. */
        CHECK(munmap(start + 16 * PAGE, 3 * PAGE) == 0);
        scatter(start, 16 * PAGE, 100);
        CHECK(munmap(start, bytes) == 0);
    }
    if (!strcmp(how, "kill")) raise(SIGKILL);
    if (!strcmp(how, "wait")) {
        usleep(500000);
        raise(SIGKILL);
    }
}

/* read() and write() agree with the mapping, at once, in this process and in another. */
static void agreement(void) {
    int fd = open_file(O_RDWR);
    char *start = map(fd, 100000, 0), buffer[8192];
    for (int round = 0; round < 300; round++) {
        size_t at = next() % 90000;
        start[at] = (char)round;
        CHECK(pread(fd, buffer, 1, at) == 1 && buffer[0] == (char)round);
        memset(buffer, round + 1, sizeof buffer);
        CHECK(pwrite(fd, buffer, 5000, at) == 5000);
        CHECK(start[at] == (char)(round + 1) && start[at + 4999] == (char)(round + 1));
    }
    start[77777] = 42;
    pid_t child = fork();
    if (child == 0) {
        CHECK(start[77777] == 42);
        start[77778] = 43;
        start[20] = 44;
        int again = open_file(O_RDONLY);
        CHECK(pread(again, buffer, 1, 77777) == 1 && buffer[0] == 42);
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(start[77778] == 43 && start[20] == 44);
    start[50] = 45;
    CHECK(pread(fd, buffer, 1, 20) == 1 && buffer[0] == 44);
}

/* The end of the file is that of any mapping, before and after it moves. */
static void ends(void) {
    int fd = open_file(O_RDWR | O_CREAT | O_TRUNC);
    CHECK(ftruncate(fd, 10000) == 0);
    char *start = map(fd, 64 * PAGE, 0), buffer[8];
    CHECK(touch(start + 2 * PAGE, 1) == 0);
    CHECK(touch(start + 3 * PAGE, 1) == SIGBUS * 100 + BUS_ADRERR);
    CHECK(touch(start + 3 * PAGE, 0) == SIGBUS * 100 + BUS_ADRERR);
    /* Stored behind the end in the last page: never to be seen. */
    start[10001] = 99;
    CHECK(ftruncate(fd, 20000) == 0);
    CHECK(start[10001] == 0 && pread(fd, buffer, 1, 10001) == 1 && buffer[0] == 0);
    CHECK(touch(start + 3 * PAGE, 1) == 0 && touch(start + 4 * PAGE, 1) == 0);
    CHECK(touch(start + 5 * PAGE, 0) == SIGBUS * 100 + BUS_ADRERR);
    pid_t child = fork();
    if (child == 0) {
        int again = open_file(O_RDWR);
        CHECK(ftruncate(again, 40 * PAGE) == 0 && pwrite(again, "x", 1, 39 * PAGE) == 1);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(touch(start + 39 * PAGE, 0) == 0 && start[39 * PAGE] == 'x');
    CHECK(ftruncate(fd, PAGE) == 0);
    CHECK(touch(start + PAGE, 1) == SIGBUS * 100 + BUS_ADRERR);
    CHECK(touch(start + 30 * PAGE, 0) == SIGBUS * 100 + BUS_ADRERR);
    CHECK(touch(start, 1) == 0);
    CHECK(ftruncate(fd, 40 * PAGE) == 0);
    CHECK(touch(start + 39 * PAGE, 1) == 0);
    for (int page = 1; page < 39; page++) CHECK(start[page * PAGE] == 0);
    CHECK(munmap(start, 64 * PAGE) == 0);
    CHECK(touch(start, 0) == SIGSEGV * 100 + SEGV_MAPERR);
}

/* Moving, growing, shrinking, and taking rights away and giving them back. */
static void changes(void) {
    int fd = open_file(O_RDWR);
    CHECK(ftruncate(fd, 64 * PAGE) == 0);
    char *start = map(fd, 8 * PAGE, 8 * PAGE), buffer[8];
    start[5] = 1;
    char *moved = mremap(start, 8 * PAGE, 16 * PAGE, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED && moved[5] == 1);
    moved[15 * PAGE] = 2;
    CHECK(pread(fd, buffer, 1, 23 * PAGE) == 1 && buffer[0] == 2);
    CHECK(mremap(moved, 16 * PAGE, 4 * PAGE, 0) == moved);
    CHECK(touch(moved + 4 * PAGE, 0) == SIGSEGV * 100 + SEGV_MAPERR);
    CHECK(mprotect(moved, PAGE, PROT_READ) == 0);
    CHECK(touch(moved, 1) == SIGSEGV * 100 + SEGV_ACCERR && moved[5] == 1);
    CHECK(mprotect(moved, PAGE, PROT_READ | PROT_WRITE) == 0 && touch(moved, 1) == 0);
    /* It is one mapping again, and grows where it is. */
    CHECK(mprotect(moved + PAGE, 2 * PAGE, PROT_READ) == 0 && mprotect(moved + PAGE, 2 * PAGE, PROT_READ | PROT_WRITE) == 0);
    CHECK(mremap(moved, 4 * PAGE, 6 * PAGE, 0) == moved);
    moved[5 * PAGE] = 6;
    CHECK(pread(fd, buffer, 1, 13 * PAGE) == 1 && buffer[0] == 6);
    /* A part that has other rights does not. */
    CHECK(mprotect(moved + PAGE, PAGE, PROT_READ) == 0 && mremap(moved, 6 * PAGE, 7 * PAGE, 0) == MAP_FAILED && errno == EFAULT);
    CHECK(mprotect(moved + PAGE, PAGE, PROT_READ | PROT_WRITE) == 0 && mremap(moved, 6 * PAGE, 4 * PAGE, 0) == moved);
    int reader = open_file(O_RDONLY);
    CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, reader, 0) == MAP_FAILED && errno == EACCES);
    char *view = mmap(NULL, 64 * PAGE, PROT_READ, MAP_SHARED, reader, 0);
    CHECK(view != MAP_FAILED && view[8 * PAGE + 5] == 1);
    CHECK(mprotect(view, PAGE, PROT_READ | PROT_WRITE) == -1 && errno == EACCES);
    char *later = mmap(NULL, 4 * PAGE, PROT_READ, MAP_SHARED, fd, 40 * PAGE);
    CHECK(later != MAP_FAILED && mprotect(later, 4 * PAGE, PROT_READ | PROT_WRITE) == 0);
    later[PAGE] = 9;
    CHECK(view[41 * PAGE] == 9);
    /* Something else over ours, and ours over something else. */
    CHECK(mmap(later, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == later && later[0] == 0);
    later[PAGE + 1] = 10;
    CHECK(mmap(later, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 50 * PAGE) == later);
    later[7] = 11;
    CHECK(view[50 * PAGE + 7] == 11);
    CHECK(msync(later, 4 * PAGE, MS_SYNC) == 0 && msync(later, 4 * PAGE, MS_ASYNC) == 0);
    CHECK(msync(later, PAGE, MS_SYNC | MS_ASYNC) == -1 && errno == EINVAL);
    CHECK(munmap(later + PAGE, PAGE) == 0);
    CHECK(msync(later, 4 * PAGE, MS_SYNC) == -1 && errno == ENOMEM);
    int writer = open_file(O_WRONLY);
    CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, writer, 0) == MAP_FAILED && errno == EACCES);
    CHECK(mmap(NULL, 0, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EINVAL);
    CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 100) == MAP_FAILED && errno == EINVAL);
    CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED_VALIDATE | MAP_SYNC, fd, 0) == MAP_FAILED && errno == EOPNOTSUPP);
    CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED_VALIDATE | 1 << 23, fd, 0) == MAP_FAILED && errno == EOPNOTSUPP);
    char *checked = mmap(NULL, PAGE, PROT_READ, MAP_SHARED_VALIDATE | MAP_POPULATE, fd, 0);
    CHECK(checked != MAP_FAILED && munmap(checked, PAGE) == 0);
    /* A mapping outlives its descriptor and its name. */
    CHECK(close(fd) == 0 && close(reader) == 0 && close(writer) == 0);
    moved[PAGE + 3] = 12;
    CHECK(view[9 * PAGE + 3] == 12);
}

/* A store into a hole gets its space, in small files at once and in large ones by and by. */
static void holes(void) {
    int fd = open_file(O_RDWR | O_CREAT | O_TRUNC);
    off_t bytes = 5L << 29;
    CHECK(ftruncate(fd, bytes) == 0);
    char *start = map(fd, bytes, 0), buffer[8192];
    for (int count = 0; count < 40; count++) {
        size_t at = (size_t)next() * 4096 % (bytes - 8192);
        CHECK(start[at] == 0);
        start[at] = 5;
        CHECK(pread(fd, buffer, 1, at) == 1 && buffer[0] == 5);
    }
    /* A call that stores to a hole. */
    memset(buffer, 6, sizeof buffer);
    CHECK(pwrite(fd, buffer, sizeof buffer, 0) == sizeof buffer);
    CHECK(pread(fd, start + (2L << 30) + 5000, sizeof buffer, 0) == sizeof buffer);
    CHECK(start[(2L << 30) + 5000] == 6 && start[(2L << 30) + 5000 + 8191] == 6);
    struct stat stat;
    CHECK(fstat(fd, &stat) == 0 && stat.st_blocks * 512 < 1L << 30);
    CHECK(msync(start, bytes, MS_SYNC) == 0);
    CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1 << 20) == 0 && start[100] == 0);
    start[100] = 7;
    CHECK(pread(fd, buffer, 1, 100) == 1 && buffer[0] == 7);
    CHECK(madvise(start, 1 << 20, MADV_REMOVE) == 0 && start[100] == 0);
    start[200] = 8;
    CHECK(madvise(start, 1 << 20, MADV_DONTNEED) == 0 && start[200] == 8);
    CHECK(ftruncate(fd, 1 << 20) == 0 && ftruncate(fd, 2 << 20) == 0 && start[1500000] == 0);
    start[1500000] = 9;
    CHECK(munmap(start, bytes) == 0);
}

/* KiB of page tables that this process has. */
static long table_kib(void) {
    char line[200];
    long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    CHECK(status != NULL);
    while (fgets(line, sizeof line, status)) sscanf(line, "VmPTE: %ld", &kib);
    fclose(status);
    return kib;
}

/* What is never stored to of a large hole has no page tables and takes no space; what is stored to is followed, whatever was loaded before
   and however often the right to store was taken back. */
static void untouched(void) {
    size_t granule = 2 << 20, bytes = 40 * granule;
    int fd = open_file(O_RDWR | O_CREAT | O_TRUNC);
    CHECK(ftruncate(fd, bytes) == 0);
    long before = table_kib();
    char *start = map(fd, bytes, 0), byte;
    CHECK(table_kib() - before < 100);
    for (int index = 0; index < 10; index++) CHECK(start[index * granule + 5 * PAGE] == 0);
    CHECK(msync(start, bytes, MS_SYNC) == 0);
    struct stat stat;
    CHECK(fstat(fd, &stat) == 0 && stat.st_blocks * 512 < 1 << 20);
    start[3 * granule + 5 * PAGE] = start[3 * granule + 9 * PAGE] = 1;
    start[20 * granule] = start[21 * granule - 1] = start[bytes - 1] = 2;
    CHECK(msync(start, bytes, MS_SYNC) == 0);
    CHECK(fstat(fd, &stat) == 0 && stat.st_blocks * 512 < (long)(6 * granule));
    CHECK(mprotect(start, bytes, PROT_READ) == 0 && mprotect(start, bytes, PROT_READ | PROT_WRITE) == 0);
    start[20 * granule + PAGE] = start[3 * granule + 9 * PAGE] = 3;
    pid_t child = fork();
    if (child == 0) {
        start[20 * granule + 2 * PAGE] = start[30 * granule + 3] = start[3 * granule + 5 * PAGE] = 4;
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    start[30 * granule + PAGE] = 5;
    /* The end moves into the middle of what was stored to, and of what was not. */
    CHECK(ftruncate(fd, 20 * granule + 2 * PAGE + 10) == 0 && ftruncate(fd, 25 * granule + 10 * PAGE) == 0 && ftruncate(fd, bytes) == 0);
    CHECK(start[20 * granule + 2 * PAGE] == 4 && start[21 * granule - 1] == 0 && start[30 * granule + 3] == 0);
    start[25 * granule + 9 * PAGE] = start[25 * granule + 11 * PAGE] = start[20 * granule + 5 * PAGE] = start[30 * granule + 3] = 6;
    /* A part of a granule goes. */
    CHECK(munmap(start + 20 * granule, PAGE) == 0);
    start[20 * granule + 7 * PAGE] = start[20 * granule - PAGE] = start[19 * granule] = 7;
    CHECK(munmap(start, bytes) == 0);
    const struct { size_t at; char byte; } kept[] = {
        { 3 * granule + 5 * PAGE, 4 }, { 3 * granule + 9 * PAGE, 3 }, { 20 * granule, 2 }, { 20 * granule + PAGE, 3 },
        { 20 * granule + 2 * PAGE, 4 }, { 25 * granule + 9 * PAGE, 6 }, { 25 * granule + 11 * PAGE, 6 }, { 20 * granule + 5 * PAGE, 6 },
        { 30 * granule + 3, 6 }, { 20 * granule + 7 * PAGE, 7 }, { 20 * granule - PAGE, 7 }, { 19 * granule, 7 }, { bytes - 1, 0 },
    };
    for (size_t index = 0; index < sizeof kept / sizeof *kept; index++)
        CHECK(pread(fd, &byte, 1, kept[index].at) == 1 && byte == kept[index].byte);
}

/* What the file of `sparse` is to hold, in memory that its processes share: bytes at some places, and zeros. */
enum { SPOTS = 120, SPARSE_GRANULE = 2 << 20, SPARSE_BYTES = 24 * SPARSE_GRANULE };
static struct spot {
    size_t at;
    char byte;
} *spots;

static void sparse_begin(void) {
    spots = mmap(NULL, SPOTS * sizeof *spots, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(spots != MAP_FAILED);
    for (int index = 0; index < SPOTS; index++) {
        size_t at = (size_t)next() % SPARSE_BYTES, granule = at / SPARSE_GRANULE * SPARSE_GRANULE;
        /* At the ends of granules, in their first pages, and anywhere. */
        if (index % 3 == 0) at = granule + (index % 2 ? SPARSE_GRANULE - 1 - next() % 9000 : next() % 9000);
        for (int other = 0; other < index; other++)
            if (spots[other].at == at) at = (at + 1) % SPARSE_BYTES, other = -1;
        spots[index].at = at;
    }
}

static void sparse_zero(size_t from, size_t to) {
    for (int index = 0; index < SPOTS; index++)
        if (spots[index].at >= from && spots[index].at < to) spots[index].byte = 0;
}

static void sparse_store(char *start) {
    struct spot *spot = &spots[next() % SPOTS];
    spot->byte = (char)(next() | 1);
    start[spot->at] = spot->byte;
}

static void sparse_agrees(int fd, const char *start) {
    char byte;
    for (int index = 0; index < SPOTS; index++) {
        CHECK(pread(fd, &byte, 1, spots[index].at) == 1 && byte == spots[index].byte);
        CHECK(start == NULL || start[spots[index].at] == byte);
    }
}

/* One step; the mapping, which has moved perhaps. */
static char *sparse_step(int fd, char *start, const int *pipe) {
    struct spot *spot = &spots[next() % SPOTS];
    size_t from = (size_t)next() % (SPARSE_BYTES / PAGE) * PAGE, pages = 1 + next() % (next() % 2 ? 8 : 3000);
    size_t bytes = from + pages * PAGE > SPARSE_BYTES ? SPARSE_BYTES - from : pages * PAGE;
    char byte;
    int status;
    pid_t child;
    switch (next() % 32) {
    default: sparse_store(start); break;
    case 0: CHECK(msync(start + from, bytes, MS_SYNC) == 0); break;
    case 1: CHECK(msync(start, SPARSE_BYTES, next() % 2 ? MS_SYNC : MS_ASYNC) == 0); break;
    case 2: case 3: case 4: CHECK(start[spot->at] == spot->byte); break;
    case 5: CHECK(pread(fd, &byte, 1, spot->at) == 1 && byte == spot->byte); break;
    case 6:
        spot->byte = (char)(next() | 1);
        CHECK(pwrite(fd, &spot->byte, 1, spot->at) == 1);
        break;
    case 7:
        spot->byte = (char)(next() | 1);
        CHECK(write(pipe[1], &spot->byte, 1) == 1 && read(pipe[0], start + spot->at, 1) == 1);
        break;
    case 8:
        CHECK(mprotect(start + from, bytes, next() % 2 ? PROT_READ : PROT_NONE) == 0);
        CHECK(mprotect(start + from, bytes, PROT_READ | PROT_WRITE) == 0);
        break;
    case 9:
        if (next() % 2) CHECK(munmap(start + from, bytes) == 0);
        CHECK(mmap(start + from, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, from) == start + from);
        break;
    case 10:
        CHECK(mmap(start + from, bytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd, from) == start + from);
        CHECK(mprotect(start + from, bytes, PROT_READ | PROT_WRITE) == 0);
        break;
    case 11: {
        /* All of it elsewhere; the old one goes. */
        char *moved = map(fd, SPARSE_BYTES, 0);
        sparse_store(moved);
        CHECK(munmap(start, SPARSE_BYTES) == 0);
        void *again = mremap(moved, SPARSE_BYTES, SPARSE_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, start);
        CHECK(again == start);
        break;
    }
    case 12:
        if (next() % 4) break;
        child = fork();
        if (child == 0) {
            for (int count = next() % 8; count > 0; count--) sparse_store(start);
            if (next() % 2) kill(getpid(), SIGKILL);
            exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && (status == 0 || status == SIGKILL));
        break;
    case 13: {
        size_t cut = next() % 2 ? from : from + next() % PAGE, grown = cut + next() % (SPARSE_BYTES - cut);
        CHECK(ftruncate(fd, cut) == 0);
        sparse_zero(cut, SPARSE_BYTES);
        if (cut % PAGE && next() % 2) start[cut] = 55;
        if (next() % 2) CHECK(ftruncate(fd, grown) == 0);
        CHECK(ftruncate(fd, SPARSE_BYTES) == 0);
        break;
    }
    case 14:
        CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from, bytes) == 0);
        sparse_zero(from, from + bytes);
        break;
    case 15: CHECK(madvise(start + from, bytes < 8 * PAGE ? bytes : 8 * PAGE, MADV_POPULATE_WRITE) == 0); break;
    case 16: sparse_agrees(fd, start); break;
    }
    return start;
}

static char *sparse_steps(int fd, char *start, int count) {
    int both[2];
    CHECK(pipe(both) == 0);
    while (count-- > 0) start = sparse_step(fd, start, both);
    CHECK(close(both[0]) == 0 && close(both[1]) == 0);
    return start;
}

/* Calls at random on a sparse file and its mapping, against what the file is to hold. 'k': by a process that is killed in the end. 'm': a
   member loses the file in the middle. */
static void sparse(char how) {
    for (const char *text = getenv("SPARSE_SEED"); text && *text; text++) seed = seed * 31 + *text;
    sparse_begin();
    int status, fd = open_file(O_RDWR | O_CREAT | O_TRUNC);
    CHECK(ftruncate(fd, SPARSE_BYTES) == 0);
    if (how == 'k') {
        CHECK(close(fd) == 0);
        pid_t child = fork();
        if (child == 0) {
            fd = open_file(O_RDWR);
            sparse_steps(fd, map(fd, SPARSE_BYTES, 0), 250);
            kill(getpid(), SIGKILL);
        }
        CHECK(waitpid(child, &status, 0) == child && status == SIGKILL);
        fd = open_file(O_RDWR);
        return sparse_agrees(fd, NULL);
    }
    char *start = sparse_steps(fd, map(fd, SPARSE_BYTES, 0), 300);
    if (how == 'm') {
        char member[1000];
        snprintf(member, sizeof member, "%.*s%s", (int)strcspn(getenv("CXLRAID_MOUNTS"), ":"), getenv("CXLRAID_MOUNTS"), path);
        CHECK(msync(start, SPARSE_BYTES, MS_SYNC) == 0 && truncate(member, 0) == 0);
        start = sparse_steps(fd, start, 300);
    }
    sparse_agrees(fd, start);
    CHECK(munmap(start, SPARSE_BYTES) == 0);
    sparse_agrees(fd, NULL);
}

/* The process has as many areas of memory as the kernel allows, so the kernel splits no mapping. Stores succeed all the same, and what is
   protected in one piece can be stored to again. */
static void areas(void) {
    enum { GRANULE = 65536, COUNT = 8 };
    int fd = open_file(O_RDWR | O_CREAT | O_TRUNC);
    CHECK(ftruncate(fd, COUNT * GRANULE) == 0 && fallocate(fd, 0, 0, COUNT * GRANULE) == 0);
    char *start = map(fd, COUNT * GRANULE, 0);
    for (int granule = 0; granule < COUNT; granule++) start[granule * GRANULE] = 1;
    CHECK(msync(start, COUNT * GRANULE, MS_SYNC) == 0);
    for (int granule = 1; granule < 6; granule++) start[granule * GRANULE] = 2;
    size_t bytes = 200000UL * PAGE, at = PAGE;
    char *many = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(many != MAP_FAILED);
    while (at < bytes && mprotect(many + at, PAGE, PROT_READ) == 0) at += 2 * PAGE;
    CHECK(at < bytes && errno == ENOMEM);
    while (mmap(NULL, PAGE, at % 3 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) at++;
    /* The middle of what can be stored to is followed, and protected. */
    CHECK(msync(start + 3 * GRANULE, PAGE, MS_SYNC) == 0);
    for (int granule = 0; granule < COUNT; granule++) start[granule * GRANULE + 5] = 3;
    CHECK(pread(fd, start + 7 * GRANULE + 100, PAGE, 0) == PAGE && start[7 * GRANULE + 105] == 3);
    CHECK(msync(start + 3 * GRANULE, PAGE, MS_SYNC) == 0);
    CHECK(munmap(many, bytes) == 0);
    for (int granule = 0; granule < COUNT; granule++) start[granule * GRANULE + 6] = 4;
    for (int granule = 0; granule < COUNT; granule++) CHECK(start[granule * GRANULE + 5] == 3 && start[granule * GRANULE + 6] == 4);
    CHECK(munmap(start, COUNT * GRANULE) == 0);
}

/* Leaves the process room for so many more areas of memory. The areas, of `bytes`, are to be unmapped in the end. */
static char *crowd_areas(size_t bytes, int room) {
    char *many = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(many != MAP_FAILED);
    size_t at = PAGE;
    while (at < bytes && mprotect(many + at, PAGE, PROT_READ) == 0) at += 2 * PAGE;
    CHECK(at < bytes && errno == ENOMEM);
    for (int count = 0; count < room; count += 2) CHECK(mprotect(many + PAGE + count * PAGE, PAGE, PROT_NONE) == 0);
    return many;
}

/* The program has used up its areas of memory but for a few: files of the array are opened, read, written and mapped as others are. */
static void crowded_areas(void) {
    enum { CHUNKS = 40, CHUNK = 65536, BYTES = CHUNKS * CHUNK };
    size_t hole = 100L << 20, bytes = 200000UL * PAGE;
    char name[1000], byte;
    snprintf(name, sizeof name, "%s2", path);
    int sparse = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(sparse >= 0 && ftruncate(sparse, hole) == 0);
    char *mapped = map(sparse, hole, 0), *many = crowd_areas(bytes, 24);
    int fd = open_file(O_RDWR | O_CREAT | O_TRUNC);
    for (int chunk = 0; chunk < CHUNKS; chunk++) CHECK(pwrite(fd, "abcd", 4, chunk * CHUNK + 10) == 4);
    CHECK(ftruncate(fd, BYTES) == 0);
    char *start = map(fd, BYTES, 0);
    char *own = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(own != MAP_FAILED);
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        CHECK(start[chunk * CHUNK + 11] == 'b' && own[chunk * CHUNK + 12] == 'c');
        start[chunk * CHUNK + 11] = own[chunk * CHUNK + 13] = 7;
        CHECK(pread(fd, &byte, 1, chunk * CHUNK + 11) == 1 && byte == 7);
        CHECK(pread(fd, &byte, 1, chunk * CHUNK + 13) == 1 && byte == 'd');
    }
    CHECK(msync(start, BYTES, MS_SYNC) == 0);
    /* Stores to granules that have no right yet. */
    for (size_t at = 5; at < hole; at += 7 << 20) mapped[at] = 9;
    CHECK(msync(mapped, hole, MS_SYNC) == 0);
    for (size_t at = 5; at < hole; at += 7 << 20) CHECK(pread(sparse, &byte, 1, at) == 1 && byte == 9);
    for (size_t at = 6; at < hole; at += 5 << 20) mapped[at] = 8;
    CHECK(munmap(start, BYTES) == 0 && munmap(own, BYTES) == 0 && munmap(mapped, hole) == 0);
    for (size_t at = 6; at < hole; at += 5 << 20) CHECK(pread(sparse, &byte, 1, at) == 1 && byte == 8);
    CHECK(munmap(many, bytes) == 0 && close(sparse) == 0 && unlink(name) == 0);
}

/* There is no space for a store: SIGBUS, and the page is as it was. */
static void full(void) {
    int fd = open_file(O_RDWR | O_CREAT | O_TRUNC);
    CHECK(ftruncate(fd, 200L << 20) == 0);
    char *start = map(fd, 200L << 20, 0);
    size_t at = 0;
    while (at < 200L << 20 && touch(start + at, 1) == 0) at += 1 << 20;
    CHECK(at > 1 << 20 && at < 200L << 20 && caught == SIGBUS * 100 + BUS_ADRERR);
    CHECK(start[at] == 0 && start[0] == 1 && touch(start + at, 1) == SIGBUS * 100 + BUS_ADRERR && start[at] == 0);
    CHECK(msync(start, 200L << 20, MS_SYNC) == 0);
    CHECK(ftruncate(fd, 1 << 20) == 0 && ftruncate(fd, 200L << 20) == 0);
    CHECK(touch(start + at, 1) == 0 && start[at] == 1);
}

/* The first member's file system is full from now on, or has room again. */
static void fill_member(int full) {
    static char block[1 << 16];
    char name[1000];
    snprintf(name, sizeof name, "%.*s/.cxlraid/filler", (int)strcspn(getenv("CXLRAID_MOUNTS"), ":"), getenv("CXLRAID_MOUNTS"));
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0);
    while (full && write(fd, block, sizeof block) > 0) {}
    CHECK(close(fd) == 0);
}

/* What fsync(2) of another process says of the file. */
static int error_of_other(void) {
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        execl("/proc/self/exe", "mappings", path, "error", NULL);
        _exit(255);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void error(void) {
    int fd = open_file(O_RDWR);
    exit(fsync(fd) == 0 ? 0 : errno);
}

/* A member is full when what was stored into a shared copy is to come to it. It comes there when there is room, also if the mapping is gone by then, or the process.
   How it goes on: there is room; the process ends; it ends, and the file has no name any more; there is room, and the process makes no call. */
static void owed(char next) {
    int fd = open_file(O_RDWR | O_CREAT | O_TRUNC);
    size_t bytes = 64 * PAGE;
    char byte = 0;
    CHECK(ftruncate(fd, bytes) == 0);
    char *start = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(start != MAP_FAILED && start[0] == 0);
    /* What becomes writable gets its space. */
    CHECK(mprotect(start, bytes, PROT_READ | PROT_WRITE) == 0);
    fill_member(1);
    memset(start, 1, bytes);
    CHECK(msync(start, bytes, MS_SYNC) == 0);
    fill_member(0);
    CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, bytes) == 0);
    fill_member(1);
    start[5 * PAGE] = 7;
    CHECK(msync(start, bytes, MS_SYNC) == -1 && errno == ENOSPC);
    CHECK(error_of_other() == ENOSPC);
    if (next == 'p') {
        fill_member(0);
        sleep(2);
        raise(SIGKILL);
    }
    CHECK(munmap(start, bytes) == 0);
    CHECK(fsync(fd) == -1 && errno == ENOSPC && error_of_other() == ENOSPC);
    CHECK(pread(fd, &byte, 1, 5 * PAGE) == 1 && byte == 7);
    if (next == 'n') CHECK(unlink(path) == 0);
    if (next != 'r') return;
    fill_member(0);
    CHECK(error_of_other() == 0);
    CHECK(fsync(fd) == 0);
    CHECK(pread(fd, &byte, 1, 5 * PAGE) == 1 && byte == 7);
}

/* Two mappings of one file are synchronised by one call; who traces this looks at what comes between the two calls of getppid(2). */
static void synced(void) {
    int fd = open_file(O_RDWR);
    char *start = map(fd, 64 * PAGE, 0);
    CHECK(mmap(start + 32 * PAGE, 32 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 32 * PAGE) == start + 32 * PAGE);
    memset(start, 5, 64 * PAGE);
    syscall(SYS_getppid);
    CHECK(msync(start, 64 * PAGE, MS_SYNC) == 0);
    syscall(SYS_getppid);
}

/* A member loses its memory while the file is mapped: what was synchronised stays, stores go on. */
static void failure(void) {
    /* As the runtime of Rust has one: faults are resolved although there is no room for it. */
    stack_t stack = {.ss_sp = malloc(8192), .ss_size = 8192};
    CHECK(sigaltstack(&stack, NULL) == 0);
    int fd = open_file(O_RDWR);
    char *start = map(fd, 40 * PAGE, 0), buffer[PAGE];
    CHECK(ftruncate(fd, 40 * PAGE) == 0);
    for (int page = 0; page < 40; page++) memset(start + page * PAGE, page + 1, PAGE);
    CHECK(msync(start, 40 * PAGE, MS_SYNC) == 0);
    char member[1000];
    snprintf(member, sizeof member, "%.*s%s", (int)strcspn(getenv("CXLRAID_MOUNTS"), ":"), getenv("CXLRAID_MOUNTS"), path);
    CHECK(truncate(member, 0) == 0);
    for (int page = 0; page < 40; page++) CHECK(start[page * PAGE + 7] == page + 1);
    for (int page = 0; page < 40; page++) start[page * PAGE + 8] = 100;
    for (int page = 0; page < 40; page++) {
        CHECK(pread(fd, buffer, PAGE, page * PAGE) == PAGE);
        CHECK(buffer[7] == page + 1 && buffer[8] == 100 && buffer[4095] == page + 1);
    }
    CHECK(pwrite(fd, "abc", 3, 9 * PAGE) == 3 && !memcmp(start + 9 * PAGE, "abc", 3));
    CHECK(munmap(start, 40 * PAGE) == 0);
    for (int page = 0; page < 40; page++) {
        CHECK(pread(fd, buffer, PAGE, page * PAGE) == PAGE);
        CHECK(buffer[7] == page + 1 && buffer[8] == 100 && buffer[4095] == page + 1);
    }
}

static char *map_private(int fd, int protection) {
    char *start = mmap(NULL, 60 * PAGE, protection, MAP_PRIVATE, fd, 0);
    CHECK(start != MAP_FAILED);
    return start;
}

/* Private mappings of a file whose member loses its memory: what the program stored stays its own, all else is what the file has. */
static void private_failure(void) {
    char block[PAGE], member[1000];
    int fd = open_file(O_RDWR);
    for (int page = 0; page < 60; page++) {
        memset(block, page + 1, PAGE);
        CHECK(pwrite(fd, block, PAGE, page * PAGE) == PAGE);
    }
    CHECK(ftruncate(fd, 60 * PAGE - 9) == 0);
    char *own = map_private(fd, PROT_READ | PROT_WRITE), *text = map_private(fd, PROT_READ), *late = map_private(fd, PROT_READ);
    char *hole = map_private(fd, PROT_READ), *over = map_private(fd, PROT_READ);
    for (int page = 0; page < 60; page += 7) own[page * PAGE + 5] = 77;
    CHECK(munmap(hole + 20 * PAGE, 5 * PAGE) == 0);
    CHECK(mmap(over, 60 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == over);
    CHECK(close(fd) == 0);
    snprintf(member, sizeof member, "%.*s%s", (int)strcspn(getenv("CXLRAID_MOUNTS"), ":"), getenv("CXLRAID_MOUNTS"), path);
    CHECK(truncate(member, 0) == 0);
    /* Calls of the program that read from there. */
    char other[1000];
    snprintf(other, sizeof other, "%s2", path);
    fd = open(other, O_RDWR | O_CREAT, 0600);
    for (int page = 0; page < 60; page++) CHECK(pwrite(fd, text + page * PAGE, PAGE, page * PAGE) == PAGE);
    for (int page = 0; page < 60; page++) {
        char last = page == 59 ? 0 : page + 1;
        /* A cut takes what was stored along, unlike the loss that it stands for. */
        char stored = own[page * PAGE + 5];
        CHECK((stored == page + 1 || (page % 7 == 0 && stored == 77)) && own[page * PAGE + PAGE - 1] == last);
        CHECK(text[page * PAGE + 5] == page + 1 && text[page * PAGE + PAGE - 1] == last);
        if (page < 20 || page >= 25) CHECK(hole[page * PAGE + 7] == page + 1);
        else CHECK(touch(hole + page * PAGE, 0) / 100 == SIGSEGV);
        CHECK(over[page * PAGE] == 0 && touch(text + page * PAGE, 1) / 100 == SIGSEGV);
        CHECK(pread(fd, block, PAGE, page * PAGE) == PAGE && block[5] == page + 1 && block[PAGE - 1] == last);
        own[page * PAGE + 6] = 78;
        CHECK(own[page * PAGE + 6] == 78 && own[page * PAGE + 5] == stored);
    }
    CHECK(close(fd) == 0);
    fd = open_file(O_RDWR);
    CHECK(pread(fd, block, PAGE, 5 * PAGE) == PAGE && block[6] == 6);
    /* Pages that are given up show what the file has. */
    CHECK(madvise(text, 60 * PAGE, MADV_DONTNEED) == 0 && madvise(own + 10 * PAGE, 50 * PAGE, MADV_DONTNEED) == 0);
    for (int page = 0; page < 60; page++) {
        CHECK(text[page * PAGE + 5] == page + 1);
        if (page >= 10) CHECK(own[page * PAGE + 5] == page + 1 && own[page * PAGE + 6] == page + 1);
    }
    pid_t child = fork();
    if (child == 0) _exit(own[6 * PAGE + 6] == 78 && text[5] == 1 && hole[6] == 1 ? 0 : 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    /* Behind the end there is nothing, member or not. */
    CHECK(ftruncate(fd, PAGE) == 0 && touch(late + 59 * PAGE, 0) / 100 == SIGBUS && late[5] == 1);
    CHECK(munmap(own, 60 * PAGE) == 0 && touch(own, 0) / 100 == SIGSEGV);
}

/* Threads that load a page behind the end go on while the file grows: what is stored to the page then is not replaced by what
   the file has. By chance: without that look some in ten thousand stores were lost. */
static volatile char *grown;
static atomic_int growth_ends;
static _Thread_local sigjmp_buf again;
static void on_bus(int signal) {
    (void)signal;
    siglongjmp(again, 1);
}

static void *load_behind_the_end(void *unused) {
    (void)unused;
    sigsetjmp(again, 1);
    while (!growth_ends) (void)grown[3 * PAGE];
    return NULL;
}

static void private_growth(void) {
    pthread_t threads[3];
    int fd = open_file(O_RDWR);
    CHECK(ftruncate(fd, PAGE) == 0);
    signal(SIGBUS, on_bus);
    grown = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(grown != MAP_FAILED);
    for (int index = 0; index < 3; index++) CHECK(pthread_create(&threads[index], NULL, load_behind_the_end, NULL) == 0);
    for (double end = seconds() + 3; seconds() < end;) {
        CHECK(ftruncate(fd, 16 * PAGE) == 0);
        grown[3 * PAGE] = 0x55;
        usleep(200);
        CHECK(grown[3 * PAGE] == 0x55);
        CHECK(ftruncate(fd, PAGE) == 0);
        CHECK(mmap((void *)grown, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 0) == grown);
    }
    growth_ends = 1;
    for (int index = 0; index < 3; index++) CHECK(pthread_join(threads[index], NULL) == 0);
}

/* A call of the program that may not load or store at a private page leaves what the program has stored there. */
static void private_closed(void) {
    int fd = open_file(O_RDWR);
    CHECK(pwrite(fd, "file", 4, PAGE) == 4);
    char *start = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(start != MAP_FAILED);
    memcpy(start + PAGE, "mine", 4);
    CHECK(mprotect(start, 3 * PAGE, PROT_NONE) == 0);
    CHECK(pwrite(fd, start + PAGE, 4, 0) == -1 && errno == EFAULT);
    CHECK(pread(fd, start + PAGE, 4, 0) == -1 && errno == EFAULT);
    CHECK(mprotect(start, 3 * PAGE, PROT_READ) == 0 && !memcmp(start + PAGE, "mine", 4));
    CHECK(pread(fd, start + PAGE, 4, 0) == -1 && errno == EFAULT);
    CHECK(!memcmp(start + PAGE, "mine", 4) && munmap(start, 3 * PAGE) == 0);
}

/* A process dies with pages that were stored to; another that has the file mapped makes them good, by itself. */
static void survivor(void) {
    int fd = open_file(O_RDWR);
    char *start = map(fd, 70 * PAGE, 0);
    pid_t child = fork();
    if (child == 0) {
        scatter(start, 70 * PAGE, 3000);
        raise(SIGKILL);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    sleep(3);
    raise(SIGKILL);
}

/* The next program of the same process finds redundancy in order, and nothing held. */
static void executed(void) {
    int fd = open_file(O_RDWR);
    char *start = map(fd, 40 * PAGE, 0);
    scatter(start, 40 * PAGE, 500);
    CHECK(fcntl(fd, F_SETFD, FD_CLOEXEC) == 0);
    execl("/proc/self/exe", "mappings", path, "msync", NULL);
    CHECK(!"exec");
}

static void *storing(void *argument) {
    char *start = argument;
    uint32_t mine = (uint32_t)(uintptr_t)&mine | 1;
    for (int count = 0; count < 400000; count++) {
        mine ^= mine << 13;
        mine ^= mine >> 17;
        mine ^= mine << 5;
        start[mine % (64 * PAGE)] = (char)(mine >> 24);
    }
    return NULL;
}

/* Threads of two processes store while both synchronise. */
static void crowd(void) {
    int fd = open_file(O_RDWR);
    CHECK(ftruncate(fd, 64 * PAGE) == 0);
    char *start = map(fd, 64 * PAGE, 0);
    pid_t child = fork();
    pthread_t threads[2];
    for (int index = 0; index < 2; index++) CHECK(pthread_create(&threads[index], NULL, storing, start) == 0);
    for (int round = 0; round < 40; round++) {
        CHECK(msync(start, 64 * PAGE, MS_SYNC) == 0);
        char buffer[3000];
        memset(buffer, round, sizeof buffer);
        CHECK(pwrite(fd, buffer, sizeof buffer, next() % (60 * PAGE)) == sizeof buffer);
    }
    for (int index = 0; index < 2; index++) CHECK(pthread_join(threads[index], NULL) == 0);
    if (child == 0) exit(0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

#define TOGETHER_THREADS 3
#define TOGETHER_ROUNDS 100

static atomic_int round_now;
static atomic_int stored_now;

static int read_from = -1;

static void *storing_together(void *argument) {
    static atomic_int numbers;
    int number = atomic_fetch_add(&numbers, 1);
    char *start = argument;
    for (int round = 1; round <= TOGETHER_ROUNDS; round++) {
        while (atomic_load(&round_now) < round) sched_yield();
        char *at = start + round * PAGE + number;
        if (read_from < 0) *at = (char)(number + 1);
        else CHECK(pread(read_from, at, 1, number) == 1);
        atomic_fetch_add(&stored_now, 1);
    }
    return NULL;
}

/* Threads store at once to a page that another process has just let the file grow by, or have calls of the library store there. */
static void together(int reads) {
    int fd = open_file(O_RDWR | O_CREAT | O_TRUNC), ask[2], answer[2];
    CHECK(ftruncate(fd, PAGE) == 0 && pipe(ask) == 0 && pipe(answer) == 0);
    char byte = 0;
    pid_t child = fork();
    if (child == 0) {
        CHECK(close(ask[1]) == 0 && close(answer[0]) == 0);
        for (int pages = 2; read(ask[0], &byte, 1) == 1; pages++)
            CHECK(ftruncate(fd, pages * PAGE) == 0 && write(answer[1], &byte, 1) == 1);
        _exit(0);
    }
    char *start = map(fd, (TOGETHER_ROUNDS + 1) * PAGE, 0);
    for (int number = 0; number < TOGETHER_THREADS; number++) start[number] = (char)(number + 1);
    if (reads) read_from = fd;
    pthread_t threads[TOGETHER_THREADS];
    for (int index = 0; index < TOGETHER_THREADS; index++)
        CHECK(pthread_create(&threads[index], NULL, storing_together, start) == 0);
    for (int round = 1; round <= TOGETHER_ROUNDS; round++) {
        CHECK(write(ask[1], &byte, 1) == 1 && read(answer[0], &byte, 1) == 1);
        atomic_store(&round_now, round);
        while (atomic_load(&stored_now) < round * TOGETHER_THREADS) sched_yield();
        for (int number = 0; number < TOGETHER_THREADS; number++) CHECK(start[round * PAGE + number] == number + 1);
    }
    for (int index = 0; index < TOGETHER_THREADS; index++) CHECK(pthread_join(threads[index], NULL) == 0);
    int status;
    CHECK(close(ask[1]) == 0 && waitpid(child, &status, 0) == child && status == 0);
}

/* Calls of the library store into a mapping for longer than the period. */
static void at_length(void) {
    enum { LONG_BYTES = 32 << 20 };
    int fd = open_file(O_RDWR | O_CREAT | O_TRUNC);
    char *filled = malloc(LONG_BYTES);
    for (int at = 0; at < LONG_BYTES; at += 4) *(uint32_t *)(filled + at) = next();
    CHECK(pwrite(fd, filled, LONG_BYTES, 0) == LONG_BYTES && ftruncate(fd, 2 * LONG_BYTES) == 0);
    char *start = map(fd, LONG_BYTES, LONG_BYTES);
    for (int round = 0; round < 10; round++) {
        CHECK(pread(fd, start, LONG_BYTES, 0) == LONG_BYTES && !memcmp(start, filled, LONG_BYTES));
        memset(start, round, LONG_BYTES);
    }
}

/* A granule that holds a lock keeps the right to be stored to also when the file grows. */
static char *lent_start;
static int lent_pipe[2], lent_span = 1000;
static pthread_barrier_t lent_barrier;
enum { LENT_ROUNDS = 40, LENT_STEP = 2 * 65536, LENT_BYTES = LENT_ROUNDS * LENT_STEP, LENT_REST = 32 << 20 };

static void *lent_reads(void *nothing) {
    for (int round = 0; round < LENT_ROUNDS; round++) {
        pthread_barrier_wait(&lent_barrier);
        CHECK(read(lent_pipe[0], lent_start + round * LENT_STEP, PAGE) == PAGE);
        pthread_barrier_wait(&lent_barrier);
    }
    return nothing;
}

static void *lent_feeds(void *nothing) {
    char page[PAGE];
    memset(page, 0x5a, PAGE);
    for (int round = 0; round < LENT_ROUNDS; round++) {
        pthread_barrier_wait(&lent_barrier);
        usleep(3000 + next() % lent_span);
        CHECK(write(lent_pipe[1], page, PAGE) == PAGE);
        pthread_barrier_wait(&lent_barrier);
    }
    return nothing;
}

static pthread_mutex_t *lent_mutex;
static void *lent_holds(void *nothing) {
    CHECK(pthread_mutex_lock(lent_mutex) == 0);
    pthread_barrier_wait(&lent_barrier);
    pthread_barrier_wait(&lent_barrier);
    return nothing;
}

/* What the kernel stores into what is lent to its call, while the file grows, is followed. What holds a lock can be stored to when
   the protection has changed: the kernel tells the next owner that the last one has ended. */
static void lent(void) {
    int fd = open_file(O_RDWR | O_CREAT | O_TRUNC), bytes = LENT_BYTES + LENT_REST;
    CHECK(ftruncate(fd, bytes) == 0 && pipe(lent_pipe) == 0);
    lent_start = map(fd, bytes + LENT_ROUNDS * PAGE, 0);
    pthread_t threads[2], holder;
    CHECK(pthread_barrier_init(&lent_barrier, NULL, 3) == 0);
    CHECK(pthread_create(&threads[0], NULL, lent_reads, NULL) == 0 && pthread_create(&threads[1], NULL, lent_feeds, NULL) == 0);
    for (int round = 0; round < LENT_ROUNDS; round++) {
        for (int at = LENT_BYTES; at < LENT_BYTES + LENT_REST; at += 65536) lent_start[at] = (char)(round + 1);
        pthread_barrier_wait(&lent_barrier);
        usleep(3000);
        double begun = seconds();
        CHECK(ftruncate(fd, bytes + (round + 1) * PAGE) == 0);
        int span = (int)((seconds() - begun) * 1e6) + 1;
        pthread_barrier_wait(&lent_barrier);
        lent_span = span;
    }
    CHECK(pthread_join(threads[0], NULL) == 0 && pthread_join(threads[1], NULL) == 0);

    pthread_mutexattr_t robust;
    struct timespec time;
    lent_mutex = (pthread_mutex_t *)(lent_start + LENT_BYTES);
    CHECK(pthread_mutexattr_init(&robust) == 0 && pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST) == 0);
    CHECK(pthread_mutexattr_setpshared(&robust, PTHREAD_PROCESS_SHARED) == 0 && pthread_mutex_init(lent_mutex, &robust) == 0);
    CHECK(pthread_barrier_init(&lent_barrier, NULL, 2) == 0 && pthread_create(&holder, NULL, lent_holds, NULL) == 0);
    pthread_barrier_wait(&lent_barrier);
    CHECK(mprotect(lent_start, bytes, PROT_READ | PROT_WRITE) == 0);
    pthread_barrier_wait(&lent_barrier);
    CHECK(pthread_join(holder, NULL) == 0 && clock_gettime(CLOCK_REALTIME, &time) == 0);
    time.tv_sec += 5;
    CHECK(pthread_mutex_timedlock(lent_mutex, &time) == EOWNERDEAD && pthread_mutex_consistent(lent_mutex) == 0);
    CHECK(pthread_mutex_unlock(lent_mutex) == 0);
}

/* A mapping becomes writable after a member has come back, to which it has not come yet. */
static void writable_later(void) {
    int fd = open_file(O_RDWR);
    char *start = mmap(NULL, 20 * PAGE, PROT_READ, MAP_SHARED, fd, 0), bytes[16 * PAGE];
    CHECK(start != MAP_FAILED && touch(start, 0) == 0 && putchar('c') && !fflush(stdout) && getchar() == '\n');
    /* A write meets every member. */
    CHECK(pwrite(fd, "w", 1, 12 * PAGE) == 1 && pread(fd, bytes, sizeof bytes, 0) == sizeof bytes && touch(start + 5 * PAGE, 0) == 0);
    CHECK(!memcmp(start, bytes, sizeof bytes) && putchar('o') && !fflush(stdout) && getchar() == '\n');
    CHECK(mprotect(start, 20 * PAGE, PROT_READ | PROT_WRITE) == 0);
    char stored = (char)(bytes[5 * PAGE] + 1), found;
    start[5 * PAGE] = stored;
    CHECK(pread(fd, &found, 1, 5 * PAGE) == 1 && found == stored);
    CHECK(msync(start, 20 * PAGE, MS_SYNC) == 0 && start[5 * PAGE] == stored);
    CHECK(pread(fd, &found, 1, 5 * PAGE) == 1 && found == stored);
}

static void held(void) {
    int fd = open_file(O_RDWR | O_CREAT | O_TRUNC);
    CHECK(ftruncate(fd, 20 * PAGE) == 0);
    char *start = map(fd, 400 * PAGE, 0);
    pthread_mutexattr_t robust;
    pthread_mutex_t *mutex = (pthread_mutex_t *)(start + 19 * PAGE);
    CHECK(pthread_mutexattr_init(&robust) == 0 && pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST) == 0);
    CHECK(pthread_mutexattr_setpshared(&robust, PTHREAD_PROCESS_SHARED) == 0);
    CHECK(pthread_mutex_init(mutex, &robust) == 0 && pthread_mutex_lock(mutex) == 0);
    for (int pages = 21; pages <= 40; pages++) {
        usleep(3000);
        CHECK(ftruncate(fd, pages * PAGE) == 0);
        CHECK(touch(start + 19 * PAGE + 1000, 1) == 0 && touch(start + (pages - 1) * PAGE, 1) == 0);
    }
    CHECK(pthread_mutex_unlock(mutex) == 0);
}

/* The device stores into a mapping what is read past the page cache: pages that were marked when the read began. */
static void direct(void) {
    enum { STEP_BYTES = 1 << 20, STEP_COUNT = 60 };
    char name[] = "/var/tmp/cxlraid-direct-XXXXXX", *filled = malloc(STEP_BYTES);
    int fd = open_file(O_RDWR | O_CREAT | O_TRUNC), host = mkstemp(name);
    CHECK(host >= 0 && ftruncate(fd, STEP_BYTES * STEP_COUNT) == 0);
    for (int at = 0; at < STEP_BYTES; at += 4) *(uint32_t *)(filled + at) = next();
    for (int step = 0; step < 16; step++) CHECK(write(host, filled, STEP_BYTES) == STEP_BYTES);
    CHECK(fsync(host) == 0);
    int past = open(name, O_RDONLY | O_DIRECT);
    CHECK(unlink(name) == 0);
    /* Not every file system has it. */
    if (past < 0) exit(0);
    char *start = map(fd, STEP_BYTES * STEP_COUNT, 0);
    for (int step = 0; step < STEP_COUNT; step++) {
        char *at = start + step * STEP_BYTES;
        CHECK(pread(past, at, STEP_BYTES, step % 16 * STEP_BYTES) == STEP_BYTES && !memcmp(at, filled, STEP_BYTES));
    }
    CHECK(msync(start, STEP_BYTES * STEP_COUNT, MS_SYNC) == 0);
    raise(SIGKILL);
}

/* A cut is seen by every mapping when the call that made it returns: also by those of other processes, and also if open(2) made it. */
static void cut(void) {
    int fd = open_file(O_RDWR), ask[2], answer[2];
    char byte = 0, buffer[PAGE];
    CHECK(pipe(ask) == 0 && pipe(answer) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(close(ask[1]) == 0 && close(answer[0]) == 0);
        while (read(ask[0], &byte, 1) == 1) {
            if (byte == 1) CHECK(truncate(path, 2 * PAGE) == 0);
            if (byte == 2) CHECK(close(open_file(O_RDWR | O_TRUNC)) == 0);
            if (byte == 3) CHECK(truncate(path, 60 * PAGE) == 0);
            CHECK(write(answer[1], &byte, 1) == 1);
        }
        _exit(0);
    }
    for (int round = 0; round < 20; round++) {
        CHECK(ftruncate(fd, 60 * PAGE) == 0);
        char *start = map(fd, 60 * PAGE, 0);
        memset(start, 7, 60 * PAGE);
        byte = 1 + round % 2;
        CHECK(write(ask[1], &byte, 1) == 1 && read(answer[0], &byte, 1) == 1);
        int left = byte == 1 ? 2 : 0;
        for (int page = left; page < 60; page++) CHECK(touch(start + page * PAGE, page % 2) == SIGBUS * 100 + BUS_ADRERR);
        byte = 3;
        CHECK(write(ask[1], &byte, 1) == 1 && read(answer[0], &byte, 1) == 1);
        for (int page = left; page < 60; page++) CHECK(start[page * PAGE + 5] == 0);
        start[30 * PAGE] = 1;
        CHECK(close(open_file(O_RDWR | O_TRUNC)) == 0);
        CHECK(touch(start + 30 * PAGE, 1) == SIGBUS * 100 + BUS_ADRERR && touch(start, 0) == SIGBUS * 100 + BUS_ADRERR);
        CHECK(munmap(start, 60 * PAGE) == 0);
    }
    /* Somebody stores all the time while another cuts and lets grow: nothing stored behind an end ever shows. */
    CHECK(ftruncate(fd, 60 * PAGE) == 0);
    pid_t storing = fork();
    if (storing == 0) {
        char *start = map(fd, 60 * PAGE, 0);
        for (;;) touch(start + (2 + next() % 58) * PAGE + 9, 1);
    }
    for (int round = 0; round < 100; round++) {
        CHECK(ftruncate(fd, PAGE) == 0 && ftruncate(fd, PAGE + 1) == 0);
        CHECK(pread(fd, buffer, PAGE, PAGE) == 1 && buffer[0] == 0);
    }
    CHECK(kill(storing, SIGKILL) == 0);
    int status;
    CHECK(waitpid(storing, &status, 0) == storing);
    CHECK(close(ask[1]) == 0 && waitpid(child, &status, 0) == child && status == 0);
    CHECK(close(open_file(O_RDWR)) == 0 && ftruncate(fd, 60 * PAGE) == 0);
    for (int page = 1; page < 60; page++) {
        CHECK(pread(fd, buffer, PAGE, page * PAGE) == PAGE);
        for (int at = 0; at < PAGE; at++) CHECK(buffer[at] == 0);
    }
}

/* A child that does what it is told by a byte, and says when it has: with the first one that it is not to answer it ends. */
struct other {
    int ask[2], answer[2];
    pid_t pid;
};

static struct other start_other(void (*act)(char)) {
    struct other other;
    char byte;
    CHECK(pipe(other.ask) == 0 && pipe(other.answer) == 0);
    other.pid = fork();
    if (other.pid == 0) {
        CHECK(close(other.ask[1]) == 0 && close(other.answer[0]) == 0);
        while (read(other.ask[0], &byte, 1) == 1) {
            act(byte);
            CHECK(write(other.answer[1], &byte, 1) == 1);
        }
        _exit(0);
    }
    CHECK(other.pid > 0 && close(other.ask[0]) == 0 && close(other.answer[1]) == 0);
    return other;
}

static void tell(struct other *other, char byte) {
    CHECK(write(other->ask[1], &byte, 1) == 1 && read(other->answer[0], &byte, 1) == 1);
}

static void end_other(struct other *other) {
    int status;
    CHECK(close(other->ask[1]) == 0 && waitpid(other->pid, &status, 0) == other->pid && status == 0);
    CHECK(close(other->answer[0]) == 0);
}

static char *map_to_read(size_t bytes) {
    int reader = open_file(O_RDONLY);
    char *start = mmap(NULL, bytes, PROT_READ, MAP_SHARED, reader, 0);
    CHECK(start != MAP_FAILED && close(reader) == 0);
    return start;
}

static void cut_or_grow(char byte) {
    char page[PAGE];
    if (byte == 1) CHECK(truncate(path, 2 * PAGE) == 0);
    if (byte == 2) CHECK(close(open_file(O_RDWR | O_TRUNC)) == 0);
    if (byte == 3) CHECK(truncate(path, 60 * PAGE) == 0);
    if (byte == 4) {
        int fd = open_file(O_RDWR);
        memset(page, 7, sizeof page);
        for (int at = 0; at < 60; at++) CHECK(pwrite(fd, page, PAGE, at * PAGE) == PAGE);
        CHECK(close(fd) == 0);
    }
}

static void see_cuts(struct other *other, const char *start) {
    for (int round = 0; round < 20; round++) {
        tell(other, 4);
        for (int page = 0; page < 60; page++) CHECK(start[page * PAGE + 5] == 7);
        tell(other, 1 + round % 2);
        int left = round % 2 ? 0 : 2;
        for (int page = left; page < 60; page++) CHECK(touch((char *)start + page * PAGE, 0) == SIGBUS * 100 + BUS_ADRERR);
        tell(other, 3);
        for (int page = 0; page < 60; page++) CHECK(start[page * PAGE + 5] == (page < left ? 7 : 0));
    }
}

/* Who only reads a mapping sees a cut as soon as it is made, also the child that has the mapping from its parent. */
static void reader_cut(void) {
    struct other other = start_other(cut_or_grow);
    tell(&other, 4);
    char *start = map_to_read(60 * PAGE), *again = map_to_read(60 * PAGE);
    see_cuts(&other, start);
    CHECK(munmap(start, 60 * PAGE) == 0);
    see_cuts(&other, again);
    pid_t child = fork();
    if (child == 0) {
        see_cuts(&other, again);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(munmap(again, 60 * PAGE) == 0);
    end_other(&other);
}

#define WIDE_BYTES ((size_t)220 << 20)
static char *copied;
static void store_in_copy(char byte) {
    int fd = open_file(O_RDWR);
    if (byte == 1) {
        CHECK(copied == NULL);
        copied = map(fd, WIDE_BYTES, 0);
    }
    copied[byte * PAGE] = byte;
    copied[WIDE_BYTES - PAGE + byte] = byte;
    CHECK(pwrite(fd, &byte, 1, (byte + 100) * PAGE) == 1 && close(fd) == 0);
}

/* Who only reads the members comes to a shared copy as soon as there is one. */
static void reader_copy(void) {
    int fd = open_file(O_RDWR);
    CHECK(ftruncate(fd, WIDE_BYTES) == 0);
    struct other other = start_other(store_in_copy);
    char *start = map_to_read(30 * PAGE), *later = NULL;
    CHECK(start[PAGE] != 1 || start[2 * PAGE] != 2);
    for (char byte = 1; byte < 20; byte++) {
        tell(&other, byte);
        CHECK(start[byte * PAGE] == byte && (!later || later[(byte + 100) * PAGE] == byte));
        if (byte == 5) later = map_to_read(200 * PAGE);
    }
    end_other(&other);
    CHECK(start[19 * PAGE] == 19 && later[119 * PAGE] == 19);
}

static void fail_table(char byte) {
    char member[1000], block[PAGE];
    int mounts = (int)strcspn(getenv("CXLRAID_MOUNTS"), ":");
    snprintf(member, sizeof member, "%.*s/.cxlraid/inodes", mounts, getenv("CXLRAID_MOUNTS"));
    int fd = open_file(O_RDWR);
    memset(block, byte, sizeof block);
    /* The file's memory on the member stays as it is. What is stored when the file grows finds the member failing. */
    CHECK(truncate(member, 0) == 0 && pwrite(fd, block, PAGE, 60 * PAGE) == PAGE);
    for (int page = 0; page < 60; page++) CHECK(pwrite(fd, block, PAGE, page * PAGE) == PAGE);
}

/* Who only reads sees what is written once a member is out that the others have found failing. */
static void reader_failure(void) {
    int fd = open_file(O_RDWR);
    CHECK(ftruncate(fd, 60 * PAGE) == 0);
    struct other other = start_other(fail_table);
    char *start = map_to_read(60 * PAGE);
    for (int page = 0; page < 60; page++) CHECK(touch(start + page * PAGE, 0) == 0);
    tell(&other, 9);
    for (int page = 0; page < 60; page++) CHECK(start[page * PAGE] == 9 && start[page * PAGE + PAGE - 1] == 9);
    end_other(&other);
}

/* Readers that are killed, have become other programs or end are not waited for; one that is stopped only so long. */
static void reader_gone(void) {
    int fd = open_file(O_RDWR), ready[2], status;
    char byte;
    for (int kind = 0; kind < 4; kind++) {
        CHECK(ftruncate(fd, 60 * PAGE) == 0 && pipe(ready) == 0);
        pid_t child = fork();
        if (child == 0) {
            /* Not to be left over when a check fails. */
            CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
            char *start = map_to_read(60 * PAGE);
            CHECK(touch(start + 59 * PAGE, 0) == 0);
            CHECK(fcntl(ready[1], F_SETFD, FD_CLOEXEC) == 0 && fcntl(ready[0], F_SETFD, FD_CLOEXEC) == 0);
            char *nothing[] = {NULL}, *arguments[] = {"sleep", "60", NULL};
            if (kind != 2) CHECK(write(ready[1], "r", 1) == 1);
            if (kind == 2) execve("/bin/sleep", arguments, nothing);
            for (;;) pause();
        }
        CHECK(close(ready[1]) == 0);
        if (kind == 2) CHECK(read(ready[0], &byte, 1) == 0);
        else CHECK(read(ready[0], &byte, 1) == 1);
        CHECK(kind != 0 || (kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child));
        CHECK(kind != 1 || (kill(child, SIGSTOP) == 0 && waitpid(child, &status, WUNTRACED) == child));
        double begun = seconds();
        CHECK(ftruncate(fd, PAGE) == 0);
        double spent = seconds() - begun;
        CHECK(kind == 1 ? spent > 0.05 && spent < 2 : spent < 0.05);
        CHECK(kind == 0 || (kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child));
        CHECK(close(ready[0]) == 0);
    }
}

/* A mapping of too many pieces, while another process stores to the members: both come to a shared copy. */
static void wide(void) {
    size_t bytes = 220 << 20;
    int fd = open_file(O_RDWR), ask[2], answer[2];
    char byte = 0, buffer[8];
    CHECK(ftruncate(fd, bytes) == 0 && pipe(ask) == 0 && pipe(answer) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(close(ask[1]) == 0 && close(answer[0]) == 0);
        char *start = map(fd, 4 * PAGE, 0);
        for (char count = 1; read(ask[0], &byte, 1) == 1; count++) {
            if (count > 1) CHECK(start[PAGE] == count - 1);
            start[0] = start[2 * PAGE + 1] = count;
            CHECK(pread(fd, buffer, 1, 0) == 1 && buffer[0] == count);
            CHECK(write(answer[1], &byte, 1) == 1);
        }
        _exit(0);
    }
    char *small = map(fd, 4 * PAGE, 0), *start = NULL;
    for (char count = 1; count < 20; count++) {
        if (count == 5) start = map(fd, bytes, 0);
        CHECK(write(ask[1], &byte, 1) == 1 && read(answer[0], &byte, 1) == 1);
        CHECK(small[0] == count && small[2 * PAGE + 1] == count);
        if (start) CHECK(start[0] == count && start[2 * PAGE + 1] == count);
        CHECK(pread(fd, buffer, 1, 2 * PAGE + 1) == 1 && buffer[0] == count);
        if (start && count % 2) start[PAGE] = start[bytes - 1] = count;
        else small[PAGE] = count;
    }
    CHECK(munmap(start, bytes) == 0 && munmap(small, 4 * PAGE) == 0);
    int status;
    CHECK(close(ask[1]) == 0 && waitpid(child, &status, 0) == child && status == 0);
    CHECK(pread(fd, buffer, 1, PAGE) == 1 && buffer[0] == 19 && pread(fd, buffer, 1, bytes - 1) == 1 && buffer[0] == 19);
    CHECK(pread(fd, buffer, 1, 0) == 1 && buffer[0] == 19);
}

/* Parents that unmap as soon as they have forked, and ranges that children are not to have. */
static void children(void) {
    int fd = open_file(O_RDWR), status;
    char buffer[8];
    for (int round = 1; round < 60; round++) {
        char *start = map(fd, 8 * PAGE, 0);
        start[1] = (char)round;
        pid_t child = fork();
        if (child == 0) {
            CHECK(start[1] == (char)round);
            start[2] = (char)round;
            if (round % 3 == 0) raise(SIGKILL);
            _exit(0);
        }
        CHECK(munmap(start, 8 * PAGE) == 0);
        CHECK(waitpid(child, &status, 0) == child && (status == 0 || WIFSIGNALED(status)));
        CHECK(pread(fd, buffer, 2, 1) == 2 && buffer[0] == (char)round && buffer[1] == (char)round);
    }
    char *start = map(fd, 8 * PAGE, 0);
    /* The file's bytes are random: one of 256 would be the child's. */
    start[PAGE] = 76;
    CHECK(madvise(start + PAGE, PAGE, MADV_DONTFORK) == 0 && madvise(start + 4 * PAGE, PAGE, MADV_DONTFORK) == 0);
    CHECK(madvise(start + 4 * PAGE, PAGE, MADV_DOFORK) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(touch(start + PAGE, 0) == SIGSEGV * 100 + SEGV_MAPERR && touch(start + 4 * PAGE, 1) == 0 && touch(start, 1) == 0);
        CHECK(mmap(start + PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == start + PAGE);
        start[PAGE] = 77;
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(start[PAGE] != 77 && touch(start + PAGE, 1) == 0);
}

/* Pages in memory, asked for and advised as of any mapping. */
static void pages(void) {
    int fd = open_file(O_RDWR);
    unsigned char present[16];
    /* The library maps a file that was read some times. With a journal the program's mapping shows a
       copy, which has another name. */
    for (int round = 0; round < 8; round++) CHECK(pread(fd, (char[PAGE]){0}, PAGE, 0) == PAGE);
    char *start = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    CHECK(start != MAP_FAILED && mincore(start, 16 * PAGE, present) == 0);
    for (int page = 0; page < 16; page++) CHECK(present[page] & 1);
    CHECK(mlock(start, 4 * PAGE) == 0 && munlock(start, 4 * PAGE) == 0);
    CHECK(madvise(start, 16 * PAGE, MADV_WILLNEED) == 0 && madvise(start, 16 * PAGE, MADV_RANDOM) == 0);
    CHECK(madvise(start, 16 * PAGE, 22 /* MADV_POPULATE_READ */) == 0 && madvise(start, 16 * PAGE, 23 /* MADV_POPULATE_WRITE */) == 0);
    start[3 * PAGE] = 5;
    CHECK(madvise(start, 16 * PAGE, MADV_DONTNEED) == 0 && madvise(start, 16 * PAGE, MADV_HUGEPAGE) == 0 && start[3 * PAGE] == 5);
    CHECK(madvise(start, 16 * PAGE, 1234) == -1 && errno == EINVAL);
    int self = syscall(434 /* pidfd_open */, getpid(), 0);
    struct iovec range = {start, 16 * PAGE};
    CHECK(self >= 0 && syscall(440 /* process_madvise */, self, &range, 1, MADV_WILLNEED, 0) == 16 * PAGE);
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[1000];
    int found = 0;
    while (fgets(line, sizeof line, maps)) found |= strstr(line, "/cxlraid-preload-test/file") != NULL;
    CHECK(found && fclose(maps) == 0);
    int appending = open_file(O_WRONLY | O_APPEND);
    CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, appending, 0) == MAP_FAILED && errno == EACCES);
    CHECK(mmap(NULL, PAGE, PROT_WRITE, MAP_SHARED, appending, 0) == MAP_FAILED && errno == EACCES);
    appending = open_file(O_RDWR | O_APPEND);
    char *more = map(appending, PAGE, PAGE);
    more[0] = 6;
    CHECK(start[PAGE] == 6);
    CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 1L << 62) != MAP_FAILED);
    CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, -PAGE) == MAP_FAILED && (errno == EINVAL || errno == EOVERFLOW));
    CHECK(mmap(NULL, (size_t)1 << 48, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED && errno == ENOMEM);
}

/* A program's locks on a file outlive whatever is mapped of it. */
static void locks(void) {
    int fd = open_file(O_RDWR), reader = open_file(O_RDONLY), status;
    CHECK(ftruncate(fd, 1 << 20) == 0);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 5, .l_len = 10};
    CHECK(fcntl(fd, F_SETLK, &lock) == 0);
    for (int round = 0; round < 4; round++) {
        int kind = round % 2 ? MAP_PRIVATE : MAP_SHARED;
        char *start = mmap(NULL, 1 << 20, PROT_READ, kind, round < 2 ? reader : fd, 0);
        CHECK(start != MAP_FAILED);
        (void)*(volatile char *)start;
        char *stored = map(fd, 1 << 20, 0);
        stored[1 << 19] = 1;
        CHECK(munmap(start, 1 << 20) == 0 && munmap(stored, 1 << 20) == 0);
        pid_t child = fork();
        if (child == 0) _exit(fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type == F_WRLCK ? 0 : 1);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    char *start = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, reader, 0);
    CHECK(syscall(SYS_pkey_mprotect, start, PAGE, PROT_READ | PROT_WRITE, -1) == -1 && errno == EACCES);
}

/* The kernel stores into pages of a mapping on behalf of calls that have nothing to do with the array. */
static void calls(void) {
    int fd = open_file(O_RDWR), ends[2], pair[2];
    CHECK(ftruncate(fd, 400 * PAGE) == 0 && pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    char *start = map(fd, 400 * PAGE, 0), buffer[PAGE], *volatile bad = (char *)8;
    memset(buffer, 3, sizeof buffer);
    CHECK(write(ends[1], buffer, PAGE) == PAGE && read(ends[0], start + 20 * PAGE, PAGE) == PAGE);
    CHECK(write(ends[1], buffer, PAGE) == PAGE);
    struct iovec parts[2] = {{start + 40 * PAGE, 1000}, {start + 60 * PAGE, 3096}};
    CHECK(readv(ends[0], parts, 2) == PAGE);
    CHECK(send(pair[0], buffer, PAGE, 0) == PAGE && recv(pair[1], start + 80 * PAGE, PAGE, 0) == PAGE);
    CHECK(send(pair[0], buffer, PAGE, 0) == PAGE);
    parts[0].iov_base = start + 100 * PAGE, parts[1].iov_base = start + 120 * PAGE;
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    CHECK(recvmsg(pair[1], &message, 0) == PAGE);
    int host = open("/proc/self/exe", O_RDONLY);
    CHECK(pread(host, start + 140 * PAGE, PAGE, 0) == PAGE && !memcmp(start + 140 * PAGE, "\177ELF", 4));
    CHECK(fstat(host, (struct stat *)(start + 160 * PAGE)) == 0 && ((struct stat *)(start + 160 * PAGE))->st_size > 0);
    CHECK(syscall(318 /* getrandom */, start + 180 * PAGE, 16, 0) == 16);
    CHECK(clock_gettime(CLOCK_REALTIME, (struct timespec *)(start + 200 * PAGE)) == 0);
    CHECK(syscall(79 /* getcwd */, start + 220 * PAGE, PAGE) > 0 && start[220 * PAGE] == '/');
    CHECK(readlink("/proc/self/exe", start + 240 * PAGE, PAGE) > 0 && start[240 * PAGE] == '/');
    for (int page = 20; page <= 120; page += 20) CHECK(start[page * PAGE] == 3 && start[page * PAGE + 999] == 3);
    CHECK(write(ends[1], buffer, 1) == 1 && read(ends[0], bad, 1) == -1 && errno == EFAULT);
    CHECK(mprotect(start, 400 * PAGE, PROT_READ) == 0);
    CHECK(read(ends[0], start + 300 * PAGE, 1) == -1 && errno == EFAULT);
    CHECK(read(ends[0], buffer, 1) == 1 && msync(start, 400 * PAGE, MS_SYNC) == 0);
}

/* A call that fails to put something over a mapping, or to unmap it, leaves it as it was. */
static void refused(void) {
    int fd = open_file(O_RDWR), full = PROT_READ | PROT_WRITE;
    size_t bytes = 60 * PAGE;
    char *start = map(fd, bytes, 0), *elsewhere = mmap(NULL, PAGE, full, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(elsewhere != MAP_FAILED && munmap(elsewhere, PAGE) == 0);
    for (int round = 0; round < 6; round++) {
        int shared = MAP_SHARED | MAP_FIXED, private = MAP_PRIVATE | MAP_FIXED;
        void *made = MAP_FAILED;
        if (round == 0) made = mmap(start, bytes, full, private, 4000, 0);
        if (round == 1) made = mmap(start, (size_t)1 << 47, full, private | MAP_ANONYMOUS, -1, 0);
        if (round == 2) made = mmap(start, (size_t)1 << 47, full, private, fd, 0);
        if (round == 3) made = mmap(start, (size_t)1 << 47, full, shared, fd, 0);
        if (round == 4) made = mmap(start + 1, PAGE, full, shared, fd, 0);
        if (round == 5) made = mremap(elsewhere, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, start);
        CHECK(made == MAP_FAILED);
        CHECK(munmap(start, (size_t)1 << 63) == -1);
        for (int page = 0; page < 60; page++) CHECK(touch(start + page * PAGE + round, 1) == 0);
        scatter(start, bytes, 100);
        CHECK(msync(start, bytes, MS_SYNC) == 0);
    }
    scatter(start, bytes, 100);
    CHECK(msync(start, bytes, MS_SYNC) == 0);
    raise(SIGKILL);
}

/* Where the pages of an address come from. */
static void source(const void *at, char *name, size_t bytes) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[600];
    CHECK(maps);
    *name = 0;
    while (fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        int place = 0;
        CHECK(sscanf(line, "%lx-%lx %*s %*s %*s %*s %n", &start, &end, &place) == 2);
        if ((unsigned long)at >= start && (unsigned long)at < end && place) snprintf(name, bytes, "%.*s", (int)strcspn(line + place, "\n"), line + place);
    }
    fclose(maps);
}

/* Who may not open the file may not open its shared copy. */
static void guarded(void) {
    int fd = open_file(O_RDWR), status;
    char copy[600];
    struct stat of_copy;
    CHECK(fchmod(fd, 0640) == 0 && fchown(fd, 1234, 2345) == 0);
    char *start = map(fd, 60 * PAGE, 0);
    source(start, copy, sizeof copy);
    if (!strstr(copy, "-map-")) return;
    CHECK(stat(copy, &of_copy) == 0 && (of_copy.st_mode & 07777) == 0640 && of_copy.st_uid == 1234 && of_copy.st_gid == 2345);
    CHECK(fchmod(fd, 0600) == 0 && stat(copy, &of_copy) == 0 && (of_copy.st_mode & 07777) == 0600);
    CHECK(chmod(path, 0644) == 0 && stat(copy, &of_copy) == 0 && (of_copy.st_mode & 07777) == 0644);
    CHECK(chown(path, 4321, -1) == 0 && stat(copy, &of_copy) == 0 && of_copy.st_uid == 4321);
    /* user::rw-, user:777:r--, group::---, mask::r--, other::--- */
    static const unsigned char list[] = {2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 9, 3, 0, 0, 4, 0, 0, 0, 255, 255, 255, 255,
                                         16, 0, 4, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255};
    int listed = setxattr(path, "system.posix_acl_access", list, sizeof list, 0) == 0;
    CHECK(listed || errno == EOPNOTSUPP || errno == EINVAL);
    if (!listed) CHECK(chmod(path, 0600) == 0);
    const int users[] = {777, 778, 4321};
    for (int index = 0; index < 3; index++) {
        pid_t child = fork();
        if (child == 0) {
            CHECK(setgroups(0, NULL) == 0 && setgid(2345) == 0 && setuid(users[index]) == 0);
            int opened = open(copy, O_RDONLY), may = index == 2 || (index == 0 && listed);
            CHECK(may ? opened >= 0 : opened == -1 && errno == EACCES);
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    start[PAGE] = 5;
}

/* A shared copy outlives its last mapping for a second, in case there is another soon, but neither the last descriptor nor the process. */
static void copy_kept(void) {
    int fd = open_file(O_RDWR), status;
    char copy[600], again[600];
    struct stat first, second;
    char *start = map(fd, 60 * PAGE, 0);
    source(start, copy, sizeof copy);
    if (!strstr(copy, "-map-")) return;
    start[PAGE] = 5;
    CHECK(stat(copy, &first) == 0 && munmap(start, 60 * PAGE) == 0 && pwrite(fd, "x", 1, 2 * PAGE) == 1);
    start = map(fd, 60 * PAGE, 0);
    source(start, again, sizeof again);
    CHECK(stat(again, &second) == 0 && first.st_ino == second.st_ino && start[PAGE] == 5 && start[2 * PAGE] == 'x');
    double begun = seconds();
    CHECK(munmap(start, 60 * PAGE) == 0);
    while (stat(again, &second) == 0) {
        CHECK(seconds() - begun < 10);
        usleep(10000);
    }
    CHECK(errno == ENOENT && seconds() - begun > 0.9);
    for (int ends = 0; ends < 2; ends++) {
        pid_t child = fork();
        if (child == 0) {
            start = map(fd, 60 * PAGE, 0);
            start[3 * PAGE] = 7;
            source(start, again, sizeof again);
            CHECK(strstr(again, "-map-") && munmap(start, 60 * PAGE) == 0 && stat(again, &second) == 0);
            if (ends) exit(0);
            CHECK(close(fd) == 0 && stat(again, &second) == -1 && errno == ENOENT);
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        start = map(fd, 60 * PAGE, 0);
        source(start, again, sizeof again);
        CHECK(start[3 * PAGE] == 7 && munmap(start, 60 * PAGE) == 0 && close(fd) == 0 && stat(again, &second) == -1);
        fd = open_file(O_RDWR);
    }
}

/* Kilobytes of a range that the page tables show as huge pages. */
static long huge_kilobytes(const char *start, size_t bytes) {
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[600];
    unsigned long from = 0, to = 0;
    long sum = 0, part;
    CHECK(maps);
    while (fgets(line, sizeof line, maps)) {
        unsigned long low, high;
        if (sscanf(line, "%lx-%lx ", &low, &high) == 2) from = low, to = high;
        else if (from >= (unsigned long)start && to <= (unsigned long)start + bytes && sscanf(line, "ShmemPmdMapped: %ld", &part) == 1) sum += part;
    }
    fclose(maps);
    return sum;
}

/* Huge pages are kept where the program wants them; whatever the unit, what is stored is followed. */
/* Says that there is something to look at, and waits until it was looked at. */
static void shown(void) {
    CHECK(write(1, ".", 1) == 1 && getchar() == '\n');
}

/* Is looked at from outside. */
static void units(void) {
    int fd = open_file(O_RDWR);
    const size_t bytes = 8 << 20;
    char *block = calloc(1, bytes);
    CHECK(block && pwrite(fd, block, bytes, 0) == (ssize_t)bytes);
    char *start = map(fd, bytes, 0);
    start[0] = 1;
    shown();
    CHECK(madvise(start + bytes / 2, bytes / 2, MADV_HUGEPAGE) == 0);
    shown();
    CHECK(munmap(start + bytes / 2, bytes / 2) == 0);
    shown();
}

static void huge(void) {
    int fd = open_file(O_RDWR), have = getenv("HAVE_HUGE_PAGES") != NULL, advised = getenv("CXLRAID_MAP_UNIT") == NULL;
    const size_t bytes = 8 << 20, unit = 2 << 20;
    char *block = malloc(bytes);
    for (size_t at = 0; at < bytes; at++) block[at] = (char)next();
    /* What the file had was cut to its length, which splits huge pages. */
    CHECK(ftruncate(fd, 0) == 0 && pwrite(fd, block, bytes, 0) == (ssize_t)bytes);
    char *start = map(fd, bytes, 0);
    CHECK(huge_kilobytes(start, bytes) == (advised || !have ? 0 : 8192));
    start[1] = 1;
    if (advised) {
        CHECK(madvise(start, bytes, MADV_HUGEPAGE) == 0);
        start[unit + 5] = 9;
    }
    for (int round = 0; round < 5; round++) {
        scatter(start, bytes, 3);
        CHECK(msync(start, bytes, MS_SYNC) == 0);
        CHECK(huge_kilobytes(start, bytes) == (have ? 8192 : 0));
    }
    scatter(start, bytes, 3);
    CHECK(start[1] == 1);
    CHECK(madvise(start + unit, unit, MADV_NOHUGEPAGE) == 0);
    start[unit + 77] = 78;
    CHECK(huge_kilobytes(start + unit, unit) == 0 && huge_kilobytes(start, bytes) == (have ? 6144 : 0));
    CHECK(mprotect(start, bytes, PROT_READ) == 0 && mprotect(start, bytes, PROT_READ | PROT_WRITE) == 0);
    scatter(start, bytes, 30);
    pid_t child = fork();
    int status;
    if (child == 0) {
        scatter(start, bytes, 3);
        CHECK(msync(start, bytes, MS_SYNC) == 0);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    /* A hole is not loaded for the sake of huge pages. */
    CHECK(ftruncate(fd, bytes - unit) == 0 && touch(start + bytes - PAGE, 1) == SIGBUS * 100 + BUS_ADRERR);
    CHECK(ftruncate(fd, bytes) == 0 && pwrite(fd, block, bytes, 0) == (ssize_t)bytes);
    scatter(start, bytes, 30);
    CHECK(msync(start, bytes, MS_SYNC) == 0);
    raise(SIGKILL);
}

/* msync of what nothing was stored to costs next to nothing while the process has no page faults; and whoever stores, it is followed. */
static void quiet(void) {
    int fd = open_file(O_RDWR);
    const size_t bytes = 32 << 20;
    CHECK(ftruncate(fd, bytes) == 0);
    char *start = map(fd, bytes, 0);
    for (size_t at = 0; at < bytes; at += PAGE) start[at] = 1;
    char *fresh = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(fresh != MAP_FAILED && madvise(fresh, 64 * PAGE, MADV_NOHUGEPAGE) == 0);
    double least[2] = {1, 1};
    for (int round = 0; round < 128; round++) {
        int faults = round % 2;
        if (faults) fresh[round / 2 * PAGE] = 1;
        double begun = seconds();
        CHECK(msync(start, bytes, MS_SYNC) == 0);
        double spent = seconds() - begun;
        if (round > 1 && spent < least[faults]) least[faults] = spent;
    }
    /* A round with a fault leaves a mapping that is quiet for the next. Without userfaultfd nothing is scanned. */
    CHECK(least[1] < 1e-5 || least[0] * 3 < least[1]);
    CHECK(ftruncate(fd, 2 << 20) == 0);
}

/* A store by another process is that one's fault: it is found by the period. */
static void outsider(void) {
    int fd = open_file(O_RDWR), status, pipes[2];
    const size_t bytes = 2 << 20;
    CHECK(ftruncate(fd, bytes) == 0 && pipe(pipes) == 0);
    char *start = map(fd, bytes, 0);
    pid_t child = fork();
    if (child == 0) {
        char text[] = "from outside";
        struct iovec from = {text, sizeof text}, to = {start + 5 * PAGE, sizeof text};
        /* Its parent's own faults, from the fork, are over by then. */
        CHECK(read(pipes[0], text, 1) == 1 && usleep(700000) == 0);
        CHECK(syscall(SYS_process_vm_writev, getppid(), &from, 1, &to, 1, 0) == sizeof text || errno == EPERM);
        _exit(0);
    }
    CHECK(msync(start, bytes, MS_SYNC) == 0 && msync(start, bytes, MS_SYNC) == 0 && write(pipes[1], "f", 1) == 1);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    sleep(4);
    raise(SIGKILL);
}

/* So is a store by a child that shares the memory; its parent's msync follows it. */
static void sharer(void) {
    int fd = open_file(O_RDWR);
    const size_t bytes = 2 << 20;
    CHECK(ftruncate(fd, bytes) == 0);
    char *start = map(fd, bytes, 0);
    for (int round = 0; round < 100; round++) {
        CHECK(msync(start, bytes, MS_SYNC) == 0);
        if (vfork() == 0) {
            start[(round % 50 + 3) * PAGE] = (char)(round + 1);
            _exit(0);
        }
    }
    CHECK(msync(start, bytes, MS_SYNC) == 0);
    raise(SIGKILL);
}

/* Mappings that are replaced while other threads use them: by a longer one over the beginning, as programs do that have reserved
   the addresses for it, and by other memory. No thread meets a fault, and no store to the file is lost. */
static volatile char *place;
static atomic_int place_is_left;
static int place_fd;

static void *load_at_place(void *unused) {
    (void)unused;
    while (!place_is_left) (void)place[100], (void)place[PAGE + 900];
    return NULL;
}

static void *count_at_place(void *counted) {
    while (!place_is_left) {
        ++*(volatile int *)(place + 256);
        ++*(int *)counted;
    }
    return NULL;
}

static void *read_to_place(void *unused) {
    (void)unused;
    while (!place_is_left) CHECK(pread(place_fd, (char *)place + 2 * PAGE, 100, 0) == 100);
    return NULL;
}

/* With `calls` all threads use it by calls, and it is replaced as often as that goes. */
static void in_place(int calls) {
    enum { STEP = 16 * PAGE, ROUNDS_MAX = 400 };
    const int rounds = calls ? ROUNDS_MAX : 100;
    static char text[STEP];
    void *(*const mixed[])(void *) = {load_at_place, count_at_place, read_to_place};
    void *(*const served[])(void *) = {read_to_place, read_to_place, read_to_place};
    void *(*const *uses)(void *) = calls ? served : mixed;
    place_fd = open_file(O_RDWR | O_APPEND);
    /* 'l': longer; 'r': longer, and only read; 'o': other memory. */
    for (const char *kind = calls ? "lo" : "lro"; *kind; kind++) {
        pthread_t threads[3];
        const int count = *kind == 'r' ? 1 : 3, rights = *kind == 'r' ? PROT_READ : PROT_READ | PROT_WRITE;
        int counted = 0;
        CHECK(ftruncate(place_fd, 0) == 0 && write(place_fd, text, STEP) == STEP);
        place = mmap(NULL, (size_t)STEP * (ROUNDS_MAX + 2), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        CHECK(place != MAP_FAILED);
        CHECK(mmap((void *)place, STEP, rights, MAP_SHARED | MAP_FIXED, place_fd, 0) == place);
        place_is_left = 0;
        for (int index = 0; index < count; index++) CHECK(pthread_create(&threads[index], NULL, uses[index], &counted) == 0);
        for (int round = 1; round <= rounds; round++) {
            size_t bytes = STEP;
            if (*kind == 'o') {
                const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
                CHECK(mmap((void *)place, STEP, PROT_READ | PROT_WRITE, flags, -1, 0) == place);
                if (!calls) usleep(100);
            } else {
                CHECK(write(place_fd, text, STEP) == STEP);
                bytes = (size_t)STEP * (round + 1);
            }
            CHECK(mmap((void *)place, bytes, rights, MAP_SHARED | MAP_FIXED, place_fd, 0) == place);
            if (!calls) usleep(200);
        }
        place_is_left = 1;
        for (int index = 0; index < count; index++) CHECK(pthread_join(threads[index], NULL) == 0);
        if (*kind == 'l' && !calls) CHECK(counted > 0 && *(volatile int *)(place + 256) == counted);
        CHECK(munmap((void *)place, (size_t)STEP * (ROUNDS_MAX + 2)) == 0);
        /* What is not there any more is a fault as ever. */
        CHECK(touch(place + 100, 0) / 100 == SIGSEGV && touch(place + 100, 1) / 100 == SIGSEGV);
        char *closed = mmap((void *)place, STEP, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        CHECK(closed == place && touch(closed, 1) / 100 == SIGSEGV && touch(closed, 0) == 0 && munmap(closed, STEP) == 0);
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
    }
}

/* A private mapping over one, and over other memory that holds the same, shows other threads what the file has all the time. */
static void *look_at_place(void *unused) {
    (void)unused;
    while (!place_is_left)
        for (int page = 0; page < 16; page++) CHECK(place[page * PAGE + 5] == 0x11);
    return NULL;
}

static void private_in_place(void) {
    enum { BYTES = 16 * PAGE };
    static char text[BYTES];
    place_fd = open_file(O_RDWR);
    memset(text, 0x11, sizeof text);
    CHECK(ftruncate(place_fd, BYTES) == 0 && pwrite(place_fd, text, BYTES, 0) == BYTES);
    for (const char *before = "psa"; *before; before++) {
        pthread_t threads[2];
        place = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, place_fd, 0);
        CHECK(place != MAP_FAILED);
        place_is_left = 0;
        for (int index = 0; index < 2; index++) CHECK(pthread_create(&threads[index], NULL, look_at_place, NULL) == 0);
        for (double end = seconds() + 0.7; seconds() < end;) {
            const int rights = PROT_READ | PROT_WRITE;
            if (*before == 's') CHECK(mmap((void *)place, BYTES, rights, MAP_SHARED | MAP_FIXED, place_fd, 0) == place);
            if (*before == 'a') {
                char *other = mmap(NULL, BYTES, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                CHECK(other != MAP_FAILED);
                memset(other, 0x11, BYTES);
                CHECK(mremap(other, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
            }
            CHECK(mmap((void *)place, BYTES, rights, MAP_PRIVATE | MAP_FIXED, place_fd, 0) == place);
            usleep(100);
        }
        place_is_left = 1;
        for (int index = 0; index < 2; index++) CHECK(pthread_join(threads[index], NULL) == 0);
        CHECK(munmap((void *)place, BYTES) == 0);
    }
}

/* Shared memory takes the place of a part of a mapping, and stays what it is. */
static void attached(void) {
    int fd = open_file(O_RDWR), segment = shmget(IPC_PRIVATE, 2 * PAGE, IPC_CREAT | 0600);
    CHECK(segment >= 0);
    char *start = map(fd, 10 * PAGE, 0), byte;
    CHECK(shmat(segment, start + 2 * PAGE, 0) == (void *)-1 && errno == EINVAL);
    start[2 * PAGE] = 77;
    CHECK(shmat(segment, start + 2 * PAGE + 1, SHM_REMAP | SHM_RND) == start + 2 * PAGE);
    CHECK(shmctl(segment, IPC_RMID, NULL) == 0);
    CHECK(start[2 * PAGE] == 0);
    start[2 * PAGE] = 5;
    start[4 * PAGE] = 6;
    CHECK(pread(fd, &byte, 1, 2 * PAGE) == 1 && byte == 77);
    CHECK(ftruncate(fd, PAGE) == 0 && ftruncate(fd, 10 * PAGE) == 0);
    CHECK(pwrite(fd, "z", 1, 2 * PAGE) == 1 && msync(start, 10 * PAGE, MS_SYNC) == 0);
    CHECK(start[2 * PAGE] == 5 && start[4 * PAGE] == 0);
    CHECK(shmdt(start + 2 * PAGE) == 0);
    CHECK(msync(start, 10 * PAGE, MS_SYNC) == -1 && errno == ENOMEM);
    CHECK(munmap(start, 10 * PAGE) == 0);
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    path = arguments[1];
    const char *what = arguments[2];
    if (!strcmp(what, "agreement")) agreement();
    else if (!strcmp(what, "ends")) ends();
    else if (!strcmp(what, "attached")) attached();
    else if (!strcmp(what, "in-place")) in_place(0);
    else if (!strcmp(what, "in-place-calls")) in_place(1);
    else if (!strcmp(what, "private-in-place")) private_in_place();
    else if (!strcmp(what, "changes")) changes();
    else if (!strcmp(what, "crowd")) crowd();
    else if (!strcmp(what, "together")) together(0);
    else if (!strcmp(what, "together-reads")) together(1);
    else if (!strcmp(what, "at-length")) at_length();
    else if (!strcmp(what, "direct")) direct();
    else if (!strcmp(what, "held")) held();
    else if (!strcmp(what, "lent")) lent();
    else if (!strcmp(what, "writable-later")) writable_later();
    else if (!strcmp(what, "holes")) holes();
    else if (!strcmp(what, "untouched")) untouched();
    else if (!strcmp(what, "sparse")) sparse(0);
    else if (!strcmp(what, "sparse-killed")) sparse('k');
    else if (!strcmp(what, "sparse-failure")) sparse('m');
    else if (!strcmp(what, "areas")) areas();
    else if (!strcmp(what, "crowded-areas")) crowded_areas();
    else if (!strcmp(what, "full")) full();
    else if (!strcmp(what, "owed")) owed('r');
    else if (!strcmp(what, "owed-end")) owed('e');
    else if (!strcmp(what, "owed-nameless")) owed('n');
    else if (!strcmp(what, "owed-period")) owed('p');
    else if (!strcmp(what, "error")) error();
    else if (!strcmp(what, "synced")) synced();
    else if (!strcmp(what, "failure")) failure();
    else if (!strcmp(what, "executed")) executed();
    else if (!strcmp(what, "survivor")) survivor();
    else if (!strcmp(what, "cut")) cut();
    else if (!strcmp(what, "wide")) wide();
    else if (!strcmp(what, "reader-cut")) reader_cut();
    else if (!strcmp(what, "reader-copy")) reader_copy();
    else if (!strcmp(what, "reader-failure")) reader_failure();
    else if (!strcmp(what, "reader-gone")) reader_gone();
    else if (!strcmp(what, "private-failure")) private_failure();
    else if (!strcmp(what, "private-growth")) private_growth();
    else if (!strcmp(what, "private-closed")) private_closed();
    else if (!strcmp(what, "children")) children();
    else if (!strcmp(what, "pages")) pages();
    else if (!strcmp(what, "calls")) calls();
    else if (!strcmp(what, "locks")) locks();
    else if (!strcmp(what, "quiet")) quiet();
    else if (!strcmp(what, "refused")) refused();
    else if (!strcmp(what, "huge")) huge();
    else if (!strcmp(what, "units")) units();
    else if (!strcmp(what, "guarded")) guarded();
    else if (!strcmp(what, "outsider")) outsider();
    else if (!strcmp(what, "sharer")) sharer();
    else if (!strcmp(what, "copy-kept")) copy_kept();
    else stores(what);
    return 0;
}
