/* Bad pointers: each pointer argument of each call that is handled, on files of the directory, gets one that leads nowhere. The call answers
   as on a plain directory, and the program lives. */
#include "check.h"
#include <dirent.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

static char *directory;
static void *bad_addresses[2];

/* What stands for a pointer that is good, bad, or a descriptor. */
enum { END, NUMBER, FD_FILE, FD_DIRECTORY, FD_HOST, FD_SOCKET, PATH, NEW_PATH, TEXT, BUFFER, IOVEC, BACK, ZERO_BUFFER };

struct argument {
    int kind;
    long value;
};

struct line {
    const char *name;
    int number;
    struct argument arguments[6];
};

#define N(value) { NUMBER, value }
#define FILE_ { FD_FILE }
#define DIR_ { FD_DIRECTORY }
#define HOST { FD_HOST }
#define SOCK { FD_SOCKET }
#define P { PATH }
#define NEW { NEW_PATH }
#define T { TEXT }
#define B { BUFFER }
#define V { IOVEC }
#define CALL(call, ...) { #call, SYS_##call, { __VA_ARGS__ } }

static const struct line lines[] = {
    CALL(read, FILE_, B, N(100)), CALL(write, FILE_, B, N(100)), CALL(pread64, FILE_, B, N(100), N(5)),
    CALL(pwrite64, FILE_, B, N(100), N(0)), CALL(readv, FILE_, V, N(2)), CALL(writev, FILE_, V, N(2)),
    CALL(preadv, FILE_, V, N(2), N(0)), CALL(pwritev, FILE_, V, N(2), N(0)), CALL(preadv2, FILE_, V, N(2), N(0), N(0), N(0)),
    CALL(pwritev2, FILE_, V, N(2), N(0), N(0), N(0)), CALL(read, FILE_, B, N(0)), CALL(write, FILE_, B, N(0)),
    CALL(open, P, N(0), N(0)), CALL(open, NEW, N(O_CREAT | O_RDWR), N(0600)), CALL(creat, NEW, N(0600)),
    CALL(openat, DIR_, T, N(O_CREAT), N(0600)), CALL(openat2, N(AT_FDCWD), P, B, N(24)),
    CALL(stat, P, B), CALL(lstat, P, B), CALL(fstat, FILE_, B), CALL(newfstatat, N(AT_FDCWD), P, B, N(0)),
    CALL(newfstatat, FILE_, T, B, N(AT_EMPTY_PATH)), CALL(statx, N(AT_FDCWD), P, N(0), N(0x7ff), B),
    CALL(statfs, P, B), CALL(fstatfs, FILE_, B), CALL(access, P, N(4)), CALL(faccessat, N(AT_FDCWD), P, N(4)),
    CALL(faccessat2, N(AT_FDCWD), P, N(4), N(0)), CALL(chmod, P, N(0644)), CALL(fchmodat, N(AT_FDCWD), P, N(0644)),
    CALL(chown, P, N(-1), N(-1)), CALL(lchown, P, N(-1), N(-1)), CALL(fchownat, N(AT_FDCWD), P, N(-1), N(-1), N(0)),
    CALL(utime, P, B), CALL(utimes, P, B), CALL(futimesat, N(AT_FDCWD), P, B), CALL(utimensat, N(AT_FDCWD), P, B, N(0)),
    CALL(utimensat, FILE_, N(0), B, N(0)), CALL(truncate, P, N(1000)), CALL(chdir, P), CALL(mkdir, NEW, N(0700)),
    CALL(mkdirat, N(AT_FDCWD), NEW, N(0700)), CALL(rmdir, NEW), CALL(unlink, NEW), CALL(unlinkat, N(AT_FDCWD), NEW, N(0)),
    CALL(rename, P, NEW), CALL(renameat, N(AT_FDCWD), P, N(AT_FDCWD), NEW), CALL(renameat2, N(AT_FDCWD), P, N(AT_FDCWD), NEW, N(1)),
    CALL(link, P, NEW), CALL(linkat, N(AT_FDCWD), P, N(AT_FDCWD), NEW, N(0)), CALL(symlink, T, NEW),
    CALL(symlinkat, T, N(AT_FDCWD), NEW), CALL(mknod, NEW, N(S_IFREG | 0600), N(0)), CALL(mknodat, N(AT_FDCWD), NEW, N(S_IFIFO | 0600), N(0)),
    CALL(readlink, P, B, N(100)), CALL(readlinkat, N(AT_FDCWD), P, B, N(100)), CALL(getcwd, B, N(4096)),
    CALL(getxattr, P, T, B, N(100)), CALL(lgetxattr, P, T, B, N(100)), CALL(fgetxattr, FILE_, T, B, N(100)),
    CALL(setxattr, P, T, B, N(10), N(0)), CALL(fsetxattr, FILE_, T, B, N(10), N(0)), CALL(listxattr, P, B, N(1000)),
    CALL(flistxattr, FILE_, B, N(1000)), CALL(removexattr, P, T), CALL(fremovexattr, FILE_, T),
    CALL(getdents64, DIR_, B, N(4096)), CALL(getdents, DIR_, B, N(4096)), CALL(sendfile, HOST, FILE_, B, N(10)),
    CALL(sendfile, FILE_, HOST, B, N(10)), CALL(copy_file_range, FILE_, B, FILE_, B, N(10), N(0)),
    CALL(ioctl, FILE_, N(0x541b), B), CALL(ioctl, FILE_, N(0x5401), B), CALL(fcntl, FILE_, N(F_GETLK), B),
    CALL(fcntl, FILE_, N(F_SETLK), B), CALL(fcntl, FILE_, N(F_OFD_GETLK), B), CALL(fcntl, FILE_, N(F_GETOWN_EX), B),
    CALL(name_to_handle_at, N(AT_FDCWD), P, B, B, N(0)), CALL(inotify_add_watch, FILE_, P, N(4)),
    CALL(bind, SOCK, B, N(110)), CALL(connect, SOCK, B, N(110)), CALL(getsockname, SOCK, B, B), CALL(getpeername, SOCK, B, B),
    CALL(sendto, SOCK, B, N(1), N(MSG_DONTWAIT), B, N(110)), CALL(recvfrom, SOCK, B, N(1), N(MSG_DONTWAIT), B, B),
    CALL(sendmsg, SOCK, B, N(MSG_DONTWAIT)), CALL(recvmsg, SOCK, B, N(MSG_DONTWAIT)), CALL(sendmmsg, SOCK, B, N(2), N(MSG_DONTWAIT)),
    CALL(recvmmsg, SOCK, B, N(2), N(MSG_DONTWAIT), N(0)), CALL(accept, SOCK, B, B), CALL(accept4, SOCK, B, B, N(0)),
    CALL(execve, P, N(0), N(0)), CALL(execveat, N(AT_FDCWD), P, N(0), N(0), N(0)), CALL(setrlimit, N(1), B),
    CALL(prlimit64, N(0), N(1), B, N(0)), CALL(prlimit64, N(0), N(1), N(0), B), CALL(rt_sigaction, N(10), B, B, N(8)),
    CALL(rt_sigprocmask, N(0), B, B, N(8)), CALL(clone3, B, N(88)), CALL(cachestat, FILE_, B, B, N(0)),
    CALL(umount2, P, N(0)), CALL(pidfd_getfd, FILE_, N(0), N(0)),
};

static int is_pointer(int kind)
{
    return kind >= PATH;
}

/* One call in a process of its own, whatever it does to it. */
static void one(const struct line *line, int bad, void *address)
{
    static char file[4096], fresh[4096], text[64], buffer[8192];
    struct iovec parts[2] = { { buffer, 50 }, { buffer + 50, 50 } };
    fflush(stdout);
    pid_t child = fork();
    if (child) {
        int status;
        MUST(waitpid(child, &status, 0) == child);
        if (status)
            printf("%s argument %d: status %d\n", line->name, bad, status);
        return;
    }
    alarm(5);
    snprintf(file, sizeof file, "%s/file", directory);
    snprintf(fresh, sizeof fresh, "%s/new", directory);
    strcpy(text, "user.text");
    memset(buffer, 0, sizeof buffer);
    long values[6] = { 0 };
    for (int index = 0; index < 6; index++) {
        const struct argument *argument = &line->arguments[index];
        switch (argument->kind) {
        case NUMBER: values[index] = argument->value; break;
        case FD_FILE: values[index] = open(file, O_RDWR); break;
        case FD_DIRECTORY: values[index] = open(directory, O_RDONLY | O_DIRECTORY); break;
        case FD_HOST: values[index] = open("host-file", O_RDWR | O_CREAT, 0600); break;
        case FD_SOCKET: values[index] = socket(AF_UNIX, SOCK_DGRAM, 0); break;
        case PATH: values[index] = (long)file; break;
        case NEW_PATH: values[index] = (long)fresh; break;
        case TEXT: values[index] = (long)text; break;
        case BUFFER: values[index] = (long)buffer; break;
        case IOVEC: values[index] = (long)parts; break;
        }
    }
    values[bad] = (long)address;
    errno = 0;
    long result = syscall(line->number, values[0], values[1], values[2], values[3], values[4], values[5]);
    printf("%s argument %d: %s\n", line->name, bad, result == -1 ? strerrorname_np(errno) : result > 0 ? "> 0" : "0");
    fflush(stdout);
    _exit(0);
}

/* Buffers that begin well and end badly. */
static void half_bad(char *edge)
{
    int fd = open(in(directory, "half"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    MUST(fd >= 0 && pwrite(fd, edge - 4096, 4096, 0) == 4096 && pwrite(fd, edge - 4096, 4096, 4096) == 4096);
    struct iovec good_bad[2] = { { edge - 100, 100 }, { edge, 100 } }, bad_good[2] = { { edge, 100 }, { edge - 100, 100 } };
    SHOW(writev(fd, bad_good, 2));
    SHOW(readv(fd, bad_good, 2));
    SHOW(preadv(fd, good_bad, 2, 0));
    SHOW(pwritev(fd, good_bad, 2, 0));
    struct stat stat;
    MUST(fstat(fd, &stat) == 0);
    printf("size %lld, at %lld\n", (long long)stat.st_size, (long long)lseek(fd, 0, SEEK_CUR));
    SHOW(syscall(SYS_getcwd, edge - 2, 100));
    SHOW(readlink("/proc/self/exe", edge, 10));
    close(fd);
}

int main(int argc, char **argv)
{
    (void)argc;
    directory = argv[1];
    close(open(in(directory, "file"), O_RDWR | O_CREAT | O_TRUNC, 0600));
    char *pages = mmap(NULL, 5 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(pages != MAP_FAILED && mprotect(pages + 4 * 4096, 4096, PROT_NONE) == 0);
    bad_addresses[0] = pages + 4 * 4096;
    bad_addresses[1] = (void *)0xffff800000000000;
    for (size_t index = 0; index < sizeof lines / sizeof lines[0]; index++)
        for (int bad = 0; bad < 6; bad++)
            if (is_pointer(lines[index].arguments[bad].kind))
                for (int which = 0; which < 2; which++)
                    one(&lines[index], bad, bad_addresses[which]);
    half_bad(pages + 4 * 4096);
    return 0;
}
