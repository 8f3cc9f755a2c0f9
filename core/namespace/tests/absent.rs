//! Names that are removed or replaced by hand on the lowest member while a process uses the array:
//! names that the other members prove are served from them, and the lowest member goes out, with a
//! message that names it.

mod common;

use common::{TestArray, act_as, create, inside, read, refused, tree, write};
use cxlraid_namespace::{Namespace, Node, OFlags, RenameFlags};
use layout::Level;
use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use sys::OsError;
use units::MemberSet;

const FILE: &[u8] = b"/data/d/f";

/// An array with a file of two stripes in a directory, and two more names.
fn filled(level: Level, member_count: usize) -> TestArray {
    let array = TestArray::with(level, member_count);
    let names = array.namespace;
    inside(names.mkdir(b"/data/d", 0o755));
    write(&create(names, "/data/d/f"), 0, &[7; 20_000]);
    write(&create(names, "/data/other"), 0, b"other");
    inside(names.symlink(b"d/f", b"/data/link"));
    array
}

fn content(names: Namespace, path: &str) -> Vec<u8> {
    read(&inside(names.open(path.as_bytes(), OFlags::RDONLY, 0)))
}

/// The names that a program finds in a directory, in order.
fn listed(names: Namespace, path: &[u8]) -> Vec<std::ffi::OsString> {
    let opened = inside(names.open(path, OFlags::RDONLY | OFlags::DIRECTORY, 0));
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&opened.anchor));
    let mut listed: Vec<_> = fs::read_dir(link).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    listed.sort();
    listed
}

fn remove(path: &Path) {
    if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
}

fn assert_served(array: &TestArray, without: usize) {
    let names = array.namespace;
    assert_eq!(content(names, "/data/d/f"), [7; 20_000]);
    assert_eq!(content(names, "/data/other"), b"other");
    assert_eq!(inside(names.readlink(b"/data/link")), b"d/f");
    let out = names.files().array().runtime().out();
    assert_eq!(out, MemberSet::EMPTY.with(without));
}

#[test]
fn a_name_that_the_lowest_member_has_lost_is_served_from_the_others() {
    for (level, count) in [(Level::Raid1, 2), (Level::Raid1, 3), (Level::Raid5, 3), (Level::Raid6, 4)] {
        for lost in ["data/d/f", "data/d", "data"] {
            let array = filled(level, count);
            remove(&array.members[0].join(lost));
            let stat = inside(array.namespace.stat(FILE, true));
            assert_eq!(stat.st_size, 20_000, "{lost}");
            assert_served(&array, 0);
        }
    }
}

/// open(2) with O_CREAT makes a file only if no member has the name.
#[test]
fn a_name_that_the_lowest_member_has_lost_is_not_made_anew() {
    for (level, count) in [(Level::Raid1, 2), (Level::Raid5, 3), (Level::Raid6, 4)] {
        for (lost, path) in [("data/d/f", FILE), ("data/d", FILE), ("data", FILE), ("data/link", b"/data/link")] {
            for more in [OFlags::CLOEXEC, OFlags::NOFOLLOW, OFlags::TRUNC] {
                if path != FILE && more == OFlags::NOFOLLOW {
                    continue;
                }
                let array = filled(level, count);
                remove(&array.members[0].join(lost));
                let opened = inside(array.namespace.open(path, OFlags::RDWR | OFlags::CREATE | more, 0o644));
                assert!(!opened.is_made, "{lost}");
                let bytes = if more == OFlags::TRUNC { 0 } else { 20_000 };
                assert_eq!(read(&opened), vec![7; bytes], "{lost}");
                let out = array.namespace.files().array().runtime().out();
                assert_eq!(out.contains(0), path == FILE, "{lost}");
            }
        }
    }
}

#[test]
fn whatever_takes_a_files_place_on_the_lowest_member_is_not_taken_for_it() {
    type Make = fn(&Path);
    let makes: [(&str, Make); 5] = [
        ("directory", |path| fs::create_dir(path).unwrap()),
        ("symlink", |path| std::os::unix::fs::symlink("/etc/passwd", path).unwrap()),
        ("empty file", |path| drop(fs::File::create(path).unwrap())),
        ("file", |path| fs::write(path, "plain").unwrap()),
        ("pipe", |path| {
            let status = std::process::Command::new("mkfifo").arg(path).status().unwrap();
            assert!(status.success());
        }),
    ];
    for (what, make) in makes {
        for stats_first in [true, false] {
            if what == "pipe" && !stats_first {
                // Opening a pipe waits, as in a plain directory.
                continue;
            }
            let array = filled(Level::Raid5, 3);
            let place = array.members[0].join("data/d/f");
            fs::remove_file(&place).unwrap();
            make(&place);
            if stats_first {
                let stat = inside(array.namespace.stat(FILE, false));
                assert_eq!((stat.st_size, stat.st_mode & 0o170_000), (20_000, 0o100_000), "{what}");
            }
            assert_served(&array, 0);
        }
    }
}

#[test]
fn a_name_that_all_but_one_have_lost_is_served_from_that_one() {
    for (level, count, lost) in [(Level::Raid1, 4, 3), (Level::Raid1, 5, 4), (Level::Raid6, 5, 2)] {
        for lists_first in [false, true] {
            let array = filled(level, count);
            (0..lost).for_each(|slot| remove(&array.members[slot].join("data/d/f")));
            let names = array.namespace;
            if lists_first {
                assert_eq!(listed(names, b"/data/d"), ["f"]);
            } else {
                assert_eq!(inside(names.stat(FILE, true)).st_size, 20_000);
            }
            assert_eq!(content(names, "/data/d/f"), [7; 20_000]);
            assert_eq!(names.files().array().runtime().out(), MemberSet::first(lost), "{level:?} {count}");
        }
    }
}

#[test]
fn what_all_but_one_lack_and_proves_nothing_is_not_there() {
    let array = filled(Level::Raid1, 4);
    fs::create_dir(array.members[3].join("data/put")).unwrap();
    assert_eq!(refused(array.namespace.stat(b"/data/put", true)), OsError::NOENT);
    assert_eq!(array.namespace.files().array().in_use().len(), 4);
}

#[test]
fn a_pipe_in_a_files_place_is_told_when_the_directory_is_listed() {
    let array = filled(Level::Raid5, 3);
    let place = array.members[0].join("data/d/f");
    fs::remove_file(&place).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&place).status().unwrap().success());
    // Directories that changed at the same time look alike where the file system does not count
    // names.
    let changed = std::time::SystemTime::now() - std::time::Duration::from_secs(9);
    fs::File::open(array.members[0].join("data/d")).unwrap().set_modified(changed).unwrap();
    assert_eq!(listed(array.namespace, b"/data/d"), ["f"]);
    assert_served(&array, 0);
}

#[test]
fn a_descriptor_of_a_path_is_not_of_what_takes_the_files_place() {
    let array = filled(Level::Raid5, 3);
    let place = array.members[0].join("data/d/f");
    fs::remove_file(&place).unwrap();
    fs::write(&place, "plain").unwrap();
    let opened = inside(array.namespace.open(FILE, OFlags::PATH, 0));
    assert_eq!(array.namespace.fstat(opened.anchor.as_fd(), &opened.node).unwrap().st_size, 20_000);
    assert_served(&array, 0);
}

#[test]
fn a_change_of_a_lost_name_is_made_on_what_the_others_have() {
    let array = filled(Level::Raid5, 3);
    remove(&array.members[0].join("data/d"));
    assert_eq!(refused(array.namespace.mkdir(b"/data/d", 0o755)), OsError::EXIST);
    assert_served(&array, 0);

    let array = filled(Level::Raid5, 3);
    remove(&array.members[0].join("data/d/f"));
    let exclusive = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    assert_eq!(refused(array.namespace.open(FILE, exclusive, 0o644)), OsError::EXIST);
    assert_served(&array, 0);

    let array = filled(Level::Raid5, 3);
    remove(&array.members[0].join("data/d/f"));
    assert_eq!(refused(array.namespace.rmdir(b"/data/d")), OsError::NOTEMPTY);
    assert_served(&array, 0);

    let array = filled(Level::Raid5, 3);
    remove(&array.members[0].join("data/d/f"));
    inside(array.namespace.rename(FILE, b"/data/g", RenameFlags::empty()));
    assert_eq!(content(array.namespace, "/data/g"), [7; 20_000]);
    assert_eq!(refused(array.namespace.stat(FILE, true)), OsError::NOENT);

    let array = filled(Level::Raid5, 3);
    remove(&array.members[0].join("data/d/f"));
    inside(array.namespace.unlink(FILE));
    assert_eq!(refused(array.namespace.stat(FILE, true)), OsError::NOENT);
    assert!(!array.members[1].join("data/d/f").exists());

    let array = filled(Level::Raid5, 3);
    remove(&array.members[0].join("data/d"));
    write(&create(array.namespace, "/data/d/new"), 0, b"new");
    assert_eq!(content(array.namespace, "/data/d/new"), b"new");
    assert!(array.members[1].join("data/d/new").exists());
    assert_served(&array, 0);
}

#[test]
fn a_directory_does_not_list_fewer_names() {
    let array = filled(Level::Raid5, 3);
    let names = array.namespace;
    remove(&array.members[0].join("data/d/f"));
    let listed = listed(names, b"/data/d");
    assert_eq!(listed, ["f"]);
    assert_served(&array, 0);
}

#[test]
fn a_witness_that_has_lost_the_directory_itself_does_not_end_the_asking() {
    type Spoil = fn(&Path);
    let spoils: [(&str, Spoil); 2] = [
        ("gone", |_| {}),
        ("a file", |path| {
            fs::write(path, "plain").unwrap();
        }),
    ];
    for (level, count) in [(Level::Raid1, 3), (Level::Raid6, 4)] {
        for (what, spoil) in spoils {
            let array = filled(level, count);
            let names = array.namespace;
            write(&create(names, "/data/d/g"), 0, b"second");
            remove(&array.members[0].join("data/d/f"));
            remove(&array.members[1].join("data/d"));
            spoil(&array.members[1].join("data/d"));
            let listed = listed(names, b"/data/d");
            assert_eq!(listed, ["f", "g"], "{level:?}, m1 {what}");
            assert_eq!(content(names, "/data/d/f"), [7; 20_000]);
            assert_eq!(content(names, "/data/d/g"), b"second");
        }
    }
}

#[test]
fn an_emptied_prefix_is_told_at_the_start() {
    for slot in [0, 1] {
        let mut array = filled(Level::Raid5, 3);
        // The last change is made once more after a restart; this one leaves nothing.
        inside(array.namespace.mkdir(b"/data/empty", 0o755));
        inside(array.namespace.rmdir(b"/data/empty"));
        for entry in fs::read_dir(array.members[slot].join("data")).unwrap() {
            remove(&entry.unwrap().path());
        }
        array.restart();
        assert_eq!(array.namespace.files().array().runtime().out(), MemberSet::EMPTY.with(slot));
        assert_served(&array, slot);
    }
}

#[test]
fn what_only_other_members_have_and_nothing_proves_is_given_to_the_lowest() {
    let array = filled(Level::Raid5, 3);
    let names = array.namespace;
    inside(names.mkdir(b"/data/empty", 0o750));
    remove(&array.members[0].join("data/empty"));
    remove(&array.members[0].join("data/link"));
    assert_eq!(inside(names.stat(b"/data/empty", true)).st_mode & 0o777, 0o750);
    assert_eq!(inside(names.readlink(b"/data/link")), b"d/f");
    assert_eq!(names.files().array().in_use().len(), 3);
    array.assert_same_trees();
}

#[test]
fn a_file_put_on_a_later_member_by_hand_puts_nobody_out() {
    let array = filled(Level::Raid5, 3);
    let names = array.namespace;
    fs::write(array.members[1].join("data/d/junk"), "junk").unwrap();
    let [from, to] = ["data/d/f", "data/d/copy"].map(|path| array.members[1].join(path));
    assert!(std::process::Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
    fs::rename(array.members[2].join("data/other"), array.members[2].join("data/renamed")).unwrap();
    for absent in [&b"/data/d/junk"[..], b"/data/d/copy", b"/data/renamed"] {
        assert_eq!(refused(names.stat(absent, true)), OsError::NOENT);
    }
    drop(inside(names.open(b"/data/d", OFlags::RDONLY | OFlags::DIRECTORY, 0)));
    assert_eq!(content(names, "/data/other"), b"other");
    assert_eq!(names.files().array().in_use().len(), 3);
}

#[test]
fn a_lost_link_of_a_file_with_two_is_lost() {
    for count in [2, 3] {
        let array = filled(Level::Raid1, count);
        inside(array.namespace.link(FILE, b"/data/second", false));
        remove(&array.members[0].join("data/second"));
        assert_eq!(inside(array.namespace.stat(b"/data/second", true)).st_size, 20_000);
        assert_served(&array, 0);
    }
}

#[test]
fn what_nobody_can_decide_is_no_absence() {
    let array = filled(Level::Raid1, 2);
    fs::rename(array.members[0].join("data/other"), array.members[0].join("data/renamed")).unwrap();
    assert_eq!(refused(array.namespace.stat(b"/data/other", true)), OsError::IO);
    assert_eq!(array.namespace.files().array().in_use().len(), 2);
    // Of three, two agree.
    let array = filled(Level::Raid1, 3);
    fs::rename(array.members[0].join("data/other"), array.members[0].join("data/renamed")).unwrap();
    assert_served(&array, 0);
}

#[test]
fn what_cannot_be_spared_answers_an_error_and_no_absence() {
    let array = filled(Level::Raid5, 3);
    array.namespace.files().array().fail_member(2).unwrap();
    remove(&array.members[0].join("data/d/f"));
    assert_eq!(refused(array.namespace.stat(FILE, true)), OsError::IO);
    assert_eq!(content(array.namespace, "/data/other"), b"other");
}

/// A member is away and comes back: what another one has lost meanwhile is refused, and nothing
/// makes the first one stale.
#[test]
fn what_only_a_member_that_is_away_can_restore_waits_for_it() {
    for (lost, gone) in [(0, 1), (1, 0), (1, 2), (2, 1), (2, 0)] {
        for what in ["data/d/f", "data/d", "data/other"] {
            let mut array = filled(Level::Raid5, 3);
            let [present, away] = ["m", "away"].map(|name| array.members[gone].with_file_name(format!("{name}{gone}")));
            array.namespace.files().detach();
            fs::rename(&present, &away).unwrap();
            remove(&array.members[lost].join(what));
            array.restart();
            let case = format!("{what} lost on member {lost}, member {gone} away");
            let path = if what == "data/other" { &b"/data/other"[..] } else { FILE };
            let opened = array.namespace.open(path, OFlags::RDONLY, 0);
            assert_eq!(refused(opened), OsError::IO, "{case}");
            array.namespace.files().detach();
            fs::rename(&away, &present).unwrap();
            array.restart();
            assert_eq!(content(array.namespace, "/data/d/f"), [7; 20_000], "{case}");
            assert_eq!(content(array.namespace, "/data/other"), b"other", "{case}");
        }
    }
}

/// A start makes the last change of names once more, and does not give names then that a member
/// which is away has to wait for.
#[test]
fn what_the_last_change_made_waits_for_a_member_that_is_away() {
    for (lost, gone) in [(1, 2), (2, 1), (2, 0)] {
        for what in ["data/last", "data/last/f"] {
            let mut array = TestArray::with(Level::Raid5, 3);
            inside(array.namespace.mkdir(b"/data/last", 0o755));
            write(&create(array.namespace, "/data/last/f"), 0, &[7; 20_000]);
            inside(array.namespace.chmod(b"/data/last/f", 0o640, true));
            let [present, away] = ["m", "away"].map(|name| array.members[gone].with_file_name(format!("{name}{gone}")));
            array.namespace.files().detach();
            fs::rename(&present, &away).unwrap();
            remove(&array.members[lost].join(what));
            array.restart();
            assert_eq!(refused(array.namespace.open(b"/data/last/f", OFlags::RDONLY, 0)), OsError::IO, "{what}");
            array.namespace.files().detach();
            fs::rename(&away, &present).unwrap();
            array.restart();
            assert_eq!(content(array.namespace, "/data/last/f"), [7; 20_000], "{what} lost on {lost}, {gone} away");
        }
    }
}

#[test]
fn comparing_all_names_takes_nothing_from_others_that_the_reference_has_lost() {
    for (level, count) in [(Level::Raid1, 2), (Level::Raid1, 3), (Level::Raid5, 3), (Level::Raid6, 4)] {
        for lost in ["data/d/f", "data/d"] {
            let array = filled(level, count);
            remove(&array.members[0].join(lost));
            assert_eq!(array.namespace.recover(), Ok(count - 1), "{level:?} {lost}");
            assert_served(&array, 0);
        }
    }
}

#[test]
fn comparing_all_names_keeps_what_the_reference_has_lost_and_cannot_be_spared_for() {
    for in_its_place in [false, true] {
        let array = filled(Level::Raid5, 3);
        write(&create(array.namespace, "/data/d/beside"), 0, b"beside");
        array.namespace.files().array().fail_member(2).unwrap();
        remove(&array.members[0].join("data/d"));
        if in_its_place {
            fs::write(array.members[0].join("data/d"), "put there by hand").unwrap();
        }
        assert_eq!(array.namespace.recover(), Ok(2));
        let kept = |name: &str| array.members[1].join("data/d").join(name);
        assert!(kept("f").exists() && kept("beside").exists());
        assert_eq!(refused(array.namespace.stat(FILE, true)), OsError::IO);
        assert_eq!(content(array.namespace, "/data/other"), b"other");
    }
}

#[test]
fn what_the_log_has_removed_is_not_lost() {
    let array = filled(Level::Raid1, 2);
    let names = array.namespace;
    let attribute = match &inside(names.open(FILE, OFlags::RDONLY, 0)).node {
        Node::File(file) => file.attribute(),
        _ => panic!("no file"),
    };
    // The last change was cut short: the second member still has the name, and the inode table the
    // file.
    let [place, aside] = ["data/d/f", "aside"].map(|path| array.members[1].join(path));
    fs::hard_link(&place, &aside).unwrap();
    inside(names.unlink(FILE));
    fs::rename(&aside, &place).unwrap();
    names.files().has_name(attribute);
    assert_eq!(names.recover(), Ok(2));
    assert!(!place.exists());
}

#[test]
fn a_member_is_not_made_anew_from_one_that_has_lost_names() {
    let mut array = filled(Level::Raid1, 3);
    array.namespace.files().array().fail_member(2).unwrap();
    array.namespace.files().array().before_change().unwrap();
    remove(&array.members[0].join("data/d"));
    array.namespace.files().detach();
    array.namespace.files().array().abandon();
    fs::remove_file(array.segment()).unwrap();
    cxlraid_namespace::fill(&array.config, 2, cxlraid_namespace::Content::Anew).unwrap();
    array.restart();
    assert_eq!(array.namespace.files().array().runtime().out(), MemberSet::EMPTY.with(0));
    assert_eq!(content(array.namespace, "/data/d/f"), [7; 20_000]);
    assert_eq!(fs::read(array.members[2].join("data/d/f")).unwrap(), [7; 20_000]);
}

#[test]
fn what_proves_nothing_and_most_members_lack_was_removed() {
    let array = filled(Level::Raid1, 3);
    let names = array.namespace;
    inside(names.mkdir(b"/data/empty", 0o750));
    inside(names.rmdir(b"/data/empty"));
    inside(names.unlink(b"/data/link"));
    // One member's tree is put back as it was before.
    fs::create_dir(array.members[1].join("data/empty")).unwrap();
    std::os::unix::fs::symlink("d/f", array.members[1].join("data/link")).unwrap();
    for path in [&b"/data/empty"[..], b"/data/link"] {
        assert_eq!(refused(names.stat(path, false)), OsError::NOENT);
    }
    assert_eq!(listed(names, b"/data"), ["d", "other"]);
    assert!(!array.members[0].join("data/empty").exists());
    assert_eq!(names.files().array().in_use().len(), 3);
    // It is in nobody's way.
    inside(names.mkdir(b"/data/empty", 0o700));
    inside(names.symlink(b"elsewhere", b"/data/link"));
    assert_eq!(inside(names.readlink(b"/data/link")), b"elsewhere");
    array.assert_same_trees();
}

#[test]
fn who_may_not_see_all_names_does_not_judge() {
    if !sys::rustix::process::geteuid().is_root() {
        eprintln!("NOT RUN: who_may_not_see_all_names_does_not_judge needs two users");
        return;
    }
    const USER: u32 = 1001;
    let array = filled(Level::Raid5, 3);
    let names = array.namespace;
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(array.home.path(), open).unwrap();
    inside(names.mkdir(b"/data/private", 0o700));
    remove(&array.members[0].join("data/d/f"));
    act_as(USER);
    let results = [refused(names.stat(FILE, true)), refused(names.open(FILE, OFlags::RDONLY, 0))];
    act_as(0);
    assert_eq!(results, [OsError::IO; 2]);
    assert_eq!(names.files().array().in_use().len(), 3);
    // Who sees all of them finds that the lowest member has lost it.
    assert_served(&array, 0);
}

/// Somebody exchanges names on the lowest member alone, while no program runs. A start and a look
/// change no other member; two others that agree are right, and one alone is not overruled.
#[test]
fn files_exchanged_by_hand_on_the_lowest_member_cost_no_other_member_anything() {
    type Exchange = fn(&Path);
    let exchanges: [(&str, Exchange); 4] = [
        ("names", |data| swap_paths(&data.join("d/f"), &data.join("other"))),
        ("a second link", |data| {
            fs::remove_file(data.join("d/f")).unwrap();
            fs::hard_link(data.join("other"), data.join("d/f")).unwrap();
        }),
        ("a replaced name", |data| fs::rename(data.join("d/f"), data.join("other")).unwrap()),
        ("directories", |data| swap_paths(&data.join("d"), &data.join("e"))),
    ];
    for (level, count) in [(Level::Raid1, 2), (Level::Raid1, 3), (Level::Raid5, 3), (Level::Raid6, 4)] {
        for (what, exchange) in exchanges {
            println!("RAID {level} on {count}: {what}");
            let mut array = filled(level, count);
            let names = array.namespace;
            inside(names.mkdir(b"/data/e", 0o755));
            write(&create(names, "/data/e/f"), 0, b"another f");
            if what != "directories" {
                // What was made last is looked at first by the next start.
                inside(names.unlink(b"/data/other"));
                write(&create(names, "/data/other"), 0, b"other");
            }
            exchange(&array.members[0].join("data"));
            array.restart();
            let names = array.namespace;
            let got = names.open(b"/data/d/f", OFlags::RDONLY, 0).map(|opened| read(&inside(Ok(opened))));
            let other = names.open(b"/data/other", OFlags::RDONLY, 0).map(|opened| read(&inside(Ok(opened))));
            if count > 2 {
                assert_eq!(got.as_deref(), Ok(&[7; 20_000][..]));
                assert_eq!(other.as_deref(), Ok(&b"other"[..]));
                assert_eq!(names.files().array().runtime().out(), MemberSet::EMPTY.with(0));
            } else {
                assert_eq!(got.err(), Some(OsError::IO));
                assert!(other.is_ok_and(|bytes| bytes == b"other") || what != "directories");
            }
            for member in &array.members[1..] {
                let links = |name: &str| member.join("data").join(name).metadata().map(|data| data.len());
                assert!(links("d/f").is_ok_and(|bytes| bytes >= 9000) && links("e/f").is_ok_and(|bytes| bytes > 0));
                assert!(links("other").is_ok_and(|bytes| bytes > 0));
            }
        }
    }
}

/// As above, and a program has one of the files open by a name that was not exchanged: then no
/// backing file is opened for the exchanged name.
#[test]
fn a_file_that_is_open_by_another_name_is_not_taken_for_what_it_was_exchanged_with() {
    for (level, count) in [(Level::Raid1, 2), (Level::Raid1, 3), (Level::Raid5, 3), (Level::Raid6, 4)] {
        println!("RAID {level} on {count}");
        let mut array = filled(level, count);
        inside(array.namespace.link(b"/data/d/f", b"/data/second", false));
        swap_paths(&array.members[0].join("data/d/f"), &array.members[0].join("data/other"));
        array.restart();
        let names = array.namespace;
        let held = inside(names.open(b"/data/second", OFlags::RDONLY, 0));
        assert_eq!(read(&held), [7; 20_000]);
        let other = names.open(b"/data/other", OFlags::RDONLY, 0).map(|opened| read(&inside(Ok(opened))));
        if count > 2 {
            assert_eq!(other.as_deref(), Ok(&b"other"[..]));
            assert_eq!(names.files().array().runtime().out(), MemberSet::EMPTY.with(0));
        } else {
            assert_eq!(other.err(), Some(OsError::IO));
        }
        // With the right name it is the file that is open.
        assert_eq!(read(&inside(names.open(b"/data/second", OFlags::RDONLY, 0))), [7; 20_000]);
    }
}

/// Files were exchanged on the lowest member, a later one has lost names, too, and a third one is
/// away: whatever is answered, no member is given the lowest member's names where another one
/// proves others.
#[test]
fn files_exchanged_on_the_lowest_member_do_not_spread_when_another_member_has_lost_names() {
    for lost in ["d/f", "other", "second", "third"] {
        for made_directory in [false, true] {
            println!("{lost} is lost, {made_directory}");
            let mut array = filled(Level::Raid6, 4);
            inside(array.namespace.link(b"/data/d/f", b"/data/second", false));
            write(&create(array.namespace, "/data/third"), 0, b"third");
            array.restart();
            swap_paths(&array.members[0].join("data/d/f"), &array.members[0].join("data/other"));
            remove(&array.members[3].join("data").join(lost));
            if made_directory {
                fs::create_dir(array.members[3].join("data").join(lost)).unwrap();
            }
            if lost != "third" {
                remove(&array.members[3].join("data/third"));
            }
            let away = array.members[1].with_extension("away");
            fs::rename(&array.members[1], &away).unwrap();
            array.restart();
            let names = array.namespace;
            let before = tree(&array.members[2]);
            for _ in 0..2 {
                for (path, content) in [
                    ("/data/second", &[7; 20_000][..]),
                    ("/data/d/f", &[7; 20_000]),
                    ("/data/other", b"other"),
                    ("/data/third", b"third"),
                ] {
                    match names.open(path.as_bytes(), OFlags::RDONLY, 0) {
                        Ok(opened) => assert!(read(&inside(Ok(opened))) == content, "{path}"),
                        Err(error) => assert_eq!(error, OsError::IO, "{path}"),
                    }
                }
            }
            assert!(tree(&array.members[2]) == before);
        }
    }
}

fn swap_paths(one: &Path, other: &Path) {
    let aside = one.with_extension("aside");
    fs::rename(one, &aside).unwrap();
    fs::rename(other, one).unwrap();
    fs::rename(&aside, other).unwrap();
}

/// A program dies when it has made the only file of a prefix on some members. The others'
/// directories are empty, and nobody has lost anything.
#[test]
fn the_only_file_that_is_half_made_accuses_nobody() {
    for (level, count) in [(Level::Raid1, 2), (Level::Raid5, 3), (Level::Raid6, 4)] {
        for reached in 1..count {
            let array = TestArray::with(level, count);
            drop(create(array.namespace, "/data/only"));
            array.members[reached..].iter().for_each(|member| fs::remove_file(member.join("data/only")).unwrap());
            array.namespace.files().array().runtime().note_deaths();
            let names = array.attach_another();
            assert_eq!(names.files().array().in_use().len(), count, "{level:?}, {reached} members reached");
            assert!(array.assert_same_trees().contains_key(Path::new("data/only")));
        }
    }
}
