"""A server that has made its children before: it opens files and hands them to the children by SCM_RIGHTS, who append, write at their own place and read at a position that they share. In odd
variants the children are another user."""

import os
import socket
import sys

directory, variant = os.environ["D"], int(sys.argv[1])
CHILD_COUNT, REQUEST_COUNT, FILE_COUNT = 3, 60, 5


def path(number):
    return os.path.join(directory, "file-%d" % number)


def serve(connection):
    if variant % 2:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
    while True:
        request, fds, _, _ = socket.recv_fds(connection, 100, 3)
        if not request:
            os._exit(0)
        number = int(request)
        appended, placed, shared = fds
        os.write(appended, b"request %3d of %d\n" % (number, variant))
        os.pwrite(placed, b"%4d" % number, number * 1000)
        part = os.read(shared, 10)
        for fd in fds:
            os.close(fd)
        connection.send(b"%d %s" % (number, part))


# Another user than theirs may open the files, too: README.
os.umask(0)
for number in range(FILE_COUNT):
    with open(path(number), "wb"):
        pass
with open(path(100), "wb") as file:
    file.write(b"".join(b"part %4d\n" % number for number in range(REQUEST_COUNT)))
connections = []
for _ in range(CHILD_COUNT):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        for other in connections:
            other.close()
        serve(theirs)
    theirs.close()
    connections.append(ours)
shared = os.open(path(100), os.O_RDONLY)
parts = []
for first in range(0, REQUEST_COUNT, CHILD_COUNT):
    for k, connection in enumerate(connections):
        number = first + k
        fds = [os.open(path(number % FILE_COUNT), os.O_WRONLY | os.O_APPEND), os.open(path(200), os.O_RDWR | os.O_CREAT, 0o666), shared]
        socket.send_fds(connection, [b"%d" % number], fds)
        os.close(fds[0])
        os.close(fds[1])
    for connection in connections:
        parts.append(connection.recv(100).split(b" ", 1)[1])
for connection in connections:
    connection.close()
for _ in connections:
    print("child", os.wait()[1])
print(sorted(parts) == [b"part %4d\n" % number for number in range(REQUEST_COUNT)])
for number in range(FILE_COUNT):
    with open(path(number), "rb") as file:
        lines = sorted(file.read().splitlines())
    print(lines)
    with open(path(number), "wb") as file:
        file.write(b"\n".join(lines))
