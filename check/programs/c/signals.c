/* A timer interrupts reads and writes; its handler does I/O on the array itself, and sometimes leaves by siglongjmp. */
#include "check.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>

static volatile int handled, jumping;
static int log_fd;
static sigjmp_buf way_out;

static void start_timer(int microseconds)
{
    struct itimerval timer = { { 0, microseconds }, { 0, microseconds } };
    MUST(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

static void on_alarm(int number)
{
    int kept = errno;
    char record[32];
    memset(record, '.', sizeof record);
    record[31] = '\n';
    memcpy(record, &number, 1);
    if (write(log_fd, record, sizeof record) != sizeof record)
        _exit(90);
    if (pread(log_fd, record, 1, 0) != 1)
        _exit(91);
    int count = __atomic_add_fetch(&handled, 1, __ATOMIC_RELAXED);
    errno = kept;
    if (jumping && count % 3 == 0)
        siglongjmp(way_out, 1);
}

static void write_and_check(const char *name, int rounds)
{
    static unsigned char bytes[50000], back[50000];
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (int round = 0; round < rounds; round++) {
        size_t count = 1 + (round * 7919u) % sizeof bytes;
        off_t offset = (round * 104729u) % 300000;
        fill(bytes, count, round);
        MUST(pwrite(fd, bytes, count, offset) == (ssize_t)count);
        MUST(pread(fd, back, count, offset) == (ssize_t)count && memcmp(bytes, back, count) == 0);
    }
    close(fd);
    show_content(name);
}

static void jump_out(const char *name)
{
    static unsigned char bytes[50000];
    volatile int jumps = 0;
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    memset(bytes, 'j', sizeof bytes);
    if (sigsetjmp(way_out, 1))
        jumps++;
    jumping = 1;
    while (jumps < 20) {
        MUST(pwrite(fd, bytes, sizeof bytes, 0) == sizeof bytes);
        MUST(pread(fd, bytes, sizeof bytes, 0) == sizeof bytes && bytes[49999] == 'j');
    }
    jumping = 0;
    close(fd);
    show_content(name);
}

static volatile int stop;

static void *hammer(void *name)
{
    static __thread unsigned char bytes[20000];
    int fd = open(name, O_RDWR | O_CREAT, 0600);
    memset(bytes, 'h', sizeof bytes);
    do
        MUST(pwrite(fd, bytes, sizeof bytes, 5) == sizeof bytes && pread(fd, bytes, sizeof bytes, 5) == sizeof bytes);
    while (!stop);
    close(fd);
    return NULL;
}

/* Signals aimed at threads that are inside a call most of the time. */
static void kick_threads(const char *name)
{
    pthread_t threads[2];
    for (int index = 0; index < 2; index++)
        MUST(pthread_create(&threads[index], NULL, hammer, (void *)name) == 0);
    int before = handled;
    for (int round = 0; round < 400; round++) {
        MUST(pthread_kill(threads[round % 2], SIGUSR1) == 0);
        usleep(50);
    }
    stop = 1;
    for (int index = 0; index < 2; index++)
        pthread_join(threads[index], NULL);
    printf("threads were interrupted: %d\n", handled > before);
    show_content(name);
}

int main(int argc, char **argv)
{
    (void)argc;
    const char *d = argv[1];
    struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
    log_fd = open(in(d, "log"), O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0600);
    MUST(log_fd >= 0 && write(log_fd, "begin", 5) == 5);
    MUST(sigaction(SIGALRM, &action, NULL) == 0);
    start_timer(300);
    write_and_check(strdup(in(d, "interrupted")), 1500);
    jump_out(strdup(in(d, "jumped")));
    start_timer(0);
    printf("handled: %s\n", handled > 20 ? "often" : "too rarely");
    stack_t stack = { .ss_sp = malloc(1 << 16), .ss_size = 1 << 16 };
    MUST(sigaltstack(&stack, NULL) == 0);
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    MUST(sigaction(SIGALRM, &action, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    start_timer(300);
    write_and_check(strdup(in(d, "on-another-stack")), 700);
    start_timer(0);
    kick_threads(strdup(in(d, "kicked")));
    struct sigaction now;
    MUST(sigaction(SIGALRM, NULL, &now) == 0);
    printf("the handler is still ours: %d, flags %x\n", now.sa_handler == on_alarm, now.sa_flags & ~0x04000000);
    struct stat stat;
    MUST(fstat(log_fd, &stat) == 0);
    printf("one whole record per signal: %d\n", stat.st_size == 5 + 32ll * handled);
    close(log_fd);
    MUST(unlink(in(d, "log")) == 0);
    return 0;
}
