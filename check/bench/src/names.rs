//! Calls on names: opening and closing, asking, making and removing, changing attributes, locking;
//! on the array and in an ordinary directory of the same tmpfs.

use crate::places::{Order, Places};
use crate::plan::{ArrayPlace, Plan, SMALL_BYTES};
use crate::report::{Check, Row};
use crate::rounds::{Calling, Times, measure};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

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
    let [ours, kernels] = known.each_ref().map(|path| OpenOptions::new().read(true).write(true).open(path));
    let locked = [ours?, kernels?];
    let in_kernels = |ours: f64, kernel: f64| Check::at_most("x the kernel's", ours / kernel, 1.2);
    let in_us = |what, ns: f64, goal| Check::at_most(what, ns / NS_PER_US, goal);
    let rows = vec![
        row(plan, "open, close", known.each_ref().map(PathBuf::as_path), open_close, |ours, _| in_us("us", ours, 6.0)),
        row(plan, "stat", known.each_ref().map(PathBuf::as_path), stat, |ours, _| in_us("us", ours, 1.5)),
        row(plan, "create, close, unlink", new.each_ref().map(PathBuf::as_path), create_unlink, |ours, kernel| {
            in_us("us more than 3 x the kernel's", ours - 3.0 * kernel, 5.0)
        }),
        row(
            plan,
            "create, write 4 KiB, close, unlink",
            new.each_ref().map(PathBuf::as_path),
            create_write_unlink,
            |ours, kernel| Check::at_most("x the kernel's", ours / kernel, 2.2),
        ),
        row(plan, "fchmod, futimens", locked.each_ref(), set_attributes, |ours, kernel| {
            in_us("us more than 3 x the kernel's", ours - 3.0 * kernel, 5.0)
        }),
        row(plan, "lock, unlock (fcntl)", locked.each_ref(), lock_record, in_kernels),
        row(plan, "lock, unlock (flock)", locked.each_ref(), lock_whole, in_kernels),
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

fn create_write_unlink(path: &Path) {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path).expect("create");
    file.write_all(&[7; SMALL_BYTES]).expect("write");
    drop(file);
    fs::remove_file(path).expect("unlink");
}

fn set_attributes(file: &File) {
    file.set_permissions(Permissions::from_mode(0o644)).expect("chmod");
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1)).expect("utimens");
}

fn lock_record(file: &File) {
    for kind in [libc::F_WRLCK, libc::F_UNLCK] {
        // SAFETY: all zeros are a lock that begins at the file's beginning.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        (lock.l_type, lock.l_len) = (kind as i16, 1);
        // SAFETY: the kernel reads the lock.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) }, 0, "lock of kind {kind}");
    }
}

fn lock_whole(file: &File) {
    file.lock().expect("lock");
    file.unlock().expect("unlock");
}

/// `call` on the first of `on` (ours) and on the second (the kernel's) by turns; `check` holds the
/// medians against the goal.
fn row<T: ?Sized>(plan: &Plan, what: &str, on: [&T; 2], call: fn(&T), check: impl Fn(f64, f64) -> Check) -> Row {
    let place = || Places::new(Order::Sequential, 1, 1, 0, 1);
    let [mut ours, mut kernel] = on.map(|on| Calling(move |_| call(on)));
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
