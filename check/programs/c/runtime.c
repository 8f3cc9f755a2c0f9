/* What a program of any runtime does with files: with a directory as its argument there, without one nothing. It uses nothing that other C libraries lack. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 200000 };

static const char *directory;

#define MUST(condition)                                                    \
    do {                                                                   \
        if (!(condition)) {                                                \
            fflush(stdout);                                                \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            _exit(99);                                                     \
        }                                                                  \
    } while (0)

static const char *in(const char *name)
{
    static __thread char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static unsigned sum(const unsigned char *bytes, size_t count)
{
    unsigned sum = 1;
    while (count--)
        sum = sum * 31 + *bytes++;
    return sum;
}

/* Each thread writes its own file with stdio and reads it with read(2). */
static void *thread(void *name)
{
    FILE *out = fopen(in(name), "w");
    MUST(out);
    for (int line = 0; line < 2000; line++)
        fprintf(out, "%s %d\n", (char *)name, line);
    MUST(fclose(out) == 0);
    char *back = malloc(BYTES);
    int fd = open(in(name), O_RDONLY);
    size_t length = 0;
    for (ssize_t count; (count = read(fd, back + length, BYTES - length)) > 0;)
        length += count;
    MUST(close(fd) == 0);
    unsigned *result = malloc(sizeof *result);
    *result = sum((unsigned char *)back, length);
    free(back);
    return result;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        puts("nothing touched");
        return 0;
    }
    directory = argv[1];
    unsigned char *bytes = malloc(BYTES), *back = malloc(BYTES);
    for (int index = 0; index < BYTES; index++)
        bytes[index] = index * 7 + index / 251;
    int fd = open(in("data"), O_RDWR | O_CREAT | O_TRUNC, 0640);
    MUST(fd >= 0 && write(fd, bytes, BYTES) == BYTES && pwrite(fd, bytes, 5000, 70000) == 5000);
    pid_t child = fork();
    if (child == 0) {
        MUST(lseek(fd, 0, SEEK_END) == BYTES && write(fd, "from the child", 14) == 14);
        _exit(7);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    unsigned char *map = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(map != MAP_FAILED);
    memset(map + 100000, 'm', 3000);
    MUST(msync(map, BYTES, MS_SYNC) == 0 && munmap(map, BYTES) == 0);
    MUST(pread(fd, back, BYTES, 0) == BYTES);
    struct stat stat;
    char *from = strdup(in("data"));
    MUST(fstat(fd, &stat) == 0 && close(fd) == 0 && rename(from, in("renamed")) == 0);
    free(from);
    printf("%ld bytes, sum %08x\n", (long)stat.st_size, sum(back, BYTES));
    pthread_t threads[2];
    char *names[] = {"first", "second"};
    for (int index = 0; index < 2; index++)
        MUST(pthread_create(&threads[index], NULL, thread, names[index]) == 0);
    for (int index = 0; index < 2; index++) {
        void *result;
        MUST(pthread_join(threads[index], &result) == 0);
        printf("%s: sum %08x\n", names[index], *(unsigned *)result);
        free(result);
    }
    free(bytes);
    free(back);
    return 0;
}
