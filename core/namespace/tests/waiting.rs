//! Files that wait to be rebuilt are computed also while a program is executed from a copy of them.

mod common;

use common::*;
use cxlraid_namespace::{OFlags, hold_text};
use format::Attribute;
use layout::Level;
use std::fs::File;
use sys::OsError;

const RDWR: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC);

/// Puts a program at /data/program, which nobody has open then.
fn with_program(level: Level, member_count: usize) -> (TestArray, Attribute, Vec<u8>) {
    let (array, content) = (TestArray::with(level, member_count), std::fs::read("/bin/sleep").unwrap());
    let opened = inside(array.namespace.open(b"/data/program", CREATE, 0o755));
    write(&opened, 0, &content);
    let attribute = file_of(&opened).attribute();
    (array, attribute, content)
}

/// A member loses all bytes of the file: its backing file is as one that was just made.
fn lose(array: &TestArray, attribute: Attribute, slot: usize) {
    File::options().write(true).open(array.members[slot].join("data/program")).unwrap().set_len(0).unwrap();
    assert!(array.namespace.files().note_lost(attribute, slot));
}

/// A program of RAID 5 is executed as a copy, and keeps others from writing by a lock.
#[test]
fn what_a_member_lost_of_a_program_that_runs_as_a_copy_is_computed() {
    for slot in 0..3 {
        let (array, attribute, content) = with_program(Level::Raid5, 3);
        lose(&array, attribute, slot);
        let anchor = File::open(array.members[0].join("data/program")).unwrap();
        hold_text(&anchor).unwrap();
        let names = array.namespace;
        assert_eq!(refused(names.open(b"/data/program", RDWR, 0)), OsError::TXTBSY);
        names.compute(b"/data/program", attribute).unwrap();
        assert_eq!(names.files().unbuilt().unwrap(), []);
        drop(anchor);
        let opened = inside(names.open(b"/data/program", RDWR, 0));
        assert_eq!((file_of(&opened).verify(), read(&opened) == content), (Ok(0), true), "{slot}");
    }
}
