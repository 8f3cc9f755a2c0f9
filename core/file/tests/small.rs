//! Files that get their first bytes by one small write: what they take, what is mapped of them, and
//! that they are as redundant as others.

mod common;

use common::{Mounted, Random, TestArray, fill, read, scratch, write};
use cxlraid_file::FileRef;
use dax::PersistenceDomain;
use layout::Level;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use sys::rustix::fs::{Mode, OFlags, open};
use sys::{AsFd as _, OsError};
use units::PAGE_BYTES;

const SHAPES: [(Level, usize, u64); 9] = [
    (Level::Raid0, 3, 4096),
    (Level::Raid1, 3, 65536),
    (Level::Raid4, 3, 4096),
    (Level::Raid5, 3, 64),
    (Level::Raid5, 8, 4096),
    (Level::Raid5, 3, 65536),
    (Level::Raid6, 5, 4096),
    (Level::Raid10, 4, 4096),
    (Level::Raid01, 4, 65536),
];
/// The longest file that is written without being mapped, if it lies in one chunk.
const CALLED_BYTES_MAX: usize = 65_536;

fn lengths(array: &TestArray, members: usize) -> Vec<u64> {
    (0..members).map(|slot| array.member_path(slot).join("data/f").metadata().unwrap().len()).collect()
}

/// Returns how many bytes of space each member's file takes.
fn spaces(array: &TestArray, members: usize) -> Vec<u64> {
    (0..members).map(|slot| array.member_path(slot).join("data/f").metadata().unwrap().blocks() * 512).collect()
}

/// Returns how many mappings this process has of backing files of `f`.
fn mapped(array: &TestArray) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let root = array.member_path(0).parent().unwrap().to_str().unwrap().to_owned();
    maps.lines().filter(|line| line.contains(&root) && line.ends_with("/data/f")).count()
}

/// Tells whether a member lies in memory that loses its content when the machine stops, as a tmpfs
/// does.
fn is_volatile(member: &Path) -> bool {
    dax::detect(open(member, OFlags::RDONLY, Mode::empty()).unwrap().as_fd()) == PersistenceDomain::Volatile
}

/// Fails unless the file is right, also with any one member away if its level bears that.
fn assert_whole(array: &TestArray, attribute: format::Attribute, data: &[u8], what: &str) {
    let file = array.open("f", attribute);
    assert!(read(&file, 0, data.len() + 1) == data, "{what}");
    assert_eq!(file.verify(), Ok(0), "{what}");
    drop(file);
    let level = array.config.level;
    for slot in 0..if level == Level::Raid0 { 0 } else { array.config.mounts.len() } {
        let away = array.member_path(slot).with_extension("away");
        std::fs::rename(array.member_path(slot), &away).unwrap();
        array.lose_segment();
        let files = array.again();
        assert!(read(&array.open_in(files, "f", attribute), 0, data.len() + 1) == data, "{what}: without member {slot}");
        std::fs::rename(&away, array.member_path(slot)).unwrap();
    }
}

#[test]
fn the_first_bytes_of_a_small_file_take_what_they_need_and_are_redundant() {
    for shape in SHAPES {
        for bytes in [1, 63, 64, 3000, 4096, 4097, 10_000, 70_000] {
            let what = format!("RAID {}, {} members, chunk {}, {bytes} bytes", shape.0, shape.1, shape.2);
            let array = TestArray::new(shape.0, shape.1, shape.2);
            let attribute = array.create("f");
            let data = Random(bytes as u64).bytes(bytes);
            let file = array.open("f", attribute);
            write(&file, 0, &data);
            let kept = file.geometry().member_bytes(bytes as u64);
            if is_volatile(&array.member_path(0)) {
                let is_in_one_chunk = shape.0 == Level::Raid1 || bytes as u64 <= shape.2;
                assert_eq!(mapped(&array) == 0, bytes <= CALLED_BYTES_MAX && is_in_one_chunk, "{what}");
                assert_eq!(lengths(&array, shape.1), vec![kept; shape.1], "{what}");
            }
            assert_eq!(file.verify(), Ok(0), "{what}");
            drop(file);
            assert_eq!(lengths(&array, shape.1), vec![kept; shape.1], "{what}");
            if is_volatile(&array.member_path(0)) {
                let most = kept.next_multiple_of(PAGE_BYTES as u64);
                assert!(spaces(&array, shape.1).into_iter().all(|space| space <= most), "{what}");
            }
            assert_whole(&array, attribute, &data, &what);
        }
    }
}

#[test]
fn a_small_file_takes_what_it_needs_twice_and_then_more() {
    for shape in SHAPES {
        let array = TestArray::new(shape.0, shape.1, shape.2);
        if !is_volatile(&array.member_path(0)) {
            continue;
        }
        let file = array.open("f", array.create("f"));
        let needed = |bytes: u64| vec![file.geometry().member_bytes(bytes); shape.1];
        let what = format!("RAID {}, {} members, chunk {}", shape.0, shape.1, shape.2);
        for round in 1..=3 {
            // A whole row of chunks, so that each write needs more space on every member.
            let bytes = file.geometry().stripe_bytes().next_multiple_of(20_000);
            write(&file, (round - 1) * bytes, &vec![7; bytes as usize]);
            let (found, exact) = (lengths(&array, shape.1), needed(round * bytes));
            match round {
                1 | 2 => assert_eq!(found, exact, "{what}"),
                _ => assert!(found.iter().zip(&exact).all(|(found, exact)| found > exact), "{what}: {found:?} {exact:?}"),
            }
        }
        assert_eq!(file.verify(), Ok(0), "{what}");
    }
}

#[test]
fn a_small_file_that_grows_by_many_writes_is_no_longer_than_its_bytes_when_it_is_closed() {
    for shape in SHAPES {
        let mut random = Random(shape.2 + shape.1 as u64);
        let array = TestArray::new(shape.0, shape.1, shape.2);
        let attribute = array.create("f");
        let file = array.open("f", attribute);
        let mut data = Vec::new();
        while data.len() < 90_000 {
            let length = 1 + random.below(9000) as usize;
            let piece = random.bytes(length);
            write(&file, data.len() as u64, &piece);
            data.extend(piece);
        }
        let what = format!("RAID {}, {} members, chunk {}", shape.0, shape.1, shape.2);
        let kept = file.geometry().member_bytes(data.len() as u64);
        drop(file);
        assert_eq!(lengths(&array, shape.1), vec![kept; shape.1], "{what}");
        assert_whole(&array, attribute, &data, &what);
    }
}

#[test]
fn a_bad_pointer_leaves_a_new_file_empty_and_the_next_write_is_right() {
    for shape in SHAPES {
        let what = format!("RAID {}, {} members, chunk {}", shape.0, shape.1, shape.2);
        let array = TestArray::new(shape.0, shape.1, shape.2);
        let attribute = array.create("f");
        let file: FileRef = array.open("f", attribute);
        // SAFETY: no process has anything at the page of address 0; a write may be given a bad
        // pointer.
        let refused = unsafe { file.write_at(0, std::ptr::without_provenance(8), 5000) };
        assert_eq!((refused, file.size()), (Err(OsError::FAULT), 0), "{what}");
        let data = Random(9).bytes(3000);
        write(&file, 0, &data);
        assert_eq!(file.verify(), Ok(0), "{what}");
        drop(file);
        assert_whole(&array, attribute, &data, &what);
    }
}

/// Somebody cuts the backing file of a member that was written by calls: the bytes come from the
/// other members, and zeros do not pass for them.
#[test]
fn what_is_cut_of_a_file_that_was_never_mapped_comes_from_the_others() {
    for shape in SHAPES.into_iter().filter(|shape| shape.0 != Level::Raid0) {
        for slot in 0..shape.1 {
            let what = format!("RAID {}, {} members, chunk {}, member {slot} cut", shape.0, shape.1, shape.2);
            let array = TestArray::new(shape.0, shape.1, shape.2);
            let attribute = array.create("f");
            let data = Random(5).bytes(4000);
            let file = array.open("f", attribute);
            write(&file, 0, &data);
            let backing = std::fs::OpenOptions::new().write(true).open(array.member_path(slot).join("data/f")).unwrap();
            backing.set_len(0).unwrap();
            assert!(read(&file, 0, data.len() + 1) == data, "{what}");
            drop(file);
            let files = array.again();
            assert!(read(&array.open_in(files, "f", attribute), 0, data.len() + 1) == data, "{what}");
        }
    }
}

/// A call that stores has to be as good as a store also where the file is not written by calls.
#[test]
fn small_files_are_redundant_with_a_journal_and_with_a_member_out() {
    let shapes = || SHAPES.into_iter().filter(|shape| shape.0 != Level::Raid0);
    for (shape, on_members) in shapes().flat_map(|shape| [(shape, true), (shape, false)]) {
        let what = format!("RAID {}, {} members, chunk {}, journal {on_members}", shape.0, shape.1, shape.2);
        let array = TestArray::journaled(shape.0, shape.1, shape.2, on_members);
        let attribute = array.create("f");
        let data = Random(3).bytes(3000);
        write(&array.open("f", attribute), 0, &data);
        assert_whole(&array, attribute, &data, &what);
    }
    for (shape, slot) in shapes().flat_map(|shape| (0..shape.1).map(move |slot| (shape, slot))) {
        let what = format!("RAID {}, {} members, chunk {}, member {slot} out", shape.0, shape.1, shape.2);
        let array = TestArray::new(shape.0, shape.1, shape.2);
        let attribute = array.create("f");
        array.files.array().fail_member(slot).unwrap();
        let data = Random(4).bytes(3000);
        let file = array.open("f", attribute);
        write(&file, 0, &data);
        assert!(read(&file, 0, data.len() + 1) == data, "{what}");
        assert_eq!(file.verify(), Ok(0), "{what}");
        drop(file);
        array.lose_segment();
        assert!(read(&array.open_in(array.again(), "f", attribute), 0, data.len() + 1) == data, "{what}");
    }
}

/// The first page of a file takes a huge page there, of which all but that page is given back.
#[test]
fn a_small_file_keeps_no_huge_page_when_it_is_closed() {
    let place = scratch();
    let test = "a_small_file_keeps_no_huge_page_when_it_is_closed";
    let Some(_mounted) = Mounted::at(place.path(), "size=96m,huge=always", test) else { return };
    let array = TestArray::in_directory(tempfile::tempdir_in(place.path()).unwrap(), Level::Raid5, 3, 65536);
    let attribute = array.create("f");
    let data = Random(6).bytes(3000);
    write(&array.open("f", attribute), 0, &data);
    assert!(spaces(&array, 3).into_iter().all(|space| space <= PAGE_BYTES as u64), "{:?}", spaces(&array, 3));
    assert_whole(&array, attribute, &data, "huge pages");
}

/// Space for a few pages only is left on the members, not enough for the write: the file gets what
/// there is space for or nothing, on all members alike, and what did not fit is not shown when the
/// file grows.
#[test]
fn a_small_file_for_which_there_is_no_space_is_written_as_far_as_there_is() {
    let place = scratch();
    let test = "a_small_file_for_which_there_is_no_space_is_written_as_far_as_there_is";
    let Some(_mounted) = Mounted::at(place.path(), "size=64m", test) else { return };
    let shapes = [
        (Level::Raid0, 3),
        (Level::Raid1, 3),
        (Level::Raid4, 3),
        (Level::Raid5, 3),
        (Level::Raid6, 4),
        (Level::Raid10, 4),
        (Level::Raid01, 4),
    ];
    for (level, members) in shapes {
        let array = TestArray::in_directory(tempfile::tempdir_in(place.path()).unwrap(), level, members, 65536);
        for (first, free) in [0, 100, 5000].into_iter().flat_map(|first| (0..24).map(move |free| (first, free))) {
            let what = format!("RAID {level}, {first} bytes before, {free} pages free");
            let attribute = array.create("f");
            let file = array.open("f", attribute);
            let data = Random((first + free) as u64).bytes(first + 40_000);
            if first != 0 {
                write(&file, 0, &data[..first]);
            }
            let filler = place.path().join("filler");
            fill(&filler, free);
            // SAFETY: the bytes are there.
            let written = unsafe { file.write_at(first as u64, data[first..].as_ptr(), 40_000) };
            std::fs::remove_file(filler).unwrap();
            let reached = match written {
                Ok(bytes) => first + bytes,
                Err(error) => {
                    assert_eq!(error, OsError::NOSPC, "{what}");
                    first
                }
            };
            assert!(reached < first + 40_000 && file.size() == reached as u64, "{what}: {reached}");
            assert!(read(&file, 0, 50_000) == data[..reached], "{what}");
            assert_eq!(file.verify(), Ok(0), "{what}");
            file.truncate(60_000).unwrap();
            let mut shown = data[..reached].to_vec();
            shown.resize(60_000, 0);
            assert!(read(&file, 0, 70_000) == shown, "{what}");
            assert_eq!(file.verify(), Ok(0), "{what}");
            drop(file);
            for slot in 0..members {
                std::fs::remove_file(array.member_path(slot).join("data/f")).unwrap();
            }
        }
    }
}
