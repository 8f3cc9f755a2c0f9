//! With a journal each write is old or new as a whole, wherever a death or a crash cuts it short,
//! with any member lost in the same crash, and however often its replay is cut short itself.
//!
//! A test makes the steps of a write by hand: it puts some of the lines that the write changed, on
//! the members and in the journal, back as they were (see `crash.rs`).

mod common;

use common::{Image, LINE, Random, TestArray, read, some_lines, write};
use cxlraid_file::{FileRef, Files};
use format::{Attribute, InodeRecord, JOURNAL_LANE_HEAD_BYTES, JOURNAL_SETTLED_OFFSET, JournalHeader, JournalRecord};
use layout::Level;
use std::os::unix::fs::FileExt;
use sync::{Liveness, OwnerId};
use sys::rustix::fs::{Mode, OFlags, open};

const SHAPES: [(Level, usize, u64); 8] = [
    (Level::Raid0, 3, 4096),
    (Level::Raid1, 3, 65536),
    (Level::Raid4, 3, 4096),
    (Level::Raid5, 4, 64),
    (Level::Raid5, 8, 4096),
    (Level::Raid6, 5, 4096),
    (Level::Raid10, 4, 4096),
    (Level::Raid01, 4, 65536),
];

/// Enough of a lane for every write here.
const LANE_PART_BYTES: usize = 400_000;

struct Scene {
    array: TestArray,
    attribute: Attribute,
    old: Vec<u8>,
}

/// What of a scene's media changes.
#[derive(Clone)]
struct State {
    data: Image,
    inodes: Image,
    /// The lanes' heads and payloads, of each copy of the journal.
    journal: Image,
}

fn store(path: &std::path::Path, bytes: &[u8], at: u64) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

impl Scene {
    fn new(shape: (Level, usize, u64), on_members: bool, bytes: usize, seed: u64) -> Self {
        let array = TestArray::journaled(shape.0, shape.1, shape.2, on_members);
        let attribute = array.create("f");
        let old = Random(seed).bytes(bytes);
        write(&array.open("f", attribute), 0, &old);
        Self { array, attribute, old }
    }

    fn open(&self, files: &'static Files) -> FileRef {
        self.array.open_in(files, "f", self.attribute)
    }

    fn header(&self) -> JournalHeader {
        self.array.files.array().journal().unwrap().header
    }

    fn paths(&self, name: &str) -> Vec<std::path::PathBuf> {
        (0..self.array.config.mounts.len()).map(|slot| self.array.member_path(slot).join(name)).collect()
    }

    fn state(&self) -> State {
        let image = |name| self.paths(name).iter().map(|path| std::fs::read(path).unwrap()).collect();
        let lanes = |path: &std::path::PathBuf| {
            let (file, header) = (std::fs::File::open(path).unwrap(), self.header());
            let mut bytes = vec![0; header.lane_count * LANE_PART_BYTES];
            for (lane, part) in bytes.chunks_mut(LANE_PART_BYTES).enumerate() {
                file.read_exact_at(part, header.lane_offset(lane)).unwrap();
            }
            bytes
        };
        let journal = self.array.journal_paths().iter().map(lanes).collect();
        State { data: image("data/f"), inodes: image(".cxlraid/inodes"), journal }
    }

    fn restore(&self, state: &State) {
        self.paths("data/f").iter().zip(&state.data).for_each(|(path, bytes)| store(path, bytes, 0));
        // What the header of a table says was durable before any record was changed.
        let header = format::TABLE_HEADER_BYTES;
        let tables = self.paths(".cxlraid/inodes");
        tables.iter().zip(&state.inodes).for_each(|(path, bytes)| store(path, &bytes[header..], header as u64));
        for (path, bytes) in self.array.journal_paths().iter().zip(&state.journal) {
            for (lane, part) in bytes.chunks(LANE_PART_BYTES).enumerate() {
                store(path, part, self.header().lane_offset(lane));
            }
        }
    }

    /// Writes, and gives the states before and after. The file stays open, as a crash finds it.
    fn write(&self, offset: usize, bytes: &[u8]) -> (State, State) {
        let before = self.state();
        write(&std::mem::ManuallyDrop::new(self.open(self.array.files)), offset as u64, bytes);
        let (mut before, after) = (before, self.state());
        for (before, after) in before.data.iter_mut().zip(&after.data) {
            before.resize(after.len(), 0);
        }
        (before, after)
    }

    fn record(&self, slot: usize) -> InodeRecord {
        let table = std::fs::read(self.array.member_path(slot).join(".cxlraid/inodes")).unwrap();
        let at = format::inode_record_offset(self.attribute.inode) as usize;
        InodeRecord::decode(self.attribute.inode, table[at..at + 64].try_into().unwrap()).unwrap().unwrap()
    }

    /// The machine has crashed; what is found then, in which nothing waits any more.
    fn recovered(&self, lost: Option<usize>) -> Vec<u8> {
        self.array.lose_segment();
        if let Some(slot) = lost {
            self.array.lose_member(slot);
        }
        let files = self.array.again();
        let told = files.told(self.attribute).unwrap().size;
        let file = self.open(files);
        assert_eq!(told, file.size(), "who asks before the first open is told the same");
        assert_eq!(files.waiting_records().len(), 0);
        assert_eq!(file.verify(), Ok(0));
        let slot = files.array().first_in_use().unwrap();
        assert_eq!(self.record(slot).flags & format::FLAG_DOUBTFUL, 0, "nothing is in doubt");
        read(&file, 0, file.size() as usize + 1)
    }
}

fn is_record(at: usize) -> bool {
    at % LANE_PART_BYTES < LINE
}

/// The journal before its commit was durable: some of the payload, some words of the record.
fn not_committed(random: &mut Random, before: &State, after: &State) -> Image {
    let mut mixed = some_lines(random, &before.journal, &after.journal);
    let torn = random.below(7) as usize;
    for ((mixed, before), after) in mixed.iter_mut().zip(&before.journal).zip(&after.journal) {
        for at in (0..mixed.len()).filter(|&at| is_record(at)) {
            // One word at least is not there, of those that the checksum covers and of it; the
            // settled word is never another one.
            let word = at % LINE / 8;
            let arrived = word != torn && word != 7 && random.below(2) == 0;
            mixed[at] = if arrived { after[at] } else { before[at] };
        }
    }
    mixed
}

/// The journal between commit and settled.
fn committed(before: &State, after: &State) -> Image {
    let mut journal = after.journal.clone();
    for (journal, before) in journal.iter_mut().zip(&before.journal) {
        for lane in (0..journal.len()).step_by(LANE_PART_BYTES) {
            let settled = lane + JOURNAL_SETTLED_OFFSET..lane + JOURNAL_SETTLED_OFFSET + 8;
            if journal[lane..lane + 56] != before[lane..lane + 56] {
                journal[settled.clone()].copy_from_slice(&before[settled]);
            }
        }
    }
    journal
}

fn each_scene(rounds: u64, mut check: impl FnMut(&str, &mut Random, &Scene, usize, Vec<u8>)) {
    for shape in SHAPES {
        for round in 0..rounds {
            let seed = (u64::from(shape.0.code()) << 32) | (shape.1 as u64) << 16 | (round + 1);
            let on_members = round % 2 == 0;
            let name =
                format!("RAID {}, {} members, chunk {}, on members {on_members}, seed {seed:#x}", shape.0, shape.1, shape.2);
            println!("{name}");
            let mut random = Random(seed);
            let bytes = 1 + random.below(200_000) as usize;
            let scene = Scene::new(shape, on_members, bytes, seed);
            let offset = random.below(bytes as u64 + 5000) as usize;
            let length_max = if random.below(2) == 0 { 300 } else { 90_000 };
            let length = 1 + random.below(length_max) as usize;
            let new = random.bytes(length);
            check(&name, &mut random, &scene, offset, new);
        }
    }
}

fn overwritten(old: &[u8], offset: usize, bytes: &[u8]) -> Vec<u8> {
    let mut new = old.to_vec();
    new.resize(new.len().max(offset + bytes.len()), 0);
    new[offset..offset + bytes.len()].copy_from_slice(bytes);
    new
}

/// A member to lose, or none.
fn some_member(random: &mut Random, scene: &Scene) -> Option<usize> {
    let count = scene.array.config.mounts.len();
    let slot = random.below(count as u64 + 1) as usize;
    (slot < count && scene.array.config.level != Level::Raid0).then_some(slot)
}

#[test]
fn a_write_that_was_not_committed_has_not_been() {
    each_scene(6, |name, random, scene, offset, bytes| {
        let (before, after) = scene.write(offset, &bytes);
        let journal = not_committed(random, &before, &after);
        scene.restore(&State { journal, ..before });
        assert!(scene.recovered(some_member(random, scene)) == scene.old, "{name}");
    });
}

#[test]
fn a_write_that_was_committed_is_there_as_a_whole_whichever_member_is_lost() {
    each_scene(12, |name, random, scene, offset, bytes| {
        let (before, after) = scene.write(offset, &bytes);
        let data = some_lines(random, &before.data, &after.data);
        let inodes = if random.below(2) == 0 { before.inodes.clone() } else { some_lines(random, &before.inodes, &after.inodes) };
        scene.restore(&State { journal: committed(&before, &after), data, inodes });
        let found = scene.recovered(some_member(random, scene));
        assert!(found == overwritten(&scene.old, offset, &bytes), "{name}");
    });
}

#[test]
fn a_record_that_only_one_copy_of_the_journal_has_is_replayed() {
    each_scene(4, |name, random, scene, offset, bytes| {
        let (before, after) = scene.write(offset, &bytes);
        let mut journal = committed(&before, &after);
        let kept = random.below(journal.len() as u64) as usize;
        let torn = not_committed(random, &before, &after);
        let others = (0..journal.len()).filter(|&copy| copy != kept).collect::<Vec<_>>();
        others.into_iter().for_each(|copy| journal[copy].clone_from(&torn[copy]));
        // Then nothing of it was in place.
        scene.restore(&State { journal, ..before });
        assert!(scene.recovered(None) == overwritten(&scene.old, offset, &bytes), "{name}");
    });
}

#[test]
fn a_settled_write_is_never_replayed() {
    each_scene(2, |name, random, scene, offset, bytes| {
        let (_, _) = scene.write(offset, &bytes);
        let written = overwritten(&scene.old, offset, &bytes);
        // What is put there since must stay.
        let later = random.bytes(bytes.len().min(1000));
        scene.write(offset, &later);
        let state = scene.state();
        let mut journal = state.journal.clone();
        if journal.len() > 1 {
            // The last word was stored on one copy only.
            let back =
                committed(&State { journal: journal.iter().map(|copy| vec![0; copy.len()]).collect(), ..state.clone() }, &state);
            journal[1].clone_from(&back[1]);
        }
        scene.restore(&State { journal, ..state });
        assert!(scene.recovered(None) == overwritten(&written, offset, &later), "{name}");
    });
}

#[test]
fn a_replay_cut_short_is_done_by_the_next() {
    each_scene(4, |name, random, scene, offset, bytes| {
        let (before, after) = scene.write(offset, &bytes);
        let cut = State {
            journal: committed(&before, &after),
            data: some_lines(random, &before.data, &after.data),
            inodes: before.inodes.clone(),
        };
        scene.restore(&cut);
        scene.array.lose_segment();
        // Assembled, and not opened: it waits.
        let files = scene.array.again();
        assert_eq!(files.waiting_records().len(), 1, "{name}");
        let assembled = scene.state();
        let file = std::mem::ManuallyDrop::new(scene.open(files));
        assert_eq!(files.waiting_records().len(), 0);
        drop(std::mem::ManuallyDrop::into_inner(file));
        let replayed = scene.state();
        let mut data = replayed.data.clone();
        for (data, before) in data.iter_mut().zip(&assembled.data) {
            data.resize(before.len().max(data.len()), 0);
        }
        let data = some_lines(random, &assembled.data, &data);
        scene.restore(&State { data, ..assembled });
        let found = scene.recovered(some_member(random, scene));
        assert!(found == overwritten(&scene.old, offset, &bytes), "{name}");
    });
}

#[test]
fn a_record_of_a_file_that_is_gone_or_another_journals_is_not_replayed() {
    for on_members in [true, false] {
        let scene = Scene::new((Level::Raid5, 3, 4096), on_members, 50_000, 7);
        let (before, after) = scene.write(100, &[7; 9000]);
        let mut state = State { journal: committed(&before, &after), ..before.clone() };
        let header = scene.header();
        for copy in &mut state.journal {
            for lane in copy.chunks_mut(LANE_PART_BYTES) {
                let Some((record, _)) = JournalRecord::decode(lane[..64].try_into().unwrap(), header.seed()) else { continue };
                let other = JournalRecord { generation: record.generation + 1, sequence: 1000, ..record };
                lane[..64].copy_from_slice(&other.encode(header.seed(), 999));
            }
        }
        scene.restore(&state);
        assert!(scene.recovered(None) == scene.old);
        let mut state = State { journal: committed(&before, &after), ..before };
        for copy in &mut state.journal {
            for lane in copy.chunks_mut(LANE_PART_BYTES) {
                let Some((record, _)) = JournalRecord::decode(lane[..64].try_into().unwrap(), header.seed()) else { continue };
                lane[..64].copy_from_slice(&record.encode(header.seed() ^ 1, 999));
            }
        }
        scene.restore(&state);
        assert!(scene.recovered(None) == scene.old);
    }
}

/// A process that was never there is dead.
struct Nobody;
impl Liveness for Nobody {
    fn is_alive(&self, _: OwnerId) -> bool {
        false
    }
}

#[test]
fn what_a_dead_writer_committed_is_there_for_those_that_live() {
    let dead = OwnerId::new(5).unwrap();
    each_scene(8, |name, random, scene, offset, bytes| {
        let (before, after) = scene.write(offset, &bytes);
        let (files, attribute) = (scene.array.files, scene.attribute);
        let data = some_lines(random, &before.data, &after.data);
        // The size is in the runtime segment: that of before, or stored with the inode record.
        scene.restore(&State { journal: committed(&before, &after), data, inodes: before.inodes.clone() });
        let runtime = files.array().runtime();
        let shared = runtime.find_file(attribute.inode << 24 | attribute.generation).unwrap();
        shared.size.store(scene.old.len() as u64, std::sync::atomic::Ordering::Relaxed);
        let _ = shared.size_lock.lock(dead, &Nobody);
        for lock in &shared.stripes {
            let _ = lock.write_begin(dead, &Nobody);
        }
        for lane in runtime.journal_lanes() {
            lane.0.store(u64::from(dead.get()) << 32 | 1, std::sync::atomic::Ordering::Relaxed);
        }
        let file = scene.open(files);
        let new = overwritten(&scene.old, offset, &bytes);
        // Whoever comes first sees the write as a whole: a writer, who asks for the size, who reads
        // all, who reads what was there.
        match random.below(4) {
            0 => write(&file, 0, &new[..1]),
            1 => assert_eq!(file.settled_size(), new.len() as u64, "{name}"),
            2 => assert!(read(&file, 0, new.len() + 1) == new, "{name}"),
            _ => assert!(read(&file, 0, scene.old.len()) == new[..scene.old.len()], "{name}"),
        }
        assert_eq!(file.verify(), Ok(0), "{name}");
        assert!(read(&file, 0, new.len() + 1) == new, "{name}");
        // The lanes are free again.
        write(&file, 0, &[1; 100]);
    });
}

#[test]
fn every_write_is_in_the_journal_up_to_a_piece_of_one_mebibyte() {
    for shape in SHAPES {
        let scene = Scene::new(shape, false, 10, 3);
        let file = scene.open(scene.array.files);
        let data = Random(9).bytes((5 << 19) + 77);
        write(&file, 3, &data);
        assert!(read(&file, 3, data.len()) == data, "RAID {}", shape.0);
        assert_eq!(file.verify(), Ok(0), "RAID {}", shape.0);
        let path = &scene.array.journal_paths()[0];
        let (journal, header) = (std::fs::File::open(path).unwrap(), scene.header());
        let mut pieces = Vec::new();
        for lane in 0..header.lane_count {
            let mut head = vec![0; JOURNAL_LANE_HEAD_BYTES];
            journal.read_exact_at(&mut head, header.lane_offset(lane)).unwrap();
            pieces.extend(JournalRecord::decode(head[..64].try_into().unwrap(), header.seed()));
        }
        let (last, settled) = pieces.into_iter().max_by_key(|(record, _)| record.offset).unwrap();
        assert_eq!((last.offset, last.length, settled), (3 + (2 << 20), (1 << 19) + 77, true));
        assert!(header.lane_bytes - JOURNAL_LANE_HEAD_BYTES >= last.payload_bytes);
    }
}

#[test]
fn a_bad_pointer_changes_nothing_and_the_size_stays() {
    for bytes in [9000, 3 << 20] {
        let scene = Scene::new((Level::Raid5, 3, 4096), true, 20_000, 5);
        let file = scene.open(scene.array.files);
        // SAFETY: nothing is mapped there; the engine finds out.
        let result = unsafe { file.write_at(15_000, std::ptr::without_provenance(16), bytes) };
        assert_eq!(result, Err(sys::OsError::FAULT));
        assert_eq!(file.size(), 20_000);
        assert!(read(&file, 0, 30_000) == scene.old);
        assert_eq!(file.verify(), Ok(0));
    }
}

#[test]
fn with_members_out_writes_are_atomic_too() {
    for shape in SHAPES.into_iter().filter(|shape| shape.0 != Level::Raid0) {
        for slot in 0..shape.1 {
            let scene = Scene::new(shape, true, 60_000, 5);
            scene.array.files.array().fail_member(slot).unwrap();
            let mut random = Random(slot as u64 + 1);
            let bytes = random.bytes(30_000);
            write(&scene.open(scene.array.files), 5_001, &bytes);
            let expected = overwritten(&scene.old, 5_001, &bytes);
            assert!(read(&scene.open(scene.array.files), 0, 70_000) == expected, "RAID {} without {slot}", shape.0);
            scene.array.lose_segment();
            let file = scene.open(scene.array.again());
            assert!(read(&file, 0, 70_000) == expected, "RAID {} without {slot}", shape.0);
            assert_eq!(file.verify(), Ok(0));
        }
    }
}

/// A truncation zeroes the rest of a stripe: what else is in the stripe must survive the loss of
/// its member, wherever that was cut short.
#[test]
fn zeros_in_part_of_a_stripe_are_atomic_whichever_member_is_lost() {
    for shape in SHAPES.into_iter().filter(|shape| shape.0.parity_count() > 0) {
        for seed in 1..=12 {
            let mut random = Random(seed);
            let scene = Scene::new(shape, seed % 2 == 0, 50_000 + random.below(60_000) as usize, seed);
            println!("RAID {}, {} members, chunk {}, seed {seed}", shape.0, shape.1, shape.2);
            let new = random.below(scene.old.len() as u64) as usize;
            let before = scene.state();
            let file = std::mem::ManuallyDrop::new(scene.open(scene.array.files));
            file.truncate(new as u64).unwrap();
            let mut after = scene.state();
            for (after, before) in after.data.iter_mut().zip(&before.data) {
                // Not cut yet.
                after.extend_from_slice(&before[after.len()..]);
            }
            let data = some_lines(&mut random, &before.data, &after.data);
            let journal = committed(&before, &after);
            assert!(journal != after.journal || (new as u64).is_multiple_of(file.geometry().stripe_bytes()));
            scene.restore(&State { journal, data, inodes: after.inodes.clone() });
            let slot = some_member(&mut random, &scene);
            scene.array.lose_segment();
            slot.into_iter().for_each(|slot| scene.array.lose_member(slot));
            let files = scene.array.again();
            let file = scene.open(files);
            assert_eq!(files.waiting_records().len(), 0);
            assert!(read(&file, 0, scene.old.len()) == scene.old[..new], "without {slot:?}");
            file.truncate(scene.old.len() as u64).unwrap();
            assert!(read(&file, new as u64, scene.old.len()).iter().all(|&byte| byte == 0), "without {slot:?}");
            assert_eq!(file.verify(), Ok(0));
        }
    }
}

/// A hole of whole stripes that some members have and others not yet, in whatever part: with one of
/// them lost it is made as a whole, or there is none of it.
#[test]
fn a_hole_cut_short_is_made_as_a_whole_whichever_member_is_lost() {
    for shape in SHAPES.into_iter().filter(|shape| shape.0.parity_count() > 0) {
        for seed in 1..=12 {
            let mut random = Random(seed);
            let scene = Scene::new(shape, seed % 2 == 0, 90_000 + random.below(60_000) as usize, seed);
            println!("RAID {}, {} members, chunk {}, seed {seed}", shape.0, shape.1, shape.2);
            let file = std::mem::ManuallyDrop::new(scene.open(scene.array.files));
            let stripe = file.geometry().stripe_bytes();
            let count = scene.old.len() as u64 / stripe;
            let first = random.below(count);
            let range = first * stripe..(first + 1 + random.below(count - first)) * stripe;
            let before = scene.state();
            file.punch(range.start, range.end - range.start, false).unwrap();
            let after = scene.state();
            let is_committed = seed % 3 > 0;
            let state = if is_committed {
                let data = some_lines(&mut random, &before.data, &after.data);
                State { journal: committed(&before, &after), data, inodes: after.inodes.clone() }
            } else {
                State {
                    journal: not_committed(&mut random, &before, &after),
                    inodes: after.inodes.clone(),
                    data: before.data.clone(),
                }
            };
            assert!(state.journal != after.journal, "there is a record");
            scene.restore(&state);
            let mut expected = scene.old.clone();
            if is_committed {
                expected[range.start as usize..range.end as usize].fill(0);
            }
            let slot = some_member(&mut random, &scene);
            assert!(scene.recovered(slot) == expected, "without {slot:?}, {range:?}");
        }
    }
}

const CHILD: &str = "CXLRAID_TEST_JOURNAL_CHILD";
const BLOCK_BYTES: usize = 30_000;
const BLOCK_COUNT: u64 = 20;

fn all_same(block: &[u8]) -> bool {
    block.iter().all(|&byte| byte == block[0])
}

/// Not a test by itself: a process that writes whole blocks until it is killed.
#[test]
fn writer_of_blocks() {
    let Ok(scene) = std::env::var(CHILD) else { return };
    let mut words = scene.split(' ');
    let mut word = || words.next().unwrap();
    let (level, mounts, inode, generation) = (word(), word(), word().parse().unwrap(), word().parse().unwrap());
    persist::fault::install_handlers().unwrap();
    let mounts: Vec<Vec<u8>> = mounts.split(':').map(|mount| mount.as_bytes().to_vec()).collect();
    let level = level.parse().unwrap();
    let config = array::Config::new(level, None, &mounts, &[b"/data".to_vec()], String::new()).unwrap();
    let files = Files::new(array::Array::attach(&config).unwrap()).unwrap();
    let backing = || {
        mounts.iter().map(|mount| {
            let path = [mount, &b"/data/f"[..]].concat();
            Some(sys::rustix::fs::open(path, sys::rustix::fs::OFlags::RDWR, sys::rustix::fs::Mode::empty()).unwrap())
        })
    };
    let opened = files.open(Attribute { inode, generation }, true, || Ok((backing().collect(), dax::Access::ReadWrite)));
    let file = opened.unwrap();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let file = &file;
            scope.spawn(move || {
                let mut random = Random(u64::from(std::process::id()) << 8 | thread | 1);
                loop {
                    let block = vec![random.next() as u8; BLOCK_BYTES];
                    write(file, random.below(BLOCK_COUNT) * BLOCK_BYTES as u64, &block);
                }
            });
        }
    });
}

#[test]
fn writers_killed_in_the_middle_leave_whole_writes_to_those_that_live_and_after_a_crash() {
    for (shape, on_members) in
        [((Level::Raid5, 3, 65536), false), ((Level::Raid1, 2, 65536), true), ((Level::Raid6, 4, 65536), true)]
    {
        let scene = Scene::new(shape, on_members, BLOCK_BYTES * BLOCK_COUNT as usize, 3);
        let file = scene.open(scene.array.files);
        for block in 0..BLOCK_COUNT {
            write(&file, block * BLOCK_BYTES as u64, &[1; BLOCK_BYTES]);
        }
        let mounts: Vec<_> = scene.array.config.mounts.iter().map(|mount| String::from_utf8_lossy(mount).into_owned()).collect();
        let Attribute { inode, generation } = scene.attribute;
        let words = format!("{} {} {inode} {generation}", shape.0, mounts.join(":"));
        let mut random = Random(u64::from(shape.0.code()) + 1);
        for round in 0..15 {
            let mut child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "writer_of_blocks"])
                .env(CHILD, &words)
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap();
            let until = std::time::Instant::now() + std::time::Duration::from_micros(20_000 + random.below(20_000));
            let mut at = 0;
            let mut look = |live: bool| {
                at = (at + 1) % BLOCK_COUNT;
                let block = read(&file, at * BLOCK_BYTES as u64, BLOCK_BYTES);
                assert!(all_same(&block), "RAID {}, round {round}, block {at}, while they write: {live}", shape.0);
            };
            while std::time::Instant::now() < until {
                look(true);
            }
            child.kill().unwrap();
            child.wait().unwrap();
            if round % 2 == 0 {
                // A peer goes on at once.
                write(&file, random.below(BLOCK_COUNT) * BLOCK_BYTES as u64, &[random.next() as u8; BLOCK_BYTES]);
                (0..BLOCK_COUNT).for_each(|_| look(false));
                assert_eq!(file.verify(), Ok(0), "RAID {}, round {round}", shape.0);
            }
        }
        drop(file);
        let slot = random.below(shape.1 as u64) as usize;
        scene.array.lose_segment();
        scene.array.lose_member(slot);
        let file = scene.open(scene.array.again());
        for block in 0..BLOCK_COUNT {
            assert!(
                all_same(&read(&file, block * BLOCK_BYTES as u64, BLOCK_BYTES)),
                "RAID {} without {slot}, block {block}",
                shape.0
            );
        }
    }
}

/// Dead processes may have had every lane. Who writes replays what they left, if the files are
/// open; has them opened if somebody can find them; and is refused otherwise until they are.
#[test]
fn lanes_of_the_dead_come_back() {
    for (f_is_open, is_found) in [(true, false), (false, false), (false, true)] {
        let scene = Scene::new((Level::Raid5, 3, 65536), true, 400_000, 3);
        let other = scene.array.create("other");
        let other = scene.array.open("other", other);
        let (before, after) = scene.write(1000, &[7; 30_000]);
        let mut journal = committed(&before, &after);
        let header = scene.header();
        for copy in &mut journal {
            // The same record in both lanes.
            let lanes: Vec<_> = copy.chunks(LANE_PART_BYTES).map(<[u8]>::to_vec).collect();
            let decode = |lane: &Vec<u8>| JournalRecord::decode(lane[..64].try_into().unwrap(), header.seed());
            let latest =
                lanes.iter().max_by_key(|lane| decode(lane).filter(|(_, settled)| !settled).map(|(record, _)| record.sequence));
            let latest = latest.unwrap().clone();
            copy.chunks_mut(LANE_PART_BYTES).for_each(|lane| lane.copy_from_slice(&latest));
        }
        scene.restore(&State { journal, ..before });
        let dead = OwnerId::new(5).unwrap();
        let runtime = scene.array.files.array().runtime();
        let shared = runtime.find_file(scene.attribute.inode << 24 | scene.attribute.generation).unwrap();
        let _ = shared.stripes[0].write_begin(dead, &Nobody);
        for lane in runtime.journal_lanes() {
            lane.0.store(u64::from(dead.get()) << 32 | 1, std::sync::atomic::Ordering::Relaxed);
        }
        let attribute = Attribute { inode: scene.attribute.inode, generation: scene.attribute.generation };
        let files = if f_is_open { scene.array.files } else { scene.array.again() };
        let written = if f_is_open {
            let file = scene.open(scene.array.files);
            write(&file, 300_000, &[9; 100]);
            write(&other, 0, &[9; 100]);
            read(&file, 1000, 30_000)
        } else {
            // Another attachment, where the first file is not open.
            let other = scene.array.open_in(files, "other", other.attribute());
            if is_found {
                let [first, second, third] = std::array::from_fn(|slot| scene.array.member_path(slot).join("data/f"));
                files.set_finder(move |wanted| {
                    assert_eq!(wanted, [attribute; 2]);
                    let fd = |path| Some(open(path, OFlags::RDWR, Mode::empty()).unwrap());
                    let fds = || Ok((vec![fd(&first), fd(&second), fd(&third)], dax::Access::ReadWrite));
                    drop(files.open(attribute, true, fds).unwrap());
                });
                write(&other, 0, &[9; 100]);
            } else {
                // SAFETY: the buffer is ours.
                assert_eq!(unsafe { other.write_at(0, [9; 100].as_ptr(), 100) }, Err(sys::OsError::IO));
                let waits: Vec<_> = files.waiting_records().iter().map(|waiting| waiting.attribute).collect();
                assert_eq!(waits, [attribute; 2]);
            }
            let found = read(&scene.open(files), 1000, 30_000);
            write(&other, 0, &[9; 100]);
            found
        };
        assert!(written.iter().all(|&byte| byte == 7), "open {f_is_open}, found {is_found}");
        assert_eq!(files.waiting_records().len(), 0);
        assert_eq!(scene.open(files).verify(), Ok(0));
    }
}

/// A write that makes the file longer waits in the journal, and a backing file is cut before it is
/// replayed: what that member lacks is computed.
#[test]
fn a_replay_does_not_hide_that_a_backing_file_was_cut() {
    for shape in SHAPES.into_iter().filter(|shape| shape.0 != Level::Raid0) {
        for (slot, left) in [(0, 20_000), (1, 0)] {
            let scene = Scene::new(shape, true, 150_000, 7);
            let new = Random(8).bytes(30_000);
            let (before, after) = scene.write(scene.old.len(), &new);
            let journal = committed(&before, &after);
            scene.restore(&State { journal, ..before });
            let backing = std::fs::OpenOptions::new().write(true).open(&scene.paths("data/f")[slot]).unwrap();
            backing.set_len(left).unwrap();
            let expected = overwritten(&scene.old, scene.old.len(), &new);
            assert!(scene.recovered(None) == expected, "{shape:?}: {left} bytes left on member {slot}");
        }
    }
}

/// A truncation that finds no lane has stored the new size and no zeros behind it: they are due
/// before the file grows again.
#[test]
fn a_truncation_that_fails_leaves_nothing_behind_the_end() {
    let shapes = SHAPES.into_iter().filter(|shape| shape.0.parity_count() > 0);
    for (shape, crashes) in shapes.flat_map(|shape| [(shape, false), (shape, true)]) {
        let scene = Scene::new(shape, true, 400_000, 3);
        let mut file = scene.open(scene.array.files);
        let lanes = || scene.array.files.array().runtime().journal_lanes().iter();
        let set_lanes = |word| lanes().for_each(|lane| lane.0.store(word, std::sync::atomic::Ordering::Relaxed));
        set_lanes(array::runtime::JOURNAL_LANE_WAITS);
        assert_eq!(file.truncate(100_001), Err(sys::OsError::IO), "{shape:?}");
        set_lanes(0);
        if crashes {
            // Others have used the lane that tells of the truncation.
            let other = scene.array.create("other");
            let other = scene.array.open("other", other);
            (0..4).for_each(|number| write(&other, number, b"x"));
            std::mem::forget(file);
            scene.array.lose_segment();
            file = scene.open(scene.array.again());
        }
        let size = file.size() as usize;
        file.truncate(500_000).unwrap();
        let found = read(&file, 0, 500_000);
        assert!(found[..size] == scene.old[..size], "{shape:?}");
        assert!(found[size..].iter().all(|&byte| byte == 0), "{shape:?}, {crashes}: bytes behind the end, at {size}");
        assert_eq!(file.verify(), Ok(0), "{shape:?}");
    }
}

/// A crash between the copies of the settled word: the copy that lacks it must not speak once the
/// lane has another payload.
#[test]
fn what_one_copy_says_is_settled_is_settled_on_all_before_the_lane_is_used() {
    let scene = Scene::new((Level::Raid5, 3, 4096), true, 50_000, 7);
    let (before, after) = scene.write(100, &[7; 9000]);
    let mut journal = after.journal.clone();
    journal[1] = committed(&before, &after)[1].clone();
    scene.restore(&State { journal, ..after });
    scene.array.lose_segment();
    let files = scene.array.again();
    let header = scene.header();
    for path in scene.array.journal_paths() {
        let file = std::fs::File::open(path).unwrap();
        for lane in 0..header.lane_count {
            let mut line = [0; 64];
            file.read_exact_at(&mut line, header.lane_offset(lane)).unwrap();
            assert!(JournalRecord::decode(&line, header.seed()).is_none_or(|(_, settled)| settled), "lane {lane}");
        }
    }
    assert_eq!(files.waiting_records().len(), 0);
}

/// A write of several pieces finds no lane for the second: what the first made of the file is said,
/// and an append is not begun anew behind it.
#[test]
fn a_write_that_stops_between_its_pieces_says_how_much_of_it_is_there() {
    use std::sync::atomic::Ordering;
    const BYTES: usize = 12 << 20;
    // Of appends and of other writes.
    let mut stops = [0; 2];
    let begin = std::time::Instant::now();
    for round in 0.. {
        assert!(begin.elapsed().as_secs() < 200, "{stops:?} of {round} writes were stopped, which is too few");
        let appends = round % 2 == 0;
        let try_count = if round % 4 < 2 { 200 } else { 1_000_000 };
        let array = TestArray::journaled(Level::Raid5, 3, 65536, false);
        let attribute = array.create("f");
        let file = array.open("f", attribute);
        let runtime = array.files.array().runtime();
        // Others' records come and go in all lanes; whoever looks for their files finds them.
        array.files.set_finder(move |_| {
            for lane in runtime.journal_lanes() {
                let _ = lane.0.compare_exchange(array::runtime::JOURNAL_LANE_WAITS, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        });
        let data: Vec<u8> = (0..BYTES / 8).flat_map(|word| (word as u64 + 1).to_le_bytes()).collect();
        let count = std::thread::scope(|scope| {
            scope.spawn(|| {
                let take = |lane: &array::runtime::JournalLane| {
                    lane.0.compare_exchange(0, array::runtime::JOURNAL_LANE_WAITS, Ordering::AcqRel, Ordering::Relaxed).is_ok()
                };
                // The writer lets go of its lane for a moment between two pieces. Who has a core of
                // its own meets that moment by trying on, and who shares the writer's by waking up
                // in it.
                let nap = || std::thread::sleep(std::time::Duration::from_nanos(1));
                while file.size() == 0 {
                    nap();
                }
                for lane in &runtime.journal_lanes()[..2] {
                    while !(0..try_count).any(|_| take(lane)) {
                        nap();
                    }
                }
            });
            // SAFETY: the buffer is ours.
            let written = unsafe {
                if appends {
                    file.append(data.as_ptr(), BYTES).map(|(_, count)| count)
                } else {
                    file.write_at(0, data.as_ptr(), BYTES)
                }
            };
            written.unwrap()
        });
        let found = read(&file, 0, 2 * BYTES);
        assert_eq!(found.len(), count, "appends: {appends}");
        assert!(found == data[..count], "appends: {appends}");
        stops[usize::from(appends)] += u32::from(count < BYTES);
        if stops.iter().all(|&stops| stops > 1) {
            println!("{stops:?} of {} writes were stopped", round + 1);
            return;
        }
    }
}

/// A write is committed, and both members fail before it is in place: it returns an error. Once
/// they work again, what is written to the same bytes is not replaced by it.
#[test]
fn a_write_that_failed_after_its_commit_is_not_replayed_over_a_newer_one() {
    use sys::rustix::mm::{MprotectFlags, mprotect};
    for growth in [0, 3000] {
        let scene = Scene::new((Level::Raid1, 2, 65536), false, 100_000, 3);
        let file = scene.open(scene.array.files);
        let offset = 100_000 - 6000 + growth;
        let protect = |flags| {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            for path in scene.paths("data/f") {
                for line in maps.lines().filter(|line| line.ends_with(path.to_str().unwrap())) {
                    let (start, rest) = line.split_once('-').unwrap();
                    let [start, end] = [start, rest.split_once(' ').unwrap().0].map(|at| usize::from_str_radix(at, 16).unwrap());
                    // SAFETY: mappings of the library's, which asks for a guard before it stores
                    // there.
                    unsafe { mprotect(start as *mut _, end - start, flags) }.unwrap();
                }
            }
        };
        write(&file, offset as u64, &[1; 10]);
        protect(MprotectFlags::READ);
        let failed = [7; 6000];
        // SAFETY: the buffer is ours.
        assert_eq!(unsafe { file.write_at(offset as u64, failed.as_ptr(), 6000) }, Err(sys::OsError::IO));
        protect(MprotectFlags::READ | MprotectFlags::WRITE);
        scene.array.files.array().runtime().set_out(units::MemberSet::EMPTY, units::MemberSet::EMPTY);
        write(&file, offset as u64, &[9; 2000]);
        file.truncate(offset as u64 + 1000).unwrap();
        drop(file);
        scene.array.lose_segment();
        let file = scene.open(scene.array.again());
        let mut expected = scene.old.clone();
        expected.truncate(offset);
        expected.extend([9; 1000]);
        assert_eq!(file.size(), expected.len() as u64, "growth {growth}");
        assert!(read(&file, 0, 200_000) == expected, "growth {growth}");
        assert_eq!(file.verify(), Ok(0));
    }
}

/// A write is committed and in place, and both copies of the journal fail before it is settled.
/// Nobody gets its lane: a crash in the middle of another payload would leave it under the record
/// of this write.
#[test]
fn a_lane_whose_record_could_not_be_settled_is_not_used() {
    use sys::rustix::mm::{MprotectFlags, mprotect};
    const BYTES: usize = 1 << 20;
    let scene = Scene::new((Level::Raid1, 2, 65536), true, 2 * BYTES, 3);
    let file = scene.open(scene.array.files);
    let (runtime, header) = (scene.array.files.array().runtime(), scene.header());
    let paths = scene.array.journal_paths();
    let copy = std::fs::File::open(paths.last().unwrap()).unwrap();
    let lines = || -> Vec<[u8; 64]> {
        let line = |lane| {
            let mut line = [0; 64];
            copy.read_exact_at(&mut line, header.lane_offset(lane)).unwrap();
            line
        };
        (0..header.lane_count).map(line).collect()
    };
    let waits = |line: &[u8; 64]| JournalRecord::decode(line, header.seed()).is_some_and(|(_, settled)| !settled);
    let protect = |ranges: &[[usize; 2]], flags| {
        for [start, end] in ranges {
            // SAFETY: mappings of the library's, which asks for a guard before it stores there.
            unsafe { mprotect(*start as *mut _, end - start, flags) }.unwrap();
        }
    };
    let mapped = || -> Vec<[usize; 2]> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let is_copy = |line: &&str| paths.iter().any(|path| line.ends_with(path.to_str().unwrap()));
        let range = |line: &str| {
            let (start, rest) = line.split_once('-').unwrap();
            [start, rest.split_once(' ').unwrap().0].map(|at| usize::from_str_radix(at, 16).unwrap())
        };
        maps.lines().filter(is_copy).map(range).collect()
    };
    let (mut met, mut round) = (0, 0);
    while met < 3 {
        round += 1;
        assert!(round < 1000, "{met}");
        write(&file, 0, &[1; 10]);
        let (ranges, before) = (mapped(), lines());
        let written = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let data = vec![round as u8; BYTES];
                // SAFETY: the buffer is ours.
                unsafe { file.write_at(0, data.as_ptr(), BYTES) }
            });
            while !writer.is_finished() && lines() == before {}
            protect(&ranges, MprotectFlags::READ);
            writer.join().unwrap()
        });
        let left: Vec<usize> = lines().iter().enumerate().filter(|(_, line)| waits(line)).map(|(lane, _)| lane).collect();
        for &lane in &left {
            let word = runtime.journal_lanes()[lane].0.load(std::sync::atomic::Ordering::Acquire);
            assert_eq!(word, array::runtime::JOURNAL_LANE_WAITS, "round {round}: {written:?}");
            met += 1;
        }
        protect(&ranges, MprotectFlags::READ | MprotectFlags::WRITE);
        runtime.set_out(units::MemberSet::EMPTY, units::MemberSet::EMPTY);
        // Who writes there next replays it, and has the lane again.
        write(&file, 5, &[9; 10]);
        assert!(!lines().iter().any(waits) && file.verify() == Ok(0));
        let expected = [&[round as u8; 5][..], &[9; 10], &[round as u8; 5]].concat();
        assert!(left.is_empty() || read(&file, 0, 20) == expected, "round {round}: {written:?}");
    }
}
