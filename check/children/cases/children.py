"""Threads that write and read files while the interpreter starts children: children.py DIRECTORY WAY."""
import os
import subprocess
import sys
import tempfile
import threading

directory, way = sys.argv[1:]
THREADS, FILES, CHILDREN = 4, 25, 30
# Small files are opened and closed all the time; large ones keep threads inside their calls.
SIZES = [3000, 3000, 60000, 3000, 200001]
LARGE = 3_000_000
over = threading.Event()
failures = []


def content(thread, file, version):
    size = LARGE if thread == 0 and file % 5 == 4 else SIZES[file % len(SIZES)]
    return (f"{thread}.{file}.{version}|".encode() * size)[:size]


def keep(thread):
    version = 0
    try:
        while not over.is_set():
            version += 1
            for file in range(FILES):
                text = content(thread, file, version)
                with open(f"{directory}/company-{thread}-{file}", "wb", buffering=0) as stream:
                    for start in range(0, len(text), len(text) // 3):
                        piece = text[start:start + len(text) // 3]
                        written = stream.write(piece)
                        assert written == len(piece), f"write gave {written} of {len(piece)}"
                    assert stream.tell() == len(text), f"the offset is {stream.tell()} after {len(text)} bytes"
            for file in range(FILES):
                with open(f"{directory}/company-{thread}-{file}", "rb", buffering=0) as stream:
                    found = stream.read(LARGE + 1)
                assert found == content(thread, file, version), f"{len(found)} bytes, {found.count(0)} of them zero"
    except BaseException as error:
        failures.append(f"thread {thread}, version {version}: {error!r}")


def before_exec():
    with open(f"{directory}/before-exec", "ab", buffering=0) as stream:
        stream.write(b"in the child\n")


def hand_over(number):
    """The child's standard input is a file that the parent closes at once, and that has no name then, or loses it."""
    path, text = f"{directory}/handed-{number}", content("h", number, 0)
    stream = tempfile.TemporaryFile(dir=directory) if number % 3 == 0 else open(path, "w+b")
    stream.write(text)
    stream.flush()
    stream.seek(0)
    child = subprocess.Popen(["cat"], stdin=stream, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=before_exec if number % 5 == 4 else None)
    if number % 3 == 1:
        os.unlink(path)
    stream.close()
    if number % 3 == 2:
        os.unlink(path)
    out, errors = child.communicate()
    assert out == text, f"child {number}: cat gave {len(out)} of {len(text)} bytes, {errors}"


def run_all():
    for number in range(CHILDREN):
        if failures:
            return
        if way == "run":
            ended = subprocess.run(["true"], cwd="/", close_fds=number % 2 == 0).returncode
            assert ended == 0, f"child {number} ended with {ended}"
            out = subprocess.run(["cat", f"{directory}/quiet-{number % 10}"], cwd=directory, capture_output=True)
            assert out.stdout == content("q", number % 10, 0), f"cat gave {len(out.stdout)} bytes, {out.stderr}"
        elif way == "popen":
            with open(f"{directory}/log", "ab", buffering=0) as log, open(f"{directory}/own", "wb", buffering=0) as own:
                log.write(b"parent %d\n" % number)
                own.write(b"head %d\n" % number)
                children = [subprocess.Popen(["echo", "to the log", str(number)], stdout=log, cwd=directory),
                            subprocess.Popen(["echo", "behind the head"], stdout=own, close_fds=False)]
                for child in children:
                    assert child.wait() == 0
                own.write(b"tail\n")
            with open(f"{directory}/own", "rb") as own:
                assert own.read() == b"head %d\nbehind the head\ntail\n" % number
        elif way == "fork":
            ended = subprocess.run(["true"], preexec_fn=before_exec, close_fds=number % 2 == 0).returncode
            assert ended == 0, f"child {number} ended with {ended}"
        elif way == "handed":
            hand_over(number)
        elif way == "spawn":
            actions = [(os.POSIX_SPAWN_OPEN, 1, f"{directory}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)]
            child = os.posix_spawn("/bin/echo", ["echo", "spawned", str(number)], os.environ, file_actions=actions)
            ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert ended == 0, f"child {number} ended with {ended}"


for file in range(10):
    with open(f"{directory}/quiet-{file}", "wb") as stream:
        stream.write(content("q", file, 0))
threads = [threading.Thread(target=keep, args=(thread,)) for thread in range(THREADS)]
for thread in threads:
    thread.start()
try:
    run_all()
except BaseException as error:
    failures.append(f"main thread: {error!r}")
over.set()
for thread in threads:
    thread.join()
for file in range(10):
    with open(f"{directory}/quiet-{file}", "rb") as stream:
        if stream.read() != content("q", file, 0):
            failures.append(f"quiet-{file}, which nobody writes, has changed")
if failures:
    print("\n".join(failures), file=sys.stderr)
    os._exit(1)
print(way, CHILDREN, "children")
