//! When the members hear of the time of a write, and what they are told by a process that does not
//! own the file.

mod common;

use common::{TestArray, scratch, write};
use dax::PersistenceDomain;
use layout::Level;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::time::Duration;
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

/// Writes and syncs by turns. Returns the times that the members tell after the first turn, after a
/// second one at once, after a third one later, and when the file is closed after a fourth one.
fn times_of_turns(array: &TestArray) -> [i128; 4] {
    let attribute = array.create("f");
    let file = array.open("f", attribute);
    let turn = |round: u8| {
        write(&file, 0, &vec![round; 1 << 20]);
        file.sync().unwrap();
        let times = times(array);
        assert!(are_close(&times), "{times:?}");
        times[0]
    };
    let first = turn(1);
    std::thread::sleep(Duration::from_millis(20));
    let second = turn(2);
    std::thread::sleep(Duration::from_millis(200));
    let third = turn(3);
    std::thread::sleep(Duration::from_millis(20));
    write(&file, 0, b"4");
    file.sync().unwrap();
    drop(file);
    let last = times(array);
    assert!(are_close(&last), "{last:?}");
    [first, second, third, last[0]]
}

#[test]
fn volatile_members_hear_of_synced_writes_within_a_moment_and_at_the_close() {
    let array = TestArray::new(Level::Raid5, 3, 65536);
    assert_eq!(array.files.domains()[0], PersistenceDomain::Volatile, "/dev/shm is no tmpfs");
    let [first, second, third, last] = times_of_turns(&array);
    assert_eq!(first, second, "a second sync within 100 ms gives no time");
    assert!(third - second > 200_000_000, "a later sync gives it");
    assert!(last > third, "the close gives what was held back");
}

#[test]
fn members_that_keep_bytes_hear_of_every_synced_write() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let array = TestArray::in_directory(directory, Level::Raid5, 3, 65536);
    if array.files.domains()[0] == PersistenceDomain::Volatile {
        eprintln!("the build directory lies on a tmpfs: not shown that other members hear of every synced write");
        return;
    }
    let [first, second, third, last] = times_of_turns(&array);
    assert!(first < second && second < third && third < last);
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
