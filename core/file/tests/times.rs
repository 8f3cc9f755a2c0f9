//! When the members hear of the time of a write, and what they are told by a process that does not
//! own the file.

mod common;

use common::{TestArray, scratch, write};
use cxlraid_file::FileRef;
use dax::PersistenceDomain;
use layout::Level;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::time::{Duration, Instant};
use sys::rustix::process::{Gid, Uid};
use sys::rustix::thread::{set_thread_gid, set_thread_uid};

/// The times of the last write that the members tell, ns since 1970.
fn times(array: &TestArray) -> Vec<i128> {
    let stat = |slot: usize| std::fs::metadata(array.member_path(slot).join("data/f")).unwrap();
    let stats = (0..array.config.mounts.len()).map(stat);
    stats.map(|stat| i128::from(stat.mtime()) * 1_000_000_000 + i128::from(stat.mtime_nsec())).collect()
}

fn are_close(times: &[i128]) -> bool {
    times.iter().max().unwrap() - times.iter().min().unwrap() < 100_000_000
}

/// Writes to a file and syncs it. Returns the time that the members tell then.
fn synced(array: &TestArray, file: &FileRef, byte: u8) -> i128 {
    write(file, 0, &[byte; 100]);
    file.sync().unwrap();
    let times = times(array);
    assert!(are_close(&times), "{times:?}");
    times[0]
}

/// An open file of a size that is written to by mappings.
fn opened(array: &TestArray) -> FileRef {
    let attribute = array.create("f");
    let file = array.open("f", attribute);
    write(&file, 0, &vec![1; 1 << 20]);
    file
}

#[test]
fn volatile_members_hear_of_synced_writes_within_a_moment_and_at_the_close() {
    let array = TestArray::new(Level::Raid5, 3, 65536);
    assert_eq!(array.files.domains()[0], PersistenceDomain::Volatile, "/dev/shm is no tmpfs");
    let file = opened(&array);
    // A machine that is busy may take longer than a moment between two writes.
    let is_held_back = (0..1000).any(|_| {
        std::thread::sleep(Duration::from_millis(15));
        let begun = Instant::now();
        let (first, second) = (synced(&array, &file, 1), synced(&array, &file, 2));
        if begun.elapsed() < Duration::from_millis(8) {
            assert_eq!(first, second, "a second sync at once gives no time");
        }
        first == second
    });
    assert!(is_held_back);
    let before = times(&array)[0];
    std::thread::sleep(Duration::from_millis(15));
    let later = synced(&array, &file, 3);
    assert!(later > before, "a later sync gives it");
    std::thread::sleep(Duration::from_millis(6));
    write(&file, 0, b"4");
    file.sync().unwrap();
    drop(file);
    assert!(times(&array)[0] > later, "the close gives what was held back");
}

#[test]
fn a_write_has_no_earlier_time_than_what_was_told_before() {
    let array = TestArray::new(Level::Raid5, 3, 65536);
    let file = opened(&array);
    // Linux 6.13 or later has stamped a file by the fine clock, and a program was told that time.
    let told_ns = sys::clock::realtime_coarse_ns() + 5_000_000;
    array.files.array().runtime().note_told_time(told_ns);
    write(&file, 0, b"2");
    assert!(file.pending_modified_ns().unwrap() >= told_ns);
}

#[test]
fn what_was_told_before_the_last_write_may_become_later_at_the_close() {
    let array = TestArray::new(Level::Raid5, 3, 65536);
    let file = opened(&array);
    let stat = || std::fs::metadata(array.member_path(0).join("data/f")).unwrap();
    // A machine that is busy may take longer than a moment between the write and the close.
    let is_one = (0..100).any(|_| {
        write(&file, 0, b"2");
        assert!(file.pending_modified_ns().is_some());
        write(&file, 0, b"3");
        file.flush_times();
        (stat().mtime(), stat().mtime_nsec()) == (stat().ctime(), stat().ctime_nsec())
    });
    assert!(is_one);
    write(&file, 0, b"4");
    let told_ns = file.pending_modified_ns().unwrap();
    file.flush_times();
    assert_eq!(stat().mtime() as u64 * 1_000_000_000 + stat().mtime_nsec() as u64, told_ns);
}

#[test]
fn a_file_that_is_about_to_be_closed_has_the_times_that_it_keeps() {
    let array = TestArray::new(Level::Raid5, 3, 65536);
    let attribute = array.create("f");
    let both = || {
        let stat = std::fs::metadata(array.member_path(0).join("data/f")).unwrap();
        ((stat.mtime(), stat.mtime_nsec()), (stat.ctime(), stat.ctime_nsec()))
    };
    let file = array.open("f", attribute);
    // A machine that is busy may take longer than a moment between the write and the close.
    let is_one = (0..100).any(|round| {
        write(&file, round * 100_000, b"1");
        file.settle_at_close();
        let (modified, changed) = both();
        modified == changed
    });
    assert!(is_one, "{:?}", both());
    let told = both();
    std::thread::sleep(Duration::from_millis(20));
    drop(file);
    assert_eq!(both(), told, "the close changes them");
}

#[test]
fn members_that_keep_bytes_hear_of_every_synced_write() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let array = TestArray::in_directory(directory, Level::Raid5, 3, 65536);
    if array.files.domains()[0] == PersistenceDomain::Volatile {
        eprintln!("the build directory lies on a tmpfs: not shown that other members hear of every synced write");
        return;
    }
    let file = opened(&array);
    let told: Vec<_> = (0..5)
        .map(|round| {
            std::thread::sleep(Duration::from_millis(6));
            synced(&array, &file, round)
        })
        .collect();
    assert!(told.is_sorted_by(|before, after| before < after), "{told:?}");
}

/// Makes this thread one of a user without rights.
fn drop_rights() {
    set_thread_gid(Gid::from_raw(65534)).unwrap();
    set_thread_uid(Uid::from_raw(65534)).unwrap();
}

#[test]
fn a_write_by_a_user_who_does_not_own_the_file_has_a_new_time() {
    if !sys::rustix::process::geteuid().is_root() {
        eprintln!("not root: not shown what time a write by another user than the owner has");
        return;
    }
    let array = TestArray::in_directory(scratch(), Level::Raid5, 3, 65536);
    let attribute = array.create("f");
    for slot in 0..3 {
        let path = array.member_path(slot).join("data/f");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    }
    let file = array.open("f", attribute);
    write(&file, 0, &vec![1; 1 << 20]);
    file.sync().unwrap();
    let before = times(&array);
    std::thread::sleep(Duration::from_millis(20));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            drop_rights();
            write(&file, 0, b"2");
            // The kernel's clock moves on: this time is none of the present any more.
            std::thread::sleep(Duration::from_millis(30));
            file.flush_times();
        });
    });
    let after = times(&array);
    assert!(before.iter().zip(&after).all(|(before, after)| before < after), "{before:?} {after:?}");
    assert!(are_close(&after), "{after:?}");
}
