"""Directories where everybody may make names (the sticky bit), with the kernel's protection of symlinks and regular files on (proc_sys_fs(5)): who may follow a symlink there, and open a file
with O_CREAT. All of it could be done without the protection.

Arguments: a directory; protected_regular as it is set. A line is printed for each attempt that ends otherwise than the kernel's, and in the end how many were made and how many refused.
"""

import errno
import os
import sys

directory, protected_regular = sys.argv[1], int(sys.argv[2])
tried = refused = 0


def path(name):
    return os.path.join(directory, name)


def attempt(user, what, is_refused, act):
    global tried, refused
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        try:
            act()
        except OSError as error:
            os._exit(error.errno)
        os._exit(0)
    answer = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    tried += 1
    refused += is_refused
    if answer != (errno.EACCES if is_refused else 0):
        print(what, "as", user, errno.errorcode.get(answer, answer))


def try_all(place, mode, owner, maker):
    for user in (0, 1001, 1003):
        is_others = maker not in (user, owner)
        by_link = is_others and mode & 0o1002 == 0o1002
        writable = 0o022 if protected_regular > 1 else 0o002
        by_file = protected_regular > 0 and is_others and mode & 0o1000 != 0 and mode & writable != 0
        link, inner, file = f"{place}/link{maker}", f"{place}/inner{maker}", f"{place}/file{maker}"
        attempt(user, f"stat {link}", by_link, lambda: os.stat(path(link)))
        attempt(user, f"lstat {link}", False, lambda: os.lstat(path(link)))
        attempt(user, f"open {link}", by_link, lambda: os.open(path(link), os.O_RDONLY))
        attempt(user, f"open {link} to make it", by_link, lambda: os.open(path(link), os.O_RDWR | os.O_CREAT, 0o666))
        attempt(user, f"list {inner}", by_link, lambda: os.listdir(path(inner)))
        # Only the last component is protected.
        attempt(user, f"open {inner}/file", False, lambda: os.open(path(f"{inner}/file"), os.O_RDONLY))
        attempt(user, f"open {file}", False, lambda: os.open(path(file), os.O_RDWR))
        attempt(user, f"open {file} to make it", by_file, lambda: os.open(path(file), os.O_RDWR | os.O_CREAT, 0o666))


os.umask(0)
os.close(os.open(path("target"), os.O_WRONLY | os.O_CREAT, 0o666))
os.mkdir(path("within"), 0o755)
os.close(os.open(path("within/file"), os.O_WRONLY | os.O_CREAT, 0o666))
for mode in (0o1777, 0o777, 0o1775, 0o1755):
    for owner in (0, 1001):
        place = f"{mode:o}-{owner}"
        os.mkdir(path(place))
        os.chmod(path(place), mode)
        os.chown(path(place), owner, 0)
        for maker in (0, 1001, 1002):
            os.symlink(path("target"), path(f"{place}/link{maker}"))
            os.symlink(path("within"), path(f"{place}/inner{maker}"))
            os.close(os.open(path(f"{place}/file{maker}"), os.O_WRONLY | os.O_CREAT, 0o666))
            for name in ("link", "inner", "file"):
                os.chown(path(f"{place}/{name}{maker}"), maker, maker, follow_symlinks=False)
            try_all(place, mode, owner, maker)
print(tried, refused)
