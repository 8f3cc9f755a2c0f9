"""One worker on a maildir: `maildir.py deliver|read DIRECTORY LOG NAME COUNT`.

Deliverers write COUNT messages: create in tmp, write, fsync, then link into new and unlink, or rename. Readers take what is in new: rename to cur
with a flag, read it, compare it with what its name promises, unlink two of three. Each step that succeeded is appended to LOG, which lies
outside. Readers go on until a file named "stop" lies beside their log and nothing is left.
"""

import hashlib
import os
import sys

role, directory, log, name, count = sys.argv[1:]
count = int(count)
log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
stop = os.path.join(os.path.dirname(sys.argv[3]), "stop")
for part in ("tmp", "new", "cur"):
    os.makedirs(f"{directory}/{part}", exist_ok=True)


def body(message):
    seed = hashlib.sha256(message.encode()).hexdigest()
    return (seed * (1 + int(seed[:2], 16))).encode()


def say(what, message):
    os.write(log, f"{what} {message}\n".encode())


def deliver():
    for n in range(count):
        message = f"{name}.{n}"
        temporary = f"{directory}/tmp/{message}"
        with open(temporary, "xb") as file:
            file.write(body(message))
            file.flush()
            os.fsync(file.fileno())
        if n % 2:
            os.link(temporary, f"{directory}/new/{message}")
            say("delivered", message)
            os.unlink(temporary)
        else:
            os.rename(temporary, f"{directory}/new/{message}")
            say("delivered", message)


def take(message):
    """Two readers may want the same message; one gets it."""
    target = f"{directory}/cur/{message}:2,S"
    try:
        os.rename(f"{directory}/new/{message}", target)
    except FileNotFoundError:
        return
    with open(target, "rb") as file:
        if file.read() != body(message):
            sys.exit(f"message {message} has another content")
    if int(message.rsplit(".", 1)[1]) % 3:
        os.unlink(target)
        say("consumed", message)


def read():
    while True:
        last = os.path.exists(stop)
        waiting = os.listdir(f"{directory}/new")
        for message in waiting:
            take(message)
        if last and not waiting:
            break


{"deliver": deliver, "read": read}[role]()
