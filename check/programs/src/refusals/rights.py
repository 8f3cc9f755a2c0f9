"""A program of root's reads a file that only root may read, closes it, and drops its rights: what can it still reach?"""
import ctypes, errno, os, resource, sys

data, way, everybodys = sys.argv[1:]
first = min(max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2, 64), 1 << 15)
libc = ctypes.CDLL(None, use_errno=True)
OTHER = 65534


def links():
    # No listing tells them: the numbers are tried.
    found = {}
    for number in range(first, first + 1000):
        try:
            found[number] = os.readlink('/proc/self/fd/%d' % number)
        except OSError:
            pass
    return found


def backing(name):
    return [number for number, link in links().items() if link.endswith('/' + name)]


def drop():
    if way == 'setresuid':
        os.setgroups([])
        os.setresgid(OTHER, OTHER, OTHER)
        os.setresuid(OTHER, OTHER, OTHER)
    elif way == 'setuid':
        os.setuid(OTHER)
    elif way == 'setreuid':
        os.setreuid(OTHER, OTHER)
    elif way == 'setfsuid':
        libc.setfsuid(OTHER)
    elif way == 'setgid':
        os.setgid(OTHER)
    elif way == 'capset':
        head, words = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        assert libc.syscall(126, head, words) == 0
    elif way == 'unshare':
        # A second thread (of mappings) would keep it from that.
        assert libc.unshare(0x10000000) == 0, ctypes.get_errno()
    elif way == 'thread':
        import threading
        thread = threading.Thread(target=lambda: os.setresuid(OTHER, OTHER, OTHER))
        thread.start()
        thread.join()


def called(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def attempt(name, act):
    try:
        act()
        print(way, 'reaches', name)
    except OSError as error:
        # Some ways lead nowhere, whoever goes: a table is no directory, and a directory is not opened to write.
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EBADF, errno.ENOENT, errno.EISDIR, errno.ENOTDIR):
            print(way, name, error)


for name in ('secret', 'open'):
    with open(data + '/' + name, 'w') as file:
        os.fchmod(file.fileno(), 0o600)
        file.write('secret of root')
for name in ('secret', 'open'):
    open(data + '/' + name).read()
stays = os.open(data + '/open', os.O_RDWR)
os.close(os.open(data + '/secret', os.O_RDONLY))
print('kept before' if backing('secret') else 'nothing kept', bool(backing('open')))
drop()
print('kept after' if backing('secret') else 'gone')
# What is open stays open.
print(os.pread(stays, 6, 0), os.pwrite(stays, b'S', 0))
os.close(stays)
print('kept after its close' if backing('open') else 'gone')
if way in ('setresuid', 'setuid', 'setreuid', 'thread'):
    attempt('the file', lambda: open(data + '/secret').read())
    pidfd = os.pidfd_open(os.getpid())
    for number, link in links().items():
        if '/dev/' in link and 'shm' not in link or ':[' in link:
            continue
        path = '/proc/self/fd/%d' % number
        is_directory = not link.rsplit('/', 1)[-1] in ('inodes', 'lanes', 'names', 'superblock') and '.cxlraid' not in link
        if '.cxlraid' in link or 'shm/cxlraid-' in link and not is_directory:
            attempt(link + ' by its link', lambda: os.open(path, os.O_RDONLY))
            attempt(link + ' by its link, to write', lambda: os.open(path, os.O_RDWR))
            attempt(link + ' by a name in it', lambda: os.open(path + '/inodes', os.O_RDONLY))
            attempt(link + ' by a new link', lambda: called(libc.linkat(-100, path.encode(), -100, (everybodys + '/linked').encode(), 0x400)))
        attempt(link + ' by its number', lambda: os.pread(number, 1, 0))
        attempt(link + ' by pidfd_getfd', lambda: called(libc.syscall(438, pidfd, number, 0)))
    print('tried', len(links()) > 5)
