/* A program that runs out of descriptors again and again, while one of its threads makes, renames and removes names. What it is refused depends on the moment; the names that are left do not, and nothing else goes
 * wrong. */
#include "check.h"
#include <pthread.h>
#include <sys/resource.h>
#include <time.h>

static volatile int over;

/* Takes the descriptors that are left, and gives them back. */
static void *take(void *seed)
{
    unsigned state = (unsigned)(uintptr_t)seed;
    while (!over) {
        int fds[100], count = 0, wanted = 1 + rand_r(&state) % 100;
        while (count < wanted && (fds[count] = open("/dev/null", O_RDONLY)) >= 0)
            count++;
        while (count)
            close(fds[--count]);
    }
    return NULL;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    (void)argc;
    char first[4096], second[4096];
    strcpy(first, in(argv[1], "first"));
    strcpy(second, in(argv[1], "second"));
    struct rlimit before, limit;
    MUST(getrlimit(RLIMIT_NOFILE, &before) == 0);
    limit = (struct rlimit) { 60, before.rlim_max };
    MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    pthread_t threads[2];
    for (uintptr_t index = 0; index < 2; index++)
        MUST(pthread_create(&threads[index], NULL, take, (void *)(index + 1)) == 0);
    int failures = 0;
    for (double end = now() + 1; now() < end;) {
#define TRY(call) failures += (call) < 0 && errno == EIO
        int fd = open(first, O_RDWR | O_CREAT, 0644);
        failures += fd < 0 && errno == EIO;
        if (fd >= 0)
            close(fd);
        TRY(rename(first, second));
        TRY(unlink(second));
        TRY(mkdir(second, 0755));
        TRY(rmdir(second));
        TRY(symlink("second", first));
        TRY(unlink(first));
    }
    over = 1;
    for (int index = 0; index < 2; index++)
        pthread_join(threads[index], NULL);
    MUST(setrlimit(RLIMIT_NOFILE, &before) == 0);
    printf("input/output errors: %d\n", failures);
    for (int index = 0; index < 2; index++) {
        const char *path = index ? second : first;
        /* Whatever is left can be removed, and the name made anew. */
        if (unlink(path) < 0 && errno == EISDIR)
            MUST(rmdir(path) == 0);
        MUST(access(path, F_OK) < 0 && errno == ENOENT);
        int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0644);
        MUST(fd >= 0 && write(fd, path, 5) == 5 && close(fd) == 0);
    }
    return 0;
}
