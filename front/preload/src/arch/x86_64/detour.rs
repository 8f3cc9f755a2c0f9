//! Detours: their bytes.
//!
//! Syscall User Dispatch (SUD) delivers a program's system calls to the library, as signals
//! (`crate::sud`). A detour is a piece of code by which such a call is made after all: it executes
//! `syscall` and jumps to the *continuation*, which is the address in the program of the
//! instruction after its `syscall`. A child starts without SUD. So in the detour of a call that
//! makes a child, the child first turns SUD on for itself: it *arms* itself.
//!
//! | offset | [`plain`] | [`child`] |
//! |---|---|---|
//! | 0 | `syscall` | `syscall` |
//! | 2 | `jmp [rip]`, to the continuation | `mov rcx, rax`; `jrcxz` to 13 (rax is 0 in the child); `jmp [rip + 19]`, to the continuation |
//! | 8 | the continuation's address | |
//! | 13 | | `lea r11, [rip + 12]`, where the continuation's address is stored; `jmp` to `cxlraid_arm_child` |
//! | 32 | | the continuation's address |
//!
//! A system call destroys rcx and r11, so a detour may use both. It keeps the flags, so a detour
//! must not change them: `jrcxz` does not. Every detour begins at a multiple of 16.

use super::bytes::{SYSCALL, jump};
use core::sync::atomic::{AtomicUsize, Ordering};

/// The length of a plain detour.
pub(crate) const PLAIN_BYTES: usize = 16;
/// The length of a child's detour.
pub(crate) const CHILD_BYTES: usize = 48;
/// Where the continuation's address lies in a plain detour, and in a child's.
const PLAIN_ADDRESS_AT: usize = 8;
const CHILD_ADDRESS_AT: usize = 32;
/// The byte after `syscall` in a plain detour; a child's has another.
const PLAIN_OPCODE: u8 = 0xff;

/// A plain detour that leads to `continuation`, before which lies the program's `syscall`.
pub(crate) fn plain(continuation: usize) -> [u8; PLAIN_BYTES] {
    let mut bytes = [0; PLAIN_BYTES];
    bytes[..2].copy_from_slice(&SYSCALL);
    bytes[2..8].copy_from_slice(&[PLAIN_OPCODE, 0x25, 0, 0, 0, 0]);
    bytes[PLAIN_ADDRESS_AT..].copy_from_slice(&continuation.to_le_bytes());
    bytes
}

/// The detour of a call that makes a child, for the place `address`. In the child it leads through
/// `cxlraid_arm_child` to `continuation`; None if that code is further than 2 GiB from `address`.
/// Bytes that are not used are breakpoints.
pub(crate) fn child(address: usize, continuation: usize) -> Option<[u8; CHILD_BYTES]> {
    let mut bytes = [0xcc; CHILD_BYTES];
    bytes[..2].copy_from_slice(&SYSCALL);
    // mov rcx, rax; jrcxz +6
    bytes[2..7].copy_from_slice(&[0x48, 0x89, 0xc1, 0xe3, 6]);
    // jmp [rip + 19]: 13 + 19 = 32
    bytes[7..13].copy_from_slice(&[0xff, 0x25, 19, 0, 0, 0]);
    // lea r11, [rip + 12]: 20 + 12 = 32
    bytes[13..20].copy_from_slice(&[0x4c, 0x8d, 0x1d, 12, 0, 0, 0]);
    bytes[20..25].copy_from_slice(&jump(address as u64 + 20, arm_child_address() as u64)?);
    bytes[CHILD_ADDRESS_AT..CHILD_ADDRESS_AT + 8].copy_from_slice(&continuation.to_le_bytes());
    Some(bytes)
}

/// `room` is the memory in which detours lie. For a thread whose instruction pointer is at `offset`
/// in it, just before or just after the `syscall` of a detour, it is the address in the program
/// before or after the program's `syscall`. None at every other place.
pub(crate) fn program_address(room: &[u8], offset: usize) -> Option<usize> {
    let (start, within) = (offset & !15, offset & 15);
    let detour = room.get(start..)?;
    if !detour.starts_with(&SYSCALL) || within != 0 && within != SYSCALL.len() {
        return None;
    }
    let at = if detour[2] == PLAIN_OPCODE { PLAIN_ADDRESS_AT } else { CHILD_ADDRESS_AT };
    let continuation = usize::from_le_bytes(detour.get(at..at + 8)?.try_into().ok()?);
    Some(continuation - SYSCALL.len() + within)
}

/// Start and length of the code whose system calls SUD lets through, the library's own.
/// `cxlraid_arm_child` reads it.
static IMAGE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Sets the range of code whose system calls SUD lets through in children. To be called before the
/// first detour of a child is made.
pub(crate) fn set_image(start: usize, bytes: usize) {
    IMAGE[0].store(start, Ordering::Relaxed);
    IMAGE[1].store(bytes, Ordering::Relaxed);
}

#[cfg(not(test))]
core::arch::global_asm!(
    ".p2align 4",
    ".hidden cxlraid_arm_child",
    ".globl cxlraid_arm_child",
    // Runs in the child. Registers are saved on the child's stack, which may be its parent's, below
    // the red zone. r11 holds the address at which the continuation's address is stored. The call
    // is prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, image, its length, no selector).
    // If it fails, the child goes on without SUD: the test tool sees its calls no more.
    "cxlraid_arm_child:",
    "lea rsp, [rsp - 128]",
    "pushfq",
    ".irp r, rax, rdi, rsi, rdx, r10, r8, r11",
    "push \\r",
    ".endr",
    "mov eax, 157",
    "mov edi, 59",
    "mov esi, 1",
    "mov rdx, [rip + {image}]",
    "mov r10, [rip + {image} + 8]",
    "xor r8d, r8d",
    "syscall",
    ".irp r, r11, r8, r10, rdx, rsi, rdi, rax",
    "pop \\r",
    ".endr",
    "popfq",
    "lea rsp, [rsp + 128]",
    "jmp qword ptr [r11]",
    image = sym IMAGE,
);

/// The address of the code by which a child arms itself.
#[cfg(not(test))]
fn arm_child_address() -> usize {
    unsafe extern "C" {
        fn cxlraid_arm_child();
    }
    cxlraid_arm_child as *const () as usize
}

/// Tests do not execute detours: any address near theirs serves.
#[cfg(test)]
const fn arm_child_address() -> usize {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_in_a_detour_is_found() {
        let mut room = [0; 64];
        room[..16].copy_from_slice(&plain(0x7654_3210_0002));
        room[16..].copy_from_slice(&child(0x10_0000, 0x1234_0002).unwrap());
        assert_eq!(program_address(&room, 0), Some(0x7654_3210_0000));
        assert_eq!(program_address(&room, 2), Some(0x7654_3210_0002));
        assert_eq!(program_address(&room, 16), Some(0x1234_0000));
        assert_eq!(program_address(&room, 18), Some(0x1234_0002));
        // In the child's part of the second detour.
        assert_eq!(program_address(&room, 29), None);
    }
}
