//! What munmap, mmap over us, mprotect, mremap and msync do to mappings of array files.

use super::compose::{Wish, reserve};
use super::{Mapping, PAGE, any, private, table};
use crate::call::{Call, Verdict};
use crate::uapi::{
    IPC_STAT, MREMAP_DONTUNMAP, MREMAP_FIXED, MREMAP_MAYMOVE, MS_ASYNC, MS_INVALIDATE, MS_SYNC, SHM_REMAP, SHM_RND,
};
use file::FileRef;
use heap::boxed::Box;
use heap::vec::Vec;
use linux_raw_sys::general::{
    __NR_msync, __NR_munmap, __NR_pkey_mprotect, __NR_shmctl, MAP_FIXED, MAP_FIXED_NOREPLACE, PROT_EXEC, PROT_READ, PROT_SEM,
    PROT_WRITE,
};
use sys::OsError;
use sys::raw::{check, syscall};

/// The first address that no program can have (with four levels of page tables).
const NOWHERE: usize = 1 << 47;
/// No file reaches further.
const FILE_BYTES_MAX: usize = i64::MAX as usize;

/// The pages of a range the program named, if it is one.
pub(super) fn pages(address: usize, bytes: usize) -> Option<(usize, usize)> {
    let end = address.checked_add(bytes.checked_next_multiple_of(PAGE)?)?;
    (address.is_multiple_of(PAGE) && address < end).then_some((address, end))
}

/// Whether there are mappings of the array's files, shared or private.
fn any_of_either() -> bool {
    any() || private::any()
}

/// `munmap`.
pub(crate) fn munmap(call: &mut Call) -> Verdict {
    let Some((start, end)) = pages(call.args[0], call.args[1]) else { return Verdict::Pass };
    if !any_of_either() {
        return Verdict::Pass;
    }
    let mut table = table();
    if !table.touches_any(start, end) {
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
    if !any_of_either() {
        return None;
    }
    let mut table = table();
    if !table.touches_any(start, end) {
        return None;
    }
    Some(Verdict::from_result(table.replace(start, end, || check(call.kernel()))))
}

/// `shmat`: a segment of shared memory may be put over ours (SHM_REMAP).
pub(crate) fn shmat(call: &mut Call) -> Verdict {
    let [segment, address, flags, ..] = call.args;
    if flags & SHM_REMAP == 0 || !any_of_either() {
        return Verdict::Pass;
    }
    let start = if flags & SHM_RND != 0 { address / PAGE * PAGE } else { address };
    // Who may not ask for the length may not attach it either.
    let Some((start, end)) = bytes_of_segment(segment).and_then(|bytes| pages(start, bytes)) else { return Verdict::Pass };
    let mut table = table();
    if !table.touches_any(start, end) {
        return Verdict::Pass;
    }
    Verdict::from_result(table.replace(start, end, || check(call.kernel())))
}

/// How long a segment of shared memory is (shmctl(2)).
fn bytes_of_segment(segment: usize) -> Option<usize> {
    /// Of `struct shmid64_ds`: its words, and the one that is the length.
    const WORD_COUNT: usize = 14;
    const BYTES_AT: usize = 6;
    let mut words = [0_usize; WORD_COUNT];
    // SAFETY: the kernel stores a structure of that many words.
    check(unsafe { syscall(__NR_shmctl as usize, [segment, IPC_STAT, words.as_mut_ptr() as usize, 0, 0, 0]) }).ok()?;
    Some(words[BYTES_AT])
}

/// Makes a mapping of ours that is not followed, which may be put over one that is.
pub(crate) fn make_way(wish: &Wish, bytes: usize, make: impl FnOnce() -> Result<usize, OsError>) -> Result<usize, OsError> {
    if wish.flags & MAP_FIXED as usize == 0 || !wish.address.is_multiple_of(PAGE) {
        return make();
    }
    if !any_of_either() {
        return make();
    }
    table().replace(wish.address, wish.address.saturating_add(bytes), make)
}

/// `mprotect`: one mapping after the other, as the kernel does, until one is refused or nothing is
/// mapped.
pub(crate) fn mprotect(call: &mut Call) -> Verdict {
    // Anything else the kernel refuses for a mapping of a file.
    const KNOWN: usize = (PROT_READ | PROT_WRITE | PROT_EXEC | PROT_SEM) as usize;
    let Some((start, end)) = pages(call.args[0], call.args[1]).filter(|_| any()) else { return Verdict::Pass };
    let mut table = table();
    if table.touching(start, end).is_empty() || call.args[2] & !KNOWN != 0 {
        return Verdict::Pass;
    }
    if call.number == __NR_pkey_mprotect as usize
        && let Some(refusal) = refusal_of_key(call)
    {
        return refusal;
    }
    let mut at = start;
    while at < end {
        let (stop, result) = match table.at(at) {
            Some(index) => {
                let stop = table.list[index].end.min(end);
                (stop, table.protect_own(call, at, stop))
            }
            None => {
                let stop = table.next_start(at, end);
                (stop, call_on(call, at, stop, call.args[2]))
            }
        };
        if result != 0 {
            return Verdict::Done(result);
        }
        at = stop;
    }
    Verdict::Done(0)
}

/// What the kernel says of the protection key of pkey_mprotect(2) before it looks at any mapping:
/// it is asked with an address at which nothing can be mapped.
fn refusal_of_key(call: &Call) -> Option<Verdict> {
    // SAFETY: nothing is mapped there, so nothing is protected.
    let result = unsafe { syscall(call.number, [NOWHERE, PAGE, call.args[2], call.args[3], 0, 0]) };
    (result != -(OsError::NOMEM.raw_os_error() as isize)).then_some(Verdict::Done(result))
}

/// The program's call on a range of addresses (arguments 0 and 1) on a part of that range, with
/// `third` as argument 2.
fn call_on(call: &Call, start: usize, stop: usize, third: usize) -> isize {
    // SAFETY: the program's call on the program's own memory, with no more rights than it asks for.
    unsafe { syscall(call.number, [start, stop - start, third, call.args[3], 0, 0]) }
}

/// Prepares a mapping for being stored to, before its protection says that it can be.
fn make_writable(table: &mut super::Mappings, mapping: &mut Mapping) -> Result<(), OsError> {
    let is_new = !mapping.followed;
    while !mapping.followed
        && let Err(error) = table.begin_following(mapping)
    {
        // A shared copy was made meanwhile: it is shown first.
        if error != OsError::AGAIN || mapping.copied {
            return Err(error);
        }
        table.follow_size(mapping)?;
    }
    let is_shown = mapping.composed > mapping.start;
    if is_new && !is_shown {
        // Perhaps since stores land on another copy than the one that was shown.
        table.follow_size(mapping)?;
    }
    if !mapping.is_writable() {
        // Before it is watched: where stores will ask for space the tracker has nothing to protect.
        let (from, to) = (mapping.offset, mapping.offset_at(mapping.composed));
        table.get_space(mapping, from, to);
    }
    if is_new && is_shown && mapping.followed {
        return table.watch(mapping, mapping.start, mapping.composed - mapping.start);
    }
    Ok(())
}

/// `remap_file_pages`: pages of a mapping show others of its file. As in the kernel since Linux
/// 4.0, it is a mapping over the old one.
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
    // What begins elsewhere is not one mapping of one file.
    let Some(index) = table.at(start) else { return Verdict::Pass };
    // Of a descriptor that cannot be written to the kernel makes no shared mapping, whatever
    // mmap(2) was asked for.
    let is_shared = table.list[index].may_write;
    if protection != 0 || page.checked_add(bytes / PAGE).is_none() || !is_shared || !table.is_one_mapping(index, end) {
        return Verdict::error(OsError::INVAL);
    }
    if page > (FILE_BYTES_MAX - bytes) / PAGE {
        return Verdict::error(OsError::OVERFLOW);
    }
    Verdict::from_result(table.show_elsewhere(index, start, end, (page * PAGE) as u64).map(|()| 0))
}

/// `msync`.
pub(crate) fn msync(call: &mut Call) -> Verdict {
    let Some((start, end)) = pages(call.args[0], call.args[1]).filter(|_| any()) else { return Verdict::Pass };
    // An int.
    let flags = call.args[2] as u32 as usize;
    let mut table = table();
    let touched = table.touching(start, end);
    if touched.is_empty() || flags & (MS_SYNC | MS_ASYNC) == 0 {
        return Verdict::Pass;
    }
    if flags & !(MS_SYNC | MS_ASYNC | MS_INVALIDATE) != 0 || flags & MS_SYNC != 0 && flags & MS_ASYNC != 0 {
        return Verdict::error(OsError::INVAL);
    }
    // A file may have several mappings in the range, and is to be durable when all of them are
    // followed.
    let mut files: Vec<FileRef> = Vec::new();
    let result = table.walk(call, start, end, |table, index, from, to| {
        if flags & MS_INVALIDATE != 0 && is_locked(from, to) {
            return Err(OsError::BUSY);
        }
        let mut mapping = table.list.remove(index);
        let result = if mapping.followed { table.follow_stored(&mut mapping, from, to) } else { Ok(()) };
        if flags & MS_SYNC != 0 && !files.iter().any(|file| file.attribute() == mapping.file.attribute()) {
            files.push(FileRef::clone(&mapping.file));
        }
        table.list.insert(index, mapping);
        result
    });
    // Also what was followed before an error ended the walk.
    let mut synced = Ok(());
    for file in &files {
        synced = synced.and(file.sync());
    }
    match synced {
        Err(error) if result == 0 || result == -(OsError::NOMEM.raw_os_error() as isize) => Verdict::error(error),
        _ => Verdict::Done(result),
    }
}

/// Whether the kernel keeps pages of a range in memory because the program has asked for it
/// (mlock(2)).
pub(super) fn is_locked(start: usize, end: usize) -> bool {
    // SAFETY: of shared mappings this says EBUSY if they are locked, and does nothing.
    let result = unsafe { syscall(__NR_msync as usize, [start, end - start, MS_ASYNC | MS_INVALIDATE, 0, 0, 0]) };
    result == -(OsError::BUSY.raw_os_error() as isize)
}

/// Whether all of a range is mapped.
pub(super) fn is_mapped(start: usize, end: usize) -> bool {
    // SAFETY: this says ENOMEM where nothing is mapped, and does nothing.
    let result = unsafe { syscall(__NR_msync as usize, [start, end - start, MS_ASYNC, 0, 0, 0]) };
    result != -(OsError::NOMEM.raw_os_error() as isize)
}

/// `mremap` of one mapping.
pub(super) fn mremap(call: &mut Call) -> Verdict {
    if let Some(verdict) = private::mremap(call) {
        return verdict;
    }
    if !any_of_either() {
        return Verdict::Pass;
    }
    let [address, old_bytes, new_bytes, flags, target, _] = call.args;
    // As in the kernel, what cannot be rounded up is nothing.
    let round = |bytes: usize| bytes.wrapping_add(PAGE - 1) / PAGE * PAGE;
    let mut table = table();
    let fixed = flags & MREMAP_FIXED != 0;
    let keeps = flags & MREMAP_DONTUNMAP != 0;
    let overlaps = target < address.wrapping_add(round(old_bytes)) && address < target.wrapping_add(round(new_bytes));
    let Some(index) = table.at(address) else {
        // Not ours; but what it gives back behind its new end may be.
        let (old, new) = (round(old_bytes), round(new_bytes));
        if let Some((start, end)) = pages(address.wrapping_add(new), old.saturating_sub(new)).filter(|_| new != 0)
            && address.is_multiple_of(PAGE)
            && table.touches_any(start, end)
        {
            if let Some(refusal) = refusal_of_remap(call) {
                return refusal;
            }
            if (fixed || keeps) && overlaps {
                return Verdict::error(OsError::INVAL);
            }
            // First it is cut where it is. Then it goes where it is to go, as long as it is then.
            let cut = [address, old, new, 0, 0, 0];
            // SAFETY: the program gives back what lies behind the new end.
            let result = table.replace(start, end, || check(unsafe { syscall(call.number, cut) }));
            if result.is_err() || !fixed && !keeps {
                return Verdict::from_result(result);
            }
            call.args[1] = new;
        }
        // Not ours; but it may be put over ours.
        if let Some((start, end)) = pages(target, new_bytes).filter(|_| fixed)
            && table.touches_any(start, end)
        {
            return Verdict::from_result(table.replace(start, end, || check(call.kernel())));
        }
        return Verdict::Pass;
    };
    let may_move = flags & MREMAP_MAYMOVE != 0;
    let (old_bytes, new_bytes) = (round(old_bytes), round(new_bytes));
    if !address.is_multiple_of(PAGE) {
        return Verdict::error(OsError::INVAL);
    }
    if let Some(refusal) = refusal_of_remap(call) {
        return refusal;
    }
    if (fixed || keeps) && overlaps {
        return Verdict::error(OsError::INVAL);
    }
    // With MREMAP_DONTUNMAP an address is a wish that is granted where nothing is mapped.
    let hint = if keeps && !fixed { target } else { 0 };
    let wish = Remap { address, old_bytes, new_bytes, target: fixed.then_some(target), hint, may_move, keep: keeps };
    Verdict::from_result(table.remap(index, &wish))
}

/// What the kernel says of the arguments of mremap(2) but for the address: it is asked with one at
/// which nothing can be mapped.
pub(super) fn refusal_of_remap(call: &Call) -> Option<Verdict> {
    let [_, rest @ ..] = call.args;
    let mut args = [NOWHERE; 6];
    args[1..].copy_from_slice(&rest);
    // SAFETY: nothing is mapped there, so nothing is moved.
    let result = unsafe { syscall(call.number, args) };
    (result != -(OsError::FAULT.raw_os_error() as isize)).then_some(Verdict::Done(result))
}

/// What mremap(2) was asked for, whole pages.
struct Remap {
    address: usize,
    old_bytes: usize,
    new_bytes: usize,
    target: Option<usize>,
    /// Where it is to be moved if nothing is there; 0: wherever there is room.
    hint: usize,
    may_move: bool,
    keep: bool,
}

impl super::Mappings {
    /// Where the next mapping of ours begins at or behind `at`, or `end`.
    fn next_start(&self, at: usize, end: usize) -> usize {
        self.touching(at, end).next().map_or(end, |index| self.list[index].start)
    }

    /// Goes over a range of addresses (arguments 0 and 1 of the call) as the kernel does for
    /// msync(2) and madvise(2): `own` is done to the parts of mappings of ours, the call is made
    /// for what lies between. An error ends it; where nothing is mapped it goes on, and says so in
    /// the end.
    pub(super) fn walk(
        &mut self,
        call: &Call,
        start: usize,
        end: usize,
        mut own: impl FnMut(&mut Self, usize, usize, usize) -> Result<(), OsError>,
    ) -> isize {
        const NOT_MAPPED: isize = -(OsError::NOMEM.raw_os_error() as isize);
        let (mut at, mut answer) = (start, 0);
        while at < end {
            if let Some(index) = self.at(at) {
                let stop = self.list[index].end.min(end);
                if let Err(error) = own(self, index, at, stop) {
                    return -(error.raw_os_error() as isize);
                }
                at = stop;
                continue;
            }
            let stop = self.next_start(at, end);
            match call_on(call, at, stop, call.args[2]) {
                0 => {}
                NOT_MAPPED => answer = NOT_MAPPED,
                error => return error,
            }
            at = stop;
        }
        answer
    }

    /// Gives one mapping's part of a range the protection that mprotect(2) was asked for. What the
    /// kernel said, or 0.
    fn protect_own(&mut self, call: &Call, start: usize, end: usize) -> isize {
        let protection = call.args[2];
        let writes = protection & PROT_WRITE as usize != 0;
        self.split(start);
        self.split(end);
        let Some(index) = self.at(start) else { return 0 };
        if writes && !self.list[index].may_write {
            return -(OsError::ACCESS.raw_os_error() as isize);
        }
        let mut mapping = self.list.remove(index);
        if writes && let Err(error) = make_writable(self, &mut mapping) {
            self.list.insert(index, mapping);
            // mprotect(2) has no word for what mmap(2) answers a file without shared mappings.
            let error = if error == OsError::NODEV { OsError::ACCESS } else { error };
            return -(error.raw_os_error() as isize);
        }
        let before = core::mem::replace(&mut mapping.protection, protection);
        if mapping.rights.is_some() {
            let _ = self.revoke(&mut mapping);
        }
        // Stores that are kept out for a reason of ours stay so at every instant.
        let allowed = if mapping.sealed { protection & PROT_READ as usize } else { mapping.shown_protection() };
        let result = call_on(call, start, end, allowed);
        if result < 0 {
            mapping.protection = before;
        }
        // Behind the end there is nothing to store to, and nothing to follow. The kernel says so
        // (SIGBUS) where it finds the right to store, and otherwise that the right is not there
        // (SIGSEGV).
        let behind = mapping.composed.clamp(start, end);
        if result == 0 && allowed != protection && behind < end {
            let _ = call_on(call, behind, end, protection);
        }
        mapping.give_held();
        self.list.insert(index, mapping);
        result
    }

    /// Whether what is mapped from `index` on to `end` is one mapping for the kernel, but for where
    /// in the file it lies: of one file, with equal rights, without a gap.
    fn is_one_mapping(&self, index: usize, end: usize) -> bool {
        let first = &self.list[index];
        let continues = |pair: &[Box<Mapping>]| {
            pair[0].end == pair[1].start
                && pair[1].file.attribute() == first.file.attribute()
                && pair[1].protection == first.protection
                && pair[1].may_write == first.may_write
        };
        let count = self.list[index..].iter().take_while(|mapping| mapping.start < end).count();
        let parts = &self.list[index..index + count];
        parts.last().is_some_and(|last| end <= last.end) && parts.windows(2).all(continues)
    }

    /// Where the mapping ends that the kernel makes of `index` and those behind it: they continue
    /// each other, in addresses and in the file, with equal rights.
    fn end_of_one_mapping(&self, index: usize) -> usize {
        let continues = |pair: &&[Box<Mapping>]| {
            let (one, two) = (&pair[0], &pair[1]);
            one.end == two.start
                && one.file.attribute() == two.file.attribute()
                && one.end_offset() == two.offset
                && (one.protection, one.may_write, one.dont_fork) == (two.protection, two.may_write, two.dont_fork)
        };
        let joined = self.list[index..].windows(2).take_while(continues).count();
        self.list[index + joined].end
    }

    /// Where the shared mapping that holds `address` ends, as [`Self::end_of_one_mapping`] says.
    pub(super) fn end_of_shared(&self, address: usize) -> Option<usize> {
        self.at(address).map(|index| self.end_of_one_mapping(index))
    }

    fn remap(&mut self, index: usize, wish: &Remap) -> Result<usize, OsError> {
        let Remap { address, old_bytes, new_bytes, .. } = *wish;
        let old_end = address.checked_add(old_bytes).ok_or(OsError::INVAL)?;
        // As for the kernel: what stays or is moved of the old range lies within one mapping, but
        // where only its end is given back.
        let is_shortened = !wish.keep && (new_bytes < old_bytes || new_bytes == old_bytes && wish.target.is_none());
        let stays = if is_shortened { new_bytes } else { old_bytes };
        if (!is_shortened || wish.target.is_some()) && address.saturating_add(stays) > self.end_of_one_mapping(index) {
            return Err(OsError::FAULT);
        }
        if wish.target.is_none() && !wish.keep && old_bytes != 0 {
            if new_bytes <= old_bytes {
                self.unmap(address + new_bytes, old_end)?;
                return Ok(address);
            }
            // What mprotect(2) has split is one mapping for the kernel once its rights are equal: the
            // last part grows.
            let last = self.list[index..].iter().take_while(|part| part.end < old_end).count() + index;
            let is_end = self.list.get(last).is_some_and(|part| part.end == old_end);
            if is_end && self.grow(last, old_end, address + new_bytes).is_ok() {
                return Ok(address);
            }
            if !wish.may_move {
                return Err(OsError::NOMEM);
            }
        }
        if wish.target.is_none() && !wish.may_move {
            return Err(OsError::NOMEM);
        }
        if is_shortened && let Some(target) = wish.target {
            let target_end = target.checked_add(new_bytes).ok_or(OsError::INVAL)?;
            if target < old_end && address < target_end {
                return Err(OsError::INVAL);
            }
            self.unmap(address + new_bytes, old_end)?;
            return self.transfer(&Remap { old_bytes: new_bytes, ..*wish });
        }
        self.transfer(wish)
    }

    pub(super) fn unmap(&mut self, start: usize, end: usize) -> Result<(), OsError> {
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

    /// Makes one mapping of `index` and the next, which continues it, if the first is composed to
    /// its end.
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
            (one.quiet_since, one.pass) = (None, None);
            self.list.remove(index + 1);
            self.count();
        }
    }

    /// Has a part of mapping `index` show the file from another offset on.
    fn show_elsewhere(&mut self, index: usize, start: usize, end: usize, offset: u64) -> Result<(), OsError> {
        let shown = Mapping { start, end, composed: start, ..self.list[index].again(offset) };
        self.composing(|table| {
            table.replace(start, end, || reserve(start, end - start, MAP_FIXED as usize))?;
            table.establish(shown)
        })
    }

    /// Composes the mapping that holds the wish's address anew at another place, and gives up the
    /// old one.
    fn transfer(&mut self, wish: &Remap) -> Result<usize, OsError> {
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
            None => reserve(wish.hint, new_bytes, 0)?,
        };
        // Another part of the table may have gone; a copy (old length 0) over its own beginning has
        // nothing left to be made of.
        let made = self.at(address).ok_or(OsError::FAULT).and_then(|index| {
            let old = &self.list[index];
            let moved = Mapping { start, end: start + new_bytes, composed: start, ..old.again(old.offset_at(address)) };
            self.establish(moved)
        });
        if let Err(error) = made {
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
