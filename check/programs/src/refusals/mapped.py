"""Stores through shared mappings over the loss of a member, seen by a process that has the same file mapped, by one that maps it later, and by read().

Arguments: a directory, and the directory of a member that is moved away in the middle (`-` for none). Prints what is seen. Nothing is synchronised, and the environment says that
the period of the library is an hour: what is stored reaches the other members only because the loss is seen.
"""

import mmap
import os
import subprocess
import sys

PAGE_COUNT = 400
directory, member = sys.argv[1], sys.argv[2]
path = os.path.join(directory, "mapped")


def mark(who, page):
    return b"%s stored page %4d" % (who, page)


def store(area, who, pages):
    for page in pages:
        area[page * 4096 + 7 : page * 4096 + 7 + len(mark(who, page))] = mark(who, page)


def differing(read, who, pages):
    return [page for page in pages if read(page * 4096 + 7, len(mark(who, page))) != mark(who, page)]


def of_map(area):
    return lambda offset, count: area[offset : offset + count]


def of_file(fd):
    return lambda offset, count: os.pread(fd, count, offset)


def attached():
    fd = os.open(path, os.O_RDWR)
    return fd, mmap.mmap(fd, PAGE_COUNT * 4096)


if len(sys.argv) > 3:
    # A process that starts with the file in use: says what it sees, stores, and waits to be told to end.
    fd, area = attached()
    print("later:", differing(of_file(fd), b"first", range(0, PAGE_COUNT, 3)), differing(of_map(area), b"other", range(1, PAGE_COUNT, 3)))
    store(area, b"later", range(2, PAGE_COUNT, 3))
    print("stored", flush=True)
    sys.stdin.read()
    sys.exit()

with open(path, "wb") as file:
    file.write(bytes(range(256)) * 16 * PAGE_COUNT)
fd, area = attached()
told, go = os.pipe(), os.pipe()
other = os.fork()
if other == 0:
    fd, area = attached()
    store(area, b"other", range(1, PAGE_COUNT, 3))
    os.write(told[1], b".")
    os.read(go[0], 1)
    print("other:", differing(of_map(area), b"first", range(0, PAGE_COUNT, 3)), differing(of_map(area), b"later", range(2, PAGE_COUNT, 3)))
    store(area, b"again", range(0, PAGE_COUNT, 3))
    sys.stdout.flush()
    os._exit(0)
os.read(told[0], 1)
store(area, b"first", range(0, PAGE_COUNT, 3))
if member != "-":
    os.rename(member, member + ".away")
later = subprocess.Popen([sys.executable, *sys.argv, "later"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
print(later.stdout.readline(), later.stdout.readline(), end="")
print("first:", differing(of_map(area), b"other", range(1, PAGE_COUNT, 3)), differing(of_map(area), b"later", range(2, PAGE_COUNT, 3)), flush=True)
os.write(go[1], b".")
print("other ended", os.waitpid(other, 0)[1])
print("again:", differing(of_map(area), b"again", range(0, PAGE_COUNT, 3)), differing(of_file(fd), b"again", range(0, PAGE_COUNT, 3)))
later.communicate()
print("later ended", later.returncode)
area.close()
print("at the end:", [len(differing(of_file(fd), who, range(at, PAGE_COUNT, 3))) for at, who in enumerate([b"again", b"other", b"later"])])
