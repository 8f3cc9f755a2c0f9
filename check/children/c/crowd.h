/* What the threads of a crowd know together: seeds, counters by which they keep pace, contents, and how an end is told. */
#ifndef CROWD_H
#define CROWD_H
#include "children.h"
#include <time.h>

enum {
    KEEPERS = 3, /* threads that keep files */
    PARENTS = 2, /* threads that make children */
    QUIET_NAMES = 12,
    PIECE_BYTES_MAX = 6000,
    /* Each keeper does so many operations for each child, and nobody is ahead by more than so many children: keepers and parents are at work together from
     * the first child to the last, and what is in the files in the end depends on the seed only. */
    OPERATIONS_PER_CHILD = 4,
    AHEAD = 6,
};

/* Shared by the threads, and by children that have memory of their own. */
struct board {
    _Atomic uint64_t operations; /* calls on files that were verified */
    _Atomic uint64_t made;       /* children begun */
    _Atomic uint64_t kept[KEEPERS];
    struct {
        _Atomic int line, error; /* where a child found something wrong */
        _Atomic int victim;      /* the number of a child that waits to be killed */
    } parents[PARENTS];
};

static struct board *board;
static const char *d;
static uint64_t seed, child_count;

struct rng {
    uint64_t state;
};

static inline uint64_t draw(struct rng *rng)
{
    uint64_t x = rng->state += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static inline uint64_t below(struct rng *rng, uint64_t limit)
{
    return draw(rng) % limit;
}

/* The byte that a file has at an offset in a version: never 0, which is what lost data mostly looks like. */
static inline unsigned char byte_of(uint64_t file, uint64_t version, uint64_t offset)
{
    uint64_t x = file * 0x9e3779b97f4a7c15ull ^ version * 0xc2b2ae3d27d4eb4full ^ (offset >> 3) * 0x165667b19e3779f9ull;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9ull;
    return (x >> (offset & 7) * 8 ^ x >> 37) % 255 + 1;
}

static inline void bytes_of(unsigned char *bytes, size_t count, uint64_t file, uint64_t version, uint64_t offset)
{
    for (size_t index = 0; index < count; index++)
        bytes[index] = byte_of(file, version, offset + index);
}

static inline void count_operations(uint64_t count)
{
    atomic_fetch_add_explicit(&board->operations, count, memory_order_relaxed);
}

static inline void pause_briefly(void)
{
    struct timespec time = { 0, 20000 };
    nanosleep(&time, NULL);
}
#endif
