//! The block of memory every thread has: thread-local storage without libc's help.
//!
//! `#[thread_local]` is not stable, so the block is laid out in `.tbss` by hand and reached by the
//! initial-exec model, which is right for a program and for a preloaded library alike (both are
//! there when the static TLS area is laid out). The block starts as zeros and has no destructor:
//! what it names must be recoverable when the thread is gone. A child of vfork uses the block of
//! the thread that made it, which is stopped meanwhile.

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicU32, AtomicUsize};

/// What a thread knows about itself. All fields start as zero.
#[repr(C, align(64))]
pub struct ThreadBlock {
    /// The stack pointer to resume at when code in a guard faults; 0 outside a guard
    /// (`persist::fault`).
    pub fault_resume: AtomicUsize,
    /// The address that faulted, valid after a guard returned an error.
    pub fault_address: AtomicUsize,
    /// How deep this thread is inside the library; signals are deferred while it is not 0
    /// (front/preload).
    pub inside: AtomicU32,
    /// The number of the lane that this thread owns, plus one; 0 for none (core/intent).
    pub lane: AtomicU32,
    /// Words of front/preload, which has a name for each (`thread::word` there).
    pub front: [AtomicUsize; 64],
    /// How many reads of copies this thread does before it times one (core/array).
    pub reads_left: AtomicU32,
    /// What kind of access met the fault at `fault_address`, in a code of front/preload's.
    pub fault_kind: AtomicU32,
}

/// The index of the word of front/preload that is not 0 while a signal waits until this thread
/// leaves the library.
pub const DEFERRED_WORD: usize = 1;

const BLOCK_BYTES: usize = size_of::<ThreadBlock>();

global_asm!(
    ".section .tbss.cxlraid_thread_block,\"awT\",@nobits",
    ".p2align 6",
    ".hidden cxlraid_thread_block",
    ".globl cxlraid_thread_block",
    ".type cxlraid_thread_block, @object",
    ".size cxlraid_thread_block, {bytes}",
    "cxlraid_thread_block:",
    ".zero {bytes}",
    ".text",
    bytes = const BLOCK_BYTES,
);

/// The calling thread's block.
#[inline(always)]
pub fn block() -> &'static ThreadBlock {
    let address: usize;
    // SAFETY: the initial-exec access sequence of the x86-64 TLS ABI; it writes one register. The two
    // words that it reads never change while a thread runs, so the compiler may take one answer for
    // several questions.
    unsafe {
        asm!(
            "mov {address}, qword ptr [rip + cxlraid_thread_block@GOTTPOFF]",
            "add {address}, qword ptr fs:[0]",
            address = out(reg) address,
            options(pure, nomem, nostack)
        );
    }
    // SAFETY: `address` is this thread's block, laid out above as a zeroed ThreadBlock, valid as
    // long as the thread runs. Only this thread (and its signal handlers) uses it, through atomics.
    unsafe { &*(address as *const ThreadBlock) }
}

/// How far below the thread pointer the block lies: the same in every thread.
#[must_use]
pub fn distance() -> usize {
    let pointer: usize;
    // SAFETY: the first word at the thread pointer is the pointer itself (x86-64 TLS ABI).
    unsafe { asm!("mov {pointer}, qword ptr fs:[0]", pointer = out(reg) pointer, options(nostack, readonly)) };
    pointer - core::ptr::from_ref(block()) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering;

    #[test]
    fn each_thread_has_its_own_zeroed_block() {
        block().lane.store(7, Ordering::Relaxed);
        let other = std::thread::spawn(|| (block() as *const _ as usize, block().lane.load(Ordering::Relaxed)));
        let (address, lane) = other.join().unwrap();
        assert_eq!(lane, 0);
        assert_ne!(address, block() as *const _ as usize);
        assert_eq!(block().lane.load(Ordering::Relaxed), 7);
        assert_eq!(address % 64, 0);
    }
}
