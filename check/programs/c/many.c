/* Many files open at once under a small RLIMIT_NOFILE, soft and hard: written, read, cut, locked, handed to children of fork and to
   the next program. A plain directory must answer the same. */
#include "check.h"
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

enum { LIMIT = 1024, BYTES = 6000 };

static int descriptors[LIMIT];
static unsigned char expected[LIMIT][BYTES];
static size_t lengths[LIMIT];
static uint64_t state;

static unsigned drawn(unsigned below)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (state >> 33) % below;
}

static void change(int file)
{
    static unsigned char bytes[BYTES];
    size_t start = drawn(BYTES), count = 1 + drawn(BYTES - start > 900 ? 900 : BYTES - start);
    switch (drawn(6)) {
    case 0:
        MUST(ftruncate(descriptors[file], start) == 0);
        if (start < lengths[file])
            memset(expected[file] + start, 0, lengths[file] - start);
        lengths[file] = start;
        break;
    case 1:
        MUST(fsync(descriptors[file]) == 0);
        break;
    default:
        fill(bytes, count, state);
        MUST(pwrite(descriptors[file], bytes, count, start) == (ssize_t)count);
        memcpy(expected[file] + start, bytes, count);
        if (start + count > lengths[file])
            lengths[file] = start + count;
    }
}

static void compare(int file)
{
    static unsigned char found[BYTES + 1];
    struct stat stat;
    MUST(fstat(descriptors[file], &stat) == 0 && (size_t)stat.st_size == lengths[file]);
    MUST(pread(descriptors[file], found, sizeof found, 0) == (ssize_t)lengths[file]);
    MUST(memcmp(found, expected[file], lengths[file]) == 0);
}

static int is_locked(int file)
{
    struct flock lock = { .l_type = F_WRLCK };
    MUST(fcntl(descriptors[file], F_GETLK, &lock) == 0);
    return lock.l_type != F_UNLCK;
}

/* A child looks at all files, changes some, and ends; the parent has the same afterwards. */
static void in_child(int count, uint64_t seed)
{
    pid_t child = fork();
    MUST(child >= 0);
    state = seed;
    for (int file = 0; file < count; file++) {
        if (child == 0) {
            compare(file);
            MUST(is_locked(file) == (file % 50 == 0));
        }
        if (file % 5 == 0 && child == 0)
            change(file);
    }
    if (child == 0)
        _exit(0);
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    /* What the child has stored. */
    state = seed;
    for (int file = 0; file < count; file += 5) {
        struct stat stat;
        MUST(fstat(descriptors[file], &stat) == 0);
        lengths[file] = stat.st_size;
        memset(expected[file], 0, BYTES);
        MUST(pread(descriptors[file], expected[file], BYTES, 0) == stat.st_size);
    }
}

static void next_program(char **arguments)
{
    execv("/proc/self/exe", arguments);
    MUST(0);
}

int main(int argc, char **arguments)
{
    MUST(argc >= 2 && chdir(arguments[1]) == 0);
    struct rlimit limit = { LIMIT, LIMIT };
    if (argc == 2) {
        MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        next_program((char *[]) { arguments[0], arguments[1], "limited", NULL });
    }
    if (argc == 4) {
        /* The program that was executed with the files open. */
        int count = atoi(arguments[3]);
        uint64_t seen = 0;
        for (int file = 0; file < count; file++) {
            static unsigned char found[BYTES];
            ssize_t length = pread(10 + file, found, BYTES, 0);
            MUST(length >= 0 && pwrite(10 + file, "next", 4, 100) == 4);
            seen = sum(found, length, seen);
            descriptors[file] = 10 + file;
            if (file % 50 == 0) {
                pid_t child = fork();
                MUST(child >= 0);
                if (child == 0)
                    _exit(is_locked(file) ? 0 : 1);
                int status;
                MUST(waitpid(child, &status, 0) == child && status == 0);
            }
        }
        printf("the next program finds %016llx\n", (unsigned long long)seen);
        return 0;
    }
    int count = may_park() ? 900 : 150;
    if (count != 900)
        fprintf(stderr, "NOT RUN with 900 files: io_uring is not permitted here\n");
    char name[32];
    for (int file = 0; file < count; file++) {
        snprintf(name, sizeof name, "many-%d", file);
        int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
        MUST(fd >= 0);
        descriptors[file] = fd;
        if (file < 300) {
            struct flock lock = { .l_type = F_WRLCK };
            MUST(file % 50 != 0 || fcntl(fd, F_SETLK, &lock) == 0);
        }
    }
    for (int file = 300; file < count; file += 50) {
        struct flock lock = { .l_type = F_WRLCK };
        MUST(fcntl(descriptors[file], F_SETLK, &lock) == 0);
    }
    state = 1;
    for (int round = 0; round < 6 * count; round++)
        change(drawn(count));
    for (int round = 0; round < 2; round++)
        in_child(count, round + 7);
    uint64_t seen = 0;
    for (int file = 0; file < count; file++) {
        compare(file);
        seen = sum(expected[file], lengths[file], seen);
    }
    printf("%d files hold %016llx\n", count, (unsigned long long)seen);
    /* Every second one is closed, and opened again by a name that others have now. */
    for (int file = 0; file < count; file += 2) {
        close(descriptors[file]);
        char moved[32];
        snprintf(name, sizeof name, "many-%d", file);
        snprintf(moved, sizeof moved, "moved-%d", file);
        MUST(rename(name, moved) == 0);
        MUST((descriptors[file] = open(moved, O_RDWR)) >= 0);
        struct flock lock = { .l_type = F_WRLCK };
        MUST(file % 50 != 0 || fcntl(descriptors[file], F_SETLK, &lock) == 0);
    }
    for (int file = 0; file < count; file++)
        compare(file);
    /* The numbers from 10 on, in order, for the next program. Only the odd files that are not locked lose their number. */
    int handed = count < 400 ? count : 400;
    for (int file = handed; file < count; file++)
        close(descriptors[file]);
    for (int file = 0; file < handed; file++) {
        int fd = fcntl(descriptors[file], F_DUPFD, 500);
        MUST(fd >= 0);
        if (fd != descriptors[file] && file % 50 != 0)
            close(descriptors[file]);
        descriptors[file] = fd;
    }
    for (int file = 0; file < handed; file++) {
        MUST(dup2(descriptors[file], 10 + file) == 10 + file);
        if (file % 50 != 0)
            close(descriptors[file]);
    }
    for (int file = 0; file < handed; file += 50) {
        struct flock lock = { .l_type = F_WRLCK };
        MUST(fcntl(10 + file, F_SETLK, &lock) == 0);
    }
    fflush(stdout);
    char text[16];
    snprintf(text, sizeof text, "%d", handed);
    next_program((char *[]) { arguments[0], arguments[1], "next", text, NULL });
}
