//! Two things that need assembly: a bare thread, which is made by clone(2) without libc and has a
//! stack and a thread block of its own, and a call of a function on another stack.

use core::arch::asm;
use linux_raw_sys::general::{
    __NR_clone, CLONE_FILES, CLONE_FS, CLONE_SETTLS, CLONE_SIGHAND, CLONE_SYSVSEM, CLONE_THREAD, CLONE_VM,
};

const STACK_BYTES: usize = 128 << 10;
const PAGE_BYTES: usize = 4096;

/// Bytes of the memory that a bare thread needs. The stack lies at the bottom of that memory, and
/// the thread block with the thread pointer's own word at the top.
pub(crate) fn thread_bytes() -> usize {
    // The blocks of initial-exec libraries lie below the thread pointer; this library's block has
    // the same distance from the pointer in every thread. The page above the pointer is for what
    // the ABI puts there.
    STACK_BYTES + (sys::thread::distance() + PAGE_BYTES).next_multiple_of(PAGE_BYTES) + PAGE_BYTES
}

/// Makes a thread that runs `run` with the signal mask of the calling thread. `memory` is the
/// address of [`thread_bytes`] zeros. Returns what clone(2) returns to the calling thread.
///
/// # Safety
/// The memory is writable, and nobody else uses it as long as the process lives. `run` does not
/// return. Of thread-local storage `run` touches only the library's own block.
pub(crate) unsafe fn spawn(run: extern "C" fn() -> !, memory: usize) -> isize {
    let pointer = memory + thread_bytes() - PAGE_BYTES;
    let stack = memory + STACK_BYTES;
    let flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS;
    let result: isize;
    // SAFETY: the word at the thread pointer holds its own address (x86-64 TLS ABI). The new thread
    // starts on an empty stack of its own and calls a function that does not return.
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
/// The stack is writable and long enough for `run`, and nobody else uses it until `run` has
/// returned.
pub(crate) unsafe fn on_stack(top: usize, run: extern "C" fn(usize), argument: usize) {
    // SAFETY: by the ABI `run` preserves r12, which holds the old stack pointer. The caller
    // promises that the stack can be used.
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
