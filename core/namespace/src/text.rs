//! The text of a running program is not written to (ETXTBSY).
//!
//! The kernel guarantees that for a file that it executes. A file that is spread over members is
//! executed as a copy. So the process holds a lock on the anchor, on a byte past every file's end,
//! for as long as it lives: the lock passes through fork and exec, and ends with the last process
//! that has it, however that ends. A process that opens an executable file for writing asks for
//! that lock.

use sys::{AsFd, OsError, Result, ofd_lock};

/// No file is as long, and programs' locks end before it.
const TEXT_OFFSET: i64 = file::RESERVED_OFFSET + 1;
pub(crate) const EXECUTE: u32 = 0o111;

/// Keeps others from writing to the file that `anchor` is open on, for as long as this description
/// is open anywhere.
pub fn hold_text(anchor: impl AsFd) -> Result<()> {
    ofd_lock::hold(anchor.as_fd(), TEXT_OFFSET, 1)
}

/// Whether a description is one that holds a text.
#[must_use]
pub fn holds_text(anchor: impl AsFd) -> bool {
    file::has_locked(anchor, TEXT_OFFSET)
}

/// Refuses to let a file be opened for writing that a process executes a copy of.
pub(crate) fn refuse_busy(fd: impl AsFd, mode: u32) -> Result<()> {
    if mode & EXECUTE != 0 && ofd_lock::is_held_by_others(fd.as_fd(), TEXT_OFFSET, 1)? {
        return Err(OsError::TXTBSY);
    }
    Ok(())
}
