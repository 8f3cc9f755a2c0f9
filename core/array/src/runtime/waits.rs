//! Which process waits for which other process' lock (fcntl(2) F_SETLKW) where the two locks lie on
//! different backing files, so that a circle of such waits is found.
//!
//! The kernel finds circles among the waits that it knows. A process that waits for a lock on
//! another backing file asks for it again and again, and the kernel knows nothing of that wait; it
//! is noted here.

use super::Runtime;
use super::attach::slot_of;
use core::sync::atomic::Ordering;

/// How long a wait that was noted counts. It is noted again every few milliseconds; who was led out
/// of it by a jump from a signal handler did not say so.
const COUNTS_FOR_MS: u32 = 500;

fn now_ms() -> u32 {
    (sys::clock::monotonic_ns() / 1_000_000) as u32
}

impl Runtime {
    /// Notes that this process waits for a lock that `holder` has. Of several threads that wait the
    /// last one counts.
    pub fn note_wait(&self, holder: u32) {
        let waits = &self.segment().attach[slot_of(self.me())].waits_for;
        waits.store(u64::from(now_ms()) << 32 | u64::from(holder), Ordering::Release);
    }

    /// Notes that this process does not wait any more.
    pub fn end_wait(&self) {
        self.segment().attach[slot_of(self.me())].waits_for.store(0, Ordering::Release);
    }

    /// The process whose lock an attached process waits for.
    #[must_use]
    pub fn waits_for(&self, process: u32) -> Option<u32> {
        let slot = self.taken_slots().find(|&index| self.slot_process(index).pid == process)?;
        let noted = self.segment().attach[slot].waits_for.load(Ordering::Acquire);
        let is_fresh = noted != 0 && now_ms().wrapping_sub((noted >> 32) as u32) <= COUNTS_FOR_MS;
        is_fresh.then_some(noted as u32)
    }

    /// Runs `look` alone among all that look for circles of waits, so that of those in a circle one
    /// finds it.
    pub fn with_waits<T>(&self, look: impl FnOnce() -> T) -> T {
        self.with_lock(&self.segment().waits_lock, |_| look())
    }
}
