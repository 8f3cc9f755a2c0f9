/* One process only reads mappings of a file while another cuts it, lets it grow, and stores to it: what the other has done shows when its call returns. The
   period of following is longer than the test. */
#include "check.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define PAGES 100
#define PAGE 4096
#define BYTES (PAGES * PAGE)

static unsigned char *stored;
static const char *path;
static int ask[2], answer[2];
static sigjmp_buf back;

static void on_fault(int signal)
{
    siglongjmp(back, signal);
}

/* What a load of each page's first byte gives: a digit, or a '!' where there is nothing to load. In runs. */
static void show(const char *what, const unsigned char *map)
{
    volatile int count = 0, last = 0;
    printf("%s:", what);
    for (int page = 0; page <= PAGES; page++) {
        volatile int byte = '!';
        if (page < PAGES && sigsetjmp(back, 1) == 0)
            byte = *(volatile const unsigned char *)(map + page * PAGE) + '0';
        if (page == PAGES || (page && byte != last)) {
            printf(" %d x %c", count, last);
            count = 0;
        }
        last = byte;
        count++;
    }
    printf("\n");
}

/* The other process: each letter is something to do. */
static void act(char letter)
{
    static unsigned char block[BYTES];
    int fd = open(path, O_RDWR);
    MUST(fd >= 0);
    switch (letter) {
    case 'w': memset(block, 1, BYTES); MUST(pwrite(fd, block, BYTES, 0) == BYTES); break;
    case 'c': MUST(ftruncate(fd, 30 * PAGE) == 0); break;
    case 't': MUST(truncate(path, 5 * PAGE) == 0); break;
    case 'o': close(fd); MUST((fd = open(path, O_RDWR | O_TRUNC)) >= 0); break;
    case 'g': MUST(ftruncate(fd, BYTES) == 0); break;
    case 'p': MUST(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 10 * PAGE, 40 * PAGE) == 0); break;
    case 'm': MUST((stored = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) != MAP_FAILED); break;
    case 's': for (int page = 0; page < PAGES; page += 2) stored[page * PAGE] = 2 + page / 10 % 4; break;
    case 'b': memset(block, 8, BYTES); MUST(pwrite(fd, block, 7 * PAGE, 20 * PAGE) == 7 * PAGE); break;
    case 'u': MUST(munmap(stored, BYTES) == 0); break;
    }
    close(fd);
}

static void tell(char letter)
{
    MUST(write(ask[1], &letter, 1) == 1 && read(answer[0], &letter, 1) == 1);
}

static void look(const unsigned char *one, const unsigned char *two)
{
    static const char *const steps[] = {"w", "c", "g", "t", "w", "o", "g", "w", "p", "m", "s", "b", "c", "g", "w", "s", "t", "u", "w", "o"};
    char name[16];
    for (size_t step = 0; step < sizeof steps / sizeof *steps; step++) {
        tell(*steps[step]);
        snprintf(name, sizeof name, "%s %s", two ? "parent" : "child", steps[step]);
        show(name, one);
        if (two)
            show(name, two);
    }
    fflush(stdout);
}

int main(int argc, char **argv)
{
    (void)argc;
    path = strdup(in(argv[1], "read"));
    /* Nothing that is to be seen here waits for the period: the next program of this process has it. */
    if (!getenv("CXLRAID_MAP_PERIOD_MS")) {
        MUST(setenv("CXLRAID_MAP_PERIOD_MS", "600000", 1) == 0);
        MUST(execv("/proc/self/exe", argv) == 0);
    }
    struct sigaction action = {.sa_handler = on_fault};
    MUST(sigaction(SIGBUS, &action, NULL) == 0 && pipe(ask) == 0 && pipe(answer) == 0);
    close(open(path, O_RDWR | O_CREAT | O_TRUNC, 0600));
    pid_t other = fork();
    if (other == 0) {
        char letter;
        MUST(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && close(ask[1]) == 0);
        while (read(ask[0], &letter, 1) == 1) {
            act(letter);
            MUST(write(answer[1], &letter, 1) == 1);
        }
        _exit(0);
    }
    int fd = open(path, O_RDONLY), status;
    const unsigned char *one = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
    tell('w');
    const unsigned char *two = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
    MUST(one != MAP_FAILED && two != MAP_FAILED && close(fd) == 0);
    look(one, two);
    MUST(munmap((void *)one, BYTES) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        look(two, NULL);
        _exit(0);
    }
    MUST(waitpid(child, &status, 0) == child && status == 0);
    look(two, two);
    MUST(close(ask[1]) == 0 && waitpid(other, &status, 0) == other && status == 0);
    return 0;
}
