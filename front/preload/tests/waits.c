/* Signals that come while a call waits: in a directory that is given, which may be an array's or a plain one. Says what happened, one line
 * per scene, so that both can be compared. A scene that hangs is ended by a watch. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/openat2.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define MUST(what) ((what) ? (void)0 : (printf("line %d: %s (%s)\n", __LINE__, #what, strerror(errno)), fflush(stdout), exit(1)))

static char directory[256], outside[256];
static const char *in(const char *name) {
    static char paths[8][512];
    static int next;
    char *path = paths[next++ & 7];
    snprintf(path, sizeof paths[0], "%s/%s", directory, name);
    return path;
}

/* Handlers tell the other side by this pipe that they have run. */
static int told[2];
static volatile sig_atomic_t handled;
static void tell(int number) {
    int before = errno;
    handled++;
    write(told[1], "x", 1);
    errno = before;
}
/* Whether a handler has told so within two seconds. */
static int is_told(void) {
    struct pollfd look = {told[0], POLLIN};
    char byte;
    return poll(&look, 1, 2000) == 1 && read(told[0], &byte, 1) == 1;
}

static void on(int number, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigaction(number, &action, NULL);
}

static void nap(int milliseconds) { usleep(milliseconds * 1000); }

/* A child that runs `act`, and ends with what it returns. */
static pid_t child(int (*act)(pid_t), pid_t other) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0)
        _exit(act(other));
    return pid;
}
static int ended(pid_t pid) {
    int status;
    waitpid(pid, &status, 0);
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* ---- FIFOs ---- */

static const char *other_end;
static int other_flags, signal_count;

/* Sends signals while the other process waits, then opens the other end. */
static int interrupt_and_open(pid_t waiter) {
    int late = 0;
    nap(50);
    for (int i = 0; i < signal_count; i++) {
        kill(waiter, i & 1 ? SIGUSR2 : SIGUSR1);
        late += !is_told();
    }
    int end = open(other_end, other_flags);
    if (other_flags == O_WRONLY)
        write(end, "text", 4);
    nap(20);
    return end < 0 ? 100 : late;
}

enum { OPEN, OPENAT, OPENAT2, CREAT, LINK, OUTSIDE, MAGIC, NOFOLLOW };
static int open_by(int way, int flags) {
    struct open_how how = {.flags = flags, .resolve = RESOLVE_NO_SYMLINKS};
    char path[64];
    int base, found;
    switch (way) {
    case OPENAT:
        MUST((base = open(directory, O_RDONLY | O_DIRECTORY)) >= 0);
        found = openat(base, "pipe", flags);
        break;
    case OPENAT2:
        MUST((base = open(directory, O_PATH | O_DIRECTORY)) >= 0);
        found = syscall(SYS_openat2, base, "pipe", &how, sizeof how);
        break;
    case MAGIC:
        MUST((base = open(in("pipe"), O_PATH)) >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", base);
        found = open(path, flags);
        break;
    case CREAT:
        return creat(in("pipe"), 0600);
    case LINK:
        return open(in("link"), flags);
    case OUTSIDE:
        return open(outside, flags);
    case NOFOLLOW:
        return open(in("pipe"), flags | O_NOFOLLOW);
    default:
        return open(in("pipe"), flags);
    }
    int error = errno;
    close(base);
    errno = error;
    return found;
}

static void fifo(int way, int flags, const char *name) {
    char text[8] = {0};
    other_end = in("pipe"), other_flags = flags == O_RDONLY ? O_WRONLY : O_RDONLY;
    for (signal_count = 0; signal_count < 4; signal_count++) {
        on(SIGUSR1, tell, SA_RESTART);
        on(SIGUSR2, tell, SA_RESTART);
        handled = 0;
        pid_t opener = child(interrupt_and_open, getpid());
        int end = open_by(way, flags), error = errno, count = 0;
        if (end >= 0 && flags == O_RDONLY)
            count = read(end, text, sizeof text);
        int kept = way == NOFOLLOW ? ~O_NOFOLLOW : ~0;
        printf("%s %d: descriptor %d (%s), %d bytes, flags %o, %d handled, ", name, signal_count, end, end < 0 ? strerror(error) : "",
            count, fcntl(end, F_GETFL) & kept, (int)handled);
        int late = ended(opener);
        close(end);
        printf("late %d\n", late);
    }
}

/* Without SA_RESTART the open ends; O_NONBLOCK does not wait. */
static int interrupt_once(pid_t waiter) {
    nap(50);
    kill(waiter, SIGUSR1);
    nap(100);
    return 0;
}
static void fifo_errors(void) {
    on(SIGUSR1, tell, 0);
    handled = 0;
    pid_t sender = child(interrupt_once, getpid());
    int end = open(in("pipe"), O_RDONLY);
    int error = errno;
    printf("interrupted: %d %s, %d handled\n", end, strerror(error), (int)handled);
    ended(sender);
    is_told();
    end = open(in("pipe"), O_WRONLY | O_NONBLOCK), error = errno;
    printf("nobody reads: %d %s\n", end, strerror(error));
    end = open(in("pipe"), O_RDONLY | O_NONBLOCK);
    printf("nobody writes: %d\n", end);
    close(end);
    end = open(in("pipe"), O_RDONLY | O_CREAT | O_EXCL, 0600), error = errno;
    printf("exclusive: %d %s\n", end, strerror(error));
    end = open(in("pipe"), O_RDONLY | O_DIRECTORY), error = errno;
    printf("directory: %d %s\n", end, strerror(error));
}

/* Another signal that has no handler ends the program, also after a handler has run. */
static int wait_for_pipe(pid_t unused) { return open(in("pipe"), O_RDONLY) < 0; }
static void fifo_death(void) {
    on(SIGUSR1, tell, SA_RESTART);
    pid_t waiter = child(wait_for_pipe, 0);
    nap(50);
    kill(waiter, SIGUSR1);
    int is_late = !is_told();
    kill(waiter, SIGTERM);
    nap(200);
    kill(waiter, SIGKILL);
    printf("ended by %d, late %d\n", ended(waiter) - 1000, is_late);
}

/* Another pipe takes the name while the first is waited for: behind a handler the name is looked up again. */
static int replace_and_open(pid_t waiter) {
    nap(50);
    kill(waiter, SIGUSR1);
    int late = !is_told();
    /* Until it waits again: see docs/differ.md. */
    nap(150);
    rename(in("other"), in("pipe"));
    kill(waiter, SIGUSR1);
    late += !is_told();
    int end = open(in("pipe"), O_WRONLY);
    write(end, "new", 3);
    nap(20);
    return late;
}
static void fifo_replaced(void) {
    char text[8] = {0};
    on(SIGUSR1, tell, SA_RESTART);
    MUST(mkfifo(in("other"), 0600) == 0);
    pid_t opener = child(replace_and_open, getpid());
    int end = open(in("pipe"), O_RDONLY);
    read(end, text, 4);
    printf("replaced: %d %s, late %d\n", end, text, ended(opener));
    close(end);
}

/* A regular file takes the name. */
static int replace_by_file(pid_t waiter) {
    nap(50);
    kill(waiter, SIGUSR1);
    int late = !is_told();
    nap(150);
    rename(in("file"), in("pipe2"));
    kill(waiter, SIGUSR1);
    return late + !is_told();
}
static void fifo_becomes_file(void) {
    char text[8] = {0};
    on(SIGUSR1, tell, SA_RESTART);
    MUST(mkfifo(in("pipe2"), 0600) == 0);
    int file = creat(in("file"), 0600);
    MUST(write(file, "file", 4) == 4 && close(file) == 0);
    pid_t opener = child(replace_by_file, getpid());
    int end = open(in("pipe2"), O_RDONLY);
    int count = read(end, text, 8);
    printf("a file: %d %d %s at %d, late %d\n", end, count, text, (int)lseek(end, 0, SEEK_CUR), ended(opener));
    close(end);
    unlink(in("pipe2"));
}

static int descriptors(void) {
    DIR *list = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(list))
        count++;
    closedir(list);
    return count;
}

/* A handler leaves by a jump, many times. */
static sigjmp_buf back;
static void leave(int number) { handled++; siglongjmp(back, 1); }
static int interrupt_often(pid_t waiter) {
    while (kill(waiter, SIGUSR1) == 0)
        nap(3);
    return 0;
}
static void fifo_left(void) {
    on(SIGUSR1, tell, SA_RESTART);
    on(SIGUSR2, leave, SA_RESTART);
    int before = descriptors();
    handled = 0;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2};
    struct itimerspec once = {{0, 0}, {0, 3000000}};
    timer_t timer;
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    for (int i = 0; i < 60; i++)
        if (!sigsetjmp(back, 1)) {
            timer_settime(timer, 0, &once, NULL);
            open(in("pipe"), O_RDONLY);
        }
    timer_delete(timer);
    int more = descriptors() - before;
    if (more > 2)
        printf("%d descriptors are left\n", more);
    printf("left %d times\n", (int)handled);
}

/* Cancelled threads. */
static volatile int cleaned;
static void clean(void *unused) { cleaned++; }
static void *open_for_good(void *unused) {
    pthread_cleanup_push(clean, 0);
    open(in("pipe"), O_RDONLY);
    pthread_cleanup_pop(0);
    return 0;
}
static void fifo_cancelled(void) {
    int before = descriptors(), joined = 0;
    for (int i = 0; i < 40; i++) {
        pthread_t thread;
        void *result;
        MUST(pthread_create(&thread, 0, open_for_good, 0) == 0);
        usleep(i * 100);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        joined += result == PTHREAD_CANCELED;
    }
    int more = descriptors() - before;
    if (more > 2)
        printf("%d descriptors are left\n", more);
    printf("cancelled %d, cleaned %d\n", joined, cleaned);
}

/* A thread waits, another one works and forks. */
static void *read_pipe(void *unused) {
    char text[8] = {0};
    int end = open(in("pipe"), O_RDONLY);
    long count = read(end, text, 8);
    close(end);
    return (void *)count;
}
static void fifo_in_a_thread(void) {
    pthread_t thread;
    void *result;
    on(SIGUSR1, tell, SA_RESTART);
    pthread_create(&thread, 0, read_pipe, 0);
    nap(20);
    pthread_kill(thread, SIGUSR1);
    int late = !is_told();
    int file = open(in("file2"), O_RDWR | O_CREAT, 0600);
    int written = write(file, "12345", 5);
    pid_t pid = fork();
    if (pid == 0)
        _exit(pwrite(file, "67", 2, 5));
    int child = ended(pid);
    int end = open(in("pipe"), O_WRONLY);
    write(end, "abc", 3);
    close(end);
    pthread_join(thread, &result);
    printf("thread: %ld bytes, file %d %d, late %d\n", (long)result, written, child, late);
    close(file);
}

/* A child of vfork waits. */
static volatile pid_t *shared;
static int interrupt_guest(pid_t unused) {
    while (*shared == 0)
        nap(1);
    nap(30);
    kill(*shared, SIGUSR1);
    int late = !is_told();
    int end = open(in("pipe"), O_WRONLY);
    write(end, "guest", 5);
    nap(20);
    return late;
}
static void fifo_in_a_guest(void) {
    char text[8] = {0};
    *shared = 0;
    pid_t opener = child(interrupt_guest, 0);
    pid_t guest = vfork();
    if (guest == 0) {
        on(SIGUSR1, tell, SA_RESTART);
        *shared = getpid();
        int end = open(in("pipe"), O_RDONLY);
        read(end, text, 8);
        _exit(end);
    }
    int end = ended(guest);
    printf("guest: %d %s, late %d\n", end, text, ended(opener));
}

/* ---- what is looked at after a wait ---- */

enum { RECORD, FLOCK, ACCEPT, EVENTS, PIPE, WAY_COUNT };
static const char *const ways[] = {"fcntl", "flock", "accept", "io_getevents", "fifo"};
static int locked, listening;
static aio_context_t context;

static int wait_by(int way) {
    struct flock record = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 10};
    struct sockaddr_un from;
    socklen_t bytes = sizeof from;
    struct timespec limit = {1, 500000000};
    struct io_event event;
    switch (way) {
    case RECORD:
        return fcntl(locked, F_SETLKW, &record);
    case FLOCK:
        return flock(locked, LOCK_EX);
    case ACCEPT:
        return accept(listening, (struct sockaddr *)&from, &bytes) < 0 ? -1 : 0;
    case EVENTS:
        return syscall(SYS_io_getevents, context, 1, 1, &event, &limit) < 0 ? -1 : 0;
    default:
        return open(in("pipe"), O_RDONLY) < 0 ? -1 : 0;
    }
}

/* Holds what is waited for until the handlers have told, and gives it. */
static int waited_for;
static int ready[2];
static int hold(pid_t waiter) {
    struct flock record = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 10};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int file = open(in("locked"), O_RDWR);
    if (waited_for == RECORD)
        fcntl(file, F_SETLKW, &record);
    if (waited_for == FLOCK)
        flock(file, LOCK_EX);
    write(ready[1], "x", 1);
    nap(50);
    kill(waiter, SIGUSR1);
    int late = !is_told();
    if (waited_for == ACCEPT) {
        int end = socket(AF_UNIX, SOCK_STREAM, 0);
        strcpy(address.sun_path, in("socket"));
        connect(end, (struct sockaddr *)&address, sizeof address);
    }
    if (waited_for == PIPE)
        open(in("pipe"), O_WRONLY);
    nap(20);
    return late;
}

/* A handler that needs much stack and uses the array in it. */
static void use_stack(int number) {
    volatile char room[600 << 10];
    char text[16] = {0};
    for (size_t i = 0; i < sizeof room; i += 4096)
        room[i] = 1;
    int file = open(in("locked"), O_RDONLY);
    handled += pread(file, text, 8, 0) == 8 && memcmp(text, "contents", 8) == 0;
    close(file);
    tell(number);
}

/* A handler that goes to another context, which uses the array, and comes back. */
static ucontext_t interrupted, other;
static char other_stack[256 << 10];
static void in_other_context(void) {
    for (;;) {
        char text[16] = {0};
        int file = open(in("locked"), O_RDONLY);
        for (int i = 0; i < 50; i++)
            handled += pread(file, text, 8, 0) == 8 && memcmp(text, "contents", 8) == 0;
        close(file);
        swapcontext(&other, &interrupted);
    }
}
static void go_elsewhere(int number) {
    swapcontext(&interrupted, &other);
    tell(number);
}

static void waits(int way, const char *name, void (*handler)(int)) {
    char byte;
    waited_for = way;
    handled = 0;
    on(SIGUSR1, handler, SA_RESTART);
    pid_t holder = child(hold, getpid());
    read(ready[0], &byte, 1);
    int result = wait_by(way), error = errno;
    printf("%s %s: %d %s, %d handled, late %d\n", name, ways[way], result, result < 0 ? strerror(error) : "", (int)handled, ended(holder));
    if (way == RECORD) {
        struct flock record = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
        fcntl(locked, F_SETLK, &record);
    }
    if (way == FLOCK)
        flock(locked, LOCK_UN);
}

/* A handler leaves each kind of wait by a jump; then the call works as ever. */
static int hold_for_good(pid_t unused) {
    struct flock record = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 10};
    int file = open(in("locked"), O_RDWR);
    if (waited_for == RECORD)
        fcntl(file, F_SETLKW, &record);
    else
        flock(file, LOCK_EX);
    write(ready[1], "x", 1);
    pause();
    return 0;
}
static void left(int way) {
    char byte;
    pid_t holder = 0;
    waited_for = way;
    handled = 0;
    if (way == RECORD || way == FLOCK) {
        holder = child(hold_for_good, 0);
        read(ready[0], &byte, 1);
    }
    on(SIGUSR2, leave, SA_RESTART);
    for (int i = 0; i < 30; i++)
        if (!sigsetjmp(back, 1)) {
            struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2};
            struct itimerspec once = {{0, 0}, {0, 3000000}};
            timer_t timer;
            timer_create(CLOCK_MONOTONIC, &event, &timer);
            timer_settime(timer, 0, &once, NULL);
            wait_by(way);
        }
    printf("left %s %d times\n", ways[way], (int)handled);
    if (holder) {
        kill(holder, SIGKILL);
        ended(holder);
    }
    waits(way, "then", tell);
}

/* Signals at any instruction of served calls, with handlers that need much stack or go elsewhere. */
static void storm(void (*handler)(int), const char *name) {
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    struct itimerspec period = {{0, 100000}, {0, 100000}};
    char text[16];
    timer_t timer;
    long wrong = 0;
    handled = 0;
    on(SIGUSR1, handler, SA_RESTART);
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    timer_settime(timer, 0, &period, NULL);
    time_t end = time(NULL) + 60;
    while (handled < 20000 && time(NULL) < end)
        for (int i = 0; i < 100; i++)
            wrong += pread(locked, text, 8, 0) != 8 || memcmp(text, "contents", 8);
    timer_delete(timer);
    printf("%s: %ld wrong, enough %d\n", name, wrong, handled >= 20000);
}
static void count(int number) {
    char text[16] = {0};
    volatile char room[300 << 10];
    for (size_t i = 0; i < sizeof room; i += 4096)
        room[i] = 1;
    handled += 20 * (pread(locked, text, 8, 0) == 8 && memcmp(text, "contents", 8) == 0);
}
static void visit(int number) { swapcontext(&interrupted, &other); }

/* ---- copies without memory for what is copied at once ---- */

static int copy_with_little_memory(pid_t unused) {
    char text[256];
    long pages;
    int null = open("/dev/null", O_WRONLY), file = open(in("long"), O_RDWR), ends[2];
    int copied = open(in("copied"), O_RDWR | O_CREAT, 0600);
    MUST(pipe(ends) == 0 && fcntl(ends[0], F_SETPIPE_SZ, 1 << 20) == 1 << 20);
    /* Whatever is made at a first call is there. */
    MUST(sendfile(null, file, NULL, 10) == 10 && splice(file, NULL, ends[1], NULL, 10, 0) == 10);
    MUST(splice(ends[0], NULL, file, NULL, 10, 0) == 10);
    lseek(file, 0, SEEK_SET);
    FILE *statm = fopen("/proc/self/statm", "r");
    MUST(fscanf(statm, "%ld", &pages) == 1);
    fclose(statm);
    struct rlimit limit = {(pages << 12) + (160 << 10), RLIM_INFINITY};
    MUST(setrlimit(RLIMIT_AS, &limit) == 0);
    long sent = sendfile(null, file, NULL, 3 << 20);
    lseek(file, 0, SEEK_SET);
    long moved = copy_file_range(file, NULL, copied, NULL, 3 << 20, 0);
    lseek(file, 0, SEEK_SET);
    int into = splice(file, NULL, ends[1], NULL, 1 << 20, 0) > 0, out = splice(ends[0], NULL, copied, NULL, 1 << 20, 0) > 0;
    printf("little memory: sent %ld, copied %ld, spliced %d and %d\n", sent, moved, into, out);
    return 0;
}
static void little_memory(void) {
    int file = open(in("long"), O_RDWR | O_CREAT, 0600);
    MUST(ftruncate(file, 3 << 20) == 0 && pwrite(file, "x", 1, 2 << 20) == 1);
    close(file);
    int result = ended(child(copy_with_little_memory, 0));
    printf("ended %d\n", result);
}

int main(int argument_count, char **arguments) {
    strcpy(directory, arguments[1]);
    strcpy(outside, arguments[2]);
    setvbuf(stdout, NULL, _IOLBF, 0);
    MUST(pipe(told) == 0 && pipe(ready) == 0);
    shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    /* Children that wait keep the output open: they end with this process. */
    MUST(setpgid(0, 0) == 0);
    pid_t here = getpid();
    pid_t watch = fork();
    if (watch == 0) {
        for (int i = 0; i < 2400 && getppid() == here; i++)
            nap(100);
        if (getppid() == here)
            kill(-here, SIGKILL);
        _exit(0);
    }
    signal(SIGPIPE, SIG_IGN);
    MUST(mkfifo(in("pipe"), 0600) == 0);
    MUST(symlink("pipe", in("link")) == 0);
    int file = creat(in("locked"), 0600);
    MUST(write(file, "contents and more", 17) == 17 && close(file) == 0);
    MUST((locked = open(in("locked"), O_RDWR)) >= 0);
    MUST((listening = socket(AF_UNIX, SOCK_STREAM, 0)) >= 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, in("socket"));
    MUST(bind(listening, (struct sockaddr *)&address, sizeof address) == 0 && listen(listening, 5) == 0);
    MUST(syscall(SYS_io_setup, 8, &context) == 0);
    getcontext(&other);
    other.uc_stack.ss_sp = other_stack, other.uc_stack.ss_size = sizeof other_stack;
    sigaddset(&other.uc_sigmask, SIGUSR1);
    makecontext(&other, in_other_context, 0);

    fifo(OPEN, O_RDONLY, "open");
    fifo(OPEN, O_WRONLY, "open for writing");
    fifo(OPENAT, O_RDONLY, "openat");
    fifo(OPENAT2, O_RDONLY, "openat2");
    fifo(CREAT, O_WRONLY, "creat");
    fifo(LINK, O_RDONLY, "symlink");
    fifo(OUTSIDE, O_RDONLY, "symlink from outside");
    fifo(MAGIC, O_RDONLY, "magic link");
    fifo(NOFOLLOW, O_RDONLY, "nofollow");
    fifo_errors();
    fifo_death();
    fifo_replaced();
    fifo_becomes_file();
    fifo_left();
    fifo_cancelled();
    fifo_in_a_thread();
    fifo_in_a_guest();
    for (int way = 0; way < WAY_COUNT; way++) {
        waits(way, "plain", tell);
        waits(way, "stack", use_stack);
        waits(way, "context", go_elsewhere);
        left(way);
    }
    little_memory();
    storm(count, "stack");
    storm(visit, "context");
    kill(watch, SIGKILL);
    waitpid(watch, NULL, 0);
    return 0;
}
