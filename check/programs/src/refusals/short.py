"""Changes of names by a process that has few descriptors left: each is made as a whole, or not at all.

Arguments: a directory, and the directories of the members that hold it. A line is printed for each change that was made by half, and in the end how many were made and how many refused.
"""

import errno
import os
import resource
import sys

directory, *members = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
made = refused = 0


def path(name):
    return os.path.join(directory, name)


# What is done, the names that are there afterwards and not before, and those that are gone.
CHANGES = [
    (lambda: os.close(os.open(path("new"), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)), ["new"], []),
    (lambda: os.mkdir(path("new")), ["new"], []),
    (lambda: os.symlink("old", path("new")), ["new"], []),
    (lambda: os.mkfifo(path("new")), ["new"], []),
    (lambda: os.link(path("old"), path("new")), ["new"], []),
    (lambda: os.rename(path("old"), path("new")), ["new"], ["old"]),
    (lambda: os.rename(path("old"), path("other")), [], ["old"]),
    (lambda: os.unlink(path("old")), [], ["old"]),
    (lambda: os.rmdir(path("d")), [], ["d"]),
    (lambda: os.chmod(path("old"), 0o600), [], []),
    (lambda: os.utime(path("old"), (5, 5)), [], []),
    (lambda: os.setxattr(path("old"), "user.a", b"a"), [], []),
    (lambda: os.truncate(path("old"), 100), [], []),
]


def begin():
    for name in ("new", "old", "other"):
        if os.path.lexists(path(name)):
            (os.rmdir if os.path.isdir(path(name)) else os.unlink)(path(name))
    for name in ("old", "other"):
        with open(path(name), "w") as file:
            file.write(name)
    os.makedirs(path("d"), exist_ok=True)


def fill(free):
    held = []
    try:
        while True:
            held.append(os.dup(0))
    except OSError:
        pass
    for _ in range(min(free, len(held))):
        os.close(held.pop())
    return held


for free in range(10):
    for number, (change, there, gone) in enumerate(CHANGES):
        begin()
        held = fill(free)
        error = None
        try:
            change()
        except OSError as caught:
            error = caught.errno
        for fd in held:
            os.close(fd)
        made, refused = made + (error is None), refused + (error is not None)
        if error not in (None, errno.EMFILE):
            print("free", free, "change", number, os.strerror(error))
        for name in there + gone:
            if os.path.lexists(path(name)) != ((name in there) == (error is None)):
                print("free", free, "change", number, error, "left", name)
        for name in os.listdir(directory):
            stats = [os.lstat(os.path.join(member, name)) for member in members]
            # The time at which a name was made is each member's own; the time that utime(2) sets is all members'.
            if len({(stat.st_mode, stat.st_mtime == 5) for stat in stats}) > 1:
                print("free", free, "change", number, error, "differs on members", name)
            if os.path.isfile(path(name)):
                try:
                    open(path(name), "r+").close()
                except OSError as caught:
                    print("free", free, "change", number, error, name, caught)
print(made + refused, made > 0, refused > 0)
