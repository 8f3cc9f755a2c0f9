//! `cxlraid status`, and a proof that it changes nothing.

use super::{Bench, err, out};
use std::{fs, path::PathBuf, time::SystemTime};

pub(crate) const MEMBERS: [&str; 3] = ["m0", "m1", "m2"];

/// Returns the regular files in the members' `.cxlraid`, each with its content and the time of its
/// last change.
pub(crate) fn metadata(bench: &Bench) -> Vec<(PathBuf, Vec<u8>, SystemTime)> {
    let files = MEMBERS.iter().flat_map(|member| fs::read_dir(bench.path(member).join(".cxlraid")).unwrap());
    let mut found: Vec<_> = files
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.symlink_metadata().unwrap().is_file())
        .map(|path| (path.clone(), fs::read(&path).unwrap(), path.metadata().unwrap().modified().unwrap()))
        .collect();
    found.sort();
    found
}

/// Runs `cxlraid status` of the array called db, which ends within a minute and changes nothing on
/// any member. Returns its exit status and what it says.
#[track_caller]
pub(crate) fn status(bench: &Bench) -> (Option<i32>, String) {
    let before = metadata(bench);
    let output = bench.program("timeout".as_ref(), &["60", env!("CARGO_BIN_EXE_cxlraid"), "status", "db"]).output().unwrap();
    assert!(metadata(bench) == before, "status has changed a member");
    (output.status.code(), out(&output) + &err(&output))
}
