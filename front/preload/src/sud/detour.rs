//! Where a system call that the kernel handed to us runs after all: an instruction in the library's
//! image, then a jump back.
//!
//! A detour changes no register and no memory of the program and has no state, so that calls which
//! return on another stack, twice or never are nothing special. It is made when its place is first
//! seen and stays. Where the call makes a child, the child arms itself before it goes back
//! (`arch::detour`).
//!
//! The detours lie in zeroed data of the library, since only one range of addresses is allowed to
//! make system calls.

use super::addresses::Addresses;
use crate::arch::detour::{CHILD_BYTES, PLAIN_BYTES, child, plain, program_address, set_image};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering};
use sys::rustix::mm::{MprotectFlags, mprotect};
use units::PAGE_BYTES;

const ROOM_BYTES: usize = 1 << 16;

#[repr(C, align(4096))]
struct Room(UnsafeCell<[u8; ROOM_BYTES]>);
// SAFETY: each byte is written once, by the thread that took it from USED.
unsafe impl Sync for Room {}

static ROOM: Room = Room(UnsafeCell::new([0; ROOM_BYTES]));
static USED: AtomicUsize = AtomicUsize::new(0);
/// By continuation, which is where the program goes on: the detour. Those that make children are
/// kept apart.
static DETOURS: [Addresses; 2] = [const { Addresses::new() }; 2];

const _: () = assert!(ROOM_BYTES.is_multiple_of(PAGE_BYTES));

/// Start and length of what may make system calls: from the library's first byte to the end of the
/// detours.
pub(super) fn image() -> (usize, usize) {
    let start = crate::own::address();
    (start, ROOM.0.get() as usize + ROOM_BYTES - start)
}

/// Makes the room executable.
pub(super) fn prepare() -> sys::Result<()> {
    let protection = MprotectFlags::READ | MprotectFlags::WRITE | MprotectFlags::EXEC;
    // SAFETY: whole pages of our own data, which stay readable and writable.
    unsafe { mprotect(ROOM.0.get().cast(), ROOM_BYTES, protection) }?;
    let (start, bytes) = image();
    set_image(start, bytes);
    DETOURS.iter().try_for_each(Addresses::prepare)
}

/// The detour of the system call that ends at `continuation`. None if there is no room left.
pub(super) fn around(continuation: usize, makes_child: bool) -> Option<usize> {
    let detours = &DETOURS[usize::from(makes_child)];
    if let Some(detour) = detours.get(continuation) {
        return Some(detour);
    }
    let bytes = if makes_child { CHILD_BYTES } else { PLAIN_BYTES };
    let offset = USED.fetch_add(bytes, Ordering::Relaxed);
    if offset + bytes > ROOM_BYTES {
        return None;
    }
    let detour = ROOM.0.get() as usize + offset;
    // SAFETY: these bytes of the room are ours alone since the addition, and nobody runs them
    // before they are published.
    let place = unsafe { core::slice::from_raw_parts_mut(detour as *mut u8, bytes) };
    if makes_child {
        place.copy_from_slice(&child(detour, continuation)?);
    } else {
        place.copy_from_slice(&plain(continuation));
    }
    detours.insert(continuation, detour).then_some(detour)
}

/// Where a thread at `address`, in a detour and next to its system call, is in the program.
pub(super) fn origin(address: usize) -> Option<usize> {
    let start = ROOM.0.get() as usize;
    if !(start..start + ROOM_BYTES).contains(&address) {
        return None;
    }
    // SAFETY: the room stays mapped; what is executed was written before.
    let room = unsafe { core::slice::from_raw_parts(start as *const u8, ROOM_BYTES) };
    program_address(room, address - start)
}
