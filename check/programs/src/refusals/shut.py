"""Programs that have files of the array open while a member's file system is shut down under them: they map them, hand them on, and go on.

Arguments: a directory, and a mounted directory whose ext4 file system is shut down in the middle (`-` for none). Prints what is seen.
"""

import array
import fcntl
import mmap
import os
import socket
import sys

EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2
PAGE_COUNT = 100
directory, disk = sys.argv[1], sys.argv[2]
content = b"".join(b"page %04d " % page * 409 + b"......" for page in range(PAGE_COUNT))
names = ["shared", "private", "handed"]
for name in names:
    with open(os.path.join(directory, name), "wb") as file:
        file.write(content)
opened = {name: os.open(os.path.join(directory, name), os.O_RDWR) for name in names}

# A descriptor on its way to another process, which its sender has closed, when the file system goes.
ours, theirs = socket.socketpair()
socket.send_fds(ours, [b"."], [opened["handed"]])
os.close(opened.pop("handed"))

if disk != "-":
    shut = os.open(disk, os.O_RDONLY)
    fcntl.ioctl(shut, EXT4_IOC_SHUTDOWN, array.array("I", [NO_LOG_FLUSH]))
    os.close(shut)

# The first that these descriptors are used for since then is to be mapped.
shared = mmap.mmap(opened["shared"], len(content))
private = mmap.mmap(opened["private"], len(content), flags=mmap.MAP_PRIVATE)
print("mapped:", shared[:] == content, private[:] == content)
for page in range(0, PAGE_COUNT, 7):
    shared[page * 4096 : page * 4096 + 6] = b"stored"
    private[page * 4096 : page * 4096 + 6] = b"hidden"
shared.flush()
stored = b"".join((b"stored" if page % 7 == 0 else content[page * 4096 :][:6]) + content[page * 4096 + 6 :][:4090] for page in range(PAGE_COUNT))
print("stored:", os.pread(opened["shared"], len(content) + 1, 0) == stored)
print("private:", os.pread(opened["private"], len(content) + 1, 0) == content, private[:6])

child = os.fork()
if child == 0:
    _, (received,), _, _ = socket.recv_fds(theirs, 1, 1)
    print("handed:", os.pread(received, len(content) + 1, 0) == content, os.pwrite(received, b"after", 5000), flush=True)
    os._exit(0)
os.waitpid(child, 0)
handed = content[:5000] + b"after" + content[5005:]
for name, expected in zip(names, [stored, content, handed]):
    with open(os.path.join(directory, name), "rb") as file:
        print(name, file.read() == expected)
