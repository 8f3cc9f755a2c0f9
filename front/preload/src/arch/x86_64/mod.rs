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
