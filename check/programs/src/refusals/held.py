"""What the kernel holds for a program on objects of a member, used after the member's directory was moved away.

Arguments: a directory, and the directory that is moved away in the middle (`-` for none). One line is printed for each thing held. No program starts between the
move and the last lines: one that starts finds the member missing and takes it out, and what is held on a member that is out is another matter (docs/losses.md).
"""

import ctypes
import errno
import hashlib
import os
import shutil
import subprocess
import sys
import threading

IN_ALL_EVENTS = 0xFFF
BIG_BYTES = 256 * 1200
libc = ctypes.CDLL(None, use_errno=True)
directory, member = sys.argv[1:]


def path(name):
    return os.path.join(directory, name)


def say(what, act):
    try:
        print(what, act(), flush=True)
    except OSError as error:
        print(what, errno.errorcode.get(error.errno, error.errno), flush=True)


def watch(name):
    queue = libc.inotify_init1(os.O_NONBLOCK)
    assert libc.inotify_add_watch(queue, path(name).encode(), IN_ALL_EVENTS) >= 0
    return queue


def link(fd):
    return f"/proc/self/fd/{fd}"


def content(name, flags=os.O_RDONLY, **at):
    fd = os.open(name, flags, **at)
    try:
        return os.read(fd, 100)
    finally:
        os.close(fd)


os.makedirs(path("sub"))
for number in range(5):
    with open(path(f"sub/{number}"), "w") as file:
        file.write("x" * number)
with open(path("big"), "wb") as file:
    file.write(bytes(range(256)) * (BIG_BYTES // 256))
shutil.copy("/bin/cat", path("program"))

unlinked = os.open(path("unlinked"), os.O_RDWR | os.O_CREAT)
os.write(unlinked, b"unlinked")
os.unlink(path("unlinked"))
nameless = os.open(directory, os.O_RDWR | os.O_TMPFILE, 0o644)
os.write(nameless, b"nameless")
named = os.open(path("sub/3"), os.O_PATH)
named_directory = os.open(path("sub"), os.O_PATH | os.O_DIRECTORY)
listed = os.open(path("sub"), os.O_RDONLY | os.O_DIRECTORY)
stream = os.scandir(path("sub"))
running = subprocess.Popen([path("program")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
# The program answers when its start is over.
running.stdin.write(b"runs\n")
running.stdin.flush()
assert running.stdout.readline() == b"runs\n"
watched, watched_file = watch("sub"), watch("big")
log = os.open(path("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(log, b"before\n")
big = os.open(path("big"), os.O_RDWR)
reader, writer = os.pipe()
os.mkfifo(path("fifo"))
fifo = os.open(path("fifo"), os.O_RDWR)


def in_flight(act):
    """Starts a call that waits for room in a pipe. Returns a function that makes the room, and returns what came."""
    source, sink = os.pipe()

    def run():
        sent = 0
        while sent < BIG_BYTES:
            sent += act(sink, sent)
        os.close(sink)

    thread = threading.Thread(target=run)
    thread.start()
    first = os.read(source, 1)

    def rest():
        with open(source, "rb") as file:
            whole = first + file.read()
        thread.join()
        return len(whole), hashlib.sha256(whole).hexdigest()

    return rest


def blocked_read():
    """A thread that waits in a read of the named pipe."""
    found = []
    thread = threading.Thread(target=lambda: found.append(os.read(fifo, 100)))
    thread.start()

    def answer():
        os.write(os.open(path("fifo"), os.O_WRONLY | os.O_NONBLOCK), b"came")
        thread.join(10)
        return found

    return answer


sending = in_flight(lambda sink, at: os.sendfile(sink, big, at, BIG_BYTES - at))
splicing = in_flight(lambda sink, at: os.splice(big, sink, BIG_BYTES - at, offset_src=at))
reading = blocked_read()
os.chdir(path("sub"))
if member != "-":
    os.rename(member, member + ".away")

say("unlinked", lambda: (os.pwrite(unlinked, b"U", 0), os.pread(unlinked, 20, 0), os.fstat(unlinked).st_nlink))
say("nameless", lambda: (os.write(nameless, b"!"), os.pread(nameless, 20, 0), os.fstat(nameless).st_size))
say("O_PATH", lambda: (os.fstat(named).st_size, content(link(named))))
say("O_PATH of a directory", lambda: content("4", dir_fd=named_directory))
say("made below a descriptor", lambda: content("made", os.O_CREAT | os.O_RDWR, dir_fd=listed))
say("listed", lambda: sorted(os.listdir(listed)))
say("stream", lambda: sorted(entry.name for entry in stream if entry.name != "made"))
say("listed anew", lambda: sorted(os.listdir(path("sub"))))
say("text is busy", lambda: os.open(path("program"), os.O_WRONLY))
say("runs", lambda: running.poll())
say("current directory", lambda: (os.path.relpath(os.getcwd(), directory), content("2")))
say("watched directory", lambda: (content("new", os.O_CREAT | os.O_RDWR), len(os.read(watched, 4096)) > 0))
say("watched file", lambda: (len(content(path("big"))), len(os.read(watched_file, 4096)) > 0))
say("sendfile", lambda: (os.sendfile(writer, big, 0, 5000), len(os.read(reader, 9000))))
say("splice", lambda: (os.splice(big, writer, 5000), len(os.read(reader, 9000))))
say("sendfile in flight", sending)
say("splice in flight", splicing)
say("a read that waits", reading)
say("link under /proc", lambda: (os.path.relpath(os.readlink(link(big)), directory), len(content(link(big)))))
os.rename(path("big"), path("other"))
say("the same of what was renamed", lambda: os.path.relpath(os.readlink(link(big)), directory))
say("append", lambda: (os.write(log, b"after\n"), content(path("log"))))
say("append by a child", lambda: (subprocess.call(["/bin/echo", "child"], stdout=log), content(path("log"))))
say("executed after", lambda: subprocess.call([path("program"), "/dev/null"]))
running.kill()
running.wait()
say("text is free", lambda: os.close(os.open(path("program"), os.O_WRONLY)))
