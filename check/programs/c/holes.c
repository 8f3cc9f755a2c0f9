/* SEEK_DATA and SEEK_HOLE on holes of whole stripes: a plain directory must answer the same. Nothing is read before: on some file systems
   that fills holes. */
#include "check.h"

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
    show_content(path);
    return 0;
}
