//! What it means for a call that no descriptor is free: which calls are served all the same
//! ([`crate::scarce`]), and which are refused since nobody can tell whom they concern.

use crate::call::Verdict;
use crate::table::moves_bytes;
use core::sync::atomic::{AtomicU32, Ordering};
use linux_raw_sys::general as nr;
use sys::OsError;

/// The result of a call that lacks a number.
pub(crate) const NO_NUMBER: isize = -(OsError::MFILE.raw_os_error() as isize);

/// Counts the looks at a path for which no number was free.
static SHORTAGES: AtomicU32 = AtomicU32::new(0);

/// Tells whether a look at where a path of the host leads lacked a number since this was made.
/// Another thread's look counts, too: then a call is served by a deputy for nothing.
pub(crate) struct Shortage(u32);

impl Shortage {
    pub(crate) fn begin() -> Self {
        Self(SHORTAGES.load(Ordering::Relaxed))
    }

    /// Notes that a look lacked a number.
    #[cold]
    pub(crate) fn note() {
        SHORTAGES.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns what the call answers if a look lacked a number.
    pub(crate) fn refusal(&self) -> Option<Verdict> {
        (SHORTAGES.load(Ordering::Relaxed) != self.0).then_some(Verdict::Done(NO_NUMBER))
    }
}

/// Tells whether a call returns no descriptor, leaves nothing open, and concerns only what it names: a
/// process with other descriptors can serve it.
pub(crate) const fn can_be_served_apart(number: usize) -> bool {
    matches!(
        number as u32,
        nr::__NR_stat
            | nr::__NR_lstat
            | nr::__NR_newfstatat
            | nr::__NR_statx
            | nr::__NR_access
            | nr::__NR_faccessat
            | nr::__NR_faccessat2
            | nr::__NR_chmod
            | nr::__NR_fchmodat
            | nr::__NR_fchmodat2
            | nr::__NR_fchmod
            | nr::__NR_chown
            | nr::__NR_lchown
            | nr::__NR_fchownat
            | nr::__NR_fchown
            | nr::__NR_truncate
            | nr::__NR_utime
            | nr::__NR_utimes
            | nr::__NR_futimesat
            | nr::__NR_utimensat
            | nr::__NR_rename
            | nr::__NR_renameat
            | nr::__NR_renameat2
            | nr::__NR_link
            | nr::__NR_linkat
            | nr::__NR_unlink
            | nr::__NR_unlinkat
            | nr::__NR_symlink
            | nr::__NR_symlinkat
            | nr::__NR_readlink
            | nr::__NR_readlinkat
            | nr::__NR_mkdir
            | nr::__NR_mkdirat
            | nr::__NR_rmdir
            | nr::__NR_mknod
            | nr::__NR_mknodat
            | nr::__NR_statfs
            | nr::__NR_setxattr
            | nr::__NR_lsetxattr
            | nr::__NR_fsetxattr
            | nr::__NR_getxattr
            | nr::__NR_lgetxattr
            | nr::__NR_fgetxattr
            | nr::__NR_listxattr
            | nr::__NR_llistxattr
            | nr::__NR_flistxattr
            | nr::__NR_removexattr
            | nr::__NR_lremovexattr
            | nr::__NR_fremovexattr
            | nr::__NR_chdir
            | nr::__NR_name_to_handle_at
    )
}

/// Tells whether a call of a guest's can be served so, too: a guest's offsets and flags are the
/// kernel's.
pub(crate) const fn can_be_served_apart_for_guest(number: usize) -> bool {
    moves_bytes(number)
        || matches!(
            number as u32,
            nr::__NR_lseek
                | nr::__NR_fstat
                | nr::__NR_fstatfs
                | nr::__NR_ftruncate
                | nr::__NR_fallocate
                | nr::__NR_fsync
                | nr::__NR_fdatasync
                | nr::__NR_sync_file_range
                | nr::__NR_syncfs
                | nr::__NR_fadvise64
                | nr::__NR_readahead
                | nr::__NR_copy_file_range
                | nr::__NR_sendfile
        )
}
