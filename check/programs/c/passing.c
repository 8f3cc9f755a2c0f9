/* An open file sent to another process over a socket (SCM_RIGHTS): one description, one offset, in both. */
#include "check.h"
#include <sys/socket.h>
#include <sys/wait.h>

static void send_descriptor(int socket, int fd)
{
    char byte = 'd', control[CMSG_SPACE(sizeof(int))] = { 0 };
    struct iovec part = { &byte, 1 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    MUST(sendmsg(socket, &message, 0) == 1);
}

static int receive_descriptor(int socket)
{
    char byte, control[CMSG_SPACE(sizeof(int))] = { 0 };
    struct iovec part = { &byte, 1 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
    int fd;
    MUST(recvmsg(socket, &message, 0) == 1 && CMSG_FIRSTHDR(&message));
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

static void turn(int socket, char expected)
{
    char byte;
    MUST(read(socket, &byte, 1) == 1 && byte == expected);
}

static void receiver(int socket)
{
    static unsigned char bytes[80000], pattern[80000];
    int fd = receive_descriptor(socket);
    fill(pattern, sizeof pattern, 3);
    MUST(lseek(fd, 0, SEEK_CUR) == 70000);
    MUST(pread(fd, bytes, 70000, 0) == 70000 && memcmp(bytes, pattern, 70000) == 0);
    MUST(write(fd, pattern + 70000, 5000) == 5000);
    MUST(write(socket, "1", 1) == 1);
    turn(socket, '2');
    MUST(lseek(fd, 0, SEEK_CUR) == 75100);
    MUST(pread(fd, bytes, 100, 75000) == 100 && memcmp(bytes, pattern, 100) == 0);
    struct stat stat;
    MUST(fstat(fd, &stat) == 0 && stat.st_size == 75100);
    MUST(ftruncate(fd, 60000) == 0 && lseek(fd, 10, SEEK_SET) == 10);
    MUST(close(fd) == 0);
    MUST(write(socket, "3", 1) == 1);
    /* A second file, received while the first is closed: the same number, another file. */
    fd = receive_descriptor(socket);
    MUST(read(fd, bytes, sizeof bytes) == 6 && memcmp(bytes, "second", 6) == 0);
    MUST(write(fd, " file", 5) == 5);
    _exit(0);
}

int main(int argc, char **argv)
{
    (void)argc;
    static unsigned char pattern[80000];
    int pair[2], status;
    fill(pattern, sizeof pattern, 3);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    pid_t pid = fork();
    if (pid == 0)
        receiver(pair[1]);
    int fd = open(in(argv[1], "passed"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    MUST(fd >= 0 && write(fd, pattern, 70000) == 70000);
    send_descriptor(pair[0], fd);
    turn(pair[0], '1');
    printf("after the receiver wrote: at %lld\n", (long long)lseek(fd, 0, SEEK_CUR));
    MUST(write(fd, pattern, 100) == 100 && write(pair[0], "2", 1) == 1);
    turn(pair[0], '3');
    struct stat stat;
    MUST(fstat(fd, &stat) == 0);
    printf("after the receiver cut it: %lld bytes, at %lld\n", (long long)stat.st_size, (long long)lseek(fd, 0, SEEK_CUR));
    int second = open(in(argv[1], "second"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    MUST(write(second, "second", 6) == 6 && lseek(second, 0, SEEK_SET) == 0);
    send_descriptor(pair[0], second);
    close(second);
    MUST(waitpid(pid, &status, 0) == pid);
    printf("receiver: %d\n", status);
    show_content(in(argv[1], "passed"));
    show_content(in(argv[1], "second"));
    return 0;
}
