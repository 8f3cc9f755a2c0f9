//! A member that is away for a while, of an array that nobody changes meanwhile, comes back in
//! sync; if something must be stored without it, it is stale.
//!
//! The machine starts anew each time: the runtime segment is gone.

mod common;

use common::*;
use cxlraid_namespace::{OFlags, RenameFlags};
use layout::Level;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use sys::OsError;
use units::MemberSet;

const CREATE: OFlags = OFlags::RDWR.union(OFlags::CREATE).union(OFlags::CLOEXEC);

const SHAPES: [(Level, usize); 6] =
    [(Level::Raid1, 3), (Level::Raid4, 3), (Level::Raid5, 4), (Level::Raid6, 5), (Level::Raid10, 4), (Level::Raid01, 4)];

fn away(array: &TestArray, slot: usize) -> PathBuf {
    array.home.path().join(format!("away{slot}"))
}

/// Starts without a member, runs `act`, and starts with it. Returns who is out then.
fn without(array: &mut TestArray, slot: usize, act: impl FnOnce(&TestArray)) -> MemberSet {
    std::fs::rename(&array.members[slot], away(array, slot)).unwrap();
    array.restart();
    assert_eq!(array.namespace.files().array().runtime().out(), MemberSet::EMPTY.with(slot));
    act(array);
    std::fs::rename(away(array, slot), &array.members[slot]).unwrap();
    array.restart();
    array.namespace.files().array().runtime().out()
}

/// A process that dies leaves the record of a file that it had open without a name. Nobody misses
/// that one: it is freed also while a member is away, which is in sync when it is back, and then has
/// the record freed, too.
#[test]
fn a_file_without_a_name_that_a_process_left_open_makes_no_member_stale() {
    for (level, member_count) in SHAPES {
        let mut array = filled(level, member_count);
        let unnamed = OFlags::RDWR.union(OFlags::TMPFILE).union(OFlags::CLOEXEC);
        let opened = inside(array.namespace.open(b"/data", unnamed, 0o600));
        let attribute = file_of(&opened).attribute();
        std::mem::forget(opened);
        for slot in 0..member_count {
            let out = without(&mut array, slot, |array| {
                assert_eq!(array.namespace.files().state_of(attribute), None, "{level}");
                assert_eq!(content_unchecked(array).len(), 50_000);
            });
            assert_eq!(out, MemberSet::EMPTY, "{level} without member {slot}");
        }
        assert_eq!(array.namespace.files().state_of(attribute), None, "{level}: in the end");
        // The numbers are given out anew, and fit.
        for name in ["/data/one", "/data/two"] {
            write(&create(array.namespace, name), 0, &[9; 10_000]);
        }
        array.restart();
        array.assert_same_trees();
    }
}

/// Names changed in every way, and a file whose last write its thread's lane still names.
fn filled(level: Level, member_count: usize) -> TestArray {
    let array = TestArray::with(level, member_count);
    let names = array.namespace;
    for path in ["/data/gone", "/data/before", "/data/file"] {
        write(&inside(names.open(path.as_bytes(), CREATE, 0o640)), 0, &[path.len() as u8; 50_000]);
    }
    inside(names.mkdir(b"/data/directory", 0o750));
    inside(names.unlink(b"/data/gone"));
    inside(names.rename(b"/data/before", b"/data/directory/after", RenameFlags::empty()));
    write(&inside(names.open(b"/data/file", CREATE, 0)), 10_000, &[7; 20_000]);
    array
}

fn content(array: &TestArray) -> Vec<u8> {
    let opened = inside(array.namespace.open(b"/data/file", OFlags::RDONLY | OFlags::CLOEXEC, 0));
    assert_eq!(file_of(&opened).verify(), Ok(0));
    read(&opened)
}

#[test]
fn a_member_that_was_away_while_nothing_changed_is_in_sync() {
    for (level, member_count) in SHAPES {
        println!("RAID {level}");
        let mut array = filled(level, member_count);
        let wanted = content(&array);
        for slot in 0..member_count {
            let out = without(&mut array, slot, |array| assert_eq!(content(array), wanted));
            assert!(out.is_empty(), "RAID {level}: after member {slot} was away {out:?} is out");
            assert_eq!(content(&array), wanted);
            array.assert_same_trees();
        }
    }
}

#[test]
fn a_member_is_stale_if_the_others_had_to_be_made_to_agree_without_it() {
    let mut array = filled(Level::Raid1, 3);
    let wanted = content(&array);
    // The write that the lane names did not reach one member.
    let torn = std::fs::OpenOptions::new().write(true).open(array.members[2].join("data/file")).unwrap();
    torn.write_all_at(&[0; 100], 15_000).unwrap();
    let out = without(&mut array, 0, |array| assert_eq!(content(array), wanted));
    assert_eq!(out, MemberSet::EMPTY.with(0));
    assert_eq!(content(&array), wanted);
}

/// A file that somebody put over a backing file of the only member that is there is refused, and to
/// look at it makes the member that is away, which has the file, no stale one.
#[test]
fn a_look_at_a_file_that_is_not_the_arrays_makes_no_member_stale() {
    for slot in 0..2 {
        let mut array = filled(Level::Raid1, 2);
        let wanted = content(&array);
        let backing = array.members[1 - slot].join("data/file");
        let bytes = std::fs::read(&backing).unwrap();
        std::fs::remove_file(&backing).unwrap();
        std::fs::write(&backing, bytes).unwrap();
        let out = without(&mut array, slot, |array| {
            let opened = array.namespace.open(b"/data/file", OFlags::RDONLY | OFlags::CLOEXEC, 0);
            assert_eq!(opened.map(|_| ()), Err(OsError::IO), "member {slot} is away");
        });
        assert!(out.is_empty(), "{out:?}");
        assert_eq!(content(&array), wanted);
    }
}

#[test]
fn what_waits_for_a_member_that_is_away_is_made_to_agree_once_it_is_back() {
    let mut array = filled(Level::Raid5, 4);
    let wanted = content(&array);
    // Of the write that the lane names the parities' share is missing on one member: without
    // another one nobody can tell.
    let torn = std::fs::OpenOptions::new().write(true).open(array.members[3].join("data/file")).unwrap();
    torn.write_all_at(&[0; 64], 0).unwrap();
    let parity_only = wanted == content_unchecked(&array);
    assert!(parity_only, "the bytes changed are no parity");
    let out = without(&mut array, 0, |array| drop(content_unchecked(array)));
    assert!(out.is_empty(), "{out:?}");
    assert_eq!(content(&array), wanted);
}

fn content_unchecked(array: &TestArray) -> Vec<u8> {
    read(&inside(array.namespace.open(b"/data/file", OFlags::RDONLY | OFlags::CLOEXEC, 0)))
}

/// Whatever was done to names last, where all members have it nobody is put on record for it.
#[test]
fn a_member_comes_back_in_sync_after_the_last_change_of_any_kind() {
    type Change = fn(cxlraid_namespace::Namespace);
    let changes: [(&str, Change); 16] = [
        ("create", |names| drop(inside(names.open(b"/data/new", CREATE, 0o600)))),
        ("unlink", |names| inside(names.unlink(b"/data/file"))),
        ("unlink of one of two names", |names| inside(names.unlink(b"/data/second"))),
        ("mkdir", |names| inside(names.mkdir(b"/data/new", 0o700))),
        ("rmdir", |names| inside(names.rmdir(b"/data/empty"))),
        ("symlink", |names| inside(names.symlink(b"file", b"/data/new"))),
        ("link", |names| inside(names.link(b"/data/file", b"/data/new", false))),
        ("rename", |names| inside(names.rename(b"/data/file", b"/data/new", RenameFlags::empty()))),
        ("rename over another", |names| inside(names.rename(b"/data/file", b"/data/directory/after", RenameFlags::empty()))),
        ("rename of a directory", |names| inside(names.rename(b"/data/directory", b"/data/empty", RenameFlags::empty()))),
        ("rename onto another name of the same file", |names| {
            inside(names.rename(b"/data/file", b"/data/second", RenameFlags::empty()));
        }),
        ("exchange of two names of one file", |names| {
            inside(names.rename(b"/data/file", b"/data/second", RenameFlags::EXCHANGE));
        }),
        ("exchange", |names| inside(names.rename(b"/data/file", b"/data/directory/after", RenameFlags::EXCHANGE))),
        ("exchange of two directories", |names| {
            inside(names.rename(b"/data/directory", b"/data/empty", RenameFlags::EXCHANGE));
        }),
        ("exchange of a directory and a symlink", |names| {
            inside(names.rename(b"/data/directory", b"/data/symlink", RenameFlags::EXCHANGE));
        }),
        ("exchange of a file and a directory", |names| {
            inside(names.rename(b"/data/file", b"/data/empty", RenameFlags::EXCHANGE));
        }),
    ];
    for (what, change) in changes {
        for slot in [0, 2] {
            let mut array = filled(Level::Raid5, 4);
            inside(array.namespace.link(b"/data/file", b"/data/second", false));
            inside(array.namespace.mkdir(b"/data/empty", 0o700));
            inside(array.namespace.symlink(b"file", b"/data/symlink"));
            change(array.namespace);
            let out = without(&mut array, slot, |_| {});
            assert!(out.is_empty(), "{what}: after member {slot} was away {out:?} is out");
            array.assert_same_trees();
        }
    }
}

/// Nothing on a member tells whether two directories are exchanged there, and a start on members
/// that see deaths only looks at the last change again. Members that are away in turn have missed
/// nothing.
#[test]
fn members_that_are_away_in_turn_after_an_exchange_of_directories_were_not_used_apart() {
    for (level, member_count) in [(Level::Raid1, 2), (Level::Raid5, 3)] {
        let mut array = filled(level, member_count);
        inside(array.namespace.mkdir(b"/data/empty", 0o700));
        inside(array.namespace.rename(b"/data/directory", b"/data/empty", RenameFlags::EXCHANGE));
        in_turn(&mut array);
        read(&inside(array.namespace.open(b"/data/empty/after", OFlags::RDONLY | OFlags::CLOEXEC, 0)));
        array.assert_same_trees();
    }
}

/// A process dies when it has exchanged two directories on all members, and before it has noted
/// that: the next start compares all names, and notes it.
#[test]
fn the_start_after_a_death_in_an_exchange_of_directories_ends_it() {
    for (level, member_count) in [(Level::Raid1, 2), (Level::Raid5, 3)] {
        let mut array = filled(level, member_count);
        inside(array.namespace.mkdir(b"/data/empty", 0o700));
        inside(array.namespace.rename(b"/data/directory", b"/data/empty", RenameFlags::EXCHANGE));
        for member in &array.members {
            let path = member.join(".cxlraid/names");
            let mut log = std::fs::read(&path).unwrap();
            let places = (format::TABLE_HEADER_BYTES..log.len()).step_by(format::NAME_RECORD_ALIGN);
            let found = places.filter_map(|at| Some((format::NameRecord::decode(&log[at..])?.sequence, at)));
            let (_, last) = found.max().unwrap();
            let record = format::NameRecord::decode(&log[last..]).unwrap();
            assert!(record.kind == format::NameKind::Attributes && record.path.is_empty(), "{record:?}");
            log[last..last + format::NAME_RECORD_ALIGN].fill(0);
            std::fs::write(&path, log).unwrap();
        }
        array.restart();
        in_turn(&mut array);
        read(&inside(array.namespace.open(b"/data/empty/after", OFlags::RDONLY | OFlags::CLOEXEC, 0)));
        array.assert_same_trees();
    }
}

/// Two members are away one after the other, each for one start of the others. Then all are in
/// sync.
fn in_turn(array: &mut TestArray) {
    std::fs::rename(&array.members[0], away(array, 0)).unwrap();
    array.restart();
    assert_eq!(array.namespace.files().array().runtime().out(), MemberSet::EMPTY.with(0));
    std::fs::rename(away(array, 0), &array.members[0]).unwrap();
    std::fs::rename(&array.members[1], away(array, 1)).unwrap();
    array.restart();
    assert_eq!(array.namespace.files().array().runtime().out(), MemberSet::EMPTY.with(1));
    std::fs::rename(away(array, 1), &array.members[1]).unwrap();
    array.restart();
    assert_eq!(array.namespace.files().array().runtime().out(), MemberSet::EMPTY);
}

/// Superblocks are written one after the other. Those that a crash kept from being written are
/// behind, and must not speak for the member that went out once the one that was written is away
/// itself.
#[test]
fn a_member_whose_going_out_was_recorded_on_one_other_only_stays_out() {
    let mut array = filled(Level::Raid6, 5);
    let superblock = |array: &TestArray, slot: usize| array.members[slot].join(".cxlraid/superblock");
    let before = [1, 2, 3].map(|slot| std::fs::read(superblock(&array, slot)).unwrap());
    std::fs::rename(&array.members[4], away(&array, 4)).unwrap();
    array.namespace.files().array().fail_member(4).unwrap();
    inside(array.namespace.mkdir(b"/data/recorded", 0o700));
    for (slot, bytes) in [1, 2, 3].into_iter().zip(before) {
        std::fs::write(superblock(&array, slot), bytes).unwrap();
    }
    array.restart();
    write(&inside(array.namespace.open(b"/data/file", CREATE, 0)), 0, &[9; 50_000]);
    let wanted = content_unchecked(&array);
    std::fs::rename(&array.members[0], away(&array, 0)).unwrap();
    std::fs::rename(away(&array, 4), &array.members[4]).unwrap();
    array.restart();
    assert_eq!(array.namespace.files().array().runtime().out(), MemberSet::EMPTY.with(0).with(4));
    assert!(content_unchecked(&array) == wanted);
}

/// A member that is put back from a copy of its directory has missed every use since, and must not
/// be believed.
#[test]
fn a_member_put_back_from_an_older_copy_is_stale() {
    for (level, member_count) in [(Level::Raid1, 3), (Level::Raid5, 3), (Level::Raid10, 4)] {
        for slot in 0..member_count {
            let mut array = filled(level, member_count);
            let copy = array.members[slot].with_extension("copy");
            let copied = std::process::Command::new("cp").arg("-a").args([&array.members[slot], &copy]).status().unwrap();
            assert!(copied.success());
            // The next use begins: one change of bytes, no name is changed.
            array.restart();
            write(&inside(array.namespace.open(b"/data/file", CREATE, 0)), 0, &[9; 30_000]);
            let wanted = content_unchecked(&array);
            std::fs::rename(&array.members[slot], away(&array, slot)).unwrap();
            std::fs::rename(&copy, &array.members[slot]).unwrap();
            array.restart();
            assert!(content_unchecked(&array) == wanted, "{level:?}, member {slot}");
            assert_eq!(array.namespace.files().array().runtime().out(), MemberSet::EMPTY.with(slot), "{level:?}");
            // The good one comes back: nothing was changed without it.
            std::fs::remove_dir_all(&array.members[slot]).unwrap();
            std::fs::rename(away(&array, slot), &array.members[slot]).unwrap();
            array.restart();
            assert!(content_unchecked(&array) == wanted, "{level:?}, member {slot}");
            assert_eq!(array.namespace.files().array().runtime().out(), MemberSet::EMPTY, "{level:?}");
        }
    }
}

/// Two members that are put back from copies of the same moment agree with each other, and are
/// stale nevertheless: of three copies they would be the most.
#[test]
fn two_members_put_back_from_the_same_older_copy_do_not_outvote_a_third() {
    for (level, member_count) in [(Level::Raid1, 3), (Level::Raid6, 4), (Level::Raid5, 3)] {
        for slots in [[0, 1], [0, 2], [1, 2]] {
            let mut array = filled(level, member_count);
            let copy = |slot: usize| array.members[slot].with_extension("copy");
            for slot in slots {
                let copied =
                    std::process::Command::new("cp").arg("-a").args([&array.members[slot], &copy(slot)]).status().unwrap();
                assert!(copied.success());
            }
            let copies = slots.map(copy);
            array.restart();
            write(&inside(array.namespace.open(b"/data/file", CREATE, 0)), 40_000, &[9; 30_000]);
            let wanted = content_unchecked(&array);
            assert_eq!(wanted.len(), 70_000);
            for (slot, copy) in slots.into_iter().zip(copies) {
                std::fs::rename(&array.members[slot], away(&array, slot)).unwrap();
                std::fs::rename(copy, &array.members[slot]).unwrap();
            }
            let stale = MemberSet::EMPTY.with(slots[0]).with(slots[1]);
            if level == Level::Raid5 {
                array.namespace.files().detach();
                array.namespace.files().array().abandon();
                std::fs::remove_file(array.segment()).unwrap();
                let refused = array::Array::attach(&array.config).map(drop).unwrap_err();
                assert!(matches!(refused, array::AttachError::TooManyOut { .. }), "{refused}");
                // The good ones come back.
                for slot in slots {
                    std::fs::remove_dir_all(&array.members[slot]).unwrap();
                    std::fs::rename(away(&array, slot), &array.members[slot]).unwrap();
                }
                array.namespace = array.attach_keeping(file::Keep::NOTHING);
                assert_eq!(array.namespace.files().array().runtime().out(), MemberSet::EMPTY);
            } else {
                array.restart();
                assert_eq!(array.namespace.files().array().runtime().out(), stale, "{level:?} {slots:?}");
            }
            assert!(content_unchecked(&array) == wanted, "{level:?} {slots:?}");
        }
    }
}

/// The first change of a use raises the count of every superblock twice, while others start: none
/// of them may take a member for stale.
#[test]
fn a_start_beside_the_first_change_of_a_use_takes_no_member_for_stale() {
    let mut array = filled(Level::Raid5, 4);
    for round in 0..60 {
        array.restart();
        let config = array.config.clone();
        let starts: Vec<_> = (0..2)
            .map(|_| {
                let config = config.clone();
                std::thread::spawn(move || {
                    for _ in 0..20 {
                        let started = array::Array::attach(&config).unwrap();
                        assert_eq!(started.runtime().out(), MemberSet::EMPTY);
                        started.runtime().detach();
                    }
                })
            })
            .collect();
        inside(array.namespace.mkdir(format!("/data/in-round-{round}").as_bytes(), 0o700));
        starts.into_iter().for_each(|start| start.join().unwrap());
        assert_eq!(array.namespace.files().array().runtime().out(), MemberSet::EMPTY);
    }
}

/// Each half of a mirror is used alone: nobody knows whose changes are right but the operator.
#[test]
fn members_that_were_used_apart_are_refused_until_one_is_preferred() {
    for preferred in [0, 1] {
        let mut array = filled(Level::Raid1, 2);
        for slot in [0, 1] {
            let other = 1 - slot;
            std::fs::rename(&array.members[other], away(&array, other)).unwrap();
            array.restart();
            write(&inside(array.namespace.open(b"/data/file", CREATE, 0)), 0, &[slot as u8; 30_000]);
            std::fs::rename(away(&array, other), &array.members[other]).unwrap();
        }
        array.namespace.files().detach();
        array.namespace.files().array().abandon();
        std::fs::remove_file(array.segment()).unwrap();
        let refused = array::Array::attach(&array.config).map(drop).unwrap_err();
        assert!(matches!(refused, array::AttachError::UsedApart { .. }), "{refused}");
        let path = array.config.mounts[preferred].clone();
        assert_eq!(array::split::prefer(&array.config, &path).unwrap(), [array.config.mounts[1 - preferred].clone()]);
        assert_eq!(array::split::prefer(&array.config, &path).unwrap(), Vec::<Vec<u8>>::new());
        array.namespace = array.attach_keeping(file::Keep::NOTHING);
        assert_eq!(array.namespace.files().array().runtime().out(), MemberSet::EMPTY.with(1 - preferred));
        assert_eq!(content_unchecked(&array)[..30_000], vec![preferred as u8; 30_000]);
    }
}

/// A crash cuts the record short that a member is out: one member has it. That one is lost then,
/// and the others are used with the first. When it is back it is stale, and nothing is to be
/// decided.
#[test]
fn a_member_with_a_record_that_was_cut_short_was_not_used_apart() {
    for (level, count) in [(Level::Raid6, 4), (Level::Raid1, 3)] {
        let mut array = filled(level, count);
        let superblock = |array: &TestArray, slot: usize| array.members[slot].join(".cxlraid/superblock");
        let before: Vec<Vec<u8>> = (0..count).map(|slot| std::fs::read(superblock(&array, slot)).unwrap()).collect();
        let gone = count - 1;
        // What the first member gets of a record that the last one is out.
        let (mut record, copy) = format::Superblock::choose(&before[0]).unwrap();
        record.members[gone].state = format::MemberState::Missing;
        record.members[gone].out_count = record.event_count;
        (record.event_count, record.copy_sequence) = (record.event_count + 1, record.copy_sequence + 1);
        (record.previous_update_id, record.update_id) = (record.update_id, 1);
        let mut cut_short = before[0].clone();
        let at = format::Superblock::copy_offset(format::Superblock::next_copy(copy)) as usize;
        cut_short[at..at + format::COPY_BYTES].copy_from_slice(&record.encode());
        std::fs::write(superblock(&array, 0), cut_short).unwrap();
        std::fs::rename(&array.members[0], away(&array, 0)).unwrap();
        array.restart();
        assert_eq!(array.namespace.files().array().runtime().out(), MemberSet::EMPTY.with(0), "{level}");
        for change in 0..4 {
            // Without these the count of the member that is away could be the newest.
            write(&inside(array.namespace.open(b"/data/file", CREATE, 0)), 0, &[change; 30_000]);
            array.restart();
        }
        std::fs::rename(away(&array, 0), &array.members[0]).unwrap();
        array.restart();
        assert_eq!(array.namespace.files().array().runtime().out(), MemberSet::EMPTY.with(0), "{level}");
        assert_eq!(content_unchecked(&array)[..30_000], vec![3; 30_000]);
    }
}

/// The memory of a member's inode table fails for a while: what was acknowledged without it must
/// not be taken back by it.
#[test]
fn a_member_that_missed_a_size_stays_out() {
    let mut array = filled(Level::Raid5, 4);
    let opened = inside(array.namespace.open(b"/data/file", CREATE, 0));
    let table = array.members[0].join(".cxlraid/inodes");
    let saved = std::fs::read(&table).unwrap();
    std::fs::OpenOptions::new().write(true).open(&table).unwrap().set_len(4096).unwrap();
    write(&opened, 50_000, &[3; 1000]);
    // Dead at once; the machine starts anew, and the member is there again.
    std::fs::write(&table, saved).unwrap();
    array.restart();
    assert_eq!(content_unchecked(&array).len(), 51_000);
    assert_eq!(array.namespace.files().array().runtime().out(), MemberSet::EMPTY.with(0));
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    assert!(std::process::Command::new("cp").arg("-aT").args([from, to]).status().unwrap().success());
}

/// Ends the use of the array as a kill of its last program does, or, if `machine` starts anew, with
/// what only memory held.
fn crash(array: &TestArray, machine: bool) {
    array.namespace.files().array().runtime().detach();
    array.namespace.files().array().abandon();
    if machine {
        std::fs::remove_file(array.segment()).unwrap();
    }
}

/// Uses the array without the last member, on older copies of the others, and then has all as they
/// were left. Nobody knows whose changes are to be kept, whatever the event counts have come to.
#[test]
fn an_older_copy_that_was_used_alone_is_not_believed_beside_what_was_used_later() {
    for (level, count) in [(Level::Raid1, 2), (Level::Raid5, 3), (Level::Raid10, 4)] {
        let mut refused_count = 0;
        for (together, alone, is_ended) in
            (1..4).flat_map(|together| (1..4).map(move |alone| (together, alone, together != alone)))
        {
            let mut array = filled(level, count);
            let last = count - 1;
            let copies: Vec<PathBuf> = (0..last).map(|slot| array.home.path().join(format!("copy{slot}"))).collect();
            crash(&array, true);
            (0..last).for_each(|slot| copy(&array.members[slot], &copies[slot]));
            let use_once = |array: &mut TestArray, byte: u8| {
                array.namespace = array.attach_keeping(file::Keep::NOTHING);
                write(&inside(array.namespace.open(b"/data/file", CREATE, 0)), 0, &[byte; 30_000]);
                if is_ended {
                    array.namespace.files().array().end_use(false).unwrap();
                }
                crash(array, true);
            };
            (0..together).for_each(|_| use_once(&mut array, 1));
            std::fs::rename(&array.members[last], away(&array, last)).unwrap();
            for (member, older) in array.members.iter().zip(&copies) {
                std::fs::remove_dir_all(member).unwrap();
                std::fs::rename(older, member).unwrap();
            }
            (0..alone).for_each(|_| use_once(&mut array, 2));
            std::fs::rename(away(&array, last), &array.members[last]).unwrap();
            let started = array::Array::attach(&array.config).map(drop);
            assert!(matches!(started, Err(array::AttachError::UsedApart { .. })), "{level} {together} {alone}: {started:?}");
            refused_count += 1;
            // The others of the last member's history are gone.
            let too_few = array::split::prefer(&array.config, &array.config.mounts[last]);
            assert_eq!(matches!(too_few, Err(array::AttachError::PreferredTooFew { .. })), level != Level::Raid1);
            if level == Level::Raid1 {
                continue;
            }
            let preferred = array.config.mounts[0].clone();
            let set_aside = array::split::prefer(&array.config, &preferred).unwrap();
            assert_eq!(set_aside, [array.config.mounts[last].clone()]);
            array.namespace = array.attach_keeping(file::Keep::NOTHING);
            assert_eq!(array.namespace.files().array().runtime().out(), MemberSet::EMPTY.with(last));
            assert_eq!(content_unchecked(&array)[..30_000], vec![2; 30_000]);
        }
        assert_eq!(refused_count, 9);
    }
}

/// The last program is killed, and in the place of a member is put what was copied before the
/// program's last write. The others are not made what the copy is.
#[test]
fn a_copy_made_while_the_array_was_in_use_is_not_the_member_after_a_kill() {
    for (level, count) in SHAPES {
        let mut array = filled(level, count);
        let member = array.members[0].clone();
        let kept = away(&array, 0);
        copy(&member, &kept);
        write(&inside(array.namespace.open(b"/data/file", CREATE, 0)), 10_000, &[9; 20_000]);
        crash(&array, false);
        std::fs::rename(&member, array.home.path().join("true")).unwrap();
        std::fs::rename(&kept, &member).unwrap();
        array.namespace = array.attach_keeping(file::Keep::NOTHING);
        let out = array.namespace.files().array().runtime().out();
        assert_eq!(out, MemberSet::EMPTY.with(0), "{level}");
        assert_eq!(array.namespace.files().array().members()[0].standing, array::Standing::Replaced);
        assert_eq!(content_unchecked(&array)[10_000..30_000], vec![9; 20_000]);
        crash(&array, true);
    }
}

/// All members are moved to other devices after a kill: none of them is the directory that was
/// used, and none is older than another.
#[test]
fn members_that_were_all_moved_after_a_kill_are_in_sync() {
    let mut array = filled(Level::Raid5, 3);
    crash(&array, false);
    for slot in 0..3 {
        copy(&array.members[slot], &away(&array, slot));
        std::fs::remove_dir_all(&array.members[slot]).unwrap();
        std::fs::rename(away(&array, slot), &array.members[slot]).unwrap();
    }
    array.namespace = array.attach_keeping(file::Keep::NOTHING);
    assert_eq!(array.namespace.files().array().runtime().out(), MemberSet::EMPTY);
    content(&array);
    crash(&array, true);
}

/// A copy that a start finds in the place of a member which programs use is not taken for it.
#[test]
fn a_copy_in_the_place_of_a_member_in_use_is_not_the_member() {
    let array = filled(Level::Raid1, 2);
    let member = array.members[0].clone();
    copy(&member, &away(&array, 0));
    write(&inside(array.namespace.open(b"/data/file", CREATE, 0)), 10_000, &[9; 20_000]);
    std::fs::rename(&member, array.home.path().join("true")).unwrap();
    std::fs::rename(away(&array, 0), &member).unwrap();
    let second = array.attach_keeping(file::Keep::NOTHING);
    let opened = inside(second.open(b"/data/file", OFlags::RDONLY | OFlags::CLOEXEC, 0));
    assert_eq!(read(&opened)[10_000..30_000], vec![9; 20_000]);
    assert_ne!(second.files().array().members()[0].standing, array::Standing::InSync);
}
