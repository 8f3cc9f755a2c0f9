//! A member that is begun anew comes into use while programs run: the part that superblocks play in
//! it. What the segment says of such a member is `runtime::joining`'s, what files do is
//! core/file's.
//!
//! Invariants:
//! - until the superblocks of all others say that the member is in use, its own does not, so a join
//!   that is cut short leaves the member stale by the superblocks ([`Array::record_rebuilding`]);
//! - while the segment calls a member in use that the superblocks call out, the next change puts
//!   the join on record before it does anything else.

use crate::Array;
use crate::error::AttachError;
use crate::superblock::{has_no_room, may_not};
use format::Kept;
use sys::OsError;
use units::{MemberSet, Slot};

impl Array {
    /// Does as [`Array::begin_member`] while programs use the array. Processes that attach from now
    /// on can use the member once it joins ([`Array::join_member`]).
    ///
    /// # Errors
    /// As for [`Array::begin_member`]; `BUSY` if another process does not come to an end with
    /// attaching.
    pub fn begin_member_in_use(&self, slot: Slot, kept: Option<Kept>) -> Result<(), AttachError> {
        let begin = || {
            if self.in_use().contains(slot) {
                self.require_flaw(slot)?;
            }
            // Nothing is stored on it before it is to join.
            self.runtime.end_joining(MemberSet::EMPTY.with(slot));
            let uuid = self.begin_member(slot, kept)?;
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

    /// Brings a member into use while programs run: it has all that the others have but the bytes
    /// of files, and all that it promises is durable, on the others as well. The caller keeps
    /// others from attaching, and from opening and closing files; every open file says that it goes
    /// on without the member. If this process dies in here, whoever writes superblocks next
    /// finishes it.
    ///
    /// # Errors
    /// `AGAIN` if somebody has taken the member out since it began to join: it is out. Otherwise
    /// what the kernel says where a superblock cannot be written: the member is out then, too,
    /// unless that fails for this process alone (it has no descriptor left, say). Then the member
    /// is in use, and the next change of any process puts the join on record.
    pub fn join_member(&self, slot: Slot) -> Result<(), OsError> {
        self.recording(|| {
            // Until the join is on record the next change finds something to be put on record.
            let was_recorded = self.runtime.is_use_recorded();
            self.runtime.set_use_recorded(false);
            let joined = if self.runtime.take_in(slot) { self.record_join(slot) } else { Err(OsError::AGAIN) };
            if self.runtime.join_unrecorded().is_empty() {
                self.runtime.set_use_recorded(was_recorded);
            }
            joined.inspect(|()| self.find_nodes_again())
        })
    }

    /// Runs a change of the superblocks alone among all that write them, after joins are on record
    /// that a dead process did not put on record.
    pub(crate) fn recording<T>(&self, change: impl FnOnce() -> Result<T, OsError>) -> Result<T, OsError> {
        self.runtime.with_superblocks(|| {
            self.record_joins();
            change()
        })
    }

    /// Puts joins on record whose processes died before they had. The superblock lock is held.
    pub(crate) fn record_joins(&self) {
        for slot in self.runtime.join_unrecorded().iter() {
            // A process that does not have the member's directories open cannot write down which
            // member it is.
            if self.in_use().contains(slot) && !self.runtime.reaches(slot) {
                self.runtime.note_disorder(MemberSet::EMPTY.with(slot));
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

    /// Says in the superblocks that a member is in use that has joined. If that fails the member
    /// goes out, unless it fails for this process alone. The superblock lock is held.
    fn record_join(&self, slot: Slot) -> Result<(), OsError> {
        let recorded = self.record_rebuilding(slot);
        match recorded {
            Err(error) if may_not(error) || has_no_room(error) => return Err(error),
            Err(_) => {
                self.runtime.note_disorder(MemberSet::EMPTY.with(slot));
                self.runtime.add_out(MemberSet::EMPTY.with(slot));
            }
            Ok(()) => {}
        }
        self.runtime.end_join(slot);
        recorded
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::superblock::{death, read};
    use crate::test_array::{Home, is_alone, three_members, without_descriptors};
    use format::MemberState;
    use sys::OwnedFd;

    /// A mirror of three members in use, of which the last is lost and has been begun anew; and a
    /// process that reaches it.
    fn begun(name: &str) -> (Home, Config, Array) {
        let (home, config) = three_members(name, layout::Level::Raid1);
        let last = home.path("m2");
        let before = Array::attach(&config).unwrap();
        std::fs::rename(&last, home.path("lost")).unwrap();
        before.fail_member(2).unwrap();
        before.before_change().unwrap();
        std::fs::create_dir(&last).unwrap();
        let other = Array::attach(&config).unwrap();
        other.begin_member_in_use(2, None).unwrap();
        let array = Array::attach(&config).unwrap();
        array.runtime.end_opening(MemberSet::EMPTY);
        assert!(array.runtime.reaches(2) && !other.runtime.reaches(2));
        assert_eq!(array.runtime.not_reaching(2).len(), 2);
        (home, config, array)
    }

    fn state(home: &Home, member: &str, slot: Slot) -> MemberState {
        let meta = OwnedFd::from(std::fs::File::open(home.path(member).join(".cxlraid")).unwrap());
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
            let path = home.path(std::format!("m{slot}/.cxlraid/inodes"));
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
        if !is_alone() {
            return;
        }
        let (home, _, array) = begun("full");
        array.runtime.begin_joining(2);
        assert!(array.runtime.take_in(2));
        // Dead here. Another member fails, and who puts that on record has no descriptor left.
        array.fail_member(1).unwrap();
        without_descriptors(|| array.before_change()).unwrap();
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
        std::fs::create_dir(home.path("m2/data")).unwrap();
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
        // Once nothing waits any more, the others can do without it, whether the superblocks know
        // that or not.
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
