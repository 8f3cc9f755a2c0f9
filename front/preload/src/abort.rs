//! The end of a process in which the library cannot go on.

use crate::mask::MASK_BYTES;
use crate::uapi::{SIG_SETMASK, SIGABRT};
use linux_raw_sys::general::{__NR_getpid, __NR_kill, __NR_rt_sigaction, __NR_rt_sigprocmask};
use sys::raw::syscall;

/// Dies by SIGABRT, whatever the program does with it.
pub(crate) fn abort() -> ! {
    let default = [0usize; 4];
    let unblocked = 0u64;
    loop {
        // SAFETY: the action and the mask outlive the calls; afterwards the process is gone.
        unsafe {
            syscall(__NR_rt_sigaction as usize, [SIGABRT, default.as_ptr() as usize, 0, MASK_BYTES, 0, 0]);
            syscall(__NR_rt_sigprocmask as usize, [SIG_SETMASK, &raw const unblocked as usize, 0, MASK_BYTES, 0, 0]);
            let own = syscall(__NR_getpid as usize, [0; 6]) as u32;
            syscall(__NR_kill as usize, [own as usize, SIGABRT, 0, 0, 0, 0]);
        }
    }
}
