//! Which files change while a member is out, and whether a member that comes back is the one that left.
//!
//! On every member in use `.cxlraid/changed` (docs/format/changed.md) has a mark for each file of which bytes changed while
//! a member was out, and says how each member that is out left. A member that comes back lacks bytes of marked files alone,
//! if it is proven ([`Array::prove`]) to be what it was as it left.
//!
//! Invariants:
//! - no clock has a part in marks. The time of a leave only tells what somebody has changed by hand on a member that is out;
//! - a file's mark is durable on every member in use before a byte of it changes of which a member that is out gets
//!   nothing. Who changes bytes holds stripe locks, and marks the file after it has taken them and before it gives them
//!   back. Of what was under way as the member went out the lanes tell, which are looked at before the loss is put on
//!   record;
//! - how a member left is recorded only of one that left in order: no error of it was met, and what it held was there to
//!   stay ([`Array::record_leaves`]);
//! - marks are taken away only while no member is out. If one goes out meanwhile, nothing is recorded of it;
//! - a table that a program which does not know it may have missed is not believed: its header lacks the mark of the use.

use crate::error::AttachError;
use crate::member::{Member, read_fully, read_fully_at};
use crate::regular::open_regular;
use crate::runtime::ANSWER_STEP;
use crate::superblock::{make_table, open_new, read, write_fully};
use crate::{Array, SharedFile};
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use dax::PersistenceDomain;
use format::{
    CHANGED, CHANGED_FILE, CHANGED_FILE_BYTES, CHANGED_MARK_BYTES, CHANGED_MARK_COUNT, CHANGED_MARKS_OFFSET,
    CHANGED_RECORD_BYTES, KEPT_BYTES, KEPT_FILE, Kept, LANE_COUNT, LANE_RECORD_BYTES, LANES_FILE, LEFT_BYTES, LEFT_FILE,
    LaneKind, LaneRecord, Leave, Superblock, TABLE_HEADER_BYTES, TableHeader, TableKind, Uuid, changed_mark,
    changed_record_offset, changed_void, changed_void_offset, decode_left, encode_left, is_changed_void, is_sound_changed_record,
    is_sound_mark, lane_offset, unchanged_mark,
};
use persist::Flush;
use persist::fault::guard;
use sys::rustix::fs::{self, AtFlags, FallocateFlags, OFlags, fstat, fsync, syncfs};
use sys::rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use sys::{AsFd as _, OsError, OwnedFd, Result};
use units::{MEMBER_COUNT_MAX, MemberSet, Slot};

/// Spreads inode numbers: the difference of two numbers below 2^32, times this, is further from 0 than epochs are from each other.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// How often a lane is read that is being stored.
const LANE_TRIES: u32 = 40;
/// Between the records and the marks there are zeros.
const RESERVED_OFFSET: u64 = changed_record_offset(MEMBER_COUNT_MAX + 1);
const RESERVED_BYTES: usize = (CHANGED_MARKS_OFFSET - RESERVED_OFFSET) as usize;

/// Why it cannot be proven that a member lacks nothing but what the marks tell of. Each is the end of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unproven {
    /// No record tells how it left.
    #[error(
        "nothing tells that it left in order: it had an error, was lost while the array was not ended, or left under an older program"
    )]
    Unrecorded,
    /// It is not the member that left.
    #[error("its directory is not what left: an older state, a copy, or a member that was begun anew")]
    Other,
    /// The array has a journal.
    #[error("the array has a journal")]
    Journal,
    /// It cannot be read.
    #[error("it cannot be read")]
    Unread,
}

/// The tables of changed files, by slot; None where a member has none, or is missing.
pub(crate) struct Changed {
    tables: Vec<Option<Table>>,
}

/// A table in memory. It takes no descriptor, and a process that gives up its rights can go on marking files.
struct Table {
    start: NonNull<u8>,
    domain: PersistenceDomain,
}

// SAFETY: the mapping stays until drop, and is loaded and stored to inside guards alone.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Changed {
    /// Opens the tables. `makes` makes one that a member in use lacks; it is there if this process has the array alone.
    pub(crate) fn open(
        members: &[Member],
        makes: Option<&impl Fn(&Member) -> Result<()>>,
    ) -> core::result::Result<Self, AttachError> {
        let open = |member: &Member| {
            let (Some(root), Some(meta)) = (member.root(), member.meta()) else { return Ok(None) };
            let domain = dax::detect(root.as_fd());
            let found = match (Table::open(meta, domain), makes) {
                // What cannot be made is not there: then all of a member is made anew that comes back.
                (Err(OsError::NOENT), Some(make)) if make(member).is_ok() => Table::open(meta, domain),
                (found, _) => found,
            };
            match found {
                Ok(table) => Ok(Some(table)),
                // The process has no room for it: it could not mark what it changes.
                Err(error @ (OsError::MFILE | OsError::NFILE | OsError::NOMEM)) => Err(error),
                Err(_) => Ok(None),
            }
        };
        let tables =
            members.iter().map(|member| open(member).map_err(|error| AttachError::os(&member.path, "open the tables of", error)));
        tables.collect::<core::result::Result<_, _>>().map(|tables| Self { tables })
    }

    fn table(&self, slot: Slot) -> Option<&Table> {
        self.tables.get(slot)?.as_ref()
    }
}

impl Table {
    fn open(meta: &OwnedFd, domain: PersistenceDomain) -> Result<Self> {
        let file = open_regular(meta.as_fd(), CHANGED_FILE, OFlags::RDWR)?;
        // A mark must not need space.
        if (fstat(&file)?.st_size as u64) < CHANGED_FILE_BYTES as u64 {
            return Err(OsError::NOENT);
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap(core::ptr::null_mut(), CHANGED_FILE_BYTES, access, MapFlags::SHARED, &file, 0) }?;
        NonNull::new(start.cast()).map(|start| Self { start, domain }).ok_or(OsError::NOMEM)
    }

    /// Stores bytes at an offset, both of whole words, where the table has others; they are durable after [`Self::persist`].
    fn put(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let (words, at) = (bytes.as_chunks::<8>().0, offset as usize);
        if at + bytes.len() > CHANGED_FILE_BYTES || !at.is_multiple_of(8) || !bytes.len().is_multiple_of(8) {
            return Err(OsError::INVAL);
        }
        let (from, count, to) = (words.as_ptr(), words.len(), self.start.as_ptr());
        let store = || {
            for index in 0..count {
                // SAFETY: a word of the mapping, which others store to at the same time, and one of the bytes.
                unsafe {
                    let (place, word) = (to.add(at + 8 * index).cast::<u64>(), u64::from_ne_bytes(*from.add(index)));
                    if place.read_volatile() != word {
                        place.write_volatile(word);
                        self.write_back(place.cast(), 8);
                    }
                }
            }
        };
        // SAFETY: the closure owns nothing.
        unsafe { guard(store) }.map_err(|_| OsError::IO)
    }

    /// Has lines leave the caches where they must.
    ///
    /// # Safety
    /// Inside a guard; the bytes are of the mapping.
    unsafe fn write_back(&self, start: *const u8, bytes: usize) {
        if self.domain.flush() == Flush::Needed {
            // SAFETY: the caller's promise.
            unsafe { persist::write_back(start, bytes) };
        }
    }

    fn get<const BYTES: usize>(&self, offset: u64) -> Result<[u8; BYTES]> {
        let mut bytes = [0; BYTES];
        self.get_to(&mut bytes, offset)?;
        Ok(bytes)
    }

    fn get_to(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        let (to, count, at) = (bytes.as_mut_ptr(), bytes.len(), offset as usize);
        if at + count > CHANGED_FILE_BYTES {
            return Err(OsError::INVAL);
        }
        let from = self.start.as_ptr();
        // SAFETY: as in `put`.
        unsafe { guard(|| (0..count).for_each(|index| to.add(index).write(from.add(at + index).read_volatile()))) }
            .map_err(|_| OsError::IO)
    }

    /// Stores the mark of a file that has changed, in one piece: whoever dies leaves no half of it.
    fn mark(&self, mark: usize) -> Result<()> {
        let at = CHANGED_MARKS_OFFSET as usize + CHANGED_MARK_BYTES * mark;
        if mark >= CHANGED_MARK_COUNT {
            return Err(OsError::INVAL);
        }
        let (to, bytes) = (self.start.as_ptr(), u16::from_ne_bytes(CHANGED));
        let store = || {
            // SAFETY: a mark within the mapping, at an even offset.
            unsafe {
                to.add(at).cast::<u16>().write_volatile(bytes);
                self.write_back(to.add(at), CHANGED_MARK_BYTES);
            }
        };
        // SAFETY: the closure owns nothing.
        unsafe { guard(store) }.map_err(|_| OsError::IO)
    }

    /// Gives what is damaged what costs most: a file counts as changed, nothing is known of a leave, and a mark may be missing.
    fn mend(&self, array: Uuid, member: Uuid) -> Result<()> {
        for slot in 0..=MEMBER_COUNT_MAX {
            let record = self.get(changed_record_offset(slot))?;
            if !is_sound_changed_record(slot, &record) {
                let right = if slot == MEMBER_COUNT_MAX { changed_void() } else { [0; CHANGED_RECORD_BYTES] };
                self.put(&right, changed_record_offset(slot))?;
            }
        }
        self.put(&[0; RESERVED_BYTES], RESERVED_OFFSET)?;
        let mut marks = vec![0u8; CHANGED_MARK_COUNT * CHANGED_MARK_BYTES];
        self.get_to(&mut marks, CHANGED_MARKS_OFFSET)?;
        for (mark, &bytes) in marks.as_chunks().0.iter().enumerate() {
            if !is_sound_mark(array, member, mark, bytes) {
                self.mark(mark)?;
            }
        }
        self.persist()
    }

    /// Makes the table durable.
    fn persist(&self) -> Result<()> {
        persist::fence();
        // SAFETY: the mapping.
        unsafe { msync(self.start.as_ptr().cast(), CHANGED_FILE_BYTES, MsyncFlags::SYNC) }
    }

    /// Says in the table that a mark may be missing.
    fn give_up(&self) -> Result<()> {
        self.put(&changed_void(), changed_void_offset()).and_then(|()| self.persist())
    }

    fn is_void(&self) -> bool {
        !self.get(changed_void_offset()).is_ok_and(|record| !is_changed_void(&record))
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: nobody uses the mapping any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), CHANGED_FILE_BYTES) };
    }
}

/// Makes a member's table, with no mark in it.
pub(crate) fn make(meta: &OwnedFd, array: Uuid, member: Uuid, use_count: u64, access: format::Access) -> Result<()> {
    let header = TableHeader::new(TableKind::Changed, array, member, use_count);
    if sys::file_limit::bytes() < CHANGED_FILE_BYTES as u64 {
        // The kernel would kill the program that is limited so.
        return Err(OsError::FBIG);
    }
    // What one of an earlier beginning says of other members is not so any more.
    match fs::unlinkat(meta, CHANGED_FILE, AtFlags::empty()) {
        Ok(()) | Err(OsError::NOENT) => {}
        Err(error) => return Err(error),
    }
    let file = open_new(meta, CHANGED_FILE, access)?;
    let content = [vec![0; CHANGED_MARKS_OFFSET as usize], no_marks(array, member)].concat();
    let made = match fs::fallocate(&file, FallocateFlags::empty(), 0, CHANGED_FILE_BYTES as u64) {
        Ok(()) | Err(OsError::OPNOTSUPP) => write_fully(&file, &content, 0),
        Err(error) => Err(error),
    };
    if made.is_err() {
        let _ = fs::unlinkat(meta, CHANGED_FILE, AtFlags::empty());
    }
    made.and_then(|()| make_table(meta, &header, CHANGED_FILE, access))
}

/// The marks of a table in which no file has one.
fn no_marks(array: Uuid, member: Uuid) -> Vec<u8> {
    (0..CHANGED_MARK_COUNT).flat_map(|mark| unchanged_mark(array, member, mark)).collect()
}

impl Array {
    /// Called by who changes bytes of the file `number`, after it has taken the file's stripe locks and before it gives them back:
    /// marks the file if a member is out.
    #[inline]
    pub fn note_change(&self, shared: &SharedFile, number: u64) {
        if !self.runtime.out().is_empty() {
            self.note_change_without(shared, number);
        }
    }

    fn note_change_without(&self, shared: &SharedFile, number: u64) {
        // What was noted of another file that was in this entry, or before a member went out or came in, is another word.
        let word = number.wrapping_mul(SPREAD).wrapping_add(self.runtime.epoch());
        if (word == 0 || shared.change_noted.load(Ordering::SeqCst) != word) && self.mark_changed(number) {
            shared.change_noted.store(word, Ordering::SeqCst);
        }
    }

    /// Marks a file on every member in use. False if that cannot be done: then no table is believed any more.
    #[cold]
    pub fn mark_changed(&self, number: u64) -> bool {
        if self.runtime.lacks_marks() {
            return false;
        }
        let mark = |slot: Slot| {
            let table = self.changed.table(slot).ok_or(OsError::NODEV)?;
            table.mark(changed_mark(number))?;
            match table.domain {
                // After a crash of the machine every file counts as changed there.
                PersistenceDomain::PageCache | PersistenceDomain::Volatile => Ok(()),
                PersistenceDomain::Adr | PersistenceDomain::Eadr => table.persist(),
            }
        };
        let failed: MemberSet = self.in_use().iter().filter(|&slot| mark(slot).is_err()).collect();
        if !failed.is_empty() {
            self.give_marks_up();
        }
        failed.is_empty()
    }

    /// Says in all tables that a mark may be missing. A table in which that cannot be said is removed: it could be believed later. Where that cannot be done either the
    /// member goes out, if the others can do without it.
    fn give_marks_up(&self) {
        let remove = |slot: Slot| {
            let meta = self.members.get(slot).and_then(Member::meta).ok_or(OsError::NODEV)?;
            match fs::unlinkat(meta, CHANGED_FILE, AtFlags::empty()) {
                Ok(()) => fsync(meta),
                // What is no file is believed by nobody.
                Err(OsError::NOENT | OsError::ISDIR) => Ok(()),
                Err(error) => Err(error),
            }
        };
        for slot in self.in_use().iter() {
            let is_said = self.changed.table(slot).is_some_and(|table| table.give_up().is_ok());
            if !is_said && remove(slot).is_err() && self.is_enough_without(self.runtime.out().with(slot)) {
                let _ = self.fail_member(slot);
            }
        }
        self.runtime.note_missing_marks(true);
    }

    /// Puts on record how the members in `leaving` left, which the superblocks are about to call out, and marks what was
    /// under way. The superblock lock is held.
    pub(crate) fn record_leaves(&self, leaving: MemberSet) {
        let newest = self.newest_in_use();
        // What an earlier round has recorded stays: it knew the superblocks as they were before.
        let is_new = |slot: &Slot| newest.as_ref().is_none_or(|newest| newest.members[*slot].state.is_in_use());
        let leaving: MemberSet = leaving.iter().filter(is_new).collect();
        self.mark_under_way(leaving);
        let has_given_up = |slot: Slot| self.changed.table(slot).is_some_and(Table::is_void);
        let lacks_table = |slot: Slot| self.changed.table(slot).is_none();
        if self.runtime.lacks_marks()
            || self.in_use().iter().any(lacks_table)
            || self.in_use().union(leaving).iter().any(has_given_up)
        {
            // What one table lacks another one may be the last to tell.
            self.give_marks_up();
        }
        let leaves: Vec<_> =
            leaving.iter().map(|slot| (slot, newest.as_ref().and_then(|newest| self.how_it_leaves(slot, newest)))).collect();
        for slot in self.in_use().iter() {
            let Some(table) = self.changed.table(slot) else { continue };
            let is_kept = !self.runtime.lacks_marks() && self.is_usable(slot, table, self.runtime.use_count());
            for &(gone, leave) in &leaves {
                let record = leave.filter(|_| is_kept).map_or([0; CHANGED_RECORD_BYTES], |leave| leave.encode(gone));
                if table.put(&record, changed_record_offset(gone)).and_then(|()| table.persist()).is_err() {
                    self.give_marks_up();
                }
            }
        }
    }

    /// Marks all files of which a change may be under way, or was as its process died. Of the members in `leaving` what can be read is looked at.
    pub fn mark_under_way(&self, leaving: MemberSet) {
        let mut under_way: BTreeSet<u64> = BTreeSet::new();
        let mut are_known = true;
        for slot in self.in_use().union(leaving).iter() {
            let lanes = self.members.get(slot).and_then(Member::meta).ok_or(OsError::NODEV).and_then(lanes_of);
            match lanes {
                Ok((inodes, is_whole)) => {
                    under_way.extend(inodes);
                    are_known &= is_whole || leaving.contains(slot);
                }
                Err(_) => are_known &= leaving.contains(slot),
            }
        }
        // What may be stored to was announced when all members were in use.
        under_way.extend(self.runtime.mapped().owned().map(|(record, _)| record.key() >> 24));
        // Members that count as out for a file alone may lack bytes of it.
        under_way.extend(self.runtime.open_files().filter(|(_, shared)| is_apart(shared)).map(|(key, _)| key >> 24));
        under_way.extend(self.runtime.left_unfinished(true).into_iter().map(|key| key >> 24));
        if !are_known {
            self.give_marks_up();
        }
        under_way.into_iter().for_each(|number| _ = self.mark_changed(number));
    }

    /// How a member leaves; None if it is not known to have left in order with all that it was given.
    fn how_it_leaves(&self, slot: Slot, newest: &Superblock) -> Option<Leave> {
        if self.journal.is_some() || !self.runtime.left_in_order().contains(slot) {
            return None;
        }
        let event = newest.event_count;
        if newest.is_clean() {
            // An update without a name is one of an older program, and may be another member's as well.
            let token = Some(newest.update_id).filter(|&id| id != 0)?;
            return Some(Leave { event, token, left_ns: newest.update_ns });
        }
        let (token, left_ns) = self.runtime.leave(slot)?;
        Some(Leave { event, token, left_ns })
    }

    /// Takes members out in order (`runtime::leaving`), and notes how they leave: who puts that on record may not reach them.
    pub(crate) fn let_members_go(&self, members: MemberSet, settle: impl Fn()) {
        // What went out before has its token, or left in another way.
        let members = members.minus(self.runtime.out());
        let is_behind_page_cache =
            |slot: Slot| self.members[slot].root().is_none_or(|root| dax::detect(root.as_fd()) == PersistenceDomain::PageCache);
        let (synced, others): (Vec<Slot>, Vec<Slot>) = members.iter().partition(|&slot| is_behind_page_cache(slot));
        // What is changed from here on, and is not marked, counts as changed by hand.
        let now_ns = sys::clock::realtime_coarse_ns();
        self.runtime.let_go(members, || {
            settle();
            others.iter().for_each(|&slot| self.note_leave(slot, sys::clock::realtime_coarse_ns()));
        });
        for slot in synced {
            // What the page cache holds might be lost with the machine, and nobody would know.
            if self.runtime.out_unrecorded().contains(slot) && self.members[slot].root().is_some_and(|root| syncfs(root).is_ok())
            {
                self.note_leave(slot, now_ns);
            }
        }
    }

    /// Gives a member the token by which it is known when it comes back.
    fn note_leave(&self, slot: Slot, left_ns: u64) {
        if self.runtime.leave(slot).is_some() {
            return;
        }
        let give = || {
            let meta = self.members.get(slot).and_then(Member::meta).ok_or(OsError::NODEV)?;
            let token = u64::from_le_bytes(sys::random::bytes()?);
            if sys::file_limit::bytes() < LEFT_BYTES as u64 {
                return Err(OsError::FBIG);
            }
            let file = open_new(meta, LEFT_FILE, self.access)?;
            write_fully(&file, &encode_left(token), 0)?;
            fsync(&file)?;
            fsync(meta).map(|()| token)
        };
        if let Ok(token @ 1..) = give() {
            self.runtime.note_leave(slot, token, left_ns);
        }
    }

    fn newest_in_use(&self) -> Option<Superblock> {
        let found = self.in_use().iter().filter_map(|slot| read(self.members.get(slot)?.meta()?).ok());
        let found: Vec<_> = found.map(|(superblock, _)| superblock).collect();
        Superblock::newest(found.iter()).cloned()
    }

    /// Whether a table is a member's own, and no use of the array has gone by without it.
    fn is_usable(&self, slot: Slot, table: &Table, use_count: u64) -> bool {
        let member = self.members.get(slot).map(|member| member.uuid);
        table.get::<TABLE_HEADER_BYTES>(0).is_ok_and(|bytes| {
            TableHeader::decode(TableKind::Changed, &bytes).is_ok_and(|header| {
                header.array_uuid == self.uuid && Some(header.member_uuid) == member && header.use_count >= use_count
            })
        })
    }

    /// What the tables of the members in use say together of how a member left, and the marks of all of them; None if none of
    /// them can be believed.
    fn left(&self, slot: Slot) -> Option<(Leave, Box<[bool]>)> {
        let newest = self.newest_in_use()?;
        if self.runtime.lacks_marks() {
            return None;
        }
        let mut marks = vec![false; CHANGED_MARK_COUNT];
        let mut own = vec![0u8; CHANGED_MARK_COUNT * CHANGED_MARK_BYTES];
        let mut found = None;
        for other in self.in_use().iter() {
            // A table that cannot be read may be one in which somebody has said that a mark is missing.
            let table = self.changed.table(other).filter(|table| !table.is_void())?;
            table.get_to(&mut own, CHANGED_MARKS_OFFSET).ok()?;
            let record = table.get(changed_record_offset(slot)).ok()?;
            let member = self.members[other].uuid;
            for (index, (mark, own)) in marks.iter_mut().zip(own.as_chunks().0).enumerate() {
                *mark |= *own != unchanged_mark(self.uuid, member, index);
            }
            if self.is_usable(other, table, newest.use_count) {
                found = found.or_else(|| Leave::decode(slot, &record));
            }
        }
        found.map(|leave| (leave, marks.into_boxed_slice()))
    }

    /// Whether a file has a mark, as the marks are at this moment.
    ///
    /// # Errors
    /// `IO` if no table tells how the member left.
    pub fn changed_without(&self, slot: Slot) -> Result<Marks> {
        self.left(slot).map(|(leave, marks)| Marks { leave, marks }).ok_or(OsError::IO)
    }

    /// Proves that a member which is out is what it was as it left, or has been begun anew since with its files kept: it
    /// lacks nothing of files without a mark.
    ///
    /// # Errors
    /// What is not proven.
    pub fn prove(&self, slot: Slot) -> core::result::Result<Kept, Unproven> {
        if self.journal.is_some() {
            return Err(Unproven::Journal);
        }
        let member = self.members.get(slot).ok_or(Unproven::Unread)?;
        let meta = member.meta().ok_or(Unproven::Unread)?;
        let (own, _) = read(meta).map_err(|_| Unproven::Unread)?;
        let newest = self.newest_in_use().ok_or(Unproven::Unread)?;
        let (leave, _) = self.left(slot).ok_or(Unproven::Unrecorded)?;
        let member_uuid = own.member_uuid;
        let is_here = own.array_uuid == self.uuid && own.slot == slot;
        let out_count = newest.members[slot].out_count;
        // A leave that was recorded as the machine crashed, and that no superblock knows.
        if out_count != 0 && out_count != leave.event {
            return Err(Unproven::Unrecorded);
        }
        // Where the clock is behind the leave nothing tells what was changed by hand.
        let is_later = sys::clock::realtime_coarse_ns() >= leave.left_ns;
        if !is_here || !is_later || !crate::tables::names_itself(meta, self.uuid, member_uuid) {
            return Err(Unproven::Other);
        }
        let mut bytes = [0; KEPT_BYTES];
        let kept = open_regular(meta.as_fd(), KEPT_FILE, OFlags::RDONLY).and_then(|file| read_fully(&file, &mut bytes));
        if let (Ok(KEPT_BYTES), Some(kept)) = (kept, Kept::decode(&bytes))
            && kept.member_uuid == member_uuid
            && kept.event == leave.event
            // It has not been in use since.
            && own.event_count == 1
        {
            return Ok(kept);
        }
        let has_token = || {
            let mut token = [0; LEFT_BYTES];
            let file = open_regular(meta.as_fd(), LEFT_FILE, OFlags::RDONLY);
            file.and_then(|file| read_fully(&file, &mut token)) == Ok(LEFT_BYTES) && decode_left(&token) == Some(leave.token)
        };
        // After an orderly end the token is the name of the last update. Otherwise it was written to the member alone; an update of superblocks that was cut short leaves members one apart.
        let is_of_then = own.event_count == leave.event && own.update_id == leave.token
            || (leave.event - 1..=leave.event).contains(&own.event_count) && has_token();
        let others = self.in_use().iter().filter_map(|slot| read(self.members.get(slot)?.meta()?).ok());
        // One that was used without the others may have come to the same count.
        let was_used_alone = !own.is_own_in_use() || others.into_iter().any(|(other, _)| own.calls_out(&other));
        if was_used_alone {
            return Err(Unproven::Other);
        }
        if member_uuid == newest.members[slot].uuid && is_of_then {
            Ok(Kept { member_uuid, event: leave.event, left_ns: leave.left_ns })
        } else {
            Err(Unproven::Other)
        }
    }

    /// Takes away all marks, and what is known of how members left: all members are in sync. The superblock lock is held.
    pub(crate) fn forget_changes(&self) {
        let whole = self.in_use().minus(self.runtime.rebuilding());
        // Of members in sync nobody asks any more how they left.
        for meta in whole.iter().filter_map(|slot| self.members.get(slot)?.meta()) {
            let _ = remove_left(meta);
            let _ = put_kept(meta, None, self.access);
        }
        if !self.runtime.out().is_empty() || !self.runtime.rebuilding().is_empty() {
            return;
        }
        let tables: Vec<_> =
            self.in_use().iter().filter_map(|slot| Some((slot, self.changed.table(slot)?, self.members[slot].meta()?))).collect();
        // Whatever becomes of this, no mark is missed before all of it is done.
        if !tables.iter().all(|(_, table, _)| table.give_up().is_ok()) {
            return;
        }
        let empty = |&(slot, table, meta): &(Slot, &Table, &OwnedFd)| {
            let member = self.members[slot].uuid;
            let header = TableHeader::new(TableKind::Changed, self.uuid, member, self.runtime.use_count());
            table.put(&[0; CHANGED_RECORD_BYTES * MEMBER_COUNT_MAX], changed_record_offset(0))?;
            table.put(&[0; RESERVED_BYTES], RESERVED_OFFSET)?;
            table.put(&no_marks(self.uuid, member), CHANGED_MARKS_OFFSET)?;
            table.persist()?;
            make_table(meta, &header, CHANGED_FILE, self.access)
        };
        let are_emptied = tables.iter().all(|table| empty(table).is_ok());
        // What processes remember to have marked is not marked any more.
        self.runtime.begin_epoch();
        // If a member is out a mark may have been taken away that somebody had just made.
        if !are_emptied || !self.runtime.out().is_empty() {
            return;
        }
        self.runtime.note_missing_marks(false);
        let believe = |table: &Table| table.put(&[0; CHANGED_RECORD_BYTES], changed_void_offset()).and_then(|()| table.persist());
        let are_believed = tables.iter().all(|(_, table, _)| believe(table).is_ok());
        if !are_believed || self.runtime.lacks_marks() || !self.runtime.out().is_empty() {
            self.give_marks_up();
        }
    }
}

impl Array {
    /// Mends the tables of changed files: they are emptied if all members are in sync, else what is damaged counts as what costs most.
    ///
    /// # Errors
    /// What the kernel says of a member.
    pub fn mend_changed(&self) -> Result<()> {
        self.before_change()?;
        self.recording(|| {
            self.forget_changes();
            for slot in self.in_use().iter() {
                let Some((table, member)) = self.changed.table(slot).zip(self.members.get(slot)) else { continue };
                table.mend(self.uuid, member.uuid)?;
                let Some(meta) = member.meta() else { continue };
                let file = open_regular(meta.as_fd(), CHANGED_FILE, OFlags::RDWR)?;
                if fstat(&file)?.st_size as u64 > CHANGED_FILE_BYTES as u64 {
                    fs::ftruncate(&file, CHANGED_FILE_BYTES as u64)?;
                }
                // The member is in use, so nobody asks how it left.
                if !self.runtime.rebuilding().contains(slot) {
                    remove_left(meta)?;
                    put_kept(meta, None, self.access)?;
                }
            }
            if self.in_use().iter().any(|slot| self.changed.table(slot).is_some_and(Table::is_void)) {
                self.give_marks_up();
            }
            Ok(())
        })
    }
}

/// The marks of all members in use together, as they were when they were read.
pub struct Marks {
    leave: Leave,
    marks: Box<[bool]>,
}

impl Marks {
    /// Whether bytes of the file `number` may have changed while a member was out.
    #[must_use]
    pub fn has(&self, number: u64) -> bool {
        self.marks.get(changed_mark(number)).is_none_or(|&mark| mark)
    }

    /// Whether they tell what a member lacks that keeps its files since `kept`.
    #[must_use]
    pub const fn is_since(&self, kept: &Kept) -> bool {
        self.leave.event == kept.event
    }
}

/// Whether a file goes on without some members, or a dead process' change of it waits to be made good.
fn is_apart(shared: &SharedFile) -> bool {
    [&shared.cut, &shared.without, &shared.anew, &shared.tail_unfinished].iter().any(|word| word.load(Ordering::SeqCst) != 0)
        || shared.stripes_unfinished.load(Ordering::SeqCst) != 0
}

/// Writes down that a member which has been begun anew keeps its files; with None that it does not.
pub(crate) fn put_kept(meta: &OwnedFd, kept: Option<Kept>, access: format::Access) -> Result<()> {
    let Some(kept) = kept else {
        return match fs::unlinkat(meta, KEPT_FILE, AtFlags::empty()) {
            Err(error) if error != OsError::NOENT => Err(error),
            _ => Ok(()),
        };
    };
    let file = open_new(meta, KEPT_FILE, access)?;
    write_fully(&file, &kept.encode(), 0)?;
    fsync(&file)?;
    fsync(meta)
}

/// Takes away the token that a member has got as it left.
pub(crate) fn remove_left(meta: &OwnedFd) -> Result<()> {
    match fs::unlinkat(meta, LEFT_FILE, AtFlags::empty()) {
        Err(error) if error != OsError::NOENT => Err(error),
        _ => Ok(()),
    }
}

/// The files that a member's lanes name, and whether each lane was found whole. One that is being stored is read again.
fn lanes_of(meta: &OwnedFd) -> Result<(Vec<u64>, bool)> {
    let file = open_regular(meta.as_fd(), LANES_FILE, OFlags::RDONLY)?;
    let mut bytes = vec![0; LANE_COUNT * LANE_RECORD_BYTES];
    let (mut inodes, mut torn) = (Vec::new(), vec![true; LANE_COUNT]);
    for _ in 0..LANE_TRIES {
        if read_fully_at(&file, &mut bytes, lane_offset(0))? != bytes.len() {
            return Err(OsError::IO);
        }
        for (is_torn, record) in torn.iter_mut().zip(bytes.as_chunks::<LANE_RECORD_BYTES>().0).filter(|(torn, _)| **torn) {
            if let Ok(record) = LaneRecord::decode(record) {
                *is_torn = false;
                inodes.extend((record.kind != LaneKind::Clean).then_some(record.inode));
            }
        }
        if !torn.contains(&true) {
            break;
        }
        let _ = sys::rustix::thread::nanosleep(&ANSWER_STEP);
    }
    Ok((inodes, !torn.contains(&true)))
}

const _: () = assert!(MEMBER_COUNT_MAX < CHANGED_MARKS_OFFSET as usize / CHANGED_RECORD_BYTES);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::superblock::write_copy;
    use crate::test_array::{Home, three_members};
    use std::os::unix::fs::FileExt as _;

    /// A mirror of three members, the last of which has left in order.
    fn left_in_order(name: &str) -> (Home, Config, Array) {
        let (home, config) = three_members(name, layout::Level::Raid1);
        let first = Array::attach(&config).unwrap();
        for slot in 0..3 {
            crate::tables::name_itself(first.members[slot].meta().unwrap()).unwrap();
        }
        first.before_change().unwrap();
        first.take_out(2, || {}).unwrap();
        (home, config, first)
    }

    fn table(home: &Home, slot: usize) -> std::fs::File {
        std::fs::File::options().read(true).write(true).open(home.path(std::format!("m{slot}/.cxlraid/changed"))).unwrap()
    }

    #[test]
    fn a_member_that_left_in_order_is_proven_and_lacks_what_is_marked() {
        let (_home, _config, array) = left_in_order("left");
        array.prove(2).unwrap();
        assert!(!array.changed_without(2).unwrap().has(7));
        assert!(array.mark_changed(7));
        let marks = array.changed_without(2).unwrap();
        assert!(marks.has(7) && !marks.has(8));
        let _ = array.runtime.remove();
    }

    #[test]
    fn a_mark_that_is_lost_or_damaged_counts_as_set() {
        let (home, _config, array) = left_in_order("damaged");
        let marks = || array.changed_without(2).unwrap();
        let place = |mark: u64| CHANGED_MARKS_OFFSET + CHANGED_MARK_BYTES as u64 * mark;
        let mut byte = [0];
        table(&home, 0).read_exact_at(&mut byte, place(9) + 1).unwrap();
        table(&home, 0).write_all_at(&[byte[0] ^ 0x10], place(9) + 1).unwrap();
        assert!(marks().has(9) && !marks().has(10));
        // A page of zeros, as a file system may give back.
        table(&home, 1).write_all_at(&[0; 4096], place(2048)).unwrap();
        assert!((2048..4096).all(|number| marks().has(number)) && !marks().has(4096));
        let _ = array.runtime.remove();
    }

    #[test]
    fn what_cannot_be_marked_is_said_in_all_tables() {
        let (home, config, array) = left_in_order("unmarked");
        let mut other = Array::attach(&config).unwrap();
        other.changed.tables[0] = None;
        assert!(!other.mark_changed(5));
        assert_eq!(array.prove(2).err(), Some(Unproven::Unrecorded));
        assert!(array.changed.table(1).unwrap().is_void());
        // Also by the tables alone, and also if the other member is lost then.
        array.runtime.note_missing_marks(false);
        assert_eq!(array.prove(2).err(), Some(Unproven::Unrecorded));
        array.record_leaves(MemberSet::EMPTY.with(1));
        assert!(array.changed.table(0).unwrap().is_void());
        drop(home);
        let _ = array.runtime.remove();
    }

    #[test]
    fn marks_are_taken_away_only_while_no_member_is_out_and_the_table_says_so_meanwhile() {
        let (_home, _config, array) = left_in_order("forget");
        assert!(array.mark_changed(3));
        array.forget_changes();
        assert!(array.changed_without(2).unwrap().has(3));
        // A death in the middle of it leaves tables that are not believed.
        array.changed.table(0).unwrap().give_up().unwrap();
        assert_eq!(array.prove(2).err(), Some(Unproven::Unrecorded));
        array.runtime.begin_joining(2);
        array.runtime.take_in(2);
        array.runtime.end_rebuilding(MemberSet::EMPTY.with(2));
        array.forget_changes();
        assert!(array.in_use().iter().all(|slot| !array.changed.table(slot).unwrap().is_void()));
        array.fail_member(2).unwrap();
        array.record_leaves(MemberSet::EMPTY.with(2));
        assert_eq!(array.prove(2).err(), Some(Unproven::Unrecorded));
        let _ = array.runtime.remove();
    }

    #[test]
    fn a_member_of_which_somebody_met_an_error_has_not_left_in_order() {
        let (_home, config) = three_members("error", layout::Level::Raid1);
        let array = Array::attach(&config).unwrap();
        array.before_change().unwrap();
        // The error comes first, or between the token and the loss.
        for is_first in [true, false] {
            let slot = usize::from(is_first);
            if is_first {
                array.runtime.note_disorder(MemberSet::EMPTY.with(slot));
                array.note_leave(slot, 1);
            } else {
                array.note_leave(slot, 1);
                array.runtime.note_disorder(MemberSet::EMPTY.with(slot));
            }
            assert_eq!(array.runtime.leave(slot), None, "{is_first}");
        }
        let _ = array.runtime.remove();
    }

    /// Another history may come to the same event count.
    #[test]
    fn a_member_that_was_used_alone_is_not_the_member_that_left() {
        let (home, _config, array) = left_in_order("alone");
        let meta = sys::OwnedFd::from(std::fs::File::open(home.path("m2/.cxlraid")).unwrap());
        let (right, _) = read(&meta).unwrap();
        let put = |superblock: &Superblock| {
            let (now, copy) = read(&meta).unwrap();
            let next = Superblock { copy_sequence: now.copy_sequence + 1, ..superblock.clone() };
            write_copy(&meta, &next, Superblock::next_copy(copy)).unwrap();
        };
        let out = |slot: usize| {
            let mut superblock = right.clone();
            superblock.members[slot].state = format::MemberState::Missing;
            superblock
        };
        for (what, other) in [("set aside", out(2)), ("used without m0", out(0))] {
            put(&other);
            assert_eq!(array.prove(2).err(), Some(Unproven::Other), "{what}");
            put(&right);
            array.prove(2).unwrap();
        }
        // After an orderly end the name of the last update is all that tells.
        std::fs::remove_file(home.path("m2/.cxlraid/left")).unwrap();
        let (leave, _) = array.left(2).unwrap();
        let clean = Leave { event: right.event_count, token: right.update_id, ..leave };
        for slot in 0..2 {
            table(&home, slot).write_all_at(&clean.encode(2), changed_record_offset(2)).unwrap();
        }
        let is_same_count = leave.event == right.event_count;
        assert_eq!(array.prove(2).is_ok(), is_same_count);
        put(&Superblock { update_id: right.update_id ^ 1, ..right.clone() });
        assert!(array.prove(2).is_err());
        let _ = array.runtime.remove();
    }

    #[test]
    fn an_older_state_of_a_member_is_not_the_member_that_left() {
        let (home, _config, array) = left_in_order("older");
        array.prove(2).unwrap();
        let token = home.path("m2/.cxlraid/left");
        let right = std::fs::read(&token).unwrap();
        std::fs::write(&token, [1; LEFT_BYTES]).unwrap();
        assert_eq!(array.prove(2).err(), Some(Unproven::Other));
        std::fs::write(&token, right).unwrap();
        array.prove(2).unwrap();
        let _ = array.runtime.remove();
    }
}
