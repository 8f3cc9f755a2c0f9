//! Sums of blocks: every flipped byte of data, parity and sums is found by the next scrub, which
//! knows what is wrong and mends it; and nothing that programs do, deaths or crashes ever makes a
//! scrub see what is not.

mod common;

use array::{Mismatch, Verdict};
use common::{Random, SHAPES_WITH_REDUNDANCY as SHAPES, TestArray, flip, read, write};
use cxlraid_file::{FileRef, Mapped, Mended, ScrubMode, Watch};
use format::Attribute;
use layout::Level;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

const CHUNK: u64 = 4096;

fn scrub(file: &FileRef, mode: ScrubMode) -> Vec<(Mismatch, Mended)> {
    let mut found = Vec::new();
    let mut add = |mismatch: &Mismatch, mended| found.push((mismatch.clone(), mended));
    file.scrub(mode, &mut Watch { found: &mut add, goes_on: &mut |_, _| true }).unwrap();
    found
}

fn sums_path(array: &TestArray, slot: usize, file: Attribute) -> PathBuf {
    array.member_path(slot).join(format!(".cxlraid/sums/{:x}-{:x}", file.inode, file.generation))
}

/// Says which blocks of the file have a sum on a member.
fn sums_of(array: &TestArray, slot: usize, file: Attribute) -> Vec<u32> {
    let bytes = std::fs::read(sums_path(array, slot, file)).unwrap_or_default();
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

#[repr(align(64))]
struct Block([u8; 4096]);

/// The sums of all blocks of a backing file are those of what it holds; there are `count` of them.
fn assert_sums_fit(array: &TestArray, members: usize, file: Attribute, at: &str) -> usize {
    let mut count = 0;
    for slot in 0..members {
        let held = std::fs::read(array.member_path(slot).join("data/file")).unwrap();
        for (block, sum) in sums_of(array, slot, file).into_iter().enumerate().filter(|(_, sum)| *sum != 0) {
            let mut bytes = Block([0; 4096]);
            let there = held.len().saturating_sub(block * 4096).min(4096);
            bytes.0[..there].copy_from_slice(&held[block * 4096..][..there]);
            // SAFETY: a block, and aligned.
            let crc = unsafe { persist::crc32c_block(bytes.0.as_ptr()) };
            assert_eq!(sum, if crc == 0 { u32::MAX } else { crc }, "{at}: block {block} of member {slot}");
            count += 1;
        }
    }
    count
}

/// Whole blocks are summed while they are stored: every way in which a write makes parity, with old
/// and neighbouring blocks that have sums and that have none, gives each block it stores a sum.
#[test]
fn whole_blocks_that_are_written_have_the_sums_of_what_is_there() {
    const BYTES: u64 = 1 << 20;
    for (level, members) in SHAPES.into_iter().chain([(Level::Raid5, 7), (Level::Raid6, 9), (Level::Raid4, 6)]) {
        for chunk in [4096, 16 << 10, 128 << 10] {
            let mut random = Random(chunk + members as u64);
            let array = TestArray::summed(level, members, chunk);
            let attribute = array.create("file");
            let file = array.open("file", attribute);
            let mut content = vec![0; BYTES as usize];
            file.truncate(BYTES).unwrap();
            for round in 0..40 {
                // Some begin or end within a block.
                let (start, end) = (random.below(256), random.below(256));
                let (start, end) = (start.min(end) * 4096, (start.max(end) + 1) * 4096);
                let end = if round % 3 == 1 { end.min(start + 8192) } else { end };
                let (start, end) =
                    if round % 4 == 3 { (start + random.below(2000), end - random.below(2000)) } else { (start, end) };
                let bytes = random.bytes((end - start) as usize);
                write(&file, start, &bytes);
                content[start as usize..end as usize].copy_from_slice(&bytes);
                let at = format!("{level:?} of {members}, chunk {chunk}, round {round}: {start}..{end}");
                let sums = assert_sums_fit(&array, members, attribute, &at);
                assert!(sums as u64 >= (end - start) / 4096, "{at}");
            }
            assert!(read(&file, 0, content.len()) == content);
            write(&file, 0, &content);
            let blocks = file.geometry().member_bytes(BYTES) / 4096;
            let least = match level {
                Level::Raid1 => blocks * members as u64,
                // Every block of data, in all its copies.
                _ if file.geometry().copy_count() > 1 => BYTES / 4096 * file.geometry().copy_count() as u64,
                _ => BYTES / 4096 * members as u64 / file.geometry().data_columns() as u64,
            };
            let sums = assert_sums_fit(&array, members, attribute, "the whole file");
            assert!(sums as u64 >= least, "{level:?} of {members}, chunk {chunk}: {sums} sums of {least}");
            assert_eq!(scrub(&file, ScrubMode::Check), []);
        }
    }
}

/// A program that changes its buffer while it is written stores old or new bytes, and none that do
/// not fit their sums.
#[test]
fn a_buffer_that_changes_while_it_is_written_leaves_no_wrong_sum() {
    for (level, members) in SHAPES {
        let array = TestArray::summed(level, members, 16 << 10);
        let attribute = array.create("file");
        let file = array.open("file", attribute);
        let changing: Vec<AtomicU8> = (0..128 << 10).map(|_| AtomicU8::new(0)).collect();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for value in (0..=u8::MAX).cycle().take_while(|_| !is_done.load(Ordering::Relaxed)) {
                    changing.iter().for_each(|byte| byte.store(value, Ordering::Relaxed));
                }
            });
            for round in 0..60 {
                let (start, bytes) = (round % 5 * 4096, (round % 7 + 1) * (16 << 10));
                // SAFETY: the buffer is that long. The race on it is what is tested; the loads are the
                // machine's.
                unsafe { file.write_at(start, changing.as_ptr().cast(), bytes as usize) }.unwrap();
            }
            is_done.store(true, Ordering::Relaxed);
        });
        assert!(assert_sums_fit(&array, members, attribute, &format!("{level:?} of {members}")) > 0);
        assert_eq!(scrub(&file, ScrubMode::Check), [], "{level:?} of {members}");
    }
}

#[test]
fn every_flipped_byte_of_data_and_parity_is_located_and_mended() {
    for (level, members) in SHAPES {
        let mut random = Random(11 + members as u64);
        let array = TestArray::summed(level, members, CHUNK);
        let file = array.open("file", array.create("file"));
        for size in [1, 1000, 4096, 100_000, 1_300_001] {
            file.truncate(0).unwrap();
            let content = random.bytes(size);
            write(&file, 0, &content);
            // What was written has sums by that; the zeros behind the end get theirs by a scrub.
            let first = file.geometry().data_slot(0, 0, 0);
            flip(&array, first, size as u64 / 2 % CHUNK);
            let found = scrub(&file, ScrubMode::Repair);
            assert!(matches!(&found[..], [(_, Mended::Rewritten)]), "{level:?} {members} size {size}: {found:?}");
            assert_eq!(scrub(&file, ScrubMode::Check), []);
            let held = file.geometry().member_bytes(size as u64);
            for round in 0..12 {
                let (slot, offset) = (random.below(members as u64) as usize, random.below(held));
                let geometry = file.geometry();
                let stripe = offset / CHUNK;
                let is_behind = |column: usize| {
                    (stripe * geometry.data_columns() as u64 + column as u64) * CHUNK + offset % CHUNK >= size as u64
                };
                let column = (0..geometry.data_columns())
                    .find(|&column| (0..geometry.copy_count()).any(|copy| geometry.data_slot(stripe, column, copy) == slot));
                if level.has_chunks() && geometry.copy_count() > 1 && column.is_some_and(is_behind) {
                    // Behind the end copies are zeros, and need no sums for that.
                    continue;
                }
                flip(&array, slot, offset);
                let at = format!("{level:?} {members} size {size} round {round}: member {slot} at {offset}");
                let found = scrub(&file, ScrubMode::Check);
                assert_eq!(found.len(), 1, "{at}: {found:?}");
                let (mismatch, mended) = &found[0];
                assert!((mismatch.member_offset..mismatch.member_offset + 4096).contains(&offset), "{at}: {mismatch:?}");
                assert_eq!((mismatch.bytes, *mended), (1, Mended::No), "{at}");
                assert!(
                    matches!(&mismatch.verdict, Verdict::Located(wrong) if wrong.len() == 1 && wrong[0].0 == slot),
                    "{at}: {mismatch:?}"
                );
                let mended = scrub(&file, ScrubMode::Repair);
                assert_eq!(mended.iter().map(|(_, mended)| *mended).collect::<Vec<_>>(), [Mended::Rewritten], "{at}");
                assert_eq!(scrub(&file, ScrubMode::Check), [], "{at}");
                assert!(read(&file, 0, size) == content, "{at}");
            }
        }
    }
}

#[test]
fn every_flipped_byte_of_a_sum_is_found_and_costs_no_data() {
    for (level, members) in SHAPES {
        let mut random = Random(5);
        let array = TestArray::summed(level, members, CHUNK);
        let attribute = array.create("file");
        let file = array.open("file", attribute);
        let content = random.bytes(300_000);
        write(&file, 0, &content);
        let blocks = file.geometry().member_bytes(300_000).div_ceil(4096);
        for at in 0..4 * blocks.min(20) {
            let slot = random.below(members as u64) as usize;
            let sums = File::options().read(true).write(true).open(sums_path(&array, slot, attribute)).unwrap();
            let mut byte = [0];
            sums.read_exact_at(&mut byte, at).unwrap();
            sums.write_all_at(&[byte[0] ^ (1 << random.below(8))], at).unwrap();
            let found = scrub(&file, ScrubMode::Repair);
            let [(mismatch, Mended::Rewritten)] = &found[..] else { panic!("{level:?} member {slot} at {at}: {found:?}") };
            assert!(matches!(&mismatch.verdict, Verdict::Sums(wrong) if wrong[..] == [slot]), "{level:?} {mismatch:?}");
            assert_eq!(scrub(&file, ScrubMode::Check), [], "{level:?} {members}");
        }
        assert!(read(&file, 0, content.len()) == content);
    }
}

/// A program may close the low numbers, and count on getting them.
#[test]
fn descriptors_of_sums_lie_above_what_programs_use() {
    let array = TestArray::summed(Level::Raid5, 3, CHUNK);
    let attribute = array.create("file");
    let file = array.open("file", attribute);
    write(&file, 0, &Random(2).bytes(50_000));
    let own: Vec<PathBuf> = (0..3).map(|slot| sums_path(&array, slot, attribute)).collect();
    let mut found = 0;
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path()) {
        // One that another test has just closed is none of these.
        if std::fs::read_link(&entry).is_ok_and(|to| own.contains(&to)) {
            let number: u32 = entry.file_name().unwrap().to_str().unwrap().parse().unwrap();
            assert!(number >= sys::high_fd::base(), "{number}");
            found += 1;
        }
    }
    assert!(found == 3, "{found}");
}

/// Without redundancy nobody follows what programs store through mappings, so there are no sums.
#[test]
fn without_redundancy_there_are_no_sums() {
    for (level, members) in [(Level::Raid0, 2), (Level::Raid1, 1)] {
        let array = TestArray::summed(level, members, CHUNK);
        let attribute = array.create("file");
        let file = array.open("file", attribute);
        write(&file, 0, &Random(2).bytes(50_000));
        assert_eq!(scrub(&file, ScrubMode::Repair), []);
        flip(&array, members - 1, 5000);
        assert_eq!(scrub(&file, ScrubMode::Check), []);
        assert!(!sums_path(&array, 0, attribute).exists(), "{level:?}");
    }
}

/// A write beside a byte that has rotted, over it, or over a row with it, does not hide it; and a scrub
/// makes nothing wrong that is right.
#[test]
fn a_write_into_a_rotten_block_or_stripe_hides_nothing() {
    for (level, members) in SHAPES.into_iter().chain([(Level::Raid5, 6), (Level::Raid6, 8)]) {
        let mut random = Random(17);
        let array = TestArray::summed(level, members, CHUNK);
        let attribute = array.create("file");
        let file = array.open("file", attribute);
        let mut mended = 0;
        for round in 0..60 {
            let mut content = random.bytes(200_000);
            file.truncate(0).unwrap();
            write(&file, 0, &content);
            assert_eq!(scrub(&file, ScrubMode::Check), [], "{level:?} {members} round {round}");
            let (slot, at) = (random.below(members as u64) as usize, random.below(3 * 4096));
            flip(&array, slot, at);
            let rotten = std::fs::read(array.member_path(slot).join("data/file")).unwrap();
            let near = random.below(50_000);
            let (offset, length) = match random.below(3) {
                0 => (near / 4096 * 4096, 4096),
                1 => (near, 1 + random.below(200) as usize),
                _ => (near, 1 + random.below(30_000) as usize),
            };
            let bytes = random.bytes(length);
            // At times by who has not looked at any sum yet.
            let newcomer = (round % 4 == 0).then(|| array.open_in(array.again(), "file", attribute));
            write(newcomer.as_ref().unwrap_or(&file), offset, &bytes);
            drop(newcomer);
            content[offset as usize..][..length].copy_from_slice(&bytes);
            let held = std::fs::read(array.member_path(slot).join("data/file")).unwrap();
            let is_left = held[at as usize] == rotten[at as usize];
            let found = scrub(&file, ScrubMode::Repair);
            let what = format!("{level:?} {members} round {round}: member {slot} at {at}, {length} bytes at {offset}: {found:?}");
            let shown = read(&file, 0, content.len());
            let wrong = (0..content.len()).filter(|&at| shown[at] != content[at]).count();
            if found.iter().all(|(_, mended)| *mended == Mended::Rewritten) {
                assert_eq!(wrong, 0, "{what}");
                mended += usize::from(!found.is_empty());
                let again = scrub(&file, ScrubMode::Check);
                assert!(
                    again.iter().all(|(mismatch, _)| matches!(
                        mismatch.verdict,
                        Verdict::Rotten(_) | Verdict::Located(_) | Verdict::Sums(_)
                    )),
                    "{what} then {again:?}"
                );
            } else {
                // It is told, and nothing but that byte is wrong.
                assert!(wrong <= 1, "{wrong}: {what}");
            }
            assert!(!found.is_empty() || !is_left || wrong == 0, "{what}");
        }
        assert!(mended > 10, "{level:?} {members}: {mended}");
    }
}

/// With a member out nothing is computed from a block that has rotted: EIO, and where there is
/// redundancy to spare the right bytes.
#[test]
fn no_wrong_byte_is_computed_from_a_rotten_one() {
    for (level, members) in [(Level::Raid4, 3), (Level::Raid5, 3), (Level::Raid5, 6), (Level::Raid6, 5), (Level::Raid6, 8)] {
        let (mut refused, mut given) = (0, 0);
        for seed in 1..16 {
            let mut random = Random(seed * 91);
            let array = TestArray::summed(level, members, CHUNK);
            let file = array.open("file", array.create("file"));
            let mut content = random.bytes(150_000);
            write(&file, 0, &content);
            assert_eq!(scrub(&file, ScrubMode::Check), []);
            let out = random.below(members as u64) as usize;
            let slot = (out + 1 + random.below(members as u64 - 1) as usize) % members;
            let (at, held) = (random.below(3 * 4096), file.geometry().member_bytes(150_000));
            flip(&array, slot, at.min(held - 1));
            let _ = array.files.array().runtime().add_out(units::MemberSet::EMPTY.with(out));
            for round in 0..30 {
                // Reads, and writes beside them that make parity anew.
                if round % 3 == 2 {
                    let (offset, length) = match random.below(2) {
                        0 => (random.below(30) * 4096, 4096),
                        _ => (random.below(100_000), 1 + random.below(9000) as usize),
                    };
                    let bytes = random.bytes(length);
                    if file.write_slice(offset, &bytes).is_ok() {
                        content[offset as usize..][..length].copy_from_slice(&bytes);
                    }
                }
                for block in 0..36u64 {
                    let place = file.geometry().locate(block * 4096);
                    let is_out = file.geometry().data_slot(place.stripe, place.column, 0) == out;
                    let mut shown = vec![0; 4096];
                    match file.read_slice(block * 4096, &mut shown) {
                        Ok(_) => {
                            let is_right = shown[..] == content[block as usize * 4096..][..4096];
                            assert!(is_right || !is_out, "{level:?} {members} seed {seed} round {round} block {block}");
                            given += usize::from(is_out);
                        }
                        Err(error) => {
                            assert!(is_out && error == sys::OsError::IO, "{level:?} {members} seed {seed}: {error:?}");
                            refused += 1;
                        }
                    }
                }
            }
        }
        assert!(given > 0 && (refused > 0 || level == Level::Raid6), "{level:?} {members}: {given} {refused}");
    }
}

/// With reads that verify, every read gives the right bytes as long as something fits, and EIO
/// otherwise: also where each of two members has a rotten block of its own in the same 64 KiB.
#[test]
fn reads_that_verify_give_right_bytes_or_none() {
    for ((level, members), chunk) in SHAPES.into_iter().flat_map(|shape| [(shape, 4096), (shape, 65536)]) {
        let mut random = Random(23 + chunk);
        let array = TestArray::summed(level, members, chunk);
        let file = array.open("file", array.create("file"));
        let content = random.bytes(900_001);
        write(&file, 0, &content);
        let geometry = file.geometry();
        let bears = level.failures_max(members);
        let what = format!("{level:?} {members} chunk {chunk}");
        // A rotten byte in each of as many members as the level bears, at blocks of their own.
        for slot in 0..members {
            flip(&array, slot, 4096 * (slot as u64 + 1) + 77);
        }
        let held = array.files.array();
        let differs = |seen: &[u8]| seen != &content[..];
        assert!(differs(&read(&file, 0, content.len())), "{what}: nothing is verified unless asked for");
        held.set_verifies_reads(true).unwrap();
        assert!(!differs(&read(&file, 0, content.len())), "{what}");
        for _ in 0..300 {
            let offset = random.below(900_000);
            let bytes = [1, 100, 4096, 70_000][random.below(4) as usize].min(900_001 - offset as usize);
            assert!(read(&file, offset, bytes)[..] == content[offset as usize..][..bytes], "{what} {bytes} at {offset}");
        }
        // Through other processes' eyes, and after the array was left.
        let others = array.again();
        assert!(others.array().verifies_reads());
        // More rot in one row than the level bears.
        for slot in 0..members {
            flip(&array, slot, 3 * chunk + 4096 * u64::from(chunk > 4096) + 5);
        }
        let (mut refused, mut given) = (0, 0);
        for block in 0..900_001u64.div_ceil(4096) {
            let bytes = 4096.min(900_001 - block as usize * 4096);
            let mut seen = vec![0; bytes];
            let place = geometry.locate(block * 4096);
            let at = if level.has_chunks() { geometry.member_offset(place.stripe) + place.within } else { block * 4096 };
            match file.read_slice(block * 4096, &mut seen) {
                Ok(_) => {
                    assert!(seen[..] == content[block as usize * 4096..][..bytes], "{what} block {block}");
                    given += 1;
                }
                Err(error) => {
                    assert_eq!(error, sys::OsError::IO, "{what}");
                    assert_eq!(at, 3 * chunk + 4096 * u64::from(chunk > 4096), "{what} block {block}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 0 && given > 100 && bears > 0, "{what}: {refused} {given}");
        held.set_verifies_reads(false).unwrap();
        assert!(differs(&read(&file, 0, content.len())), "{what}");
    }
}

/// Changes a byte of the file as a program's store through a mapping does, on the copy that mappings
/// show.
fn store_past_locks(array: &TestArray, file: &FileRef, offset: u64) {
    let geometry = file.geometry();
    let place = geometry.locate(offset);
    let slot = geometry.data_slot(place.stripe, place.column, 0);
    flip(array, slot, geometry.member_offset(place.stripe) + place.within);
}

/// Reads of a file that a program has mapped to store to verify as well: what was stored through the
/// mapping is no rot, and what has rotted elsewhere is read from the other copies.
#[test]
fn reads_of_mapped_files_verify() {
    for (level, members) in SHAPES {
        let mut random = Random(29);
        let array = TestArray::summed(level, members, CHUNK);
        array.files.array().set_verifies_reads(true).unwrap();
        let file = array.open("file", array.create("file"));
        let mut content = random.bytes(600_000);
        write(&file, 0, &content);
        let mapped = Mapped::new(&file).unwrap();
        mapped.store_directly().unwrap();
        mapped.cover(0, 65536).unwrap();
        store_past_locks(&array, &file, 4096 * 2 + 7);
        content[4096 * 2 + 7] = read(&file, 4096 * 2 + 7, 1)[0];
        for slot in 0..members {
            flip(&array, slot, file.geometry().member_bytes(400_000) / 4096 * 4096 + 4096 * slot as u64 + 9);
        }
        for offset in (0..600_000).step_by(4096) {
            let bytes = 4096.min(600_000 - offset);
            let mut seen = vec![0; bytes];
            assert_eq!(file.read_slice(offset as u64, &mut seen), Ok(bytes), "{level:?} {members} at {offset}");
            assert!(seen[..] == content[offset..][..bytes], "{level:?} {members} at {offset}");
        }
        mapped.follow([(0, 65536)]).unwrap();
    }
}

/// What keeps the sums of files that are gone goes, and no other.
#[test]
fn sums_of_files_that_are_gone_are_cleared() {
    let array = TestArray::summed(Level::Raid5, 3, CHUNK);
    let (kept, gone, open) = (array.create("kept"), array.create("gone"), array.create("open"));
    let files = [kept, gone, open].map(|file| (file, ["kept", "gone", "open"]));
    let mut opened = Vec::new();
    for (index, (file, names)) in files.into_iter().enumerate() {
        let file = array.open(names[index], file);
        write(&file, 0, &[7; 30_000]);
        opened.push(file);
    }
    // As a process that died after it had freed the record, and as one that still uses the file.
    let lost = |attribute| (0..3).map(|slot| std::fs::read(sums_path(&array, slot, attribute)).unwrap()).collect::<Vec<_>>();
    let sums = lost(gone);
    opened.remove(1);
    array.files.discard_inode(gone);
    assert!(!sums_path(&array, 0, gone).exists());
    (0..3).for_each(|slot| std::fs::write(sums_path(&array, slot, gone), &sums[slot]).unwrap());
    let other = array.member_path(1).join(".cxlraid/sums/notes");
    std::fs::write(&other, "somebody's").unwrap();
    array.files.clear_sums();
    for slot in 0..3 {
        assert!(!sums_path(&array, slot, gone).exists(), "{slot}");
        assert!(sums_path(&array, slot, kept).exists() && sums_path(&array, slot, open).exists(), "{slot}");
    }
    assert!(other.exists());
    opened.iter().for_each(|file| assert_eq!(scrub(file, ScrubMode::Check), []));
}

/// One random operation on a file.
fn operate(random: &mut Random, file: &FileRef) {
    let (offset, most) = (random.below(400_000), [100, 5000, 150_000][random.below(3) as usize]);
    let bytes = 1 + random.below(most);
    match random.below(12) {
        0 => file.truncate(random.below(500_000)).unwrap(),
        1 => file.punch(offset, bytes * 3, false).unwrap(),
        2 => file.punch(offset, bytes, true).unwrap(),
        3 => file.allocate(offset, bytes, random.below(2) == 0).unwrap(),
        4 => {
            let data = random.bytes(bytes as usize);
            // SAFETY: the buffer is ours.
            unsafe { file.append(data.as_ptr(), data.len()) }.unwrap();
        }
        // Whole blocks.
        5..=7 => write(file, offset / 4096 * 4096, &random.bytes(bytes.next_multiple_of(4096) as usize)),
        _ => write(file, offset, &random.bytes(bytes as usize)),
    }
}

#[test]
fn nothing_that_is_done_in_order_is_ever_told_to_be_wrong() {
    let seeds = std::env::var("CXLRAID_TEST_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(2);
    for (level, members) in SHAPES.into_iter().chain([(Level::Raid0, 3), (Level::Raid5, 5), (Level::Raid6, 8)]) {
        for (seed, chunk, is_journaled) in
            (0..seeds).flat_map(|seed| [(seed, 4096, false), (seed, 65536, false), (seed, 4096, true)])
        {
            let mut random = Random(1 + seed * 77 + chunk);
            let array = match is_journaled {
                true => TestArray::summed_and_journaled(level, members, chunk),
                false => TestArray::summed(level, members, chunk),
            };
            let attribute = array.create("file");
            let mut file = array.open("file", attribute);
            for step in 0..120 {
                operate(&mut random, &file);
                if random.below(20) == 0 {
                    drop(file);
                    file = array.open("file", attribute);
                }
                if random.below(4) == 0 {
                    let found = scrub(&file, ScrubMode::Check);
                    assert_eq!(found, [], "{level:?} {members} chunk {chunk} seed {seed} step {step} journal {is_journaled}");
                }
            }
            // What was sealed can be counted upon: a byte that rots now is found.
            assert_eq!(scrub(&file, ScrubMode::Check), []);
            let size = file.size();
            if size > 0 && file.has_redundancy() {
                let sealed = sums_of(&array, 0, attribute).iter().filter(|&&sum| sum != 0).count();
                assert!(sealed > 0, "{level:?} {members} of {size} bytes");
            }
        }
    }
}

#[test]
fn threads_that_write_beside_each_other_keep_sums_right() {
    for (level, members) in SHAPES {
        let array = TestArray::summed(level, members, CHUNK);
        let file = array.open("file", array.create("file"));
        write(&file, 0, &Random(1).bytes(300_000));
        std::thread::scope(|scope| {
            for seed in 1..4 {
                let file = &file;
                scope.spawn(move || {
                    let mut random = Random(seed);
                    for _ in 0..400 {
                        let bytes = 1 + random.below(9000) as usize;
                        write(file, random.below(290_000), &random.bytes(bytes));
                    }
                });
            }
            for _ in 0..5 {
                assert_eq!(scrub(&file, ScrubMode::Check), [], "{level:?} {members}");
            }
        });
        assert_eq!(scrub(&file, ScrubMode::Check), [], "{level:?} {members}");
    }
}

/// What a program stores through a mapping has no sums until it is sealed.
#[test]
fn stores_through_mappings_are_no_rot() {
    for (level, members) in SHAPES {
        let array = TestArray::summed(level, members, CHUNK);
        let attribute = array.create("file");
        let file = array.open("file", attribute);
        let content = Random(8).bytes(200_000);
        write(&file, 0, &content);
        let mapped = Mapped::new(&file).unwrap();
        mapped.store_directly().unwrap();
        mapped.cover(0, 65536).unwrap();
        store_past_locks(&array, &file, 4096 * 2 + 7);
        write(&file, 20_000, &[1; 5000]);
        mapped.follow([(0, 65536)]).unwrap();
        write(&file, 4096 * 2, &[2; 4096]);
        assert_eq!(scrub(&file, ScrubMode::Check), [], "{level:?} {members}");
        store_past_locks(&array, &file, 4096 * 2 + 7);
        mapped.follow([(0, 65536)]).unwrap();
        drop(mapped);
        assert_eq!(scrub(&file, ScrubMode::Check), [], "{level:?} {members}");
        store_past_locks(&array, &file, 4096 * 2 + 7);
        let found = scrub(&file, ScrubMode::Repair);
        assert!(matches!(&found[..], [(_, Mended::Rewritten)]), "{level:?} {members}: sealed, and then rotten: {found:?}");
    }
}

const CHILD: &str = "CXLRAID_TEST_SUMS_CHILD";

/// Not a test by itself: a process that writes until it is killed.
#[test]
fn child_process() {
    let Ok(scene) = std::env::var(CHILD) else { return };
    let mut words = scene.split(' ');
    let mut word = || words.next().unwrap();
    let (level, mounts) = (word().parse().unwrap(), word());
    let [inode, generation, seed]: [u64; 3] = std::array::from_fn(|_| word().parse().unwrap());
    let mounts: Vec<Vec<u8>> = mounts.split(':').map(|mount| mount.as_bytes().to_vec()).collect();
    let config = array::Config::new(level, None, &mounts, &[b"/data".to_vec()], String::new()).unwrap();
    let files = cxlraid_file::Files::new(array::Array::attach(&config).unwrap()).unwrap();
    let fd = |slot: usize| {
        let path = [&mounts[slot], &b"/data/file"[..]].concat();
        Some(sys::rustix::fs::open(path, sys::rustix::fs::OFlags::RDWR, sys::rustix::fs::Mode::empty()).unwrap())
    };
    let backing = || Ok(((0..mounts.len()).map(fd).collect(), dax::Access::ReadWrite));
    let file = files.open(Attribute { inode, generation }, true, backing).unwrap();
    println!("ready");
    let mut random = Random(seed);
    loop {
        operate(&mut random, &file);
    }
}

#[test]
fn a_process_that_is_killed_leaves_no_sum_that_does_not_fit() {
    use std::io::BufRead as _;
    use std::process::{Command, Stdio};
    let kills = std::env::var("CXLRAID_TEST_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(4);
    for (level, members) in SHAPES.into_iter().chain([(Level::Raid0, 3), (Level::Raid5, 5)]) {
        for is_journaled in [false, true] {
            let array = match is_journaled {
                true => TestArray::summed_and_journaled(level, members, CHUNK),
                false => TestArray::summed(level, members, CHUNK),
            };
            let attribute = array.create("file");
            let file = array.open("file", attribute);
            write(&file, 0, &Random(1).bytes(400_000));
            drop(file);
            let mut random = Random(members as u64 + 40);
            for kill in 0..kills {
                let mounts: Vec<_> = array.config.mounts.iter().map(|mount| String::from_utf8_lossy(mount)).collect();
                let scene =
                    format!("{level} {} {} {} {}", mounts.join(":"), attribute.inode, attribute.generation, random.next());
                let mut command = Command::new(std::env::current_exe().unwrap());
                command.args(["--exact", "child_process", "--nocapture"]).env(CHILD, scene).stdout(Stdio::piped());
                let mut child = command.spawn().unwrap();
                let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
                assert!(lines.map_while(Result::ok).any(|line| line.ends_with("ready")), "the child has begun");
                std::thread::sleep(std::time::Duration::from_micros(random.below(20_000)));
                child.kill().unwrap();
                child.wait().unwrap();
                let file = array.open("file", attribute);
                let found = scrub(&file, ScrubMode::Check);
                assert_eq!(found, [], "{level:?} {members} journal {is_journaled} kill {kill}");
                operate(&mut random, &file);
                assert_eq!(scrub(&file, ScrubMode::Check), [], "{level:?} {members} journal {is_journaled} kill {kill}");
            }
        }
    }
}

/// After a crash any of the lines that a write has stored may be missing, of data, parity and sums
/// alike, also where the sums are those of before.
#[test]
fn a_crash_leaves_no_sum_that_is_believed_and_does_not_fit() {
    for (level, members) in SHAPES.into_iter().chain([(Level::Raid5, 5)]) {
        for seed in 1..12 {
            let mut random = Random(seed * 31);
            let array = TestArray::summed(level, members, CHUNK);
            let attribute = array.create("file");
            let file = array.open("file", attribute);
            write(&file, 0, &random.bytes(300_000));
            assert_eq!(scrub(&file, ScrubMode::Check), []);
            let paths = |slot: usize| [array.member_path(slot).join("data/file"), sums_path(&array, slot, attribute)];
            let image = || -> common::Image { (0..members).flat_map(paths).map(|path| std::fs::read(path).unwrap()).collect() };
            let before = image();
            let offset = random.below(290_000);
            let length = 1 + random.below(9000) as usize;
            write(&file, offset, &random.bytes(length));
            let cut = common::some_lines(&mut random, &before, &image());
            for (path, bytes) in (0..members).flat_map(paths).zip(&cut) {
                File::options().write(true).open(path).unwrap().write_all_at(bytes, 0).unwrap();
            }
            drop(file);
            array.lose_segment();
            let file = array.open_in(array.again(), "file", attribute);
            let found = scrub(&file, ScrubMode::Check);
            assert_eq!(found, [], "{level:?} {members} seed {seed}: {length} bytes at {offset}");
            let length = 1 + random.below(90_000) as usize;
            write(&file, random.below(200_000), &random.bytes(length));
            assert_eq!(scrub(&file, ScrubMode::Check), [], "{level:?} {members} seed {seed}");
        }
    }
}

/// A member that comes back after it was out, or is made anew, is not told to be wrong, and its sums
/// are sealed.
#[test]
fn what_a_member_lost_has_no_sums_until_it_is_sealed() {
    for (level, members) in SHAPES {
        let array = TestArray::summed(level, members, CHUNK);
        let attribute = array.create("file");
        let file = array.open("file", attribute);
        let content = Random(6).bytes(500_000);
        write(&file, 0, &content);
        drop(file);
        let path = array.member_path(1).join("data/file");
        let held = std::fs::metadata(&path).unwrap().len();
        // The backing file is emptied behind the array's back: zeros, and the sums are those of before.
        File::options().write(true).open(&path).unwrap().write_all_at(&vec![0; held as usize], 0).unwrap();
        assert!(array.files.note_lost(attribute, 1));
        let file = array.open("file", attribute);
        assert!(read(&file, 0, content.len()) == content, "{level:?} {members}");
        assert_eq!(scrub(&file, ScrubMode::Check), [], "{level:?} {members}");
        flip(&array, 1, 5000);
        let found = scrub(&file, ScrubMode::Repair);
        assert!(matches!(&found[..], [(_, Mended::Rewritten)]), "{level:?} {members}: {found:?}");
        assert!(read(&file, 0, content.len()) == content, "{level:?} {members}");
    }
}

/// A process dies that has made a file without a name, whether the file lies in `.cxlraid` by then or
/// not: with the record the sums go.
#[test]
fn the_sums_of_a_file_that_a_dead_process_left_without_a_name_go_with_it() {
    for is_kept in [false, true] {
        let array = TestArray::summed(Level::Raid5, 3, CHUNK);
        let attribute = array.files.create_nameless_inode(b"/data/none").unwrap();
        (0..3).for_each(|slot| drop(array.files.array().open_sums(slot, attribute).unwrap().unwrap()));
        let link = |slot: usize, path: &[u8]| {
            std::fs::write(array.member_path(slot).join(std::str::from_utf8(path).unwrap()), b"").unwrap();
            Ok(())
        };
        if is_kept {
            array.files.keep_orphan(attribute, link).unwrap();
            array.files.clear_orphans();
        } else {
            array.files.free_nameless().unwrap();
        }
        assert_eq!(array.files.state_of(attribute), None);
        assert!((0..3).all(|slot| !sums_path(&array, slot, attribute).exists()), "kept {is_kept}");
    }
}
