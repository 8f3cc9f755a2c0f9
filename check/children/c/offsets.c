/* Offsets of a file that is being written when a child is made: offsets DIRECTORY WAY COUNT. A thread writes four times 1,000 bytes to a fresh file, by
 * write and by writev; the main thread makes children. */
#include "children.h"
#include <sys/uio.h>

enum { PIECES = 4, PIECE_BYTES = 1000, NAMES = 50 };
static atomic_int over;

static void *write_pieces(void *argument)
{
    const char *directory = argument;
    static unsigned char bytes[PIECES * PIECE_BYTES], back[PIECES * PIECE_BYTES + 1];
    char name[64];
    for (int round = 0; !atomic_load(&over); round++) {
        snprintf(name, sizeof name, "pieces-%02d", round % NAMES);
        /* The content does not depend on the round: what is left in the end is the same in each run. */
        fill(bytes, sizeof bytes, round % NAMES);
        unlink(in(directory, name));
        int fd = open(in(directory, name), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (fd < 0)
            wrong("%s: open: %s", name, strerrorname_np(errno));
        for (int piece = 0; piece < PIECES; piece++) {
            struct iovec part = { bytes + piece * PIECE_BYTES, PIECE_BYTES };
            ssize_t count = piece % 2 ? writev(fd, &part, 1) : write(fd, part.iov_base, part.iov_len);
            if (count != PIECE_BYTES)
                wrong("%s: write gave %zd (%s)", name, count, strerrorname_np(errno));
        }
        off_t offset = lseek(fd, 0, SEEK_CUR);
        if (offset != sizeof bytes)
            wrong("%s: the offset is %lld after four times 1000 bytes", name, (long long)offset);
        ssize_t count = pread(fd, back, sizeof back, 0);
        if (count != sizeof bytes)
            wrong("%s: %zd bytes after four times 1000", name, count);
        same_bytes(name, back, bytes, sizeof bytes, 0);
        MUST(lseek(fd, PIECE_BYTES, SEEK_SET) == PIECE_BYTES);
        for (int piece = 1; piece < PIECES; piece++) {
            count = read(fd, back, PIECE_BYTES);
            if (count != PIECE_BYTES)
                wrong("%s: read gave %zd (%s)", name, count, strerrorname_np(errno));
            same_bytes(name, back, bytes + piece * PIECE_BYTES, PIECE_BYTES, piece * PIECE_BYTES);
        }
        MUST(close(fd) == 0);
    }
    return NULL;
}

static pid_t make(const char *way)
{
    char *const nothing[] = { "true", NULL };
    pid_t pid;
    if (strcmp(way, "spawn") == 0)
        return spawn(nothing, NULL, NULL);
    if (strcmp(way, "vfork") == 0) {
        if ((pid = vfork()) == 0) {
            execve("/bin/true", nothing, environ);
            _exit(88);
        }
    } else if ((pid = fork()) == 0)
        _exit(0);
    return pid;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    int count = atoi(argv[3]), failed = 0;
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, write_pieces, argv[1]) == 0);
    for (int index = 0; index < count; index++)
        failed += wait_for(make(argv[2])) != 0;
    atomic_store(&over, 1);
    MUST(pthread_join(thread, NULL) == 0);
    printf("%s: %d children, %d failed\n", argv[2], count, failed);
    return failed != 0;
}
