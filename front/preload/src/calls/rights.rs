//! A thread changes its credentials (setresuid(2), capset(2), setns(2), a new user namespace). What
//! the program has open stays open, as the kernel has it. What the library keeps open beyond that,
//! for speed, is closed. What the library will need to go on, which is the log of names, it opens
//! before the change.
//!
//! The C library changes credentials in every thread, and each thread makes the call (nptl(7)); the
//! first one ends the keeping for all. The library does not ask which of these calls takes rights
//! away: a process that changes its credentials has nothing kept from then on.

use crate::array;
use crate::call::{Call, Verdict};
use crate::uapi::{PR_GET_SECCOMP, PR_SET_SECCOMP};
use core::sync::atomic::{AtomicBool, Ordering};
use linux_raw_sys::general::{
    __NR_getresgid, __NR_getresuid, __NR_prctl, __NR_seccomp, __NR_setfsgid, __NR_setfsuid, __NR_setns,
};
use sys::raw::syscall;

/// Whether the process has changed its rights: only then may its real user be another than the one
/// whose rights files are looked at with.
static HAVE_CHANGED: AtomicBool = AtomicBool::new(false);

/// Whether the process may have fewer rights than when it started, when nothing kept it from the
/// array.
pub(super) fn may_be_fewer() -> bool {
    HAVE_CHANGED.load(Ordering::Relaxed)
}

/// Whether the process has asked for a filter of its system calls.
static ARE_CALLS_RESTRICTED: AtomicBool = AtomicBool::new(false);

/// While it lives, the calling thread looks at files as the process' real user and group, as
/// access(2) does, also at the directories on the way.
pub(super) struct Real {
    user: usize,
    group: usize,
}

impl Real {
    /// None if the thread does so anyway.
    pub(super) fn take() -> Option<Self> {
        if !HAVE_CHANGED.load(Ordering::Relaxed) {
            return None;
        }
        let real = |number: u32| {
            let mut numbers = [0_u32; 3];
            let [real, effective, saved] = &mut numbers;
            let args = [real, effective, saved].map(|number| core::ptr::from_mut(number) as usize);
            // SAFETY: the kernel stores three numbers.
            unsafe { syscall(number as usize, [args[0], args[1], args[2], 0, 0, 0]) };
            numbers[0] as usize
        };
        let become_for_files = |number: u32, id: usize| {
            // SAFETY: concerns the calling thread's looks at files; what may not be is not done.
            // The answer is what it was before.
            unsafe { syscall(number as usize, [id, 0, 0, 0, 0, 0]) as usize }
        };
        // The group first: the right to change it may go with the user.
        let group = become_for_files(__NR_setfsgid, real(__NR_getresgid));
        let user = become_for_files(__NR_setfsuid, real(__NR_getresuid));
        Some(Self { user, group })
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        for (number, id) in [(__NR_setfsuid, self.user), (__NR_setfsgid, self.group)] {
            // SAFETY: as in `take`.
            let _ = unsafe { syscall(number as usize, [id, 0, 0, 0, 0, 0]) };
        }
    }
}

/// A call that changes credentials. The kernel makes the change, and says whether it may be.
pub(crate) fn change(call: &mut Call) -> Verdict {
    HAVE_CHANGED.store(true, Ordering::Relaxed);
    if call.number == __NR_setns as usize {
        if let Err(error) = super::apart::keep() {
            return Verdict::error(error);
        }
        // Another mount namespace has another current directory.
        super::directory::expect_moves();
    }
    end_keeping();
    Verdict::Pass
}

/// prctl(2), seccomp(2): a process may forbid itself system calls. A filter may end the process for
/// a call of the library's.
pub(crate) fn restrict(call: &mut Call) -> Verdict {
    if call.number == __NR_seccomp as usize || call.args[0] == PR_SET_SECCOMP {
        ARE_CALLS_RESTRICTED.store(true, Ordering::Relaxed);
        sys::low_limit::make_no_copies();
        if let Ok(namespace) = array::namespace() {
            namespace.files().map_what_is_read();
        }
    }
    Verdict::Pass
}

/// Whether this process has asked the kernel to forbid it system calls. What its former programs
/// asked for is not known.
pub(crate) fn are_calls_restricted() -> bool {
    ARE_CALLS_RESTRICTED.load(Ordering::Relaxed)
}

/// Tells whether system calls of this thread are filtered (seccomp(2)), also by what an earlier program
/// of the process has asked for. Such a filter may end the process for a clone. The question takes no
/// descriptor.
pub(crate) fn are_calls_filtered() -> bool {
    // SAFETY: a question.
    are_calls_restricted() || unsafe { syscall(__NR_prctl as usize, [PR_GET_SECCOMP, 0, 0, 0, 0, 0]) } != 0
}

/// Files that the program has closed are closed, and the log of names is opened.
#[cold]
pub(super) fn end_keeping() {
    if let Ok(namespace) = array::namespace() {
        namespace.files().end_keeping_ready();
        namespace.keep_log();
    }
}
