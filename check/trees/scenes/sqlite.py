"""Writers of one SQLite database that are killed and begun anew. What a writer was told is committed it notes on the host; in the end all of that must be in the database, and a count that every
transaction raises must fit."""

import os
import sqlite3
import sys

what, who, notes, variant = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
MODE = ["wal", "delete"][variant % 2]
database = os.path.join(os.environ["D"], "database")


def connected():
    found = sqlite3.connect(database, timeout=30, isolation_level=None)
    found.execute("pragma journal_mode=" + MODE)
    found.execute("pragma synchronous=full")
    return found


def is_expected(error):
    """Without room, which the director notes, nothing is committed; SQLite says of its WAL index that this is an I/O error."""
    room = [] if not os.path.exists(os.path.join(notes, "full")) else ["full", "disk I/O error"]
    return any(word in str(error) for word in ["locked", "busy"] + room)


def begun():
    while True:
        try:
            return connected()
        except sqlite3.OperationalError as error:
            if not is_expected(error):
                raise


def write():
    found, number = begun(), 0
    with open(os.path.join(notes, "told-" + who), "a", buffering=1) as told:
        while not os.path.exists(os.path.join(notes, "stop")):
            try:
                found.execute("begin immediate")
                found.execute("insert into entries values (?, ?)", (who, number))
                found.execute("update counts set value = value + 1")
                found.execute("commit")
            except sqlite3.OperationalError as error:
                if not is_expected(error):
                    raise
                if found.in_transaction:
                    found.execute("rollback")
                continue
            told.write("%d\n" % number)
            number += 1


def end():
    found = connected()
    entries = set(found.execute("select writer, number from entries"))
    told = set()
    for name in os.listdir(notes):
        if name.startswith("told-"):
            with open(os.path.join(notes, name)) as file:
                told |= {(name[5:], int(line)) for line in file.read().split("\n")[:-1]}
    count = found.execute("select value from counts").fetchone()[0]
    print(found.execute("pragma integrity_check").fetchone()[0], "lost", len(told - entries), "count", count - len(entries))
    if not told:
        print("nothing was written")


def begin():
    found = connected()
    found.execute("create table entries (writer, number)")
    found.execute("create table counts (value)")
    found.execute("insert into counts values (0)")


{"begin": begin, "write": write, "end": end}[what]()
