//! Modes that somebody changes by hand on a later member. The owner whom the lowest member lets in
//! uses what he has, and the later member gets the lowest one's mode. No user has the mode of
//! another one's files changed by that, wherever he puts them.

mod common;

use common::{CREATE, TestArray, act_as, create, inside, raw_attribute, read, refused, write};
use cxlraid_namespace::{Namespace, OFlags, RenameFlags};
use layout::Level;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;
use sys::OsError;
use sys::rustix::fs::{XattrFlags, lsetxattr};

const USER: u32 = 1001;
const OTHER: u32 = 1002;
const GROUP: u32 = 1003;

fn is_root() -> bool {
    let is_root = sys::rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("NOT RUN: closed needs two users");
    }
    is_root
}

/// Files of [`USER`]'s, in a directory of his.
fn filled(level: Level, member_count: usize) -> TestArray {
    let array = TestArray::with(level, member_count);
    let names = array.namespace;
    set_mode(array.home.path(), 0o755);
    inside(names.mkdir(b"/data/d", 0o755));
    inside(names.mkdir(b"/data/d/below", 0o750));
    for (name, content) in [("f", "content"), ("other", "another")] {
        write(&create(names, &format!("/data/d/{name}")), 0, content.as_bytes());
    }
    for member in &array.members {
        set_mode(member, 0o755);
        for path in ["data/d", "data/d/f", "data/d/other", "data/d/below"] {
            chown(member.join(path), Some(USER), Some(USER)).unwrap();
        }
    }
    array
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o7777
}

/// When anything of a file was changed last, its mode as well.
fn changed(path: &Path) -> [i64; 2] {
    let stat = path.metadata().unwrap();
    [stat.ctime(), stat.ctime_nsec()]
}

fn act_as_user<T>(user: u32, act: impl FnOnce() -> T) -> T {
    act_as(user);
    let result = act();
    act_as(0);
    result
}

type Use = fn(Namespace);

const OF_FILES: [(&str, Use); 6] = [
    ("read", |names| assert_eq!(read(&inside(names.open(b"/data/d/f", OFlags::RDONLY, 0))), b"content")),
    ("write", |names| {
        let opened = inside(names.open(b"/data/d/f", OFlags::RDWR, 0));
        write(&opened, 0, b"CONTENT");
        assert_eq!(read(&opened), b"CONTENT");
    }),
    ("open with O_CREAT", |names| assert_eq!(read(&inside(names.open(b"/data/d/f", CREATE, 0o600))), b"content")),
    ("cut as it is opened", |names| drop(inside(names.open(b"/data/d/f", OFlags::WRONLY | OFlags::TRUNC, 0)))),
    ("cut", |names| inside(names.truncate(b"/data/d/f", 3))),
    ("an attribute", |names| inside(names.setxattr(b"/data/d/f", b"user.note", b"value", XattrFlags::empty(), true))),
];

const OF_DIRECTORIES: [(&str, Use); 10] = [
    ("read", |names| assert_eq!(read(&inside(names.open(b"/data/d/f", OFlags::RDONLY, 0))), b"content")),
    ("create", |names| write(&create(names, "/data/d/new"), 0, b"new")),
    ("no name", |names| drop(inside(names.open(b"/data/d", OFlags::RDWR | OFlags::TMPFILE, 0o600)))),
    ("mkdir", |names| inside(names.mkdir(b"/data/d/new", 0o755))),
    ("rmdir", |names| inside(names.rmdir(b"/data/d/below"))),
    ("symlink", |names| inside(names.symlink(b"there", b"/data/d/link"))),
    ("unlink", |names| inside(names.unlink(b"/data/d/f"))),
    ("rename", |names| inside(names.rename(b"/data/d/f", b"/data/d/below/f", RenameFlags::empty()))),
    ("rename over", |names| inside(names.rename(b"/data/d/f", b"/data/d/other", RenameFlags::empty()))),
    ("link", |names| inside(names.link(b"/data/d/f", b"/data/d/second", false))),
];

/// A user's use of what is closed on one of the later members.
fn assert_served(level: Level, count: usize, closed: &[&str], slots: &[usize], is_restarted: bool, (name, act): (&str, Use)) {
    println!("{closed:?} on {slots:?}, restarted {is_restarted}: {name}");
    let mut array = filled(level, count);
    for slot in slots {
        for path in closed.iter().rev() {
            set_mode(&array.members[*slot].join(path), 0);
        }
    }
    if is_restarted {
        array.restart();
    }
    let names = array.namespace;
    act_as_user(USER, || {
        assert_eq!(inside(names.stat(b"/data/d/f", true)).st_size, 7);
        act(names);
    });
    assert!(names.files().array().runtime().out().is_empty());
    for slot in slots {
        give_modes(&array.members[0].join("data"), &array.members[*slot].join("data"));
    }
    array.assert_same_trees();
}

/// Gives everything below `later` that is closed to all but its owner the mode that it has below
/// `lowest`, as a scrub does.
fn give_modes(lowest: &Path, later: &Path) {
    for entry in std::fs::read_dir(lowest).unwrap() {
        let name = entry.unwrap().file_name();
        let [model, own] = [lowest, later].map(|directory| directory.join(&name));
        if own.is_symlink() {
            continue;
        }
        if mode(&own) & 0o77 == 0 {
            set_mode(&own, mode(&model));
        }
        if model.is_dir() {
            give_modes(&model, &own);
        }
    }
}

#[test]
fn a_file_that_a_later_member_closes_is_served_to_its_owner() {
    if !is_root() {
        return;
    }
    for act in OF_FILES {
        for is_restarted in [false, true] {
            assert_served(Level::Raid5, 3, &["data/d/f"], &[1], is_restarted, act);
        }
        assert_served(Level::Raid6, 4, &["data/d/f"], &[1, 3], true, act);
        assert_served(Level::Raid1, 2, &["data/d/f"], &[1], true, act);
    }
}

#[test]
fn a_directory_that_a_later_member_closes_is_served_to_its_owner() {
    if !is_root() {
        return;
    }
    for act in OF_DIRECTORIES {
        for is_restarted in [false, true] {
            assert_served(Level::Raid5, 3, &["data/d"], &[2], is_restarted, act);
        }
        assert_served(Level::Raid6, 4, &["data/d"], &[1, 2], true, act);
    }
    // One below the other.
    for act in OF_FILES {
        assert_served(Level::Raid5, 3, &["data/d", "data/d/f"], &[1], true, act);
    }
    for act in &OF_DIRECTORIES[7..8] {
        assert_served(Level::Raid5, 3, &["data/d", "data/d/below"], &[1], true, *act);
    }
}

/// Only a right of the owner's that is missing is a reason to change a mode, and the owner gets it
/// where he needs it.
#[test]
fn a_file_that_may_be_read_only_on_a_later_member_is_written() {
    if !is_root() {
        return;
    }
    let array = filled(Level::Raid5, 3);
    let names = array.namespace;
    set_mode(&array.members[1].join("data/d/f"), 0o444);
    act_as_user(USER, || OF_FILES[0].1(names));
    assert_eq!(mode(&array.members[1].join("data/d/f")), 0o444);
    act_as_user(USER, || OF_FILES[1].1(names));
    array.assert_same_trees();
}

#[test]
fn others_do_not_open_it_and_the_lowest_members_mode_decides() {
    if !is_root() {
        return;
    }
    for closed in ["data/d", "data/d/f"] {
        for (slot, user) in [(1, OTHER), (0, USER)] {
            let mut array = filled(Level::Raid5, 3);
            set_mode(&array.members[slot].join(closed), 0);
            array.restart();
            let names = array.namespace;
            let error = act_as_user(user, || refused(names.open(b"/data/d/f", OFlags::RDONLY, 0)));
            assert_eq!(error, OsError::ACCESS);
            assert_eq!(mode(&array.members[slot].join(closed)), 0);
            assert!(names.files().array().runtime().out().is_empty());
        }
    }
}

/// What the lowest member does not permit is not permitted, and no set-ID bit is given.
#[test]
fn no_more_is_given_than_the_lowest_member_gives() {
    if !is_root() {
        return;
    }
    let array = filled(Level::Raid5, 3);
    let names = array.namespace;
    let [lowest, later] = [0, 1].map(|slot| array.members[slot].join("data/d/f"));
    set_mode(&lowest, 0o4440);
    set_mode(&later, 0o0);
    act_as_user(USER, || {
        assert_eq!(refused(names.open(b"/data/d/f", OFlags::RDWR, 0)), OsError::ACCESS);
        assert_eq!(mode(&later), 0);
        OF_FILES[0].1(names);
    });
    assert_eq!(mode(&later), 0o400);
}

/// A directory in which everybody may change names: [`OTHER`] has put `path` of [`USER`]'s at the
/// name `shared/f` on a later member, with the lowest member's mode as he likes.
fn attacked(kind: &str, mode_there: u32, is_restarted: bool) -> TestArray {
    let mut array = filled(Level::Raid5, 3);
    let names = array.namespace;
    inside(names.mkdir(b"/data/shared", 0o777));
    inside(names.chmod(b"/data/shared", 0o777, true));
    act_as_user(USER, || match kind {
        "file" => {
            write(&create(names, "/data/shared/f"), 0, b"open");
            write(&create(names, "/data/shared/private"), 0, b"secret");
        }
        _ => {
            inside(names.mkdir(b"/data/shared/f", 0o755));
            inside(names.mkdir(b"/data/shared/private", 0o755));
        }
    });
    for member in &array.members {
        set_mode(&member.join("data/shared/private"), mode_there);
    }
    let shared = array.members[1].join("data/shared");
    act_as_user(OTHER, || {
        fs::rename(shared.join("f"), shared.join("aside")).unwrap();
        fs::rename(shared.join("private"), shared.join("f")).unwrap();
    });
    if is_restarted {
        // The start gives the member what it lacks, and what lies at the name is the array's no
        // more.
        array.restart();
    }
    array
}

#[test]
fn another_file_of_the_owners_that_somebody_puts_at_the_name_keeps_its_mode() {
    if !is_root() {
        return;
    }
    for (mode_there, is_restarted) in [(0, false), (0o200, false), (0o400, false), (0, true), (0o200, true), (0o400, true)] {
        for flags in [OFlags::RDONLY, OFlags::RDWR, OFlags::WRONLY | OFlags::TRUNC, CREATE] {
            println!("{mode_there:o} {flags:?}, restarted {is_restarted}");
            let array = attacked("file", mode_there, is_restarted);
            let names = array.namespace;
            let private = array.members[1].join("data/shared/f");
            let before = fs::read(&private).unwrap();
            let changed_before = changed(&private);
            // He is served without the member or told an error, but never the other file.
            act_as_user(USER, || {
                if let Ok(opened) = names.open(b"/data/shared/f", flags, 0o644)
                    && !flags.contains(OFlags::TRUNC)
                {
                    assert_eq!(read(&inside(Ok::<_, OsError>(opened))), b"open");
                }
                let _ = names.truncate(b"/data/shared/f", 1);
                let _ = names.setxattr(b"/data/shared/f", b"user.note", b"value", XattrFlags::empty(), true);
            });
            assert_eq!(mode(&private), mode_there);
            assert_eq!(changed(&private), changed_before);
            assert_eq!(fs::read(&private).unwrap(), before);
        }
    }
}

/// The attribute is its owner's to write, and whoever may write to the file can: the tables of
/// backing files decide.
#[test]
fn another_file_with_the_attribute_of_the_name_keeps_its_mode() {
    if !is_root() {
        return;
    }
    let array = attacked("file", 0, false);
    let names = array.namespace;
    let private = array.members[1].join("data/shared/f");
    let guessed = raw_attribute(&array.members[0].join("data/shared/f"), "user.cxlraid").unwrap();
    lsetxattr(&private, "user.cxlraid", &guessed, XattrFlags::empty()).unwrap();
    let before = changed(&private);
    act_as_user(USER, || assert_eq!(refused(names.open(b"/data/shared/f", OFlags::RDWR, 0)), OsError::ACCESS));
    assert_eq!((mode(&private), changed(&private)), (0, before));
}

/// File systems give numbers again: the record of a file that was removed by hand names the file
/// that has its number now.
#[test]
fn another_file_that_has_the_number_of_one_removed_by_hand_keeps_its_mode() {
    if !is_root() {
        return;
    }
    let array = attacked("file", 0, false);
    let names = array.namespace;
    let private = array.members[1].join("data/shared/f");
    let attribute = raw_attribute(&array.members[0].join("data/shared/f"), "user.cxlraid").unwrap();
    let attribute = format::Attribute::decode(&attribute).unwrap();
    names.files().note_backing(1, attribute, private.metadata().unwrap().ino());
    let before = changed(&private);
    act_as_user(USER, || assert_eq!(refused(names.open(b"/data/shared/f", OFlags::RDWR, 0)), OsError::ACCESS));
    assert_eq!((mode(&private), changed(&private)), (0, before));
}

#[test]
fn a_file_whose_attribute_is_another_ones_gets_its_mode_back() {
    if !is_root() {
        return;
    }
    let array = filled(Level::Raid5, 3);
    let names = array.namespace;
    let there = array.members[1].join("data/d/f");
    let other = raw_attribute(&array.members[0].join("data/d/other"), "user.cxlraid").unwrap();
    lsetxattr(&there, "user.cxlraid", &other, XattrFlags::empty()).unwrap();
    set_mode(&there, 0o10);
    act_as_user(USER, || assert_eq!(refused(names.open(b"/data/d/f", OFlags::RDWR, 0)), OsError::ACCESS));
    assert_eq!(mode(&there), 0o10);
}

#[test]
fn another_directory_of_the_owners_that_somebody_puts_at_the_name_keeps_its_mode() {
    if !is_root() {
        return;
    }
    let array = attacked("directory", 0, false);
    let names = array.namespace;
    let private = array.members[1].join("data/shared/f");
    act_as_user(USER, || {
        let _ = names.mkdir(b"/data/shared/f/new", 0o755);
        let _ = names.open(b"/data/shared/f/file", CREATE, 0o644);
        let _ = names.chown(b"/data/shared/f", USER, USER, false);
    });
    assert_eq!(mode(&private), 0);
    assert_eq!(fs::read_dir(&private).unwrap().count(), 0);
    assert!(names.files().array().runtime().out().is_empty());
}

/// A call for the name's mode reaches the name's file alone.
#[test]
fn chmod_of_the_name_does_not_reach_another_file_that_the_owner_may_not_read() {
    if !is_root() {
        return;
    }
    let array = attacked("file", 0, false);
    let names = array.namespace;
    let private = array.members[1].join("data/shared/f");
    act_as_user(USER, || {
        let _ = names.chmod(b"/data/shared/f", 0o666, true);
    });
    assert_eq!(mode(&private), 0);
}

/// Where the members have given the file to two users, neither has its mode changed.
#[test]
fn a_file_that_is_another_users_on_the_lowest_member_keeps_its_mode() {
    if !is_root() {
        return;
    }
    for closed in ["data/d", "data/d/f"] {
        let array = filled(Level::Raid5, 3);
        let names = array.namespace;
        let [lowest, later] = [0, 1].map(|slot| array.members[slot].join(closed));
        chown(&lowest, Some(OTHER), Some(OTHER)).unwrap();
        set_mode(&lowest, if closed == "data/d" { 0o755 } else { 0o666 });
        set_mode(&later, 0);
        for user in [USER, OTHER] {
            act_as_user(user, || assert_eq!(refused(names.open(b"/data/d/f", OFlags::RDONLY, 0)), OsError::ACCESS));
            assert_eq!(mode(&later), 0);
        }
    }
}

/// Members of the group are not let in by the owner's use of the file: nobody but the owner gets
/// rights.
#[test]
fn members_of_the_group_are_not_let_in() {
    if !is_root() {
        return;
    }
    let array = filled(Level::Raid5, 3);
    let names = array.namespace;
    for member in &array.members {
        chown(member.join("data/d/f"), Some(USER), Some(GROUP)).unwrap();
        set_mode(&member.join("data/d/f"), 0o664);
    }
    let closed = array.members[1].join("data/d/f");
    set_mode(&closed, 0);
    assert_eq!(act_as_user(OTHER, || refused(names.open(b"/data/d/f", OFlags::RDONLY, 0))), OsError::ACCESS);
    assert_eq!(mode(&closed), 0);
    act_as_user(USER, || OF_FILES[0].1(names));
    assert_eq!(mode(&closed), 0o600);
    assert_eq!(act_as_user(OTHER, || refused(names.open(b"/data/d/f", OFlags::RDONLY, 0))), OsError::ACCESS);
}

/// A directory in which everybody may make names, and nobody remove those of others, does not come
/// to lack the second half of that.
#[test]
fn a_sticky_directory_is_opened_to_its_owner_alone() {
    if !is_root() {
        return;
    }
    let array = filled(Level::Raid5, 3);
    for member in &array.members {
        set_mode(&member.join("data/d"), 0o1777);
    }
    let closed = array.members[1].join("data/d");
    set_mode(&closed, 0);
    act_as_user(USER, || OF_FILES[0].1(array.namespace));
    assert_eq!(mode(&closed), 0o700);
}
