//! The kernel's side of a mount: what is read from and written to /dev/fuse (linux/fuse.h, version
//! 7.38).
//!
//! Each request is a header, a structure that its operation has, and names or bytes behind that.
//! Whoever may open /dev/fuse and mount is root, and the requests are the kernel's; nevertheless
//! every structure is read with a check of its length, and an answer to a request that is too short
//! is `INVAL`.

use sys::rustix::fs::{Stat, Statx};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The version that is spoken; an older kernel says its own minor number.
pub(crate) const MAJOR: u32 = 7;
pub(crate) const MINOR: u32 = 38;
/// The number of the directory that is mounted.
pub(crate) const ROOT: u64 = 1;
/// The longest read or write of one request.
pub(crate) const DATA_BYTES_MAX: usize = 1 << 20;
/// A request has at most so many bytes besides its data.
pub(crate) const HEAD_BYTES_MAX: usize = 4096;

macro_rules! from_kernel {
    ($($(#[$note:meta])* $name:ident { $($field:ident: $kind:ty),* $(,)? })*) => { $(
        $(#[$note])*
        #[derive(Clone, Copy, Debug, FromBytes, KnownLayout, Immutable)]
        #[repr(C)]
        pub(crate) struct $name { $(pub(crate) $field: $kind),* }
    )* };
}

macro_rules! to_kernel {
    ($($(#[$note:meta])* $name:ident { $($field:ident: $kind:ty),* $(,)? })*) => { $(
        $(#[$note])*
        #[derive(Clone, Copy, Debug, Default, IntoBytes, KnownLayout, Immutable)]
        #[repr(C)]
        pub(crate) struct $name { $(pub(crate) $field: $kind),* }
    )* };
}

from_kernel! {
    Header { bytes: u32, operation: u32, unique: u64, node: u64, user: u32, group: u32, process: u32, extension_units: u16, padding: u16 }
    InitIn { major: u32, minor: u32, readahead: u32, flags: u32 }
    /// Behind [`InitIn`], if the kernel says [`init::INIT_EXT`].
    InitMore { flags: u32 }
    ForgetIn { count: u64 }
    ForgetOne { node: u64, count: u64 }
    BatchForgetIn { count: u32, padding: u32 }
    GetattrIn { flags: u32, padding: u32, handle: u64 }
    SetattrIn {
        valid: u32, padding: u32, handle: u64, size: u64, lock_owner: u64, access: u64, modification: u64, change: u64,
        access_ns: u32, modification_ns: u32, change_ns: u32, mode: u32, unused: u32, user: u32, group: u32, unused_too: u32,
    }
    MknodIn { mode: u32, device: u32, umask: u32, padding: u32 }
    MkdirIn { mode: u32, umask: u32 }
    RenameIn { directory: u64 }
    Rename2In { directory: u64, flags: u32, padding: u32 }
    LinkIn { node: u64 }
    OpenIn { flags: u32, open_flags: u32 }
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    ReleaseIn { handle: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    FlushIn { handle: u64, unused: u32, padding: u32, lock_owner: u64 }
    ReadIn { handle: u64, offset: u64, bytes: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    WriteIn { handle: u64, offset: u64, bytes: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    FsyncIn { handle: u64, flags: u32, padding: u32 }
    SetxattrIn { bytes: u32, flags: u32 }
    GetxattrIn { bytes: u32, padding: u32 }
    LockIn { handle: u64, owner: u64, start: u64, last: u64, kind: u32, process: u32, flags: u32, padding: u32 }
    InterruptIn { unique: u64 }
    FallocateIn { handle: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    LseekIn { handle: u64, offset: u64, whence: u32, padding: u32 }
    CopyIn { handle: u64, from: u64, to_node: u64, to_handle: u64, to: u64, bytes: u64, flags: u64 }
    StatxIn { flags: u32, padding: u32, handle: u64, hints: u32, mask: u32 }
    IoctlIn { handle: u64, flags: u32, command: u32, argument: u64, in_bytes: u32, out_bytes: u32 }
}

to_kernel! {
    OutHeader { bytes: u32, error: i32, unique: u64 }
    InitOut {
        major: u32, minor: u32, readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16, max_write: u32,
        time_granularity: u32, max_pages: u16, map_alignment: u16, flags2: u32, unused: [u32; 7],
    }
    Attributes {
        inode: u64, size: u64, blocks: u64, access: u64, modification: u64, change: u64, access_ns: u32, modification_ns: u32,
        change_ns: u32, mode: u32, links: u32, user: u32, group: u32, device: u32, block_bytes: u32, flags: u32,
    }
    /// All times of validity are zero: the other door may change names and attributes at any time.
    EntryOut { node: u64, generation: u64, entry_valid: u64, attributes_valid: u64, entry_ns: u32, attributes_ns: u32, attributes: Attributes }
    AttributesOut { valid: u64, valid_ns: u32, padding: u32, attributes: Attributes }
    Time { seconds: i64, nanoseconds: u32, padding: u32 }
    /// The answer to a request for attributes that statx(2) makes: what [`AttributesOut`] has, and what
    /// only statx(2) tells.
    StatxOut {
        valid: u64, valid_ns: u32, out_flags: u32, spare: [u64; 2], mask: u32, block_bytes: u32, flags: u64, links: u32, user: u32,
        group: u32, mode: u16, padding: u16, inode: u64, size: u64, blocks: u64, flags_known: u64, access: Time, birth: Time,
        change: Time, modification: Time, device: [u32; 2], on_device: [u32; 2], more: [u64; 14],
    }
    OpenOut { handle: u64, flags: u32, padding: u32 }
    CreateOut { entry: EntryOut, open: OpenOut }
    WriteOut { bytes: u32, padding: u32 }
    GetxattrOut { bytes: u32, padding: u32 }
    LockOut { start: u64, last: u64, kind: u32, process: u32 }
    LseekOut { offset: u64 }
    IoctlOut { result: i32, flags: u32, in_count: u32, out_count: u32 }
    StatfsOut {
        blocks: u64, free: u64, available: u64, files: u64, files_free: u64, block_bytes: u32, name_bytes: u32,
        fragment_bytes: u32, padding: u32, spare: [u32; 6],
    }
    EntryHead { inode: u64, offset: u64, name_bytes: u32, kind: u32 }
}

/// Operations.
pub(crate) mod op {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const GETLK: u32 = 31;
    pub(crate) const SETLK: u32 = 32;
    pub(crate) const SETLKW: u32 = 33;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const IOCTL: u32 = 39;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const TMPFILE: u32 = 51;
    pub(crate) const STATX: u32 = 52;
}

/// What is asked of the kernel when a mount begins.
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const POSIX_LOCKS: u64 = 1 << 1;
    pub(crate) const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const FLOCK_LOCKS: u64 = 1 << 10;
    pub(crate) const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    /// Who serves takes set-ID bits and file capabilities away at writes, truncations and changes
    /// of owners: the members' kernel does, for the caller.
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    /// Shared mappings of files whose reads and writes bypass the page cache; Linux 6.6.
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
}

/// Which fields of [`SetattrIn`] count.
pub(crate) mod valid {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const USER: u32 = 1 << 1;
    pub(crate) const GROUP: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ACCESS: u32 = 1 << 4;
    pub(crate) const MODIFICATION: u32 = 1 << 5;
    pub(crate) const HANDLE: u32 = 1 << 6;
    pub(crate) const ACCESS_NOW: u32 = 1 << 7;
    pub(crate) const MODIFICATION_NOW: u32 = 1 << 8;
    /// The caller may not keep set-ID bits over the change.
    pub(crate) const KILL_SET_ID: u32 = 1 << 11;
    /// What is changed. Without any of these only set-ID bits are to go: chown(2) that changes
    /// nobody does that.
    pub(crate) const CHANGES: u32 = MODE | USER | GROUP | SIZE | ACCESS | MODIFICATION;
}

/// Of a write, and of an opening that truncates: as [`valid::KILL_SET_ID`].
pub(crate) const WRITE_KILL_SET_ID: u32 = 1 << 2;
pub(crate) const OPEN_KILL_SET_ID: u32 = 1 << 0;

pub(crate) const GETATTR_HANDLE: u32 = 1;
/// The read is a program's call, which has an owner of locks. The kernel reads pages for its cache,
/// for mappings, without one.
pub(crate) const READ_LOCK_OWNER: u32 = 1 << 1;
/// The write comes from the page cache: stores through a mapping.
pub(crate) const WRITE_CACHE: u32 = 1;
pub(crate) const LOCK_FLOCK: u32 = 1;
/// Reads and writes bypass the kernel's page cache; writes of one file need not wait for each
/// other.
pub(crate) const OPEN_DIRECT_IO: u32 = 1 << 0 | 1 << 6;

/// A structure at the beginning of what a request carries, and the rest.
pub(crate) fn split<T: FromBytes>(body: &[u8]) -> sys::Result<(T, &[u8])> {
    T::read_from_prefix(body).map_err(|_| sys::OsError::INVAL)
}

/// A name that ends with a NUL, and what is behind it.
pub(crate) fn split_name(body: &[u8]) -> sys::Result<(&[u8], &[u8])> {
    let end = body.iter().position(|&byte| byte == 0).ok_or(sys::OsError::INVAL)?;
    Ok((&body[..end], &body[end + 1..]))
}

impl From<&Stat> for Attributes {
    fn from(stat: &Stat) -> Self {
        Self {
            inode: stat.st_ino,
            size: stat.st_size as u64,
            blocks: stat.st_blocks as u64,
            access: stat.st_atime as u64,
            modification: stat.st_mtime as u64,
            change: stat.st_ctime as u64,
            access_ns: stat.st_atime_nsec as u32,
            modification_ns: stat.st_mtime_nsec as u32,
            change_ns: stat.st_ctime_nsec as u32,
            mode: stat.st_mode,
            links: stat.st_nlink as u32,
            user: stat.st_uid,
            group: stat.st_gid,
            device: packed_device(stat.st_rdev),
            block_bytes: stat.st_blksize as u32,
            flags: 0,
        }
    }
}

impl From<&Statx> for StatxOut {
    fn from(stat: &Statx) -> Self {
        let time = |time: sys::rustix::fs::StatxTimestamp| Time { seconds: time.tv_sec, nanoseconds: time.tv_nsec, padding: 0 };
        Self {
            mask: stat.stx_mask,
            block_bytes: stat.stx_blksize,
            links: stat.stx_nlink,
            user: stat.stx_uid,
            group: stat.stx_gid,
            mode: stat.stx_mode,
            inode: stat.stx_ino,
            size: stat.stx_size,
            blocks: stat.stx_blocks,
            access: time(stat.stx_atime),
            birth: time(stat.stx_btime),
            change: time(stat.stx_ctime),
            modification: time(stat.stx_mtime),
            device: [stat.stx_rdev_major, stat.stx_rdev_minor],
            ..Self::default()
        }
    }
}

/// A device number as the kernel packs it into 32 bits (new_encode_dev).
fn packed_device(device: u64) -> u32 {
    let (major, minor) = (sys::rustix::fs::major(device), sys::rustix::fs::minor(device));
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

/// The device number that the kernel has packed.
pub(crate) fn unpacked_device(packed: u32) -> u64 {
    sys::rustix::fs::makedev((packed & 0xfff00) >> 8, packed & 0xff | packed >> 12 & 0xfff00)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_long_as_the_kernels() {
        let lengths =
            [size_of::<Header>(), size_of::<SetattrIn>(), size_of::<WriteIn>(), size_of::<LockIn>(), size_of::<IoctlIn>()];
        assert_eq!(lengths, [40, 88, 40, 48, 32]);
        assert_eq!([size_of::<CopyIn>(), size_of::<StatxIn>(), size_of::<StatxOut>()], [56, 24, 288]);
        let lengths = [size_of::<InitOut>(), size_of::<EntryOut>(), size_of::<AttributesOut>(), size_of::<StatfsOut>()];
        assert_eq!(lengths, [64, 128, 104, 80]);
    }

    #[test]
    fn device_numbers_survive() {
        for (major, minor) in [(1, 3), (8, 0x1_2345), (0xfff, 0xf_ffff)] {
            let device = sys::rustix::fs::makedev(major, minor);
            assert_eq!(unpacked_device(packed_device(device)), device);
        }
    }

    #[test]
    fn what_is_too_short_is_refused() {
        assert!(split::<OpenIn>(&[0; 7]).is_err());
        assert_eq!(split_name(b"name\0rest").unwrap(), (&b"name"[..], &b"rest"[..]));
        assert!(split_name(b"name").is_err());
    }
}
