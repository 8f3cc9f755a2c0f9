//! While copies of a file's bytes may differ, since a writer died or the machine crashed, every read
//! takes them from the copy that the others will be made equal to, whatever the read policy is: a
//! byte that was read as new is not old again afterwards.

mod common;

use common::{TestArray, read, write};
use cxlraid_file::FileRef;
use dax::Access;
use format::ReadPolicy;
use layout::Level;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use sync::{Liveness, OwnerId};
use sys::rustix::fs::{Mode, OFlags, open};
use units::MemberSet;

const SHAPES: [(Level, usize, u64); 4] =
    [(Level::Raid1, 2, 65536), (Level::Raid1, 3, 65536), (Level::Raid10, 4, 4096), (Level::Raid01, 4, 65536)];
/// Each file begins with another copy.
const FILES: usize = 6;
const BYTES: usize = 3 << 20;

/// A process that was never there is dead.
struct Nobody;
impl Liveness for Nobody {
    fn is_alive(&self, _: OwnerId) -> bool {
        false
    }
}

/// Opens a file as a process that may not write to it does.
fn open_to_read(array: &TestArray, name: &str, attribute: format::Attribute) -> FileRef {
    let path = |slot: usize| array.member_path(slot).join("data").join(name);
    let fd = |slot: usize| open(path(slot), OFlags::RDONLY, Mode::empty()).ok();
    let fds = || (0..array.config.mounts.len()).map(fd).collect();
    array.again().open(attribute, false, || Ok((fds(), Access::ReadOnly))).unwrap()
}

/// A writer has come to some copies of bytes of the file, and not to others: each member's say whose
/// they are.
fn tear(array: &TestArray, name: &str) {
    for slot in 0..array.config.mounts.len() {
        let file = File::options().write(true).open(array.member_path(slot).join("data").join(name)).unwrap();
        let bytes = file.metadata().unwrap().len();
        (0..bytes).step_by(4096).for_each(|at| file.write_all_at(&[slot as u8], at).unwrap());
    }
}

/// The first byte of each page, read one by one.
fn pages(file: &FileRef) -> Vec<u8> {
    (0..BYTES as u64).step_by(4096).map(|at| read(file, at, 1)[0]).collect()
}

fn for_each_case(mut act: impl FnMut(&TestArray, &str, format::Attribute, &FileRef, &str)) {
    for (level, members, chunk) in SHAPES {
        for policy in ReadPolicy::ALL {
            let array = TestArray::new(level, members, chunk);
            array.files.array().set_read_policy(policy).unwrap();
            for index in 0..FILES {
                let name = format!("f{index}");
                let attribute = array.create(&name);
                let writer = array.open(&name, attribute);
                write(&writer, 0, &vec![200; BYTES]);
                act(&array, &name, attribute, &writer, &format!("RAID {level} of {members}, {policy:?}, {name}"));
            }
        }
    }
}

#[test]
fn what_a_dead_writer_left_is_not_seen_to_change_again() {
    for_each_case(|array, name, attribute, writer, case| {
        let reader = open_to_read(array, name, attribute);
        tear(array, name);
        let shared = array.files.array().runtime().find_file(attribute.inode << 24 | attribute.generation).unwrap();
        for lock in &shared.stripes {
            let _ = lock.write_begin(OwnerId::new(5).unwrap(), &Nobody);
        }
        let seen = pages(&reader);
        assert_ne!(shared.stripes_unfinished.load(Ordering::Relaxed), 0, "{case}: the reader cannot make it good");
        // Again, also while the shares of the members change.
        let mostly = array.files.array().runtime().read_last();
        array.files.array().set_write_mostly(0, !mostly.contains(0)).unwrap();
        assert!(pages(&reader) == seen, "{case}: a read sees another copy than the one before");
        assert!(pages(writer) == seen, "{case}: who may write sees another copy");
        // Who may write makes the copies agree as soon as it needs the locks.
        assert_eq!(writer.verify(), Ok(0), "{case}");
        assert_eq!(shared.stripes_unfinished.load(Ordering::Relaxed), 0, "{case}");
        assert!(pages(writer) == seen, "{case}: what was read is taken back");
        assert!(pages(&reader) == seen, "{case}");
    });
}

#[test]
fn what_a_crash_left_is_not_seen_to_change_again() {
    for_each_case(|array, name, attribute, writer, case| {
        tear(array, name);
        // As the start after a crash leaves it that finds a lane which names the file.
        let shared = array.files.array().runtime().find_file(attribute.inode << 24 | attribute.generation).unwrap();
        shared.resync_waits.store(1, Ordering::Release);
        let reader = open_to_read(array, name, attribute);
        let seen = pages(&reader);
        let whole = read(&reader, 0, BYTES);
        assert!(whole.iter().step_by(4096).eq(&seen), "{case}: long reads see other copies than short ones");
        let lowest = |at: usize| {
            let place = writer.geometry().locate(at as u64);
            writer.geometry().data_slot(place.stripe, place.column, 0) as u8
        };
        assert!((0..BYTES).step_by(4096).map(lowest).eq(seen.iter().copied()), "{case}: not what the others are made equal to");
        shared.resync_waits.store(0, Ordering::Release);
        drop(reader);
    });
}

/// Nothing of this costs what is read where copies agree: they take turns again.
#[test]
fn copies_that_agree_take_turns() {
    let array = TestArray::new(Level::Raid1, 2, 65536);
    let attribute = array.create("f");
    let file = array.open("f", attribute);
    write(&file, 0, &vec![200; BYTES]);
    tear(&array, "f");
    let seen: MemberSet = pages(&file).into_iter().map(usize::from).collect();
    assert_eq!(seen, MemberSet::first(2));
}
