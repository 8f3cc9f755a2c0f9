//! Paths that start from an open directory: they lead where the kernel leads them, since the kernel
//! holds the directory itself, whatever has its name by now.

mod common;

use common::*;
use cxlraid_namespace::{
    Access, AtFlags, FileType, Namespace, OFlags, Opened, ProgramPath, Reached, RenameFlags, StatxFlags, XattrFlags,
};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use sys::{AsFd as _, OsError};

const MEMBER_COUNT: usize = 3;
const CREATE: OFlags = OFlags::RDWR.union(OFlags::CREATE).union(OFlags::CLOEXEC);

/// An array with a directory that is open.
struct Scene {
    array: TestArray,
    opened: Opened,
    outside: PathBuf,
    /// The state of names and members when the kernel was asked what the directory is called, if the
    /// paths tell it.
    asked_in: Option<[u64; 2]>,
}

/// What the program asked the kernel for before the directory lost its name.
const KNOWN: &str = "/data/e";

impl Scene {
    fn new() -> Self {
        let array = TestArray::with(layout::Level::Raid5, MEMBER_COUNT);
        let names = array.namespace;
        fill(names, KNOWN, b"ours");
        let opened = inside(names.open(KNOWN.as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, 0));
        let outside = array.home.path().join("outside");
        for directory in ["", "sub", "empty"] {
            std::fs::create_dir(outside.join(directory)).unwrap();
        }
        for file in ["file", "other", "sub/inner"] {
            std::fs::write(outside.join(file), "theirs").unwrap();
        }
        symlink("elsewhere", outside.join("link")).unwrap();
        Self { array, opened, outside, asked_in: None }
    }

    fn names(&self) -> Namespace {
        self.array.namespace
    }

    /// A path relative to the open directory, with what that was called when it was opened.
    fn act<T>(&self, name: &str, act: impl FnOnce(ProgramPath<'_>) -> T) -> T {
        let text = format!("{KNOWN}/{name}");
        let path = ProgramPath::relative(self.opened.anchor.as_fd(), Some(0), text.as_bytes(), KNOWN.len());
        act(path.asked_in(self.asked_in))
    }

    fn two<T>(&self, from: &str, to: &str, act: impl FnOnce(ProgramPath<'_>, ProgramPath<'_>) -> T) -> T {
        self.act(from, |from| self.act(to, |to| act(from, to)))
    }
}

fn fill(names: Namespace, directory: &str, bytes: &[u8]) {
    for name in ["", "/sub", "/empty"] {
        inside(names.mkdir(format!("{directory}{name}").as_bytes(), 0o755));
    }
    for name in ["file", "other", "sub/inner"] {
        write(&inside(names.open(format!("{directory}/{name}").as_bytes(), CREATE, 0o644)), 0, bytes);
    }
    inside(names.symlink(b"file", format!("{directory}/link").as_bytes()));
    inside(names.symlink(b"sub", format!("{directory}/way").as_bytes()));
}

/// Every kind of call, and what it does to the directory: names that must be there then, and names
/// that must not.
type Act = (&'static str, fn(&Scene) -> Result<(), OsError>, &'static [&'static str], &'static [&'static str]);

fn done<T, H>(result: Result<Reached<T, H>, OsError>) -> Result<(), OsError> {
    match result? {
        Reached::Array(_) => Ok(()),
        Reached::Host(_) => Err(OsError::XDEV),
    }
}

fn content(result: Result<Reached<Opened>, OsError>) -> Result<(), OsError> {
    match result? {
        Reached::Array(opened) => {
            assert_eq!(read(&opened), b"ours");
            Ok(())
        }
        Reached::Host(_) => Err(OsError::XDEV),
    }
}

const ACTS: [Act; 28] = [
    ("open", |scene| scene.act("file", |path| content(scene.names().open(path, OFlags::RDONLY, 0))), &[], &[]),
    ("open below", |scene| scene.act("sub/inner", |path| content(scene.names().open(path, OFlags::RDWR, 0))), &[], &[]),
    ("open through a symlink", |scene| scene.act("link", |path| content(scene.names().open(path, OFlags::RDWR, 0))), &[], &[]),
    ("open up and down", |scene| scene.act("sub/../file", |path| content(scene.names().open(path, OFlags::RDWR, 0))), &[], &[]),
    ("open on a way", |scene| scene.act("way/inner", |path| content(scene.names().open(path, OFlags::RDWR, 0))), &[], &[]),
    ("open(O_CREAT)", |scene| scene.act("new", |path| done(scene.names().open(path, CREATE, 0o644))), &["new"], &[]),
    (
        "open(O_CREAT) below",
        |scene| scene.act("sub/new", |path| done(scene.names().open(path, CREATE, 0o644))),
        &["sub/new"],
        &[],
    ),
    (
        "open(O_CREAT) on a way",
        |scene| scene.act("way/new", |path| done(scene.names().open(path, CREATE, 0o644))),
        &["sub/new"],
        &[],
    ),
    (
        "open(O_TRUNC)",
        |scene| scene.act("file", |path| done(scene.names().open(path, OFlags::RDWR | OFlags::TRUNC, 0))),
        &[],
        &[],
    ),
    (
        "open(O_TMPFILE)",
        |scene| scene.act(".", |path| done(scene.names().open(path, OFlags::RDWR | OFlags::TMPFILE, 0o600))),
        &[],
        &[],
    ),
    (
        "open(O_DIRECTORY)",
        |scene| scene.act("sub/", |path| done(scene.names().open(path, OFlags::RDONLY | OFlags::DIRECTORY, 0))),
        &[],
        &[],
    ),
    ("mkdir", |scene| scene.act("new/", |path| done(scene.names().mkdir(path, 0o700))), &["new"], &[]),
    ("rmdir", |scene| scene.act("empty", |path| done(scene.names().rmdir(path))), &[], &["empty"]),
    ("unlink", |scene| scene.act("file", |path| done(scene.names().unlink(path))), &[], &["file"]),
    ("unlink below", |scene| scene.act("sub/inner", |path| done(scene.names().unlink(path))), &[], &["sub/inner"]),
    ("symlink", |scene| scene.act("new", |path| done(scene.names().symlink(b"x", path))), &["new"], &[]),
    ("mkfifo", |scene| scene.act("new", |path| done(scene.names().mknod(path, FileType::Fifo, 0o644, 0))), &["new"], &[]),
    (
        "rename",
        |scene| scene.two("file", "sub/new", |from, to| done(scene.names().rename(from, to, RenameFlags::empty()))),
        &["sub/new"],
        &["file"],
    ),
    (
        "rename away",
        |scene| scene.act("file", |from| done(scene.names().rename(from, b"/data/new", RenameFlags::empty()))),
        &[],
        &["file"],
    ),
    ("link", |scene| scene.two("file", "new", |from, to| done(scene.names().link(from, to, false))), &["new"], &[]),
    (
        "link of what a symlink leads to",
        |scene| scene.two("link", "new", |from, to| done(scene.names().link(from, to, true))),
        &["new"],
        &[],
    ),
    ("chmod", |scene| scene.act("file", |path| done(scene.names().chmod(path, 0o711, true))), &[], &[]),
    ("chown", |scene| scene.act("file", |path| done(scene.names().chown(path, u32::MAX, u32::MAX, true))), &[], &[]),
    (
        "setxattr",
        |scene| scene.act("file", |path| done(scene.names().setxattr(path, b"user.t", b"x", XattrFlags::empty(), true))),
        &[],
        &[],
    ),
    ("truncate", |scene| scene.act("file", |path| done(scene.names().truncate(path, 2))), &[], &[]),
    (
        "stat",
        |scene| {
            scene.act("file", |path| {
                assert_eq!(inside(scene.names().stat(path, true)).st_size, 4);
                assert_eq!(inside(scene.names().statx(path, AtFlags::empty(), StatxFlags::BASIC_STATS, true)).stx_size, 4);
            });
            scene.act("sub/inner", |path| assert_eq!(inside(scene.names().stat(path, false)).st_size, 4));
            Ok(())
        },
        &[],
        &[],
    ),
    (
        "access",
        |scene| scene.act("sub/inner", |path| done(scene.names().access(path, Access::READ_OK, AtFlags::empty(), true))),
        &[],
        &[],
    ),
    (
        "readlink",
        |scene| {
            scene.act("link", |path| assert_eq!(inside(scene.names().readlink(path)), b"file"));
            Ok(())
        },
        &[],
        &[],
    ),
];

/// What there is at a host path, and all below it: contents, sizes and modes.
fn seen(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(path) = pending.pop() {
        let stat = path.symlink_metadata().unwrap();
        lines.push(format!("{path:?} {stat:?}").split("accessed").next().unwrap().to_string());
        if stat.is_dir() {
            pending.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if stat.is_file() {
            lines.push(std::fs::read_to_string(&path).unwrap());
        }
    }
    lines.sort();
    lines
}

fn check(scene: &Scene, what: &str, present: &[&str], gone: &[&str]) {
    let there = |name: &&str| scene.array.members[0].join("data/moved").join(name).symlink_metadata().is_ok();
    assert!(present.iter().all(there), "{what}");
    assert!(!gone.iter().any(there), "{what}");
    scene.array.assert_same_trees();
}

/// A directory that an ordinary program has renamed, and another one at its place.
#[test]
fn a_renamed_directory_is_where_calls_act_that_have_it_open() {
    for ((what, act, present, gone), tells) in ACTS.into_iter().flat_map(|act| [(act, false), (act, true)]) {
        let mut scene = Scene::new();
        scene.asked_in = scene.names().present_epochs().filter(|_| tells);
        assert_eq!(scene.asked_in.is_some(), tells, "no name is being changed");
        inside(scene.names().rename(KNOWN.as_bytes(), b"/data/moved", RenameFlags::empty()));
        fill(scene.names(), KNOWN, b"the other's");
        let other = |slot: usize| seen(&scene.array.members[slot].join("data/e"));
        let before: Vec<_> = (0..MEMBER_COUNT).map(other).collect();
        assert_eq!(act(&scene), Ok(()), "{what}");
        assert_eq!((0..MEMBER_COUNT).map(other).collect::<Vec<_>>(), before, "{what}");
        check(&scene, what, present, gone);
    }
}

/// A directory that has kept its name: who makes a file in it does not ask again what it is called.
/// One that was removed, and another one made at its place, lets no file be made in it.
#[test]
fn a_file_is_made_in_the_directory_that_is_open_and_in_no_other() {
    let mut scene = Scene::new();
    let (names, members) = (scene.names(), scene.array.members.clone());
    scene.asked_in = names.present_epochs();
    let make = |scene: &Scene, name: &str| scene.act(name, |path| done(names.open(path, CREATE, 0o644)));
    let there = |name: &str| members.iter().filter(|member| member.join(name).exists()).count();
    assert_eq!(make(&scene, "new"), Ok(()));
    assert_eq!(there("data/e/new"), MEMBER_COUNT);
    assert_eq!(make(&scene, "sub/new"), Ok(()));
    assert_eq!(there("data/e/sub/new"), MEMBER_COUNT);
    scene.array.assert_same_trees();

    inside(names.mkdir(b"/data/f", 0o755));
    let opened = inside(names.open(b"/data/f", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, 0));
    let asked_in = names.present_epochs();
    inside(names.rmdir(b"/data/f"));
    inside(names.mkdir(b"/data/f", 0o755));
    let path = ProgramPath::relative(opened.anchor.as_fd(), Some(0), b"/data/f/new", b"/data/f".len()).asked_in(asked_in);
    for flags in [CREATE, CREATE | OFlags::EXCL] {
        assert_eq!(done(names.open(path, flags, 0o644)), Err(OsError::NOENT));
    }
    assert_eq!(there("data/f/new"), 0);
    scene.array.assert_same_trees();
}

/// The owner of the directory has put a symlink that leads out of the array into its place, on all
/// members.
#[test]
fn a_symlink_in_the_place_of_an_open_directory_is_not_followed() {
    for (what, act, present, gone) in ACTS {
        let scene = Scene::new();
        for member in &scene.array.members {
            std::fs::rename(member.join("data/e"), member.join("data/moved")).unwrap();
            symlink(&scene.outside, member.join("data/e")).unwrap();
        }
        let before = seen(&scene.outside);
        assert_eq!(act(&scene), Ok(()), "{what}");
        assert_eq!(seen(&scene.outside), before, "{what}");
        check(&scene, what, present, gone);
    }
}

/// The same on one member only, where what the call does elsewhere is in doubt: it may fail, but it
/// leads nowhere.
#[test]
fn nor_is_it_on_one_member_alone() {
    for slot in 0..MEMBER_COUNT {
        for (what, act, ..) in ACTS {
            let scene = Scene::new();
            let member = &scene.array.members[slot];
            std::fs::rename(member.join("data/e"), scene.array.home.path().join("was")).unwrap();
            symlink(&scene.outside, member.join("data/e")).unwrap();
            let before = seen(&scene.outside);
            let acted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| act(&scene)));
            assert_eq!(seen(&scene.outside), before, "{what} on member {slot}: {acted:?}");
        }
    }
}

/// A path that was found out, and not written by the program, is not followed at all.
#[test]
fn a_known_path_is_not_followed() {
    let scene = Scene::new();
    let names = scene.names();
    for path in ["/data/e/link", "/data/e/way/inner"] {
        let known = ProgramPath::known(path.as_bytes());
        assert_eq!(refused(names.open(known, OFlags::RDONLY, 0)), OsError::LOOP, "{path}");
        assert_eq!(refused(names.chmod(known, 0o777, true)), OsError::LOOP, "{path}");
    }
    assert_eq!(read(&inside(names.open(ProgramPath::known(b"/data/e/sub/inner"), OFlags::RDONLY, 0))), b"ours");
    inside(names.open(ProgramPath::known(b"/data/e/sub/new"), CREATE, 0o644));
    scene.array.assert_same_trees();
}
