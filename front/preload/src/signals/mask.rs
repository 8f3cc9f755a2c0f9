//! The pretended mask: which of SIGSEGV and SIGBUS the program believes to have blocked, which are
//! never really blocked.
//!
//! rt_sigprocmask(2) changes it, and so do handlers: while one runs, its action's mask and its own
//! signal are blocked, and when it returns the mask is that of the signal frame, as the handler
//! leaves it there. The kernel does so with the real mask. For the pretended one the library puts
//! what is blocked into the frame's mask and has the handler return to code of its own
//! (`entry::handler_end`), which takes it out of there again. Most handlers have nothing to do with
//! these signals, and return as on a plain system.
//!
//! A handler may block them itself. So the thread lists the frames of the last handlers. One whose
//! handler has returned, or was left by a jump, may stay in the list, and its memory may hold
//! anything by now. So a frame is believed only if the handler's return address stands before it. To
//! change that of one that nobody returns from does nothing.

use super::{ENTRIES, never_blocked, send_kept};
use crate::arch::context::Context;
use crate::arch::entry;
use crate::call::{Call, Verdict};
use crate::mask::MASK_BYTES;
use crate::program;
use crate::thread::word;
use crate::uapi::{SIG_BLOCK, SIG_SETMASK, SIG_UNBLOCK};
use core::sync::atomic::Ordering;
use linux_raw_sys::general as nr;

/// A frame that lies below another one by no more than this lies on the same stack, and is older: its
/// handler does not run any more.
const NEAR_BYTES: usize = 64 << 10;

/// The signals that are blocked as far as the program sees it.
#[inline]
pub(super) fn pretended() -> u64 {
    word(word::PRETENDED_MASK).load(Ordering::Relaxed) as u64
}

/// Serves `rt_sigprocmask`. The kernel blocks what the program asks for, except SIGSEGV and SIGBUS,
/// of which only the thread's pretended mask says that they are blocked.
pub(crate) fn serve(call: &mut Call) -> Verdict {
    let [how, set, old, bytes, ..] = call.args;
    let pretended = pretended();
    let asked = match (bytes, set) {
        (MASK_BYTES, 0) => 0,
        (MASK_BYTES, address) => match program::read::<u64>(address) {
            Ok(asked) => asked,
            Err(error) => return Verdict::error(error),
        },
        _ => return Verdict::Pass,
    };
    if (asked | pretended) & never_blocked() == 0 {
        return Verdict::Pass;
    }
    call.scratch[0] = asked & !never_blocked();
    let address = |index: usize, wanted: bool| if wanted { &raw const call.scratch[index] as usize } else { 0 };
    let args = [how, address(0, set != 0), address(1, old != 0), MASK_BYTES, 0, 0];
    call.scratch[2] = asked;
    call.then = Some(finish);
    Verdict::PassWith { number: call.number, args }
}

fn finish(call: &mut Call) -> isize {
    let [how, set, old, ..] = call.args;
    if call.result != 0 {
        return call.result;
    }
    let pretended = word(word::PRETENDED_MASK);
    let (before, asked) = (pretended.load(Ordering::Relaxed) as u64, call.scratch[2] & never_blocked());
    let after = match how {
        _ if set == 0 => before,
        SIG_BLOCK => before | asked,
        SIG_UNBLOCK => before & !asked,
        SIG_SETMASK => asked,
        _ => before,
    };
    if after & !before != 0 {
        tell_handlers();
    }
    pretended.store(after as usize, Ordering::Relaxed);
    if old == 0 {
        return 0;
    }
    match program::write(old, &(call.scratch[1] & !never_blocked() | before)) {
        Ok(()) => 0,
        Err(error) => -(error.raw_os_error() as isize),
    }
}

/// Serves the calls that wait with another mask: rt_sigsuspend, ppoll, pselect6, epoll_pwait and
/// epoll_pwait2. The kernel has that mask in force while a handler runs that ends the wait, and a
/// fault in the handler whose signal is really blocked kills the process. So the kernel gets the mask
/// without the signals that are never really blocked.
pub(crate) fn wait(call: &mut Call) -> Verdict {
    let number = call.number as u32;
    let index = match number {
        nr::__NR_rt_sigsuspend => 0,
        nr::__NR_ppoll => 3,
        nr::__NR_epoll_pwait | nr::__NR_epoll_pwait2 => 4,
        nr::__NR_pselect6 => 5,
        _ => return Verdict::Pass,
    };
    let mut args = call.args;
    if args[index] == 0 {
        return Verdict::Pass;
    }
    // The last argument of pselect6 leads to where the mask is, and its length.
    let found = match number {
        nr::__NR_pselect6 => program::read::<[usize; 2]>(args[index]),
        _ => Ok([args[index], args[index + 1]]),
    };
    // What is wrong with the mask the kernel says.
    let Ok([place, MASK_BYTES]) = found else { return Verdict::Pass };
    let Ok(mask) = program::read::<u64>(place) else { return Verdict::Pass };
    if mask & never_blocked() == 0 {
        return Verdict::Pass;
    }
    call.scratch[0] = mask & !never_blocked();
    args[index] = &raw const call.scratch[0] as usize;
    if number == nr::__NR_pselect6 {
        (call.scratch[1], call.scratch[2]) = (args[index] as u64, MASK_BYTES as u64);
        args[index] = &raw const call.scratch[1] as usize;
    }
    Verdict::PassWith { number: call.number, args }
}

/// A handler is about to begin, while which `blocked` is blocked as well.
pub(super) fn handler_begins(context: &mut Context, blocked: u64) {
    list(core::ptr::from_mut(context) as usize);
    let before = pretended();
    let during = (before | blocked) & never_blocked();
    if during == 0 {
        return;
    }
    context.set_mask(context.mask() | before);
    // SAFETY: the kernel has made the frame for the handler that begins.
    unsafe { *context.handler_end() = entry::handler_end() };
    word(word::PRETENDED_MASK).store(during as usize, Ordering::Relaxed);
}

/// Puts a frame in the list, and takes those of handlers that have ended out of it.
fn list(frame: usize) {
    let mut next = frame;
    for index in word::FRAMES {
        let listed = word(index).swap(next, Ordering::Relaxed);
        if listed == 0 || frame.wrapping_sub(listed) < NEAR_BYTES {
            return;
        }
        next = listed;
    }
}

/// Has the handlers that run, in which nothing was blocked until now, return by way of the library.
#[cold]
fn tell_handlers() {
    for index in word::FRAMES {
        let Some(place) = word(index).load(Ordering::Relaxed).checked_sub(size_of::<usize>()) else { return };
        if program::read::<usize>(place).is_ok_and(is_restorer) {
            let _ = program::write(place, &entry::handler_end());
        }
    }
}

/// Whether the program has said of a handler that it returns to `address`.
fn is_restorer(address: usize) -> bool {
    address != 0 && ENTRIES.iter().any(|entry| entry.load().restorer == address)
}

/// A handler has returned, by way of the library. Everything is blocked. What it leaves in the frame
/// is the program's mask.
///
/// # Safety
/// Called by the end of a handler, with the frame from which the kernel takes what it goes back to.
pub(crate) unsafe extern "C" fn handler_ends(context: *mut Context) {
    // SAFETY: the caller's promise.
    let context = unsafe { &mut *context };
    let mask = context.mask();
    context.set_mask(mask & !never_blocked());
    word(word::PRETENDED_MASK).store((mask & never_blocked()) as usize, Ordering::Relaxed);
    send_kept();
}
