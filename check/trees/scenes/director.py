"""Runs one scene: a tree of processes on a directory, and on time what happens to the members of its array.

Arguments: the scene, its variant, the directory, a directory of the host for notes, the seed of what happens when, and one word per event: `away:MEMBER` (the directory is renamed), `cut:MEMBER` (all
its files are cut to nothing), and for members that are file systems of their own `shut:MEMBER` (shut down: every call fails with EIO), `read-only:MEMBER` (no changes, as after an error of the disk) and
`full:MEMBER` (no room, for a while).
The director itself sees no array; the processes of the tree find its variables, and the library as
TREE_PRELOAD, in the director's environment. What is printed must not depend on when anything happens.
"""

import errno
import fcntl
import os
import random
import struct
import subprocess
import sys
import threading
import time

SCENE, VARIANT, DIRECTORY, NOTES, SEED = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])
EXT4_IOC_SHUTDOWN, EXT4_GOING_FLAGS_NOLOGFLUSH = 0x8004587D, 2
EVENTS = [event.split(":", 1) for event in sys.argv[6:]]
HERE = os.path.dirname(os.path.abspath(__file__))
environment = dict(os.environ)
if environment.get("TREE_PRELOAD"):
    environment["LD_PRELOAD"] = environment["TREE_PRELOAD"]
environment["D"] = DIRECTORY
R = random.Random(SEED)


def start(*words, **more):
    return subprocess.Popen(words, env=environment, **more)


def run(*words):
    done = start(*words).wait()
    if done != 0:
        print(words[0], words[1:3], "exit status", done)


def shut(member):
    fd = os.open(member, os.O_RDONLY)
    fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, struct.pack("I", EXT4_GOING_FLAGS_NOLOGFLUSH))
    os.close(fd)


def cut(member):
    for directory, _, names in os.walk(member):
        for name in names:
            path = os.path.join(directory, name)
            # What a program removes meanwhile is gone, too.
            if os.path.isfile(path) and not os.path.islink(path):
                try:
                    os.truncate(path, 0)
                except FileNotFoundError:
                    pass


def read_only(member):
    device = os.stat(member).st_dev
    name = os.path.basename(os.readlink("/sys/dev/block/%d:%d" % (os.major(device), os.minor(device))))
    with open("/sys/fs/ext4/%s/trigger_fs_error" % name, "w") as file:
        file.write("1")


def fill(member):
    """Takes all room there is, by a file without a name. Returns its descriptor."""
    fd = os.open(member, os.O_TMPFILE | os.O_WRONLY)
    for piece in [1 << 20, 1 << 12]:
        try:
            while True:
                os.write(fd, bytes(piece))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    return fd


def happen(span):
    """What happens to the members, in about so many seconds."""
    fillers = []
    for (what, member), at in zip(EVENTS, sorted(R.uniform(0.0, span) for _ in EVENTS)):
        time.sleep(max(0.0, begun + at - time.monotonic()))
        if what == "away":
            os.rename(member, member + ".away")
        elif what == "full":
            with open(os.path.join(NOTES, "full"), "w"):
                pass
            fillers.append(fill(member))
        else:
            {"cut": cut, "shut": shut, "read-only": read_only}[what](member)
    if fillers:
        # There is room again before the scene ends.
        time.sleep(max(0.05, begun + span * R.uniform(0.5, 0.9) - time.monotonic()))
    for fd in fillers:
        os.close(fd)


def beside(script):
    return os.path.join(HERE, script)


def killed_and_begun_anew(writers, span, say):
    """Keeps these writers (functions that start one) running for so long, and kills one of them again and again. They end with 0 when the file `stop` is there."""
    running = [write() for write in writers]
    while time.monotonic() < begun + span:
        time.sleep(R.uniform(0.01, 0.12))
        k = R.randrange(len(running))
        if running[k].poll() is not None:
            say(f"a writer ended by itself with {running[k].returncode}")
            break
        running[k].kill()
        running[k].wait()
        running[k] = writers[k]()
    with open(os.path.join(NOTES, "stop"), "w"):
        pass
    for writer in running:
        if writer.wait() != 0:
            say(f"a writer ended with {writer.returncode}")


def shell():
    run("bash", beside("shell.sh"), str(VARIANT))


def make():
    run("bash", beside("make.sh"), str(VARIANT))


def git():
    run("bash", beside("git.sh"), str(VARIANT))


def workers():
    run(sys.executable, beside("workers.py"), str(VARIANT))


def server():
    run(sys.executable, beside("server.py"), str(VARIANT))


def writers(script, count, *more):
    complaints = []
    generations = [0] * count

    def writer(k):
        def begin():
            generations[k] += 1
            return start(sys.executable, beside(script), "write", f"{k}.{generations[k]}", NOTES, str(VARIANT), *more)

        return begin

    run(sys.executable, beside(script), "begin", "-", NOTES, str(VARIANT))
    killed_and_begun_anew([writer(k) for k in range(count)], SPAN[SCENE], complaints.append)
    # A medium that was full is not any more.
    events.join()
    run(sys.executable, beside(script), "end", "-", NOTES, str(VARIANT))
    print("\n".join(sorted(set(complaints))) or "no complaints")


def sqlite():
    writers("sqlite.py", 3)


def daemons():
    writers("daemons.py", 3)


# How long each takes, more or less, in seconds.
SPAN = {"shell": 0.5, "make": 0.4, "git": 0.5, "workers": 0.5, "server": 0.4, "sqlite": 1.0, "daemons": 0.8}

begun = time.monotonic()
events = threading.Thread(target=happen, args=(SPAN[SCENE],))
events.start()
{"shell": shell, "make": make, "git": git, "workers": workers, "server": server, "sqlite": sqlite, "daemons": daemons}[SCENE]()
events.join()


def companions():
    """Other processes of this process group that run: helpers of multiprocessing end a moment after their program."""
    found = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % name) as file:
                fields = file.read().rsplit(") ", 1)[1].split()
            found += fields[0] not in "ZX" and int(fields[2]) == os.getpgrp() and int(name) != os.getpid()
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


waited = time.monotonic()
while companions() and time.monotonic() < waited + 5:
    time.sleep(0.01)
