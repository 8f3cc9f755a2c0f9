//! The thread's alternate stack (sigaltstack(2)) while a handler that runs on it is in the library.
//!
//! The kernel begins a handler with SA_ONSTACK at the top of the alternate stack, unless the stack
//! pointer lies within it. In the library the stack pointer is on the private stack, so the kernel
//! would take the alternate one for free, and put the next signal's frame upon the handler that has
//! made the call. So for the time of such a call the thread has no alternate stack
//! ([`put_aside`], [`give_back`]), and signals that arrive in the library, also those of faults in
//! guards, are noticed on the private stack.
//!
//! Between the two stacks every signal is blocked: the entry stub does so before it leaves the
//! alternate stack, and the mask is restored where the stub has come back to it. Where the program's
//! handlers may run, the alternate stack is as the program has set it.
//!
//! Calls that are made elsewhere pay nothing. When a handler begins on an alternate stack ([`notice`]),
//! the thread's private stack is no longer to be taken at once ([`word::STACK_AT_ONCE`]): the stub
//! looks where it is. The first call that is made elsewhere sets that right again. A handler that
//! goes on on another stack (swapcontext(3)), makes calls there and comes back is not seen as one on
//! the alternate stack after that.

use super::end_deferral;
use crate::arch::context::Context;
use crate::call::Call;
use crate::mask::set_mask;
use crate::thread::{inside, word};
use crate::uapi::{SS_AUTODISARM, SS_DISABLE};
use core::sync::atomic::{Ordering, compiler_fence};
use linux_raw_sys::general::__NR_sigaltstack;
use sys::raw::syscall;

/// The kernel's stack_t: start, flags, length.
type Stack = [usize; 3];

/// A handler of the program is about to begin, with this frame: notes whether it lies on the
/// alternate stack. With SS_AUTODISARM the kernel puts that stack aside by itself.
pub(super) fn notice(context: &Context) {
    let (start, flags, bytes) = context.alternate_stack();
    let at = core::ptr::from_ref(context) as usize;
    if at.wrapping_sub(start) >= bytes || flags & (SS_DISABLE | SS_AUTODISARM) != 0 {
        return;
    }
    word(word::ALTERNATE_START).store(start, Ordering::Relaxed);
    word(word::ALTERNATE_BYTES).store(bytes, Ordering::Relaxed);
    word(word::STACK_AT_ONCE).store(0, Ordering::Relaxed);
}

fn set(stack: &Stack) -> Stack {
    let mut before = [0, SS_DISABLE, 0];
    // SAFETY: three words each. The thread is on its private stack, and no code of the program runs
    // before the stack is given back.
    unsafe { syscall(__NR_sigaltstack as usize, [stack.as_ptr() as usize, before.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    before
}

/// Leaves the thread without its alternate stack, which is returned; None if it has none. The stub
/// has counted the thread as inside and blocked every signal, both of which ends here.
pub(crate) fn put_aside() -> Option<Stack> {
    let [start, flags, bytes] = set(&[0, SS_DISABLE, 0]);
    set_mask(word(word::ALTERNATE_MASK).load(Ordering::Relaxed) as u64);
    compiler_fence(Ordering::SeqCst);
    inside().fetch_sub(1, Ordering::Relaxed);
    let flags = flags as u32 as usize;
    (flags & SS_DISABLE == 0).then_some([start, flags & SS_AUTODISARM, bytes])
}

/// Gives the thread its alternate stack back, and has the stub restore the signal mask on that
/// stack. Until then every signal is blocked.
pub(crate) fn give_back(stack: Option<Stack>, call: &mut Call) {
    let Some(stack) = stack else { return };
    // A thread that is being stepped must not be while SIGTRAP is blocked (`leave_deferred`).
    inside().fetch_add(1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    if call.unblock == 0 {
        (call.unblock, call.mask) = (1, end_deferral());
    }
    set(&stack);
    compiler_fence(Ordering::SeqCst);
    inside().fetch_sub(1, Ordering::Relaxed);
}
