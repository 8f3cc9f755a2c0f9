//! Events for processes that watch a file: the kernel raises them for system calls only, and a
//! store to or load from the array makes none.
//!
//! So a process that has stored or loaded makes a call on the program's anchor that raises the
//! event and changes nothing: it reads a byte (IN_ACCESS), or punches a hole far behind the end,
//! where nothing is (IN_MODIFY). It uses the program's own descriptor, so that the event tells the
//! name by which the file was opened. If the call cannot be made, no watcher is told: the store is
//! complete.

use crate::inode::Inode;
use sys::rustix::fs::{FallocateFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, fallocate, futimens};
use sys::rustix::io::pread;
use sys::{BorrowedFd, OsError};
use units::PAGE_BYTES;

/// Where the hole is punched: just below the longest file of ext4 with blocks of 4 KiB, the least
/// that file systems for such members have.
const NOWHERE: u64 = (1 << 44) - (1 << 16);

impl Inode {
    /// Whether anybody may watch files of the array.
    #[inline]
    #[must_use]
    pub fn may_be_watched(&self) -> bool {
        self.files.array().runtime().is_watched()
    }

    /// Has the kernel tell that the file was stored to. `anchor` is the descriptor by which the
    /// program did so.
    #[cold]
    pub fn tell_modified(&self, anchor: BorrowedFd<'_>) {
        self.files.array().runtime().note_told();
        // Whoever lets the file grow holds this lock until what it stores is stored: nothing of a
        // shorter file is where the hole is, and nothing comes there meanwhile.
        let told = self.with_size_locked(|size| {
            if self.geometry.member_bytes(size) >= NOWHERE / 2 {
                return Err(OsError::FBIG);
            }
            fallocate(anchor, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, NOWHERE, PAGE_BYTES as u64)
        });
        if told.is_err() {
            // Only the file's owner may do that.
            let time = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
            let _ = futimens(anchor, &Timestamps { last_access: time(UTIME_OMIT), last_modification: time(UTIME_NOW) });
        }
    }

    /// Has the kernel note that the file was read (atime), and tell those who watch it. `anchor` is
    /// the descriptor by which the program did so.
    ///
    /// # Errors
    /// `PERM` if whoever watches forbids it (fanotify(7), FAN_ACCESS_PERM).
    #[cold]
    pub fn tell_accessed(&self, anchor: BorrowedFd<'_>) -> Result<(), OsError> {
        self.note_access_heard();
        if self.may_be_watched() {
            self.files.array().runtime().note_told();
        }
        match pread(anchor, &mut [0u8], 0) {
            Err(OsError::PERM) => Err(OsError::PERM),
            _ => Ok(()),
        }
    }
}
