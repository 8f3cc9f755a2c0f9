//! Writes in the middle of which a member fails or is full: what is left fits, so that nothing is
//! computed wrong when another member is lost.

mod common;

use common::{Mounted, Random, TestArray, fill, read, scratch, write};
use layout::{Geometry, Level};
use std::fs::File;
use sys::OsError;
use sys::rustix::fs::{FallocateFlags, fallocate};
use units::ChunkBytes;

const CHUNK_BYTES: u64 = 4096;

fn backing_of(array: &TestArray, slot: usize) -> File {
    File::options().write(true).open(array.member_path(slot).join("data/f")).unwrap()
}

fn geometry(level: Level, members: usize) -> Geometry {
    Geometry::new(level, members, ChunkBytes::new(CHUNK_BYTES).unwrap()).unwrap()
}

/// The member with P, with Q or with data fails while a write stores to it. Whichever it is, what is
/// written fits on the members that are left. At RAID 6 it outlives the loss of one more member, that
/// to which the data were written.
#[test]
fn a_write_in_which_a_member_fails_outlives_the_loss_of_another() {
    for (level, members) in [(Level::Raid6, 7), (Level::Raid6, 5), (Level::Raid5, 6)] {
        let geometry = geometry(level, members);
        let parities = (0..level.parity_count()).map(|which| geometry.parity_slot(0, which));
        for failing in parities.chain([geometry.data_slot(0, 0, 0), geometry.data_slot(0, 1, 0)]) {
            for (offset, count) in [(1000, 10), (0, 4096), (100, 300), (500, 5000)] {
                let what = format!("RAID {level} of {members}, member {failing} fails, {count} bytes at {offset}");
                let array = TestArray::new(level, members, CHUNK_BYTES);
                let attribute = array.create("f");
                let file = array.open("f", attribute);
                let mut random = Random(7);
                let mut data = random.bytes(3 * geometry.stripe_bytes() as usize);
                write(&file, 0, &data);
                backing_of(&array, failing).set_len(0).unwrap();
                let new = random.bytes(count);
                write(&file, offset as u64, &new);
                data[offset..offset + count].copy_from_slice(&new);
                assert_eq!(file.verify(), Ok(0), "{what}");
                assert!(read(&file, 0, data.len()) == data, "{what}");
                if level == Level::Raid6 {
                    let other = (0..members).find(|&slot| slot != failing && slot == geometry.data_slot(0, 0, 0));
                    backing_of(&array, other.unwrap_or_else(|| geometry.data_slot(0, 2, 0))).set_len(0).unwrap();
                    drop(file);
                    assert!(read(&array.open("f", attribute), 0, data.len()) == data, "{what}, and another is lost");
                }
            }
        }
    }
}

/// Somebody cuts one backing file of a small file, and the program goes on appending to the file.
/// What it writes by calls is there without that member, too.
#[test]
fn what_is_appended_to_a_small_file_of_which_a_member_is_cut_is_there() {
    for (level, members) in [(Level::Raid1, 2), (Level::Raid5, 3), (Level::Raid6, 4), (Level::Raid10, 4), (Level::Raid01, 4)] {
        for (cut, first) in (0..members).flat_map(|cut| [100, 2000].map(|first| (cut, first))) {
            let what = format!("RAID {level}, {first} bytes, then member {cut} is cut");
            let array = TestArray::new(level, members, CHUNK_BYTES);
            let attribute = array.create("f");
            let file = array.open("f", attribute);
            let data = Random(5).bytes(3 * first);
            write(&file, 0, &data[..first]);
            backing_of(&array, cut).set_len(0).unwrap();
            write(&file, first as u64, &data[first..2 * first]);
            write(&file, 2 * first as u64, &data[2 * first..]);
            assert!(read(&file, 0, data.len() + 1) == data, "{what}");
            assert_eq!(file.verify(), Ok(0), "{what}");
            drop(file);
            let file = array.open("f", attribute);
            assert!(read(&file, 0, data.len() + 1) == data, "{what}, opened again");
            assert_eq!(file.verify(), Ok(0), "{what}, opened again");
        }
    }
}

/// Somebody has made holes in a backing file by hand, and the member is full when a write comes to
/// the holes. The write fails, and nothing is computed from what it has stored before.
#[test]
fn a_write_for_which_a_member_has_no_space_leaves_nothing_that_does_not_fit() {
    let place = scratch();
    let test = "a_write_for_which_a_member_has_no_space_leaves_nothing_that_does_not_fit";
    let Some(_mounted) = Mounted::at(place.path(), "size=32m", test) else { return };
    for (level, members) in [(Level::Raid5, 3), (Level::Raid6, 5)] {
        let geometry = geometry(level, members);
        let array = TestArray::in_directory(tempfile::tempdir_in(place.path()).unwrap(), level, members, CHUNK_BYTES);
        let attribute = array.create("f");
        let file = array.open("f", attribute);
        let data = vec![0; 4 * geometry.stripe_bytes() as usize];
        write(&file, 0, &data);
        for slot in (0..level.parity_count()).map(|which| geometry.parity_slot(0, which)) {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(backing_of(&array, slot), hole, 0, CHUNK_BYTES).unwrap();
        }
        let filler = place.path().join("filler");
        fill(&filler, 0);
        // SAFETY: the bytes are there.
        let written = unsafe { file.write_at(100, b"XYZXYZXY".as_ptr(), 8) };
        assert_eq!(written, Err(OsError::NOSPC), "RAID {level}");
        std::fs::remove_file(filler).unwrap();
        // The failed write has left the stripe to the next one that locks it, which makes it fit.
        write(&file, 200, b"after");
        assert_eq!(file.verify(), Ok(0), "RAID {level}");
        let whole = read(&file, 0, data.len());
        drop(file);
        let lost = geometry.data_slot(0, 1, 0);
        backing_of(&array, lost).set_len(0).unwrap();
        assert!(read(&array.open("f", attribute), 0, data.len()) == whole, "RAID {level}");
        assert!(whole[4096..].iter().all(|&byte| byte == 0), "RAID {level}: nobody has written there");
    }
}
