//! An orderly end leaves nothing to be compared: what rots afterwards is found, also where was
//! written last. Any other end leaves it named.

mod common;

use common::{Random, SHAPES_WITH_REDUNDANCY as SHAPES, TestArray, flip, read, write};
use cxlraid_file::{FileRef, Files, ScrubMode, Watch};
use dax::PersistenceDomain;
use format::Attribute;
use layout::Level;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use sync::Liveness;

const CHUNK: u64 = 4096;
const BYTES: usize = 50_000;

/// How many units of the file do not fit.
fn wrong(file: &FileRef) -> usize {
    let mut count = 0;
    file.scrub(ScrubMode::Check, &mut Watch { found: &mut |_, _| count += 1, goes_on: &mut |_, _| true }).unwrap();
    count
}

/// An array with a file that was written, and closed if it is not returned.
fn written(array: &TestArray, content: &[u8]) -> (Attribute, FileRef) {
    let attribute = array.create("file");
    let file = array.open("file", attribute);
    array.files.has_name(attribute);
    write(&file, 0, content);
    (attribute, file)
}

/// The array after the machine was started again.
fn start_again(array: &TestArray) -> &'static Files {
    array.lose_segment();
    array.again()
}

/// Rots a byte of each member in turn, starts again, opens the file for writing, and returns how
/// often that was found.
fn found_after(level: Level, members: usize, end: impl Fn(&TestArray, FileRef)) -> usize {
    let mut random = Random(11 + members as u64);
    let mut found = 0;
    for slot in 0..members {
        let array = TestArray::new(level, members, CHUNK);
        let content = random.bytes(BYTES);
        let (attribute, file) = written(&array, &content);
        let held = file.geometry().member_bytes(BYTES as u64);
        end(&array, file);
        flip(&array, slot, random.below(held.min(CHUNK)));
        let files = start_again(&array);
        let file = array.open_in(files, "file", attribute);
        found += wrong(&file);
        assert_eq!(file.size(), BYTES as u64);
    }
    found
}

#[test]
fn what_rots_after_an_orderly_end_is_found_also_where_was_written_last() {
    for (level, members) in SHAPES {
        let closes = |array: &TestArray, file: FileRef| {
            drop(file);
            array.files.detach();
        };
        assert_eq!(found_after(level, members, closes), members, "{level:?} {members}: closed");
        let leaves = |array: &TestArray, file: FileRef| {
            array.files.leave(true);
            std::mem::forget(file);
        };
        assert_eq!(found_after(level, members, leaves), members, "{level:?} {members}: left open");
    }
}

#[test]
fn threads_that_have_ended_leave_nothing_either() {
    let ends = |array: &TestArray, file: FileRef| {
        let write_more = || {
            write(&file, 100, &[7; 3 * CHUNK as usize]);
            sys::rustix::thread::gettid().as_raw_nonzero()
        };
        let threads = std::thread::scope(|scope| [0; 3].map(|_| scope.spawn(write_more).join().unwrap()));
        // The kernel knows a thread for a moment longer than whoever joins it.
        for thread in threads {
            while std::path::Path::new(&format!("/proc/self/task/{thread}")).exists() {
                std::thread::yield_now();
            }
        }
        array.files.leave(true);
        std::mem::forget(file);
    };
    assert_eq!(found_after(Level::Raid5, 3, ends), 3);
}

#[test]
fn a_crash_leaves_named_what_was_written_last() {
    let crashes = |_: &TestArray, file: FileRef| std::mem::forget(file);
    for (level, members) in SHAPES {
        assert_eq!(found_after(level, members, crashes), 0, "{level:?} {members}: what a crash may have torn is made to agree");
    }
}

/// As a handler that interrupts a write and ends the program.
#[test]
fn an_end_in_the_middle_of_a_write_leaves_it_named() {
    let is_interrupted = |array: &TestArray, file: FileRef| {
        let runtime = array.files.array().runtime();
        let key = cxlraid_file::key(file.attribute().inode, file.attribute().generation);
        let shared = runtime.find_file(key).unwrap();
        let _ = shared.size_lock.lock(runtime.me(), runtime);
        array.files.detach();
        std::mem::forget(file);
    };
    assert_eq!(found_after(Level::Raid5, 3, is_interrupted), 0);
    assert_eq!(found_after(Level::Raid1, 2, is_interrupted), 0);
}

#[test]
fn the_mark_of_an_orderly_end_lasts_until_something_is_changed() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let array = TestArray::in_directory(directory, Level::Raid5, 3, CHUNK);
    let is_behind_a_page_cache = array.files.domains().contains(&PersistenceDomain::PageCache);
    let content = Random(5).bytes(BYTES);
    let (attribute, file) = written(&array, &content);
    drop(file);
    let is_named = |files: &Files| !files.waiting_for_resync().unwrap().is_empty();
    let end = |files: &'static Files| {
        assert_eq!(files.end_in_order(), Ok(true));
        files.array().end_use(true).unwrap();
        files.detach();
    };
    // The machine crashes: behind a page cache nothing is known of any file.
    let files = start_again(&array);
    assert!(is_named(files));
    assert!(read(&array.open_in(files, "file", attribute), 0, BYTES) == content);
    end(files);
    for slot in 0..3 {
        flip(&array, slot, 300 + 4096 * slot as u64);
        let files = start_again(&array);
        assert!(!is_named(files), "the array was ended in order");
        let file = array.open_in(files, "file", attribute);
        assert_eq!(wrong(&file), 1, "member {slot}");
        flip(&array, slot, 300 + 4096 * slot as u64);
        drop(file);
        // Nothing was changed since, so a crash is none.
        files.array().abandon();
    }
    let files = start_again(&array);
    assert!(!is_named(files));
    write(&array.open_in(files, "file", attribute), 0, b"more");
    // Ended in order by the program, and not by the operator.
    files.detach();
    let files = start_again(&array);
    assert_eq!(is_named(files), is_behind_a_page_cache);
    assert_eq!(read(&array.open_in(files, "file", attribute), 0, 4), b"more");
}

#[test]
fn an_array_is_not_ended_in_order_while_something_waits_to_be_made_good() {
    let array = TestArray::new(Level::Raid5, 3, CHUNK);
    let (_, file) = written(&array, &[1; 1000]);
    let runtime = array.files.array().runtime();
    let key = cxlraid_file::key(file.attribute().inode, file.attribute().generation);
    let shared = runtime.find_file(key).unwrap();
    // The lock of a process that is gone.
    let _ = shared.size_lock.lock(runtime.me(), runtime);
    runtime.detach();
    let files = array.again();
    assert_eq!(files.end_in_order(), Ok(false));
}

/// How many pages of a file's page cache are dirty; None if the kernel cannot tell.
fn dirty_pages(path: &std::path::Path) -> Option<u64> {
    const CACHESTAT: usize = 451;
    let file = std::fs::File::open(path).unwrap();
    let (whole, mut counts) = ([0u64; 2], [0u64; 5]);
    let args = [file.as_raw_fd() as usize, &raw const whole as usize, &raw mut counts as usize, 0, 0, 0];
    // SAFETY: the kernel reads the range, and stores the counts.
    let result = unsafe { sys::raw::syscall(CACHESTAT, args) };
    (result == 0).then_some(counts[1])
}

/// Behind a page cache a crash may keep a backing file, or its length, and forget what is not
/// durable. Under the mark of an orderly end nobody would notice.
#[test]
fn the_note_that_bytes_are_lost_is_durable_before_a_backing_file_is_made() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let array = TestArray::in_directory(directory, Level::Raid1, 3, CHUNK);
    let (attribute, file) = written(&array, &Random(5).bytes(BYTES));
    drop(file);
    let tables = || [0, 1].map(|slot| array.member_path(slot).join(".cxlraid/inodes"));
    let are_durable = || tables().iter().all(|table| dirty_pages(table).is_none_or(|count| count == 0));
    let make_durable = || tables().iter().for_each(|table| std::fs::File::open(table).unwrap().sync_all().unwrap());
    array.lose_member(2);
    let files = start_again(&array);
    make_durable();
    assert!(files.note_lost(attribute, 1));
    assert!(are_durable(), "before the member gets an empty file");
    assert!(!files.array().runtime().out_unrecorded().is_empty(), "a mend puts nobody on record");
}

/// A thread that stores when its process ends goes on for a moment. Whoever found the process dead
/// before would inherit its locks beside it.
#[test]
fn a_process_whose_threads_still_store_is_not_dead_yet() {
    let array = TestArray::new(Level::Raid5, 3, CHUNK);
    let (attribute, file) = written(&array, &Random(5).bytes(BYTES));
    let runtime = array.files.array().runtime();
    let (me, shared) = (runtime.me(), runtime.find_file(attribute.inode << 24 | attribute.generation).unwrap());
    array.files.leave_to_others();
    assert!(runtime.is_alive(me));
    assert_eq!(shared.users.load(Ordering::Relaxed), 1, "and nobody else is given its place among the open files");
    let _still_open = std::mem::ManuallyDrop::new(file);
    array.files.leave(true);
    assert!(!runtime.is_alive(me));
}
