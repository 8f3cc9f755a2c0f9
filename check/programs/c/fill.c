/* Writes blocks until there is no room; says what the last error was and whether the file holds exactly what was acknowledged. */
#include "check.h"

enum { BLOCK = 70000 };

int main(int argc, char **argv)
{
    static unsigned char bytes[BLOCK], back[BLOCK];
    long long acknowledged = 0;
    struct stat stat;
    (void)argc;
    int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0) {
        printf("open: %s\n", strerrorname_np(errno));
        return 1;
    }
    while (acknowledged < 2000ll * BLOCK) {
        /* A write that partly fits is written partly, and the rest is tried again. */
        fill(bytes, BLOCK, acknowledged / BLOCK);
        ssize_t count = write(fd, bytes + acknowledged % BLOCK, BLOCK - acknowledged % BLOCK);
        if (count < 0) {
            printf("write: %s\n", strerrorname_np(errno));
            break;
        }
        acknowledged += count;
    }
    MUST(fstat(fd, &stat) == 0);
    printf("size is what was acknowledged: %d, something was: %d\n", stat.st_size == acknowledged, acknowledged > BLOCK);
    int wrong = 0;
    for (long long offset = 0; offset < acknowledged; offset += BLOCK) {
        long long expected = acknowledged - offset < BLOCK ? acknowledged - offset : BLOCK;
        fill(bytes, BLOCK, offset / BLOCK);
        wrong += pread(fd, back, BLOCK, offset) != expected || memcmp(bytes, back, expected);
    }
    printf("wrong blocks: %d\n", wrong);
    printf("within the file: %zd\n", pwrite(fd, bytes, 1000, 5000));
    fill(bytes, BLOCK, 0);
    MUST(pwrite(fd, bytes + 5000, 1000, 5000) == 1000);
    close(fd);
    return 0;
}
