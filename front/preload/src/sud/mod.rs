//! A test tool: `CXLRAID_DEBUG_SUD=<log file>` arms Syscall User Dispatch, which shows every system
//! call the patcher did not cover.
//!
//! The kernel runs system calls from the library's own image and turns every other one, in every
//! armed thread, into a SIGSYS. Our handler lets it through by a [`detour`] and writes to the
//! [`log`] if its number is one the table wants and the instruction is neither a patched one nor in
//! a trampoline. Armed are the first thread by the constructor, children by fork in
//! `calls::process`, every other child (threads, vfork, posix_spawn) by the detour it starts in,
//! the next program by its constructor. Linux: Documentation/admin-guide/syscall-user-dispatch.rst.
//!
//! A system call that is not the library's then costs a signal, a few microseconds. A handler of
//! SIGSYS that the program blocks by the mask of sigsuspend(2), ppoll(2) or the like, and that
//! interrupts those, kills it: the kernel cannot deliver another one. This is no second way of
//! interception: nothing is served here.

mod addresses;
mod detour;
mod log;

use crate::arch::context::Context;
use crate::patch::trampoline;
use crate::program;
use crate::report::report;
use crate::table;
use crate::uapi::{PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON};
use addresses::Addresses;
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering};
use linux_raw_sys::general::{__NR_clone, __NR_clone3, __NR_fork, __NR_prctl, __NR_vfork, CLONE_CLEAR_SIGHAND};
use sys::raw::syscall;

/// `si_code` of a SIGSYS that was raised by it.
pub(crate) const SYS_USER_DISPATCH: i32 = linux_raw_sys::general::SYS_USER_DISPATCH as i32;

static ARMED: AtomicBool = AtomicBool::new(false);
/// Behind each patched instruction that stayed in place.
static PATCHED: Addresses = Addresses::new();

/// Whether threads of this process are, or are about to be, armed.
#[inline]
pub(crate) fn is_armed() -> bool {
    ARMED.load(Ordering::Relaxed)
}

/// Sets up what the handler needs, before signals and sites are taken over. Called by the
/// constructor.
pub(crate) fn prepare(log: &'static CStr) {
    match detour::prepare().and_then(|()| PATCHED.prepare()) {
        Ok(()) => {
            log::start(log);
            ARMED.store(true, Ordering::Relaxed);
        }
        Err(error) => report!("CXLRAID_DEBUG_SUD: no executable memory to let calls through ({error}); not armed"),
    }
}

/// Notes that the instruction that ends at `continuation` was patched.
pub(crate) fn patched(continuation: usize) {
    if is_armed() {
        PATCHED.insert(continuation, 1);
    }
}

/// Arms the first thread and says so in the log. Called by the constructor, when everything else is
/// in place.
pub(crate) fn start() {
    if is_armed() {
        arm();
        log::armed();
    }
}

/// Arms the calling thread: the first of its process, or the one a fork left.
pub(crate) fn arm() {
    if !is_armed() {
        return;
    }
    let (start, bytes) = detour::image();
    // SAFETY: from here on our handler, which is installed, stands between this thread and its
    // system calls; the library's own are in the allowed range.
    let result = unsafe { syscall(__NR_prctl as usize, [PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, start, bytes, 0, 0]) };
    if result != 0 {
        report!("CXLRAID_DEBUG_SUD: the kernel does not know Syscall User Dispatch (error {}); not armed", -result);
    }
}

/// A system call from outside the library, which the kernel did not run: the thread goes on with it
/// in a detour.
///
/// # Safety
/// `context` is that of a running SIGSYS handler of ours whose code is [`SYS_USER_DISPATCH`].
pub(crate) unsafe fn caught(context: &mut Context) {
    let continuation = context.address();
    let (number, args) = context.system_call();
    if table::wants_site(Some(number)) && PATCHED.get(continuation).is_none() && !trampoline::contains(continuation) {
        log::missed(number, args, continuation);
    }
    match detour::around(continuation, makes_child(number, args)) {
        Some(detour) => context.set_address(detour),
        None => {
            report!("CXLRAID_DEBUG_SUD: too many places make system calls");
            crate::abort::abort();
        }
    }
}

/// Puts a thread that is in a detour, before or behind its system call, back to where the program
/// believes it to be.
pub(crate) fn leave_detour(context: &mut Context) {
    if is_armed()
        && let Some(address) = detour::origin(context.address())
    {
        context.set_address(address);
    }
}

/// Whether the call returns twice, the second time in a thread that must arm itself. One that
/// begins without handlers (posix_spawn of glibc 2.38 and later) cannot: it goes unwatched until it
/// executes a program.
fn makes_child(number: u32, args: [usize; 6]) -> bool {
    if number == __NR_clone3 {
        return program::read::<u64>(args[0]).is_ok_and(|flags| flags & CLONE_CLEAR_SIGHAND == 0);
    }
    [__NR_clone, __NR_fork, __NR_vfork].contains(&number)
}
