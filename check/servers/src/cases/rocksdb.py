"""Puts into RocksDB through its C interface, with sync: `rocksdb.py DATABASE MODE`, by way of mappings if MODE is `mmap`.

Reads lines "client n", puts key "client/n", and answers with the same line once the put is durable. No Debian package has
a Python binding or the C headers; the few calls needed are declared here (rocksdb/c.h).
"""

import ctypes
import ctypes.util
import sys

name = ctypes.util.find_library("rocksdb") or "librocksdb.so.7.8"
lib = ctypes.CDLL(name)
pointer, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
for function, result, arguments in [
    ("rocksdb_options_create", pointer, []),
    ("rocksdb_options_set_create_if_missing", None, [pointer, ctypes.c_ubyte]),
    ("rocksdb_options_set_write_buffer_size", None, [pointer, size]),
    ("rocksdb_options_set_allow_mmap_reads", None, [pointer, ctypes.c_ubyte]),
    ("rocksdb_options_set_allow_mmap_writes", None, [pointer, ctypes.c_ubyte]),
    ("rocksdb_open", pointer, [pointer, text, ctypes.POINTER(text)]),
    ("rocksdb_writeoptions_create", pointer, []),
    ("rocksdb_writeoptions_set_sync", None, [pointer, ctypes.c_ubyte]),
    ("rocksdb_put", None, [pointer, pointer, text, size, text, size, ctypes.POINTER(text)]),
]:
    getattr(lib, function).restype = result
    getattr(lib, function).argtypes = arguments

error = text()


def check():
    if error.value:
        sys.exit("rocksdb: " + error.value.decode())


options = lib.rocksdb_options_create()
lib.rocksdb_options_set_create_if_missing(options, 1)
lib.rocksdb_options_set_write_buffer_size(options, 65536)
if sys.argv[2] == "mmap":
    lib.rocksdb_options_set_allow_mmap_reads(options, 1)
    lib.rocksdb_options_set_allow_mmap_writes(options, 1)
database = lib.rocksdb_open(options, sys.argv[1].encode(), ctypes.byref(error))
check()
synced = lib.rocksdb_writeoptions_create()
lib.rocksdb_writeoptions_set_sync(synced, 1)
for line in sys.stdin:
    client, n = line.split()
    key, value = f"{client}/{int(n):08}".encode(), (f"{client} {n};" * 20).encode()
    lib.rocksdb_put(database, synced, key, len(key), value, len(value), ctypes.byref(error))
    check()
    print(line, end="", flush=True)
