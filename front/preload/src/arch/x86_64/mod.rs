//! x86-64: the `syscall` instruction, `jmp rel32`, the System V calling convention.

pub(crate) mod bytes;
pub(crate) mod context;
pub(crate) mod decode;
pub(crate) mod detour;
#[cfg(not(test))]
pub(crate) mod entry;
#[cfg(test)]
#[path = "entry_absent.rs"]
pub(crate) mod entry;
pub(crate) mod helper;
#[cfg(not(test))]
mod memory;

/// Stores a byte as it is, in one step that no other store can come between.
///
/// # Safety
/// `byte` may be stored to, or this runs inside a guard.
#[inline]
pub(crate) unsafe fn touch(byte: *mut u8) {
    // SAFETY: nothing but the byte is touched, and it keeps its value.
    unsafe { core::arch::asm!("lock or byte ptr [{0}], 0", in(reg) byte, options(nostack)) };
}

/// Whether valgrind runs these instructions: it knows a request by four rotations that leave a
/// register as it was, and answers in `rdx` (RUNNING_ON_VALGRIND of
/// <valgrind/valgrind.h>). A processor executes them to no effect.
pub(crate) fn is_under_valgrind() -> bool {
    const RUNNING_ON_VALGRIND: usize = 0x1001;
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let depth: usize;
    // SAFETY: `rdi` is 128 bits rotated in all and so as before; nothing but `rdx` and the flags
    // changes.
    unsafe {
        core::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inlateout("rdx") 0usize => depth,
            inout("rdi") 0usize => _,
            options(nostack)
        );
    }
    depth != 0
}
