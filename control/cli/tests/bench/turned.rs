//! Files whose bytes are turned over on one member, so that a read tells where it came from.

use super::{Bench, err, out};
use std::{fs, os::unix::fs::FileExt as _, path::Path, process::Output};

/// How many files the array has.
pub(crate) const FILE_COUNT: usize = 20;

#[track_caller]
pub(crate) fn assert_fine(output: &Output) {
    assert!(output.status.success(), "{}{}", out(output), err(output));
}

pub(crate) fn content(index: usize) -> Vec<u8> {
    (0..5000).map(|place| (place * 31 + index * 7) as u8).collect()
}

/// Puts files into the array called db, which has the prefix /data, and turns over each byte of theirs
/// on `member` by hand.
pub(crate) fn fill_and_turn(bench: &Bench, member: &str) {
    fs::create_dir(bench.path("files")).unwrap();
    for index in 0..FILE_COUNT {
        fs::write(bench.path("files").join(index.to_string()), content(index)).unwrap();
    }
    assert_fine(&bench.run(&["add", "--array", "db", "-r", "files", "/data/files"]));
    assert_fine(&bench.run(&["stop", "db"]));
    for index in 0..FILE_COUNT {
        turn(&bench.path(member).join("data/files").join(index.to_string()));
    }
}

/// Turns over each byte of a file.
pub(crate) fn turn(file: &Path) {
    let bytes: Vec<u8> = fs::read(file).unwrap().iter().map(|byte| !byte).collect();
    fs::OpenOptions::new().write(true).open(file).unwrap().write_all_at(&bytes, 0).unwrap();
}

/// Returns how many files are read as they were written.
#[track_caller]
pub(crate) fn read_right(bench: &Bench) -> usize {
    let _ = fs::remove_dir_all(bench.path("back"));
    assert_fine(&bench.run(&["retrieve", "--array", "db", "-r", "/data/files", "back"]));
    (0..FILE_COUNT).filter(|index| fs::read(bench.path("back").join(index.to_string())).unwrap() == content(*index)).count()
}
