"""Who writes to a program that is setuid, setgid or has file capabilities takes them from it, as on a plain directory."""
import ctypes, itertools, mmap, os, subprocess, sys

data = sys.argv[1]
path, source = data + '/privileged', data + '/source'
libc = ctypes.CDLL(None, use_errno=True)
OTHER, BYTES = 65534, 300_000
CAPABILITIES = bytes.fromhex('0100000200200000000000000000000000000000')


def allocate(fd, mode, offset, count):
    if libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(count)) != 0:
        raise OSError(ctypes.get_errno(), 'fallocate')


def splice(fd):
    ends = os.pipe()
    os.write(ends[1], b'abc')
    os.splice(ends[0], fd, 3)


def store(fd):
    with mmap.mmap(fd, BYTES) as mapping:
        mapping[70_000:70_003] = b'abc'


def appended(fd):
    other = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(other, b'abc')
    os.close(other)


def bad(fd):
    libc.write(fd, ctypes.c_void_p(16), 5)


WAYS = {
    'write': lambda fd: os.write(fd, b'abc'),
    'nothing': lambda fd: os.write(fd, b''),
    'read': lambda fd: os.read(fd, 5),
    'pwrite': lambda fd: os.pwrite(fd, b'a' * 70_000, 65_530),
    'pwritev': lambda fd: os.pwritev(fd, [b'a', b'bc'], BYTES - 3),
    'grow': lambda fd: os.pwrite(fd, b'abc', BYTES),
    'append': appended,
    'bad': bad,
    'allocate': lambda fd: allocate(fd, 0, 0, 4096),
    'allocate more': lambda fd: allocate(fd, 0, 0, 2 * BYTES),
    'punch': lambda fd: allocate(fd, 3, 4096, 4096),
    'same length': lambda fd: os.ftruncate(fd, BYTES),
    'shorter': lambda fd: os.ftruncate(fd, 100),
    'longer': lambda fd: os.ftruncate(fd, 2 * BYTES),
    'empty': lambda fd: os.close(os.open(path, os.O_WRONLY | os.O_TRUNC)),
    'copy_file_range': lambda fd: os.copy_file_range(os.open(source, os.O_RDONLY), fd, 100, 0, 0),
    'sendfile': lambda fd: os.sendfile(fd, os.open(source, os.O_RDONLY), 0, 100),
    'splice': splice,
    'store': store,
}
# Mode, group, capabilities, and whether the writer has given up its rights.
FILES = [(0o6777, 0, False, True), (0o6777, 0, False, False), (0o2767, 0, False, True), (0o2767, OTHER, False, True),
         (0o777, 0, True, True), (0o777, 0, True, False)]


def shown():
    stat = os.stat(path)
    capabilities = 'security.capability' in os.listxattr(path)
    return '%o %d %s' % (stat.st_mode & 0o7777, stat.st_size, 'capable' if capabilities else '-')


def privilege(mode, capable):
    os.chmod(path, mode)
    if capable:
        os.setxattr(path, 'security.capability', CAPABILITIES)


def child(act, drops):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        if drops:
            os.setgroups([])
            os.setresgid(OTHER, OTHER, OTHER)
            os.setresuid(OTHER, OTHER, OTHER)
        try:
            act(os.open(path, os.O_RDWR))
        except OSError as error:
            print('error', error.errno, end=' ')
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(pid, 0)


with open(source, 'wb') as file:
    file.write(b's' * 1000)
for (name, act), (mode, group, capable, drops) in itertools.product(WAYS.items(), FILES):
    with open(path, 'wb') as file:
        file.write(b'x' * BYTES)
    os.chown(path, 0, group)
    privilege(mode, capable)
    print(name, '%o' % mode, group, capable, drops, end=': ')
    child(act, drops)
    print(shown())
    os.unlink(path)

# Another process has the file open all the time, and has written to it; the bits come by path, by descriptor, and by another program.
with open(path, 'wb', buffering=0) as held:
    held.write(b'x' * BYTES)
    for way in ('path', 'descriptor', 'program', 'attribute'):
        held.seek(10)
        held.write(b'known')
        if way == 'path':
            os.chmod(path, 0o4777)
        elif way == 'descriptor':
            os.fchmod(held.fileno(), 0o6777)
        elif way == 'program':
            subprocess.run(['chmod', 'u+s,g+s', path], check=True)
        else:
            os.setxattr(held.fileno(), 'security.capability', CAPABILITIES)
        print(way, shown(), end=' then ')
        child(WAYS['write'], True)
        print(shown())
    os.chmod(path, 0o4777)
    child(lambda fd: (os.read(fd, 100), os.pwrite(fd, b'abc', 5), os.pwrite(fd, b'abc', 9)), True)
    print(shown())
print(open(path, 'rb').read()[:20])
os.unlink(path)
os.unlink(source)
