//! A user puts a symlink in the place of his directory on one member: it leads no change out of the
//! array.

mod common;

use common::*;
use cxlraid_namespace::{FileType, Node, OFlags, RenameFlags, Timestamps, XattrFlags};
use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use sys::AsFd as _;
use sys::rustix::fs::Timespec;

const CREATE: OFlags = OFlags::RDWR.union(OFlags::CREATE).union(OFlags::CLOEXEC);
const MEMBER_COUNT: usize = 3;

/// Everything there is to see of a tree of the host.
fn seen(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(path) = pending.pop() {
        let stat = path.symlink_metadata().unwrap();
        let mut text =
            format!("{:o} {} {} {} {} {:?}", stat.mode(), stat.uid(), stat.gid(), stat.nlink(), stat.mtime(), xattr_names(&path));
        if stat.is_dir() {
            pending.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if stat.is_file() {
            text.push_str(&std::fs::read_to_string(&path).unwrap());
        }
        found.insert(path, text);
    }
    found
}

fn xattr_names(path: &Path) -> Vec<u8> {
    let mut names = vec![0; 4096];
    let bytes = sys::rustix::fs::llistxattr(path, names.as_mut_slice()).unwrap();
    names.truncate(bytes);
    names
}

/// Makes a directory of the host that has the names of the array's directory `/data/e`, and more.
fn host_directory(array: &TestArray) -> PathBuf {
    let host = array.home.path().join("elsewhere");
    std::fs::create_dir(&host).unwrap();
    for name in ["file", "other", "keep"] {
        std::fs::write(host.join(name), name).unwrap();
    }
    for name in ["sub", "empty"] {
        std::fs::create_dir(host.join(name)).unwrap();
    }
    std::fs::write(host.join("sub/inner"), "inner").unwrap();
    host
}

fn filled() -> TestArray {
    let array = TestArray::with(layout::Level::Raid1, MEMBER_COUNT);
    let names = array.namespace;
    inside(names.mkdir(b"/data/e", 0o755));
    for path in ["/data/e/sub", "/data/e/empty"] {
        inside(names.mkdir(path.as_bytes(), 0o755));
    }
    for path in ["/data/e/file", "/data/e/other", "/data/e/sub/inner", "/data/outside"] {
        write(&inside(names.open(path.as_bytes(), CREATE, 0o644)), 0, b"ours");
    }
    array
}

/// Puts a symlink in the place of a name on one member, as the owner of a directory may do with it.
fn replace(array: &TestArray, slot: usize, name: &str, target: &Path) {
    let own = array.members[slot].join(name);
    std::fs::rename(&own, array.home.path().join("was")).unwrap();
    symlink(target, own).unwrap();
}

type Act = (&'static str, fn(&TestArray));

const ACTS: [Act; 19] = [
    ("open(O_CREAT)", |array| drop(array.namespace.open(b"/data/e/new", CREATE, 0o644))),
    ("open(O_TMPFILE)", |array| drop(array.namespace.open(b"/data/e", OFlags::TMPFILE | OFlags::RDWR, 0o644))),
    ("open(O_TRUNC)", |array| drop(array.namespace.open(b"/data/e/file", OFlags::RDWR | OFlags::TRUNC, 0))),
    ("mkdir", |array| drop(array.namespace.mkdir(b"/data/e/new", 0o700))),
    ("rmdir", |array| drop(array.namespace.rmdir(b"/data/e/empty"))),
    ("unlink", |array| drop(array.namespace.unlink(b"/data/e/file"))),
    ("symlink", |array| drop(array.namespace.symlink(b"x", b"/data/e/new"))),
    ("mkfifo", |array| drop(array.namespace.mknod(b"/data/e/new", FileType::Fifo, 0o644, 0))),
    ("rename within", |array| drop(array.namespace.rename(b"/data/e/file", b"/data/e/new", RenameFlags::empty()))),
    ("rename over", |array| drop(array.namespace.rename(b"/data/e/file", b"/data/e/other", RenameFlags::empty()))),
    ("rename out", |array| drop(array.namespace.rename(b"/data/e/file", b"/data/new", RenameFlags::empty()))),
    ("rename in", |array| drop(array.namespace.rename(b"/data/outside", b"/data/e/new", RenameFlags::empty()))),
    ("exchange", |array| drop(array.namespace.rename(b"/data/outside", b"/data/e/file", RenameFlags::EXCHANGE))),
    ("link out", |array| drop(array.namespace.link(b"/data/e/file", b"/data/new", false))),
    ("link in", |array| drop(array.namespace.link(b"/data/outside", b"/data/e/new", false))),
    ("chmod", |array| drop(array.namespace.chmod(b"/data/e/file", 0o777, true))),
    ("chown", |array| drop(array.namespace.chown(b"/data/e/sub", 1001, 1001, false))),
    ("utimens", |array| {
        let time = Timespec { tv_sec: 1, tv_nsec: 0 };
        drop(array.namespace.utimens(b"/data/e/sub", &Timestamps { last_access: time, last_modification: time }, false));
    }),
    ("setxattr", |array| drop(array.namespace.setxattr(b"/data/e/file", b"user.t", b"x", XattrFlags::empty(), false))),
];

#[test]
fn a_directory_that_is_a_symlink_on_one_member_leads_no_change_out() {
    for (what, act) in ACTS {
        for slot in 0..MEMBER_COUNT {
            let array = filled();
            let host = host_directory(&array);
            // A process that has met the directory does not ask again whether it is one.
            let _ = array.namespace.stat(b"/data/e/file", false);
            replace(&array, slot, "data/e", &host);
            let before = seen(&host);
            act(&array);
            assert_eq!(seen(&host), before, "{what} on member {slot}");
        }
    }
}

#[test]
fn a_directory_whose_place_a_symlink_has_on_one_member_is_removed_or_made_without_following_it() {
    let acts: [Act; 4] = [
        ("mkdir with a slash", |array| drop(array.namespace.mkdir(b"/data/n/", 0o755))),
        ("rmdir with a slash", |array| drop(array.namespace.rmdir(b"/data/e/empty/"))),
        ("rename over it", |array| {
            drop(array.namespace.rename(b"/data/e/sub/", b"/data/e/empty/", RenameFlags::empty()));
        }),
        ("chown", |array| drop(array.namespace.chown(b"/data/e/empty", 1001, 1001, false))),
    ];
    for (what, act) in acts {
        for slot in 1..MEMBER_COUNT {
            let array = filled();
            let host = host_directory(&array);
            symlink(&host, array.members[slot].join("data/n")).unwrap();
            replace(&array, slot, "data/e/empty", &host);
            let before = seen(&host);
            act(&array);
            assert_eq!(seen(&host), before, "{what} on member {slot}");
        }
    }
}

#[test]
fn a_mode_is_not_changed_through_a_symlink() {
    for (name, mode) in [("file", 0o777), ("sub", 0o777)] {
        for slot in 0..MEMBER_COUNT {
            let array = filled();
            let host = host_directory(&array);
            replace(&array, slot, &format!("data/e/{name}"), &host.join(name));
            let before = seen(&host);
            let _ = array.namespace.chmod(format!("/data/e/{name}").as_bytes(), mode, true);
            assert_eq!(seen(&host), before, "{name} on member {slot}");
        }
    }
}

#[test]
fn a_directory_known_by_a_descriptor_is_changed_where_it_is() {
    let array = filled();
    let host = host_directory(&array);
    let opened = inside(array.namespace.open(b"/data/e/sub", OFlags::RDONLY | OFlags::DIRECTORY, 0));
    assert!(matches!(opened.node, Node::Directory(_)));
    replace(&array, 1, "data/e", &host);
    let before = seen(&host);
    let _ = array.namespace.fchmod(opened.anchor.as_fd(), &opened.node, 0o777);
    let _ = array.namespace.sync_directory(opened.anchor.as_fd());
    assert_eq!(seen(&host), before);
}

#[test]
fn a_comparison_of_all_names_clears_nothing_outside() {
    for slot in 1..MEMBER_COUNT {
        let array = filled();
        let host = host_directory(&array);
        replace(&array, slot, "data/e", &host);
        let before = seen(&host);
        let _ = array.namespace.recover();
        assert_eq!(seen(&host), before, "member {slot}");
        array.assert_same_trees();
    }
}

#[test]
fn what_a_symlink_was_put_for_is_a_directory_again_after_a_change() {
    let array = filled();
    let host = host_directory(&array);
    replace(&array, 1, "data/e", &host);
    inside(array.namespace.mkdir(b"/data/e/new", 0o755));
    assert!(array.namespace.files().array().in_use().contains(0));
    array.assert_same_trees();
}

#[test]
fn a_link_of_another_file_is_not_taken_for_the_arrays() {
    let array = filled();
    let host = host_directory(&array);
    let own = array.members[1].join("data/e/file");
    std::fs::remove_file(&own).unwrap();
    std::fs::hard_link(host.join("file"), own).unwrap();
    let mode = host.join("file").metadata().unwrap().mode();
    let _ = array.namespace.chmod(b"/data/e/file", 0o777, true);
    let _ = array.namespace.chown(b"/data/e/file", 1001, 1001, true);
    let stat = host.join("file").metadata().unwrap();
    assert_eq!((stat.mode(), stat.uid()), (mode, 0));
}
