/* What the small programs share: errors by name, patterns, and an end at the first thing that must not fail. */
#ifndef CHECK_H
#define CHECK_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Ends the program with the place and the error's name if `condition` does not hold. */
#define MUST(condition)                                                                            \
    do {                                                                                           \
        errno = 0;                                                                                 \
        if (!(condition)) {                                                                        \
            fflush(stdout);                                                                        \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, strerrorname_np(errno)); \
            _exit(99);                                                                             \
        }                                                                                          \
    } while (0)

/* Prints a call and its result, or the name of its error. */
#define SHOW(call)                                                                                 \
    do {                                                                                           \
        errno = 0;                                                                                 \
        long long shown_result = (long long)(call);                                                \
        if (shown_result == -1)                                                                    \
            printf("%s: %s\n", #call, strerrorname_np(errno));                                     \
        else                                                                                       \
            printf("%s = %lld\n", #call, shown_result);                                            \
    } while (0)

/* FNV-1a: enough to tell contents apart. */
static inline uint64_t sum(const void *bytes, size_t count, uint64_t seed)
{
    const unsigned char *at = bytes;
    uint64_t hash = seed ? seed : 0xcbf29ce484222325ull;
    while (count--)
        hash = (hash ^ *at++) * 0x100000001b3ull;
    return hash;
}

static inline void fill(unsigned char *bytes, size_t count, uint64_t seed)
{
    uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
    for (size_t index = 0; index < count; index++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        bytes[index] = state >> 56;
    }
}

/* Whether what is documented for arrays is to be checked, where a plain directory does it differently. */
static inline int on_array(void)
{
    const char *strict = getenv("STRICT");
    return strict && strcmp(strict, "strict") == 0;
}

/* Prints the length and the sum of what `path` holds, read with pread. */
static inline void show_content(const char *path)
{
    static unsigned char buffer[65536];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        printf("%s: %s\n", strrchr(path, '/') + 1, strerrorname_np(errno));
        return;
    }
    uint64_t hash = 0;
    long long offset = 0;
    for (ssize_t count; (count = pread(fd, buffer, sizeof buffer, offset)) != 0; offset += count) {
        if (count < 0) {
            printf("%s: pread: %s\n", strrchr(path, '/') + 1, strerrorname_np(errno));
            break;
        }
        hash = sum(buffer, count, hash);
    }
    printf("%s: %lld bytes, sum %016llx\n", strrchr(path, '/') + 1, offset, (unsigned long long)hash);
    close(fd);
}

/* `directory`/`name`, in one of a few static buffers. */
static inline const char *in(const char *directory, const char *name)
{
    static __thread char buffers[8][4096];
    static __thread int next;
    char *buffer = buffers[next++ % 8];
    snprintf(buffer, sizeof buffers[0], "%s/%s", directory, name);
    return buffer;
}

/* Makes `directory`/`name` hold these bytes, open for reading and writing. */
static inline int make_in(const char *directory, const char *name, const void *bytes, size_t count)
{
    int fd = open(in(directory, name), O_RDWR | O_CREAT | O_TRUNC, 0644);
    MUST(fd >= 0 && write(fd, bytes, count) == (ssize_t)count);
    return fd;
}

/* Whether the library may park files (docs/processes.md): this process may use io_uring. */
static inline int may_park(void)
{
    char text[8192] = "";
    struct utsname kernel;
    int major = 0, minor = 0;
    MUST(uname(&kernel) == 0);
    sscanf(kernel.release, "%d.%d", &major, &minor);
    int fd = open("/proc/sys/kernel/io_uring_disabled", O_RDONLY);
    int permitted = fd < 0 || (read(fd, text, 1) == 1 && (text[0] == '0' || (text[0] == '1' && geteuid() == 0)));
    close(fd);
    MUST((fd = open("/proc/self/status", O_RDONLY)) >= 0 && read(fd, text, sizeof text - 1) > 0);
    close(fd);
    return permitted && strstr(text, "\nSeccomp:\t0\n") && (major > 6 || (major == 6 && minor >= 8));
}
#endif
