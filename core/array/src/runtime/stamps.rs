//! The newest time of a change that a program was told, by which later writes are stamped.
//!
//! A write to a striped file makes no system call, so its stamp is read off the kernel's coarse clock.
//! Linux 6.13 and later stamp a file by the fine clock if somebody has looked at its times before, and
//! from then on no other file by an earlier time. The coarse clock that a program reads does not know
//! of that, and lies up to a tick behind. So whoever tells a program such a time notes it here, and a
//! stamp is never earlier than what was noted.

use super::Runtime;
use core::sync::atomic::{AtomicU64, Ordering};

/// The longest that the kernel's coarse clock stands still. A time that was told and lies further ahead
/// of it is of a clock that was set back since, or of no clock of this machine.
pub const TICK_NS: u64 = 10_000_000;

/// The newest time of a change that a program was told, ns since 1970, on a line of its own.
#[repr(C, align(64))]
pub(super) struct ToldTime(AtomicU64);

impl ToldTime {
    fn not_before(&self, coarse_ns: u64) -> u64 {
        let told_ns = self.0.load(Ordering::Relaxed);
        if told_ns.wrapping_sub(coarse_ns) <= TICK_NS { told_ns } else { coarse_ns }
    }

    fn note(&self, changed_ns: u64, coarse_ns: impl Fn() -> u64) {
        // Of what was changed long ago this is known without a look at a clock.
        let told_ns = self.0.load(Ordering::Relaxed);
        if changed_ns <= told_ns && told_ns - changed_ns <= TICK_NS {
            return;
        }
        let coarse_ns = coarse_ns();
        if changed_ns <= coarse_ns || changed_ns - coarse_ns > TICK_NS {
            return;
        }
        // What was told before counts only if it is no time of another clock.
        let is_older = |told_ns: u64| told_ns < changed_ns || told_ns - coarse_ns > TICK_NS;
        let newer = |told_ns| is_older(told_ns).then_some(changed_ns);
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, newer);
    }
}

impl Runtime {
    /// Returns the time of the kernel's coarse clock, or the newest one that a program was told of a
    /// change if that is later.
    #[inline]
    #[must_use]
    pub fn not_before_told(&self, coarse_ns: u64) -> u64 {
        self.segment().told_time.not_before(coarse_ns)
    }

    /// Notes that a program is told that something was changed at this time, ns since 1970. It must be
    /// a time that the kernel has given (st_ctime), which no program can choose.
    pub fn note_told_time(&self, changed_ns: u64) {
        self.segment().told_time.note(changed_ns, sys::clock::realtime_coarse_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_NS: u64 = 1_700_000_000_000_000_000;

    #[test]
    fn a_stamp_is_not_before_what_was_told() {
        let told = ToldTime(AtomicU64::new(0));
        assert_eq!(told.not_before(NOW_NS), NOW_NS, "nothing was told");
        told.note(NOW_NS + 3_000_000, || NOW_NS);
        assert_eq!(told.not_before(NOW_NS), NOW_NS + 3_000_000);
        told.note(NOW_NS + 2_000_000, || NOW_NS);
        assert_eq!(told.not_before(NOW_NS), NOW_NS + 3_000_000, "an earlier time takes nothing back");
        told.note(NOW_NS + 4_000_000, || NOW_NS);
        assert_eq!(told.not_before(NOW_NS), NOW_NS + 4_000_000);
        assert_eq!(told.not_before(NOW_NS + 5_000_000), NOW_NS + 5_000_000, "the clock has moved on");
        told.note(NOW_NS + 5_000_000, || NOW_NS + 5_000_000);
        assert_eq!(told.0.load(Ordering::Relaxed), NOW_NS + 4_000_000, "the coarse clock says as much");
    }

    #[test]
    fn a_time_of_another_clock_stamps_nothing() {
        let told = ToldTime(AtomicU64::new(0));
        told.note(NOW_NS + TICK_NS + 1, || NOW_NS);
        assert_eq!(told.not_before(NOW_NS), NOW_NS, "no file of this machine is so far ahead");
        told.note(NOW_NS + 1, || NOW_NS);
        // The clock is set back by an hour.
        let back = NOW_NS - 3_600_000_000_000;
        assert_eq!(told.not_before(back), back);
        told.note(back + 7, || back);
        assert_eq!(told.not_before(back), back + 7, "what is told from now on counts");
    }
}
