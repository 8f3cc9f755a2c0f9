//! Which backing file of a member belongs to which inode: the members' tables of backing files
//! (docs/format/backings.md).
//!
//! The fault it exists for: a backing file's attribute says which inode it belongs to, and the
//! file's owner can write that attribute. So the owner could make the library take the file for
//! another user's: programs would then read and write the other file's bytes, and recovery would
//! give the other file away. A backing file is an inode's only if the inode's record here does not
//! name another one.
//!
//! Invariants: a record is stored before the attribute is put on the backing file. A record that
//! cannot be stored or read counts as not known. That is no error, since no byte of a file depends
//! on it.

use crate::files::Files;
use crate::table::{header, open_meta_file, open_tables};
use alloc::vec::Vec;
use array::Array;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use dax::Backing;
use format::{
    Attribute, BACKING_CHECK_OFFSET, BACKING_FILE_OFFSET, BACKING_GENERATION_OFFSET, BACKING_RECORD_BYTES, INODE_COUNT_MAX,
    InodeState, TableKind, backing_check, backing_record_offset,
};
use medium::Medium;
use persist::fault::guard;
use sys::rustix::fs::fstat;
use sys::{BorrowedFd, OsError};
use units::{MemberSet, Slot};

/// The record of the table itself.
const OWN: Record = Record { number: 0, generation: 1 };
const RECORD_WORDS: usize = BACKING_RECORD_BYTES / 8;
/// A record whose bytes stay as they are for so long is not being stored.
const SETTLED_NS: u64 = 3_000_000;

/// Which record, and of which of the inodes that have had its number.
#[derive(Clone, Copy)]
struct Record {
    number: u64,
    generation: u64,
}

impl Record {
    const fn of(attribute: Attribute) -> Self {
        Self { number: attribute.inode, generation: attribute.generation }
    }
}

/// The tables of all members.
pub(crate) struct Backings {
    /// By slot; None for a member that is missing, or was made by a program without this table and
    /// cannot be given one.
    members: Vec<Option<Backing>>,
    /// The members whose table names itself, as bits: what the others say is not believed.
    believed: AtomicU32,
}

impl Backings {
    /// The table's files on the members that have one.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Backing> {
        self.members.iter().flatten()
    }

    pub(crate) fn open(array: &Array) -> Result<Self, OsError> {
        let mut members = open_tables(array, TableKind::Backings, format::BACKINGS_FILE)?;
        for (slot, table) in members.iter_mut().enumerate() {
            if table.is_some() || !array.in_use().contains(slot) {
                continue;
            }
            let made = array.make_table(slot, TableKind::Backings, format::BACKINGS_FILE);
            let opened = made.and_then(|()| open_meta_file(&array.members()[slot], format::BACKINGS_FILE));
            *table = opened.ok().map(|(table, _)| table);
        }
        Ok(Self { members, believed: AtomicU32::new(0) })
    }

    /// Empties the tables of members that were copied, and those that are another member's, of an
    /// earlier use or of version 1: of the members in `among`. This process has the array alone.
    pub(crate) fn renew(&self, array: &Array, among: MemberSet) {
        for (slot, table) in self.members.iter().enumerate() {
            let Some(table) = table.as_ref().filter(|_| among.contains(slot)) else { continue };
            if let Ok(own) = table.fd().and_then(fstat)
                && !self.is_own(array, slot)
                && table.set_len(format::TABLE_HEADER_BYTES as u64).is_ok()
                && array.make_table(slot, TableKind::Backings, format::BACKINGS_FILE).is_ok()
            {
                table.forget_allocations();
                self.store(slot, OWN, own.st_ino);
            }
        }
    }

    /// Whether a member's table is its own, of this use, and names itself.
    fn is_own(&self, array: &Array, slot: Slot) -> bool {
        let Some(table) = &self.members[slot] else { return false };
        let header = header(table, TableKind::Backings).filter(|header| header.is_checked);
        let is_current = header.is_some_and(|header| {
            header.member_uuid == array.members()[slot].uuid && header.use_count >= array.runtime().use_count()
        });
        is_current && table.fd().and_then(fstat).is_ok_and(|own| self.find(slot, OWN) == Some(own.st_ino))
    }

    /// Finds out whose table is believed.
    pub(crate) fn believe(&self, array: &Array) {
        let believed = (0..self.members.len()).filter(|&slot| self.is_own(array, slot)).fold(MemberSet::EMPTY, MemberSet::with);
        self.believed.store(believed.bits(), Ordering::Release);
    }

    /// Whether a member's table is believed.
    pub(crate) fn believes(&self, slot: Slot) -> bool {
        MemberSet::from_bits(self.believed.load(Ordering::Acquire)).contains(slot)
    }

    /// The number of the file that a record names; None if that is not known.
    fn find(&self, slot: Slot, record: Record) -> Option<u64> {
        let (file, generation) = self.load(slot, record.number)?;
        (generation == record.generation && file != 0).then_some(file)
    }

    /// The inodes that have a file as their backing file by the records up to `last`. The record of
    /// an inode that was removed stays, so there may be several.
    fn naming(&self, slot: Slot, file: u64, last: u64) -> impl Iterator<Item = Attribute> {
        (1..=last).filter_map(move |inode| {
            let (found, generation) = self.load(slot, inode)?;
            (found == file).then_some(Attribute { inode, generation })
        })
    }

    /// What the record with a number says: a file and a generation.
    fn load(&self, slot: Slot, number: u64) -> Option<(u64, u64)> {
        let address = self.address(slot, number)?;
        let (mut file, mut generation, mut check) = (0, 0, 0);
        let (file_out, generation_out, check_out) = (&raw mut file, &raw mut generation, &raw mut check);
        // SAFETY: `address` points to the 32 mapped bytes of a record, at a multiple of 32; the
        // closure owns nothing; records change only by atomics.
        unsafe {
            guard(|| {
                *generation_out = word(address, BACKING_GENERATION_OFFSET).load(Ordering::Acquire);
                *check_out = word(address, BACKING_CHECK_OFFSET).load(Ordering::Acquire);
                *file_out = word(address, BACKING_FILE_OFFSET).load(Ordering::Acquire);
            })
        }
        .ok()?;
        (check == backing_check(number, file, generation)).then_some((file, generation))
    }

    fn store(&self, slot: Slot, record: Record, file: u64) {
        let Some(table) = &self.members[slot] else { return };
        let start = backing_record_offset(record.number);
        // The kernel kills a program for a file that grows over its limit.
        let fits = start + BACKING_RECORD_BYTES as u64 <= sys::file_limit::bytes();
        if record.number > INODE_COUNT_MAX || !fits || table.allocate(start, BACKING_RECORD_BYTES as u64).is_err() {
            return;
        }
        let Some(address) = self.address(slot, record.number) else { return };
        let flush = table.domain().flush();
        let check = backing_check(record.number, file, record.generation);
        // SAFETY: as in `load`. What cannot be stored is not known.
        let _ = unsafe {
            guard(|| {
                word(address, BACKING_FILE_OFFSET).store(file, Ordering::Relaxed);
                word(address, BACKING_CHECK_OFFSET).store(check, Ordering::Relaxed);
                word(address, BACKING_GENERATION_OFFSET).store(record.generation, Ordering::Release);
                if flush == persist::Flush::Needed {
                    persist::write_back(address, BACKING_RECORD_BYTES);
                }
            })
        };
    }

    /// The words of a record that does not fit its check, or has a reserved byte that is not 0. None
    /// of any other.
    fn unsound(&self, slot: Slot, number: u64) -> Option<[u64; RECORD_WORDS]> {
        let address = self.address(slot, number)?;
        let mut words = [0; RECORD_WORDS];
        let out = &raw mut words;
        let load = || {
            for at in 0..RECORD_WORDS {
                // SAFETY: as in `load`; `at` is less than the words that `out` has.
                unsafe { (*out)[at] = word(address, 8 * at).load(Ordering::Acquire) };
            }
        };
        // SAFETY: the closure owns nothing.
        unsafe { guard(load) }.ok()?;
        let mut bytes = [0; BACKING_RECORD_BYTES];
        bytes.as_chunks_mut().0.iter_mut().zip(words).for_each(|(part, word)| *part = word.to_le_bytes());
        (!format::is_sound_backing(number, &bytes)).then_some(words)
    }

    /// Makes a record say nothing.
    fn forget(&self, slot: Slot, number: u64) {
        let Some((table, address)) = self.members[slot].as_ref().zip(self.address(slot, number)) else { return };
        let needs_flush = table.domain().flush() == persist::Flush::Needed;
        let clear = || {
            // SAFETY: as in `load`.
            (0..RECORD_WORDS).for_each(|at| unsafe { word(address, 8 * at).store(0, Ordering::Release) });
            if needs_flush {
                // SAFETY: as above.
                unsafe { persist::write_back(address, BACKING_RECORD_BYTES) };
            }
        };
        // SAFETY: the closure owns nothing. What cannot be stored stays as it is.
        let _ = unsafe { guard(clear) };
    }

    fn address(&self, slot: Slot, number: u64) -> Option<*mut u8> {
        let table = self.members[slot].as_ref().filter(|_| number <= INODE_COUNT_MAX)?;
        table.span(backing_record_offset(number)).map(|span| span.start.as_ptr())
    }
}

/// A word of a record.
///
/// # Safety
/// `record` points to the 32 mapped bytes of a record, at a multiple of 8, which change only by
/// atomics for as long as the word is used.
unsafe fn word<'a>(record: *mut u8, offset: usize) -> &'a AtomicU64 {
    // SAFETY: offsets within a record are multiples of 8; the rest the caller promises.
    unsafe { AtomicU64::from_ptr(record.add(offset).cast()) }
}

impl Files {
    /// Notes that a file that was made on a member, with this number in the member's file system,
    /// is the backing file of an inode.
    pub fn note_backing(&self, slot: Slot, attribute: Attribute, file: u64) {
        if self.backings().believes(slot) {
            self.backings().store(slot, Record::of(attribute), file);
        }
    }

    /// Notes that a file that was found on a member is the backing file of an inode, if nothing is
    /// known of the inode yet.
    pub fn learn_backing(&self, slot: Slot, attribute: Attribute, file: u64) {
        if self.backings().find(slot, Record::of(attribute)).is_none() {
            self.note_backing(slot, attribute, file);
        }
    }

    /// Empties the records that do not fit their checks. What such a record said is not known; it is
    /// learnt when the file is opened next. A record that changes meanwhile is being stored.
    pub fn mend_backings(&self) {
        let backings = self.backings();
        for slot in self.array().in_use().iter().filter(|&slot| backings.believes(slot)) {
            let bytes = backings.members[slot].as_ref().and_then(|table| table.bytes().ok()).unwrap_or(0);
            let end = bytes.saturating_sub(format::TABLE_HEADER_BYTES as u64) / BACKING_RECORD_BYTES as u64;
            let unsound = |number| backings.unsound(slot, number).map(|words| (number, words));
            let found: Vec<_> = (1..end).filter_map(unsound).collect();
            if !found.is_empty() {
                sys::rest::rest(SETTLED_NS);
            }
            let settled = found.into_iter().filter(|(number, words)| backings.unsound(slot, *number).as_ref() == Some(words));
            settled.for_each(|(number, _)| backings.forget(slot, number));
        }
    }

    /// The inode whose backing file an open file of a member is, by the member's table alone: the
    /// member's file system has failed and does not give the attribute any more. What this process
    /// has mapped of the table can still be read. The whole table is looked through.
    #[must_use]
    pub fn attribute_in_table(&self, slot: Slot, backing: BorrowedFd<'_>) -> Option<Attribute> {
        let file = fstat(backing).ok()?.st_ino;
        let last = self.table().count(self.array().first_in_use().ok()?).ok()?;
        if !self.backings().believes(slot) {
            return None;
        }
        self.backings().naming(slot, file, last).find(|&attribute| self.state_of(attribute) == Some(InodeState::Used))
    }

    /// Tells whether a member's table proves that the file with a number in the member's file
    /// system is the backing file of an inode, whatever the file's attribute says: the inode's
    /// record names the file, and the record of no other inode in use does. File systems give
    /// numbers again, so the record of an inode whose backing file was removed by hand may name a
    /// later file. The whole table is looked through.
    #[must_use]
    pub fn is_proven_backing(&self, slot: Slot, attribute: Attribute, file: u64) -> bool {
        if !self.backings().believes(slot) || self.backings().find(slot, Record::of(attribute)) != Some(file) {
            return false;
        }
        let last = self.array().first_in_use().and_then(|first| self.table().count(first));
        let is_used = |other: &Attribute| self.state_of(*other) == Some(InodeState::Used);
        last.is_ok_and(|last| self.backings().naming(slot, file, last).filter(is_used).eq([attribute]))
    }

    /// Whether a file of a member, by device and inode number, is the backing file of the inode
    /// that its attribute names; None if that is not known. `among` are the members that it may lie
    /// on.
    #[must_use]
    pub fn is_backing_of(&self, attribute: Attribute, [device, file]: [u64; 2], among: MemberSet) -> Option<bool> {
        let members = self.array().members();
        let known = |slot: Slot| {
            let is_believed = self.backings().believes(slot);
            is_believed.then(|| self.backings().find(slot, Record::of(attribute))).flatten()
        };
        // Members may share a file system. If the device is none of theirs, as with subvolumes, any
        // of them may name the file.
        let here: MemberSet = among.iter().filter(|&slot| members[slot].device == device).collect();
        let candidates = if here.is_empty() { among } else { here };
        // A member that was missing when this process started may have been on any device.
        let mut is_known = among.iter().all(|slot| members[slot].root().is_some());
        for slot in candidates.iter() {
            match known(slot) {
                Some(number) if number == file => return Some(true),
                Some(_) => {}
                None => is_known = false,
            }
        }
        is_known.then_some(false)
    }
}
