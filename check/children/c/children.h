/* What the programs of this folder share: an end with one line at the first thing that is wrong, children that are waited for, and company: threads
 * that work on files of their own all the while, and files that nobody writes. */
#ifndef CHILDREN_H
#define CHILDREN_H
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

extern char **environ;

enum { COMPANY_THREADS = 2, COMPANY_FILES = 100, COMPANY_BYTES = 3000, QUIET_FILES = 40, QUIET_BYTES = 9000, STACK_BYTES = 256 << 10 };

static atomic_int company_over;
static pthread_t company_threads[COMPANY_THREADS];
static const char *company_directory;

/* One line on standard error, and the end of all threads. */
__attribute__((noreturn, format(printf, 1, 2))) static inline void wrong(const char *format, ...)
{
    char line[1000];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    line[length++] = '\n';
    if (write(2, line, length) != length)
        _exit(98);
    _exit(99);
}

/* How `got` differs from `expected`, as the end of the program. */
static inline void same_bytes(const char *what, const unsigned char *got, const unsigned char *expected, size_t count, size_t start)
{
    if (memcmp(got, expected, count) == 0)
        return;
    size_t first = 0, different = 0, zeros = 0;
    while (got[first] == expected[first])
        first++;
    for (size_t index = first; index < count; index++)
        different += got[index] != expected[index], zeros += got[index] != expected[index] && got[index] == 0;
    wrong("%s: byte %zu is %02x, must be %02x; %zu of %zu bytes from %zu on are wrong, %zu of them zero", what, start + first, got[first],
          expected[first], different, count, start, zeros);
}

/* The exit status of a child, or 1000 and the signal that ended it. */
static inline int wait_for(pid_t pid)
{
    int status;
    if (pid <= 0)
        wrong("no child: %s", strerrorname_np(errno));
    pid_t waited;
    while ((waited = waitpid(pid, &status, __WALL)) == -1 && errno == EINTR)
        ;
    if (waited != pid)
        wrong("waitpid: %s", strerrorname_np(errno));
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* A program that is found by PATH, by posix_spawn. */
static inline pid_t spawn(char *const arguments[], const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes)
{
    pid_t pid = -1;
    int error = posix_spawnp(&pid, arguments[0], actions, attributes, arguments, environ);
    if (error) {
        errno = error;
        wrong("posix_spawn of %s: %s", arguments[0], strerrorname_np(error));
    }
    return pid;
}

static inline void *new_stack(void)
{
    void *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(stack != MAP_FAILED);
    return stack;
}

/* Writes, closes, opens and reads a hundred files over and over. Each time they hold something else. */
static void *keep_company(void *argument)
{
    int me = (int)(intptr_t)argument;
    static __thread unsigned char bytes[COMPANY_BYTES], back[COMPANY_BYTES + 100];
    char name[64], what[128];
    /* The first time is complete in any case: sizes are compared in the end. */
    for (int version = 0; version == 0 || !atomic_load(&company_over); version++) {
        for (int file = 0; file < COMPANY_FILES; file++) {
            snprintf(name, sizeof name, "company-%d-%02d", me, file);
            fill(bytes, COMPANY_BYTES, version * 1000003ull + me * 1009 + file);
            int fd = open(in(company_directory, name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
            if (fd < 0)
                wrong("%s: open to write: %s", name, strerrorname_np(errno));
            ssize_t count = write(fd, bytes, COMPANY_BYTES);
            if (count != COMPANY_BYTES)
                wrong("%s: write gave %zd (%s)", name, count, strerrorname_np(errno));
            if (close(fd) != 0)
                wrong("%s: close: %s", name, strerrorname_np(errno));
        }
        for (int file = 0; file < COMPANY_FILES; file++) {
            snprintf(name, sizeof name, "company-%d-%02d", me, file);
            fill(bytes, COMPANY_BYTES, version * 1000003ull + me * 1009 + file);
            int fd = open(in(company_directory, name), O_RDONLY | O_CLOEXEC);
            if (fd < 0)
                wrong("%s: open to read: %s", name, strerrorname_np(errno));
            ssize_t count = pread(fd, back, sizeof back, 0);
            if (count != COMPANY_BYTES)
                wrong("%s: pread gave %zd of %d (%s)", name, count, COMPANY_BYTES, strerrorname_np(errno));
            snprintf(what, sizeof what, "%s, written %d times", name, version + 1);
            same_bytes(what, back, bytes, COMPANY_BYTES, 0);
            if (close(fd) != 0)
                wrong("%s: close: %s", name, strerrorname_np(errno));
        }
    }
    return NULL;
}

/* Makes the files that nobody writes and starts the threads. The files of the threads hold something else in each run, their names and sizes do not. */
static inline void company_begins(const char *directory)
{
    static unsigned char bytes[QUIET_BYTES];
    char name[64];
    company_directory = directory;
    for (int file = 0; file < QUIET_FILES; file++) {
        snprintf(name, sizeof name, "quiet-%02d", file);
        fill(bytes, QUIET_BYTES, 7777 + file);
        MUST(close(make_in(directory, name, bytes, QUIET_BYTES)) == 0);
    }
    for (int file = 0; file < COMPANY_THREADS * COMPANY_FILES; file++) {
        snprintf(name, sizeof name, "company-%d-%02d", file / COMPANY_FILES, file % COMPANY_FILES);
        MUST(close(make_in(directory, name, bytes, 1)) == 0);
    }
    for (int me = 0; me < COMPANY_THREADS; me++)
        MUST(pthread_create(&company_threads[me], NULL, keep_company, (void *)(intptr_t)me) == 0);
}

/* Ends the threads and looks at the files that nobody wrote. */
static inline void company_ends(void)
{
    static unsigned char bytes[QUIET_BYTES], back[QUIET_BYTES + 1];
    char name[64];
    atomic_store(&company_over, 1);
    for (int me = 0; me < COMPANY_THREADS; me++)
        MUST(pthread_join(company_threads[me], NULL) == 0);
    for (int file = 0; file < QUIET_FILES; file++) {
        snprintf(name, sizeof name, "quiet-%02d", file);
        fill(bytes, QUIET_BYTES, 7777 + file);
        int fd = open(in(company_directory, name), O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            wrong("%s, which nobody writes: open: %s", name, strerrorname_np(errno));
        ssize_t count = pread(fd, back, sizeof back, 0);
        if (count != QUIET_BYTES)
            wrong("%s, which nobody writes: pread gave %zd (%s)", name, count, strerrorname_np(errno));
        same_bytes(name, back, bytes, QUIET_BYTES, 0);
        MUST(close(fd) == 0);
    }
}

/* A descriptor of this file under a number that does not depend on what other threads have open. */
static inline int open_as(int number, const char *path, int flags, int mode)
{
    int fd = open(path, flags, mode);
    if (fd < 0)
        wrong("%s: open: %s", path, strerrorname_np(errno));
    MUST(dup3(fd, number, flags & O_CLOEXEC) == number && close(fd) == 0);
    return number;
}

/* What a process has: where a descriptor stands, in which directory it is. For output that is compared. */
static inline void show_offset(const char *who, int fd)
{
    errno = 0;
    off_t offset = lseek(fd, 0, SEEK_CUR);
    if (offset < 0)
        printf("%s: descriptor %d: %s\n", who, fd, strerrorname_np(errno));
    else
        printf("%s: descriptor %d at %lld\n", who, fd, (long long)offset);
}

static inline void show_directory(const char *who, const char *root)
{
    static char path[4096];
    if (getcwd(path, sizeof path) == NULL)
        printf("%s: getcwd: %s\n", who, strerrorname_np(errno));
    else if (strncmp(path, root, strlen(root)) == 0)
        printf("%s: in D%s\n", who, path + strlen(root));
    else
        printf("%s: in %s\n", who, path);
}
#endif
