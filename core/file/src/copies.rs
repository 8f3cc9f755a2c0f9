//! The copies of one inode record that members have: which of them is right, and how the others are
//! made like it.
//!
//! The fault it exists for: a bit of a record is flipped on one member, or the member's whole table
//! is put back from an older copy or overwritten while programs run. So the lowest member's copy is
//! not believed just because it is the lowest's. All copies are compared at every load. Where they
//! differ, each must fit its checks, and its table's header must be this array's and marked for
//! this use.
//!
//! Invariants: a difference may be a change under way (the members are stored to one after the
//! other), so it is looked at a few times before anything follows from it. A copy is overwritten
//! only while nobody has the file open, with the inode lock held.

use crate::table::{InodeTable, Record, why_unmapped};
use alloc::vec::Vec;
use array::{Array, tables};
use core::sync::atomic::Ordering;
use format::{
    Attribute, CONSTANT, INODE_RECORD_BYTES, InodeRecord, InodeState, Resync, STATE_OFFSET, Sound, TABLE_HEADER_BYTES, TableKind,
    bad_part,
};
use format::{inode_record_offset, inode_table_bytes, is_whole, judge, with_checks};
use medium::Medium;
use persist::fault::guard;
use sys::OsError;
use units::{MemberSet, Slot};

/// How often copies that differ are looked at again.
const LOOK_COUNT: u32 = 100;

impl InodeTable {
    /// Reads and checks a record. None if it is free.
    ///
    /// # Errors
    /// `IO` if no member has a copy that can be used; `NOMEM` if this process has no address space
    /// left to look at them all.
    pub fn load(&self, array: &Array, number: u64) -> Result<Option<InodeRecord>, OsError> {
        match self.load_agreed(array, number).map(|bytes| InodeRecord::decode(number, &bytes)) {
            Some(Ok(record)) => Ok(record),
            _ => InodeRecord::decode(number, &self.load_right(array, number)?).map_err(|_| OsError::IO),
        }
    }

    /// How long the file was whose record is free now and was given to no other file since.
    #[cold]
    pub(crate) fn bytes_of_freed(&self, array: &Array, attribute: Attribute) -> Option<u64> {
        let number = attribute.inode;
        let bytes = self.load_agreed(array, number).or_else(|| self.load_right(array, number).ok())?;
        let is_it = bytes[STATE_OFFSET] == InodeState::Free.code()
            && InodeRecord::generation_of(&bytes) == attribute.generation
            && Sound::of(number, &bytes).size;
        is_it.then(|| InodeRecord::size_of(&bytes))
    }

    /// The record, if all members in use have the same.
    #[inline]
    fn load_agreed(&self, array: &Array, number: u64) -> Option<Record> {
        let mut slots = array.in_use().iter();
        let first = self.load_checked(slots.next()?, number).ok()?;
        slots.all(|slot| self.load_checked(slot, number) == Ok(first)).then_some(first)
    }

    /// A member's copy; from a table of version 1 as if it had checks.
    fn load_checked(&self, slot: Slot, number: u64) -> Result<Record, OsError> {
        let bytes = self.load_bytes(slot, number)?;
        Ok(if self.is_checked(slot) { bytes } else { with_checks(number, bytes) })
    }

    /// The bytes of the record that is right.
    #[cold]
    pub(crate) fn load_right(&self, array: &Array, number: u64) -> Result<Record, OsError> {
        self.map_record(array, number)?;
        for _ in 0..LOOK_COUNT {
            if let Some(bytes) = self.load_agreed(array, number).filter(|bytes| is_whole(number, bytes)) {
                return Ok(bytes);
            }
            core::hint::spin_loop();
        }
        self.expel_replaced(array)?;
        self.judged(array, number, false).ok_or(OsError::IO)
    }

    /// Maps the record of `number` on every member in use, so that whoever changes it then can
    /// store to all of them.
    ///
    /// # Errors
    /// `NOMEM` if this process has no address space left for that, which says nothing of a member.
    #[cold]
    pub(crate) fn map_record(&self, array: &Array, number: u64) -> Result<(), OsError> {
        let has_no_room = |slot| self.address(slot, number) == Err(OsError::NOMEM);
        if array.in_use().iter().any(has_no_room) { Err(OsError::NOMEM) } else { Ok(()) }
    }

    /// What [`judge`] makes of the members' copies.
    pub(crate) fn judged(&self, array: &Array, number: u64, volatile_order: bool) -> Option<Record> {
        let copies: Vec<Record> = array.in_use().iter().filter_map(|slot| self.load_checked(slot, number).ok()).collect();
        judge(number, copies.iter(), volatile_order)
    }

    /// Takes members out whose table is not the one that was opened any more: somebody has
    /// overwritten it.
    fn expel_replaced(&self, array: &Array) -> Result<(), OsError> {
        for slot in array.in_use().iter() {
            if !self.is_in_place(array, slot) {
                array.fail_member(slot)?;
            }
        }
        Ok(())
    }

    fn is_in_place(&self, array: &Array, slot: Slot) -> bool {
        let Some(table) = self.member(slot) else { return false };
        let Some(span) = table.span(0) else { return why_unmapped(table) == OsError::NOMEM };
        let mut header = [0; TABLE_HEADER_BYTES];
        let (start, out) = (span.start.as_ptr(), header.as_mut_ptr());
        // SAFETY: windows are longer than a header; the closure owns nothing.
        let copied = unsafe { guard(|| out.copy_from_nonoverlapping(start, TABLE_HEADER_BYTES)) };
        copied.is_ok() && tables::is_usable(TableKind::Inodes, array.uuid(), array.runtime().use_count(), &header)
    }

    /// What waits for resync by one member's copy, if its notes fit their check.
    pub(crate) fn resync_on(&self, slot: Slot, number: u64) -> Option<Resync> {
        let bytes = self.load_checked(slot, number).ok()?;
        (Sound::of(number, &bytes).notes && bytes[STATE_OFFSET] != InodeState::Free.code())
            .then(|| InodeRecord::resync_of(&bytes))?
    }

    /// What one member's copy says; None if it is free.
    pub(crate) fn load_on(&self, slot: Slot, number: u64) -> Result<Option<InodeRecord>, OsError> {
        InodeRecord::decode(number, &self.load_checked(slot, number)?).map_err(|_| OsError::IO)
    }

    /// Tells whether the copies of a record on the members in use differ, or are all the same and
    /// do not fit their checks.
    #[inline]
    pub(crate) fn is_odd(&self, array: &Array, number: u64) -> bool {
        self.load_agreed(array, number).is_none_or(|bytes| bad_part(number, &bytes).is_some())
    }

    /// Calls `visit` with the number of every record that is odd ([`Self::is_odd`]), and of free ones
    /// that do not fit their checks everywhere, though nothing depends on that.
    pub(crate) fn each_flawed(&self, array: &Array, mut visit: impl FnMut(u64)) -> Result<(), OsError> {
        let is_flawed = |number| {
            let agreed = self.load_agreed(array, number);
            agreed.is_none_or(|bytes| bad_part(number, &bytes).is_some() || !Sound::of(number, &bytes).constant)
        };
        let mut next = 1;
        while let Some(run) = self.next_run(array, next)? {
            run.clone().filter(|&number| is_flawed(number)).for_each(&mut visit);
            next = run.end;
        }
        Ok(())
    }

    /// Makes the copies of all members in use the one that is right. Nobody has the file open, and
    /// nobody opens it meanwhile.
    #[cold]
    pub(crate) fn mend(&self, array: &Array, number: u64) -> Result<(), OsError> {
        array.runtime().with_inodes(|_| self.make_equal(array, number, false))
    }

    /// Gives all members in use the record that is right. The inode lock is held, or the process
    /// has the array alone.
    pub(crate) fn make_equal(&self, array: &Array, number: u64, volatile_order: bool) -> Result<(), OsError> {
        self.map_record(array, number)?;
        // Whole nowhere: left as it is, for people to look at.
        let Some(mut bytes) = self.judged(array, number, volatile_order) else { return Ok(()) };
        let right = InodeRecord::decode(number, &bytes).ok().flatten();
        if let Some(mut record) = right {
            let copies = || {
                let copies = array.in_use().iter().filter_map(|slot| self.load_checked(slot, number).ok());
                let same = copies.filter(|copy| InodeRecord::generation_of(copy) == record.generation);
                same.filter(|copy| Sound::of(number, copy).notes && copy[STATE_OFFSET] != InodeState::Free.code())
            };
            // Where a crash has torn the notes of all copies, those that were judged right stay: a
            // note from before may be in them.
            if copies().next().is_some() {
                record.resync = copies().filter_map(|copy| InodeRecord::resync_of(&copy)).reduce(Resync::union);
            }
            // Each only says that something is to be looked at; a member that was away does not
            // know those noted meanwhile.
            record.flags = copies().fold(record.flags, |flags, copy| flags | InodeRecord::flags_of(&copy));
            bytes = record.encode(number);
        }
        // Notes alone are no change that a member which is away would miss.
        let bare = |record: InodeRecord| InodeRecord { flags: 0, resync: None, ..record };
        let right_bare = right.map(bare);
        let mut mended = MemberSet::EMPTY;
        for slot in array.in_use().iter() {
            let present = self.load_bytes(slot, number);
            if present == Ok(bytes) {
                continue;
            }
            if self.load_on(slot, number).ok().flatten().map(bare) != right_bare {
                array.before_change()?;
            }
            if present.is_ok_and(|present| self.is_checked(slot) && !is_whole(number, &present)) {
                mended = mended.with(slot);
            }
            // It may lie in a hole.
            let room = self.member(slot).ok_or(OsError::NODEV);
            let room = room.and_then(|table| table.allocate(inode_record_offset(number), INODE_RECORD_BYTES as u64));
            let may_be_same = self.load_checked(slot, number).is_ok_and(|present| !is_of_another(number, &present, &bytes));
            // Of a record that is not used yet no check is stored.
            let is_void = bytes.iter().all(|&byte| byte == 0);
            let store = || {
                if may_be_same || is_void {
                    self.store_bytes(slot, number, &bytes)
                } else {
                    self.store_instead(slot, number, &bytes)
                }
            };
            array.after_call(slot, room.and_then(|()| store()))?;
        }
        mended.iter().for_each(|slot| self.tell_mend(array, slot));
        Ok(())
    }

    /// Tells once per process and member that records were mended.
    fn tell_mend(&self, array: &Array, slot: Slot) {
        let one = MemberSet::EMPTY.with(slot);
        if !MemberSet::from_bits(self.told.fetch_or(one.bits(), Ordering::Relaxed)).contains(slot) {
            array.tell_mend(slot);
        }
    }

    /// Makes tables of an earlier use anew from those of the other members: all records, then the
    /// header. Whoever dies in it leaves a table without a header, which takes its member out. This
    /// process has the array alone.
    pub(crate) fn renew(&self, array: &Array, volatile_order: bool) -> Result<(), OsError> {
        let outdated = self.outdated();
        for slot in outdated.iter().filter(|&slot| array.in_use().contains(slot)) {
            match self.renew_on(array, slot, array.in_use().minus(outdated), volatile_order) {
                Ok(()) => self.tell_mend(array, slot),
                Err(_) => array.fail_member(slot)?,
            }
        }
        self.outdated.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// The members whose table is of an earlier use.
    pub(crate) fn outdated(&self) -> MemberSet {
        MemberSet::from_bits(self.outdated.load(Ordering::Relaxed))
    }

    fn renew_on(&self, array: &Array, slot: Slot, sources: MemberSet, volatile_order: bool) -> Result<(), OsError> {
        let table = self.member(slot).ok_or(OsError::NODEV)?;
        table.set_len(0)?;
        table.forget_allocations();
        let mut count = 0;
        for source in sources.iter() {
            count = count.max(self.count(source)?);
        }
        table.allocate(0, inode_table_bytes(count))?;
        let mut next = 1;
        while let Some(run) = self.next_run(array, next)?.filter(|run| run.start <= count) {
            next = run.end;
            for number in run.start..next.min(count + 1) {
                let copies: Vec<Record> = sources.iter().filter_map(|source| self.load_checked(source, number).ok()).collect();
                // What is whole nowhere is left for people to look at.
                let right = judge(number, copies.iter(), volatile_order).or(copies.first().copied()).ok_or(OsError::IO)?;
                self.store_bytes(slot, number, &right)?;
            }
        }
        table.persist(0, table.bytes()?)?;
        array.upgrade_inodes(slot)?;
        self.note_checked(slot);
        Ok(())
    }

    /// Gives the records of tables that programs of version 1 made their checks, and then the
    /// tables the header that says so. Whoever dies in it leaves it to the next. This process has
    /// the array alone.
    pub(crate) fn upgrade(&self, array: &Array) -> Result<(), OsError> {
        for slot in array.in_use().iter().filter(|&slot| !self.is_checked(slot)) {
            if self.upgrade_on(array, slot).is_err() {
                array.fail_member(slot)?;
            }
        }
        Ok(())
    }

    fn upgrade_on(&self, array: &Array, slot: Slot) -> Result<(), OsError> {
        let table = self.member(slot).ok_or(OsError::NODEV)?;
        let mut next = 1;
        while let Some(run) = self.next_run(array, next)? {
            next = run.end;
            for number in run {
                let present = self.load_bytes(slot, number)?;
                let checked = with_checks(number, present);
                if checked != present {
                    self.store_bytes(slot, number, &checked)?;
                }
            }
        }
        table.persist(0, table.bytes()?)?;
        array.upgrade_inodes(slot)?;
        self.note_checked(slot);
        Ok(())
    }
}

/// Whether a record that is to be made like `right` is known to be that of another file, or of
/// none. Such a record is a free one while it is stored to. A damaged record of the same file must
/// not be that at any moment: whoever dies in the middle would leave a whole record that says that
/// the file is gone.
fn is_of_another(number: u64, present: &Record, right: &Record) -> bool {
    if present[STATE_OFFSET] == InodeState::Free.code() {
        return present[CONSTANT] != right[CONSTANT];
    }
    Sound::of(number, present).constant && InodeRecord::generation_of(present) != InodeRecord::generation_of(right)
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::Shape;

    #[test]
    fn a_damaged_record_is_not_taken_for_that_of_another_file() {
        let chunk = units::ChunkBytes::new(4096).unwrap();
        let shape = Shape::new(layout::Level::Raid1, chunk, MemberSet::first(2), 0).unwrap();
        let of = |generation, state| InodeRecord { state, ..InodeRecord::new(generation, shape) }.encode(5);
        let right = of(7, InodeState::Used);
        for at in CONSTANT {
            for bit in 0..8 {
                let mut damaged = right;
                damaged[at] ^= 1 << bit;
                assert!(!is_of_another(5, &damaged, &right), "byte {at}, bit {bit}");
            }
        }
        for state in [InodeState::Free, InodeState::Used, InodeState::Orphan] {
            assert!(is_of_another(5, &of(6, state), &right));
            assert!(!is_of_another(5, &of(7, state), &right));
        }
        assert!(is_of_another(5, &[0; INODE_RECORD_BYTES], &right), "before its first use");
    }
}
