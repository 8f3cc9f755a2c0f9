//! Journaled writes, and the replay of those that a death or a crash cut short.
//!
//! The order of a write, under the stripe locks of its range: payload, announced in the
//! write-intent lane, committed, in place, size, settled; see docs/crash-consistency.md. Once a
//! record is committed, only its payload is read, so a member that fails from then on is left out
//! and nothing is done twice.
//!
//! Invariants:
//! - A process that holds a stripe lock finds at most one record that is not settled for a byte
//!   that the lock guards, and only one whose writer is dead: it is replayed before anything else.
//! - A lane is given back when its record is settled. If the record cannot be settled, nobody gets
//!   the lane (`JOURNAL_LANE_WAITS`).
//! - Two processes that inherited locks of one record replay it one after the other; the second
//!   finds it settled.

use crate::files::Files;
use crate::inode::{Inode, key};
use crate::stripes::Blocks;
use crate::table::InodeTable;
use alloc::vec::Vec;
use array::runtime::JOURNAL_LANE_WAITS;
use array::{Array, IoFault};
use core::sync::atomic::{AtomicU64, Ordering};
use dax::{Access, Backing, PersistenceDomain};
use format::{Attribute, FLAG_SLACK, JOURNAL_DATA_BYTES_MAX, JournalRecord, LaneKind, Resync};
use intent::Journal;
use medium::Medium;
use persist::fault::guard;
use sync::Liveness;
use sys::OsError;
use units::{MemberSet, Slot};

/// The array's journal as this process has it open.
pub(crate) struct FileJournal {
    lanes: Journal<Backing>,
    /// Whether its pages, or those of a member, are written back in an order of the kernel's: after
    /// a crash it is not believed.
    volatile_order: bool,
}

/// What a journaled write is part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum After {
    /// It announces its range, and the file ends after it if it was shorter.
    FileEnds,
    /// A larger change that has announced it and sees to the size.
    NothingElse,
    /// A larger change that has announced the range and sees to the size. Whole stripes become a
    /// hole.
    Hole,
}

/// A record that waits to be replayed.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// The file.
    pub attribute: Attribute,
    /// The first byte of it that is written.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// The journal's files, each with the member it is on.
type JournalFiles = Vec<(Option<Slot>, Backing)>;

/// The files of the journal, opened but not yet looked at, and their domain.
pub(crate) fn open(array: &Array) -> Result<(JournalFiles, PersistenceDomain), OsError> {
    let Some(journal) = array.journal() else { return Ok((Vec::new(), PersistenceDomain::Volatile)) };
    if let Some(opened) = journal.open() {
        let (file, directory) = opened?;
        let domain = dax::detect(sys::AsFd::as_fd(&directory));
        let file = Backing::new(sys::high_fd::raise(file)?, Access::ReadWrite, domain);
        return Ok((alloc::vec![(None, file)], domain));
    }
    let mut domain = PersistenceDomain::Volatile;
    let mut files = Vec::new();
    for slot in journal.holders.iter() {
        let (file, found) = match crate::table::open_journal(&array.members()[slot]) {
            Err(error) if array.has_member_failed(slot, error) => {
                array.spare(slot, error)?;
                continue;
            }
            result => result?,
        };
        // What cannot be mapped for want of its file system is left to the other holder.
        if file.span(0).is_none() && crate::table::why_unmapped(&file) == OsError::IO {
            array.fail_member(slot)?;
            continue;
        }
        if found != PersistenceDomain::Volatile {
            domain = found;
        }
        files.push((Some(slot), file));
    }
    Ok((files, domain))
}

impl FileJournal {
    /// The journal of `array` in `files`.
    pub(crate) fn new(
        array: &Array,
        files: JournalFiles,
        kernels: &'static persist::Kernels,
        volatile_order: bool,
    ) -> Result<Option<Self>, OsError> {
        let Some(journal) = array.journal() else { return Ok(None) };
        let lanes = Journal::new(journal.header, files, kernels).ok_or(OsError::NOMEM)?;
        Ok(Some(Self { lanes, volatile_order }))
    }
}

impl Files {
    fn lane_word(&self, lane: usize) -> &AtomicU64 {
        &self.array().runtime().journal_lanes()[lane].0
    }

    /// How many lanes the journal has; 0 without one.
    pub(crate) fn journal_lane_count(&self) -> usize {
        self.journal().map_or(0, |journal| journal.lanes.lane_count())
    }

    /// Whether the array has a journal.
    #[must_use]
    pub const fn has_journal(&self) -> bool {
        self.journal().is_some()
    }

    /// What waits to be replayed.
    #[must_use]
    pub fn waiting_records(&self) -> Vec<Waiting> {
        let shown = |record: JournalRecord| Waiting {
            attribute: Attribute { inode: record.inode, generation: record.generation },
            offset: record.offset,
            bytes: record.length as u64,
        };
        self.pending(|word| word == JOURNAL_LANE_WAITS).map(shown).collect()
    }

    /// The records that are not settled, of lanes whose words are such.
    fn pending(&self, is_such: impl Fn(u64) -> bool) -> impl Iterator<Item = JournalRecord> {
        let is_looked_at = move |lane: &usize| is_such(self.lane_word(*lane).load(Ordering::Acquire));
        let lanes = self.journal().map(|journal| &journal.lanes);
        let record = move |lane| lanes?.pending(lane, self.array().runtime().out());
        (0..lanes.map_or(0, |lanes| lanes.lane_count())).filter(is_looked_at).filter_map(record)
    }

    /// The size that a file which nobody has open will have once it is opened and what the journal
    /// has of it is replayed; `size` is what the inode table says. (Who had it open died, or the
    /// machine crashed: a lane of a process that lives has no record of it.)
    pub(crate) fn size_to_be(&self, attribute: Attribute, size: u64) -> u64 {
        let grows = |record: &JournalRecord| record.grows && record.is_of(attribute.inode, attribute.generation);
        self.pending(|word| word != 0).filter(grows).map(|record| record.end()).fold(size, u64::max)
    }

    /// Frees what waits for files that are gone.
    pub fn forget_gone_records(&self) -> Result<(), OsError> {
        self.journal().map_or(Ok(()), |journal| self.reclaim_lanes(journal, None).map(|_| ()))
    }

    /// Gives up what waits in the journal: redundancy of it is to follow the data as that is; of
    /// every file's, if the journal is `lost`. The caller is alone, has no file open, and makes a
    /// new journal next. Returns how many records were given up, as far as that can be told.
    pub fn give_up_journal(&self, lost: bool) -> Result<usize, OsError> {
        let (array, waiting) = (self.array(), self.waiting_records());
        for record in &waiting {
            let end = record.offset + record.bytes;
            let noted = Resync { start: record.offset, end, lost: MemberSet::EMPTY };
            self.table().add_resync(array, record.attribute.inode, noted);
        }
        if lost {
            self.note_all()?;
        }
        self.table().persist_all(array)?;
        array.runtime().renew_journal();
        Ok(waiting.len())
    }

    /// After a crash or deaths, alone: lanes whose record is not settled are kept for the first
    /// open of its file.
    pub(crate) fn recover_journal(&self) -> Result<(), OsError> {
        let Some(journal) = self.journal() else { return Ok(()) };
        let (array, lanes) = (self.array(), &journal.lanes);
        let believed = !(journal.volatile_order && array.runtime().is_after_crash());
        for lane in 0..lanes.lane_count() {
            let Some(record) = lanes.pending(lane, array.runtime().out()) else {
                self.free_settled_lane(journal, lane)?;
                continue;
            };
            if !believed || self.table().is_gone(array, &record) {
                self.settle_lane(journal, lane, record.sequence)?;
                self.free_settled_lane(journal, lane)?;
                continue;
            }
            while !lanes.equalise(lane, &record, array.runtime().out()) {
                self.lane_failed(journal, lane, record.payload_bytes)?;
            }
            if let Ok(Some(found)) = self.table().load(array, record.inode)
                && record.end() > found.size
            {
                self.table().change_flags(array, record.inode, FLAG_SLACK, 0, |_| {});
            }
            self.lane_word(lane).store(JOURNAL_LANE_WAITS, Ordering::Release);
        }
        if lanes.persist(array.runtime().out()) { Ok(()) } else { Err(OsError::IO) }
    }

    /// Whether something of a file waits in the journal to be replayed.
    pub(crate) fn waits_in_journal(&self, attribute: Attribute) -> bool {
        self.journal().is_some() && self.waiting_records().iter().any(|waiting| waiting.attribute == attribute)
    }

    /// Stores that a lane's record is in place.
    fn settle_lane(&self, journal: &FileJournal, lane: usize, sequence: u64) -> Result<(), OsError> {
        // SAFETY: the lane is the caller's; the closure owns nothing.
        unsafe { self.settle_by(journal, lane, |out| journal.lanes.settle(lane, sequence, out)) }
    }

    /// Stores that the record of a process that is gone is in place.
    fn settle_replayed(&self, journal: &FileJournal, lane: usize, sequence: u64) -> Result<(), OsError> {
        // SAFETY: the record waits, so nobody takes the lane before; the closure owns nothing.
        unsafe { self.settle_by(journal, lane, |out| journal.lanes.settle_at_least(lane, sequence, out)) }
    }

    /// Runs `settle` in a guard, until no copy's memory fails.
    ///
    /// # Safety
    /// `settle` owns nothing and may be left anywhere.
    #[inline]
    unsafe fn settle_by(&self, journal: &FileJournal, lane: usize, settle: impl Fn(MemberSet)) -> Result<(), OsError> {
        loop {
            let out = self.array().runtime().out();
            // SAFETY: as the caller promises.
            if unsafe { guard(|| settle(out)) }.is_ok() {
                return Ok(());
            }
            self.lane_failed(journal, lane, 0)?;
        }
    }

    /// Makes all copies of a lane the same in which nothing waits, and that nobody may take, and
    /// gives the lane back.
    #[cold]
    fn free_settled_lane(&self, journal: &FileJournal, lane: usize) -> Result<(), OsError> {
        while !journal.lanes.settle_everywhere(lane, self.array().runtime().out()) {
            self.lane_failed(journal, lane, 0)?;
        }
        self.lane_word(lane).store(0, Ordering::Release);
        Ok(())
    }

    /// Finds whose memory failed when a lane was used. A member goes out; a journal elsewhere is
    /// given up until the operator says what is to be done. Ok if the lane can be used on what is
    /// left.
    #[cold]
    fn lane_failed(&self, journal: &FileJournal, lane: usize, payload_bytes: usize) -> Result<(), OsError> {
        let array = self.array();
        match journal.lanes.probe(lane, payload_bytes, array.runtime().out()) {
            Ok(()) => Ok(()),
            Err(Some(slot)) => {
                array.fail_member(slot)?;
                array.before_change()
            }
            Err(None) => {
                array.runtime().fail_journal();
                Err(OsError::IO)
            }
        }
    }

    /// A lane for the calling thread.
    #[inline]
    fn take_lane(&self, journal: &FileJournal, inode: &Inode) -> Result<usize, OsError> {
        let runtime = self.array().runtime();
        if runtime.journal_has_failed() {
            return Err(OsError::IO);
        }
        let preferred = sys::thread::block().lane.load(Ordering::Relaxed) as usize;
        let is_left = |owner| !runtime.is_alive(owner);
        let is_whole = |lane| journal.lanes.pending(lane, runtime.out()).is_none();
        // A copy that fails now fails again when the lane is used.
        let inherit = |lane| _ = journal.lanes.settle_everywhere(lane, runtime.out());
        let take = || journal.lanes.take(|lane| self.lane_word(lane), runtime.me(), preferred, is_left, is_whole, inherit);
        match take() {
            Ok(lane) => Ok(lane),
            Err(_) if self.reclaim_lanes(journal, Some(inode))? => take().map_err(|_| OsError::IO),
            Err(_) => Err(OsError::IO),
        }
    }

    /// Frees lanes whose records wait for files that are gone, and replays those of `inode` and, as
    /// far as that does not take waiting, of other files that are open here. Returns whether there
    /// were any.
    ///
    /// The stripe locks of such a record are not needed: the dead have them, or somebody who
    /// inherited them and has to come by here first.
    #[cold]
    fn reclaim_lanes(&self, journal: &FileJournal, inode: Option<&Inode>) -> Result<bool, OsError> {
        self.array().runtime().with_journal(|| {
            let mut found = false;
            for lane in 0..journal.lanes.lane_count() {
                let waits = self.lane_word(lane).load(Ordering::Acquire) == JOURNAL_LANE_WAITS;
                let Some(record) = journal.lanes.pending(lane, self.array().runtime().out()).filter(|_| waits) else {
                    continue;
                };
                if self.table().is_gone(self.array(), &record) {
                    self.settle_lane(journal, lane, record.sequence)?;
                    self.free_settled_lane(journal, lane)?;
                } else if let Some(inode) = inode.filter(|inode| inode.is_of(&record)) {
                    inode.replay(journal, lane, &record)?;
                } else if let Some(other) = self.open_if_free(key(record.inode, record.generation)).filter(|other| other.writable)
                {
                    other.replay(journal, lane, &record)?;
                } else {
                    continue;
                }
                found = true;
            }
            Ok(found)
        })
    }
}

impl InodeTable {
    /// Whether the file that a record is about does not exist any more.
    fn is_gone(&self, array: &Array, record: &JournalRecord) -> bool {
        matches!(self.load(array, record.inode), Ok(found) if found.is_none_or(|found| found.generation != record.generation))
    }
}

impl Inode {
    /// Stores `bytes` from `src` (zeros if null), in pieces each of which is old or new after a
    /// death or a crash. The stripes are locked, the space is there.
    ///
    /// # Safety
    /// As [`Self::store_directly`].
    #[inline(never)]
    pub(crate) unsafe fn store_journaled(
        &self,
        journal: &FileJournal,
        offset: u64,
        src: *const u8,
        bytes: usize,
        after: After,
    ) -> Result<(), OsError> {
        if bytes > JOURNAL_DATA_BYTES_MAX && !src.is_null() {
            // A bad pointer is to be found before the first piece makes the file grow.
            // SAFETY: as the caller promises.
            unsafe { self.striper(self.out()).probe_source(src, bytes) }.or_else(|fault| self.after_fault(fault))?;
        }
        let mut done = 0;
        while done < bytes {
            let step = (bytes - done).min(JOURNAL_DATA_BYTES_MAX);
            let src = if src.is_null() { src } else { src.wrapping_add(done) };
            // SAFETY: as above.
            unsafe { self.store_piece(journal, offset + done as u64, src, step, after) }?;
            done += step;
        }
        Ok(())
    }

    #[inline]
    unsafe fn store_piece(
        &self,
        journal: &FileJournal,
        offset: u64,
        src: *const u8,
        bytes: usize,
        after: After,
    ) -> Result<(), OsError> {
        let lane = self.files.take_lane(journal, self)?;
        // SAFETY: as the caller promises.
        let committed = unsafe { self.commit(journal, lane, offset, src, bytes, after) };
        let record = committed.inspect_err(|_| self.leave_lane(journal, lane))?;
        let result = self.complete(journal, lane, &record);
        if result.is_err() {
            self.leave_record(&record);
            self.files.lane_word(lane).store(JOURNAL_LANE_WAITS, Ordering::Release);
        } else if self.files.settle_lane(journal, lane, record.sequence).is_ok() {
            self.files.lane_word(lane).store(0, Ordering::Release);
        } else {
            // A journal that fails now fails the next write.
            self.leave_lane(journal, lane);
        }
        result
    }

    /// Gives a lane back whose record could not be settled or, after an error, may be committed. If
    /// it may, nobody gets the lane until the record is replayed, which its stripes' next user does
    /// first: another payload under a record that waits would be replayed in its place. The stripes
    /// are locked.
    #[cold]
    fn leave_lane(&self, journal: &FileJournal, lane: usize) {
        let runtime = self.files.array().runtime();
        // If every copy is out, each may be used again one day.
        let out = if journal.lanes.payload(lane, runtime.out()).is_none() { MemberSet::EMPTY } else { runtime.out() };
        // Nobody gets a lane of a journal that has failed.
        let waits = if runtime.journal_has_failed() { None } else { journal.lanes.pending(lane, out) };
        if let Some(record) = &waits {
            self.leave_record(record);
        }
        self.files.lane_word(lane).store(if waits.is_some() { JOURNAL_LANE_WAITS } else { 0 }, Ordering::Release);
    }

    /// Leaves a record that is committed and not in place to whoever locks its stripes next, as if
    /// this process had died: it is put in place before anything newer is stored there. The stripes
    /// are locked.
    #[cold]
    fn leave_record(&self, record: &JournalRecord) {
        let shared = self.shared();
        if record.grows {
            shared.tail_unfinished.store(1, Ordering::Relaxed);
        }
        let mask = Blocks::of(&self.geometry, record.offset, record.length as u64).mask();
        shared.stripes_unfinished.fetch_or(mask, Ordering::Relaxed);
    }

    /// Makes holes of whole stripes, up to 4 GiB at a time. A death or a crash in the middle is
    /// made good by doing it again: with a member lost in it, what is left of a stripe with holes
    /// on some members only would be the sum of what nobody wrote. The stripes are locked, the
    /// range is announced.
    #[cold]
    pub(crate) fn punch_journaled(&self, journal: &FileJournal, mut first: u64, last: u64) -> Result<(), OsError> {
        let stripe = self.geometry.stripe_bytes();
        let most = u64::from(u32::MAX) / stripe * stripe;
        while first < last {
            let stop = last.min(first + most);
            let lane = self.files.take_lane(journal, self)?;
            // SAFETY: nothing is read.
            let committed = unsafe { self.commit(journal, lane, first, core::ptr::null(), (stop - first) as usize, After::Hole) };
            let result = committed.and_then(|record| {
                let punched = self.punch_stripes(first, stop);
                // With an error redundancy follows what there is, and it is not to be done again
                // over what others store there.
                self.files.settle_lane(journal, lane, record.sequence).and(punched)
            });
            if result.is_ok() {
                self.files.lane_word(lane).store(0, Ordering::Release);
            } else {
                self.leave_lane(journal, lane);
            }
            result?;
            first = stop;
        }
        Ok(())
    }

    /// Makes the payload, announces the range and commits. With an error nothing is in place, and
    /// nothing committed.
    #[inline]
    unsafe fn commit(
        &self,
        journal: &FileJournal,
        lane: usize,
        offset: u64,
        src: *const u8,
        bytes: usize,
        after: After,
    ) -> Result<JournalRecord, OsError> {
        let lanes = &journal.lanes;
        loop {
            let out = self.out();
            let striper = self.striper(out);
            let payload_bytes = if after == After::Hole { 0 } else { striper.redo_bytes(offset, bytes) };
            let payload = lanes.payload(lane, out).ok_or(OsError::IO)?;
            debug_assert!(lanes.fits(payload_bytes));
            let made = match after {
                After::Hole => Ok(()),
                // SAFETY: the lane is ours and holds that much; the source is as the caller
                // promises.
                _ => unsafe { striper.make_redo(offset, src, bytes, payload) },
            };
            match made {
                Ok(()) => {}
                Err(IoFault::BadAddress) => {
                    // Either the program's pointer or the journal.
                    let before = self.out();
                    self.files.lane_failed(journal, lane, payload_bytes)?;
                    if self.out() == before {
                        return Err(OsError::FAULT);
                    }
                    continue;
                }
                Err(fault) => {
                    self.after_fault(fault)?;
                    self.files.array().before_change()?;
                    continue;
                }
            }
            let (inode, generation, grows) = (self.number, self.generation, after == After::FileEnds);
            let mut record = JournalRecord { inode, generation, offset, length: bytes, payload_bytes, out, grows, sequence: 0 };
            // SAFETY: the lane is ours; the closure owns nothing.
            let mut stored = unsafe { guard(|| lanes.copy_payload(lane, payload_bytes, out)) };
            if stored.is_ok() {
                // Its fence is the payload's too.
                match after {
                    After::FileEnds => self.announce(LaneKind::Journaled, offset, bytes as u64, out)?,
                    After::NothingElse | After::Hole => persist::fence(),
                }
                let committed = &mut record;
                // SAFETY: as above; what the lane held is settled, or it would not be ours.
                stored = unsafe { guard(|| lanes.commit(lane, committed, out)) };
            }
            if stored.is_ok() {
                return Ok(record);
            }
            // What may be committed on some copies is void: nothing of it is in place.
            self.files.lane_failed(journal, lane, payload_bytes)?;
            if let Some(record) = lanes.pending(lane, self.out()) {
                self.files.settle_lane(journal, lane, record.sequence)?;
            }
        }
    }

    /// Puts a committed record in place. With an error it waits to be replayed.
    #[inline]
    fn complete(&self, journal: &FileJournal, lane: usize, record: &JournalRecord) -> Result<(), OsError> {
        loop {
            let out = self.out();
            let payload = journal.lanes.payload(lane, out).ok_or(OsError::IO)?;
            match self.put(record, out, payload) {
                Ok(()) => break,
                Err(IoFault::BadAddress) => {
                    if let Err(error) = self.files.lane_failed(journal, lane, record.payload_bytes) {
                        // The journal is gone, and what is half in place stays so: at least
                        // redundancy fits.
                        let _ = self.resync(record.offset, record.length as u64);
                        return Err(error);
                    }
                }
                Err(fault) => {
                    self.after_fault(fault)?;
                    // The member that failed goes on record before the write is done without it.
                    self.files.array().before_change()?;
                }
            }
        }
        persist::fence();
        if record.grows && record.end() > self.size() {
            self.set_size(record.end());
        }
        Ok(())
    }

    #[inline]
    fn put(&self, record: &JournalRecord, out: MemberSet, payload: *const u8) -> Result<(), IoFault> {
        let striper = self.striper(out.union(record.out));
        // SAFETY: the payload lies in a lane that nobody else uses, as long as the record says.
        unsafe { striper.put_redo(record.offset, record.length, payload) }
    }

    /// Replays what a dead process left in the journal behind the locks of `mask`, which the caller
    /// holds.
    #[cold]
    pub(crate) fn replay_behind(&self, mask: u64) -> Result<(), OsError> {
        let Some(journal) = self.files.journal() else { return Ok(()) };
        for lane in 0..journal.lanes.lane_count() {
            if self.waits_behind(journal, lane, mask).is_none() {
                continue;
            }
            self.files.array().runtime().with_journal(|| match self.waits_behind(journal, lane, mask) {
                Some(record) => self.replay(journal, lane, &record),
                // Another process was faster.
                None => Ok(()),
            })?;
        }
        Ok(())
    }

    /// A record of this file that touches a byte behind the locks of `mask`. They are held, so its
    /// writer is dead.
    fn waits_behind(&self, journal: &FileJournal, lane: usize, mask: u64) -> Option<JournalRecord> {
        let record = journal.lanes.pending(lane, self.files.array().runtime().out())?;
        let touches = || Blocks::of(&self.geometry, record.offset, record.length as u64).mask() & mask != 0;
        (self.is_of(&record) && touches()).then_some(record)
    }

    fn is_of(&self, record: &JournalRecord) -> bool {
        record.is_of(self.number, self.generation)
    }

    /// The journal lock is held, and the record waits.
    fn replay(&self, journal: &FileJournal, lane: usize, record: &JournalRecord) -> Result<(), OsError> {
        let array = self.files.array();
        array.before_change()?;
        if record.is_hole() {
            self.punch_stripes(record.offset, record.end())?;
        } else if self.striper(self.out()).redo_bytes(record.offset, record.length) == record.payload_bytes {
            // A backing file that is shorter than the file asks for has lost bytes. Nothing would
            // show that once it is longer.
            self.leave_out_short_before_replay();
            let wanted = self.geometry.member_bytes(record.end());
            self.on_members(|backing| if backing.bytes()? < wanted { backing.set_len(wanted) } else { Ok(()) })?;
            self.shared().allocated_end.fetch_max(wanted, Ordering::AcqRel);
            self.fill_holes(record.offset, record.end())?;
            loop {
                let out = self.out();
                let payload = journal.lanes.payload_of(lane, record, out).ok_or(OsError::IO)?;
                // Of bytes that are half written no sum is compared.
                let forgotten = self.striper(out).forget_sums(record.offset, record.length as u64);
                match forgotten.and_then(|()| self.put(record, out, payload)) {
                    Ok(()) => break,
                    Err(IoFault::BadAddress) => self.files.lane_failed(journal, lane, record.payload_bytes)?,
                    Err(fault) => {
                        self.after_fault(fault)?;
                        array.before_change()?;
                    }
                }
            }
            let start = self.geometry.member_offset(self.geometry.stripe_of(record.offset));
            let start = if self.geometry.level().has_chunks() { start } else { record.offset };
            // It begins with a fence.
            self.on_members(|backing| backing.persist(start, wanted - start))?;
            if record.grows && record.end() > self.size() {
                self.set_size(record.end());
            }
        }
        // A copy that the writer did not come to gets the record, too: settled alone, it would be a
        // copy of no record. If its memory fails, that is met when it is settled.
        let _ = journal.lanes.equalise(lane, record, self.out());
        // Once it is settled whoever finds the lane to be a dead process' may take it; before, it
        // may be found waiting.
        let word = self.files.lane_word(lane);
        let left = word.load(Ordering::Acquire);
        self.files.settle_replayed(journal, lane, record.sequence)?;
        for left in [left, JOURNAL_LANE_WAITS] {
            let _ = word.compare_exchange(left, 0, Ordering::Release, Ordering::Relaxed);
        }
        Ok(())
    }
}
