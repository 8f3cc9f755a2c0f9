//! The journal in memory: lanes with a record and its payload each, on one or several media.
//!
//! core/file decides when to do what. This module knows where a lane lies, how its record is stored
//! on all copies of the journal, and which copy is to be believed. Everything rests on this order:
//! payload, fence, record, fence, in place, fence, settled.
//!
//! Invariants:
//! - A lane has one user at a time: a thread that writes, or nobody while its record waits to be
//!   replayed (docs/crash-consistency.md).
//! - Before a payload is touched, the record before it is settled on every copy.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use format::{JOURNAL_LANE_HEAD_BYTES, JOURNAL_RECORD_BYTES, JOURNAL_SETTLED_OFFSET, JournalHeader, JournalRecord};
use medium::Medium;
use persist::fault::guard;
use persist::{Flush, Kernels};
use sync::OwnerId;
use sys::rustix::thread::{gettid, sched_yield};
use units::{MemberSet, Slot};

/// The journal of one array.
pub struct Journal<M> {
    header: JournalHeader,
    seed: u64,
    /// One that is not on members, or as many as hold it, ascending by slot.
    copies: Vec<Copy<M>>,
    kernels: &'static Kernels,
}

struct Copy<M> {
    /// The member it is on.
    slot: Option<Slot>,
    file: M,
    /// Where lane 0 lies in memory.
    base: usize,
}

/// Why a lane cannot be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoLane;

impl<M: Medium> Journal<M> {
    /// The journal in these files, with the members they are on. None if one cannot be mapped.
    #[must_use]
    pub fn new(header: JournalHeader, files: Vec<(Option<Slot>, M)>, kernels: &'static Kernels) -> Option<Self> {
        let bytes = header.lane_count * header.lane_bytes;
        let copy = |(slot, file): (Option<Slot>, M)| {
            let span = file.span(header.lane_offset(0)).filter(|span| span.bytes >= bytes)?;
            Some(Copy { slot, file, base: span.start.as_ptr() as usize })
        };
        let copies = files.into_iter().map(copy).collect::<Option<Vec<_>>>()?;
        Some(Self { header, seed: header.seed(), copies, kernels })
    }

    /// How many lanes there are.
    #[must_use]
    pub const fn lane_count(&self) -> usize {
        self.header.lane_count
    }

    /// Takes a lane for the calling thread; `preferred` is tried first. `is_left` tells of an owner
    /// that is not the caller's process whether it is dead, and `is_whole` whether what it left in
    /// the lane need not be replayed; `inherit` sees to such a lane before it is used.
    ///
    /// # Errors
    /// Every lane waits to be replayed; those of dead owners are marked as such.
    #[inline]
    pub fn take<'a>(
        &self,
        word_of: impl Fn(usize) -> &'a AtomicU64,
        me: OwnerId,
        preferred: usize,
        is_left: impl Fn(OwnerId) -> bool,
        is_whole: impl Fn(usize) -> bool,
        inherit: impl Fn(usize),
    ) -> Result<usize, NoLane> {
        let mine = u64::from(me.get()) << 32 | 1;
        let lane = preferred % self.header.lane_count;
        if word_of(lane).compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return Ok(lane);
        }
        self.take_another(word_of, me, lane, is_left, is_whole, inherit)
    }

    #[cold]
    fn take_another<'a>(
        &self,
        word_of: impl Fn(usize) -> &'a AtomicU64,
        me: OwnerId,
        start: usize,
        is_left: impl Fn(OwnerId) -> bool,
        is_whole: impl Fn(usize) -> bool,
        inherit: impl Fn(usize),
    ) -> Result<usize, NoLane> {
        let mine = u64::from(me.get()) << 32 | u64::from(gettid().as_raw_nonzero().get() as u32 | 1);
        for pass in 0.. {
            let mut in_use = false;
            for step in 0..self.header.lane_count {
                let lane = (start + step) % self.header.lane_count;
                let present = word_of(lane).load(Ordering::Relaxed);
                let left = || OwnerId::new((present >> 32) as u32).is_none_or(|owner| owner != me && is_left(owner));
                let next = match present {
                    0 => mine,
                    WAITS => continue,
                    _ if pass > 0 && left() => {
                        if is_whole(lane) {
                            mine
                        } else {
                            WAITS
                        }
                    }
                    _ => {
                        in_use = true;
                        continue;
                    }
                };
                let taken = word_of(lane).compare_exchange(present, next, Ordering::AcqRel, Ordering::Relaxed).is_ok();
                if taken && next == mine {
                    if present != 0 {
                        inherit(lane);
                    }
                    return Ok(lane);
                }
                in_use |= !taken;
            }
            if !in_use {
                break;
            }
            if pass > 0 {
                sched_yield();
            }
        }
        Err(NoLane)
    }

    /// The copies whose members are not out.
    #[inline]
    fn copies_in(&self, out: MemberSet) -> impl Iterator<Item = &Copy<M>> {
        self.copies.iter().filter(move |copy| copy.slot.is_none_or(|slot| !out.contains(slot)))
    }

    /// Where the payload of a lane is made: on the first copy. None if every copy is out.
    #[inline]
    #[must_use]
    pub fn payload(&self, lane: usize, out: MemberSet) -> Option<*mut u8> {
        self.copies_in(out).next().map(|copy| self.line(copy, lane).wrapping_add(JOURNAL_LANE_HEAD_BYTES))
    }

    /// Whether a payload of `bytes` fits.
    #[inline]
    #[must_use]
    pub const fn fits(&self, bytes: usize) -> bool {
        bytes <= self.header.payload_bytes_max()
    }

    #[inline]
    fn line(&self, copy: &Copy<M>, lane: usize) -> *mut u8 {
        (copy.base + lane * self.header.lane_bytes) as *mut u8
    }

    /// Gives every other copy the payload of the first.
    ///
    /// # Safety
    /// Inside a guard; the lane is the caller's.
    #[inline]
    pub unsafe fn copy_payload(&self, lane: usize, bytes: usize, out: MemberSet) {
        let mut copies = self.copies_in(out);
        let Some(first) = copies.next() else { return };
        let from = self.line(first, lane).wrapping_add(JOURNAL_LANE_HEAD_BYTES);
        for copy in copies {
            let to = self.line(copy, lane).wrapping_add(JOURNAL_LANE_HEAD_BYTES);
            // SAFETY: both lie within lanes, whose lengths `new` has checked.
            unsafe { self.kernels.copy_to_media_temporal(to, from, bytes) };
        }
    }

    /// Commits a record whose payload is durable, on every copy, and fences. It gets its sequence.
    ///
    /// # Safety
    /// Inside a guard; the lane is the caller's and what it held is settled.
    #[inline]
    pub unsafe fn commit(&self, lane: usize, record: &mut JournalRecord, out: MemberSet) {
        // SAFETY: the caller's promise.
        let settled = unsafe { self.last_settled(lane, out) };
        record.sequence = settled.wrapping_add(1).max(1);
        let bytes = record.encode(self.seed, settled);
        for copy in self.copies_in(out) {
            // SAFETY: a lane begins with its record; lanes are aligned to pages.
            unsafe { self.store(self.line(copy, lane), &bytes) };
        }
        persist::fence();
    }

    /// The last sequence that any copy has settled. A copy that a member got when it was made anew
    /// may be behind: a record with a sequence after that one alone would look older than what the
    /// other copies hold, and would be settled there from the beginning. A word of ones is what a
    /// device answers that is gone, and counts for nothing.
    ///
    /// # Safety
    /// Inside a guard; the lane is the caller's.
    #[inline]
    unsafe fn last_settled(&self, lane: usize, out: MemberSet) -> u64 {
        // SAFETY: a lane begins with its record.
        let settled = |copy| unsafe { settled_word(self.line(copy, lane)) }.load(Ordering::Relaxed);
        self.copies_in(out).map(settled).filter(|&settled| settled != u64::MAX).max().unwrap_or(0)
    }

    /// Stores a record, where it must leave the caches past them. Otherwise word by word, as lanes
    /// of write-intent are and for the same reason.
    ///
    /// # Safety
    /// `to` is a lane's record.
    #[inline(always)]
    unsafe fn store(&self, to: *mut u8, line: &[u8; JOURNAL_RECORD_BYTES]) {
        if self.kernels.flush() == Flush::Needed {
            // SAFETY: the caller's promise.
            return unsafe { self.kernels.store_line(to, line) };
        }
        for (index, word) in line.as_chunks().0.iter().enumerate() {
            // SAFETY: as above.
            unsafe { to.cast::<u64>().add(index).write_volatile(u64::from_le_bytes(*word)) };
        }
    }

    /// Notes on every copy that what the lane held is in place and durable.
    ///
    /// # Safety
    /// Inside a guard; the lane is the caller's, or its record is and nobody uses it.
    #[inline]
    pub unsafe fn settle(&self, lane: usize, sequence: u64, out: MemberSet) {
        // SAFETY: the caller's promise.
        unsafe { self.settle_by(lane, out, |word| word.store(sequence, Ordering::Release)) };
    }

    /// Does what [`Self::settle`] does for who replays the record of a process that is gone. As soon
    /// as one copy says that it is settled, another process may take the lane, and settle a later
    /// record on all copies before this one comes to the next. What that process has stored stays,
    /// unless it is stored between the two instructions that load and store the word.
    ///
    /// # Safety
    /// Inside a guard; until one copy is settled, nobody but the caller uses the lane.
    pub unsafe fn settle_at_least(&self, lane: usize, sequence: u64, out: MemberSet) {
        // A word of ones is what a device answers that is gone. The word is loaded and then stored,
        // not exchanged: the crash checker records plain stores to members.
        let raise = |word: &AtomicU64| {
            let now = word.load(Ordering::Acquire);
            if now == u64::MAX || now < sequence {
                word.store(sequence, Ordering::Release);
            }
        };
        // SAFETY: the caller's promise.
        unsafe { self.settle_by(lane, out, raise) };
    }

    /// # Safety
    /// As for [`Self::settle`], which says by `note` what the word of each copy is to be.
    #[inline]
    unsafe fn settle_by(&self, lane: usize, out: MemberSet, note: impl Fn(&AtomicU64)) {
        for copy in self.copies_in(out) {
            let line = self.line(copy, lane);
            // SAFETY: a lane begins with its record.
            note(unsafe { settled_word(line) });
            if self.kernels.flush() == Flush::Needed {
                // SAFETY: as above.
                unsafe { persist::write_back(line, JOURNAL_RECORD_BYTES) };
            }
        }
        if self.kernels.flush() == Flush::Needed {
            // Whoever gets the locks next may store over the same bytes: this record must be known
            // to be void before that is durable.
            persist::fence();
        }
    }

    /// Settles on every copy what one copy says is settled, and gives every copy that record: a
    /// death or a crash may have come between them, and a record that only seems to wait has lost
    /// its payload once the lane is used again. Nothing waits in the lane, and it is the caller's.
    /// False if a copy's memory failed.
    #[must_use]
    pub fn settle_everywhere(&self, lane: usize, out: MemberSet) -> bool {
        let found = || self.copies_in(out).map(|copy| self.load(copy, lane));
        let settled = found().flatten().filter(|(_, settled)| *settled).map(|(record, _)| record);
        let Some(last) = settled.max_by_key(|record| record.sequence) else { return true };
        let holds = |found: Option<(JournalRecord, bool)>| found == Some((last, true));
        if found().all(holds) {
            return true;
        }
        let mut line = last.encode(self.seed, last.sequence - 1);
        line[JOURNAL_SETTLED_OFFSET..].copy_from_slice(&last.sequence.to_le_bytes());
        let fill = || {
            // SAFETY: the lane is the caller's; a lane begins with its record.
            unsafe {
                self.settle(lane, last.sequence, out);
                // The word comes before the record, of which a copy may not have the payload: a
                // store that is cut short must not make it look there as if it waited.
                fence(Ordering::Release);
                self.copies_in(out).for_each(|copy| self.store(self.line(copy, lane), &line));
            }
        };
        // SAFETY: the closure owns nothing.
        unsafe { guard(fill) }.is_ok()
    }

    /// What waits in a lane to be replayed: of the whole records on the copies the last, unless a
    /// copy says that it is settled.
    #[must_use]
    pub fn pending(&self, lane: usize, out: MemberSet) -> Option<JournalRecord> {
        let found = self.copies_in(out).filter_map(|copy| self.load(copy, lane));
        let (record, settled) = found.max_by_key(|(record, settled)| (record.sequence, *settled))?;
        (!settled && record.payload_bytes <= self.header.payload_bytes_max()).then_some(record)
    }

    fn load(&self, copy: &Copy<M>, lane: usize) -> Option<(JournalRecord, bool)> {
        let mut bytes = [0u8; JOURNAL_RECORD_BYTES];
        let (line, out) = (self.line(copy, lane), bytes.as_mut_ptr());
        // SAFETY: both are 64 bytes; the closure owns nothing.
        unsafe { guard(|| out.copy_from_nonoverlapping(line, JOURNAL_RECORD_BYTES)) }.ok()?;
        JournalRecord::decode(&bytes, self.seed)
    }

    /// Makes what waits in a lane the same on every copy. False if a copy's memory failed.
    #[must_use]
    pub fn equalise(&self, lane: usize, record: &JournalRecord, out: MemberSet) -> bool {
        let holds = |copy: &&Copy<M>| self.load(copy, lane).is_some_and(|(found, _)| found.sequence == record.sequence);
        let Some(source) = self.copies_in(out).find(holds) else { return false };
        let from = self.line(source, lane);
        let line = record.encode(self.seed, record.sequence - 1);
        self.copies_in(out).filter(|copy| !holds(copy)).all(|copy| {
            let to = self.line(copy, lane);
            let fill = || {
                // SAFETY: lanes of the length that `new` has checked; nobody uses them.
                unsafe {
                    let payload = [from, to].map(|lane| lane.wrapping_add(JOURNAL_LANE_HEAD_BYTES));
                    self.kernels.copy_to_media_temporal(payload[1], payload[0], record.payload_bytes);
                    persist::fence();
                    self.store(to, &line);
                }
            };
            // SAFETY: the closure owns nothing.
            unsafe { guard(fill) }.is_ok()
        })
    }

    /// Where the payload of what waits in a lane can be read: on a copy that has the record.
    #[must_use]
    pub fn payload_of(&self, lane: usize, record: &JournalRecord, out: MemberSet) -> Option<*const u8> {
        let holds = |copy: &&Copy<M>| self.load(copy, lane).is_some_and(|(found, _)| found.sequence == record.sequence);
        let copy = self.copies_in(out).find(holds)?;
        Some(self.line(copy, lane).wrapping_add(JOURNAL_LANE_HEAD_BYTES).cast_const())
    }

    /// Whether every copy can be read and written where a lane's payload of `bytes` lies: after a
    /// fault, whose it was. Some member, or None for a journal that is not on members, where not.
    ///
    /// # Errors
    /// The copy that failed.
    pub fn probe(&self, lane: usize, bytes: usize, out: MemberSet) -> Result<(), Option<Slot>> {
        for copy in self.copies_in(out) {
            let line = self.line(copy, lane);
            let touch = || {
                for at in (0..JOURNAL_LANE_HEAD_BYTES + bytes).step_by(units::PAGE_BYTES) {
                    // SAFETY: within a lane, aligned; the caller has it to itself. A fault leaves
                    // the guard.
                    unsafe { AtomicU64::from_ptr(line.add(at).cast()) }.fetch_or(core::hint::black_box(0), Ordering::Relaxed);
                }
            };
            // SAFETY: the closure owns nothing.
            if unsafe { guard(touch) }.is_err() {
                return Err(copy.slot);
            }
        }
        Ok(())
    }

    /// Makes the records durable where that takes a system call. False if that failed.
    #[must_use]
    pub fn persist(&self, out: MemberSet) -> bool {
        self.copies_in(out).all(|copy| copy.file.persist(0, self.header.file_bytes()).is_ok())
    }
}

/// In a lane's word: its record waits to be replayed (`array::runtime::JOURNAL_LANE_WAITS`).
const WAITS: u64 = u64::MAX;

/// The settled word of the record at `line`.
///
/// # Safety
/// `line` is a lane's record, or the call is inside a guard.
#[inline(always)]
unsafe fn settled_word<'a>(line: *mut u8) -> &'a AtomicU64 {
    // SAFETY: the caller's promise; the word lies at a multiple of 8.
    unsafe { AtomicU64::from_ptr(line.add(JOURNAL_SETTLED_OFFSET).cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::UnsafeCell;
    use core::ptr::NonNull;
    use format::Uuid;
    use medium::Span;
    use sys::OsError;

    #[repr(align(4096))]
    struct Page(UnsafeCell<[u8; 4096]>);

    /// A file that is a piece of memory.
    struct Memory(alloc::boxed::Box<[Page]>);

    impl Medium for Memory {
        fn span(&self, offset: u64) -> Option<Span> {
            let page = self.0.get(offset as usize / 4096)?;
            Some(Span { start: NonNull::new(page.0.get().cast())?, bytes: self.0.len() * 4096 - offset as usize })
        }
        unsafe fn get(&self, _: u64, _: *mut u8, _: usize) -> Result<(), OsError> {
            Err(OsError::NOTSUP)
        }
        unsafe fn put(&self, _: u64, _: *const u8, _: usize) -> Result<(), OsError> {
            Err(OsError::NOTSUP)
        }
        fn allocate(&self, _: u64, _: u64) -> Result<(), OsError> {
            Err(OsError::NOTSUP)
        }
        fn set_len(&self, _: u64) -> Result<(), OsError> {
            Err(OsError::NOTSUP)
        }
        fn punch(&self, _: u64, _: u64) -> Result<(), OsError> {
            Err(OsError::NOTSUP)
        }
        fn persist(&self, _: u64, _: u64) -> Result<(), OsError> {
            Ok(())
        }
        fn owns(&self, _: usize) -> bool {
            false
        }
    }

    fn one(slot: Slot) -> MemberSet {
        MemberSet::EMPTY.with(slot)
    }

    /// A journal of one lane on members 0 and 1, with nothing in it.
    fn on_two() -> Journal<Memory> {
        let header = JournalHeader::new(Uuid([1; 16]), Uuid([2; 16]), 1, 1);
        let pages = header.file_bytes() as usize / 4096;
        let file = || Memory((0..pages).map(|_| Page(UnsafeCell::new([0; 4096]))).collect());
        let files = [0, 1].map(|slot| (Some(slot), file()));
        Journal::new(header, files.into(), persist::kernels()).unwrap()
    }

    impl Journal<Memory> {
        fn record_of(&mut self, copy: usize) -> &mut [u8; JOURNAL_RECORD_BYTES] {
            // SAFETY: the record of the only lane; no other reference to it lives.
            unsafe { &mut *self.line(&self.copies[copy], 0).cast() }
        }

        /// Commits a record on the copies that are not out. Returns its sequence.
        fn commits(&self, out: MemberSet) -> u64 {
            let mut record = JournalRecord {
                inode: 7,
                generation: 1,
                offset: 0,
                length: 100,
                payload_bytes: 128,
                out,
                grows: false,
                sequence: 0,
            };
            // SAFETY: there is no other user, and what the lane held is settled.
            unsafe { self.commit(0, &mut record, out) };
            record.sequence
        }

        fn settles(&self, sequence: u64, out: MemberSet) {
            // SAFETY: there is no other user.
            unsafe { self.settle(0, sequence, out) };
        }
    }

    #[test]
    fn a_record_comes_after_what_any_copy_has_settled() {
        for behind in [0, 1] {
            let mut journal = on_two();
            for sequence in 1..4 {
                assert_eq!(journal.commits(one(behind)), sequence);
                journal.settles(sequence, one(behind));
            }
            let other = 1 - behind;
            let before = *journal.record_of(other);
            assert_eq!(journal.commits(MemberSet::EMPTY), 4);
            // A death between the two copies.
            *journal.record_of(other) = before;
            let waits = |out| journal.pending(0, out).map(|record| record.sequence);
            assert_eq!([MemberSet::EMPTY, one(other), one(behind)].map(waits), [Some(4), Some(4), None]);
            journal.settles(4, MemberSet::EMPTY);
            assert!(journal.settle_everywhere(0, MemberSet::EMPTY));
            assert_eq!([MemberSet::EMPTY, one(other), one(behind)].map(waits), [None; 3]);
        }
    }

    #[test]
    fn a_device_that_answers_ones_does_not_begin_the_sequences_anew() {
        let journal = on_two();
        journal.settles(9, one(1));
        journal.settles(u64::MAX, one(0));
        assert_eq!(journal.commits(MemberSet::EMPTY), 10);
        assert_eq!(journal.pending(0, MemberSet::EMPTY).map(|record| record.sequence), Some(10));
    }

    #[test]
    fn who_settles_late_lowers_nothing() {
        let journal = on_two();
        let first = journal.commits(MemberSet::EMPTY);
        // The replay of the first record has settled copy 0, when another process takes the lane.
        journal.settles(first, one(1));
        let second = journal.commits(MemberSet::EMPTY);
        journal.settles(second, MemberSet::EMPTY);
        // SAFETY: there is no other user.
        unsafe { journal.settle_at_least(0, first, one(0)) };
        for out in [MemberSet::EMPTY, one(0), one(1)] {
            assert_eq!(journal.pending(0, out).map(|record| record.sequence), None);
        }
    }

    #[test]
    fn what_one_copy_has_settled_becomes_every_copys_record() {
        let torn: fn(&mut [u8; JOURNAL_RECORD_BYTES]) = |record| record[3] ^= 1;
        for spoil in [torn, |record| record.fill(0), |record| record[..JOURNAL_SETTLED_OFFSET].fill(0), |_| {}] {
            for copy in [0, 1] {
                let mut journal = on_two();
                let first = journal.commits(MemberSet::EMPTY);
                journal.settles(first, MemberSet::EMPTY);
                // A record that this copy has no settled word of.
                journal.settles(journal.commits(MemberSet::EMPTY), one(copy));
                spoil(journal.record_of(copy));
                assert!(journal.settle_everywhere(0, MemberSet::EMPTY));
                let records = [0, 1].map(|copy| *journal.record_of(copy));
                assert_eq!(records[0], records[1]);
                let (record, is_settled) = JournalRecord::decode(&records[copy], journal.seed).unwrap();
                assert_eq!((record.sequence, is_settled, record.length), (2, true, 100));
            }
        }
    }
}
