//! Stores that reach the members past the file, as those through a mapping do: redundancy follows
//! them, also after the process that stored has died.

mod common;

use array::mapped::MAPPED_COUNT;
use common::{Random, TestArray, read, write};
use cxlraid_file::{FileRef, Mapped};
use layout::Level;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use sync::OwnerId;
use sys::rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

const SHAPES: [(Level, usize, u64); 6] = [
    (Level::Raid1, 3, 65536),
    (Level::Raid4, 3, 4096),
    (Level::Raid5, 4, 65536),
    (Level::Raid6, 5, 4096),
    (Level::Raid10, 4, 4096),
    (Level::Raid01, 4, 65536),
];

/// Stores a byte where a mapping of the page would.
fn store(array: &TestArray, file: &FileRef, offset: u64, byte: u8) {
    let page = offset / 4096 * 4096;
    let mut done = false;
    file.for_each_piece(file.is_copied(), page, 4096, |piece| {
        let path = array.member_path(piece.slot).join("data/f");
        let member = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        member.write_at(&[byte], piece.member_offset + offset - page).unwrap();
        done = true;
        Ok::<(), ()>(())
    })
    .unwrap();
    assert!(done);
}

#[test]
fn redundancy_follows_what_was_stored() {
    for (level, member_count, chunk) in SHAPES {
        let array = TestArray::new(level, member_count, chunk);
        let file = array.open("f", array.create("f"));
        let mut random = Random(u64::from(level.code()) + 5);
        let mut model = random.bytes(500_000);
        write(&file, 0, &model);
        let mapped = Mapped::new(&file).unwrap();
        mapped.cover(0, 503_808).unwrap();
        for round in 0..50u64 {
            let mut pages = Vec::new();
            for _ in 0..40 {
                let (at, byte) = (random.below(500_000), random.next() as u8);
                store(&array, &file, at, byte);
                model[at as usize] = byte;
                pages.push(at / 4096 * 4096);
                // A write beside it, before it is followed.
                let (start, data) = (random.below(490_000), random.bytes(1 + (round as usize * 977) % 9000));
                write(&file, start, &data);
                model[start as usize..][..data.len()].copy_from_slice(&data);
            }
            assert_eq!(read(&file, 0, 600_000), model, "{level} round {round}: a reader sees stores at once");
            mapped.follow(pages.into_iter().map(|page| (page, page + 4096))).unwrap();
            assert_eq!(file.verify(), Ok(0), "{level} round {round}");
        }
        drop(mapped);
        assert_eq!(read(&file, 0, 600_000), model, "{level}");
    }
}

/// A file of these bytes that is mapped; a byte behind its end was stored through the mapping and
/// followed.
fn with_a_byte_behind_the_end(array: &TestArray, data: &[u8]) -> (FileRef, Mapped) {
    let file = array.open("f", array.create("f"));
    write(&file, 0, data);
    let mapped = Mapped::new(&file).unwrap();
    mapped.cover(0, 1 << 20).unwrap();
    let end = data.len() as u64;
    store(array, &file, end + 4, 0xee);
    mapped.follow([(end / 4096 * 4096, end.next_multiple_of(4096))]).unwrap();
    (file, mapped)
}

#[test]
fn what_is_stored_behind_the_end_never_shows() {
    for (level, member_count, chunk) in SHAPES {
        let array = TestArray::new(level, member_count, chunk);
        let (file, mapped) = with_a_byte_behind_the_end(&array, &Random(3).bytes(100_001));
        file.truncate(300_000).unwrap();
        assert!(read(&file, 100_001, 200_000).iter().all(|&byte| byte == 0), "{level}");
        assert_eq!(file.verify(), Ok(0), "{level}");
        store(&array, &file, 300_010, 0xdd);
        mapped.follow([(299_008, 303_104)]).unwrap();
        drop(mapped);
        file.truncate(400_000).unwrap();
        assert!(read(&file, 100_001, 400_000).iter().all(|&byte| byte == 0), "{level}");
        assert_eq!(file.verify(), Ok(0), "{level}");
    }
}

/// A byte behind the end lies in a stripe of which a cut leaves the first part. When the file
/// grows, the byte would show.
#[test]
fn what_is_stored_behind_the_end_does_not_come_back_when_the_file_is_cut_and_grows() {
    for (level, member_count, chunk) in SHAPES {
        for cut in [99_000, 90_000, 70_000, 50_000, 100] {
            let array = TestArray::new(level, member_count, chunk);
            let data = Random(3).bytes(100_001);
            let (file, _mapped) = with_a_byte_behind_the_end(&array, &data);
            file.truncate(cut).unwrap();
            file.truncate(300_000).unwrap();
            assert!(read(&file, cut, 200_000).iter().all(|&byte| byte == 0), "{level}: cut at {cut}");
            assert!(read(&file, 0, cut as usize) == data[..cut as usize], "{level}: cut at {cut}");
            assert_eq!(file.verify(), Ok(0), "{level}: cut at {cut}");
        }
    }
}

/// A writer stores to the shared copy first. One that dies then has shown its bytes to readers.
#[test]
fn what_a_dead_writer_stored_to_the_copy_alone_is_stored_to_the_members() {
    for (level, member_count, chunk) in SHAPES {
        let array = TestArray::new(level, member_count, chunk);
        let attribute = array.create("f");
        let file = array.open("f", attribute);
        write(&file, 0, &Random(3).bytes(30_000));
        file.truncate(2_000_000).unwrap();
        let mapped = Mapped::new(&file).unwrap();
        mapped.cover(0, 2_002_944).unwrap();
        file.share_copy().unwrap();
        let copy = std::fs::OpenOptions::new().write(true).open(&copies(&array)[0]).unwrap();
        copy.write_all_at(&[0xa5; 9000], 1000).unwrap();
        copy.write_all_at(&[0x5a; 900], 50_000).unwrap();
        copy.write_all_at(&[0x77; 900], 1_900_000).unwrap();
        let shown = read(&file, 0, 2_000_000);
        let shared = array.files.array().runtime().find_file(attribute.inode << 24 | attribute.generation).unwrap();
        shared.stripes_unfinished.store(u64::MAX, Ordering::Relaxed);
        write(&file, 20_000, &shown[20_000..20_001]);
        write(&file, 55_000, &shown[55_000..55_001]);
        write(&file, 0, &shown[..1]);
        write(&file, 1_900_100, &shown[1_900_100..1_900_101]);
        drop(mapped);
        assert_eq!(copies(&array).len(), 0);
        assert!(read(&file, 0, 2_000_000) == shown, "{level}");
        assert_eq!(file.verify(), Ok(0), "{level}");
    }
}

/// A write whose buffer ends in memory that cannot be read changes nothing, also where it would
/// store to the shared copy first.
#[test]
fn a_bad_pointer_leaves_the_copy_as_it_was() {
    for (level, member_count, chunk) in SHAPES {
        let array = TestArray::new(level, member_count, chunk);
        let file = array.open("f", array.create("f"));
        let data = Random(3).bytes(30_000);
        write(&file, 0, &data);
        let mapped = Mapped::new(&file).unwrap();
        mapped.cover(0, 32_768).unwrap();
        file.share_copy().unwrap();
        // SAFETY: a new mapping at an address of the kernel's choice, of which nobody else knows.
        let pages = unsafe { mmap_anonymous(std::ptr::null_mut(), 8192, ProtFlags::READ, MapFlags::PRIVATE) }.unwrap();
        // SAFETY: the second page of it, which nobody uses.
        unsafe { mprotect(pages.byte_add(4096), 4096, MprotectFlags::empty()) }.unwrap();
        // SAFETY: a buffer of the program's may be invalid.
        let written = unsafe { file.write_at(1000, pages.cast(), 8192) };
        assert_eq!(written, Err(sys::OsError::FAULT), "{level}");
        assert!(read(&file, 0, 40_000) == data, "{level}: in the copy");
        drop(mapped);
        assert!(read(&file, 0, 40_000) == data, "{level}");
        assert_eq!(file.verify(), Ok(0), "{level}");
        // SAFETY: nothing refers to it.
        unsafe { munmap(pages, 8192) }.unwrap();
    }
}

#[test]
fn a_record_outlives_its_process() {
    for (level, member_count, chunk) in SHAPES {
        let array = TestArray::new(level, member_count, chunk);
        let attribute = array.create("f");
        let file = array.open("f", attribute);
        write(&file, 0, &Random(9).bytes(400_000));
        let runtime = array.files.array().runtime();
        let key = attribute.inode << 24 | attribute.generation;
        let shared = runtime.find_file(key).unwrap();
        // A process that was never there took a record, stored, and died.
        let record = runtime.mapped().take(OwnerId::new(5).unwrap(), key).unwrap();
        record.widen(4096, 400_000);
        shared.mapped.store(1, Ordering::Release);
        store(&array, &file, 5000, 1);
        store(&array, &file, 399_000, 2);
        let again = array.again();
        let other = array.open_in(again, "f", attribute);
        assert_eq!(shared.mapped.load(Ordering::Relaxed), 0, "{level}");
        assert_eq!(other.verify(), Ok(0), "{level}");
        assert_eq!((read(&other, 5000, 1)[0], read(&other, 399_000, 1)[0]), (1, 2));
    }
}

#[test]
fn records_and_lanes_are_given_back() {
    let array = TestArray::new(Level::Raid5, 3, 4096);
    let file = array.open("f", array.create("f"));
    write(&file, 0, &[1; 10_000]);
    for round in 0..MAPPED_COUNT as u64 + 10 {
        let mapped = Mapped::new(&file).unwrap();
        mapped.cover(0, 4096 * (round % 3 + 1)).unwrap();
        mapped.cover(0, 4096 * 9).unwrap();
    }
    let runtime = array.files.array().runtime();
    assert!(runtime.lanes().iter().all(|lane| lane.load(Ordering::Relaxed) >> 31 & 1 == 0));
    let held: Vec<Mapped> = (0..MAPPED_COUNT).map(|_| Mapped::new(&file).unwrap()).collect();
    assert_eq!(Mapped::new(&file).err(), Some(sys::OsError::NOMEM));
    drop(held);
    assert!(Mapped::new(&file).is_ok());
}

/// Between the end of the last mapping and the removal of the shared copy (where a process may die)
/// others write, and another mapping begins: it must not bring back what the copy held.
#[test]
fn a_copy_without_mappings_is_kept_up_to_date_until_it_is_gone() {
    let array = TestArray::new(Level::Raid5, 3, 64);
    let attribute = array.create("f");
    let file = array.open("f", attribute);
    write(&file, 0, &[1; 20_000]);
    let runtime = array.files.array().runtime();
    let key = attribute.inode << 24 | attribute.generation;
    let shared = runtime.find_file(key).unwrap();
    let leave_a_copy = || {
        let record = runtime.mapped().take(runtime.me(), key).unwrap();
        shared.mapped.store(1, Ordering::Release);
        file.share_copy().unwrap();
        record.free();
        shared.mapped.store(0, Ordering::Release);
    };
    leave_a_copy();
    write(&file, 7000, &[2; 3000]);
    write(&file, 19_000, &[3; 3000]);
    let mapped = Mapped::new(&file).unwrap();
    file.share_copy().unwrap();
    mapped.cover(0, 24_576).unwrap();
    let expected = [vec![1; 7000], vec![2; 3000], vec![1; 9000], vec![3; 3000]].concat();
    assert!(read(&file, 0, 30_000) == expected, "a reader while it is mapped again");
    mapped.follow([(0, 24_576)]).unwrap();
    drop(mapped);
    assert!(!file.is_copied());
    assert!(read(&file, 0, 30_000) == expected, "what the copy was followed to");
    assert_eq!(file.verify(), Ok(0));
    leave_a_copy();
    // Whoever opens the file next removes it.
    drop(array.open_in(array.again(), "f", attribute));
    assert!(!file.is_copied());
    assert!(read(&file, 0, 30_000) == expected);
}

/// Where lock blocks are not whole pages (small chunks), the last page may go over the end of one,
/// behind the end of the file.
#[test]
fn a_last_page_that_two_lock_blocks_share_is_followed() {
    let array = TestArray::new(Level::Raid5, 4, 64);
    let file = array.open("f", array.create("f"));
    let block = file.geometry().lock_block_bytes();
    assert!(!block.is_multiple_of(4096));
    let size = block - 7;
    let data = Random(11).bytes(size as usize);
    write(&file, 0, &data);
    let mapped = Mapped::new(&file).unwrap();
    file.share_copy().unwrap();
    mapped.cover(0, size.next_multiple_of(4096)).unwrap();
    mapped.follow([(size / 4096 * 4096, size.next_multiple_of(4096))]).unwrap();
    drop(mapped);
    assert!(read(&file, 0, 1 << 20) == data);
    assert_eq!(file.verify(), Ok(0));
}

/// A process dies with a mapping of a file without a name; the place of that file is another's
/// then.
#[test]
fn what_a_nameless_file_left_is_not_the_next_ones() {
    let array = TestArray::new(Level::Raid5, 3, 64);
    let runtime = array.files.array().runtime();
    let attribute = array.create("f");
    let key = attribute.inode << 24 | attribute.generation;
    let file = array.open("f", attribute);
    write(&file, 0, &[1; 20_000]);
    let record = runtime.mapped().take(OwnerId::new(5).unwrap(), key).unwrap();
    record.widen(0, 20_000);
    let shared = runtime.find_file(key).unwrap();
    shared.mapped.store(1, Ordering::Release);
    file.share_copy().unwrap();
    assert_eq!(copies(&array).len(), 1);
    array.files.unlinked(attribute, cxlraid_file::Name::None, || true);
    drop(file);
    assert_eq!(copies(&array).len(), 0, "the last close of a nameless file removes its copy");
    assert_eq!(runtime.mapped().of(key).count(), 0);
}

/// As many holes as before are there when what a dead process stored has been followed.
#[test]
fn holes_stay_holes_behind_a_dead_process() {
    for (level, member_count, chunk) in SHAPES {
        let array = TestArray::new(level, member_count, chunk);
        let attribute = array.create("f");
        let file = array.open("f", attribute);
        file.truncate(48 << 20).unwrap();
        let runtime = array.files.array().runtime();
        let key = attribute.inode << 24 | attribute.generation;
        let record = runtime.mapped().take(OwnerId::new(5).unwrap(), key).unwrap();
        record.widen(0, 48 << 20);
        runtime.find_file(key).unwrap().mapped.store(1, Ordering::Release);
        store(&array, &file, 40 << 20, 9);
        drop(array.open_in(array.again(), "f", attribute));
        assert_eq!(runtime.mapped().of(key).count(), 0, "{level}");
        assert!(file.blocks() < 4_000, "{level}: {} blocks", file.blocks());
        assert_eq!(read(&file, 40 << 20, 2), [9, 0], "{level}");
        assert_eq!(file.verify(), Ok(0), "{level}");
    }
}

/// What a process that has not heard of a cut yet stores behind the new end does not show when the
/// file grows.
#[test]
fn what_was_stored_behind_a_cut_never_shows() {
    for (level, member_count, chunk) in SHAPES.into_iter().chain([(Level::Raid0, 3, 65536)]) {
        let array = TestArray::new(level, member_count, chunk);
        let attribute = array.create("f");
        let file = array.open("f", attribute);
        write(&file, 0, &Random(3).bytes(1 << 20));
        let mapped = Mapped::new(&file).unwrap();
        mapped.cover(0, 1 << 20).unwrap();
        file.truncate(100_000).unwrap();
        let stripe = file.geometry().stripe_bytes();
        let behind = if file.geometry().level().has_chunks() { 100_000u64.next_multiple_of(stripe) - 5 } else { 100_005 };
        store(&array, &file, behind, 0xee);
        mapped.follow_cut(behind / 4096 * 4096, behind / 4096 * 4096 + 4096).unwrap();
        assert_eq!(file.verify(), Ok(0), "{level}");
        file.truncate(1 << 20).unwrap();
        assert!(read(&file, 100_000, 1 << 20).iter().all(|&byte| byte == 0), "{level}");
        // One that died in between.
        let runtime = array.files.array().runtime();
        let key = attribute.inode << 24 | attribute.generation;
        file.truncate(100_000).unwrap();
        store(&array, &file, behind, 0xdd);
        // Whoever cuts a file makes good what the dead have left, so it died after that.
        let record = runtime.mapped().take(OwnerId::new(5).unwrap(), key).unwrap();
        record.widen(0, 1 << 20);
        drop(array.open_in(array.again(), "f", attribute));
        file.truncate(1 << 20).unwrap();
        assert!(read(&file, 100_000, 1 << 20).iter().all(|&byte| byte == 0), "{level}");
        drop(mapped);
        assert_eq!(file.verify(), Ok(0), "{level}");
    }
}

/// What was stored behind a cut may be followed before its process hears of the cut: the tracking
/// of pages names the page once, so nobody comes back to it.
#[test]
fn what_was_stored_behind_a_cut_and_followed_never_shows() {
    for (level, member_count, chunk) in SHAPES.into_iter().chain([(Level::Raid0, 3, 65536), (Level::Raid5, 5, 65536)]) {
        let array = TestArray::new(level, member_count, chunk);
        let file = array.open("f", array.create("f"));
        write(&file, 0, &Random(3).bytes(1 << 20));
        let mapped = Mapped::new(&file).unwrap();
        mapped.cover(0, 1 << 20).unwrap();
        let stripe = file.geometry().stripe_bytes();
        let behind = if file.geometry().level().has_chunks() { 100_000u64.next_multiple_of(stripe) - 5 } else { 100_005 };
        let page = behind / 4096 * 4096;
        // Parity takes in what was stored by the difference that the cut makes: what was not
        // followed stays in it.
        store(&array, &file, behind, 0xcc);
        file.truncate(100_000).unwrap();
        mapped.follow([(page, page + 4096)]).unwrap();
        assert_eq!(file.verify(), Ok(0), "{level}: stored before the cut");
        store(&array, &file, behind, 0xee);
        mapped.follow([(page, page + 4096)]).unwrap();
        assert_eq!(file.verify(), Ok(0), "{level}: stored behind the cut");
        file.truncate(1 << 20).unwrap();
        assert!(read(&file, 100_000, 1 << 20).iter().all(|&byte| byte == 0), "{level}");
        assert_eq!(file.verify(), Ok(0), "{level}: grown again");
    }
}

/// A process dies while it gives back what another left: the lane it had named is a third one's by
/// then.
#[test]
fn a_lane_is_given_back_once() {
    let array = TestArray::new(Level::Raid5, 3, 4096);
    let attribute = array.create("f");
    let file = array.open("f", attribute);
    write(&file, 0, &[1; 10_000]);
    let runtime = array.files.array().runtime();
    let taken = || runtime.lanes().iter().filter(|lane| lane.load(Ordering::Relaxed) >> 31 & 1 == 1).count();
    let mapped = Mapped::new(&file).unwrap();
    mapped.cover(0, 8192).unwrap();
    assert_eq!(taken(), 1);
    // Its record names the lane of `mapped` too.
    let key = attribute.inode << 24 | attribute.generation;
    let record = runtime.mapped().take(OwnerId::new(5).unwrap(), key).unwrap();
    record.widen(0, 8192);
    record.set_lane(runtime.lanes().iter().position(|lane| lane.load(Ordering::Relaxed) >> 31 & 1 == 1));
    drop(array.open_in(array.again(), "f", attribute));
    assert_eq!((taken(), runtime.mapped().of(key).count()), (1, 1));
    drop(mapped);
    assert_eq!(taken(), 0);
}

/// Makes a file of 20,000 bytes of which a process that is dead has a mapping and the shared copy,
/// and which nobody has open. Returns its attribute, and its key in the runtime segment.
fn mapped_by_dead(array: &TestArray) -> (format::Attribute, u64) {
    let runtime = array.files.array().runtime();
    let attribute = array.create("f");
    let key = attribute.inode << 24 | attribute.generation;
    let file = array.open("f", attribute);
    write(&file, 0, &[1; 20_000]);
    let shared = runtime.find_file(key).unwrap();
    let record = runtime.mapped().take(OwnerId::new(5).unwrap(), key).unwrap();
    record.widen(0, 20_000);
    shared.mapped.store(1, Ordering::Release);
    file.share_copy().unwrap();
    std::mem::forget(file);
    shared.users.store(0, Ordering::Release);
    (attribute, key)
}

/// All who had a file without a name open are dead, one of them with a mapping; the place of that
/// file becomes another's.
#[test]
fn the_place_of_a_file_that_was_mapped_is_clean_for_the_next() {
    let array = TestArray::new(Level::Raid5, 3, 64);
    let runtime = array.files.array().runtime();
    let key = mapped_by_dead(&array).1;
    let shared = runtime.find_file(key).unwrap();
    shared.unlinked.store(cxlraid_file::Name::Lost as u32, Ordering::Release);
    // As `Runtime::enter_file` hashes.
    let place = |key: u64| (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % array::runtime::OPEN_FILE_COUNT;
    let next = loop {
        let attribute = array.files.create_inode(b"/data/file").unwrap();
        if place(attribute.inode << 24 | attribute.generation) == place(key) {
            break attribute;
        }
    };
    for slot in 0..3 {
        let path = array.member_path(slot).join("data/g");
        let fd = std::fs::File::create(path).unwrap();
        sys::rustix::fs::fsetxattr(&fd, format::ATTRIBUTE_NAME, &next.encode(), sys::rustix::fs::XattrFlags::empty()).unwrap();
    }
    let file = array.open("g", next);
    assert!(!file.is_copied());
    write(&file, 0, b"something");
    assert_eq!(read(&file, 0, 100), b"something");
    assert_eq!(runtime.mapped().of(key).count(), 0);
}

/// A process with a mapping is dead, and nobody has the file open. The file is removed, or was
/// before this could be noticed.
#[test]
fn what_a_dead_process_left_of_a_file_goes_with_the_file() {
    for notices in [true, false] {
        let array = TestArray::new(Level::Raid5, 3, 64);
        let runtime = array.files.array().runtime();
        let (attribute, key) = mapped_by_dead(&array);
        assert_eq!(copies(&array).len(), 1);
        assert_eq!(runtime.known_here_alone(), 1);
        // What is left of a file that is still there waits for somebody to open it.
        assert_eq!((array.files.unfinished_changes(), runtime.known_here_alone()), (0, 1));
        if notices {
            array.files.unlinked(attribute, cxlraid_file::Name::None, || true);
        } else {
            array.files.discard_inode(attribute);
            assert_eq!(runtime.known_here_alone(), 1);
            assert_eq!(array.files.unfinished_changes(), 0);
        }
        assert_eq!((runtime.known_here_alone(), runtime.mapped().of(key).count()), (0, 0), "notices: {notices}");
        assert_eq!(copies(&array).len(), 0, "notices: {notices}");
    }
}

/// A shared copy shows what the file holds, holes and all, also what was on a member that is out.
#[test]
fn a_shared_copy_of_a_file_with_holes_is_whole() {
    for (level, member_count, chunk) in
        SHAPES.into_iter().chain([(Level::Raid4, 3, 64), (Level::Raid5, 4, 512), (Level::Raid1, 2, 65536)])
    {
        for out in 0..member_count {
            let array = TestArray::new(level, member_count, chunk);
            let file = array.open("f", array.create("f"));
            let mut random = Random(u64::from(level.code()) * 100 + chunk + out as u64);
            let mut model = vec![0; 700_000];
            file.truncate(700_000).unwrap();
            for _ in 0..9 {
                let (at, data) = (random.below(650_000), random.next() % 12_000 + 1);
                let data = random.bytes(data as usize);
                write(&file, at, &data);
                model[at as usize..][..data.len()].copy_from_slice(&data);
            }
            array.files.array().fail_member(out).unwrap();
            let mapped = Mapped::new(&file).unwrap();
            file.share_copy().unwrap();
            mapped.cover(0, 700_416).unwrap();
            assert!(read(&file, 0, 700_000) == model, "{level} chunk {chunk} without {out}");
            drop(mapped);
            assert!(read(&file, 0, 700_000) == model, "{level} chunk {chunk} without {out}: afterwards");
        }
    }
}

/// A process leaves the members for a shared copy, and cannot follow all that it has stored. The
/// copy has it: the copy is made from where stores land.
#[test]
fn a_shared_copy_holds_what_was_stored_and_not_followed() {
    const REGION_BYTES: u64 = 1 << 20;
    for (level, member_count) in [(Level::Raid1, 2), (Level::Raid1, 3), (Level::Raid10, 4), (Level::Raid01, 4)] {
        let array = TestArray::new(level, member_count, 65536);
        let file = array.open("f", array.create("f"));
        let mut model = Random(4).bytes(4 * REGION_BYTES as usize);
        write(&file, 0, &model);
        let mapped = Mapped::new(&file).unwrap();
        mapped.cover(0, 4 * REGION_BYTES).unwrap();
        // Readers change to another copy with each region.
        for at in (5_000..4 * REGION_BYTES).step_by(65536) {
            store(&array, &file, at, !model[at as usize]);
            model[at as usize] ^= 0xff;
        }
        file.share_copy().unwrap();
        assert!(read(&file, 0, model.len()) == model, "{level}: in the copy");
        mapped.follow([(0, 4 * REGION_BYTES)]).unwrap();
        drop(mapped);
        assert!(!file.is_copied());
        assert!(read(&file, 0, model.len()) == model, "{level}: on the members");
        assert_eq!(file.verify(), Ok(0), "{level}");
    }
}

/// The names of the shared copies of an array.
fn copies(array: &TestArray) -> Vec<std::path::PathBuf> {
    let own = format!("cxlraid-{}-map", array.files.array().uuid());
    let entries = std::fs::read_dir("/dev/shm").unwrap().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&own)).map(|entry| entry.path()).collect()
}

#[test]
fn nobody_can_make_a_copys_name_first() {
    let array = TestArray::new(Level::Raid5, 3, 64);
    let attribute = array.create("f");
    let file = array.open("f", attribute);
    write(&file, 0, &[1; 20_000]);
    let segment = array::runtime::segment_path(array.files.array().uuid());
    // What it was called once.
    let foretold = format!("{segment}-map-{}-{:x}", attribute.inode, attribute.generation);
    std::fs::write(&foretold, "somebody else's").unwrap();
    let mut names = vec![std::path::PathBuf::from(&foretold)];
    for _ in 0..3 {
        let mapped = Mapped::new(&file).unwrap();
        file.share_copy().unwrap();
        let found: Vec<_> = copies(&array).into_iter().filter(|path| path.as_path() != std::path::Path::new(&foretold)).collect();
        assert!(found.len() == 1 && !names.contains(&found[0]), "{found:?}");
        names.extend(found);
        drop(mapped);
    }
    assert_eq!(std::fs::read(&foretold).unwrap(), b"somebody else's");
    std::fs::remove_file(foretold).unwrap();
    assert_eq!(copies(&array), Vec::<std::path::PathBuf>::new());
}

#[test]
fn what_only_has_a_copys_name_is_not_the_copy() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let array = TestArray::new(Level::Raid5, 3, 64);
    let attribute = array.create("f");
    let file = array.open("f", attribute);
    write(&file, 0, &[1; 20_000]);
    let mapped = Mapped::new(&file).unwrap();
    file.share_copy().unwrap();
    let path = copies(&array).remove(0);
    let other = array.member_path(0).join("other");
    std::fs::write(&other, [2; 20_000]).unwrap();
    std::fs::set_permissions(&other, PermissionsExt::from_mode(0o640)).unwrap();
    for kind in ["file", "link", "symlink", "pipe", "nothing"] {
        let _ = std::fs::remove_file(&path);
        match kind {
            "file" => std::fs::copy(&other, &path).map(drop),
            "link" => std::fs::hard_link(&other, &path),
            "symlink" => symlink(&other, &path),
            "pipe" => sys::rustix::fs::mknodat(
                sys::rustix::fs::CWD,
                &path,
                sys::rustix::fs::FileType::Fifo,
                sys::rustix::fs::Mode::from_raw_mode(0o666),
                0,
            )
            .map_err(Into::into),
            _ => Ok(()),
        }
        .unwrap();
        file.change_copy_access();
        let seen = array.open_in(array.again(), "f", attribute);
        let mut buffer = [0u8; 100];
        // SAFETY: the buffer is ours.
        let result = unsafe { seen.read_at(0, buffer.as_mut_ptr(), buffer.len()) };
        assert_eq!((result, buffer), (Err(sys::OsError::IO), [0; 100]), "{kind}");
        // SAFETY: as above.
        let result = unsafe { seen.write_at(0, [3; 100].as_ptr(), 100) };
        assert_eq!(result, Err(sys::OsError::IO), "{kind}");
        assert_eq!(std::fs::metadata(&other).unwrap().permissions().mode() & 0o7777, 0o640, "{kind}");
    }
    assert_eq!(std::fs::read(&other).unwrap(), [2; 20_000]);
    // The process that made it has it still.
    assert_eq!(read(&file, 0, 20_000), [1; 20_000]);
    drop(mapped);
}
