/* Threads on shared and own descriptors, with files opened, duplicated and closed all the time. */
#include "check.h"
#include <pthread.h>

enum { THREADS = 4, REGION = 131072 + 333, ROUNDS = 250 };
static const char *d;
static int shared;

static void *work(void *argument)
{
    int me = (int)(intptr_t)argument;
    static __thread unsigned char bytes[20000], back[20000];
    char name[64];
    off_t base = (off_t)me * REGION;
    for (int round = 0; round < ROUNDS; round++) {
        size_t count = 1 + (round * 911u + me * 37u) % sizeof bytes;
        off_t offset = base + (round * 7777u) % (REGION - count);
        fill(bytes, count, me * 1000 + round);
        MUST(pwrite(shared, bytes, count, offset) == (ssize_t)count);
        int own = round % 3 ? open(in(d, "shared"), O_RDWR) : dup(shared);
        MUST(own >= 0 && pread(own, back, count, offset) == (ssize_t)count && memcmp(bytes, back, count) == 0);
        MUST(close(own) == 0);
        snprintf(name, sizeof name, "thread-%d-%d", me, round % 5);
        own = open(in(d, name), O_RDWR | O_CREAT | O_TRUNC, 0600);
        MUST(own >= 0 && write(own, bytes, count) == (ssize_t)count);
        MUST(lseek(own, 0, SEEK_SET) == 0 && read(own, back, sizeof back) == (ssize_t)count && memcmp(bytes, back, count) == 0);
        MUST(close(own) == 0);
        if (round % 20 == 19)
            MUST(rename(in(d, name), in(d, me % 2 ? "last-odd" : "last-even")) == 0);
    }
    return NULL;
}

static void *append_lines(void *argument)
{
    char line[40];
    for (int round = 0; round < 500; round++) {
        int length = sprintf(line, "%d:%d\n", (int)(intptr_t)argument, round);
        MUST(write(shared, line, length) == length);
    }
    return NULL;
}

static void run(void *(*function)(void *))
{
    pthread_t threads[THREADS];
    for (int index = 0; index < THREADS; index++)
        MUST(pthread_create(&threads[index], NULL, function, (void *)(intptr_t)index) == 0);
    for (int index = 0; index < THREADS; index++)
        MUST(pthread_join(threads[index], NULL) == 0);
}

int main(int argc, char **argv)
{
    (void)argc;
    d = argv[1];
    shared = open(in(d, "shared"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    MUST(ftruncate(shared, (off_t)THREADS * REGION) == 0);
    run(work);
    close(shared);
    show_content(in(d, "shared"));
    shared = open(in(d, "lines"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    run(append_lines);
    FILE *stream = fopen(in(d, "lines"), "r");
    int next[THREADS] = { 0 }, thread, round, disordered = 0;
    while (fscanf(stream, "%d:%d\n", &thread, &round) == 2)
        disordered += next[thread]++ != round;
    printf("lines through one offset: %d %d %d %d, %d out of order\n", next[0], next[1], next[2], next[3], disordered);
    fclose(stream);
    MUST(unlink(in(d, "lines")) == 0 && unlink(in(d, "last-odd")) == 0 && unlink(in(d, "last-even")) == 0);
    return 0;
}
