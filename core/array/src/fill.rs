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
    for_slot, has_no_room, make_directories, make_tables, may_not, open_meta, probe, random_uuid, read, start_superblock,
};
use crate::tables;
use format::{MemberEntry, MemberState, Superblock, Uuid};
use sys::OsError;
use sys::rustix::fs::syncfs;
use units::{MemberSet, Slot};

impl Array {
    /// Makes a new `.cxlraid` in the directory of a member that is out: an empty directory, or a member of this array whose content is given up. Its superblock says that it is stale. The next start finds it.
    ///
    /// The caller is alone with the array and holds it ([`Array::attach_holding`]), or keeps others from attaching. Returns the UUID that the
    /// member has now.
    ///
    /// # Errors
    /// [`AttachError::InSync`] for a member in use. [`AttachError::NotEmpty`], [`AttachError::OtherArray`], [`AttachError::NotThere`] or [`AttachError::Superblock`] for a directory in which no member can be made; then nothing
    /// has been changed in it.
    pub fn begin_member(&self, slot: Slot) -> Result<Uuid, AttachError> {
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
        self.runtime.forget_begun(slot);
        let make = || {
            let meta = open_meta(root, newest.access)?;
            start_superblock(&meta, &fresh)?;
            access::give(&meta, newest.access, access::directory_mode(newest.access.mode))?;
            make_tables(&fresh, &meta)?;
            tables::name_itself(&meta)?;
            copy_onto(self.journal.as_ref(), &self.geometry, slot, &meta, newest.access)
        };
        make().map_err(failed("create")).map(|()| fresh.member_uuid)
    }

    /// Does as [`Array::begin_member`] while programs use the array. Processes that attach from now on can use the member once it joins
    /// ([`Array::join_member`]).
    ///
    /// # Errors
    /// As for [`Array::begin_member`]; `BUSY` if another process does not come to an end with attaching.
    pub fn begin_member_in_use(&self, slot: Slot) -> Result<(), AttachError> {
        let begin = || {
            if self.in_use().contains(slot) {
                return Err(AttachError::InSync { path: self.members[slot].path.clone() });
            }
            // Nothing is stored on it before it is to join.
            self.runtime.end_joining(MemberSet::EMPTY.with(slot));
            let uuid = self.begin_member(slot)?;
            self.runtime.note_begun(slot, uuid);
            Ok(())
        };
        let path = &self.members.get(slot).ok_or(AttachError::Vanished)?.path;
        self.runtime.while_nobody_attaches(begin).unwrap_or_else(|| Err(AttachError::os(path, "begin", OsError::BUSY)))
    }

    /// Runs `act` while no process attaches. None if one does not come to an end with attaching.
    pub fn while_nobody_attaches<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        self.runtime.while_nobody_attaches(act)
    }

    /// Brings a member into use while programs run: it has all that the others have but the bytes of files, and all that it promises is durable, on
    /// the others as well. The caller keeps others from attaching, and from opening and closing files; every open file says that it goes on without the
    /// member. If this process dies in here, whoever writes superblocks next finishes it.
    ///
    /// # Errors
    /// `AGAIN` if somebody has taken the member out since it began to join: it is out. Otherwise what the kernel says where a superblock cannot be written; the member is
    /// out then, too.
    pub fn join_member(&self, slot: Slot) -> Result<(), OsError> {
        self.recording(|| {
            // Until the join is on record the next change finds something to be put on record.
            let was_recorded = self.runtime.is_use_recorded();
            self.runtime.set_use_recorded(false);
            let joined = if self.runtime.take_in(slot) { self.record_join(slot) } else { Err(OsError::AGAIN) };
            if self.runtime.join_unrecorded().is_empty() {
                self.runtime.set_use_recorded(was_recorded);
            }
            joined
        })
    }

    /// Runs a change of the superblocks alone among all that write them, after joins are on record that a dead process did not put on record.
    pub(crate) fn recording<T>(&self, change: impl FnOnce() -> Result<T, OsError>) -> Result<T, OsError> {
        self.runtime.with_superblocks(|| {
            self.record_joins();
            change()
        })
    }

    /// Puts joins on record whose processes died before they had. The superblock lock is held.
    pub(crate) fn record_joins(&self) {
        for slot in self.runtime.join_unrecorded().iter() {
            // Who does not have it open cannot say which member it is.
            if self.in_use().contains(slot) && !self.runtime.reaches(slot) {
                self.runtime.add_out(MemberSet::EMPTY.with(slot));
            }
            if self.in_use().contains(slot) {
                // If it fails, the member is out, or it is left to another process.
                let _ = self.record_join(slot);
            } else {
                self.runtime.end_join(slot);
            }
        }
    }

    /// Says in the superblocks that a member is in use that has joined. If that fails the member goes out, unless it fails for this process alone. The superblock lock is
    /// held.
    fn record_join(&self, slot: Slot) -> Result<(), OsError> {
        let recorded = self.record_rebuilding(slot);
        match recorded {
            Err(error) if may_not(error) || has_no_room(error) => return Err(error),
            Err(_) => drop(self.runtime.add_out(MemberSet::EMPTY.with(slot))),
            Ok(()) => {}
        }
        self.runtime.end_join(slot);
        recorded
    }

    /// Says in the superblocks of all members that a member, which [`Array::begin_member`] began, is in use and being rebuilt. The caller is alone with the array and holds it, and leaves it to be attached anew.
    ///
    /// # Errors
    /// What the kernel says where a superblock cannot be written. The next start finds the member in use or stale.
    pub fn finish_member(&self, slot: Slot) -> Result<(), OsError> {
        // The names and tables of the new member, and the notes in the others' tables, were stored without being made durable.
        for slot in self.in_use().with(slot).iter() {
            if let Some(root) = self.members[slot].root() {
                syncfs(root)?;
            }
        }
        self.recording(|| self.record_rebuilding(slot))
    }

    /// Says in the superblocks of all members that a member is in use and being rebuilt. The superblock lock is held.
    ///
    /// The superblocks of the others say so first. What is cut short before the member's own superblock has their event count leaves the
    /// member stale. If its own came first, and the member then went out, the others would have its event count without that update: it
    /// would be believed although they had gone on without it.
    fn record_rebuilding(&self, slot: Slot) -> Result<(), OsError> {
        let member = self.members.get(slot).ok_or(OsError::NODEV)?;
        let one = MemberSet::EMPTY.with(slot);
        // The others were marked when this use began, and this member was out then.
        tables::mark(member.meta().ok_or(OsError::NODEV)?, self.uuid, 0, self.runtime.use_count())?;
        let entry = MemberEntry { uuid: member.uuid, state: MemberState::Rebuilding };
        for to in [MemberSet::EMPTY, one] {
            // The member's superblock is far behind, so the second time it gets all that the others say.
            loop {
                let to = self.in_use().minus(one).union(to);
                let others = MemberSet::first(self.members.len()).minus(to);
                let (failed, _) = self.rewrite(others, |superblock| superblock.members[slot] = entry)?;
                if failed.is_empty() {
                    break;
                }
                // Whom this member needs to be made whole stays in use; this member does not come into use then.
                if failed.contains(slot) || !self.is_enough_without(self.runtime.out().union(failed)) {
                    return Err(OsError::IO);
                }
                self.go_on_without(failed)?;
            }
        }
        Ok(())
    }

    /// Says in the superblocks that members which were being rebuilt are in sync: no file waits for them any more. Programs may use the array.
    ///
    /// # Errors
    /// What the kernel says where a superblock cannot be written.
    pub fn end_rebuild(&self, rebuilt: MemberSet) -> Result<(), OsError> {
        self.before_change()?;
        self.recording(|| {
            let (failed, _) = self.rewrite(self.runtime.out(), |superblock| {
                for slot in rebuilt.iter() {
                    let state = &mut superblock.members[slot].state;
                    if *state == MemberState::Rebuilding {
                        *state = MemberState::InSync;
                    }
                }
            })?;
            self.runtime.end_rebuilding(rebuilt);
            self.go_on_without(failed)
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
        self.recording(|| self.rewrite_superblocks(|superblock| superblock.members[slot] = empty))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::superblock::death;
    use std::path::PathBuf;
    use sys::OwnedFd;

    struct Home(PathBuf);

    impl Drop for Home {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// A mirror of three members in use, of which the last is lost and has been begun anew; and a process that reaches it.
    fn begun(name: &str) -> (Home, Config, Array) {
        let home = Home(PathBuf::from(std::format!("/dev/shm/fill-{name}-{}", std::process::id())));
        let mounts: alloc::vec::Vec<alloc::vec::Vec<u8>> =
            (0..3).map(|slot| home.0.join(std::format!("m{slot}")).into_os_string().into_encoded_bytes()).collect();
        let path = |mount: &alloc::vec::Vec<u8>| PathBuf::from(std::str::from_utf8(mount).unwrap());
        mounts.iter().for_each(|mount| std::fs::create_dir_all(path(mount)).unwrap());
        let config =
            Config::new(layout::Level::Raid1, None, &mounts, &[b"/data".to_vec()], alloc::string::String::new()).unwrap();
        let before = Array::attach(&config).unwrap();
        std::fs::rename(path(&mounts[2]), home.0.join("lost")).unwrap();
        before.fail_member(2).unwrap();
        before.before_change().unwrap();
        std::fs::create_dir(path(&mounts[2])).unwrap();
        let other = Array::attach(&config).unwrap();
        other.begin_member_in_use(2).unwrap();
        let array = Array::attach(&config).unwrap();
        array.runtime.end_opening(MemberSet::EMPTY);
        assert!(array.runtime.reaches(2) && !other.runtime.reaches(2));
        assert_eq!(array.runtime.not_reaching(2).len(), 2);
        (home, config, array)
    }

    fn state(home: &Home, member: &str, slot: Slot) -> MemberState {
        let meta = OwnedFd::from(std::fs::File::open(home.0.join(member).join(".cxlraid")).unwrap());
        read(&meta).unwrap().0.members[slot].state
    }

    /// Notes on all members that there is one file, whose bytes the members in `lost` lack.
    fn note_file(home: &Home, lost: MemberSet) {
        let members = MemberSet::first(3);
        let shape = format::Shape::new(layout::Level::Raid1, units::ChunkBytes::DEFAULT, members, 0).unwrap();
        let resync = (!lost.is_empty()).then_some(format::Resync { start: 0, end: 1, lost });
        let record =
            format::InodeRecord { size: 5, resync, state: format::InodeState::Used, ..format::InodeRecord::new(1, shape) };
        for slot in 0..3 {
            let path = home.0.join(std::format!("m{slot}/.cxlraid/inodes"));
            let table = std::fs::File::options().write(true).open(path).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&table, &record.encode(1), format::inode_record_offset(1)).unwrap();
        }
    }

    #[test]
    fn who_writes_superblocks_next_finishes_the_join_of_a_process_that_died() {
        let (home, _, array) = begun("dead");
        array.runtime.begin_joining(2);
        assert!(array.runtime.take_in(2));
        // Dead here. Another member fails.
        assert_eq!(state(&home, "m0", 2), MemberState::Failed);
        array.fail_member(1).unwrap();
        array.before_change().unwrap();
        for member in ["m0", "m2"] {
            assert_eq!(
                [0, 1, 2].map(|slot| state(&home, member, slot)),
                [MemberState::InSync, MemberState::Failed, MemberState::Rebuilding]
            );
        }
        let _ = array.runtime.remove();
    }

    #[test]
    fn who_takes_a_member_out_that_joins_keeps_it_out() {
        let (home, _, array) = begun("out");
        array.runtime.begin_joining(2);
        assert_eq!(array.runtime.joining(), MemberSet::EMPTY.with(2));
        array.fail_member(2).unwrap();
        assert_eq!(array.join_member(2), Err(OsError::AGAIN));
        assert_eq!((array.runtime.out(), array.runtime.joining()), (MemberSet::EMPTY.with(2), MemberSet::EMPTY));
        array.before_change().unwrap();
        assert_eq!(state(&home, "m0", 2), MemberState::Failed);
        let _ = array.runtime.remove();
    }

    #[test]
    fn a_start_neither_ends_a_join_nor_is_taken_for_one_that_reaches_the_member() {
        let (home, config, array) = begun("start");
        array.runtime.begin_joining(2);
        let start = Array::attach(&config).unwrap();
        assert_eq!(array.runtime.joining(), MemberSet::EMPTY.with(2));
        assert_eq!(array.runtime.not_reaching(2).len(), 1);
        start.runtime.end_opening(MemberSet::EMPTY);
        assert_eq!(array.runtime.not_reaching(2).len(), 0);
        array.join_member(2).unwrap();
        assert_eq!(state(&home, "m2", 2), MemberState::Rebuilding);
        assert_eq!(array.first_in_use(), Ok(0));
        // Its loss is put on record like that of any other member.
        array.fail_member(2).unwrap();
        assert_eq!(array.runtime.out_unrecorded(), MemberSet::EMPTY.with(2));
        array.before_change().unwrap();
        assert_eq!(state(&home, "m0", 2), MemberState::Stale);
        let _ = array.runtime.remove();
    }

    #[test]
    fn a_member_that_joined_and_went_out_is_not_believed_wherever_the_join_was_cut_short() {
        for writes in 1.. {
            let (_home, config, array) = begun(&std::format!("cut-{writes}"));
            array.runtime.begin_joining(2);
            death::after(writes);
            let joined = array.join_member(2);
            death::after(u32::MAX);
            assert!(array.in_use().contains(2));
            // Nobody puts the join on record before the member fails.
            array.fail_member(2).unwrap();
            array.before_change().unwrap();
            let _ = array.runtime.remove();
            drop(array);
            let again = Array::attach(&config).unwrap();
            assert_eq!(again.runtime.out(), MemberSet::EMPTY.with(2), "after {writes} writes");
            let _ = again.runtime.remove();
            if joined.is_ok() {
                assert!(writes > 4);
                break;
            }
        }
    }

    #[test]
    fn the_next_change_puts_a_join_on_record() {
        for writes in 0..3 {
            let (home, _, array) = begun(&std::format!("next-{writes}"));
            array.runtime.begin_joining(2);
            death::after(writes);
            array.join_member(2).unwrap_err();
            death::after(u32::MAX);
            assert_eq!(state(&home, "m2", 2), MemberState::Stale);
            array.before_change().unwrap();
            for member in ["m0", "m1", "m2"] {
                assert_eq!(state(&home, member, 2), MemberState::Rebuilding, "after {writes} writes");
            }
            let _ = array.runtime.remove();
        }
    }

    #[test]
    fn a_member_that_cannot_be_written_while_another_joins_goes_out_if_it_can_be_spared() {
        let (home, _, array) = begun("unwritten");
        array.runtime.begin_joining(2);
        death::failing(1);
        array.join_member(2).unwrap();
        assert_eq!(array.runtime.out(), MemberSet::EMPTY.with(1));
        for member in ["m0", "m2"] {
            let states = [0, 1, 2].map(|slot| state(&home, member, slot));
            assert_eq!(states, [MemberState::InSync, MemberState::Failed, MemberState::Rebuilding], "{member}");
        }
        let _ = array.runtime.remove();

        let (home, _, array) = begun("needed-unwritten");
        note_file(&home, MemberSet::EMPTY.with(2));
        array.fail_member(1).unwrap();
        array.before_change().unwrap();
        array.runtime.begin_joining(2);
        death::failing(0);
        assert_eq!(array.join_member(2), Err(OsError::IO));
        // The last whole member stays, and the one that was to join goes.
        assert_eq!(array.runtime.out(), MemberSet::EMPTY.with(1).with(2));
        let _ = array.runtime.remove();
    }

    #[test]
    fn the_member_whose_answers_count_stays_the_same_when_others_join() {
        let (_home, _, array) = begun("order");
        array.runtime.begin_joining(2);
        array.join_member(2).unwrap();
        array.fail_member(0).unwrap();
        assert_eq!(array.first_in_use(), Ok(1));
        array.fail_member(1).unwrap();
        assert_eq!(array.first_in_use(), Ok(2));
        // The others come back one after the other.
        for slot in [0, 1] {
            array.runtime.begin_joining(slot);
            assert_eq!(array.first_in_use(), Ok(2));
            assert!(array.runtime.take_in(slot));
            assert_eq!(array.first_in_use(), Ok(2), "member {slot} joined");
            assert_eq!(array.in_order(array.in_use()).next(), Some(2));
        }
        let _ = array.runtime.remove();
    }

    #[test]
    fn a_process_without_a_free_descriptor_takes_no_member_out_that_has_joined() {
        use std::os::fd::AsRawFd as _;
        use sys::rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        const ALONE: &str = "CXLRAID_TEST_ALONE";
        let name = "fill::tests::a_process_without_a_free_descriptor_takes_no_member_out_that_has_joined";
        if std::env::var_os(ALONE).is_none() {
            let mut this = std::process::Command::new(std::env::current_exe().unwrap());
            let output = this.args(["--exact", name]).env(ALONE, "1").output().unwrap();
            let said = std::string::String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        let (home, _, array) = begun("full");
        array.runtime.begin_joining(2);
        assert!(array.runtime.take_in(2));
        // Dead here. Another member fails, and who puts that on record has no descriptor left.
        array.fail_member(1).unwrap();
        let before = getrlimit(Resource::Nofile);
        let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
        setrlimit(Resource::Nofile, Rlimit { current: Some(next), ..before }).unwrap();
        array.before_change().unwrap();
        setrlimit(Resource::Nofile, before).unwrap();
        assert_eq!(array.runtime.out(), MemberSet::EMPTY.with(1));
        assert_eq!(state(&home, "m0", 1), MemberState::Failed);
        // Somebody else puts the join on record.
        array.recording(|| Ok(())).unwrap();
        for member in ["m0", "m2"] {
            assert_eq!(state(&home, member, 2), MemberState::Rebuilding);
        }
        let _ = array.runtime.remove();
    }

    #[test]
    fn a_member_that_is_needed_to_rebuild_another_is_not_put_on_record_as_out() {
        let (home, config, array) = begun("needed");
        array.fail_member(1).unwrap();
        array.before_change().unwrap();
        array.runtime.begin_joining(2);
        array.join_member(2).unwrap();
        // Member 2 has all names and no byte of any file.
        std::fs::create_dir(home.0.join("m2/data")).unwrap();
        note_file(&home, MemberSet::EMPTY.with(2));
        array.fail_member(0).unwrap();
        assert_eq!(array.before_change(), Err(OsError::IO));
        for member in ["m0", "m2"] {
            assert_eq!(state(&home, member, 0), MemberState::InSync);
        }
        // The next use has it again; a start beside this one is refused.
        assert!(matches!(Array::attach(&config), Err(AttachError::TooManyOut { .. })));
        let _ = array.runtime.remove();
        drop(array);
        let again = Array::attach(&config).unwrap();
        assert_eq!(again.runtime.out(), MemberSet::EMPTY.with(1));
        // Once nothing waits any more, the others can do without it, whether the superblocks know that or not.
        note_file(&home, MemberSet::EMPTY);
        again.fail_member(0).unwrap();
        let beside = Array::attach(&config).unwrap();
        again.before_change().unwrap();
        assert_eq!((state(&home, "m2", 0), state(&home, "m2", 2)), (MemberState::Failed, MemberState::Rebuilding));
        let _ = again.runtime.remove();
        drop((again, beside));
        let alone = Array::attach(&config).unwrap();
        alone.end_rebuild(MemberSet::EMPTY.with(2)).unwrap();
        assert_eq!((state(&home, "m2", 2), alone.runtime.rebuilding()), (MemberState::InSync, MemberSet::EMPTY));
        let _ = alone.runtime.remove();
    }
}
