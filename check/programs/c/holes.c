/* SEEK_DATA and SEEK_HOLE on holes of whole stripes: a plain directory must answer the same. Then reading, which fills no
   holes. */
#include "check.h"
#include <sys/sendfile.h>
#include <sys/uio.h>

enum { MB = 1 << 20 };
static unsigned char block[4 * MB];

static void extents(int fd, const char *when)
{
    off_t at = 0, start, end = lseek(fd, 0, SEEK_END);
    printf("%s: ", when);
    while ((start = lseek(fd, at, SEEK_DATA)) >= 0) {
        MUST((at = lseek(fd, start, SEEK_HOLE)) > start);
        printf("%lld-%lld ", (long long)start, (long long)at);
    }
    int error = errno;
    MUST(error == ENXIO);
    printf("of %lld\n", (long long)end);
}

static long long blocks(int fd)
{
    struct stat stat;
    MUST(fsync(fd) == 0 && fstat(fd, &stat) == 0);
    return stat.st_blocks;
}

/* Reads all of a file in each way: its holes stay holes. */
static void read_beside_holes(const char *path, const char *copy)
{
    int fd = open(path, O_RDONLY), to = open(copy, O_RDWR | O_CREAT | O_TRUNC, 0644), null = open("/dev/null", O_WRONLY), ends[2];
    MUST(fd >= 0 && to >= 0 && null >= 0 && pipe(ends) == 0);
    long long before = blocks(fd);
    off_t size = lseek(fd, 0, SEEK_END), at = 0;
    for (; at < size; at += 4096)
        MUST(pread(fd, block, 4096, at) == 4096);
    SHOW(blocks(fd) == before);
    MUST(lseek(fd, 0, SEEK_SET) == 0);
    while ((at = read(fd, block, MB)) > 0)
        ;
    MUST(at == 0);
    SHOW(blocks(fd) == before);
    struct iovec parts[] = {{block, 12345}, {block + MB, MB}};
    for (at = 0; at < size; at += 12345 + MB)
        MUST(preadv(fd, parts, 2, at) > 0);
    SHOW(blocks(fd) == before);
    for (at = 0; at < size;)
        MUST(sendfile(null, fd, &at, size) > 0);
    SHOW(blocks(fd) == before);
    for (at = 0; at < size;)
        MUST(splice(fd, &at, ends[1], NULL, 4096, 0) > 0 && read(ends[0], block, sizeof block) > 0);
    SHOW(blocks(fd) == before);
    for (at = 0; at < size;)
        MUST(copy_file_range(fd, &at, to, NULL, size, 0) > 0);
    SHOW(blocks(fd) == before);
    close(fd);
    close(to);
    close(null);
    show_content(copy);
    MUST(unlink(copy) == 0);
}

int main(int argc, char **argv)
{
    (void)argc;
    fill(block, sizeof block, 5);
    const char *path = strdup(in(argv[1], "holes"));
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    MUST(fd >= 0);
    SHOW(lseek(fd, 0, SEEK_DATA));
    SHOW(lseek(fd, 0, SEEK_HOLE));
    MUST(ftruncate(fd, 20 * MB) == 0);
    extents(fd, "extended");
    MUST(pwrite(fd, block, 2 * MB, 3 * MB) == 2 * MB);
    MUST(pwrite(fd, block, MB, 8 * MB) == MB);
    extents(fd, "written");
    SHOW(lseek(fd, 4 * MB, SEEK_DATA));
    SHOW(lseek(fd, 4 * MB, SEEK_HOLE));
    SHOW(lseek(fd, 6 * MB, SEEK_DATA));
    SHOW(lseek(fd, 6 * MB, SEEK_HOLE));
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(lseek(fd, -1, SEEK_DATA));
    SHOW(lseek(fd, 20 * MB, SEEK_DATA));
    SHOW(lseek(fd, 20 * MB, SEEK_HOLE));
    MUST(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4 * MB, 4 * MB + MB / 2) == 0);
    extents(fd, "punched");
    MUST(fallocate(fd, 0, 10 * MB, 2 * MB) == 0);
    extents(fd, "allocated");
    MUST(pwrite(fd, block, 4 * MB, 16 * MB) == 4 * MB);
    MUST(ftruncate(fd, 18 * MB) == 0 && ftruncate(fd, 24 * MB) == 0);
    extents(fd, "cut and extended");
    MUST(close(fd) == 0 && (fd = open(path, O_RDONLY)) >= 0);
    extents(fd, "opened again");
    close(fd);
    read_beside_holes(path, strdup(in(argv[1], "copy")));
    show_content(path);
    return 0;
}
