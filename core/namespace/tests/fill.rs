//! A member that was lost is made anew: names, tables and, once files are opened, every byte, so
//! that any other member may be lost next.

mod common;

use array::AttachError;
use common::changes::{assert_contents, change};
use common::*;
use cxlraid_namespace::{Content, FillError, OFlags, fill};
use layout::Level;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use units::MemberSet;

/// How a member was lost, and what lies in its place now.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Loss {
    /// A new device is mounted there.
    Replaced,
    /// It was away while the others changed.
    Stale,
    /// It was away, and its superblock cannot be read any more; its tree is gone.
    Damaged,
}

const LOSSES: [Loss; 3] = [Loss::Replaced, Loss::Stale, Loss::Damaged];

/// An array with something in it, and what its files hold.
struct Filled {
    array: TestArray,
    contents: BTreeMap<u64, Vec<u8>>,
    rng: Rng,
}

impl Filled {
    fn new(level: Level, member_count: usize, seed: u64) -> Self {
        let array = TestArray::with(level, member_count);
        let mut filled = Self { array, contents: BTreeMap::new(), rng: Rng(seed) };
        filled.change(150);
        filled
    }

    fn change(&mut self, count: u32) {
        for _ in 0..count {
            change(self.array.namespace, &mut self.rng, &mut self.contents);
        }
        assert_contents(&self.array, &self.contents);
    }

    /// Loses a member, changes the others, and puts there what the loss leaves.
    fn lose(&mut self, slot: usize, loss: Loss) {
        let (member, aside) = (self.array.members[slot].clone(), self.array.home.path().join(format!("aside{slot}")));
        fs::rename(&member, &aside).unwrap();
        self.array.restart();
        self.change(60);
        match loss {
            Loss::Replaced => fs::create_dir(&member).unwrap(),
            Loss::Stale => fs::rename(&aside, &member).unwrap(),
            Loss::Damaged => {
                fs::create_dir_all(member.join(".cxlraid")).unwrap();
                fs::write(member.join(".cxlraid/superblock"), [0x5a; 8192]).unwrap();
            }
        }
        self.end();
    }

    /// Ends the use of the array by this process.
    fn end(&self) {
        self.array.namespace.files().detach();
        self.array.namespace.files().array().abandon();
    }

    /// Opens every file for writing, as the command does that rebuilds.
    fn open_all(&self) {
        for (path, entry) in tree(&self.array.members[self.array.namespace.files().array().first_in_use().unwrap()]) {
            if entry.kind == '-' {
                let path = format!("/{}", path.display());
                inside(self.array.namespace.open(path.as_bytes(), OFlags::RDWR | OFlags::CLOEXEC, 0));
            }
        }
    }

    /// Moves members away, looks at everything, and brings them back.
    fn assert_bears(&mut self, lost: MemberSet) {
        self.end();
        let aside = |slot: usize| self.array.home.path().join(format!("lost{slot}"));
        for slot in lost.iter() {
            fs::rename(&self.array.members[slot], aside(slot)).unwrap();
        }
        self.array.restart();
        assert_eq!(self.array.namespace.files().array().runtime().out(), lost);
        assert_contents(&self.array, &self.contents);
        self.end();
        let aside = |slot: usize| self.array.home.path().join(format!("lost{slot}"));
        for slot in lost.iter() {
            fs::rename(aside(slot), &self.array.members[slot]).unwrap();
        }
        self.array.restart();
    }
}

/// When each name of a member was last written.
fn times(member: &Path) -> BTreeMap<std::path::PathBuf, i64> {
    let time = |path: &Path| member.join(path).symlink_metadata().unwrap();
    tree(member).into_keys().map(|path| (path.clone(), time(&path).mtime() * 1_000_000_000 + time(&path).mtime_nsec())).collect()
}

fn a_lost_member_is_made_anew(level: Level, member_count: usize, bears: u32) {
    for (round, loss) in LOSSES.into_iter().enumerate() {
        for slot in 0..member_count {
            let mut filled = Filled::new(level, member_count, 7919 * (slot as u64 + 1) + round as u64);
            filled.lose(slot, loss);
            fill(&filled.array.config, slot, Content::Anew).unwrap_or_else(|error| panic!("{level:?} {slot} {loss:?}: {error}"));
            filled.array.restart();
            let files = filled.array.namespace.files();
            assert!(files.array().runtime().out().is_empty(), "{level:?} {slot} {loss:?}");
            let waits = files.unbuilt().unwrap();
            assert!(!waits.is_empty() && waits.iter().all(|file| file.lost == MemberSet::EMPTY.with(slot)));
            // Before anything is computed, everything can be read.
            assert_contents(&filled.array, &filled.contents);
            filled.open_all();
            assert_eq!(files.unbuilt().unwrap(), []);
            files.array().end_rebuild(MemberSet::EMPTY.with(slot)).unwrap();
            let reference = times(&filled.array.members[usize::from(slot == 0)]);
            assert_eq!(times(&filled.array.members[slot]), reference);
            filled.change(30);
            // Bits set: the members that are lost next.
            for lost in 1..1u32 << member_count {
                if lost.count_ones() == bears {
                    filled.assert_bears(MemberSet::from_bits(lost));
                }
            }
        }
    }
}

#[test]
fn on_raid_1() {
    a_lost_member_is_made_anew(Level::Raid1, 2, 1);
}

#[test]
fn on_raid_5() {
    a_lost_member_is_made_anew(Level::Raid5, 3, 1);
}

#[test]
fn on_raid_6() {
    a_lost_member_is_made_anew(Level::Raid6, 4, 2);
}

#[test]
fn on_raid_10() {
    a_lost_member_is_made_anew(Level::Raid10, 4, 1);
}

#[test]
fn a_second_member_that_is_lost_before_the_first_is_rebuilt_is_not_given_up() {
    let mut filled = Filled::new(Level::Raid5, 3, 5);
    filled.lose(1, Loss::Replaced);
    fill(&filled.array.config, 1, Content::Anew).unwrap();
    // Nothing has been computed yet, and another member is missing at the next start: it has what
    // the rebuild needs, and must not become stale.
    let aside = filled.array.home.path().join("second");
    fs::rename(&filled.array.members[2], &aside).unwrap();
    let refused = array::Array::attach(&filled.array.config).map(drop).unwrap_err();
    assert!(matches!(refused, AttachError::TooManyOut { .. }), "{refused}");
    assert!(refused.to_string().contains("m1 rebuilding") && refused.to_string().contains("m2 missing"), "{refused}");
    fs::create_dir(&filled.array.members[2]).unwrap();
    let refused = fill(&filled.array.config, 2, Content::Anew).unwrap_err();
    assert!(matches!(refused, FillError::Attach(AttachError::TooManyOut { .. })), "{refused}");
    // The operator finds the device again: nothing is lost.
    fs::remove_dir(&filled.array.members[2]).unwrap();
    fs::rename(&aside, &filled.array.members[2]).unwrap();
    filled.array.restart();
    assert_contents(&filled.array, &filled.contents);
    filled.open_all();
    let files = filled.array.namespace.files();
    assert!(files.array().members()[1].is_rebuilding && files.unbuilt().unwrap().is_empty());
    files.array().end_rebuild(MemberSet::EMPTY.with(1)).unwrap();
    filled.assert_bears(MemberSet::EMPTY.with(2));
    filled.assert_bears(MemberSet::EMPTY.with(0));
}

#[test]
fn a_member_that_failed_while_another_was_out_is_stale_and_was_not_used_apart() {
    let mut filled = Filled::new(Level::Raid6, 4, 99);
    filled.lose(2, Loss::Stale);
    filled.lose(0, Loss::Stale);
    // The superblock of the first member still says that the third is out. The third is made anew,
    // with another UUID.
    fill(&filled.array.config, 2, Content::Anew).unwrap();
    filled.array.restart();
    assert_eq!(filled.array.namespace.files().array().runtime().out(), MemberSet::EMPTY.with(0));
    assert_contents(&filled.array, &filled.contents);
    filled.open_all();
    fill_at_rest(&mut filled, 0);
    assert_contents(&filled.array, &filled.contents);
}

/// What an attempt to bring a member back has not kept has a mark from then on: the next attempt
/// must not take for whole what this one has cut or made anew, whatever a clock says.
#[test]
fn what_an_attempt_did_not_keep_is_marked() {
    let mut filled = Filled::new(Level::Raid5, 3, 77);
    let (slot, members) = (2, filled.array.members.clone());
    filled.array.namespace.files().array().take_out(slot, |_| true, || ()).unwrap();
    filled.end();
    std::thread::sleep(std::time::Duration::from_millis(20));
    let number_of = |path: &Path| {
        let mut attribute = [0; format::ATTRIBUTE_BYTES];
        sys::rustix::fs::getxattr(members[0].join(path), format::ATTRIBUTE_NAME, &mut attribute[..]).ok()?;
        Some(format::Attribute::decode(&attribute).ok()?.inode)
    };
    let marked = |member: &Path| -> BTreeSet<u64> {
        let table = fs::read(member.join(".cxlraid/changed")).unwrap();
        let marks = table[format::CHANGED_MARKS_OFFSET as usize..].as_chunks().0.iter();
        (0..).zip(marks).filter(|(_, mark)| **mark == format::CHANGED).map(|(number, _)| number).collect()
    };
    // What lanes name may have been under way.
    let mut expected = marked(&members[0]);
    let is_kept = |path: &PathBuf| {
        members[slot].join(path).metadata().is_ok_and(|file| file.is_file() && file.len() > 8)
            && number_of(path).is_some_and(|number| !expected.contains(&number))
    };
    let by_hand = tree(&members[slot]).into_keys().find(is_kept).unwrap();
    let file = fs::File::options().write(true).open(members[slot].join(&by_hand)).unwrap();
    file.write_all_at(b"by hand", 1).unwrap();
    let number = number_of(&by_hand).unwrap();
    expected.insert(number);
    // The command that computes what is lost does not come any more.
    fill(&filled.array.config, slot, Content::Kept).unwrap();
    for member in &members[..slot] {
        assert_eq!(marked(member), expected, "{}", member.display());
    }
    filled.array.restart();
    let waits: BTreeSet<_> = filled.array.namespace.files().unbuilt().unwrap().iter().map(|file| file.attribute.inode).collect();
    assert!(waits.contains(&number) && waits.is_subset(&expected), "{waits:?} {expected:?}");
    filled.open_all();
    assert_contents(&filled.array, &filled.contents);
    filled.assert_bears(MemberSet::EMPTY.with(0));
}

/// Makes a member anew when nothing waits on another.
fn fill_at_rest(filled: &mut Filled, slot: usize) {
    filled.array.namespace.files().detach();
    filled.array.namespace.files().array().abandon();
    fs::remove_file(filled.array.segment()).unwrap();
    fill(&filled.array.config, slot, Content::Anew).unwrap();
    filled.array.restart();
    assert!(filled.array.namespace.files().array().runtime().out().is_empty());
}

#[test]
fn of_two_lost_members_one_is_made_anew_after_the_other() {
    let mut filled = Filled::new(Level::Raid6, 4, 77);
    filled.lose(0, Loss::Stale);
    filled.lose(2, Loss::Replaced);
    fill(&filled.array.config, 0, Content::Anew).unwrap();
    fill(&filled.array.config, 2, Content::Anew).unwrap();
    filled.array.restart();
    assert_contents(&filled.array, &filled.contents);
    filled.open_all();
    let files = filled.array.namespace.files();
    assert_eq!(files.unbuilt().unwrap(), []);
    files.array().end_rebuild(MemberSet::from_bits(0b101)).unwrap();
    filled.change(30);
    filled.assert_bears(MemberSet::from_bits(0b1010));
    filled.assert_bears(MemberSet::from_bits(0b0101));
}

#[test]
fn a_member_that_does_not_come_back_after_all_costs_no_file_anything() {
    let mut filled = Filled::new(Level::Raid5, 3, 23);
    filled.lose(1, Loss::Replaced);
    filled.array.restart();
    let files = filled.array.namespace.files();
    // What else the loss of the member has left to be made good.
    filled.open_all();
    let table = file::InodeTable::open(files.array(), false).unwrap();
    let is_doubtful = |file: &file::Unbuilt| {
        let record = table.load(files.array(), file.attribute.inode).unwrap().unwrap();
        record.flags & format::FLAG_DOUBTFUL != 0
    };
    // A rebuild comes as far as this, and then the new device fails.
    files.note_lost_everywhere(1, None).unwrap();
    let noted = files.unbuilt().unwrap();
    let before: Vec<bool> = noted.iter().map(is_doubtful).collect();
    assert!(before.contains(&false), "all {} files are doubtful before", before.len());
    filled.open_all();
    assert_eq!(files.unbuilt().unwrap(), []);
    assert_eq!(noted.iter().map(is_doubtful).collect::<Vec<_>>(), before);
    assert_contents(&filled.array, &filled.contents);
    filled.change(30);
}

#[test]
fn a_stale_member_that_a_file_needs_is_not_wiped() {
    let mut filled = Filled::new(Level::Raid5, 3, 24);
    filled.lose(2, Loss::Stale);
    filled.array.restart();
    let files = filled.array.namespace.files();
    filled.open_all();
    let attribute = files.with_bytes().unwrap()[0];
    let inode = attribute.inode;
    filled.end();
    // Somebody has cut the file's backing file on member 1.
    for member in &filled.array.members[..2] {
        let table = fs::File::options().read(true).write(true).open(member.join(".cxlraid/inodes")).unwrap();
        let mut bytes = [0; format::INODE_RECORD_BYTES];
        table.read_exact_at(&mut bytes, format::inode_record_offset(inode)).unwrap();
        let mut record = format::InodeRecord::decode(inode, &bytes).unwrap().unwrap();
        record.resync = Some(format::Resync { start: 0, end: record.size, lost: MemberSet::EMPTY.with(1) });
        table.write_all_at(&record.encode(inode), format::inode_record_offset(inode)).unwrap();
    }
    let member = filled.array.members[2].clone();
    let seen = || (tree(&member), fs::read(member.join(".cxlraid/superblock")).unwrap());
    let before = seen();
    let refused = fill(&filled.array.config, 2, Content::Anew).unwrap_err();
    assert!(matches!(refused, FillError::Unbuilt), "{refused}");
    assert!(before == seen(), "the member was changed");
}

#[test]
fn directories_of_others_are_refused_and_not_changed() {
    let mut filled = Filled::new(Level::Raid5, 3, 11);
    filled.lose(1, Loss::Replaced);
    let member = filled.array.members[1].clone();
    fs::write(member.join("somebody's"), "data").unwrap();
    let refused = fill(&filled.array.config, 1, Content::Anew).unwrap_err();
    assert!(matches!(refused, FillError::Attach(AttachError::NotEmpty { .. })), "{refused}");
    assert_eq!(fs::read(member.join("somebody's")).unwrap(), b"data");
    assert!(!member.join(".cxlraid").exists());
    let refused = fill(&filled.array.config, 0, Content::Anew).unwrap_err();
    assert!(matches!(refused, FillError::Attach(AttachError::InSync { .. })), "{refused}");
    let _ = fs::remove_file(filled.array.segment());
    // While a program uses the array.
    filled.array.restart();
    let refused = fill(&filled.array.config, 1, Content::Anew).unwrap_err();
    assert!(matches!(refused, FillError::InUse | FillError::Attach(_)), "{refused}");
}

/// A directory is moved below another one, so that no path of its names is one that the kernel
/// takes. A member that is made anew has these names too.
#[test]
fn names_deeper_than_a_path_may_be_come_to_a_new_member() {
    let mut array = TestArray::with(Level::Raid5, 3);
    let names = array.namespace;
    let deep = |top: &str| {
        let path = (0..8).map(|_| "n".repeat(255)).fold(format!("/data/{top}"), |path, name| {
            inside(names.mkdir(path.as_bytes(), 0o755));
            format!("{path}/{name}")
        });
        inside(names.mkdir(path.as_bytes(), 0o755));
        path
    };
    let (above, below) = (deep("above"), deep("below"));
    write(&create(names, &format!("{below}/file")), 0, &[7; 20_000]);
    let moved = format!("{above}/moved");
    inside(names.rename(b"/data/below", moved.as_bytes(), cxlraid_namespace::RenameFlags::empty()));
    fs::rename(&array.members[2], array.home.path().join("lost")).unwrap();
    fs::create_dir(&array.members[2]).unwrap();
    array.namespace.files().detach();
    array.namespace.files().array().abandon();
    fill(&array.config, 2, Content::Anew).unwrap();
    array.namespace = array.attach_keeping(file::Keep::NOTHING);
    let names = array.namespace;
    let deep_file = format!("{moved}{}/file", &below["/data/below".len()..]);
    // As of a program: the kernel takes no such path.
    assert_eq!(refused(names.open(deep_file.as_bytes(), OFlags::RDWR, 0)), sys::OsError::NAMETOOLONG);
    inside(names.rename(moved.as_bytes(), b"/data/below", cxlraid_namespace::RenameFlags::empty()));
    let opened = inside(names.open(format!("{below}/file").as_bytes(), OFlags::RDWR, 0));
    assert_eq!(read(&opened), [7; 20_000]);
    assert!(array.members[2].join(&below[1..]).join("file").exists());
    assert_eq!(file_of(&opened).verify(), Ok(0));
}
