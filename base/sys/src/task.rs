//! Threads, of this process and others.

use crate::raw::{check, syscall};
use crate::{OsError, Result};
use linux_raw_sys::general::{
    __NR_clone, __NR_exit_group, __NR_rt_sigprocmask, __NR_setfsuid, __NR_tgkill, __NR_wait4, __WALL, CLONE_FILES, CLONE_VFORK,
    SIG_SETMASK,
};

/// Whether a process has a thread: false once it has ended, or the process executes another
/// program.
#[must_use]
pub fn is_there(pid: u32, thread: u32) -> bool {
    if pid.max(thread) > i32::MAX as u32 || pid.min(thread) == 0 {
        return false;
    }
    // SAFETY: signal 0 only asks. What may not be asked may be there.
    let answer = unsafe { syscall(__NR_tgkill as usize, [pid as usize, thread as usize, 0, 0, 0, 0]) };
    answer != -(OsError::SRCH.raw_os_error() as isize)
}

/// The user as whom the calling thread looks at files (credentials(7)).
#[must_use]
pub fn file_user() -> u32 {
    // SAFETY: no user has this number, so the call changes nothing; it returns the user before it.
    let user = unsafe { syscall(__NR_setfsuid as usize, [u32::MAX as usize, 0, 0, 0, 0, 0]) };
    user as u32
}

/// Runs `act` in a copy of this process that shares its descriptors, and waits for its end: for what
/// the kernel remembers of the task that does it. The copy is killed by nobody's signals but SIGKILL.
/// No other thread of this process waits for children of its own kind by `__WALL` meanwhile, or it
/// may be told of the copy.
///
/// # Errors
/// What clone(2) answers.
///
/// # Safety
/// `act` makes system calls and uses memory that needs no lock: other threads of the process do not
/// exist in the copy, and may have been in the middle of anything. What it stores to private memory
/// is lost.
pub unsafe fn in_a_copy(act: impl FnOnce()) -> Result<()> {
    let (all, mut before) = (u64::MAX, 0u64);
    let set_mask = |new: *const u64, old: *mut u64| {
        let args = [SIG_SETMASK as usize, new.addr(), old.addr(), size_of::<u64>(), 0, 0];
        // SAFETY: both masks have the size that the kernel is told.
        let _ = unsafe { syscall(__NR_rt_sigprocmask as usize, args) };
    };
    set_mask(&raw const all, &raw mut before);
    // SAFETY: a copy of this process, which goes on here with memory of its own; this thread waits
    // until it has ended. No signal tells of its end.
    let pid = unsafe { syscall(__NR_clone as usize, [(CLONE_FILES | CLONE_VFORK) as usize, 0, 0, 0, 0, 0]) };
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
