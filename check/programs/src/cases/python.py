"""Python's ways to files: buffered and raw, positioned, mapped, temporary, whole trees."""

import contextlib
import errno
import hashlib
import io
import json
import mmap
import os
import pathlib
import random
import shutil
import stat
import sys
import tempfile
import zipfile

what, d = sys.argv[1:]
rng = random.Random(what)


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def modes():
    for mode in ["w", "a", "r+", "w+", "a+", "x", "r", "rb", "rb+", "wb", "ab"]:
        path = f"{d}/mode"
        try:
            with open(path, mode) as file:
                if file.readable():
                    print(mode, repr(file.read(20)), file.tell())
                if file.writable():
                    print(mode, file.write("text %s\n" % mode if "b" not in mode else b"bytes\n"), file.tell())
        except OSError as error:
            print(mode, errno.errorcode[error.errno])
        print(os.stat(path).st_size, digest(path))
    with open(f"{d}/lines", "w", newline="\n", buffering=1) as file:
        file.writelines(f"line {n}\n" for n in range(300))
        file.seek(0)
        file.truncate(100)
    with open(f"{d}/lines", encoding="utf-8") as file:
        print(len(file.readlines()))
    with open(f"{d}/raw", "wb", buffering=0) as file:
        for size in (1, 100, 10000, 100000):
            file.write(rng.randbytes(size))
    with open(f"{d}/raw", "r+b") as file:
        file.seek(-50, os.SEEK_END)
        file.write(b"x" * 200)
        file.seek(3)
        print(file.read(5).hex(), file.tell(), file.seek(0, os.SEEK_END), file.truncate(90001))
        file.flush()
        os.fsync(file.fileno())
    print(digest(f"{d}/raw"))


def positioned():
    fd = os.open(f"{d}/positioned", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o640)
    model = bytearray()
    for _ in range(200):
        offset, data = rng.randrange(300000), rng.randbytes(rng.randrange(1, 9000))
        assert os.pwrite(fd, data, offset) == len(data)
        model.extend(bytes(max(0, offset + len(data) - len(model))))
        model[offset : offset + len(data)] = data
        offset, length = rng.randrange(320000), rng.randrange(1, 20000)
        assert os.pread(fd, length, offset) == bytes(model[offset : offset + length])
    assert os.pwritev(fd, [b"ab", b"", b"cde"], 7) == 5
    model[7:12] = b"abcde"
    into = [bytearray(3), bytearray(1000)]
    assert os.preadv(fd, into, 5) == 1003 and bytes(into[0] + into[1]) == bytes(model[5:1008])
    for size in (200001, 400000, 5, 70000):
        os.ftruncate(fd, size)
        model = (model + bytes(size))[:size]
        assert os.pread(fd, size + 1, 0) == bytes(model)
        assert os.fstat(fd).st_size == size
    print(os.lseek(fd, 0, os.SEEK_END), hashlib.sha256(model).hexdigest()[:16], os.get_blocking(fd))
    os.posix_fallocate(fd, 0, 100000)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.fdatasync(fd)
    os.close(fd)


def mapped():
    with open(f"{d}/mapped", "w+b") as file:
        file.write(rng.randbytes(200000))
        file.flush()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            print(hashlib.sha256(view).hexdigest()[:16], view.find(b"\0\0"), len(view))
            with contextlib.suppress(TypeError):
                view[0] = 1
        with mmap.mmap(file.fileno(), 100000, access=mmap.ACCESS_COPY, offset=65536) as view:
            view[:5] = b"local"
            print(view[:8].hex())
        file.seek(65536)
        print(file.read(8).hex())


def trees():
    root = pathlib.Path(d, "tree")
    for n in range(40):
        file = root / f"sub{n % 4}" / f"deep{n % 3}" / f"file{n}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(rng.randbytes(n * 400))
        file.chmod(0o600 + n % 8)
        os.utime(file, ns=(10**18 + n, 10**18 + 7 * n))
    (root / "link").symlink_to("sub1/deep1")
    shutil.copytree(root, f"{d}/copied", symlinks=True)
    shutil.copy2(root / "sub0/deep0/file36", f"{d}/copied/one")
    shutil.move(f"{d}/copied/sub3", f"{d}/moved")
    shutil.move(f"{d}/moved", "moved-to-host")
    shutil.copytree("moved-to-host", f"{d}/back")
    shutil.rmtree(root / "sub2")
    for base, folders, files in sorted(os.walk(d)):
        folders.sort()
        print(base[len(d) :], len(folders), len(files))
    with os.scandir(f"{d}/copied") as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            print(entry.name, entry.is_dir(), entry.is_symlink(), entry.is_file(follow_symlinks=False))
    info = os.stat(f"{d}/copied/one")
    print(stat.filemode(info.st_mode), info.st_size, info.st_mtime_ns, sorted(p.name for p in root.rglob("file1*")))
    shutil.rmtree("moved-to-host")
    os.replace(f"{d}/copied/one", f"{d}/back/one")
    print(os.path.getsize(f"{d}/back/one"), shutil.disk_usage(d).total > 0)
    shutil.make_archive(f"{d}/archive", "tar", root)
    os.unlink(f"{d}/archive.tar")


def temporary():
    with tempfile.TemporaryFile(dir=d) as file:
        file.write(rng.randbytes(150000))
        file.seek(100)
        print(hashlib.sha256(file.read()).hexdigest()[:16])
    with tempfile.NamedTemporaryFile(dir=d, delete=True) as file:
        file.write(b"named")
        file.flush()
        print(os.path.getsize(file.name))
    with tempfile.TemporaryDirectory(dir=d) as folder:
        with open(folder + "/inside", "w") as file:
            print("inside", file=file)
        print(os.listdir(folder))
    with tempfile.SpooledTemporaryFile(max_size=1000, dir=d) as file:
        file.write(b"s" * 5000)
        print(file.tell())


def formats():
    with zipfile.ZipFile(f"{d}/zipped", "w", zipfile.ZIP_DEFLATED) as archive:
        for n in range(10):
            archive.writestr(zipfile.ZipInfo(f"member{n}"), rng.randbytes(n * 5000))
    with zipfile.ZipFile(f"{d}/zipped") as archive:
        print(archive.testzip(), len(archive.namelist()))
    with open(f"{d}/json", "w") as file:
        json.dump({"n": list(range(5000))}, file)
    with open(f"{d}/json") as file:
        print(sum(json.load(file)["n"]))
    with io.open(f"{d}/text", "w", encoding="utf-16") as file:
        file.write("ä" * 10000)
    print(digest(f"{d}/text"))


def exercise():
    modes()
    positioned()
    mapped()
    trees()
    temporary()
    formats()


if what == "again":
    print(digest(f"{d}/positioned"), digest(f"{d}/zipped"))
    for path in sorted(pathlib.Path(d).rglob("*")):
        if path.is_file() and not path.is_symlink():
            path.chmod(0o600)
            with path.open("ab") as file:
                file.write(b"appended again")
    d += "/again"
    os.mkdir(d)
exercise()
