//! Segments that nobody uses: how that is known, and how they go.
//!
//! A process that uses a segment has its file open, and a read lock on one byte of it that belongs to that open (an OFD lock, fcntl(2)). A child of a fork has both without having attached, and a program
//! that is being executed has neither; its slot names it, since it stays the same process. So a segment is unused if no other open has the lock and no process of a slot lives. What looks holds the
//! segment's file locked (flock), so that nobody attaches meanwhile.

use super::Runtime;
use format::Access;
use sys::rustix::fs;
use sys::{AsFd, Result, ofd_lock};

/// The byte that every process has a read lock on.
const USED: i64 = 0;

impl Runtime {
    /// Notes in the kernel that this process, and each copy of it, has the segment's file open.
    pub(super) fn hold_file(&self) {
        // Where there are no such locks, the slots alone tell who lives.
        let _ = ofd_lock::hold(self.file.as_fd(), USED, 1);
    }

    /// Whether other processes, or copies of this one with a file of their own, have the segment open.
    #[must_use]
    pub fn is_held_by_others(&self) -> bool {
        ofd_lock::is_held_by_others(self.file.as_fd(), USED, 1) == Ok(true)
    }

    /// Gives the segment to those whom the array is open to.
    pub(crate) fn give(&self, access: Access) -> Result<()> {
        crate::access::give(&*self.file, access, access.mode & 0o666)
    }

    /// Removes the segment's name: the next process makes another one. The caller holds the segment and is alone with it.
    pub fn remove(&self) {
        if fs::fstat(&self.file)
            .and_then(|own| Ok((own, fs::lstat(self.path.as_str())?)))
            .is_ok_and(|(own, named)| (own.st_dev, own.st_ino) == (named.st_dev, named.st_ino))
        {
            let _ = fs::unlink(self.path.as_str());
        }
    }
}
