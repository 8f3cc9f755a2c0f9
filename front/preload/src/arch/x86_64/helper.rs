//! A bare thread: clone(2) without libc, with a stack and a thread block of its own. And a function run on another stack.

use core::arch::asm;
use linux_raw_sys::general::{
    __NR_clone, CLONE_FILES, CLONE_FS, CLONE_SETTLS, CLONE_SIGHAND, CLONE_SYSVSEM, CLONE_THREAD, CLONE_VM,
};

const STACK_BYTES: usize = 128 << 10;
const PAGE_BYTES: usize = 4096;

/// What such a thread needs: below, its stack; above, its thread block and the word that names it.
pub(crate) fn thread_bytes() -> usize {
    // The blocks of initial-exec libraries lie below the thread pointer, ours at the same distance in every thread. A page above the pointer is for what
    // the ABI puts there.
    STACK_BYTES + (sys::thread::distance() + PAGE_BYTES).next_multiple_of(PAGE_BYTES) + PAGE_BYTES
}

/// Makes a thread that runs `run` with the signal mask of its maker, in `memory` of [`thread_bytes`] zeros. Returns what clone(2) does.
///
/// # Safety
/// The memory is writable and the thread's for good; `run` does not return and touches no other thread-local storage than the library's own block.
pub(crate) unsafe fn spawn(run: extern "C" fn() -> !, memory: usize) -> isize {
    let pointer = memory + thread_bytes() - PAGE_BYTES;
    let stack = memory + STACK_BYTES;
    let flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS;
    let result: isize;
    // SAFETY: the word at the thread pointer names itself (x86-64 TLS ABI); the new thread starts on a stack of its own with nothing on it,
    // and calls a function that does not return.
    unsafe {
        (pointer as *mut usize).write(pointer);
        asm!(
            "syscall",
            "test rax, rax",
            "jne 2f",
            "xor ebp, ebp",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") __NR_clone as isize => result,
            in("rdi") flags as usize, in("rsi") stack, in("rdx") 0usize, in("r10") 0usize, in("r8") pointer,
            in("r12") run as usize,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    result
}

/// Calls `run` with `argument` on the stack that ends at `top`, a multiple of 16.
///
/// # Safety
/// The stack is writable, long enough, and nobody else's meanwhile.
pub(crate) unsafe fn on_stack(top: usize, run: extern "C" fn(usize), argument: usize) {
    // SAFETY: r12 outlives the call by the ABI; the stack is the caller's promise.
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {run}",
            "mov rsp, r12",
            top = in(reg) top,
            run = in(reg) run as usize,
            in("rdi") argument,
            out("r12") _,
            clobber_abi("C"),
        );
    }
}
