//! mmap of files of the array.
//!
//! A shared mapping is composed of the members' chunks and followed ([`crate::mappings`]). A
//! private mapping is composed of MAP_FIXED pieces here, so that nothing is copied and the writes
//! of other processes show. If a member loses its memory, [`private`] makes copies of the pages
//! that show it. A mapping that cannot be composed (chunks smaller than a page, very many pieces, a
//! member out) is filled from a copy.

use super::OPEN;
use crate::array;
use crate::call::{Call, Verdict};
use crate::mappings::change;
use crate::mappings::compose::{self, Wish, kernel_map, reserve_again};
use crate::mappings::private;
use file::FileRef;
use linux_raw_sys::general::__NR_munmap;
use linux_raw_sys::general::{
    MAP_ANONYMOUS, MAP_DENYWRITE, MAP_EXECUTABLE, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_HUGETLB, MAP_NORESERVE, MAP_POPULATE,
    MAP_PRIVATE, MAP_SHARED, MAP_SHARED_VALIDATE, MAP_STACK, MAP_SYNC, MAP_TYPE, PROT_EXEC, PROT_READ, PROT_WRITE,
};
use namespace::Node;
use persist::PersistenceDomain;
use sys::high_fd::Raised;
use sys::raw::{check, syscall};
use sys::rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use sys::{AsRawFd, OsError};
use units::PAGE_BYTES;

/// The flags that mmap(2) has always taken of shared and private mappings: FIXED, ANONYMOUS, 32BIT,
/// ABOVE4G, 0x100 to 0x40000, and the size of huge pages; and the kind, and MAP_FIXED_NOREPLACE.
const TAKEN_FLAGS: u32 = 0xfc07_fff0 | MAP_TYPE | MAP_FIXED_NOREPLACE;
const PROTECTIONS: usize = (PROT_READ | PROT_WRITE | PROT_EXEC) as usize;

/// More pieces than this are not composed for a private mapping: the kernel allows a process 65,530
/// mappings in all.
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
    let (readable, writable) = (held.is_readable(), held.is_writable());
    // The kernel ignores what it does not know of protections, and of the flags of the older kinds
    // of mapping. What is mapped in the program's stead is mapped with what it has taken.
    let taken = if flags as u32 & MAP_TYPE == MAP_SHARED_VALIDATE { usize::MAX } else { TAKEN_FLAGS as usize };
    let wish = Wish { address, bytes, protection: protection & PROTECTIONS, flags: flags & taken, offset: offset as u64 };
    let checked = check_wish(call, readable, writable).and_then(|()| check_synchronous(&wish));
    Verdict::from_result(checked.and_then(|()| map(file, &wish, writable)))
}

fn is_shared(wish: &Wish) -> bool {
    let kind = wish.flags & MAP_TYPE as usize;
    kind == MAP_SHARED as usize || kind == MAP_SHARED_VALIDATE as usize
}

/// The flags that are taken of an ordinary mapping: beyond them the kernel is asked. MAP_FIXED,
/// MAP_DENYWRITE, MAP_EXECUTABLE, MAP_NORESERVE, MAP_POPULATE and MAP_STACK.
const ORDINARY_FLAGS: u32 = MAP_FIXED | MAP_DENYWRITE | MAP_EXECUTABLE | MAP_NORESERVE | MAP_POPULATE | MAP_STACK;
/// Mappings of at most so many bytes are ordinary.
const ORDINARY_BYTES: usize = 1 << 40;

/// Says what is wrong with a call: its arguments, or the descriptor's rights. An ordinary call is
/// seen to be right here; of any other the kernel says it.
fn check_wish(call: &Call, readable: bool, writable: bool) -> Result<(), OsError> {
    let [address, bytes, protection, flags, _, offset] = call.args;
    let (kind, others) = (flags as u32 & MAP_TYPE, flags & !(MAP_TYPE as usize));
    let is_ordinary = matches!(kind, MAP_SHARED | MAP_PRIVATE)
        && others & !(ORDINARY_FLAGS as usize) == 0
        && (1..=ORDINARY_BYTES).contains(&bytes)
        && offset.is_multiple_of(PAGE_BYTES)
        && offset <= ORDINARY_BYTES
        && address.is_multiple_of(PAGE_BYTES)
        && address <= ORDINARY_BYTES << 6
        && protection & !PROTECTIONS == 0
        && readable
        && (kind == MAP_PRIVATE || writable || protection & PROT_WRITE as usize == 0);
    if is_ordinary { Ok(()) } else { judged(call) }
}

/// The kernel's answer to a mapping of the anchor, made as the program wants it and taken away
/// again. A place that the program has fixed is judged apart, with a mapping of nothing that
/// replaces nothing.
pub(crate) fn judged(call: &Call) -> Result<(), OsError> {
    let [address, bytes, protection, flags, fd, offset] = call.args;
    let is_fixed = flags as u32 & (MAP_FIXED | MAP_FIXED_NOREPLACE) == MAP_FIXED;
    // What is put into memory beforehand, or kept there, is put there once.
    let flags = flags & !(MAP_POPULATE as usize);
    let attempt = |address: usize, protection: usize, flags: usize, fd: usize| {
        let made = kernel_map(address, bytes, protection, flags, fd, if fd == usize::MAX { 0 } else { offset as u64 })?;
        unmap(made, bytes)
    };
    let (asked_address, asked_flags) = if is_fixed { (0, flags & !(MAP_FIXED as usize)) } else { (address, flags) };
    let of_file = attempt(asked_address, protection, asked_flags, fd);
    let is_bad_range = bytes == 0 || !offset.is_multiple_of(PAGE_BYTES);
    // Huge pages of a file that has none are refused before anything else.
    let is_huge = flags as u32 & MAP_HUGETLB != 0;
    if is_fixed && !is_bad_range && !is_huge {
        let nothing = (MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | MAP_NORESERVE) as usize;
        match attempt(address, 0, nothing, usize::MAX) {
            Ok(()) | Err(OsError::EXIST) => {}
            Err(error) => return Err(error),
        }
    }
    of_file
}

fn unmap(address: usize, bytes: usize) -> Result<(), OsError> {
    // SAFETY: what was just mapped, and nobody else knows.
    check(unsafe { syscall(__NR_munmap as usize, [address, bytes, 0, 0, 0, 0]) }).map(|_| ())
}

/// MAP_SYNC promises that a store which has reached the medium stays. It is given if every member
/// gives it, and the kernel has given it for the anchor's.
fn check_synchronous(wish: &Wish) -> Result<(), OsError> {
    const WORDS: usize = (MAP_SHARED_VALIDATE | MAP_SYNC) as usize;
    if wish.flags & (MAP_TYPE | MAP_SYNC) as usize != WORDS {
        return Ok(());
    }
    let synchronous = |domain: &PersistenceDomain| matches!(domain, PersistenceDomain::Eadr | PersistenceDomain::Adr);
    if array::namespace()?.files().domains().iter().all(synchronous) { Ok(()) } else { Err(OsError::OPNOTSUPP) }
}

fn map(file: &FileRef, wish: &Wish, writable: bool) -> Result<usize, OsError> {
    if is_shared(wish) { compose::map(file, wish, writable) } else { map_private(file, wish) }
}

/// Makes a private mapping.
pub(crate) fn map_private(file: &FileRef, wish: &Wish) -> Result<usize, OsError> {
    let bytes = wish.bytes.checked_next_multiple_of(PAGE_BYTES).ok_or(OsError::NOMEM)?;
    if wish.flags as u32 & (MAP_FIXED | MAP_FIXED_NOREPLACE) == MAP_FIXED && wish.address.is_multiple_of(PAGE_BYTES) {
        // Other threads may use what is there: nothing may show in between, and no store may be lost.
        let show = |is_changed: &mut bool| show(file, wish, wish.address, bytes, is_changed);
        return private::replace(file, wish.address, bytes, wish.offset, show).map(|()| wish.address);
    }
    let flags = wish.flags & !(MAP_TYPE as usize) | (MAP_PRIVATE | MAP_ANONYMOUS) as usize;
    let reserved = kernel_map(wish.address, bytes, wish.protection, flags, usize::MAX, 0)?;
    show(file, wish, reserved, bytes, &mut true)?;
    private::begin(file, reserved, bytes, wish.offset).inspect_err(|_| {
        let _ = unmap(reserved, bytes);
    })?;
    Ok(reserved)
}

/// Makes addresses show a file privately. Each piece takes the place of what was there in one step
/// for other threads. `is_changed` becomes true when the addresses are not what they were any more;
/// if this fails then, nothing is there.
///
/// # Errors
/// Those of mmap(2), and of reading the file.
fn show(file: &FileRef, wish: &Wish, start: usize, bytes: usize, is_changed: &mut bool) -> Result<(), OsError> {
    let flags = wish.flags & !(MAP_TYPE | MAP_FIXED_NOREPLACE) as usize | (MAP_PRIVATE | MAP_FIXED) as usize;
    let composed = match compose(file, wish, start, bytes, flags, is_changed) {
        // The process has nearly as many areas of memory as there may be (vm.max_map_count). A copy
        // takes one.
        Err(OsError::NOMEM) => {
            *is_changed = true;
            reserve_again(start, bytes)?;
            Ok(false)
        }
        composed => composed,
    };
    let result = composed.and_then(|composed| {
        if composed {
            return Ok(());
        }
        // Some pieces may be there, of a member that has failed.
        show_copy(file, wish, start, bytes, flags)
    });
    if result.is_err() && *is_changed {
        let _ = unmap(start, bytes);
    }
    result
}

/// Maps pieces of the members' chunks at `start`, also behind the end of the file. False if that
/// cannot be.
fn compose(
    file: &FileRef,
    wish: &Wish,
    start: usize,
    bytes: usize,
    flags: usize,
    is_changed: &mut bool,
) -> Result<bool, OsError> {
    if file.piece_count(bytes as u64).is_none_or(|count| count > PIECE_COUNT_MAX) {
        return Ok(false);
    }
    // Behind the end of the file there is nothing to show; the kernel sends SIGBUS there, as for
    // any mapping.
    let mut at = start;
    let mut is_lost = false;
    let copied = file.is_copied();
    let composed = file.for_each_piece(copied, wish.offset, bytes as u64, |piece| {
        // Not opened anew: closing that would take the program's locks on the file away (fcntl(2)).
        let source = piece.backing.fd()?;
        let length = piece.bytes as usize;
        kernel_map(at, length, wish.protection, flags, source.as_raw_fd() as usize, piece.member_offset)
            .inspect_err(|&error| is_lost = !copied && file.is_lost_with(piece.slot, error))?;
        *is_changed = true;
        at += length;
        Ok(())
    });
    if is_lost { Ok(false) } else { composed }
}

/// Puts a copy in memory in the place of what is at `start`, in one step for other threads.
///
/// # Errors
/// Those of mmap(2), mremap(2) and of reading the file.
pub(crate) fn show_copy(file: &FileRef, wish: &Wish, start: usize, bytes: usize, flags: usize) -> Result<(), OsError> {
    map_copy(file, wish, start, bytes, flags).or_else(|_| private::move_copy(file, wish.offset, start, bytes, wish.protection))
}

/// Maps a copy in memory privately at `start`: pages that the program gives up (MADV_DONTNEED) show
/// the file again, as they do elsewhere.
fn map_copy(file: &FileRef, wish: &Wish, start: usize, bytes: usize, flags: usize) -> Result<(), OsError> {
    let shown = file.size().saturating_sub(wish.offset).min(bytes as u64) as usize;
    let copied = shown.next_multiple_of(PAGE_BYTES);
    if copied as u64 > sys::file_limit::bytes() {
        return Err(OsError::FBIG);
    }
    let copy = Raised::new(memfd_create("cxlraid-private-copy", MemfdFlags::CLOEXEC)?)?;
    ftruncate(&*copy, copied as u64)?;
    let fd = copy.as_raw_fd() as usize;
    if copied > 0 {
        let memory = kernel_map(0, copied, (PROT_READ | PROT_WRITE) as usize, MAP_SHARED as usize, fd, 0)?;
        // SAFETY: the memory is ours and that long. What lies behind the end of the file stays
        // zeros.
        let filled = unsafe { file.read_at(wish.offset, memory as *mut u8, shown) };
        unmap(memory, copied)?;
        filled?;
    }
    kernel_map(start, bytes, wish.protection, flags, fd, 0).map(|_| ())
}
