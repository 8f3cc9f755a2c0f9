/* Numbers that are given another meaning (dup2, close) while other threads use them: what is written goes to the old file or to the
   new one, whole, and no other descriptor's offset moves. */
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

static const char *d;

enum { NUMBER = 90, RECORD = 512, RECORDS = 6000, ROUNDS = 60, FORKS = 100, LONG_WRITE = 4 << 20 };

static int files[2];
static atomic_int done;
static int counts[3];

/* A record: its number, that number's pattern. */
static int write_record(int fd, int number)
{
    unsigned char record[RECORD];
    fill(record, RECORD, number);
    memcpy(record, &number, sizeof number);
    ssize_t count = write(fd, record, RECORD);
    int error = errno;
    MUST(count == RECORD || count == -1 && error == EBADF);
    return count == RECORD;
}

static void *writer(void *unused)
{
    for (int number = 0; number < RECORDS; number++) {
        if (number % 5 == 4) {
            int copy = dup(NUMBER), error = errno;
            MUST(copy >= 0 || error == EBADF);
            if (copy >= 0) {
                counts[1] += write_record(copy, number);
                MUST(close(copy) == 0);
            }
        } else {
            counts[0] += write_record(NUMBER, number);
        }
    }
    done = 1;
    return unused;
}

/* How many records the two files hold. A piece that is no record, or one that is there twice, is broken. */
static void show_records(const char *what)
{
    static char seen[RECORDS];
    int whole = 0, broken = 0;
    memset(seen, 0, sizeof seen);
    for (int index = 0; index < 2; index++) {
        unsigned char record[RECORD], expected[RECORD];
        ssize_t count;
        for (off_t at = 0; (count = pread(files[index], record, RECORD, at)) > 0; at += count) {
            int number;
            memcpy(&number, record, sizeof number);
            int known = count == RECORD && number >= 0 && number < RECORDS;
            if (known) {
                fill(expected, RECORD, number);
                memcpy(expected, &number, sizeof number);
            }
            if (known && memcmp(record, expected, RECORD) == 0 && !seen[number]++)
                whole++;
            else
                broken++;
        }
        MUST(count == 0);
    }
    printf("%s: %d broken records, %d lost\n", what, broken, counts[0] + counts[1] - whole);
}

/* With `forks`, a child has the files for a moment: from then on their offsets are the kernel's. */
static void open_files(int flags, int forks)
{
    for (int index = 0; index < 2; index++)
        MUST((files[index] = open(in(d, index ? "b" : "a"), O_RDWR | O_CREAT | O_TRUNC | flags, 0644)) >= 0);
    MUST(dup2(files[0], NUMBER) == NUMBER);
    counts[0] = counts[1] = done = 0;
    if (forks) {
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        MUST(child > 0 && waitpid(child, NULL, 0) == child);
    }
}

static void close_files(void)
{
    for (int index = 0; index < 2; index++)
        MUST(close(files[index]) == 0);
    close(NUMBER);
}

/* The usual change of a log: no write meets a closed number, and none is lost. */
static void switched(const char *what, int flags, int forks)
{
    pthread_t thread;
    open_files(flags, forks);
    MUST(pthread_create(&thread, NULL, writer, NULL) == 0);
    while (!done) {
        MUST(dup2(files[0], NUMBER) == NUMBER);
        MUST(dup2(-1, NUMBER) == -1);
        MUST(dup3(files[1], NUMBER, O_CLOEXEC) == NUMBER);
        MUST(dup3(files[1], NUMBER, 1) == -1);
    }
    MUST(pthread_join(thread, NULL) == 0);
    MUST(counts[0] + counts[1] == RECORDS);
    show_records(what);
    close_files();
}

/* The number is closed for moments: a write is made, or is EBADF. */
static void closed(const char *what, int flags, int forks)
{
    pthread_t thread;
    open_files(flags, forks);
    MUST(pthread_create(&thread, NULL, writer, NULL) == 0);
    for (int round = 0; !done; round++) {
        if (round % 3 == 0)
            MUST(close_range(NUMBER, NUMBER, 0) == 0);
        else
            MUST(close(NUMBER) == 0);
        MUST(dup2(files[round % 2], NUMBER) == NUMBER);
    }
    MUST(pthread_join(thread, NULL) == 0);
    show_records(what);
    close_files();
}

static void *switches(void *unused)
{
    while (!done) {
        MUST(dup2(files[0], NUMBER) == NUMBER);
        MUST(dup2(files[1], NUMBER) == NUMBER);
    }
    return unused;
}

/* A process is copied in the middle of a change: its copy uses the number as it finds it. */
static void forked(void)
{
    pthread_t thread;
    open_files(0, 0);
    MUST(pthread_create(&thread, NULL, switches, NULL) == 0);
    for (int number = 0; number < FORKS; number++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            int copy = dup(NUMBER);
            _exit(copy >= 0 && write_record(copy, number) && close(copy) == 0 && close(NUMBER) == 0 ? 0 : 1);
        }
        MUST(child > 0 && waitpid(child, &status, 0) == child);
        MUST(status == 0);
        counts[0]++;
    }
    done = 1;
    MUST(pthread_join(thread, NULL) == 0);
    show_records("copied");
    close_files();
}

static atomic_int round_begun;

static void *writes_long(void *bytes)
{
    for (int round = 1; round <= ROUNDS; round++) {
        while (round_begun < round)
            sched_yield();
        ssize_t count = write(NUMBER, bytes, LONG_WRITE);
        int error = errno;
        MUST(count == LONG_WRITE || count == -1 && error == EBADF);
        round_begun = -round;
    }
    return bytes;
}

/* A number is given to a file of the host while a long write uses it: the host's file keeps its offset and what it holds. */
static void host_file(void)
{
    pthread_t thread;
    int moved = 0, host = memfd_create("host", MFD_CLOEXEC);
    void *bytes = mmap(NULL, LONG_WRITE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(host >= 0 && bytes != MAP_FAILED);
    round_begun = 0;
    open_files(0, 1);
    MUST(pthread_create(&thread, NULL, writes_long, bytes) == 0);
    for (int round = 1; round <= ROUNDS; round++) {
        MUST(dup2(files[0], NUMBER) == NUMBER && lseek(NUMBER, 0, SEEK_SET) == 0);
        round_begun = round;
        usleep(round % 4 * 300);
        if (round % 2)
            MUST(close(NUMBER) == 0);
        MUST(dup2(host, NUMBER) == NUMBER);
        while (round_begun != -round)
            sched_yield();
        /* A write that came late is the host's file's. */
        off_t offset = lseek(host, 0, SEEK_CUR), length = lseek(host, 0, SEEK_END);
        MUST(length == 0 || length == LONG_WRITE);
        moved += offset != length;
        MUST(lseek(host, 0, SEEK_SET) == 0 && ftruncate(host, 0) == 0);
    }
    MUST(pthread_join(thread, NULL) == 0);
    MUST(ftruncate(files[0], 0) == 0);
    printf("host's file: moved %d times\n", moved);
    close_files();
}

int main(int argc, char **argv)
{
    (void)argc;
    d = argv[1];
    setvbuf(stdout, NULL, _IONBF, 0);
    for (int forks = 0; forks < 2; forks++) {
        printf(forks ? "with offsets of the kernel\n" : "with offsets of the process\n");
        switched("appended", O_APPEND, forks);
        switched("in sequence", 0, forks);
        closed("closed, appended", O_APPEND, forks);
        closed("closed, in sequence", 0, forks);
    }
    forked();
    host_file();
    MUST(unlink(in(d, "a")) == 0 && unlink(in(d, "b")) == 0);
    return 0;
}
