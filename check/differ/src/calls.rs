//! The system calls that programs are drawn from, and what each of their arguments may be.

use libc::{
    AT_EACCESS, AT_EMPTY_PATH, AT_NO_AUTOMOUNT, AT_REMOVEDIR, AT_STATX_DONT_SYNC, AT_STATX_FORCE_SYNC, AT_SYMLINK_FOLLOW,
    AT_SYMLINK_NOFOLLOW, F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_GETFL, F_SETFD, F_SETFL, FALLOC_FL_COLLAPSE_RANGE,
    FALLOC_FL_INSERT_RANGE, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_UNSHARE_RANGE, O_APPEND, O_CLOEXEC, O_CREAT,
    O_DIRECT, O_DIRECTORY, O_DSYNC, O_EXCL, O_LARGEFILE, O_NOATIME, O_NOCTTY, O_NOFOLLOW, O_NONBLOCK, O_PATH, O_RDONLY, O_RDWR,
    O_SYNC, O_TMPFILE, O_TRUNC, O_WRONLY, c_long,
};

/// What an argument may be. Every kind has good values and bad ones.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// A descriptor of the program's, or what is none.
    Fd,
    /// A descriptor that a path is relative to.
    Dir,
    /// A pointer to a path.
    Path,
    /// A pointer to bytes that the kernel reads.
    In,
    /// A pointer to bytes that the kernel stores. What is there afterwards is compared.
    Out,
    /// How many bytes are at the pointer before.
    Length,
    /// An offset in a file, or a size.
    Offset,
    /// Any of these bits, alone, in pairs or all at once, and bits that have no meaning.
    Bits(&'static [i32]),
    /// One of these numbers, or another one.
    Number(&'static [i64]),
    /// A file mode.
    Mode,
    /// A user's or group's number.
    Id,
    /// A pointer to two times (struct timespec), or null.
    Times,
    /// A pointer to two times (struct timeval), or null.
    OldTimes,
    /// A pointer to pieces of memory (struct iovec) that the kernel reads, and their number.
    PiecesIn,
    /// A pointer to pieces of memory that the kernel stores to, and their number.
    PiecesOut,
    /// The number of pieces before.
    PieceCount,
    /// A pointer to an offset that the kernel reads and stores, or null.
    OffsetPlace,
    /// A pointer to a lock (struct flock).
    Lock,
    /// A pointer to what openat2(2) takes (struct open_how).
    How,
    /// The size of that.
    HowBytes,
    /// A pointer to the name of an extended attribute.
    Attribute,
    /// A pointer to two descriptors that pipe2(2) stores.
    Pipe,
    /// Always this number.
    Fixed(i64),
}

/// How a call's stores are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shown {
    /// Byte by byte.
    Bytes,
    /// The fields of struct stat that an array has as a directory does.
    Stat,
    /// The same of struct statx.
    Statx,
    /// The names and types of directory entries, in any order.
    Entries,
    /// Nothing: the bytes are the file system's own affair.
    Nothing,
}

/// One system call.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    pub(crate) number: c_long,
    pub(crate) kinds: &'static [Kind],
    pub(crate) shown: Shown,
    /// How often it is drawn, in proportion to the others.
    pub(crate) weight: u64,
}

use Kind::{
    Attribute, Bits, Dir, Fd, Fixed, How, HowBytes, Id, In, Length, Lock, Mode, Number, Offset, OffsetPlace, OldTimes, Out, Path,
    PieceCount, PiecesIn, PiecesOut, Pipe, Times,
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
const WHENCE: Kind = Number(&[0, 1, 2, 3, 4]);
const DESCRIPTOR_FLAGS: Kind = Bits(&[O_CLOEXEC, O_NONBLOCK, O_DIRECT]);
const NODE: Kind = Number(&[0o100_644, 0o10_644, 0o140_644, 0o20_644, 0o40_755, 0o644, 0o120_777, 0o60_600]);

const fn call(name: &'static str, number: c_long, weight: u64, shown: Shown, kinds: &'static [Kind]) -> Call {
    Call { name, number, kinds, shown, weight }
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
        &[Number(&[18, 20, 25, 1000]), Number(&[19, 22, 30, 400]), Bits(&[2, 4])],
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
    call("sendfile", libc::SYS_sendfile, 4, Shown::Bytes, &[Fd, Fd, OffsetPlace, Length]),
    call("splice", libc::SYS_splice, 4, Shown::Bytes, &[Fd, OffsetPlace, Fd, OffsetPlace, Length, Bits(&[1, 2, 4])]),
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
];
