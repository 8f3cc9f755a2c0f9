//! What munmap, mmap over us, mprotect, mremap and msync do to mappings of array files.

use super::compose::{Wish, reserve};
use super::{Mapping, PAGE, any, private, table};
use crate::dispatch::{Call, Verdict};
use linux_raw_sys::general::{__NR_munmap, MAP_FIXED, MAP_FIXED_NOREPLACE, PROT_READ, PROT_WRITE};
use sys::OsError;
use sys::raw::{check, syscall};

const MREMAP_MAYMOVE: usize = 1;
const MREMAP_FIXED: usize = 2;
const MREMAP_DONTUNMAP: usize = 4;
const MS_ASYNC: usize = 1;
const MS_INVALIDATE: usize = 2;
const MS_SYNC: usize = 4;

/// The pages of a range the program named, if it is one.
pub(super) fn pages(address: usize, bytes: usize) -> Option<(usize, usize)> {
    let end = address.checked_add(bytes.checked_next_multiple_of(PAGE)?)?;
    (address.is_multiple_of(PAGE) && address < end).then_some((address, end))
}

/// `munmap`.
pub(crate) fn munmap(call: &mut Call) -> Verdict {
    let Some((start, end)) = pages(call.args[0], call.args[1]) else { return Verdict::Pass };
    private::forget(start, end);
    if !any() {
        return Verdict::Pass;
    }
    let mut table = table();
    if table.touching(start, end).is_empty() {
        return Verdict::Pass;
    }
    Verdict::from_result(table.replace(start, end, || check(call.kernel())))
}

/// A mapping of something else over ours (mmap with MAP_FIXED).
pub(crate) fn replaced(call: &Call) -> Option<Verdict> {
    if call.args[3] & MAP_FIXED as usize == 0 {
        return None;
    }
    let (start, end) = pages(call.args[0], call.args[1])?;
    private::forget(start, end);
    if !any() {
        return None;
    }
    let mut table = table();
    if table.touching(start, end).is_empty() {
        return None;
    }
    Some(Verdict::from_result(table.replace(start, end, || check(call.kernel()))))
}

/// Makes a mapping of ours that is not followed, which may be put over one that is.
pub(crate) fn make_way(wish: &Wish, bytes: usize, make: impl FnOnce() -> Result<usize, OsError>) -> Result<usize, OsError> {
    if wish.flags & MAP_FIXED as usize == 0 || !wish.address.is_multiple_of(PAGE) {
        return make();
    }
    private::forget(wish.address, wish.address.saturating_add(bytes));
    if !any() {
        return make();
    }
    table().replace(wish.address, wish.address.saturating_add(bytes), make)
}

/// `mprotect`.
pub(crate) fn mprotect(call: &mut Call) -> Verdict {
    // READ, WRITE, EXEC and SEM: anything else the kernel refuses for a mapping of a file.
    const KNOWN: usize = 0xf;
    let Some((start, end)) = pages(call.args[0], call.args[1]).filter(|_| any()) else { return Verdict::Pass };
    let mut table = table();
    if table.touching(start, end).is_empty() || call.args[2] & !KNOWN != 0 {
        return Verdict::Pass;
    }
    table.split(start);
    table.split(end);
    let protection = call.args[2];
    let range = table.touching(start, end);
    if protection & PROT_WRITE as usize != 0 {
        if table.list[range.clone()].iter().any(|mapping| !mapping.may_write) {
            return Verdict::error(OsError::ACCESS);
        }
        for index in range.clone() {
            let mut mapping = table.list.remove(index);
            let result = make_writable(&mut table, &mut mapping);
            table.list.insert(index, mapping);
            if let Err(error) = result {
                return Verdict::error(error);
            }
        }
    }
    // Stores that are kept out for a reason of ours stay so at every instant.
    let mut result = 0;
    for index in range {
        let mut mapping = table.list.remove(index);
        let before = core::mem::replace(&mut mapping.protection, protection);
        if mapping.rights.is_some() {
            table.revoke(&mut mapping);
        }
        let allowed = if mapping.sealed { protection & PROT_READ as usize } else { mapping.shown_protection() };
        // SAFETY: the program's call on its own mapping, with no more rights than it asks for.
        let made = unsafe { syscall(call.number, [mapping.start, mapping.end - mapping.start, allowed, call.args[3], 0, 0]) };
        if made < 0 {
            mapping.protection = before;
        }
        result = if result == 0 { made } else { result };
        table.list.insert(index, mapping);
    }
    let others = table.call_on_others(call, start, end);
    Verdict::Done(if result == 0 { others } else { result })
}

/// Prepares a mapping that could not be stored to until now.
fn make_writable(table: &mut super::Mappings, mapping: &mut Mapping) -> Result<(), OsError> {
    if mapping.followed {
        return Ok(());
    }
    while let Err(error) = table.begin_following(mapping) {
        // A shared copy was made meanwhile: it is shown first.
        if error != OsError::AGAIN || mapping.copied {
            return Err(error);
        }
        table.follow_size(mapping)?;
    }
    if mapping.followed && mapping.composed > mapping.start {
        return table.watch(mapping, mapping.start, mapping.composed - mapping.start);
    }
    Ok(())
}

/// `remap_file_pages`: pages of a mapping show others of its file. As in the kernel since Linux 4.0, it is a mapping over the old one.
pub(crate) fn remap_pages(call: &mut Call) -> Verdict {
    if !any() {
        return Verdict::Pass;
    }
    let [start, bytes, protection, page, ..] = call.args;
    let (start, bytes) = (start / PAGE * PAGE, bytes / PAGE * PAGE);
    let end = start.wrapping_add(bytes);
    let mut table = table();
    if end <= start || table.touching(start, end).is_empty() {
        return Verdict::Pass;
    }
    let last = page.checked_add(bytes / PAGE).and_then(|last| last.checked_mul(PAGE));
    match (table.at(start), last) {
        (Some(index), Some(_)) if protection == 0 && end <= table.list[index].end => {
            Verdict::from_result(table.show_elsewhere(index, start, end, (page * PAGE) as u64).map(|()| 0))
        }
        _ => Verdict::error(OsError::INVAL),
    }
}

/// `msync`.
pub(crate) fn msync(call: &mut Call) -> Verdict {
    let Some((start, end)) = pages(call.args[0], call.args[1]).filter(|_| any()) else { return Verdict::Pass };
    let flags = call.args[2];
    let mut table = table();
    let touched = table.touching(start, end);
    if touched.is_empty() || flags & (MS_SYNC | MS_ASYNC) == 0 {
        return Verdict::Pass;
    }
    if flags & !(MS_SYNC | MS_ASYNC | MS_INVALIDATE) != 0 || flags & MS_SYNC != 0 && flags & MS_ASYNC != 0 {
        return Verdict::error(OsError::INVAL);
    }
    let mut result = Ok(());
    let mut durable = None;
    for index in touched {
        let mut mapping = table.list.remove(index);
        let (from, to) = mapping.part(start, end);
        if mapping.followed {
            result = result.and(table.follow_stored(&mut mapping, from, to));
        }
        if flags & MS_SYNC != 0 && durable != Some(mapping.file.attribute()) {
            durable = Some(mapping.file.attribute());
            result = result.and(mapping.file.sync());
        }
        table.list.insert(index, mapping);
    }
    // What lies between is the kernel's to synchronise, or to say that it is not there.
    let answer = table.call_on_others(call, start, end);
    match result {
        Err(error) if answer == 0 => Verdict::error(error),
        _ => Verdict::Done(answer),
    }
}

/// `mremap`.
pub(crate) fn mremap(call: &mut Call) -> Verdict {
    if let Some(verdict) = private::mremap(call) {
        return verdict;
    }
    if !any() {
        return Verdict::Pass;
    }
    let [address, old_bytes, new_bytes, flags, target, _] = call.args;
    let mut table = table();
    let fixed = flags & MREMAP_FIXED != 0;
    let Some(index) = table.at(address) else {
        // Not ours; but it may be put over ours.
        if let Some((start, end)) = pages(target, new_bytes).filter(|_| fixed)
            && !table.touching(start, end).is_empty()
        {
            return Verdict::from_result(table.replace(start, end, || check(call.kernel())));
        }
        return Verdict::Pass;
    };
    let known = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
    let may_move = flags & MREMAP_MAYMOVE != 0;
    // As in the kernel, what cannot be rounded up is nothing.
    let round = |bytes: usize| bytes.wrapping_add(PAGE - 1) / PAGE * PAGE;
    let (old_bytes, new_bytes) = (round(old_bytes), round(new_bytes));
    let keeps = flags & MREMAP_DONTUNMAP != 0;
    if !address.is_multiple_of(PAGE)
        || keeps && (!may_move || old_bytes != new_bytes)
        || new_bytes == 0
        || flags & !known != 0
        || fixed && (!may_move || !target.is_multiple_of(PAGE))
    {
        return Verdict::error(OsError::INVAL);
    }
    // No program has memory from here on (with four levels of page tables).
    const END: usize = (1 << 47) - PAGE;
    if fixed && (new_bytes > END || target > END - new_bytes) {
        return Verdict::error(OsError::INVAL);
    }
    let wish = Remap { address, old_bytes, new_bytes, target: fixed.then_some(target), may_move, keep: keeps };
    Verdict::from_result(table.remap(index, &wish))
}

/// What mremap(2) was asked for, whole pages.
struct Remap {
    address: usize,
    old_bytes: usize,
    new_bytes: usize,
    target: Option<usize>,
    may_move: bool,
    keep: bool,
}

impl super::Mappings {
    /// Makes a call on a range of addresses (arguments 0 and 1) for what of it is not ours. Returns the first error, or 0.
    pub(super) fn call_on_others(&self, call: &Call, start: usize, end: usize) -> isize {
        let (mut at, mut first) = (start, 0);
        while at < end {
            if let Some(index) = self.at(at) {
                at = self.list[index].end;
                continue;
            }
            let stop = self.touching(at, end).next().map_or(end, |index| self.list[index].start);
            let [.., third, _, _, _] = call.args;
            // SAFETY: the program's call on the program's own memory.
            let result = unsafe { syscall(call.number, [at, stop - at, third, 0, 0, 0]) };
            first = if first == 0 { result } else { first };
            at = stop;
        }
        first
    }

    fn remap(&mut self, index: usize, wish: &Remap) -> Result<usize, OsError> {
        let Remap { address, old_bytes, new_bytes, .. } = *wish;
        let old_end = address.checked_add(old_bytes).ok_or(OsError::INVAL)?;
        // As for the kernel: the old range lies within one mapping, but where its end is only given back.
        let is_shortened = !wish.keep && (new_bytes < old_bytes || new_bytes == old_bytes && wish.target.is_none());
        if old_end > self.list[index].end && !is_shortened {
            return Err(OsError::FAULT);
        }
        if wish.target.is_none() && !wish.keep && old_bytes != 0 {
            if new_bytes <= old_bytes {
                self.unmap(address + new_bytes, old_end)?;
                return Ok(address);
            }
            if old_end == self.list[index].end && self.grow(index, old_end, address + new_bytes).is_ok() {
                return Ok(address);
            }
            if !wish.may_move {
                return Err(OsError::NOMEM);
            }
        }
        if is_shortened && let Some(target) = wish.target {
            let target_end = target.checked_add(new_bytes).ok_or(OsError::INVAL)?;
            if target < old_end && address < target_end {
                return Err(OsError::INVAL);
            }
            self.unmap(address + new_bytes, old_end)?;
            let index = self.at(address).ok_or(OsError::FAULT)?;
            return self.transfer(index, &Remap { old_bytes: new_bytes, ..*wish });
        }
        self.transfer(index, wish)
    }

    fn unmap(&mut self, start: usize, end: usize) -> Result<(), OsError> {
        if start >= end {
            return Ok(());
        }
        // SAFETY: the program gives these addresses back.
        self.replace(start, end, || check(unsafe { syscall(__NR_munmap as usize, [start, end - start, 0, 0, 0, 0]) }).map(|_| ()))
    }

    /// Grows mapping `index` where it is, if what follows is free.
    fn grow(&mut self, index: usize, end: usize, new_end: usize) -> Result<(), OsError> {
        reserve(end, new_end - end, MAP_FIXED_NOREPLACE as usize)?;
        let old = &self.list[index];
        let more = Mapping { start: end, end: new_end, composed: end, ..old.again(old.end_offset()) };
        if let Err(error) = self.establish(more) {
            // SAFETY: the range was reserved above, and the program does not know it.
            let _ = unsafe { syscall(__NR_munmap as usize, [end, new_end - end, 0, 0, 0, 0]) };
            return Err(error);
        }
        self.join(index);
        Ok(())
    }

    /// Makes one mapping of `index` and the next, which continues it, if the first is composed to its end.
    fn join(&mut self, index: usize) {
        let (one, two) = (&self.list[index], &self.list[index + 1]);
        let alike = one.followed == two.followed
            && one.stored == two.stored
            && one.copied == two.copied
            && one.dont_fork == two.dont_fork
            && one.wants_huge == two.wants_huge
            && one.rights.is_none()
            && two.rights.is_none();
        if alike && (one.composed == one.end || two.composed == two.start) {
            let (end, composed) = (two.end, two.composed);
            let one = &mut self.list[index];
            if one.composed == one.end {
                one.composed = composed;
            }
            one.end = end;
            one.quiet_since = None;
            self.list.remove(index + 1);
            super::COUNT.store(self.list.len(), core::sync::atomic::Ordering::Release);
        }
    }

    /// Has a part of mapping `index` show the file from another offset on.
    fn show_elsewhere(&mut self, index: usize, start: usize, end: usize, offset: u64) -> Result<(), OsError> {
        let shown = Mapping { start, end, composed: start, ..self.list[index].again(offset) };
        self.replace(start, end, || reserve(start, end - start, MAP_FIXED as usize))?;
        self.establish(shown)
    }

    /// Composes the mapping anew at another place, and gives up the old one.
    fn transfer(&mut self, index: usize, wish: &Remap) -> Result<usize, OsError> {
        let Remap { address, old_bytes, new_bytes, .. } = *wish;
        let old_end = address + old_bytes;
        let start = match wish.target {
            Some(target) => {
                let end = target.checked_add(new_bytes).ok_or(OsError::INVAL)?;
                if target < old_end && address < end {
                    return Err(OsError::INVAL);
                }
                self.replace(target, end, || reserve(target, new_bytes, MAP_FIXED as usize))?
            }
            None => reserve(0, new_bytes, 0)?,
        };
        // Another part of the table may have gone.
        let index = self.at(address).unwrap_or(index);
        let old = &self.list[index];
        let moved = Mapping { start, end: start + new_bytes, composed: start, ..old.again(old.offset_at(address)) };
        if let Err(error) = self.establish(moved) {
            // SAFETY: the range was reserved above, and the program does not know it.
            let _ = unsafe { syscall(__NR_munmap as usize, [start, new_bytes, 0, 0, 0, 0]) };
            return Err(error);
        }
        if !wish.keep {
            self.unmap(address, old_end)?;
        }
        Ok(start)
    }
}
