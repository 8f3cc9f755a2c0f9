//! Files that lose their last name while they are open: kept where another process finds them, and
//! gone when nobody has them open.

mod common;

use common::*;
use cxlraid_namespace::{Node, OFlags, RenameFlags};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use sys::OsError;

/// What lies in the members' `.cxlraid` besides the array's own files.
fn orphans(array: &TestArray) -> Vec<usize> {
    let count = |member: &std::path::PathBuf| {
        let names = std::fs::read_dir(member.join(".cxlraid")).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with("orphan-")).count()
    };
    array.members.iter().map(count).collect()
}

#[test]
fn a_file_unlinked_or_replaced_while_open_is_kept_until_it_is_closed() {
    let array = TestArray::new();
    let names = array.namespace;
    let unlinked = create(names, "/data/unlinked");
    write(&unlinked, 0, &[7; 50_000]);
    let replaced = create(names, "/data/replaced");
    drop(create(names, "/data/new"));
    inside(names.unlink(b"/data/unlinked"));
    inside(names.rename(b"/data/new", b"/data/replaced", RenameFlags::empty()));
    assert_eq!(orphans(&array), [2; 3]);
    for opened in [&unlinked, &replaced] {
        assert_eq!(names.fstat(opened.anchor.as_fd(), &opened.node).unwrap().st_nlink, 0);
        assert_eq!(refused(names.link_descriptor(opened.anchor.as_fd(), &opened.node, b"/data/again")), OsError::NOENT);
    }
    drop(unlinked);
    assert_eq!(orphans(&array), [1; 3]);
    drop(replaced);
    assert_eq!(orphans(&array), [0; 3]);
    array.assert_same_trees();
}

/// As programs end that leave their files to be closed by the kernel.
#[test]
fn an_exit_frees_what_is_open_without_a_name() {
    let array = TestArray::new();
    let names = array.namespace;
    let opened = create(names, "/data/file");
    write(&opened, 0, &[7; 50_000]);
    let attribute = file_of(&opened).attribute();
    inside(names.unlink(b"/data/file"));
    assert!(names.files().state_of(attribute).is_some());
    names.files().leave(true);
    assert_eq!(names.files().state_of(attribute), None);
    assert_eq!(orphans(&array), [0; 3]);
    std::mem::forget(opened);
}

/// The file's link in `.cxlraid` is taken away by its last close, and counts as no name meanwhile.
#[test]
fn a_file_whose_last_user_closes_it_has_no_links() {
    let array = TestArray::new();
    let names = array.namespace;
    for _ in 0..300 {
        let opened = create(names, "/data/file");
        let looked = inside(names.look_at(b"/data/file", false));
        inside(names.unlink(b"/data/file"));
        let is_closed = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_closed.load(Ordering::Acquire) {
                    assert_eq!(names.fstat(looked.as_fd(), &Node::Path(None)).unwrap().st_nlink, 0);
                }
            });
            drop(opened);
            is_closed.store(true, Ordering::Release);
        });
    }
}

#[test]
fn a_process_that_never_had_it_open_is_served() {
    let array = TestArray::new();
    let names = array.namespace;
    let opened = create(names, "/data/file");
    write(&opened, 0, b"handed down");
    inside(names.unlink(b"/data/file"));
    // Another process: a namespace of its own, given the descriptor.
    let mounts: Vec<_> = array.members.iter().map(|member| member.to_string_lossy()).collect();
    let other = attach_again(&mounts.join(":"));
    let Ok(Some(Node::File(file))) = other.adopt_anchor(opened.anchor.as_fd()) else { panic!("not adopted") };
    drop(opened);
    assert_eq!(orphans(&array), [1; 3]);
    // SAFETY: the slice is valid.
    assert_eq!(unsafe { file.append(b" and longer".as_ptr(), 11) }, Ok((22, 11)));
    drop(file);
    assert_eq!(orphans(&array), [0; 3]);
}

#[test]
fn closed_files_and_changes_refused_leave_nothing() {
    let array = TestArray::new();
    let names = array.namespace;
    drop(create(names, "/data/closed"));
    inside(names.unlink(b"/data/closed"));
    let opened = create(names, "/data/open");
    inside(names.mkdir(b"/data/dir", 0o755));
    assert_eq!(refused(names.rename(b"/data/dir", b"/data/open", RenameFlags::empty())), OsError::NOTDIR);
    inside(names.link(b"/data/open", b"/data/second", false));
    inside(names.unlink(b"/data/open"));
    assert_eq!(orphans(&array), [0; 3]);
    assert_eq!(names.fstat(opened.anchor.as_fd(), &opened.node).unwrap().st_nlink, 1);
    array.assert_same_trees();
}

#[test]
fn a_file_made_without_a_name_is_kept_when_it_is_handed_on() {
    let array = TestArray::new();
    let names = array.namespace;
    for (flags, may_be_linked) in [(OFlags::empty(), true), (OFlags::EXCL, false)] {
        let opened = inside(names.open(b"/data", OFlags::TMPFILE | OFlags::RDWR | flags, 0o600));
        assert_eq!(orphans(&array), [0; 3]);
        file_of(&opened).keep_nameless();
        assert_eq!(orphans(&array), [1; 3]);
        let linked = names.link_descriptor(opened.anchor.as_fd(), &opened.node, b"/data/named");
        assert_eq!(linked.is_ok(), may_be_linked);
        assert_eq!(orphans(&array), [usize::from(!may_be_linked); 3]);
        assert_eq!(names.fstat(opened.anchor.as_fd(), &opened.node).unwrap().st_nlink, u64::from(may_be_linked));
        drop(opened);
        assert_eq!(orphans(&array), [0; 3]);
    }
    assert_eq!(array.assert_same_trees().len(), 2);
}

#[test]
fn the_next_start_clears_what_a_crash_left() {
    let mut array = TestArray::new();
    let names = array.namespace;
    let lost = create(names, "/data/lost");
    let attribute = file_of(&lost).attribute();
    inside(names.unlink(b"/data/lost"));
    // And one whose unlinking got as far as the links.
    let half = file_of(&create(names, "/data/half")).attribute();
    for member in &array.members {
        let name = format!(".cxlraid/orphan-{}-{}", half.inode, half.generation);
        std::fs::hard_link(member.join("data/half"), member.join(name)).unwrap();
    }
    assert_eq!(orphans(&array), [2; 3]);
    std::mem::forget(lost);
    array.restart();
    assert_eq!(orphans(&array), [0; 3]);
    let names = array.namespace;
    assert_eq!(inside(names.stat(b"/data/half", true)).st_nlink, 1);
    assert_eq!(file_of(&create(names, "/data/new")).attribute().inode, attribute.inode);
    array.assert_same_trees();
}
