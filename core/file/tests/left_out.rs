//! A member counts as out for one file while its backing file there is not whole. Nobody leaves a
//! member out that another process has just made anew, nor forgets that it is left out, and nobody
//! takes such a member for a failed one.

mod common;

use common::{Random, TestArray, read, write};
use cxlraid_file::{FileRef, Files, Mapped, ScrubMode, Watch};
use dax::Access;
use format::{Attribute, LANE_COUNT, LANE_RECORD_BYTES, LaneRecord, lane_offset};
use layout::Level;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use sync::OwnerId;
use sys::OsError;
use units::MemberSet;

const LEVELS: [(Level, usize); 4] = [(Level::Raid1, 2), (Level::Raid5, 3), (Level::Raid6, 4), (Level::Raid10, 4)];
/// The length of a file that is long enough for a thread to do something while a member's bytes of
/// the file are computed.
const LONG_BYTES: usize = 24 << 20;

/// An array with a file that nobody has open.
fn with_file(level: Level, member_count: usize, bytes: usize) -> (TestArray, Attribute, Vec<u8>) {
    let array = TestArray::new(level, member_count, 4096);
    let attribute = array.create("f");
    let data = Random(7).bytes(bytes);
    write(&array.open("f", attribute), 0, &data);
    (array, attribute, data)
}

fn backing_of(array: &TestArray, slot: usize) -> File {
    File::options().write(true).open(array.member_path(slot).join("data/f")).unwrap()
}

fn opened(array: &TestArray, files: &'static Files, attribute: Attribute, access: Access) -> Result<FileRef, OsError> {
    files.open(attribute, access == Access::ReadWrite, || Ok((array.backing(files, "f"), access)))
}

fn shared(files: &'static Files, attribute: Attribute) -> &'static array::SharedFile {
    files.array().runtime().find_file(attribute.inode << 24 | attribute.generation).unwrap()
}

/// Asserts that the members themselves hold the right bytes. The segment is removed first, so that
/// nothing remembers which member was left out.
fn is_whole(array: &TestArray, attribute: Attribute, data: &[u8], what: &str) {
    array.lose_segment();
    let file = array.open_in(array.again(), "f", attribute);
    assert_eq!(file.verify(), Ok(0), "{what}");
    assert!(read(&file, 0, data.len() + 1) == data, "{what}");
}

/// Makes anew what member 1 lost of a long file. `meanwhile` runs as soon as the backing file has
/// its length again.
fn rebuild(level: Level, member_count: usize, meanwhile: impl FnOnce(&TestArray, Attribute) + Send, what: &str) {
    let (array, attribute, data) = with_file(level, member_count, LONG_BYTES);
    array.lose_segment();
    let writer = array.again();
    let lost = backing_of(&array, 1);
    lost.set_len(0).unwrap();
    assert!(writer.note_lost(attribute, 1));
    thread::scope(|scope| {
        scope.spawn(|| {
            while lost.metadata().unwrap().len() == 0 {}
            meanwhile(&array, attribute);
        });
        let file = opened(&array, writer, attribute, Access::ReadWrite).unwrap();
        assert!(read(&file, 0, data.len() + 1) == data, "{what}");
    });
    is_whole(&array, attribute, &data, what);
}

#[test]
fn who_may_only_read_does_not_leave_out_what_another_is_making_anew() {
    for (level, member_count) in LEVELS {
        let reads = |array: &TestArray, attribute| {
            let reader = array.again();
            drop(opened(array, reader, attribute, Access::ReadOnly).unwrap());
        };
        rebuild(level, member_count, reads, &format!("{level}"));
    }
}

/// A thread has met the short backing file before the rebuild had the locks, and leaves the member
/// out in the middle of the rebuild.
#[test]
fn a_note_outlives_a_resync_in_which_its_member_was_left_out() {
    for (level, member_count) in LEVELS {
        let leaves_out = |array: &TestArray, attribute| {
            let shared = shared(array.again(), attribute);
            shared.cut.fetch_or(MemberSet::EMPTY.with(1).bits(), Ordering::AcqRel);
        };
        rebuild(level, member_count, leaves_out, &format!("{level}"));
    }
}

/// A process that may only read finds that a resync of the file waits. Before the process looks
/// again, a resync or a truncation that was at work makes the file good.
#[test]
fn who_may_only_read_looks_again_with_the_lock_held() {
    for (level, member_count) in LEVELS {
        for is_cut in [false, true] {
            let (array, attribute, data) = with_file(level, member_count, 60_000);
            if !is_cut {
                assert!(array.files.note_lost(attribute, 1));
            }
            let file = array.files.open_as_it_is(attribute, true, || Ok((array.backing(array.files, "f"), Access::ReadWrite)));
            let file = file.unwrap();
            let (shared, runtime) = (shared(array.files, attribute), array.files.array().runtime());
            shared.cut.store(0, Ordering::Release);
            shared.resync_waits.store(1, Ordering::Release);
            let reader = array.again();
            let _ = shared.size_lock.lock(runtime.me(), runtime);
            let kept = if is_cut {
                let kept = 10_000;
                let bytes = file.geometry().member_bytes(kept);
                shared.allocated_end.store(bytes, Ordering::Release);
                (0..member_count).for_each(|slot| backing_of(&array, slot).set_len(bytes).unwrap());
                kept
            } else {
                data.len() as u64
            };
            let read = thread::scope(|scope| {
                let reads = scope.spawn(|| opened(&array, reader, attribute, Access::ReadOnly).map(drop));
                thread::sleep(Duration::from_millis(100));
                shared.size.store(kept, Ordering::Release);
                shared.resync_waits.store(u32::from(is_cut), Ordering::Release);
                shared.size_lock.unlock();
                reads.join().unwrap()
            });
            assert_eq!(read, Ok(()), "{level}, cut: {is_cut}");
            assert_eq!(shared.cut.load(Ordering::Acquire), 0, "{level}, cut: {is_cut}");
        }
    }
}

/// A process that may only read finds a backing file short. It notes that, since somebody else may
/// have the file open to write to it.
#[test]
fn what_who_may_only_read_finds_short_is_noted() {
    for (level, member_count) in LEVELS {
        let (array, attribute, mut data) = with_file(level, member_count, 60_000);
        let file = array.open("f", attribute);
        shared(array.files, attribute).resync_waits.store(1, Ordering::Release);
        backing_of(&array, 1).set_len(4096).unwrap();
        let reader = array.again();
        let reads = opened(&array, reader, attribute, Access::ReadOnly).unwrap();
        assert!(read(&reads, 0, data.len() + 1) == data, "{level}");
        let lost: Vec<_> = reader.unbuilt().unwrap().iter().map(|unbuilt| unbuilt.lost).collect();
        assert_eq!(lost, [MemberSet::EMPTY.with(1)], "{level}");
        assert_eq!(reader.array().in_use().len(), member_count, "{level}");
        // Something is stored without the member, and then the file is made so short that it ends
        // before the place where the backing file was cut.
        data.truncate(5_000);
        data[..100].fill(7);
        write(&file, 0, &[7; 100]);
        file.truncate(5_000).unwrap();
        is_whole(&array, attribute, &data, &format!("{level}"));
    }
}

/// A truncation does not cut the backing file of a member that counts as out for the file.
#[test]
fn what_a_member_that_was_left_out_kept_behind_the_end_does_not_come_back() {
    for (level, member_count) in LEVELS {
        for slot in 0..member_count {
            let (array, attribute, mut data) = with_file(level, member_count, 600_000);
            backing_of(&array, slot).set_len(array.raw(slot, "f").len() as u64 - 4096).unwrap();
            assert!(array.files.note_lost(attribute, slot));
            let file =
                array.files.open_as_it_is(attribute, true, || Ok((array.backing(array.files, "f"), Access::ReadWrite))).unwrap();
            file.truncate(50_000).unwrap();
            let what = format!("{level}, member {slot}");
            assert!(array.raw(slot, "f").len() > 100_000, "{what}: left out");
            let writes = opened(&array, array.again(), attribute, Access::ReadWrite).unwrap();
            assert!(read(&writes, 0, data.len()) == data[..50_000], "{what}");
            file.truncate(600_000).unwrap();
            data[50_000..].fill(0);
            assert!(read(&writes, 0, data.len() + 1) == data, "{what}");
            assert_eq!(writes.verify(), Ok(0), "{what}");
            write(&writes, 300_000, &[7; 5_000]);
            data[300_000..305_000].fill(7);
            drop((file, writes));
            is_whole(&array, attribute, &data, &what);
        }
    }
}

#[test]
fn who_is_refused_leaves_nobody_out() {
    let (array, attribute, _) = with_file(Level::Raid5, 3, 60_000);
    [0, 1].iter().for_each(|&slot| backing_of(&array, slot).set_len(4096).unwrap());
    let reader = array.again();
    assert_eq!(opened(&array, reader, attribute, Access::ReadOnly).map(drop), Err(OsError::IO));
    assert_eq!(shared(reader, attribute).cut.load(Ordering::Acquire), 0);
    assert_eq!(reader.unbuilt(), Ok(Vec::new()));
}

/// Another process has the file open, and has not made it whole yet.
#[test]
fn a_member_whose_file_is_to_be_made_anew_is_not_taken_for_failed() {
    for (level, member_count) in LEVELS {
        for access in [Access::ReadWrite, Access::ReadOnly] {
            let (array, attribute, data) = with_file(level, member_count, 60_000);
            let _open = array.open("f", attribute);
            backing_of(&array, 1).set_len(0).unwrap();
            shared(array.files, attribute).resync_waits.store(1, Ordering::Release);
            let other = array.again();
            let file = opened(&array, other, attribute, access).unwrap();
            assert!(read(&file, 0, data.len() + 1) == data, "{level}");
            assert_eq!(other.array().in_use().len(), member_count, "{level}, {access:?}");
        }
    }
}

#[test]
fn a_scrub_of_a_file_that_waits_takes_no_member_for_failed() {
    for (level, member_count) in LEVELS {
        let (array, attribute, _) = with_file(level, member_count, 60_000);
        backing_of(&array, 1).set_len(0).unwrap();
        assert!(array.files.note_lost(attribute, 1));
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let writes = access == Access::ReadWrite;
            let file = array.files.open_as_it_is(attribute, writes, || Ok((array.backing(array.files, "f"), access))).unwrap();
            let mut found = 0;
            let watch = &mut Watch { found: &mut |_, _| found += 1, goes_on: &mut |_, _| true };
            assert_eq!(file.scrub(ScrubMode::CheckWaiting, watch).unwrap().out, MemberSet::EMPTY.with(1), "{level}");
            assert_eq!(found, 0, "{level}");
            assert_eq!(array.files.array().in_use().len(), member_count, "{level}");
            assert_eq!(array.raw(1, "f"), [], "{level}: as it is");
        }
    }
}

/// The machine has crashed while a file grew, and the only backing file left is shorter than the
/// file's size says. No member that is away could give the rest, since the array was changed without
/// that member.
#[test]
fn what_only_stale_members_could_give_of_a_file_that_a_crash_cut_is_zeros() {
    for (level, member_count, slot, gone) in [(Level::Raid1, 2, 0, 1), (Level::Raid5, 3, 2, 0), (Level::Raid10, 4, 0, 1)] {
        for was_open in [true, false] {
            let (array, attribute, _) = with_file(level, member_count, 0);
            array.lose_member(gone);
            array.lose_segment();
            let files = array.again();
            let _ = files.create_inode(b"/data/file").unwrap();
            let data = Random(5).bytes(100_000);
            let file = array.open_in(files, "f", attribute);
            write(&file, 0, &data);
            if was_open {
                core::mem::forget(file);
            } else {
                drop(file);
                files.detach();
            }
            backing_of(&array, slot).set_len(8192).unwrap();
            array.lose_segment();
            let files = array.again();
            let what = format!("{level}, member {gone} gone, open: {was_open}");
            for access in [Access::ReadOnly, Access::ReadWrite] {
                let result = opened(&array, files, attribute, access);
                if !was_open || access == Access::ReadOnly {
                    assert_eq!(result.map(drop), Err(OsError::IO), "{what}");
                    continue;
                }
                let found = read(&result.unwrap(), 0, data.len() + 1);
                assert!(found.len() == data.len() && found[..4096] == data[..4096], "{what}");
            }
        }
    }
}

/// The lanes of the lowest member fail in the middle of an announcement.
#[test]
fn a_write_is_announced_on_the_members_behind_one_that_fails() {
    for (level, member_count) in LEVELS {
        let (array, attribute, _) = with_file(level, member_count, 60_000);
        let file = array.open("f", attribute);
        File::options().write(true).open(array.member_path(0).join(".cxlraid/lanes")).unwrap().set_len(0).unwrap();
        write(&file, 5_432, &[1; 10]);
        assert_eq!(array.files.array().in_use(), MemberSet::first(member_count).without(0), "{level}");
        for slot in 1..member_count {
            let lanes = File::open(array.member_path(slot).join(".cxlraid/lanes")).unwrap();
            let is_named = (0..LANE_COUNT).any(|lane| {
                let mut bytes = [0; LANE_RECORD_BYTES];
                lanes.read_exact_at(&mut bytes, lane_offset(lane)).unwrap();
                LaneRecord::decode(&bytes).is_ok_and(|record| record.inode == attribute.inode && record.offset == 5_432)
            });
            assert!(is_named, "{level}, member {slot}");
        }
    }
}

/// Asserts that whoever maps a file is shown the right bytes, where the members are shown at all.
fn shows(array: &TestArray, file: &FileRef, data: &[u8], what: &str) {
    const PAGE: usize = 4096;
    for at in (0..data.len() / PAGE * PAGE).step_by(1 << 20).chain([data.len() / PAGE * PAGE - PAGE]) {
        if file.piece_count(PAGE as u64).is_none() {
            return;
        }
        let shown = file.for_each_piece(false, at as u64, PAGE as u64, |piece| {
            let mut found = [0; PAGE];
            let member = File::open(array.member_path(piece.slot).join("data/f")).unwrap();
            member.read_exact_at(&mut found, piece.member_offset).unwrap();
            if found[..] == data[at..][..PAGE] { Ok(()) } else { Err(piece.slot) }
        });
        assert!(shown.is_ok(), "{what}: member {shown:?} at {at}");
    }
}

/// Mappings are made and looked after without the locks that keep readers out while a member's
/// bytes are made anew.
#[test]
fn a_mapping_shows_no_member_whose_bytes_are_being_made_anew() {
    for (level, member_count) in LEVELS {
        let (array, attribute, data) = with_file(level, member_count, LONG_BYTES);
        array.lose_segment();
        let writer = array.again();
        backing_of(&array, 0).set_len(0).unwrap();
        assert!(writer.note_lost(attribute, 0));
        let reads = opened(&array, array.again(), attribute, Access::ReadOnly).unwrap();
        let source = reads.mapping_source();
        shows(&array, &reads, &data, &format!("{level}, before"));
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            let shown = scope.spawn(|| {
                let mut is_last = false;
                while !is_last {
                    is_last = is_done.load(Ordering::Acquire);
                    shows(&array, &reads, &data, &format!("{level}"));
                }
            });
            let file = opened(&array, writer, attribute, Access::ReadWrite);
            is_done.store(true, Ordering::Release);
            shown.join().unwrap();
            assert!(read(&file.unwrap(), 0, data.len() + 1) == data, "{level}");
        });
        let copies = reads.geometry().copy_count();
        assert_eq!(reads.mapping_source() != source, copies > 1, "{level}: mappings come back to the member");
        is_whole(&array, attribute, &data, &format!("{level}"));
    }
}

/// The file's owner has cut the backing file on the member that mappings show, and the process that
/// stores through one has come to another member.
fn with_stores_elsewhere(level: Level, member_count: usize) -> (TestArray, Attribute, Vec<u8>) {
    let (array, attribute, data) = with_file(level, member_count, 60_000);
    backing_of(&array, 0).set_len(0).unwrap();
    assert!(array.files.note_lost(attribute, 0));
    (array, attribute, data)
}

/// Stores a byte as a mapping of this member would.
fn store_on(array: &TestArray, slot: usize, offset: u64, byte: u8) {
    backing_of(array, slot).write_all_at(&[byte], offset).unwrap();
}

const MIRRORS: [(Level, usize); 3] = [(Level::Raid1, 2), (Level::Raid1, 3), (Level::Raid10, 4)];

#[test]
fn a_member_is_not_made_anew_under_stores_that_land_on_another_copy() {
    for (level, member_count) in MIRRORS {
        let (array, attribute, mut data) = with_stores_elsewhere(level, member_count);
        let file =
            array.files.open_as_it_is(attribute, true, || Ok((array.backing(array.files, "f"), Access::ReadWrite))).unwrap();
        let mapped = Mapped::new(&file).unwrap();
        mapped.store_directly().unwrap();
        mapped.cover(0, 61_440).unwrap();
        let source = file.mapping_source();
        store_on(&array, 1, 10, 0xaa);
        let other = array.again();
        let writes = opened(&array, other, attribute, Access::ReadWrite).unwrap();
        assert_eq!(read(&writes, 10, 1), [0xaa], "{level}");
        // The process that stores has not looked at the file since.
        store_on(&array, 1, 10, 0xbb);
        store_on(&array, 1, 100, 0xcc);
        write(&writes, 4_000, &[7; 200]);
        mapped.follow([(0, 4096)]).unwrap();
        (data[10], data[100]) = (0xbb, 0xcc);
        data[4_000..4_200].fill(7);
        for file in [&file, &writes] {
            assert!(read(file, 0, data.len() + 1) == data, "{level}");
        }
        assert_eq!(file.mapping_source(), source, "{level}");
        assert!(other.goes_without(attribute), "{level}");
        // Nothing of a process that has died with such stores is lost either.
        store_on(&array, 1, 20, 0xdd);
        data[20] = 0xdd;
        drop(mapped);
        let record =
            other.array().runtime().mapped().take(OwnerId::new(5).unwrap(), attribute.inode << 24 | attribute.generation);
        let record = record.unwrap();
        record.set_direct(true);
        record.widen(0, 4096);
        shared(other, attribute).mapped.store(1, Ordering::Release);
        drop(writes);
        let whole = opened(&array, array.again(), attribute, Access::ReadWrite).unwrap();
        assert_eq!(shared(other, attribute).cut.load(Ordering::Acquire), 0, "{level}: made anew");
        assert!(!other.goes_without(attribute), "{level}");
        assert_eq!(whole.verify(), Ok(0), "{level}");
        assert!(read(&whole, 0, data.len() + 1) == data, "{level}");
        drop((file, whole));
        is_whole(&array, attribute, &data, &format!("{level}"));
    }
}

/// Stores land on the first copy, whether the member of the second one is in or not.
#[test]
fn a_member_that_mappings_would_not_show_is_made_anew_under_stores() {
    for (level, member_count) in MIRRORS {
        let (array, attribute, mut data) = with_file(level, member_count, 60_000);
        backing_of(&array, 1).set_len(0).unwrap();
        assert!(array.files.note_lost(attribute, 1));
        let file =
            array.files.open_as_it_is(attribute, true, || Ok((array.backing(array.files, "f"), Access::ReadWrite))).unwrap();
        let mapped = Mapped::new(&file).unwrap();
        mapped.store_directly().unwrap();
        mapped.cover(0, 61_440).unwrap();
        let other = array.again();
        let writes = opened(&array, other, attribute, Access::ReadWrite).unwrap();
        assert!(!other.goes_without(attribute), "{level}");
        assert_eq!(other.unbuilt(), Ok(Vec::new()), "{level}");
        assert_eq!(array.raw(1, "f"), array.raw(0, "f"), "{level}");
        store_on(&array, 0, 10, 0xbb);
        mapped.follow([(0, 4096)]).unwrap();
        data[10] = 0xbb;
        assert!(read(&writes, 0, data.len() + 1) == data, "{level}");
        drop((mapped, file, writes));
        is_whole(&array, attribute, &data, &format!("{level}"));
    }
}

/// Bytes that are owed are made to agree on the other members, although one member waits: until
/// nobody stores to another copy, or until the file is closed.
#[test]
fn bytes_that_are_owed_do_not_wait_with_the_member_that_waits() {
    for has_joined in [false, true] {
        let (array, attribute, mut data) = with_file(Level::Raid1, 3, 60_000);
        assert!(array.files.note_lost(attribute, 0));
        let file =
            array.files.open_as_it_is(attribute, true, || Ok((array.backing(array.files, "f"), Access::ReadWrite))).unwrap();
        let shared = shared(array.files, attribute);
        shared.cut.store(0, Ordering::Release);
        (if has_joined { &shared.without } else { &shared.cut }).store(1, Ordering::Release);
        let mapped = Mapped::new(&file).unwrap();
        mapped.store_directly().unwrap();
        mapped.cover(0, 61_440).unwrap();
        store_on(&array, 1, 10, 0xbb);
        mapped.owe(0, 4096);
        let other = array.again();
        let writes = opened(&array, other, attribute, Access::ReadWrite).unwrap();
        data[10] = 0xbb;
        assert!(array.raw(1, "f")[..data.len()] == data && array.raw(2, "f")[..data.len()] == data, "joined: {has_joined}");
        assert_eq!(shared.cut.load(Ordering::Acquire), u32::from(!has_joined));
        let lost: Vec<_> = other.unbuilt().unwrap().iter().map(|unbuilt| unbuilt.lost).collect();
        assert_eq!(lost, [MemberSet::EMPTY.with(0)], "joined: {has_joined}");
        drop((mapped, file, writes));
        is_whole(&array, attribute, &data, &format!("joined: {has_joined}"));
    }
}
