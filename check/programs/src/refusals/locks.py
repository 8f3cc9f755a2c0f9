"""Locks that are older than the loss of a member, and younger ones: each kind excludes what it excludes on a plain directory.

Arguments: a directory, and the directory that is moved away in the middle (`-` for none).
"""

import errno
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys

RECORD = "hhqqi4x"
F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW = 36, 37, 38
KINDS = ["flock", "process", "description"]
SHARED, EXCLUSIVE, NONE = fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK


def lock(fd, kind, mode, wait=False):
    """Takes or gives back a lock; True if it was given."""
    try:
        if kind == "flock":
            operation = {SHARED: fcntl.LOCK_SH, EXCLUSIVE: fcntl.LOCK_EX, NONE: fcntl.LOCK_UN}[mode]
            fcntl.flock(fd, operation | (0 if wait else fcntl.LOCK_NB))
        else:
            commands = {"process": (fcntl.F_SETLK, fcntl.F_SETLKW), "description": (F_OFD_SETLK, F_OFD_SETLKW)}
            fcntl.fcntl(fd, commands[kind][wait], struct.pack(RECORD, mode, 0, 10, 20, 0))
        return True
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return False


def holder(fd, kind):
    """The type and process that F_GETLK finds."""
    command = fcntl.F_GETLK if kind == "process" else F_OFD_GETLK
    answer = fcntl.fcntl(fd, command, struct.pack(RECORD, EXCLUSIVE, 0, 0, 100, 0))
    found = struct.unpack(RECORD, answer)
    return found[0], found[2:] if found[0] != NONE else None


def beside(words):
    """Another process that runs this file's `main` with other words."""
    words = [sys.executable, __file__] + [str(word) for word in words]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def answer(process, seconds=20):
    """The next line of a process; None if there is none in that time."""
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    return process.stdout.readline().strip() if ready else None


def end(process):
    process.stdin.close()
    process.wait()
    process.stdout.close()


def ask(path, kind, mode):
    process = beside(["try", path, kind, mode])
    found = answer(process)
    end(process)
    return found


def main(data, member):
    path = lambda *words: os.path.join(data, "-".join(str(word) for word in words))
    opened = lambda name: os.open(name, os.O_RDWR | os.O_CREAT, 0o644)
    pairs = [(SHARED, SHARED), (SHARED, EXCLUSIVE), (EXCLUSIVE, SHARED), (EXCLUSIVE, EXCLUSIVE)]
    old = {}
    for kind in KINDS:
        for held, wanted in pairs:
            old[kind, held, wanted] = opened(path(kind, held, wanted))
            assert lock(old[kind, held, wanted], kind, held)
        for name in ["late", "own", "queue", "killed", "waited", "exec", "circle-old", "circle-young"]:
            old[kind, name] = opened(path(kind, name))
    # What lives in descriptions of a shell, of a process that is killed, and of one that executes another program.
    shell = "exec 9>$1 && flock 9 && echo locked && read -r line"
    words = ["bash", "-c", shell, "bash", path("shell")]
    shell = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert answer(shell) == "locked"
    killed = {kind: beside(["hold", path(kind, "killed"), kind, EXCLUSIVE]) for kind in KINDS}
    executing = {kind: beside(["exec", path(kind, "exec"), kind, EXCLUSIVE]) for kind in KINDS}
    for process in [*killed.values(), *executing.values()]:
        assert answer(process) == "True"
    assert lock(old["process", "own"], "process", EXCLUSIVE)
    if member != "-":
        os.rename(member, member + ".away")

    for kind in KINDS:
        for held, wanted in pairs:
            fits = held == wanted == SHARED
            found = ask(path(kind, held, wanted), kind, wanted)
            assert found == str(fits), (kind, held, wanted, found)
            # And the other way round: a young lock, an old descriptor.
            late = beside(["hold", path(kind, "late"), kind, held])
            assert answer(late) == "True", (kind, held)
            assert lock(old[kind, "late"], kind, wanted) == fits, (kind, held, wanted)
            lock(old[kind, "late"], kind, NONE)
            end(late)
        # Who waits gets it when it is given back, and not before.
        name = path(kind, EXCLUSIVE, EXCLUSIVE)
        waits = beside(["wait", name, kind, EXCLUSIVE])
        assert answer(waits, 0.3) is None, kind
        lock(old[kind, EXCLUSIVE, EXCLUSIVE], kind, NONE)
        assert answer(waits) == "True", kind
        assert not lock(old[kind, EXCLUSIVE, EXCLUSIVE], kind, SHARED), kind
        waits.kill()
        end(waits)
        assert lock(old[kind, EXCLUSIVE, EXCLUSIVE], kind, EXCLUSIVE, wait=True), kind
        # A handler ends the wait.
        waits = beside(["alarm", name, kind, EXCLUSIVE])
        assert answer(waits) == "interrupted", kind
        end(waits)
        # What a dead process held is free; what the program holds that a process executes is not.
        assert ask(path(kind, "killed"), kind, SHARED) == "False", kind
        killed[kind].kill()
        end(killed[kind])
        assert ask(path(kind, "killed"), kind, EXCLUSIVE) == "True", kind
        assert ask(path(kind, "exec"), kind, SHARED) == "False", kind
        end(executing[kind])
        assert ask(path(kind, "exec"), kind, EXCLUSIVE) == "True", kind
    # The lock of a shell, which a program took for it that has ended.
    assert ask(path("shell"), "flock", SHARED) == "False"
    shell.stdin.close()
    shell.wait()
    assert ask(path("shell"), "flock", SHARED) == "True"
    # Who holds it is told.
    name = path("process", EXCLUSIVE, SHARED)
    told = beside(["holder", name, "process", EXCLUSIVE])
    assert answer(told) == str((EXCLUSIVE, (10, 20, os.getpid()))), "F_GETLK"
    end(told)
    # Who waits for one that waits for him is told; the other goes on when he gives his lock back.
    for name in ["circle-old", "circle-young"]:
        first, second = (10, 200) if name == "circle-old" else (200, 10)
        fd = old["process", name]
        assert fcntl.fcntl(fd, fcntl.F_SETLK, struct.pack(RECORD, EXCLUSIVE, 0, first, 20, 0))
        waits = beside(["circle", path("process", name), second, first])
        assert answer(waits) == "holds", name
        try:
            # The other one waits by then, or comes to wait while this one does.
            if name == "circle-old":
                assert answer(waits, 0.3) is None
            fcntl.fcntl(fd, fcntl.F_SETLKW, struct.pack(RECORD, EXCLUSIVE, 0, second, 20, 0))
            # The kernel tells the one who closes the circle: on a busy machine the other process may have asked for its second lock after this one.
            assert answer(waits) == "deadlock", name
        except OSError as error:
            assert error.errno == errno.EDEADLK, error
            lock(fd, "process", NONE)
            fcntl.fcntl(fd, fcntl.F_SETLK, struct.pack(RECORD, NONE, 0, 0, 0, 0))
            assert answer(waits) == "given", name
        end(waits)
    # A process' lock is one, by whichever of its descriptors.
    young = opened(path("process", "own"))
    assert ask(path("process", "own"), "process", SHARED) == "False"
    assert lock(young, "process", NONE)
    assert ask(path("process", "own"), "process", EXCLUSIVE) == "True"
    assert lock(young, "process", EXCLUSIVE) and lock(old["process", "own"], "process", SHARED)
    assert ask(path("process", "own"), "process", EXCLUSIVE) == "False"
    assert ask(path("process", "own"), "process", SHARED) == "True"
    print("done")


def other(task, path, kind, mode):
    fd = os.open(path, os.O_RDWR)
    if task == "circle":
        own, wanted = int(kind), int(mode)
        fcntl.fcntl(fd, fcntl.F_SETLK, struct.pack(RECORD, EXCLUSIVE, 0, own, 20, 0))
        print("holds", flush=True)
        try:
            fcntl.fcntl(fd, fcntl.F_SETLKW, struct.pack(RECORD, EXCLUSIVE, 0, wanted, 20, 0))
            print("given")
        except OSError as error:
            assert error.errno == errno.EDEADLK, error
            fcntl.fcntl(fd, fcntl.F_SETLK, struct.pack(RECORD, NONE, 0, 0, 0, 0))
            print("deadlock")
    elif task == "alarm":
        def interrupted(*_):
            raise TimeoutError(0)
        signal.signal(signal.SIGALRM, interrupted)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            print(lock(fd, kind, int(mode), wait=True))
        except TimeoutError:
            print("interrupted")
    elif task == "holder":
        print(holder(fd, kind))
    else:
        print(lock(fd, kind, int(mode), wait=task == "wait"), flush=True)
    sys.stdout.flush()
    if task == "exec":
        os.set_inheritable(fd, True)
        os.execvp("cat", ["cat"])
    sys.stdin.read()


if len(sys.argv) == 3:
    main(*sys.argv[1:])
else:
    other(*sys.argv[1:])
