/* How much one call moves, where the answer of a plain file is more than a pipe's usual size; and requests that few programs make. */
#include "check.h"
#include <linux/fs.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define BYTES (5 << 20)
static const char *d;
static unsigned char *bytes, *back;

static void *drain(void *argument)
{
    uint64_t hash = 0;
    ssize_t count;
    while ((count = read((int)(long)argument, back, 65536)) > 0)
        hash = sum(back, count, hash);
    return (void *)(long)hash;
}

static void to_socket(int fd)
{
    int ends[2];
    pthread_t thread;
    void *hash;
    off_t offset = 100;
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && pthread_create(&thread, NULL, drain, (void *)(long)ends[1]) == 0);
    MUST(lseek(fd, 0, SEEK_SET) == 0);
    SHOW(sendfile(ends[0], fd, NULL, BYTES));
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(sendfile(ends[0], fd, &offset, BYTES));
    SHOW(offset);
    MUST(close(ends[0]) == 0 && pthread_join(thread, &hash) == 0 && close(ends[1]) == 0);
    /* What arrives in pieces of any size has one sum. */
    printf("received %llx\n", (unsigned long long)(long)hash);
    /* Nobody reads: what fits is sent. */
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0 && lseek(fd, 0, SEEK_SET) == 0);
    ssize_t sent = sendfile(ends[0], fd, NULL, BYTES), received = 0, count;
    while ((count = read(ends[1], back, 65536)) > 0)
        received += count;
    printf("some is sent: %d, all of it arrives: %d, the position follows: %d\n", sent > 0 && sent < BYTES, sent == received,
        lseek(fd, 0, SEEK_CUR) == sent);
    MUST(close(ends[0]) == 0 && close(ends[1]) == 0);
    int nothing = open("/dev/null", O_WRONLY);
    MUST(nothing >= 0 && lseek(fd, 0, SEEK_SET) == 0);
    SHOW(sendfile(nothing, fd, NULL, BYTES));
    SHOW(sendfile(nothing, fd, NULL, BYTES));
    MUST(close(nothing) == 0);
}

static void by_pipe(int fd)
{
    int ends[2];
    loff_t offset = 5;
    MUST(pipe(ends) == 0);
    SHOW(fcntl(ends[0], F_SETPIPE_SZ, 1 << 20));
    MUST(lseek(fd, 0, SEEK_SET) == 0);
    SHOW(splice(fd, NULL, ends[1], NULL, 1 << 20, 0));
    MUST(read(ends[0], back, 1 << 20) == 1 << 20 && memcmp(back, bytes, 1 << 20) == 0);
    SHOW(splice(fd, &offset, ends[1], NULL, 1 << 20, 0));
    SHOW(offset);
    int other = open(in(d, "other"), O_RDWR | O_CREAT, 0644);
    SHOW(splice(ends[0], NULL, other, NULL, 1 << 20, 0));
    SHOW(lseek(other, 0, SEEK_END));
    MUST(lseek(fd, 0, SEEK_SET) == 0);
    SHOW(sendfile(ends[1], fd, NULL, BYTES));
    MUST(close(other) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
}

static void requests(int fd)
{
    struct { int16_t kind, whence; int64_t start, length; int32_t system; uint32_t process; int32_t rest[4]; } space = { 0, 0, BYTES, 100000, 0, 0, { 0 } };
    struct stat stat;
    loff_t size = 0;
    int number = 0;
    SHOW(ioctl(fd, FIOQSIZE, &size));
    printf("has space: %d\n", size >= BYTES);
    SHOW(ioctl(fd, FIBMAP, &number));
    SHOW(ioctl(fd, FIOQSIZE, (void *)8));
    SHOW(ioctl(fd, 0x40305828 /* FS_IOC_RESVSP */, &space));
    MUST(fstat(fd, &stat) == 0);
    printf("size %lld\n", (long long)stat.st_size);
    space.whence = 2, space.start = -100000;
    SHOW(ioctl(fd, 0x4030582b /* FS_IOC_UNRESVSP64 */, &space));
    space.whence = 3;
    SHOW(ioctl(fd, 0x4030582a /* FS_IOC_RESVSP64 */, &space));
    SHOW(ioctl(fd, 0x40305828, (void *)8));
    MUST(pread(fd, back, BYTES, 0) == BYTES);
    printf("contents %llx\n", (unsigned long long)sum(back, BYTES, 0));
}

static void small(int fd)
{
    struct timespec omit[2] = { { 0, UTIME_OMIT }, { 0, UTIME_OMIT } };
    char text[64] = { 0 };
    SHOW(utimensat(AT_FDCWD, in(d, "none"), omit, 0));
    SHOW(utimensat(-7, "none", omit, 99));
    SHOW(utimensat(AT_FDCWD, in(d, "file/x"), omit, 0));
    MUST(symlink("abcdefgh", in(d, "link")) == 0);
    SHOW(syscall(SYS_readlink, in(d, "link"), text, 0x100000003L));
    printf("%s\n", text);
    SHOW(syscall(SYS_readlink, in(d, "link"), text, 0x100000000L));
    char path[64], line[256];
    MUST(lseek(fd, 12345, SEEK_SET) == 12345);
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE *info = fopen(path, "r");
    MUST(info != NULL);
    while (fgets(line, sizeof line, info))
        if (strncmp(line, "pos", 3) == 0)
            printf("%s", line);
    fclose(info);
}

int main(int count, char **arguments)
{
    if (count < 2)
        return 2;
    d = arguments[1];
    MUST((bytes = malloc(BYTES)) && (back = malloc(BYTES)));
    fill(bytes, BYTES, 5);
    int fd = open(in(d, "file"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    MUST(fd >= 0);
    for (int at = 0; at < BYTES; at += 1 << 20)
        MUST(write(fd, bytes + at, 1 << 20) == 1 << 20);
    to_socket(fd);
    by_pipe(fd);
    requests(fd);
    small(fd);
    return 0;
}
