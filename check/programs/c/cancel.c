/* Threads cancelled while they read and write: clean-up handlers run, and whoever comes after finds no lock held. */
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <time.h>

static const char *path;
static int cleaned, ended;

static void clean_up(void *fd)
{
    close((int)(intptr_t)fd);
    __atomic_add_fetch(&cleaned, 1, __ATOMIC_RELAXED);
}

static void *deferred(void *unused)
{
    static __thread unsigned char bytes[9000];
    int state;
    (void)unused;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    int fd = open(path, O_RDWR);
    memset(bytes, 'c', sizeof bytes);
    pthread_cleanup_push(clean_up, (void *)(intptr_t)fd);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
    for (off_t offset = 0;; offset = (offset + 4321) % 200000) {
        if (pwrite(fd, bytes, sizeof bytes, offset) != sizeof bytes || pread(fd, bytes, sizeof bytes, offset) != sizeof bytes)
            abort();
        fsync(fd);
    }
    pthread_cleanup_pop(1);
    return NULL;
}

static void *asynchronous(void *unused)
{
    static __thread unsigned char bytes[9000];
    static __thread int type;
    int state;
    (void)unused;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    int fd = open(path, O_RDWR);
    memset(bytes, 'c', sizeof bytes);
    pthread_cleanup_push(clean_up, (void *)(intptr_t)fd);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
    for (off_t offset = 0;; offset = (offset + 4321) % 200000)
        if (pwrite(fd, bytes, sizeof bytes, offset) != sizeof bytes)
            abort();
    pthread_cleanup_pop(1);
    return NULL;
}

static void rounds(const char *what, void *(*work)(void *), int count)
{
    unsigned char byte;
    cleaned = ended = 0;
    int fd = open(path, O_RDWR);
    for (int round = 0; round < count; round++) {
        pthread_t thread;
        void *result;
        MUST(pthread_create(&thread, NULL, work, NULL) == 0);
        struct timespec pause = { 0, 100000 + 7001 * (round % 50) };
        nanosleep(&pause, NULL);
        MUST(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
        ended += result == PTHREAD_CANCELED;
        for (off_t offset = 0; offset < 210000; offset += 4000)
            MUST(pread(fd, &byte, 1, offset) >= 0 && pwrite(fd, "c", 1, offset) == 1);
    }
    close(fd);
    printf("%s: %d cancelled, %d cleaned up\n", what, ended, cleaned);
}

int main(int argc, char **argv)
{
    (void)argc;
    path = strdup(in(argv[1], "cancelled"));
    MUST(close(open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600)) == 0);
    MUST(truncate(path, 209000) == 0);
    rounds("deferred", deferred, 100);
    rounds("asynchronous", asynchronous, 100);
    MUST(truncate(path, 0) == 0);
    return 0;
}
