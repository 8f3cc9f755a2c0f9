//! The system call instruction itself, for numbers and arguments that are only passed on.

use core::arch::asm;

/// Calls the kernel: number `nr`, up to six arguments. Returns what the kernel returned;
/// `-4095..=-1` are errors.
///
/// # Safety
/// The arguments must be what the kernel expects of `nr`; the caller upholds everything that call
/// promises or destroys.
#[inline]
pub unsafe fn syscall(nr: usize, args: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: the x86-64 Linux convention: rcx and r11 are clobbered, memory may be written by the
    // kernel; what the call does is the caller's promise.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") nr as isize => ret,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    ret
}

/// Splits a raw return value into result and error.
#[inline]
pub fn check(ret: isize) -> crate::Result<usize> {
    if (-4095..0).contains(&ret) { Err(crate::OsError::from_raw_os_error(-ret as i32)) } else { Ok(ret as usize) }
}
