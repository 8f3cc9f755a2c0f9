"""Puts into LMDB, with sync: `lmdb.py DATABASE MODE`, or with MODE `dump` prints every key with its value, and checks the tree.

MODE says how pages are written: `pwrite`, or `map`, through the mapping itself (MDB_WRITEMAP). Reads lines "client n", puts key "client/n", and answers with the
same line once the transaction is durable. Each client is a process of its own; what they share is LMDB's lock file, with robust mutexes in it.
"""

import sys

# Not this file, which has the module's name.
sys.path.pop(0)
import lmdb

path, mode = sys.argv[1:]
environment = lmdb.open(path, subdir=False, map_size=32 << 20, writemap=mode == "map", map_async=False, max_readers=32)
if mode == "dump":
    environment.reader_check()
    with environment.begin() as transaction:
        rows = list(transaction.cursor())
        assert transaction.stat()["entries"] == len(rows)
        assert all(one[0] < other[0] for one, other in zip(rows, rows[1:]))
        print("\n".join(f"{key.decode()} : {value.decode()}" for key, value in rows))
    sys.exit()
for line in sys.stdin:
    client, n = line.split()
    with environment.begin(write=True) as transaction:
        transaction.put(f"{client}/{int(n):08}".encode(), (f"{client} {n};" * 20).encode())
    print(line, end="", flush=True)
