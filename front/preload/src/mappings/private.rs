//! Private mappings of array files, for when a member's memory is gone.
//!
//! The kernel shows the members' chunks and needs no help: what the program stores is its own. But
//! a page that the program has not stored to shows a member. If that member loses its memory, the
//! kernel sends SIGBUS although the array still has the bytes. Such pages then become the program's
//! own, with the bytes that the array has. A page that the program has stored to is never among
//! them, since it does not fault.
//!
//! Invariant: an entry is there as long as its mapping is. One that outlives it (the program has
//! other ways to replace memory than the calls that are served) does nothing: only memory that
//! /proc/self/maps shows as the private mapping of a file is replaced.

use super::change::refusal_of_remap;
use super::compose::Wish;
use super::fault::is_reachable;
use super::private_move::Move;
use super::{Mappings, PAGE, table};
use crate::alloc::map_anonymous;
use crate::call::{Call, Verdict};
use crate::calls::map::show_copy;
use crate::maps::Area;
use core::sync::atomic::{AtomicUsize, Ordering};
use file::FileRef;
use linux_raw_sys::general::{__NR_mprotect, __NR_mremap, __NR_munmap, MREMAP_DONTUNMAP, MREMAP_FIXED, MREMAP_MAYMOVE};
use linux_raw_sys::general::{MAP_FIXED, MAP_PRIVATE};
use sys::OsError;
use sys::raw::{check, syscall};

/// The most that is replaced for one fault.
const STEP_BYTES: usize = 1 << 20;

/// A private mapping that shows members.
pub(super) struct Private {
    start: usize,
    end: usize,
    /// The offset in the file that `start` shows.
    offset: u64,
    file: FileRef,
}

/// How many there are; read without the lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether there are any.
#[inline]
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Acquire) != 0
}

/// In a deputy: they are its process'.
pub(super) fn abandon() {
    COUNT.store(0, Ordering::Release);
}

/// Notes a mapping that was just made.
///
/// # Errors
/// `NOMEM`.
pub(crate) fn begin(file: &FileRef, start: usize, bytes: usize, offset: u64) -> Result<(), OsError> {
    let mut table = table();
    super::fault::prepare_stack()?;
    table.add_private(Private { start, end: start + bytes, offset, file: file.clone() });
    Ok(())
}

/// Makes and notes a private mapping in the place of what is at `start`, with the table's lock held:
/// `show` does, and says whether the addresses are not what they were any more.
///
/// # Errors
/// What `show` says, and `NOMEM`. What was there stays what it was if `show` has changed nothing.
pub(crate) fn replace(
    file: &FileRef,
    start: usize,
    bytes: usize,
    offset: u64,
    show: impl FnOnce(&mut bool) -> Result<(), OsError>,
) -> Result<(), OsError> {
    let end = start.checked_add(bytes).ok_or(OsError::NOMEM)?;
    table().composing(|table| {
        table.replace_by(start, end, show)?;
        table.note_private(file, start, end, offset);
        Ok(())
    })
}

/// `mremap` of one of them; None if it is none.
pub(super) fn mremap(call: &mut Call) -> Option<Verdict> {
    if !any() {
        return None;
    }
    let [address, old_bytes, new_bytes, flags, target, _] = call.args;
    let (old_pages, new_bytes) = (old_bytes.checked_next_multiple_of(PAGE)?, new_bytes.checked_next_multiple_of(PAGE)?);
    let old_end = address.checked_add(old_pages)?;
    let mut table = table();
    let found = table.privates.iter().find(|private| private.start <= address && address < private.end)?;
    let (file, offset, end) = (found.file.clone(), found.offset + (address - found.start) as u64, found.end);
    let is_fixed = flags & MREMAP_FIXED as usize != 0;
    let parts = move |file| Move { file, offset, end, address, old_bytes: old_pages, new_bytes, flags, target };
    // The kernel would enlarge a piece of a member's file, which goes on with what other pages of
    // the array's file hold.
    let grows = old_pages < new_bytes;
    // What a shared one has stored is to be followed first.
    let is_over_shared = is_fixed && !table.touching(target, target.saturating_add(new_bytes)).is_empty()
        || new_bytes < old_pages
            && !table.touching(address.saturating_add(new_bytes), address.saturating_add(old_pages)).is_empty();
    if (grows || is_over_shared) && old_pages != 0 && address.is_multiple_of(PAGE) {
        drop(table);
        let overlaps = target < address.wrapping_add(old_pages) && address < target.wrapping_add(new_bytes);
        let judged = match refusal_of_remap(call) {
            None if is_fixed && overlaps => Some(Verdict::error(OsError::INVAL)),
            refusal => refusal,
        };
        return Some(judged.unwrap_or_else(|| Verdict::from_result(parts(file).make())));
    }
    let result = call.kernel();
    if check(result) == Err(OsError::FAULT) {
        drop(table);
        return Some(Verdict::from_result(parts(file).make()));
    }
    if let Ok(start) = check(result) {
        if is_fixed {
            table.forget_private(start, start + new_bytes);
        }
        if flags & MREMAP_DONTUNMAP as usize == 0 {
            table.forget_private(address, old_end);
        }
        table.add_private(Private { start, end: start + new_bytes, offset, file });
    }
    Some(Verdict::Done(result))
}

/// What became of a page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mended {
    /// It is none of these, or the fault is right.
    No,
    /// Another thread was faster.
    Before,
    /// It is there.
    Now,
}

impl Mappings {
    /// Where the private mapping that holds `address` ends.
    pub(super) fn end_of_private(&self, address: usize) -> Option<usize> {
        self.privates.iter().find(|private| private.start <= address && address < private.end).map(|private| private.end)
    }

    /// The parts of private mappings in `start..end`.
    pub(super) fn private_parts(&self, start: usize, end: usize) -> impl Iterator<Item = (usize, usize)> {
        let parts = self.privates.iter().map(move |private| (private.start.max(start), private.end.min(end)));
        parts.filter(|(start, end)| start < end)
    }

    pub(super) fn touches_private(&self, start: usize, end: usize) -> bool {
        self.private_parts(start, end).next().is_some()
    }

    /// Notes a part of a mapping that was moved.
    pub(super) fn note_private(&mut self, file: &FileRef, start: usize, end: usize, offset: u64) {
        self.add_private(Private { start, end, offset, file: file.clone() });
    }

    fn add_private(&mut self, private: Private) {
        super::fault::reach(private.start, private.end);
        self.privates.push(private);
        COUNT.store(self.privates.len(), Ordering::Release);
    }

    pub(super) fn forget_private(&mut self, start: usize, end: usize) {
        let mut index = 0;
        while let Some(found) = self.privates.get(index) {
            if found.end <= start || end <= found.start {
                index += 1;
                continue;
            }
            let gone = self.privates.swap_remove(index);
            // What is left on either side does not touch the range, so it is not met again.
            if gone.start < start {
                self.privates.push(Private { end: start, file: gone.file.clone(), ..gone });
            }
            if end < gone.end {
                self.privates.push(Private { start: end, offset: gone.offset + (end - gone.start) as u64, ..gone });
            }
        }
        COUNT.store(self.privates.len(), Ordering::Release);
    }

    /// Makes the page at `address`, and those behind it that are lost as well, the program's own,
    /// if it is a page that shows a member. `stores`: the access was a store.
    pub(super) fn mend_private(&mut self, address: usize, stores: bool) -> Mended {
        let page = address / PAGE * PAGE;
        let Some(private) = self.privates.iter().find(|private| private.start <= page && page < private.end) else {
            return Mended::No;
        };
        let (offset, size) = (private.offset + (page - private.start) as u64, private.file.size());
        // Also where the file has grown while this thread waited for the lock, or another thread has
        // mended the page: what the program has stored to it since is not to be replaced. What is not
        // there although the file was that long before is lost.
        if is_reachable(address, stores) {
            return Mended::Before;
        }
        let Some(area) = Area::around(page) else { return Mended::No };
        // What the program has closed to itself (PROT_NONE) may hold what it has stored.
        if area.is_anonymous || area.is_shared || area.protection == 0 || offset >= size {
            return Mended::No;
        }
        let reach = (size - offset).next_multiple_of(PAGE as u64).min(STEP_BYTES as u64) as usize;
        let limit = (page + reach).min(private.end).min(area.addresses.end);
        let is_lost = |at: &usize| *at == page || !is_reachable(*at, false);
        let count = (page..limit).step_by(PAGE).take_while(is_lost).count();
        // Pages that the program gives up (MADV_DONTNEED) then show the copy again, and not zeros.
        let wish = Wish { address: page, bytes: count * PAGE, protection: area.protection, flags: 0, offset };
        let made = show_copy(&private.file, &wish, page, count * PAGE, (MAP_PRIVATE | MAP_FIXED) as usize);
        if made.is_ok() { Mended::Now } else { Mended::No }
    }
}

/// Puts a copy of what the array has, in anonymous memory, in the place of what is there, in one step
/// for other threads.
///
/// # Errors
/// Those of mmap(2), mremap(2) and of reading the file.
pub(crate) fn move_copy(file: &FileRef, offset: u64, page: usize, bytes: usize, protection: usize) -> Result<(), OsError> {
    let copy = map_anonymous(bytes)?;
    // SAFETY: the copy is ours and that long. What lies behind the end of the file stays zeros.
    let filled = unsafe { file.read_at(offset, copy as *mut u8, bytes) };
    let moved = filled.and_then(|_| {
        // SAFETY: our own copy, which takes the place of pages that nobody can use, or that the program
        // wants to be replaced.
        unsafe {
            check(syscall(__NR_mprotect as usize, [copy, bytes, protection, 0, 0, 0]))?;
            let flags = (MREMAP_MAYMOVE | MREMAP_FIXED) as usize;
            check(syscall(__NR_mremap as usize, [copy, bytes, bytes, flags, page, 0]))
        }
    });
    if moved.is_err() {
        // SAFETY: our own copy, which nobody knows.
        let _ = unsafe { syscall(__NR_munmap as usize, [copy, bytes, 0, 0, 0, 0]) };
    }
    moved.map(|_| ())
}
