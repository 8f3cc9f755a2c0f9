/* Local sockets with names in the directory: what every call says of them is the program's own path. The names are short, so that they fit
   into an address on a member too. */
#include "check.h"
#include <stddef.h>
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

int main(int argc, char **argv)
{
    (void)argc;
    d = argv[1];
    datagrams();
    streams();
    SHOW(unlink(in(d, "s")));
    SHOW(unlink(in(d, "c")));
    SHOW(unlink(in(d, "l")));
    return 0;
}
