//! The text of a running program is not written to (ETXTBSY).
//!
//! The kernel sees to it for what it executes. Of a file that is spread over members it executes a copy; so the process holds a lock on the
//! anchor, on a byte past every file's end, for as long as it lives: it passes through fork and exec, and ends with the last
//! process that has it, however that ends. Who opens an executable file for writing asks for that lock.

use sys::rustix::fs::{Mode, OFlags, openat};
use sys::{AsFd, AsRawFd, OsError, OwnedFd, Result, ofd_lock};

/// No file is as long, so programs that lock bytes they have do not meet it.
pub const TEXT_OFFSET: i64 = i64::MAX - 1;
pub(crate) const EXECUTE: u32 = 0o111;

/// Keeps others from writing to the file that `anchor` is open on, for as long as this description is open anywhere.
pub fn hold_text(anchor: impl AsFd) -> Result<()> {
    ofd_lock::hold(anchor.as_fd(), TEXT_OFFSET, 1)
}

/// Whether a description is one that holds a text: it can be held against every other.
#[must_use]
pub fn holds_text(anchor: impl AsFd) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let again = || {
        let link = crate::descriptor::link(anchor.as_fd().as_raw_fd());
        openat(sys::rustix::fs::CWD, link.as_slice(), flags, Mode::empty())
    };
    // Seen from its own description there is no conflict, from another one there is.
    let seen = |fd: &OwnedFd| ofd_lock::is_held_by_others(fd.as_fd(), TEXT_OFFSET, 1) == Ok(true);
    let unseen = ofd_lock::is_held_by_others(anchor.as_fd(), TEXT_OFFSET, 1) == Ok(false);
    unseen && again().is_ok_and(|fd| seen(&fd))
}

/// Refuses to let a file be opened for writing that a process executes a copy of.
pub(crate) fn refuse_busy(fd: impl AsFd, mode: u32) -> Result<()> {
    if mode & EXECUTE != 0 && ofd_lock::is_held_by_others(fd.as_fd(), TEXT_OFFSET, 1)? {
        return Err(OsError::TXTBSY);
    }
    Ok(())
}
