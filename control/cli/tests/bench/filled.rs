//! An array with files whose bytes are known, for tests of what becomes of its members.

use super::{Bench, err};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// How many files the array has.
pub(crate) const FILES: usize = 40;
/// How many bytes the file with index 0 has; each further file has 100 more than the one before it.
const FILE_BYTES: usize = 50_000;

/// Returns what the file with this index holds.
pub(crate) fn content(index: usize) -> Vec<u8> {
    (0..FILE_BYTES + index * 100).map(|place| (place * 31 + index * 7 + place / 251) as u8).collect()
}

/// Makes an array called db with [`FILES`] files under /data/files, and stops it.
pub(crate) fn filled() -> Bench {
    let bench = Bench::new();
    assert!(bench.create().status.success());
    fs::create_dir(bench.path("files")).unwrap();
    for index in 0..FILES {
        fs::write(bench.path("files").join(index.to_string()), content(index)).unwrap();
    }
    let added = bench.run(&["add", "--array", "db", "-r", "files", "/data/files"]);
    assert!(added.status.success(), "{}", err(&added));
    stop(&bench);
    bench
}

#[track_caller]
pub(crate) fn stop(bench: &Bench) {
    let stopped = bench.run(&["stop", "db"]);
    assert!(stopped.status.success(), "{}", err(&stopped));
}

/// Asserts that all files can be read while the member directory `missing` is moved away.
#[track_caller]
pub(crate) fn assert_bears(bench: &Bench, missing: &str) {
    stop(bench);
    fs::rename(bench.path(missing), bench.path("gone")).unwrap();
    let _ = fs::remove_dir_all(bench.path("back"));
    let retrieved = bench.run(&["retrieve", "--array", "db", "-r", "/data/files", "back"]);
    assert!(retrieved.status.success(), "without {missing}: {}", err(&retrieved));
    for index in 0..FILES {
        assert!(fs::read(bench.path("back").join(index.to_string())).unwrap() == content(index), "{index} without {missing}");
    }
    stop(bench);
    fs::rename(bench.path("gone"), bench.path(missing)).unwrap();
}

/// Asserts that all files are there and hold what they should.
#[track_caller]
pub(crate) fn assert_whole(bench: &Bench) {
    let back: PathBuf = bench.path("back");
    let _ = fs::remove_dir_all(&back);
    let retrieved = bench.run(&["retrieve", "--array", "db", "-r", "/data/files", "back"]);
    assert!(retrieved.status.success(), "{}", err(&retrieved));
    let holds = |index: usize| fs::read(Path::new(&back).join(index.to_string())).unwrap() == content(index);
    assert!((0..FILES).all(holds));
}
