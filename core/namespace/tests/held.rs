//! Files held for a process that has descriptors of them and has not attached to the array yet: a
//! child that is about to execute its program.

mod common;

use common::*;
use cxlraid_namespace::{Node, OFlags, Opened};
use std::os::fd::AsFd;
use std::process::{Child, Command};
use sys::OsError;

/// A living process that has nothing to do with the array, ended by `Drop`.
struct Sleeper(Child);

impl Sleeper {
    fn begin() -> Self {
        Self(Command::new("sleep").arg("1000").spawn().unwrap())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// An open file whose last name is gone.
fn nameless(array: &TestArray) -> Opened {
    let opened = create(array.namespace, "/data/f");
    write(&opened, 0, b"text");
    inside(array.namespace.unlink(b"/data/f"));
    opened
}

#[test]
fn a_file_without_a_name_outlives_its_last_user_while_it_is_held() {
    let array = TestArray::new();
    let (names, sleeper) = (array.namespace, Sleeper::begin());
    let Opened { anchor, node, .. } = nameless(&array);
    let Node::File(file) = &node else { panic!("a file") };
    let attribute = file.attribute();
    // The second call must not count the same process twice.
    for _ in 0..2 {
        names.hold_for(sleeper.0.id(), anchor.as_fd()).unwrap();
    }
    drop(node);
    assert!(names.files().is_open(attribute));
    let node = names.adopt_anchor(anchor.as_fd()).unwrap().unwrap();
    let found = Opened { anchor, node, path: Vec::new(), is_made: false, waits: false };
    assert_eq!(read(&found), b"text");
    drop(found);
    drop(sleeper);
    names.files().array().runtime().reap();
    assert!(!names.files().is_open(attribute), "the process that it was held for has ended");
}

#[test]
fn a_file_without_a_name_that_nobody_holds_is_gone_with_its_last_user() {
    let array = TestArray::new();
    let Opened { anchor, node, .. } = nameless(&array);
    drop(node);
    assert!(matches!(array.namespace.adopt_anchor(anchor.as_fd()), Err(OsError::STALE)));
    // To hold a file that nobody has open changes nothing.
    let sleeper = Sleeper::begin();
    array.namespace.hold_for(sleeper.0.id(), anchor.as_fd()).unwrap();
    assert!(matches!(array.namespace.adopt_anchor(anchor.as_fd()), Err(OsError::STALE)));
}

#[test]
fn what_is_no_file_of_the_array_is_not_held() {
    let (array, sleeper) = (TestArray::new(), Sleeper::begin());
    let host = sys::rustix::fs::open("/dev/null", OFlags::RDONLY, sys::rustix::fs::Mode::empty()).unwrap();
    array.namespace.hold_for(sleeper.0.id(), host.as_fd()).unwrap();
}
