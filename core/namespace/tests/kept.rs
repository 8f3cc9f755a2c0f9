//! Backing files that a process keeps open after the last close: it sees what other processes do to
//! the file meanwhile, and nothing waits for it.

mod common;

use common::*;
use cxlraid_namespace::{Namespace, OFlags, RenameFlags};
use file::Keep;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use sys::OsError;
use units::MemberSet;

const RDONLY: OFlags = OFlags::RDONLY;
const COUNT: usize = 3;
const KEEP: Keep = Keep { count: COUNT, allowed: || true };

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(status: i32) -> !;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn kill(pid: i32, signal: i32) -> i32;
}

/// An array on which this process keeps files open, and a second view of it as another process
/// would have one.
fn array() -> (TestArray, Namespace, Namespace) {
    let array = TestArray::new();
    let names = array.attach_keeping(KEEP);
    let other = array.namespace;
    (array, names, other)
}

/// Makes a file with `text` in it and has it kept: what is only made is closed at once.
fn keep(names: Namespace, path: &str, text: &[u8]) {
    write(&create(names, path), 0, text);
    assert_eq!(content(names, path), text);
}

fn content(names: Namespace, path: &str) -> Vec<u8> {
    read(&inside(names.open(path.as_bytes(), RDONLY, 0)))
}

/// The descriptors of this process below the array's members whose path there ends so, and the
/// blocks of what they are open on.
fn descriptors(array: &TestArray, end: &str) -> Vec<u64> {
    let home = array.home.path().to_str().unwrap();
    let entries = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let ours = entries.filter(|link| {
        let target = fs::read_link(link).unwrap_or_default();
        let target = target.to_str().unwrap_or_default();
        target.starts_with(home) && target.ends_with(end)
    });
    ours.filter_map(|link| fs::metadata(link).ok()).map(|metadata| metadata.blocks()).collect()
}

#[test]
fn a_file_opened_again_has_the_same_backing_files() {
    let (array, names, _) = array();
    keep(names, "/data/f", b"one");
    assert_eq!(descriptors(&array, "/data/f").len(), 3);
    let backing = |flags| {
        let opened = inside(names.open(b"/data/f", flags, 0));
        file_of(&opened).in_use().map(|(_, backing)| backing.fd().unwrap().as_raw_fd()).collect::<Vec<_>>()
    };
    let before = backing(RDONLY);
    assert_eq!((backing(OFlags::RDWR), backing(OFlags::WRONLY)), (before.clone(), before));
    write(&inside(names.open(b"/data/f", OFlags::WRONLY, 0)), 3, &[9; 9000]);
    assert_eq!(inside(names.stat(b"/data/f", true)).st_size, 9003);
    assert_eq!(content(names, "/data/f")[..4], *b"one\x09");
    write(&inside(names.open(b"/data/f", OFlags::WRONLY | OFlags::TRUNC, 0)), 0, b"two");
    assert_eq!(content(names, "/data/f"), b"two");
    let lengths = (0..3).map(|slot| fs::metadata(array.members[slot].join("data/f")).unwrap().len());
    assert!(lengths.max() <= Some(4096), "what was taken in advance is given back by the close all the same");
    array.assert_same_trees();
}

#[test]
fn only_so_many_are_kept_and_the_oldest_goes() {
    let (array, names, _) = array();
    for name in ["a", "b", "c"] {
        keep(names, &format!("/data/{name}"), name.as_bytes());
    }
    assert_eq!(content(names, "/data/a"), b"a");
    keep(names, "/data/d", b"d");
    let kept: Vec<&str> =
        ["a", "b", "c", "d"].into_iter().filter(|name| !descriptors(&array, &format!("/data/{name}")).is_empty()).collect();
    assert_eq!(kept, ["a", "c", "d"]);
    assert!(names.files().discard_idle() && !names.files().discard_idle());
    assert!(["a", "c", "d"].iter().all(|name| descriptors(&array, &format!("/data/{name}")).is_empty()));
}

#[test]
fn what_another_removes_loses_its_blocks_at_once() {
    let (array, names, other) = array();
    for (index, text) in [[1; 100_000], [2; 100_000]].iter().enumerate() {
        keep(names, &format!("/data/{index}"), text);
        assert!(descriptors(&array, &format!("/data/{index}")).iter().all(|&blocks| blocks >= 96));
    }
    inside(other.unlink(b"/data/0"));
    write(&create(other, "/data/new"), 0, b"new");
    inside(other.rename(b"/data/new", b"/data/1", RenameFlags::empty()));
    let gone = descriptors(&array, "(deleted)");
    assert!(gone.len() == 6 && gone.iter().all(|&blocks| blocks == 0), "kept, but empty: {gone:?}");
    assert_eq!(refused(names.open(b"/data/0", RDONLY, 0)), OsError::NOENT);
    assert_eq!(content(names, "/data/1"), b"new");
    // By itself it lets go first.
    keep(names, "/data/own", b"own");
    inside(names.unlink(b"/data/own"));
    assert!(descriptors(&array, "/data/own (deleted)").is_empty());
    array.assert_same_trees();
}

#[test]
fn a_number_that_is_used_again_is_another_file() {
    let (array, names, other) = array();
    for round in 0..20u8 {
        keep(names, "/data/f", &[round; 5000]);
        let number = file_of(&inside(names.open(b"/data/f", RDONLY, 0))).number();
        inside(other.unlink(b"/data/f"));
        let next = create(other, "/data/g");
        write(&next, 0, &[round + 100; 6000]);
        assert_eq!(file_of(&next).number(), number);
        drop(next);
        assert_eq!(content(names, "/data/g"), [round + 100; 6000]);
        assert_eq!(refused(names.open(b"/data/f", RDONLY, 0)), OsError::NOENT);
        inside(other.unlink(b"/data/g"));
    }
    array.assert_same_trees();
}

#[test]
fn what_others_write_cut_and_rename_is_seen() {
    let (array, names, other) = array();
    keep(names, "/data/f", &[1; 300_000]);
    inside(other.truncate(b"/data/f", 10));
    write(&inside(other.open(b"/data/f", OFlags::WRONLY, 0)), 5000, b"more");
    inside(other.rename(b"/data/f", b"/data/g", RenameFlags::empty()));
    let mut expected = vec![0; 5000];
    expected[..10].fill(1);
    expected.extend(b"more");
    let again = inside(names.open(b"/data/g", OFlags::RDWR, 0));
    assert_eq!(read(&again), expected);
    // What it remembers of space is void: it was cut.
    write(&again, 0, &[7; 200_000]);
    assert_eq!(content(other, "/data/g"), [7; 200_000]);
    assert_eq!(file_of(&again).verify(), Ok(0));
    drop(again);
    inside(other.chmod(b"/data/g", 0o444, true));
    assert_eq!(content(names, "/data/g"), [7; 200_000]);
    assert!(descriptors(&array, "/data/g").is_empty(), "its owner may not cut it");
    // The kernel asks the owner for the owner's right, whatever others may.
    inside(other.chmod(b"/data/g", 0o446, true));
    assert_eq!(content(names, "/data/g"), [7; 200_000]);
    assert!(descriptors(&array, "/data/g").is_empty(), "its owner may not cut it, though others may");
    array.assert_same_trees();
}

#[test]
fn programs_are_not_kept() {
    let (array, names, other) = array();
    keep(names, "/data/f", b"#!");
    inside(names.chmod(b"/data/f", 0o755, true));
    assert!(descriptors(&array, "/data/f").is_empty());
    assert_eq!(content(names, "/data/f"), b"#!");
    assert!(descriptors(&array, "/data/f").is_empty());
    keep(names, "/data/g", b"#!");
    inside(other.chmod(b"/data/g", 0o755, true));
    let opened = inside(other.open(b"/data/g", RDONLY, 0));
    assert!(other.files().is_kept_elsewhere(file_of(&opened).attribute()), "who executes it is told");
    let attribute = file_of(&opened).attribute();
    assert!(!names.files().is_kept_elsewhere(attribute), "and may let go itself");
}

#[test]
fn a_change_of_members_or_directories_ends_it() {
    let (array, names, other) = array();
    keep(names, "/data/f", &[3; 50_000]);
    inside(other.symlink(b"f", b"/data/link"));
    let numbers = |names: Namespace| {
        let opened = inside(names.open(b"/data/f", RDONLY, 0));
        file_of(&opened).in_use().map(|(slot, _)| slot).collect::<MemberSet>()
    };
    assert_eq!(numbers(names), MemberSet::first(3));
    other.files().array().fail_member(1).unwrap();
    assert_eq!(numbers(names), MemberSet::first(3).minus(MemberSet::from_bits(0b10)));
    assert_eq!(content(names, "/data/f"), [3; 50_000]);
    assert_eq!(descriptors(&array, "m1/data/f").len(), 0);
    write(&inside(names.open(b"/data/f", OFlags::WRONLY, 0)), 10, &[4; 40_000]);
    assert_eq!(content(other, "/data/f")[9..12], [3, 4, 4]);
}

/// What a child of fork reports by its exit status.
fn in_child(names: Namespace, act: impl FnOnce() -> i32) -> i32 {
    // SAFETY: libc's fork; the child only does what is below and ends without destructors.
    let pid = names.files().around_fork(|| unsafe { fork() } as isize);
    if pid == 0 {
        let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).unwrap_or(99);
        // SAFETY: ends the child.
        unsafe { _exit(status) };
    }
    let mut status = 0;
    // SAFETY: our child, and a word of ours.
    assert_eq!(unsafe { waitpid(pid as i32, &raw mut status, 0) }, pid as i32);
    status
}

#[test]
fn a_child_of_fork_keeps_nothing_of_its_parents() {
    let (array, names, other) = array();
    keep(names, "/data/f", b"parent");
    let status = in_child(names, || {
        let kept = descriptors(&array, "/data/f").len();
        let same = content(names, "/data/f") == b"parent";
        i32::from(kept != 0) | i32::from(!same) << 1
    });
    assert_eq!(status, 0);
    let opened = inside(other.open(b"/data/f", RDONLY, 0));
    let attribute = file_of(&opened).attribute();
    drop(opened);
    assert!(other.files().is_kept_elsewhere(attribute), "the parent still does");
    assert_eq!(descriptors(&array, "/data/f").len(), 3);
    assert!(names.files().discard_idle());
    // What the child kept when it ended is not counted for ever.
    other.files().array().runtime().reap();
    assert!(!other.files().is_kept_elsewhere(attribute));
}

#[test]
fn a_process_that_is_killed_keeps_nothing() {
    let (array, names, other) = array();
    keep(names, "/data/f", &[5; 70_000]);
    names.files().discard_idle();
    let status = in_child(names, || {
        if content(names, "/data/f").len() != 70_000 || descriptors(&array, "/data/f").len() != 3 {
            return 1;
        }
        // SAFETY: ends this child, like kill -9.
        unsafe { kill(std::process::id() as i32, 9) };
        2
    });
    assert_eq!(status, 9);
    let opened = inside(other.open(b"/data/f", RDONLY, 0));
    let attribute = file_of(&opened).attribute();
    drop(opened);
    assert!(other.files().is_kept_elsewhere(attribute));
    other.files().array().runtime().reap();
    assert!(!other.files().is_kept_elsewhere(attribute));
    inside(other.unlink(b"/data/f"));
    array.assert_same_trees();
}

#[test]
fn without_permission_to_cut_others_are_asked_to_let_go() {
    let (array, names, other) = array();
    keep(names, "/data/f", &[5; 70_000]);
    keep(names, "/data/g", b"g");
    other.files().array().runtime().recall_idle();
    assert_eq!(descriptors(&array, "/data/f").len(), 3);
    assert_eq!(content(names, "/data/g"), b"g");
    assert_eq!((descriptors(&array, "/data/f").len(), descriptors(&array, "/data/g").len()), (0, 3));
}
