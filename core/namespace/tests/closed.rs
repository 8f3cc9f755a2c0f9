//! Modes that somebody changes by hand on a later member: who may use the file by the lowest member's modes, and owns it, uses
//! it, and the modes are made the same.

mod common;

use common::{TestArray, act_as, create, inside, read, refused, write};
use cxlraid_namespace::OFlags;
use layout::Level;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use sys::OsError;

const USER: u32 = 1001;
const OTHER: u32 = 1002;

/// A file of [`USER`]'s, in a directory of his.
fn filled() -> TestArray {
    let array = TestArray::with(Level::Raid5, 3);
    let names = array.namespace;
    fs::set_permissions(array.home.path(), Permissions::from_mode(0o755)).unwrap();
    inside(names.mkdir(b"/data/d", 0o755));
    write(&create(names, "/data/d/f"), 0, b"content");
    for member in &array.members {
        fs::set_permissions(member, Permissions::from_mode(0o755)).unwrap();
        for path in ["data/d", "data/d/f"] {
            chown(member.join(path), Some(USER), Some(USER)).unwrap();
        }
    }
    array
}

fn close(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o0)).unwrap();
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_later_member_that_is_closed_to_the_owner_is_opened() {
    if !sys::rustix::process::geteuid().is_root() {
        eprintln!("NOT RUN: a_later_member_that_is_closed_to_the_owner_is_opened needs two users");
        return;
    }
    for closed in ["data/d/f", "data/d"] {
        for change in [false, true] {
            println!("{closed}, change {change}");
            let mut array = filled();
            close(&array.members[1].join(closed));
            array.restart();
            let names = array.namespace;
            act_as(USER);
            let result = if change {
                refused_or_done(names.symlink(b"there", b"/data/d/link"))
                    .and_then(|()| refused_or_done(names.unlink(b"/data/d/f")))
            } else {
                names.open(b"/data/d/f", OFlags::RDWR, 0).map(|opened| assert_eq!(read(&inside(Ok(opened))), b"content"))
            };
            act_as(0);
            assert_eq!(result, Ok(()));
            assert_eq!(mode(&array.members[1].join("data/d")), 0o755);
            assert!(names.files().array().runtime().out().is_empty());
            array.assert_same_trees();
        }
    }
}

#[test]
fn others_do_not_open_it_and_the_lowest_members_mode_decides() {
    if !sys::rustix::process::geteuid().is_root() {
        eprintln!("NOT RUN: others_do_not_open_it_and_the_lowest_members_mode_decides needs two users");
        return;
    }
    for (slot, user) in [(1, OTHER), (0, USER)] {
        let mut array = filled();
        close(&array.members[slot].join("data/d"));
        array.restart();
        let names = array.namespace;
        act_as(user);
        let error = refused(names.open(b"/data/d/f", OFlags::RDONLY, 0));
        act_as(0);
        assert_eq!(error, OsError::ACCESS);
        assert_eq!(mode(&array.members[slot].join("data/d")), 0);
        assert!(names.files().array().runtime().out().is_empty());
    }
}

fn refused_or_done<T>(result: Result<cxlraid_namespace::Reached<T>, OsError>) -> Result<(), OsError> {
    result.map(|reached| drop(inside::<_, Vec<u8>>(Ok(reached))))
}
