//! Space: growth, holes, truncation.
//!
//! A write gets all its space on all members before its first byte is stored. A growing file gets
//! more than it asks for, in proportion to its size, so that most appends make no system call; what
//! is too much is given back by the last close (`Files`).
//!
//! Backing bytes past the logical size are zeros, and parity counts them as zeros: growth never has
//! to store any.

use crate::Inode;
use crate::called::EXACT_GROWTHS;
use crate::inode::Modification;
use crate::privileges::SET_ID;
use crate::stripes::Blocks;
use alloc::vec::Vec;
use core::cell::Cell;
use core::sync::atomic::Ordering;
use dax::Backing;
use format::LaneKind;
use medium::Medium;
use sys::OsError;
use sys::rustix::fs::{Mode, Stat, Timespec, fchmod, fstat};
use sys::rustix::process::getegid;
use sys::rustix::thread::{CapabilitySet, capabilities};
use units::{MemberSet, PAGE_BYTES, Slot};

/// The most a growing backing file gets in advance.
const ADVANCE_BYTES_MAX: u64 = 2 << 20;
/// A backing file that grows to at most this size gets space by pages and not by whole granules
/// (media/dax). So does a file of less than a huge page that grows for the first times.
const SMALL_BYTES_MAX: u64 = 64 << 10;
/// The set-group-id bit of a mode.
const SET_GROUP_ID: u32 = 0o2000;
/// The unit of `st_blocks` (stat(2)).
const STAT_BLOCK_BYTES: u64 = 512;
/// From this size on a backing file grows in whole huge pages.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

impl Inode {
    /// Makes room for a file that grows from `size` to `end`, the write beginning at `offset`. The
    /// size lock is held.
    pub(crate) fn make_room(&self, size: u64, offset: u64, end: u64) -> Result<(), OsError> {
        self.zero_tail(size)?;
        let shared = self.shared();
        let (wanted, present) = (self.geometry.member_bytes(end), shared.allocated_end());
        if offset > size {
            self.add_flags(format::FLAG_HOLES);
        }
        if wanted <= present {
            return Ok(());
        }
        self.add_flags(format::FLAG_SLACK);
        if offset > size {
            // The gap stays a hole; `fill_holes` sees to the rest.
            return self.lengthen_backing_files(wanted);
        }
        // What this process remembers may lie behind a cut by another.
        self.refresh_allocations();
        // Most small files are written by one call or two, and then closed: such writes get nothing in
        // advance.
        let is_early = wanted < HUGE_PAGE_BYTES && self.growths.fetch_add(1, Ordering::Relaxed) < EXACT_GROWTHS;
        let advanced = || with_advance(wanted).min(sys::file_limit::bytes()).max(wanted);
        let generous = if is_early { wanted } else { advanced() };
        let get = |backing: &Backing, end| {
            let is_just = is_early || generous <= SMALL_BYTES_MAX;
            if is_just { backing.allocate_just(present, end) } else { backing.allocate(present, end - present) }
        };
        let result = self.on_members(|backing| get(backing, generous));
        let reached = match result {
            Ok(()) => generous,
            Err(OsError::NOSPC | OsError::DQUOT | OsError::FBIG) if generous > wanted => {
                self.on_members(|backing| get(backing, wanted))?;
                wanted
            }
            Err(error) => return Err(error),
        };
        shared.allocated_end.store(reached, Ordering::Release);
        Ok(())
    }

    /// Allocates what may be a hole under `offset..end`, parity included.
    pub(crate) fn fill_holes(&self, offset: u64, end: u64) -> Result<(), OsError> {
        self.refresh_allocations();
        let start = if self.geometry.level().has_chunks() {
            self.geometry.member_offset(self.geometry.locate(offset).stripe)
        } else {
            offset
        };
        let stop = self.geometry.member_bytes(end).max(start + 1);
        self.add_flags(format::FLAG_SLACK);
        self.on_members(|backing| backing.allocate(start, stop - start))
    }

    /// Forgets what was known to be allocated if any process has given space back since.
    pub(crate) fn refresh_allocations(&self) {
        let epoch = self.shared().allocation_epoch.load(Ordering::Acquire);
        if self.allocation_epoch.load(Ordering::Acquire) != epoch {
            for backing in self.backing.iter().flatten() {
                backing.forget_allocations();
            }
            // Now that it is so: other threads ask as well.
            self.allocation_epoch.store(epoch, Ordering::Release);
        }
    }

    /// Cuts or extends the file (ftruncate(2)).
    ///
    /// # Errors
    /// `FBIG` if it would grow past the process' limit of file sizes; `NOSPC`, `DQUOT`.
    pub fn truncate(&self, new: u64) -> Result<(), OsError> {
        self.files.array().before_change()?;
        let is_cut = self.with_lanes(|| {
            self.may_grow(new)?;
            self.drop_privileges()?;
            self.change_size_locked(|size| {
                if new > size {
                    within_limit(new)?;
                    self.zero_tail(size)?;
                    self.extend_with_hole(new)?;
                } else if new < size {
                    let cut = self.cut(size, new);
                    if cut.is_err() {
                        // The size may be stored.
                        self.leave_tail();
                    }
                    cut?;
                }
                self.touch();
                Ok(new < size)
            })
        })?;
        if is_cut {
            // Nobody's mapping shows more when this returns.
            self.call_others();
        }
        Ok(())
    }

    /// Refuses what would make the file longer than the process may: before it loses its set-ID
    /// bits, which what is refused leaves.
    fn may_grow(&self, end: u64) -> Result<(), OsError> {
        if end > self.shared().size() { within_limit(end) } else { Ok(()) }
    }

    /// The size lock is held.
    fn extend_with_hole(&self, new: u64) -> Result<(), OsError> {
        let wanted = self.geometry.member_bytes(new);
        let shared = self.shared();
        if wanted <= shared.allocated_end() {
            self.add_flags(format::FLAG_HOLES);
            self.set_size(new);
            return Ok(());
        }
        // Until the size is stored the backing files are too long: a crash must find that out.
        let had_slack = shared.flags.load(Ordering::Acquire) & format::FLAG_SLACK;
        self.add_flags(format::FLAG_HOLES | format::FLAG_SLACK);
        self.lengthen_backing_files(wanted)?;
        self.set_size(new);
        if had_slack == 0 && shared.tail_unfinished.load(Ordering::Relaxed) == 0 {
            self.change_flags(0, format::FLAG_SLACK);
        }
        Ok(())
    }

    /// Makes every backing file at least `wanted` bytes long; what is added is a hole. The size
    /// lock is held, and no stripe lock.
    fn lengthen_backing_files(&self, wanted: u64) -> Result<(), OsError> {
        // Who gets space within the size holds a stripe lock and not the size lock, and may make a
        // backing file longer than the size asks for. A file that becomes longer between the
        // question for its length and the call that sets it would be cut, and the space taken away
        // that others know to be there.
        let held = self.lock_stripes(Blocks::ALL)?;
        self.on_members(|backing| extend_durably(backing, wanted))?;
        self.shared().allocated_end.store(wanted, Ordering::Release);
        drop(held);
        Ok(())
    }

    /// The size lock is held. Zeros the rest of the last stripe, so that its parity counts zeros,
    /// and gives the space behind it back.
    fn cut(&self, size: u64, new: u64) -> Result<(), OsError> {
        let shared = self.shared();
        // The shared copy, which mappings show, is cut as well. A process that may not open the
        // copy, because it has given up the rights by which it opened the file, cuts nothing: the
        // copy would show the bytes again when the file grows.
        self.copy()?;
        let held = self.lock_stripes(Blocks::ALL)?;
        // A mapping may have stored behind the end, in the last page.
        let is_mapped = shared.mapped.load(Ordering::Acquire) != 0;
        let reach = if is_mapped { size.next_multiple_of(PAGE_BYTES as u64) } else { size };
        self.announce(LaneKind::Truncate, new, reach - new, self.out())?;
        let stripe = self.geometry.stripe_bytes();
        let rest = (new.div_ceil(stripe) * stripe).min(reach).saturating_sub(new);
        let there = self.what_to_zero(new, rest)?;
        self.set_size(new);
        self.zero_there(new, rest, &there)?;
        let kept = self.geometry.member_bytes(new);
        // Before any is shorter: who finds one that is shorter than this takes it for cut by
        // somebody else.
        shared.allocated_end.store(kept, Ordering::Release);
        self.on_members(|backing| backing.set_len(kept).and_then(|()| backing.persist_layout()))?;
        shared.allocation_epoch.fetch_add(1, Ordering::AcqRel);
        drop(held);
        Ok(())
    }

    /// Allocates `offset..offset + bytes` (fallocate(2) mode 0); the size grows unless `keep_size`.
    pub fn allocate(&self, offset: u64, bytes: u64, keep_size: bool) -> Result<(), OsError> {
        let end = offset.checked_add(bytes).filter(|&end| end <= i64::MAX as u64).ok_or(OsError::FBIG)?;
        self.files.array().before_change()?;
        self.with_lanes(|| {
            self.may_grow(end)?;
            self.drop_privileges()?;
            self.allocate_to(offset, end, keep_size)
        })
    }

    fn allocate_to(&self, offset: u64, end: u64, keep_size: bool) -> Result<(), OsError> {
        self.change_size_locked(|size| {
            // Also of space behind the end, as on tmpfs.
            if end > size {
                within_limit(end)?;
            }
            let (wanted, shared) = (self.geometry.member_bytes(end), self.shared());
            if end > size && !keep_size || wanted > shared.allocated_end() {
                // Between the end and the range nothing is allocated.
                self.add_flags(format::FLAG_HOLES);
            }
            if end > size && !keep_size {
                self.zero_tail(size)?;
            }
            self.fill_holes(offset, end)?;
            if wanted > shared.allocated_end() {
                self.on_members(Backing::persist_layout)?;
                shared.allocated_end.store(wanted, Ordering::Release);
            }
            if end > size && !keep_size {
                self.set_size(end);
            }
            // Also where nothing has changed, as on tmpfs.
            self.touch();
            Ok(())
        })
    }

    /// Makes `offset..offset + bytes` read as zeros (fallocate(2) PUNCH_HOLE and, with `grow`,
    /// ZERO_RANGE). Whole stripes become holes.
    pub fn punch(&self, offset: u64, bytes: u64, grow: bool) -> Result<(), OsError> {
        let end = offset.checked_add(bytes).filter(|&end| end <= i64::MAX as u64).ok_or(OsError::FBIG)?;
        self.files.array().before_change()?;
        self.with_lanes(|| {
            if grow {
                self.may_grow(end)?;
            }
            self.drop_privileges()?;
            self.punch_to(offset, end, grow)
        })
    }

    fn punch_to(&self, offset: u64, end: u64, grow: bool) -> Result<(), OsError> {
        self.change_size_locked(|size| {
            if grow && end > size {
                within_limit(end)?;
                self.zero_tail(size)?;
            }
            if offset < end.min(size) {
                self.punch_within(offset, end.min(size))?;
            }
            // Last, so that what fails has not made the file longer.
            if grow && end > size {
                self.extend_with_hole(end)?;
            }
            self.touch();
            Ok(())
        })
    }

    /// Punches a hole within the size. The size lock is held.
    fn punch_within(&self, offset: u64, end: u64) -> Result<(), OsError> {
        self.add_flags(format::FLAG_HOLES);
        let held = self.lock_stripes(Blocks::ALL)?;
        let journal = self.files.journal().filter(|_| self.geometry.level().parity_count() > 0);
        let kind = if journal.is_some() { LaneKind::Journaled } else { LaneKind::Write };
        self.announce(kind, offset, end - offset, self.out())?;
        if let Some(copy) = self.copy()? {
            copy.punch(offset, end - offset)?;
        }
        // On a mirror nothing is bound together but by pages.
        let chunked = self.geometry.level().has_chunks();
        let unit = if chunked { self.geometry.stripe_bytes() } else { PAGE_BYTES as u64 };
        let (first, last) = (offset.next_multiple_of(unit), end / unit * unit);
        if first < last {
            self.zero(offset, first - offset)?;
            match journal {
                Some(journal) => self.punch_journaled(journal, first, last)?,
                None => self.punch_stripes(first, last)?,
            }
            self.zero(last, end - last)?;
        } else {
            self.zero(offset, end - offset)?;
        }
        drop(held);
        self.touch();
        Ok(())
    }

    /// Makes holes of whole stripes (of whole pages on a mirror). They are locked.
    pub(crate) fn punch_stripes(&self, first: u64, last: u64) -> Result<(), OsError> {
        let (start, stop) = (self.geometry.member_bytes(first), self.geometry.member_bytes(last));
        let undo = self.take_undo(self.out_or_leaving())?;
        if let Some(undo) = &undo {
            undo.record().arm_zeros(start, stop - start);
        }
        let punched = self.punch_members(start, stop - start);
        if let (Err(_), Some(undo)) = (punched, &undo) {
            // Some members have holes there, others not: there is no way back, and what zeros take
            // was just given back.
            return self.fill_holes(first, last).and_then(|()| self.finish_zeros(undo, first, last));
        }
        punched.inspect_err(|_| self.make_fit(first, last - first))
    }

    /// Gives back what growth took in advance. The caller knows that nobody has the file open.
    /// `is_present`: the file was modified in this moment ([`Self::flush_times`]).
    pub(crate) fn trim(&self, is_present: bool) {
        let flags = self.shared().flags.load(Ordering::Acquire);
        let is_unfinished = self.shared().tail_unfinished.load(Ordering::Relaxed) != 0;
        if flags & format::FLAG_SLACK == 0 || !self.writable || self.is_left_alone() || is_unfinished {
            return;
        }
        let kept = self.geometry.member_bytes(self.size());
        self.shared().allocated_end.store(kept, Ordering::Release);
        let present = is_present.then(|| Modification::new(None));
        let is_left_long = Cell::new(false);
        let cut = |_: Slot, backing: &Backing, stat: Option<&Stat>| {
            let stat = stat.map_or_else(|| backing.fd().and_then(fstat), |&stat| Ok(stat))?;
            // Who opens the file next gives the space back.
            let would_lose = would_lose_set_id(backing, &stat);
            is_left_long.set(is_left_long.get() || would_lose);
            if would_lose { Ok(()) } else { cut_looked_at(backing, &stat, kept, present.as_ref()) }
        };
        if self.on_looked_at(MemberSet::first(self.backing.len()), Look::Always, cut).is_ok() {
            self.shared().allocation_epoch.fetch_add(1, Ordering::AcqRel);
            if !is_left_long.get() {
                self.change_flags(0, format::FLAG_SLACK);
            }
        }
    }

    /// Gives back what growth took in advance, as the last close does. Until the file grows again
    /// nothing of that is left to whoever opens it after the death of this process, which would give
    /// the file another time of modification.
    ///
    /// # Errors
    /// What keeps this process from the file's locks.
    pub fn trim_now(&self) -> Result<(), OsError> {
        self.with_size_locked(|_| self.lock_all_stripes().map(|_held| self.trim(false)))
    }

    /// Tells whether the kernel would take set-user-id or set-group-id from the file if this process
    /// cut it, for want of rights.
    pub(crate) fn would_lose_set_id(&self) -> bool {
        let would_lose = |backing: &Backing| backing.fd().and_then(fstat).is_ok_and(|stat| would_lose_set_id(backing, &stat));
        self.in_use().any(|(_, backing)| would_lose(backing))
    }

    /// Runs a change of the backing files that no program has asked for. Set-user-id and set-group-id
    /// bits that the kernel takes from the files then are given back, as far as this process may.
    pub(crate) fn keeping_set_id<T>(&self, change: impl FnOnce() -> T) -> T {
        let mode = |backing: &Backing| backing.fd().and_then(fstat).ok().map(|stat| stat.st_mode);
        let before: Vec<_> = self.in_use().map(|(slot, backing)| (slot, mode(backing))).collect();
        let result = change();
        for (slot, backing) in self.in_use() {
            let kept = before.iter().find(|&&(before, _)| before == slot).and_then(|&(_, mode)| mode);
            let Some(kept) = kept.filter(|before| before & SET_ID != 0 && mode(backing) != Some(*before)) else { continue };
            let _ = backing.fd().and_then(|fd| fchmod(fd, Mode::from_raw_mode(kept & 0o7777)));
        }
        result
    }

    pub(crate) fn add_flags(&self, flags: u32) {
        if self.shared().flags.load(Ordering::Acquire) & flags != flags {
            self.change_flags(flags, 0);
        }
    }

    /// Adds flags and takes others away, on the members and for all processes.
    pub(crate) fn change_flags(&self, add: u32, remove: u32) {
        let shared = self.shared();
        self.files
            .table()
            .change_flags(self.files.array(), self.number, add, remove, |flags| shared.flags.store(flags, Ordering::Release));
    }

    /// Runs a system call on every member in use. Lack of space, and what speaks of this process
    /// ([`array::is_of_process`]), is the result; any other error takes the member out. A backing
    /// file that somebody has cut is not made longer, which would put zeros where data was.
    pub(crate) fn on_members(&self, act: impl Fn(&Backing) -> Result<(), OsError>) -> Result<(), OsError> {
        self.on_some(MemberSet::first(self.backing.len()), act)
    }

    /// Does what [`Self::on_members`] does, on those of these members that are in use.
    pub(crate) fn on_some(&self, members: MemberSet, act: impl Fn(&Backing) -> Result<(), OsError>) -> Result<(), OsError> {
        self.on_looked_at(members, Look::IfMayBeCut, |_, backing, _| act(backing))
    }

    /// Does what [`Self::on_members`] does. `act` is told which member it is.
    pub(crate) fn on_slots(&self, act: impl Fn(Slot, &Backing) -> Result<(), OsError>) -> Result<(), OsError> {
        self.on_looked_at(MemberSet::first(self.backing.len()), Look::IfMayBeCut, |slot, backing, _| act(slot, backing))
    }

    /// Does what [`Self::on_some`] does. `act` is given what the look at the backing file has told,
    /// if there was one and it still holds.
    fn on_looked_at(
        &self,
        members: MemberSet,
        look: Look,
        act: impl Fn(Slot, &Backing, Option<&Stat>) -> Result<(), OsError>,
    ) -> Result<(), OsError> {
        let mut failed = false;
        for (slot, backing) in self.in_use().filter(|(slot, _)| members.contains(*slot)) {
            let present = self.shared().allocated_end();
            let mut stat = if present != 0 || look == Look::Always { backing.fd().and_then(fstat).ok() } else { None };
            if stat.is_some_and(|stat| (stat.st_size as u64) < present) {
                if !self.leave_out_if_cut(slot)? {
                    self.files.array().fail_member(slot)?;
                    failed = true;
                    continue;
                }
                // If it is not left out, another process has just made it longer.
                if self.left_out().contains(slot) {
                    continue;
                }
                stat = None;
            }
            match act(slot, backing, stat.as_ref()) {
                Ok(()) => {}
                Err(error) if array::is_no_space(error) || array::is_of_process(error) => return Err(error),
                Err(_) => {
                    self.files.array().fail_member(slot)?;
                    failed = true;
                }
            }
        }
        if failed { self.files.array().before_change() } else { Ok(()) }
    }
}

/// When a call on every member looks at a backing file first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// If the file has a length that somebody may have cut.
    IfMayBeCut,
    Always,
}

/// Tells whether the kernel would take set-user-id or set-group-id from a backing file if this
/// process cut it, and the process may not give them back.
fn would_lose_set_id(backing: &Backing, stat: &Stat) -> bool {
    if stat.st_mode & SET_ID == 0 {
        return false;
    }
    // Of an owner who is not in the file's group chmod(2) itself takes set-group-id, and says nothing.
    // Who is in it by a supplementary group counts as not being there: the file keeps the space.
    let is_foreign = || {
        let has_right = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::FSETID));
        getegid().as_raw() != stat.st_gid && !has_right
    };
    if stat.st_mode & SET_GROUP_ID != 0 && is_foreign() {
        return true;
    }
    backing.fd().and_then(|fd| fchmod(fd, Mode::from_raw_mode(stat.st_mode & 0o7777))).is_err()
}

/// Tells whether a file was modified in this moment.
fn is_of_this_moment(stat: &Stat) -> bool {
    let modified_ns = i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec);
    (i128::from(sys::clock::realtime_coarse_ns()) - modified_ns).abs() <= 2 * i128::from(crate::inode::TICK_NS)
}

/// Cuts a backing file and keeps its time of modification and its mode: the program has changed
/// nothing.
pub(crate) fn cut_unnoticed(backing: &Backing, bytes: u64, present: Option<&Modification>) -> Result<(), OsError> {
    cut_looked_at(backing, &backing.fd().and_then(fstat)?, bytes, present)
}

/// Does what [`cut_unnoticed`] does to a backing file that was just looked at.
fn cut_looked_at(backing: &Backing, stat: &Stat, bytes: u64, present: Option<&Modification>) -> Result<(), OsError> {
    // A backing file that is not too long may still have space behind its end: the rest of a huge
    // page.
    if stat.st_size as u64 == bytes && stat.st_blocks as u64 * STAT_BLOCK_BYTES <= bytes.next_multiple_of(PAGE_BYTES as u64) {
        return Ok(());
    }
    backing.set_len(bytes)?;
    if stat.st_mode & SET_ID != 0 {
        // The kernel takes these bits from a file that somebody without rights cuts.
        let _ = backing.fd().and_then(|fd| fchmod(fd, Mode::from_raw_mode(stat.st_mode & 0o7777)));
    }
    // For who is not its owner the file was modified when it was closed.
    let before = Modification::new(Some(Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec as i64 }));
    // A program may have set another time since this close has set the present one (utimensat(2) by
    // another process, or before a mount has released the file): that time stays.
    present.filter(|_| is_of_this_moment(stat)).unwrap_or(&before).set(backing);
    Ok(())
}

/// Whether the process may make a file this long.
fn within_limit(bytes: u64) -> Result<(), OsError> {
    if bytes > sys::file_limit::bytes() { Err(OsError::FBIG) } else { Ok(()) }
}

/// Makes a backing file at least `bytes` long, and that durable where stores are durable without a
/// system call. The size, which is stored next, would be durable before the length. After a crash
/// the file would be one that somebody has cut. All stripe locks are held.
fn extend_durably(backing: &Backing, bytes: u64) -> Result<(), OsError> {
    if backing.bytes()? < bytes { backing.set_len(bytes).and_then(|()| backing.persist_layout()) } else { Ok(()) }
}

/// `wanted` and something in advance, in proportion.
fn with_advance(wanted: u64) -> u64 {
    let generous = wanted + (wanted / 2).min(ADVANCE_BYTES_MAX);
    if generous < HUGE_PAGE_BYTES { generous } else { generous.next_multiple_of(HUGE_PAGE_BYTES) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dax::{Access, PersistenceDomain};
    use std::os::unix::fs::MetadataExt as _;

    /// A close cuts a backing file and gives it the present time; a program has set the time `set`
    /// in between, if there is one. Returns the times of modification and of change.
    fn times_after_cut(name: &str, set: Option<i64>) -> [(i64, i64); 2] {
        let path = std::env::temp_dir().join(std::format!("cxlraid-{name}-{}", std::process::id()));
        let file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        file.set_len(10_000).unwrap();
        if let Some(seconds) = set {
            file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds as u64)).unwrap();
        }
        let backing = Backing::new(file.into(), Access::ReadWrite, PersistenceDomain::Volatile);
        cut_unnoticed(&backing, 5000, Some(&Modification::new(None))).unwrap();
        let data = std::fs::metadata(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(data.len(), 5000);
        [(data.mtime(), data.mtime_nsec()), (data.ctime(), data.ctime_nsec())]
    }

    #[test]
    fn a_close_keeps_the_time_that_a_program_has_set_meanwhile() {
        let [modified, changed] = times_after_cut("closed", None);
        assert_eq!(modified, changed, "written and closed");
        assert_eq!(times_after_cut("set", Some(2_000_000))[0], (2_000_000, 0));
    }
}
