/* Handlers on the alternate stack whose calls the library serves: other handlers with SA_ONSTACK, and faults of their calls, leave the
 * frames of the first in peace, and sigaltstack(2) answers as ever. Prints one line per failure; exit status 0 if there was none. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SS_AUTODISARM
#define SS_AUTODISARM (1U << 31)
#endif

static int failures;
#define CHECK(what) ((what) ? (void)0 : (void)(failures++, printf("%s:%d: %s\n", __FILE__, __LINE__, #what)))

enum { ALTERNATE_BYTES = 256 << 10, ROOM_BYTES = 4096, ROUNDS = 400 };
static char alternate[ALTERNATE_BYTES], other[ALTERNATE_BYTES];
static int file;
static volatile int firsts, seconds, faults, off_stack, autodisarm;
static sigjmp_buf jump;
static jmp_buf plain_jump;

static int is_on(const char *stack, void *place) { return (char *)place >= stack && (char *)place < stack + ALTERNATE_BYTES; }

static void set_stack(char *start, int flags) {
    stack_t stack = {.ss_sp = start, .ss_flags = flags, .ss_size = ALTERNATE_BYTES};
    CHECK(sigaltstack(&stack, NULL) == 0);
}

/* Writes over what lies where it begins, and makes a call. */
static void on_second(int signal) {
    volatile char room[ROOM_BYTES];
    char byte;
    memset((char *)room, 0x5a, sizeof room);
    off_stack += !is_on(alternate, &byte);
    seconds++;
    CHECK(pread(file, &byte, 1, 0) == 1);
}

static void call_and_look(int rounds) {
    char room[ROOM_BYTES], expected[ROOM_BYTES], buffer[4096];
    sigset_t faulty, mask;
    memset(room, 0x11, sizeof room);
    memset(expected, 0x11, sizeof expected);
    sigemptyset(&faulty);
    sigaddset(&faulty, SIGBUS);
    for (int i = 0; i < rounds; i++) {
        CHECK(pread(file, buffer, 64 + i % 1000, i % 7 * 4096) == 64 + i % 1000);
        CHECK(pread(file, (void *)8, 10, 0) == -1 && errno == EFAULT);
        /* The library makes these calls and looks at their answers. */
        CHECK(sigprocmask(SIG_BLOCK, &faulty, NULL) == 0 && sigprocmask(SIG_UNBLOCK, &faulty, &mask) == 0);
        CHECK(sigismember(&mask, SIGBUS));
        CHECK(!sigismember(&mask, SIGALRM));
        __asm__ volatile("" : : "r"(room) : "memory");
        if (memcmp(room, expected, sizeof room)) {
            CHECK(!"the first handler's frame is as it was");
            return;
        }
    }
}

static void look_at_stack(void) {
    stack_t now, wish = {.ss_sp = other, .ss_size = ALTERNATE_BYTES};
    CHECK(sigaltstack(NULL, &now) == 0);
    if (autodisarm) {
        CHECK(now.ss_flags & SS_DISABLE);
        return;
    }
    CHECK(now.ss_flags == SS_ONSTACK && now.ss_sp == alternate && now.ss_size == ALTERNATE_BYTES);
    CHECK(sigaltstack(&wish, NULL) == -1 && errno == EPERM);
}

static void on_first(int signal) {
    char here;
    CHECK(is_on(alternate, &here));
    look_at_stack();
    call_and_look(ROUNDS);
    look_at_stack();
    firsts++;
}

static void on_first_that_spawns(int signal) {
    pid_t child = vfork();
    if (child == 0) {
        char byte;
        _exit(pread(file, &byte, 1, 0) != 1);
    }
    int status = 1;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    CHECK(status == 0);
    call_and_look(50);
    firsts++;
}

static void on_first_that_jumps(int signal) {
    call_and_look(20);
    firsts++;
    siglongjmp(jump, 1);
}

static void on_first_that_jumps_plainly(int signal) {
    call_and_look(20);
    firsts++;
    _longjmp(plain_jump, 1);
}

static void on_fault(int signal) { faults++; }

static void handle(int number, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK | SA_RESTART | flags};
    sigaction(number, &action, NULL);
}

static void expect_firsts(int count) {
    stack_t now;
    CHECK(firsts == count);
    firsts = 0;
    CHECK(sigaltstack(NULL, &now) == 0 && now.ss_sp == alternate && now.ss_size == ALTERNATE_BYTES);
    CHECK((unsigned)now.ss_flags == (autodisarm ? SS_AUTODISARM : 0));
}

static void all_kinds(void) {
    handle(SIGUSR1, on_first, 0);
    for (int i = 0; i < 10; i++)
        raise(SIGUSR1);
    expect_firsts(10);
    handle(SIGUSR1, on_first_that_spawns, 0);
    for (int i = 0; i < 10; i++)
        raise(SIGUSR1);
    expect_firsts(10);
    /* With SS_AUTODISARM who jumps out has no stack any more, as the kernel has it. */
    if (autodisarm)
        return;
    handle(SIGUSR1, on_first_that_jumps, 0);
    for (volatile int i = 0; i < 20; i++)
        if (!sigsetjmp(jump, 1))
            raise(SIGUSR1);
    expect_firsts(20);
    handle(SIGUSR1, on_first_that_jumps_plainly, SA_NODEFER);
    for (volatile int i = 0; i < 20; i++)
        if (!_setjmp(plain_jump))
            raise(SIGUSR1);
    expect_firsts(20);
}

static void *in_thread(void *unused) {
    set_stack(alternate, 0);
    handle(SIGUSR1, on_first, 0);
    raise(SIGUSR1);
    expect_firsts(1);
    return NULL;
}

int main(int count, char **arguments) {
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    struct itimerspec period = {{0, 100000}, {0, 100000}}, none = {0};
    struct timespec start, now;
    pthread_t thread;
    timer_t timer;
    sigset_t mask;
    file = open(arguments[1], O_RDONLY);
    CHECK(file >= 0);
    /* A process that loses its way ends. */
    pid_t here = getpid(), watch = fork();
    if (watch == 0) {
        for (int i = 0; i < 1200 && getppid() == here; i++)
            usleep(100000);
        kill(getppid() == here ? here : getpid(), SIGKILL);
        _exit(0);
    }
    set_stack(alternate, 0);
    /* Without another signal but the faults of the library's own loads and stores: with the default action, and with a handler. */
    all_kinds();
    handle(SIGSEGV, on_fault, 0);
    handle(SIGBUS, on_fault, 0);
    all_kinds();
    CHECK(faults == 0);
    handle(SIGALRM, on_second, 0);
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    timer_settime(timer, 0, &period, NULL);
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        all_kinds();
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (!failures && (now.tv_sec < start.tv_sec + 3 || seconds < 1000) && now.tv_sec < start.tv_sec + 60);
    CHECK(seconds >= 1000 && off_stack == 0);
    autodisarm = 1;
    set_stack(alternate, SS_AUTODISARM);
    all_kinds();
    autodisarm = 0;
    timer_settime(timer, 0, &none, NULL);
    set_stack(other, 0);
    pthread_create(&thread, NULL, in_thread, NULL);
    pthread_join(thread, NULL);
    sigprocmask(0, NULL, &mask);
    for (int i = 1; i < 65; i++)
        CHECK(!sigismember(&mask, i));
    kill(watch, SIGKILL);
    waitpid(watch, NULL, 0);
    return failures != 0;
}
