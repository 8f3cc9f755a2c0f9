//! A member that is out gets a new beginning, and comes back into use once it holds everything.
//!
//! A member comes back in four steps, with the array held by one process and used by no other: [`Array::begin_member`] makes a new `.cxlraid` in its directory; the inode tables of the members in use note
//! that it has lost the bytes of every file; its names and tables are made those of the others; and [`Array::finish_member`] says in the superblocks that it is in use, and being rebuilt. From then on each file's bytes on it are
//! computed from the other members, by the first process that opens the file for writing. When no file waits any more, [`Array::end_rebuild`] says that the member is in sync.
//!
//! Invariants:
//! - until the last step the superblocks of the others call the member out, or name another member UUID, and it is not believed. A step cut short is begun again;
//! - before the last step everything that it promises is durable;
//! - a member gets a new UUID with its new beginning: what another directory has of the old one stays stale.

use crate::Array;
use crate::access;
use crate::error::AttachError;
use crate::journal::copy_onto;
use crate::member::{Standing, inspect};
use crate::superblock::{
    for_slot, make_directories, make_tables, open_meta, probe, random_uuid, read, start_superblock, write_copy,
};
use crate::tables;
use format::{MemberEntry, MemberState, Superblock, Uuid};
use sys::OsError;
use sys::rustix::fs::syncfs;
use units::{MemberSet, Slot};

impl Array {
    /// Makes a new `.cxlraid` in the directory of a member that is out: an empty directory, or a member of this array whose content is given up. Its superblock says that it is stale. The next start finds it.
    ///
    /// The caller is alone with the array and holds it ([`Array::attach_holding`]).
    ///
    /// # Errors
    /// [`AttachError::InSync`] for a member in use. [`AttachError::NotEmpty`], [`AttachError::OtherArray`], [`AttachError::NotThere`] or [`AttachError::Superblock`] for a directory in which no member can be made; then nothing
    /// has been changed in it.
    pub fn begin_member(&self, slot: Slot) -> Result<(), AttachError> {
        let member = self.members.get(slot).ok_or(AttachError::Vanished)?;
        let path = &member.path;
        let failed = |action| move |error| AttachError::os(path, action, error);
        if member.standing == Standing::InSync {
            return Err(AttachError::InSync { path: path.clone() });
        }
        let finding = inspect(path)?;
        let root = finding.refillable_root(self.uuid, slot)?;
        probe(path, root)?;
        self.before_change().map_err(failed("record the loss of"))?;
        let meta = self.members[self.first_in_use().map_err(failed("replace"))?].meta();
        let (newest, _) = meta.ok_or(OsError::NODEV).and_then(read).map_err(failed("replace"))?;
        let fresh = stale(&newest, slot).map_err(failed("create"))?;
        let make = || {
            let meta = open_meta(root, newest.access)?;
            start_superblock(&meta, &fresh)?;
            access::give(&meta, newest.access, access::directory_mode(newest.access.mode))?;
            make_tables(&fresh, &meta)?;
            copy_onto(self.journal.as_ref(), &self.geometry, slot, &meta, newest.access)
        };
        make().map_err(failed("create"))
    }

    /// Says in the superblocks of all members that a member, which [`Array::begin_member`] began, is in use and being rebuilt. The caller is alone with the array and holds it, and leaves it to be attached anew.
    ///
    /// # Errors
    /// What the kernel says where a superblock cannot be written. The next start finds the member in use or stale.
    pub fn finish_member(&self, slot: Slot) -> Result<(), OsError> {
        let member = self.members.get(slot).ok_or(OsError::NODEV)?;
        // The names and tables of the new member, and the notes in the others' tables, were stored without being made durable.
        for slot in self.in_use().with(slot).iter() {
            if let Some(root) = self.members[slot].root() {
                syncfs(root)?;
            }
        }
        self.runtime.with_superblocks(|| {
            // The others were marked when this use began, and this member was out then.
            tables::mark(member.meta().ok_or(OsError::NODEV)?, self.uuid, 0, self.runtime.use_count())?;
            let newest = read(self.members[self.first_in_use()?].meta().ok_or(OsError::NODEV)?)?.0;
            let entry = MemberEntry { uuid: member.uuid, state: MemberState::Rebuilding };
            let meta = member.meta().ok_or(OsError::NODEV)?;
            let (own, copy) = read(meta)?;
            let mut finished = Superblock {
                event_count: newest.event_count + 1,
                copy_sequence: own.copy_sequence + 1,
                update_ns: sys::clock::realtime_coarse_ns(),
                ..newest.clone()
            };
            finished.members[slot] = entry;
            // The member itself first: with the higher count it is believed, and whoever is alone next writes the others.
            write_copy(meta, &for_slot(&finished, slot), Superblock::next_copy(copy))?;
            self.rewrite_superblocks(|superblock| superblock.members[slot] = entry)
        })
    }

    /// Says in the superblocks that members which were being rebuilt are in sync: no file waits for them any more. Programs may use the array.
    ///
    /// # Errors
    /// What the kernel says where a superblock cannot be written.
    pub fn end_rebuild(&self, rebuilt: MemberSet) -> Result<(), OsError> {
        self.before_change()?;
        self.runtime.with_superblocks(|| {
            self.rewrite_superblocks(|superblock| {
                for slot in rebuilt.iter() {
                    let state = &mut superblock.members[slot].state;
                    if *state == MemberState::Rebuilding {
                        *state = MemberState::InSync;
                    }
                }
            })
        })
    }

    /// Says in the superblocks that the place of a member, which is out, is empty: no directory is believed to be that member any more.
    ///
    /// # Errors
    /// `BUSY` if the member is in use; what the kernel says where a superblock cannot be written.
    pub fn remove_member(&self, slot: Slot) -> Result<(), OsError> {
        if self.in_use().contains(slot) {
            return Err(OsError::BUSY);
        }
        self.before_change()?;
        let empty = MemberEntry { uuid: Uuid::NIL, state: MemberState::Missing };
        self.runtime.with_superblocks(|| self.rewrite_superblocks(|superblock| superblock.members[slot] = empty))
    }

    /// Makes the missing directories on the way to `path` on a member that is out.
    ///
    /// # Errors
    /// `NODEV` if the member is missing, and what the kernel says.
    pub fn make_directories_on(&self, slot: Slot, path: &[u8]) -> Result<(), OsError> {
        make_directories(self.members[slot].root().ok_or(OsError::NODEV)?, path, None)
    }
}

/// Whether a member could be made in a directory: it is there, empty and no member of an array, and files with attributes can be made in it. Nothing is changed there.
///
/// # Errors
/// [`AttachError::OfArray`] for a member of an array; else as for a member of an array to be created.
pub fn check_blank(path: &[u8]) -> Result<(), AttachError> {
    let finding = inspect(path)?;
    if let Some(superblock) = finding.superblock() {
        return Err(AttachError::OfArray { path: path.to_vec(), found: superblock.array_uuid });
    }
    probe(path, finding.blank_root()?)
}

/// The superblock of a member with a new UUID that is to be filled. It names the others as the newest superblock does.
fn stale(newest: &Superblock, slot: Slot) -> Result<Superblock, OsError> {
    let mut fresh = newest.clone();
    fresh.members[slot] = MemberEntry { uuid: random_uuid()?, state: MemberState::Stale };
    Ok(Superblock { event_count: 1, copy_sequence: 0, ..for_slot(&fresh, slot) })
}
