//! Faults in the middle of a change of names: no space on a later member, a member that dies,
//! processes that meet and processes that are killed.

mod common;

use common::*;
use cxlraid_namespace::{AtFlags, Node, OFlags, RenameFlags, StatxFlags, XattrFlags};
use layout::Level;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use sys::OsError;

/// A small file system for a member, gone with the test.
struct SmallMount(PathBuf);

impl SmallMount {
    fn new(path: &Path, inode_count: u32) -> Option<Self> {
        std::fs::create_dir_all(path).unwrap();
        let options = format!("size=4m,nr_inodes={inode_count}");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "cxlraid-test"]).arg(path).status();
        mount.is_ok_and(|status| status.success()).then(|| Self(path.into()))
    }

    /// Takes up the room that is left.
    fn fill(&self) {
        std::fs::create_dir(self.0.join("full")).unwrap();
        // What was removed just now may give its room back a moment later.
        for round in 0..5 {
            (0..).take_while(|count| std::fs::create_dir(self.0.join(format!("full/{round}-{count}"))).is_ok()).for_each(drop);
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    fn make_room(&self) {
        std::fs::remove_dir_all(self.0.join("full")).unwrap();
    }
}

impl Drop for SmallMount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// RAID 5 whose last member has room for few files.
fn array_with_a_small_member(test: &str, inode_count: u32) -> Option<(TestArray, SmallMount)> {
    let home = tempfile::Builder::new().prefix("cxlraid-names-").tempdir_in("/dev/shm").unwrap();
    let members: Vec<PathBuf> = (0..3).map(|slot| home.path().join(format!("m{slot}"))).collect();
    members[..2].iter().for_each(|member| std::fs::create_dir(member).unwrap());
    let Some(mount) = SmallMount::new(&members[2], inode_count) else {
        eprintln!("SKIPPED: {test} needs the right to mount a tmpfs");
        return None;
    };
    Some((TestArray::on(Level::Raid5, home, members), mount))
}

#[test]
fn what_a_later_member_has_no_room_for_is_undone_on_all() {
    let Some((array, _mount)) = array_with_a_small_member("what_a_later_member_has_no_room_for_is_undone_on_all", 40) else {
        return;
    };
    let names = array.namespace;
    let mut count = 0;
    let error = loop {
        match names.open(format!("/data/file{count}").as_bytes(), CREATE, 0o600) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error, OsError::NOSPC);
    assert!(count > 5);
    assert_eq!(array.assert_same_trees().len(), count + 1);
    // Fill what files with attributes were too large for.
    while names.mkdir(format!("/data/dir{count}").as_bytes(), 0o700).is_ok() {
        count += 1;
    }
    let full = array.assert_same_trees();
    assert_eq!(refused(names.mkdir(b"/data/dir", 0o700)), OsError::NOSPC);
    assert_eq!(refused(names.symlink(b"file0", b"/data/link")), OsError::NOSPC);
    assert_eq!(refused(names.open(b"/data/new", CREATE, 0o600)), OsError::NOSPC);
    let set = names.setxattr(b"/data/file0", b"user.note", &[1; 4000], XattrFlags::empty(), true);
    assert_eq!(refused(set), OsError::NOSPC);
    assert_eq!(array.assert_same_trees(), full);
    assert_eq!(names.files().array().in_use().len(), 3);
    // Given back, the inode numbers are used again.
    inside(names.unlink(b"/data/file0"));
    inside(names.unlink(b"/data/file1"));
    let again = create(names, "/data/again");
    assert!(file_of(&again).attribute().inode <= count as u64 + 1);
    write(&again, 0, b"room again");
    assert_eq!(read(&again), b"room again");
}

#[test]
fn members_may_go_while_names_change() {
    let array = TestArray::new();
    let names = array.namespace;
    inside(names.mkdir(b"/data/dir", 0o755));
    write(&create(names, "/data/dir/file"), 0, b"kept");
    names.files().array().fail_member(0).unwrap();
    assert_eq!(read(&inside(names.open(b"/data/dir/file", OFlags::RDONLY, 0))), b"kept");
    inside(names.rename(b"/data/dir", b"/data/moved", RenameFlags::empty()));
    write(&create(names, "/data/moved/other"), 0, b"degraded");
    assert_eq!(array.assert_same_trees().len(), 4);
    assert!(array.members[0].join("data/dir/file").exists());
    assert!(names.files().array().runtime().out_unrecorded().is_empty());
}

/// This test program again, as another process that runs one of the roles below.
fn spawn(array: &TestArray, role: &str) -> Child {
    let mounts: Vec<&str> = array.members.iter().map(|member| member.to_str().unwrap()).collect();
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "role", "--ignored", "--nocapture"])
        .env("CXLRAID_TEST_ROLE", role)
        .env("CXLRAID_TEST_MOUNTS", mounts.join(":"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What another process does; not a test of its own.
#[test]
#[ignore = "run by other tests"]
fn role() {
    let Ok(role) = std::env::var("CXLRAID_TEST_ROLE") else { return };
    let mounts = std::env::var("CXLRAID_TEST_MOUNTS").unwrap();
    let names = attach_again(&mounts);
    match role.as_str() {
        "exclusive" => {
            let made =
                (0..500).filter(|round| names.open(format!("/data/{round}").as_bytes(), CREATE | OFlags::EXCL, 0o600).is_ok());
            println!("made {}", made.count());
        }
        "change" => change_for_ever(names),
        _ => panic!("{role}"),
    }
    names.files().detach();
}

fn change_for_ever(names: cxlraid_namespace::Namespace) {
    println!("ready");
    for round in 0u64.. {
        let path = |name: &str| format!("/data/{name}{}", round % 7).into_bytes();
        let _ = names.mkdir(&path("dir"), 0o755);
        if let Ok(cxlraid_namespace::Reached::Array(opened)) = names.open(&path("file"), CREATE, 0o644) {
            write(&opened, 0, b"not empty");
        }
        let inner = [&path("dir")[..], b"/file"].concat();
        let _ = names.rename(&path("file"), &inner, RenameFlags::empty());
        let _ = names.rename(&path("dir"), &path("moved"), RenameFlags::EXCHANGE);
        let _ = names.rename(&path("dir"), &path("moved"), RenameFlags::empty());
        let _ = names.symlink(b"file", &path("link"));
        let _ = names.chmod(&path("moved"), 0o700 + (round % 8) as u32, true);
        let _ = names.unlink(&path("link"));
        if round % 3 == 0 {
            let _ = names.unlink(&[&path("moved")[..], b"/file"].concat());
            let _ = names.rmdir(&path("moved"));
        }
    }
}

#[test]
fn one_of_several_processes_makes_a_file_exclusively() {
    let array = TestArray::new();
    let children: Vec<Child> = (0..3).map(|_| spawn(&array, "exclusive")).collect();
    let made = children.into_iter().map(|child| {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().find_map(|line| line.split("made ").nth(1)).unwrap();
        line.trim().parse::<u32>().unwrap()
    });
    assert_eq!(made.sum::<u32>(), 500);
    assert_eq!(array.assert_same_trees().len(), 501);
}

#[test]
fn a_process_killed_in_the_middle_of_a_change_leaves_whole_trees() {
    let array = TestArray::new();
    let names = array.namespace;
    let (mut inherited, mut round) = (0, 0u64);
    while round < 60 || inherited < 3 {
        round += 1;
        assert!(round < 1000, "no kill hits a change");
        let mut children: Vec<Child> = (0..2).map(|_| spawn(&array, "change")).collect();
        for child in &mut children {
            let mut line = String::new();
            let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
            while !line.contains("ready") {
                std::io::BufRead::read_line(&mut output, &mut line).unwrap();
            }
        }
        // Now and then long enough that what one killed before has left locked is taken over (10
        // ms), or nobody gets further.
        let patience_us = if round % 8 == 0 { 25_000 } else { 0 };
        std::thread::sleep(std::time::Duration::from_micros(1000 + round * 137 % 3000 + patience_us));
        for mut child in children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        names.files().array().runtime().with_namespace(|acquired| inherited += u32::from(acquired == sync::Acquired::Inherited));
        // The next change makes good what was left.
        let _ = names.mkdir(b"/data/after", 0o700);
        let _ = names.rmdir(b"/data/after");
        let tree = array.assert_same_trees();
        for (path, entry) in tree.iter().filter(|(_, entry)| entry.kind == '-') {
            let opened = inside(names.open(format!("/{}", path.display()).as_bytes(), OFlags::RDONLY, 0));
            let content = read(&opened);
            assert!(content.is_empty() || content == b"not empty", "{} {entry:?} holds {content:?}", path.display());
        }
        assert_eq!(names.files().array().in_use().len(), 3);
    }
    println!("{inherited} of {round} kills hit a change");
}

#[test]
fn names_that_moved_on_one_member_only_are_moved_on_the_others() {
    let array = TestArray::new();
    let names = array.namespace;
    for (path, content) in [("/data/a", "first"), ("/data/b", "second"), ("/data/c", "third")] {
        write(&create(names, path), 0, content.as_bytes());
    }
    inside(names.mkdir(b"/data/dir", 0o751));
    write(&create(names, "/data/dir/inner"), 0, b"inner");
    inside(names.link(b"/data/dir/inner", b"/data/linked", false));
    inside(names.setxattr(b"/data/dir", b"user.note", b"kept", XattrFlags::empty(), true));
    // As a crash leaves them: some done on the first member only, some on the others only.
    let at = |slot: usize, name: &str| array.members[slot].join("data").join(name);
    let swap = |slot: usize, one: &str, two: &str| {
        std::fs::rename(at(slot, one), at(slot, "swapping")).unwrap();
        std::fs::rename(at(slot, two), at(slot, one)).unwrap();
        std::fs::rename(at(slot, "swapping"), at(slot, two)).unwrap();
    };
    swap(0, "a", "b");
    std::fs::rename(at(0, "dir"), at(0, "moved")).unwrap();
    std::fs::remove_file(at(1, "linked")).unwrap();
    std::fs::rename(at(2, "c"), at(2, "dir/c")).unwrap();
    std::fs::create_dir_all(at(2, "left/over")).unwrap();
    std::fs::write(at(0, "made"), "").unwrap();
    assert_eq!(names.recover(), Ok(3));
    let tree = array.assert_same_trees();
    assert_eq!((tree[Path::new("data/moved")].mode, tree[Path::new("data/moved")].note.as_deref()), (0o751, Some(&b"kept"[..])));
    for (path, content) in [
        ("/data/b", "first"),
        ("/data/a", "second"),
        ("/data/c", "third"),
        ("/data/moved/inner", "inner"),
        ("/data/linked", "inner"),
        ("/data/made", ""),
    ] {
        assert_eq!(read(&inside(names.open(path.as_bytes(), OFlags::RDONLY, 0))), content.as_bytes(), "{path}");
    }
    assert!((0..3).all(|slot| std::fs::read_dir(array.members[slot].join(".cxlraid")).unwrap().count() == 6));
    // A file renamed on the first member only is found when it is opened or changed.
    std::fs::rename(at(0, "c"), at(0, "d")).unwrap();
    assert_eq!(read(&inside(names.open(b"/data/d", OFlags::RDONLY, 0))), b"third");
    std::fs::rename(at(0, "moved"), at(0, "again")).unwrap();
    write(&create(names, "/data/again/new"), 0, b"new");
    assert_eq!(read(&create(names, "/data/again/inner")), b"inner");
    array.assert_same_trees();
    assert_eq!(names.files().array().in_use().len(), 3);
    // Bytes that one member has lost are computed from the others.
    std::fs::remove_file(at(1, "a")).unwrap();
    let opened = inside(names.open(b"/data/a", OFlags::RDONLY, 0));
    assert_eq!(read(&opened), b"second");
    let Node::File(file) = &opened.node else { panic!("no file") };
    assert_eq!(file.verify(), Ok(0));
    assert_eq!(names.files().array().in_use().len(), 3);
}

#[test]
fn a_file_opened_before_its_anchors_member_went_out_is_told_of_as_it_is() {
    let array = TestArray::new();
    let names = array.namespace;
    let opened = create(names, "/data/file");
    inside(names.link(b"/data/file", b"/data/other", true));
    names.files().array().fail_member(0).unwrap();
    write(&opened, 0, b"something");
    inside(names.unlink(b"/data/file"));
    inside(names.unlink(b"/data/other"));
    let stat = names.fstat(opened.anchor.as_fd(), &opened.node).unwrap();
    assert_eq!((stat.st_nlink, stat.st_size), (0, 9));
    let statx = names.fstatx(opened.anchor.as_fd(), &opened.node, AtFlags::empty(), StatxFlags::BASIC_STATS).unwrap();
    assert_eq!((statx.stx_nlink, statx.stx_size), (0, 9));
}

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(status: i32) -> !;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn setfsuid(uid: u32) -> i32;
}

/// A process that dies while it holds the namespace lock.
fn die_in_a_change(names: cxlraid_namespace::Namespace) {
    // SAFETY: libc's fork; the child only takes the lock and ends.
    let pid = names.files().around_fork(|| unsafe { fork() } as isize);
    if pid == 0 {
        // SAFETY: ends the child.
        names.between_changes(|| unsafe { _exit(0) });
    }
    let mut status = 0;
    // SAFETY: our child, and a word of ours.
    assert_eq!(unsafe { waitpid(pid as i32, &raw mut status, 0) }, pid as i32);
}

/// Files without a name are cleared under the lock that a dead process had: the names are made
/// whole first, and nobody is told that they may not be.
#[test]
fn who_clears_what_has_no_name_after_a_death_in_a_change_makes_the_names_whole() {
    let array = TestArray::new();
    let names = array.namespace;
    drop(create(names, "/data/file"));
    die_in_a_change(names);
    names.clear_nameless();
    assert!(!names.is_change_unfinished());

    // A process that starts finds that the dead one had such a file open.
    // SAFETY: libc's fork; the child uses the array, takes the lock and ends.
    let pid = names.files().around_fork(|| unsafe { fork() } as isize);
    if pid == 0 {
        let opened = create(names, "/data/nameless");
        write(&opened, 0, b"something");
        inside(names.unlink(b"/data/nameless"));
        // SAFETY: ends the child.
        names.between_changes(|| unsafe { _exit(0) });
    }
    let mut status = 0;
    // SAFETY: our child, and a word of ours.
    assert_eq!(unsafe { waitpid(pid as i32, &raw mut status, 0) }, pid as i32);
    let mounts: Vec<_> = array.members.iter().map(|member| member.to_string_lossy()).collect();
    let other = attach_again(&mounts.join(":"));
    assert!(!other.may_not_finish_change());
    assert!(!other.is_change_unfinished());
    let kept = array.members.iter().flat_map(|member| std::fs::read_dir(member.join(".cxlraid")).unwrap());
    let names: Vec<_> = kept.map(|entry| entry.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().starts_with("orphan-")), "{names:?}");
}

/// Runs `act` with the rights that others have on files.
fn with_few_rights<T>(act: impl FnOnce() -> T) -> T {
    // SAFETY: concerns this thread only.
    unsafe { setfsuid(65534) };
    let result = act();
    // SAFETY: as above.
    unsafe { setfsuid(0) };
    result
}

/// One more change behind a half-made one, and nobody would ever finish that.
#[test]
fn who_may_not_finish_a_change_may_look_but_not_change() {
    let array = TestArray::new();
    if sys::rustix::process::geteuid().as_raw() != 0 {
        eprintln!("SKIPPED: who_may_not_finish_a_change_may_look_but_not_change needs the right to have fewer");
        return;
    }
    std::fs::set_permissions(array.home.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let names = array.namespace;
    inside(names.chmod(b"/data", 0o777, true));
    write(&inside(names.open(b"/data/seen", CREATE, 0o644)), 0, b"seen");
    inside(names.mkdir(b"/data/private", 0o700));
    inside(names.mkdir(b"/data/private/last", 0o750));
    std::fs::remove_dir(array.members[2].join("data/private/last")).unwrap();
    die_in_a_change(names);
    with_few_rights(|| {
        assert_eq!(refused(names.mkdir(b"/data/other", 0o700)), OsError::ACCESS);
        assert_eq!(refused(names.open(b"/data/new", CREATE, 0o600)), OsError::ACCESS);
        assert_eq!(refused(names.unlink(b"/data/seen")), OsError::ACCESS);
        assert_eq!(read(&inside(names.open(b"/data/seen", OFlags::RDONLY | OFlags::CREATE, 0o600))), b"seen");
    });
    inside(names.mkdir(b"/data/after", 0o700));
    let paths: Vec<_> = array.assert_same_trees().into_keys().collect();
    assert_eq!(paths, ["data", "data/after", "data/private", "data/private/last", "data/seen"].map(PathBuf::from));
    with_few_rights(|| inside(names.mkdir(b"/data/mine", 0o700)));
    array.assert_same_trees();
}

/// A process died between the first member and a later one that has no room for what it was making.
#[test]
fn what_a_member_has_no_room_for_after_a_death_is_undone() {
    let test = "what_a_member_has_no_room_for_after_a_death_is_undone";
    let Some((mut array, mount)) = array_with_a_small_member(test, 40) else { return };
    type Change = (&'static str, fn(cxlraid_namespace::Namespace), fn(&Path));
    let remove: fn(&Path) = |data| std::fs::remove_file(data.join("last")).unwrap();
    let changes: [Change; 5] = [
        ("mkdir", |names| inside(names.mkdir(b"/data/last", 0o700)), |data| std::fs::remove_dir(data.join("last")).unwrap()),
        ("symlink", |names| inside(names.symlink(b"kept", b"/data/last")), remove),
        ("create", |names| drop(create(names, "/data/last")), remove),
        ("link", |names| inside(names.link(b"/data/kept", b"/data/last", false)), remove),
        (
            "setxattr",
            |names| inside(names.setxattr(b"/data/kept", b"user.note", &[1; 4000], XattrFlags::empty(), true)),
            |data| sys::rustix::fs::lremovexattr(data.join("kept"), "user.note").unwrap(),
        ),
    ];
    write(&create(array.namespace, "/data/kept"), 0, b"kept");
    let before = array.assert_same_trees();
    for is_restarted in [true, false] {
        for (what, change, take_back) in &changes {
            change(array.namespace);
            take_back(&mount.0.join("data"));
            mount.fill();
            if is_restarted {
                array.restart()
            } else {
                die_in_a_change(array.namespace)
            }
            assert_eq!(refused(array.namespace.unlink(b"/data/none")), OsError::NOENT, "{what}");
            mount.make_room();
            assert_eq!(array.assert_same_trees(), before, "{what}, {is_restarted}");
            assert_eq!(read(&create(array.namespace, "/data/kept")), b"kept", "{what}");
            assert_eq!(array.namespace.files().array().in_use().len(), 3, "{what}");
        }
    }
    let again = create(array.namespace, "/data/again");
    assert_eq!(file_of(&again).number(), file_of(&create(array.namespace, "/data/kept")).number() + 1, "no number is left taken");
}

/// Undone, it would take bytes with it that a program was told were written.
#[test]
fn a_member_goes_out_that_has_no_room_for_what_cannot_be_undone() {
    let test = "a_member_goes_out_that_has_no_room_for_what_cannot_be_undone";
    for can_be_spared in [true, false] {
        let Some((mut array, mount)) = array_with_a_small_member(test, 40) else { return };
        if !can_be_spared {
            array.namespace.files().array().fail_member(0).unwrap();
        }
        write(&create(array.namespace, "/data/last"), 0, b"content");
        std::fs::remove_file(mount.0.join("data/last")).unwrap();
        mount.fill();
        if can_be_spared {
            array.restart();
            let names = array.namespace;
            assert_eq!(names.files().array().in_use().iter().collect::<Vec<_>>(), [0, 1]);
            assert!(names.files().array().runtime().out_unrecorded().is_empty());
            assert_eq!(read(&create(names, "/data/last")), b"content");
            inside(names.unlink(b"/data/last"));
            assert_eq!(array.assert_same_trees().len(), 1);
            continue;
        }
        die_in_a_change(array.namespace);
        assert_eq!(refused(array.namespace.mkdir(b"/data/dir", 0o700)), OsError::NOSPC);
        assert_eq!(array.namespace.files().array().in_use().iter().collect::<Vec<_>>(), [1, 2]);
        mount.make_room();
        inside(array.namespace.mkdir(b"/data/dir", 0o700));
        inside(array.namespace.unlink(b"/data/last"));
        assert_eq!(array.assert_same_trees().len(), 2);
    }
}

#[test]
fn names_are_made_good_without_a_member_that_takes_no_changes() {
    let test = "names_are_made_good_without_a_member_that_takes_no_changes";
    let Some((array, mount)) = array_with_a_small_member(test, 200) else { return };
    inside(array.namespace.mkdir(b"/data/d", 0o755));
    // What a process leaves that dies before the last member.
    std::fs::remove_dir(array.members[2].join("data/d")).unwrap();
    let below = mount.0.join("data");
    let run = |program: &str, options: &[&str]| {
        assert!(Command::new(program).args(options).arg(&below).status().unwrap().success());
    };
    run("mount", &["--bind", below.to_str().unwrap()]);
    run("mount", &["-o", "remount,bind,ro"]);
    let in_use = array.namespace.recover();
    run("umount", &[]);
    assert_eq!(in_use, Ok(2));
}
