//! An open directory is found though the member that its descriptor lies on is lost, and the
//! directory was renamed, removed or replaced since.

mod common;

use common::*;
use cxlraid_namespace::{Namespace, OFlags, Opened, ProgramPath, Reached, RenameFlags};
use layout::Level;
use std::mem::MaybeUninit;
use std::os::unix::fs::PermissionsExt as _;
use sys::rustix::fs::{Dir, RawDir};
use sys::{AsFd as _, AsRawFd as _, OsError, RawFd};

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const CREATE: OFlags = OFlags::RDWR.union(OFlags::CREATE).union(OFlags::CLOEXEC);

fn opened(names: Namespace, path: &str, flags: OFlags) -> Opened {
    let opened = inside(names.open(path.as_bytes(), flags, 0));
    assert!(opened.node.twin().is_some());
    opened
}

/// The descriptor that stands for a directory now, and what it is called.
fn present(names: Namespace, directory: &Opened) -> (RawFd, String) {
    let fd = directory.node.twin().unwrap().present(directory.anchor.as_fd());
    (fd.as_raw_fd(), String::from_utf8(names.logical_path_of(fd).unwrap().unwrap()).unwrap())
}

/// Makes a call with a path relative to an open directory, as a front does.
fn relative<T>(names: Namespace, directory: &Opened, name: &str, act: impl FnOnce(ProgramPath<'_>) -> T) -> T {
    let (first, twin) = (directory.anchor.as_fd(), directory.node.twin().unwrap());
    let now = twin.present(first);
    let host = std::fs::read_link(format!("/proc/self/fd/{}", now.as_raw_fd())).unwrap();
    let (path, slot) = names.placed(host.as_os_str().as_encoded_bytes()).unwrap();
    let text = [path, b"/", name.as_bytes()].concat();
    act(ProgramPath::relative(now, slot, &text, path.len()).with_twin(first, twin))
}

fn make(names: Namespace, directory: &Opened, name: &str) -> Result<(), OsError> {
    relative(names, directory, name, |path| names.open(path, CREATE, 0o644))
        .map(|made| assert!(matches!(made, Reached::Array(_))))
}

fn lose(names: Namespace, slot: usize) {
    names.files().array().fail_member(slot).unwrap();
}

fn rename(names: Namespace, from: &str, to: &str) {
    inside(names.rename(from.as_bytes(), to.as_bytes(), RenameFlags::empty()));
}

fn is_there(names: Namespace, path: &str) -> bool {
    names.stat(path.as_bytes(), false).is_ok()
}

#[test]
fn a_directory_that_is_renamed_after_losses_is_found_by_its_descriptor() {
    for flags in [DIRECTORY, DIRECTORY | OFlags::PATH] {
        let array = TestArray::with(Level::Raid6, 5);
        let names = array.namespace;
        inside(names.mkdir(b"/data/d", 0o755));
        inside(names.mkdir(b"/data/d/e", 0o755));
        let directory = opened(names, "/data/d/e", flags);
        let first = directory.anchor.as_raw_fd();
        assert_eq!(present(names, &directory), (first, "/data/d/e".into()));
        lose(names, 0);
        // The directory above it is renamed, and another one has the old path.
        rename(names, "/data/d", "/data/m");
        inside(names.mkdir(b"/data/d", 0o755));
        inside(names.mkdir(b"/data/d/e", 0o700));
        let (second, path) = present(names, &directory);
        assert!(second != first && path == "/data/m/e");
        make(names, &directory, "one").unwrap();
        assert!(is_there(names, "/data/m/e/one") && !is_there(names, "/data/d/e/one"));
        // The next one is lost, where the twin lies.
        lose(names, 1);
        rename(names, "/data/m/e", "/data/n");
        let (third, path) = present(names, &directory);
        assert!(third != second && path == "/data/n");
        make(names, &directory, "two").unwrap();
        relative(names, &directory, "one", |path| names.rename(path, b"/data/n/three", RenameFlags::empty()))
            .map(|_| ())
            .unwrap();
        assert!(is_there(names, "/data/n/two") && is_there(names, "/data/n/three"));
        let node = &directory.node;
        assert_eq!(names.fstat(directory.anchor.as_fd(), node).unwrap().st_ino, inside(names.stat(b"/data/n", false)).st_ino);
        names.fchmod(directory.anchor.as_fd(), node, 0o711).unwrap();
        for slot in 2..5 {
            let mode = |path: &str| array.members[slot].join(path).metadata().unwrap().permissions().mode() & 0o777;
            assert_eq!((mode("data/n"), mode("data/d/e")), (0o711, 0o700), "{slot}");
        }
        array.assert_same_trees();
    }
}

#[test]
fn a_directory_that_is_removed_after_a_loss_is_gone() {
    let array = TestArray::new();
    let names = array.namespace;
    inside(names.mkdir(b"/data/d", 0o755));
    let directory = opened(names, "/data/d", DIRECTORY);
    lose(names, 0);
    inside(names.rmdir(b"/data/d"));
    inside(names.mkdir(b"/data/d", 0o755));
    assert_eq!(make(names, &directory, "f"), Err(OsError::NOENT));
    assert!(!is_there(names, "/data/d/f"));
    assert_eq!(names.fstat(directory.anchor.as_fd(), &directory.node).unwrap().st_nlink, 0);
}

#[test]
fn a_listing_shows_what_was_made_after_a_loss_once_it_begins_anew() {
    let array = TestArray::new();
    let names = array.namespace;
    inside(names.mkdir(b"/data/d", 0o755));
    drop(create(names, "/data/d/a"));
    let directory = opened(names, "/data/d", DIRECTORY);
    let (first, twin) = (directory.anchor.as_fd(), directory.node.twin().unwrap());
    assert!(twin.listed(first).is_none());
    let listed = |fd: sys::BorrowedFd<'_>| {
        let names = Dir::read_from(fd).unwrap().map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned());
        let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
        names.sort_unstable();
        names
    };
    let mut room = [MaybeUninit::uninit(); 4096];
    assert!(RawDir::new(first, &mut room).next().unwrap().is_ok());
    lose(names, 0);
    drop(create(names, "/data/d/b"));
    inside(names.unlink(b"/data/d/a"));
    assert!(twin.listed(first).is_none(), "in the middle of a listing");
    sys::rustix::fs::seek(first, sys::rustix::fs::SeekFrom::Start(0)).unwrap();
    assert_eq!(listed(twin.listed(first).unwrap()), ["b"]);
    assert_eq!(listed(first), ["a"]);
}
