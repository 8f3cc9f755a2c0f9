"""multiprocessing: workers made by fork or spawn write, append under a lock, and store to a mapping that they share."""

import fcntl
import mmap
import multiprocessing
import os
import sys

directory, variant = os.environ["D"], int(sys.argv[1])
TASK_COUNT = 60
SLOT_BYTES = 64


def path(name):
    return os.path.join(directory, name)


def work(number):
    text = b"task %4d of %d\n" % (number, variant)
    with open(path("log"), "ab", buffering=0) as log:
        fcntl.lockf(log, fcntl.LOCK_EX)
        log.write(text)
    with open(path("own-%d" % (number % 7)), "a+b", buffering=0) as own:
        fcntl.flock(own, fcntl.LOCK_EX)
        own.write(text * 3)
    with open(path("shared"), "r+b") as shared, mmap.mmap(shared.fileno(), 0) as area:
        area[number * SLOT_BYTES : number * SLOT_BYTES + len(text)] = text
    with open(path("shared"), "rb", buffering=0) as shared:
        return number, os.pread(shared.fileno(), len(text), number * SLOT_BYTES) == text


if __name__ == "__main__":
    with open(path("shared"), "wb") as shared:
        shared.write(bytes(TASK_COUNT * SLOT_BYTES))
    method = ["fork", "spawn"][variant % 2]
    with multiprocessing.get_context(method).Pool(3) as pool:
        print(sorted(pool.imap_unordered(work, range(TASK_COUNT))))
    for name in ["log"] + ["own-%d" % k for k in range(7)]:
        with open(path(name), "rb") as file:
            lines = sorted(file.read().splitlines())
        print(name, len(lines), lines[:1], lines[-1:])
        with open(path(name), "wb") as file:
            file.write(b"\n".join(lines))
