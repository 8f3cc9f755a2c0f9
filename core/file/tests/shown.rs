//! A process that changes a file waits until all processes with mappings of the file have heard of
//! the change.

mod common;

use common::{Random, TestArray, read, write};
use cxlraid_file::{FileRef, Files, Mapped, Shown};
use format::Attribute;
use layout::Level;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

const SHAPES: [(Level, usize, u64); 4] =
    [(Level::Raid0, 2, 65536), (Level::Raid1, 3, 65536), (Level::Raid5, 3, 512), (Level::Raid6, 4, 4096)];

/// Another process with a mapping: its listener takes a while to look at the file, and leaves what
/// it saw.
struct Other {
    files: &'static Files,
    file: FileRef,
    ends: AtomicBool,
    size_seen: AtomicU64,
    members_out_seen: AtomicU64,
    was_copied: AtomicBool,
    answers: AtomicU64,
}

impl Other {
    fn new(array: &TestArray, attribute: Attribute) -> Self {
        let files = array.again();
        let file = array.open_in(files, "f", attribute);
        let zero = || AtomicU64::new(0);
        Self {
            files,
            file,
            ends: AtomicBool::new(false),
            size_seen: zero(),
            members_out_seen: zero(),
            was_copied: AtomicBool::new(false),
            answers: zero(),
        }
    }

    fn listen(&self) {
        let runtime = self.files.array().runtime();
        let mut heard = runtime.heard();
        while !self.ends.load(SeqCst) {
            runtime.await_ring(heard, 1_000_000);
            let rings = runtime.rings();
            if rings != heard {
                heard = rings;
                std::thread::sleep(Duration::from_millis(5));
                self.size_seen.store(self.file.size(), SeqCst);
                self.members_out_seen.store(runtime.out().len() as u64, SeqCst);
                self.was_copied.store(self.file.is_copied(), SeqCst);
                self.answers.fetch_add(1, SeqCst);
                runtime.hear(heard);
            }
        }
    }
}

/// Runs `act` while another process listens that shows the file.
fn beside_another<T>(other: &Other, act: impl FnOnce() -> T) -> T {
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel();
        scope.spawn(move || {
            sender.send(sys::rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            other.listen();
        });
        other.files.array().runtime().set_listener(receiver.recv().unwrap());
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        other.ends.store(true, SeqCst);
        result.unwrap()
    })
}

#[test]
fn who_cuts_a_file_waits_for_those_that_show_it() {
    for (level, member_count, chunk) in SHAPES {
        let array = TestArray::new(level, member_count, chunk);
        let attribute = array.create("f");
        let file = array.open("f", attribute);
        write(&file, 0, &Random(3).bytes(300_000));
        let other = Other::new(&array, attribute);
        let shown = Shown::new(&other.file);
        let second = shown.clone();
        let rings = || array.files.array().runtime().rings();
        beside_another(&other, || {
            for bytes in [200_000, 70_000, 1, 0] {
                file.truncate(bytes).unwrap();
                assert_eq!(other.size_seen.load(SeqCst), bytes, "{level}");
            }
            drop(shown);
            write(&file, 0, &[1; 5000]);
            file.truncate(4000).unwrap();
            assert_eq!(other.size_seen.load(SeqCst), 4000, "{level}: there is another mapping");
            drop(second);
            let before = rings();
            file.truncate(3000).unwrap();
            // Its own mapping is nobody else's.
            let own = Shown::new(&file);
            file.truncate(2000).unwrap();
            file.call_writers().unwrap();
            drop(own);
            assert_eq!(rings(), before, "{level}: nobody else has a mapping");
        });
    }
}

/// syncfs(2) concerns what all processes have stored, also to files that its caller has not open.
#[test]
fn who_synchronises_all_files_waits_for_those_that_store_to_any() {
    for (level, member_count, chunk) in SHAPES {
        let array = TestArray::new(level, member_count, chunk);
        let attribute = array.create("f");
        let other = Other::new(&array, attribute);
        write(&other.file, 0, &Random(5).bytes(10_000));
        beside_another(&other, || {
            array.files.call_writers().unwrap();
            assert_eq!(other.answers.load(SeqCst), 0, "{level}: nobody stores");
            let mapped = Mapped::new(&other.file).unwrap();
            let before = other.file.last_call();
            array.files.call_writers().unwrap();
            assert_eq!(other.answers.load(SeqCst), 1, "{level}");
            assert_ne!(other.file.last_call(), before, "{level}: the call is for the file");
            // Its own stores are followed by the caller itself.
            let own = other.files.array().runtime().rings();
            other.files.call_writers().unwrap();
            assert_eq!(other.files.array().runtime().rings(), own, "{level}");
            drop(mapped);
        });
    }
}

#[test]
fn who_stores_into_a_shared_copy_waits_for_those_that_show_the_members() {
    for (level, member_count, chunk) in SHAPES {
        let array = TestArray::new(level, member_count, chunk);
        let attribute = array.create("f");
        let file = array.open("f", attribute);
        write(&file, 0, &Random(4).bytes(100_000));
        let other = Other::new(&array, attribute);
        let shown = Shown::new(&other.file);
        beside_another(&other, || {
            for round in 1..4 {
                let mapped = Mapped::new(&file).unwrap();
                file.share_copy().unwrap();
                mapped.gather();
                assert!(other.was_copied.swap(false, SeqCst), "{level}");
                assert_eq!(other.answers.load(SeqCst), round, "{level}");
                // Of the same copy all have heard.
                mapped.gather();
                Mapped::new(&file).unwrap().gather();
                assert_eq!(other.answers.load(SeqCst), round, "{level}");
                drop(mapped);
                assert!(!file.is_copied(), "{level}");
            }
        });
        drop(shown);
    }
}

#[test]
fn who_finds_a_member_failing_waits_for_those_with_mappings() {
    let array = TestArray::new(Level::Raid6, 4, 4096);
    let attribute = array.create("f");
    let file = array.open("f", attribute);
    write(&file, 0, &[7; 100_000]);
    let other = Other::new(&array, attribute);
    let shown = Shown::new(&other.file);
    beside_another(&other, || {
        for out in 1..=2 {
            array.files.array().fail_member(out).unwrap();
            array.files.array().runtime().await_others();
            assert_eq!(other.members_out_seen.load(SeqCst), out as u64);
        }
        // Nothing to tell.
        let answers = other.answers.load(SeqCst);
        array.files.array().fail_member(2).unwrap();
        array.files.array().runtime().await_others();
        assert_eq!(other.answers.load(SeqCst), answers);
    });
    drop(shown);
    assert_eq!(read(&file, 0, 100_000), vec![7; 100_000]);
}

#[test]
fn who_does_not_listen_is_not_waited_for_and_who_does_not_answer_only_so_long() {
    let array = TestArray::new(Level::Raid1, 2, 65536);
    let attribute = array.create("f");
    let file = array.open("f", attribute);
    let files = array.again();
    let other = array.open_in(files, "f", attribute);
    let shown = Shown::new(&other);
    let time_of_cut = || {
        write(&file, 0, &[1; 10_000]);
        let start = Instant::now();
        file.truncate(5000).unwrap();
        start.elapsed()
    };
    // No thread; one that has ended; one that does not look.
    assert!(time_of_cut() < Duration::from_millis(50));
    let ended = std::thread::spawn(|| sys::rustix::thread::gettid().as_raw_nonzero().get() as u32).join().unwrap();
    files.array().runtime().set_listener(ended);
    while sys::task::is_there(std::process::id(), ended) {
        std::thread::yield_now();
    }
    assert!(time_of_cut() < Duration::from_millis(50));
    files.array().runtime().set_listener(std::process::id());
    let waited = time_of_cut();
    assert!(waited > Duration::from_millis(50) && waited < Duration::from_secs(5), "{waited:?}");
    // A process that ends is forgotten.
    files.array().runtime().detach();
    assert!(time_of_cut() < Duration::from_millis(50));
    std::mem::forget((shown, other));
}

#[test]
fn mappings_are_counted_from_outside() {
    let array = TestArray::new(Level::Raid5, 3, 4096);
    let uuid = array.files.array().uuid();
    let counts = || array::runtime::count_mappings(uuid).map(|counts| (counts.processes, counts.files)).unwrap();
    let (one, two) = (array.create("f"), array.create("g"));
    let (f, g) = (array.open("f", one), array.open("g", two));
    let files = array.again();
    let other = array.open_in(files, "f", one);
    assert_eq!(counts(), (0, 0));
    let shown = [Shown::new(&f), Shown::new(&f), Shown::new(&other)];
    assert_eq!(counts(), (2, 1));
    let third = Shown::new(&g);
    assert_eq!(counts(), (2, 2));
    files.array().runtime().detach();
    assert_eq!(counts(), (1, 2));
    let [first, second, of_other] = shown;
    std::mem::forget((of_other, other));
    drop((first, second));
    assert_eq!(counts(), (1, 1));
    drop(third);
    assert_eq!(counts(), (0, 0));
    // Units are those that processes noted: two of one file, one of both.
    let mapped = [&f, &f, &g].map(|file| Mapped::new(file).unwrap());
    let shown = [Shown::new(&f), Shown::new(&g)];
    let by_unit = || array::runtime::count_mappings(uuid).unwrap().files_by_unit;
    assert_eq!(by_unit(), [0, 0, 0]);
    mapped.iter().zip([0b001, 0b100, 0b001]).for_each(|(mapped, units)| mapped.set_units(units));
    assert_eq!(by_unit(), [2, 0, 1]);
    drop(mapped);
    assert_eq!(by_unit(), [0, 0, 0]);
    drop(shown);
    assert_eq!(array::runtime::count_mappings(format::Uuid::from_random([7; 16])), None);
}
