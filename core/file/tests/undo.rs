//! A process dies in the middle of a change of stripes while a member with data of them is out: no
//! byte beside the bytes that it was changing is lost.

mod common;

use array::Config;
use common::{Random, TestArray, read, write};
use cxlraid_file::{FileRef, Files};
use dax::Access;
use format::Attribute;
use layout::Level;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use sys::rustix::fs::{Mode, OFlags, open};
use sys::rustix::mm::{MprotectFlags, mprotect};
use units::{MemberSet, PAGE_BYTES};

const CHILD: &str = "CXLRAID_TEST_UNDO_CHILD";
const FILE_BYTES: usize = 600_000;
/// Level, members, chunk, members out.
const SHAPES: [(Level, usize, u64, u32); 7] = [
    (Level::Raid4, 3, 4096, 0b1),
    (Level::Raid5, 3, 64, 0b10),
    (Level::Raid5, 3, 65536, 0b1),
    (Level::Raid5, 12, 4096, 0b1000),
    (Level::Raid6, 4, 4096, 0b100),
    (Level::Raid6, 5, 65536, 0b10010),
    (Level::Raid6, 6, 64, 0b11),
];

/// An array with members out, and what its file holds.
struct Scene {
    array: TestArray,
    attribute: Attribute,
    file: FileRef,
    out: MemberSet,
    expected: Vec<u8>,
    random: Random,
}

impl Scene {
    fn new((level, member_count, chunk, out): (Level, usize, u64, u32), seed: u64) -> Self {
        let array = TestArray::new(level, member_count, chunk);
        let attribute = array.create("f");
        let file = array.open("f", attribute);
        let mut random = Random(seed);
        let expected = random.bytes(FILE_BYTES);
        write(&file, 0, &expected);
        let out = MemberSet::from_bits(out);
        let _ = array.files.array().runtime().add_out(out);
        Self { array, attribute, file, out, expected, random }
    }

    fn range(&mut self) -> std::ops::Range<usize> {
        let longest = [200, 10_000, 200_000][self.random.below(3) as usize];
        let start = self.random.below(FILE_BYTES as u64) as usize;
        start..(start + 1 + self.random.below(longest) as usize).min(FILE_BYTES)
    }

    /// Runs the child process with these words more.
    fn child(&self, words: &str) -> ExitStatus {
        let level = self.array.config.level;
        let mounts: Vec<_> = self.array.config.mounts.iter().map(|mount| String::from_utf8_lossy(mount)).collect();
        let Attribute { inode, generation } = self.attribute;
        let scene = format!("{level} {} {inode} {generation} {} {words}", mounts.join(":"), self.out.bits());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child_process"]).env(CHILD, scene).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().unwrap()
    }

    /// Every byte of `range` is old or `new`, and nothing else has changed.
    fn check(&mut self, range: std::ops::Range<usize>, new: impl Fn(usize) -> u8, what: &str) {
        let found = read(&self.file, 0, FILE_BYTES);
        for (at, &byte) in found.iter().enumerate() {
            let is_right = byte == self.expected[at] || range.contains(&at) && byte == new(at);
            assert!(is_right, "{what}: byte {at} is neither old nor new, with {range:?} being changed and {:?} out", self.out);
        }
        assert_eq!(self.file.verify(), Ok(0), "{what}");
        self.expected = found;
    }
}

fn new_byte(round: u64, at: usize) -> u8 {
    (at as u64).wrapping_mul(round * 2 + 3) as u8
}

/// Not a test by itself: a process that dies in the middle of a change.
#[test]
fn child_process() {
    let Ok(scene) = std::env::var(CHILD) else { return };
    let mut words = scene.split(' ');
    let mut word = || words.next().unwrap();
    let (level, mounts) = (word().parse().unwrap(), word());
    let [inode, generation, out]: [u64; 3] = std::array::from_fn(|_| word().parse().unwrap());
    let (attribute, out) = (Attribute { inode, generation }, MemberSet::from_bits(out as u32));
    let mounts: Vec<Vec<u8>> = mounts.split(':').map(|mount| mount.as_bytes().to_vec()).collect();
    let config = Config::new(level, None, &mounts, &[b"/data".to_vec()], String::new()).unwrap();
    let files = Files::new(array::Array::attach(&config).unwrap()).unwrap();
    let path = |slot: usize| [&mounts[slot], &b"/data/f"[..]].concat();
    let fd = |slot| (!out.contains(slot)).then(|| open(path(slot), OFlags::RDWR, Mode::empty()).unwrap());
    let backing = || Ok(((0..mounts.len()).map(fd).collect(), Access::ReadWrite));
    let file = files.open(attribute, true, backing).unwrap();
    let role = word();
    let [slot, page, offset, bytes, round]: [u64; 5] = std::array::from_fn(|_| word().parse().unwrap());
    if role == "write" {
        // A file is mapped once it was read some times.
        (0..8).for_each(|_| drop(read(&file, 0, FILE_BYTES)));
        close_to_stores(&String::from_utf8(path(slot as usize)).unwrap(), page as usize);
        let data: Vec<u8> = (offset..offset + bytes).map(|at| new_byte(round, at as usize)).collect();
        return write(&file, offset, &data);
    }
    // A hole, or zeros, of which the first member in use alone gets its part.
    let geometry = file.geometry();
    let runtime = files.array().runtime();
    let shared = runtime.find_file(inode << 24 | generation).unwrap();
    for lock in &shared.stripes {
        let _ = lock.write_begin(runtime.me(), runtime);
    }
    let (start, end) = (geometry.member_bytes(offset), geometry.member_bytes(offset + bytes));
    let undo = runtime.take_undo(inode << 24 | generation).unwrap().unwrap();
    undo.record().arm_zeros(start, end - start);
    let first = files.array().in_use().lowest().unwrap();
    std::os::unix::fs::FileExt::write_all_at(&std::fs::File::from(fd(first).unwrap()), &vec![0; (end - start) as usize], start)
        .unwrap();
    std::process::abort();
}

/// Whoever stores to this file through its mappings, from this page on, dies of it.
fn close_to_stores(path: &str, page: usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut found = false;
    for line in maps.lines().filter(|line| line.ends_with(path)) {
        let (start, rest) = line.split_once('-').unwrap();
        let end = rest.split_once(' ').unwrap().0;
        let [start, end] = [start, end].map(|address| usize::from_str_radix(address, 16).unwrap());
        let start = start + page * PAGE_BYTES;
        if start < end {
            // SAFETY: a part of a mapping of the library's; what stores to it is meant to die.
            unsafe { mprotect(start as *mut _, end - start, MprotectFlags::READ) }.unwrap();
        }
        found = true;
    }
    assert!(found, "{path} is not mapped");
}

#[test]
fn bytes_beside_what_a_dead_writer_stored_are_what_they_were() {
    let mut deaths = 0;
    for (index, shape) in SHAPES.into_iter().enumerate() {
        let mut scene = Scene::new(shape, index as u64 + 1);
        let in_use: Vec<usize> = (0..shape.1).filter(|&slot| !scene.out.contains(slot)).collect();
        // The members that are out go on record.
        write(&scene.file, 0, &scene.expected[..10]);
        for round in 0..12u64 {
            let range = scene.range();
            let slot = in_use[scene.random.below(in_use.len() as u64) as usize];
            let pages = scene.file.geometry().member_bytes(FILE_BYTES as u64) / PAGE_BYTES as u64;
            let page = if scene.random.below(2) == 0 { 0 } else { scene.random.below(pages) };
            let status = scene.child(&format!("write {slot} {page} {} {} {round}", range.start, range.len()));
            assert!(status.success() || status.signal() == Some(11), "{shape:?}: {status}");
            deaths += u32::from(!status.success());
            scene.check(
                range,
                |at| new_byte(round, at),
                &format!("{shape:?}, round {round}, stores to {slot} from page {page} on"),
            );
        }
    }
    assert!(deaths > 30, "only {deaths} died");
}

#[test]
fn a_hole_that_a_dead_process_began_to_make_is_made() {
    for (index, shape) in SHAPES.into_iter().enumerate() {
        let mut scene = Scene::new(shape, index as u64 + 1);
        write(&scene.file, 0, &scene.expected[..10]);
        let stripe = scene.file.geometry().stripe_bytes() as usize;
        let range = stripe..(FILE_BYTES / 2 / stripe).max(2) * stripe;
        let status = scene.child(&format!("zero 0 0 {} {} 0", range.start, range.len()));
        assert_eq!(status.signal(), Some(6), "{shape:?}");
        scene.check(range.clone(), |_| 0, &format!("{shape:?}"));
        assert!(scene.expected[range].iter().all(|&byte| byte == 0), "{shape:?}");
    }
}

/// Nobody was there when it died, and nobody remembers its locks: the first to open the file undoes
/// what was under way.
#[test]
fn what_the_last_process_was_doing_is_undone_by_the_next() {
    let shape = SHAPES[2];
    let mut scene = Scene::new(shape, 5);
    write(&scene.file, 0, &scene.expected[..10]);
    // On the first stripe's second column; its first is on the member that is out, its parity on
    // the last.
    let range = 66_000..74_000;
    let status = scene.child(&format!("write 2 0 {} {} 1", range.start, range.len()));
    assert_eq!(status.signal(), Some(11));
    scene.array.files.array().runtime().detach();
    std::mem::forget(std::mem::replace(&mut scene.file, scene.array.open_in(scene.array.again(), "f", scene.attribute)));
    scene.check(range, |at| new_byte(1, at), "opened anew");
}

/// Who may not write to the file cannot undo what the dead left: it is refused, and leaves that to
/// others.
#[test]
fn who_may_only_read_is_never_shown_what_nobody_wrote() {
    let (mut deaths, mut refusals) = (0, 0);
    for (index, shape) in SHAPES.into_iter().enumerate() {
        for round in 0..6u64 {
            let mut scene = Scene::new(shape, 1000 + 100 * index as u64 + round);
            write(&scene.file, 0, &scene.expected[..10]);
            let range = scene.range();
            let slot = scene.array.files.array().in_use().lowest().unwrap();
            let status = scene.child(&format!("write {slot} 0 {} {} {round}", range.start, range.len()));
            deaths += u32::from(!status.success());
            let reader = scene.array.again();
            let fd = |slot: usize| open(scene.array.member_path(slot).join("data/f"), OFlags::RDONLY, Mode::empty()).unwrap();
            let fds = || (0..shape.1).map(|slot| (!scene.out.contains(slot)).then(|| fd(slot))).collect();
            let file = reader.open(scene.attribute, false, || Ok((fds(), Access::ReadOnly))).unwrap();
            for at in (0..FILE_BYTES).step_by(1000) {
                let mut bytes = [0; 1000];
                // SAFETY: the buffer is ours.
                match unsafe { file.read_at(at as u64, bytes.as_mut_ptr(), bytes.len()) } {
                    Ok(count) => {
                        let is_right =
                            |at: usize, byte| byte == scene.expected[at] || range.contains(&at) && byte == new_byte(round, at);
                        let wrong = (at..at + count).find(|&place| !is_right(place, bytes[place - at]));
                        assert_eq!(wrong, None, "{shape:?}, round {round}, {range:?} being written");
                    }
                    Err(error) => {
                        assert_eq!(error, sys::OsError::IO);
                        refusals += 1;
                    }
                }
            }
            std::mem::forget(file);
            scene.check(range, |at| new_byte(round, at), &format!("{shape:?}, round {round}, afterwards"));
        }
    }
    assert!(deaths > 20, "only {deaths} died");
    assert!(refusals > 10, "only {refusals} reads were refused");
}

/// With all members in, what a dead writer left half done is made good by the next process to open
/// the file or to call fsync, wherever it then reads: a member may be lost later.
#[test]
fn a_member_lost_later_finds_whole_stripes() {
    let (mut deaths, mut damaged) = (0, Vec::new());
    for (index, (level, member_count, chunk, out)) in SHAPES.into_iter().enumerate() {
        for round in 0..8u64 {
            let mut scene = Scene::new((level, member_count, chunk, 0), 100 * index as u64 + round);
            let range = scene.range();
            let slot = scene.random.below(member_count as u64);
            let status = scene.child(&format!("write {slot} 0 {} {} {round}", range.start, range.len()));
            deaths += u32::from(!status.success());
            if round % 2 == 0 {
                scene.file.sync().unwrap();
            } else {
                std::mem::forget(scene.array.open_in(scene.array.again(), "f", scene.attribute));
            }
            let _ = scene.array.files.array().runtime().add_out(MemberSet::from_bits(out));
            let found = read(&scene.file, 0, FILE_BYTES);
            let is_right = |at: usize| found[at] == scene.expected[at] || range.contains(&at) && found[at] == new_byte(round, at);
            if let Some(at) = (0..FILE_BYTES).find(|&at| !is_right(at)) {
                damaged.push(format!(
                    "RAID {level} of {member_count}, chunk {chunk}, round {round}: byte {at}, {range:?} being written"
                ));
            }
        }
    }
    assert!(damaged.is_empty(), "{}", damaged.join("\n"));
    assert!(deaths > 20, "only {deaths} died");
}

/// A member goes out in order. A writer that begins when that is announced, and dies after the last
/// look at what the dead have left, has saved what makes its stripes whole.
#[test]
fn a_writer_that_dies_while_a_member_goes_out_harms_no_other_byte() {
    let mut deaths = 0;
    for (index, (level, member_count, chunk, out)) in SHAPES.into_iter().enumerate() {
        for round in 0..8u64 {
            let mut scene = Scene::new((level, member_count, chunk, 0), 100 * index as u64 + round);
            let range = scene.range();
            let slot = scene.random.below(member_count as u64);
            let runtime = scene.array.files.array().runtime();
            let words = format!("write {slot} 0 {} {} {round}", range.start, range.len());
            let has_died = std::cell::Cell::new(false);
            let write = || has_died.set(!scene.child(&words).success());
            assert!(runtime.let_go(MemberSet::from_bits(out), |_| true, write));
            deaths += u32::from(has_died.get());
            scene.out = MemberSet::from_bits(out);
            scene.check(
                range,
                |at| new_byte(round, at),
                &format!("RAID {level} of {member_count}, chunk {chunk}, round {round}"),
            );
        }
    }
    assert!(deaths > 20, "only {deaths} died");
}

/// A write that was begun before a member is to go out is waited for.
#[test]
fn a_member_goes_out_when_those_who_write_have_written() {
    let scene = Scene::new((Level::Raid5, 3, 4096, 0), 5);
    let runtime = scene.array.files.array().runtime();
    let key = scene.attribute.inode << 24 | scene.attribute.generation;
    let lock = &runtime.find_file(key).unwrap().stripes[7];
    let _ = lock.write_begin(runtime.me(), runtime);
    let has_written = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(100));
            has_written.store(true, std::sync::atomic::Ordering::SeqCst);
            lock.write_end();
        });
        let settled = || assert!(has_written.load(std::sync::atomic::Ordering::SeqCst), "it goes out while a write is under way");
        assert!(runtime.let_go(MemberSet::from_bits(1), |_| true, settled));
    });
}

/// Records of the dead may all wait for files that nobody opens: others go on.
#[test]
fn records_of_the_dead_hold_nobody_up() {
    let mut scene = Scene::new(SHAPES[2], 9);
    let other = scene.array.create("other");
    let other = scene.array.open("other", other);
    write(&scene.file, 0, &scene.expected[..10]);
    let status = scene.child("write 2 0 66000 8000 1");
    assert_eq!(status.signal(), Some(11));
    let runtime = scene.array.files.array().runtime();
    let taken: Vec<_> = std::iter::from_fn(|| runtime.take_undo(1).unwrap()).collect();
    assert_eq!(taken.len(), array::UNDO_COUNT - 1, "the dead process' record is not given to others");
    write(&other, 0, &[7; 100_000]);
    assert!(read(&other, 0, 100_000) == [7; 100_000]);
    drop(taken);
    scene.check(66_000..74_000, |at| new_byte(1, at), "afterwards");
    assert_eq!(std::iter::from_fn(|| runtime.take_undo(1).unwrap().map(std::mem::forget)).count(), array::UNDO_COUNT);
}
