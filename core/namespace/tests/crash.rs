//! After a crash each member's file system may show an earlier moment than another's. Recovery
//! replays the log of names, so that all members show the log's last change.
//!
//! Two tests use [`Run`]: after each change it copies the members' trees; then, for seeded choices
//! of one moment per member, the copies are put in place, the runtime segment is removed, and the
//! array is attached anew. The other tests make one state by hand, some of them that of a death. Tests
//! with [`durable_array`] need members on a file system that `dax::detect` does not call volatile;
//! elsewhere they do nothing.

mod common;

use common::*;
use cxlraid_namespace::{Namespace, Node, OFlags, Opened, Reached, RenameFlags};
use file::{Keep, Name};
use layout::Level;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use sys::OsError;
use sys::rustix::fs::{Timespec, Timestamps, XattrFlags, fgetxattr, fsetxattr};

const CREATE: OFlags = OFlags::RDWR.union(OFlags::CREATE).union(OFlags::CLOEXEC);

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    let status = Command::new("cp").args(["-a", "--"]).arg(from).arg(to).status().unwrap();
    assert!(status.success(), "cp -a {} {}", from.display(), to.display());
}

/// Replaces a member's files by the copies in `from`. Copies have other inode numbers than the
/// member's table of backing files tells, so the table is removed; the next attach makes a new one.
fn put_files_back(from: &Path, member: &Path) {
    copy(from, &member.join("data"));
    let _ = std::fs::remove_file(member.join(".cxlraid/backings"));
}

fn position(member: &Path) -> u64 {
    let file = std::fs::File::open(member.join(".cxlraid/names")).unwrap();
    let mut bytes = [0; 8];
    fgetxattr(file.as_fd(), format::ATTRIBUTE_NAME, &mut bytes).map_or(0, |_| u64::from_le_bytes(bytes))
}

fn set_position(member: &Path, position: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(member.join(".cxlraid/names")).unwrap();
    fsetxattr(file.as_fd(), format::ATTRIBUTE_NAME, &position.to_le_bytes(), XattrFlags::empty()).unwrap();
}

/// Makes one random change of names, or of a mode. Errors are ignored: many of these changes are
/// impossible.
fn change(array: &TestArray, random: &mut Rng) {
    let names = array.namespace;
    let name = |random: &mut Rng| -> Vec<u8> {
        let directory = ["", "one/", "two/"][random.below(3) as usize];
        format!("/data/{directory}{}", random.below(4)).into_bytes()
    };
    let directory = |random: &mut Rng| if random.below(2) == 0 { b"/data/one" } else { b"/data/two" };
    let (a, b) = (name(random), name(random));
    match random.below(14) {
        0..=4 => {
            if let Ok(Reached::Array(opened)) = names.open(&a, CREATE, 0o640) {
                write(&opened, 0, b"some content");
            }
        }
        5 => drop(names.unlink(&a)),
        6 | 7 => drop(names.rename(&a, &b, RenameFlags::empty())),
        8 => drop(names.rename(&a, &b, RenameFlags::EXCHANGE)),
        9 => drop(names.link(&a, &b, false)),
        10 => drop(names.mkdir(directory(random), 0o750)),
        11 => drop(names.rename(b"/data/one", b"/data/two", RenameFlags::empty())),
        12 => drop(names.symlink(b"somewhere", &a)),
        _ => drop(names.chmod(&a, 0o600 + random.below(64) as u32, false)),
    }
}

/// A new array on members that survive a crash. None, with a line on standard output, if the file
/// system of the target directory does not: the test then checks nothing.
fn durable_array(level: Level, member_count: usize) -> Option<TestArray> {
    let home = tempfile::Builder::new().prefix("cxlraid-names-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let root = std::fs::File::open(home.path()).unwrap();
    if dax::detect(root.as_fd()) == dax::PersistenceDomain::Volatile {
        println!("{}: nothing outlives a crash here; set CARGO_TARGET_DIR to a disk", home.path().display());
        return None;
    }
    let members: Vec<PathBuf> = (0..member_count).map(|slot| home.path().join(format!("m{slot}"))).collect();
    members.iter().for_each(|member| std::fs::create_dir(member).unwrap());
    Some(TestArray::on(level, home, members))
}

/// An array, copies of its members' trees after each of a number of steps, and its members'
/// positions then.
struct Run {
    array: TestArray,
    copies: PathBuf,
    /// The members' positions in the log of names: per step, per member.
    positions: Vec<Vec<u64>>,
}

impl Run {
    /// Makes an array, calls `step` with 1 to `step_count`, and copies the trees before the first
    /// and after each; at last it copies the members' `.cxlraid`. None as for [`durable_array`].
    fn new(level: Level, member_count: usize, step_count: usize, mut step: impl FnMut(&TestArray, usize)) -> Option<Self> {
        let array = durable_array(level, member_count)?;
        let copies = array.home.path().join("copies");
        std::fs::create_dir(&copies).unwrap();
        let mut run = Self { array, copies, positions: Vec::new() };
        for number in 0..=step_count {
            if number > 0 {
                step(&run.array, number);
            }
            for (slot, member) in run.array.members.iter().enumerate() {
                copy(&member.join("data"), &run.copy_of(number, slot));
            }
            run.positions.push(run.array.members.iter().map(|member| position(member)).collect());
        }
        for member in &run.array.members {
            copy(&member.join(".cxlraid"), &member.with_extension("meta"));
        }
        Some(run)
    }

    fn copy_of(&self, step: usize, slot: usize) -> PathBuf {
        self.copies.join(format!("{step}-{slot}"))
    }

    /// Puts back a member's tree as it was after `step`, with `.cxlraid` as it was after the last
    /// step, and with the position of `step` or, once in three, of the step before. The table of
    /// backing files does not fit the copies: recovery has to find that out here.
    fn put_back(&self, slot: usize, step: usize, random: &mut Rng) {
        let member = &self.array.members[slot];
        copy(&self.copy_of(step, slot), &member.join("data"));
        copy(&member.with_extension("meta"), &member.join(".cxlraid"));
        let position_step = if random.below(3) == 0 { step.saturating_sub(1) } else { step };
        set_position(member, self.positions[position_step][slot]);
    }
}

/// Each level and number of members with each seed from 1 to CXLRAID_TEST_SEEDS (1 if it is not
/// set).
fn with_seeds(shapes: [(Level, usize); 3]) -> impl Iterator<Item = (Level, usize, u64)> {
    let seeds: u64 = std::env::var("CXLRAID_TEST_SEEDS").map_or(1, |text| text.parse().unwrap());
    shapes.into_iter().flat_map(move |(level, member_count)| (1..=seeds).map(move |seed| (level, member_count, seed)))
}

#[test]
fn members_that_come_back_at_different_moments_end_at_the_same_one() {
    let steps = 20;
    for (level, member_count, seed) in with_seeds([(Level::Raid5, 3), (Level::Raid1, 2), (Level::Raid6, 4)]) {
        // A stream of random numbers of its own for each test.
        let mut random = Rng(seed | 1 << 40);
        let Some(mut run) = Run::new(level, member_count, steps, |array, _| change(array, &mut random)) else { return };
        let last = run.array.assert_same_trees();
        for round in 0..4 {
            let moments: Vec<usize> = (0..member_count).map(|_| steps - random.below(steps as u64 / 2) as usize).collect();
            println!("RAID {level}, seed {seed}, round {round}, moments {moments:?}");
            for (slot, &step) in moments.iter().enumerate() {
                run.put_back(slot, step, &mut random);
            }
            run.array.restart();
            let tree = run.array.assert_same_trees();
            assert_eq!(run.array.namespace.files().array().in_use().len(), member_count);
            for (path, entry) in tree.iter().filter(|(_, entry)| entry.kind == '-') {
                let opened = inside(run.array.namespace.open(format!("/{}", path.display()).as_bytes(), OFlags::RDWR, 0));
                let Node::File(file) = &opened.node else { panic!("{} is no file", path.display()) };
                assert_eq!(file.verify(), Ok(0), "{} {entry:?}", path.display());
            }
            // If some member came back at the last step, no name is lost. Modes and contents are
            // not compared.
            if moments.contains(&steps) {
                let paths = |tree: &std::collections::BTreeMap<PathBuf, Entry>| tree.keys().cloned().collect::<Vec<_>>();
                assert_eq!(paths(&tree), paths(&last));
            }
        }
    }
}

/// In the crash the array also loses as many members as the level bears. Every file name that is
/// left must open.
#[test]
fn with_members_lost_in_the_crash_every_name_still_opens() {
    let steps = 16;
    for (level, member_count, seed) in with_seeds([(Level::Raid6, 4), (Level::Raid5, 3), (Level::Raid1, 3)]) {
        let mut random = Rng(seed | 1 << 41);
        // Odd steps create a file and most even steps remove it, as SQLite does with its rollback
        // journal. Some even steps make a random change.
        let step = |array: &TestArray, number: usize| {
            if number % 2 == 1 {
                if let Ok(Reached::Array(opened)) = array.namespace.open(b"/data/journal", CREATE, 0o640) {
                    write(&opened, 0, b"some content");
                }
            } else if random.below(3) == 0 {
                change(array, &mut random);
            } else {
                let _ = array.namespace.unlink(b"/data/journal");
            }
        };
        let Some(mut run) = Run::new(level, member_count, steps, step) else { return };
        for round in 0..6 {
            let moments: Vec<usize> = (0..member_count).map(|_| steps - random.below(4) as usize).collect();
            let mut left: Vec<usize> = (0..member_count).collect();
            while member_count - left.len() < level.failures_max(member_count) {
                left.remove(random.below(left.len() as u64) as usize);
            }
            println!("RAID {level}, seed {seed}, round {round}, moments {moments:?}, left {left:?}");
            for (slot, &step) in moments.iter().enumerate() {
                let member = &run.array.members[slot];
                let _ = std::fs::remove_dir_all(member);
                std::fs::create_dir(member).unwrap();
                if left.contains(&slot) {
                    run.put_back(slot, step, &mut random);
                }
            }
            run.array.restart();
            let tree = run.array.assert_same_trees();
            for (path, entry) in tree.iter().filter(|(_, entry)| entry.kind == '-') {
                let opened = run.array.namespace.open(format!("/{}", path.display()).as_bytes(), OFlags::RDWR, 0);
                assert!(opened.is_ok(), "{} {entry:?}: {:?}", path.display(), opened.err());
            }
        }
    }
}

/// A file that is lost on more members than the level bears cannot be opened. Other files, and the
/// array, stay usable.
#[test]
fn a_file_beyond_repair_gives_eio_and_leaves_the_array_in_use() {
    let Some(mut array) = durable_array(Level::Raid5, 3) else { return };
    for name in ["/data/lost", "/data/whole"] {
        let opened = inside(array.namespace.open(name.as_bytes(), CREATE, 0o640));
        write(&opened, 0, b"some content");
    }
    std::fs::remove_dir_all(&array.members[0]).unwrap();
    std::fs::create_dir(&array.members[0]).unwrap();
    std::fs::remove_file(array.members[2].join("data/lost")).unwrap();
    array.restart();
    let open = |name: &[u8], flags| array.namespace.open(name, flags, 0o640).map(|_| ());
    assert_eq!(open(b"/data/lost", OFlags::RDWR), Err(OsError::IO));
    assert_eq!(open(b"/data/whole", OFlags::RDWR), Ok(()));
    assert_eq!(open(b"/data/new", CREATE), Ok(()));
    assert_eq!(array.namespace.files().array().in_use().len(), 2);
    // The lost file can be moved and removed like any other.
    let names = array.namespace;
    assert!(matches!(names.rename(b"/data/lost", b"/data/moved", RenameFlags::empty()), Ok(Reached::Array(()))));
    assert_eq!(open(b"/data/moved", OFlags::RDWR), Err(OsError::IO));
    assert!(matches!(names.unlink(b"/data/moved"), Ok(Reached::Array(()))));
    assert_eq!(open(b"/data/moved", OFlags::RDWR), Err(OsError::NOENT));
    array.assert_same_trees();
}

/// The first recovery's changes are durable, but not the positions that it set after them. So the
/// second recovery begins where the first began, and finds at some names the things that later
/// changes put there.
#[test]
fn a_second_crash_before_positions_are_durable_takes_nothing_away() {
    type Change = fn(cxlraid_namespace::Namespace);
    let changes: [(&str, Change); 5] = [
        ("a directory in the place of one removed", |names| {
            inside(names.rmdir(b"/data/empty"));
            inside(names.rename(b"/data/one", b"/data/empty", RenameFlags::empty()));
        }),
        ("a directory in the place of one renamed", |names| {
            inside(names.rename(b"/data/one", b"/data/new", RenameFlags::empty()));
            inside(names.rename(b"/data/two", b"/data/one", RenameFlags::empty()));
        }),
        ("a file back at its first name", |names| {
            inside(names.unlink(b"/data/file"));
            inside(names.rename(b"/data/second", b"/data/file", RenameFlags::empty()));
        }),
        ("a file at a name that another had for a while", |names| {
            inside(names.rename(b"/data/other", b"/data/new", RenameFlags::empty()));
            inside(names.rename(b"/data/new", b"/data/other", RenameFlags::empty()));
            inside(names.rename(b"/data/third", b"/data/new", RenameFlags::empty()));
        }),
        ("a file at a name that was another's second", |names| {
            inside(names.link(b"/data/other", b"/data/new", false));
            inside(names.unlink(b"/data/new"));
            inside(names.rename(b"/data/third", b"/data/new", RenameFlags::empty()));
        }),
    ];
    for (what, change) in changes {
        for behind in [&[0, 1][..], &[1], &[0]] {
            let Some(mut array) = durable_array(Level::Raid1, 2) else { return };
            let names = array.namespace;
            for directory in ["/data/empty", "/data/one", "/data/two"] {
                inside(names.mkdir(directory.as_bytes(), 0o750));
            }
            for file in ["/data/one/1", "/data/two/2", "/data/file", "/data/other", "/data/third"] {
                write(&inside(names.open(file.as_bytes(), CREATE, 0o640)), 0, file.as_bytes());
            }
            inside(names.link(b"/data/file", b"/data/second", false));
            let positions: Vec<_> = array.members.iter().map(|member| position(member)).collect();
            array.members.iter().for_each(|member| copy(&member.join("data"), &member.with_extension("data")));
            change(names);
            let contents = |array: &TestArray, slot: usize| {
                let member = &array.members[slot];
                let read = |path: &PathBuf| std::fs::read(member.join(path)).unwrap_or_default();
                let tree: Vec<_> = tree(member).into_keys().map(|path| (read(&path), path)).collect();
                tree
            };
            let wanted = contents(&array, 0);
            // Recovery makes the last change of the log only if a member has made it, and it makes
            // up nothing: so two more changes that cancel each other, and the changes under test
            // are not the last.
            inside(names.mkdir(b"/data/last", 0o750));
            inside(names.rmdir(b"/data/last"));
            for &slot in behind {
                put_files_back(&array.members[slot].with_extension("data"), &array.members[slot]);
            }
            for crash in ["first", "second"] {
                behind.iter().for_each(|&slot| set_position(&array.members[slot], positions[slot]));
                array.restart();
                for slot in 0..2 {
                    assert!(contents(&array, slot) == wanted, "{what}: {behind:?} were behind, {crash} crash, member {slot}");
                }
                array.assert_same_trees();
            }
        }
    }
}

const WNOHANG: i32 = 1;
const SIGKILL: i32 = 9;

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(status: i32) -> !;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn kill(pid: i32, signal: i32) -> i32;
}

/// Attaches the array in another process, which is killed as soon as `is_time` says so; it may also
/// end before that.
fn recover_until(array: &TestArray, is_time: impl Fn() -> bool) {
    let _ = std::fs::remove_file(array.segment());
    // SAFETY: libc's fork. The child allocates, which glibc allows after fork, attaches the array,
    // for which no lock is held (`Keep` keeps nothing and the parent has detached), and ends
    // without destructors.
    let pid = unsafe { fork() };
    if pid == 0 {
        let attach = || array.attach_keeping(Keep { count: 0, allowed: || false });
        let status = i32::from(std::panic::catch_unwind(std::panic::AssertUnwindSafe(attach)).is_err());
        // SAFETY: ends the child.
        unsafe { _exit(status) };
    }
    let mut status = 0;
    let ended = loop {
        // SAFETY: our child, and a word of ours.
        match unsafe { waitpid(pid, &raw mut status, WNOHANG) } {
            0 if is_time() => {
                // SAFETY: our child, which is not waited for yet.
                unsafe { kill(pid, SIGKILL) };
            }
            0 => {}
            ended => break ended,
        }
    };
    assert!(ended == pid && (status == 0 || status == SIGKILL), "{ended} {status:#x}");
}

/// The second crash comes in the middle of the first recovery. All that the first recovery had done
/// until it was killed is durable.
#[test]
fn a_second_crash_in_the_middle_of_recovery_leaves_no_name_twice() {
    for slot in [1, 0] {
        // The path at which the first recovery is killed, and whether a directory with a file was
        // moved before.
        for (kill_at, with_moved_directory) in
            [("e", false), ("d", false), ("d/g", false), ("d/g", true), ("f", true), ("d/last", true)]
        {
            let Some(mut array) = durable_array(Level::Raid1, 2) else { return };
            let names = array.namespace;
            let data = array.members[slot].join("data");
            inside(names.mkdir(b"/data/d", 0o750));
            inside(names.mkdir(b"/data/old", 0o750));
            write(&inside(names.open(b"/data/old/1", CREATE, 0o640)), 0, b"old");
            let (start, copied) = (position(&array.members[slot]), array.members[slot].with_extension("data"));
            copy(&data, &copied);
            if with_moved_directory {
                // A file is made in a directory that is renamed then, and both again at the old
                // names.
                inside(names.mkdir(b"/data/c", 0o700));
                inside(names.open(b"/data/c/f", CREATE, 0o640));
                inside(names.rename(b"/data/c", b"/data/f", RenameFlags::empty()));
                inside(names.rename(b"/data/f/f", b"/data/g", RenameFlags::empty()));
                inside(names.mkdir(b"/data/c", 0o755));
                inside(names.open(b"/data/c/f", CREATE, 0o640));
            }
            inside(names.mkdir(b"/data/e", 0o755));
            inside(names.rename(b"/data/d", b"/data/e", RenameFlags::empty()));
            inside(names.mkdir(b"/data/d", 0o711));
            write(&inside(names.open(b"/data/d/g", CREATE, 0o640)), 0, b"content");
            inside(names.rename(b"/data/old", b"/data/d/last", RenameFlags::empty()));
            let wanted = array.assert_same_trees();
            names.files().detach();
            names.files().array().abandon();
            put_files_back(&copied, &array.members[slot]);
            set_position(&array.members[slot], start);
            let paths = |member: &Path| tree(member).into_keys().collect::<Vec<_>>();
            // Recovery makes the path. At some of these paths it puts something else later; the
            // kill can hit either.
            recover_until(&array, || data.join(kill_at).exists());
            println!(
                "member {slot} behind, {kill_at}: {:?}, position {}, started at {start}",
                paths(&array.members[slot]),
                position(&array.members[slot])
            );
            recover_until(&array, || data.join("d/last").exists());
            array.restart();
            assert_eq!(array.assert_same_trees(), wanted, "member {slot} behind, {kill_at}");
            for (path, content) in [("/data/d/g", &b"content"[..]), ("/data/d/last/1", b"old")] {
                assert_eq!(read(&inside(array.namespace.open(path.as_bytes(), OFlags::RDWR, 0))), content, "{path}");
            }
        }
    }
}

/// The first recovery, which is played by hand, died after it had made a file and before it set the
/// file's attribute and mode. The second one is killed when it has passed that change. A third one
/// must still put the file right.
#[test]
fn a_file_without_its_mode_is_put_right_by_a_later_recovery() {
    // The kill comes at another instruction each time.
    for round in 0..20 {
        let Some(mut array) = durable_array(Level::Raid1, 2) else { return };
        let names = array.namespace;
        let data = array.members[1].join("data");
        let copied = array.members[1].with_extension("data");
        inside(names.mkdir(b"/data/old", 0o750));
        let before = position(&array.members[1]);
        copy(&data, &copied);
        inside(names.open(b"/data/new", CREATE, 0o640));
        inside(names.rename(b"/data/old", b"/data/last", RenameFlags::empty()));
        let wanted = array.assert_same_trees();
        names.files().detach();
        names.files().array().abandon();
        put_files_back(&copied, &array.members[1]);
        std::fs::write(data.join("new"), "").unwrap();
        std::fs::set_permissions(data.join("new"), std::fs::Permissions::from_mode(0o600)).unwrap();
        set_position(&array.members[1], before);
        recover_until(&array, || data.join("last").exists());
        array.restart();
        assert_eq!(array.assert_same_trees(), wanted, "round {round}");
    }
}

/// The log has changes below a directory that a symlink has since replaced. Recovery does not
/// follow the symlink: it neither looks for nor removes anything in the directory to which the
/// symlink leads.
#[test]
fn recovery_does_not_follow_a_symlink_out_of_the_array() {
    for slot in [0, 1] {
        let Some(mut array) = durable_array(Level::Raid1, 2) else { return };
        let host = array.home.path().join("host");
        std::fs::create_dir_all(host.join("inner")).unwrap();
        for name in ["file", "inner/file"] {
            std::fs::write(host.join(name), "host's").unwrap();
        }
        let names = array.namespace;
        inside(names.mkdir(b"/data/kept", 0o750));
        let (start, copied) = (position(&array.members[slot]), array.members[slot].with_extension("data"));
        copy(&array.members[slot].join("data"), &copied);
        // Each of these is a change that recovery would make in `host` if it followed `/data/d`.
        inside(names.mkdir(b"/data/d", 0o750));
        inside(names.symlink(b"x", b"/data/d/file"));
        inside(names.chmod(b"/data/d", 0o700, true));
        inside(names.unlink(b"/data/d/file"));
        inside(names.mkdir(b"/data/d/inner", 0o750));
        inside(names.mkdir(b"/data/d/new", 0o750));
        inside(names.rename(b"/data/d/inner", b"/data/moved", RenameFlags::empty()));
        inside(names.rmdir(b"/data/d/new"));
        inside(names.rmdir(b"/data/d"));
        inside(names.symlink(std::os::unix::ffi::OsStrExt::as_bytes(host.as_os_str()), b"/data/d"));
        let before = tree(&host);
        let wanted = array.assert_same_trees();
        copy(&copied, &array.members[slot].join("data"));
        set_position(&array.members[slot], start);
        array.restart();
        assert_eq!(tree(&host), before, "member {slot} behind");
        assert_eq!(array.assert_same_trees(), wanted);
    }
}

/// On one member somebody has replaced the file that was made last, by hand. The log tells which
/// file it was, so recovery does not copy the replacement to the other members.
#[test]
fn what_is_put_by_hand_in_the_place_of_the_last_file_is_not_given_to_the_other_members() {
    for slot in [0, 2] {
        for kind in ["directory", "file", "symlink"] {
            let mut array = TestArray::with(Level::Raid1, 3);
            write(&create(array.namespace, "/data/last"), 0, b"what was stored");
            let place = array.members[slot].join("data/last");
            std::fs::remove_file(&place).unwrap();
            match kind {
                "directory" => std::fs::create_dir(&place).unwrap(),
                "file" => std::fs::write(&place, "other").unwrap(),
                _ => std::os::unix::fs::symlink("elsewhere", &place).unwrap(),
            }
            array.restart();
            for other in (0..3).filter(|&other| other != slot) {
                let kept = std::fs::read(array.members[other].join("data/last")).unwrap();
                assert_eq!(kept, b"what was stored", "{kind} on member {slot}: member {other}");
            }
            let opened = inside(array.namespace.open(b"/data/last", OFlags::RDONLY, 0));
            assert_eq!(read(&opened), b"what was stored", "{kind} on member {slot}");
        }
    }
}

fn text() -> Vec<u8> {
    (0..50_000_u32).map(|at| (at % 251) as u8).collect()
}

/// An open file with [`text`]: with the name `/data/a`, or made without a name.
fn file_to_link(array: &TestArray, has_name: bool) -> cxlraid_namespace::Opened {
    let (path, flags) = if has_name { ("/data/a", CREATE) } else { ("/data", OFlags::TMPFILE | OFlags::RDWR) };
    let opened = inside(array.namespace.open(path.as_bytes(), flags, 0o640));
    write(&opened, 0, &text());
    opened
}

fn orphan(member: &Path, file: format::Attribute) -> PathBuf {
    member.join(std::str::from_utf8(&file::orphan_path(file)).unwrap())
}

/// All members are in use and have the same names, and these names lead to [`text`], which fits.
fn assert_text_at(array: &TestArray, names: &[&str], what: &str) {
    assert_eq!(array.namespace.files().array().in_use().len(), array.members.len(), "{what}");
    let tree = array.assert_same_trees();
    assert_eq!(tree.values().filter(|entry| entry.kind == '-').count(), names.len(), "{what}: {tree:?}");
    for name in names {
        let opened = inside(array.namespace.open(format!("/data/{name}").as_bytes(), OFlags::RDWR, 0));
        assert!(read(&opened) == text(), "{what}: {name}");
        assert_eq!(file_of(&opened).verify(), Ok(0), "{what}: {name}");
    }
}

/// Links a file by its descriptor, renames that link if `is_renamed`, and closes the file. Returns the
/// link's name.
fn link_and_close(names: Namespace, opened: Opened, is_renamed: bool) -> &'static str {
    inside(names.link_descriptor(opened.anchor.as_fd(), &opened.node, b"/data/new"));
    if is_renamed {
        inside(names.rename(b"/data/new", b"/data/moved", RenameFlags::empty()));
    }
    drop(opened);
    if is_renamed { "moved" } else { "new" }
}

/// The link, and a change after it, have become durable on some members only. The others have the
/// file by its old name.
#[test]
fn a_durable_file_linked_by_a_descriptor_just_before_a_crash_keeps_its_bytes() {
    for (level, member_count, behind) in
        [(Level::Raid5, 3, &[1, 2][..]), (Level::Raid1, 3, &[1, 2]), (Level::Raid0, 2, &[1]), (Level::Raid5, 3, &[0])]
    {
        for is_renamed in [false, true] {
            let Some(mut array) = durable_array(level, member_count) else { return };
            let names = array.namespace;
            let opened = file_to_link(&array, true);
            let before = position(&array.members[0]);
            let name = link_and_close(names, opened, is_renamed);
            for &slot in behind {
                std::fs::remove_file(array.members[slot].join("data").join(name)).unwrap();
                set_position(&array.members[slot], before);
            }
            array.restart();
            assert_text_at(&array, &["a", name], &format!("RAID {level}, {behind:?} behind, {name}"));
        }
    }
}

/// The link is durable on some members only. The others have nothing of the file, or its link in
/// `.cxlraid`.
#[test]
fn a_file_made_without_a_name_and_linked_just_before_a_crash_is_whole_or_not_there() {
    for (level, member_count, behind, is_left) in [
        (Level::Raid5, 3, &[1, 2][..], false),
        (Level::Raid0, 2, &[1], false),
        (Level::Raid5, 3, &[0, 1], false),
        (Level::Raid5, 3, &[2], true),
        (Level::Raid1, 3, &[1, 2], true),
    ] {
        for (is_renamed, is_kept) in [(false, false), (true, false), (false, true)] {
            let what = format!("RAID {level}, {behind:?} behind, renamed {is_renamed}, kept {is_kept}");
            let Some(mut array) = durable_array(level, member_count) else { return };
            let names = array.namespace;
            let before = position(&array.members[0]);
            let opened = file_to_link(&array, false);
            let file = file_of(&opened).attribute();
            let name = link_and_close(names, opened, is_renamed);
            for &slot in behind {
                let member = &array.members[slot];
                if is_kept {
                    std::fs::hard_link(member.join("data").join(name), orphan(member, file)).unwrap();
                }
                std::fs::remove_file(member.join("data").join(name)).unwrap();
                set_position(member, before);
            }
            array.restart();
            assert_text_at(&array, &[name][..usize::from(is_left || is_kept)], &what);
            if !is_left && !is_kept {
                assert_eq!(array.namespace.files().state_of(file), None, "{what}");
                drop(inside(array.namespace.open(b"/data/new", CREATE, 0o640)));
            }
            assert!(array.members.iter().all(|member| !orphan(member, file).exists()), "{what}");
        }
    }
}

/// Puts a link by a descriptor back to where only the members that are not `behind` had it, and
/// nothing was noted of the file.
fn leave_half_linked(array: &TestArray, file: format::Attribute, behind: &[usize]) {
    for &slot in behind {
        std::fs::remove_file(array.members[slot].join("data/new")).unwrap();
    }
    array.namespace.files().unlinked(file, Name::Kept, || false);
}

/// A process dies between two members as it links a file that it alone has open.
#[test]
fn a_file_made_without_a_name_whose_maker_dies_as_it_links_it_is_whole_or_not_there() {
    for (level, member_count, behind, is_left) in [
        (Level::Raid5, 3, &[1, 2][..], false),
        (Level::Raid0, 2, &[1], false),
        (Level::Raid5, 3, &[2], true),
        (Level::Raid1, 3, &[1, 2], true),
    ] {
        let mut array = TestArray::with(level, member_count);
        let opened = file_to_link(&array, false);
        let file = file_of(&opened).attribute();
        inside(array.namespace.link_descriptor(opened.anchor.as_fd(), &opened.node, b"/data/new"));
        leave_half_linked(&array, file, behind);
        std::mem::forget(opened);
        array.restart();
        assert_text_at(&array, &["new"][..usize::from(is_left)], &format!("RAID {level}, {behind:?} behind"));
        assert_eq!(array.namespace.files().state_of(file).is_some(), is_left);
    }
}

/// As if a process had died that held the namespace lock.
fn leave_a_change(names: cxlraid_namespace::Namespace) {
    let runtime = names.files().array().runtime();
    names.between_changes(|| runtime.names_are_unfinished());
}

/// A process dies as it links a file that another has open: each member has the file in `.cxlraid`.
/// The other closes it after the next change of names, or before that, and then the file is gone.
#[test]
fn a_file_whose_maker_dies_as_it_links_it_and_that_another_has_open_gets_its_name() {
    for (level, member_count) in [(Level::Raid5, 3), (Level::Raid1, 3), (Level::Raid0, 2)] {
        for (made, is_closed_before) in (0..=member_count).flat_map(|made| [(made, false), (made, true)]) {
            let what = format!("RAID {level}, {made} members have the link, closed before {is_closed_before}");
            let array = TestArray::with(level, member_count);
            let names = array.namespace;
            let opened = file_to_link(&array, false);
            let file = file_of(&opened).attribute();
            inside(names.link_descriptor(opened.anchor.as_fd(), &opened.node, b"/data/new"));
            for member in &array.members {
                std::fs::hard_link(member.join("data/new"), orphan(member, file)).unwrap();
            }
            leave_half_linked(&array, file, &(made..member_count).collect::<Vec<_>>());
            leave_a_change(names);
            let is_left = !is_closed_before && made > 0;
            if is_closed_before {
                drop(opened);
                inside(names.mkdir(b"/data/dir", 0o750));
            } else {
                inside(names.mkdir(b"/data/dir", 0o750));
                assert_eq!(file_of(&opened).name() == Name::Has, is_left, "{what}");
                drop(opened);
            }
            assert_text_at(&array, &["new"][..usize::from(is_left)], &what);
            assert!(array.members.iter().all(|member| !orphan(member, file).exists()), "{what}");
            assert_eq!(names.files().state_of(file).is_some(), is_left, "{what}");
        }
    }
}

/// A process dies between two members as it sets times, of what is open or not.
#[test]
fn times_whose_setting_a_death_cut_short_are_the_same_on_all_members() {
    let time = |seconds| Timespec { tv_sec: seconds, tv_nsec: 5 };
    let times = Timestamps { last_access: time(1000), last_modification: time(2000) };
    for (path, is_open) in [("file", false), ("file", true), ("dir", false), ("link", false)] {
        let array = TestArray::new();
        let names = array.namespace;
        inside(names.mkdir(b"/data/dir", 0o750));
        inside(names.symlink(b"nowhere", b"/data/link"));
        let opened = create(names, "/data/file");
        let opened = is_open.then_some(opened);
        inside(names.utimens(format!("/data/{path}").as_bytes(), &times, false));
        let place = |slot: usize| array.members[slot].join("data").join(path);
        for slot in [1, 2] {
            let touched = Command::new("touch").args(["-h", "-d", "@77"]).arg(place(slot)).status().unwrap();
            assert!(touched.success());
        }
        leave_a_change(names);
        inside(names.symlink(b"other", b"/data/other"));
        for slot in 0..3 {
            let found = place(slot).symlink_metadata().unwrap();
            assert_eq!((found.mtime(), found.mtime_nsec()), (2000, 5), "{path} on member {slot}, open {is_open}");
        }
        drop(opened);
    }
}
