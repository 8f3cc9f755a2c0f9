//! The inode table on the members: one record per file, the same on each member.
//!
//! Records are stored on every member in use, the lowest first, and read from all of them
//! ([`crate::copies`]). A record is filled while it is free, and its state is stored last. A size
//! and its check are two stores; the notes (state, flags, what waits for resync) and their check
//! are separate stores, too. Sizes change under the file's size lock, notes under the inode lock.

use alloc::vec::Vec;
use array::{Array, Member, has_failed};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use dax::{Access, Backing, PersistenceDomain};
use format::{FLAGS_OFFSET, INODE_COUNT_MAX, INODE_RECORD_BYTES, InodeRecord, InodeState, LANE_FILE_BYTES, LOST_MASK_OFFSET};
use format::{
    NOTES_CHECK_OFFSET, RESYNC_END_OFFSET, RESYNC_START_OFFSET, SIZE_CHECK_OFFSET, SIZE_OFFSET, STATE_OFFSET, Shape,
    TABLE_HEADER_BYTES,
};
use format::{TableHeader, TableKind, inode_record_offset, inode_table_bytes, notes_check, size_check};
use medium::Medium;
use persist::fault::guard;
use sys::rustix::fs::OFlags;
use sys::{AsFd, OsError};
use units::{MemberSet, Slot};

/// The bytes of one record.
pub(crate) type Record = [u8; INODE_RECORD_BYTES];

/// How many records the table grows by.
const GROWTH_COUNT: u64 = 1024;
/// A file whose record a crash took has at most so many generations more than the record that is left.
const GENERATION_GAP_MAX: u64 = 1 << 32;

/// The tables of all members.
pub struct InodeTable {
    /// By slot; None for a member that is missing.
    members: Vec<Option<Backing>>,
    /// How many records this process knows to lie before the table's end. The count only grows.
    known_count: AtomicU64,
    /// The members whose records have checks of size and notes, as bits. In a table of version 1
    /// records have none.
    checked: AtomicU32,
    /// The members whose table is of an earlier use and is to be made anew from the others'
    /// ([`Self::renew`]), as bits.
    pub(crate) outdated: AtomicU32,
    /// The members whose mended records this process has told of, as bits.
    pub(crate) told: AtomicU32,
}

impl InodeTable {
    /// The table's files on the members that have one.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Backing> {
        self.members.iter().flatten()
    }

    /// Opens the tables of the members that are there. `may_renew` says that this process makes the
    /// tables whole, and that no other process has them open.
    pub fn open(array: &Array, may_renew: bool) -> Result<Self, OsError> {
        let outdated = if may_renew { outdated(array) } else { MemberSet::EMPTY };
        let members = open_tables_but(array, TableKind::Inodes, format::INODES_FILE, outdated)?;
        let is_checked = |table: &Backing| header(table, TableKind::Inodes).is_some_and(|header| header.is_checked);
        let checked: MemberSet = (0..members.len()).filter(|&slot| members[slot].as_ref().is_some_and(is_checked)).collect();
        let (known_count, checked, outdated) =
            (AtomicU64::new(0), AtomicU32::new(checked.bits()), AtomicU32::new(outdated.bits()));
        Ok(Self { members, known_count, checked, outdated, told: AtomicU32::new(0) })
    }

    /// Whether the records of a member have checks of size and notes.
    #[inline]
    pub(crate) fn is_checked(&self, slot: Slot) -> bool {
        MemberSet::from_bits(self.checked.load(Ordering::Relaxed)).contains(slot)
    }

    /// Notes that the records of a member have checks of size and notes.
    pub(crate) fn note_checked(&self, slot: Slot) {
        self.checked.fetch_or(MemberSet::EMPTY.with(slot).bits(), Ordering::Relaxed);
    }

    /// Gives out an inode number and a generation for a file of `shape`. The record is stored on
    /// every member in use, as that of a file without a name, so a start after a crash frees it.
    pub fn create(&self, array: &Array, shape: Shape) -> Result<(u64, u64), OsError> {
        array.runtime().with_inodes(|hint| {
            let number = self.find_free(array, hint.load(Ordering::Relaxed))?;
            let mut generation = 0;
            self.ask_each(array, |slot| {
                generation = generation.max(self.load_generation(slot, number)?);
                Ok(())
            })?;
            let generation = generation + 1;
            let bytes = InodeRecord { state: InodeState::Orphan, ..InodeRecord::new(generation, shape) }.encode(number);
            for slot in array.in_use().iter() {
                self.on_member(array, slot, || self.store_new(slot, number, &bytes))?;
            }
            array.before_change()?;
            hint.store(number + 1, Ordering::Relaxed);
            Ok((number, generation))
        })
    }

    /// Gives a number its record again on every member in use, and tells whether it did. The number
    /// must be free there, and one that the tables have had.
    pub(crate) fn create_again(&self, array: &Array, number: u64, record: &InodeRecord) -> Result<bool, OsError> {
        array.runtime().with_inodes(|_| {
            let (mut known, mut generation) = (0, 0);
            self.ask_each(array, |slot| {
                known = known.max(self.count(slot)?);
                Ok(())
            })?;
            if number > known || !self.is_free(array, number)? {
                return Ok(false);
            }
            self.ask_each(array, |slot| {
                generation = generation.max(self.load_generation(slot, number)?);
                Ok(())
            })?;
            // The generation comes from the backing file's attribute, which its owner can write: the
            // owner must not be able to use all generations up.
            if record.generation == 0 || record.generation.saturating_sub(generation) > GENERATION_GAP_MAX {
                return Ok(false);
            }
            self.make_room(array, number, false)?;
            array.before_change()?;
            let bytes = record.encode(number);
            for slot in array.in_use().iter() {
                self.on_member(array, slot, || self.store_instead(slot, number, &bytes))?;
            }
            array.before_change()?;
            Ok(true)
        })
    }

    /// A free number, with room for its record on every member in use. The search begins at `hint`,
    /// which any process may have stored.
    fn find_free(&self, array: &Array, hint: u64) -> Result<u64, OsError> {
        let mut number = hint.max(1);
        let mut known = self.known_count.load(Ordering::Relaxed);
        if number > known {
            self.ask_each(array, |slot| {
                known = known.max(self.count(slot)?);
                Ok(())
            })?;
            // A hint beyond that is wrong: the search goes on behind the last record that was ever
            // used.
            number = number.min(known + 1);
        }
        while number <= known && !self.is_free(array, number)? {
            number += 1;
        }
        loop {
            self.make_room(array, number, number > known)?;
            if self.is_free(array, number)? {
                self.known_count.fetch_max(known.max(number), Ordering::Relaxed);
                return Ok(number);
            }
            number += 1;
        }
    }

    /// Whether every member in use says that a number is free. A member that has lost its records
    /// says so of all numbers.
    fn is_free(&self, array: &Array, number: u64) -> Result<bool, OsError> {
        let mut is_free = true;
        self.ask_each(array, |slot| {
            is_free &= self.load_state(slot, number)? == InodeState::Free.code();
            Ok(())
        })?;
        Ok(is_free)
    }

    /// Asks every member in use. A member that turns out to have failed goes out.
    fn ask_each(&self, array: &Array, mut ask: impl FnMut(Slot) -> Result<(), OsError>) -> Result<(), OsError> {
        for slot in array.in_use().iter() {
            match ask(slot) {
                Err(error) if has_failed(error) => array.fail_member(slot)?,
                result => result?,
            }
        }
        // No member may be left.
        array.first_in_use().map(|_| ())
    }

    /// Gets space for the record of `number` on every member in use, and for [`GROWTH_COUNT`]
    /// records if the table is to `grow`. A record before the table's end needs it too, since it
    /// may lie in a hole.
    fn make_room(&self, array: &Array, number: u64, grow: bool) -> Result<(), OsError> {
        let count = if grow { GROWTH_COUNT } else { 1 };
        let last = (number + count - 1).min(INODE_COUNT_MAX);
        let (from, end) = (inode_record_offset(number), inode_table_bytes(last).min(sys::file_limit::bytes()));
        if number > INODE_COUNT_MAX || end < from + INODE_RECORD_BYTES as u64 {
            // The table would exceed the program's limit on file sizes, and the kernel would kill
            // the program for that.
            return Err(OsError::NOSPC);
        }
        for slot in array.in_use().iter() {
            if !self.has_header(slot) {
                // The table was cut to nothing. If it were made longer, it would say that all
                // numbers are free.
                array.fail_member(slot)?;
                continue;
            }
            match self.members[slot].as_ref().ok_or(OsError::NODEV)?.allocate(from, end - from) {
                Err(error) if array.has_member_failed(slot, error) => array.spare(slot, error)?,
                result => result?,
            }
        }
        Ok(())
    }

    /// A member's table.
    pub(crate) fn member(&self, slot: Slot) -> Option<&Backing> {
        self.members[slot].as_ref()
    }

    /// The member whose table holds `address`.
    pub(crate) fn member_at(&self, address: usize) -> Option<Slot> {
        self.members.iter().position(|table| table.as_ref().is_some_and(|table| table.owns(address)))
    }

    /// Where the record of `number` lies in memory on a member, and how many bytes of records
    /// follow.
    pub(crate) fn run(&self, slot: Slot, number: u64) -> Option<(*const u64, usize)> {
        let span = self.members[slot].as_ref()?.span(inode_record_offset(number))?;
        Some((span.start.as_ptr().cast(), span.bytes))
    }

    /// Frees a record on every member in use.
    pub fn free(&self, array: &Array, number: u64) {
        array.runtime().with_inodes(|hint| {
            self.change_notes(array, number, |record| record[STATE_OFFSET] = InodeState::Free.code());
            if number < hint.load(Ordering::Relaxed) {
                hint.store(number, Ordering::Relaxed);
            }
        });
    }

    /// Sets a record's state on every member in use.
    pub fn set_state(&self, array: &Array, number: u64, state: InodeState) {
        array.runtime().with_inodes(|_| {
            self.change_notes(array, number, |record| record[STATE_OFFSET] = state.code());
        });
    }

    /// Stores the logical size on every member in use. The size lock is held.
    #[inline]
    pub fn set_size(&self, array: &Array, number: u64, generation: u64, size: u64) {
        let check = size_check(number, generation, size);
        self.store_everywhere(array, number, |record| {
            // SAFETY: see `store_everywhere`; records are 64-byte aligned, the size is their first
            // word and its check their last. The check is stored last.
            unsafe {
                AtomicU64::from_ptr(record.add(SIZE_OFFSET).cast()).store(size, Ordering::Release);
                AtomicU64::from_ptr(record.add(SIZE_CHECK_OFFSET).cast()).store(check, Ordering::Release);
            }
        });
    }

    /// Adds flags to a record on every member in use, and takes others away. `known` is called with
    /// the record's new flags, before another process can change them.
    pub fn change_flags(&self, array: &Array, number: u64, add: u32, remove: u32, known: impl FnOnce(u32)) {
        array.runtime().with_inodes(|_| {
            let record = self.change_notes(array, number, |record| {
                let flags = InodeRecord::flags_of(record) & !remove | add;
                record[FLAGS_OFFSET..][..4].copy_from_slice(&flags.to_le_bytes());
            });
            known(record.map_or(add, |record| InodeRecord::flags_of(&record)));
        });
    }

    /// Changes the notes of a record on every member in use. All notes are stored, made from the
    /// copy that is right, so that a damaged copy does not get a check that fits its damage. The
    /// inode lock is held. Returns the changed record; None, with nothing changed, if no member has
    /// the record whole.
    pub(crate) fn change_notes(&self, array: &Array, number: u64, change: impl FnOnce(&mut Record)) -> Option<Record> {
        let mut record = self.load_right(array, number).ok()?;
        change(&mut record);
        let check = notes_check(number, &record);
        record[NOTES_CHECK_OFFSET..][..4].copy_from_slice(&check.to_le_bytes());
        let word = |at: usize| u32::from_le_bytes(core::array::from_fn(|index| record[at + index]));
        let long = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| record[at + index]));
        self.store_everywhere(array, number, |to| {
            // SAFETY: see `store_everywhere`; each field lies at a multiple of its size. The end of
            // the range that waits for resync is stored after the notes to which it gives a
            // meaning, then the state, and the check last.
            unsafe {
                for at in [LOST_MASK_OFFSET, FLAGS_OFFSET] {
                    AtomicU32::from_ptr(to.add(at).cast()).store(word(at), Ordering::Release);
                }
                for at in [RESYNC_START_OFFSET, RESYNC_END_OFFSET] {
                    AtomicU64::from_ptr(to.add(at).cast()).store(long(at), Ordering::Release);
                }
                AtomicU8::from_ptr(to.add(STATE_OFFSET)).store(record[STATE_OFFSET], Ordering::Release);
                AtomicU32::from_ptr(to.add(NOTES_CHECK_OFFSET).cast()).store(check, Ordering::Release);
            }
        });
        Some(record)
    }

    /// Runs `store` on the address of a record on every member in use, inside a guard. The caller
    /// has loaded the record since it opened the file, so the record is mapped
    /// ([`Self::map_record`]). A member whose memory fails goes out, and its loss is on record
    /// before this returns. Otherwise that member could come back as the lowest one and undo the
    /// change.
    pub(crate) fn store_everywhere(&self, array: &Array, number: u64, store: impl Fn(*mut u8)) {
        let mut failed = false;
        // Those that join come last, so that whoever copies a record to them and compares finds it
        // changed meanwhile.
        let joining = array.runtime().joining();
        let in_use = array.in_use();
        for slot in in_use.iter().chain(joining.minus(in_use).iter()) {
            let Ok(record) = self.address(slot, number) else {
                let _ = array.fail_member(slot);
                failed = true;
                continue;
            };
            let flush = self.flush(slot);
            let result = {
                let store = &store;
                // SAFETY: `record` points to 64 mapped bytes; the closure owns nothing; records
                // change only by atomics.
                unsafe {
                    guard(|| {
                        store(record);
                        if flush == persist::Flush::Needed {
                            persist::write_back(record, INODE_RECORD_BYTES);
                        }
                    })
                }
            };
            if result.is_err() {
                let _ = array.fail_member(slot);
                failed = true;
            }
        }
        persist::fence();
        if failed {
            // If too many members are out, the next change returns the error.
            let _ = array.before_change();
        }
    }

    /// A member's copy of a record, as it is there.
    pub(crate) fn load_bytes(&self, slot: Slot, number: u64) -> Result<[u8; INODE_RECORD_BYTES], OsError> {
        let record = self.address(slot, number)?;
        let mut bytes = [0u8; INODE_RECORD_BYTES];
        let out = bytes.as_mut_ptr();
        // SAFETY: both are 64 bytes; the closure owns nothing. The size cannot be torn: it is one
        // aligned word, and is copied as one.
        unsafe {
            guard(|| {
                for word in 0..INODE_RECORD_BYTES / 8 {
                    let value = AtomicU64::from_ptr(record.cast::<u64>().add(word)).load(Ordering::Acquire);
                    out.cast::<u64>().add(word).write_unaligned(value);
                }
            })
        }
        .map_err(|_| OsError::IO)?;
        Ok(bytes)
    }

    /// Whether a member's table begins with a header and not with zeros. True also if the table
    /// cannot be mapped.
    fn has_header(&self, slot: Slot) -> bool {
        let Some(span) = self.members[slot].as_ref().and_then(|table| table.span(0)) else { return true };
        let mut magic = 0;
        let (start, out) = (span.start.as_ptr().cast::<u64>(), &raw mut magic);
        // SAFETY: eight mapped bytes at a multiple of 4096; the closure owns nothing; nobody stores
        // there.
        unsafe { guard(|| *out = start.read_volatile()) }.is_ok_and(|()| magic != 0)
    }

    fn load_state(&self, slot: Slot, number: u64) -> Result<u8, OsError> {
        self.load_bytes(slot, number).map(|bytes| bytes[STATE_OFFSET])
    }

    fn load_generation(&self, slot: Slot, number: u64) -> Result<u64, OsError> {
        self.load_bytes(slot, number).map(|bytes| InodeRecord::generation_of(&bytes))
    }

    /// Fills a free record, the state last. The record is not written back: it is one line, whose
    /// stores become durable in their order, and nothing on the members refers to it before
    /// [`Self::set_state`] changes its state.
    fn store_new(&self, slot: Slot, number: u64, bytes: &[u8; INODE_RECORD_BYTES]) -> Result<(), OsError> {
        let record = self.address(slot, number)?;
        let mut pending = *bytes;
        pending[STATE_OFFSET] = InodeState::Free.code();
        let check = notes_check(number, &pending);
        pending[NOTES_CHECK_OFFSET..][..4].copy_from_slice(&check.to_le_bytes());
        let (state, check) = (bytes[STATE_OFFSET], notes_check(number, bytes));
        let pending = pending.as_ptr();
        // SAFETY: 64 bytes each; the inode lock is held, so nobody else changes a free record; the
        // closure owns nothing.
        unsafe {
            guard(|| {
                core::ptr::copy_nonoverlapping(pending, record, INODE_RECORD_BYTES);
                AtomicU8::from_ptr(record.add(STATE_OFFSET)).store(state, Ordering::Release);
                AtomicU32::from_ptr(record.add(NOTES_CHECK_OFFSET).cast()).store(check, Ordering::Release);
            })
        }
        .map_err(|_| OsError::IO)
    }

    /// Overwrites a record by one of another generation, for recovery. What is cut short is a free
    /// record, or the new one.
    pub(crate) fn store_instead(&self, slot: Slot, number: u64, bytes: &[u8; INODE_RECORD_BYTES]) -> Result<(), OsError> {
        let (record, flush) = (self.address(slot, number)?, self.flush(slot));
        // SAFETY: the record's 64 bytes; nobody else uses it; the closure owns nothing.
        unsafe { guard(|| AtomicU8::from_ptr(record.add(STATE_OFFSET)).store(InodeState::Free.code(), Ordering::Release)) }
            .map_err(|_| OsError::IO)?;
        self.store_new(slot, number, bytes)?;
        // SAFETY: as above.
        unsafe {
            guard(|| {
                if flush == persist::Flush::Needed {
                    persist::write_back(record, INODE_RECORD_BYTES);
                }
                persist::fence();
            })
        }
        .map_err(|_| OsError::IO)
    }

    /// Overwrites a record as a whole, for recovery. A store that is cut short leaves a record that
    /// is not whole.
    pub(crate) fn store_bytes(&self, slot: Slot, number: u64, bytes: &[u8; INODE_RECORD_BYTES]) -> Result<(), OsError> {
        let (record, flush, bytes) = (self.address(slot, number)?, self.flush(slot), bytes.as_ptr());
        // SAFETY: 64 bytes each; nobody else uses the record; the closure owns nothing.
        unsafe {
            guard(|| {
                core::ptr::copy_nonoverlapping(bytes, record, INODE_RECORD_BYTES);
                if flush == persist::Flush::Needed {
                    persist::write_back(record, INODE_RECORD_BYTES);
                }
                persist::fence();
            })
        }
        .map_err(|_| OsError::IO)
    }

    /// Runs an operation on one member. If it fails the member goes out, which is an error only if
    /// the array does not bear that.
    fn on_member(&self, array: &Array, slot: Slot, act: impl FnOnce() -> Result<(), OsError>) -> Result<(), OsError> {
        match act() {
            Ok(()) => Ok(()),
            Err(_) => array.fail_member(slot),
        }
    }

    pub(crate) fn address(&self, slot: Slot, number: u64) -> Result<*mut u8, OsError> {
        let table = self.members[slot].as_ref().ok_or(OsError::NODEV)?;
        // A number that was read from a member or from shared memory may be damaged.
        if !(1..=INODE_COUNT_MAX).contains(&number) {
            return Err(OsError::IO);
        }
        table.span(inode_record_offset(number)).map(|span| span.start.as_ptr()).ok_or_else(|| why_unmapped(table))
    }

    fn flush(&self, slot: Slot) -> persist::Flush {
        self.members[slot].as_ref().map_or(persist::Flush::NotNeeded, |table| table.domain().flush())
    }

    /// Makes all tables in use durable where that takes a system call. A member that fails goes
    /// out.
    pub(crate) fn persist_all(&self, array: &Array) -> Result<(), OsError> {
        for slot in array.in_use().iter() {
            let Some(table) = self.members[slot].as_ref() else { continue };
            array.after_call(slot, table.bytes().and_then(|bytes| table.persist(0, bytes)))?;
        }
        Ok(())
    }

    /// Makes the record of `number` durable on every member in use where that takes a system call.
    /// A member that fails goes out.
    pub fn persist(&self, array: &Array, number: u64) -> Result<(), OsError> {
        self.persist_note(array, number)?;
        array.before_change()
    }

    /// Does what [`Self::persist`] does, for a note that a mend makes: puts nobody on record.
    pub(crate) fn persist_note(&self, array: &Array, number: u64) -> Result<(), OsError> {
        for slot in array.in_use().iter() {
            let Some(table) = self.members[slot].as_ref() else { continue };
            array.after_call(slot, table.persist(inode_record_offset(number), INODE_RECORD_BYTES as u64))?;
        }
        Ok(())
    }
}

/// Why a table cannot be mapped: its file system has failed or takes no changes any more (`IO`), or
/// this process has no room in its address space (`NOMEM`).
#[cold]
pub(crate) fn why_unmapped(table: &Backing) -> OsError {
    let mut byte = 0;
    // SAFETY: one byte of our own.
    match unsafe { table.get(0, &raw mut byte, 1) } {
        Err(error) if has_failed(error) => OsError::IO,
        _ if table.fd().is_ok_and(|fd| array::is_read_only(fd.as_fd())) => OsError::IO,
        _ => OsError::NOMEM,
    }
}

/// Opens a table under `.cxlraid` on every member that is there and has not failed; None where an
/// older program made the member without this table. A member whose table is missing, or is not the
/// array's, goes out if it can be spared.
pub(crate) fn open_tables(array: &Array, kind: TableKind, name: &core::ffi::CStr) -> Result<Vec<Option<Backing>>, OsError> {
    open_tables_but(array, kind, name, MemberSet::EMPTY)
}

/// The members in use whose inode table is of an earlier use. None of them if no member has a table
/// of this use, from which they could be made anew.
fn outdated(array: &Array) -> MemberSet {
    let use_count = array.runtime().use_count();
    let headers: Vec<_> = array
        .in_use()
        .iter()
        .filter_map(|slot| {
            let (file, _) = open_meta_file(&array.members()[slot], format::INODES_FILE).ok()?;
            Some((slot, beginning(&file).ok()?))
        })
        .collect();
    let is_current = |header: &[u8]| array::tables::is_usable(TableKind::Inodes, array.uuid(), use_count, header);
    if !headers.iter().any(|(_, header)| is_current(header)) {
        return MemberSet::EMPTY;
    }
    let is_outdated =
        |slot: Slot, header: &[u8]| array::tables::is_outdated(array.uuid(), array.members()[slot].uuid, use_count, header);
    headers.iter().filter(|(slot, header)| is_outdated(*slot, header)).map(|(slot, _)| *slot).collect()
}

/// Opens tables as [`open_tables`] does. Those of the members in `unasked` are opened whatever
/// their headers say.
fn open_tables_but(
    array: &Array,
    kind: TableKind,
    name: &core::ffi::CStr,
    unasked: MemberSet,
) -> Result<Vec<Option<Backing>>, OsError> {
    let is_optional = array::tables::is_optional(kind);
    let use_count = array.runtime().use_count();
    // The lanes have one length, which every write counts upon.
    let is_long = |file: &Backing| kind != TableKind::Lanes || file.bytes().is_ok_and(|bytes| bytes >= LANE_FILE_BYTES as u64);
    let is_table =
        |file: &Backing, header: &[u8]| is_long(file) && array::tables::is_usable(kind, array.uuid(), use_count, header);
    let is_usable = |file: &Backing, header: &[u8]| is_table(file, header) || is_optional && file.bytes() == Ok(0);
    let open = |member| {
        let (file, _) = open_meta_file(member, name)?;
        let header = beginning(&file)?;
        Ok((file, header))
    };
    array
        .members()
        .iter()
        .map(|member| {
            if member.meta().is_none() {
                return Ok(None);
            }
            match open(member) {
                Err(OsError::NOENT) if is_optional => Ok(None),
                Ok((file, header)) if unasked.contains(member.slot) || is_usable(&file, &header) => {
                    has_room(&file).map(|()| Some(file))
                }
                Ok(_) => array.do_without_table(member.slot).map(|()| None),
                Err(error) if is_no_file(error) => array.do_without_table(member.slot).map(|()| None),
                Err(error @ OsError::ACCESS) if array.is_shut(member.slot, name) => {
                    array.do_without(member.slot, error).map(|()| None)
                }
                // The member may be out already.
                Err(error) if array.has_member_failed(member.slot, error) => array.spare(member.slot, error).map(|()| None),
                Err(error) => Err(error),
            }
        })
        .collect()
}

/// Maps the beginning of a table that this process has just opened. A process without room for it
/// in its address space must find that here, before it has changed anything; what else keeps a
/// table from being mapped is found at its use.
fn has_room(table: &Backing) -> Result<(), OsError> {
    match table.span(0) {
        None if why_unmapped(table) == OsError::NOMEM => Err(OsError::NOMEM),
        _ => Ok(()),
    }
}

/// Reads the first bytes of a table's file. Those that a shorter file lacks are zeros.
///
/// # Errors
/// The error is the kernel's, `IO` where the member's file system fails.
fn beginning(file: &Backing) -> Result<[u8; TABLE_HEADER_BYTES], OsError> {
    let mut bytes = [0; TABLE_HEADER_BYTES];
    // SAFETY: the buffer is ours and that long.
    unsafe { file.get(0, bytes.as_mut_ptr(), bytes.len()) }?;
    Ok(bytes)
}

/// The header of a table; None if it cannot be read.
pub(crate) fn header(file: &Backing, kind: TableKind) -> Option<TableHeader> {
    TableHeader::decode(kind, &beginning(file).ok()?).ok()
}

/// Whether an error says that there is no regular file.
const fn is_no_file(error: OsError) -> bool {
    matches!(error, OsError::NOENT | OsError::LOOP | OsError::ISDIR | OsError::MEDIUMTYPE)
}

/// Opens the journal of a member that is there. Also returns the member's persistence domain.
pub(crate) fn open_journal(member: &Member) -> Result<(Backing, PersistenceDomain), OsError> {
    open_below(member, format::JOURNAL_FILE, Backing::new)
}

/// Opens a table under `.cxlraid` of a member that is there. Also returns the member's persistence
/// domain.
pub(crate) fn open_meta_file(member: &Member, name: &core::ffi::CStr) -> Result<(Backing, PersistenceDomain), OsError> {
    let small = |fd, access, domain| Backing::small(fd, access, domain, crate::files::may_park);
    open_below(member, name, small)
}

fn open_below(
    member: &Member,
    name: &core::ffi::CStr,
    backing: impl Fn(sys::OwnedFd, Access, PersistenceDomain) -> Backing,
) -> Result<(Backing, PersistenceDomain), OsError> {
    let (Some(meta), Some(root)) = (member.meta(), member.root()) else { return Err(OsError::NODEV) };
    let file = array::open_regular(meta.as_fd(), name, OFlags::RDWR)?;
    let domain = dax::detect(sys::AsFd::as_fd(root));
    Ok((backing(sys::high_fd::raise(file)?, Access::ReadWrite, domain), domain))
}
