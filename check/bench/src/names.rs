//! Calls on names: opening and closing, asking, making and removing; on the array and in an ordinary directory of the same tmpfs.

use crate::places::{Order, Places};
use crate::plan::{ArrayPlace, Plan, SMALL_BYTES};
use crate::report::{Check, Row};
use crate::rounds::{Calling, Times, measure};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

const KNOWN: &str = "known";
const NEW: &str = "new";
const NS_PER_US: f64 = 1000.0;

/// The rows, measured in this process, which has the library. `plain` is an ordinary directory.
pub(crate) fn rows(plan: &Plan, array: &ArrayPlace, plain: &Path) -> io::Result<Vec<Row>> {
    let places = [array.prefix.clone(), plain.to_owned()];
    for place in &places {
        fs::create_dir_all(place)?;
        fs::write(place.join(KNOWN), vec![7u8; SMALL_BYTES])?;
    }
    let known = places.each_ref().map(|place| place.join(KNOWN));
    let new = places.each_ref().map(|place| place.join(NEW));
    let in_us = |what, ns: f64, goal| Check::at_most(what, ns / NS_PER_US, goal);
    let rows = vec![
        row(plan, "open, close", &known, open_close, |ours, _| in_us("us", ours, 6.0)),
        row(plan, "stat", &known, stat, |ours, _| in_us("us", ours, 1.5)),
        row(plan, "create, close, unlink", &new, create_unlink, |ours, kernel| {
            in_us("us more than 3 x the kernel's", ours - 3.0 * kernel, 5.0)
        }),
    ];
    assert_eq!(fs::read(&known[0])?, [7u8; SMALL_BYTES], "the file is still right");
    assert!(!new[0].exists(), "what was made was removed");
    Ok(rows)
}

fn open_close(path: &Path) {
    drop(File::open(path).expect("open"));
}

fn stat(path: &Path) {
    assert_eq!(fs::metadata(path).expect("stat").len(), SMALL_BYTES as u64);
}

fn create_unlink(path: &Path) {
    drop(OpenOptions::new().write(true).create_new(true).open(path).expect("create"));
    fs::remove_file(path).expect("unlink");
}

/// `call` on the first path (ours) and on the second (the kernel's) by turns; `check` holds the medians against the goal.
fn row(plan: &Plan, what: &str, paths: &[PathBuf; 2], call: fn(&Path), check: impl Fn(f64, f64) -> Check) -> Row {
    let place = || Places::new(Order::Sequential, 1, 1, 0, 1);
    let [mut ours, mut kernel] = paths.each_ref().map(|path| Calling(move |_| call(path)));
    let times: Times = measure(&mut [(&mut ours, place()), (&mut kernel, place())], plan.rounds, plan.name_calls);
    let (ours_ns, kernel_ns) = (times.nanoseconds(0), times.nanoseconds(1));
    Row {
        ours_ns: Some(ours_ns),
        kernel_ns: Some(kernel_ns),
        kernel_ratio: Some(times.ratio(1, 0)),
        checks: vec![check(ours_ns, kernel_ns)],
        ..Row::new(format!("{what}, RAID 5 x 3"))
    }
}
