//! Files by name: opening, creating, removing, what stat says.

mod common;

use common::*;
use cxlraid_namespace::{AtFlags, Node, OFlags, Reached, RenameFlags, StatxFlags, Timestamps};
use std::os::fd::{AsFd, AsRawFd};
use sys::OsError;
use sys::rustix::fs::{Timespec, UTIME_OMIT};

const RDONLY: OFlags = OFlags::RDONLY;

#[test]
fn a_file_is_made_written_read_and_removed() {
    let array = TestArray::new();
    let names = array.namespace;
    let data: Vec<u8> = (0..50_000u32).map(|number| number as u8).collect();
    let opened = create(names, "/data/file");
    write(&opened, 0, &data);
    assert_eq!(read(&opened), data);
    let stat = inside(names.stat(b"/data/file", true));
    assert_eq!((stat.st_size, stat.st_mode, stat.st_nlink), (50_000, 0o100_644, 1));
    assert!(stat.st_blocks as u64 * 512 >= 50_000);
    assert_eq!(names.fstat(opened.anchor.as_fd(), &opened.node).unwrap().st_size, 50_000);
    let statx = inside(names.statx(b"/data/file", AtFlags::empty(), StatxFlags::BASIC_STATS, true));
    assert_eq!((statx.stx_size, statx.stx_blocks), (50_000, stat.st_blocks as u64));
    drop(opened);
    let again = inside(names.open(b"/data/file", RDONLY, 0));
    assert_eq!(read(&again), data);
    drop(again);
    assert_eq!(array.assert_same_trees().len(), 2);
    inside(names.unlink(b"/data/file"));
    assert_eq!(refused(names.stat(b"/data/file", true)), OsError::NOENT);
    assert_eq!(refused(names.open(b"/data/file", RDONLY, 0)), OsError::NOENT);
    assert_eq!(array.assert_same_trees().len(), 1);
}

#[test]
fn open_flags_do_what_the_kernel_does() {
    let array = TestArray::new();
    let names = array.namespace;
    let open = |path: &str, flags: OFlags| names.open(path.as_bytes(), flags, 0o600);
    write(&create(names, "/data/file"), 0, b"something");
    inside(names.mkdir(b"/data/dir", 0o755));
    inside(names.symlink(b"file", b"/data/link"));
    assert_eq!(refused(open("/data/file", CREATE | OFlags::EXCL)), OsError::EXIST);
    assert_eq!(refused(open("/data/link", CREATE | OFlags::EXCL)), OsError::EXIST);
    assert_eq!(refused(open("/data/dir", CREATE)), OsError::ISDIR);
    assert_eq!(refused(open("/data/new/", CREATE)), OsError::ISDIR);
    assert_eq!(refused(open("/data/dir", OFlags::WRONLY)), OsError::ISDIR);
    assert_eq!(refused(open("/data/file/", RDONLY)), OsError::NOTDIR);
    assert_eq!(refused(open("/data/file/x", CREATE)), OsError::NOTDIR);
    assert_eq!(refused(open("/data/none/x", CREATE)), OsError::NOENT);
    assert_eq!(refused(open("/data/file", OFlags::DIRECTORY)), OsError::NOTDIR);
    assert_eq!(refused(open("/data/link", OFlags::NOFOLLOW)), OsError::LOOP);
    assert_eq!(refused(open("/data/link", CREATE | OFlags::NOFOLLOW)), OsError::LOOP);
    assert_eq!(refused(open(&format!("/data/{}", "n".repeat(256)), CREATE)), OsError::NAMETOOLONG);
    assert!(matches!(inside(open("/data/dir", RDONLY)).node, Node::Directory(_)));
    assert!(matches!(inside(open("/data/dir/", OFlags::DIRECTORY)).node, Node::Directory(_)));
    let named = inside(open("/data/link", OFlags::PATH));
    assert!(matches!(named.node, Node::Path(_)));
    assert_eq!(names.fstat(named.anchor.as_fd(), &named.node).unwrap().st_size, 9);
    let append = inside(open("/data/file", OFlags::WRONLY | OFlags::APPEND));
    // SAFETY: the slice is valid.
    assert_eq!(unsafe { file_of(&append).append(b" more".as_ptr(), 5) }, Ok((14, 5)));
    assert_eq!(read(&inside(open("/data/link", RDONLY))), b"something more");
    let flags = sys::rustix::fs::fcntl_getfl(&append.anchor).unwrap();
    assert!(flags.contains(OFlags::APPEND | OFlags::WRONLY));
    let cut = inside(open("/data/file", OFlags::WRONLY | OFlags::TRUNC));
    assert_eq!(file_of(&cut).size(), 0);
    assert_eq!(inside(names.stat(b"/data/file", true)).st_size, 0);
    array.assert_same_trees();
}

#[test]
fn the_anchor_has_the_lowest_free_number() {
    let array = TestArray::new();
    let free = || std::fs::File::open("/dev/null").unwrap().as_raw_fd();
    let names = array.namespace;
    // Other tests of this process open files at the same time.
    let mut made = false;
    let mut opened = false;
    for index in 0..50 {
        let path = format!("/data/file{index}");
        let expected = free();
        made |= create(names, &path).anchor.as_raw_fd() == expected;
        let expected = free();
        opened |= inside(names.open(path.as_bytes(), RDONLY, 0)).anchor.as_raw_fd() == expected;
    }
    assert!(made && opened);
}

#[test]
fn an_unlinked_file_keeps_its_data_until_it_is_closed() {
    let array = TestArray::new();
    let names = array.namespace;
    let opened = create(names, "/data/file");
    let before = file_of(&opened).attribute();
    write(&opened, 0, b"still here");
    inside(names.unlink(b"/data/file"));
    let other = create(names, "/data/file");
    assert_ne!(file_of(&other).attribute().inode, before.inode);
    assert_eq!(read(&opened), b"still here");
    write(&opened, 10, b" and now longer");
    assert_eq!(names.fstat(opened.anchor.as_fd(), &opened.node).unwrap().st_size, 25);
    drop(opened);
    let after = file_of(&create(names, "/data/next")).attribute();
    assert_eq!(after.inode, before.inode);
    assert!(after.generation > before.generation);
    array.assert_same_trees();
}

#[test]
fn hard_links_are_one_file_and_the_last_name_frees_it() {
    let array = TestArray::new();
    let names = array.namespace;
    write(&create(names, "/data/a"), 0, b"shared");
    let before = file_of(&create(names, "/data/a")).attribute();
    inside(names.link(b"/data/a", b"/data/b", false));
    assert_eq!(refused(names.link(b"/data/a", b"/data/b", false)), OsError::EXIST);
    assert_eq!(inside(names.stat(b"/data/b", true)).st_nlink, 2);
    inside(names.unlink(b"/data/a"));
    assert_eq!(read(&create(names, "/data/b")), b"shared");
    inside(names.rename(b"/data/b", b"/data/c", RenameFlags::empty()));
    array.assert_same_trees();
    write(&create(names, "/data/d"), 0, b"other");
    inside(names.rename(b"/data/d", b"/data/c", RenameFlags::empty()));
    assert_eq!(read(&create(names, "/data/c")), b"other");
    assert_eq!(file_of(&create(names, "/data/e")).attribute().inode, before.inode);
    array.assert_same_trees();
}

#[test]
fn renaming_a_name_to_another_of_the_same_file_frees_nothing() {
    let array = TestArray::new();
    let names = array.namespace;
    write(&create(names, "/data/a"), 0, b"data");
    inside(names.link(b"/data/a", b"/data/b", false));
    inside(names.rename(b"/data/a", b"/data/b", RenameFlags::empty()));
    inside(names.rename(b"/data/a", b"/data/a", RenameFlags::empty()));
    assert_eq!(read(&create(names, "/data/b")), b"data");
    write(&create(names, "/data/c"), 0, b"third");
    inside(names.rename(b"/data/b", b"/data/c", RenameFlags::EXCHANGE));
    assert_eq!((read(&create(names, "/data/b")), read(&create(names, "/data/c"))), (b"third".to_vec(), b"data".to_vec()));
    assert_eq!(refused(names.rename(b"/data/b", b"/data/c", RenameFlags::NOREPLACE)), OsError::EXIST);
    array.assert_same_trees();
}

#[test]
fn an_unnamed_file_can_get_a_name() {
    let array = TestArray::new();
    let names = array.namespace;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let unnamed = inside(names.open(b"/data", flags, 0o640));
    write(&unnamed, 0, b"unnamed");
    let gone = inside(names.open(b"/data", flags | OFlags::EXCL, 0o640));
    write(&gone, 0, b"never named");
    assert_eq!(read(&gone), b"never named");
    inside(names.link_descriptor(unnamed.anchor.as_fd(), &unnamed.node, b"/data/named"));
    assert_eq!(refused(names.link_descriptor(gone.anchor.as_fd(), &gone.node, b"/data/never")), OsError::NOENT);
    drop((unnamed, gone));
    assert_eq!(read(&create(names, "/data/named")), b"unnamed");
    assert_eq!(inside(names.stat(b"/data/named", true)).st_mode & 0o777, 0o640);
    assert_eq!(array.assert_same_trees().len(), 2);
}

#[test]
fn a_file_may_forbid_what_its_maker_does() {
    let array = TestArray::new();
    let opened = inside(array.namespace.open(b"/data/readonly", CREATE | OFlags::EXCL, 0o444));
    write(&opened, 0, b"git object");
    assert_eq!(array.assert_same_trees().values().filter(|entry| entry.mode == 0o444).count(), 1);
}

#[test]
fn times_of_writes_and_times_that_were_set() {
    let array = TestArray::new();
    let names = array.namespace;
    let opened = create(names, "/data/file");
    let first = inside(names.stat(b"/data/file", true));
    std::thread::sleep(std::time::Duration::from_millis(20));
    write(&opened, 0, b"later");
    let written = inside(names.stat(b"/data/file", true));
    assert!((first.st_mtime, first.st_mtime_nsec) < (written.st_mtime, written.st_mtime_nsec));
    assert!((written.st_mtime, written.st_mtime_nsec) <= (written.st_ctime, written.st_ctime_nsec));
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: 1_000_000, tv_nsec: 5 },
    };
    inside(names.utimens(b"/data/file", &times, true));
    assert_eq!(inside(names.stat(b"/data/file", true)).st_mtime, 1_000_000);
    write(&opened, 0, b"again");
    names.futimens(opened.anchor.as_fd(), &opened.node, &times).unwrap();
    drop(opened);
    let stat = inside(names.stat(b"/data/file", true));
    assert_eq!((stat.st_mtime, stat.st_mtime_nsec), (1_000_000, 5));
}

#[test]
fn a_new_file_has_changed_when_it_was_made() {
    const FILES: usize = 32;
    let array = TestArray::new();
    let is_as_made = |number: &usize| {
        let path = format!("/data/new{number}");
        let opened = create(array.namespace, &path);
        let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let found = inside(array.namespace.statx(path.as_bytes(), AtFlags::empty(), mask, true));
        drop(opened);
        [found.stx_mtime, found.stx_btime]
            .iter()
            .all(|time| (time.tv_sec, time.tv_nsec) == (found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec))
    };
    // The kernel's clock may go on while a file is being made: it does so up to 1,000 times a second.
    let as_made = (0..FILES).filter(is_as_made).count();
    assert!(as_made > FILES / 2, "{as_made} of {FILES}");
}

#[test]
fn an_inherited_descriptor_is_recognised() {
    let array = TestArray::new();
    let names = array.namespace;
    write(&create(names, "/data/file"), 0, b"inherited");
    inside(names.mkdir(b"/data/dir", 0o755));
    let member = &array.members[0];
    let raw = std::fs::File::open(member.join("data/file")).unwrap();
    let Some(Node::File(file)) = names.adopt_anchor(raw.as_fd()).unwrap() else { panic!("no file") };
    assert_eq!(file.size(), 9);
    drop(file);
    assert_eq!(names.logical_path_of(raw.as_fd()).unwrap().unwrap(), b"/data/file");
    let directory = std::fs::File::open(member.join("data/dir")).unwrap();
    assert!(matches!(names.adopt_anchor(directory.as_fd()), Ok(Some(Node::Directory(_)))));
    assert!(names.adopt_anchor(std::fs::File::open("/dev/null").unwrap().as_fd()).unwrap().is_none());
    let meta = std::fs::File::open(member.join(".cxlraid/superblock")).unwrap();
    assert!(names.adopt_anchor(meta.as_fd()).unwrap().is_none());
    inside(names.unlink(b"/data/file"));
    assert_eq!(names.adopt_anchor(raw.as_fd()).err(), Some(OsError::STALE));
}

#[test]
fn what_was_left_half_made_is_completed_when_it_is_opened() {
    let array = TestArray::new();
    let names = array.namespace;
    // The maker died after the first member's file, without and with its attribute, and left
    // something over elsewhere.
    std::fs::write(array.members[0].join("data/bare"), "").unwrap();
    drop(create(names, "/data/alone"));
    std::fs::remove_file(array.members[1].join("data/alone")).unwrap();
    std::fs::remove_file(array.members[2].join("data/alone")).unwrap();
    std::fs::write(array.members[2].join("data/later"), "left over").unwrap();
    std::fs::create_dir_all(array.members[1].join("data/dir/deep")).unwrap();
    for path in ["/data/bare", "/data/alone", "/data/later"] {
        let opened = create(names, path);
        write(&opened, 0, path.as_bytes());
        assert_eq!(read(&opened), path.as_bytes());
    }
    inside(names.mkdir(b"/data/dir", 0o700));
    assert_eq!(array.assert_same_trees().len(), 5);
    assert_eq!(names.files().array().in_use().len(), 3);
}

#[test]
fn a_foreign_file_is_an_error_to_open_and_can_be_removed() {
    let array = TestArray::new();
    let names = array.namespace;
    std::fs::write(array.members[0].join("data/foreign"), "put here by hand").unwrap();
    assert_eq!(refused(names.open(b"/data/foreign", RDONLY, 0)), OsError::IO);
    assert_eq!(inside(names.stat(b"/data/foreign", true)).st_size, 16);
    inside(names.unlink(b"/data/foreign"));
    assert_eq!(array.assert_same_trees().len(), 1);
}

#[test]
fn pipes_are_the_anchors() {
    let array = TestArray::new();
    let names = array.namespace;
    inside(names.mknod(b"/data/pipe", cxlraid_namespace::FileType::Fifo, 0o600, 0));
    let opened = inside(names.open(b"/data/pipe", OFlags::RDWR | OFlags::NONBLOCK, 0));
    assert!(matches!(opened.node, Node::Other));
    inside(names.mknod(b"/data/plain", cxlraid_namespace::FileType::RegularFile, 0o600, 0));
    assert!(matches!(names.open(b"/data/plain", RDONLY, 0), Ok(Reached::Array(opened)) if matches!(opened.node, Node::File(_))));
    array.assert_same_trees();
}

#[test]
fn directories_are_synced_on_members_that_keep_something() {
    // On the disk, where a member survives power loss; elsewhere there is nothing to do and nothing
    // that can fail.
    let home = tempfile::Builder::new().prefix("cxlraid-sync-").tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let members: Vec<_> = (0..2).map(|slot| home.path().join(format!("m{slot}"))).collect();
    members.iter().for_each(|member| std::fs::create_dir(member).unwrap());
    let array = TestArray::on(layout::Level::Raid1, home, members);
    let names = array.namespace;
    let open = |path: &[u8]| match names.open(path, OFlags::RDONLY | OFlags::DIRECTORY, 0).unwrap() {
        Reached::Array(opened) => opened.anchor,
        Reached::Host(_) => panic!("led out of the array"),
    };
    names.mkdir(b"/data/d", 0o755).unwrap();
    let directory = open(b"/data/d");
    assert_eq!(names.sync_directory(directory.as_fd()), Ok(()));
    names.rename(b"/data/d", b"/data/e", RenameFlags::empty()).unwrap();
    assert_eq!(names.sync_directory(directory.as_fd()), Ok(()));
    names.rmdir(b"/data/e").unwrap();
    assert_eq!(names.sync_directory(directory.as_fd()), Ok(()));
    assert_eq!(names.sync_file_systems(), Ok(()));
}
