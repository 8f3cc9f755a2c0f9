//! The system calls that programs are drawn from.

use crate::calls::{Call, Kind, LOAD, Reach, STORE, Shown};
use libc::{
    AT_EACCESS, AT_EMPTY_PATH, AT_NO_AUTOMOUNT, AT_REMOVEDIR, AT_STATX_DONT_SYNC, AT_STATX_FORCE_SYNC, AT_SYMLINK_FOLLOW,
    AT_SYMLINK_NOFOLLOW, F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_GETFL, F_SETFD, F_SETFL, FALLOC_FL_COLLAPSE_RANGE,
    FALLOC_FL_INSERT_RANGE, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_UNSHARE_RANGE, O_APPEND, O_CLOEXEC, O_CREAT,
    O_DIRECT, O_DIRECTORY, O_DSYNC, O_EXCL, O_LARGEFILE, O_NOATIME, O_NOCTTY, O_NOFOLLOW, O_NONBLOCK, O_PATH, O_RDONLY, O_RDWR,
    O_SYNC, O_TMPFILE, O_TRUNC, O_WRONLY, c_long,
};

use Kind::{
    Action, Address, AddressBytes, At, Attribute, Bits, Dir, Fd, Fixed, Handle, How, HowBytes, Id, In, Length, Limit, Lock,
    MapBytes, MapFlags, MapOffset, Message, Mode, Number, Offset, OffsetPlace, OldTimes, Out, Path, PieceCount, PiecesIn,
    PiecesOut, Pipe, Ranges, SignalSet, SizePlace, Times,
};

const OPEN: Kind = Bits(&[
    O_RDONLY,
    O_WRONLY,
    O_RDWR,
    O_CREAT,
    O_EXCL,
    O_NOCTTY,
    O_TRUNC,
    O_APPEND,
    O_NONBLOCK,
    O_DSYNC,
    O_SYNC,
    O_DIRECT,
    O_LARGEFILE,
    O_DIRECTORY,
    O_NOFOLLOW,
    O_NOATIME,
    O_CLOEXEC,
    O_PATH,
    O_TMPFILE,
    O_RDWR | O_CREAT,
    O_WRONLY | O_CREAT | O_TRUNC,
    O_RDWR | O_TMPFILE,
    O_RDONLY | O_DIRECTORY,
]);
const AT: Kind = Bits(&[
    AT_SYMLINK_NOFOLLOW,
    AT_SYMLINK_FOLLOW,
    AT_EMPTY_PATH,
    AT_NO_AUTOMOUNT,
    AT_REMOVEDIR,
    AT_EACCESS,
    AT_STATX_FORCE_SYNC,
    AT_STATX_DONT_SYNC,
]);
const SPACE: Kind = Bits(&[
    FALLOC_FL_KEEP_SIZE,
    FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
    FALLOC_FL_PUNCH_HOLE,
    FALLOC_FL_COLLAPSE_RANGE,
    FALLOC_FL_INSERT_RANGE,
    FALLOC_FL_UNSHARE_RANGE,
]);
const ACCESS: Kind = Bits(&[1, 2, 4, 8]);
const XATTR: Kind = Bits(&[1, 2]);
const RENAME: Kind = Bits(&[1, 2]);
const RWF: Kind = Bits(&[1, 2, 4, 16]);
const WHENCE: Kind = Number(&[0, 1, 2, 5]);
const HOLES: Kind = Number(&[3, 4]);
const DESCRIPTOR_FLAGS: Kind = Bits(&[O_CLOEXEC, O_NONBLOCK, O_DIRECT]);
const SIGNAL_BYTES: Kind = Number(&[8, 8, 8, 0, 16]);
/// MSG_OOB, MSG_PEEK, MSG_DONTWAIT (of these most), MSG_NOSIGNAL.
const MESSAGE_FLAGS: Kind = Bits(&[0x40, 0x40, 0x40, 1, 2, 0x4000]);
const PROTECTION: Kind = Bits(&[0, 1, 2, 3, 1, 3, 3, 4, 5, 0x0100_0000, 0x0200_0000]);
const ADVICE: Kind = Number(&[0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 25, 26]);
const NODE: Kind = Number(&[0o100_644, 0o10_644, 0o140_644, 0o20_644, 0o40_755, 0o644, 0o120_777, 0o60_600]);

const fn call(name: &'static str, number: c_long, weight: u64, shown: Shown, kinds: &'static [Kind]) -> Call {
    Call { name, number, kinds, shown, weight, reach: Reach::Everywhere }
}

/// A call on memory.
const fn memory(name: &'static str, number: c_long, weight: u64, shown: Shown, kinds: &'static [Kind]) -> Call {
    Call { name, number, kinds, shown, weight, reach: Reach::Mapping }
}

/// A call that may part a thread from the others.
const fn alone(name: &'static str, number: c_long, weight: u64, shown: Shown, kinds: &'static [Kind]) -> Call {
    Call { name, number, kinds, shown, weight, reach: Reach::Alone }
}

/// A call on a socket, or one that may wait inside the library: a child that shares its parent's
/// memory does not make it.
const fn apart(name: &'static str, number: c_long, weight: u64, shown: Shown, kinds: &'static [Kind]) -> Call {
    Call { name, number, kinds, shown, weight, reach: Reach::OwnMemory }
}

/// All of them.
pub(crate) const CALLS: &[Call] = &[
    call("openat", libc::SYS_openat, 20, Shown::Bytes, &[Dir, Path, OPEN, Mode]),
    call("open", libc::SYS_open, 8, Shown::Bytes, &[Path, OPEN, Mode]),
    call("creat", libc::SYS_creat, 2, Shown::Bytes, &[Path, Mode]),
    call("openat2", libc::SYS_openat2, 3, Shown::Bytes, &[Dir, Path, How, HowBytes]),
    call("close", libc::SYS_close, 5, Shown::Bytes, &[Fd]),
    call(
        "close_range",
        libc::SYS_close_range,
        1,
        Shown::Bytes,
        &[Number(&[18, 20, 25, 1000]), Number(&[19, 22, 30, 400]), Bits(&[4])],
    ),
    alone(
        "close_range-apart",
        libc::SYS_close_range,
        1,
        Shown::Bytes,
        &[Number(&[18, 20, 25]), Number(&[19, 22, 30]), Number(&[2, 6])],
    ),
    call("read", libc::SYS_read, 8, Shown::Bytes, &[Fd, Out, Length]),
    call("write", libc::SYS_write, 10, Shown::Bytes, &[Fd, In, Length]),
    call("pread64", libc::SYS_pread64, 6, Shown::Bytes, &[Fd, Out, Length, Offset]),
    call("pwrite64", libc::SYS_pwrite64, 8, Shown::Bytes, &[Fd, In, Length, Offset]),
    call("readv", libc::SYS_readv, 3, Shown::Bytes, &[Fd, PiecesOut, PieceCount]),
    call("writev", libc::SYS_writev, 3, Shown::Bytes, &[Fd, PiecesIn, PieceCount]),
    call("preadv2", libc::SYS_preadv2, 3, Shown::Bytes, &[Fd, PiecesOut, PieceCount, Offset, Fixed(0), RWF]),
    call("pwritev2", libc::SYS_pwritev2, 3, Shown::Bytes, &[Fd, PiecesIn, PieceCount, Offset, Fixed(0), RWF]),
    call("lseek", libc::SYS_lseek, 8, Shown::Bytes, &[Fd, Offset, WHENCE]),
    call("lseek-hole", libc::SYS_lseek, 2, Shown::Success, &[Fd, Offset, HOLES]),
    call("ftruncate", libc::SYS_ftruncate, 5, Shown::Bytes, &[Fd, Offset]),
    call("truncate", libc::SYS_truncate, 4, Shown::Bytes, &[Path, Offset]),
    call("fallocate", libc::SYS_fallocate, 6, Shown::Bytes, &[Fd, SPACE, Offset, Offset]),
    call("fsync", libc::SYS_fsync, 2, Shown::Bytes, &[Fd]),
    call("fdatasync", libc::SYS_fdatasync, 2, Shown::Bytes, &[Fd]),
    call("sync_file_range", libc::SYS_sync_file_range, 2, Shown::Bytes, &[Fd, Offset, Offset, Bits(&[1, 2, 4])]),
    call("syncfs", libc::SYS_syncfs, 1, Shown::Bytes, &[Fd]),
    call("fadvise64", libc::SYS_fadvise64, 2, Shown::Bytes, &[Fd, Offset, Offset, Number(&[0, 1, 2, 3, 4, 5, 6, -1])]),
    call("readahead", libc::SYS_readahead, 2, Shown::Bytes, &[Fd, Offset, Length]),
    call("copy_file_range", libc::SYS_copy_file_range, 4, Shown::Bytes, &[Fd, OffsetPlace, Fd, OffsetPlace, Length, Bits(&[1])]),
    apart("sendfile", libc::SYS_sendfile, 4, Shown::Bytes, &[Fd, Fd, OffsetPlace, Length]),
    apart("splice", libc::SYS_splice, 4, Shown::Bytes, &[Fd, OffsetPlace, Fd, OffsetPlace, Length, Bits(&[1, 2, 4])]),
    call("tee", libc::SYS_tee, 1, Shown::Bytes, &[Fd, Fd, Length, Bits(&[1, 2, 4])]),
    call("dup", libc::SYS_dup, 4, Shown::Bytes, &[Fd]),
    call("dup2", libc::SYS_dup2, 3, Shown::Bytes, &[Fd, Fd]),
    call("dup3", libc::SYS_dup3, 3, Shown::Bytes, &[Fd, Fd, DESCRIPTOR_FLAGS]),
    call(
        "fcntl-dup",
        libc::SYS_fcntl,
        2,
        Shown::Bytes,
        &[Fd, Number(&[F_DUPFD as i64, F_DUPFD_CLOEXEC as i64]), Number(&[0, 3, 17, 40, -1, 100_000])],
    ),
    call("fcntl-get", libc::SYS_fcntl, 4, Shown::Bytes, &[Fd, Number(&[F_GETFD as i64, F_GETFL as i64, 1025, 1034, 1031])]),
    call("fcntl-setfd", libc::SYS_fcntl, 2, Shown::Bytes, &[Fd, Fixed(F_SETFD as i64), Bits(&[1])]),
    call("fcntl-setfl", libc::SYS_fcntl, 3, Shown::Bytes, &[Fd, Fixed(F_SETFL as i64), OPEN]),
    call("fcntl-lock", libc::SYS_fcntl, 5, Shown::Bytes, &[Fd, Number(&[5, 6, 36, 37]), Lock]),
    call("flock", libc::SYS_flock, 3, Shown::Bytes, &[Fd, Number(&[5, 6, 8, 4, 12, 7, 0])]),
    call(
        "ioctl",
        libc::SYS_ioctl,
        3,
        Shown::Nothing,
        &[
            Fd,
            Number(&[0x541b, 0x5421, 0x5450, 0x5451, 0x5401, 2, 0x8008_6601, 0x4008_6602, 0x1261, 0xc020_660b, 0x4004_9409]),
            Out,
        ],
    ),
    call("stat", libc::SYS_stat, 5, Shown::Stat, &[Path, Out]),
    call("lstat", libc::SYS_lstat, 4, Shown::Stat, &[Path, Out]),
    call("fstat", libc::SYS_fstat, 5, Shown::Stat, &[Fd, Out]),
    call("newfstatat", libc::SYS_newfstatat, 6, Shown::Stat, &[Dir, Path, Out, AT]),
    call("statx", libc::SYS_statx, 6, Shown::Statx, &[Dir, Path, AT, Number(&[0x7ff, 0xfff, 0, 0x200, 0x8000_0000]), Out]),
    call("statfs", libc::SYS_statfs, 2, Shown::Nothing, &[Path, Out]),
    call("fstatfs", libc::SYS_fstatfs, 2, Shown::Nothing, &[Fd, Out]),
    call("access", libc::SYS_access, 3, Shown::Bytes, &[Path, ACCESS]),
    call("faccessat", libc::SYS_faccessat, 2, Shown::Bytes, &[Dir, Path, ACCESS]),
    call("faccessat2", libc::SYS_faccessat2, 3, Shown::Bytes, &[Dir, Path, ACCESS, AT]),
    call("getdents64", libc::SYS_getdents64, 5, Shown::Entries, &[Fd, Out, Length]),
    call("getcwd", libc::SYS_getcwd, 3, Shown::Bytes, &[Out, Length]),
    call("chdir", libc::SYS_chdir, 4, Shown::Bytes, &[Path]),
    call("fchdir", libc::SYS_fchdir, 2, Shown::Bytes, &[Fd]),
    call("rename", libc::SYS_rename, 5, Shown::Bytes, &[Path, Path]),
    call("renameat", libc::SYS_renameat, 2, Shown::Bytes, &[Dir, Path, Dir, Path]),
    call("renameat2", libc::SYS_renameat2, 5, Shown::Bytes, &[Dir, Path, Dir, Path, RENAME]),
    call("mkdir", libc::SYS_mkdir, 3, Shown::Bytes, &[Path, Mode]),
    call("mkdirat", libc::SYS_mkdirat, 3, Shown::Bytes, &[Dir, Path, Mode]),
    call("rmdir", libc::SYS_rmdir, 3, Shown::Bytes, &[Path]),
    call("link", libc::SYS_link, 4, Shown::Bytes, &[Path, Path]),
    call("linkat", libc::SYS_linkat, 4, Shown::Bytes, &[Dir, Path, Dir, Path, AT]),
    call("unlink", libc::SYS_unlink, 4, Shown::Bytes, &[Path]),
    call("unlinkat", libc::SYS_unlinkat, 4, Shown::Bytes, &[Dir, Path, AT]),
    call("symlink", libc::SYS_symlink, 3, Shown::Bytes, &[Path, Path]),
    call("symlinkat", libc::SYS_symlinkat, 2, Shown::Bytes, &[Path, Dir, Path]),
    call("readlink", libc::SYS_readlink, 3, Shown::Bytes, &[Path, Out, Length]),
    call("readlinkat", libc::SYS_readlinkat, 3, Shown::Bytes, &[Dir, Path, Out, Length]),
    call("chmod", libc::SYS_chmod, 3, Shown::Bytes, &[Path, Mode]),
    call("fchmod", libc::SYS_fchmod, 3, Shown::Bytes, &[Fd, Mode]),
    call("fchmodat", libc::SYS_fchmodat, 2, Shown::Bytes, &[Dir, Path, Mode]),
    call("fchmodat2", libc::SYS_fchmodat2, 2, Shown::Bytes, &[Dir, Path, Mode, AT]),
    call("chown", libc::SYS_chown, 2, Shown::Bytes, &[Path, Id, Id]),
    call("lchown", libc::SYS_lchown, 2, Shown::Bytes, &[Path, Id, Id]),
    call("fchown", libc::SYS_fchown, 2, Shown::Bytes, &[Fd, Id, Id]),
    call("fchownat", libc::SYS_fchownat, 3, Shown::Bytes, &[Dir, Path, Id, Id, AT]),
    call("umask", libc::SYS_umask, 1, Shown::Bytes, &[Mode]),
    call("mknod", libc::SYS_mknod, 2, Shown::Bytes, &[Path, NODE, Fixed(0)]),
    call("mknodat", libc::SYS_mknodat, 2, Shown::Bytes, &[Dir, Path, NODE, Fixed(0)]),
    call("utimensat", libc::SYS_utimensat, 4, Shown::Bytes, &[Dir, Path, Times, AT]),
    call("utimes", libc::SYS_utimes, 2, Shown::Bytes, &[Path, OldTimes]),
    call("futimesat", libc::SYS_futimesat, 2, Shown::Bytes, &[Dir, Path, OldTimes]),
    call("setxattr", libc::SYS_setxattr, 3, Shown::Bytes, &[Path, Attribute, In, Number(&[0, 1, 10, 64]), XATTR]),
    call("fsetxattr", libc::SYS_fsetxattr, 2, Shown::Bytes, &[Fd, Attribute, In, Number(&[0, 1, 10, 70_000, -1]), XATTR]),
    call("getxattr", libc::SYS_getxattr, 2, Shown::Bytes, &[Path, Attribute, Out, Number(&[0, 5, 64, 70_000])]),
    call("fgetxattr", libc::SYS_fgetxattr, 2, Shown::Bytes, &[Fd, Attribute, Out, Number(&[0, 5, 64, -1])]),
    call("listxattr", libc::SYS_listxattr, 2, Shown::Bytes, &[Path, Out, Number(&[0, 5, 64, 4096])]),
    call("flistxattr", libc::SYS_flistxattr, 2, Shown::Bytes, &[Fd, Out, Number(&[0, 5, 64, -1])]),
    call("removexattr", libc::SYS_removexattr, 2, Shown::Bytes, &[Path, Attribute]),
    call("fremovexattr", libc::SYS_fremovexattr, 1, Shown::Bytes, &[Fd, Attribute]),
    call("pipe2", libc::SYS_pipe2, 1, Shown::Bytes, &[Pipe, DESCRIPTOR_FLAGS]),
    call("preadv", libc::SYS_preadv, 2, Shown::Bytes, &[Fd, PiecesOut, PieceCount, Offset, Fixed(0)]),
    call("pwritev", libc::SYS_pwritev, 2, Shown::Bytes, &[Fd, PiecesIn, PieceCount, Offset, Fixed(0)]),
    call("utime", libc::SYS_utime, 1, Shown::Bytes, &[Path, OldTimes]),
    call("lsetxattr", libc::SYS_lsetxattr, 2, Shown::Bytes, &[Path, Attribute, In, Number(&[0, 1, 10, 64]), XATTR]),
    call("lgetxattr", libc::SYS_lgetxattr, 1, Shown::Bytes, &[Path, Attribute, Out, Number(&[0, 5, 64, 70_000])]),
    call("llistxattr", libc::SYS_llistxattr, 1, Shown::Bytes, &[Path, Out, Number(&[0, 5, 64, 4096])]),
    call("lremovexattr", libc::SYS_lremovexattr, 1, Shown::Bytes, &[Path, Attribute]),
    apart("name_to_handle_at", libc::SYS_name_to_handle_at, 1, Shown::Nothing, &[Dir, Path, Handle, Out, AT]),
    call("open_by_handle_at", libc::SYS_open_by_handle_at, 1, Shown::Bytes, &[Fd, Handle, OPEN]),
    call(
        "inotify_add_watch",
        libc::SYS_inotify_add_watch,
        1,
        Shown::Bytes,
        &[Fd, Path, Bits(&[0xfff, 2, 0x0100_0000, 0x0200_0000])],
    ),
    call(
        "fanotify_mark",
        libc::SYS_fanotify_mark,
        1,
        Shown::Bytes,
        &[Fd, Bits(&[1, 2, 4, 8, 0x10]), Bits(&[1, 2, 0x20]), Dir, Path],
    ),
    call("execve", libc::SYS_execve, 1, Shown::Bytes, &[Path, Fixed(0), Fixed(0)]),
    call("execveat", libc::SYS_execveat, 1, Shown::Bytes, &[Dir, Path, Fixed(0), Fixed(0), AT]),
    call("pidfd_getfd", libc::SYS_pidfd_getfd, 1, Shown::Bytes, &[Fd, Fd, Number(&[0, 0, 1])]),
    call("setns", libc::SYS_setns, 1, Shown::Bytes, &[Fd, Number(&[0, 0x2_0000, 0x4000_0000])]),
    // The system call takes the lower half only; sharing less of a process' state that nobody
    // shares changes nothing.
    alone("unshare", libc::SYS_unshare, 1, Shown::Bytes, &[Number(&[0, 0x200, 0x400, 0x600, 0x4_0000, 1])]),
    call(
        "rt_sigaction",
        libc::SYS_rt_sigaction,
        1,
        Shown::Nothing,
        &[Number(&[10, 12, 10, 12, 0, 9, 19, 64, 65]), Action, Out, SIGNAL_BYTES],
    ),
    call("rt_sigprocmask", libc::SYS_rt_sigprocmask, 1, Shown::Nothing, &[Number(&[0, 1, 2, 3]), SignalSet, Out, SIGNAL_BYTES]),
    call("setrlimit", libc::SYS_setrlimit, 1, Shown::Bytes, &[Number(&[1, 1, 99]), Limit]),
    call("prlimit64", libc::SYS_prlimit64, 1, Shown::Nothing, &[Fixed(0), Number(&[1, 1, 99]), Limit, Out]),
    apart("socket", libc::SYS_socket, 2, Shown::Bytes, &[Fixed(1), Number(&[1, 2, 5, 0x801]), Fixed(0)]),
    apart("bind", libc::SYS_bind, 3, Shown::Bytes, &[Fd, Address, AddressBytes]),
    apart("connect", libc::SYS_connect, 3, Shown::Bytes, &[Fd, Address, AddressBytes]),
    apart("listen", libc::SYS_listen, 2, Shown::Bytes, &[Fd, Number(&[0, 1, 5])]),
    apart("accept", libc::SYS_accept, 1, Shown::Nothing, &[Fd, Out, SizePlace]),
    apart("accept4", libc::SYS_accept4, 1, Shown::Nothing, &[Fd, Out, SizePlace, DESCRIPTOR_FLAGS]),
    apart("getsockname", libc::SYS_getsockname, 2, Shown::Bytes, &[Fd, Out, SizePlace]),
    apart("getpeername", libc::SYS_getpeername, 2, Shown::Bytes, &[Fd, Out, SizePlace]),
    apart("sendto", libc::SYS_sendto, 2, Shown::Bytes, &[Fd, In, Length, MESSAGE_FLAGS, Address, AddressBytes]),
    apart("recvfrom", libc::SYS_recvfrom, 2, Shown::Bytes, &[Fd, Out, Length, MESSAGE_FLAGS, Fixed(0), Fixed(0)]),
    apart("sendmsg", libc::SYS_sendmsg, 1, Shown::Bytes, &[Fd, Message, MESSAGE_FLAGS]),
    apart("recvmsg", libc::SYS_recvmsg, 2, Shown::Bytes, &[Fd, Message, MESSAGE_FLAGS]),
    apart("sendmmsg", libc::SYS_sendmmsg, 1, Shown::Bytes, &[Fd, Message, Number(&[0, 1, 1, 2, 1025]), MESSAGE_FLAGS]),
    apart("recvmmsg", libc::SYS_recvmmsg, 1, Shown::Bytes, &[Fd, Message, Number(&[0, 1, 1, 2, 1025]), MESSAGE_FLAGS, Fixed(0)]),
    call("prctl", libc::SYS_prctl, 1, Shown::Bytes, &[Number(&[2, 3, 16, 16, 23, 39]), Out, Fixed(0), Fixed(0), Fixed(0)]),
    call("getdents", libc::SYS_getdents, 1, Shown::Success, &[Fd, Out, Length]),
    memory("mmap", libc::SYS_mmap, 16, Shown::Place, &[At, MapBytes, PROTECTION, MapFlags, Fd, MapOffset]),
    memory("munmap", libc::SYS_munmap, 3, Shown::Bytes, &[At, MapBytes]),
    memory("mprotect", libc::SYS_mprotect, 3, Shown::Bytes, &[At, MapBytes, PROTECTION]),
    memory("pkey_mprotect", libc::SYS_pkey_mprotect, 1, Shown::Bytes, &[At, MapBytes, PROTECTION, Number(&[-1, 0, 1, 15])]),
    memory("mremap", libc::SYS_mremap, 4, Shown::Place, &[At, MapBytes, MapBytes, Bits(&[1, 1, 2, 3, 3, 4]), At]),
    memory("msync", libc::SYS_msync, 4, Shown::Bytes, &[At, MapBytes, Bits(&[1, 2, 4])]),
    memory(
        "process_madvise",
        libc::SYS_process_madvise,
        2,
        Shown::Bytes,
        &[Number(&[-10_000, -10_001, -1, 3]), Ranges, Number(&[0, 1, 2, 3, 3]), ADVICE, Number(&[0, 0, 0, 1])],
    ),
    memory("madvise", libc::SYS_madvise, 3, Shown::Bytes, &[At, MapBytes, ADVICE]),
    memory(
        "remap_file_pages",
        libc::SYS_remap_file_pages,
        1,
        Shown::Bytes,
        &[At, MapBytes, Number(&[0, 0, 1]), Number(&[0, 1, 2]), Bits(&[0x1_0000])],
    ),
    memory("load", LOAD, 14, Shown::Nothing, &[At, MapBytes]),
    memory("store", STORE, 14, Shown::Nothing, &[At, Number(&[0, 1, 100, 4095])]),
];

/// Served calls that no program is drawn with, and why. Every other served call must be in the
/// table above.
#[cfg(test)]
pub(crate) const LEFT_OUT: &[(&str, &str)] = &[
    ("seccomp", "looked at alone, since a filter ends the program's other calls"),
    ("clone", "children are made between the steps of a program, in every way: draw.rs"),
    ("clone3", "children are made between the steps of a program, in every way: draw.rs"),
    ("fork", "children are made between the steps of a program, in every way: draw.rs"),
    ("vfork", "children are made between the steps of a program, in every way: draw.rs"),
    ("exit_group", "each program and each child ends with it"),
    ("setuid", "rights are dropped between the steps of a program"),
    ("setgid", "rights are dropped between the steps of a program"),
    ("setreuid", "rights are dropped between the steps of a program"),
    ("setregid", "rights are dropped between the steps of a program"),
    ("setgroups", "rights are dropped between the steps of a program"),
    ("setresuid", "rights are dropped between the steps of a program"),
    ("setresgid", "rights are dropped between the steps of a program"),
    ("setfsuid", "rights are dropped between the steps of a program"),
    ("setfsgid", "rights are dropped between the steps of a program"),
    ("capset", "rights are dropped between the steps of a program"),
    ("rt_sigsuspend", "it waits for a signal: front/preload/tests/signals.c"),
    ("ppoll", "what is served of it is the mask while it waits: front/preload/tests/signals.c"),
    ("pselect6", "what is served of it is the mask while it waits: front/preload/tests/signals.c"),
    ("epoll_pwait", "what is served of it is the mask while it waits: front/preload/tests/signals.c"),
    ("epoll_pwait2", "what is served of it is the mask while it waits: front/preload/tests/signals.c"),
    ("sync", "it waits for every disk of the machine"),
    ("chroot", "README.md says what an array does not have after it"),
    ("mount", "README.md says what an array does not have of it"),
    ("umount2", "README.md says what an array does not have of it"),
    ("pivot_root", "administration: README.md says what an array refuses of it"),
    ("acct", "administration: README.md says what an array refuses of it"),
    ("swapon", "administration: README.md says what an array refuses of it"),
    ("swapoff", "administration: README.md says what an array refuses of it"),
    ("quotactl", "administration: README.md says what an array refuses of it"),
    ("open_tree", "administration: README.md says what an array refuses of it"),
    ("move_mount", "administration: README.md says what an array refuses of it"),
    ("fsconfig", "administration: README.md says what an array refuses of it"),
    ("fspick", "administration: README.md says what an array refuses of it"),
    ("mount_setattr", "administration: README.md says what an array refuses of it"),
    ("quotactl_fd", "administration: README.md says what an array refuses of it"),
    ("fanotify_init", "watches are compared by cargo run -p cxlraid-programs watches"),
    ("open_tree_attr", "administration: README.md says what an array refuses of it"),
    ("io_setup", "contexts are addresses: front/preload/tests/aio.c draws requests, and is run on both"),
    ("io_submit", "contexts are addresses: front/preload/tests/aio.c draws requests, and is run on both"),
    ("io_getevents", "contexts are addresses: front/preload/tests/aio.c draws requests, and is run on both"),
    ("io_pgetevents", "contexts are addresses: front/preload/tests/aio.c draws requests, and is run on both"),
    ("io_destroy", "contexts are addresses: front/preload/tests/aio.c draws requests, and is run on both"),
    ("shmat", "it takes a segment that outlives programs: tests of the library attach one over a mapping"),
    ("setxattrat", "refused with ENOSYS, as by a kernel that lacks it"),
    ("getxattrat", "refused with ENOSYS, as by a kernel that lacks it"),
    ("listxattrat", "refused with ENOSYS, as by a kernel that lacks it"),
    ("removexattrat", "refused with ENOSYS, as by a kernel that lacks it"),
    ("file_getattr", "refused with ENOSYS, as by a kernel that lacks it"),
    ("file_setattr", "refused with ENOSYS, as by a kernel that lacks it"),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The calls that the library's table says are served or looked at.
    fn served() -> Vec<&'static str> {
        const TABLE: &str = include_str!("../../../front/preload/src/table.rs");
        let rows = TABLE.lines().filter_map(|line| line.trim().strip_prefix("row("));
        let named = rows.filter_map(|row| {
            let mut fields = row.split(", ");
            let (_, name, way) = (fields.next()?, fields.next()?, fields.next()?);
            matches!(way, "Serve" | "Observe").then(|| name.trim_matches('"'))
        });
        named.collect()
    }

    #[test]
    fn every_served_call_is_drawn_or_left_out_for_a_reason() {
        let served = served();
        assert!(served.len() > 100, "{} served calls found", served.len());
        let is_drawn = |name: &str| CALLS.iter().any(|call| call.name.split('-').next() == Some(name));
        for name in &served {
            let is_left_out = LEFT_OUT.iter().any(|(left_out, _)| left_out == name);
            assert!(is_drawn(name) != is_left_out, "{name}: drawn {}, left out {is_left_out}", is_drawn(name));
        }
        for (name, _) in LEFT_OUT {
            assert!(served.contains(name), "{name} is left out and not served");
        }
    }
}
