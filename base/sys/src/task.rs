//! Threads, of this process and others.

use crate::OsError;
use linux_raw_sys::general::{__NR_setfsuid, __NR_tgkill};

/// Whether a process has a thread: false once it has ended, or the process executes another
/// program.
#[must_use]
pub fn is_there(pid: u32, thread: u32) -> bool {
    if pid.max(thread) > i32::MAX as u32 || pid.min(thread) == 0 {
        return false;
    }
    // SAFETY: signal 0 only asks. What may not be asked may be there.
    let answer = unsafe { crate::raw::syscall(__NR_tgkill as usize, [pid as usize, thread as usize, 0, 0, 0, 0]) };
    answer != -(OsError::SRCH.raw_os_error() as isize)
}

/// The user as whom the calling thread looks at files (credentials(7)).
#[must_use]
pub fn file_user() -> u32 {
    // SAFETY: no user has this number, so the call changes nothing; it returns the user before it.
    let user = unsafe { crate::raw::syscall(__NR_setfsuid as usize, [u32::MAX as usize, 0, 0, 0, 0, 0]) };
    user as u32
}
