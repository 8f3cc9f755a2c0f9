//! After a crash: the inode tables of all members are made the same, and the ranges that lanes name
//! are noted for resync.
//!
//! Recovery runs before any file is opened, in the process that has the array alone. It looks at
//! tables only, never at the tree: about 0.1 µs per file. A crash in the middle of it is no
//! different from the one before: lanes are emptied only when all that they name is durable in the
//! inode table, and each record is put right by itself.
//!
//! A member that is away is put on record before a record of another member is made to agree. A
//! note that bytes wait for resync is stored without that: the lanes of the member that is away
//! name the same bytes, and are looked at when it comes back.
//!
//! [`format::judge`] says which record is right where members differ.

use crate::files::Files;
use crate::rebuild::NO_BYTES;
use crate::table::{InodeTable, open_tables};
use array::Array;
use dax::{Backing, PersistenceDomain};
use format::{Attribute, FLAG_SLACK, INODE_RECORD_BYTES, InodeState, LANE_COUNT, LaneKind, LaneRecord, Resync, STATE_OFFSET};
use intent::NameLog;
use persist::fault::guard;
use sys::OsError;
use units::{MemberSet, Slot};

/// Records that are compared under one guard.
const BATCH_COUNT: usize = 1024;

impl Files {
    /// Makes the tables whole, and notes what the lanes name.
    pub(crate) fn recover_tables(&self) -> Result<(), OsError> {
        let (array, table) = (self.array(), self.table());
        let volatile_order = self.domains().contains(&PersistenceDomain::PageCache);
        table.renew(array, volatile_order)?;
        table.equal_lengths(array)?;
        table.upgrade(array)?;
        table.each_odd(array, |number, _| table.make_equal(array, number, volatile_order))?;
        self.recover_journal()?;
        for lane in 0..LANE_COUNT {
            self.note_lane(lane);
        }
        if volatile_order && array.runtime().is_after_crash() {
            self.note_all()?;
        }
        table.persist_all(array)?;
        for slot in self.lanes().clear(array.in_use()).iter() {
            array.fail_member(slot)?;
        }
        for slot in self.lanes().persist(array.in_use()).iter() {
            array.fail_member(slot)?;
        }
        Ok(())
    }

    /// Tells whether this process has made the tables whole after what may have been a crash of the
    /// machine.
    #[must_use]
    pub const fn had_crash(&self) -> bool {
        self.had_crash
    }

    /// Notes every file for resync: a page cache writes back in an order of its own, lanes too, so
    /// any file may disagree, and a member may have again what a cut took away.
    pub(crate) fn note_all(&self) -> Result<(), OsError> {
        let (array, table) = (self.array(), self.table());
        let mut next = 1;
        while let Some(run) = table.next_run(array, next)? {
            next = run.end;
            for number in run {
                let Ok(Some(record)) = table.load(array, number) else { continue };
                table.change_flags(array, number, FLAG_SLACK, 0, |_| {});
                if record.size > 0 && record.geometry().level() != layout::Level::Raid0 {
                    table.add_resync(array, number, Resync { start: 0, end: record.size, lost: MemberSet::EMPTY });
                }
            }
        }
        Ok(())
    }

    /// Frees the records of files that were open without a name when their processes died. Nobody
    /// has a file open.
    ///
    /// That is no change of which a member has to hear that is away and not on record as that, as
    /// where programs only read without it: it would be stale for what nobody misses. When it is
    /// back its records are freed by the start that finds it, and none of the numbers has been given
    /// to another file before its absence was recorded.
    pub fn free_orphans(&self) -> Result<(), OsError> {
        let (array, table) = (self.array(), self.table());
        let is_recorded = array.runtime().out_unrecorded().is_empty();
        table.each_odd(array, |number, state| {
            if state == InodeState::Orphan.code() {
                if is_recorded {
                    array.before_change()?;
                }
                table.free(array, number);
            }
            Ok(())
        })
    }

    /// The log of names, as far as members have one.
    pub fn open_name_log(&self) -> Result<NameLog<Backing>, OsError> {
        open_tables(self.array(), format::TableKind::Names, format::NAMES_FILE)
            .map(|files| NameLog::new(files, self.kernels().flush()))
    }

    /// The state of a file's record; None if the record is free or another file's.
    #[must_use]
    pub fn state_of(&self, attribute: Attribute) -> Option<InodeState> {
        let record = self.table().load(self.array(), attribute.inode).ok()??;
        (record.generation == attribute.generation).then_some(record.state)
    }

    /// Tells whether a file's record is free, or another file's.
    ///
    /// # Errors
    /// Those of reading the record.
    pub fn is_free(&self, attribute: Attribute) -> Result<bool, OsError> {
        let record = self.table().load(self.array(), attribute.inode)?;
        Ok(record.is_none_or(|record| record.generation != attribute.generation))
    }

    /// Notes that a file without a name has one, or that the log of names has it: a new one, or one
    /// that was being linked when a crash came.
    pub fn has_name(&self, attribute: Attribute) {
        self.table().set_state(self.array(), attribute.inode, InodeState::Used);
    }

    /// Notes that a member has lost what it held of a file, if that can be computed from the others
    /// and nobody has the file open.
    #[must_use]
    pub fn note_lost(&self, attribute: Attribute, slot: Slot) -> bool {
        let lost = MemberSet::EMPTY.with(slot);
        let Ok(Some(record)) = self.table().load(self.array(), attribute.inode) else { return false };
        // With more lost than the file bears, what was noted before could not be computed any more
        // either.
        let noted = record.resync.map_or(MemberSet::EMPTY, |resync| resync.lost);
        let can = record.generation == attribute.generation
            && self.shared_if_open(attribute).is_none()
            && record.geometry().survives(self.array().runtime().out().union(noted).union(lost));
        if !can {
            return false;
        }
        self.table().add_resync(self.array(), attribute.inode, Resync { lost, ..NO_BYTES });
        // Should a crash keep the backing file that the member is given now, and not the note, its
        // zeros would pass for data.
        self.table().persist_note(self.array(), attribute.inode).is_ok()
    }

    /// Puts what a lane names where it is not forgotten when the lane is used again.
    #[cold]
    pub(crate) fn note_lane(&self, lane: usize) {
        let array = self.array();
        let Some(LaneRecord { kind, inode, generation, offset, length, .. }) = self.lanes().record(lane, array.in_use()) else {
            return;
        };
        let Ok(Some(record)) = self.table().load(array, inode) else { return };
        // What the journal has a record of is replayed from there, if there was anything to it.
        let journaled = kind == LaneKind::Journaled && self.journal().is_some();
        if record.generation != generation || length == 0 || journaled {
            return;
        }
        let end = offset.saturating_add(length);
        if kind == LaneKind::Truncate || end > record.size {
            // What lies behind the end may be something else than zeros, also where the file did
            // not have to get space.
            self.table().change_flags(array, inode, FLAG_SLACK, 0, |_| {});
        }
        self.table().add_resync(array, inode, Resync { start: offset, end, lost: MemberSet::EMPTY });
    }
}

impl InodeTable {
    /// Calls `visit` with the number of every record that is not the same on all members in use,
    /// does not fit its checks, or is an orphan's, and its state on the lowest.
    pub(crate) fn each_odd(&self, array: &Array, mut visit: impl FnMut(u64, u8) -> Result<(), OsError>) -> Result<(), OsError> {
        let mut next = 1;
        while let Some(run) = self.next_run(array, next)? {
            let mut number = run.start;
            while number < run.end {
                let mut odd = [(0u16, 0u8); BATCH_COUNT];
                self.map_record(array, number)?;
                let (batch, found) = match self.find_odd(array, number, run.end - 1, &mut odd) {
                    Ok(result) => result,
                    Err(slot) => {
                        array.fail_member(slot)?;
                        continue;
                    }
                };
                for &(index, state) in &odd[..found] {
                    visit(number + u64::from(index), state)?;
                }
                number += batch as u64;
            }
            next = run.end;
        }
        Ok(())
    }

    /// Compares a batch of the records up to `last`. Returns how many were compared and how many
    /// are odd, or the member whose memory failed.
    fn find_odd(
        &self,
        array: &Array,
        number: u64,
        last: u64,
        odd: &mut [(u16, u8); BATCH_COUNT],
    ) -> Result<(usize, usize), Slot> {
        let mut places = [core::ptr::null::<u64>(); units::MEMBER_COUNT_MAX];
        let (mut place_count, mut batch) = (0, BATCH_COUNT.min((last - number + 1) as usize));
        for slot in array.in_use().iter() {
            let (place, bytes) = self.run(slot, number).ok_or(slot)?;
            places[place_count] = place;
            place_count += 1;
            batch = batch.min(bytes / INODE_RECORD_BYTES);
        }
        let (places, odd) = (&places[..place_count], odd.as_mut_ptr());
        const WORDS: usize = INODE_RECORD_BYTES / 8;
        let mut found = 0;
        let find = || {
            for index in 0..batch {
                // SAFETY: every place is mapped for `batch` records; nobody changes them: the
                // process is alone, or they are atomics.
                let word = |place: *const u64, word: usize| unsafe { place.add(index * WORDS + word).read_volatile() };
                let state = word(places[0], STATE_OFFSET / 8).to_le_bytes()[STATE_OFFSET % 8];
                let mut first = [0; INODE_RECORD_BYTES];
                for at in 0..WORDS {
                    first[8 * at..][..8].copy_from_slice(&word(places[0], at).to_le_bytes());
                }
                // A crash may have cut a change short on all members in the same place.
                let is_broken = format::bad_part(number + index as u64, &first).is_some();
                let differ = (0..WORDS).any(|at| places[1..].iter().any(|&place| word(place, at) != word(places[0], at)));
                if differ || is_broken || state == InodeState::Orphan.code() {
                    // SAFETY: at most one entry per record of the batch.
                    unsafe { odd.add(found).write((index as u16, state)) };
                    found += 1;
                }
            }
        };
        // SAFETY: the closure owns nothing.
        match unsafe { guard(find) } {
            Ok(()) => Ok((batch, found)),
            Err(fault) => Err(self.member_at(fault.address).or(array.in_use().lowest()).unwrap_or(0)),
        }
    }
}
