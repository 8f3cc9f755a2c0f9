//! Mappings that need no scan, because nothing can have been stored to them since the last.
//!
//! The first store to a protected page is a page fault, and the kernel counts the page faults of a
//! process. If all of a mapping was protected and the process has had no page fault since, nothing
//! was stored to the mapping. A scan of 1 GiB in chunks of 64 KiB takes 3 ms, and this question
//! half a microsecond. Most of all, it spares an idle process the scan of each period.
//!
//! The kernel does not count here what others store into this process' memory. From the first child
//! on that shares the memory, every scan is made. Stores by ptrace(2), process_vm_writev(2) and
//! their like of another process are found by the scan of every few periods.

use super::{Mapping, PAGE};
use core::sync::atomic::{AtomicBool, Ordering};
use sys::faults::page_faults;

/// A scan of less takes no longer than the question.
const BYTES_MIN: usize = 256 * PAGE;

/// Whether a child shares this process' memory, or did.
static SHARED: AtomicBool = AtomicBool::new(false);

/// A child that shares the memory is about to be made.
pub(crate) fn memory_is_shared() {
    SHARED.store(true, Ordering::Relaxed);
}

impl Mapping {
    fn is_worth_asking(&self) -> bool {
        self.composed - self.start >= BYTES_MIN && !self.tells_stores()
    }

    /// A scan begins at address `at`. If that is where the mapping begins, a pass over all of it
    /// does.
    pub(super) fn begin_pass(&mut self, at: usize) {
        if at <= self.start {
            self.quiet_since = None;
            self.pass = self.faults().map(|faults| (self.start, faults));
        }
    }

    /// What can have been stored to in `at..next` has been scanned and protected. When a pass has
    /// come to the end, the mapping is quiet until the process has one more page fault than when the
    /// pass began. What has happened to the mapping meanwhile does not matter: a store to what the
    /// pass has behind it is a fault, whether the page was protected or is a new one.
    pub(super) fn pass_reaches(&mut self, at: usize, next: usize) {
        let Some((behind, faults)) = self.pass.filter(|&(behind, _)| at <= behind) else { return };
        let behind = behind.max(next);
        if behind < self.composed {
            self.pass = Some((behind, faults));
        } else {
            (self.pass, self.quiet_since) = (None, Some(faults));
        }
    }

    /// The page faults so far, if a scan that begins now could spare later ones.
    fn faults(&self) -> Option<u64> {
        if self.is_worth_asking() && !SHARED.load(Ordering::Relaxed) { page_faults() } else { None }
    }

    /// Whether nothing can have been stored to it since the last scan.
    pub(super) fn is_quiet(&self) -> bool {
        self.quiet_since.is_some() && self.faults() == self.quiet_since
    }
}
