//! System calls of the recorder's own, which the filter lets pass: it knows them by their address.

use std::arch::naked_asm;

/// `number`, six arguments. The instruction behind its `syscall` is what the filter sees.
///
/// # Safety
/// As the system call.
#[unsafe(naked)]
unsafe extern "C" fn enter(number: usize, arguments: *const usize) -> isize {
    naked_asm!(
        "mov rax, rdi",
        "mov r11, rsi",
        "mov rdi, [r11]",
        "mov rsi, [r11 + 8]",
        "mov rdx, [r11 + 16]",
        "mov r10, [r11 + 24]",
        "mov r8, [r11 + 32]",
        "mov r9, [r11 + 40]",
        "syscall",
        "ret",
    )
}

/// Where that function lies, and a length that holds all of it.
pub(super) fn place() -> (usize, usize) {
    (enter as *const () as usize, 64)
}

/// Calls the kernel.
pub(super) fn call(number: libc::c_long, arguments: [usize; 6]) -> isize {
    // SAFETY: passed on for a thread that was about to do the same call, or one that only asks.
    unsafe { enter(number as usize, arguments.as_ptr()) }
}
