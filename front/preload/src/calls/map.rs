//! mmap of files of the array.
//!
//! A private or read-only mapping is composed of MAP_FIXED pieces of the members' chunks, so that nothing is copied and what others write shows;
//! where that cannot be (chunks smaller than a page, very many pieces, a member out) it is filled from a copy. A shared mapping that can be written to is
//! refused with ENODEV, as by a file system without mmap: stores would reach one member only.

use super::OPEN;
use crate::dispatch::{Call, Verdict};
use file::FileRef;
use linux_raw_sys::general::{__NR_mmap, __NR_mprotect, __NR_munmap};
use linux_raw_sys::general::{
    MAP_ANONYMOUS, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_PRIVATE, MAP_SHARED, MAP_SHARED_VALIDATE, MAP_TYPE,
};
use linux_raw_sys::general::{PROT_READ, PROT_WRITE};
use namespace::Node;
use sys::raw::{check, syscall};
use sys::rustix::fs::{Mode, OFlags, open};
use sys::{AsRawFd, OsError};
use units::PAGE_BYTES;

/// More pieces than this are not composed: the kernel allows a process 65,530 mappings in all.
const PIECE_COUNT_MAX: u64 = 4096;

/// What the program asked for.
struct Wish {
    address: usize,
    bytes: usize,
    protection: usize,
    flags: usize,
    offset: u64,
}

pub(crate) fn mmap(call: &mut Call) -> Verdict {
    let flags = call.args[3];
    if flags & MAP_ANONYMOUS as usize != 0 {
        return Verdict::Pass;
    }
    let Some(held) = OPEN.lookup(call.descriptor(4)) else { return Verdict::Pass };
    let Node::File(file) = held.node() else { return Verdict::Pass };
    let [address, bytes, protection, flags, _, offset] = call.args;
    let wish = Wish { address, bytes, protection, flags, offset: offset as u64 };
    Verdict::from_result(check_wish(&wish, held.is_readable(), held.is_writable()).and_then(|()| map(file, &wish)))
}

fn check_wish(wish: &Wish, readable: bool, writable: bool) -> Result<(), OsError> {
    if wish.bytes == 0 || !wish.offset.is_multiple_of(PAGE_BYTES as u64) {
        return Err(OsError::INVAL);
    }
    if !readable {
        return Err(OsError::ACCESS);
    }
    let kind = wish.flags & MAP_TYPE as usize;
    let shared = kind == MAP_SHARED as usize || kind == MAP_SHARED_VALIDATE as usize;
    if !shared && kind != MAP_PRIVATE as usize {
        return Err(OsError::INVAL);
    }
    if shared && wish.protection & PROT_WRITE as usize != 0 {
        return Err(if writable { OsError::NODEV } else { OsError::ACCESS });
    }
    Ok(())
}

fn map(file: &FileRef, wish: &Wish) -> Result<usize, OsError> {
    let bytes = wish.bytes.checked_next_multiple_of(PAGE_BYTES).ok_or(OsError::NOMEM)?;
    let place = (MAP_FIXED | MAP_FIXED_NOREPLACE) as usize;
    let kept = wish.flags & !(MAP_TYPE as usize);
    // Reserves the range, where the program wants it.
    let reserved =
        kernel_map(wish.address, bytes, wish.protection, kept | (MAP_PRIVATE | MAP_ANONYMOUS) as usize, usize::MAX, 0)?;
    let result = compose(file, wish, reserved, bytes, kept & !place)
        .and_then(|composed| if composed { Ok(()) } else { fill(file, wish, reserved, bytes) });
    match result {
        Ok(()) => Ok(reserved),
        Err(error) => {
            // SAFETY: the range was reserved above.
            let _ = unsafe { syscall(__NR_munmap as usize, [reserved, bytes, 0, 0, 0, 0]) };
            Err(error)
        }
    }
}

/// Replaces the reserved range by pieces of the members' chunks.
fn compose(file: &FileRef, wish: &Wish, reserved: usize, bytes: usize, kept: usize) -> Result<bool, OsError> {
    // Behind the end of the file there is nothing to show; the kernel sends SIGBUS there, as for any mapping.
    let mut at = reserved;
    file.for_each_piece(wish.offset, bytes as u64, PIECE_COUNT_MAX, |piece| {
        // Opened anew for reading only: so that mprotect cannot make a shared mapping writable.
        let path = heap::format!("/proc/self/fd/{}", piece.backing.fd().as_raw_fd());
        let source = open(path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let flags = kept | wish.flags & MAP_TYPE as usize | MAP_FIXED as usize;
        let length = piece.bytes as usize;
        kernel_map(at, length, wish.protection, flags, source.as_raw_fd() as usize, piece.member_offset)?;
        at += length;
        Ok(())
    })
}

/// Fills the reserved range with a copy.
fn fill(file: &FileRef, wish: &Wish, reserved: usize, bytes: usize) -> Result<(), OsError> {
    let protect = |protection: usize| {
        // SAFETY: the range was reserved by `map` and nobody else knows it yet.
        check(unsafe { syscall(__NR_mprotect as usize, [reserved, bytes, protection, 0, 0, 0]) })
    };
    protect((PROT_READ | PROT_WRITE) as usize)?;
    // SAFETY: the range is ours and writable.
    unsafe { file.read_at(wish.offset, reserved as *mut u8, bytes) }?;
    protect(wish.protection).map(|_| ())
}

fn kernel_map(address: usize, bytes: usize, protection: usize, flags: usize, fd: usize, offset: u64) -> Result<usize, OsError> {
    // SAFETY: a new mapping where the program asked for one, or inside the range reserved for it.
    check(unsafe { syscall(__NR_mmap as usize, [address, bytes, protection, flags, fd, offset as usize]) })
}
