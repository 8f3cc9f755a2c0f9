/* A process whose threads write becomes a program that is linked statically: becomes FILE PROGRAM BAD ROUNDS, where BAD is one that the kernel refuses. What its threads
 * held when the exec ended them must not be held any longer, although the process lives on. */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

enum { THREADS = 3, PIECE = 1 << 20, FILE_BYTES = 2 * PIECE };
static int fd;

static void *write_always(void *argument)
{
    static unsigned char bytes[THREADS][PIECE];
    int number = (int)(intptr_t)argument;
    memset(bytes[number], 'a' + number, PIECE);
    for (int round = 0;; round++)
        MUST(pwrite(fd, bytes[number], PIECE, (round + number) % 2 * (off_t)PIECE) == PIECE);
    return NULL;
}

static void sleep_us(long us)
{
    struct timespec time = { us / 1000000, us % 1000000 * 1000 };
    MUST(nanosleep(&time, NULL) == 0);
}

/* Becomes `program`, which waits for the end of its input. An exec that fails leaves the threads writing. */
static void become(const char *program, const char *bad, int round)
{
    pthread_t thread;
    for (intptr_t number = 0; number < THREADS; number++)
        MUST(pthread_create(&thread, NULL, write_always, (void *)number) == 0);
    sleep_us(3000 + 137 * round);
    MUST(execl(bad, bad, (char *)NULL) == -1);
    sleep_us(500);
    execl(program, program, "wait", (char *)NULL);
    MUST(!"executed");
}

int main(int count, char **arguments)
{
    MUST(count == 5);
    int rounds = atoi(arguments[4]);
    static unsigned char bytes[FILE_BYTES], back[FILE_BYTES];
    fd = open(arguments[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
    MUST(fd >= 0);
    for (int round = 0; round < rounds; round++) {
        int input[2], gone[2];
        char end;
        MUST(pipe(input) == 0 && pipe2(gone, O_CLOEXEC) == 0);
        pid_t pid = fork();
        MUST(pid >= 0);
        if (pid == 0) {
            MUST(dup2(input[0], 0) == 0 && close(input[0]) == 0 && close(input[1]) == 0);
            become(arguments[2], arguments[3], round);
        }
        MUST(close(input[0]) == 0 && close(gone[1]) == 0);
        /* The exec closes the child's end. */
        MUST(read(gone[0], &end, 1) == 0);
        alarm(30);
        memset(bytes, round, sizeof bytes);
        MUST(pwrite(fd, bytes, sizeof bytes, 0) == sizeof bytes);
        MUST(pread(fd, back, sizeof back, 0) == sizeof back && memcmp(bytes, back, sizeof back) == 0);
        alarm(0);
        MUST(kill(pid, 0) == 0 && close(input[1]) == 0 && close(gone[0]) == 0);
        int status;
        MUST(waitpid(pid, &status, 0) == pid && status == 0);
    }
    printf("%d rounds\n", rounds);
    return 0;
}
