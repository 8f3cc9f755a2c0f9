//! Files of several levels in one array: what rules give them, that they keep it, and what each
//! bears.

mod common;

use common::*;
use cxlraid_namespace::{Content, FillError, Namespace, OFlags, RenameFlags, fill};
use format::{NewRule, RuleShape, RulesFile};
use layout::Level;
use std::fs;
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};
use sys::OsError;
use units::{ChunkBytes, MemberSet};

const RDWR: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC);

/// A child has the locks by which a process holds an array, those of other tests' arrays too. So the
/// test that forks runs beside none that ends an array.
static FORKING: RwLock<()> = RwLock::new(());

/// Levels by the directory whose files get them; the array's own is RAID 5.
const LEVELS: [(&str, Level, u64); 8] = [
    ("r0", Level::Raid0, 4096),
    ("r1", Level::Raid1, 4096),
    ("r4", Level::Raid4, 16384),
    ("r5", Level::Raid5, 64),
    ("r6", Level::Raid6, 4096),
    ("r01", Level::Raid01, 1024),
    ("r10", Level::Raid10, 65536),
    ("own", Level::Raid5, 4096),
];

/// Gives an array rules: of each, the directory, a pattern or none, and the shape.
fn set_rules(names: Namespace, rules: &[(&str, &str, Level, u64)]) {
    let uuid = names.files().array().uuid();
    let shape = |level, chunk| RuleShape { level, chunk: ChunkBytes::new(chunk).unwrap() };
    let made: Vec<_> = rules
        .iter()
        .map(|&(under, pattern, level, chunk)| {
            let patterns = Some(pattern.as_bytes()).filter(|pattern| !pattern.is_empty()).into_iter();
            NewRule { name: b"", under: under.as_bytes(), shape: shape(level, chunk), patterns }
        })
        .collect();
    names
        .files()
        .set_rules(|revision| {
            let mut bytes = Vec::new();
            let own = shape(Level::Raid5, 4096);
            RulesFile::encode((uuid, revision), own, &made, b"", &mut |part| bytes.extend_from_slice(part));
            bytes.extend(RulesFile::checksum_of(&bytes));
            bytes
        })
        .unwrap();
}

fn level_of(names: Namespace, path: &str) -> (Level, u64) {
    let file = file_of(&inside(names.open(path.as_bytes(), OFlags::RDONLY, 0)));
    (file.geometry().level(), file.geometry().chunk().bytes())
}

fn bytes_of(seed: usize, count: usize) -> Vec<u8> {
    (0..count).map(|at| (at * 7 + at / 251 + seed * 31) as u8).collect()
}

/// Each file has more than a stripe, and ends within a chunk.
fn content(index: usize) -> Vec<u8> {
    bytes_of(index, 300_001 + 4099 * index)
}

fn path(directory: &str) -> String {
    format!("/data/{directory}/file")
}

/// An array of four members with a file of each level.
fn mixed() -> TestArray {
    let array = TestArray::with(Level::Raid5, 4);
    let names = array.namespace;
    let under: Vec<String> = LEVELS.iter().map(|(name, ..)| format!("/data/{name}")).collect();
    let rules: Vec<_> = LEVELS.iter().zip(&under).map(|(&(_, level, chunk), under)| (&**under, "", level, chunk)).collect();
    set_rules(names, &rules[..7]);
    for (index, (name, ..)) in LEVELS.iter().enumerate() {
        inside(names.mkdir(format!("/data/{name}").as_bytes(), 0o755));
        write(&create(names, &path(name)), 0, &content(index));
    }
    array
}

fn assert_file(names: Namespace, index: usize, at: &str) {
    assert_eq!(level_of(names, at), (LEVELS[index].1, LEVELS[index].2), "{at}");
    let opened = inside(names.open(at.as_bytes(), RDWR, 0));
    assert_eq!(read(&opened), content(index), "{at}");
    assert_eq!(file_of(&opened).verify(), Ok(0), "{at}");
}

#[test]
fn each_file_has_the_level_of_its_rule_and_keeps_it() {
    let _beside = FORKING.read().unwrap_or_else(PoisonError::into_inner);
    let mut array = mixed();
    let names = array.namespace;
    for (index, (name, ..)) in LEVELS.iter().enumerate() {
        assert_file(names, index, &path(name));
        // What a plain file takes, to a page.
        let stat = inside(names.stat(path(name).as_bytes(), true));
        assert_eq!(stat.st_size as usize, content(index).len());
        assert!((stat.st_blocks * 512 - stat.st_size).abs() <= 4096, "{name} {}", stat.st_blocks);
        let expected =
            file_of(&inside(names.open(path(name).as_bytes(), OFlags::RDONLY, 0))).geometry().member_bytes(stat.st_size as u64);
        for member in &array.members {
            assert_eq!(fs::metadata(member.join(&path(name)[1..])).unwrap().len(), expected, "{name}");
        }
    }
    // A mirror's copies are the plain file.
    assert!(array.members.iter().all(|member| fs::read(member.join("data/r1/file")).unwrap() == content(1)));
    inside(names.rename(b"/data/r0/file", b"/data/r6/moved", RenameFlags::empty()));
    inside(names.link(b"/data/r6/file", b"/data/r0/linked", false));
    set_rules(names, &[("/data", "", Level::Raid4, 4096)]);
    assert_file(names, 0, "/data/r6/moved");
    assert_file(names, 4, "/data/r0/linked");
    write(&create(names, "/data/r0/new"), 0, b"new");
    assert_eq!(level_of(names, "/data/r0/new"), (Level::Raid4, 4096));
    array.restart();
    let names = array.namespace;
    assert_file(names, 0, "/data/r6/moved");
    for (index, (name, ..)) in LEVELS.iter().enumerate().skip(1) {
        assert_file(names, index, &path(name));
    }
    // After a restart the rules are read from the members.
    write(&create(names, "/data/r1/new"), 0, b"new");
    assert_eq!(level_of(names, "/data/r1/new"), (Level::Raid4, 4096));
    array.assert_same_trees();
}

#[test]
fn patterns_decide_in_order_and_other_processes_follow_at_once() {
    let _beside = FORKING.read().unwrap_or_else(PoisonError::into_inner);
    let array = TestArray::with(Level::Raid5, 4);
    let (names, other) = (array.namespace, array.attach_another());
    let made = |names: Namespace, at: &str| {
        drop(create(names, at));
        level_of(other, at).0
    };
    assert_eq!(made(other, "/data/before.o"), Level::Raid5);
    set_rules(names, &[("/data", "**/keep.o", Level::Raid1, 4096), ("", "**/*.o", Level::Raid0, 4096)]);
    inside(names.mkdir(b"/data/d", 0o755));
    for (at, level) in [("/data/a.o", Level::Raid0), ("/data/d/keep.o", Level::Raid1), ("/data/d/x", Level::Raid5)] {
        assert_eq!(made(other, at), level, "{at}");
    }
    set_rules(other, &[]);
    assert_eq!(made(names, "/data/b.o"), Level::Raid5);
    assert_eq!(level_of(names, "/data/a.o").0, Level::Raid0);
    // A file without a name goes by its directory, a symlink by where it leads.
    set_rules(names, &[("/data/d", "", Level::Raid6, 4096)]);
    let unnamed = inside(names.open(b"/data/d", RDWR | OFlags::TMPFILE, 0o600));
    assert_eq!(file_of(&unnamed).geometry().level(), Level::Raid6);
    inside(names.symlink(b"d/target", b"/data/link"));
    assert_eq!(made(names, "/data/link"), Level::Raid6);
}

#[test]
fn the_loss_of_a_member_takes_along_exactly_the_files_that_do_not_bear_it() {
    let _beside = FORKING.read().unwrap_or_else(PoisonError::into_inner);
    for lost in 0..4 {
        let mut array = mixed();
        let names = array.namespace;
        let without = MemberSet::EMPTY.with(lost);
        let paths = |names: Namespace, out| {
            let lost = names.files().lost_without(out).unwrap();
            names.paths_of(&lost, 10).into_iter().map(|path| PathBuf::from(String::from_utf8(path).unwrap())).collect::<Vec<_>>()
        };
        assert_eq!(paths(names, without), [PathBuf::from(path("r0"))]);
        let open = inside(names.open(path("r0").as_bytes(), RDWR, 0));
        names.files().array().fail_member(lost).unwrap();
        for (index, (name, ..)) in LEVELS.iter().enumerate().skip(1) {
            assert_file(names, index, &path(name));
        }
        let refused_by = |file: &file::FileRef| {
            let mut buffer = vec![0; content(0).len()];
            [
                file.read_slice(0, &mut buffer).unwrap_err(),
                file.write_slice(0, &buffer).unwrap_err(),
                file.write_slice(content(0).len() as u64, b"more").unwrap_err(),
                file.truncate(0).unwrap_err(),
                file.truncate(1 << 20).unwrap_err(),
                file.allocate(0, 1 << 20, false).unwrap_err(),
                file.punch(0, 65536, false).unwrap_err(),
            ]
        };
        assert_eq!(refused_by(&file_of(&open)), [OsError::IO; 7]);
        drop(open);
        // A new file gets a level that bears it, and the names of lost files can still be changed.
        write(&create(names, "/data/r0/new"), 0, b"new");
        assert_eq!(level_of(names, "/data/r0/new"), (Level::Raid5, 4096));
        inside(names.rename(b"/data/r0/file", b"/data/r0/lost", RenameFlags::empty()));
        assert_eq!(inside(names.stat(b"/data/r0/lost", true)).st_size as usize, content(0).len());
        // The others are written meanwhile.
        for (name, ..) in &LEVELS[1..] {
            write(&inside(names.open(path(name).as_bytes(), RDWR, 0)), 5000, &[9; 70_000]);
        }
        array.restart();
        let names = array.namespace;
        assert_eq!(names.files().array().runtime().out(), without);
        let again = inside(names.open(b"/data/r0/lost", RDWR, 0));
        assert_eq!(refused_by(&file_of(&again)), [OsError::IO; 7]);
        drop(again);
        for (index, (name, ..)) in LEVELS.iter().enumerate().skip(1) {
            let mut expected = content(index);
            expected[5000..75_000].fill(9);
            assert_eq!(read(&inside(names.open(path(name).as_bytes(), RDWR, 0))), expected, "{name}");
        }
        // The member is not made anew while a file needs what it held.
        let end = |names: Namespace| {
            names.files().detach();
            names.files().array().abandon();
        };
        end(names);
        let refusal = fill(&array.config, lost, Content::Anew).unwrap_err();
        assert!(matches!(refusal, FillError::Unbuilt), "{refusal}");
        array.restart_after_end();
        inside(array.namespace.unlink(b"/data/r0/lost"));
        end(array.namespace);
        fill(&array.config, lost, Content::Anew).unwrap();
        array.restart_after_end();
        let names = array.namespace;
        for (index, (name, level, chunk)) in LEVELS.iter().enumerate().skip(1) {
            let mut expected = content(index);
            expected[5000..75_000].fill(9);
            let opened = inside(names.open(path(name).as_bytes(), RDWR, 0));
            assert_eq!((read(&opened), file_of(&opened).verify()), (expected, Ok(0)), "{name}");
            assert_eq!(level_of(names, &path(name)), (*level, *chunk));
        }
        array.assert_same_trees();
    }
}

#[test]
fn a_member_that_comes_back_brings_along_what_only_it_had() {
    let _beside = FORKING.read().unwrap_or_else(PoisonError::into_inner);
    for lost in 0..4 {
        let mut array = mixed();
        let names = array.namespace;
        // In order, as 'cxlraid fail' does it.
        names.take_out(lost, |_| true).unwrap();
        write(&inside(names.open(path("r6").as_bytes(), RDWR, 0)), 100, &[3; 20_000]);
        inside(names.rename(b"/data/r0/file", b"/data/r0/moved", RenameFlags::empty()));
        inside(names.chmod(b"/data/r0/moved", 0o640, true));
        names.files().detach();
        names.files().array().abandon();
        fill(&array.config, lost, Content::Kept).unwrap();
        array.restart_after_end();
        let names = array.namespace;
        assert!(names.files().array().runtime().out().is_empty());
        assert_file(names, 0, "/data/r0/moved");
        let mut expected = content(4);
        expected[100..20_100].fill(3);
        assert_eq!(read(&inside(names.open(path("r6").as_bytes(), RDWR, 0))), expected);
        for index in [1, 2, 3, 5, 6, 7] {
            assert_file(names, index, &path(LEVELS[index].0));
        }
        array.assert_same_trees();
    }
}

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(status: i32) -> !;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
}

#[test]
fn a_child_that_is_forked_while_other_threads_make_files_makes_files() {
    let _beside = FORKING.write().unwrap_or_else(PoisonError::into_inner);
    let array = TestArray::with(Level::Raid5, 4);
    let names = array.namespace;
    set_rules(names, &[("/data", "**/*.o", Level::Raid0, 4096)]);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                if is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                drop(create(names, &format!("/data/{number}.o")));
                // Read anew by the next one.
                set_rules(names, &[("/data", "**/*.o", Level::Raid0, 4096)]);
            }
        });
        for round in 0..30 {
            let child = names.files().around_fork(|| {
                // SAFETY: the child makes a file and exits.
                unsafe { fork() as isize }
            });
            if child == 0 {
                let path = format!("/data/child{round}.o");
                let is_made = names.open(path.as_bytes(), CREATE, 0o644).is_ok() && level_of(names, &path).0 == Level::Raid0;
                names.files().detach();
                // SAFETY: ends the child.
                unsafe { _exit(i32::from(!is_made)) }
            }
            let mut status = -1;
            // SAFETY: as above; `status` is ours.
            let waited = unsafe { waitpid(child as i32, &raw mut status, 0) };
            assert_eq!((waited as isize, status), (child, 0), "round {round}");
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(level_of(names, "/data/child29.o").0, Level::Raid0);
}
