//! Descriptors that lie on a lost member: a process that starts after the loss, and inherits them,
//! recognises what they stand for.

mod common;

use common::*;
use cxlraid_namespace::{AtFlags, Namespace, Node, OFlags, Opened, StatxFlags};
use file::Keep;
use layout::Level;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt as _;
use sync::{Liveness, OwnerId};
use sys::rustix::fs::{RenameFlags, XattrFlags};

/// The view of a process that starts now.
fn again(array: &TestArray) -> Namespace {
    array.attach_keeping(Keep::NOTHING)
}

/// The lowest member's directory is renamed: what was opened there stays open, and nobody finds the
/// member any more. Returns the view of a process that starts then.
fn lose_first(array: &TestArray) -> Namespace {
    std::fs::rename(&array.members[0], array.home.path().join("elsewhere")).unwrap();
    again(array)
}

/// What a process that has inherited the descriptor of `opened` finds it to be.
fn inherited(names: Namespace, opened: Opened) -> Opened {
    let node = names.adopt_anchor(opened.anchor.as_fd()).unwrap().expect("an anchor");
    Opened { node, ..opened }
}

#[test]
fn an_inherited_file_is_the_array_s_though_its_member_is_lost() {
    let array = TestArray::new();
    let opened = create(array.namespace, "/data/f");
    write(&opened, 0, &[7; 20_000]);
    let later = lose_first(&array);
    assert_eq!(later.logical_path_of(opened.anchor.as_fd()).unwrap().unwrap(), b"/data/f");
    let found = inherited(later, opened);
    assert_eq!(read(&found), [7; 20_000]);
    write(&found, 20_000, b"more");
    let by_name = inside(later.open(b"/data/f", OFlags::RDONLY, 0));
    assert_eq!(&read(&by_name)[20_000..], b"more");
}

#[test]
fn before_anybody_has_noticed_the_loss_paths_are_the_array_s() {
    let array = TestArray::new();
    let names = array.namespace;
    write(&create(names, "/data/f"), 0, &[7; 10]);
    let named = inside(names.open(b"/data/f", OFlags::PATH, 0));
    std::fs::rename(&array.members[0], array.home.path().join("elsewhere")).unwrap();
    assert_eq!(names.logical_path_of(named.anchor.as_fd()).unwrap().unwrap(), b"/data/f");
    assert_eq!(names.reopen(named.anchor.as_fd(), &named.node, OFlags::RDONLY, 0).map(|opened| read(&opened).len()), Ok(10));
}

#[test]
fn names_are_made_good_though_a_root_was_renamed_meanwhile() {
    for lost in 0..3 {
        let array = TestArray::new();
        let names = array.namespace;
        write(&create(names, "/data/f"), 0, &[7; 10]);
        assert!(names.setxattr(b"/data/f", b"user.a", b"1", XattrFlags::empty(), true).is_ok());
        // What a process leaves that dies before the last member.
        std::fs::create_dir(array.members[2].join("data/left")).unwrap();
        std::fs::rename(&array.members[lost], array.home.path().join("elsewhere")).unwrap();
        assert_eq!(names.recover(), Ok(3), "{lost}");
        let mut value = [0; 8];
        assert_eq!(inside(names.getxattr(b"/data/f", b"user.a", &mut value, true)), 1, "{lost}");
    }
}

#[test]
fn what_was_renamed_since_the_loss_is_found() {
    let array = TestArray::new();
    let opened = create(array.namespace, "/data/f");
    write(&opened, 0, b"this");
    let later = lose_first(&array);
    inside(later.mkdir(b"/data/d", 0o755));
    inside(later.rename(b"/data/f", b"/data/d/g", RenameFlags::empty()));
    let other = create(later, "/data/f");
    write(&other, 0, b"other");
    assert_eq!(read(&inherited(again(&array), opened)), b"this");
}

#[test]
fn directories_of_a_lost_member_have_their_logical_paths() {
    let array = TestArray::new();
    inside(array.namespace.mkdir(b"/data/d", 0o755));
    let opened = inside(array.namespace.open(b"/data/d", OFlags::RDONLY | OFlags::DIRECTORY, 0));
    let later = lose_first(&array);
    assert_eq!(later.logical_path_of(opened.anchor.as_fd()).unwrap().unwrap(), b"/data/d");
    assert!(matches!(later.adopt_anchor(opened.anchor.as_fd()), Ok(Some(Node::Directory(_)))));
    // The process that had it open before says so, too.
    assert_eq!(array.namespace.logical_path_of(opened.anchor.as_fd()).unwrap().unwrap(), b"/data/d");
    // What has the same name below another directory is not the array's.
    let host = array.home.path().join("other/data/d");
    std::fs::create_dir_all(&host).unwrap();
    let host = std::fs::File::open(host).unwrap();
    assert_eq!(later.logical_path_of(host.as_fd()), Ok(None));
}

/// A process that is not there any more.
struct Nobody;
impl Liveness for Nobody {
    fn is_alive(&self, _: OwnerId) -> bool {
        false
    }
}

/// A writer has died between its data and their parity; what others had stored in the same stripe
/// is there although their member is lost before anybody comes to that stripe.
#[test]
fn a_stripe_that_a_dead_writer_left_half_written_is_made_good_before_its_member_goes_out() {
    for (level, member_count) in [(Level::Raid5, 3), (Level::Raid6, 5), (Level::Raid5, 4)] {
        for lost in 0..member_count {
            let array = TestArray::with(level, member_count);
            let opened = create(array.namespace, "/data/f");
            let file = file_of(&opened);
            let stripe = file.geometry().stripe_bytes();
            let data: Vec<u8> = (0..2 * stripe).map(|at| (at / 7 % 251) as u8).collect();
            write(&opened, 0, &data);
            let place = file.geometry().locate(stripe);
            let slot = file.geometry().data_slot(place.stripe, place.column, 0);
            if slot == lost {
                continue;
            }
            let backing = std::fs::OpenOptions::new().write(true).open(array.members[slot].join("data/f")).unwrap();
            backing.write_at(&[0x5a; 100], file.geometry().member_offset(place.stripe)).unwrap();
            let attribute = file.attribute();
            let runtime = array.namespace.files().array().runtime();
            let shared = runtime.find_file(attribute.inode << 24 | attribute.generation).unwrap();
            for lock in &shared.stripes {
                let _ = lock.write_begin(OwnerId::new(5).unwrap(), &Nobody);
            }
            std::fs::rename(&array.members[lost], array.home.path().join("elsewhere")).unwrap();
            let later = again(&array);
            assert!(runtime.out().contains(lost));
            let found = read(&inside(later.open(b"/data/f", OFlags::RDONLY, 0)));
            let at = stripe as usize;
            assert!(found[..at] == data[..at] && found[at + 100..] == data[at + 100..], "RAID {level}, member {lost}");
            assert_eq!(found[at..at + 100], [0x5a; 100], "RAID {level}, member {lost}");
        }
    }
}

/// The same without a loss, by the first process that starts after the death.
#[test]
fn who_starts_after_a_death_makes_good_what_was_left_half_written() {
    let array = TestArray::new();
    let opened = create(array.namespace, "/data/f");
    let file = file_of(&opened);
    write(&opened, 0, &[7; 500_000]);
    let key = file.attribute().inode << 24 | file.attribute().generation;
    let runtime = array.namespace.files().array().runtime();
    let mut writer = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
    runtime.hold_for(writer.id(), key).unwrap();
    let place = file.geometry().locate(0);
    let slot = file.geometry().data_slot(place.stripe, place.column, 0);
    let backing = std::fs::OpenOptions::new().write(true).open(array.members[slot].join("data/f")).unwrap();
    backing.write_at(&[0x5a; 100], 0).unwrap();
    let _ = runtime.find_file(key).unwrap().stripes[0].write_begin(OwnerId::new(5).unwrap(), &Nobody);
    writer.kill().unwrap();
    writer.wait().unwrap();
    assert!(runtime.find_file(key).unwrap().stripes[0].owner().is_some());
    again(&array);
    assert_eq!(runtime.find_file(key).unwrap().stripes[0].owner(), None);
    assert_eq!(file.verify(), Ok(0));
}

#[test]
fn an_open_file_is_the_same_to_programs_over_a_loss() {
    let array = TestArray::new();
    let opened = create(array.namespace, "/data/f");
    let identity = |stat: sys::rustix::fs::Stat| (stat.st_dev, stat.st_ino);
    let before = identity(inside(array.namespace.stat(b"/data/f", true)));
    let later = lose_first(&array);
    for names in [array.namespace, later] {
        assert_eq!(identity(inside(names.stat(b"/data/f", true))), before);
        assert_eq!(identity(inside(names.stat(b"/data/f", true))), before);
        let flags = StatxFlags::BASIC_STATS;
        assert_eq!(inside(names.statx(b"/data/f", AtFlags::empty(), flags, true)).stx_ino, before.1);
    }
    assert_eq!(identity(array.namespace.fstat(opened.anchor.as_fd(), &opened.node).unwrap()), before);
    let again = inside(later.open(b"/data/f", OFlags::RDONLY, 0));
    assert_eq!(identity(later.fstat(again.anchor.as_fd(), &again.node).unwrap()), before);
}
