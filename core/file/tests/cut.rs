//! Files of a member that somebody has cut: the missing bytes are taken from the other members, and
//! zeros are never taken for them.

mod common;

use common::{Mounted, Random, TestArray, fill, read, scratch, write};
use cxlraid_file::{Files, Keep};
use format::Attribute;
use layout::Level;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use sys::OsError;

const LEVELS: [(Level, usize); 4] = [(Level::Raid1, 3), (Level::Raid5, 3), (Level::Raid6, 4), (Level::Raid10, 4)];

fn cut(path: &Path, bytes: u64) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

/// An array with a file of 60,000 bytes, closed.
fn with_file(level: Level, member_count: usize) -> (TestArray, Attribute, Vec<u8>) {
    let array = TestArray::new(level, member_count, 4096);
    let attribute = array.create("f");
    let data = Random(7).bytes(60_000);
    write(&array.open("f", attribute), 0, &data);
    (array, attribute, data)
}

/// The file is whole, also with each member away.
fn is_whole(array: &TestArray, attribute: Attribute, data: &[u8], what: &str) {
    let members = array.files.array().in_use();
    assert_eq!(read(&array.open("f", attribute), 0, data.len() + 1), data, "{what}");
    for slot in members.iter() {
        let away = array.member_path(slot).with_extension("away");
        std::fs::rename(array.member_path(slot), &away).unwrap();
        std::fs::create_dir(array.member_path(slot)).unwrap();
        array.lose_segment();
        let files = array.again();
        assert_eq!(read(&array.open_in(files, "f", attribute), 0, data.len() + 1), data, "{what}: without member {slot}");
        // What is read does not put the loss on record.
        std::fs::remove_dir(array.member_path(slot)).unwrap();
        std::fs::rename(&away, array.member_path(slot)).unwrap();
    }
}

#[test]
fn what_a_backing_file_was_cut_by_while_nobody_had_it_open_is_made_anew() {
    for (level, member_count) in LEVELS {
        for slot in 0..member_count {
            for bytes in [0, 4096, 10_000] {
                let (array, attribute, data) = with_file(level, member_count);
                cut(&array.member_path(slot).join("data/f"), bytes);
                let what = format!("{level:?}, member {slot} cut to {bytes}");
                assert_eq!(read(&array.open("f", attribute), 0, data.len() + 1), data, "{what}");
                assert_eq!(array.files.array().in_use().len(), member_count, "{what}");
                is_whole(&array, attribute, &data, &what);
            }
        }
    }
}

/// Opens the file as it is now, to write to it or not.
fn opened(
    array: &TestArray,
    files: &'static Files,
    attribute: Attribute,
    writes: bool,
) -> Result<cxlraid_file::FileRef, OsError> {
    let access = if writes { dax::Access::ReadWrite } else { dax::Access::ReadOnly };
    files.open(attribute, writes, || Ok((array.backing(files, "f"), access)))
}

/// A file lacks bytes on one member, where it was cut, and only a member that is away could give
/// them: the file is refused, and reads right when that member is back.
#[test]
fn with_another_member_away_what_was_cut_is_refused_until_that_one_is_back() {
    for (level, member_count, gone, slot) in
        [(Level::Raid5, 3, 1, 0), (Level::Raid5, 3, 0, 2), (Level::Raid10, 4, 1, 0), (Level::Raid4, 3, 0, 1)]
    {
        for (bytes, writes) in [(0, true), (100, true), (4096, true), (0, false), (100, false), (4096, false)] {
            let (array, attribute, data) = with_file(level, member_count);
            cut(&array.member_path(slot).join("data/f"), bytes);
            let away = array.member_path(gone).with_extension("away");
            std::fs::rename(array.member_path(gone), &away).unwrap();
            array.lose_segment();
            let files = array.again();
            assert_eq!(files.array().in_use().len(), member_count - 1);
            let what = format!("{level:?}, without member {gone}, member {slot} cut to {bytes}, to write: {writes}");
            assert_eq!(opened(&array, files, attribute, writes).map(drop), Err(OsError::IO), "{what}");
            assert_eq!(std::fs::metadata(array.member_path(slot).join("data/f")).unwrap().len(), bytes, "{what}");
            files.detach();
            std::fs::rename(&away, array.member_path(gone)).unwrap();
            array.lose_segment();
            let files = array.again();
            assert_eq!(files.array().in_use().len(), member_count, "{what}");
            assert_eq!(read(&opened(&array, files, attribute, true).unwrap(), 0, data.len() + 1), data, "{what}");
        }
    }
}

/// More than the level bears was cut, and no crash explains it.
#[test]
fn what_nobody_can_compute_is_refused_and_not_shown_as_zeros() {
    for writes in [true, false] {
        let (array, attribute, _) = with_file(Level::Raid5, 3);
        array.files.detach();
        [0, 1].iter().for_each(|&slot| cut(&array.member_path(slot).join("data/f"), 4096));
        let files = array.again();
        assert_eq!(opened(&array, files, attribute, writes).map(drop), Err(OsError::IO));
        assert_eq!(std::fs::metadata(array.member_path(0).join("data/f")).unwrap().len(), 4096);
    }
}

#[test]
fn who_may_only_read_is_never_shown_zeros_for_what_was_cut() {
    for (level, member_count) in LEVELS {
        for slot in 0..member_count {
            for bytes in [0, 100, 4096] {
                let (array, attribute, data) = with_file(level, member_count);
                array.files.detach();
                cut(&array.member_path(slot).join("data/f"), bytes);
                let files = array.again();
                let what = format!("{level:?}, member {slot} cut to {bytes}");
                let file = opened(&array, files, attribute, false).unwrap();
                assert_eq!(read(&file, 0, data.len() + 1), data, "{what}");
                // A process that may write makes it anew meanwhile.
                let writer = array.again();
                assert_eq!(read(&opened(&array, writer, attribute, true).unwrap(), 0, data.len() + 1), data, "{what}");
                assert_eq!(read(&file, 0, data.len() + 1), data, "{what}");
                drop(file);
                files.detach();
                is_whole(&array, attribute, &data, &what);
            }
        }
    }
}

#[test]
fn a_backing_file_that_was_cut_while_it_is_open_is_not_made_longer() {
    for (level, member_count) in LEVELS {
        for slot in 0..member_count {
            let (array, attribute, mut data) = with_file(level, member_count);
            let file = array.open("f", attribute);
            cut(&array.member_path(slot).join("data/f"), 0);
            // Far behind the end, so that there is no room yet.
            let more = Random(8).bytes(3_000_000);
            write(&file, data.len() as u64, &more);
            data.extend(more);
            let what = format!("{level:?}, member {slot}");
            assert_eq!(read(&file, 0, data.len() + 1), data, "{what}");
            assert!(!array.files.array().in_use().contains(slot), "{what}: it has lost what only root could cut");
        }
    }
}

/// A file that ends within its first page on each member: no load behind the cut gives a fault.
fn with_small_file(level: Level, member_count: usize) -> (TestArray, Attribute, Vec<u8>) {
    let array = TestArray::new(level, member_count, 4096);
    let attribute = array.create("f");
    let data = Random(9).bytes(3_000);
    write(&array.open("f", attribute), 0, &data);
    (array, attribute, data)
}

#[test]
fn what_was_cut_within_a_page_is_missed_by_who_keeps_the_file_ready() {
    for (level, member_count) in LEVELS {
        for slot in 0..member_count {
            let (array, attribute, data) = with_small_file(level, member_count);
            let keep = Keep { count: 4, allowed: || true };
            let files = Files::keeping_open(array::Array::attach(&array.config).unwrap(), keep).unwrap();
            let opened = array.open_in(files, "f", attribute);
            opened.let_stay(true);
            assert_eq!(read(&opened, 0, data.len() + 1), data);
            drop(opened);
            let path = array.member_path(slot).join("data/f");
            let bytes = std::fs::metadata(&path).unwrap().len();
            cut(&path, bytes / 2);
            let what = format!("{level:?}, member {slot} cut from {bytes}");
            assert_eq!(read(&array.open_in(files, "f", attribute), 0, data.len() + 1), data, "{what}");
            assert_eq!(files.array().in_use().len(), member_count, "{what}");
            assert_eq!(std::fs::metadata(&path).unwrap().len(), bytes, "{what}");
        }
    }
}

#[test]
fn what_was_cut_within_a_page_is_missed_by_who_opens_a_file_that_others_have_open() {
    for (level, member_count) in LEVELS {
        for slot in 0..member_count {
            let (array, attribute, data) = with_small_file(level, member_count);
            let held = array.open("f", attribute);
            let path = array.member_path(slot).join("data/f");
            // What it needs: space behind that was taken in advance.
            let bytes = array.files.backing_bytes(attribute).unwrap();
            cut(&path, bytes / 2);
            let files = array.again();
            let what = format!("{level:?}, member {slot} cut to {}", bytes / 2);
            assert_eq!(read(&array.open_in(files, "f", attribute), 0, data.len() + 1), data, "{what}");
            assert_eq!(read(&held, 0, data.len() + 1), data, "{what}");
        }
    }
}

#[test]
fn a_table_that_was_cut_gives_no_number_twice() {
    for (level, member_count) in LEVELS {
        for (slot, bytes) in [(0, 0), (0, 4096), (1, 0), (0, 4096 + 64)] {
            let (array, attribute, data) = with_file(level, member_count);
            cut(&array.member_path(slot).join(".cxlraid/inodes"), bytes);
            // Another process, which knows nothing of the table yet, and this one.
            for files in [array.again(), array.files] {
                for _ in 0..3 {
                    let made = files.create_inode(b"/data/file").unwrap();
                    assert_ne!(made.inode, attribute.inode, "{level:?}, member {slot}'s table cut to {bytes}");
                }
            }
            assert_eq!(read(&array.open("f", attribute), 0, data.len() + 1), data, "{level:?}, member {slot}");
        }
    }
}

/// A reader whose file is cut under it on a tmpfs that is all but full: the bytes are gone because
/// the file is shorter, and no member has failed.
#[test]
fn a_cut_under_a_reader_takes_no_member_out_where_a_tmpfs_is_nearly_full() {
    let test = "a_cut_under_a_reader_takes_no_member_out_where_a_tmpfs_is_nearly_full";
    let place = scratch();
    let Some(_mounted) = Mounted::at(place.path(), "size=400m", test) else { return };
    let directory = tempfile::tempdir_in(place.path()).unwrap();
    let array = TestArray::in_directory(directory, Level::Raid1, 2, 65536);
    let attribute = array.create("f");
    let others = array.again();
    write(&array.open("f", attribute), 0, &vec![7; 5000]);
    // Less than a huge page is left, and enough for the file.
    fill(&place.path().join("filler"), 400);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    let bytes = read(&array.open_in(others, "f", attribute), 0, 5000);
                    assert!(bytes.iter().all(|&byte| byte == 7));
                }
            });
        }
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(5) {
            let writer = array.open("f", attribute);
            writer.truncate(0).unwrap();
            write(&writer, 0, &vec![7; 5000]);
        }
        ends.store(true, Ordering::Relaxed);
    });
    assert_eq!(array.files.array().in_use().len(), 2);
    assert_eq!(others.array().in_use().len(), 2);
}
