//! A runtime segment in which any word may be any other: calls fail or do their work on the array,
//! but no process panics, hangs, is killed by a signal or changes anything outside of the array.
//!
//! A child process, which has a time limit, uses an array from several threads while one more thread
//! stores words to places in the segment, both drawn from a seed. The words hardly ever name a living
//! process as the owner of a lock. That may hang a call, which is allowed: a user who may attach may
//! also hold a lock and stop.

mod common;

use array::Array;
use common::{Random, TestArray};
use cxlraid_file::{FileRef, Files, Mapped};
use dax::Access;
use format::Attribute;
use layout::Level;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use sys::OsError;
use sys::rustix::fs::{Mode, OFlags, open};
use sys::rustix::mm::{MapFlags, ProtFlags, mmap};
use units::MemberSet;

/// What a child is to do: `words SEED COUNT`, `cut SEED` or `page`.
const CHILD: &str = "CXLRAID_TEST_SEGMENT_CHILD";
/// How long a child may take.
const AT_MOST: Duration = Duration::from_secs(60);
const FILE_BYTES: u64 = 300_000;
const NAMES: [&str; 3] = ["f0", "f1", "f2"];

/// Arrays: the level, the number of members, the chunk, the members that are out (a bit each), and
/// whether there is a journal.
const SHAPES: [(Level, usize, u64, u32, bool); 6] = [
    (Level::Raid1, 2, 4096, 0, false),
    (Level::Raid5, 3, 4096, 0, false),
    (Level::Raid5, 3, 64, 0b10, false),
    (Level::Raid6, 5, 4096, 0b1001, false),
    (Level::Raid5, 3, 4096, 0, true),
    (Level::Raid10, 4, 65536, 0b1, false),
];

/// Makes an array of a shape of [`SHAPES`], with a file of [`FILE_BYTES`] for each of [`NAMES`].
fn made(index: usize) -> (TestArray, Vec<Attribute>) {
    let (level, member_count, chunk, out, journaled) = SHAPES[index % SHAPES.len()];
    let array = if journaled {
        TestArray::journaled(level, member_count, chunk, false)
    } else {
        TestArray::new(level, member_count, chunk)
    };
    let attributes: Vec<_> = NAMES.iter().map(|name| array.create(name)).collect();
    for (name, attribute) in NAMES.iter().zip(&attributes) {
        let file = array.open(name, *attribute);
        common::write(&file, 0, &vec![7; FILE_BYTES as usize]);
    }
    let _ = array.files.array().runtime().add_out(MemberSet::from_bits(out));
    (array, attributes)
}

/// The segment, mapped once more, with the offsets of its words that are not zero.
struct Words {
    start: *mut u8,
    bytes: usize,
    used: Vec<usize>,
}

// SAFETY: every access is by atomics.
unsafe impl Send for Words {}

impl Words {
    fn of(array: &TestArray) -> Self {
        let path = array::runtime::segment_path(array.files.array().uuid());
        let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
        let bytes = file.metadata().unwrap().len() as usize;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, &file, 0) }.unwrap().cast();
        let mut words = Self { start, bytes, used: Vec::new() };
        let mut page = vec![0; 4096];
        for at in (0..bytes).step_by(4096) {
            file.read_exact_at(&mut page, at as u64).unwrap();
            words.used.extend((0..512).filter(|word| page[word * 8..word * 8 + 8] != [0; 8]).map(|word| at + word * 8));
        }
        words
    }

    /// Stores one word somewhere: mostly where something is, or beside that.
    fn corrupt(&self, random: &mut Random) {
        let near = self.used[random.below(self.used.len() as u64) as usize] + random.below(96) as usize;
        let at = match random.below(8) {
            0 => random.below(self.bytes as u64) as usize,
            1 => random.below(65536) as usize,
            _ => near.saturating_sub(16),
        };
        let at = at.min(self.bytes - 8) / 4 * 4;
        let value = match random.below(8) {
            0 => u64::MAX,
            1 => u64::from(u32::MAX),
            2 => 1 << random.below(64),
            3 => random.below(70_000),
            4 => !random.below(70_000),
            5 => 1 << 63,
            _ => random.next(),
        };
        // SAFETY: aligned, within the mapping.
        unsafe {
            if at.is_multiple_of(8) && random.below(2) == 0 {
                AtomicU64::from_ptr(self.start.add(at).cast()).store(value, Ordering::Relaxed);
            } else {
                AtomicU32::from_ptr(self.start.add(at).cast()).store(value as u32, Ordering::Relaxed);
            }
        }
    }
}

fn opened(array: &TestArray, files: &'static Files, index: usize, attribute: Attribute) -> Result<FileRef, OsError> {
    let backing = || {
        let open_member = |slot: usize| -> Result<Option<OwnedFd>, OsError> {
            if !files.array().in_use().contains(slot) {
                return Ok(None);
            }
            open(array.member_path(slot).join("data").join(NAMES[index]), OFlags::RDWR, Mode::empty()).map(Some)
        };
        let fds = (0..array.config.mounts.len()).map(open_member).collect::<Result<Vec<_>, _>>()?;
        Ok((fds, Access::ReadWrite))
    };
    files.open(attribute, true, backing)
}

/// Makes one call after another, drawn at random, until `until` is set. Returns how many it made.
fn use_files(
    array: &TestArray,
    files: &'static Files,
    attributes: &[Attribute],
    random: &mut Random,
    until: &AtomicBool,
) -> usize {
    let mut buffer = vec![3u8; 70_000];
    let mut calls = 0;
    while !until.load(Ordering::Relaxed) {
        let index = random.below(3) as usize;
        let Ok(file) = opened(array, files, index, attributes[index]) else {
            calls += 1;
            continue;
        };
        for _ in 0..random.below(12) {
            calls += 1;
            let (offset, bytes) = (random.below(FILE_BYTES * 2), random.below(70_000) as usize);
            // SAFETY: the buffer is that long.
            unsafe {
                match random.below(16) {
                    0..4 => _ = file.read_at(offset, buffer.as_mut_ptr(), bytes),
                    4..8 => _ = file.write_at(offset, buffer.as_ptr(), bytes),
                    8 => _ = file.append(buffer.as_ptr(), bytes),
                    9 => _ = file.truncate(offset),
                    10 => _ = file.punch(offset, bytes as u64, false),
                    11 => _ = file.allocate(offset, bytes as u64, random.below(2) == 0),
                    12 => _ = file.sync(),
                    13 => {
                        let Ok(mapped) = Mapped::new(&file) else { continue };
                        let _ = mapped.cover(offset / 4096 * 4096, offset / 4096 * 4096 + 65536);
                        if random.below(3) == 0 {
                            let _ = file.share_copy();
                        }
                        let _ = mapped.follow([(offset / 4096 * 4096, offset / 4096 * 4096 + 8192)]);
                        file.call_others();
                    }
                    14 => _ = file.seek_extent(offset, random.below(2) == 0),
                    _ => {
                        let _ = (files.told(attributes[index]), file.blocks(), file.settled_size());
                        file.with_shared_position(|| ());
                        if let Ok(attribute) = files.create_inode(b"/data/file") {
                            files.discard_inode(attribute);
                        }
                        let runtime = files.array().runtime();
                        let _ = (runtime.attached().count(), runtime.reap(), files.unfinished_changes());
                        let _ = array::runtime::count_mappings(files.array().uuid());
                        runtime.await_others();
                    }
                }
            }
        }
    }
    calls
}

/// Uses an array, in a child process, while `count` words of its segment are overwritten.
fn store_words(seed: u64, count: usize) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (array, attributes) = made(seed as usize);
    let words = Words::of(&array);
    let again = array.again();
    let until = AtomicBool::new(false);
    let outside = array.member_path(0).with_file_name("outside");
    std::fs::write(&outside, "outside").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (mut random, files) = (Random(seed << 8 | thread | 1 << 60), if thread == 2 { again } else { array.files });
            let (array, attributes, until) = (&array, &attributes, &until);
            scope.spawn(move || use_files(array, files, attributes, &mut random, until));
        }
        for _ in 0..count / 50 {
            (0..50).for_each(|_| words.corrupt(&mut random));
            std::thread::sleep(Duration::from_millis(2));
        }
        until.store(true, Ordering::Relaxed);
    });
    // A process that starts with what is left.
    let _ = Array::attach(&array.config).map(Files::new);
    assert_eq!(std::fs::read(&outside).unwrap(), b"outside");
}

/// Cuts the segment, in a child process, while several threads use the array.
fn cut(seed: u64) {
    let mut random = Random(seed << 5 | 1);
    let (array, attributes) = made(seed as usize);
    let files = array.files;
    let kept: Vec<_> = (0..3).map(|index| opened(&array, files, index, attributes[index]).unwrap()).collect();
    let until = AtomicBool::new(false);
    let bytes = random.below(3) * random.below(1 << 20);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (mut random, files) = (Random(seed << 8 | thread | 1 << 60), array.files);
            let (array, attributes, until, file) = (&array, &attributes, &until, &kept[0]);
            // The first thread only reads, until its reads fail.
            scope.spawn(move || match thread {
                0 => {
                    let mut buffer = vec![0u8; 4096];
                    // SAFETY: the buffer is that long.
                    while unsafe { file.read_at(0, buffer.as_mut_ptr(), 4096) } != Err(OsError::IO) {}
                    0
                }
                _ => use_files(array, files, attributes, &mut random, until),
            });
        }
        std::thread::sleep(Duration::from_millis(random.below(30)));
        let path = array::runtime::segment_path(files.array().uuid());
        std::fs::File::options().write(true).open(path).unwrap().set_len(bytes).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        until.store(true, Ordering::Relaxed);
    });
    let mut buffer = [0u8; 100];
    for file in &kept {
        for offset in [0, 1 << 40] {
            // SAFETY: the buffer is that long.
            unsafe {
                assert_eq!(file.read_at(offset, buffer.as_mut_ptr(), 100), Err(OsError::IO));
                assert_eq!(file.write_at(offset, buffer.as_ptr(), 100), Err(OsError::IO));
            }
        }
    }
    assert!(files.array().runtime().is_lost());
    assert!(matches!(files.told(attributes[0]), Err(OsError::IO)));
    assert!(bytes == 0 || Array::attach(&array.config).is_err(), "a segment of another length is refused");
}

/// Takes a page of the segment away, in a child process that holds a lock, as if shared memory had
/// no room for the page.
fn lose_page() {
    let (array, attributes) = made(1);
    let file = opened(&array, array.files, 0, attributes[0]).unwrap();
    let others = opened(&array, array.again(), 0, attributes[0]).unwrap();
    let runtime = array.files.array().runtime();
    let shared = runtime.find_file(cxlraid_file::key(attributes[0].inode, attributes[0].generation)).unwrap();
    runtime.with_lock(&shared.size_lock, |_| {
        let page = std::ptr::from_ref(shared).addr() / 4096 * 4096;
        // SAFETY: what lies there are atomics, for which zeros will stand in.
        unsafe { sys::rustix::mm::munmap(page as *mut _, 4096) }.unwrap();
    });
    assert!(runtime.is_lost());
    let mut buffer = [0u8; 10];
    // SAFETY: the buffer is that long.
    unsafe {
        assert_eq!(file.read_at(0, buffer.as_mut_ptr(), 10), Err(OsError::IO));
        // The other process takes over the lock, which nobody gives back any more.
        assert_eq!(others.append([1].as_ptr(), 1).map(|(_, bytes)| bytes), Ok(1));
        assert_eq!(others.read_at(0, buffer.as_mut_ptr(), 10), Ok(10));
    }
    assert_eq!(buffer, [7; 10]);
}

/// Runs this test in a child; fails if that panics, is killed or takes too long.
fn in_child(test: &str, words: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(CHILD, words).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let begin = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if begin.elapsed() > AT_MOST => break None,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    if status.is_none_or(|status| !status.success()) {
        if status.is_none() && std::env::var_os("CXLRAID_TEST_WAIT").is_some() {
            eprintln!("process {} hangs", child.id());
            child.wait().unwrap();
        }
        let _ = child.kill();
        let output = child.wait_with_output().unwrap();
        let signal = status.and_then(|status| status.signal());
        panic!("{words}: {status:?}, signal {signal:?}\n{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The part of the test that a child process was started for.
fn asked() -> Option<Vec<String>> {
    Some(std::env::var(CHILD).ok()?.split(' ').map(str::to_owned).collect())
}

#[test]
fn any_word_may_be_any_other() {
    if let Some(words) = asked() {
        return store_words(words[1].parse().unwrap(), words[2].parse().unwrap());
    }
    let seeds = std::env::var("CXLRAID_TEST_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(12);
    let first = std::env::var("CXLRAID_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    for seed in first..first + seeds {
        in_child("any_word_may_be_any_other", &format!("words {seed} 2000"));
    }
}

#[test]
fn a_segment_that_is_cut_short_fails_calls_and_kills_nobody() {
    if let Some(words) = asked() {
        return cut(words[1].parse().unwrap());
    }
    for seed in 0..12 {
        in_child("a_segment_that_is_cut_short_fails_calls_and_kills_nobody", &format!("cut {seed}"));
    }
}

#[test]
fn who_loses_a_page_of_the_segment_is_dead_to_the_others() {
    if asked().is_some() {
        return lose_page();
    }
    in_child("who_loses_a_page_of_the_segment_is_dead_to_the_others", "page");
}
