//! After a crash of the machine the members agree, and every byte is old or new: whatever lines of
//! the last write reached them, wherever the recovery itself was cut short, and with sizes and
//! records that some members have and others not.
//!
//! A test makes a crash by hand: it puts some of the lines that a step changed on the members back
//! as they were, and removes the runtime segment.

mod common;

use common::{Image, Random, TestArray, read, some_lines, write};
use cxlraid_file::{FileRef, Files};
use format::{Attribute, INODE_RECORD_BYTES, InodeRecord, InodeState, inode_record_offset};
use layout::Level;
use std::os::unix::fs::FileExt;

const SHAPES: [(Level, usize, u64); 7] = [
    (Level::Raid0, 3, 4096),
    (Level::Raid1, 3, 65536),
    (Level::Raid4, 3, 4096),
    (Level::Raid5, 4, 64),
    (Level::Raid6, 5, 4096),
    (Level::Raid10, 4, 4096),
    (Level::Raid01, 4, 65536),
];

const DATA: &str = "data/f";
const INODES: &str = ".cxlraid/inodes";
const LANES: &str = ".cxlraid/lanes";

fn image(array: &TestArray, name: &str) -> Image {
    (0..array.config.mounts.len()).map(|slot| std::fs::read(array.member_path(slot).join(name)).unwrap()).collect()
}

fn restore(array: &TestArray, name: &str, image: &Image) {
    for (slot, bytes) in image.iter().enumerate() {
        let file = std::fs::OpenOptions::new().write(true).open(array.member_path(slot).join(name)).unwrap();
        // What the header of a table says was durable before any record was changed.
        let header = if name == DATA { 0 } else { format::TABLE_HEADER_BYTES };
        file.write_all_at(&bytes[header..], header as u64).unwrap();
    }
}

/// The machine has crashed: nothing is left but what the members hold.
fn crash(array: &TestArray) {
    array.lose_segment();
}

fn record(array: &TestArray, slot: usize, attribute: Attribute) -> Option<InodeRecord> {
    let table = std::fs::read(array.member_path(slot).join(INODES)).unwrap();
    let at = inode_record_offset(attribute.inode) as usize;
    InodeRecord::decode(attribute.inode, table[at..at + INODE_RECORD_BYTES].try_into().unwrap()).unwrap()
}

fn all_agree(array: &TestArray, file: &FileRef, attribute: Attribute) {
    assert_eq!(file.verify(), Ok(0));
    for slot in 0..array.config.mounts.len() {
        let record = record(array, slot, attribute).unwrap();
        assert_eq!((record.resync, record.size), (None, file.size()), "member {slot}");
    }
}

/// A file of `bytes` that is open, and the machine's state before a write to it.
struct Scene {
    array: TestArray,
    attribute: Attribute,
    old: Vec<u8>,
}

impl Scene {
    fn new(level: Level, member_count: usize, chunk: u64, bytes: usize, seed: u64) -> Self {
        let array = TestArray::new(level, member_count, chunk);
        let attribute = array.create("f");
        let old = Random(seed).bytes(bytes);
        write(&array.open("f", attribute), 0, &old);
        Self { array, attribute, old }
    }

    fn open(&self, files: &'static Files) -> FileRef {
        self.array.open_in(files, "f", self.attribute)
    }
}

fn each_shape(rounds: u64, mut check: impl FnMut(Level, &mut Random, Scene)) {
    for (level, member_count, chunk) in SHAPES {
        for round in 0..rounds {
            let seed = (u64::from(level.code()) << 32) | (round + 1);
            println!("RAID {level}, {member_count} members, chunk {chunk}, seed {seed:#x}");
            let mut random = Random(seed);
            let bytes = 1 + random.below(300_000) as usize;
            check(level, &mut random, Scene::new(level, member_count, chunk, bytes, seed));
        }
    }
}

/// Every byte of `range` is old or new, all others old.
fn assert_old_or_new(found: &[u8], old: &[u8], new: &[u8]) {
    assert_eq!(found.len(), old.len());
    let wrong = (0..found.len()).find(|&at| found[at] != old[at] && found[at] != new[at]);
    assert_eq!(wrong, None, "a byte that nobody wrote");
}

#[test]
fn a_write_cut_short_is_old_or_new_and_redundant() {
    each_shape(6, |_, random, scene| {
        let offset = random.below(scene.old.len() as u64) as usize;
        let length = 1 + random.below((scene.old.len() - offset) as u64) as usize;
        let mut new = scene.old.clone();
        new[offset..offset + length].copy_from_slice(&random.bytes(length));
        let before = image(&scene.array, DATA);
        write(&scene.open(scene.array.files), offset as u64, &new[offset..offset + length]);
        let cut = some_lines(random, &before, &image(&scene.array, DATA));
        restore(&scene.array, DATA, &cut);
        crash(&scene.array);

        let file = scene.open(scene.array.again());
        assert_old_or_new(&read(&file, 0, scene.old.len() + 1), &scene.old, &new);
        all_agree(&scene.array, &file, scene.attribute);
    });
}

#[test]
fn recovery_cut_short_at_any_step_is_done_by_the_next() {
    each_shape(4, |_, random, scene| {
        let mut new = scene.old.clone();
        let before = image(&scene.array, DATA);
        new[0] ^= 1;
        let length = new.len().min(20_000);
        let changed = random.bytes(length);
        new[..length].copy_from_slice(&changed);
        write(&scene.open(scene.array.files), 0, &changed);
        let cut = some_lines(random, &before, &image(&scene.array, DATA));
        restore(&scene.array, DATA, &cut);

        // The tables first, and the lanes only when they are whole.
        let (tables, lanes) = (image(&scene.array, INODES), image(&scene.array, LANES));
        crash(&scene.array);
        let _ = scene.array.again();
        let cut_in_lanes = random.below(2) == 0;
        if cut_in_lanes {
            restore(&scene.array, LANES, &some_lines(random, &lanes, &image(&scene.array, LANES)));
        } else {
            restore(&scene.array, INODES, &some_lines(random, &tables, &image(&scene.array, INODES)));
            restore(&scene.array, LANES, &lanes);
        }
        crash(&scene.array);

        // The data first, and the note is taken away only when they agree.
        let files = scene.array.again();
        let (data, tables) = (image(&scene.array, DATA), image(&scene.array, INODES));
        drop(scene.open(files));
        if random.below(2) == 0 {
            restore(&scene.array, INODES, &some_lines(random, &tables, &image(&scene.array, INODES)));
        } else {
            restore(&scene.array, DATA, &some_lines(random, &data, &image(&scene.array, DATA)));
            restore(&scene.array, INODES, &tables);
        }
        crash(&scene.array);

        let file = scene.open(scene.array.again());
        assert_old_or_new(&read(&file, 0, new.len() + 1), &scene.old, &new);
        all_agree(&scene.array, &file, scene.attribute);
    });
}

#[test]
fn an_append_cut_short_leaves_the_old_end_or_the_new_one() {
    each_shape(6, |level, random, scene| {
        let (before, tables) = (image(&scene.array, DATA), image(&scene.array, INODES));
        let added = 1 + random.below(50_000) as usize;
        let added = random.bytes(added);
        // Never closed, so that nothing is trimmed: a crash finds the file so.
        let open = core::mem::ManuallyDrop::new(scene.open(scene.array.files));
        write(&open, scene.old.len() as u64, &added);
        let new = [scene.old.as_slice(), &added].concat();
        let size_is_stored = random.below(2) == 0;
        if size_is_stored {
            // All data were there before the first member got the size.
            let at = inode_record_offset(scene.attribute.inode);
            let keeps = random.below(scene.array.config.mounts.len() as u64 + 1) as usize;
            for (slot, table) in tables.iter().enumerate().skip(keeps) {
                let path = scene.array.member_path(slot).join(INODES);
                let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
                file.write_all_at(&table[at as usize..][..INODE_RECORD_BYTES], at).unwrap();
            }
        } else {
            let mut padded = before.clone();
            let after = image(&scene.array, DATA);
            padded.iter_mut().zip(&after).for_each(|(before, after)| before.resize(after.len(), 0));
            restore(&scene.array, DATA, &some_lines(random, &padded, &after));
            let at = inode_record_offset(scene.attribute.inode);
            for slot in 0..before.len() {
                let path = scene.array.member_path(slot).join(INODES);
                let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
                let mut record = [0; INODE_RECORD_BYTES];
                file.read_exact_at(&mut record, at).unwrap();
                record[..8].copy_from_slice(&(scene.old.len() as u64).to_le_bytes());
                file.write_all_at(&format::with_checks(scene.attribute.inode, record), at).unwrap();
            }
        }
        crash(&scene.array);

        let file = scene.open(scene.array.again());
        let found = read(&file, 0, new.len() + 1);
        if found.len() == new.len() {
            assert_eq!(found, new, "{level}");
        } else {
            assert_old_or_new(&found, &scene.old, &scene.old);
        }
        all_agree(&scene.array, &file, scene.attribute);
        file.truncate(new.len() as u64 + 70_000).unwrap();
        let end = found.len() as u64;
        assert!(read(&file, end, 140_000).iter().all(|&byte| byte == 0), "RAID {level}: bytes behind the end were kept");
        assert_eq!(file.verify(), Ok(0));
    });
}

#[test]
fn a_truncation_cut_short_shows_nothing_behind_the_end() {
    each_shape(4, |level, random, scene| {
        let before = image(&scene.array, DATA);
        let new = random.below(scene.old.len() as u64);
        scene.open(scene.array.files).truncate(new).unwrap();
        // The size is stored, zeros and parity only in part, and no member is cut yet.
        let mut after = image(&scene.array, DATA);
        after.iter_mut().zip(&before).for_each(|(after, before)| after.extend_from_slice(&before[after.len()..]));
        restore(&scene.array, DATA, &some_lines(random, &before, &after));
        crash(&scene.array);

        let file = scene.open(scene.array.again());
        assert_eq!(read(&file, 0, scene.old.len()), scene.old[..new as usize], "RAID {level}");
        all_agree(&scene.array, &file, scene.attribute);
        file.truncate(scene.old.len() as u64 + 1).unwrap();
        assert!(read(&file, new, scene.old.len()).iter().all(|&byte| byte == 0), "RAID {level}");
        assert_eq!(file.verify(), Ok(0));
    });
}

#[test]
fn a_backing_file_that_lost_its_end_holds_zeros_there_and_agrees() {
    each_shape(2, |level, random, scene| {
        let slot = random.below(scene.array.config.mounts.len() as u64) as usize;
        let path = scene.array.member_path(slot).join(DATA);
        let length = std::fs::metadata(&path).unwrap().len();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(random.below(length)).unwrap();
        crash(&scene.array);
        let file = scene.open(scene.array.again());
        assert_eq!(file.size(), scene.old.len() as u64);
        let found = read(&file, 0, scene.old.len());
        assert_old_or_new(&found, &scene.old, &vec![0; found.len()]);
        assert_eq!(file.verify(), Ok(0), "RAID {level}");
    });
}

#[test]
fn records_are_made_the_same_and_orphans_are_freed() {
    for (level, member_count, chunk) in SHAPES {
        let array = TestArray::new(level, member_count, chunk);
        let attributes: Vec<_> = (0..2000).map(|_| array.files.create_inode(b"/data/file").unwrap()).collect();
        let spoil = |slot: usize, at: u64, bytes: &[u8]| {
            let path = array.member_path(slot).join(INODES);
            std::fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
        };
        let at = |index: usize| inode_record_offset(attributes[index].inode);
        // With the checks that fit.
        let change = |slot: usize, index: usize, place: usize, bytes: &[u8]| {
            let mut record: [u8; INODE_RECORD_BYTES] =
                image(&array, INODES)[slot][at(index) as usize..][..INODE_RECORD_BYTES].try_into().unwrap();
            record[place..place + bytes.len()].copy_from_slice(bytes);
            spoil(slot, at(index), &format::with_checks(attributes[index].inode, record));
        };
        let last = member_count - 1;
        // Torn on the lowest, torn on another, an older size, free on a member that a creation did
        // not reach.
        spoil(0, at(3) + 9, &[0xff; 8]);
        spoil(last, at(1700) + 20, &[0xff; 2]);
        change(last, 5, 0, &77u64.to_le_bytes());
        spoil(last, at(6), &[0; INODE_RECORD_BYTES]);
        // The lowest member's medium has lost a page of the table.
        spoil(0, at(128), &[0; 64 * INODE_RECORD_BYTES]);
        for slot in 0..member_count {
            change(slot, 8, format::STATE_OFFSET, &[InodeState::Orphan.code()]);
        }
        // The last one is free on the lowest: it was being freed, and the log of names frees it
        // when it is replayed.
        change(0, 1999, format::STATE_OFFSET, &[InodeState::Free.code()]);
        // The lowest member's medium has lost the last store of a size.
        (1..member_count).for_each(|slot| change(slot, 30, 0, &4096u64.to_le_bytes()));
        // Of the change of this one the state has arrived and its check has not: it was not freed
        // yet.
        spoil(0, at(1998) + format::STATE_OFFSET as u64, &[InodeState::Free.code()]);
        // Bits flipped in a size and in flags of the lowest member's.
        spoil(0, at(20) + 4, &[1]);
        spoil(0, at(21) + format::FLAGS_OFFSET as u64, &[2]);
        crash(&array);
        let files = array.again();
        files.free_orphans().unwrap();
        let tables = image(&array, INODES);
        assert!(tables.iter().all(|table| table[4096..] == tables[0][4096..]), "RAID {level}");
        for (index, &attribute) in attributes.iter().enumerate() {
            let size = if index == 30 { 4096 } else { 0 };
            let expected = if index == 8 { None } else { Some((size, attribute.generation)) };
            let found = record(&array, last, attribute).map(|record| (record.size, record.generation));
            assert_eq!(found, expected, "RAID {level}, record {index}");
        }
    }
}

/// A process dies in the middle of a write, others use up its lane, and then the machine crashes:
/// nothing but the inode table can tell.
#[test]
fn what_a_dead_processs_lane_named_outlives_the_lane() {
    for (level, member_count, chunk) in SHAPES.into_iter().filter(|shape| shape.0 != Level::Raid0) {
        let scene = Scene::new(level, member_count, chunk, 200_000, 11);
        let before = image(&scene.array, DATA);
        write(&scene.open(scene.array.files), 5_000, &[9; 100_000]);
        restore(&scene.array, DATA, &some_lines(&mut Random(3), &before, &image(&scene.array, DATA)));
        let lanes = scene.array.files.array().runtime().lanes();
        // Owned by nobody who lives, as all others.
        lanes.iter().for_each(|lane| lane.store(77 << 32 | 1, std::sync::atomic::Ordering::Relaxed));
        let other = scene.array.create("other");
        let other = scene.array.open("other", other);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                for _ in 0..format::LANE_COUNT / 4 {
                    scope.spawn(|| write(&other, 0, b"something else")).join().unwrap();
                }
            }
        });
        crash(&scene.array);
        let file = scene.open(scene.array.again());
        let mut new = scene.old.clone();
        new[5_000..105_000].fill(9);
        assert_old_or_new(&read(&file, 0, 300_000), &scene.old, &new);
        all_agree(&scene.array, &file, scene.attribute);
    }
}

#[test]
fn with_a_member_out_a_file_that_waits_for_resync_is_marked_doubtful() {
    for (level, member_count, chunk) in SHAPES {
        if matches!(level, Level::Raid0) {
            continue;
        }
        let scene = Scene::new(level, member_count, chunk, 100_000, 9);
        write(&scene.open(scene.array.files), 1000, &[7; 9000]);
        let gone = scene.array.member_path(0).join(".cxlraid");
        std::fs::rename(&gone, scene.array.member_path(0).join("gone")).unwrap();
        crash(&scene.array);
        let file = scene.open(scene.array.again());
        assert_eq!(read(&file, 1000, 9000), [7; 9000]);
        let flags = record(&scene.array, 1, scene.attribute).unwrap().flags;
        assert_eq!(flags & format::FLAG_DOUBTFUL != 0, level.parity_count() > 0, "RAID {level}");
    }
}

/// The write hole takes bytes of the last stripe too, which lie behind the end of the file: they
/// are zeros when it grows.
#[test]
fn with_a_member_lost_in_the_crash_there_are_zeros_behind_the_end() {
    for (level, member_count, chunk) in SHAPES.into_iter().filter(|shape| shape.0.parity_count() > 0) {
        for (gone, changing) in (0..member_count).flat_map(|gone| [(gone, false), (gone, true)]) {
            let stripe = chunk as usize * (member_count - level.parity_count());
            let scene = Scene::new(level, member_count, chunk, 2 * stripe + 12, gone as u64);
            let before = image(&scene.array, DATA);
            write(&scene.open(scene.array.files), 2 * stripe as u64, &[7; 8]);
            // Its data are there, parity is not, or the other way round.
            let mut cut = image(&scene.array, DATA);
            cut[gone].clone_from(&before[gone]);
            let other = (gone + 1) % member_count;
            cut[other].clone_from(&before[other]);
            restore(&scene.array, DATA, &cut);
            let metadata = scene.array.member_path(gone).join(".cxlraid");
            std::fs::rename(&metadata, metadata.with_file_name("gone")).unwrap();
            crash(&scene.array);
            let files = scene.array.again();
            if changing {
                // On record before the file is opened.
                let _ = files.create_inode(b"/data/file").unwrap();
            }
            let file = scene.open(files);
            assert_eq!(read(&file, 0, 2 * stripe), scene.old[..2 * stripe], "RAID {level}, member {gone}");
            file.truncate(5 * stripe as u64).unwrap();
            let behind = read(&file, scene.old.len() as u64, 5 * stripe);
            assert!(behind.iter().all(|&byte| byte == 0), "RAID {level}, member {gone}: bytes behind the end");
            assert_eq!(file.verify(), Ok(0), "RAID {level}, member {gone}");
        }
    }
}

/// Parity of bytes behind the end is that of bytes before it too: an append cut short is seen to
/// also while a member is away.
#[test]
fn with_a_member_away_parity_behind_the_end_fits_what_is_before_it() {
    for seed in 1..=8 {
        let scene = Scene::new(Level::Raid6, 5, 4096, 12_000, seed);
        let before = image(&scene.array, DATA);
        let open = core::mem::ManuallyDrop::new(scene.open(scene.array.files));
        write(&open, scene.old.len() as u64, &[7; 5000]);
        let after = image(&scene.array, DATA);
        let mut padded = before;
        padded.iter_mut().zip(&after).for_each(|(before, after)| before.resize(after.len(), 0));
        restore(&scene.array, DATA, &some_lines(&mut Random(seed), &padded, &after));
        for slot in 0..5 {
            let path = scene.array.member_path(slot).join(INODES);
            let table = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            table.write_all_at(&(scene.old.len() as u64).to_le_bytes(), inode_record_offset(scene.attribute.inode)).unwrap();
        }
        let gone = scene.array.member_path(seed as usize % 5).join(".cxlraid");
        std::fs::rename(&gone, gone.with_file_name("gone")).unwrap();
        crash(&scene.array);
        let file = scene.open(scene.array.again());
        assert_eq!((file.size(), file.verify()), (scene.old.len() as u64, Ok(0)), "seed {seed}");
    }
}

/// Behind a page cache a crash may leave any bytes disagreeing that were not synchronised, and
/// lanes that say nothing of it.
#[test]
fn behind_a_page_cache_every_file_is_made_to_agree() {
    let directory = tempfile::Builder::new().prefix("cxlraid-test-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let array = TestArray::in_directory(directory, Level::Raid5, 3, 4096);
    if array.files.domains().iter().any(|&domain| domain != dax::PersistenceDomain::PageCache) {
        println!("no page cache here; set CARGO_TARGET_DIR to a disk");
        return;
    }
    let attribute = array.create("f");
    write(&array.open("f", attribute), 0, &Random(5).bytes(200_000));
    write(&array.open("f", attribute), 0, b"the lane names these bytes only");
    let path = array.member_path(1).join(DATA);
    std::fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(&[0; 4096], 40_960).unwrap();
    crash(&array);
    let file = array.open_in(array.again(), "f", attribute);
    all_agree(&array, &file, attribute);
}

/// A cut that one member's file system had not committed when the machine crashed, and that no lane
/// names any more.
#[test]
fn behind_a_page_cache_what_was_cut_off_does_not_come_back() {
    let directory = tempfile::Builder::new().prefix("cxlraid-test-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let array = TestArray::in_directory(directory, Level::Raid5, 3, 4096);
    if array.files.domains().iter().any(|&domain| domain != dax::PersistenceDomain::PageCache) {
        println!("no page cache here; set CARGO_TARGET_DIR to a disk");
        return;
    }
    let (attribute, other) = (array.create("f"), array.create("g"));
    for kept in [0, 50_000] {
        let file = array.open("f", attribute);
        let bytes = Random(5).bytes(200_000);
        write(&file, 0, &bytes);
        let before = array.raw(1, "f");
        file.truncate(kept).unwrap();
        drop(file);
        write(&array.open("g", other), 0, b"the lane names these bytes now");
        std::fs::write(array.member_path(1).join(DATA), before).unwrap();
        crash(&array);
        let file = array.open_in(array.again(), "f", attribute);
        file.truncate(200_000).unwrap();
        assert!(read(&file, 0, kept as usize) == bytes[..kept as usize]);
        assert!(read(&file, kept, 200_000).iter().all(|&byte| byte == 0), "behind {kept}");
        assert_eq!(file.verify(), Ok(0));
    }
}

/// A member goes out after a write has seen to those that are out: it is on record before the write
/// returns, or a crash brings it back as if it had everything.
#[test]
fn a_member_that_goes_out_in_the_middle_of_a_write_does_not_come_back() {
    for (level, member_count, chunk) in SHAPES.into_iter().filter(|shape| shape.0 != Level::Raid0) {
        for grows in [false, true] {
            let scene = Scene::new(level, member_count, chunk, 100_000, 3);
            let file = core::mem::ManuallyDrop::new(scene.open(scene.array.files));
            let runtime = scene.array.files.array().runtime();
            let shared = runtime.find_file(scene.attribute.inode << 24 | scene.attribute.generation).unwrap();
            for lock in &shared.stripes {
                let _ = lock.write_begin(runtime.me(), runtime);
            }
            let offset = if grows { scene.old.len() as u64 } else { 0 };
            std::thread::scope(|scope| {
                let writing = scope.spawn(|| write(&file, offset, &[7; 5000]));
                // It has passed its first look by then, and waits for the locks.
                std::thread::sleep(std::time::Duration::from_millis(100));
                let _ = runtime.add_out(units::MemberSet::EMPTY.with(0));
                shared.stripes.iter().for_each(sync::StripeLock::write_end);
                writing.join().unwrap();
            });
            crash(&scene.array);
            let file = scene.open(scene.array.again());
            let found = read(&file, offset, 5000);
            assert!(found == [7; 5000], "RAID {level}, grows: {grows}: a write that returned is gone");
        }
    }
}

/// The same for one whose inode table is what fails: the size is not on it.
#[test]
fn a_member_that_fails_to_take_a_size_does_not_come_back() {
    for (level, member_count, chunk) in SHAPES.into_iter().filter(|shape| shape.0 != Level::Raid0) {
        let scene = Scene::new(level, member_count, chunk, 100_000, 3);
        let file = core::mem::ManuallyDrop::new(scene.open(scene.array.files));
        let path = scene.array.member_path(0).join(INODES);
        let table = std::fs::read(&path).unwrap();
        let backing = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        backing.set_len(0).unwrap();
        file.truncate(200_000).unwrap();
        backing.write_all_at(&table, 0).unwrap();
        crash(&scene.array);
        let file = scene.open(scene.array.again());
        assert_eq!(file.size(), 200_000, "RAID {level}");
    }
}

/// What a member has lost of a file that was open in the crash is computed from the others, its
/// last stripe too.
#[test]
fn what_a_member_lost_is_computed_before_the_end_is_seen_to() {
    for (level, member_count, chunk) in SHAPES.into_iter().filter(|shape| shape.0 != Level::Raid0) {
        for (slot, bytes) in (0..member_count).flat_map(|slot| [(slot, 100), (slot, 9_000), (slot, 100_000)]) {
            let scene = Scene::new(level, member_count, chunk, 0, 3);
            // Never closed, so that nothing is trimmed.
            let open = core::mem::ManuallyDrop::new(scene.open(scene.array.files));
            let data = Random(5).bytes(bytes);
            write(&open, 0, &data);
            let path = scene.array.member_path(slot).join(DATA);
            std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(0).unwrap();
            crash(&scene.array);
            let files = scene.array.again();
            assert!(files.note_lost(scene.attribute, slot));
            let file = scene.open(files);
            assert!(read(&file, 0, bytes) == data, "RAID {level}, member {slot}, {bytes} bytes");
            all_agree(&scene.array, &file, scene.attribute);
            for gone in 0..member_count {
                let _ = files.array().runtime().add_out(units::MemberSet::EMPTY.with(gone));
                assert!(read(&file, 0, bytes) == data, "RAID {level}, member {slot}, {bytes} bytes, {gone} gone");
                files.array().runtime().set_out(units::MemberSet::EMPTY, units::MemberSet::EMPTY);
            }
        }
    }
}

/// The note that a member has lost its bytes outlives a crash in which another change of the notes
/// reached all members, and its check none.
#[test]
fn what_is_noted_as_lost_outlives_notes_that_are_torn_on_all_members() {
    for (level, member_count, chunk) in SHAPES.into_iter().filter(|shape| shape.0 != Level::Raid0) {
        for slot in 0..member_count {
            let scene = Scene::new(level, member_count, chunk, 9_000, 3);
            let data = read(&scene.open(scene.array.files), 0, 9_000);
            let zeros = vec![0; scene.array.raw(slot, "f").len()];
            std::fs::write(scene.array.member_path(slot).join(DATA), zeros).unwrap();
            assert!(scene.array.files.note_lost(scene.attribute, slot));
            let at = inode_record_offset(scene.attribute.inode) + format::FLAGS_OFFSET as u64;
            for slot in 0..member_count {
                let path = scene.array.member_path(slot).join(INODES);
                let table = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
                let mut flags = [0; 4];
                table.read_exact_at(&mut flags, at).unwrap();
                table.write_all_at(&(u32::from_le_bytes(flags) ^ format::FLAG_SLACK).to_le_bytes(), at).unwrap();
            }
            // A start on persistent memory leaves the record to who opens the file first, as one
            // does here.
            let file = scene.open(scene.array.files);
            assert!(read(&file, 0, 9_000) == data, "RAID {level}, member {slot}");
            all_agree(&scene.array, &file, scene.attribute);
        }
    }
}

/// What a member lost, with another one away without which it cannot be computed: the file is
/// refused, to who may only read it as well, and is whole when that member is back.
#[test]
fn what_cannot_be_computed_now_is_refused_and_not_forgotten() {
    for (level, member_count, chunk) in
        [(Level::Raid1, 2, 65536), (Level::Raid4, 3, 4096), (Level::Raid5, 4, 64), (Level::Raid10, 4, 4096)]
    {
        let scene = Scene::new(level, member_count, chunk, 100_001, 3);
        std::fs::OpenOptions::new().write(true).open(scene.array.member_path(0).join(DATA)).unwrap().set_len(0).unwrap();
        crash(&scene.array);
        assert!(scene.array.again().note_lost(scene.attribute, 0));
        crash(&scene.array);
        // It has the other copy, or is one of those whose sum is needed.
        let metadata = scene.array.member_path(1).join(".cxlraid");
        let gone = metadata.with_file_name("gone");
        std::fs::rename(&metadata, &gone).unwrap();
        let files = scene.array.again();
        for writable in [true, false] {
            let fds = || -> Result<_, sys::OsError> { Ok((scene.array.backing(files, "f"), dax::Access::ReadWrite)) };
            assert_eq!(files.open(scene.attribute, writable, fds).err(), Some(sys::OsError::IO), "RAID {level}");
        }
        crash(&scene.array);
        std::fs::rename(&gone, &metadata).unwrap();
        let file = scene.open(scene.array.again());
        assert!(read(&file, 0, 200_000) == scene.old, "RAID {level}");
        all_agree(&scene.array, &file, scene.attribute);
    }
}

/// A file that was open in the crash has lost the length of a backing file as well.
#[test]
fn a_backing_file_of_an_open_file_that_lost_its_end_agrees() {
    for (level, member_count, chunk) in SHAPES {
        for slot in 0..member_count {
            let scene = Scene::new(level, member_count, chunk, 0, 3);
            let open = core::mem::ManuallyDrop::new(scene.open(scene.array.files));
            let data = Random(5).bytes(200_000);
            write(&open, 0, &data);
            let path = scene.array.member_path(slot).join(DATA);
            std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(1000).unwrap();
            let other = scene.array.create("other");
            write(&scene.array.open("other", other), 0, b"the lane names these bytes now");
            crash(&scene.array);
            let file = scene.open(scene.array.again());
            assert_eq!(file.size(), 200_000);
            assert_old_or_new(&read(&file, 0, 200_000), &data, &vec![0; 200_000]);
            assert_eq!(file.verify(), Ok(0), "RAID {level}, member {slot}");
        }
    }
}

/// Another member fails while what the first lost is computed, and the level bears both.
#[test]
fn what_a_member_lost_is_computed_though_another_fails_meanwhile() {
    const BYTES: usize = 24 << 20;
    for gone in 0..4 {
        // On a busy machine it may fail too late.
        let failed_in_time = (0..1000).any(|_| {
            let scene = Scene::new(Level::Raid6, 5, 4096, BYTES, 3);
            let lost = std::fs::OpenOptions::new().write(true).open(scene.array.member_path(4).join(DATA)).unwrap();
            lost.set_len(0).unwrap();
            crash(&scene.array);
            let files = scene.array.again();
            assert!(files.note_lost(scene.attribute, 4));
            let file = std::thread::scope(|scope| {
                scope.spawn(|| {
                    while lost.metadata().unwrap().len() == 0 {}
                    fail_memory(&scene.array.member_path(gone).join(DATA));
                });
                scene.open(files)
            });
            let out = files.array().runtime().out();
            assert!(read(&file, 0, BYTES) == scene.old, "member {gone} failed");
            out == units::MemberSet::EMPTY.with(gone)
        });
        assert!(failed_in_time, "member {gone} never failed while the file was opened");
    }
}

/// As soon as this file is mapped, nothing can be loaded from it any more.
fn fail_memory(path: &std::path::Path) {
    use sys::rustix::mm::{MprotectFlags, mprotect};
    loop {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        if let Some(line) = maps.lines().find(|line| line.ends_with(path.to_str().unwrap())) {
            let (start, rest) = line.split_once('-').unwrap();
            let end = rest.split_once(' ').unwrap().0;
            let [start, end] = [start, end].map(|address| usize::from_str_radix(address, 16).unwrap());
            // SAFETY: a mapping of the library's, which asks for a guard before it loads from it.
            return unsafe { mprotect(start as *mut _, end - start, MprotectFlags::empty()) }.unwrap();
        }
    }
}
