"""Programs that store through shared mappings: mmap of Python, numpy.memmap, LMDB, SQLite with a write-ahead log, counters of several processes."""

import mmap
import os
import sqlite3
import struct
import sys

part, d = sys.argv[1:]
# Not this file's neighbours.
sys.path.pop(0)
import lmdb
import numpy


def in_children(count, act):
    """Runs act(0), act(1), ... in processes of their own."""
    pids = []
    for index in range(count):
        pid = os.fork()
        if pid == 0:
            try:
                act(index)
                os._exit(0)
            except BaseException as error:
                print(f"child {index}: {error!r}", file=sys.stderr, flush=True)
                os._exit(1)
        pids.append(pid)
    print("children", [os.waitpid(pid, 0)[1] for pid in pids])


def python():
    with open(f"{d}/mapped", "w+b" if part == "first" else "r+b") as file:
        if part == "first":
            file.truncate(300_000)
        with mmap.mmap(file.fileno(), 0) as view:
            print(len(view), view[:20].hex(), sum(view[:]))
            for at in range(0, 300_000, 977):
                view[at : at + 9] = struct.pack("<QB", at * at, at % 251)
            view.flush()
            file.seek(977 * 5)
            print(file.read(9).hex(), view.find(b"\x00\x01\x02"), view.rfind(struct.pack("<Q", 977 * 977)))
            view.move(100_000, 0, 50_000)
            view.resize(400_000)
            view[399_999] = 7
            print(len(view), os.fstat(file.fileno()).st_size, sum(view[:]))
        with mmap.mmap(file.fileno(), 4096, access=mmap.ACCESS_COPY, offset=65536) as view:
            view[:5] = b"other"
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            print(view[65536:65541].hex(), sum(view[:]))


def arrays():
    shape = (300, 500)
    numbers = numpy.memmap(f"{d}/numbers", dtype="float64", mode="w+" if part == "first" else "r+", shape=shape)
    numbers[:] += numpy.arange(shape[0] * shape[1], dtype="float64").reshape(shape)
    numbers[::7, ::3] *= -1
    numbers.flush()
    print(float(numbers.sum()), float(numbers[299, 499]))
    del numbers
    again = numpy.memmap(f"{d}/numbers", dtype="float64", mode="r", shape=shape)
    print(float(again.sum()), float(again.std()))


def database(name, **options):
    path = f"{d}/{name}.lmdb"

    def put(index):
        with lmdb.open(path, subdir=False, map_size=16 << 20, max_readers=16, **options) as environment:
            for n in range(30):
                with environment.begin(write=True) as transaction:
                    count = int(transaction.get(b"count", b"0")) + 1
                    transaction.put(b"count", b"%d" % count)
                    transaction.put(b"%s/%d/%d" % (part.encode(), index, n), b"%d;" % n * 200)

    in_children(3, put)
    with lmdb.open(path, subdir=False, map_size=16 << 20, max_readers=16, **options) as environment:
        with environment.begin() as transaction:
            rows = dict(transaction.cursor())
            assert all(value == key.rsplit(b"/")[-1] + b";" + value[len(key.rsplit(b"/")[-1]) + 1 :] for key, value in rows.items() if b"/" in key)
            print(name, rows.pop(b"count"), len(rows), transaction.stat()["entries"])
        with environment.begin(write=True) as transaction:
            print(sum(transaction.delete(key) for key in sorted(rows)[::2]))
    # How long it is depends on who came when.
    os.truncate(path, 16 << 20)


def sqlite():
    path = f"{d}/rows.db"

    def connect():
        connection = sqlite3.connect(path, timeout=60, isolation_level=None)
        for pragma in ("journal_mode = WAL", "mmap_size = 100000000", "wal_autocheckpoint = 10", "cache_size = 10"):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        return connection

    first = connect()
    first.execute("CREATE TABLE IF NOT EXISTS rows (part TEXT, worker INTEGER, n INTEGER, text TEXT, PRIMARY KEY (part, worker, n))")
    first.close()

    def insert(index):
        connection = connect()
        for n in range(40):
            connection.execute("INSERT INTO rows VALUES (?, ?, ?, ?)", (part, index, n, f"{n:02}" * 150))
        connection.close()

    in_children(4, insert)
    connection = connect()
    print(connection.execute("SELECT part, worker, count(*), sum(n), sum(length(text)) FROM rows GROUP BY 1, 2 ORDER BY 1, 2").fetchall())
    print(connection.execute("PRAGMA integrity_check").fetchall())
    # All rows are as long as each other: the same pages in whatever order they came.
    connection.execute("VACUUM")
    connection.close()


def counters():
    with open(f"{d}/counters", "a+b") as file:
        file.truncate(10 * 4096)
        with mmap.mmap(file.fileno(), 0) as view:
            words = memoryview(view).cast("Q")

            def count(index):
                for _ in range(5000):
                    words[index * 512 + 3] += 1
                    words[index * 512 + 511] ^= words[index * 512 + 3]
                if index == 2:
                    view.flush()

            in_children(4, count)
            print([words[index * 512 + 3] for index in range(4)], [words[index * 512 + 511] for index in range(4)])
            words.release()


python()
arrays()
database("plain")
database("map", writemap=True, map_async=part == "again")
sqlite()
counters()
