/* Executes programs while other threads and handlers of signals use what those programs inherit. Works in its current
 * directory, and says what is wrong; nothing if all is right. Its arguments: what to do, a static program (handed.c), one that cannot
 * be executed, and how often.
 *
 * Records are of seven bytes, so that one which overwrites another leaves none torn. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RECORD = 7, LOG = 7, PIECE = 1 << 20, PIECE_COUNT = 8 };

/* What is counted must outlive the program that counts. */
static struct { atomic_int threads, signals, stop; } *shared;
static int written_by, main_thread, wrong;
/* A thread whose exec failed has a current directory of its own, wherever the others were at that time (docs/processes.md). */
static char log_path[4096 + 8];

static void complain(const char *what, long found, long expected) {
    printf("%s: %ld, expected %ld (%s)\n", what, found, expected, strerror(errno));
    wrong = 1;
}

static void handler(int number) {
    if (write(LOG, "signal\n", RECORD) == RECORD) shared->signals++;
}

static void *writer(void *unused) {
    while (!shared->stop)
        if (write(written_by, "thread\n", RECORD) == RECORD) shared->threads++;
    return unused;
}

static void *signaller(void *unused) {
    usleep(rand() % 3000);
    syscall(SYS_tgkill, getpid(), main_thread, SIGURG);
    return unused;
}

/* Opens, duplicates and closes files, forks, and moves about. */
static void *restless(void *unused) {
    char text[4096], begin[4096];
    if (!getcwd(begin, sizeof begin)) complain("getcwd", -1, 0);
    while (!shared->stop) {
        int other = open("other", O_RDWR | O_CREAT, 0600), same = dup(LOG);
        if (fcntl(other, F_GETFD) != 0) complain("flags of a new descriptor", fcntl(other, F_GETFD), 0);
        if (fcntl(same, F_GETFD) != 0) complain("flags of a duplicate", fcntl(same, F_GETFD), 0);
        if (fcntl(LOG, F_GETFD) != 0) complain("flags of the log", fcntl(LOG, F_GETFD), 0);
        if (fcntl(same, F_SETFD, FD_CLOEXEC) || fcntl(same, F_GETFD) != FD_CLOEXEC) complain("a mark", fcntl(same, F_GETFD), FD_CLOEXEC);
        if (ioctl(same, FIONCLEX) || fcntl(same, F_GETFD) != 0) complain("a mark taken away", fcntl(same, F_GETFD), 0);
        if (ioctl(same, FIOCLEX) || fcntl(same, F_GETFD) != FD_CLOEXEC) complain("a mark by ioctl", fcntl(same, F_GETFD), FD_CLOEXEC);
        /* A number of the array's that becomes a pipe's is not unmarked by an exec that has seen the array's file. */
        int passing = dup(LOG), pipes[2];
        if (close(passing) || pipe2(pipes, O_CLOEXEC)) complain("a pipe", -1, 0);
        usleep(100);
        if (fcntl(pipes[0], F_GETFD) != FD_CLOEXEC) complain("flags of a pipe", fcntl(pipes[0], F_GETFD), FD_CLOEXEC);
        close(pipes[0]), close(pipes[1]);
        if (pwrite(other, "others\n", RECORD, 0) != RECORD || pread(other, text, RECORD, 0) != RECORD || memcmp(text, "others\n", RECORD))
            complain("a file of one's own", 0, RECORD);
        if (write(same, "thread\n", RECORD) == RECORD) shared->threads++;
        close(same);
        pid_t child = fork();
        if (child == 0) _exit(fcntl(LOG, F_GETFD) == 0 && fcntl(other, F_GETFD) == 0 ? 0 : 1);
        int status;
        if (waitpid(child, &status, 0) != child || status) complain("what a child inherits", status, 0);
        close(other);
        if (chdir("sub") || !getcwd(text, sizeof text) || strcmp(text + strlen(begin), "/sub") || chdir("..")) complain("chdir", 0, 0);
    }
    return unused;
}

/* Writes one piece by a descriptor that no exec waits for, until an exec ends this thread in the middle of that. */
static void *piecemeal(void *unused) {
    static atomic_int threads;
    long at = threads++ % PIECE_COUNT * (long)PIECE;
    char *piece = malloc(PIECE);
    int fd = open("pieces", O_WRONLY | O_CLOEXEC);
    for (unsigned seed = at + 1;;) {
        memset(piece, 'a' + rand_r(&seed) % 26, PIECE);
        if (pwrite(fd, piece, PIECE, at) != PIECE) complain("a piece", 0, PIECE);
        shared->threads++;
    }
    return unused;
}

static pthread_t start(void *(*work)(void *)) {
    pthread_t thread;
    sigset_t urgent, before;
    sigemptyset(&urgent), sigaddset(&urgent, SIGURG);
    pthread_sigmask(SIG_BLOCK, &urgent, &before);
    if (pthread_create(&thread, NULL, work, NULL)) complain("a thread", 0, 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return thread;
}

/* The log has `others` records of threads and handlers, or one more that was not counted any more, then these. */
static void check(int others, int spare, const char *last) {
    int fd = open(log_path, O_RDONLY), length = strlen(last);
    struct stat found;
    fstat(fd, &found);
    int excess = found.st_size / RECORD - others - length / RECORD;
    if (found.st_size % RECORD || excess < 0 || excess > spare) complain("bytes of the log", found.st_size, (long)others * RECORD + length);
    char *text = calloc(found.st_size + 1, 1);
    if (pread(fd, text, found.st_size, 0) != found.st_size) complain("read", 0, found.st_size);
    for (long at = 0; at + length < found.st_size; at += RECORD)
        if (memcmp(text + at, "thread\n", RECORD) && memcmp(text + at, "signal\n", RECORD)) { complain("a record", at, 0); break; }
    if (found.st_size < length || strcmp(text + found.st_size - length, last)) complain("the last records", 0, 0);
    free(text), close(fd);
}

static void begin(int flags) {
    int fd = open("log", flags | O_CREAT | O_TRUNC, 0600);
    if (fd != LOG) dup2(fd, LOG), close(fd);
    shared->threads = shared->signals = shared->stop = 0;
    written_by = LOG;
}

/* The static program `fixed` is executed by a program whose threads write. Neither it, by way of a mount if there is one, nor this program waits for a lock that such
 * a thread had. In a crowd more programs read by the mount than it serves at a time. */
static void leave_locks(const char *fixed, int rounds, int is_mounted, int crowd_count) {
    static char piece[PIECE];
    int fd = open("pieces", O_RDWR | O_CREAT, 0600);
    if (fd != LOG) dup2(fd, LOG), close(fd);
    memset(piece, 'Z', PIECE);
    for (int index = 0; index < PIECE_COUNT; index++) pwrite(LOG, piece, PIECE, (long)PIECE * index);
    for (int round = 0; round < rounds && !wrong; round++) {
        int executed[2], go[2], status;
        char end[16];
        pipe2(executed, O_CLOEXEC), pipe2(go, O_CLOEXEC);
        shared->threads = 0;
        char first = 'a';
        pwrite(LOG, &first, 1, 0);
        for (int index = 0; index < crowd_count; index++)
            if (fork() == 0) execl(fixed, "handed", "v7", NULL), _exit(9);
        pid_t child = fork();
        if (child == 0) {
            srand(round);
            snprintf(end, sizeof end, "r%d", dup(go[0]));
            for (int index = 0; index < PIECE_COUNT; index++) start(piecemeal);
            while (shared->threads < 2 * PIECE_COUNT) usleep(100);
            if (crowd_count) usleep(200000);
            usleep(rand() % 5000);
            if (is_mounted) execl(fixed, "handed", "c7", end, NULL);
            else execl(fixed, "handed", end, NULL);
            _exit(9);
        }
        close(executed[1]), close(go[0]);
        if (read(executed[0], end, 1) != 0) complain("the pipe that the exec closes", 1, 0);
        for (int index = 0; index < PIECE_COUNT; index++) {
            if (pread(LOG, piece, PIECE, (long)PIECE * index) != PIECE) complain("read", index, PIECE);
            memset(piece, 'Z', PIECE);
            if (pwrite(LOG, piece, PIECE, (long)PIECE * index) != PIECE) complain("write", index, PIECE);
        }
        close(executed[0]), close(go[1]);
        for (int index = 0; index <= crowd_count; index++)
            if (wait(&status) < 0 || status) complain("a static program", status, 0);
    }
}

int main(int count, char **arguments) {
    if (count != 5) return 2;
    int rounds = atoi(arguments[4]), is_failing = !strcmp(arguments[1], "failing"), has_signals = !strcmp(arguments[1], "signals");
    int is_for_both = !strcmp(arguments[1], "both"), by_another = !strcmp(arguments[1], "another");
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGURG, &action, NULL);
    mkdir("sub", 0755);
    if (!getcwd(log_path, 4096)) return 2;
    strcat(log_path, "/log");
    if (!strncmp(arguments[1], "locks", 5)) {
        leave_locks(arguments[2], rounds, strcmp(arguments[1], "locks-unmounted"), strcmp(arguments[1], "locks-crowd") ? 0 : 40);
        return wrong;
    }
    if (is_failing) {
        begin(O_RDWR);
        main_thread = gettid();
        pthread_t threads[] = {start(writer), start(restless)};
        for (int round = 0; round < rounds; round++) {
            pthread_t third = start(signaller);
            execl(arguments[3], "bad", NULL);
            pthread_join(third, NULL);
        }
        shared->stop = 1;
        pthread_join(threads[0], NULL), pthread_join(threads[1], NULL);
        check(shared->threads + shared->signals, 0, "");
        return wrong;
    }
    for (int round = 0; round < rounds && !wrong; round++) {
        begin(is_for_both ? O_RDWR : O_WRONLY);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            srand(round);
            main_thread = gettid();
            if (by_another) written_by = fcntl(LOG, F_DUPFD_CLOEXEC, 20);
            if (has_signals) start(signaller);
            else start(writer);
            while (!has_signals && !shared->threads) usleep(100);
            usleep(rand() % 1000);
            execl(arguments[2], "handed", "w7", "w7", "w7", NULL);
            _exit(9);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status) complain("the static program", status, 0);
        if (write(LOG, "parent\n", RECORD) != RECORD) complain("write", 0, RECORD);
        check(shared->threads + shared->signals, 1, "static\nstatic\nstatic\nparent\n");
    }
    return wrong;
}
