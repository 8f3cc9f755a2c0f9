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
use sys::high_fd::Raised;
use sys::rustix::fs::{CWD, Mode, OFlags, openat, readlinkat};
use sys::rustix::process::getcwd;
use sys::{AsFd, AsRawFd, BorrowedFd, OsError, Result};

/// The path of the current directory as the kernel tells it; of one that was removed, its former
/// path with ` (deleted)` behind it.
///
/// # Errors
/// `NAMETOOLONG` if the directory lies deeper than the kernel tells.
pub fn current_directory() -> Result<Vec<u8>> {
    match getcwd(Vec::new()) {
        Err(OsError::NOENT) => readlinkat(CWD, c"/proc/thread-self/cwd", Vec::new()),
        told => told,
    }
    .map(|path| path.into_bytes())
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
            Err(_) => false,
        }
    }
}
