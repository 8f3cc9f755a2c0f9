//! Descriptors that lie on a lost member: a process that starts after the loss, and inherits them, tells them for what they are.

mod common;

use common::*;
use cxlraid_namespace::{Namespace, Node, OFlags, Opened};
use std::os::fd::AsFd;
use sys::rustix::fs::{RenameFlags, XattrFlags};

/// The view of a process that starts now.
fn again(array: &TestArray) -> Namespace {
    let mounts: Vec<&str> = array.members.iter().map(|member| member.to_str().unwrap()).collect();
    attach_again(&mounts.join(":"))
}

/// The lowest member's directory is renamed: what was opened there stays open, and nobody finds the member any more. Returns the view of a process that starts
/// then.
fn lose_first(array: &TestArray) -> Namespace {
    std::fs::rename(&array.members[0], array.home.path().join("elsewhere")).unwrap();
    again(array)
}

/// What a process that has inherited the descriptor of `opened` finds it to be.
fn inherited(names: Namespace, opened: Opened) -> Opened {
    let node = names.inherit(opened.anchor.as_fd()).unwrap().expect("an anchor");
    Opened { node, ..opened }
}

#[test]
fn an_inherited_file_is_the_array_s_though_its_member_is_lost() {
    let array = TestArray::new();
    let opened = create(array.namespace, "/data/f");
    write(&opened, 0, &[7; 20_000]);
    let later = lose_first(&array);
    assert_eq!(later.logical_path_of(opened.anchor.as_fd()).unwrap().unwrap(), b"/data/f");
    let found = inherited(later, opened);
    assert_eq!(read(&found), [7; 20_000]);
    write(&found, 20_000, b"more");
    let by_name = inside(later.open(b"/data/f", OFlags::RDONLY, 0));
    assert_eq!(&read(&by_name)[20_000..], b"more");
}

#[test]
fn before_anybody_has_noticed_the_loss_paths_are_the_array_s() {
    let array = TestArray::new();
    let names = array.namespace;
    write(&create(names, "/data/f"), 0, &[7; 10]);
    let named = inside(names.open(b"/data/f", OFlags::PATH, 0));
    std::fs::rename(&array.members[0], array.home.path().join("elsewhere")).unwrap();
    assert_eq!(names.logical_path_of(named.anchor.as_fd()).unwrap().unwrap(), b"/data/f");
    assert_eq!(names.reopen(named.anchor.as_fd(), &named.node, OFlags::RDONLY, 0).map(|opened| read(&opened).len()), Ok(10));
}

#[test]
fn names_are_made_good_though_a_root_was_renamed_meanwhile() {
    for lost in 0..3 {
        let array = TestArray::new();
        let names = array.namespace;
        write(&create(names, "/data/f"), 0, &[7; 10]);
        assert!(names.setxattr(b"/data/f", b"user.a", b"1", XattrFlags::empty(), true).is_ok());
        // What a process leaves that dies before the last member.
        std::fs::create_dir(array.members[2].join("data/left")).unwrap();
        std::fs::rename(&array.members[lost], array.home.path().join("elsewhere")).unwrap();
        assert_eq!(names.recover(), Ok(3), "{lost}");
        let mut value = [0; 8];
        assert_eq!(inside(names.getxattr(b"/data/f", b"user.a", &mut value, true)), 1, "{lost}");
    }
}

#[test]
fn what_was_renamed_since_the_loss_is_found() {
    let array = TestArray::new();
    let opened = create(array.namespace, "/data/f");
    write(&opened, 0, b"this");
    let later = lose_first(&array);
    inside(later.mkdir(b"/data/d", 0o755));
    inside(later.rename(b"/data/f", b"/data/d/g", RenameFlags::empty()));
    let other = create(later, "/data/f");
    write(&other, 0, b"other");
    assert_eq!(read(&inherited(again(&array), opened)), b"this");
}

#[test]
fn directories_of_a_lost_member_have_their_logical_paths() {
    let array = TestArray::new();
    inside(array.namespace.mkdir(b"/data/d", 0o755));
    let opened = inside(array.namespace.open(b"/data/d", OFlags::RDONLY | OFlags::DIRECTORY, 0));
    let later = lose_first(&array);
    assert_eq!(later.logical_path_of(opened.anchor.as_fd()).unwrap().unwrap(), b"/data/d");
    assert!(matches!(later.inherit(opened.anchor.as_fd()), Ok(Some(Node::Directory))));
    // The process that had it open before says so, too.
    assert_eq!(array.namespace.logical_path_of(opened.anchor.as_fd()).unwrap().unwrap(), b"/data/d");
    // What has the same name below another directory is not the array's.
    let host = array.home.path().join("other/data/d");
    std::fs::create_dir_all(&host).unwrap();
    let host = std::fs::File::open(host).unwrap();
    assert_eq!(later.logical_path_of(host.as_fd()), Ok(None));
}
