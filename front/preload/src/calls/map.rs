//! mmap of files of the array.
//!
//! A shared mapping is composed of the members' chunks and followed ([`crate::mappings`]). A private one is composed of MAP_FIXED pieces here, so that
//! nothing is copied and what others write shows; of pages whose member loses its memory [`private`] makes copies. Where that cannot be (chunks smaller than a page, very many pieces, a member out), it is filled from a
//! copy.

use super::OPEN;
use crate::array;
use crate::dispatch::{Call, Verdict};
use crate::mappings::change;
use crate::mappings::compose::{self, Wish};
use crate::mappings::private;
use file::FileRef;
use linux_raw_sys::general::{__NR_mmap, __NR_mprotect, __NR_munmap};
use linux_raw_sys::general::{
    MAP_ANONYMOUS, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_PRIVATE, MAP_SHARED, MAP_SHARED_VALIDATE, MAP_SYNC, MAP_TYPE,
};
use linux_raw_sys::general::{PROT_READ, PROT_WRITE};
use namespace::Node;
use persist::PersistenceDomain;
use sys::raw::{check, syscall};
use sys::{AsRawFd, OsError};
use units::PAGE_BYTES;

/// The flags that mmap(2) has always taken: FIXED, ANONYMOUS, 32BIT, ABOVE4G, 0x100 to 0x40000, and the size of huge pages.
const LEGACY_FLAGS: u32 = 0xfc07_fff0;

/// More pieces than this are not composed for a private mapping: the kernel allows a process 65,530 mappings in all.
const PIECE_COUNT_MAX: u64 = 4096;

pub(crate) fn mmap(call: &mut Call) -> Verdict {
    let flags = call.args[3];
    let held = if flags & MAP_ANONYMOUS as usize != 0 { None } else { OPEN.lookup(call.descriptor(4)) };
    let Some(held) = held else { return change::replaced(call).unwrap_or(Verdict::Pass) };
    let file = match held.node() {
        Node::File(file) => file,
        Node::Lost => return Verdict::error(array::lost()),
        _ => return Verdict::Pass,
    };
    let [address, bytes, protection, flags, _, offset] = call.args;
    let wish = Wish { address, bytes, protection, flags, offset: offset as u64 };
    let (readable, writable) = (held.is_readable(), held.is_writable());
    Verdict::from_result(check_wish(&wish, readable, writable).and_then(|()| map(file, &wish, writable)))
}

fn is_shared(wish: &Wish) -> bool {
    let kind = wish.flags & MAP_TYPE as usize;
    kind == MAP_SHARED as usize || kind == MAP_SHARED_VALIDATE as usize
}

fn check_wish(wish: &Wish, readable: bool, writable: bool) -> Result<(), OsError> {
    if wish.bytes == 0 || !wish.offset.is_multiple_of(PAGE_BYTES as u64) {
        return Err(OsError::INVAL);
    }
    let pages = wish.bytes.checked_next_multiple_of(PAGE_BYTES).ok_or(OsError::NOMEM)?;
    wish.offset.checked_add(pages as u64).filter(|&end| end <= i64::MAX as u64).ok_or(OsError::OVERFLOW)?;
    if !readable {
        return Err(OsError::ACCESS);
    }
    if !is_shared(wish) && wish.flags & MAP_TYPE as usize != MAP_PRIVATE as usize {
        return Err(OsError::INVAL);
    }
    if wish.flags & MAP_TYPE as usize == MAP_SHARED_VALIDATE as usize {
        check_validated(wish)?;
    }
    if is_shared(wish) && wish.protection & PROT_WRITE as usize != 0 && !writable {
        return Err(OsError::ACCESS);
    }
    Ok(())
}

/// MAP_SHARED_VALIDATE: no flag is ignored. MAP_SYNC is what all members give or it is not given.
fn check_validated(wish: &Wish) -> Result<(), OsError> {
    let unknown = wish.flags & !(LEGACY_FLAGS | MAP_TYPE | MAP_FIXED_NOREPLACE | MAP_SYNC) as usize;
    let synchronous = |domain: &PersistenceDomain| matches!(domain, PersistenceDomain::Eadr | PersistenceDomain::Adr);
    let given = wish.flags & MAP_SYNC as usize == 0 || crate::array::namespace()?.files().domains().iter().all(synchronous);
    if unknown == 0 && given { Ok(()) } else { Err(OsError::OPNOTSUPP) }
}

fn map(file: &FileRef, wish: &Wish, writable: bool) -> Result<usize, OsError> {
    if is_shared(wish) {
        return compose::map(file, wish, writable);
    }
    let bytes = wish.bytes.checked_next_multiple_of(PAGE_BYTES).ok_or(OsError::NOMEM)?;
    let place = (MAP_FIXED | MAP_FIXED_NOREPLACE) as usize;
    let kept = wish.flags & !(MAP_TYPE as usize);
    // Reserves the range, where the program wants it.
    let reserved = change::make_way(wish, bytes, || {
        kernel_map(wish.address, bytes, wish.protection, kept | (MAP_PRIVATE | MAP_ANONYMOUS) as usize, usize::MAX, 0)
    })?;
    let result = compose(file, wish, reserved, bytes, kept & !place).and_then(|composed| {
        if composed {
            return private::begin(file, reserved, bytes, wish.offset);
        }
        // Some pieces may be there, of a member that has failed.
        let flags = kept & !place | (MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED) as usize;
        kernel_map(reserved, bytes, wish.protection, flags, usize::MAX, 0)?;
        fill(file, wish, reserved, bytes)
    });
    match result {
        Ok(()) => Ok(reserved),
        Err(error) => {
            // SAFETY: the range was reserved above.
            let _ = unsafe { syscall(__NR_munmap as usize, [reserved, bytes, 0, 0, 0, 0]) };
            Err(error)
        }
    }
}

/// Replaces the reserved range by pieces of the members' chunks. False if that cannot be.
fn compose(file: &FileRef, wish: &Wish, reserved: usize, bytes: usize, kept: usize) -> Result<bool, OsError> {
    if file.piece_count(bytes as u64).is_none_or(|count| count > PIECE_COUNT_MAX) {
        return Ok(false);
    }
    // Behind the end of the file there is nothing to show; the kernel sends SIGBUS there, as for any mapping.
    let mut at = reserved;
    let mut is_lost = false;
    let copied = file.is_copied();
    let composed = file.for_each_piece(copied, wish.offset, bytes as u64, |piece| {
        // Not opened anew: closing that would take the program's locks on the file away (fcntl(2)).
        let source = piece.backing.fd();
        let flags = kept | (MAP_PRIVATE | MAP_FIXED) as usize;
        let length = piece.bytes as usize;
        kernel_map(at, length, wish.protection, flags, source.as_raw_fd() as usize, piece.member_offset)
            .inspect_err(|&error| is_lost = !copied && file.is_lost_with(piece.slot, error))?;
        at += length;
        Ok(())
    });
    if is_lost { Ok(false) } else { composed }
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
