//! Directories whose path getcwd(2) and readlink(2) of `/proc/self/fd/N` do not tell: those that
//! lie too deep, and a current directory that was removed.
//!
//! The kernel tells paths of fewer than PATH_MAX bytes (getcwd(2), readlink(2) of
//! `/proc/self/fd/N`). A program comes to directories with longer paths by mkdir(2) and chdir(2) of
//! relative paths, and by rename(2) of what is above them. Such a directory must not pass for one
//! of the host: calls in it would act on one member alone. So whether it is the array's is found
//! out by climbing from it to a directory whose path the kernel tells. Calls that need the
//! directory's path fail with `NAMETOOLONG`.
//!
//! A directory that was removed while it is the current one still has a directory above it, which
//! `..` leads to. Its former path with ` (deleted)` behind it stands for it, as for a removed
//! directory that is open.

use crate::Namespace;
use crate::descriptor::link;
use alloc::vec::Vec;
use core::ffi::CStr;
use sys::high_fd::Raised;
use sys::rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fstat, openat, readlinkat, statat};
use sys::rustix::process::getcwd;
use sys::{AsFd, AsRawFd, BorrowedFd, OsError, Result};

/// One of a member's tables, by its path in the member.
const TABLES: &CStr = c".cxlraid/inodes";

/// The path of the current directory as the kernel tells it; of one that was removed, its former
/// path with ` (deleted)` behind it.
///
/// # Errors
/// `NAMETOOLONG` if the directory lies deeper than the kernel tells; `XDEV` if it does not lie below
/// the root of the process (chroot(2)), so that no path leads there; `NOENT` if it was removed, and
/// there is no /proc.
pub fn current_directory() -> Result<Vec<u8>> {
    let told = match getcwd(Vec::new()) {
        Err(OsError::NOENT) => readlinkat(CWD, c"/proc/thread-self/cwd", Vec::new()),
        told => told,
    }?;
    // The kernel writes `(unreachable)` in front of such a path.
    if told.as_bytes().starts_with(b"/") { Ok(told.into_bytes()) } else { Err(OsError::XDEV) }
}

/// The path of the current directory, as [`current_directory`]. One in a mount namespace which the
/// process has left does not lie below its root. Members may be open there: so the link of such a
/// directory is told. It means what it says only if it lies in a member.
///
/// # Errors
/// As [`current_directory`].
pub fn current_directory_by_link() -> Result<Vec<u8>> {
    match current_directory() {
        Err(OsError::XDEV) => readlinkat(CWD, c"/proc/thread-self/cwd", Vec::new()).map(|path| path.into_bytes()),
        told => told,
    }
}

/// The path of the nearest directory above `directory` (which may be `AT_FDCWD`) whose path the
/// kernel tells. The climb ends at the root of the process at the latest.
///
/// # Errors
/// `NOTDIR` if `directory` is none; `ACCES` if a directory on the way may not be searched.
pub fn told_ancestor(directory: BorrowedFd<'_>) -> Result<Vec<u8>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut above = openat(directory, c"..", flags, Mode::empty()).and_then(Raised::new)?;
    loop {
        match readlinkat(CWD, link(above.as_fd().as_raw_fd()).as_slice(), Vec::new()) {
            Err(OsError::NAMETOOLONG) => {}
            told => return told.map(|path| path.into_bytes()),
        }
        above = openat(&above, c"..", flags, Mode::empty()).and_then(Raised::new)?;
    }
}

impl Namespace {
    /// Tells whether a descriptor is open on something of the array, be it on what lies deeper than
    /// the kernel tells.
    #[must_use]
    pub fn is_open_on(&self, fd: BorrowedFd<'_>) -> bool {
        match self.logical_path_of(fd) {
            Ok(path) => path.is_some(),
            Err(OsError::NAMETOOLONG) => match told_ancestor(fd) {
                Ok(host) => self.logical(&host).is_some(),
                Err(_) => crate::is_backing(fd),
            },
            // There is no /proc, or no such descriptor.
            Err(_) => is_of_a_member(fd),
        }
    }
}

/// Tells whether a descriptor is open on a file or a directory of a member, of any array, without
/// /proc: a backing file has its attribute, and a directory lies below one that holds a member's
/// tables. A directory counts as a member's, too, if that cannot be found out: a directory above it is
/// closed to this user. Anything else counts as none (a FIFO, a file that was opened with O_PATH).
#[must_use]
pub fn is_of_a_member(fd: BorrowedFd<'_>) -> bool {
    match fstat(fd).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
        Ok(FileType::RegularFile) => crate::is_backing(fd),
        Ok(FileType::Directory) => is_directory_of_a_member(fd),
        _ => false,
    }
}

/// Tells of a directory, which may be `AT_FDCWD`, what [`is_of_a_member`] does.
#[must_use]
pub fn is_directory_of_a_member(directory: BorrowedFd<'_>) -> bool {
    // Another error, as for want of descriptors, says nothing.
    lies_below_tables(directory).unwrap_or_else(|error| error == OsError::ACCESS)
}

/// Climbs from a directory to the root of the process, or of the mounts if it does not lie below the
/// former, and tells whether one on the way holds a member's tables.
///
/// # Errors
/// `ACCESS` if a directory on the way may not be searched.
pub fn lies_below_tables(directory: BorrowedFd<'_>) -> Result<bool> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let identity = |directory: &Raised| fstat(directory).map(|stat| (stat.st_dev, stat.st_ino));
    let mut at = openat(directory, c".", flags, Mode::empty()).and_then(Raised::new)?;
    loop {
        match statat(&at, TABLES, AtFlags::empty()) {
            Ok(_) => return Ok(true),
            Err(OsError::NOENT | OsError::NOTDIR) => {}
            Err(error) => return Err(error),
        }
        let above = openat(&at, c"..", flags, Mode::empty()).and_then(Raised::new)?;
        if identity(&above)? == identity(&at)? {
            return Ok(false);
        }
        at = above;
    }
}
