//! A scrub of names reports where members differ, mends what it reports, and finds no fault while
//! names are changed.

mod common;

use common::{Rng, TestArray, create, inside, write};
use cxlraid_namespace::{Difference, FileType, NameMismatch, Namespace};
use layout::Level;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};
use sys::rustix::fs::{Timespec, Timestamps, XattrFlags, lsetxattr};
use sys::{AsFd, OsError};

fn scrub(namespace: &Namespace, repair: bool) -> Vec<NameMismatch> {
    let mut found = Vec::new();
    let first = namespace.scrub_name(b"/data", repair, &mut |mismatch| found.push(mismatch)).unwrap();
    let mut pending = vec![first.unwrap()];
    while let Some(scanned) = pending.pop() {
        if scanned.kind == FileType::Directory {
            let mut add = |mismatch| found.push(mismatch);
            match namespace.scrub_directory(&scanned.path, repair, &mut add, &mut |scanned| pending.push(scanned)) {
                // The directory was removed meanwhile.
                Err(OsError::NOENT) | Ok(()) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    }
    found
}

/// A tree with something of each kind.
fn filled(level: Level, members: usize) -> TestArray {
    let array = TestArray::with(level, members);
    let names = array.namespace;
    inside(names.mkdir(b"/data/sub", 0o755));
    for name in ["/data/file", "/data/sub/other"] {
        write(&create(names, name), 0, &[7; 9000]);
    }
    inside(names.link(b"/data/file", b"/data/sub/linked", false));
    inside(names.symlink(b"file", b"/data/link"));
    array
}

#[test]
fn each_difference_is_told_and_what_can_be_is_mended() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage, Difference, bool); 9] = [
        ("/data/sub/other", |path| fs::set_permissions(path, fs::Permissions::from_mode(0o611)).unwrap(), Difference::Mode, true),
        ("/data/sub/other", |path| chown(path, Some(1234), None).unwrap(), Difference::Owner, true),
        ("/data/sub", |path| chown(path, None, Some(1234)).unwrap(), Difference::Owner, true),
        (
            "/data/sub",
            |path| lsetxattr(path, c"user.note", b"mine", XattrFlags::empty()).unwrap(),
            Difference::Attribute(b"user.note".to_vec()),
            true,
        ),
        (
            "/data/sub/other",
            |path| fs::File::open(path).unwrap().set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(9)).unwrap(),
            Difference::Modified,
            true,
        ),
        ("/data/sub/other", |path| fs::remove_file(path).unwrap(), Difference::Missing, false),
        ("/data/strange", |path| fs::write(path, "put there by hand").unwrap(), Difference::Extra, false),
        (
            "/data/link",
            |path| {
                fs::remove_file(path).unwrap();
                symlink("elsewhere", path).unwrap();
            },
            Difference::Target,
            false,
        ),
        (
            "/data/link",
            |path| {
                fs::remove_file(path).unwrap();
                fs::create_dir(path).unwrap();
            },
            Difference::Kind,
            false,
        ),
    ];
    for (level, members) in [(Level::Raid1, 3), (Level::Raid1, 2), (Level::Raid5, 3), (Level::Raid6, 4), (Level::Raid10, 4)] {
        for (index, (path, damage, difference, can_mend)) in damages.iter().enumerate() {
            let array = filled(level, members);
            assert_eq!(scrub(&array.namespace, false), []);
            let slot = 1 + index % (members - 1);
            damage(&array.members[slot].join(&path[1..]));
            let found = scrub(&array.namespace, false);
            let is_known = members > 2;
            let expected =
                NameMismatch { path: path.as_bytes().to_vec(), slot, difference: difference.clone(), is_known, is_mended: false };
            // Of two members nothing says which is right: then the lowest counts, and what it lacks
            // is extra on the other.
            assert_eq!(found, [expected], "{level:?} {members}");
            let found = scrub(&array.namespace, true);
            assert_eq!(found.iter().map(|found| found.is_mended).collect::<Vec<_>>(), [*can_mend], "{difference:?}");
            assert_eq!(scrub(&array.namespace, false).is_empty(), *can_mend, "{difference:?}");
        }
    }
}

#[test]
fn a_removed_name_of_several_is_told_with_the_number_of_names() {
    let array = filled(Level::Raid5, 3);
    fs::remove_file(array.members[2].join("data/sub/linked")).unwrap();
    let found: Vec<_> = scrub(&array.namespace, true).into_iter().map(|found| (found.slot, found.difference)).collect();
    assert!(found.contains(&(2, Difference::Missing)) && found.contains(&(2, Difference::Links)), "{found:?}");
}

#[test]
fn a_backing_file_that_is_too_short_is_told() {
    let array = filled(Level::Raid5, 3);
    fs::File::options().write(true).open(array.members[1].join("data/file")).unwrap().set_len(4096).unwrap();
    let found = scrub(&array.namespace, true);
    assert!(found.iter().all(|found| found.slot == 1 && found.difference == Difference::Short && !found.is_mended), "{found:?}");
    assert_eq!(found.len(), 2, "the file has two names: {found:?}");
}

#[test]
fn a_scrub_beside_changes_of_names_sees_nothing_wrong() {
    for (level, members) in [(Level::Raid1, 2), (Level::Raid5, 3), (Level::Raid6, 4), (Level::Raid10, 4)] {
        let array = filled(level, members);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for seed in [5, 6u64] {
                let (names, done) = (array.namespace, &done);
                scope.spawn(move || {
                    let mut rng = Rng(seed);
                    let path = |rng: &mut Rng| format!("/data/{}{seed}-{}", ["", "sub/"][rng.below(2) as usize], rng.below(5));
                    while !done.load(Ordering::Relaxed) {
                        let (one, other) = (path(&mut rng), path(&mut rng));
                        let (one, other) = (one.as_bytes(), other.as_bytes());
                        // Most of these calls are refused, since what they name is not there, or is
                        // there already.
                        match rng.below(8) {
                            0 => drop(names.mkdir(one, 0o700)),
                            1 => drop(names.unlink(one)),
                            2 => drop(names.rmdir(one)),
                            3 => drop(names.rename(one, other, cxlraid_namespace::RenameFlags::empty())),
                            4 => drop(names.link(one, other, false)),
                            5 => drop(names.chmod(one, 0o600 + rng.below(0o177) as u32, true)),
                            _ => {
                                if let Ok(cxlraid_namespace::Reached::Array(opened)) = names.open(one, common::CREATE, 0o644)
                                    && let cxlraid_namespace::Node::File(_) = opened.node
                                {
                                    write(&opened, rng.below(5000), &[1; 3000]);
                                }
                            }
                        }
                    }
                });
            }
            for _ in 0..60 {
                let found = scrub(&array.namespace, false);
                if !found.is_empty() {
                    done.store(true, Ordering::Relaxed);
                }
                assert_eq!(found, [], "{level:?}");
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}

/// Who closes a file gives back space, by which the file on one member after the other is modified
/// for an instant.
#[test]
fn a_scrub_beside_closes_sees_nothing_wrong() {
    for (level, members) in [(Level::Raid1, 3), (Level::Raid5, 3)] {
        let array = filled(level, members);
        let done = AtomicBool::new(false);
        let early = Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
        let times = Timestamps { last_access: early, last_modification: early };
        let closes = || {
            while !done.load(Ordering::Relaxed) {
                let opened = create(array.namespace, "/data/closed");
                for at in 0..20 {
                    write(&opened, at * 9_000, &[1; 9_000]);
                }
                array.namespace.futimens(opened.anchor.as_fd(), &opened.node, &times).unwrap();
                drop(opened);
                inside(array.namespace.truncate(b"/data/closed", 0));
                array.namespace.utimens(b"/data/closed", &times, true).unwrap();
            }
        };
        thread::scope(|scope| {
            scope.spawn(closes);
            let found: Vec<_> = (0..1500).flat_map(|_| scrub(&array.namespace, false)).collect();
            done.store(true, Ordering::Relaxed);
            assert_eq!(found, [], "{level:?}");
        });
    }
}

#[test]
fn a_repair_of_the_owner_keeps_the_capabilities_of_a_file() {
    if !sys::rustix::process::geteuid().is_root() {
        eprintln!("NOT RUN: a_repair_of_the_owner_keeps_the_capabilities_of_a_file needs root");
        return;
    }
    // cap_net_bind_service, permitted and effective (VFS_CAP_REVISION_2).
    let mut capabilities = [0u8; 20];
    capabilities[..6].copy_from_slice(&[1, 0, 0, 2, 0, 4]);
    let name = c"security.capability";
    let attribute = || Difference::Attribute(name.to_bytes().to_vec());
    let array = filled(Level::Raid1, 3);
    let names = &array.namespace;
    inside(names.setxattr(b"/data/sub/other", name.to_bytes(), &capabilities, XattrFlags::empty(), true));
    let on = |slot: usize| array.members[slot].join("data/sub/other");
    let has = |slot: usize| common::raw_attribute(&on(slot), name.to_str().unwrap()).is_some_and(|value| value == capabilities);
    assert!((0..3).all(has));
    // The kernel takes a file's capabilities away when it gets another owner.
    chown(on(1), Some(1234), None).unwrap();
    assert!(!has(1));
    let differences =
        |found: Vec<NameMismatch>| found.into_iter().map(|found| (found.slot, found.difference)).collect::<Vec<_>>();
    assert_eq!(differences(scrub(names, false)), [(1, Difference::Owner), (1, attribute())]);
    assert!(scrub(names, true).iter().all(|found| found.is_mended));
    assert!((0..3).all(has));
    assert_eq!(scrub(names, false), []);
    // The owner of an orderly file on one member is another one again, with the capabilities.
    chown(on(1), Some(1234), None).unwrap();
    lsetxattr(on(1), name, &capabilities, XattrFlags::empty()).unwrap();
    assert_eq!(differences(scrub(names, true)), [(1, Difference::Owner)]);
    assert!((0..3).all(has));
    assert_eq!(scrub(names, false), []);
}
