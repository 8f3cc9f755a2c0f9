//! The filter of the entry stub: which numbers of system calls, and which descriptors, make a call
//! the library's affair.
//!
//! The stub reads the filter's tables ([`crate::arch::entry`]) before it calls anything of the
//! library.

use crate::arch::entry::{OURS, WANTED};
use crate::table::{ROWS, Row, Way};
use core::sync::atomic::Ordering;
use linux_raw_sys::general as nr;
use sys::high_fd;

/// Opens the filter of the entry stub for the numbers of the table.
pub(crate) fn open() {
    for (number, row) in ROWS.iter().enumerate() {
        WANTED[number].store(filter_of(row), Ordering::Relaxed);
    }
    // No call is to reach the kernel with a number of ours.
    keep_from(high_fd::base());
    high_fd::tell_of_low(watch_descriptor);
    // A descriptor may be its argument.
    WANTED[nr::__NR_ioctl as usize].store(1, Ordering::Relaxed);
    // Closing must be seen for every number, and any number may be a listing of descriptors.
    for number in [nr::__NR_close, nr::__NR_getdents, nr::__NR_getdents64] {
        WANTED[number as usize].store(1, Ordering::Relaxed);
    }
}

/// Lets calls on all descriptors from `first` on through.
fn keep_from(first: u32) {
    OURS[first as usize..].iter().for_each(|entry| entry.store(KEPT, Ordering::Release));
}

/// The process may have lowered its limit for descriptors. Ours lie within the new one from now on, if
/// they lay above it.
pub(crate) fn follow_limit() {
    let base = high_fd::base_of_limit();
    if base < high_fd::base() {
        keep_from(base);
        high_fd::lower_base(base);
    }
}

const fn filter_of(row: &Row) -> u8 {
    match row.way {
        Way::Pass => 0,
        Way::Serve | Way::Observe if row.by_first_descriptor() => 2,
        Way::Serve | Way::Observe | Way::Refuse => 1,
    }
}

/// The value of an entry of the stub's filter whose descriptor is, or was, of the array. The
/// library may close the filter for such a descriptor again.
const BY_TABLE: u8 = 1;
/// The value of an entry whose descriptor concerns the library for another reason. The filter stays
/// open for it.
const KEPT: u8 = 2;

/// Lets calls on `descriptor` through the filter of the entry stub.
pub(crate) fn watch_descriptor(descriptor: sys::RawFd) {
    OURS[descriptor as u16 as usize].store(KEPT, Ordering::Release);
}

/// Lets calls on a descriptor of the array through.
pub(crate) fn watch_ours(descriptor: sys::RawFd) {
    OURS[descriptor as u16 as usize].store(BY_TABLE, Ordering::Release);
}

/// Lets calls on a descriptor through that may be about to be of the array. Returns whether they
/// were let through before.
pub(crate) fn watch_claimed(descriptor: sys::RawFd) -> bool {
    OURS[descriptor as u16 as usize].fetch_max(BY_TABLE, Ordering::AcqRel) != 0
}

/// Tells whether calls on `descriptor` are let through because it is, or was, of the array.
pub(crate) fn is_watched_as_ours(descriptor: sys::RawFd) -> bool {
    OURS[descriptor as u16 as usize].load(Ordering::Acquire) == BY_TABLE
}

/// Lets calls on every descriptor through: others may change what each means.
pub(crate) fn watch_all() {
    OURS.iter().for_each(|entry| entry.store(KEPT, Ordering::Relaxed));
}

/// Closes the filter for a descriptor again. No other descriptor shares its entry.
pub(crate) fn unwatch_descriptor(descriptor: sys::RawFd) {
    OURS[descriptor as u16 as usize].store(0, Ordering::Release);
}
