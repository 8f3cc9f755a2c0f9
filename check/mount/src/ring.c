/* Writes and reads a file by io_uring, without a library for it. Says what was wrong, or nothing. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ENTRIES 64
#define PIECE 8192
#define LONG (6 << 20)

static int ring;
static unsigned *sent, *sent_mask, *order, *taken, *done, *done_mask;
static struct io_uring_sqe *requests;
static struct io_uring_cqe *results;

static int prepare(void) {
    struct io_uring_params told = {0};
    ring = syscall(SYS_io_uring_setup, ENTRIES, &told);
    if (ring < 0) return -1;
    char *out = mmap(0, told.sq_off.array + told.sq_entries * 4, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    char *in = mmap(0, told.cq_off.cqes + told.cq_entries * sizeof *results, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_CQ_RING);
    requests = mmap(0, told.sq_entries * sizeof *requests, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    if (out == MAP_FAILED || in == MAP_FAILED || requests == MAP_FAILED) return -1;
    sent = (void *)(out + told.sq_off.tail), sent_mask = (void *)(out + told.sq_off.ring_mask), order = (void *)(out + told.sq_off.array);
    taken = (void *)(in + told.cq_off.head), done = (void *)(in + told.cq_off.tail), done_mask = (void *)(in + told.cq_off.ring_mask);
    results = (void *)(in + told.cq_off.cqes);
    return 0;
}

static void ask(int operation, int fd, void *bytes, unsigned length, long at) {
    unsigned index = *sent & *sent_mask;
    memset(&requests[index], 0, sizeof *requests);
    requests[index].opcode = operation, requests[index].fd = fd;
    requests[index].addr = (unsigned long)bytes, requests[index].len = length, requests[index].off = at;
    order[index] = index;
    __atomic_store_n(sent, *sent + 1, __ATOMIC_RELEASE);
}

/* Submits so many requests, waits for them, and returns how many of them did all that was asked for. */
static int all_done(int count, long length) {
    int right = 0;
    if (syscall(SYS_io_uring_enter, ring, count, count, IORING_ENTER_GETEVENTS, 0, 0) != count) return -1;
    for (; __atomic_load_n(done, __ATOMIC_ACQUIRE) != *taken; __atomic_store_n(taken, *taken + 1, __ATOMIC_RELEASE))
        right += results[*taken & *done_mask].res == length;
    return right;
}

static void fill(char *bytes, long length, long round) {
    for (long at = 0; at < length; at++) bytes[at] = (char)((at >> 12) * 31 + (at >> 20) * 7 + at + round);
}

static int is_read_back(int fd, const char *bytes, char *got, long length) {
    struct stat now;
    if (fstat(fd, &now) || now.st_size != length) return 0;
    for (long at = 0; at < length;) {
        long count = pread(fd, got + at, length - at, at);
        if (count <= 0) return 0;
        at += count;
    }
    return memcmp(got, bytes, length) == 0;
}

/* Appends when it is told to, and says what came of it. */
static int append_when_told(const char *path, char *bytes) {
    struct stat now;
    int fd = open(path, O_WRONLY | O_APPEND);
    if (fd < 0 || fstat(fd, &now) || puts("ready") < 0 || fflush(stdout) || getchar() == EOF) return 1;
    ask(IORING_OP_WRITE, fd, bytes, 1 << 20, 0);
    if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) != 1) return 1;
    printf("%d\n", results[*taken & *done_mask].res);
    return 0;
}

int main(int count, char **words) {
    char *bytes = aligned_alloc(4096, LONG), *got = aligned_alloc(4096, LONG);
    if (count < 3 || !bytes || !got || prepare()) return puts("NOT RUN: there is no io_uring here"), 0;
    if (strcmp(words[2], "append") == 0) return append_when_told(words[1], bytes);
    int rounds = atoi(words[2]), fd = open(words[1], O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
    int end = open(words[1], O_WRONLY | O_APPEND);
    for (int round = 0; round < rounds; round++) {
        /* One append takes several requests of the mount. */
        fill(bytes, LONG, round);
        if (ftruncate(fd, 0)) return puts("it cannot be truncated"), 1;
        ask(IORING_OP_WRITE, end, bytes, LONG, 0);
        if (all_done(1, LONG) != 1) return printf("round %d: an append is short\n", round), 1;
        if (!is_read_back(fd, bytes, got, LONG)) return printf("round %d: other bytes were appended\n", round), 1;
        /* Many at once, from the last place to the first, so that each but one lies before the end. */
        fill(bytes, ENTRIES * PIECE, round + 1);
        if (ftruncate(fd, round % 2 ? 0 : ENTRIES * PIECE)) return puts("it cannot be truncated"), 1;
        for (long index = ENTRIES; index--;) ask(IORING_OP_WRITE, fd, bytes + index * PIECE, PIECE, index * PIECE);
        if (all_done(ENTRIES, PIECE) != ENTRIES) return printf("round %d: a write is short\n", round), 1;
        if (!is_read_back(fd, bytes, got, ENTRIES * PIECE)) return printf("round %d: other bytes were written\n", round), 1;
        memset(got, 0, ENTRIES * PIECE);
        for (long index = 0; index < ENTRIES; index++) ask(IORING_OP_READ, fd, got + index * PIECE, PIECE, index * PIECE);
        if (all_done(ENTRIES, PIECE) != ENTRIES) return printf("round %d: a read is short\n", round), 1;
        if (memcmp(got, bytes, ENTRIES * PIECE)) return printf("round %d: other bytes were read\n", round), 1;
    }
    return 0;
}
