//! Quiet mappings: they need no scan, because nothing can have been stored to them since the last
//! one.
//!
//! The first store to a protected page is a page fault, and the kernel counts the page faults of a
//! process. If all of a mapping was protected and the process has had no page fault since, nothing
//! was stored to the mapping. A scan of 1 GiB in chunks of 64 KiB takes 3 ms, and to ask the kernel
//! for the count half a microsecond. Most of all, it spares an idle process the scan of each period.
//!
//! Page faults of other processes that store into this process' memory are not in the count. So as
//! soon as there has been a child that shares the memory, every scan is made. What another process
//! stores by ptrace(2), process_vm_writev(2) and their like is found by a scan that is made every
//! few periods.

use super::{Mapping, PAGE};
use core::sync::atomic::{AtomicBool, Ordering};
use sys::faults::page_faults;

/// To scan a mapping of fewer bytes takes no longer than to ask for the count of page faults.
const BYTES_MIN: usize = 256 * PAGE;

/// Whether a child shares this process' memory, or did.
static SHARED: AtomicBool = AtomicBool::new(false);

/// Notes that a child that shares the memory is about to be made.
pub(crate) fn memory_is_shared() {
    SHARED.store(true, Ordering::Relaxed);
}

impl Mapping {
    /// Tells whether a scan of the mapping costs more than the question, and the mapping is scanned at
    /// all.
    fn is_worth_asking(&self) -> bool {
        self.composed - self.start >= BYTES_MIN && !self.tells_stores()
    }

    /// Notes that a scan begins at address `at`. If the mapping begins there, a *pass* over all of
    /// the mapping begins, too.
    pub(super) fn begin_pass(&mut self, at: usize) {
        if at <= self.start {
            self.quiet_since = None;
            self.pass = self.faults().map(|faults| (self.start, faults));
        }
    }

    /// Notes that what can have been stored to in `at..next` has been scanned and protected. When a
    /// pass has come to the end, the mapping is quiet until the process has one more page fault than
    /// when the pass began. What happens to the mapping during the pass does not matter: a store to a
    /// page that the pass has behind it is a fault, whether the page was protected or is a new one.
    pub(super) fn pass_reaches(&mut self, at: usize, next: usize) {
        let Some((behind, faults)) = self.pass.filter(|&(behind, _)| at <= behind) else { return };
        let behind = behind.max(next);
        if behind < self.composed {
            self.pass = Some((behind, faults));
        } else {
            (self.pass, self.quiet_since) = (None, Some(faults));
        }
    }

    /// Returns the number of page faults so far; None if a scan that begins now could not spare later
    /// scans.
    fn faults(&self) -> Option<u64> {
        if self.is_worth_asking() && !SHARED.load(Ordering::Relaxed) { page_faults() } else { None }
    }

    /// Tells whether nothing can have been stored to the mapping since the last scan.
    pub(super) fn is_quiet(&self) -> bool {
        self.quiet_since.is_some() && self.faults() == self.quiet_since
    }
}
