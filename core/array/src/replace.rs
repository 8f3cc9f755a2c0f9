//! A member in use gives its place to another directory, its *successor*, which holds the same.
//!
//! Until the last step the successor is no member: it lies outside of the array, which goes on with
//! the old member, so no redundancy is given up meanwhile. Its superblock calls itself stale under
//! a UUID that no other superblock names. Who makes it the same as the member is the caller's
//! affair; the tables in `.cxlraid` are made here ([`Array::fill_successor`]), once nobody else
//! uses the array.
//!
//! Invariants of the last step ([`Array::swap_member`]):
//! - what decides is which of the two directories the array is configured with: one call of the
//!   caller's, in the middle, changes that. At that instant both are right: the old member with the
//!   superblocks that the others have, and the successor with its own, which is one update ahead.
//!   Who starts with the successor gives the others its update, as after any update cut short;
//! - before that call all that the successor holds is durable, and after it nothing is written to
//!   the old member but the note that it was replaced;
//! - the old member's own superblock calls that member out from then on, so the old member is not
//!   believed where no other member tells better;
//! - before that call both directories are marked ([`MemberEntry::REPLACED`]). So whichever of them is
//!   used first after a death in between, a start with the other one is refused ([`require_present`]),
//!   and does not put the one that is used out.

use crate::Array;
use crate::access;
use crate::changed::{put_kept, remove_left};
use crate::claim::inspect_alone;
use crate::config::Config;
use crate::error::AttachError;
use crate::fill::stale;
use crate::journal::copy_onto;
use crate::limited::write_fully;
use crate::member::{Finding, inspect, read_fully_at};
use crate::regular::open_regular;
use crate::runtime::Directory;
use crate::sums_files;
use crate::superblock::{clear_way, draw_update_id, for_slot, make_tables, open_meta, probe, read, start_superblock, write_copy};
use crate::tables;
use alloc::vec::Vec;
use core::ffi::CStr;
use format::{
    ATTRIBUTE_NAME, Attribute, BACKING_CHECK_OFFSET, BACKING_FILE_OFFSET, BACKING_GENERATION_OFFSET, BACKING_RECORD_BYTES,
    MemberEntry, MemberState, Superblock, TABLE_HEADER_BYTES, backing_check, backing_record_offset,
};
use sys::rustix::fs::{self, Mode, OFlags, XattrFlags, fgetxattr, fsetxattr, fstat, fsync, syncfs};
use sys::{AsFd as _, OsError, OwnedFd};
use units::Slot;

/// Bytes of a table that are copied at a time.
const COPY_BYTES: usize = 1 << 20;

/// A directory that is to take the place of a member in use.
pub struct Successor {
    path: Vec<u8>,
    root: OwnedFd,
    meta: OwnedFd,
    /// What lies there until the last step: it calls itself stale.
    begun: Superblock,
}

impl Successor {
    /// The directory itself.
    #[must_use]
    pub const fn root(&self) -> &OwnedFd {
        &self.root
    }
}

/// A backing file on a successor, and the one on the member whose place it takes: the numbers that
/// the file systems give them.
#[derive(Clone, Copy, Debug)]
pub struct Twins {
    /// The file that both say they belong to.
    pub attribute: Attribute,
    /// On the member.
    pub old: u64,
    /// On the successor.
    pub new: u64,
}

/// What became of an exchange of members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Swapped {
    /// Whether the old member's superblock says that another directory has its place.
    pub is_noted: bool,
}

impl Array {
    /// Makes a `.cxlraid` in a directory that is to take the place of a member in use: an empty
    /// directory, or one in which this was begun before. Its superblock says that it is stale, and
    /// it is no member until [`Self::swap_member`]. Programs may use the array.
    ///
    /// # Errors
    /// As for [`Array::begin_member`]; also for a directory that is a member, or a copy of one.
    pub fn begin_successor(&self, slot: Slot, path: &[u8]) -> Result<Successor, AttachError> {
        let failed = |action| move |error| AttachError::os(path, action, error);
        let (_claim, finding) = inspect_alone(path)?;
        let root = finding.refillable_root(self.uuid, slot)?;
        let identity = |root: &OwnedFd| fstat(root).map(|stat| (stat.st_dev, stat.st_ino));
        let own = identity(root).map_err(failed("look at"))?;
        let is_own = |root: &OwnedFd| identity(root) == Ok(own);
        if let Some(member) = self.members.iter().find(|member| member.root().is_some_and(is_own)) {
            return Err(AttachError::SlotTwice { path: path.to_vec(), slot: member.slot });
        }
        let meta = self.members[self.first_in_use().map_err(failed("begin"))?].meta();
        let (newest, _) = meta.ok_or(OsError::NODEV).and_then(read).map_err(failed("begin"))?;
        // A copy of a member is somebody's, and may be what is left of it one day.
        let is_copy = |found: &Superblock| newest.members.iter().any(|entry| entry.uuid == found.member_uuid);
        if finding.superblock().is_some_and(is_copy) {
            return Err(AttachError::NotEmpty { path: path.to_vec() });
        }
        probe(path, root)?;
        let begun = stale(&newest, slot).map_err(failed("create"))?;
        let make = || {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let root = fs::openat(root, c".", flags, Mode::empty())?;
            let meta = open_meta(&root, newest.access)?;
            clear_way(&meta)?;
            sums_files::remove_all(&meta)?;
            put_kept(&meta, None, newest.access)?;
            start_superblock(&meta, &begun)?;
            remove_left(&meta)?;
            access::give(&meta, newest.access, access::directory_mode(newest.access.mode))?;
            Ok((root, meta))
        };
        let (root, meta) = make().map_err(failed("create"))?;
        Ok(Successor { path: path.to_vec(), root, meta, begun })
    }

    /// Gives a successor all that the member in `slot` has in `.cxlraid`, and makes it durable with
    /// everything that the successor holds. `files` are its backing files. The caller is alone with
    /// the array and holds it, all members' inode records agree, and nothing waits in the journal.
    ///
    /// # Errors
    /// What the kernel says of the successor, or of the members.
    pub fn fill_successor(&self, slot: Slot, successor: &Successor, files: &[Twins]) -> Result<(), OsError> {
        let Successor { root, meta, begun, .. } = successor;
        let (newest, _) = read(self.members[slot].meta().ok_or(OsError::NODEV)?)?;
        make_tables(&Superblock { use_count: newest.use_count, ..begun.clone() }, meta)?;
        tables::name_itself(meta)?;
        copy_onto(self, slot, meta, begun.access)?;
        // The member may be replaced since its medium cannot be trusted.
        let reference = self.in_use().without(slot).lowest().unwrap_or(slot);
        let reference = self.members[reference].meta().ok_or(OsError::NODEV)?;
        for name in [format::INODES_FILE, format::NAMES_FILE] {
            copy_table(reference, meta, name)?;
        }
        self.copy_position(slot, meta)?;
        self.name_files(slot, meta, files)?;
        syncfs(root)
    }

    /// Tells the log of names of a successor how far it came: as far as the member whose place it
    /// takes.
    fn copy_position(&self, slot: Slot, meta: &OwnedFd) -> Result<(), OsError> {
        let own = self.members[slot].meta().ok_or(OsError::NODEV)?;
        let mut bytes = [0; 8];
        let log = open_regular(own.as_fd(), format::NAMES_FILE, OFlags::RDONLY)?;
        match fgetxattr(&log, ATTRIBUTE_NAME, &mut bytes[..]) {
            Ok(8) => {
                let copy = open_regular(meta.as_fd(), format::NAMES_FILE, OFlags::RDWR)?;
                fsetxattr(&copy, ATTRIBUTE_NAME, &bytes, XattrFlags::empty())
            }
            // A member that forgets with the machine is not told, or not yet.
            _ => Ok(()),
        }
    }

    /// Names the backing files of a successor in its table of these. A file that the member's own
    /// table does not take for that file's stays unnamed: its owner may have written its attribute.
    fn name_files(&self, slot: Slot, meta: &OwnedFd, files: &[Twins]) -> Result<(), OsError> {
        let own = self.members[slot].meta().ok_or(OsError::NODEV)?;
        let own = open_regular(own.as_fd(), format::BACKINGS_FILE, OFlags::RDONLY)?;
        let table = open_regular(meta.as_fd(), format::BACKINGS_FILE, OFlags::RDWR)?;
        for twins in files {
            let Attribute { inode, generation } = twins.attribute;
            let (mut record, offset) = ([0; BACKING_RECORD_BYTES], backing_record_offset(inode));
            let length = read_fully_at(&own, &mut record, offset)?;
            let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| record[at + index]));
            let (named, of) = (word(BACKING_FILE_OFFSET), word(BACKING_GENERATION_OFFSET));
            let is_whole = length == record.len() && word(BACKING_CHECK_OFFSET) == backing_check(inode, named, of);
            if is_whole && of == generation && named != 0 && named != twins.old {
                continue;
            }
            let mut record = [0; BACKING_RECORD_BYTES];
            let mut put = |at: usize, word: u64| record[at..][..8].copy_from_slice(&word.to_le_bytes());
            put(BACKING_FILE_OFFSET, twins.new);
            put(BACKING_GENERATION_OFFSET, generation);
            put(BACKING_CHECK_OFFSET, backing_check(inode, twins.new, generation));
            write_fully(&table, &record, offset)?;
        }
        fsync(&table)
    }

    /// Puts members on record that are out and are not on record yet.
    ///
    /// # Errors
    /// As for [`Array::before_change`].
    pub fn put_losses_on_record(&self) -> Result<(), OsError> {
        if self.runtime.out_unrecorded().is_empty() { Ok(()) } else { self.before_change() }
    }

    /// Puts a successor, which holds all that the member in `slot` holds, in the place of that
    /// member. `lacks` says that bytes of files are noted as lost in that place: then it is being
    /// rebuilt. `commit` has the array found with the successor's directory from then on, durably,
    /// or fails and has changed nothing. The caller is alone with the array and holds it, and
    /// leaves it to be attached anew, without doing anything with it before.
    ///
    /// # Errors
    /// What the kernel says where the successor's superblock cannot be written, or the others' are
    /// behind and cannot be. The array is as before, and so it is where `commit` fails.
    pub fn swap_member<E>(
        &self,
        slot: Slot,
        successor: &Successor,
        lacks: bool,
        commit: impl FnOnce() -> Result<(), E>,
    ) -> Result<Result<Swapped, E>, OsError> {
        self.recording(|| {
            // All have the same update after this, and can be written.
            self.rewrite_superblocks(|_| {})?;
            let own = self.members[slot].meta().ok_or(OsError::NODEV)?;
            let (old, _) = read(own)?;
            let mut next = old.clone();
            let state = if lacks { MemberState::Rebuilding } else { MemberState::InSync };
            let flags = old.members[slot].flags & !MemberEntry::REPLACED;
            next.members[slot] = MemberEntry { uuid: successor.begun.member_uuid, state, out_count: 0, flags };
            next.event_count += 1;
            next.previous_update_id = old.update_id;
            next.update_id = draw_update_id()?;
            next.update_ns = sys::clock::realtime_coarse_ns();
            // Either directory is the member for whoever starts next.
            self.runtime.note_directory(slot, Directory::default());
            let (_, copy) = read(&successor.meta)?;
            let copy_sequence = successor.begun.copy_sequence + 1;
            let taken = Superblock { copy_sequence, ..for_slot(&next, slot) };
            write_copy(&successor.meta, &marked(&taken, true), Superblock::next_copy(copy))?;
            // A member may be replaced because it fails.
            let _ = mark(own, true);
            if let Err(error) = commit() {
                // What could be left of it is no harm: the array goes on without, and is ahead of
                // it with its next use.
                let _ = start_superblock(&successor.meta, &successor.begun);
                let _ = mark(own, false);
                return Ok(Err(error));
            }
            let is_noted = write_replaced(own).is_ok();
            let others = self.in_use().without(slot);
            self.follow_update(others, old.update_id, next.update_id);
            for other in others.iter() {
                // What a member does not get here the next start gives it, or does without it.
                let _ = self.members[other].meta().ok_or(OsError::NODEV).and_then(|meta| {
                    let (found, copy) = read(meta)?;
                    let written = Superblock { copy_sequence: found.copy_sequence + 1, ..for_slot(&next, other) };
                    write_copy(meta, &written, Superblock::next_copy(copy))
                });
            }
            // With the mark it is the member as well.
            let _ = mark(&successor.meta, false);
            Ok(Ok(Swapped { is_noted }))
        })
    }
}

/// Refuses members that are out of date: another directory has the place of one of them, and the array
/// goes on with that one. `findings` are of one array, of which `newest` is the newest superblock. A
/// start would do without the directory that has the place, put that on record, and so take away what
/// makes the array redundant.
///
/// # Errors
/// [`AttachError::OutOfDate`].
pub(crate) fn require_present<'a>(
    config: &Config,
    newest: &Superblock,
    mut findings: impl Iterator<Item = &'a Finding>,
) -> Result<(), AttachError> {
    let is_renewed = |path: &[u8]| config.renewed.as_deref() == Some(path);
    let has_no_place = |finding: &&Finding| finding.superblock().is_some_and(|own| gave_place(own, newest));
    match findings.find(|finding| has_no_place(finding) && !is_renewed(&finding.path)) {
        Some(finding) => Err(AttachError::OutOfDate { path: finding.path.clone() }),
        None => Ok(()),
    }
}

/// Tells whether another directory has the place of the member with the superblock `own`, and `newest`,
/// the array's newest superblock, has a member in use in that place.
#[must_use]
pub fn gave_place(own: &Superblock, newest: &Superblock) -> bool {
    let (own_entry, present) = (&own.members[own.slot], &newest.members[own.slot]);
    // Where both name one member, an exchange was cut short before the others could name the new one.
    let is_exchanged = present.uuid != own.member_uuid || !own_entry.state.is_in_use();
    own.array_uuid == newest.array_uuid && own_entry.is_replaced() && present.state.is_in_use() && is_exchanged
}

/// Has the superblock in a directory say that another directory has taken its member's place, where
/// the superblock `newest` names another member in that slot. Returns whether it says so. Where
/// `newest` says that the member is out, the superblock is marked, which counts once another member is
/// named.
///
/// # Errors
/// As for a start that finds that directory, and what the kernel says.
pub fn note_replaced(path: &[u8], newest: &Superblock) -> Result<bool, AttachError> {
    let finding = inspect(path)?;
    let Some(own) = finding.superblock().filter(|own| own.array_uuid == newest.array_uuid) else { return Ok(false) };
    let Some(present) = newest.members.get(own.slot) else { return Ok(false) };
    let is_replaced = present.uuid != own.member_uuid;
    if !is_replaced && present.state.is_in_use() {
        return Ok(false);
    }
    let failed = |error| AttachError::os(path, "write the superblock of", error);
    let meta = finding.meta().ok_or(OsError::NODEV).map_err(failed)?;
    let entry = own.members[own.slot];
    let is_noted = entry.is_replaced() && (!is_replaced || !entry.state.is_in_use());
    if !is_noted {
        if is_replaced { write_replaced(meta) } else { mark(meta, true) }.map_err(failed)?;
    }
    Ok(is_replaced)
}

/// Has a member's superblock say that another directory has its place.
fn write_replaced(meta: &OwnedFd) -> Result<(), OsError> {
    let (own, copy) = read(meta)?;
    let mut replaced = marked(&own, true);
    let entry = &mut replaced.members[own.slot];
    entry.state = MemberState::Stale;
    entry.out_count = own.event_count;
    replaced.copy_sequence += 1;
    replaced.update_ns = sys::clock::realtime_coarse_ns();
    write_copy(meta, &replaced, Superblock::next_copy(copy))
}

/// Marks a member's superblock, or takes the mark from it ([`marked`]).
fn mark(meta: &OwnedFd, is_so: bool) -> Result<(), OsError> {
    let (own, copy) = read(meta)?;
    let written = Superblock { copy_sequence: own.copy_sequence + 1, ..marked(&own, is_so) };
    write_copy(meta, &written, Superblock::next_copy(copy))
}

/// Returns a superblock that says of its own member, or says no more, that another directory has its
/// place if the other members' superblocks name another one there.
fn marked(own: &Superblock, is_so: bool) -> Superblock {
    let mut marked = own.clone();
    marked.members[own.slot].set_flag(MemberEntry::REPLACED, is_so);
    marked
}

/// Copies what lies behind the header of a table. Holes stay holes.
fn copy_table(from: &OwnedFd, to: &OwnedFd, name: &CStr) -> Result<(), OsError> {
    let source = open_regular(from.as_fd(), name, OFlags::RDONLY)?;
    let target = open_regular(to.as_fd(), name, OFlags::RDWR)?;
    let mut buffer = alloc::vec![0u8; COPY_BYTES];
    let mut offset = TABLE_HEADER_BYTES as u64;
    loop {
        let count = read_fully_at(&source, &mut buffer, offset)?;
        let bytes = buffer.get(..count).unwrap_or_default();
        if bytes.iter().any(|&byte| byte != 0) {
            write_fully(&target, bytes, offset)?;
        }
        offset += count as u64;
        if count < COPY_BYTES {
            break;
        }
    }
    if fstat(&target)?.st_size as u64 <= offset {
        fs::ftruncate(&target, fstat(&source)?.st_size as u64)?;
    }
    fsync(&target)
}

/// The members that could take the place of others are told apart by this.
impl core::fmt::Debug for Successor {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(formatter, "{}", units::Shown(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superblock::death;
    use crate::test_array::{Home, three_members};
    use layout::Level;
    use units::MemberSet;

    /// Ends the use of an array, as the death of its last process does.
    fn end(array: Array) {
        let _ = array.runtime.remove();
        drop(array);
    }

    /// An array whose configuration has the new directory since the instant at which the exchange was
    /// killed: what lists both directories, the one before and the one after.
    fn killed_exchange(name: &str, writes: u32) -> (Home, Config, Config) {
        let (home, before) = three_members(name, Level::Raid5);
        let array = Array::attach_holding(&before).unwrap();
        std::fs::create_dir_all(home.path("new/data")).unwrap();
        let new = home.path("new").into_os_string().into_encoded_bytes();
        std::fs::rename(home.path("new/data"), home.path("data")).unwrap();
        let successor = array.begin_successor(1, &new).unwrap();
        std::fs::rename(home.path("data"), home.path("new/data")).unwrap();
        array.fill_successor(1, &successor, &[]).unwrap();
        let _ = array.swap_member(1, &successor, false, || {
            death::after(writes);
            Ok::<_, ()>(())
        });
        death::after(u32::MAX);
        end(array);
        let mut after = before.clone();
        after.mounts[1] = new;
        (home, before, after)
    }

    /// Whichever directory is used first after that instant has the place, and the other is refused.
    /// Who starts with the other one does not put the first one out.
    #[test]
    fn a_directory_without_a_place_is_refused_and_puts_no_other_out() {
        for writes in 0..6 {
            for is_old_first in [true, false] {
                let (home, before, after) = killed_exchange("exchange", writes);
                let (first, second) = if is_old_first { (&before, &after) } else { (&after, &before) };
                let what = std::format!("{writes} writes, the old one first: {is_old_first}");
                if is_old_first && writes > 0 {
                    // It says itself that it has no place any more.
                    let refused = Array::attach(&before).map(drop).unwrap_err();
                    assert!(matches!(refused, AttachError::OutOfDate { .. }), "{what}: {refused}");
                } else {
                    let array = Array::attach(first).unwrap();
                    assert_eq!(array.in_use(), MemberSet::first(3), "{what}");
                    array.before_change().unwrap();
                    end(array);
                    for _ in 0..2 {
                        let refused = Array::attach(second).map(drop).unwrap_err();
                        assert!(matches!(refused, AttachError::OutOfDate { .. }), "{what}: {refused}");
                        assert!(Array::foresee(second).is_err(), "{what}");
                    }
                }
                let used = if is_old_first && writes == 0 { &before } else { &after };
                let array = Array::attach(used).unwrap();
                assert_eq!(array.in_use(), MemberSet::first(3), "{what}");
                array.before_change().unwrap();
                end(array);
                // Only a member's own superblock says that it was replaced.
                for member in ["m0", "m2"] {
                    let meta = std::fs::File::open(home.path(member).join(".cxlraid")).unwrap();
                    let (superblock, _) = read(&meta.into()).unwrap();
                    assert!(superblock.members.iter().all(|entry| !entry.is_replaced()), "{what}: {member}");
                }
            }
        }
    }

    /// What is to be made anew counts for nothing; and where the array has no member in that place,
    /// there is none to be put out.
    #[test]
    fn a_directory_that_was_replaced_can_have_a_place_again() {
        let (_home, before, after) = killed_exchange("again", u32::MAX);
        assert!(Array::foresee(&before).is_err());
        let renewed = Config { renewed: Some(before.mounts[1].clone()), ..before.clone() };
        assert_eq!(Array::foresee(&renewed).unwrap()[1].standing, crate::Standing::Stale);
        let array = Array::attach(&after).unwrap();
        array.fail_member(1).unwrap();
        array.before_change().unwrap();
        end(array);
        let array = Array::attach(&before).unwrap();
        assert_eq!(array.in_use(), MemberSet::first(3).without(1));
        end(array);
    }
}
