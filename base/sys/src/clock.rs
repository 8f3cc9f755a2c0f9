//! Time.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the coarse real-time clock, the one the kernel stamps files with.
#[must_use]
pub fn realtime_coarse_ns() -> u64 {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Nanoseconds of the monotonic clock.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
