//! What is proven of a member that comes back, and what it lacks.

use super::*;
use crate::Config;
use crate::access::ACL_NAME;
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
    first.take_out(2, |_| true, || {}).unwrap();
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
fn the_tables_lie_where_programs_map_nothing_by_address() {
    let (home, _config, array) = left_in_order("placed");
    for slot in 0..2 {
        let file = home.path(std::format!("m{slot}/.cxlraid/changed"));
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| line.ends_with(file.to_str().unwrap())).unwrap();
        let start = usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
        assert!(sys::place::PART.contains(&start), "{line}");
    }
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

/// A program that does not know the table updates superblocks, and changes files. The tables of
/// inodes it cannot mark, so the superblocks ask for no other mark than before.
#[test]
fn what_was_changed_past_the_table_is_not_hidden() {
    let (home, _config, array) = left_in_order("past");
    let update = |update_id: u64| {
        for slot in 0..2 {
            let meta = sys::OwnedFd::from(std::fs::File::open(home.path(std::format!("m{slot}/.cxlraid"))).unwrap());
            let (now, copy) = read(&meta).unwrap();
            let next = Superblock {
                copy_sequence: now.copy_sequence + 1,
                event_count: now.event_count + 1,
                previous_update_id: now.update_id,
                update_id,
                ..now
            };
            write_copy(&meta, &next, Superblock::next_copy(copy)).unwrap();
        }
    };
    // Updates of this program are followed.
    array.renew_superblocks().unwrap();
    array.prove(2).unwrap();
    // One that comes to an end on some members, or on none, is one of those that the table
    // names.
    let newest = array.newest_in_use().unwrap();
    array.follow_update(MemberSet::first(2), newest.update_id, 77);
    array.prove(2).unwrap();
    update(77);
    array.prove(2).unwrap();
    update(78);
    assert_eq!(array.prove(2).err(), Some(Unproven::Unrecorded));
    // Whatever this program does then, that leave is not believed any more.
    array.renew_superblocks().unwrap();
    assert_eq!(array.prove(2).err(), Some(Unproven::Unrecorded));
    assert_eq!(array.changed.table(0).unwrap().get(changed_record_offset(2)), Ok(NO_RECORD));
    let _ = array.runtime.remove();
}

#[test]
fn a_leave_after_an_update_past_the_table_is_believed_and_one_before_it_is_not() {
    let (home, config) = crate::test_array::members("second", layout::Level::Raid6, 4);
    let array = Array::attach(&config).unwrap();
    for slot in 0..4 {
        crate::tables::name_itself(array.members[slot].meta().unwrap()).unwrap();
    }
    array.before_change().unwrap();
    array.take_out(3, |_| true, || {}).unwrap();
    array.prove(3).unwrap();
    for slot in 0..3 {
        let meta = array.members[slot].meta().unwrap();
        let (now, copy) = read(meta).unwrap();
        let next = Superblock { copy_sequence: now.copy_sequence + 1, update_id: 5, event_count: now.event_count + 1, ..now };
        write_copy(meta, &next, Superblock::next_copy(copy)).unwrap();
    }
    array.take_out(2, |_| true, || {}).unwrap();
    assert_eq!(array.prove(3).err(), Some(Unproven::Unrecorded));
    array.prove(2).unwrap();
    array.renew_superblocks().unwrap();
    array.prove(2).unwrap();
    drop(home);
    let _ = array.runtime.remove();
}

#[test]
fn a_mark_that_comes_late_is_seen_when_the_member_is_in_use() {
    let (_home, _config, array) = left_in_order("late");
    array.runtime.begin_joining(2);
    assert!(!array.changed_without(2).unwrap().has(7));
    array.join_member(2).unwrap();
    assert!(array.in_use().contains(2) && array.mark_changed(7));
    let late = array.changed_without(2).unwrap();
    assert!(late.has(7) && !late.has(8));
    let _ = array.runtime.remove();
}

#[test]
fn a_table_that_somebody_has_removed_is_mended_by_believing_none() {
    let (home, _config, array) = left_in_order("removed");
    std::fs::remove_file(home.path("m0/.cxlraid/changed")).unwrap();
    array.mend_changed().unwrap();
    assert!(array.changed.table(1).unwrap().is_void());
    assert_eq!(array.prove(2).err(), Some(Unproven::Unrecorded));
    let _ = array.runtime.remove();
}

#[test]
fn nothing_is_proven_where_somebody_may_change_files_and_not_the_superblock() {
    use std::os::unix::fs::PermissionsExt as _;
    let (home, _config, array) = left_in_order("closed");
    let set_mode = |path: &std::path::Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let set = |name: &str, mode: u32| set_mode(&home.path(std::format!("m1/.cxlraid/{name}")), mode);
    let mode = array.access.mode;
    for (name, other) in [("superblock", 0o400), ("inodes", 0o666)] {
        set(name, other);
        assert_eq!(array.prove(2).err(), Some(Unproven::Closed), "{name}");
        set(name, mode);
        array.prove(2).unwrap();
    }
    // Another user may write to one of the two, or to both: acl(5), as setfacl(1) stores it.
    let list = |names: &[&str]| {
        let entries = [(1u16, 6u16, u32::MAX), (2, 6, 65534), (4, 0, u32::MAX), (16, 6, u32::MAX), (32, 0, u32::MAX)];
        let mut list = 2u32.to_le_bytes().to_vec();
        for (tag, rights, id) in entries {
            list.extend([&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat());
        }
        for name in ["superblock", "inodes"] {
            let path = home.path(std::format!("m1/.cxlraid/{name}"));
            let set = if names.contains(&name) {
                fs::setxattr(&path, ACL_NAME, &list, fs::XattrFlags::empty())
            } else {
                fs::removexattr(&path, ACL_NAME)
            };
            if set != Err(OsError::NODATA) && set.is_err() {
                return false;
            }
            if !names.contains(&name) {
                set_mode(&path, mode);
            }
        }
        true
    };
    if list(&["inodes"]) {
        assert_eq!(array.prove(2).err(), Some(Unproven::Closed));
        assert!(list(&["superblock"]));
        assert_eq!(array.prove(2).err(), Some(Unproven::Closed));
        assert!(list(&[]));
        array.prove(2).unwrap();
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
