//! SEEK_DATA and SEEK_HOLE: what was written is never called a hole, and whole stripes to which
//! nothing was written are found to be holes.

mod common;

use common::{Random, TestArray, read, write};
use cxlraid_file::{ScrubMode, Watch};
use layout::Level;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use sys::OsError;

const SHAPES: [(Level, usize, u64); 8] = [
    (Level::Raid0, 3, 64),
    (Level::Raid1, 2, 65536),
    (Level::Raid4, 3, 4096),
    (Level::Raid5, 3, 65536),
    (Level::Raid5, 4, 64),
    (Level::Raid6, 5, 4096),
    (Level::Raid10, 4, 8192),
    (Level::Raid01, 4, 65536),
];
/// Space is given to members in pieces of this size; on tmpfs a piece given twice counts as data.
const GRANULE_BYTES: u64 = 64 << 10;

/// The extents of data from the start to the end, as a program that copies sparsely finds them.
fn extents(file: &cxlraid_file::FileRef) -> Vec<Range<u64>> {
    let (mut found, mut at) = (Vec::new(), 0);
    loop {
        match file.seek_extent(at, true) {
            Ok(start) => {
                let end = file.seek_extent(start, false).unwrap();
                assert!(at <= start && start < end, "{at} {start} {end}");
                found.push(start..end);
                at = end;
            }
            Err(error) => {
                assert_eq!(error, OsError::NXIO);
                return found;
            }
        }
    }
}

fn covered(extents: &[Range<u64>], wanted: &Range<u64>) -> bool {
    extents.iter().any(|extent| extent.start <= wanted.start && wanted.end <= extent.end)
}

/// Returns the least number of bytes of a file that are whole stripes, and on each member whole
/// granules.
fn unit(file: &cxlraid_file::FileRef) -> u64 {
    let geometry = file.geometry();
    match geometry.level() {
        Level::Raid1 => GRANULE_BYTES,
        _ => geometry.stripe_bytes() * (GRANULE_BYTES / geometry.chunk().bytes()).max(1),
    }
}

#[test]
fn written_ranges_are_data_and_the_stripes_between_are_holes() {
    for (seed, (level, member_count, chunk)) in (1..).zip(SHAPES) {
        let array = TestArray::new(level, member_count, chunk);
        let attribute = array.create("f");
        let file = array.open("f", attribute);
        let (unit, mut random) = (unit(&file), Random(seed));
        let mut written = Vec::new();
        let mut at = 0;
        for _ in 0..12 {
            // At least one whole unit is left out before each range.
            let start = at + unit * (2 + random.below(5)) + random.below(unit);
            let bytes = 1 + random.below(3 * unit);
            write(&file, start, &random.bytes(bytes as usize));
            written.push(start..start + bytes);
            at = start + bytes;
        }
        file.truncate(at + 5 * unit).unwrap();
        let found = extents(&file);
        assert_eq!(found.len(), written.len(), "{level} chunk {chunk}, seed {seed}: {found:?} {written:?}");
        for (found, written) in found.iter().zip(&written) {
            assert!(covered(core::slice::from_ref(found), written), "{level}, seed {seed}: {found:?} {written:?}");
            assert!(found.start > written.start.saturating_sub(unit) && found.end < written.end + unit, "{level}, seed {seed}");
        }
        assert_eq!(file.seek_extent(at + 5 * unit, true), Err(OsError::NXIO));
        assert_eq!(file.seek_extent(at + 5 * unit - 1, false), Ok(at + 5 * unit - 1));
    }
}

#[test]
fn a_hole_punched_is_found_and_a_full_file_has_none() {
    for (level, member_count, chunk) in SHAPES {
        let array = TestArray::new(level, member_count, chunk);
        let attribute = array.create("f");
        let file = array.open("f", attribute);
        let unit = unit(&file);
        write(&file, 0, &Random(9).bytes(8 * unit as usize));
        assert_eq!(extents(&file), std::slice::from_ref(&(0..8 * unit)), "{level}");
        file.punch(2 * unit, 3 * unit, false).unwrap();
        assert_eq!(extents(&file), [0..2 * unit, 5 * unit..8 * unit], "{level}");
        assert_eq!(file.seek_extent(3 * unit + 7, false), Ok(3 * unit + 7), "{level}");
        assert_eq!(file.seek_extent(3 * unit + 7, true), Ok(5 * unit), "{level}");
        file.punch(0, 8 * unit, false).unwrap();
        assert_eq!((extents(&file), file.seek_extent(5, false)), (vec![], Ok(5)), "{level}");
    }
}

/// The blocks that each member has given to the file.
fn blocks(array: &TestArray, name: &str) -> Vec<u64> {
    let path = |slot| array.member_path(slot).join("data").join(name);
    (0..array.config.mounts.len()).map(|slot| std::fs::metadata(path(slot)).unwrap().blocks()).collect()
}

/// tmpfs gives a page to a hole that a mapping loads from, so the library must not load from holes.
#[test]
fn reading_takes_no_space_for_holes() {
    for (seed, (level, member_count, chunk)) in (1..).zip(SHAPES) {
        let array = TestArray::new(level, member_count, chunk);
        let attribute = array.create("f");
        let file = array.open("f", attribute);
        let (unit, mut random) = (unit(&file), Random(seed));
        let mut wanted = vec![0; 24 * unit as usize + 4321];
        file.truncate(wanted.len() as u64).unwrap();
        for _ in 0..4 {
            let (at, bytes) = (random.below(20 * unit), 1 + random.below(2 * unit));
            let bytes = random.bytes(bytes as usize);
            write(&file, at, &bytes);
            wanted[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
        }
        // A process that has written nothing itself, and knows of no space.
        let reader = array.open_in(array.again(), "f", attribute);
        let before = blocks(&array, "f");
        let look = |what: &str, mut parts: Random| {
            for _ in 0..200 {
                let at = parts.below(wanted.len() as u64);
                let found = read(&reader, at, 1 + parts.below(2 * chunk) as usize);
                assert_eq!(found, wanted[at as usize..at as usize + found.len()], "{level}, {what}");
            }
            assert!(read(&reader, 0, wanted.len()) == wanted, "{level}, {what}");
            assert_eq!(blocks(&array, "f"), before, "{level}, {what}");
        };
        look("read", Random(seed + 20));
        assert_eq!(reader.verify(), Ok(0));
        let mut watch = Watch { found: &mut |mismatch, _| panic!("{level}: {mismatch:?}"), goes_on: &mut |_, _| true };
        reader.scrub(ScrubMode::Check, &mut watch).unwrap();
        assert_eq!(blocks(&array, "f"), before, "{level}, compared");
        if level.parity_count() > 0 || level == Level::Raid1 {
            array.files.array().fail_member(1).unwrap();
            look("read without a member", Random(seed + 40));
        }
    }
}

#[test]
fn a_hole_that_another_process_punches_is_one_for_readers() {
    for (level, member_count, chunk) in SHAPES {
        let array = TestArray::new(level, member_count, chunk);
        let attribute = array.create("f");
        let file = array.open("f", attribute);
        let reader = array.open_in(array.again(), "f", attribute);
        let unit = unit(&file);
        write(&file, 0, &vec![7; 8 * unit as usize]);
        // The second unit is a hole from now on, and later all units but the first.
        file.punch(unit, unit, false).unwrap();
        for _ in 0..200 {
            assert_eq!(read(&reader, 2 * unit, 100), [7; 100]);
        }
        file.punch(2 * unit, 6 * unit, false).unwrap();
        let before = blocks(&array, "f");
        assert!(read(&reader, unit, 7 * unit as usize).iter().all(|&byte| byte == 0), "{level}");
        assert_eq!(blocks(&array, "f"), before, "{level}");
        file.truncate(0).unwrap();
        file.truncate(8 * unit).unwrap();
        let before = blocks(&array, "f");
        assert!(read(&reader, 0, 8 * unit as usize).iter().all(|&byte| byte == 0), "{level}");
        assert_eq!(blocks(&array, "f"), before, "{level}");
    }
}

#[test]
fn what_was_written_without_a_member_is_data() {
    for (level, member_count, chunk) in SHAPES.into_iter().filter(|shape| shape.0 != Level::Raid0) {
        for out in 0..member_count {
            let array = TestArray::new(level, member_count, chunk);
            let attribute = array.create("f");
            let file = array.open("f", attribute);
            let unit = unit(&file);
            file.truncate(40 * unit).unwrap();
            write(&file, 3 * unit, &[1]);
            array.files.array().fail_member(out).unwrap();
            let written = [10 * unit + 5..10 * unit + 6, 20 * unit..20 * unit + unit / 2, 30 * unit..31 * unit];
            for range in &written {
                write(&file, range.start, &vec![7; (range.end - range.start) as usize]);
            }
            let found = extents(&file);
            assert_eq!(found.len(), 4, "{level} without {out}: {found:?}");
            assert!(written.iter().all(|range| covered(&found, range)), "{level} without {out}: {found:?}");
        }
    }
}
