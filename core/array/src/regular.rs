//! Opens files under `.cxlraid`, and a journal's, in such a way that nothing that lies in their
//! place can block or mislead a program.
//!
//! The fault it exists for: a user who may write a member's `.cxlraid` puts a pipe, a device or a
//! symlink where a file should be. Every program that starts with the array would then wait for the
//! pipe, act on the device, or open a file of the host.

use sys::rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Stat};
use sys::{BorrowedFd, OsError, OwnedFd, Result};

/// What the flags of every such open have in common: a pipe and a lease that somebody holds are not
/// waited for.
const CAREFULLY: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// The error for what is neither a regular file nor a symlink.
pub(crate) const NOT_A_FILE: OsError = OsError::MEDIUMTYPE;

/// Opens the regular file `name` of a directory; `access` says for what. What is none is not
/// opened: a device may act on that.
///
/// # Errors
/// `LOOP` for a symlink, `MEDIUMTYPE` for anything else that is no regular file, and what the
/// kernel says.
pub fn open_regular(directory: BorrowedFd<'_>, name: impl sys::rustix::path::Arg + Copy, access: OFlags) -> Result<OwnedFd> {
    require(&fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?)?;
    let file = fs::openat(directory, name, access | CAREFULLY, Mode::empty())?;
    // Another file may have been put there in between.
    require(&fs::fstat(&file)?)?;
    Ok(file)
}

/// Opens the regular file `name` of a directory to read and write, and makes it with `mode` if
/// there is nothing.
pub(crate) fn open_or_make(directory: BorrowedFd<'_>, name: &core::ffi::CStr, mode: Mode) -> Result<OwnedFd> {
    match open_regular(directory, name, OFlags::RDWR) {
        Err(OsError::NOENT) => fs::openat(directory, name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | CAREFULLY, mode),
        result => result,
    }
}

fn require(stat: &Stat) -> Result<()> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Symlink => Err(OsError::LOOP),
        _ => Err(NOT_A_FILE),
    }
}
