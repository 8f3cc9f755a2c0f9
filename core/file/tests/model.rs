//! Files against a byte vector: random operations on every level, members dropping out, other
//! attachments looking on.

mod common;

use common::{Random, TestArray, read, write};
use cxlraid_file::FileRef;
use layout::Level;
use units::MemberSet;

const FILE_BYTES_MAX: u64 = 3 << 20;

fn one_run(level: Level, member_count: usize, chunk_bytes: u64, seed: u64) {
    let context = format!("RAID {level} x{member_count} chunk {chunk_bytes} seed {seed}");
    let mut random = Random(seed);
    let array = TestArray::new(level, member_count, chunk_bytes);
    let attribute = array.create("f");
    let mut file = array.open("f", attribute);
    let observer_files = array.again();
    let mut model: Vec<u8> = Vec::new();
    for step in 0..120 {
        let context = format!("{context} step {step}");
        operate(&file, &mut model, &mut random, &context);
        match random.below(12) {
            0 => {
                drop(file);
                // While a member is away that is not on record, nothing is done that it would miss.
                let left_alone = !array.files.array().runtime().out_unrecorded().is_empty();
                for slot in array.files.array().in_use().iter() {
                    let expected = array.files.array().default_geometry().member_bytes(model.len() as u64);
                    let found = array.raw(slot, "f").len() as u64;
                    assert!(found == expected || left_alone && found > expected, "{context}: trimmed from {found} to {expected}");
                }
                file = array.open("f", attribute);
            }
            1 => {
                let observer = array.open_in(observer_files, "f", attribute);
                assert_eq!(observer.size(), model.len() as u64, "{context}");
                assert!(read(&observer, 0, model.len() + 10) == model, "{context}: another attachment reads the same");
            }
            2 if step > 60 => drop_a_member(&array, &mut random),
            _ => {}
        }
    }
    assert!(read(&file, 0, model.len() + 1) == model, "{context}: at the end");
}

fn operate(file: &FileRef, model: &mut Vec<u8>, random: &mut Random, context: &str) {
    let offset = random.below(FILE_BYTES_MAX.min(model.len() as u64 + 100_000));
    let bytes = match random.below(4) {
        0 => random.below(100) + 1,
        1 => random.below(5000) + 1,
        _ => random.below(300_000) + 1,
    };
    match random.below(10) {
        0..4 => {
            let data = random.bytes(bytes as usize);
            write(file, offset, &data);
            splice(model, offset as usize, &data);
        }
        4..6 => {
            let data = random.bytes(bytes as usize);
            let (end, _) = file.append_slice(&data).unwrap();
            model.extend_from_slice(&data);
            assert_eq!(end, model.len() as u64, "{context}: append");
        }
        6 => {
            file.truncate(offset).unwrap();
            model.resize(offset as usize, 0);
        }
        7 => {
            file.punch(offset, bytes, false).unwrap();
            let (start, end) = ((offset as usize).min(model.len()), ((offset + bytes) as usize).min(model.len()));
            model[start..end].fill(0);
        }
        8 => {
            file.allocate(offset, bytes, false).unwrap();
            if (offset + bytes) as usize > model.len() {
                model.resize((offset + bytes) as usize, 0);
            }
        }
        _ => {
            let start = (offset as usize).min(model.len());
            let end = ((offset + bytes) as usize).min(model.len());
            assert!(read(file, offset, bytes as usize) == model[start..end], "{context}: read {offset}+{bytes}");
        }
    }
    assert_eq!(file.size(), model.len() as u64, "{context}");
}

fn splice(model: &mut Vec<u8>, offset: usize, data: &[u8]) {
    if model.len() < offset + data.len() {
        model.resize(offset + data.len(), 0);
    }
    model[offset..offset + data.len()].copy_from_slice(data);
}

fn drop_a_member(array: &TestArray, random: &mut Random) {
    let array = array.files.array();
    let out = array.runtime().out();
    let victim = random.below(array.members().len() as u64) as usize;
    let more = MemberSet::from_bits(out.bits() | 1 << victim);
    if array.default_geometry().survives(more) && !out.contains(victim) {
        array.runtime().add_out(MemberSet::EMPTY.with(victim));
    }
}

#[test]
fn every_level_agrees_with_a_byte_vector() {
    let shapes = [
        (Level::Raid0, 3),
        (Level::Raid1, 1),
        (Level::Raid1, 3),
        (Level::Raid4, 4),
        (Level::Raid5, 3),
        (Level::Raid5, 5),
        (Level::Raid6, 4),
        (Level::Raid6, 6),
        (Level::Raid01, 4),
        (Level::Raid10, 6),
    ];
    for (index, (level, member_count)) in shapes.into_iter().enumerate() {
        for chunk_bytes in [64, 4096, 65536] {
            one_run(level, member_count, chunk_bytes, 0x5eed + index as u64 * 1000 + chunk_bytes);
        }
    }
}

#[test]
fn a_member_that_was_out_is_stale_when_it_returns() {
    let array = TestArray::new(Level::Raid5, 3, 4096);
    let attribute = array.create("f");
    let file = array.open("f", attribute);
    write(&file, 0, &[1; 20_000]);
    array.files.array().runtime().add_out(MemberSet::EMPTY.with(1));
    write(&file, 5_000, &[2; 1_000]);
    drop(file);
    // Everybody leaves; the next attachment assembles from the superblocks alone.
    array.files.detach();
    array.lose_segment();
    let files = array.again();
    assert_eq!(files.array().runtime().out(), MemberSet::EMPTY.with(1));
    assert_eq!(files.array().members()[1].standing, array::Standing::Stale);
    let file = array.open_in(files, "f", attribute);
    let data = read(&file, 0, 30_000);
    assert!(data.len() == 20_000 && data[5_000..6_000] == [2; 1_000] && data[..5_000] == [1; 5_000]);
}

#[test]
fn raid1_members_hold_the_plain_file() {
    let array = TestArray::new(Level::Raid1, 3, 65536);
    let attribute = array.create("f");
    let data = Random(9).bytes(300_001);
    let file = array.open("f", attribute);
    for piece in data.chunks(777) {
        file.append_slice(piece).unwrap();
    }
    drop(file);
    for slot in 0..3 {
        assert!(array.raw(slot, "f") == data, "member {slot}");
    }
}

#[test]
fn bad_pointers_are_efault_and_leave_redundancy_whole() {
    let array = TestArray::new(Level::Raid5, 3, 4096);
    let attribute = array.create("f");
    let file = array.open("f", attribute);
    write(&file, 0, &[7; 40_000]);
    let bad = 16 as *mut u8;
    // SAFETY: the pointers are invalid on purpose; nothing of ours lies there.
    unsafe {
        assert_eq!(file.read_at(0, bad, 100), Err(sys::OsError::FAULT));
        assert_eq!(file.write_at(100, bad, 30_000), Err(sys::OsError::FAULT));
        assert_eq!(file.append(bad, 30_000), Err(sys::OsError::FAULT));
    }
    assert_eq!(file.size(), 40_000);
    array.files.array().runtime().add_out(MemberSet::EMPTY.with(0));
    assert!(read(&file, 0, 50_000) == [7; 40_000]);
}

#[test]
fn a_member_cut_short_under_a_mapping_fails_and_nothing_is_lost() {
    for level in [Level::Raid1, Level::Raid5, Level::Raid6, Level::Raid10] {
        let array = TestArray::new(level, 4, 4096);
        let attribute = array.create("f");
        let file = array.open("f", attribute);
        let data = Random(3).bytes(200_000);
        write(&file, 0, &data);
        std::fs::OpenOptions::new().write(true).open(array.member_path(1).join("data/f")).unwrap().set_len(0).unwrap();
        assert!(read(&file, 0, 200_000) == data, "RAID {level}");
        write(&file, 1000, &[5; 150_000]);
        assert!(read(&file, 1000, 150_000) == [5; 150_000], "RAID {level}");
        assert_eq!(array.files.array().runtime().out(), MemberSet::EMPTY.with(1), "RAID {level}");
    }
}

#[test]
fn a_member_that_fails_in_the_middle_of_writes_takes_nothing_with_it() {
    let mut random = Random(0xfa11);
    for level in [Level::Raid1, Level::Raid4, Level::Raid5, Level::Raid6, Level::Raid01, Level::Raid10] {
        for round in 0..12 {
            let context = format!("RAID {level} round {round}");
            let array = TestArray::new(level, 4, [4096, 16384][round % 2]);
            let attribute = array.create("f");
            let file = array.open("f", attribute);
            let mut model = random.bytes(300_000);
            write(&file, 0, &model);
            let victim = random.below(4) as usize;
            let cut = random.below(80_000);
            std::fs::OpenOptions::new().write(true).open(array.member_path(victim).join("data/f")).unwrap().set_len(cut).unwrap();
            for _ in 0..30 {
                let count = random.below(20_000) as usize + 1;
                let (data, offset) = (random.bytes(count), random.below(280_000));
                write(&file, offset, &data);
                splice(&mut model, offset as usize, &data);
            }
            assert!(read(&file, 0, 300_000) == model, "{context}");
        }
    }
}
