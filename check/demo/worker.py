"""An ordinary program that reads, verifies and rewrites files without pause, while a member is taken away under it.

worker.py ROOT SUMS PROGRESS: verifies the files listed in SUMS (sha256sum's format, relative to ROOT) one after the other and
rewrites records of ROOT/records in place, with fsync. Writes the count of rounds to PROGRESS; ends when PROGRESS.stop
exists. Exits with 1 at the first byte that is not what it must be.
"""

import hashlib
import os
import random
import struct
import sys
import time
import zlib

RECORD_BYTES = 4096
RECORD_COUNT = 1024


def record(index, version):
    """A record's bytes follow from its index and version; the checksum comes first."""
    body = struct.pack("<II", index, version) * ((RECORD_BYTES - 8) // 8)
    return struct.pack("<II", zlib.crc32(body), version) + body


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else \
            hashlib.sha256(file.read()).hexdigest()


class Worker:
    def __init__(self, root, sums):
        self.root = root
        with open(sums, encoding="utf-8") as lines:
            self.files = [line.rstrip("\n").split("  ", 1) for line in lines]
        self.records = os.open(os.path.join(root, "records"), os.O_RDWR | os.O_CREAT, 0o644)
        self.versions = [0] * RECORD_COUNT
        for index in range(RECORD_COUNT):
            os.pwrite(self.records, record(index, 0), index * RECORD_BYTES)
        self.verified = 0
        self.rewritten = 0

    def round(self, number):
        expected, path = self.files[number % len(self.files)]
        found = sha256(os.path.join(self.root, path))
        if found != expected:
            raise SystemExit(f"worker: {path}: sha256 is {found}, must be {expected}")
        self.verified += 1
        for index in random.sample(range(RECORD_COUNT), 16):
            self.versions[index] += 1
            os.pwrite(self.records, record(index, self.versions[index]), index * RECORD_BYTES)
            self.rewritten += 1
        os.fsync(self.records)
        for index in range(RECORD_COUNT):
            found = os.pread(self.records, RECORD_BYTES, index * RECORD_BYTES)
            if found != record(index, self.versions[index]):
                raise SystemExit(f"worker: record {index} is not version {self.versions[index]}")


def main():
    root, sums, progress = sys.argv[1:]
    random.seed(5)
    worker = Worker(root, sums)
    number, longest = 0, 0.0
    while not os.path.exists(progress + ".stop"):
        begun = time.monotonic()
        worker.round(number)
        longest = max(longest, time.monotonic() - begun)
        number += 1
        with open(progress, "w", encoding="ascii") as out:
            out.write(str(number))
    print(f"{number} rounds: {worker.verified} files verified, {worker.rewritten} records rewritten with fsync and read back, "
          f"0 errors, longest round {longest * 1000:.0f} ms")


main()
