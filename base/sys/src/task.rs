//! Threads of this process and of others: whether one is there, as whom it looks at files, and a copy
//! of the process that makes calls in its place.

use crate::raw::{check, syscall};
use crate::{OsError, Result};
use linux_raw_sys::general::{
    __NR_clone, __NR_exit_group, __NR_rt_sigprocmask, __NR_setfsuid, __NR_tgkill, __NR_wait4, __WALL, CLONE_FILES, CLONE_VFORK,
    SIG_SETMASK,
};

/// Tells whether a process has a thread. The answer is false once the thread has ended, or the
/// process has executed another program.
#[must_use]
pub fn is_there(pid: u32, thread: u32) -> bool {
    if pid.max(thread) > i32::MAX as u32 || pid.min(thread) == 0 {
        return false;
    }
    // A thread about which this process may not ask (EPERM) counts as there.
    // SAFETY: signal 0 is not sent; the call only asks.
    let answer = unsafe { syscall(__NR_tgkill as usize, [pid as usize, thread as usize, 0, 0, 0, 0]) };
    answer != -(OsError::SRCH.raw_os_error() as isize)
}

/// Returns the user as whom the calling thread looks at files (credentials(7)).
#[must_use]
pub fn file_user() -> u32 {
    // SAFETY: no user has this number, so the call changes nothing; it returns the user before it.
    let user = unsafe { syscall(__NR_setfsuid as usize, [u32::MAX as usize, 0, 0, 0, 0, 0]) };
    user as u32
}

/// Runs `act` in a copy of this process that shares its descriptors, and waits until the copy has
/// ended. That is for system calls of which the kernel remembers by which task they were made. All
/// signals that can be blocked are blocked in the copy. A thread of this process that waits for any
/// child with `__WALL` meanwhile may be told of the copy.
///
/// # Errors
/// What clone(2) answers.
///
/// # Safety
/// `act` makes system calls and uses memory that needs no lock: other threads of the process do not
/// exist in the copy, and may have been in the middle of anything. What it stores to private memory
/// is lost.
pub unsafe fn in_a_copy(act: impl FnOnce()) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { copied(CLONE_FILES, act) }
}

/// As [`in_a_copy`], but the copy has descriptors of its own: those of this process at first.
///
/// # Errors
/// As for [`in_a_copy`].
///
/// # Safety
/// As for [`in_a_copy`].
pub unsafe fn in_a_copy_apart(act: impl FnOnce()) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { copied(0, act) }
}

/// As [`in_a_copy`], with what is shared (clone(2)).
///
/// # Safety
/// As for [`in_a_copy`].
unsafe fn copied(shared: u32, act: impl FnOnce()) -> Result<()> {
    let (all, mut before) = (u64::MAX, 0u64);
    let set_mask = |new: *const u64, old: *mut u64| {
        let args = [SIG_SETMASK as usize, new.addr(), old.addr(), size_of::<u64>(), 0, 0];
        // SAFETY: both masks have the size that the kernel is told.
        let _ = unsafe { syscall(__NR_rt_sigprocmask as usize, args) };
    };
    set_mask(&raw const all, &raw mut before);
    // SAFETY: a copy of this process, which goes on here with memory of its own; this thread waits
    // until it has ended. No signal tells of its end.
    let pid = unsafe { syscall(__NR_clone as usize, [(shared | CLONE_VFORK) as usize, 0, 0, 0, 0, 0]) };
    if pid == 0 {
        act();
        loop {
            // SAFETY: the copy ends.
            unsafe { syscall(__NR_exit_group as usize, [0; 6]) };
        }
    }
    // SAFETY: waits for the copy, and stores nothing.
    let wait = || unsafe { syscall(__NR_wait4 as usize, [pid as usize, 0, __WALL as usize, 0, 0, 0]) };
    while pid > 0 && wait() == -(OsError::INTR.raw_os_error() as isize) {}
    set_mask(&raw const before, core::ptr::null_mut());
    check(pid).map(|_| ())
}
