//! What members have lost is computed from the others: the others stay as they are, and holes stay
//! holes.

mod common;

use common::{Random, TestArray, read, write};
use cxlraid_file::Files;
use format::Attribute;
use layout::Level;
use std::fs::{File, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, UNIX_EPOCH};

fn path(array: &TestArray, slot: usize) -> std::path::PathBuf {
    array.member_path(slot).join("data/f")
}

fn stat(array: &TestArray, slot: usize) -> Metadata {
    std::fs::metadata(path(array, slot)).unwrap()
}

/// Gives all backing files a time long ago.
fn make_old(array: &TestArray) {
    for slot in 0..array.config.mounts.len() {
        File::options()
            .write(true)
            .open(path(array, slot))
            .unwrap()
            .set_modified(UNIX_EPOCH + Duration::from_secs(1000))
            .unwrap();
    }
}

/// Makes the backing file of a member of which nobody has the file open an empty one, or one of other
/// bytes, and notes that it has lost the file.
fn lose(array: &TestArray, files: &'static Files, attribute: Attribute, slot: usize, garbage: Option<&mut Random>) {
    let file = File::options().write(true).open(path(array, slot)).unwrap();
    let bytes = file.metadata().unwrap().len();
    file.set_len(0).unwrap();
    if let Some(random) = garbage {
        file.set_len(bytes).unwrap();
        for _ in 0..4 {
            let count = 1 + random.below(20_000) as usize;
            let garbage = random.bytes(count);
            let at = random.below(bytes.saturating_sub(garbage.len() as u64));
            file.write_all_at(&garbage[..garbage.len().min((bytes - at) as usize)], at).unwrap();
        }
    }
    assert!(files.note_lost(attribute, slot));
}

/// With a second member out it is doubted whether parity fits: what follows from that is no change of
/// the file.
#[test]
fn a_file_is_as_old_as_before_when_another_member_is_out() {
    for chunk in [64, 4096, 65536] {
        for bytes in [100, 70_001, 500_000] {
            let array = TestArray::new(Level::Raid6, 4, chunk);
            let attribute = array.create("f");
            let data = Random(3).bytes(bytes);
            write(&array.open("f", attribute), 0, &data);
            make_old(&array);
            array.lose_segment();
            let files = array.again();
            files.array().fail_member(3).unwrap();
            lose(&array, files, attribute, 2, None);
            assert!(read(&array.open_in(files, "f", attribute), 0, bytes + 1) == data);
            let times: Vec<_> = (0..3).map(|slot| stat(&array, slot).mtime()).collect();
            assert_eq!(times, [1000; 3], "chunk {chunk}, {bytes} bytes");
        }
    }
}

/// A source of liveness by which every owner is dead.
struct Nobody;

impl sync::Liveness for Nobody {
    fn is_alive(&self, _: sync::OwnerId) -> bool {
        false
    }
}

/// The process had the size lock, and computed what a member has lost of the file.
#[test]
fn a_file_is_as_old_as_before_when_a_process_has_died_while_it_computed() {
    for was_computing in [true, false] {
        let array = TestArray::new(Level::Raid5, 3, 4096);
        let attribute = array.create("f");
        let data = Random(3).bytes(70_001);
        write(&array.open("f", attribute), 0, &data);
        make_old(&array);
        let file = array.open("f", attribute);
        let shared = array.files.array().runtime().find_file(attribute.inode << 24 | attribute.generation).unwrap();
        let _ = shared.size_lock.lock(sync::OwnerId::new(5).unwrap(), &Nobody);
        shared.anew.store(if was_computing { 1 } else { 0 }, std::sync::atomic::Ordering::Release);
        drop(file);
        assert!(read(&array.open("f", attribute), 0, data.len() + 1) == data);
        let times: Vec<_> = (0..3).map(|slot| stat(&array, slot).mtime() == 1000).collect();
        // Of any other change it is not known whether it has happened.
        assert_eq!(times, [was_computing; 3]);
    }
}
