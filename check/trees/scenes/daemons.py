"""Daemons that count under a lock, each variant by another kind of lock, and are killed and begun anew. Who has the lock makes a file on the host that nobody else may have made and not removed, unless
its maker is dead; what was counted last is noted there, too, and the count on the array is never less."""

import errno
import fcntl
import os
import struct
import sys
import time

what, who, notes, variant = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
directory = os.environ["D"]
F_OFD_SETLKW = 38


def path(name):
    return os.path.join(directory, name)


def lock(fd, kind):
    if variant % 3 == 0:
        fcntl.flock(fd, fcntl.LOCK_UN if kind == fcntl.F_UNLCK else fcntl.LOCK_EX)
        return
    record = struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0)
    while True:
        try:
            fcntl.fcntl(fd, [None, fcntl.F_SETLKW, F_OFD_SETLKW][variant % 3], record)
            return
        except InterruptedError:
            pass


def lives(pid):
    """Whether it will run on: who was killed gives its locks back before it is gone (PF_EXITING of proc(5))."""
    try:
        with open("/proc/%d/stat" % pid) as file:
            fields = file.read().rsplit(") ", 1)[1].split()
        return fields[0] not in "ZX" and not int(fields[6]) & 4
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return False


def enter():
    marker = os.path.join(notes, "inside")
    while True:
        try:
            fd = os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            with open(marker) as file:
                text = file.read()
            if text.isdigit() and lives(int(text)):
                print("two have the lock:", who, text, flush=True)
                os._exit(1)
            os.unlink(marker)
            continue
        os.write(fd, b"%d" % os.getpid())
        os.close(fd)
        return marker


def noted():
    try:
        with open(os.path.join(notes, "last")) as file:
            return int(file.read() or 0)
    except FileNotFoundError:
        return 0


def note(count):
    with open(os.path.join(notes, "last.new"), "w") as file:
        file.write("%d" % count)
    os.rename(os.path.join(notes, "last.new"), os.path.join(notes, "last"))


def append(line):
    with open(path("log"), "ab", buffering=0) as log:
        while line:
            try:
                line = line[log.write(line) :]
            except OSError as error:
                # There will be room again: the director notes that there is none.
                if error.errno != errno.ENOSPC or not os.path.exists(os.path.join(notes, "full")):
                    raise
                time.sleep(0.002)


def write():
    held = os.open(path("lock"), os.O_RDWR)
    while not os.path.exists(os.path.join(notes, "stop")):
        lock(held, fcntl.F_WRLCK)
        marker = enter()
        fd = os.open(path("count"), os.O_RDWR)
        count = int(os.read(fd, 20))
        if count < noted():
            print("the count is", count, "and was", noted(), flush=True)
            os._exit(1)
        os.pwrite(fd, b"%20d" % (count + 1), 0)
        os.close(fd)
        append(b"%20d\n" % (count + 1))
        note(count + 1)
        with open(os.path.join(notes, "told-" + who), "a") as told:
            told.write("%d\n" % (count + 1))
        os.unlink(marker)
        lock(held, fcntl.F_UNLCK)


def begin():
    for name, content in [("lock", b""), ("count", b"%20d" % 0), ("log", b"")]:
        with open(path(name), "wb") as file:
            file.write(content)


def end():
    with open(path("count"), "rb") as file:
        count = int(file.read())
    with open(path("log"), "rb") as file:
        numbers = [int(line) for line in file.read().split(b"\n")[:-1]]
    told = set()
    for name in os.listdir(notes):
        if name.startswith("told-"):
            with open(os.path.join(notes, name)) as file:
                told |= {int(line) for line in file.read().split("\n")[:-1]}
    # Who was killed behind the count and before the log has left a number out, and told nobody of it.
    print("more than was noted" if count < noted() else "count fits", "in order" if numbers == sorted(set(numbers)) else "not in order")
    print("all told are there" if told <= set(numbers) else "lost", "something" if noted() > 5 else "nothing was counted")


{"begin": begin, "write": write, "end": end}[what]()
