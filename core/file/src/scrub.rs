//! A scrub of one file: all copies and parities are read and compared, while programs write. On
//! request the scrub mends what does not fit.
//!
//! Looking takes no lock in the common case. A comparison counts if no writer had the lock of its
//! block meanwhile, which the locks' sequence counts tell, as they tell readers. So writers are not
//! held up, and a scrub that is killed leaves no lock to be inherited. Only a block that writers do
//! not leave alone is compared under its lock.
//!
//! Invariants:
//! - Bytes that wait to be made good are no mismatch: bytes that wait for a resync, bytes that a
//!   dead process left, and bytes that others have stored through mappings and not followed yet.
//!   They are made good first where this process may do that, and otherwise count as not settled.
//! - A unit is mended under its lock, after it has been looked at once more. A member that is known
//!   to be wrong gets what the others say. Where nothing says which member is wrong, parity and
//!   later copies are made from the data, as by resync.
//! - A process that inherits the lock of a killed scrub must not make parity from the data, which
//!   would make the wrong member's bytes right. So the runtime segment has a record
//!   (core/array/src/undo.rs), which says that the lock's owner only looks, or what the unit is to
//!   be that is being stored. After a crash of the machine the unit has one wrong member as before,
//!   since no lane names it.

use crate::inode::Inode;
use crate::stripes::{Blocks, Snapshot};
use alloc::vec::Vec;
use array::{IoFault, Mismatch, Striper, Undo, UndoRecord, Verdict};
use core::ops::Range;
use core::sync::atomic::Ordering;
use format::LaneKind;
use layout::Place;
use medium::Medium;
use sys::OsError;
use units::{MemberSet, Slot};

/// About how many bytes of a file are compared at a time.
const STEP_BYTES: u64 = 1 << 20;
/// How often a look that met a writer is repeated before the lock is taken.
const TRY_COUNT: u32 = 4;
/// How often those that store through mappings are asked to follow before what they have not
/// followed counts as not settled.
const FOLLOW_COUNT: u32 = 4;

/// What became of a unit that did not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mended {
    /// The unit was not to be mended, or could not be.
    No,
    /// The wrong members got what the others say.
    Rewritten,
    /// Parity, or later copies, were made from the data.
    Recomputed,
    /// The unit was right when it was looked at again.
    AlreadyRight,
    /// The right bytes could not be stored.
    Failed(OsError),
}

/// What a scrub is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScrubMode {
    /// To tell what does not fit.
    Check,
    /// To tell what does not fit, also where bytes wait for resync. The file is opened as it is for
    /// this: the first process to open it for writing would make these bytes agree, and nobody
    /// would hear that they did not.
    CheckWaiting,
    /// To mend what does not fit.
    Repair,
    /// To mend units whose wrong member is known, also where bytes wait for resync, and to leave
    /// the others to the resync.
    RepairWaiting,
}

impl ScrubMode {
    const fn is_before_resync(self) -> bool {
        matches!(self, Self::CheckWaiting | Self::RepairWaiting)
    }
}

/// What a scrub of a file calls.
pub struct Watch<'a> {
    /// Called with each unit that does not fit, and with what became of it.
    pub found: &'a mut dyn FnMut(&Mismatch, Mended),
    /// Called after each step with the bytes that were compared and the bytes of holes. If it
    /// returns false the scrub ends.
    pub goes_on: &'a mut dyn FnMut(u64, u64) -> bool,
}

/// What a scrub of a file has looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Scrubbed {
    /// Bytes of the file that were compared.
    pub bytes: u64,
    /// Bytes of units that did not fit, perhaps only because something waits to be made good there.
    pub unsettled_bytes: u64,
    /// Members whose bytes were not compared: they are out, or have lost the file's bytes.
    pub out: MemberSet,
}

/// What a look at a range came to.
struct Look {
    found: Vec<Mismatch>,
    /// Where the look ended: before the end of the range if the file ended there.
    end: u64,
}

impl Inode {
    /// Compares everything that members in use hold of the file, up to the size that it has now.
    ///
    /// # Errors
    /// `IO` if more members failed than the level bears, or the file's redundancy is on members
    /// that are out; what the kernel says.
    pub fn scrub(&self, mode: ScrubMode, watch: &mut Watch<'_>) -> Result<Scrubbed, OsError> {
        // Units that do not fit because of stores that cannot be followed now count as not settled.
        let _ = self.finish_mappings();
        if self.has_sums {
            self.ready_sums()?;
        }
        let (end, block) = (self.size(), self.geometry.lock_block_bytes());
        let step = STEP_BYTES.next_multiple_of(block);
        let mut scrubbed = Scrubbed { out: self.out(), ..Scrubbed::default() };
        let mut at = 0;
        while at < end.min(self.size()) {
            let mut hole = 0;
            if self.has_holes() || at % step == 0 {
                // If members cannot tell holes, all counts as data.
                let data = self.data_from(at).unwrap_or(Some(at)).map_or(end, |data| data.min(end) / block * block);
                hole = data.saturating_sub(at);
                at = at.max(data);
            }
            let stop = end.min((at / step + 1) * step);
            let mut reached = at;
            if at < stop {
                let look = self.look_settled(at..stop, mode, &mut scrubbed)?;
                reached = look.end.max(at);
                if look.found.is_empty() && at < reached {
                    self.seal(at..reached)?;
                }
                scrubbed.unsettled_bytes += self.judge(&look.found, mode, watch);
                scrubbed.bytes += reached - at;
            }
            if !(watch.goes_on)(reached - at, hole) {
                break;
            }
            if reached < stop {
                // The file was cut.
                break;
            }
            at = stop;
        }
        let behind = self.look_behind_end()?;
        scrubbed.unsettled_bytes += self.judge(&behind, mode, watch);
        scrubbed.out = scrubbed.out.union(self.out());
        Ok(scrubbed)
    }

    /// Mends and tells what does not fit. Returns the bytes of what is not settled any more.
    fn judge(&self, found: &[Mismatch], mode: ScrubMode, watch: &mut Watch<'_>) -> u64 {
        let mut unsettled_bytes = 0;
        for mismatch in found {
            let can_mend = match mode {
                ScrubMode::Check | ScrubMode::CheckWaiting => false,
                ScrubMode::Repair => true,
                ScrubMode::RepairWaiting => matches!(mismatch.verdict, Verdict::Located(_)),
            };
            match if can_mend { self.mend(mismatch, mode) } else { Some(Mended::No) } {
                None => unsettled_bytes += mismatch.file.end - mismatch.file.start,
                Some(Mended::AlreadyRight) => {}
                Some(mended) => (watch.found)(mismatch, mended),
            }
        }
        unsettled_bytes
    }

    /// Compares what copies hold behind the end of the file. There the chunks of the last stripe,
    /// which reach as far as its first chunk does, are to be zeros. On levels with parity these
    /// bytes are compared together with their rows.
    fn look_behind_end(&self) -> Result<Vec<Mismatch>, OsError> {
        let (shared, geometry) = (self.shared(), &self.geometry);
        if geometry.copy_count() == 1 || !geometry.level().has_chunks() {
            return Ok(Vec::new());
        }
        let (stripe, chunk) = (geometry.stripe_bytes(), geometry.chunk().bytes());
        for _ in 0..TRY_COUNT {
            let size = shared.size();
            let first = size / stripe * stripe;
            if first == size || !self.records_are_quiet() {
                break;
            }
            let reach = (size - first).min(chunk);
            let Some(snapshot) = Snapshot::take(shared, Blocks::of(geometry, first, stripe)) else { continue };
            let chunks = (0..geometry.data_columns() as u64).map(|column| first + column * chunk);
            let behind = chunks.map(|start| start.max(size)..start + reach).filter(|range| range.start < range.end);
            let found: Result<Vec<Vec<Mismatch>>, IoFault> = behind.map(|range| self.compare(range)).collect();
            if snapshot.is_current(shared) && shared.size() == size {
                match found {
                    Ok(found) => return Ok(found.concat()),
                    Err(fault) => self.after_fault(fault)?,
                }
            }
        }
        // The file is growing: what is behind its end is looked at when it has come to rest.
        Ok(Vec::new())
    }

    /// Whether no other process has a record of mappings of the file, no dead process has left its
    /// end unfinished, and nothing in it waits for resync.
    fn records_are_quiet(&self) -> bool {
        let shared = self.shared();
        self.records_of_others().next().is_none()
            && shared.tail_unfinished.load(Ordering::Acquire) == 0
            && shared.resync_waits.load(Ordering::Acquire) == 0
    }

    /// Looks at a range and returns what does not fit and is settled. Bytes that are not settled
    /// are added to `scrubbed`.
    fn look_settled(&self, range: Range<u64>, mode: ScrubMode, scrubbed: &mut Scrubbed) -> Result<Look, OsError> {
        let mut look = self.look(range.clone())?;
        for _ in 0..FOLLOW_COUNT {
            if !look.found.iter().any(|mismatch| self.is_stored_to(&mismatch.file)) {
                break;
            }
            // What could not be followed stays a mismatch.
            let _ = self.call_writers();
            look = self.look(range.clone())?;
        }
        look.found.retain(|mismatch| {
            let is_settled = self.is_settled(&mismatch.file, mode);
            if !is_settled {
                scrubbed.unsettled_bytes += mismatch.file.end - mismatch.file.start;
            }
            is_settled
        });
        Ok(look)
    }

    /// Whether nobody is to make a unit fit that does not: neither who stores to it past the locks,
    /// nor a resync.
    fn is_settled(&self, file: &Range<u64>, mode: ScrubMode) -> bool {
        !self.is_stored_to(file) && !self.waits(file, mode)
    }

    /// Whether another process has a mapping by which it may store to the stripes of a unit past
    /// the locks.
    fn is_stored_to(&self, file: &Range<u64>) -> bool {
        let stripe = self.geometry.stripe_bytes();
        let (start, end) = (file.start / stripe * stripe, file.end.next_multiple_of(stripe));
        self.records_of_others().any(|(record, _)| {
            let (first, last) = record.range();
            record.is_direct() && first < end && start < last
        })
    }

    /// Whether bytes of a range wait for resync, or a dead process has left a stripe there
    /// unfinished.
    fn waits(&self, file: &Range<u64>, mode: ScrubMode) -> bool {
        let shared = self.shared();
        let mask = Blocks::of(&self.geometry, file.start, (file.end - file.start).max(1)).mask();
        let waits_for_resync = !mode.is_before_resync() && shared.resync_waits.load(Ordering::Acquire) != 0;
        waits_for_resync || shared.stripes_unfinished.load(Ordering::Acquire) & mask != 0
    }

    fn look(&self, range: Range<u64>) -> Result<Look, OsError> {
        let shared = self.shared();
        let block = self.geometry.lock_block_bytes();
        for attempt in 0..TRY_COUNT {
            let end = range.end.min(shared.size());
            if range.start >= end {
                return Ok(Look { found: Vec::new(), end: range.start });
            }
            if let Some(snapshot) = Snapshot::take(shared, Blocks::of(&self.geometry, range.start, end - range.start)) {
                let found = self.compare(range.start..end);
                // What a writer did meanwhile may be why it does not fit, or failed.
                if snapshot.is_current(shared) && shared.size() >= end {
                    match found {
                        Ok(found) => return Ok(Look { found, end }),
                        Err(fault) => self.after_fault(fault)?,
                    }
                }
            }
            if attempt > 0 {
                sys::rustix::thread::sched_yield();
            }
        }
        if range.end - range.start > block {
            return self.look_by_blocks(range);
        }
        self.holding_to_look(Blocks::of(&self.geometry, range.start, range.end - range.start), |_| {
            loop {
                let end = range.end.min(shared.size());
                if range.start >= end {
                    return Ok(Look { found: Vec::new(), end: range.start });
                }
                match self.compare(range.start..end) {
                    Ok(found) => return Ok(Look { found, end }),
                    Err(fault) => self.after_fault(fault)?,
                }
            }
        })
    }

    /// Runs `act` with the locks of `blocks` held. `act` stores nothing under them but what it
    /// notes in the record that it gets.
    fn holding_to_look<T>(
        &self,
        blocks: Blocks,
        act: impl FnOnce(Option<UndoRecord<'_>>) -> Result<T, OsError>,
    ) -> Result<T, OsError> {
        // The record is taken before the locks, since that may be a system call. Without a record,
        // a process that inherits the locks makes parity from the data.
        let undo = self.files.array().runtime().take_undo(self.key()).ok().flatten();
        let record = undo.as_ref().map(Undo::record);
        let held = self.lock_stripes(blocks)?;
        if let Some(record) = record {
            record.arm_looking(held.mask());
        }
        let result = act(record);
        if let Some(record) = record {
            record.disarm();
        }
        drop(held);
        result
    }

    /// Looks at a range block by block, because writers are at work somewhere in it.
    fn look_by_blocks(&self, range: Range<u64>) -> Result<Look, OsError> {
        let block = self.geometry.lock_block_bytes();
        let mut whole = Look { found: Vec::new(), end: range.start };
        while whole.end < range.end {
            let stop = range.end.min((whole.end / block + 1) * block);
            let part = self.look(whole.end..stop)?;
            whole.found.extend(part.found);
            whole.end = part.end;
            if part.end < stop {
                break;
            }
        }
        Ok(whole)
    }

    fn compare(&self, range: Range<u64>) -> Result<Vec<Mismatch>, IoFault> {
        let (striper, bytes) = (self.striper(self.out()), range.end - range.start);
        let fits = striper.verify(range.start, bytes)? == 0;
        if !self.believes_sums() {
            return if fits { Ok(Vec::new()) } else { striper.examine(range.start, bytes) };
        }
        self.refresh_allocations();
        let by_sums = striper.examine_sums(range.start, bytes)?;
        let mut found = if fits { Vec::new() } else { striper.examine(range.start, bytes)? };
        // Sums know better.
        let length = |unit: &Mismatch| unit.file.end - unit.file.start;
        let meet = |a: &Mismatch, b: &Mismatch| {
            a.member_offset < b.member_offset + length(b) && b.member_offset < a.member_offset + length(a)
        };
        found.retain(|unit| !by_sums.iter().any(|other| meet(unit, other)));
        found.extend(by_sums);
        found.sort_by_key(|unit| unit.file.start);
        Ok(found)
    }

    /// Gives sums to blocks of a range that have none, where redundancy fits. What cannot be sealed
    /// now is left to the next scrub.
    fn seal(&self, range: Range<u64>) -> Result<(), OsError> {
        let bytes = range.end - range.start;
        if !self.may_seal() || self.striper(self.out()).is_sealed(range.start, bytes).unwrap_or(true) {
            return Ok(());
        }
        self.files.array().before_change()?;
        let block = self.geometry.lock_block_bytes();
        let mut at = range.start;
        while at < range.end {
            let stop = range.end.min((at / block + 1) * block);
            self.with_lanes(|| {
                self.holding_to_look(Blocks::of(&self.geometry, at, stop - at), |_| {
                    let end = stop.min(self.size());
                    if at >= end || !self.may_seal() {
                        return Ok(());
                    }
                    let sealed = self
                        .compare(at..end)
                        .and_then(|found| if found.is_empty() { self.striper(self.out()).seal(at, end - at) } else { Ok(()) });
                    sealed.or_else(|fault| self.after_fault(fault))
                })
            })?;
            at = stop;
        }
        Ok(())
    }

    /// Mends a unit. None: it is not settled any more.
    ///
    /// The size lock is not held: a process that inherited it from a scrub that was killed would
    /// make the last stripe's parity from its data, which may be what is wrong. So a process that
    /// begins to store past the stripe locks after this has asked for such processes, and before
    /// the unit is rewritten, is not held off.
    fn mend(&self, mismatch: &Mismatch, mode: ScrubMode) -> Option<Mended> {
        self.with_lanes(|| self.mend_locked(mismatch, mode)).unwrap_or_else(|error| Some(Mended::Failed(error)))
    }

    fn mend_locked(&self, mismatch: &Mismatch, mode: ScrubMode) -> Result<Option<Mended>, OsError> {
        if !self.writable {
            return Err(OsError::ACCESS);
        }
        self.files.array().before_change()?;
        let (start, bytes) = (mismatch.rows, mismatch.file.end - mismatch.file.start);
        self.holding_to_look(Blocks::of(&self.geometry, start, bytes), |record| {
            let end = start + bytes;
            if mismatch.member_offset + bytes > self.geometry.member_bytes(self.size()) {
                // The file was cut.
                return Ok(Some(Mended::AlreadyRight));
            }
            if !self.is_settled(&mismatch.file, mode) {
                return Ok(None);
            }
            let found = loop {
                match self.compare(start..end) {
                    Ok(found) => break found,
                    Err(fault) => self.after_fault(fault)?,
                }
            };
            let Some(present) = found.into_iter().find(|present| present.member_offset == mismatch.member_offset) else {
                return Ok(Some(Mended::AlreadyRight));
            };
            let is_located = |mismatch: &Mismatch| matches!(mismatch.verdict, Verdict::Located(_));
            if is_located(mismatch) && !is_located(&present) {
                // A member that knew which one is wrong is gone. New redundancy would make the
                // wrong bytes right for good.
                return Ok(Some(Mended::No));
            }
            if self.has_holes() {
                self.fill_holes(start, end)?;
            }
            let mended = match &present.verdict {
                Verdict::Located(wrong) => {
                    for (slot, _, right) in wrong {
                        self.rewrite(*slot, present.member_offset, right, record)?;
                    }
                    Mended::Rewritten
                }
                Verdict::Sums(slots) => {
                    let mended = self.striper(self.out()).mend_sums(slots, present.member_offset);
                    mended.or_else(|fault| self.after_fault(fault).and(Err(OsError::IO)))?;
                    Mended::Rewritten
                }
                Verdict::Rotten(_) => return Ok(Some(Mended::No)),
                Verdict::Unknown | Verdict::Several => {
                    if let Some(record) = record {
                        // A process that inherits the lock from now on is to go on with the resync.
                        record.disarm();
                    }
                    self.announce(LaneKind::Write, start, end - start, self.out())?;
                    self.clear_behind_end_in(&present)?;
                    self.resync(start, end - start)?;
                    Mended::Recomputed
                }
            };
            self.on_members(|backing| backing.persist(present.member_offset, bytes))?;
            Ok(Some(mended))
        })
    }

    /// Stores zeros to what a unit that does not fit has behind the end of the file, whatever is
    /// there: no byte but zero is right there. The stripes are locked and have space.
    fn clear_behind_end_in(&self, unit: &Mismatch) -> Result<(), OsError> {
        let (geometry, size) = (&self.geometry, self.size());
        if !geometry.level().has_chunks() {
            return Ok(());
        }
        let (place, bytes) = (geometry.locate(unit.rows), unit.file.end - unit.file.start);
        let columns =
            if geometry.level().parity_count() > 0 { 0..geometry.data_columns() } else { place.column..place.column + 1 };
        for column in columns {
            let start = geometry.offset_of(Place { column, ..place });
            let before = size.saturating_sub(start);
            if before >= bytes {
                continue;
            }
            let zeros = alloc::vec![0; (bytes - before) as usize];
            for slot in (0..geometry.copy_count()).map(|copy| geometry.data_slot(place.stripe, column, copy)) {
                if !self.out().contains(slot) {
                    self.rewrite(slot, unit.member_offset + before, &zeros, None)?;
                }
            }
        }
        Ok(())
    }

    fn rewrite(&self, slot: Slot, member_offset: u64, right: &[u8], record: Option<UndoRecord<'_>>) -> Result<(), OsError> {
        let striper = Striper { undo: record, ..self.striper(self.out()) };
        match striper.mend(slot, member_offset, right) {
            Ok(()) => Ok(()),
            // Either the member is out now, or the unit stays as it was.
            Err(fault) => self.after_fault(fault).and(Err(OsError::IO)),
        }
    }
}
