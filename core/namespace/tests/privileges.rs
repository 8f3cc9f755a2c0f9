//! A write takes a program's setuid bit although another process, or one that has died, has set it
//! since the last write.

mod common;

use common::*;
use cxlraid_namespace::{OFlags, Opened};
use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

const USER: u32 = 1001;
const MODE: u32 = 0o4777;

/// A file that this process has written to, so that the file is known to give no privileges.
fn written(array: &TestArray) -> Opened {
    let opened = create(array.namespace, "/data/f");
    write(&opened, 0, b"known");
    opened
}

fn modes(array: &TestArray) -> Vec<u32> {
    let stat = |member: &std::path::PathBuf| member.join("data/f").metadata().unwrap();
    array.members.iter().map(|member| stat(member).mode() & 0o7777).collect()
}

fn other_namespace(array: &TestArray) -> cxlraid_namespace::Namespace {
    attach_again(&array.members.iter().map(|member| member.to_str().unwrap()).collect::<Vec<_>>().join(":"))
}

/// Another user writes, who has the file open by root: that takes the bit on every member.
fn assert_taken(array: &TestArray, opened: &Opened) {
    assert_eq!(modes(array), [MODE; 3]);
    act_as(USER);
    write(opened, 0, b"other");
    act_as(0);
    assert_eq!(modes(array), [MODE & 0o777; 3]);
    assert_eq!(read(opened), b"other");
}

fn is_root() -> bool {
    let is_root = sys::rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("NOT RUN: privileges needs two users");
    }
    is_root
}

#[test]
fn a_mode_that_another_process_sets_counts_for_the_next_write() {
    if !is_root() {
        return;
    }
    let array = TestArray::new();
    let opened = written(&array);
    inside(other_namespace(&array).chmod(b"/data/f", MODE, true));
    assert_taken(&array, &opened);
}

#[test]
fn a_mode_counts_that_a_program_set_before_it_died() {
    if !is_root() {
        return;
    }
    let array = TestArray::new();
    let opened = written(&array);
    // The program has changed the members, and died before it told those that have the file open.
    for member in &array.members {
        set_permissions(member.join("data/f"), Permissions::from_mode(MODE)).unwrap();
    }
    array.namespace.files().array().runtime().note_deaths();
    other_namespace(&array);
    assert_taken(&array, &opened);
}

/// To cut a backing file would take the bit. So the file stays longer than its data, until it is
/// opened by somebody who may keep the bit.
#[test]
fn a_close_by_another_user_takes_no_mode_that_was_set_meanwhile() {
    if !is_root() {
        return;
    }
    for changed in [0..3, 2..3] {
        let array = TestArray::new();
        let opened = written(&array);
        // A write that is not the file's first gets space in advance.
        write(&opened, 5, &[7; 9000]);
        let before = modes(&array);
        for member in &array.members[changed.clone()] {
            set_permissions(member.join("data/f"), Permissions::from_mode(MODE)).unwrap();
        }
        let set = modes(&array);
        let lengths = || array.members.iter().map(|member| member.join("data/f").metadata().unwrap().len()).collect::<Vec<_>>();
        let long = lengths();
        act_as(USER);
        drop(opened);
        act_as(0);
        assert_eq!(modes(&array), set);
        assert_ne!(before, set);
        assert!(changed.clone().all(|slot| lengths()[slot] == long[slot]), "{changed:?}");
        let opened = inside(array.namespace.open(b"/data/f", OFlags::RDWR | OFlags::CLOEXEC, 0));
        assert_eq!(read(&opened).len(), 9005);
        let kept = file_of(&opened).geometry().member_bytes(9005);
        drop(opened);
        assert_eq!((modes(&array), lengths()), (set, vec![kept; 3]));
    }
}
