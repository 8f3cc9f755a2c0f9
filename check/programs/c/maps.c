/* Mappings: private ones and shared ones to read work; a shared one to write is refused with ENODEV on an array. */
#include "check.h"
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static unsigned char pattern[300000];
static long page;

static void whole_file(const char *path, int flags, const char *what)
{
    int fd = open(path, O_RDONLY);
    unsigned char *map = mmap(NULL, sizeof pattern, PROT_READ, flags, fd, 0);
    if (map == MAP_FAILED) {
        printf("%s: %s\n", what, strerrorname_np(errno));
        close(fd);
        return;
    }
    close(fd);
    int tail = 1;
    for (size_t at = sizeof pattern; at % page; at++)
        tail &= map[at] == 0;
    printf("%s: %s, zeros behind the end: %d\n", what, memcmp(map, pattern, sizeof pattern) ? "different" : "the same", tail);
    MUST(munmap(map, sizeof pattern) == 0);
}

static void part(const char *path)
{
    int fd = open(path, O_RDONLY);
    unsigned char *map = mmap(NULL, 3 * page + 5, PROT_READ, MAP_PRIVATE, fd, 16 * page);
    MUST(map != MAP_FAILED);
    printf("a part: %s\n", memcmp(map, pattern + 16 * page, 3 * page) ? "different" : "the same");
    MUST(munmap(map + page, page) == 0);
    printf("after unmapping its middle: %d\n", map[0] == pattern[16 * page] && map[2 * page] == pattern[18 * page]);
    MUST(munmap(map, 4 * page) == 0);
    unsigned char *room = mmap(NULL, 8 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    map = mmap(room + page, 2 * page, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, page);
    printf("at a fixed place: %d, %s\n", map == room + page, memcmp(map, pattern + page, 2 * page) ? "different" : "the same");
    MUST(munmap(room, 8 * page) == 0);
    SHOW((long)mmap(NULL, page, PROT_READ, MAP_PRIVATE, fd, 100));
    SHOW((long)mmap(NULL, 0, PROT_READ, MAP_PRIVATE, fd, 0));
    close(fd);
    fd = open(path, O_WRONLY);
    SHOW((long)mmap(NULL, page, PROT_READ, MAP_PRIVATE, fd, 0));
    close(fd);
}

static void private_writes(const char *path)
{
    int fd = open(path, O_RDONLY);
    unsigned char *map = mmap(NULL, sizeof pattern, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    MUST(map != MAP_FAILED);
    memset(map + 5000, 'p', 100000);
    close(fd);
    printf("written privately: %c, kept around it: %d\n", map[60000], map[4999] == pattern[4999] && map[105000] == pattern[105000]);
    /* The kernel refuses to grow what is made of several pieces; programs map anew. */
    unsigned char *moved = mremap(map, 301056, 600000, MREMAP_MAYMOVE);
    int refused = moved == MAP_FAILED && errno == EFAULT && on_array();
    printf("moved: %d\n", refused || (moved != MAP_FAILED && moved[60000] == 'p' && moved[299999] == pattern[299999]));
    MUST(munmap(refused ? map : moved, refused ? 301056 : 600000) == 0);
    show_content(path);
}

/* msync of what can only be read, and locking it in memory. */
static void advice(const char *path)
{
    int fd = open(path, O_RDWR);
    unsigned char *map = mmap(NULL, sizeof pattern, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        printf("to read, shared: %s\n", strerrorname_np(errno));
        return;
    }
    SHOW(msync(map, sizeof pattern, MS_SYNC));
    SHOW(madvise(map, sizeof pattern, MADV_WILLNEED));
    SHOW(madvise(map, sizeof pattern, MADV_COLLAPSE));
    SHOW(mprotect(map, page, PROT_NONE));
    SHOW(mprotect(map, page, PROT_READ));
    printf("still the same: %d\n", memcmp(map, pattern, sizeof pattern) == 0);
    SHOW(munmap(map, sizeof pattern));
    close(fd);
}

static void shared_writes(const char *path)
{
    int fd = open(path, O_RDWR);
    unsigned char *map = mmap(NULL, sizeof pattern, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), byte = 0;
    MUST(map != MAP_FAILED);
    for (size_t at = 0; at < sizeof pattern; at += 4099)
        map[at] ^= 0x5a;
    MUST(pread(fd, &byte, 1, 4099) == 1);
    printf("stored: %d %d\n", byte, byte == map[4099]);
    MUST(msync(map, sizeof pattern, MS_SYNC) == 0 && munmap(map, sizeof pattern) == 0);
    close(fd);
}

/* A mapping that is given back, or moved away, together with what lies before it, keeps what was stored to it. */
/* The files stay as long as they are, so that their redundancy is looked at. */
static void given_back(const char *directory)
{
    size_t bytes = 4 << 20;
    for (int moves = 0; moves < 2; moves++) {
        int fd = open(in(directory, moves ? "moved" : "cut"), O_RDWR | O_CREAT, 0600);
        MUST(ftruncate(fd, bytes) == 0);
        unsigned char *room = mmap(NULL, 2 * (bytes + page), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *to = room + bytes + page, byte;
        MUST(mprotect(room, page, PROT_READ | PROT_WRITE) == 0);
        unsigned char *map = mmap(room + page, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
        MUST(map == room + page);
        memset(map, 0x70 + moves, bytes);
        if (moves)
            printf("moved: %d\n", mremap(room, page + bytes, page, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
        else
            printf("cut: %d\n", mremap(room, page + bytes, page, 0) == room);
        MUST(pread(fd, &byte, 1, bytes - 3) == 1);
        printf("stored: %x\n", byte);
        /* What lies there from now on is not the array's, whatever becomes of the file. */
        MUST(mmap(map, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == map);
        memset(map, 1, bytes);
        MUST(ftruncate(fd, bytes + page) == 0);
        printf("untouched: %d\n", map[0] == 1 && map[bytes - 1] == 1);
        MUST(munmap(room, 2 * (bytes + page)) == 0);
        close(fd);
    }
}

/* Of the number of ranges the kernel looks at 32 bits. */
static void advice_to_oneself(const char *directory)
{
    int fd = open(in(directory, "advised"), O_RDWR | O_CREAT, 0600);
    MUST(ftruncate(fd, 4 << 20) == 0);
    unsigned char *map = mmap(NULL, 4 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    memset(map, 7, 4 << 20);
    struct iovec range = { map + (1 << 20), 1 << 20 };
    SHOW(syscall(SYS_process_madvise, -10000, &range, 1ul << 32 | 1, MADV_REMOVE, 0));
    printf("removed: %d %d %d\n", map[0], map[1 << 20], map[2 << 20]);
    SHOW(syscall(SYS_process_madvise, -10000, &range, 1, MADV_DONTNEED, 0));
    SHOW(syscall(SYS_process_madvise, -10000, NULL, 1, MADV_REMOVE, 0));
    MUST(munmap(map, 4 << 20) == 0);
    close(fd);
}

/* A mapping that is refused over one of a file whose holes get space as they are stored to: stores go on as before. */
static void refused_over(const char *directory)
{
    int fd = make_in(directory, "wide", "", 0), none = open("/", O_RDONLY | O_DIRECTORY);
    MUST(ftruncate(fd, 128 << 20) == 0);
    volatile unsigned char *map = mmap(NULL, 128 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(map != MAP_FAILED);
    map[0] = map[5 << 20] = 1;
    printf("over it: %d", mmap((void *)map, page, PROT_READ, MAP_SHARED | MAP_FIXED, -1, 0) == MAP_FAILED);
    printf(" %d\n", mmap((void *)map, page, PROT_READ, MAP_SHARED | MAP_FIXED, none, 0) == MAP_FAILED);
    if (!on_array())
        /* A kernel may have unmapped what it then did not map. */
        MUST(mmap((void *)map, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == map);
    map[0] = map[5 << 20] = map[page] = 2;
    printf("stored: %d %d %d\n", map[0], map[page], map[5 << 20]);
    MUST(munmap((void *)map, 128 << 20) == 0 && ftruncate(fd, 0) == 0 && close(fd) == 0 && close(none) == 0);
}

int main(int argc, char **argv)
{
    (void)argc;
    const char *path = strdup(in(argv[1], "mapped"));
    page = sysconf(_SC_PAGESIZE);
    fill(pattern, sizeof pattern, 9);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    MUST(write(fd, pattern, sizeof pattern) == sizeof pattern);
    close(fd);
    whole_file(path, MAP_PRIVATE, "private");
    whole_file(path, MAP_SHARED, "shared");
    whole_file(path, MAP_PRIVATE | MAP_POPULATE, "populated");
    part(path);
    private_writes(path);
    advice(path);
    shared_writes(path);
    given_back(argv[1]);
    advice_to_oneself(argv[1]);
    refused_over(argv[1]);
    return 0;
}
