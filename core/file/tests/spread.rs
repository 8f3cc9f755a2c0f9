//! Readers of mirrored files are spread over the copies, also those of small files.

mod common;

use common::{TestArray, read, write};
use format::ReadPolicy;
use layout::Level;
use std::fs::File;
use std::os::unix::fs::FileExt;

const FILES: usize = 24;
const CHUNK: u64 = 4096;

/// How many of the files are read from each member at `offset`. Each member's copy is made to tell
/// whose it is.
fn read_from(level: Level, members: usize, offset: u64, take_out: Option<usize>) -> Vec<usize> {
    let array = TestArray::new(level, members, CHUNK);
    let mut counts = vec![0; members];
    let files: Vec<_> = (0..FILES).map(|index| format!("f{index}")).map(|name| (array.create(&name), name)).collect();
    let open: Vec<_> = files.iter().map(|(attribute, name)| array.open(name, *attribute)).collect();
    for ((_, name), file) in files.iter().zip(&open) {
        write(file, 0, &[200; 2 * CHUNK as usize]);
        for slot in 0..members {
            let path = array.member_path(slot).join("data").join(name);
            let backing = File::options().write(true).open(path).unwrap();
            (0..=1).for_each(|chunk| backing.write_all_at(&[slot as u8], chunk * CHUNK).unwrap());
        }
    }
    if let Some(slot) = take_out {
        array.files.array().fail_member(slot).unwrap();
    }
    for file in &open {
        counts[usize::from(read(file, offset, 1)[0])] += 1;
        // Always the same one: a file's bytes are in the processor's caches once.
        assert!((0..10).all(|_| read(file, offset, 1) == read(file, offset, 1)));
    }
    counts
}

#[test]
fn small_files_are_read_from_all_their_copies() {
    assert_eq!(read_from(Level::Raid1, 2, 0, None), [12, 12]);
    assert_eq!(read_from(Level::Raid1, 3, 0, None), [8, 8, 8]);
    assert_eq!(read_from(Level::Raid1, 3, CHUNK, None), [8, 8, 8]);
    // The first chunk, and the second.
    assert_eq!(read_from(Level::Raid10, 4, 0, None), [12, 12, 0, 0]);
    assert_eq!(read_from(Level::Raid10, 4, CHUNK, None), [0, 0, 12, 12]);
    assert_eq!(read_from(Level::Raid01, 4, 0, None), [12, 0, 12, 0]);
}

#[test]
fn a_copy_that_is_out_is_read_from_another() {
    assert_eq!(read_from(Level::Raid1, 2, 0, Some(0)), [0, 24]);
    // The others share its turns.
    assert_eq!(read_from(Level::Raid1, 3, 0, Some(1)), [13, 0, 11]);
    assert_eq!(read_from(Level::Raid10, 4, CHUNK, Some(3)), [0, 0, 24, 0]);
}

#[test]
fn every_process_follows_another_policy_at_once() {
    let array = TestArray::new(Level::Raid1, 3, CHUNK);
    let attribute = array.create("f");
    let files = array.again();
    let file = array.open_in(files, "f", attribute);
    write(&file, 0, &[200; 2]);
    let policies = || [array.files, files].map(|files| files.array().read_policy());
    assert_eq!(policies(), [ReadPolicy::RoundRobin; 2]);
    for policy in ReadPolicy::ALL {
        array.files.array().set_read_policy(policy).unwrap();
        assert_eq!(policies(), [policy; 2]);
        assert_eq!(read(&file, 0, 2), [200; 2]);
    }
    // It outlives the segment.
    drop(file);
    array.lose_segment();
    assert_eq!(array.again().array().read_policy(), ReadPolicy::Latency);
}
