//! Detours of system calls that Syscall User Dispatch handed to us (`crate::sud`): their bytes, and how a child arms itself.
//!
//! | offset | plain | of a call that makes a child |
//! |---|---|---|
//! | 0 | `syscall` | `syscall` |
//! | 2 | `jmp [rip]`, to the continuation | `mov rcx, rax`; `jrcxz` to 13; `jmp [rip + 19]`, to the continuation |
//! | 8 | the continuation | |
//! | 13 | | `lea r11, [rip + 12]`, the continuation's place; `jmp` to where the child arms itself |
//! | 32 | | the continuation |
//!
//! rcx and r11 are the kernel's to change in a system call; the flags stay. Every detour begins at a multiple of 16.

use super::bytes::{SYSCALL, jump};
use core::sync::atomic::{AtomicUsize, Ordering};

pub(crate) const PLAIN_BYTES: usize = 16;
pub(crate) const CHILD_BYTES: usize = 48;
/// Where the continuation lies in each form, told apart by the byte behind the system call.
const PLAIN_WORD: usize = 8;
const CHILD_WORD: usize = 32;
const PLAIN_OPCODE: u8 = 0xff;

/// A detour that leads to `continuation`.
pub(crate) fn plain(continuation: usize) -> [u8; PLAIN_BYTES] {
    let mut bytes = [0; PLAIN_BYTES];
    bytes[..2].copy_from_slice(&SYSCALL);
    bytes[2..8].copy_from_slice(&[PLAIN_OPCODE, 0x25, 0, 0, 0, 0]);
    bytes[PLAIN_WORD..].copy_from_slice(&continuation.to_le_bytes());
    bytes
}

/// The bytes of a detour of a call that makes a child, placed at `address`. The child is armed first.
pub(crate) fn child(address: usize, continuation: usize) -> Option<[u8; CHILD_BYTES]> {
    let mut bytes = [0xcc; CHILD_BYTES];
    bytes[..2].copy_from_slice(&SYSCALL);
    bytes[2..7].copy_from_slice(&[0x48, 0x89, 0xc1, 0xe3, 6]);
    bytes[7..13].copy_from_slice(&[0xff, 0x25, 19, 0, 0, 0]);
    bytes[13..20].copy_from_slice(&[0x4c, 0x8d, 0x1d, 12, 0, 0, 0]);
    bytes[20..25].copy_from_slice(&jump(address as u64 + 20, arm_child() as u64)?);
    bytes[CHILD_WORD..CHILD_WORD + 8].copy_from_slice(&continuation.to_le_bytes());
    Some(bytes)
}

/// Where in the program a thread is that is at `offset` of `room`, before or behind the system call of a detour.
pub(crate) fn offset_in(room: &[u8], offset: usize) -> Option<usize> {
    let (start, behind) = (offset & !15, offset & 15);
    let detour = room.get(start..)?;
    if !detour.starts_with(&SYSCALL) || behind != 0 && behind != SYSCALL.len() {
        return None;
    }
    let word = if detour[2] == PLAIN_OPCODE { PLAIN_WORD } else { CHILD_WORD };
    let continuation = usize::from_le_bytes(detour.get(word..word + 8)?.try_into().ok()?);
    Some(continuation - SYSCALL.len() + behind)
}

/// Start and length of what may make system calls, for [`arm_child`].
static IMAGE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Says what may make system calls in children.
pub(crate) fn set_image(start: usize, bytes: usize) {
    IMAGE[0].store(start, Ordering::Relaxed);
    IMAGE[1].store(bytes, Ordering::Relaxed);
}

#[cfg(not(test))]
core::arch::global_asm!(
    ".p2align 4",
    ".hidden cxlraid_arm_child",
    ".globl cxlraid_arm_child",
    // On the child's stack, which may be its parent's, below the red zone; r11 is the place of the continuation.
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

/// Where a child arms itself: prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, image, its length, no selector).
#[cfg(not(test))]
fn arm_child() -> usize {
    unsafe extern "C" {
        fn cxlraid_arm_child();
    }
    cxlraid_arm_child as *const () as usize
}

#[cfg(test)]
const fn arm_child() -> usize {
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
        assert_eq!(offset_in(&room, 0), Some(0x7654_3210_0000));
        assert_eq!(offset_in(&room, 2), Some(0x7654_3210_0002));
        assert_eq!(offset_in(&room, 16), Some(0x1234_0000));
        assert_eq!(offset_in(&room, 18), Some(0x1234_0002));
        assert_eq!(offset_in(&room, 29), None);
    }
}
