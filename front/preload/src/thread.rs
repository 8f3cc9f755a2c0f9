//! The front end's words in the block every thread has ([`sys::thread`]).
//!
//! They start as zero and need no registration. A vfork child shares its parent's words; the parent
//! is stopped meanwhile.

use core::sync::atomic::{AtomicU32, AtomicUsize};
use sys::thread::block;

/// Index of each word in `ThreadBlock::front`.
pub(crate) mod word {
    /// Top of the thread's private stack; 0 until its first call. The entry stub reads and sets it.
    pub(crate) const PRIVATE_STACK_TOP: usize = 60;
    /// The same, as long as calls may take that stack at once: 0 as well while the thread may run on
    /// its alternate stack ([`crate::signals::alternate`]). The entry stub reads and sets it.
    pub(crate) const STACK_AT_ONCE: usize = 0;
    /// Start and length of the alternate stack on which a handler has begun; the length is 0 if the
    /// thread does not run there. The entry stub reads both.
    pub(crate) const ALTERNATE_START: usize = 61;
    pub(crate) const ALTERNATE_BYTES: usize = 62;
    /// The signal mask with which a call was made on the alternate stack. The entry stub sets it.
    pub(crate) const ALTERNATE_MASK: usize = 63;
    /// What waits until the thread leaves the library. The lowest bit: a signal was deferred, and
    /// every signal is blocked. Other bits: signals that cannot be blocked here and that somebody
    /// has sent, as in a mask of signals.
    pub(crate) const DEFERRED: usize = sys::thread::DEFERRED_WORD;
    /// The signal mask to restore then.
    pub(crate) const DEFERRED_MASK: usize = 2;
    /// SIGSEGV and SIGBUS bits of the mask the program believes it has (they are never really
    /// blocked).
    pub(crate) const PRETENDED_MASK: usize = 3;
    /// 1 once the private stack is in the list of stacks.
    pub(crate) const STACK_LISTED: usize = 7;
    /// From the making of a child that shares memory and thread block (vfork) until the parent is
    /// seen running again: the address of the instruction that makes it. Otherwise 0.
    pub(crate) const LENDING: usize = 8;
    /// [`PRETENDED_MASK`] as it was before that child.
    pub(crate) const MASK_BEFORE_LENDING: usize = 11;
    /// 1 in a thread whose descriptors are not those of the other threads (unshare, close_range).
    pub(crate) const APART: usize = 12;
    /// The arena from which this thread allocates, or 0 while it allocates from the heap
    /// ([`crate::arena`]).
    pub(crate) const ARENA: usize = 13;
    /// 1 if children that use this block have signal actions of their own.
    pub(crate) const ACTIONS_APART: usize = 16;
    /// 1 if a handler of the program may have run, or may run, between the lending and that
    /// instruction.
    pub(crate) const INTERRUPTED: usize = 15;
    /// The arena that this thread has mapped, kept for its next guest; 0 for none.
    pub(crate) const ARENA_KEPT: usize = 14;
    /// 1 if children that use this block have the descriptors of the process whose memory they
    /// share.
    pub(crate) const DESCRIPTORS_SHARED: usize = 18;
    /// 1 while the thread is single-stepped out of a trampoline or stub.
    pub(crate) const STEPPING: usize = 4;
    /// How many signals the thread is in the signal entry for, each of which has interrupted the one
    /// before it there. The entry sets it.
    pub(crate) const ARRIVING: usize = 21;
    /// 1 if a signal came meanwhile, was sent again and waits, while everything is blocked.
    pub(crate) const SIGNAL_WAITS: usize = 22;
    /// The signal mask to restore then.
    pub(crate) const WAITING_MASK: usize = 23;
    /// The signal frames (`struct ucontext`) of handlers that may run, the last one first; 0 for
    /// none. What lies there may be something else by now.
    pub(crate) const FRAMES: core::ops::Range<usize> = 24..28;
    /// Real-time signals that were deferred ([`crate::signals`]): what they tell, how many there are,
    /// and the thread that they came to.
    pub(crate) const KEPT_SIGNALS: usize = 30;
    pub(crate) const KEPT_SIGNALS_WORDS: usize = 28;
    pub(crate) const KEPT_SIGNALS_COUNT: usize = 28;
    pub(crate) const KEPT_SIGNALS_THREAD: usize = 29;
    /// Memory for an environment rebuilt for exec, kept for the next one: address and length.
    pub(crate) const EXEC_SCRATCH: usize = 5;
    pub(crate) const EXEC_SCRATCH_BYTES: usize = 6;
    /// Memory for the argument list of a script, kept for the next one: address and length.
    pub(crate) const ARGUMENT_SCRATCH: usize = 9;
    pub(crate) const ARGUMENT_SCRATCH_BYTES: usize = 10;
    /// Whether this thread is about to execute a program to which nothing of the array is to be
    /// left ([`crate::exec::window`]).
    pub(crate) const EXECUTING: usize = 19;
    /// How often the exec of this thread was given up and begun anew, since a signal had arrived.
    pub(crate) const EXECUTING_COUNT: usize = 20;
    /// How far the thread's counters lie from those that nobody reads ([`crate::counts`]).
    pub(crate) const COUNTERS: usize = 58;
    /// How many calls are left until one is timed.
    pub(crate) const CALLS_LEFT: usize = 59;
    /// 1 if a handler of the program has begun since a call that waits set this to 0.
    pub(crate) const HANDLED: usize = 17;
}

/// Word `index` of the calling thread.
#[inline(always)]
pub(crate) fn word(index: usize) -> &'static AtomicUsize {
    &block().front[index]
}

/// How deep the calling thread is inside the library.
#[inline(always)]
pub(crate) fn inside() -> &'static AtomicU32 {
    &block().inside
}
