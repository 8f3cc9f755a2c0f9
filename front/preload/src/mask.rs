//! The signal mask of the calling thread, as the kernel keeps it.

use crate::uapi::{SIG_SETMASK, SIGBUS, SIGSEGV};
use linux_raw_sys::general::__NR_rt_sigprocmask;
use sys::raw::syscall;

/// The bytes of a mask.
pub(crate) const MASK_BYTES: usize = 8;

/// Every signal but SIGSEGV and SIGBUS, which are never blocked.
pub(crate) const ALL_BUT_FAULTS: u64 = !(1 << (SIGSEGV - 1) | 1 << (SIGBUS - 1));

/// Sets the mask, and returns the one before.
pub(crate) fn set_mask(mask: u64) -> u64 {
    let mut old = 0u64;
    let arguments = [SIG_SETMASK, &raw const mask as usize, &raw mut old as usize, MASK_BYTES, 0, 0];
    // SAFETY: both masks outlive the call; a thread's own mask concerns no memory.
    unsafe { syscall(__NR_rt_sigprocmask as usize, arguments) };
    old
}
