"""Delivers COUNT messages to the maildir DIRECTORY and prints how many each second: `maildir.py DIRECTORY COUNT`.

A delivery is what qmail's author asks for: create in tmp, write, fsync, close, link into new, unlink from tmp.
"""

import os
import sys
import time

directory, count = sys.argv[1], int(sys.argv[2])
for part in ("tmp", "new", "cur"):
    os.makedirs(f"{directory}/{part}")
body = b"x" * 4096
begun = time.monotonic()
for n in range(count):
    temporary = f"{directory}/tmp/{n}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(descriptor, body)
    os.fsync(descriptor)
    os.close(descriptor)
    os.link(temporary, f"{directory}/new/{n}")
    os.unlink(temporary)
print(count / (time.monotonic() - begun))
