/* Asynchronous cancellation of a thread in served reads must unwind through the program's own frames, every time. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static int file;
static volatile int cleaned, unwound;
static void clean(void *unused) { cleaned++; }
static void leave(int *unused) { unwound++; }

static void *reader(void *unused) {
    char buffer[4096];
    int guard __attribute__((cleanup(leave))) = 0;
    pthread_cleanup_push(clean, 0);
    for (;;)
        pread(file, buffer, sizeof buffer, 0);
    pthread_cleanup_pop(0);
    return 0;
}

int main(int count, char **arguments) {
    int joined = 0;
    file = open(arguments[1], O_RDONLY);
    for (int i = 0; i < 300; i++) {
        pthread_t thread;
        void *result;
        pthread_create(&thread, 0, reader, 0);
        usleep(500);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        joined += result == PTHREAD_CANCELED;
    }
    printf("%d cancelled, %d cleaned, %d unwound\n", joined, cleaned, unwound);
    return joined != 300 || cleaned != 300 || unwound != 300;
}
