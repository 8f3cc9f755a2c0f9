//! Writable mappings: redundancy follows what a program stores through them.
//!
//! Stores through a mapping land in the data of the members directly (on levels with copies in the
//! first copy in use, [`Inode::primary`]), and nobody sees them. The front end, which owns the
//! address space, knows which pages were stored to. [`Mapped::follow`] then makes copies and parity
//! of those pages agree with the data, under the same locks as any writer.
//!
//! Invariants:
//! - A page is protected again *before* it is followed. A store after that makes it a page to
//!   follow once more, so whatever the copy or the sum made of a store in between is made good
//!   later.
//! - A write() at the same time hides no store that is still to be followed. Either it changes
//!   parity by the difference of its own bytes, so that parity stays as wrong as the store has made
//!   it; or it computes parity from the data, and the store is part of the data.
//! - The range that a mapping may store to is announced *before* the program can store: in a record
//!   of the runtime segment ([`array::mapped`]) for the death of the process, and in a write-intent
//!   lane on the members for a crash of the machine. If no lane is free, a flag of the inode
//!   announces the whole file.
//! - While a file has such records, its copies are read where the stores land.
//! - Bytes that were stored behind the end of the file, in its last page, are zeroed before the
//!   file grows over them and when the last mapping goes.

use crate::files::{FileRef, Files};
use crate::inode::Inode;
use crate::stripes::Blocks;
use alloc::vec::Vec;
use array::mapped::MappedRecord;
use array::runtime::{ANSWER_STEP, ANSWER_STEPS};
use array::{IoFault, Rot};
use core::mem::ManuallyDrop;
use core::sync::atomic::Ordering;
use format::{LaneKind, Resync};
use intent::Change;
use persist::fault::guard;
use sync::{Liveness, OwnerId};
use sys::OsError;
use units::{MemberSet, PAGE_BYTES};

const PAGE: u64 = PAGE_BYTES as u64;
/// How many parts are followed at a time at most.
const PARTS_MAX: usize = 16;
/// How many bytes are followed at a time, or a little more.
const PARTS_BYTES: u64 = 64 << 10;
/// From this step on, one who waits for answers of other processes asks whether they live.
const DOUBT_STEP: u32 = 5;

/// Parts of a file that are followed under one hold of their locks. Before the locks are let go, all
/// stores must have left the processor. That wait costs a third of the work on a page, so it is made
/// once for all parts and not for each.
struct Parts {
    /// Start and end of each part, which lies within one lock block, or behind the end of the file.
    list: [(u64, u64); PARTS_MAX],
    count: usize,
    bytes: u64,
    /// The stripe locks of all parts, a bit each.
    locks: u64,
}

impl Parts {
    const fn new() -> Self {
        Self { list: [(0, 0); PARTS_MAX], count: 0, bytes: 0, locks: 0 }
    }

    const fn add(&mut self, start: u64, end: u64, locks: u64) {
        self.list[self.count] = (start, end);
        self.count += 1;
        self.bytes += end - start;
        self.locks |= locks;
    }

    /// Tells whether the parts are to be followed now: while more are followed, others wait for the
    /// locks.
    const fn are_enough(&self) -> bool {
        self.count == PARTS_MAX || self.bytes >= PARTS_BYTES
    }
}

/// The processes that are asked to look at a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whom {
    /// Every process with mappings of the file.
    All,
    /// The processes that may have stored to the file through mappings.
    Writers,
}

/// This process' writable mappings of one file: the file is open, and what may be stored to is
/// announced.
pub struct Mapped {
    file: FileRef,
    record: &'static MappedRecord,
    /// The owner of the record when this was made.
    owner: OwnerId,
}

impl Files {
    /// Asks the other processes that store to any file of the array through mappings to follow all
    /// that they have stored, as [`Inode::call_writers`] does for one file. This process need not
    /// have the files open. No lock may be held.
    ///
    /// # Errors
    /// That of a process that could not follow all.
    pub fn call_writers(&self) -> Result<(), OsError> {
        let runtime = self.array().runtime();
        let called: Vec<(&MappedRecord, OwnerId, u32)> = runtime.with_open_files(|_| {
            let others = runtime.mapped().owned().filter(|&(_, owner)| owner != runtime.me());
            others
                .filter_map(|(record, owner)| {
                    let file = runtime.find_file(record.key())?;
                    Some((record, owner, file.calls.fetch_add(1, Ordering::AcqRel).wrapping_add(1)))
                })
                .collect()
        });
        if called.is_empty() {
            return Ok(());
        }
        let rings = runtime.ring();
        for step in 0..ANSWER_STEPS {
            let waits = |&(record, owner, call): &(&MappedRecord, OwnerId, u32)| {
                record.owner() == Some(owner)
                    && !record.has_answered(call)
                    && !runtime.has_heard(owner, rings)
                    && (step < DOUBT_STEP || runtime.is_alive(owner))
            };
            if !called.iter().any(waits) {
                break;
            }
            let _ = sys::rustix::thread::nanosleep(&ANSWER_STEP);
        }
        let mut theirs = called.iter().filter(|(record, owner, _)| record.owner() == Some(*owner));
        theirs.find_map(|(record, ..)| record.failure()).map_or(Ok(()), Err)
    }
}

impl Mapped {
    /// Begins with nothing announced.
    ///
    /// # Errors
    /// `NOMEM` if too many files are mapped by too many processes.
    pub fn new(file: &FileRef) -> Result<Self, OsError> {
        let runtime = file.files.array().runtime();
        let record = runtime.with_open_files(|_| {
            let record = runtime.mapped().take(runtime.me(), file.key()).ok_or(OsError::NOMEM)?;
            file.count_mapped();
            Ok(record)
        })?;
        Ok(Self { file: file.clone(), record, owner: runtime.me() })
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &FileRef {
        &self.file
    }

    /// Says that stores will land on the members directly.
    ///
    /// # Errors
    /// `AGAIN` if mappings of the file show a shared copy.
    pub fn store_directly(&self) -> Result<(), OsError> {
        self.file.with_size_locked(|_| {
            if self.file.is_copied() {
                return Err(OsError::AGAIN);
            }
            self.record.set_direct(true);
            Ok(())
        })
    }

    /// Says that the process may store to the file from now on. To be called before anything else
    /// is said of the stores.
    ///
    /// # Errors
    /// `NODEV` if the kernel keeps pages of the file for programs that may store to it through a
    /// mount ([`crate::Cached`]): neither would see the stores of the other.
    pub fn begin_storing(&self) -> Result<(), OsError> {
        self.file.files.array().runtime().begin_storing(self.record, self.file.entry)
    }

    /// Says, in a child of a process that may store, that the child may store, too. Unlike
    /// [`Self::begin_storing`] this cannot be refused: the child has inherited the mappings already.
    pub fn go_on_storing(&self) {
        self.record.set_storing();
    }

    /// Returns the units in which stores are followed: a bit for each of
    /// [`array::mapped::UNITS_BYTES`].
    #[must_use]
    pub fn units(&self) -> u32 {
        self.record.units()
    }

    /// Notes the units in which stores are followed, for operators who look at the array.
    pub fn set_units(&self, units: u32) {
        self.record.set_units(units);
    }

    /// Says that no thread will store to the members any more: stores are kept out.
    pub fn store_no_more(&self) {
        self.record.set_direct(false);
    }

    /// A record for a child that is about to be forked: the range that the child may store to is
    /// announced before the parent can give up its own record.
    ///
    /// # Errors
    /// As [`Self::new`] and [`Self::cover`].
    pub fn promise(&self) -> Result<Self, OsError> {
        let promised = Self::new(&self.file)?;
        if self.record.is_storing() {
            promised.record.set_storing();
        }
        promised.record.set_direct(self.record.is_direct());
        promised.record.set_units(self.record.units());
        let (start, end) = self.record.range();
        if start < end {
            promised.cover(start, end)?;
        }
        Ok(promised)
    }

    /// Forgets this promise in the parent, after the fork: the record is the child's now.
    pub fn leave_to_child(self) {
        let this = ManuallyDrop::new(self);
        // SAFETY: read once, and not used again.
        drop(unsafe { core::ptr::read(&raw const this.file) });
    }

    /// The process has no mapping of the file any more, but may soon have one again: its shared
    /// copy is left, until [`Files::drop_unused_copy`] or the file is closed.
    pub fn leave_copy(self) {
        let this = ManuallyDrop::new(self);
        this.file.give_back(this.record, false);
        // SAFETY: read once, and not used again.
        drop(unsafe { core::ptr::read(&raw const this.file) });
    }

    /// The process ends, and something that is in the shared copy could not be followed. The
    /// record, the announcement and the copy are left as if the process had been killed: whoever
    /// has the file open next follows from the copy. A file without a name takes all of them along
    /// with its last user.
    pub fn leave_unfollowed(self) {
        // The file stays open until the process is gone.
        core::mem::forget(self);
    }

    /// Makes the promise the calling child's own, after the fork. Returns false if the parent has
    /// died and somebody has meanwhile taken the promise for one that a dead process left.
    #[must_use]
    pub fn keep_promise(&self) -> bool {
        let runtime = self.file.files.array().runtime();
        runtime.with_open_files(|_| {
            let mut own = runtime.mapped().of(self.file.key());
            let is_there = own.any(|(record, owner)| core::ptr::eq(record, self.record) && owner == self.owner);
            if is_there {
                self.record.claim(runtime.me());
            }
            is_there
        })
    }

    /// Notes that redundancy of a range could not be made to follow. The next process that opens the
    /// file makes it agree with the data.
    pub fn owe(&self, start: u64, end: u64) {
        let (files, number) = (self.file.files, self.file.number);
        files.table().add_resync(files.array(), number, Resync { start, end, lost: MemberSet::EMPTY });
        self.file.shared().resync_waits.store(1, Ordering::Release);
    }

    /// Tells the other processes that something of what this one stored could not be followed yet,
    /// or that this is over.
    pub fn note_failure(&self, failure: Option<OsError>) {
        self.record.note_failure(failure);
    }

    /// Whether this process has looked at the file since call number `call`.
    #[must_use]
    pub fn has_answered(&self, call: u32) -> bool {
        self.record.has_answered(call)
    }

    /// Answers the others' calls up to number `call`.
    pub fn answer(&self, call: u32) {
        self.record.answer(call);
    }

    /// Waits until the mappings of all other processes show the file's shared copy, or one process
    /// does not answer. Called when all mappings of this process show the copy and one of them is
    /// about to be stored to: a process whose mappings still show the members would not see the store.
    pub fn gather(&self) {
        let shared = self.file.shared();
        let number = shared.copy.load(Ordering::Acquire);
        if shared.gathered.load(Ordering::Acquire) == number {
            return;
        }
        if self.file.is_mapped_by_others() {
            self.file.call(Whom::All, Some(self.record));
        }
        // A process that has not come to the copy by now is not waited for again. One that maps the
        // file after this finds the copy.
        shared.gathered.store(number, Ordering::Release);
    }

    /// Announces that `start..end` may be stored to from now on.
    pub fn cover(&self, start: u64, end: u64) -> Result<(), OsError> {
        let (first, last) = self.record.range();
        if first <= start && end <= last {
            return Ok(());
        }
        let array = self.file.files.array();
        array.before_change()?;
        // The record then names everything from the first byte of the two ranges to the last.
        let hull = if first < last { first.min(start)..last.max(end) } else { start..end };
        self.file.forget_sums_of_mapping(hull.start, hull.end)?;
        self.record.widen(start, end);
        array.note_change(self.file.shared(), self.file.number);
        if self.file.stores_into_copy() {
            // Stores land in the copy, and following them announces what it stores on the members.
            return Ok(());
        }
        let (first, last) = self.record.range();
        let owners = array.runtime().lanes();
        // The wider range goes into another lane than the one in use, so that at every instant one
        // lane has a whole record.
        match intent::reserve(owners, array.runtime().me(), self.file.record_index(self.record)) {
            Some(lane) => {
                let previous = self.record.lane();
                let announced = self.file.announce_in(lane, LaneKind::Write, first, last.saturating_sub(first), self.file.out());
                self.record.set_lane(Some(lane));
                if let Some(previous) = previous {
                    self.file.clear_lane(previous, self.record);
                }
                announced?;
            }
            None => self.file.with_size_locked(|_| {
                self.file.add_flags(format::FLAG_MAPPED);
                Ok(())
            })?,
        }
        Ok(())
    }

    /// Makes good what processes left that died with writable mappings of the file.
    pub fn finish_others(&self) -> Result<(), OsError> {
        self.file.finish_mappings()
    }

    /// Makes copies and parity of the ranges (whole pages) agree with the data. The pages were
    /// protected before.
    ///
    /// # Errors
    /// Any part of the ranges may be left as it was.
    pub fn follow(&self, ranges: impl IntoIterator<Item = (u64, u64)>) -> Result<(), OsError> {
        self.file.follow(ranges)
    }

    /// Makes zeros of what this process stored behind the file's new end before it heard that the
    /// file was cut, and follows what it stored before that end in `start..end`.
    pub fn follow_cut(&self, start: u64, end: u64) -> Result<(), OsError> {
        self.file.clear_behind_end()?;
        self.file.follow([(start, end)])
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.file.give_back(self.record, false);
        // A copy that stays is removed by the next process that drops it.
        let _ = self.file.drop_copy();
    }
}

impl Inode {
    /// Tells whether parts of the file may have no space yet.
    #[must_use]
    pub fn has_holes(&self) -> bool {
        self.shared().flags.load(Ordering::Acquire) & format::FLAG_HOLES != 0
    }

    /// Gets space on all members for what of `start..end` lies within the file: stores through a
    /// mapping cannot ask for it.
    pub fn provide(&self, start: u64, end: u64) -> Result<(), OsError> {
        if !self.has_holes() {
            return Ok(());
        }
        self.files.array().before_change()?;
        self.change_size_locked(|size| {
            let end = end.min(size);
            if start < end { self.fill_holes(start, end) } else { Ok(()) }
        })
    }

    /// Tells whether the file's level keeps copies or parity that must follow stores.
    #[must_use]
    pub const fn has_redundancy(&self) -> bool {
        self.geometry.copy_count() > 1 || self.geometry.level().parity_count() > 0
    }

    /// Tells whether stores through mappings have to go by way of a shared copy, as they do with a
    /// journal and parity. Otherwise they would reach the members before the journal, and a member that
    /// is lost in a crash would take along bytes of the stripe that nobody was writing.
    #[must_use]
    pub fn stores_into_copy(&self) -> bool {
        self.files.has_journal() && self.geometry.level().parity_count() > 0
    }

    /// Reads a file with writable mappings: from its shared copy if it has one, else from the copies
    /// where stores land.
    ///
    /// # Safety
    /// As [`array::Striper::read`].
    #[cold]
    pub(crate) unsafe fn read_mapped(&self, offset: u64, dst: *mut u8, bytes: usize, rot: &mut Rot) -> Result<(), IoFault> {
        if let Some(copy) = self.copy().map_err(IoFault::Os)? {
            // SAFETY: as the caller promises.
            return unsafe { self.read_copy(&copy, offset, dst, bytes) };
        }
        // SAFETY: as above.
        unsafe { self.read_members(&self.striper(self.out_for_stores()), offset, dst, bytes, rot) }
    }

    /// Returns the members that are out and, on levels with copies, also those on which stores
    /// through mappings do not land.
    pub(crate) fn out_for_stores(&self) -> MemberSet {
        let out = self.out();
        if self.geometry.copy_count() > 1 { self.all_but_primaries(out) } else { out }
    }

    /// Returns `out`, and the members of all copies of every column but the first copy in use.
    fn all_but_primaries(&self, out: MemberSet) -> MemberSet {
        let geometry = &self.geometry;
        let primaries = (0..geometry.data_columns()).filter_map(|column| self.primary(0, column, out));
        let kept = primaries.fold(MemberSet::EMPTY, MemberSet::with);
        MemberSet::first(geometry.member_count()).minus(kept).union(out)
    }

    /// Returns the member on which a column's stores through mappings land: that of the first copy
    /// in use. None if all copies are out.
    pub(crate) fn primary(&self, stripe: u64, column: usize, out: MemberSet) -> Option<usize> {
        let slot = |copy| self.geometry.data_slot(stripe, column, copy);
        (0..self.geometry.copy_count()).map(slot).find(|&slot| !out.contains(slot))
    }

    fn follow(&self, ranges: impl IntoIterator<Item = (u64, u64)>) -> Result<(), OsError> {
        self.files.array().before_change()?;
        let block_bytes = self.geometry.lock_block_bytes();
        let mut parts = Parts::new();
        for (start, end) in ranges {
            let mut at = start;
            while at < end {
                // What lies behind the end, however long it is, is one part.
                let is_behind = at >= self.size().next_multiple_of(PAGE);
                let stop = if is_behind { end } else { end.min((at / block_bytes + 1) * block_bytes) };
                parts.add(at, stop, Blocks::of(&self.geometry, at, stop - at).mask());
                if parts.are_enough() {
                    self.follow_parts(&parts)?;
                    parts = Parts::new();
                }
                at = stop;
            }
        }
        self.follow_parts(&parts)?;
        self.touch();
        // A member that went out meanwhile lacks some of what was followed: that goes on record.
        self.files.array().before_change()
    }

    fn follow_parts(&self, parts: &Parts) -> Result<(), OsError> {
        if parts.count == 0 {
            return Ok(());
        }
        let held = self.lock_masked(parts.locks)?;
        // What lies behind the end in the last page counts, too: its parity must fit, whatever was
        // stored there.
        let size = self.size();
        let last_page_end = size.next_multiple_of(PAGE);
        let mut is_cut = false;
        for &(start, end) in &parts.list[..parts.count] {
            is_cut |= end > last_page_end;
            let end = end.min(last_page_end);
            if start >= end {
                continue;
            }
            if self.has_holes() {
                self.fill_holes(start, end)?;
            }
            match self.copy()? {
                // A lock block need not be whole pages, so this part may begin behind the end.
                Some(copy) => self.store_copy(&copy, start, end.min(size).saturating_sub(start) as usize)?,
                None => {
                    self.write_back(start, end);
                    self.resync(start, end - start)?;
                }
            }
        }
        if is_cut && !self.is_copied() {
            // The file was cut and the process that stored has not heard of it. Where backing files
            // reach further than the file (whole stripes, space taken in advance), what was stored
            // behind the end is there, and the tracking of pages does not name it again.
            self.leave_tail();
            drop(held);
            return self.clear_behind_end();
        }
        drop(held);
        Ok(())
    }

    /// Writes what was stored through mappings in `start..end` back from the processor's caches, if
    /// stores do not outlive a loss of power otherwise.
    fn write_back(&self, start: u64, end: u64) {
        if self.files.kernels().flush() != persist::Flush::Needed {
            return;
        }
        let mut at = start;
        while at < end {
            let Some((slot, offset, bytes)) = self.run_at(at, end) else { return };
            let span = self.backing.get(slot).and_then(|backing| medium::Medium::span(backing.as_ref()?, offset));
            if let Some(span) = span.filter(|span| span.bytes as u64 >= bytes) {
                // SAFETY: the span is mapped for that long; the closure owns nothing. A member that
                // faults is found by the resync that follows.
                let _ = unsafe { guard(|| persist::write_back(span.start.as_ptr(), bytes as usize)) };
            }
            at += bytes;
        }
    }

    /// Zeroes what a mapping may have stored behind the end, in the last page. The size lock is
    /// held; `size` is the size. A process that may not store into the file does nothing: its own
    /// mappings have stored nothing, and every process that stores through mappings calls this.
    pub(crate) fn zero_tail(&self, size: u64) -> Result<(), OsError> {
        let end = size.next_multiple_of(PAGE);
        if size == end || !self.writable || self.shared().mapped.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let held = self.lock_stripes(Blocks::of(&self.geometry, size, end - size))?;
        self.announce(LaneKind::Write, size, end - size, self.out())?;
        let result = self.zero(size, end - size);
        drop(held);
        result
    }

    /// Counts the file's records of writable mappings anew. The open-files lock is held.
    fn count_mapped(&self) {
        let count = self.files.array().runtime().mapped().of(self.key()).count();
        self.shared().mapped.store(count as u32, Ordering::Release);
    }

    /// Makes zeros of what was stored behind the end of the file by a process that had not heard yet
    /// that the file was cut.
    fn clear_behind_end(&self) -> Result<(), OsError> {
        self.files.array().before_change()?;
        self.shared().tail_unfinished.store(1, Ordering::Release);
        self.with_size_locked(|size| self.zero_tail(size))
    }

    /// Asks the other processes that have mappings of the file to look at it, because it was cut.
    /// Returns when all have answered, or when one does not answer.
    pub fn call_others(&self) {
        if self.is_mapped_by_others() {
            self.call(Whom::All, None);
        }
    }

    /// Asks the other processes that store to the file through mappings to follow all that they
    /// have stored. Returns when all have answered, or when one does not answer.
    ///
    /// # Errors
    /// That of a process that could not follow all.
    pub fn call_writers(&self) -> Result<(), OsError> {
        if self.records_of_others().next().is_none() {
            return Ok(());
        }
        self.call(Whom::Writers, None);
        let failure = || self.records_of_others().find_map(|(record, _)| record.failure());
        if failure().is_some() {
            // A process that has died leaves its record until somebody has followed the rest.
            self.finish_mappings()?;
        }
        failure().map_or(Ok(()), Err)
    }

    /// Returns the number of the last call to processes with mappings of the file
    /// ([`Self::call_others`], [`Self::call_writers`]). A process that takes this number first and
    /// then looks at the file has answered all calls up to it.
    #[must_use]
    pub fn last_call(&self) -> u32 {
        self.shared().calls.load(Ordering::Acquire)
    }

    /// Returns the number of the last call ([`Self::last_call`]), and the epoch of the members'
    /// states. While both stay as they are, mappings of the file have nothing new to show.
    #[must_use]
    pub fn news(&self) -> (u32, u64) {
        (self.last_call(), self.files.array().runtime().epoch())
    }

    fn is_mapped_by_others(&self) -> bool {
        self.files.array().runtime().is_shown_by_others(self.entry) || self.records_of_others().next().is_some()
    }

    pub(crate) fn records_of_others(&self) -> impl Iterator<Item = (&MappedRecord, OwnerId)> {
        let runtime = self.files.array().runtime();
        let any = self.shared().mapped.load(Ordering::Acquire) != 0;
        let records = any.then(|| runtime.mapped().of(self.key()));
        records.into_iter().flatten().filter(|&(_, owner)| owner != runtime.me())
    }

    /// Rings the bell and waits for the answers of `whom`. Calls that other processes make meanwhile
    /// are answered in `own`, this process' record, if it is given.
    fn call(&self, whom: Whom, own: Option<&MappedRecord>) {
        let (shared, runtime) = (self.shared(), self.files.array().runtime());
        let call = shared.calls.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        let rings = runtime.ring();
        // A process that has looked at all of its mappings has looked at those of this file; one
        // that waits here itself answers in its record only.
        let answers = |record: &MappedRecord, owner| record.has_answered(call) || runtime.has_heard(owner, rings);
        for step in 0..ANSWER_STEPS {
            let waits = |record: &MappedRecord, owner| !answers(record, owner) && (step < DOUBT_STEP || runtime.is_alive(owner));
            if let Some(own) = own {
                own.answer(shared.calls.load(Ordering::Acquire));
            }
            let has_come = |who| self.records_of_others().any(|(record, owner)| owner == who && record.has_answered(call));
            let writers_wait = self.records_of_others().any(|(record, owner)| waits(record, owner));
            let readers_wait = || runtime.unheard_by(Some(self.entry), rings).any(|who| !has_come(who));
            if !(writers_wait || whom == Whom::All && readers_wait()) {
                break;
            }
            let _ = sys::rustix::thread::nanosleep(&ANSWER_STEP);
        }
        if self.records_of_others().any(|(record, owner)| !answers(record, owner) && !runtime.is_alive(owner)) {
            // A dead process is not to be waited for again. If what it left cannot be made good now,
            // the next process that calls tries again.
            let _ = self.finish_mappings();
        }
    }

    /// Asks all processes to take their mappings of the file off the members, so that a shared copy
    /// can be made; with `wanted` false, takes that back.
    pub fn want_copy(&self, wanted: bool) {
        self.shared().copy_wanted.store(u32::from(wanted), Ordering::Release);
        if wanted {
            self.files.array().runtime().ring();
        }
    }

    /// Whether a process asks for a shared copy of the file.
    #[must_use]
    pub fn is_copy_wanted(&self) -> bool {
        self.shared().copy_wanted.load(Ordering::Acquire) != 0
    }

    fn record_index(&self, record: &MappedRecord) -> u32 {
        self.files.array().runtime().mapped().index_of(record)
    }

    /// Frees a record of this process whose range has been followed. `left` says that the record was
    /// that of a process that has died.
    fn give_back(&self, record: &MappedRecord, left: bool) {
        let _ = self.files.array().before_change().and_then(|()| {
            self.with_size_locked(|size| {
                self.zero_tail(size)?;
                let flags = self.shared().flags.load(Ordering::Acquire);
                // A process that maps the file now sets the flag again after this lock, if it must.
                let only = self.shared().mapped.load(Ordering::Acquire) == 1;
                if only && flags & format::FLAG_MAPPED != 0 {
                    self.change_flags(0, format::FLAG_MAPPED);
                }
                Ok(())
            })
        });
        if let Some(lane) = record.lane() {
            self.clear_lane(lane, record);
        }
        if left {
            let owners = self.files.array().runtime().lanes();
            intent::reserved(owners, self.record_index(record)).for_each(|lane| self.clear_lane(lane, record));
        }
        self.files.array().runtime().with_open_files(|_| {
            record.free();
            self.count_mapped();
        });
    }

    /// Makes good what processes left that died with writable mappings of this file.
    pub(crate) fn finish_mappings(&self) -> Result<(), OsError> {
        if !self.shared().is_mapped() || !self.writable {
            return Ok(());
        }
        if self.shared().mapped.load(Ordering::Acquire) == 0 {
            // The last process with mappings died before it had removed the shared copy.
            return self.drop_copy();
        }
        let runtime = self.files.array().runtime();
        let is_left = |owner| owner != runtime.me() && !runtime.is_alive(owner);
        loop {
            let left = runtime.with_open_files(|_| {
                let (record, owner) = runtime.mapped().of(self.key()).find(|(_, owner)| is_left(*owner))?;
                record.claim(runtime.me());
                Some((record, owner))
            });
            let Some((record, owner)) = left else { return Ok(()) };
            let (start, end) = record.range();
            if start < end
                && let Err(error) = self.follow_left(start, end)
            {
                // The dead process owns the record again, so that the next process tries it again.
                runtime.with_open_files(|_| record.claim(owner));
                return Err(error);
            }
            self.give_back(record, true);
            // A copy that stays is removed by the next process that drops it.
            let _ = self.drop_copy();
        }
    }

    /// Follows a range of a dead process' record, all of which may have been stored to. Nothing was
    /// stored to holes, and they stay holes.
    fn follow_left(&self, start: u64, end: u64) -> Result<(), OsError> {
        self.clear_behind_end()?;
        let block_bytes = self.geometry.lock_block_bytes();
        let mut at = start;
        while at < end {
            match self.next_mapped_data(at)? {
                Some(found) => at = at.max(found / PAGE * PAGE),
                None => return Ok(()),
            }
            if at >= end {
                return Ok(());
            }
            let stop = end.min((at / block_bytes + 1) * block_bytes);
            self.follow([(at, stop)])?;
            at = stop;
        }
        Ok(())
    }

    /// Returns where the next data begin, at or after `at`, in what stores through mappings land on;
    /// None if there are none.
    fn next_mapped_data(&self, at: u64) -> Result<Option<u64>, OsError> {
        let found = match self.copy()? {
            Some(copy) => sys::rustix::fs::seek(copy.fd()?, sys::rustix::fs::SeekFrom::Data(at)),
            None if self.has_holes() => self.seek_extent(at, true),
            // The range or the size may be any number, if somebody has damaged it.
            None => {
                return Ok(self
                    .data_from(at)
                    .unwrap_or(Some(at))
                    .filter(|&found| found < self.size())
                    .map(|found| found.max(at)));
            }
        };
        match found {
            Ok(found) => Ok(Some(found)),
            Err(OsError::NXIO) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Clears a lane of mappings on the members and gives it back.
    fn clear_lane(&self, lane: usize, record: &MappedRecord) {
        let (owners, index) = (self.files.array().runtime().lanes(), self.record_index(record));
        // A process that died while it gave the lane back may have come so far that the lane is
        // somebody else's by now.
        if intent::is_reserved(owners, lane, index) {
            // A lane that still names something costs a needless resync after a crash, no more.
            let _ = self.announce_in(lane, LaneKind::Clean, 0, 0, self.out());
            intent::release(owners, lane, index);
        }
    }

    /// Puts a change into a lane of this thread or of mappings on every member in use.
    #[inline]
    pub(crate) fn announce_in(
        &self,
        lane: usize,
        kind: LaneKind,
        offset: u64,
        length: u64,
        out: MemberSet,
    ) -> Result<(), OsError> {
        let (lanes, me) = (self.files.lanes(), self.files.array().runtime().me());
        let change = Change { kind, inode: self.number, generation: self.generation, offset, length };
        let mut members = MemberSet::first(self.backing.len()).minus(out);
        loop {
            // SAFETY: the lane is ours, and the closure owns nothing.
            let Err(fault) = (unsafe { guard(|| lanes.announce(lane, me, &change, members)) }) else { return Ok(()) };
            let slot = lanes.member_at(fault.address).ok_or(OsError::IO)?;
            self.files.array().fail_member(slot)?;
            self.files.array().before_change()?;
            // The members behind the one that failed have nothing yet.
            members = members.without(slot);
        }
    }
}
