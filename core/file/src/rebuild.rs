//! What a member that is made anew is to hold of the files, and how much of it is still to be
//! computed.
//!
//! The inode tables say of each file which members have lost its bytes ([`format::Resync`]). A
//! member that comes back empty has lost the bytes of all files. So how far its rebuild has come is
//! known at any instant, and survives every crash: a file whose record still says that the member
//! has lost it waits, and every other file is done.
//!
//! Invariants: a file's note is durable on all members in use before the member may count as in
//! sync (`array::fill`), and goes only when the bytes are there (`resync`).

use crate::files::Files;
use crate::inode::key;
use crate::nameless::Name;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use array::{Array, Marks};
use core::sync::atomic::Ordering;
use format::{
    Attribute, INODE_RECORD_BYTES, InodeRecord, InodeState, Resync, TABLE_HEADER_BYTES, TableKind, inode_record_offset,
};
use medium::Medium;
use sys::OsError;
use sys::rustix::fs::{Stat, Timespec, Timestamps};
use sys::rustix::io::{pread, pwrite};
use units::{MemberSet, Slot};

/// A note by which no bytes wait but those that members have lost: where the member does not come
/// back after all, the note costs nothing.
pub(crate) const NO_BYTES: Resync = Resync { start: u64::MAX, end: 1, lost: MemberSet::EMPTY };
/// Bytes of a table that are copied at a time.
const COPY_BYTES: usize = 1 << 20;

/// The files that a member which comes back keeps: inode number and generation, and the bytes of
/// the backing file.
pub type KeptFiles = BTreeMap<(u64, u64), u64>;

/// A file that has bytes on some member that are to be computed from the other members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unbuilt {
    /// The file.
    pub attribute: Attribute,
    /// Its size in bytes.
    pub bytes: u64,
    /// The members that have lost its bytes.
    pub lost: MemberSet,
}

impl Files {
    /// The files that wait to be rebuilt.
    ///
    /// # Errors
    /// The kernel's error where a table cannot be read; `IO` if too many members have failed.
    pub fn unbuilt(&self) -> Result<Vec<Unbuilt>, OsError> {
        let mut found = Vec::new();
        self.each_record(|number, record| {
            let lost = record.resync.map_or(MemberSet::EMPTY, |resync| resync.lost);
            if !lost.is_empty() {
                let attribute = Attribute { inode: number, generation: record.generation };
                found.push(Unbuilt { attribute, bytes: record.size, lost });
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// The members that have lost a file's bytes, with what else the bytes' rebuild gives back: its
    /// length and times there. Nobody of whom the file's record cannot be read.
    #[must_use]
    pub fn lost_by(&self, attribute: Attribute) -> MemberSet {
        let resync = self.record(attribute).ok().and_then(|record| record.resync);
        resync.map_or(MemberSet::EMPTY, |resync| resync.lost)
    }

    /// Whether programs have a file open that goes on without a member until they have closed it:
    /// it was open when the member joined, or a program stores through a mapping that shows another
    /// copy.
    #[must_use]
    pub fn goes_without(&self, attribute: Attribute) -> bool {
        let mapped = |key| self.array().runtime().mapped().of(key).any(|(record, _)| record.is_direct());
        self.shared_if_open(attribute).is_some_and(|shared| {
            let is_left_out = shared.cut.load(Ordering::Acquire) != 0;
            shared.without.load(Ordering::Acquire) != 0
                || is_left_out && self.keeps_copies(attribute) && mapped(key(attribute.inode, attribute.generation))
        })
    }

    /// Tells whether there are several copies of a file's bytes.
    fn keeps_copies(&self, attribute: Attribute) -> bool {
        self.record(attribute).is_ok_and(|record| record.geometry().copy_count() > 1)
    }

    /// Whether a file has no name and gets none any more: it is gone with the last process that has
    /// it open, or with the next start if none has.
    #[must_use]
    pub fn is_about_to_go(&self, attribute: Attribute) -> bool {
        match self.shared_if_open(attribute) {
            Some(shared) => Name::of(&shared.unlinked) == Name::Lost,
            None => self.state_of(attribute) == Some(InodeState::Orphan),
        }
    }

    /// The numbers of the inodes of files of which bytes wait for resync, but of those that members
    /// have lost: where the last use of the array was writing.
    ///
    /// # Errors
    /// As for [`Self::unbuilt`].
    pub fn waiting_for_resync(&self) -> Result<Vec<u64>, OsError> {
        let mut found = Vec::new();
        self.each_record(|number, record| {
            if record.resync.is_some_and(|resync| resync.lost.is_empty()) {
                found.push(number);
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Asks whether every file bears that a member, if it is out, loses its bytes for good. Nothing
    /// is changed. With `keeps` the member keeps the bytes of all files that did not change while it
    /// was out, so a file that does not bear its loss, and of which nothing waits, may count on it:
    /// whoever notes what is lost asks once more ([`Files::require_loss_borne_of`]).
    ///
    /// # Errors
    /// `BUSY` if some file still waits to be rebuilt on another member and does not bear this loss
    /// as well: its bytes could never be computed, and what the member holds may be all that is
    /// left of them. Otherwise as for [`Self::unbuilt`].
    pub fn require_loss_borne(&self, slot: Slot, keeps: bool) -> Result<(), OsError> {
        let array = self.array();
        if array.in_use().contains(slot) {
            return Ok(());
        }
        self.each_record(
            |_, record| {
                if keeps && record.resync.is_none() { Ok(()) } else { self.require_loss_borne_of(&record, slot) }
            },
        )
    }

    /// Asks whether a file bears that a member loses its bytes for good, besides the members that
    /// are out or have lost them.
    ///
    /// # Errors
    /// `BUSY` if it does not.
    pub(crate) fn require_loss_borne_of(&self, record: &InodeRecord, slot: Slot) -> Result<(), OsError> {
        let noted = record.resync.map_or(MemberSet::EMPTY, |resync| resync.lost);
        let out = self.array().runtime().out().union(noted).with(slot);
        if record.size == 0 || record.geometry().survives(out) { Ok(()) } else { Err(OsError::BUSY) }
    }

    /// The files with bytes of which not all could be read without these members.
    ///
    /// # Errors
    /// As for [`Self::unbuilt`].
    pub fn lost_without(&self, out: MemberSet) -> Result<Vec<Attribute>, OsError> {
        let mut found = Vec::new();
        self.each_record(|number, record| {
            let lost = record.resync.map_or(MemberSet::EMPTY, |resync| resync.lost);
            if record.size > 0 && !record.geometry().survives(out.union(lost)) {
                found.push(Attribute { inode: number, generation: record.generation });
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// The bytes that a file's backing file needs, which has `present` bytes on a member that comes
    /// back, if it has all that it is to have: nothing has changed the file meanwhile, and nothing
    /// of it waits.
    #[must_use]
    pub fn kept_bytes(&self, present: u64, marks: &Marks, file: Attribute) -> Option<u64> {
        let record = self.table().load(self.array(), file.inode).ok()??;
        if record.generation == file.generation { bytes_if_kept(present, marks, file.inode, &record) } else { None }
    }

    /// Marks every file that a member which comes back does not keep, before anything of it is
    /// touched there. If this attempt is cut short, the next one does not take for whole what this
    /// one has cut, made anew or filled with zeros: that must not depend on what clocks have told.
    /// Nobody changes names meanwhile.
    ///
    /// # Errors
    /// `IO` if a file cannot be marked: then nothing that the member has can be told from what it
    /// lacks any more.
    pub fn mark_what_lacks(&self, kept: &KeptFiles, marks: &Marks) -> Result<(), OsError> {
        self.each_record(|number, record| {
            let is_left = !lacks(Some((kept, marks)), number, &record) || marks.has(number);
            if is_left || self.array().mark_changed(number) { Ok(()) } else { Err(OsError::IO) }
        })
    }

    /// Notes of every file but those that it keeps that a member, which is out, has lost its bytes.
    /// The caller is alone with the array, and nobody has a file open.
    ///
    /// # Errors
    /// As for [`Self::require_loss_borne`]; then nothing is noted.
    pub fn note_lost_everywhere(&self, slot: Slot, kept: Option<(&KeptFiles, &Marks)>) -> Result<(), OsError> {
        let (array, table) = (self.array(), self.table());
        let lost = MemberSet::EMPTY.with(slot);
        self.each_record(
            |number, record| {
                if lacks(kept, number, &record) { self.require_loss_borne_of(&record, slot) } else { Ok(()) }
            },
        )?;
        array.before_change()?;
        self.each_record(|number, record| {
            if lacks(kept, number, &record) {
                table.add_resync(array, number, Resync { lost, ..NO_BYTES });
            }
            Ok(())
        })?;
        table.persist_all(array)
    }

    /// Notes of some files that a member has lost their bytes. The caller is alone with the array,
    /// and nobody has a file open.
    ///
    /// # Errors
    /// The first of the files that does not bear this loss, with `BUSY`: nothing is noted then.
    /// Otherwise what the kernel says.
    pub fn note_all_lost(&self, slot: Slot, files: &[Attribute]) -> Result<(), (Option<Attribute>, OsError)> {
        let (array, table, lost) = (self.array(), self.table(), MemberSet::EMPTY.with(slot));
        for &file in files {
            let Ok(Some(record)) = table.load(array, file.inode) else { return Err((Some(file), OsError::BUSY)) };
            let noted = record.resync.map_or(MemberSet::EMPTY, |resync| resync.lost);
            if record.size != 0 && !record.geometry().survives(array.runtime().out().union(noted).union(lost)) {
                return Err((Some(file), OsError::BUSY));
            }
        }
        if files.is_empty() {
            return Ok(());
        }
        array.before_change().map_err(|error| (None, error))?;
        files.iter().for_each(|file| table.add_resync(array, file.inode, Resync { lost, ..NO_BYTES }));
        table.persist_all(array).map_err(|error| (None, error))
    }

    /// Gives a member that is out, and has empty tables, the inode records of the others and their
    /// log of names. The caller is alone with the array.
    ///
    /// # Errors
    /// What the kernel says of the member; `IO` if its memory fails.
    pub fn copy_tables_to(&self, slot: Slot) -> Result<(), OsError> {
        let (array, table) = (self.array(), self.table());
        let own = table.member(slot).ok_or(OsError::NODEV)?;
        let reference = array.first_in_use()?;
        let mut next = 1;
        while let Some(run) = table.next_run(array, next)? {
            next = run.end;
            own.allocate(inode_record_offset(run.start), (run.end - run.start) * INODE_RECORD_BYTES as u64)?;
            for number in run {
                // Where no member has the record whole the new one gets what the reference has.
                let right = table.load_right(array, number).or_else(|_| table.load_bytes(reference, number))?;
                table.store_bytes(slot, number, &right)?;
            }
        }
        own.persist(0, own.bytes()?)?;
        copy_body(array, reference, slot, TableKind::Names, format::NAMES_FILE)?;
        // A member whose table of backing files does not name itself is one that was copied, or has
        // just been made.
        self.backings().renew(array, array.in_use().with(slot));
        self.backings().believe(array);
        Ok(())
    }

    /// Gives a member what another one holds in its log of names. The namespace lock is held.
    ///
    /// # Errors
    /// What the kernel says of either member.
    pub fn copy_name_log(&self, from: Slot, to: Slot) -> Result<(), OsError> {
        copy_body(self.array(), from, to, TableKind::Names, format::NAMES_FILE)
    }

    /// Makes the copies of inode records that differ, or do not fit their checks, the one that is
    /// right, for files that nobody has open.
    ///
    /// # Errors
    /// `IO` if too many members have failed.
    pub fn mend_records(&self) -> Result<(), OsError> {
        let (array, table) = (self.array(), self.table());
        let mut flawed = Vec::new();
        table.each_flawed(array, |number| flawed.push(number))?;
        for number in flawed {
            // Nobody opens the file meanwhile.
            array.runtime().with_open_files(|_| match table.load(array, number) {
                Ok(Some(record)) if self.is_open(Attribute { inode: number, generation: record.generation }) => Ok(()),
                _ => table.mend(array, number),
            })?;
        }
        table.persist_all(array)
    }

    /// The files that have bytes.
    ///
    /// # Errors
    /// As for [`Self::unbuilt`].
    pub fn with_bytes(&self) -> Result<Vec<Attribute>, OsError> {
        let mut found = Vec::new();
        self.each_record(|number, record| {
            if record.size > 0 {
                found.push(Attribute { inode: number, generation: record.generation });
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// How many bytes files have.
    ///
    /// # Errors
    /// As for [`Self::unbuilt`].
    pub fn bytes(&self) -> Result<u64, OsError> {
        let mut bytes = 0u64;
        self.each_record(|_, record| {
            bytes = bytes.saturating_add(record.size);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Calls `visit` with every record that is a file's, until it gives an error.
    pub(crate) fn each_record(&self, mut visit: impl FnMut(u64, InodeRecord) -> Result<(), OsError>) -> Result<(), OsError> {
        let (array, table) = (self.array(), self.table());
        let mut next = 1;
        while let Some(run) = table.next_run(array, next)? {
            next = run.end;
            for number in run {
                let Some(record) = table.load(array, number)? else { continue };
                debug_assert_ne!(record.state, InodeState::Free);
                visit(number, record)?;
            }
        }
        Ok(())
    }
}

fn bytes_if_kept(present: u64, marks: &Marks, number: u64, record: &InodeRecord) -> Option<u64> {
    let wanted = record.geometry().member_bytes(record.size);
    (record.resync.is_none() && !marks.has(number) && present >= wanted).then_some(wanted)
}

/// Tells whether a file's bytes are to be noted as lost on a member that comes into use.
pub(crate) fn lacks(kept: Option<(&KeptFiles, &Marks)>, number: u64, record: &InodeRecord) -> bool {
    let Some((kept, marks)) = kept else { return record.size > 0 };
    let present = kept.get(&(number, record.generation));
    // A file that was cut to nothing may have bytes there still.
    (record.size > 0 || present.is_some_and(|&bytes| bytes > 0))
        && present.is_none_or(|&bytes| bytes_if_kept(bytes, marks, number, record).is_none())
}

/// When a file was last read and written.
#[must_use]
pub const fn times_of(stat: &Stat) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: stat.st_atime, tv_nsec: stat.st_atime_nsec as i64 },
        last_modification: Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec as i64 },
    }
}

/// Copies what a table under `.cxlraid` holds behind its header from one member to another. Nobody
/// stores into either.
fn copy_body(array: &Array, from: Slot, to: Slot, kind: TableKind, name: &core::ffi::CStr) -> Result<(), OsError> {
    let tables = crate::table::open_tables(array, kind, name)?;
    let (Some(Some(source)), Some(Some(target))) = (tables.get(from), tables.get(to)) else { return Ok(()) };
    let mut buffer = alloc::vec![0u8; COPY_BYTES];
    let mut offset = TABLE_HEADER_BYTES as u64;
    loop {
        let count = pread(source.fd()?, &mut buffer[..], offset)?;
        if count == 0 {
            return target.persist(0, target.bytes()?);
        }
        let mut done = 0;
        while done < count {
            done += pwrite(target.fd()?, &buffer[done..count], offset + done as u64)?;
        }
        offset += count as u64;
    }
}
