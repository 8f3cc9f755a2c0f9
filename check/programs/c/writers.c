/* Several processes on one file: appending, disjoint ranges down to single bytes, overlapping ranges, growing and cutting. */
#include "check.h"
#include <sys/wait.h>

static const char *d;
/* On an array a write is seen whole or not at all; tmpfs promises that to other writers only. */
static int strict;

enum { PROCESSES = 3, RECORDS = 700, BLOCK = 10000, BLOCKS = 40, ROUNDS = 150 };

static void run_all(void (*work)(int))
{
    pid_t pids[PROCESSES];
    for (int index = 0; index < PROCESSES; index++)
        if ((pids[index] = fork()) == 0) {
            work(index);
            _exit(0);
        }
    for (int index = 0, status; index < PROCESSES; index++) {
        MUST(waitpid(pids[index], &status, 0) == pids[index]);
        if (status)
            printf("process %d: status %x\n", index, status);
    }
}

/* A record: letter, length, that many letters, newline. */
static void append_records(int index)
{
    char record[400];
    int fd = open(in(d, "appended"), O_WRONLY | O_APPEND | O_CREAT, 0600);
    for (int count = 0; count < RECORDS; count++) {
        int length = 1 + (count * 37 + index * 11) % 300;
        int head = sprintf(record, "%c%03d", 'a' + index, length);
        memset(record + head, 'a' + index, length);
        record[head + length] = '\n';
        MUST(write(fd, record, head + length + 1) == head + length + 1);
    }
}

static void check_appended(void)
{
    FILE *stream = fopen(in(d, "appended"), "r");
    char line[500];
    int counts[PROCESSES] = { 0 }, broken = 0;
    while (fgets(line, sizeof line, stream)) {
        int owner = line[0] - 'a', length = atoi((char[]){ line[1], line[2], line[3], 0 });
        int whole = owner >= 0 && owner < PROCESSES && (int)strlen(line) == length + 5;
        for (int at = 4; whole && at < length + 4; at++)
            whole = line[at] == line[0];
        if (whole)
            counts[owner]++;
        else
            broken++;
    }
    fclose(stream);
    printf("appended: %d %d %d whole records, %d broken\n", counts[0], counts[1], counts[2], broken);
}

/* Every process owns every PROCESSES-th piece; pieces of odd sizes share pages, cache lines and stripes. */
static void disjoint(int index)
{
    int fd = open(in(d, "disjoint"), O_RDWR | O_CREAT, 0600);
    unsigned char piece[4097];
    int sizes[] = { 1, 3, 64, 333, 4096, 4097 };
    off_t offset = 0;
    for (int count = 0; offset < 600000; count++) {
        int size = sizes[count % 6];
        if (count % PROCESSES == index) {
            fill(piece, size, count);
            MUST(pwrite(fd, piece, size, offset) == size);
        }
        offset += size;
    }
}

static void block_of(unsigned char *bytes, int index, int round)
{
    memset(bytes, 'A' + index, BLOCK);
    memcpy(bytes, &round, sizeof round);
    memcpy(bytes + BLOCK - sizeof round, &round, sizeof round);
}

static int is_whole(const unsigned char *bytes)
{
    int same = memcmp(bytes + 4, bytes + 5, BLOCK - 9) == 0;
    return same && (memcmp(bytes, bytes + BLOCK - 4, 4) == 0);
}

static void overlapping(int index)
{
    int fd = open(in(d, "overlapping"), O_RDWR | O_CREAT, 0600);
    static unsigned char bytes[BLOCK];
    for (int round = 0; round < ROUNDS; round++) {
        int at = (round * 7) % BLOCKS;
        block_of(bytes, index, round);
        MUST(pwrite(fd, bytes, BLOCK, (off_t)at * BLOCK) == BLOCK);
        at = (round * 11 + index) % BLOCKS;
        ssize_t count = pread(fd, bytes, BLOCK, (off_t)at * BLOCK);
        int empty = count >= 4 && bytes[4] == 0;
        if (strict && count == BLOCK && !empty)
            MUST(is_whole(bytes));
    }
}

static void check_overlapping(void)
{
    int fd = open(in(d, "overlapping"), O_RDONLY), torn = 0;
    static unsigned char bytes[BLOCK];
    for (int at = 0; at < BLOCKS; at++)
        if (pread(fd, bytes, BLOCK, (off_t)at * BLOCK) == BLOCK && !is_whole(bytes))
            torn++;
    printf("overlapping: %d torn blocks\n", torn);
    MUST(ftruncate(fd, 0) == -1);
    close(fd);
    MUST(truncate(in(d, "overlapping"), 0) == 0);
}

/* One grows, one cuts, one looks: the size a process sees is one that somebody made. */
static void growing(int index)
{
    int fd = open(in(d, "growing"), O_RDWR | O_CREAT, 0600);
    static unsigned char bytes[3000];
    struct stat stat;
    for (int round = 0; round < ROUNDS; round++) {
        if (index == 0) {
            MUST(fstat(fd, &stat) == 0 && pwrite(fd, bytes, sizeof bytes, stat.st_size / 3000 * 3000) == 3000);
        } else if (index == 1 && round % 10 == 9) {
            MUST(ftruncate(fd, 0) == 0);
        } else {
            MUST(fstat(fd, &stat) == 0 && (!strict || stat.st_size % 3000 == 0));
        }
    }
}

int main(int argc, char **argv)
{
    d = argv[1];
    (void)argc;
    strict = on_array();
    setvbuf(stdout, NULL, _IONBF, 0);
    run_all(append_records);
    check_appended();
    run_all(disjoint);
    show_content(in(d, "disjoint"));
    close(open(in(d, "overlapping"), O_CREAT | O_WRONLY, 0600));
    run_all(overlapping);
    check_overlapping();
    run_all(growing);
    MUST(unlink(in(d, "growing")) == 0 && unlink(in(d, "appended")) == 0);
    return 0;
}
