//! A write takes a program's setuid bit although another process, or one that has died, has set it since the last write.

mod common;

use common::*;
use cxlraid_namespace::Opened;
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
