"""A writer that is killed; a reader that finds only what writers wrote; a last writer that has the last word."""

import os
import random
import sys

what, path, *rest = sys.argv[1:]
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
BYTES = 400000

if what == "write":
    rng = random.Random()
    letters = [b"abc", b"def", b"ghi"][int(rest[0])]
    while True:
        length = rng.choice([1, 100, 5000, 70000, 150000])
        offset = rng.randrange(BYTES - length)
        os.pwrite(fd, bytes([rng.choice(letters)]) * length, offset)
        if rng.randrange(20) == 0:
            os.ftruncate(fd, rng.randrange(BYTES))
elif what == "check":
    size = os.fstat(fd).st_size
    content = os.pread(fd, BYTES * 2, 0)
    print(len(content) == size, not rest or set(content) <= set(b"abcdefghi\0"))
    os.pwrite(fd, b"a" * 1000, size // 2)
    print(os.pread(fd, 1000, size // 2) == b"a" * 1000)
else:
    content = random.Random(rest[0]).randbytes(BYTES)
    os.pwrite(fd, content, 0)
    os.ftruncate(fd, BYTES)
    print(os.pread(fd, BYTES, 0) == content)
