/* Listings of a process' own descriptors under /proc: with libc, with the bare calls and small buffers, by children of every kind, and while files of the directory are open. A program that
   finds a number there which it has not opened, or closes all that it finds, must do as well as on a plain directory. */
#include "check.h"
#include <dirent.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static char *d;

/* Sorts numbers, since the kernel may list in any order, and prints them without `skipped`, the listing's own. */
static void show_numbers(const char *what, int *numbers, int count, int skipped)
{
    for (int one = 0; one < count; one++)
        for (int two = one + 1; two < count; two++)
            if (numbers[two] < numbers[one]) {
                int number = numbers[one];
                numbers[one] = numbers[two], numbers[two] = number;
            }
    printf("%s:", what);
    for (int index = 0; index < count; index++)
        if (numbers[index] != skipped)
            printf(" %d", numbers[index]);
    printf("\n");
}

static void with_libc(const char *path)
{
    DIR *listing = opendir(path);
    MUST(listing);
    int numbers[1000], count = 0, dots = 0;
    for (struct dirent *entry; (entry = readdir(listing));)
        if (entry->d_name[0] == '.')
            dots++;
        else
            numbers[count++] = atoi(entry->d_name);
    printf("%d dots, ", dots);
    show_numbers(path, numbers, count, dirfd(listing));
    /* Again from the beginning, and from where the second entry ended. */
    rewinddir(listing);
    readdir(listing), readdir(listing);
    long place = telldir(listing);
    int first = atoi(readdir(listing)->d_name), rest = 1;
    while (readdir(listing))
        rest++;
    seekdir(listing, place);
    printf("%d behind the dots, the same first %d\n", rest, atoi(readdir(listing)->d_name) == first);
    closedir(listing);
}

/* The kernel's newer form of entries has the type before the name, the older one in the last byte. */
static void with_calls(const char *path, long number, int bytes)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY), numbers[1000], count = 0, calls = 0;
    MUST(fd >= 0);
    static char buffer[65536];
    long result;
    while ((result = syscall(number, fd, buffer, bytes)) > 0) {
        MUST(calls++ < 2000);
        for (long at = 0; at < result;) {
            unsigned short length = *(unsigned short *)(buffer + at + 16);
            MUST(length > 19 && at + length <= result);
            const char *name = buffer + at + (number == SYS_getdents64 ? 19 : 18);
            unsigned char type = number == SYS_getdents64 ? buffer[at + 18] : buffer[at + length - 1];
            MUST(type == DT_DIR || type == DT_LNK || type == DT_REG);
            if (name[0] != '.')
                numbers[count++] = atoi(name);
            at += length;
        }
    }
    if (result < 0)
        printf("%s in %d bytes: %s\n", path, bytes, strerrorname_np(errno));
    show_numbers(path, numbers, count, fd);
    close(fd);
}

static void everything(void)
{
    const char *paths[] = { "/proc/self/fd", "/proc/self/fdinfo", "/proc/thread-self/fd", "/dev/fd" };
    for (int path = 0; path < 4; path++) {
        with_libc(paths[path]);
        /* The shortest buffer that takes any number. */
        for (int bytes = 32; bytes <= 32768; bytes = bytes < 64 ? bytes + 8 : bytes * 8) {
            with_calls(paths[path], SYS_getdents64, bytes);
            with_calls(paths[path], SYS_getdents, bytes);
        }
    }
    /* By the numbers of the process and the thread, which differ from run to run: from the working directory `/proc`. */
    char own[64];
    int before = open(".", O_PATH | O_CLOEXEC);
    MUST(chdir("/proc") == 0);
    snprintf(own, sizeof own, "%d/fd", getpid());
    MUST(chdir(own) == 0);
    with_calls(".", SYS_getdents64, 32768);
    snprintf(own, sizeof own, "/proc/self/task/%d/fdinfo", gettid());
    MUST(chdir(own) == 0);
    with_calls(".", SYS_getdents64, 32768);
    MUST(fchdir(before) == 0 && close(before) == 0);
}

static void *in_thread(void *unused)
{
    (void)unused;
    everything();
    return NULL;
}

/* What a program does that lets go of everything it has. Returns how many it found. */
static int close_all_listed(void)
{
    char buffer[256];
    int fd = open("/proc/self/fd", O_RDONLY | O_DIRECTORY), closed = 0;
    for (long result; (result = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0;)
        for (long at = 0; at < result; at += *(unsigned short *)(buffer + at + 16)) {
            int number = atoi(buffer + at + 19);
            if (number > 2 && number != fd)
                closed += close(number) == 0;
        }
    close(fd);
    return closed;
}

int main(int argc, char **argv)
{
    (void)argc;
    d = argv[1];
    umask(022);
    setvbuf(stdout, NULL, _IONBF, 0);
    everything();
    int files[20];
    for (int file = 0; file < 20; file++) {
        char name[16];
        snprintf(name, sizeof name, "file%d", file);
        files[file] = make_in(d, name, "bytes", 5);
    }
    MUST(dup2(files[3], 400) == 400);
    void *mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, files[0], 0);
    MUST(mapped != MAP_FAILED);
    everything();
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, in_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
    fflush(stdout);
    int status;
    pid_t child = fork();
    if (child == 0) {
        everything();
        printf("%d closed\n", close_all_listed());
        everything();
        show_content(in(d, "file5"));
        fflush(stdout);
        _exit(0);
    }
    MUST(waitpid(child, &status, 0) == child);
    printf("child ended with %d\n", status);
    static volatile int closed;
    child = vfork();
    if (child == 0) {
        closed = close_all_listed();
        _exit(0);
    }
    MUST(waitpid(child, &status, 0) == child);
    printf("child ended with %d, %d closed\n", status, closed);
    /* A listing into a mapping of a file, as read(2) would store there. */
    int listing = open("/proc/self/fd", O_RDONLY | O_DIRECTORY), count = 0;
    long bytes = syscall(SYS_getdents64, listing, mapped, 4096);
    for (long at = 0; at < bytes; at += *(unsigned short *)((char *)mapped + at + 16))
        count++;
    printf("%d entries in a mapping\n", count);
    close(listing);
    /* What other processes have is theirs, and nothing of it is left out. */
    listing = open("/proc/1/fd", O_RDONLY | O_DIRECTORY);
    printf("of another process %d\n", listing >= 0 && syscall(SYS_getdents64, listing, mapped, 4096) > 0);
    close(listing);
    char *arguments[] = { "sh", "-c", "echo /proc/self/fd/* | tr ' ' '\\n' | grep -c . ; exec ls /dev/fd", NULL };
    MUST(posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ) == 0 && waitpid(child, &status, 0) == child);
    printf("%d closed\n", close_all_listed());
    everything();
    close_range(3, ~0u, 0);
    everything();
    for (int number = 3; number < 70000; number++)
        close(number);
    everything();
    show_content(in(d, "file7"));
    MUST(munmap(mapped, 4096) == 0);
    /* A file is opened and made as before. */
    int fd = make_in(d, "after", "after", 5);
    SHOW(fd);
    show_content(in(d, "after"));
    return 0;
}
