//! Random changes from a seed: after them the trees of all members are the same, and the files hold what a model says.

mod common;

use common::*;
use cxlraid_namespace::{FileType, Namespace, OFlags, Reached, RenameFlags, Timestamps, XattrFlags};
use layout::Level;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use sys::OsError;
use sys::rustix::fs::Timespec;

/// A path of one to three components; few names, so that they meet.
fn any_path(rng: &mut Rng) -> String {
    let mut path = "/data".to_string();
    for _ in 0..=rng.below(3) {
        path.push('/');
        path.push((b'a' + rng.below(5) as u8) as char);
    }
    path
}

/// The seed of every run without CXLRAID_TEST_SEED: a test says the same each time it runs. Zero is no seed.
fn seed() -> u64 {
    std::env::var("CXLRAID_TEST_SEED").map_or(20_261_123, |text| text.parse().unwrap())
}

/// One change; what it answers is not looked at, only what it leaves.
fn change(names: Namespace, rng: &mut Rng, contents: &mut BTreeMap<u64, Vec<u8>>) {
    let (path, other) = (any_path(rng), any_path(rng));
    let (one, two) = (path.as_bytes(), other.as_bytes());
    let mode = [0o600, 0o644, 0o755, 0o4711, 0o1777, 0o444][rng.below(6) as usize];
    let follow = rng.below(2) == 0;
    // The test itself must be able to look into directories.
    let for_test = if sys::rustix::process::geteuid().is_root() { 0 } else { 0o700 };
    match rng.below(23) {
        0..=4 => write_some(names, &path, mode, rng, contents),
        5 | 6 => drop(names.mkdir(one, mode | for_test)),
        7 => drop(names.rmdir(one)),
        8 | 9 => drop(names.unlink(one)),
        10 | 11 => drop(names.rename(one, two, RenameFlags::empty())),
        12 => drop(names.rename(one, two, [RenameFlags::EXCHANGE, RenameFlags::NOREPLACE][rng.below(2) as usize])),
        13 => drop(names.link(one, two, follow)),
        14 => {
            let target = [path.clone(), path.replace("/data", ".."), "/etc".into(), "a".into()];
            drop(names.symlink(target[rng.below(4) as usize].as_bytes(), two));
        }
        15 => drop(names.mknod(one, [FileType::Fifo, FileType::Socket][rng.below(2) as usize], mode, 0)),
        16 => drop(names.chmod(one, mode | for_test, follow)),
        17 => drop(names.setxattr(one, b"user.note", path.as_bytes(), XattrFlags::empty(), follow)),
        18 => drop(names.removexattr(one, b"user.note", follow)),
        20.. => drop(names.mkdir(one, mode | for_test)),
        _ => {
            let time = Timespec { tv_sec: rng.below(1 << 30) as i64, tv_nsec: 0 };
            drop(names.utimens(one, &Timestamps { last_access: time, last_modification: time }, follow));
        }
    }
}

fn write_some(names: Namespace, path: &str, mode: u32, rng: &mut Rng, contents: &mut BTreeMap<u64, Vec<u8>>) {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let flags = flags | [OFlags::empty(), OFlags::EXCL, OFlags::TRUNC][rng.below(3) as usize];
    let Ok(Reached::Array(opened)) = names.open(path.as_bytes(), flags, mode) else { return };
    let cxlraid_namespace::Node::File(file) = &opened.node else { return };
    let stat = names.fstat(opened.anchor.as_fd(), &opened.node).unwrap();
    let attribute = file.attribute();
    let content = contents.entry(attribute.inode << 24 | attribute.generation).or_default();
    content.truncate(stat.st_size as usize);
    let (offset, bytes) = (rng.below(30_000) as usize, rng.below(20_000) as usize);
    let data: Vec<u8> = (0..bytes).map(|_| rng.below(256) as u8).collect();
    write(&opened, offset as u64, &data);
    if bytes > 0 {
        content.resize(content.len().max(offset + bytes), 0);
        content[offset..offset + bytes].copy_from_slice(&data);
    }
}

/// Every file still named holds what was written to it.
fn assert_contents(array: &TestArray, contents: &BTreeMap<u64, Vec<u8>>) {
    for (path, entry) in array.assert_same_trees() {
        if entry.kind == '-' {
            let path = format!("/{}", path.display());
            let opened = inside(array.namespace.open(path.as_bytes(), OFlags::RDONLY, 0));
            let attribute = file_of(&opened).attribute();
            let key = attribute.inode << 24 | attribute.generation;
            let nothing = Vec::new();
            assert!(read(&opened) == *contents.get(&key).unwrap_or(&nothing), "{path} holds something else");
            assert_eq!(inside(array.namespace.stat(path.as_bytes(), false)).st_size as u64, file_of(&opened).size());
        }
    }
}

fn run(array: &TestArray, seed: u64, count: u32) {
    println!("seed {seed}");
    let (mut rng, mut contents) = (Rng(seed), BTreeMap::new());
    let mut name_count_max = 0;
    for step in 0..count {
        change(array.namespace, &mut rng, &mut contents);
        if step % 20 == 0 {
            assert_contents(array, &contents);
            name_count_max = name_count_max.max(array.assert_same_trees().len());
        }
    }
    assert_contents(array, &contents);
    assert!(name_count_max > 5, "these changes were no test");
}

#[test]
fn two_thousand_random_changes_leave_the_same_tree_on_every_member() {
    let array = TestArray::new();
    run(&array, seed(), 2000);
    assert_eq!(array.namespace.files().array().in_use().len(), 3);
}

#[test]
fn the_same_on_mirrors() {
    let array = TestArray::with(Level::Raid10, 4);
    run(&array, seed(), 1000);
    assert_eq!(array.namespace.files().array().in_use().len(), 4);
}

#[test]
fn the_same_with_the_first_member_missing() {
    let mut array = TestArray::new();
    run(&array, seed(), 300);
    std::fs::rename(&array.members[0], array.home.path().join("away")).unwrap();
    array.restart();
    assert_eq!(array.namespace.files().array().first_in_use(), Ok(1));
    let before = array.assert_same_trees();
    let array = array;
    println!("degraded");
    let (mut rng, mut contents) = (Rng(seed()), BTreeMap::new());
    for (path, entry) in &before {
        if entry.kind == '-' {
            let opened = inside(array.namespace.open(format!("/{}", path.display()).as_bytes(), OFlags::RDONLY, 0));
            let attribute = file_of(&opened).attribute();
            contents.insert(attribute.inode << 24 | attribute.generation, read(&opened));
        }
    }
    for _ in 0..700 {
        change(array.namespace, &mut rng, &mut contents);
    }
    assert_contents(&array, &contents);
}

#[test]
fn threads_that_change_the_same_names_leave_the_same_tree() {
    let array = TestArray::new();
    let (names, seed) = (array.namespace, seed());
    println!("seed {seed}");
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            std::thread::spawn(move || {
                let mut rng = Rng(seed ^ (thread + 1) << 32);
                for _ in 0..400 {
                    change_without_looking(names, &mut rng);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    array.assert_same_trees();
    assert_eq!(names.files().array().in_use().len(), 3);
}

fn change_without_looking(names: Namespace, rng: &mut Rng) {
    if rng.below(3) > 0 {
        return change(names, rng, &mut BTreeMap::new());
    }
    let result = names.open(any_path(rng).as_bytes(), OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, 0);
    assert!(!matches!(result, Err(OsError::IO | OsError::BUSY | OsError::STALE)));
}

#[test]
fn one_of_many_makes_a_file_exclusively() {
    let array = TestArray::new();
    let names = array.namespace;
    for round in 0..50 {
        let path = format!("/data/{round}");
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let path = path.clone();
                std::thread::spawn(move || names.open(path.as_bytes(), CREATE | OFlags::EXCL, 0o600).map(drop))
            })
            .collect();
        let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
        assert_eq!(results.iter().filter(|result| **result == Err(OsError::EXIST)).count(), 3);
    }
    array.assert_same_trees();
}
