//! These tests show that what members have lost is computed from the others, that the others stay as
//! they are, and that holes stay holes.

mod common;

use common::{Mounted, Random, TestArray, fill, read, scratch, write};
use cxlraid_file::{FileRef, Files, Mapped};
use format::Attribute;
use layout::Level;
use std::fs::{File, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, UNIX_EPOCH};

const PAGE_BYTES: u64 = 4096;
const SHAPES: [(Level, usize, u64); 10] = [
    (Level::Raid1, 2, 65536),
    (Level::Raid1, 3, 4096),
    (Level::Raid4, 3, 4096),
    (Level::Raid5, 3, 65536),
    (Level::Raid5, 4, 64),
    (Level::Raid5, 3, 1 << 20),
    (Level::Raid6, 5, 4096),
    (Level::Raid6, 4, 1 << 20),
    (Level::Raid10, 4, 8192),
    (Level::Raid01, 4, 65536),
];

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

/// Returns what a member has of the file: its bytes, blocks, and time.
fn held(array: &TestArray, slot: usize) -> (Vec<u8>, u64, i64) {
    let stat = stat(array, slot);
    (array.raw(slot, "f"), stat.blocks(), stat.mtime())
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

/// A file of pages that are `apart` bytes apart, and what it holds.
fn sparse(array: &TestArray, count: u64, apart: u64) -> (Attribute, Vec<u8>) {
    let attribute = array.create("f");
    let file = array.open("f", attribute);
    let mut data = vec![0; (count * apart + 1234) as usize];
    file.truncate(data.len() as u64).unwrap();
    for at in (0..count).map(|index| index * apart) {
        data[at as usize..(at + PAGE_BYTES) as usize].fill(7 + at as u8);
        write(&file, at, &data[at as usize..(at + PAGE_BYTES) as usize]);
    }
    (attribute, data)
}

fn assert_holds(file: &FileRef, data: &[u8], what: &str) {
    assert!(read(file, 0, data.len() + 1) == data, "{what}");
    assert_eq!(file.verify(), Ok(0), "{what}");
}

#[test]
fn a_member_made_anew_takes_what_the_others_take_and_these_stay_as_they_are() {
    for (level, members, chunk) in SHAPES {
        for slot in [0, members - 1] {
            let journaled: fn(Level, usize, u64) -> TestArray =
                |level, members, chunk| TestArray::journaled(level, members, chunk, true);
            for make in [TestArray::new, TestArray::summed, journaled] {
                let array = make(level, members, chunk);
                let (attribute, data) = sparse(&array, 3, 1 << 20);
                make_old(&array);
                array.lose_segment();
                let before: Vec<_> = (0..members).map(|slot| held(&array, slot)).collect();
                let files = array.again();
                lose(&array, files, attribute, slot, None);
                let what = format!("{level} of {members}, chunk {chunk}, member {slot}");
                assert_holds(&array.open_in(files, "f", attribute), &data, &what);
                for (other, before) in before.iter().enumerate() {
                    let after = held(&array, other);
                    assert!(before.0 == after.0, "{what}: bytes of {other}");
                    assert_eq!(before.2, after.2, "{what}: time of {other}");
                    if other == slot {
                        let most = before.1.max(8 * 16);
                        assert!(after.1 <= most + 2, "{what}: takes {} blocks and not {most}", after.1);
                    } else {
                        assert_eq!(before.1, after.1, "{what}: blocks of {other}");
                    }
                }
            }
        }
    }
}

/// Data, holes and ends anywhere; as many members lost as the level bears, or one of them out; what was
/// lost may be other bytes of the same length; some of the file may be noted as bytes that perhaps do
/// not agree.
#[test]
fn whatever_is_lost_of_a_file_with_holes_comes_back() {
    for seed in 1..=60 {
        let mut random = Random(seed);
        let (level, members, chunk) = SHAPES[random.below(SHAPES.len() as u64) as usize];
        let array = match random.below(3) {
            0 => TestArray::summed(level, members, chunk),
            1 => TestArray::journaled(level, members, chunk, true),
            _ => TestArray::new(level, members, chunk),
        };
        let attribute = array.create("f");
        let file = array.open("f", attribute);
        let mut data = vec![0; 1 + random.below(6 << 20) as usize];
        file.truncate(data.len() as u64).unwrap();
        for _ in 0..random.below(12) {
            let start = random.below(data.len() as u64);
            let bytes = 1 + random.below((data.len() as u64 - start).min(700_000)) as usize;
            let range = start as usize..(start as usize + bytes).min(data.len());
            if random.below(4) == 0 {
                file.punch(start, range.len() as u64, false).unwrap();
                data[range].fill(0);
            } else {
                let bytes = random.bytes(range.len());
                data[range.clone()].copy_from_slice(&bytes);
                write(&file, start, &data[range]);
            }
        }
        let is_owed = random.below(2) == 0;
        if is_owed {
            // The copies are to be compared here as well, once all of the file is there.
            let start = random.below(data.len() as u64);
            Mapped::new(&file).unwrap().owe(start, start + 1 + random.below(data.len() as u64 - start));
        }
        drop(file);
        make_old(&array);
        array.lose_segment();
        let files = array.again();
        let first = random.below(members as u64) as usize;
        let second = (first + 1) % members;
        let what = format!("seed {seed}: {level} of {members}, chunk {chunk}, {} bytes, {first}, owed {is_owed}", data.len());
        let is_out = level == Level::Raid6 && random.below(2) == 0;
        let is_garbage = random.below(2) == 0;
        if is_out {
            files.array().fail_member(second).unwrap();
        }
        lose(&array, files, attribute, first, is_garbage.then_some(&mut random));
        if level == Level::Raid6 && !is_out {
            lose(&array, files, attribute, second, None);
        }
        let before: Vec<_> = (0..members).map(|slot| held(&array, slot)).collect();
        let file = array.open_in(files, "f", attribute);
        assert_holds(&file, &data, &what);
        drop(file);
        for other in (0..members).filter(|&slot| slot != first && slot != second) {
            let (after, before) = (held(&array, other), &before[other]);
            assert!(after.0 == before.0, "{what}: bytes of {other}");
            // With a member out the rest of the last stripe is made zeros once more.
            let more = if is_out { after.1.saturating_sub(before.1) } else { 0 };
            assert!(more <= 128 + chunk / 512, "{what}: {more} blocks more on {other}");
            assert_eq!(after.1 - more, before.1, "{what}: blocks of {other}");
        }
        // A file is newer if a mapping has stored something with which its process did not come to
        // an end.
        let times: Vec<_> = (0..members).filter(|&slot| slot != second).map(|slot| stat(&array, slot).mtime()).collect();
        assert!(is_owed || times == vec![1000; times.len()], "{what}: {times:?}");
        // The member that was made anew bears the loss of any other.
        if !is_out {
            files.array().fail_member(second).unwrap();
            let file = array.open_in(files, "f", attribute);
            assert!(read(&file, 0, data.len() + 1) == data, "{what}, without {second}");
        }
    }
}

#[test]
fn members_that_are_full_are_no_hindrance() {
    for (level, members, chunk) in [(Level::Raid1, 2, 65536), (Level::Raid5, 3, 65536), (Level::Raid6, 4, 4096)] {
        let (directory, test) = (scratch(), "members_that_are_full_are_no_hindrance");
        let place = directory.path().join("small");
        std::fs::create_dir(&place).unwrap();
        let Some(_mounted) = Mounted::at(&place, "size=64M", test) else { return };
        let within = tempfile::Builder::new().tempdir_in(&place).unwrap();
        let array = TestArray::in_directory(within, level, members, chunk);
        let (attribute, data) = sparse(&array, 40, 1 << 20);
        let needed = stat(&array, 1).blocks() * 512 / PAGE_BYTES;
        array.lose_segment();
        let files = array.again();
        lose(&array, files, attribute, 1, None);
        // There is room for what the member has lost, and for hardly more.
        fill(&place.join("filler"), needed as usize + 40);
        let file = array.open_in(files, "f", attribute);
        assert_eq!(files.unbuilt(), Ok(Vec::new()), "{level}");
        assert_holds(&file, &data, &format!("{level}"));
    }
}

/// A mapping has stored a byte behind the end, in the file's last page, and parity counts it. With a
/// member out its bytes would come out of another column that was made zeros there.
#[test]
fn what_a_mapping_has_left_behind_the_end_is_computed_too() {
    for (level, members) in [(Level::Raid6, 4), (Level::Raid6, 5), (Level::Raid5, 3)] {
        for lost in (0..members).filter(|&slot| slot != 1) {
            let array = TestArray::new(level, members, 4096);
            let attribute = array.create("f");
            let file = array.open("f", attribute);
            let data = Random(3).bytes(4096 + 100);
            write(&file, 0, &data);
            let mapped = Mapped::new(&file).unwrap();
            mapped.store_directly().unwrap();
            mapped.cover(0, 8192).unwrap();
            file.for_each_piece(file.is_copied(), 4096, 4096, |piece| {
                let backing = File::options().write(true).open(path(&array, piece.slot)).unwrap();
                backing.write_all_at(&[0xee], piece.member_offset + 200)
            })
            .unwrap();
            mapped.follow([(4096, 8192)]).unwrap();
            assert_eq!(file.verify(), Ok(0));
            if level == Level::Raid6 {
                array.files.array().fail_member(1).unwrap();
                array.files.array().before_change().unwrap();
            }
            // Whom a backing file belongs to has cut it. Of the user who runs the tests that is
            // believed only after a crash: so without root this shows less.
            let _ = std::os::unix::fs::chown(path(&array, lost), Some(12345), Some(12345));
            File::options().write(true).open(path(&array, lost)).unwrap().set_len(0).unwrap();
            let other = array.open_in(array.again(), "f", attribute);
            assert!(read(&other, 0, 9000) == data, "{level}, {lost} lost");
            assert_eq!(other.verify(), Ok(0), "{level}, {lost} lost");
            drop((mapped, file));
            assert!(read(&other, 0, 9000) == data, "{level}, {lost} lost, later");
        }
    }
}

/// A writer has died without saying that the file has changed, with a member out: the file is newer.
#[test]
fn what_a_dead_process_has_written_is_newer() {
    let array = TestArray::new(Level::Raid5, 3, 4096);
    let attribute = array.create("f");
    let data = Random(3).bytes(70_001);
    write(&array.open("f", attribute), 0, &data);
    array.files.array().fail_member(0).unwrap();
    array.files.array().before_change().unwrap();
    make_old(&array);
    let file = array.open("f", attribute);
    let shared = array.files.array().runtime().find_file(attribute.inode << 24 | attribute.generation).unwrap();
    let owner = sync::OwnerId::new(5).unwrap();
    for lock in &shared.stripes {
        let _ = lock.write_begin(owner, &Nobody);
    }
    drop(file);
    assert!(read(&array.open("f", attribute), 0, 100_000) == data);
    assert!((1..3).all(|slot| stat(&array, slot).mtime() > 1000));
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
