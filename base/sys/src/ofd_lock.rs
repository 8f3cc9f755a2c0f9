//! Locks on byte ranges that belong to an open file description (OFD locks, fcntl(2)): they pass
//! through fork and exec with it, and end with its last descriptor.

use crate::raw::{check, syscall};
use crate::{BorrowedFd, Result};
use rustix::fd::AsRawFd;

const FCNTL: usize = 72;
const F_OFD_GETLK: usize = 36;
const F_OFD_SETLK: usize = 37;
const F_RDLCK: i16 = 0;
const F_WRLCK: i16 = 1;
const F_UNLCK: i16 = 2;

/// What is asked for a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// A lock that excludes those that exclude all.
    Shared,
    /// A lock that excludes all others.
    Exclusive,
    /// No lock.
    None,
}

impl Wish {
    const fn kind(self) -> i16 {
        match self {
            Self::Shared => F_RDLCK,
            Self::Exclusive => F_WRLCK,
            Self::None => F_UNLCK,
        }
    }
}

/// A lock that somebody else holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Whether it excludes all others.
    pub is_exclusive: bool,
    /// First byte.
    pub start: i64,
    /// How many; 0 for all behind `start`.
    pub bytes: i64,
    /// The process that holds it; -1 if it is a description's.
    pub process: i32,
}

/// `struct flock` (fcntl(2)).
#[repr(C)]
struct Lock {
    kind: i16,
    whence: i16,
    start: i64,
    length: i64,
    process: i32,
}

fn lock(fd: BorrowedFd<'_>, command: usize, kind: i16, start: i64, bytes: i64) -> Result<Lock> {
    let mut lock = Lock { kind, whence: 0, start, length: bytes, process: 0 };
    // SAFETY: the kernel reads and writes `lock`, which is laid out as it expects.
    check(unsafe { syscall(FCNTL, [fd.as_raw_fd() as usize, command, &raw mut lock as usize, 0, 0, 0]) })?;
    Ok(lock)
}

/// Takes a read lock on `bytes` bytes from `start` (0 bytes: to the end of all files), without
/// waiting.
///
/// # Errors
/// `AGAIN` if another description holds a write lock there; `INVAL`, `OPNOTSUPP`, `NOLCK` where the
/// file system has no locks.
pub fn hold(fd: BorrowedFd<'_>, start: i64, bytes: i64) -> Result<()> {
    lock(fd, F_OFD_SETLK, F_RDLCK, start, bytes).map(|_| ())
}

/// Lets go of what the description holds there.
pub fn release(fd: BorrowedFd<'_>, start: i64, bytes: i64) -> Result<()> {
    lock(fd, F_OFD_SETLK, F_UNLCK, start, bytes).map(|_| ())
}

/// Whether another description holds any lock there.
pub fn is_held_by_others(fd: BorrowedFd<'_>, start: i64, bytes: i64) -> Result<bool> {
    lock(fd, F_OFD_GETLK, F_WRLCK, start, bytes).map(|found| found.kind != F_UNLCK)
}

/// Takes, changes or gives back a lock of the description, without waiting.
///
/// # Errors
/// `AGAIN` if another lock is in the way; `BADF` if the descriptor is not open for what the lock
/// means; `INVAL`, `NOLCK`.
pub fn set(fd: BorrowedFd<'_>, wish: Wish, start: i64, bytes: i64) -> Result<()> {
    lock(fd, F_OFD_SETLK, wish.kind(), start, bytes).map(|_| ())
}

/// A lock of somebody else that is in the way of `wish`, which must be a lock.
pub fn conflict(fd: BorrowedFd<'_>, wish: Wish, start: i64, bytes: i64) -> Result<Option<Held>> {
    let found = lock(fd, F_OFD_GETLK, wish.kind(), start, bytes)?;
    let held = Held { is_exclusive: found.kind == F_WRLCK, start: found.start, bytes: found.length, process: found.process };
    Ok((found.kind != F_UNLCK).then_some(held))
}
