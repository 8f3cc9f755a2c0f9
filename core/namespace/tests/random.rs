//! Random changes from a seed: after them the trees of all members are the same, and the files hold
//! what a model says.

mod common;

use common::changes::{any_path, assert_contents, change};
use common::*;
use cxlraid_namespace::{Namespace, OFlags};
use layout::Level;
use std::collections::BTreeMap;
use sys::OsError;

/// The seed of every run without CXLRAID_TEST_SEED: a test says the same each time it runs. Zero is
/// no seed.
fn seed() -> u64 {
    std::env::var("CXLRAID_TEST_SEED").map_or(20_261_123, |text| text.parse().unwrap())
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
