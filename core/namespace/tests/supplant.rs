//! A file takes another one's name, with a level of its own; and what a death in the middle leaves.

mod common;

use common::*;
use cxlraid_namespace::{OFlags, Opened};
use file::Name;
use format::{Attribute, InodeState, NewRule, RuleShape, RulesFile};
use layout::Level;
use std::path::{Path, PathBuf};
use sys::OsError;
use units::ChunkBytes;

const OLD: &[u8] = &[5; 70_000];
const NEW: &[u8] = &[6; 50_000];

fn shape(level: Level) -> RuleShape {
    RuleShape { level, chunk: ChunkBytes::new(4096).unwrap() }
}

/// An array whose files may have levels of their own, with a file `/data/a`. Returns its attribute.
fn with_file(level: Level, member_count: usize) -> (TestArray, Attribute) {
    let array = TestArray::with(level, member_count);
    let (names, own) = (array.namespace, shape(level));
    let none: [NewRule<'_, core::iter::Empty<&[u8]>>; 0] = [];
    let uuid = names.files().array().uuid();
    let set = names.files().set_rules(|revision| {
        let mut bytes = Vec::new();
        RulesFile::encode((uuid, revision), own, &none, b"", &mut |part| bytes.extend_from_slice(part));
        bytes.extend(RulesFile::checksum_of(&bytes));
        bytes
    });
    set.unwrap();
    let opened = create(names, "/data/a");
    write(&opened, 0, OLD);
    let attribute = file_of(&opened).attribute();
    drop(opened);
    (array, attribute)
}

/// Makes a file without a name, of this level.
fn copy(array: &TestArray, level: Level) -> Opened {
    let shape = array.namespace.files().shape_from(shape(level)).unwrap();
    let opened = array.namespace.make_of(b"/data", shape).unwrap();
    write(&opened, 0, NEW);
    file_of(&opened).trim_now().unwrap();
    file_of(&opened).sync().unwrap();
    opened
}

fn orphan(member: &Path, file: Attribute) -> PathBuf {
    member.join(std::str::from_utf8(&file::orphan_path(file)).unwrap())
}

/// All members have `/data/a` and nothing else, with these bytes at this level, and it fits.
#[track_caller]
fn assert_file(array: &TestArray, wanted: &[u8], level: Level, what: &str) {
    let names = array.namespace;
    assert_eq!(names.files().array().in_use().len(), array.members.len(), "{what}");
    assert_eq!(array.assert_same_trees().values().filter(|entry| entry.kind == '-').count(), 1, "{what}");
    let opened = inside(names.open(b"/data/a", OFlags::RDWR, 0));
    assert!(read(&opened) == wanted, "{what}");
    assert_eq!(file_of(&opened).geometry().level(), level, "{what}");
    assert_eq!(file_of(&opened).verify(), Ok(0), "{what}");
}

#[test]
fn a_file_takes_the_name_of_another_one_and_the_other_is_gone() {
    for (own, level, members) in
        [(Level::Raid5, Level::Raid1, 3), (Level::Raid0, Level::Raid5, 3), (Level::Raid5, Level::Raid6, 4)]
    {
        let (mut array, old) = with_file(own, members);
        let names = array.namespace;
        let new = copy(&array, level);
        let file = file_of(&new).attribute();
        assert_eq!(names.files().state_of(file), Some(InodeState::Orphan));
        names.supplant(b"/data/a", old, &file_of(&new)).unwrap();
        assert_eq!(file_of(&new).name(), Name::Has);
        drop(new);
        assert_eq!([old, file].map(|file| names.files().state_of(file)), [None, Some(InodeState::Used)]);
        assert!(array.members.iter().all(|member| !orphan(member, file).exists()));
        assert_file(&array, NEW, level, "at once");
        array.restart();
        assert_file(&array, NEW, level, "after a restart");
    }
}

#[test]
fn what_is_not_alone_under_its_name_or_open_stays() {
    let (array, old) = with_file(Level::Raid5, 3);
    let names = array.namespace;
    let opened = inside(names.open(b"/data/a", OFlags::RDONLY, 0));
    let supplant = || {
        let new = copy(&array, Level::Raid1);
        let refused = names.supplant(b"/data/a", old, &file_of(&new));
        let file = file_of(&new).attribute();
        drop(new);
        assert_eq!(names.files().state_of(file).is_some(), refused.is_ok(), "what takes no name is gone");
        refused
    };
    assert_eq!(supplant(), Err(OsError::BUSY));
    drop(opened);
    inside(names.link(b"/data/a", b"/data/b", false));
    assert_eq!(supplant(), Err(OsError::MLINK));
    inside(names.unlink(b"/data/a"));
    assert_eq!(supplant(), Err(OsError::NOENT));
    drop(create(names, "/data/a"));
    assert_eq!(supplant(), Err(OsError::STALE));
    inside(names.rename(b"/data/b", b"/data/a", cxlraid_namespace::RenameFlags::empty()));
    assert_file(&array, OLD, Level::Raid5, "in the end");
    assert_eq!(supplant(), Ok(()));
    assert_file(&array, NEW, Level::Raid1, "in the end");
}

/// A process dies between two members. Where one of them has the new file under the name, all get it;
/// where none has, the old one stays, and the new one is gone.
#[test]
fn a_death_between_two_members_leaves_one_file() {
    for (own, level, members) in [
        (Level::Raid5, Level::Raid1, 3),
        (Level::Raid0, Level::Raid0, 2),
        (Level::Raid5, Level::Raid4, 3),
        (Level::Raid0, Level::Raid5, 3),
    ] {
        for (done, is_marked) in (0..=members).flat_map(|done| [(done, false), (done, true)]) {
            if is_marked && done < members {
                continue;
            }
            let what = format!("RAID {own} to {level}, {done} of {members} members have it, marked {is_marked}");
            let (mut array, old) = with_file(own, members);
            let names = array.namespace;
            let new = copy(&array, level);
            let file = file_of(&new).attribute();
            let aside = array.members.iter().map(|member| std::fs::read(member.join("data/a")).unwrap());
            let aside: Vec<_> = aside.collect();
            names.supplant(b"/data/a", old, &file_of(&new)).unwrap();
            for (slot, bytes) in aside.iter().enumerate().skip(done) {
                let name = &array.members[slot].join("data/a");
                // The state before: the new file in `.cxlraid`, the old one under its name.
                std::fs::rename(name, orphan(&array.members[slot], file)).unwrap();
                std::fs::write(name, bytes).unwrap();
                rebind(&array, slot, name, old);
            }
            names.files().has_name(old);
            if !is_marked {
                names.files().unlinked(file, Name::Kept, || false);
            }
            std::mem::forget(new);
            array.restart();
            let (wanted, at) = if done == 0 { (OLD, own) } else { (NEW, level) };
            assert_file(&array, wanted, at, &what);
            let states = [old, file].map(|file| array.namespace.files().state_of(file).is_some());
            assert_eq!(states, [done == 0, done > 0], "{what}");
            assert!(array.members.iter().all(|member| !orphan(member, file).exists()), "{what}");
        }
    }
}

/// Makes a file of a member the backing file of `attribute` again.
fn rebind(array: &TestArray, slot: usize, path: &Path, attribute: Attribute) {
    use std::os::unix::fs::MetadataExt as _;
    sys::rustix::fs::setxattr(path, format::ATTRIBUTE_NAME, &attribute.encode(), sys::rustix::fs::XattrFlags::empty()).unwrap();
    array.namespace.files().note_backing(slot, attribute, std::fs::metadata(path).unwrap().ino());
}

/// A member has refused the name that the others have given to the new file. The file's link is all
/// that this member has of it, and the next start must leave it there.
#[test]
fn the_link_of_a_file_that_a_member_has_no_name_for_stays() {
    let (array, _) = with_file(Level::Raid5, 3);
    let names = array.namespace;
    let file = file_of(&inside(names.open(b"/data/a", OFlags::RDONLY, 0))).attribute();
    for member in &array.members {
        std::fs::hard_link(member.join("data/a"), orphan(member, file)).unwrap();
    }
    std::fs::remove_file(array.members[1].join("data/a")).unwrap();
    names.files().clear_orphans();
    let left: Vec<bool> = array.members.iter().map(|member| orphan(member, file).exists()).collect();
    assert_eq!(left, [false, true, false]);
}
