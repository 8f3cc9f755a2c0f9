/* Local sockets with names in the directory: what every call says of them is the program's own path. Most names are short, so that they
   fit into an address on a member too. */
#include "check.h"
#include <stddef.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

static char *d;

static struct sockaddr_un address(const char *name)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    const char *path = in(d, name);
    MUST(strlen(path) < sizeof address.sun_path);
    strcpy(address.sun_path, path);
    return address;
}

static void show(const char *what, const struct sockaddr_un *address, socklen_t length)
{
    int below = length > 2 && strncmp(address->sun_path, d, strlen(d)) == 0;
    printf("%s: family %d, %d bytes, %s%s\n", what, length ? address->sun_family : -1, below ? (int)(length - strlen(d)) : (int)length,
           below ? "<directory>" : "", length > 2 ? address->sun_path + (below ? strlen(d) : 0) : "");
}

static int bound(int kind, const char *name)
{
    struct sockaddr_un own = address(name);
    int fd = socket(AF_UNIX, kind, 0);
    MUST(fd >= 0 && bind(fd, (struct sockaddr *)&own, sizeof own) == 0);
    return fd;
}

static void datagrams(void)
{
    struct sockaddr_un from, server_address = address("s");
    struct sockaddr *to = (struct sockaddr *)&server_address;
    socklen_t length = sizeof from;
    char text[100];
    int server = bound(SOCK_DGRAM, "s"), client = bound(SOCK_DGRAM, "c"), nameless = socket(AF_UNIX, SOCK_DGRAM, 0);
    SHOW(sendto(client, "one", 3, 0, to, sizeof server_address));
    SHOW(recvfrom(server, text, sizeof text, 0, (struct sockaddr *)&from, &length));
    show("recvfrom", &from, length);
    SHOW(sendto(nameless, "two", 3, 0, to, sizeof server_address));
    length = sizeof from;
    SHOW(recvfrom(server, text, sizeof text, 0, (struct sockaddr *)&from, &length));
    show("recvfrom, without a name", &from, length);
    SHOW(sendto(client, "three", 5, 0, to, sizeof server_address));
    memset(&from, 0, sizeof from);
    length = 4;
    SHOW(recvfrom(server, text, sizeof text, 0, (struct sockaddr *)&from, &length));
    printf("little room: %d bytes, %.2s\n", (int)(length - strlen(d)), from.sun_path);
    SHOW(recvfrom(server, text, sizeof text, MSG_DONTWAIT, (struct sockaddr *)&from, &length));
    struct iovec parts[3] = { { "four", 4 }, { "five5", 5 }, { "sixsix", 6 } };
    struct mmsghdr many[3] = { 0 };
    for (int index = 0; index < 3; index++)
        many[index].msg_hdr = (struct msghdr){ .msg_name = to, .msg_namelen = sizeof server_address, .msg_iov = &parts[index], .msg_iovlen = 1 };
    SHOW(sendmmsg(client, many, 3, 0));
    printf("sent %d %d %d\n", many[0].msg_len, many[1].msg_len, many[2].msg_len);
    struct iovec into = { text, sizeof text };
    struct msghdr message = { .msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &into, .msg_iovlen = 1 };
    SHOW(recvmsg(server, &message, 0));
    show("recvmsg", &from, message.msg_namelen);
    struct sockaddr_un names[2];
    for (int index = 0; index < 2; index++)
        many[index].msg_hdr = (struct msghdr){ .msg_name = &names[index], .msg_namelen = sizeof names[0], .msg_iov = &into, .msg_iovlen = 1 };
    SHOW(recvmmsg(server, many, 2, 0, NULL));
    show("recvmmsg", &names[1], many[1].msg_hdr.msg_namelen);
    SHOW(connect(client, to, sizeof server_address));
    SHOW(send(client, "seven", 5, 0));
    length = sizeof from;
    SHOW(getpeername(client, (struct sockaddr *)&from, &length));
    show("getpeername", &from, length);
    length = sizeof from;
    SHOW(getsockname(client, (struct sockaddr *)&from, &length));
    show("getsockname", &from, length);
    server_address = address("none");
    SHOW(sendto(nameless, "x", 1, 0, to, sizeof server_address));
    close(server), close(client), close(nameless);
}

static void streams(void)
{
    struct sockaddr_un from, listening = address("l");
    socklen_t length = sizeof from;
    int server = bound(SOCK_STREAM, "l"), client = bound(SOCK_STREAM, "o"), fd;
    SHOW(listen(server, 5));
    SHOW(connect(client, (struct sockaddr *)&listening, sizeof listening));
    SHOW((fd = accept(server, (struct sockaddr *)&from, &length)) >= 0);
    show("accept", &from, length);
    length = sizeof from;
    SHOW(getpeername(fd, (struct sockaddr *)&from, &length));
    show("getpeername", &from, length);
    close(fd), close(client);
    client = socket(AF_UNIX, SOCK_STREAM, 0);
    SHOW(connect(client, (struct sockaddr *)&listening, sizeof listening));
    length = sizeof from;
    SHOW((fd = accept4(server, (struct sockaddr *)&from, &length, SOCK_CLOEXEC)) >= 0);
    show("accept4", &from, length);
    SHOW(fcntl(fd, F_GETFD));
    close(fd);
    SHOW(connect(client = socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&listening, sizeof listening));
    SHOW((fd = accept(server, NULL, NULL)) >= 0);
    close(fd), close(client), close(server);
    listening = address("o");
    SHOW(bind(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&listening, sizeof listening));
    SHOW(unlink(in(d, "o")));
}

static struct mmsghdr addressed(struct sockaddr_un *to, struct iovec *part)
{
    return (struct mmsghdr){ .msg_hdr = { .msg_name = to, .msg_namelen = sizeof *to, .msg_iov = part, .msg_iovlen = 1 } };
}

/* Sends a batch to these addresses; prints what sendmmsg returns, and how many messages have come to `server`. */
static void batch(const char *what, int server, int client, struct sockaddr_un *to[], int count)
{
    struct iovec part = { "text", 4 };
    struct mmsghdr many[4];
    for (int index = 0; index < count; index++)
        many[index] = addressed(to[index], &part);
    printf("%s: ", what);
    SHOW(sendmmsg(client, many, count, MSG_DONTWAIT));
    int come = 0;
    for (char text[10]; recv(server, text, sizeof text, MSG_DONTWAIT) > 0;)
        come++;
    printf("%d come\n", come);
}

/* Addresses that lead to no socket. The kernel looks at everything else before the path; of a batch it sends what comes before. */
static void nowhere(void)
{
    struct sockaddr_un there = address("s2"), none = address("none"), below = address("file/x"), loop = address("loop/x");
    int server = bound(SOCK_DGRAM, "s2"), client = bound(SOCK_DGRAM, "c2"), stream = socket(AF_UNIX, SOCK_STREAM, 0), ends[2];
    close(make_in(d, "file", "x", 1));
    MUST(symlink("loop", in(d, "loop")) == 0 && pipe(ends) == 0);
    struct sockaddr_un *to[4] = { &none, &there, &below, &loop };
    struct iovec part = { "text", 4 };
    for (int index = 0; index < 4; index++) {
        struct mmsghdr one = addressed(to[index], &part);
        SHOW(sendmsg(client, &one.msg_hdr, 0));
        SHOW(sendmsg(client, &one.msg_hdr, MSG_OOB));
        SHOW(sendmsg(stream, &one.msg_hdr, 0));
        SHOW(sendmsg(ends[1], &one.msg_hdr, 0));
        SHOW(sendmsg(-1, &one.msg_hdr, 0));
        SHOW(sendto(stream, "x", 1, 0, (struct sockaddr *)to[index], sizeof *to[index]));
        char buffer[10];
        while (recv(server, buffer, sizeof buffer, MSG_DONTWAIT) > 0)
            ;
    }
    batch("none", server, client, (struct sockaddr_un *[]){ &none }, 1);
    batch("all below a file", server, client, (struct sockaddr_un *[]){ &below, &none }, 2);
    batch("a loop first", server, client, (struct sockaddr_un *[]){ &loop, &there }, 2);
    batch("below a file first", server, client, (struct sockaddr_un *[]){ &below, &there }, 2);
    batch("none in the middle", server, client, (struct sockaddr_un *[]){ &there, &none, &there }, 3);
    batch("a loop at the end", server, client, (struct sockaddr_un *[]){ &there, &there, &loop }, 3);
    batch("to a stream", server, stream, (struct sockaddr_un *[]){ &there, &none }, 2);
    batch("by a pipe", server, ends[1], (struct sockaddr_un *[]){ &there, &none }, 2);
    batch("by nothing", server, -1, (struct sockaddr_un *[]){ &none, &there }, 2);
    /* The third header cannot be read. */
    char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(pages != MAP_FAILED && mprotect(pages + 4096, 4096, PROT_NONE) == 0);
    struct mmsghdr *many = (struct mmsghdr *)(pages + 4096) - 2, one = addressed(&there, &part);
    many[0] = many[1] = one;
    SHOW(sendmmsg(client, many, 3, 0));
    SHOW(sendmmsg(client, many + 2, 1, 0));
    char text[10];
    SHOW(recv(server, text, sizeof text, MSG_DONTWAIT));
    SHOW(recv(server, text, sizeof text, MSG_DONTWAIT));
    SHOW(recv(server, text, sizeof text, MSG_DONTWAIT));
    close(server), close(client), close(stream), close(ends[0]), close(ends[1]);
    MUST(unlink(in(d, "s2")) == 0 && unlink(in(d, "c2")) == 0 && unlink(in(d, "loop")) == 0 && unlink(in(d, "file")) == 0);
}

/* A name as long as an address takes: on a member it is longer. */
static void long_names(void)
{
    char name[108];
    memset(name, 'n', sizeof name);
    name[sizeof ((struct sockaddr_un *)0)->sun_path - 1 - strlen(d) - 1] = 0;
    struct sockaddr_un there = address(name);
    struct iovec part = { "text", 4 };
    struct mmsghdr one = addressed(&there, &part);
    int server = bound(SOCK_DGRAM, name), client = socket(AF_UNIX, SOCK_DGRAM, 0);
    char text[10];
    printf("a long name\n");
    SHOW(sendto(client, "x", 1, 0, (struct sockaddr *)&there, sizeof there));
    SHOW(sendmsg(client, &one.msg_hdr, 0));
    SHOW(sendmmsg(client, &one, 1, 0));
    SHOW(connect(client, (struct sockaddr *)&there, sizeof there));
    SHOW(send(client, "y", 1, 0));
    for (int index = 0; index < 5; index++)
        SHOW(recv(server, text, sizeof text, MSG_DONTWAIT));
    close(server), close(client);
    MUST(unlink(in(d, name)) == 0);
}

int main(int argc, char **argv)
{
    (void)argc;
    d = argv[1];
    datagrams();
    streams();
    nowhere();
    long_names();
    SHOW(unlink(in(d, "s")));
    SHOW(unlink(in(d, "c")));
    SHOW(unlink(in(d, "l")));
    return 0;
}
