//! What a process remembers of directories and files ends with them. Also names that are more than
//! files.

mod common;

use common::*;
use cxlraid_namespace::{Namespace, OFlags, Opened, Reached, RenameFlags, hold_text, holds_text};
use format::{NameKind, NameRecord};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use sys::{AsFd as _, OsError};

/// A file of so many bytes.
fn make(names: Namespace, path: &str, bytes: usize) {
    write(&create(names, path), 0, &vec![7; bytes]);
}

fn size(names: Namespace, path: &str) -> Result<i64, OsError> {
    match names.stat(path.as_bytes(), true) {
        Ok(Reached::Array(stat)) => Ok(stat.st_size),
        Ok(Reached::Host(_)) => panic!("{path} is in the array"),
        Err(error) => Err(error),
    }
}

#[test]
fn a_directory_that_becomes_a_symlink_is_noticed() {
    let array = TestArray::new();
    let names = array.namespace;
    inside(names.mkdir(b"/data/one", 0o755));
    inside(names.mkdir(b"/data/two", 0o755));
    inside(names.symlink(b"nowhere", b"/data/two/link"));
    make(names, "/data/one/f", 1);
    make(names, "/data/two/f", 22);
    for _ in 0..3 {
        assert_eq!((size(names, "/data/one/f"), size(names, "/data/two/f")), (Ok(1), Ok(22)));
        assert_eq!(size(names, "/data/two/link"), Err(OsError::NOENT));
    }
    // The same paths by way of a symlink; it is absolute, so the kernel alone would leave the
    // member.
    inside(names.rename(b"/data/one", b"/data/old", RenameFlags::empty()));
    inside(names.symlink(b"/data/two", b"/data/one"));
    assert_eq!(size(names, "/data/one/f"), Ok(22));
    inside(names.unlink(b"/data/one/f"));
    assert_eq!((size(names, "/data/two/f"), size(names, "/data/one/f")), (Err(OsError::NOENT), Err(OsError::NOENT)));
    inside(names.rename(b"/data/old", b"/data/one", RenameFlags::EXCHANGE));
    assert_eq!((size(names, "/data/one/f"), size(names, "/data/old/f")), (Ok(1), Err(OsError::NOENT)));
    inside(names.rename(b"/data/one", b"/data/gone", RenameFlags::empty()));
    inside(names.link(b"/data/old", b"/data/one", false));
    make(names, "/data/two/f", 3);
    assert_eq!(size(names, "/data/one/f"), Ok(3));
    array.assert_same_trees();
}

/// Numbers of backing files are used again.
#[test]
fn a_file_made_where_one_was_removed_is_not_taken_for_it() {
    let array = TestArray::new();
    let names = array.namespace;
    for round in 1..200 {
        make(names, "/data/f", round);
        for _ in 0..2 {
            assert_eq!(size(names, "/data/f"), Ok(round as i64));
        }
        inside(names.unlink(b"/data/f"));
        assert_eq!(size(names, "/data/f"), Err(OsError::NOENT));
    }
}

#[test]
fn a_file_that_another_process_changes_is_seen_as_it_is() {
    let array = TestArray::new();
    let names = array.namespace;
    make(names, "/data/f", 10);
    assert_eq!((size(names, "/data/f"), size(names, "/data/f")), (Ok(10), Ok(10)));
    let opened = inside(names.open(b"/data/f", OFlags::RDWR, 0));
    write(&opened, 10, &[1; 90]);
    assert_eq!(size(names, "/data/f"), Ok(100));
    drop(opened);
    assert_eq!(size(names, "/data/f"), Ok(100));
    inside(names.truncate(b"/data/f", 5));
    assert_eq!(size(names, "/data/f"), Ok(5));
}

fn as_os_error(error: &std::io::Error) -> OsError {
    OsError::from_io_error(error).unwrap()
}

#[test]
fn a_socket_has_a_name_on_every_member_even_if_it_is_long() {
    const LONGEST: usize = 107;
    let array = TestArray::new();
    let names = array.namespace;
    let long = format!("/data/{}", "d".repeat(90));
    inside(names.mkdir(long.as_bytes(), 0o755));
    for path in ["/data/s".to_owned(), format!("{long}/s")] {
        let listener = std::cell::OnceCell::new();
        let bind = |host: &[u8]| {
            let bound = UnixListener::bind(OsStr::from_bytes(host)).map_err(|error| as_os_error(&error))?;
            listener.set(bound).map_err(|_| OsError::EXIST)
        };
        inside(names.bind_socket(path.as_bytes(), LONGEST, bind));
        assert_eq!(refused(names.bind_socket(path.as_bytes(), LONGEST, bind)), OsError::ADDRINUSE);
        let (host, _directory) = inside(names.socket_path(path.as_bytes(), LONGEST));
        assert!(host.len() <= LONGEST);
        UnixStream::connect(OsStr::from_bytes(&host)).unwrap();
    }
    array.assert_same_trees();
}

#[test]
fn the_text_of_a_program_that_runs_is_not_written_to() {
    let array = TestArray::new();
    let names = array.namespace;
    make(names, "/data/program", 10);
    inside(names.chmod(b"/data/program", 0o755, true));
    let open = |flags| names.open(b"/data/program", flags, 0);
    let Opened { anchor, .. } = inside(open(OFlags::RDONLY));
    assert!(!holds_text(&anchor));
    hold_text(&anchor).unwrap();
    assert!(holds_text(&anchor));
    assert_eq!(refused(open(OFlags::WRONLY)), OsError::TXTBSY);
    assert_eq!(refused(open(OFlags::RDONLY | OFlags::TRUNC)), OsError::TXTBSY);
    assert_eq!(refused(names.truncate(b"/data/program", 0)), OsError::TXTBSY);
    let reader = inside(open(OFlags::RDONLY));
    assert!(!holds_text(&reader.anchor));
    drop(anchor);
    inside(open(OFlags::WRONLY));
}

/// The newest record of the log, as the first member has it.
fn newest(array: &TestArray) -> (u64, NameKind, String) {
    let log = std::fs::read(array.members[0].join(".cxlraid/names")).unwrap();
    let places = (format::TABLE_HEADER_BYTES..log.len()).step_by(format::NAME_RECORD_ALIGN);
    let records = places.filter_map(|at| NameRecord::decode(&log[at..]));
    let newest = records.max_by_key(|record| record.sequence).unwrap();
    (newest.sequence, newest.kind, String::from_utf8(newest.path.to_vec()).unwrap())
}

/// After a crash, that is where the file is looked at.
#[test]
fn a_change_by_descriptor_is_logged_with_what_the_file_is_called_then() {
    let array = TestArray::new();
    let names = array.namespace;
    let other = attach_again(&array.members.iter().map(|member| member.to_str().unwrap()).collect::<Vec<_>>().join(":"));
    let change = |names: Namespace, opened: &Opened| {
        for mode in [0o600, 0o640] {
            let before = newest(&array).0;
            names.fchmod(opened.anchor.as_fd(), &opened.node, mode).unwrap();
            assert!(newest(&array).0 <= before + 1);
        }
        let (_, kind, path) = newest(&array);
        (kind == NameKind::Attributes).then_some(path)
    };
    inside(names.mkdir(b"/data/d", 0o755));
    let opened = create(names, "/data/d/f");
    assert_eq!(change(names, &opened).as_deref(), Some("/data/d/f"));
    inside(names.rename(b"/data/d/f", b"/data/d/g", RenameFlags::empty()));
    assert_eq!(change(names, &opened).as_deref(), Some("/data/d/g"));
    inside(other.rename(b"/data/d/g", b"/data/d/h", RenameFlags::empty()));
    assert_eq!(change(names, &opened).as_deref(), Some("/data/d/h"));
    inside(other.rename(b"/data/d", b"/data/e", RenameFlags::empty()));
    assert_eq!(change(names, &opened).as_deref(), Some("/data/e/h"));
    let second = create(names, "/data/second");
    assert_eq!(change(names, &second).as_deref(), Some("/data/second"));
    assert_eq!(change(names, &opened).as_deref(), Some("/data/e/h"));
    assert_eq!(change(names, &second).as_deref(), Some("/data/second"));
    inside(other.rename(b"/data/second", b"/data/e/h", RenameFlags::empty()));
    assert_eq!(change(names, &opened), None, "it has no name any more");
    assert_eq!(change(names, &second).as_deref(), Some("/data/e/h"));
    array.assert_same_trees();
}

/// One path is as long as is remembered, and one is longer.
#[test]
fn a_file_with_a_long_path_is_changed_by_descriptor() {
    let array = TestArray::new();
    for bytes in [255, 256, 257, 258] {
        let directory = format!("/data/{}", "d".repeat(100 + bytes % 3));
        inside(array.namespace.mkdir(directory.as_bytes(), 0o755));
        let path = format!("{directory}/{}", "f".repeat(bytes - directory.len() - 1));
        let opened = create(array.namespace, &path);
        for mode in [0o600, 0o640] {
            array.namespace.fchmod(opened.anchor.as_fd(), &opened.node, mode).unwrap();
            assert_eq!(newest(&array).2, path);
        }
        inside(array.namespace.unlink(path.as_bytes()));
        inside(array.namespace.rmdir(directory.as_bytes()));
    }
}
