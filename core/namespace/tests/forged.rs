//! A user puts the attribute of another user's file on a backing file of his own: no process takes
//! it for that file.

mod common;

use common::*;
use cxlraid_namespace::{AtFlags, Namespace, OFlags, RenameFlags, StatxFlags};
use file::Keep;
use format::Attribute;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use sys::rustix::fs::{XattrFlags, lsetxattr};
use sys::{AsFd as _, OsError};

const ATTRIBUTE: &str = "user.cxlraid";
const USER: u32 = 1001;
const RDWR: OFlags = OFlags::RDWR;

unsafe extern "C" {
    fn setfsuid(uid: u32) -> i32;
    fn syscall(number: i64, ...) -> i64;
}

/// setresuid(2), which as a bare system call concerns the calling thread alone.
const SETRESUID: i64 = 117;

/// Root's file `/data/g` with `secret` in it, and `/data/t/x` of an ordinary user with `theirs`.
fn array() -> Option<TestArray> {
    if sys::rustix::process::geteuid().as_raw() != 0 {
        eprintln!("NOT RUN: forged needs files of two users");
        return None;
    }
    let array = TestArray::new();
    std::fs::set_permissions(array.home.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let names = array.namespace;
    write(&inside(names.open(b"/data/g", CREATE, 0o600)), 0, b"secret");
    inside(names.mkdir(b"/data/t", 0o755));
    write(&create(names, "/data/t/x"), 0, b"theirs");
    for path in ["/data/t", "/data/t/x"] {
        inside(names.chown(path.as_bytes(), USER, USER, false));
    }
    Some(array)
}

/// What the user does to his file on every member.
fn forge(array: &TestArray) {
    // He need not read it: number and generation are easily guessed.
    let guessed = raw_attribute(&array.members[0].join("data/g"), ATTRIBUTE).unwrap();
    // SAFETY: concerns this thread only.
    unsafe { setfsuid(USER) };
    let result: Result<Vec<()>, _> =
        array.members.iter().map(|member| lsetxattr(member.join("data/t/x"), ATTRIBUTE, &guessed, XattrFlags::empty())).collect();
    // SAFETY: as above.
    unsafe { setfsuid(0) };
    result.unwrap();
}

fn content(names: Namespace, path: &str) -> Vec<u8> {
    read(&inside(names.open(path.as_bytes(), OFlags::RDONLY, 0)))
}

/// Another process' view of the array.
fn other(array: &TestArray) -> Namespace {
    array.attach_keeping(Keep::NOTHING)
}

#[test]
fn a_process_that_has_the_file_open_does_not_take_a_forged_one_for_it() {
    let Some(array) = array() else { return };
    let names = array.namespace;
    let opened = inside(names.open(b"/data/g", RDWR, 0));
    forge(&array);
    for flags in [OFlags::RDONLY, RDWR, OFlags::WRONLY | OFlags::TRUNC, OFlags::RDWR | OFlags::CREATE] {
        assert_eq!(refused(names.open(b"/data/t/x", flags, 0o644)), OsError::IO, "{flags:?}");
    }
    assert_eq!(refused(names.truncate(b"/data/t/x", 0)), OsError::IO);
    assert_eq!(read(&opened), b"secret");
}

#[test]
fn a_process_joins_nobody_elses_open_file_by_a_forged_one() {
    let Some(array) = array() else { return };
    let names = array.namespace;
    let opened = inside(names.open(b"/data/g", RDWR, 0));
    forge(&array);
    let other = other(&array);
    for flags in [OFlags::RDONLY, RDWR, OFlags::WRONLY | OFlags::TRUNC] {
        assert_eq!(refused(other.open(b"/data/t/x", flags, 0)), OsError::IO, "{flags:?}");
    }
    assert_eq!(content(other, "/data/g"), b"secret");
    write(&opened, 0, b"SECRET");
    assert_eq!(content(other, "/data/g"), b"SECRET");
}

#[test]
fn a_file_that_is_kept_ready_is_not_given_for_a_forged_one() {
    let Some(array) = array() else { return };
    let names = array.attach_keeping(Keep { count: 4, allowed: || true });
    assert_eq!(content(names, "/data/g"), b"secret");
    inside(names.chmod(b"/data/g", 0o666, false));
    assert_eq!(content(names, "/data/g"), b"secret");
    forge(&array);
    assert_eq!(refused(names.open(b"/data/t/x", OFlags::RDONLY, 0)), OsError::IO);
    assert_eq!(content(names, "/data/g"), b"secret");
}

#[test]
fn an_anchor_that_says_it_is_an_open_file_is_not_inherited_as_that() {
    let Some(array) = array() else { return };
    let names = array.namespace;
    let theirs = inside(names.open(b"/data/t/x", OFlags::RDONLY, 0));
    let anchor = theirs.anchor;
    drop(theirs.node);
    let opened = inside(names.open(b"/data/g", RDWR, 0));
    forge(&array);
    for names in [names, other(&array)] {
        assert!(names.adopt_anchor(anchor.as_fd()).is_err());
    }
    assert_eq!(read(&opened), b"secret");
}

#[test]
fn a_forged_anchor_is_not_inherited_where_a_member_is_missing() {
    let Some(mut array) = array() else { return };
    forge(&array);
    std::fs::rename(&array.members[2], array.members[2].with_extension("away")).unwrap();
    array.restart();
    let names = array.namespace;
    let theirs = std::fs::File::open(array.members[0].join("data/t/x")).unwrap();
    assert!(names.adopt_anchor(theirs.as_fd()).is_err());
    assert_eq!(content(names, "/data/g"), b"secret");
}

#[test]
fn nothing_is_told_of_an_open_file_for_a_forged_one() {
    let Some(array) = array() else { return };
    let names = array.namespace;
    inside(names.open(b"/data/g", RDWR, 0));
    let opened = inside(names.open(b"/data/g", RDWR, 0));
    write(&opened, 0, &[1; 5000]);
    forge(&array);
    let inode = array.members[0].join("data/t/x").metadata().unwrap().ino();
    for names in [names, other(&array)] {
        for _ in 0..2 {
            let stat = inside(names.stat(b"/data/t/x", true));
            assert_eq!(stat.st_ino, inode);
            assert_ne!(stat.st_size, 5000);
            let statx = inside(names.statx(b"/data/t/x", AtFlags::empty(), StatxFlags::BASIC_STATS, true));
            assert_eq!(statx.stx_ino, inode);
            assert_ne!(statx.stx_size, 5000);
        }
    }
}

#[test]
fn removing_or_replacing_a_forged_one_does_not_remove_the_open_file() {
    for act in ["unlink", "rename over", "rename"] {
        let Some(array) = array() else { return };
        let names = array.namespace;
        create(names, "/data/n");
        let opened = inside(names.open(b"/data/g", RDWR, 0));
        forge(&array);
        // Who has met the file before knows its attribute.
        let names = other(&array);
        match act {
            "unlink" => inside(names.unlink(b"/data/t/x")),
            "rename over" => inside(names.rename(b"/data/n", b"/data/t/x", RenameFlags::empty())),
            _ => inside(names.rename(b"/data/t/x", b"/data/t/y", RenameFlags::empty())),
        }
        assert_eq!(names.fstat(opened.anchor.as_fd(), &opened.node).unwrap().st_nlink, 1, "{act}");
        drop(opened);
        assert_eq!(content(names, "/data/g"), b"secret", "{act}");
    }
}

/// The backing files that it was opened by say nothing any more, those that are left do.
#[test]
fn an_open_file_is_known_over_the_loss_of_its_anchor() {
    let Some(array) = array() else { return };
    let names = array.namespace;
    inside(names.link(b"/data/g", b"/data/second", false));
    let other = other(&array);
    let opened = inside(names.open(b"/data/g", RDWR, 0));
    for slot in 0..2 {
        if slot == 1 {
            names.files().array().fail_member(0).unwrap();
        }
        for names in [names, other] {
            for name in ["/data/g", "/data/second"] {
                assert_eq!(content(names, name), b"secret", "{name}");
            }
            assert!(names.adopt_anchor(opened.anchor.as_fd()).unwrap().is_some());
        }
    }
    // And a forged one is not.
    forge(&array);
    for names in [names, other] {
        assert_eq!(refused(names.open(b"/data/t/x", RDWR, 0)), OsError::IO);
    }
    assert_eq!(read(&opened), b"secret");
}

#[test]
fn a_process_that_has_the_file_open_knows_it_at_once_after_a_loss() {
    let Some(array) = array() else { return };
    let names = array.namespace;
    let opened = inside(names.open(b"/data/g", RDWR, 0));
    forge(&array);
    names.files().array().fail_member(0).unwrap();
    assert_eq!(refused(names.open(b"/data/t/x", RDWR, 0)), OsError::IO);
    assert_eq!(content(names, "/data/g"), b"secret");
    assert_eq!(read(&opened), b"secret");
}

#[test]
fn a_file_that_nobody_has_open_is_not_read_or_cut_by_a_forged_one() {
    let Some(mut array) = array() else { return };
    forge(&array);
    for is_restarted in [false, true] {
        if is_restarted {
            array.restart();
        }
        let names = array.namespace;
        for flags in [OFlags::RDONLY, RDWR, OFlags::WRONLY | OFlags::TRUNC] {
            assert_eq!(refused(names.open(b"/data/t/x", flags, 0)), OsError::IO, "{flags:?}");
        }
        assert_eq!(content(names, "/data/g"), b"secret");
    }
}

/// On each member alone, or on all: the file's name, bytes, owner and mode stay its own when
/// recovery compares the members.
#[test]
fn recovery_gives_nobody_a_file_whose_attribute_he_forged() {
    for forged in [&[0][..], &[1], &[2], &[0, 1, 2]] {
        let Some(mut array) = array() else { return };
        let own: Vec<_> =
            array.members.iter().map(|member| raw_attribute(&member.join("data/t/x"), ATTRIBUTE).unwrap()).collect();
        forge(&array);
        for slot in (0..3).filter(|slot| !forged.contains(slot)) {
            lsetxattr(array.members[slot].join("data/t/x"), ATTRIBUTE, &own[slot], XattrFlags::empty()).unwrap();
        }
        inside(array.namespace.rename(b"/data/t/x", b"/data/t/y", RenameFlags::empty()));
        for is_restarted in [false, true] {
            if is_restarted {
                array.restart();
            }
            array.namespace.recover().unwrap();
            for member in &array.members {
                let metadata = member.join("data/g").symlink_metadata().unwrap();
                assert_eq!((metadata.uid(), metadata.mode() & 0o7777, metadata.nlink()), (0, 0o600, 1), "{forged:?}");
            }
            assert_eq!(content(array.namespace, "/data/g"), b"secret", "{forged:?}");
        }
    }
}

/// With another generation the attribute names a file that is gone, or is going to be made. What
/// loses its name with such an attribute takes nothing from the file that has the number now.
#[test]
fn a_file_is_not_freed_by_a_forged_one_of_another_generation() {
    let takes: [fn(Namespace); 2] = [
        |names| inside(names.unlink(b"/data/t/x")),
        |names| {
            drop(create(names, "/data/t/y"));
            inside(names.rename(b"/data/t/y", b"/data/t/x", RenameFlags::empty()));
        },
    ];
    for (take, difference) in takes.into_iter().zip([1, u64::MAX]).chain(takes.into_iter().zip([u64::MAX, 1])) {
        let Some(mut array) = array() else { return };
        let own = Attribute::decode(&raw_attribute(&array.members[0].join("data/g"), ATTRIBUTE).unwrap()).unwrap();
        let guessed = Attribute { generation: own.generation.wrapping_add(difference), ..own }.encode();
        for member in &array.members {
            lsetxattr(member.join("data/t/x"), ATTRIBUTE, &guessed, XattrFlags::empty()).unwrap();
        }
        // This process knows the file by its backing files; the next one asks for the attribute.
        let next = other(&array);
        take(next);
        for path in ["/data/new", "/data/newer"] {
            write(&create(next, path), 0, path.as_bytes());
        }
        assert_eq!(content(next, "/data/g"), b"secret");
        next.files().detach();
        next.files().array().abandon();
        array.restart();
        for (path, bytes) in [("/data/g", &b"secret"[..]), ("/data/new", b"/data/new"), ("/data/newer", b"/data/newer")] {
            assert_eq!(content(array.namespace, path), bytes, "{path}");
        }
    }
}

/// Copies have other numbers: what the table says of the numbers before means nothing.
#[test]
fn members_that_were_copied_file_by_file_are_used_as_before() {
    let Some(mut array) = array() else { return };
    array.namespace.files().detach();
    for member in &array.members {
        let aside = member.with_extension("aside");
        std::fs::rename(member, &aside).unwrap();
        let copied = std::process::Command::new("cp").arg("-a").arg(&aside).arg(member).status().unwrap();
        assert!(copied.success());
        std::fs::remove_dir_all(&aside).unwrap();
    }
    array.restart();
    for name in ["/data/g", "/data/t/x"] {
        let opened = inside(array.namespace.open(name.as_bytes(), RDWR, 0));
        assert_eq!(read(&opened), if name == "/data/g" { b"secret" } else { b"theirs" }, "{name}");
    }
    // Opening a file for writing has filled its record again.
    forge(&array);
    assert_eq!(refused(array.namespace.open(b"/data/t/x", OFlags::RDONLY, 0)), OsError::IO);
    assert_eq!(array.namespace.files().array().in_use().len(), 3);
}

#[test]
fn a_directory_that_was_moved_to_a_new_name_on_one_member_is_not_removed_there() {
    type Make = fn(&Namespace);
    let makes: [Make; 4] = [
        |names| inside(names.mkdir(b"/data/t/new", 0o755)),
        |names| drop(inside(names.open(b"/data/t/new", CREATE, 0o644))),
        |names| inside(names.symlink(b"x", b"/data/t/new")),
        |names| inside(names.rename(b"/data/t/x", b"/data/t/new", RenameFlags::empty())),
    ];
    for make in makes {
        let Some(array) = array() else { return };
        let names = array.namespace;
        inside(names.mkdir(b"/data/t/private", 0o700));
        write(&create(names, "/data/t/private/kept"), 0, b"root's own");
        let inode = |slot: usize| array.members[slot].join("data/t/private/kept").metadata().unwrap().ino();
        let before = [inode(1), inode(2)];
        for member in &array.members[1..] {
            std::fs::rename(member.join("data/t/private"), member.join("data/t/new")).unwrap();
        }
        make(&names);
        // The backing files were not made anew from what the first member has: they are those from
        // before.
        assert_eq!([inode(1), inode(2)], before);
        assert_eq!(content(other(&array), "/data/t/private/kept"), b"root's own");
        assert_eq!(names.files().array().in_use().len(), 3);
    }
}

#[test]
fn a_recovery_does_not_remove_a_directory_that_was_moved_to_a_name_half_made() {
    let Some(mut array) = array() else { return };
    let names = array.namespace;
    inside(names.mkdir(b"/data/t/private", 0o700));
    write(&create(names, "/data/t/private/kept"), 0, b"root's own");
    let inode = |array: &TestArray, slot: usize| array.members[slot].join("data/t/private/kept").metadata().unwrap().ino();
    let before = [1, 2].map(|slot| inode(&array, slot));
    // The maker of this name dies when the first member alone has it.
    drop(create(names, "/data/t/new"));
    for member in &array.members[1..] {
        std::fs::remove_file(member.join("data/t/new")).unwrap();
        std::fs::rename(member.join("data/t/private"), member.join("data/t/new")).unwrap();
    }
    array.restart();
    // The backing files are those from before.
    assert_eq!([1, 2].map(|slot| inode(&array, slot)), before);
    assert_eq!(content(array.namespace, "/data/t/private/kept"), b"root's own");
    assert_eq!(array.namespace.files().array().in_use().len(), 3);
    array.assert_same_trees();
}

#[test]
fn a_change_of_attributes_does_not_reach_another_file_that_was_put_in_a_files_place() {
    let Some(array) = array() else { return };
    let names = array.namespace;
    write(&inside(names.open(b"/data/t/roots", CREATE, 0o600)), 0, b"root's own");
    let theirs = raw_attribute(&array.members[0].join("data/g"), ATTRIBUTE).unwrap();
    // The first member's file says that it is a third one, so it is none of the array; the second
    // has root's file in its place.
    lsetxattr(array.members[0].join("data/t/x"), ATTRIBUTE, &theirs, XattrFlags::empty()).unwrap();
    let roots = std::fs::File::open(array.members[1].join("data/t/roots")).unwrap();
    std::fs::rename(array.members[1].join("data/t/roots"), array.members[1].join("data/t/x")).unwrap();
    for result in [names.chown(b"/data/t/x", USER, USER, false), names.chmod(b"/data/t/x", 0o666, false)] {
        assert!(matches!(result, Ok(_) | Err(OsError::IO)), "{result:?}");
    }
    let stat = roots.metadata().unwrap();
    assert_eq!((stat.uid(), stat.mode() & 0o777), (0, 0o600));
    assert_eq!(content(names, "/data/t/roots"), b"root's own");
}

#[test]
fn a_forged_file_is_not_believed_where_another_member_has_lost_its_table() {
    let Some(array) = array() else { return };
    let names = array.namespace;
    for path in ["/data/one", "/data/two"] {
        inside(names.mkdir(path.as_bytes(), 0o755));
    }
    forge(&array);
    std::fs::remove_file(array.members[1].join("data/t/x")).unwrap();
    // Nothing tells on which members two directories have been exchanged, so that names are
    // compared as a whole after a death.
    assert!(names.rename(b"/data/one", b"/data/two", RenameFlags::EXCHANGE).is_ok());
    names.files().array().runtime().note_deaths();
    let files: Vec<std::fs::File> =
        array.members.iter().map(|member| std::fs::File::open(member.join("data/g")).unwrap()).collect();
    // The last member's table says nothing. All members are on one file system, so a file could be
    // that member's by its device.
    std::fs::remove_file(array.members[2].join(".cxlraid/backings")).unwrap();
    other(&array);
    for file in files {
        let stat = file.metadata().unwrap();
        assert_eq!((stat.uid(), stat.mode() & 0o777, stat.nlink()), (0, 0o600, 1));
    }
}

#[test]
fn recovery_does_not_remove_files_whose_directory_was_moved_away_on_the_first_member() {
    let Some(array) = array() else { return };
    let names = array.namespace;
    inside(names.mkdir(b"/data/t/e", 0o755));
    inside(names.chown(b"/data/t/e", USER, USER, false));
    write(&create(names, "/data/t/e/kept"), 0, b"root's own");
    // The user takes his directory out of the array, with root's file in it, and brings it back
    // later.
    let (here, away) = (array.members[0].join("data/t/e"), array.members[0].join("away"));
    std::fs::rename(&here, &away).unwrap();
    assert_eq!(names.recover(), Ok(3));
    std::fs::rename(&away, &here).unwrap();
    assert_eq!(names.recover(), Ok(3));
    assert_eq!(content(names, "/data/t/e/kept"), b"root's own");
    array.assert_same_trees();
}

#[test]
fn no_member_goes_out_by_what_a_user_does_to_his_names_on_one_member() {
    type Attack = fn(&std::path::Path);
    type Act = fn(Namespace) -> Result<(), OsError>;
    let attacks: [Attack; 6] = [
        |member| std::fs::remove_dir_all(member.join("data/t")).unwrap(),
        |member| std::fs::rename(member.join("data/t"), member.join("data/t2")).unwrap(),
        |member| {
            std::fs::rename(member.join("data/t"), member.join("data/t2")).unwrap();
            std::os::unix::fs::symlink("/tmp", member.join("data/t")).unwrap();
        },
        |member| {
            std::fs::remove_file(member.join("data/t/x")).unwrap();
            std::fs::create_dir(member.join("data/t/x")).unwrap();
            std::fs::create_dir(member.join("data/t/new")).unwrap();
        },
        |member| std::fs::set_permissions(member.join("data/t"), std::fs::Permissions::from_mode(0o500)).unwrap(),
        |member| {
            // The other user's file cannot be removed there, so it is in the way of whoever wants
            // to remove the directory.
            std::fs::rename(member.join("data/g"), member.join("data/t/d/g")).unwrap();
            std::fs::rename(member.join("data/t/y"), member.join("data/t/z")).unwrap();
            std::fs::rename(member.join("data/t/d"), member.join("data/t/y")).unwrap();
        },
    ];
    let acts: [Act; 9] = [
        |names| names.mkdir(b"/data/t/new", 0o755).map(drop),
        |names| names.open(b"/data/t/new", CREATE, 0o644).map(drop),
        |names| names.symlink(b"x", b"/data/t/new").map(drop),
        |names| names.link(b"/data/t/x", b"/data/t/new", false).map(drop),
        |names| names.rename(b"/data/t/x", b"/data/t/new", RenameFlags::empty()).map(drop),
        |names| names.chmod(b"/data/t/x", 0o600, true).map(drop),
        |names| names.unlink(b"/data/t/x").map(drop),
        |names| names.rename(b"/data/t/x", b"/data/t/y", RenameFlags::empty()).map(drop),
        |names| names.rmdir(b"/data/t/d").map(drop),
    ];
    const REPLACEMENT: usize = 7;
    let cases = attacks.iter().enumerate().flat_map(|case| acts.iter().enumerate().map(move |act| (case, act)));
    for (((number, attack), (act_number, act)), is_effective) in cases.flat_map(|case| [(case, false), (case, true)]) {
        let Some(array) = array() else { return };
        let case = format!("attack {number}, act {act_number}, effective {is_effective}");
        let names = other(&array);
        write(&create(array.namespace, "/data/t/y"), 0, b"replaced");
        inside(array.namespace.mkdir(b"/data/t/d", 0o755));
        for path in ["/data/t/y", "/data/t/d"] {
            inside(array.namespace.chown(path.as_bytes(), USER, USER, false));
        }
        inside(array.namespace.chmod(b"/data", 0o777, true));
        inside(array.namespace.mkdir(b"/data/private", 0o700));
        names.keep_log();
        let first = || {
            let found = |name| array.members[0].join("data/t").join(name).symlink_metadata().ok();
            ["x", "y", "d", "new"].map(|name| found(name).map(|stat| (stat.ino(), stat.mode())))
        };
        let before = first();
        attack(&array.members[1]);
        // This user may not see all of the tree, so he cannot make the names the same. A process
        // that never was root's knows that beforehand.
        let act_as = |user| {
            if is_effective {
                // SAFETY: concerns this thread only.
                unsafe { syscall(SETRESUID, -1, i64::from(user), -1) }
            } else {
                // SAFETY: as above.
                i64::from(unsafe { setfsuid(user) })
            }
        };
        act_as(USER);
        let result = act(names);
        act_as(0);
        assert!(matches!(result, Ok(()) | Err(OsError::IO | OsError::ACCESS | OsError::PERM)), "{case}: {result:?}");
        assert_eq!(names.files().array().in_use().len(), 3, "{case}");
        assert_eq!(content(array.namespace, "/data/g"), b"secret", "{case}");
        if result.is_err() {
            assert_eq!(first(), before, "{case}: half done: {result:?}");
        }
        if is_effective && act_number == REPLACEMENT {
            assert_eq!(result, Err(OsError::IO), "{case}: a replacement that one member would refuse is not begun");
        }
    }
}

#[test]
fn no_member_goes_out_by_what_a_user_cuts_off_his_file_while_it_is_open() {
    for (cut, writes) in [(0, false), (0, true), (4096, false), (5000, true)] {
        let Some(array) = array() else { return };
        let names = array.namespace;
        let mut model: Vec<u8> = (0..200_000_u32).map(|index| (index / 7) as u8).collect();
        write(&create(names, "/data/t/long"), 0, &model);
        inside(names.chown(b"/data/t/long", USER, USER, false));
        let opened = inside(names.open(b"/data/t/long", RDWR, 0));
        let backing = std::fs::OpenOptions::new().write(true).open(array.members[1].join("data/t/long")).unwrap();
        backing.set_len(cut).unwrap();
        for (offset, bytes) in [(0, 30_000), (100_001, 7), (50_000, 9_000), (195_000, 20_000)] {
            if writes {
                let data = vec![offset as u8 + 1; bytes];
                write(&opened, offset as u64, &data);
                model.resize(model.len().max(offset + bytes), 0);
                model[offset..offset + bytes].copy_from_slice(&data);
            }
            assert!(read(&opened) == model, "cut to {cut}, writes: {writes}, at {offset}");
        }
        assert_eq!(names.files().array().in_use().len(), 3, "cut to {cut}, writes: {writes}");
        // Another process opens it meanwhile, and makes anew what was cut off.
        let again = inside(other(&array).open(b"/data/t/long", RDWR, 0));
        assert!(read(&again) == model && read(&opened) == model, "cut to {cut}, writes: {writes}");
        write(&opened, 199_000, &[9; 150_000]);
        model.truncate(199_000);
        model.resize(349_000, 9);
        assert!(read(&again) == model, "cut to {cut}, writes: {writes}");
        assert_eq!(file_of(&opened).verify(), Ok(0));
        drop((opened, again));
        // Each of the others may go now.
        names.files().array().fail_member(0).unwrap();
        assert!(content(names, "/data/t/long") == model, "cut to {cut}, writes: {writes}");
    }
}

#[test]
fn a_call_that_is_refused_for_a_foreign_difference_is_told() {
    static TOLD: std::sync::Mutex<Vec<(String, Vec<u8>)>> = std::sync::Mutex::new(Vec::new());
    let Some(array) = array() else { return };
    inside(array.namespace.mkdir(b"/data/private", 0o700));
    let tell = |member: &array::Member, path: &[u8]| TOLD.lock().unwrap().push((member.shown(), path.to_vec()));
    let tells = array::Tell { difference: tell, ..array::Tell::NOTHING };
    let attached = array::Array::attach(array.namespace.files().array().config()).unwrap().telling(tells);
    let names = Namespace::new(file::Files::keeping_open(attached, Keep::NOTHING).unwrap()).unwrap();
    names.keep_log();
    std::fs::remove_dir_all(array.members[1].join("data/t")).unwrap();
    // SAFETY: concerns this thread only.
    unsafe { setfsuid(USER) };
    let result = names.mkdir(b"/data/t/new", 0o755);
    // SAFETY: as above.
    unsafe { setfsuid(0) };
    assert_eq!(refused(result), OsError::IO);
    assert_eq!(*TOLD.lock().unwrap(), [(array.members[1].display().to_string(), b"/data/t/new".to_vec())]);
}

#[test]
fn no_member_goes_out_by_a_file_without_a_name() {
    let Some(array) = array() else { return };
    let names = array.namespace;
    inside(names.mkdir(b"/data/private", 0o700));
    inside(names.mkdir(b"/data/t/d", 0o755));
    inside(names.chown(b"/data/t/d", USER, USER, false));
    // The user's directory is elsewhere on one member, and he may not look at the whole tree.
    std::fs::rename(array.members[1].join("data/t/d"), array.members[1].join("data/t/was")).unwrap();
    // SAFETY: concerns this thread only.
    unsafe { setfsuid(USER) };
    let result = names.open(b"/data/t/d", OFlags::TMPFILE | RDWR, 0o600);
    // SAFETY: as above.
    unsafe { setfsuid(0) };
    assert_eq!(refused(result), OsError::IO);
    assert_eq!(names.files().array().in_use().len(), 3);
    // As soon as the directory is there again, he gets his file.
    std::fs::rename(array.members[1].join("data/t/was"), array.members[1].join("data/t/d")).unwrap();
    inside(names.open(b"/data/t/d", OFlags::TMPFILE | RDWR, 0o600));
}
