/* What the kernel stores into a mapping by itself: results of calls that have nothing to do with files, and the word of a lock whose owner has died (PTHREAD_MUTEX_ROBUST). A mapping whose stores are
 * noticed by page protection lets them through. */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>

#define BYTES (4 << 20)
static char *memory;

/* More than the period in which stores are followed, after which pages are protected again. */
static void rest(int milliseconds)
{
    struct timespec time = { milliseconds / 1000, milliseconds % 1000 * 1000000L };
    MUST(nanosleep(&time, NULL) == 0);
}

static void results(void)
{
    for (int round = 0; round < 2; round++) {
        struct iovec to = { memory + 600000, 100 }, from = { memory, 100 };
        SHOW(getrandom(memory + 100000, 50000, 0));
        rest(250);
        SHOW(uname((struct utsname *)(memory + 300000)));
        SHOW(process_vm_readv(getpid(), &to, 1, &from, 1, 0));
        int *ends = (int *)(memory + 700000);
        SHOW(pipe(ends));
        MUST(close(ends[0]) == 0 && close(ends[1]) == 0);
        SHOW(getrusage(RUSAGE_SELF, (struct rusage *)(memory + 800000)));
        for (int way = 0; way < 2; way++) {
            pid_t pid = fork();
            if (pid == 0)
                _exit(5);
            printf("waited: %d\n", (way ? waitid(P_PID, pid, (siginfo_t *)(memory + 1000000), WEXITED) : waitpid(pid, (int *)(memory + 900000), 0)) >= 0);
        }
        rest(250);
    }
    memset(memory, 0, 1 << 20);
}

/* The owner of a lock ends in a way: by a signal, or of itself. */
static void locks(const char *path, int way)
{
    pthread_mutexattr_t robust;
    pthread_mutex_t *lock = (pthread_mutex_t *)(memory + 3000000);
    MUST(pthread_mutexattr_init(&robust) == 0 && pthread_mutexattr_setpshared(&robust, PTHREAD_PROCESS_SHARED) == 0);
    MUST(pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST) == 0);
    MUST(pthread_mutex_init(lock, &robust) == 0);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        /* A mapping of its own, which is followed by this process. */
        int fd = open(path, O_RDWR);
        char *own = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        MUST(own != MAP_FAILED && pthread_mutex_lock((pthread_mutex_t *)(own + 3000000)) == 0);
        rest(800);
        if (way == 0)
            kill(getpid(), SIGKILL);
        if (way == 1)
            pthread_exit(NULL);
        _exit(0);
    }
    rest(300);
    struct timespec end;
    int status;
    MUST(clock_gettime(CLOCK_REALTIME, &end) == 0);
    end.tv_sec += 10;
    printf("the owner died: %d\n", pthread_mutex_timedlock(lock, &end) == EOWNERDEAD);
    MUST(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) == (way == 0));
    MUST(pthread_mutex_consistent(lock) == 0 && pthread_mutex_unlock(lock) == 0);
    memset(lock, 0, sizeof *lock);
}

int main(int count, char **arguments)
{
    if (count < 2)
        return 2;
    const char *path = strdup(in(arguments[1], "file"));
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    unsigned char *zeros = calloc(1, BYTES);
    MUST(fd >= 0 && zeros && pwrite(fd, zeros, BYTES, 0) == BYTES);
    memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(memory != MAP_FAILED);
    results();
    for (int way = 0; way < 3; way++)
        locks(path, way);
    /* Who dies of a fault would take what is printed along. */
    MUST(munmap(memory, BYTES) == 0 && close(fd) == 0);
    return 0;
}
