//! A scrub of a file finds every flipped byte of what members hold, says where it is as far as the
//! level can know, mends what it says, and sees nothing wrong while others write.

mod common;

use array::{Mismatch, Verdict};
use common::{Random, SHAPES_WITH_REDUNDANCY as SHAPES, TestArray, flip, read, write};
use cxlraid_file::{FileRef, Mapped, Mended, ScrubMode, Watch};
use layout::Level;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const CHUNK: u64 = 4096;

fn scrub(file: &FileRef, repair: bool) -> Vec<(Mismatch, Mended)> {
    let mut found = Vec::new();
    let mut add = |mismatch: &Mismatch, mended| found.push((mismatch.clone(), mended));
    let mode = if repair { ScrubMode::Repair } else { ScrubMode::Check };
    let scrubbed = file.scrub(mode, &mut Watch { found: &mut add, goes_on: &mut |_, _| true }).unwrap();
    assert_eq!(scrubbed.unsettled_bytes, 0);
    found
}

#[test]
fn every_flipped_byte_is_found_and_what_the_level_can_locate_is_mended() {
    for (level, members) in SHAPES {
        let mut random = Random(7 + members as u64);
        let array = TestArray::new(level, members, CHUNK);
        let file = array.open("file", array.create("file"));
        for size in [1, 1000, 4096, 100_000, 1_300_001] {
            let content = random.bytes(size);
            file.truncate(0).unwrap();
            write(&file, 0, &content);
            assert_eq!(scrub(&file, false), []);
            let held = file.geometry().member_bytes(size as u64);
            for _ in 0..12 {
                let (slot, offset) = (random.below(members as u64) as usize, random.below(held));
                flip(&array, slot, offset);
                let at = format!("{level:?} {members} size {size}: member {slot} at {offset}");
                let found = scrub(&file, false);
                assert_eq!(found.len(), 1, "{at}: {found:?}");
                let (mismatch, mended) = &found[0];
                assert!((mismatch.member_offset..mismatch.member_offset + 4096).contains(&offset), "{at}: {mismatch:?}");
                assert!(mismatch.bytes >= 1 && *mended == Mended::No, "{at}");
                let is_located = level == Level::Raid6 || (level, members) == (Level::Raid1, 3);
                match &mismatch.verdict {
                    Verdict::Located(wrong) => assert!(is_located && wrong.len() == 1 && wrong[0].0 == slot, "{at}: {wrong:?}"),
                    verdict => assert!(!is_located && *verdict == Verdict::Unknown, "{at}: {verdict:?}"),
                }
                let expected = if is_located { Mended::Rewritten } else { Mended::Recomputed };
                assert_eq!(scrub(&file, true).iter().map(|(_, mended)| *mended).collect::<Vec<_>>(), [expected], "{at}");
                assert_eq!(scrub(&file, false), [], "{at}");
                if is_located {
                    assert!(read(&file, 0, size) == content, "{at}");
                } else {
                    // What is wrong in the data stays; the next flip is to be the only one.
                    write(&file, 0, &content);
                    file.truncate(0).unwrap();
                    write(&file, 0, &content);
                }
            }
        }
    }
}

/// What rots on copies beside the one that is made anew is a scrub's to find: nobody knows which of
/// them is wrong.
#[test]
fn a_copy_that_is_made_anew_leaves_the_others_as_they_are() {
    for (level, members) in [(Level::Raid1, 3), (Level::Raid10, 4), (Level::Raid01, 4)] {
        let array = TestArray::new(level, members, CHUNK);
        let attribute = array.create("file");
        let file = array.open("file", attribute);
        write(&file, 0, &Random(9).bytes(2_500_000));
        let place = file.geometry().locate(CHUNK);
        let (lost, other) = (file.geometry().data_slot(0, 0, 0), file.geometry().data_slot(place.stripe, place.column, 1));
        drop(file);
        flip(&array, other, 100);
        assert!(array.files.note_lost(attribute, lost));
        let file = array.open("file", attribute);
        let found = scrub(&file, false);
        assert_eq!(found.len(), 1, "{level:?} {members}: {found:?}");
        assert_eq!((found[0].0.member_offset, found[0].0.bytes), (0, 1), "{level:?} {members}");
    }
}

/// Behind the end nothing but zeros is right, whatever most members say.
#[test]
fn what_rots_behind_the_end_becomes_zeros() {
    for (level, members) in SHAPES {
        let array = TestArray::new(level, members, CHUNK);
        let file = array.open("file", array.create("file"));
        if !level.has_chunks() {
            continue;
        }
        let content = Random(9).bytes(1000);
        for column in 1..file.geometry().data_columns() {
            file.truncate(0).unwrap();
            write(&file, 0, &content);
            flip(&array, file.geometry().data_slot(0, column, 0), 10);
            assert_eq!(scrub(&file, true).len(), 1, "{level:?} {members} column {column}");
            assert_eq!(scrub(&file, false), [], "{level:?} {members} column {column}");
            file.truncate(20_000).unwrap();
            let shown = read(&file, 0, 20_000);
            assert!(
                shown[..1000] == content && shown[1000..].iter().all(|&byte| byte == 0),
                "{level:?} {members} column {column}"
            );
            assert_eq!(scrub(&file, false), [], "{level:?} {members} column {column}");
        }
    }
}

#[test]
fn two_wrong_members_of_a_stripe_are_not_taken_for_one() {
    let array = TestArray::new(Level::Raid6, 5, CHUNK);
    let file = array.open("file", array.create("file"));
    write(&file, 0, &Random(3).bytes(60_000));
    flip(&array, 1, 100);
    flip(&array, 2, 200);
    let found = scrub(&file, false);
    assert!(found.len() == 1 && found[0].0.verdict == Verdict::Several && found[0].0.bytes == 2, "{found:?}");
    assert_eq!(scrub(&file, true)[0].1, Mended::Recomputed);
    assert_eq!(scrub(&file, false), []);
}

#[test]
fn a_member_that_is_out_is_said_to_be_and_what_is_left_is_compared() {
    let array = TestArray::new(Level::Raid6, 5, CHUNK);
    let file = array.open("file", array.create("file"));
    write(&file, 0, &Random(3).bytes(60_000));
    array.files.array().fail_member(4).unwrap();
    assert_eq!(scrub(&file, false), []);
    flip(&array, 1, 100);
    let found = scrub(&file, false);
    assert!(found.len() == 1 && found[0].0.verdict == Verdict::Unknown, "{found:?}");
    let scrubbed = file.scrub(ScrubMode::Check, &mut Watch { found: &mut |_, _| {}, goes_on: &mut |_, _| true }).unwrap();
    assert!(scrubbed.out.contains(4));
}

/// Finds two wrong units in one look, and lets something happen before the second one is mended.
fn with_two_wrong(array: &TestArray, file: &FileRef, act: impl FnOnce()) -> (Vec<(Mismatch, Mended)>, u64) {
    flip(array, 2, 100);
    flip(array, 2, 9000);
    let (mut found, mut act) = (Vec::new(), Some(act));
    let mut add = |mismatch: &Mismatch, mended| {
        found.push((mismatch.clone(), mended));
        if let Some(act) = act.take() {
            act();
        }
    };
    let scrubbed = file.scrub(ScrubMode::Repair, &mut Watch { found: &mut add, goes_on: &mut |_, _| true }).unwrap();
    (found, scrubbed.unsettled_bytes)
}

#[test]
fn a_wrong_unit_is_told_although_a_member_fails_before_it_is_mended() {
    let array = TestArray::new(Level::Raid6, 5, CHUNK);
    let file = array.open("file", array.create("file"));
    let content = Random(3).bytes(60_000);
    write(&file, 0, &content);
    let (found, unsettled) = with_two_wrong(&array, &file, || {
        let path = array.member_path(0).join("data/file");
        std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(0).unwrap();
    });
    let told: Vec<_> = found.iter().map(|(mismatch, mended)| (mismatch.member_offset / CHUNK, *mended)).collect();
    // With one member less nobody knows which one is wrong, and the redundancy is not made from
    // wrong data.
    assert_eq!((told, unsettled), (vec![(0, Mended::Rewritten), (2, Mended::No)], 0));
}

#[test]
fn what_a_process_begins_to_store_to_is_not_mended() {
    for (level, members) in [(Level::Raid6, 5), (Level::Raid1, 3)] {
        let array = TestArray::new(level, members, CHUNK);
        let attribute = array.create("file");
        let file = array.open("file", attribute);
        write(&file, 0, &Random(3).bytes(60_000));
        let other = array.open_in(array.again(), "file", attribute);
        let mapped = std::cell::OnceCell::new();
        let (found, unsettled) = with_two_wrong(&array, &file, || {
            let begun = Mapped::new(&other).unwrap();
            begun.store_directly().unwrap();
            begun.cover(0, 60_000).unwrap();
            assert!(mapped.set(begun).is_ok());
        });
        assert_eq!(found.iter().map(|(_, mended)| *mended).collect::<Vec<_>>(), [Mended::Rewritten], "{level:?}");
        assert_eq!(unsettled, 4096, "{level:?}");
        drop(mapped);
        assert_eq!(scrub(&file, true).iter().map(|(_, mended)| *mended).collect::<Vec<_>>(), [Mended::Rewritten], "{level:?}");
    }
}

#[test]
fn holes_cost_nothing() {
    let array = TestArray::new(Level::Raid5, 3, CHUNK);
    let file = array.open("file", array.create("file"));
    file.truncate(1 << 42).unwrap();
    write(&file, 1 << 40, b"in the middle");
    let (mut bytes, mut holes, mut steps) = (0, 0, 0);
    let mut goes_on = |more: u64, hole: u64| {
        (bytes, holes, steps) = (bytes + more, holes + hole, steps + 1);
        true
    };
    file.scrub(ScrubMode::Check, &mut Watch { found: &mut |_, _| panic!("nothing is wrong"), goes_on: &mut goes_on }).unwrap();
    assert!(bytes <= 2 << 20 && bytes + holes == 1 << 42 && steps < 10, "{bytes} {holes} {steps}");
}

#[test]
fn a_scrub_ends_when_it_is_told_to() {
    let array = TestArray::new(Level::Raid1, 2, CHUNK);
    let file = array.open("file", array.create("file"));
    write(&file, 0, &vec![1; 5 << 20]);
    let mut steps = 0;
    let mut goes_on = |_, _| {
        steps += 1;
        steps < 2
    };
    let scrubbed = file.scrub(ScrubMode::Check, &mut Watch { found: &mut |_, _| {}, goes_on: &mut goes_on }).unwrap();
    assert_eq!(scrubbed.bytes, 2 << 20);
}

/// Writers in two processes' places write, append and cut, in small and in large pieces, with and
/// without holes.
#[test]
fn a_scrub_beside_writers_sees_nothing_wrong() {
    for (level, members) in SHAPES {
        let array = TestArray::new(level, members, CHUNK);
        let attribute = array.create("file");
        let file = array.open("file", attribute);
        write(&file, 0, &Random(3).bytes(3 << 20));
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for seed in 1..3u64 {
                let (array, done) = (&array, &done);
                let others = array.again();
                scope.spawn(move || {
                    let file = array.open_in(others, "file", attribute);
                    let mut random = Random(seed * 77);
                    while !done.load(Ordering::Relaxed) {
                        let bytes = [1, 100, 5000, 200_000][random.below(4) as usize];
                        match random.below(20) {
                            0 => file.truncate(random.below(4 << 20)).unwrap(),
                            _ => write(&file, random.below(3 << 20), &random.bytes(bytes)),
                        }
                    }
                });
            }
            for round in 0..60 {
                let found = scrub(&file, round % 4 == 3);
                if !found.is_empty() {
                    done.store(true, Ordering::Relaxed);
                }
                assert_eq!(found, [], "{level:?} {members}");
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(scrub(&file, false), []);
    }
}
