//! Which files change while a member is out, and whether a member that comes back is the one that
//! left.
//!
//! On every member in use `.cxlraid/changed` (docs/format/changed.md) has a mark for each file of
//! which bytes changed while a member was out, and says how each member that is out left. A member
//! that comes back lacks bytes of marked files alone, if it is proven ([`Array::prove`]) to be what
//! it was as it left.
//!
//! Invariants:
//! - no clock has a part in marks. The time of a leave only tells what somebody has changed by hand
//!   on a member that is out;
//! - a file's mark is durable on every member in use before a byte of it changes of which a member
//!   that is out gets nothing. Who changes bytes holds stripe locks, and marks the file after it
//!   has taken them and before it gives them back. Of what was under way as the member went out the
//!   lanes tell, which are looked at before the loss is put on record;
//! - how a member left is recorded only of one that left in order: no error of it was met, and what
//!   it held was there to stay ([`Array::record_leaves`]);
//! - marks are taken away only while no member is out. If one goes out meanwhile, nothing is
//!   recorded of it;
//! - how a member left is believed only while no update of the superblocks was made past the table.
//!   Each update has a name of its own ([`Superblock::update_id`]), and the table gets it before a
//!   superblock does ([`Array::follow_update`]). A program that does not know the table updates
//!   superblocks before its first change of a use, so their last update is one that the table does
//!   not name. Whoever comes next takes all records of leaves away before it writes down a name
//!   anew;
//! - who may change files may update the superblocks, too: where somebody has given the tables
//!   other rights by hand no leave is believed;
//! - the header of a table has the mark of the use besides: a table that somebody has put back from
//!   a copy lacks it.

mod table;

pub(crate) use self::table::make;
use self::table::{NO_LEAVES, NO_RECORD, RESERVED_BYTES, Table, no_marks};
use crate::access::is_superblock_open;
use crate::error::AttachError;
use crate::limited::write_fully;
use crate::member::{Member, read_fully, read_fully_at};
use crate::regular::open_regular;
use crate::runtime::ANSWER_STEP;
use crate::superblock::{make_table, open_new, read};
use crate::{Array, SharedFile};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use dax::PersistenceDomain;
use format::{
    CHANGED_FILE, CHANGED_FILE_BYTES, CHANGED_MARK_BYTES, CHANGED_MARK_COUNT, CHANGED_MARKS_OFFSET, CHANGED_RECORD_BYTES,
    CHANGED_RECORDS_END, KEPT_BYTES, KEPT_FILE, Kept, LANE_COUNT, LANE_RECORD_BYTES, LANES_FILE, LEFT_BYTES, LEFT_FILE, LaneKind,
    LaneRecord, Leave, Superblock, TABLE_HEADER_BYTES, TableHeader, TableKind, changed_mark, changed_record_offset,
    changed_void_offset, decode_left, encode_left, lane_offset, unchanged_mark,
};
use sys::rustix::fs::{self, AtFlags, OFlags, fstat, fsync, syncfs};
use sys::{AsFd as _, OsError, OwnedFd, Result};
use units::{MEMBER_COUNT_MAX, MemberSet, Slot};

/// Spreads inode numbers: the difference of two numbers below 2^32, times this, is further from 0
/// than epochs are from each other.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// States how often a lane is read that is being stored.
const LANE_TRIES: u32 = 40;

/// Tells why it cannot be proven that a member lacks nothing but what the marks tell of. Each is
/// the end of a line.
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
    /// Somebody has changed by hand who may write to the array's own files.
    #[error(
        "who may not write to the superblock may write to the tables beside it; 'cxlraid access' gives both what they are to have"
    )]
    Closed,
}

/// The tables of changed files, by slot; None where a member has none, or is missing.
pub(crate) struct Changed {
    tables: Vec<Option<Table>>,
}

impl Changed {
    /// Opens the tables. `makes` makes one that a member in use lacks; it is there if this process
    /// has the array alone.
    pub(crate) fn open(
        members: &[Member],
        makes: Option<&impl Fn(&Member) -> Result<()>>,
    ) -> core::result::Result<Self, AttachError> {
        let open = |member: &Member| {
            let (Some(root), Some(meta)) = (member.root(), member.meta()) else { return Ok(None) };
            let domain = dax::detect(root.as_fd());
            let found = match (Table::open(meta, domain), makes) {
                // What cannot be made is not there: then all of a member is made anew that comes
                // back.
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
        let mut tables = Vec::new();
        for member in members {
            tables.push(open(member).map_err(|error| AttachError::os(&member.path, "open the tables of", error))?);
        }
        Ok(Self { tables })
    }

    fn table(&self, slot: Slot) -> Option<&Table> {
        self.tables.get(slot)?.as_ref()
    }
}

impl Array {
    /// Called by who changes bytes of the file `number`, after it has taken the file's stripe locks
    /// and before it gives them back: marks the file if a member is out.
    #[inline]
    pub fn note_change(&self, shared: &SharedFile, number: u64) {
        if !self.runtime.out().is_empty() {
            self.note_change_without(shared, number);
        }
    }

    fn note_change_without(&self, shared: &SharedFile, number: u64) {
        // What was noted of another file that was in this entry, or before a member went out or
        // came in, is another word.
        let word = number.wrapping_mul(SPREAD).wrapping_add(self.runtime.epoch());
        if (word == 0 || shared.change_noted.load(Ordering::SeqCst) != word) && self.mark_changed(number) {
            shared.change_noted.store(word, Ordering::SeqCst);
        }
    }

    /// Marks a file on every member in use. False if that cannot be done: then no table is believed
    /// any more.
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

    /// Says in all tables that a mark may be missing. A table in which that cannot be said is
    /// removed: it could be believed later. Where that cannot be done either the member goes out,
    /// if the others can do without it.
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

    /// Puts on record how the members in `leaving` left, which the superblocks are about to call
    /// out, and marks what was under way. The superblock lock is held.
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
            // The leaves that are put down below are believed from this update on.
            let has_followed = newest.as_ref().is_some_and(|newest| table.catch_up(newest.update_id).is_ok());
            let is_kept = has_followed
                && !self.runtime.lacks_marks()
                && newest.as_ref().is_some_and(|newest| self.is_usable(slot, table, self.runtime.use_count(), newest.update_id));
            for &(gone, leave) in &leaves {
                let record = leave.filter(|_| is_kept).map_or(NO_RECORD, |leave| leave.encode(gone));
                if table.put(&record, changed_record_offset(gone)).and_then(|()| table.persist()).is_err() {
                    self.give_marks_up();
                }
            }
        }
    }

    /// Marks all files of which a change may be under way, or was as its process died. Of the
    /// members in `leaving` what can be read is looked at.
    pub fn mark_under_way(&self, leaving: MemberSet) {
        let mut under_way: Vec<u64> = Vec::new();
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
        under_way.sort_unstable();
        under_way.dedup();
        under_way.into_iter().for_each(|number| _ = self.mark_changed(number));
    }

    /// Returns how a member leaves; None if it is not known to have left in order with all that it
    /// was given.
    fn how_it_leaves(&self, slot: Slot, newest: &Superblock) -> Option<Leave> {
        if self.journal.is_some() || !self.runtime.left_in_order().contains(slot) {
            return None;
        }
        let event = newest.event_count;
        if newest.is_clean() {
            // An update without a name is one of an older program, and may be another member's as
            // well.
            let token = Some(newest.update_id).filter(|&id| id != 0)?;
            return Some(Leave { event, token, left_ns: newest.update_ns });
        }
        let (token, left_ns) = self.runtime.leave(slot)?;
        Some(Leave { event, token, left_ns })
    }

    /// Takes members out in order (`runtime::leaving`), and notes how they leave: who puts that on
    /// record may not reach them. False if `may_be_out` does not hold of what would be out then:
    /// they stay.
    pub(crate) fn let_members_go(&self, members: MemberSet, may_be_out: impl Fn(MemberSet) -> bool, settle: impl Fn()) -> bool {
        // What went out before has its token, or left in another way.
        let members = members.minus(self.runtime.out());
        let is_behind_page_cache =
            |slot: Slot| self.members[slot].root().is_none_or(|root| dax::detect(root.as_fd()) == PersistenceDomain::PageCache);
        let (synced, others): (Vec<Slot>, Vec<Slot>) = members.iter().partition(|&slot| is_behind_page_cache(slot));
        // What is changed from here on, and is not marked, counts as changed by hand.
        let now_ns = sys::clock::realtime_coarse_ns();
        let gone = self.runtime.let_go(members, may_be_out, || {
            settle();
            others.iter().for_each(|&slot| self.note_leave(slot, sys::clock::realtime_coarse_ns()));
        });
        if !gone {
            return false;
        }
        for slot in synced {
            // What the page cache holds might be lost with the machine, and nobody would know.
            if self.runtime.out_unrecorded().contains(slot) && self.members[slot].root().is_some_and(|root| syncfs(root).is_ok())
            {
                self.note_leave(slot, now_ns);
            }
        }
        true
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

    /// Called before the superblocks of `members` are updated, with the superblock lock: has their
    /// tables name the update. A table that cannot be stored to does not name it, so it is not
    /// believed.
    pub(crate) fn follow_update(&self, members: MemberSet, update_id: u64, next_id: u64) {
        for table in members.iter().filter_map(|slot| self.changed.table(slot)) {
            let _ = table.follow(update_id, next_id);
        }
    }

    fn newest_in_use(&self) -> Option<Superblock> {
        let found = self.in_use().iter().filter_map(|slot| read(self.members.get(slot)?.meta()?).ok());
        let found: Vec<_> = found.map(|(superblock, _)| superblock).collect();
        Superblock::newest(found.iter()).cloned()
    }

    /// Tells whether a table is a member's own, and nothing was changed past it up to the update of
    /// the superblocks with the name `update_id`.
    fn is_usable(&self, slot: Slot, table: &Table, use_count: u64, update_id: u64) -> bool {
        let member = self.members.get(slot).map(|member| member.uuid);
        let has_followed = update_id != 0 && table.has_followed(update_id);
        has_followed
            && table.get::<TABLE_HEADER_BYTES>(0).is_ok_and(|bytes| {
                TableHeader::decode(TableKind::Changed, &bytes).is_ok_and(|header| {
                    header.array_uuid == self.uuid && Some(header.member_uuid) == member && header.use_count >= use_count
                })
            })
    }

    /// Returns what the tables of the members in use say together of how a member left, and the
    /// marks of all of them; None if none of them can be believed.
    fn left(&self, slot: Slot) -> Option<(Leave, Box<[bool]>)> {
        let newest = self.newest_in_use()?;
        if self.runtime.lacks_marks() {
            return None;
        }
        let mut marks = vec![false; CHANGED_MARK_COUNT];
        let mut own = vec![0u8; CHANGED_MARK_COUNT * CHANGED_MARK_BYTES];
        let mut found = None;
        // One that has just come into use tells nothing of how it left.
        for other in self.in_use().minus(MemberSet::EMPTY.with(slot)).iter() {
            // A table that cannot be read may be one in which somebody has said that a mark is
            // missing.
            let table = self.changed.table(other).filter(|table| !table.is_void())?;
            table.get_to(&mut own, CHANGED_MARKS_OFFSET).ok()?;
            let record = table.get(changed_record_offset(slot)).ok()?;
            let member = self.members[other].uuid;
            for (index, (mark, own)) in marks.iter_mut().zip(own.as_chunks().0).enumerate() {
                *mark |= *own != unchanged_mark(self.uuid, member, index);
            }
            if self.is_usable(other, table, newest.use_count, newest.update_id) {
                found = found.or_else(|| Leave::decode(slot, &record));
            }
        }
        found.map(|leave| (leave, marks.into_boxed_slice()))
    }

    /// Returns the marks of files, as they are at this moment.
    ///
    /// # Errors
    /// `IO` if no table tells how the member left.
    pub fn changed_without(&self, slot: Slot) -> Result<Marks> {
        self.left(slot).map(|(leave, marks)| Marks { leave, marks }).ok_or(OsError::IO)
    }

    /// Proves that a member which is out is what it was as it left, or has been begun anew since
    /// with its files kept: it lacks nothing of files without a mark.
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
        let is_open = |slot: Slot| {
            let meta = self.members.get(slot).and_then(Member::meta);
            meta.is_some_and(|meta| is_superblock_open(meta, self.access) == Ok(true))
        };
        if !self.in_use().iter().all(is_open) {
            return Err(Unproven::Closed);
        }
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
        // After an orderly end the token is the name of the last update. Otherwise it was written
        // to the member alone; an update of superblocks that was cut short leaves members one
        // apart.
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

    /// Takes away all marks, and what is known of how members left: all members are in sync. The
    /// superblock lock is held.
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
        // If this process dies before all tables are emptied, none of them is believed: each says
        // from here on that a mark may be missing.
        if !tables.iter().all(|(_, table, _)| table.give_up().is_ok()) {
            return;
        }
        let empty = |&(slot, table, meta): &(Slot, &Table, &OwnedFd)| {
            let member = self.members[slot].uuid;
            let header = TableHeader::new(TableKind::Changed, self.uuid, member, self.runtime.use_count());
            table.put(&NO_LEAVES, changed_record_offset(0))?;
            table.put(&[0; RESERVED_BYTES], CHANGED_RECORDS_END)?;
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
        let believe = |table: &Table| table.put(&NO_RECORD, changed_void_offset()).and_then(|()| table.persist());
        let are_believed = tables.iter().all(|(_, table, _)| believe(table).is_ok());
        if !are_believed || self.runtime.lacks_marks() || !self.runtime.out().is_empty() {
            self.give_marks_up();
        }
    }
}

impl Array {
    /// Mends the tables of changed files: they are emptied if all members are in sync, else what is
    /// damaged counts as what costs most.
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
                let file = match open_regular(meta.as_fd(), CHANGED_FILE, OFlags::RDWR) {
                    Err(OsError::NOENT) => {
                        // Somebody has removed it. What is marked in memory is told to nobody; a
                        // start that is alone makes a new one.
                        self.give_marks_up();
                        continue;
                    }
                    result => result?,
                };
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
    /// Tells whether bytes of the file `number` may have changed while a member was out.
    #[must_use]
    pub fn has(&self, number: u64) -> bool {
        self.marks.get(changed_mark(number)).is_none_or(|&mark| mark)
    }

    /// Tells whether the marks tell what a member lacks that keeps its files since `kept`.
    #[must_use]
    pub const fn is_since(&self, kept: &Kept) -> bool {
        self.leave.event == kept.event
    }
}

/// Tells whether a file goes on without some members, or a dead process' change of it waits to be
/// made good.
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

/// The files that a member's lanes name, and whether each lane was found whole. One that is being
/// stored is read again.
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
mod tests;
