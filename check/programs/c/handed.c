/* Files without a name that reach a process which never opened them: handed down over exec, or sent to a program that began before. Unlinked,
   replaced by a rename, or nameless from the start, they are read, written and grown all the same. */
#include "check.h"
#include <sys/socket.h>
#include <sys/wait.h>

static unsigned char block[300000], back[300000];
static char *self, *directory;

/* Each user adds its own 100,000 bytes behind what is there, and checks all. */
static int use(int fd, int turn)
{
    struct stat stat;
    MUST(fstat(fd, &stat) == 0);
    printf("turn %d: %lld bytes, %ld links, at %lld\n", turn, (long long)stat.st_size, (long)stat.st_nlink,
           (long long)lseek(fd, 0, SEEK_CUR));
    long long had = 100000ll * turn;
    MUST(pread(fd, back, sizeof back, 0) == had && memcmp(back, block, had) == 0);
    MUST(lseek(fd, 0, SEEK_END) == had && write(fd, block + had, 100000) == 100000);
    MUST(pwrite(fd, block, 3000, 0) == 3000);
    char path[64], name[4096] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    MUST(readlink(path, name, sizeof name - 1) > 0);
    char *last = strrchr(name, '/');
    printf("named %s\n", last[1] == '#' ? "#" : last + 1);
    /* What was unlinked cannot get a name again. */
    if (last[1] != '#')
        SHOW(linkat(AT_FDCWD, path, AT_FDCWD, in(directory, "again"), AT_SYMLINK_FOLLOW));
    fflush(stdout);
    return 0;
}

static void over_exec(const char *what, int fd)
{
    printf("-- %s, over exec\n", what);
    MUST(fd >= 0 && write(fd, block, 100000) == 100000);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        char number[16];
        snprintf(number, sizeof number, "%d", fd);
        execl(self, self, directory, "use", number, "1", NULL);
        _exit(98);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child);
    printf("child: %d\n", status);
    use(fd, 2);
    /* Nobody else has it any more when the last program begins. */
    fflush(stdout);
    child = fork();
    if (child == 0) {
        char number[16];
        snprintf(number, sizeof number, "%d", fd);
        MUST(ftruncate(fd, 100000) == 0);
        execl(self, self, directory, "use", number, "1", NULL);
        _exit(98);
    }
    close(fd);
    MUST(waitpid(child, &status, 0) == child);
    printf("alone: %d\n", status);
}

static int make(const char *name)
{
    return open(in(directory, name), O_RDWR | O_CREAT | O_TRUNC, 0644);
}

static void transfer(int socket, int fd, int turn)
{
    char byte = turn, control[CMSG_SPACE(sizeof(int))] = { 0 };
    struct iovec part = { &byte, 1 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int)) };
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    MUST(sendmsg(socket, &message, 0) == 1 && close(fd) == 0);
    MUST(read(socket, &byte, 1) == 1);
}

/* The program that is sent files: it has none of the array's open. */
static int serve(int socket)
{
    for (;;) {
        char byte, control[CMSG_SPACE(sizeof(int))] = { 0 };
        struct iovec part = { &byte, 1 };
        struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
        int fd;
        if (recvmsg(socket, &message, 0) != 1)
            return 0;
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
        use(fd, byte);
        MUST(close(fd) == 0 && write(socket, &byte, 1) == 1);
    }
}

/* Closed by the kernel when a program becomes another: on a mirror its members are the plain file all the same. */
static void closed_by_exec(void)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int fd = open(in(directory, "closed-by-exec"), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        MUST(fd >= 0 && write(fd, block, 1000) == 1000);
        execl(self, self, directory, "end", "0", NULL);
        _exit(98);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    show_content(in(directory, "closed-by-exec"));
}

int main(int argc, char **argv)
{
    int fd, pair[2], status;
    self = "/proc/self/exe", directory = argv[1];
    fill(block, sizeof block, 8);
    if (argc > 3 && strcmp(argv[2], "end") == 0)
        return 0;
    if (argc > 3)
        return strcmp(argv[2], "use") == 0 ? use(atoi(argv[3]), atoi(argv[4])) : serve(atoi(argv[3]));
    closed_by_exec();
    fd = make("unlinked");
    MUST(unlink(in(directory, "unlinked")) == 0);
    over_exec("unlinked", fd);
    fd = make("replaced");
    close(make("other"));
    MUST(rename(in(directory, "other"), in(directory, "replaced")) == 0);
    over_exec("replaced", fd);
    over_exec("nameless", open(directory, O_RDWR | O_TMPFILE, 0600));
    over_exec("nameless for good", open(directory, O_RDWR | O_TMPFILE | O_EXCL, 0600));
    fd = make("linked");
    MUST(link(in(directory, "linked"), in(directory, "second")) == 0 && unlink(in(directory, "linked")) == 0);
    MUST(unlink(in(directory, "second")) == 0);
    over_exec("two names", fd);

    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        char number[16];
        snprintf(number, sizeof number, "%d", pair[1]);
        close(pair[0]);
        execl(self, self, directory, "serve", number, "0", NULL);
        _exit(98);
    }
    close(pair[1]);
    fd = make("sent");
    MUST(write(fd, block, 100000) == 100000 && unlink(in(directory, "sent")) == 0);
    transfer(pair[0], fd, 1);
    fd = open(directory, O_RDWR | O_TMPFILE, 0600);
    MUST(write(fd, block, 200000) == 200000);
    transfer(pair[0], fd, 2);
    close(pair[0]);
    MUST(waitpid(child, &status, 0) == child);
    printf("server: %d\n", status);
    SHOW(rmdir(directory) == 0 || errno == EBUSY || errno == ENOTEMPTY);
    return 0;
}
