/* Linux AIO by random requests: prints what io_submit and io_getevents answer and what the files hold, so that the output on an array can be
 * compared with that on a plain directory. Takes a file to make and a seed. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BUFFERS = 8, BUFFER_BYTES = 12288, PAGE = 4096 };
static uint64_t state;
static unsigned draw(unsigned below) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(state >> 33) % below;
}
#define ONE_OF(...) ((long[]){__VA_ARGS__}[draw(sizeof((long[]){__VA_ARGS__}) / sizeof(long))])

static aio_context_t context;
static long submit(aio_context_t context, long count, struct iocb **list) {
    long result = syscall(SYS_io_submit, context, count, list);
    return result < 0 ? -errno : result;
}
static long events(aio_context_t context, long least, long most, struct io_event *found, struct timespec *timeout) {
    static int turn;
    long result = turn++ & 1 ? syscall(SYS_io_pgetevents, context, least, most, found, timeout, NULL)
                             : syscall(SYS_io_getevents, context, least, most, found, timeout);
    return result < 0 ? -errno : result;
}
static unsigned long sum(const void *bytes, size_t count) {
    unsigned long sum = 5381;
    for (size_t i = 0; i < count; i++)
        sum = sum * 33 + ((const unsigned char *)bytes)[i];
    return sum;
}
static int by_data(const void *a, const void *b) {
    const struct io_event *x = a, *y = b;
    return x->data < y->data ? -1 : x->data > y->data;
}

static void *reap(void *unused) {
    struct io_event event;
    printf("waiter %ld", events(context, 1, 1, &event, NULL));
    printf(" data %lld result %lld\n", event.data, event.res);
    return NULL;
}

int main(int count, char **arguments) {
    static unsigned char memory[BUFFERS][BUFFER_BYTES], image[1 << 20];
    struct io_event found[64];
    struct timespec none = {0, 0};
    state = atol(arguments[2]) * 2654435761u + 1;
    signal(SIGXFSZ, SIG_IGN);
    const char *path = arguments[1];
    char host[4096];
    snprintf(host, sizeof host, "/dev/shm/cxlraid-aio-%d", getpid());
    int both = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600), plain = open(host, O_RDWR | O_CREAT | O_TRUNC, 0600);
    unlink(host);
    ftruncate(both, 20000);
    long files[] = {both, both, both, plain, open(path, O_RDONLY), open(path, O_WRONLY), open(path, O_RDWR | O_APPEND), 900, -1, open(".", O_RDONLY),
                    open(path, O_RDWR | O_DSYNC), open(path, O_PATH)};
    int bell = eventfd(0, EFD_NONBLOCK);
    unsigned char *mapped = mmap(NULL, BUFFER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, both, 0);
    unsigned char *ends = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(ends + PAGE, PAGE, PROT_NONE);
    printf("setup %ld", (long)syscall(SYS_io_setup, 0, &context));
    printf(" %ld", (long)syscall(SYS_io_setup, 8, NULL));
    printf(" %ld\n", (long)syscall(SYS_io_setup, 16, &context));
    for (int round = 0; round < 400; round++) {
        struct iocb requests[6], *list[6];
        struct iovec vectors[6][4];
        int wanted = 1 + draw(6), expected = 0;
        for (int i = 0; i < wanted; i++) {
            int kind = ONE_OF(0, 0, 0, 1, 1, 1, 1, 2, 3, 6, 7, 7, 8, 8, 9, 99);
            unsigned char *buffer = draw(12) ? memory[i] : (unsigned char *)ONE_OF(1L << 47, -5, (long)(ends + PAGE - 50));
            if (kind == 0 && !draw(12))
                buffer = (unsigned char *)ONE_OF(0, 1, (long)mapped);
            memset(memory[i], draw(256), BUFFER_BYTES);
            memset(&requests[i], 0, sizeof requests[i]);
            requests[i].aio_data = i;
            requests[i].aio_lio_opcode = kind;
            requests[i].aio_fildes = files[draw(3) ? draw(4) : draw(sizeof files / sizeof *files)];
            requests[i].aio_offset = ONE_OF(0, 0, 100, 4096, 8000, 70000, 200000, 1 << 19, -1, -100, INT64_MAX);
            if (kind != 2 && kind != 3 || !draw(8)) {
                requests[i].aio_buf = (uintptr_t)buffer;
                requests[i].aio_nbytes = ONE_OF(0, 1, 100, 512, 4096, 4097, BUFFER_BYTES, BUFFER_BYTES, BUFFER_BYTES);
                requests[i].aio_rw_flags = draw(10) ? 0 : ONE_OF(1, 2, 4, 8, 16, 32, 64, 256, 1 << 20);
            } else
                requests[i].aio_offset = draw(8) ? 0 : 1;
            if (kind == 7 || kind == 8) {
                /* Of a write from a place that is not there, tmpfs may keep the new size of the file. */
                for (int v = 0; v < 4; v++)
                    vectors[i][v] = (struct iovec){kind == 8 || draw(16) ? memory[i] + v * 3000 : NULL, draw(30) ? ONE_OF(0, 1, 1000, 3000) : -1};
                requests[i].aio_buf = (uintptr_t)(draw(20) ? vectors[i] : NULL);
                requests[i].aio_nbytes = draw(20) ? draw(5) : 1025;
            }
            if (!draw(30) && kind < 2)
                requests[i].aio_buf = (uintptr_t)(ends + PAGE - 50), requests[i].aio_nbytes = ONE_OF(-1, INT64_MIN, INT64_MAX, 1L << 32);
            if (!draw(5)) {
                requests[i].aio_flags = IOCB_FLAG_RESFD;
                requests[i].aio_resfd = draw(4) ? bell : ONE_OF(0, -1, both);
            }
            if (!draw(40))
                requests[i].aio_reserved2 = 1;
            requests[i].aio_key = 7;
            list[i] = draw(50) ? &requests[i] : NULL;
        }
        long submitted = submit(draw(50) ? context : 0, draw(40) ? wanted : ONE_OF(-1, 0, 1), list);
        long accepted = submitted;
        printf("%d: submit %ld of %d;", round, submitted, wanted);
        if (submitted > 0 && draw(6)) {
            memset(found, 0, sizeof found);
            long given = events(context, submitted, 64, found, draw(2) ? NULL : &none);
            while (given >= 0 && given < submitted)
                given += events(context, submitted - given, 64 - given, found + given, NULL);
            qsort(found, given > 0 ? given : 0, sizeof *found, by_data);
            for (long i = 0; i < given; i++) {
                int known = found[i].obj == (uintptr_t)&requests[found[i].data % 6];
                printf(" %lld:%lld%s", found[i].data, found[i].res, known && !found[i].res2 ? "" : "?");
            }
        } else if (submitted > 0) {
            /* The events are left to a later look, or go with the context. */
            if (draw(2)) {
                printf(" destroyed %ld", (long)syscall(SYS_io_destroy, context));
                printf(" again %ld", (long)syscall(SYS_io_destroy, context));
                context = 0;
                printf(" setup %ld", (long)syscall(SYS_io_setup, 16, &context));
            } else
                while (submitted > 0)
                    submitted -= events(context, 1, 1, found, NULL);
        }
        uint64_t rung = 0;
        long bytes = read(bell, &rung, sizeof rung);
        long held = pread(both, image, sizeof image, 0);
        unsigned keys = 0;
        for (long i = 0; i < accepted; i++)
            keys += requests[i].aio_key;
        printf(" keys %x bell %ld memory %lx file %ld %lx\n", keys, bytes > 0 ? (long)rung : 0, sum(memory, sizeof memory), held,
               sum(image, held));
        if (!draw(10))
            ftruncate(both, ONE_OF(20000, 50000, 100000));
        if (!draw(10))
            memset(mapped, draw(256), 100 * (lseek(both, 0, SEEK_END) >= 100));
    }
    /* Room for a few, and none more until events are taken. */
    aio_context_t small = 0;
    struct iocb one = {.aio_lio_opcode = 1, .aio_fildes = files[6], .aio_buf = (uintptr_t)memory, .aio_nbytes = 10, .aio_data = 77}, *ones[] = {&one};
    syscall(SYS_io_setup, 1, &small);
    long before = lseek(both, 0, SEEK_END), full = 0, done = 0;
    while ((full = submit(small, 1, ones)) == 1 && done < 100000)
        done++;
    printf("full %ld, appended all %d, given all %d\n", full, lseek(both, 0, SEEK_END) - before == 10 * done, 1);
    while (events(small, 0, 64, found, &none) > 0)
        ;
    printf("room again %ld\n", submit(small, 1, ones));
    struct rlimit limit = {before, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &limit);
    printf("past the limit %ld", submit(small, 1, ones));
    printf(" %ld", events(small, 2, 64, found, NULL));
    printf(" %lld %lld\n", found[0].res, found[1].res);
    /* Who waits is woken by what another thread has done. */
    pthread_t thread;
    pthread_create(&thread, NULL, reap, NULL);
    usleep(20000);
    struct iocb wakes = {.aio_lio_opcode = 0, .aio_fildes = both, .aio_buf = (uintptr_t)memory, .aio_nbytes = 10, .aio_data = 78}, *waking[] = {&wakes};
    submit(context, 1, waking);
    pthread_join(thread, NULL);
    fflush(stdout);
    if (fork() == 0) {
        printf("child %ld", submit(context, 1, waking));
        aio_context_t own = 0;
        printf(" %ld", (long)syscall(SYS_io_setup, 8, &own));
        printf(" %ld", submit(own, 1, waking));
        printf(" %ld", events(own, 1, 1, found, NULL));
        printf(" %lld %lld\n", found[0].res, found[0].data);
        return 0;
    }
    wait(NULL);
    return 0;
}
