/* Transfers into pipes that are not empty, into named pipes of the directory, and a transfer that is killed while it waits. */
#include "check.h"
#include <signal.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { BYTES = 300000, PIECE = 65536 };
static const char *d;

/* A pipe into which nothing fits any more. */
static void full_pipe(int ends[2])
{
    static char nothing[4096];
    MUST(pipe2(ends, O_NONBLOCK) == 0);
    while (write(ends[1], nothing, sizeof nothing) > 0)
        ;
    MUST(fcntl(ends[1], F_SETFL, 0) == 0);
}

/* What is sent into a pipe that holds something is what fits. */
static void into_part(int fd)
{
    int ends[2];
    MUST(pipe(ends) == 0 && write(ends[1], "header", 6) == 6 && lseek(fd, 0, SEEK_SET) == 0);
    ssize_t sent = sendfile(ends[1], fd, NULL, PIECE);
    printf("a part is sent: %d, the position follows: %d\n", sent > 0 && sent < PIECE, lseek(fd, 0, SEEK_CUR) == sent);
    static unsigned char back[PIECE];
    MUST(read(ends[0], back, 6) == 6 && memcmp(back, "header", 6) == 0);
    ssize_t count = 0, step;
    while (count < sent && (step = read(ends[0], back + count, sent - count)) > 0)
        count += step;
    static unsigned char expected[PIECE];
    MUST(pread(fd, expected, sent, 0) == sent);
    printf("all of it arrives: %d\n", count == sent && memcmp(back, expected, sent) == 0);
    MUST(close(ends[0]) == 0 && close(ends[1]) == 0);
}

/* A named pipe of the directory is a pipe like any other. */
static void into_named(int fd, int host)
{
    char name[4096];
    snprintf(name, sizeof name, "%s/named", d);
    MUST(mkfifo(name, 0600) == 0);
    int named = open(name, O_RDWR);
    static unsigned char back[PIECE];
    MUST(named >= 0 && lseek(fd, 0, SEEK_SET) == 0);
    for (int from = 0; from < 2; from++) {
        int input = from ? host : fd;
        loff_t offset = 7;
        SHOW(sendfile(named, input, NULL, BYTES));
        SHOW(lseek(input, 0, SEEK_CUR));
        SHOW(read(named, back, PIECE));
        printf("%llx\n", (unsigned long long)sum(back, PIECE, 0));
        off_t from_there = 9;
        SHOW(sendfile(named, input, &from_there, 1000));
        SHOW(from_there);
        SHOW(read(named, back, PIECE));
        SHOW(splice(input, &offset, named, NULL, 1000, 0));
        SHOW(offset);
        SHOW(splice(named, NULL, input, &offset, 1000, 0));
        SHOW(offset);
    }
    MUST(close(named) == 0 && unlink(name) == 0);
}

static void wait_for(int fd, int output, int by_splice)
{
    if (by_splice)
        splice(fd, NULL, output, NULL, PIECE, 0);
    else
        sendfile(output, fd, NULL, PIECE);
    _exit(1);
}

/* Who is killed while he waits for room has taken nothing from those that share the position. */
static void killed(int fd, int by_splice)
{
    int ends[2], status;
    full_pipe(ends);
    MUST(lseek(fd, 5, SEEK_SET) == 5);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0)
        wait_for(fd, ends[1], by_splice);
    usleep(200000);
    SHOW(lseek(fd, 0, SEEK_CUR));
    MUST(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    SHOW(lseek(fd, 0, SEEK_CUR));
    MUST(close(ends[0]) == 0 && close(ends[1]) == 0);
}

/* Who waits for room is interrupted by a signal, and goes on from where he was. */
static void nothing(int signal)
{
    (void)signal;
}

static void interrupted(int fd, int by_splice)
{
    int ends[2];
    struct sigaction action = { .sa_handler = nothing };
    full_pipe(ends);
    MUST(sigaction(SIGALRM, &action, NULL) == 0 && lseek(fd, 9, SEEK_SET) == 9);
    MUST(ualarm(100000, 0) == 0);
    if (by_splice)
        SHOW(splice(fd, NULL, ends[1], NULL, PIECE, 0));
    else
        SHOW(sendfile(ends[1], fd, NULL, PIECE));
    SHOW(lseek(fd, 0, SEEK_CUR));
    MUST(close(ends[0]) == 0 && close(ends[1]) == 0);
}

int main(int argc, char **arguments)
{
    MUST(argc >= 2);
    d = arguments[1];
    char name[4096];
    snprintf(name, sizeof name, "%s/data", d);
    static unsigned char bytes[BYTES];
    fill(bytes, BYTES, 7);
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644), host = open("/tmp", O_RDWR | O_TMPFILE, 0600);
    MUST(fd >= 0 && host >= 0 && write(fd, bytes, BYTES) == BYTES && write(host, bytes, BYTES) == BYTES);
    MUST(lseek(host, 0, SEEK_SET) == 0);
    into_part(fd);
    into_named(fd, host);
    for (int by_splice = 0; by_splice < 2; by_splice++) {
        killed(fd, by_splice);
        interrupted(fd, by_splice);
    }
    MUST(close(fd) == 0 && close(host) == 0);
    return 0;
}
