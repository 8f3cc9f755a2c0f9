//! The text of a running program is not written to (ETXTBSY).
//!
//! The kernel sees to it for what it executes. Of a file that is spread over members it executes a copy; so the process holds a lock on the
//! anchor, on a byte past every file's end, for as long as it lives: it passes through fork and exec, and ends with the last
//! process that has it, however that ends. Who opens an executable file for writing asks for that lock.

use sys::raw::{check, syscall};
use sys::rustix::fs::{Mode, OFlags, openat};
use sys::{AsFd, AsRawFd, OsError, OwnedFd, RawFd, Result};

const FCNTL: usize = 72;
const F_OFD_GETLK: usize = 36;
const F_OFD_SETLK: usize = 37;
const F_RDLCK: i16 = 0;
const F_WRLCK: i16 = 1;
const F_UNLCK: i16 = 2;
/// No file is as long, so programs that lock bytes they have do not meet it.
pub const TEXT_OFFSET: i64 = i64::MAX - 1;
pub(crate) const EXECUTE: u32 = 0o111;

/// `struct flock` (fcntl(2)).
#[repr(C)]
struct Lock {
    kind: i16,
    whence: i16,
    start: i64,
    length: i64,
    process: i32,
}

fn lock(fd: RawFd, command: usize, kind: i16) -> Result<i16> {
    let mut lock = Lock { kind, whence: 0, start: TEXT_OFFSET, length: 1, process: 0 };
    // SAFETY: the kernel reads and writes `lock`, which is laid out as it expects.
    check(unsafe { syscall(FCNTL, [fd as usize, command, &raw mut lock as usize, 0, 0, 0]) })?;
    Ok(lock.kind)
}

/// Keeps others from writing to the file that `anchor` is open on, for as long as this description is open anywhere.
pub fn hold_text(anchor: impl AsFd) -> Result<()> {
    lock(anchor.as_fd().as_raw_fd(), F_OFD_SETLK, F_RDLCK).map(|_| ())
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
    let seen = |fd: &OwnedFd| lock(fd.as_raw_fd(), F_OFD_GETLK, F_WRLCK).is_ok_and(|kind| kind != F_UNLCK);
    let unseen = lock(anchor.as_fd().as_raw_fd(), F_OFD_GETLK, F_WRLCK) == Ok(F_UNLCK);
    unseen && again().is_ok_and(|fd| seen(&fd))
}

/// Refuses to let a file be opened for writing that a process executes a copy of.
pub(crate) fn refuse_busy(fd: impl AsFd, mode: u32) -> Result<()> {
    if mode & EXECUTE != 0 && lock(fd.as_fd().as_raw_fd(), F_OFD_GETLK, F_WRLCK)? != F_UNLCK {
        return Err(OsError::TXTBSY);
    }
    Ok(())
}
