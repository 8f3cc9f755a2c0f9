//! A member comes into use while programs use the array. Each attachment of this process stands for
//! a process of its own.

mod common;

use common::*;
use cxlraid_namespace::{Content, FillError, Joiner, Namespace, Node, OFlags, Opened, RenameFlags, XattrFlags, begin};
use dax::Access;
use file::{Files, Keep};
use layout::Level;
use std::cell::Cell;
use std::fs;
use std::os::fd::AsFd;
use units::MemberSet;

const SHAPES: [(Level, usize, usize); 5] =
    [(Level::Raid1, 2, 0), (Level::Raid1, 3, 1), (Level::Raid5, 3, 0), (Level::Raid6, 4, 2), (Level::Raid10, 4, 3)];
const RDWR: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC);

fn bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut rng = Rng(seed);
    (0..count).map(|_| rng.below(256) as u8).collect()
}

/// An array with files, of which a member is lost, and an empty directory is in its place.
fn with_lost(level: Level, member_count: usize, slot: usize) -> TestArray {
    let mut array = TestArray::with(level, member_count);
    for (index, name) in ["/data/one", "/data/two", "/data/three"].iter().enumerate() {
        write(&create(array.namespace, name), 0, &bytes(index as u64 + 1, 70_000));
    }
    inside(array.namespace.mkdir(b"/data/directory", 0o755));
    fs::rename(&array.members[slot], array.home.path().join("lost")).unwrap();
    array.restart();
    write(&create(array.namespace, "/data/since"), 0, &bytes(9, 30_000));
    fs::create_dir(&array.members[slot]).unwrap();
    array
}

/// Begins the member, and has the program started again.
fn begun(array: &mut TestArray, slot: usize) {
    begin(&array.config, slot, Content::Anew).unwrap();
    let before = array.namespace;
    array.namespace = array.attach_keeping(Keep::NOTHING);
    end(before);
}

fn join(array: &TestArray, slot: usize) -> Result<(), FillError> {
    let joiner = Joiner::new(&array.config, slot, Content::Anew).unwrap();
    assert!(joiner.reaches());
    let joined = joiner.join();
    joiner.end();
    joined
}

/// Ends a process.
fn end(names: Namespace) {
    names.files().detach();
    names.files().array().abandon();
}

fn out(names: Namespace) -> MemberSet {
    names.files().array().runtime().out()
}

fn open(names: Namespace, path: &str) -> Opened {
    inside(names.open(path.as_bytes(), RDWR, 0))
}

/// Every file is right on all members, and without each single one.
fn assert_right(array: &mut TestArray, files: &[(&str, Vec<u8>)]) {
    for (path, content) in files {
        let opened = open(array.namespace, path);
        assert!(read(&opened) == *content, "{path}");
        assert_eq!(file_of(&opened).verify(), Ok(0), "{path}");
    }
    assert_eq!(array.namespace.files().unbuilt().unwrap(), []);
    array.namespace.files().array().end_rebuild(MemberSet::first(array.members.len())).unwrap();
    assert_eq!(out(array.namespace), MemberSet::EMPTY);
    array.assert_same_trees();
    for slot in 0..array.members.len() {
        let aside = array.home.path().join("aside");
        fs::rename(&array.members[slot], &aside).unwrap();
        array.restart();
        assert_eq!(out(array.namespace), MemberSet::EMPTY.with(slot));
        for (path, content) in files {
            let opened = inside(array.namespace.open(path.as_bytes(), OFlags::RDONLY | OFlags::CLOEXEC, 0));
            assert!(read(&opened) == *content, "{path} without member {slot}");
        }
        fs::rename(&aside, &array.members[slot]).unwrap();
        array.restart();
        assert_eq!(out(array.namespace), MemberSet::EMPTY, "nothing was changed without member {slot}");
    }
}

#[test]
fn an_open_directory_is_found_after_a_member_has_come_back_and_another_is_lost() {
    let mut array = with_lost(Level::Raid5, 3, 0);
    begun(&mut array, 0);
    let names = array.namespace;
    let directory = inside(names.open(b"/data/directory", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, 0));
    let first = directory.anchor.as_fd();
    let path = || {
        let present = directory.node.twin().map_or(first, |twin| twin.present(first));
        String::from_utf8(names.logical_path_of(present).unwrap().unwrap()).unwrap()
    };
    join(&array, 0).unwrap();
    assert_eq!(path(), "/data/directory");
    inside(names.rename(b"/data/directory", b"/data/moved", RenameFlags::empty()));
    assert_eq!(path(), "/data/moved");
    // All bytes are computed before the member is lost on which the directory's descriptor lies.
    for file in ["/data/one", "/data/two", "/data/three", "/data/since"] {
        assert_eq!(file_of(&open(names, file)).verify(), Ok(0), "{file}");
    }
    names.files().array().end_rebuild(MemberSet::first(3)).unwrap();
    names.files().array().fail_member(1).unwrap();
    inside(names.rename(b"/data/moved", b"/data/again", RenameFlags::empty()));
    inside(names.mkdir(b"/data/moved", 0o755));
    assert_eq!(path(), "/data/again");
}

#[test]
fn a_process_from_before_is_waited_for_and_files_that_are_open_go_on_without_the_member() {
    for (level, count, slot) in SHAPES {
        println!("RAID {level}, member {slot} of {count}");
        let mut array = with_lost(level, count, slot);
        begin(&array.config, slot, Content::Anew).unwrap();
        assert!(matches!(join(&array, slot), Err(FillError::Unreached(pids)) if pids == [std::process::id()]));
        let before = array.namespace;
        array.namespace = array.attach_keeping(Keep::NOTHING);
        end(before);
        let names = array.namespace;
        let opened = open(names, "/data/one");
        let mut one = bytes(1, 70_000);
        join(&array, slot).unwrap();
        assert_eq!(out(names), MemberSet::EMPTY);
        // One that starts afterwards opens the file on all members, and goes on without the new one
        // as well.
        let other = array.attach_keeping(Keep::NOTHING);
        let again = open(other, "/data/one");
        for (round, opened) in [&opened, &again, &opened].into_iter().enumerate() {
            let part = bytes(50 + round as u64, 20_000);
            write(opened, 10_000 * round as u64, &part);
            one[10_000 * round..][..part.len()].copy_from_slice(&part);
            assert!(read(&again) == one && file_of(opened).verify() == Ok(0));
        }
        write(&opened, 70_000, &[8; 9000]);
        one.extend([8; 9000]);
        // The file keeps its note, whoever opens it.
        let waits = |path: &str| {
            let attribute = file_of(&open(other, path)).attribute();
            other.files().unbuilt().unwrap().iter().any(|file| file.attribute == attribute && file.lost.contains(slot))
        };
        assert!(waits("/data/one"));
        assert!(!waits("/data/two"), "it was not open, and is computed by the first to open it");
        // By the descriptor, which has no backing file on the new member.
        names.fchmod(opened.anchor.as_fd(), &opened.node, 0o604).unwrap();
        names.fsetxattr(opened.anchor.as_fd(), &opened.node, b"user.note", b"noted", XattrFlags::empty()).unwrap();
        inside(names.link_descriptor(opened.anchor.as_fd(), &opened.node, b"/data/directory/second"));
        inside(other.rename(b"/data/one", b"/data/first", RenameFlags::empty()));
        names.fchmod(opened.anchor.as_fd(), &opened.node, 0o640).unwrap();
        array.assert_same_trees();
        drop((opened, again));
        assert!(!waits("/data/first"), "all had closed it");
        end(other);
        let files = [
            ("/data/first", one.clone()),
            ("/data/directory/second", one),
            ("/data/two", bytes(2, 70_000)),
            ("/data/three", bytes(3, 70_000)),
            ("/data/since", bytes(9, 30_000)),
        ];
        for (path, _) in &files {
            drop(open(names, path));
        }
        assert_right(&mut array, &files);
    }
}

#[test]
fn who_opens_backing_files_before_a_member_joins_and_enters_afterwards_opens_them_anew() {
    let mut array = with_lost(Level::Raid5, 3, 1);
    begun(&mut array, 1);
    let names = array.namespace;
    let attribute = file_of(&open(names, "/data/two")).attribute();
    let tries = Cell::new(0);
    let backing = || {
        tries.set(tries.get() + 1);
        let in_use = names.files().array().in_use();
        let fd = |slot: usize| {
            let opened = fs::OpenOptions::new().read(true).write(true).open(array.members[slot].join("data/two"));
            in_use.contains(slot).then(|| opened.unwrap().into())
        };
        let fds = (0..3).map(fd).collect();
        if tries.get() == 1 {
            join(&array, 1).unwrap();
        }
        Ok((fds, Access::ReadWrite))
    };
    let file = names.files().open(attribute, true, backing).unwrap();
    assert_eq!((tries.get(), file.in_use().count()), (2, 3));
    assert_eq!(file.verify(), Ok(0));
    drop(file);
    ["/data/one", "/data/three", "/data/since"].iter().for_each(|path| drop(open(names, path)));
    let files = [("/data/one", bytes(1, 70_000)), ("/data/two", bytes(2, 70_000)), ("/data/since", bytes(9, 30_000))];
    assert_right(&mut array, &files);
}

#[test]
fn what_is_kept_ready_is_opened_anew() {
    let mut array = with_lost(Level::Raid1, 2, 0);
    begun(&mut array, 0);
    let names = array.attach_keeping(Keep { count: 8, allowed: || true });
    drop(open(names, "/data/two"));
    join(&array, 0).unwrap();
    let opened = open(names, "/data/two");
    assert_eq!(file_of(&opened).in_use().count(), 2);
    assert!(read(&opened) == bytes(2, 70_000) && file_of(&opened).verify() == Ok(0));
}

#[test]
fn files_without_a_name_go_on_and_those_that_never_had_one_are_waited_for() {
    let mut array = with_lost(Level::Raid6, 4, 2);
    begun(&mut array, 2);
    let names = array.namespace;
    let lost = open(names, "/data/three");
    inside(names.unlink(b"/data/three"));
    let never = inside(names.open(b"/data", RDWR | OFlags::TMPFILE, 0o600));
    assert!(matches!(join(&array, 2), Err(FillError::Nameless)));
    assert_eq!(out(names), MemberSet::EMPTY.with(2));
    // The member gets its names when it can join, not at each attempt: changes of names wait for
    // that.
    assert!(!array.members[2].join("data/two").exists());
    // It may still get a name once it is kept for others to find.
    file_of(&never).keep_nameless();
    write(&never, 0, &bytes(77, 40_000));
    join(&array, 2).unwrap();
    write(&lost, 5, b"more");
    assert_eq!(read(&lost)[5..9], *b"more");
    inside(names.link_descriptor(never.anchor.as_fd(), &never.node, b"/data/named"));
    array.assert_same_trees();
    let attribute = file_of(&lost).attribute();
    assert!(names.files().is_about_to_go(attribute) && names.files().goes_without(attribute));
    drop((lost, never));
    for member in &array.members {
        let left = fs::read_dir(member.join(".cxlraid")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert_eq!(left.filter(|name| name.starts_with("orphan")).collect::<Vec<_>>(), [""; 0], "{}", member.display());
    }
    ["/data/one", "/data/two", "/data/since", "/data/named"].iter().for_each(|path| drop(open(names, path)));
    assert_right(&mut array, &[("/data/one", bytes(1, 70_000)), ("/data/named", bytes(77, 40_000))]);
}

/// The loss of a member that joined is put on record like any other.
#[test]
fn a_member_that_joined_and_fails_is_stale() {
    let mut array = with_lost(Level::Raid5, 3, 1);
    begun(&mut array, 1);
    join(&array, 1).unwrap();
    let names = array.namespace;
    ["/data/one", "/data/two", "/data/three", "/data/since"].iter().for_each(|path| drop(open(names, path)));
    names.files().array().fail_member(1).unwrap();
    write(&open(names, "/data/one"), 0, &[5; 70_000]);
    array.restart();
    assert_eq!(out(array.namespace), MemberSet::EMPTY.with(1));
    assert!(read(&open(array.namespace, "/data/one")) == [5; 70_000]);
}

/// A child of a process from before, which is gone, is not seen when the member joins. It takes the
/// member out before it does anything.
#[test]
fn a_process_that_turns_up_without_reaching_the_member_takes_it_out() {
    let mut array = with_lost(Level::Raid5, 3, 1);
    let before = array.namespace;
    begin(&array.config, 1, Content::Anew).unwrap();
    array.namespace = array.attach_keeping(Keep::NOTHING);
    before.files().array().runtime().detach();
    join(&array, 1).unwrap();
    assert_eq!(out(array.namespace), MemberSet::EMPTY);
    let _ = before.files().array().runtime().me();
    let opened = open(before, "/data/two");
    assert_eq!(out(array.namespace), MemberSet::EMPTY.with(1));
    write(&opened, 0, &[6; 1000]);
    drop(opened);
    end(before);
    array.restart();
    assert_eq!(out(array.namespace), MemberSet::EMPTY.with(1), "it is stale");
    assert_eq!(read(&open(array.namespace, "/data/two"))[..1000], [6; 1000]);
}

/// The member's tree is emptied and filled while programs change files; a change of names waits.
#[test]
fn sizes_and_names_that_change_meanwhile_come_to_the_member() {
    for round in 0..12 {
        let mut array = with_lost(Level::Raid5, 3, round % 3);
        begun(&mut array, round % 3);
        let config = array.config.clone();
        let writer = std::thread::spawn(move || {
            let names = Namespace::new(Files::new(array::Array::attach(&config).unwrap()).unwrap()).unwrap();
            let opened = create(names, "/data/growing");
            let mut content = Vec::new();
            for step in 0..400u32 {
                let part = bytes(u64::from(step) + 1, 1500);
                write(&opened, content.len() as u64, &part);
                content.extend(part);
                if step % 8 == 0 {
                    write(&create(names, &format!("/data/directory/{step}")), 0, &[step as u8; 3000]);
                }
                if step % 50 == 49 {
                    inside(
                        names
                            .rename(b"/data/directory/0", b"/data/directory/moved", RenameFlags::EXCHANGE)
                            .or_else(|_| names.rename(b"/data/directory/0", b"/data/directory/moved", RenameFlags::empty())),
                    );
                    drop(create(names, "/data/directory/0"));
                }
            }
            drop(opened);
            end(names);
            content
        });
        std::thread::sleep(std::time::Duration::from_millis(round as u64));
        // A process that has not opened the tables yet is waited for.
        while let Err(error) = join(&array, round % 3) {
            assert!(matches!(error, FillError::Unreached(_) | FillError::Busy), "{error}");
        }
        let content = writer.join().unwrap();
        let names = array.namespace;
        let mut files: Vec<(String, Vec<u8>)> =
            (8..400).step_by(8).map(|step| (format!("/data/directory/{step}"), vec![step as u8; 3000])).collect();
        files.push(("/data/growing".into(), content));
        for path in files.iter().map(|(path, _)| path.as_str()).chain(["/data/directory/0", "/data/directory/moved"]) {
            let opened = open(names, path);
            assert!(matches!(opened.node, Node::File(_)));
        }
        ["/data/one", "/data/two", "/data/three", "/data/since"].iter().for_each(|path| drop(open(names, path)));
        let files: Vec<(&str, Vec<u8>)> = files.iter().map(|(path, content)| (path.as_str(), content.clone())).collect();
        assert_right(&mut array, &files);
    }
}
