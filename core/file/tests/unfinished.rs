//! A process that dies in the middle of a change leaves it to the next process, which makes it
//! good.

mod common;

use common::{Random, TestArray, read, write};
use layout::Level;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use sync::{Liveness, OwnerId};

const SHAPES: [(Level, usize, u64); 7] = [
    (Level::Raid0, 3, 64),
    (Level::Raid1, 2, 65536),
    (Level::Raid4, 3, 4096),
    (Level::Raid5, 4, 64),
    (Level::Raid6, 5, 4096),
    (Level::Raid10, 4, 64),
    (Level::Raid01, 4, 65536),
];

/// A source of liveness by which every owner is dead.
struct Nobody;
impl Liveness for Nobody {
    fn is_alive(&self, _: OwnerId) -> bool {
        false
    }
}

/// An owner that was never attached, so that it counts as dead.
fn dead() -> OwnerId {
    OwnerId::new(5).unwrap()
}

/// Stores the data of an append, with parity that does not fit, but not the size.
fn store_behind_the_end(array: &TestArray, file: &cxlraid_file::FileRef) {
    for slot in 0..array.config.mounts.len() {
        let backing = std::fs::OpenOptions::new().write(true).open(array.member_path(slot).join("data/f")).unwrap();
        backing.write_at(&[0xa5; 20_000], file.geometry().member_bytes(file.size())).unwrap();
    }
}

#[test]
fn what_a_dead_writer_stored_behind_the_end_is_never_seen() {
    for (level, member_count, chunk) in SHAPES {
        let array = TestArray::new(level, member_count, chunk);
        let attribute = array.create("f");
        let file = array.open("f", attribute);
        let data = Random(u64::from(level.code()) + 1).bytes(100_001);
        write(&file, 0, &data);
        store_behind_the_end(&array, &file);
        let shared = array.files.array().runtime().find_file(attribute.inode << 24 | attribute.generation).unwrap();
        let _ = shared.size_lock.lock(dead(), &Nobody);
        file.truncate(200_000).unwrap();
        assert_eq!(read(&file, 0, 300_000)[..data.len()], data, "{level}");
        assert!(read(&file, data.len() as u64, 300_000).iter().all(|&byte| byte == 0), "{level}");
        assert_eq!(file.verify(), Ok(0), "{level}");
    }
}

/// A member goes out after a truncation has looked which members are out, and before the truncation
/// gets the size lock. The truncation zeroes what lies behind the end all the same.
#[test]
fn nothing_grows_over_an_end_that_was_left_alone() {
    for (level, member_count, chunk) in SHAPES.into_iter().filter(|shape| shape.0 != Level::Raid0) {
        let array = TestArray::new(level, member_count, chunk);
        let attribute = array.create("f");
        let file = array.open("f", attribute);
        let data = Random(7).bytes(100_001);
        write(&file, 0, &data);
        store_behind_the_end(&array, &file);
        let runtime = array.files.array().runtime();
        let shared = runtime.find_file(attribute.inode << 24 | attribute.generation).unwrap();
        let _ = shared.size_lock.lock(runtime.me(), runtime);
        std::thread::scope(|scope| {
            let growing = scope.spawn(|| file.truncate(200_000));
            // By then the truncation has looked which members are out, and waits for the lock.
            std::thread::sleep(std::time::Duration::from_millis(100));
            let _ = runtime.add_out(units::MemberSet::EMPTY.with(0));
            shared.tail_unfinished.store(1, Ordering::Release);
            shared.size_lock.unlock();
            growing.join().unwrap().unwrap();
        });
        assert!(runtime.out_unrecorded().is_empty(), "{level}: a change is not made before the member is on record");
        assert!(read(&file, 0, data.len()) == data, "{level}");
        assert!(read(&file, data.len() as u64, 300_000).iter().all(|&byte| byte == 0), "{level}");
        assert_eq!(file.verify(), Ok(0), "{level}");
    }
}

/// A process died while it wrote to the last stripe with all members in, and has left parity that
/// does not fit. Then a member goes out, and nobody comes to that stripe before the file grows.
#[test]
fn nothing_grows_over_a_last_stripe_that_does_not_fit() {
    for (level, member_count, chunk) in SHAPES.into_iter().filter(|shape| shape.0.parity_count() > 0) {
        for gone in 0..member_count {
            let array = TestArray::new(level, member_count, chunk);
            let attribute = array.create("f");
            let file = array.open("f", attribute);
            let stripe = chunk * (member_count - level.parity_count()) as u64;
            let data = Random(7).bytes(2 * stripe as usize + 12);
            write(&file, 0, &data);
            // The dead process has stored the first bytes of the last stripe; parity lacks them.
            let place = file.geometry().locate(2 * stripe);
            let slot = file.geometry().data_slot(place.stripe, place.column, 0);
            let backing = std::fs::OpenOptions::new().write(true).open(array.member_path(slot).join("data/f")).unwrap();
            backing.write_at(&[0x5a; 8], file.geometry().member_offset(place.stripe)).unwrap();
            let runtime = array.files.array().runtime();
            let shared = runtime.find_file(attribute.inode << 24 | attribute.generation).unwrap();
            for lock in &shared.stripes {
                let _ = lock.write_begin(dead(), &Nobody);
            }
            let _ = runtime.add_out(units::MemberSet::EMPTY.with(gone));
            file.truncate(5 * stripe).unwrap();
            assert!(read(&file, 0, 2 * stripe as usize) == data[..2 * stripe as usize], "{level}, member {gone}");
            let behind = read(&file, data.len() as u64, 5 * stripe as usize);
            assert!(behind.iter().all(|&byte| byte == 0), "{level}, member {gone}: bytes behind the end");
            assert_eq!(file.verify(), Ok(0), "{level}, member {gone}");
        }
    }
}

#[test]
fn redundancy_is_made_to_fit_behind_a_dead_writer() {
    for (level, member_count, chunk) in SHAPES.into_iter().filter(|shape| shape.0 != Level::Raid0) {
        let array = TestArray::new(level, member_count, chunk);
        let attribute = array.create("f");
        let file = array.open("f", attribute);
        write(&file, 0, &Random(7).bytes(500_000));
        let path = array.member_path(1).join("data/f");
        std::fs::OpenOptions::new().write(true).open(path).unwrap().write_at(&[0x5a; 3000], 70_000).unwrap();
        assert_ne!(file.verify(), Ok(0), "{level}");
        let shared = array.files.array().runtime().find_file(attribute.inode << 24 | attribute.generation).unwrap();
        for lock in &shared.stripes {
            let _ = lock.write_begin(dead(), &Nobody);
        }
        assert_eq!(file.verify(), Ok(0), "{level}");
        assert_eq!(shared.stripes_unfinished.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn a_read_never_reaches_behind_the_end_of_a_file_being_cut() {
    let array = TestArray::new(Level::Raid5, 3, 4096);
    let attribute = array.create("f");
    let file = array.open("f", attribute);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (file, stop) = (&file, &stop);
        scope.spawn(move || {
            for round in 0..20_000u64 {
                write(file, 0, &[0xff; 3000]);
                file.truncate(round % 1000).unwrap();
            }
            stop.store(true, Ordering::Release);
        });
        while !stop.load(Ordering::Acquire) {
            let data = read(file, 0, 3000);
            assert!(data.iter().all(|&byte| byte == 0xff), "{} bytes, not all of them the file's", data.len());
        }
    });
}

/// Another thread takes the source away in the middle of a write. What the write has stored behind
/// the end by then is never seen.
#[test]
fn what_a_write_whose_source_went_away_stored_behind_the_end_is_never_seen() {
    use sys::rustix::mm::{MprotectFlags, mprotect};
    const BYTES: usize = 1 << 20;
    for (level, member_count, chunk) in [(Level::Raid0, 3, 65536), (Level::Raid1, 2, 65536), (Level::Raid5, 3, 65536)] {
        let array = TestArray::new(level, member_count, chunk);
        let attribute = array.create("f");
        let file = array.open("f", attribute);
        let source = vec![0xa5u8; BYTES + units::PAGE_BYTES];
        let last = (source.as_ptr() as usize + BYTES) / units::PAGE_BYTES * units::PAGE_BYTES - units::PAGE_BYTES;
        // SAFETY: a page of the source, which nobody but the writes touches.
        let protect = |flags| unsafe { mprotect(last as *mut _, units::PAGE_BYTES, flags) }.unwrap();
        let stop = AtomicBool::new(false);
        let mut found = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Acquire) {
                    protect(MprotectFlags::empty());
                    std::thread::yield_now();
                    protect(MprotectFlags::READ | MprotectFlags::WRITE);
                    std::thread::sleep(std::time::Duration::from_micros(100));
                }
            });
            for _ in 0..2000 {
                file.truncate(10).unwrap();
                // SAFETY: the buffer is there, or faults.
                let written = unsafe { file.write_at(10, source.as_ptr(), BYTES) };
                if written.is_err() {
                    let size = file.size();
                    file.truncate(BYTES as u64).unwrap();
                    let shown = read(&file, 10, BYTES).iter().filter(|&&byte| byte != 0).count();
                    found.push((written, size, shown));
                }
                if found.len() == 100 {
                    break;
                }
            }
            stop.store(true, Ordering::Release);
        });
        protect(MprotectFlags::READ | MprotectFlags::WRITE);
        assert!(!found.is_empty());
        for found in found {
            assert_eq!(found, (Err(sys::OsError::FAULT), 10, 0), "RAID {level}: bytes behind the end");
        }
        assert_eq!(file.verify(), Ok(0), "{level}");
    }
}

/// A writer died in an append, and another process has given its attach slot and its lane to others.
/// Then the last process that has the file open closes it. What lies behind the end is zeroed, or
/// it stays known that it may be no zeros.
#[test]
fn the_last_to_close_a_file_does_not_trim_what_a_dead_writer_stored() {
    for (level, member_count, chunk) in SHAPES {
        let array = TestArray::new(level, member_count, chunk);
        let (attribute, other) = (array.create("f"), array.create("other"));
        let file = array.open("f", attribute);
        let data = Random(7).bytes(100_001);
        write(&file, 0, &data);
        // The append of the dead process: announced and stored, while the size is still the old one.
        write(&file, data.len() as u64, &[0xa5; 20_000]);
        let shared = array.files.array().runtime().find_file(attribute.inode << 24 | attribute.generation).unwrap();
        shared.size.store(data.len() as u64, Ordering::Release);
        for slot in 0..member_count {
            let table = std::fs::OpenOptions::new().write(true).open(array.member_path(slot).join(".cxlraid/inodes")).unwrap();
            table.write_all_at(&(data.len() as u64).to_le_bytes(), format::inode_record_offset(attribute.inode)).unwrap();
        }
        let _ = shared.size_lock.lock(dead(), &Nobody);
        let lanes = array.files.array().runtime().lanes();
        lanes.iter().for_each(|lane| lane.store(77 << 32 | 1, Ordering::Relaxed));
        let other = array.open("other", other);
        for _ in 0..format::LANE_COUNT {
            std::thread::scope(|scope| {
                scope.spawn(|| write(&other, 0, b"something else"));
            });
        }
        drop((file, other));
        array.lose_segment();
        let file = array.open_in(array.again(), "f", attribute);
        file.truncate(200_000).unwrap();
        assert!(read(&file, 0, data.len()) == data, "{level}");
        assert!(read(&file, data.len() as u64, 300_000).iter().all(|&byte| byte == 0), "{level}: bytes behind the end");
        assert_eq!(file.verify(), Ok(0), "{level}");
    }
}
