//! Paths: symlinks inside, leading out and back, dots, prefixes, directories.

mod common;

use common::*;
use cxlraid_namespace::{Access, AtFlags, OFlags, Place, RenameFlags};
use std::os::fd::AsFd;
use std::path::Path;
use sys::OsError;

fn array_with_links() -> TestArray {
    let array = TestArray::new();
    let names = array.namespace;
    for directory in ["/data/a", "/data/a/b"] {
        inside(names.mkdir(directory.as_bytes(), 0o755));
    }
    write(&create(names, "/data/a/b/file"), 0, b"found");
    for (target, path) in [
        ("a/b", "/data/relative"),
        ("/data/a/b", "/data/absolute"),
        ("/etc", "/data/etc"),
        ("../../etc/passwd", "/data/passwd"),
        ("/data/../data/a", "/data/around"),
        ("loop2", "/data/loop1"),
        ("loop1", "/data/loop2"),
        ("none", "/data/dangling"),
        ("b/file", "/data/a/link"),
        ("/tmp/../data/a/link", "/data/chain"),
    ] {
        inside(names.symlink(target.as_bytes(), path.as_bytes()));
    }
    array
}

#[test]
fn symlinks_are_followed_as_the_program_means_them() {
    let array = array_with_links();
    let names = array.namespace;
    for path in [
        "/data/a/b/file",
        "/data/relative/file",
        "/data/absolute/file",
        "/data/around/b/file",
        "/data/a/link",
        "/data/chain",
        "//data/./a//b/../b/file",
        "/data/relative/../b/file",
        "/data/etc/../data/a/b/file",
        "/tmp/../data/a/link",
    ] {
        assert_eq!(names.resolve(path.as_bytes(), true), Ok(Place::Array(b"/data/a/b/file".to_vec())), "{path}");
        assert_eq!(read(&inside(names.open(path.as_bytes(), OFlags::RDONLY, 0))), b"found", "{path}");
        assert_eq!(inside(names.stat(path.as_bytes(), true)).st_size, 5, "{path}");
        inside(names.access(path.as_bytes(), Access::READ_OK, AtFlags::empty(), true));
    }
}

#[test]
fn a_symlink_may_lead_out() {
    let array = array_with_links();
    let names = array.namespace;
    for (path, expected) in [
        ("/data/etc", "/etc"),
        ("/data/etc/", "/etc/"),
        ("/data/etc/passwd", "/etc/passwd"),
        ("/data/passwd", "/etc/passwd"),
        ("/data/etc/../usr", "/etc/../usr"),
        ("/data/..", "/"),
        ("/data/a/../../tmp/x", "/tmp/x"),
        ("/", "/"),
        ("/dat", "/dat"),
    ] {
        assert_eq!(outside(names.resolve(path.as_bytes(), true)), Path::new(expected), "{path}");
        assert_eq!(outside(names.stat(path.as_bytes(), true)), Path::new(expected), "{path}");
    }
    assert_eq!(names.resolve(b"/data/etc", false), Ok(Place::Array(b"/data/etc".to_vec())));
    assert_eq!(inside(names.readlink(b"/data/etc")), b"/etc");
    assert_eq!(outside(names.readlink(b"/data/etc/mtab")), Path::new("/etc/mtab"));
    assert_eq!(refused(names.readlink(b"/data/a")), OsError::INVAL);
    assert_eq!(outside(names.unlink(b"/data/etc/none")), Path::new("/etc/none"));
    assert_eq!(outside(names.mkdir(b"/data/etc/none/", 0o755)), Path::new("/etc/none/"));
    assert_eq!(outside(names.open(b"/data/passwd", OFlags::RDONLY, 0)), Path::new("/etc/passwd"));
    assert_eq!(outside(names.open(b"/data/etc/none", CREATE | OFlags::EXCL, 0o600)), Path::new("/etc/none"));
    assert_eq!(refused(names.rename(b"/data/a", b"/data/etc/a", RenameFlags::empty())), OsError::XDEV);
    assert_eq!(refused(names.link(b"/etc/passwd", b"/data/hosts", false)), OsError::XDEV);
}

#[test]
fn loops_and_dangling_links() {
    let array = array_with_links();
    let names = array.namespace;
    assert_eq!(refused(names.stat(b"/data/loop1", true)), OsError::LOOP);
    assert_eq!(inside(names.stat(b"/data/loop1", false)).st_mode & 0o170_000, 0o120_000);
    assert_eq!(refused(names.stat(b"/data/dangling", true)), OsError::NOENT);
    assert_eq!(refused(names.open(b"/data/dangling", CREATE | OFlags::EXCL, 0o600)), OsError::EXIST);
    write(&create(names, "/data/dangling"), 0, b"made through the link");
    assert_eq!(read(&create(names, "/data/none")), b"made through the link");
    assert_eq!(refused(names.stat(b"/data/none/../a", true)), OsError::NOTDIR);
    assert_eq!(refused(names.stat(b"/data/missing/../a", true)), OsError::NOENT);
    assert_eq!(refused(names.stat(b"/data/none/", true)), OsError::NOTDIR);
    assert_eq!(refused(names.stat(b"/data/none/.", true)), OsError::NOTDIR);
    assert_eq!(inside(names.stat(b"/data/relative/", false)).st_mode & 0o170_000, 0o040_000);
    array.assert_same_trees();
}

#[test]
fn directories_come_and_go() {
    let array = array_with_links();
    let names = array.namespace;
    inside(names.mkdir(b"/data/new/", 0o1777));
    assert_eq!(refused(names.mkdir(b"/data/new", 0o777)), OsError::EXIST);
    assert_eq!(refused(names.rmdir(b"/data/a")), OsError::NOTEMPTY);
    assert_eq!(refused(names.rmdir(b"/data/a/.")), OsError::INVAL);
    assert_eq!(refused(names.rmdir(b"/data/relative")), OsError::NOTDIR);
    assert_eq!(refused(names.unlink(b"/data/a")), OsError::ISDIR);
    assert_eq!(refused(names.unlink(b"/data/a/b/file/")), OsError::NOTDIR);
    for path in ["/data", "/data/", "/data/a/.."] {
        assert!(names.rmdir(path.as_bytes()).is_err(), "{path}");
    }
    assert_eq!(refused(names.rmdir(b"/data")), OsError::BUSY);
    assert_eq!(refused(names.rename(b"/data", b"/data/a/x", RenameFlags::empty())), OsError::BUSY);
    assert_eq!(refused(names.rename(b"/data/a", b"/data/a/b/c", RenameFlags::empty())), OsError::INVAL);
    inside(names.rename(b"/data/a", b"/data/new/a", RenameFlags::empty()));
    assert_eq!(read(&create(names, "/data/new/a/b/file")), b"found");
    inside(names.unlink(b"/data/new/a/b/file"));
    inside(names.rmdir(b"/data/new/a/b"));
    array.assert_same_trees();
}

#[test]
fn the_arrays_own_directory_is_hidden() {
    let array = TestArray::new();
    assert!(array.namespace.hides(b"/", b".cxlraid"));
    assert!(array.namespace.hides(b"", b".cxlraid"));
    assert!(!array.namespace.hides(b"/data", b".cxlraid"));
    assert!(!array.namespace.hides(b"/", b"data"));
}

#[test]
fn modes_owners_and_attributes_are_the_same_everywhere() {
    let array = array_with_links();
    let names = array.namespace;
    let path = b"/data/relative/file";
    inside(names.chmod(path, 0o4750, true));
    assert_eq!(refused(names.chmod(b"/data/etc", 0o777, false)), OsError::OPNOTSUPP);
    inside(names.setxattr(path, b"user.note", b"seen", cxlraid_namespace::XattrFlags::CREATE, true));
    let exists = names.setxattr(path, b"user.note", b"2", cxlraid_namespace::XattrFlags::CREATE, true);
    assert_eq!(refused(exists), OsError::EXIST);
    let mut buffer = [0; 100];
    assert_eq!(inside(names.getxattr(path, b"user.note", &mut buffer, true)), 4);
    assert_eq!(inside(names.getxattr(path, b"user.note", &mut [], true)), 4);
    assert_eq!(inside(names.listxattr(path, &mut buffer, true)), 10);
    assert_eq!(&buffer[..10], b"user.note\0");
    let opened = create(names, "/data/a/b/file");
    let (fd, node) = (opened.anchor.as_fd(), &opened.node);
    assert_eq!(refused(names.getxattr(path, b"user.cxlraid", &mut buffer, true)), OsError::NODATA);
    assert_eq!(names.fgetxattr(fd, node, b"user.cxlraid", &mut buffer), Err(OsError::NODATA));
    assert_eq!(refused(names.removexattr(path, b"user.cxlraid", true)), OsError::PERM);
    assert_eq!(names.fsetxattr(fd, node, b"user.cxlraid", b"x", cxlraid_namespace::XattrFlags::empty()), Err(OsError::PERM));
    assert_eq!(names.flistxattr(fd, node, &mut []), Ok(10));
    assert_eq!(names.flistxattr(fd, node, &mut buffer[..5]), Err(OsError::RANGE));
    names.fchmod(fd, node, 0o640).unwrap();
    names.fsetxattr(fd, node, b"user.note", b"changed", cxlraid_namespace::XattrFlags::REPLACE).unwrap();
    let directory = inside(names.open(b"/data/a", OFlags::RDONLY, 0));
    names.fchmod(directory.anchor.as_fd(), &directory.node, 0o711).unwrap();
    let tree = array.assert_same_trees();
    assert_eq!(tree[Path::new("data/a/b/file")].note.as_deref(), Some(&b"changed"[..]));
    assert_eq!((tree[Path::new("data/a/b/file")].mode, tree[Path::new("data/a")].mode), (0o640, 0o711));
    inside(names.unlink(b"/data/a/b/file"));
    names.fchmod(fd, node, 0o600).unwrap();
    assert_eq!(names.fstat(fd, node).unwrap().st_mode & 0o777, 0o600);
    inside(names.truncate(b"/data/dangling", 0).or_else(|_| names.mkdir(b"/data/t", 0o700)));
}

#[test]
fn owners_are_changed_with_the_rights_of_root() {
    let array = array_with_links();
    let names = array.namespace;
    if !sys::rustix::process::geteuid().is_root() {
        eprintln!("skipped: owners_are_changed_with_the_rights_of_root needs root");
        return;
    }
    inside(names.chown(b"/data/a/b/file", 7, u32::MAX, true));
    inside(names.chown(b"/data/etc", u32::MAX, 9, false));
    let tree = array.assert_same_trees();
    assert_eq!(tree[Path::new("data/a/b/file")].owner.0, 7);
    assert_eq!(tree[Path::new("data/etc")].owner.1, 9);
}

#[test]
fn capacity_is_what_files_can_hold() {
    let array = TestArray::new();
    let raw = sys::rustix::fs::statfs(&array.members[0]).unwrap();
    let seen = inside(array.namespace.statfs(b"/data"));
    assert_eq!(seen.f_blocks, raw.f_blocks * 2);
}

#[test]
fn truncation_by_path() {
    let array = array_with_links();
    let names = array.namespace;
    inside(names.truncate(b"/data/chain", 100_000));
    assert_eq!(inside(names.stat(b"/data/a/b/file", true)).st_size, 100_000);
    inside(names.truncate(b"/data/chain", 2));
    assert_eq!(read(&create(names, "/data/chain")), b"fo");
    assert_eq!(refused(names.truncate(b"/data/a", 0)), OsError::ISDIR);
}

#[test]
fn the_current_directory_is_entered_by_descriptor() {
    let array = array_with_links();
    let names = array.namespace;
    let fd = inside(names.directory_to_enter(b"/data/relative"));
    assert_eq!(names.logical_path_of(fd.as_fd()).unwrap().unwrap(), b"/data/a/b");
    assert_eq!(refused(names.directory_to_enter(b"/data/a/b/file")), OsError::NOTDIR);
    assert_eq!(outside(names.directory_to_enter(b"/data/etc")), Path::new("/etc"));
}
