//! Waiting for locks and answers that other processes may hold back for long: a signal that ends
//! the process ends the wait.
//!
//! The library starts with the program's signals blocked. Another process that holds a lock for
//! which a start waits could therefore keep the program from being ended by anything but SIGKILL.
//! So the signals that the program was started with unblocked are let in during the wait.

use crate::raw::syscall;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use rustix::thread::nanosleep;
use rustix::time::Timespec;

const PPOLL: usize = 271;
const MASK_BYTES: usize = 8;

static LETS_IN: AtomicBool = AtomicBool::new(false);
static BLOCKED: AtomicU64 = AtomicU64::new(0);

/// From here on [`rest`] blocks the signals of `mask` only, as the kernel has it (bit 0 is signal
/// 1); None: those that are blocked anyway. Called while there is one thread, which has no handlers
/// yet.
pub fn let_in(mask: Option<u64>) {
    BLOCKED.store(mask.unwrap_or(0), Ordering::Relaxed);
    LETS_IN.store(mask.is_some(), Ordering::Relaxed);
}

/// Waits for so long, or less if a signal comes.
pub fn rest(ns: u64) {
    let time = Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
    if !LETS_IN.load(Ordering::Relaxed) {
        let _ = nanosleep(&time);
        return;
    }
    let mask = BLOCKED.load(Ordering::Relaxed);
    // SAFETY: time and mask outlive the call; there are no descriptors.
    let _ = unsafe { syscall(PPOLL, [0, 0, &raw const time as usize, &raw const mask as usize, MASK_BYTES, 0]) };
}
