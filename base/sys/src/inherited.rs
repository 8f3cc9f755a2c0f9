//! Descriptors that a process is given by the one that starts it.

use crate::Result;
use crate::raw::{check, syscall};
use linux_raw_sys::general::__NR_close_range;

/// Closes every descriptor from 3 on, for a process that outlives the one that has started it: else
/// it would keep pipes, locks and directories in use that it knows nothing of.
///
/// # Errors
/// What close_range(2) says.
///
/// # Safety
/// Nothing in this process uses or owns such a descriptor.
pub unsafe fn close_inherited() -> Result<()> {
    // SAFETY: the caller's promise; the call touches no memory.
    check(unsafe { syscall(__NR_close_range as usize, [3, u32::MAX as usize, 0, 0, 0, 0]) }).map(drop)
}
