//! Segments that nobody uses: how that is known, and how they are removed.
//!
//! A process that uses a segment has its file open, and a read lock on one byte of it that belongs
//! to that open file description (an OFD lock, fcntl(2)). A child of a fork has both without having
//! attached. A program that is being executed has neither, but its slot names the process, which
//! stays the same. So a segment is unused if no other description has the lock and no process of a
//! slot lives. The process that finds this out holds the segment's file locked (flock) meanwhile,
//! so that nobody attaches.

use super::Runtime;
use core::sync::atomic::Ordering;
use format::Access;
use sync::{Liveness as _, OwnerId};
use sys::rustix::fs::{self, Timespec, Timestamps, UTIME_NOW};
use sys::{AsFd, OsError, Result, ofd_lock};

/// The byte that every process has a read lock on.
const USED: i64 = 0;

impl Runtime {
    /// Notes in the kernel that this process, and each copy of it, has the segment's file open.
    pub(super) fn hold_file(&self) {
        // Where there are no such locks, the slots alone tell who lives.
        let _ = ofd_lock::hold(self.file.as_fd(), USED, 1);
        // When the array was last used: stores do not change a file's times here.
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let _ = fs::futimens(&self.file, &Timestamps { last_access: now, last_modification: now });
    }

    /// Whether other processes, or copies of this one with a file of their own, have the segment
    /// open.
    #[must_use]
    pub fn is_held_by_others(&self) -> bool {
        ofd_lock::is_held_by_others(self.file.as_fd(), USED, 1) == Ok(true)
    }

    /// Gives the segment to those whom the array is open to.
    pub(crate) fn give(&self, access: Access) -> Result<()> {
        crate::access::give(&*self.file, access, access.mode & 0o666)
    }

    /// Removes the segment's name: the next process makes another one. The caller holds the segment
    /// and is alone with it.
    ///
    /// # Errors
    /// What the kernel says: then the name is still there.
    pub fn remove(&self) -> Result<()> {
        remove_name(&self.file, &self.path)
    }

    /// This process as a lock owner, if it is attached; unlike [`Self::me`] it does not attach.
    #[must_use]
    pub fn own(&self) -> Option<OwnerId> {
        // SAFETY: the page is mapped for the life of self, and holds atomics.
        OwnerId::new(unsafe { self.me.as_ref() }.owner.load(Ordering::Relaxed))
    }

    /// How many files and writes of dead processes wait here to be made good, of which the members
    /// do not know: bytes that a write was to put back, and stores to mappings that show a shared
    /// copy. What lanes on the members name is none of it.
    #[must_use]
    pub fn known_here_alone(&self) -> usize {
        let segment = self.segment();
        let me = self.own();
        let is_dead = |owner| Some(owner) != me && !self.is_alive(owner);
        let mapped = self.used_entries().filter(|&index| {
            let (key, file) = (segment.keys[index].load(Ordering::Acquire), &segment.files[index]);
            key != 0
                && file.unlinked.load(Ordering::Acquire) == 0
                && file.mapped.load(Ordering::Acquire) != 0
                && segment.mapped.of(key).any(|(_, owner)| is_dead(owner))
        });
        mapped.count() + self.abandoned_undo().filter(|record| record.unfinished().is_some()).count()
    }

    /// Whether nothing in the segment is needed any more: nobody is attached or has it open but the
    /// caller, and what processes left that are gone the members know. The caller holds the
    /// segment.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        let others = self.attached().any(|pid| pid != sys::rustix::process::getpid().as_raw_nonzero().get() as u32);
        let journal_waits = self.journal_lanes().iter().any(|lane| lane.0.load(Ordering::Acquire) != 0);
        !others && !self.is_held_by_others() && !journal_waits && self.known_here_alone() == 0
    }
}

/// Removes the name of a segment, unless it is another file's by now.
///
/// # Errors
/// What the kernel says: then the name is still there.
pub(super) fn remove_name(segment: &impl AsFd, path: &str) -> Result<()> {
    let own = fs::fstat(segment)?;
    match fs::lstat(path) {
        Ok(named) if (own.st_dev, own.st_ino) == (named.st_dev, named.st_ino) => match fs::unlink(path) {
            Err(OsError::NOENT) => Ok(()),
            result => result,
        },
        Ok(_) | Err(OsError::NOENT) => Ok(()),
        Err(error) => Err(error),
    }
}
