//! The last process that uses an array, as it leaves.
//!
//! What that process does then nobody else sees: the segment's file is locked meanwhile, so that
//! other processes wait with attaching. The lock belongs to a descriptor of its own, which no child
//! of the process shares. If the process dies, the lock ends with it.
//!
//! Processes that leave at the same time do not wait for each other: each says that it leaves
//! before it looks for others, and those that leave are no others. Of several one gets the lock.

use super::{Runtime, entry, slot_of};
use crate::proc_file;
use core::sync::atomic::Ordering;
use sync::OwnerId;
use sys::OwnedFd;
use sys::rustix::fs::{self, FlockOperation, Mode};

/// How often it is tried to keep others from attaching.
const LOCK_STEPS: u32 = 20_000;

impl Runtime {
    /// Runs `act` if no other process is attached, and if this process may make system calls and
    /// write to the array's own files. A child of this process that has not called the library
    /// since fork is not seen: it attaches later.
    pub(crate) fn if_last(&self, act: impl FnOnce()) {
        // SAFETY: the page is mapped for the life of self.
        let me = OwnerId::new(unsafe { self.me.as_ref() }.owner.load(Ordering::Relaxed));
        // The kernel ends a process that writes behind its limit for files.
        let may_write = sys::file_limit::bytes() >= format::SUPERBLOCK_BYTES as u64;
        let Some(own) = me.map(slot_of).filter(|_| may_write && !self.is_lost()) else { return };
        self.segment().attach[own].leaves.store(1, Ordering::SeqCst);
        if self.has_others(own) || is_filtered() {
            return;
        }
        let Some(lock) = self.lock_apart() else { return };
        if !self.has_others(own) {
            act();
        }
        drop(lock);
    }

    /// Whether another process than that of a slot is attached and does not leave. One that has
    /// died and is not known to be dead counts.
    fn has_others(&self, own: usize) -> bool {
        self.taken_slots().any(|slot| slot != own && self.segment().attach[slot].leaves.load(Ordering::SeqCst) == 0)
    }

    /// Runs `act` while nobody attaches. None if another process does not come to an end with
    /// attaching.
    pub(crate) fn while_nobody_attaches<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        for _ in 0..LOCK_STEPS {
            if let Some(lock) = self.lock_apart() {
                let result = act();
                drop(lock);
                return Some(result);
            }
            let _ = sys::rustix::thread::nanosleep(&super::ANSWER_STEP);
        }
        None
    }

    /// The segment's file, locked by this open of it alone; None if somebody keeps it locked, or if
    /// it is not there any more.
    fn lock_apart(&self) -> Option<OwnedFd> {
        let file = fs::open(self.path.as_str(), entry::OPEN, Mode::empty()).ok()?;
        let (found, own) = (fs::fstat(&file).ok()?, fs::fstat(&self.file).ok()?);
        let is_it = (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino);
        (is_it && fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()).then_some(file)
    }
}

/// Whether system calls of this process are filtered (seccomp(2)). Such a filter may end the
/// process for a call that the process has not made before.
#[must_use]
pub fn is_filtered() -> bool {
    const FREE: &[u8] = b"\nSeccomp:\t0\n";
    !proc_file::read("/proc/self/status").windows(FREE.len()).any(|window| window == FREE)
}
