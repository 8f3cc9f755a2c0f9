//! Waiting for locks on files (flock(2)) that other processes may hold: the wait ends after a time,
//! and a signal that ends the process ends it, too.
//!
//! The fault it exists for: a user who may open a file may lock it, and never let go.

use sys::rustix::fs::{FlockOperation, flock};
use sys::{AsFd, OsError, OwnedFd, Result};

/// How long another process may have a file of the array locked: it does so while it makes a
/// journal, or assembles or creates the array.
pub(crate) const WAIT_SECONDS: u64 = if cfg!(test) { 1 } else { 120 };
const REST_NS_MIN: u64 = 50_000;
const REST_NS_MAX: u64 = 32_000_000;
/// Who has waited long looks less often, at the price of waiting an eighth longer: of a thousand
/// programs that start at once each would otherwise keep the one that has the lock from the
/// processor.
const REST_PART: u64 = 8;

/// Takes the lock on a file for this open of it alone.
///
/// # Errors
/// `TIMEDOUT` if a process keeps it.
pub(crate) fn lock(file: &OwnedFd) -> Result<()> {
    lock_within(file, WAIT_SECONDS)
}

/// Does as [`lock`] does, with another time after which the wait ends.
///
/// # Errors
/// `TIMEDOUT` if a process keeps it.
pub(crate) fn lock_within(file: impl AsFd, seconds: u64) -> Result<()> {
    let begin_ns = sys::clock::monotonic_ns();
    loop {
        let waited_ns = sys::clock::monotonic_ns() - begin_ns;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(OsError::AGAIN) if waited_ns < seconds * 1_000_000_000 => {}
            Err(OsError::AGAIN) => return Err(OsError::TIMEDOUT),
            Err(OsError::INTR) => continue,
            result => return result,
        }
        sys::rest::rest((waited_ns / REST_PART).clamp(REST_NS_MIN, REST_NS_MAX));
    }
}
