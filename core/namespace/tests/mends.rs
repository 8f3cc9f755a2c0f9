//! Somebody has damaged names or files of a member by hand, while another member is away. A look
//! makes good what the members that are here can make good. The member that is away has missed
//! nothing by that, and is in sync when it is back: another damaged file may need it.
//!
//! The machine starts anew each time: the runtime segment is gone.

mod common;

use common::*;
use cxlraid_namespace::{Namespace, OFlags, RenameFlags};
use layout::Level;
use std::fs;
use std::path::Path;
use sys::OsError;
use units::MemberSet;

const CREATE: OFlags = OFlags::RDWR.union(OFlags::CREATE).union(OFlags::CLOEXEC);
const READ: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC);

/// Damage of one member, by its directory.
type Damage = fn(&Path);

fn filled(level: Level, member_count: usize) -> TestArray {
    let array = TestArray::with(level, member_count);
    let names = array.namespace;
    inside(names.mkdir(b"/data/d", 0o755));
    inside(names.mkdir(b"/data/d/empty", 0o755));
    let written_last = inside(names.open(b"/data/written", CREATE, 0o640));
    for (path, seed) in [("/data/a", 1), ("/data/b", 2), ("/data/d/last", 3)] {
        write(&inside(names.open(path.as_bytes(), CREATE, 0o640)), 0, &wanted(seed));
    }
    // The lane names this file, and no crash has left anything of the others.
    write(&written_last, 0, b"last");
    array
}

/// Not a whole number of stripes.
fn wanted(seed: u8) -> Vec<u8> {
    (0..50_123u32).map(|at| (at / 7) as u8 ^ seed).collect()
}

fn content(array: &TestArray, path: &str) -> Result<Vec<u8>, OsError> {
    match array.namespace.open(path.as_bytes(), READ, 0) {
        Ok(opened) => Ok(read(&inside(Ok::<_, OsError>(opened)))),
        Err(error) => Err(error),
    }
}

fn out(array: &TestArray) -> MemberSet {
    array.namespace.files().array().runtime().out()
}

/// Starts without a member, runs `act`, and starts with it.
fn without(array: &mut TestArray, slot: usize, act: impl FnOnce(&TestArray)) {
    let away = array.home.path().join("away");
    fs::rename(&array.members[slot], &away).unwrap();
    array.restart();
    assert!(out(array).contains(slot));
    act(array);
    fs::rename(&away, &array.members[slot]).unwrap();
    array.restart();
}

fn assert_right(array: &TestArray) {
    for (path, seed) in [("/data/a", 1), ("/data/b", 2), ("/data/d/last", 3)] {
        assert!(content(array, path) == Ok(wanted(seed)), "{path}");
        let opened = inside(array.namespace.open(path.as_bytes(), READ, 0));
        assert_eq!(file_of(&opened).verify(), Ok(0), "{path}");
    }
    array.assert_same_trees();
}

fn deleted(name: &str) -> impl Fn(&Path) {
    move |member| fs::remove_file(member.join("data").join(name)).unwrap()
}

#[test]
fn a_mend_leaves_a_member_that_is_away_in_sync() {
    let damages: [(&str, Damage); 8] = [
        ("deleted", |member| deleted("a")(member)),
        ("the last one that was made, deleted", |member| deleted("d/last")(member)),
        ("deleted, with a directory in its place", |member| {
            deleted("a")(member);
            fs::create_dir(member.join("data/a")).unwrap();
        }),
        ("deleted, with a symlink in its place", |member| {
            deleted("a")(member);
            std::os::unix::fs::symlink("elsewhere", member.join("data/a")).unwrap();
        }),
        ("cut", |member| fs::File::options().write(true).open(member.join("data/a")).unwrap().set_len(1000).unwrap()),
        ("cut to nothing", |member| drop(fs::File::create(member.join("data/a")).unwrap())),
        ("two deleted", |member| {
            deleted("a")(member);
            deleted("b")(member);
        }),
        ("nothing", |_| {}),
    ];
    for (level, member_count) in [(Level::Raid1, 3), (Level::Raid6, 4), (Level::Raid6, 5)] {
        for (what, damage) in damages {
            for (damaged, slot) in [(member_count - 1, 1), (1, member_count - 1)] {
                println!("RAID {level} of {member_count}, member {damaged}: {what}; member {slot} is away");
                let mut array = filled(level, member_count);
                damage(&array.members[damaged]);
                let lengths = |array: &TestArray| fs::metadata(array.members[0].join("data/a")).unwrap().len();
                let before = lengths(&array);
                without(&mut array, slot, |array| {
                    for (path, seed) in [("/data/a", 1), ("/data/b", 2), ("/data/d/last", 3)] {
                        assert!(content(array, path) == Ok(wanted(seed)), "{path}");
                    }
                });
                assert_eq!(out(&array), MemberSet::EMPTY);
                assert_eq!(lengths(&array), before, "a mend took room on another member, and kept it");
                assert_right(&array);
            }
        }
    }
}

/// A directory that the lowest member has lost proves nothing, and is made there again.
#[test]
fn a_directory_that_is_given_back_leaves_a_member_that_is_away_in_sync() {
    let mut array = filled(Level::Raid6, 5);
    fs::remove_dir(array.members[0].join("data/d/empty")).unwrap();
    without(&mut array, 3, |array| drop(inside(array.namespace.open(b"/data/d/empty", READ, 0))));
    assert_eq!(out(&array), MemberSet::EMPTY);
    assert_right(&array);
}

/// The last change of names gave a file a second name, or another one. What it gave is what was
/// lost.
#[test]
fn a_name_that_the_last_change_gave_is_given_back_while_a_member_is_away() {
    let link: fn(Namespace) = |names| inside(names.link(b"/data/a", b"/data/new", false));
    let rename: fn(Namespace) = |names| inside(names.rename(b"/data/a", b"/data/new", RenameFlags::empty()));
    for (what, change) in [("link", link), ("rename", rename)] {
        println!("{what}");
        let mut array = filled(Level::Raid6, 5);
        change(array.namespace);
        deleted("new")(&array.members[4]);
        without(&mut array, 1, |array| assert!(content(array, "/data/new") == Ok(wanted(1))));
        assert_eq!(out(&array), MemberSet::EMPTY);
        assert!(content(&array, "/data/new") == Ok(wanted(1)));
        array.assert_same_trees();
    }
}

/// What a program changes without a member makes it stale, also behind a mend.
#[test]
fn a_change_behind_a_mend_makes_a_member_that_is_away_stale() {
    let changes: [fn(Namespace); 2] = [
        |names| inside(names.mkdir(b"/data/new", 0o755)),
        |names| write(&inside(names.open(b"/data/a", OFlags::RDWR | OFlags::CLOEXEC, 0)), 100, b"changed"),
    ];
    for change in changes {
        let mut array = filled(Level::Raid6, 5);
        deleted("a")(&array.members[4]);
        without(&mut array, 1, |array| {
            assert!(content(array, "/data/a") == Ok(wanted(1)));
            change(array.namespace);
        });
        assert_eq!(out(&array), MemberSet::EMPTY.with(1));
    }
}

/// A crash in the middle of an append has left bytes behind the end of a file, and parity that
/// counts them. Of the member that is away nobody knows which it has. Parity that a mend makes must
/// not pass for that of this member.
#[test]
fn what_a_crash_left_behind_the_end_fits_when_a_member_comes_back() {
    for away in 0..4 {
        let mut array = filled(Level::Raid6, 5);
        let tables = |array: &TestArray| array.members.clone().into_iter().map(|member| member.join(".cxlraid/inodes"));
        let before: Vec<_> = tables(&array).map(|table| fs::read(table).unwrap()).collect();
        let appended = inside(array.namespace.open(b"/data/a", OFlags::RDWR | OFlags::CLOEXEC, 0));
        write(&appended, wanted(1).len() as u64, &[0x5a; 100_000]);
        drop(appended);
        write(&inside(array.namespace.open(b"/data/written", OFlags::RDWR | OFlags::CLOEXEC, 0)), 0, b"last");
        for (table, bytes) in tables(&array).zip(before) {
            fs::write(table, bytes).unwrap();
        }
        deleted("a")(&array.members[4]);
        without(&mut array, away, |array| assert!(content(array, "/data/a") == Ok(wanted(1))));
        for slot in (0..5).filter(|&slot| slot != away) {
            println!("member {away} was away, member {slot} is");
            without(&mut array, slot, |array| assert!(content(array, "/data/a") == Ok(wanted(1))));
        }
        assert_eq!(out(&array), MemberSet::EMPTY.with(away));
        assert_right(&array);
    }
}

/// A mend that is cut short leaves a file of zeros and the note that its bytes are lost. The member
/// that was away does not know of the note.
#[test]
fn a_note_that_bytes_are_lost_outlives_the_return_of_a_member_that_does_not_know_it() {
    for lost in [0, 4] {
        let mut array = filled(Level::Raid6, 5);
        let attribute = file_of(&inside(array.namespace.open(b"/data/a", READ, 0))).attribute();
        without(&mut array, 1, |array| {
            assert!(array.namespace.files().note_lost(attribute, lost));
            let file = array.members[lost].join("data/a");
            let bytes = fs::metadata(&file).unwrap().len();
            fs::write(&file, vec![0; bytes as usize]).unwrap();
        });
        assert_eq!(out(&array), MemberSet::EMPTY);
        assert_right(&array);
    }
}

/// A change without the member that alone has the name `/data/new` decides that there is no such
/// name.
fn a_change_decides(mut array: TestArray) {
    without(&mut array, 1, |array| {
        inside(array.namespace.mkdir(b"/data/other", 0o755));
        assert_eq!(content(array, "/data/new").map(drop), Err(OsError::NOENT), "only the other member has it");
    });
    assert_eq!(out(&array), MemberSet::EMPTY.with(1));
    inside(array.namespace.rmdir(b"/data/other"));
}

/// The last change that was made is one that no member which is here seems to have made. Only the
/// member that is away tells.
#[test]
fn the_last_change_waits_for_the_member_that_tells_of_it() {
    let spoilt = || {
        let array = filled(Level::Raid1, 2);
        inside(array.namespace.link(b"/data/a", b"/data/new", false));
        deleted("new")(&array.members[0]);
        array
    };
    let mut array = spoilt();
    without(&mut array, 1, |array| assert!(content(array, "/data/a") == Ok(wanted(1))));
    assert_eq!(out(&array), MemberSet::EMPTY, "nothing was changed");
    assert!(content(&array, "/data/new") == Ok(wanted(1)));
    a_change_decides(spoilt());
}

/// The last change made a file, and who is here has lost its name. Only the member that is away
/// tells whether it was made.
#[test]
fn a_file_that_was_made_last_waits_for_the_member_that_has_it() {
    let spoilt = || {
        let array = filled(Level::Raid1, 2);
        write(&inside(array.namespace.open(b"/data/new", CREATE, 0o640)), 0, &wanted(4));
        deleted("new")(&array.members[0]);
        array
    };
    let mut array = spoilt();
    without(&mut array, 1, |array| assert!(content(array, "/data/a") == Ok(wanted(1))));
    assert_eq!(out(&array), MemberSet::EMPTY, "nothing was changed");
    assert!(content(&array, "/data/new") == Ok(wanted(4)));
    assert_right(&array);
    a_change_decides(spoilt());
}

/// Two members have each lost a file that the other one has, and a third member is away. Neither
/// goes out for what it has lost: programs would learn of the other file that it does not exist.
#[test]
fn a_member_stays_that_alone_has_another_file() {
    let mut array = filled(Level::Raid1, 3);
    deleted("a")(&array.members[0]);
    deleted("b")(&array.members[1]);
    without(&mut array, 2, |array| {
        assert_eq!(content(array, "/data/a").map(drop), Err(OsError::IO));
        assert!(content(array, "/data/b") == Ok(wanted(2)));
        // Now the first member does not have it alone.
        assert!(content(array, "/data/a") == Ok(wanted(1)));
        assert!(content(array, "/data/b") == Ok(wanted(2)));
    });
    assert!(!out(&array).contains(2));
    for (path, seed) in [("/data/a", 1), ("/data/b", 2), ("/data/d/last", 3)] {
        assert!(content(&array, path) == Ok(wanted(seed)), "{path}");
    }
}

/// An exchange of names of which somebody has removed one on a later member: that member is given
/// the first one's names, which are exchanged by then, and exchanging them once more would undo it.
#[test]
fn an_exchange_is_made_once_on_a_member_that_has_lost_a_name() {
    for lost in ["a", "b"] {
        let mut array = filled(Level::Raid1, 2);
        fs::remove_file(array.members[1].join("data").join(lost)).unwrap();
        inside(array.namespace.rename(b"/data/a", b"/data/b", RenameFlags::EXCHANGE));
        for start in 0..2 {
            assert_eq!(content(&array, "/data/a"), Ok(wanted(2)), "{lost}, start {start}");
            assert_eq!(content(&array, "/data/b"), Ok(wanted(1)), "{lost}, start {start}");
            array.restart();
        }
        array.assert_same_trees();
    }
}
