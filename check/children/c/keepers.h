/* The threads of a crowd that keep files: each knows what its files hold, changes them in every way, and verifies what it is told at each step. */
#ifndef KEEPERS_H
#define KEEPERS_H
#include "crowd.h"
#include <dirent.h>

enum { KEPT_FILES = 6, KEPT_BYTES_MAX = 40000 };

/* A file and what is known of it. `fd` stays open over many operations; its offset is known too. */
struct kept {
    int number, name, fd, appends;
    uint64_t version;
    size_t size;
    off_t offset;
    unsigned char *bytes;
};

struct keeper {
    int number;
    struct rng rng;
    struct kept files[KEPT_FILES];
    unsigned char buffer[KEPT_BYTES_MAX + 1];
};

static struct keeper keepers[KEEPERS];

/* The file's present name; each has two. */
static const char *name_of(const struct kept *file, int other)
{
    char name[40];
    snprintf(name, sizeof name, "kept-%02d.%c", file->number, "ab"[file->name ^ other]);
    return in(d, name);
}

static __attribute__((noreturn)) void file_wrong(const struct kept *file, const char *what, long long got, long long expected)
{
    int error = errno;
    wrong("kept-%02d, version %llu: %s gave %lld (%s), must be %lld", file->number, (unsigned long long)file->version, what, got,
          got == -1 ? strerrorname_np(error) : "-", expected);
}

static void must_be(const struct kept *file, const char *what, long long got, long long expected)
{
    if (got != expected)
        file_wrong(file, what, got, expected);
}

static void must_fail(const struct kept *file, const char *what, long long got, int expected)
{
    if (got != -1 || errno != expected)
        wrong("kept-%02d: %s gave %lld (%s), must fail with %s", file->number, what, got, strerrorname_np(errno), strerrorname_np(expected));
}

static void open_kept(struct kept *file, int flags)
{
    file->appends = (flags & O_APPEND) != 0;
    file->fd = open(name_of(file, 0), O_RDWR | O_CLOEXEC | flags, 0666);
    if (file->fd < 0)
        file_wrong(file, "open", file->fd, 3);
    file->offset = 0;
    if (flags & O_TRUNC)
        file->size = 0;
}

static void close_kept(struct kept *file)
{
    must_be(file, "close", close(file->fd), 0);
}

/* New bytes in what is known; what lies between the old end and the new one becomes zero. */
static void know(struct kept *file, size_t offset, size_t count)
{
    if (offset > file->size)
        memset(file->bytes + file->size, 0, offset - file->size);
    file->version++;
    bytes_of(file->bytes + offset, count, file->number, file->version, offset);
    if (offset + count > file->size)
        file->size = offset + count;
}

static void know_size(struct kept *file, size_t size)
{
    if (size > file->size)
        memset(file->bytes + file->size, 0, size - file->size);
    file->size = size;
}

static void verify(struct keeper *me, struct kept *file, const char *how, ssize_t got, size_t offset, size_t wanted)
{
    char what[80];
    size_t there = offset >= file->size ? 0 : file->size - offset;
    must_be(file, how, got, there < wanted ? there : wanted);
    snprintf(what, sizeof what, "kept-%02d, version %llu, by %s", file->number, (unsigned long long)file->version, how);
    same_bytes(what, me->buffer, file->bytes + offset, got, offset);
}

/* Writes by the descriptor's offset, which must then stand behind what was written. */
static void write_on(struct kept *file, size_t count)
{
    size_t offset = file->appends ? file->size : (size_t)file->offset;
    if (offset + count > KEPT_BYTES_MAX) {
        must_be(file, "ftruncate", ftruncate(file->fd, 0), 0);
        must_be(file, "lseek", lseek(file->fd, 0, SEEK_SET), 0);
        know_size(file, 0);
        offset = file->offset = 0;
    }
    know(file, offset, count);
    must_be(file, "write", write(file->fd, file->bytes + offset, count), count);
    file->offset = offset + count;
    must_be(file, "the offset after write", lseek(file->fd, 0, SEEK_CUR), file->offset);
}

static void map_and_store(struct keeper *me, struct kept *file)
{
    if (file->size == 0)
        return;
    unsigned char *map = mmap(NULL, file->size, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, 0);
    if (map == MAP_FAILED)
        file_wrong(file, "mmap", -1, 0);
    same_bytes("a mapping", map, file->bytes, file->size, 0);
    size_t offset = below(&me->rng, file->size), count = 1 + below(&me->rng, file->size - offset);
    know(file, offset, count);
    memcpy(map + offset, file->bytes + offset, count);
    must_be(file, "msync", msync(map, file->size, MS_SYNC), 0);
    must_be(file, "munmap", munmap(map, file->size), 0);
    verify(me, file, "pread after msync", pread(file->fd, me->buffer, KEPT_BYTES_MAX, 0), 0, KEPT_BYTES_MAX);
}

static void begin_anew(struct keeper *me, struct kept *file)
{
    must_be(file, "unlink", unlink(name_of(file, 0)), 0);
    verify(me, file, "pread without a name", pread(file->fd, me->buffer, KEPT_BYTES_MAX, 0), 0, KEPT_BYTES_MAX);
    must_fail(file, "open of what was unlinked", open(name_of(file, 0), O_RDONLY), ENOENT);
    close_kept(file);
    know_size(file, 0);
    open_kept(file, O_CREAT | O_EXCL);
    struct stat stat;
    must_be(file, "fstat", fstat(file->fd, &stat), 0);
    must_be(file, "the mode of a new file", stat.st_mode & 07777, 0640);
}

/* Files that nobody writes, by names relative to the process' directory, and that directory's names. */
static void look_at_quiet(struct keeper *me)
{
    char name[40];
    int number = below(&me->rng, QUIET_NAMES);
    snprintf(name, sizeof name, "quiet-%02d", number);
    static __thread unsigned char expected[QUIET_BYTES];
    bytes_of(expected, QUIET_BYTES, 1000 + number, 0, 0);
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        wrong("%s, which nobody writes, by a relative name: open: %s", name, strerrorname_np(errno));
    ssize_t count = read(fd, me->buffer, KEPT_BYTES_MAX);
    if (count != QUIET_BYTES)
        wrong("%s, which nobody writes: read gave %zd (%s)", name, count, strerrorname_np(errno));
    same_bytes(name, me->buffer, expected, QUIET_BYTES, 0);
    if (close(fd) != 0)
        wrong("%s: close: %s", name, strerrorname_np(errno));
    if (below(&me->rng, 4) != 0)
        return;
    DIR *stream = opendir(".");
    if (stream == NULL)
        wrong("opendir: %s", strerrorname_np(errno));
    unsigned seen = 0;
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        if (sscanf(entry->d_name, "quiet-%d", &number) != 1)
            continue;
        if (seen & 1u << number)
            wrong("%s was listed twice", entry->d_name);
        seen |= 1u << number;
    }
    if (seen != (1u << QUIET_NAMES) - 1)
        wrong("names of quiet files listed: %x", seen);
    if (closedir(stream) != 0)
        wrong("closedir: %s", strerrorname_np(errno));
}

static void mistakes(struct kept *file)
{
    must_fail(file, "open of what is not there", open(in(d, "none"), O_RDWR), ENOENT);
    must_fail(file, "open below a file", open(in(d, "quiet/quiet-00/x"), O_RDONLY), ENOTDIR);
    must_fail(file, "open with O_EXCL", open(name_of(file, 0), O_RDWR | O_CREAT | O_EXCL, 0666), EEXIST);
    int fd = open(name_of(file, 0), O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        file_wrong(file, "open to read", fd, 3);
    must_fail(file, "write to what is open to read", write(fd, "x", 1), EBADF);
    must_be(file, "close", close(fd), 0);
    must_fail(file, "lseek before the start", lseek(file->fd, -1, SEEK_SET), EINVAL);
    must_fail(file, "mkdir of what is there", mkdir(in(d, "quiet"), 0755), EEXIST);
}

/* One operation. */
static void keep(struct keeper *me)
{
    struct kept *file = &me->files[below(&me->rng, KEPT_FILES)];
    size_t count = 1 + below(&me->rng, PIECE_BYTES_MAX), offset = below(&me->rng, file->size + 1);
    switch (below(&me->rng, 18)) {
    case 0:
    case 1:
    case 2:
        return write_on(file, count);
    case 3:
    case 4:
        verify(me, file, "read", read(file->fd, me->buffer, count), file->offset, count);
        file->offset += (size_t)file->offset >= file->size ? 0 : file->size - file->offset < count ? file->size - file->offset : count;
        return must_be(file, "the offset after read", lseek(file->fd, 0, SEEK_CUR), file->offset);
    case 5:
        file->offset = offset;
        return must_be(file, "lseek", lseek(file->fd, offset, SEEK_SET), offset);
    case 6:
        if (file->appends || offset + count > KEPT_BYTES_MAX)
            return;
        know(file, offset, count);
        return must_be(file, "pwrite", pwrite(file->fd, file->bytes + offset, count, offset), count);
    case 7:
        return verify(me, file, "pread", pread(file->fd, me->buffer, count, offset), offset, count);
    case 8:
        offset = below(&me->rng, KEPT_BYTES_MAX);
        know_size(file, offset);
        return must_be(file, "ftruncate", ftruncate(file->fd, offset), 0);
    case 9:
    case 10:
        return map_and_store(me, file);
    case 11:
    case 12: {
        static const int flags[] = { 0, O_TRUNC, O_APPEND, 0 };
        close_kept(file);
        return open_kept(file, flags[below(&me->rng, 4)]);
    }
    case 13:
        must_be(file, "rename", rename(name_of(file, 0), name_of(file, 1)), 0);
        file->name ^= 1;
        return;
    case 14:
        return begin_anew(me, file);
    case 15: {
        int fd = open(name_of(file, 0), O_RDONLY | O_CLOEXEC);
        struct stat stat;
        if (fd < 0 || fstat(fd, &stat) != 0)
            file_wrong(file, "open and fstat", -1, 0);
        must_be(file, "the size", stat.st_size, file->size);
        must_be(file, "the number of names", stat.st_nlink, 1);
        verify(me, file, "pread by another descriptor", pread(fd, me->buffer, KEPT_BYTES_MAX + 1, 0), 0, KEPT_BYTES_MAX + 1);
        return must_be(file, "close", close(fd), 0);
    }
    case 16:
        return look_at_quiet(me);
    default:
        return mistakes(file);
    }
}

static void *run_keeper(void *argument)
{
    struct keeper *me = argument;
    for (uint64_t done = 0; done < child_count * OPERATIONS_PER_CHILD; done++) {
        while (done >= (atomic_load(&board->made) + AHEAD) * OPERATIONS_PER_CHILD)
            pause_briefly();
        keep(me);
        count_operations(1);
        atomic_store_explicit(&board->kept[me->number], done + 1, memory_order_relaxed);
    }
    for (int index = 0; index < KEPT_FILES; index++) {
        struct kept *file = &me->files[index];
        verify(me, file, "pread in the end", pread(file->fd, me->buffer, KEPT_BYTES_MAX + 1, 0), 0, KEPT_BYTES_MAX + 1);
        close_kept(file);
    }
    return NULL;
}

/* Makes the files of a keeper, and the quiet ones once. */
static void begin_keepers(void)
{
    static unsigned char bytes[QUIET_BYTES];
    char name[40];
    MUST(mkdir(in(d, "quiet"), 0755) == 0);
    for (int number = 0; number < QUIET_NAMES; number++) {
        snprintf(name, sizeof name, "quiet/quiet-%02d", number);
        bytes_of(bytes, QUIET_BYTES, 1000 + number, 0, 0);
        MUST(close(make_in(d, name, bytes, QUIET_BYTES)) == 0);
    }
    for (int number = 0; number < KEEPERS; number++) {
        struct keeper *me = &keepers[number];
        me->number = number;
        me->rng.state = seed * 1000 + number;
        for (int index = 0; index < KEPT_FILES; index++) {
            me->files[index] = (struct kept){ .number = number * KEPT_FILES + index, .bytes = calloc(1, KEPT_BYTES_MAX + 1) };
            open_kept(&me->files[index], O_CREAT | O_EXCL);
        }
    }
}
#endif
