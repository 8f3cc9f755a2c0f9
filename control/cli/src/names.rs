//! What `cxlraid status` says of names: files of the array that have no name on one member, or
//! something else in their place.
//!
//! No start looks at all names. If the lowest member lacks a name, a program that uses the name
//! goes on without that member, or is refused if the others cannot do without it. If another member
//! lacks it, the file is made there anew from the others. Until then the file has less redundancy
//! than it should. So the array is degraded, although a start finds every member in sync.
//!
//! Directories are listed, and nothing is locked or changed. Programs may change names meanwhile:
//! what differs is looked at once more after a while in which every change has reached all members.

use crate::view::{ArrayView, MemberView};
use format::{Attribute, INODE_RECORD_BYTES, InodeRecord, inode_record_offset};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, FileType},
    os::unix::{ffi::OsStrExt as _, fs::FileExt as _},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};
use sys::{OsError, rustix::fs::lgetxattr};

/// After so many names of each member no more are looked at: `status` is to answer soon, also for
/// an array of millions.
const NAME_COUNT_MAX: usize = 100_000;
/// Differences that are looked at a second time at most.
const DIFFERENCE_COUNT_MAX: usize = 1_000;
/// A change of names reaches all members within this time, if its process is not kept from running.
const CHANGE: Duration = Duration::from_millis(50);

/// What was found.
struct Comparison {
    /// Paths below a member that differ in whether a file is there, in order.
    differing: Vec<PathBuf>,
    is_whole: bool,
}

/// Notes of the members that work which names of files they lack.
pub(crate) fn note(view: &mut ArrayView) {
    let works = |member: &&MemberView| member.state.works();
    let roots: Vec<PathBuf> = view.members.iter().filter(works).map(|member| PathBuf::from(&member.path)).collect();
    let Comparison { mut differing, is_whole } = compare(&roots, NAME_COUNT_MAX);
    if !differing.is_empty() {
        thread::sleep(CHANGE);
        differing.retain(|path| holds_file_somewhere(&roots, path));
    }
    let counts: Vec<NameCounts> =
        if differing.is_empty() { Vec::new() } else { roots.iter().map(|root| name_counts(&roots, root)).collect() };
    for (slot, member) in view.members.iter_mut().filter(|member| member.state.works()).enumerate() {
        let lost: Vec<&PathBuf> = differing.iter().filter(|path| lacks(slot, &roots, path, &counts)).collect();
        let Some(example) = lost.first() else { continue };
        let what = match lost.len() {
            1 => "a name that others have".to_owned(),
            count => format!("{count} names that others have, such as"),
        };
        let path = Path::new("/").join(example);
        let text =
            format!("lacks {what}: {}; a program that uses it restores it, or goes on without this member", path.display());
        let text = text.replace("such as:", "such as");
        member.note = Some(member.note.take().map_or(text.clone(), |note| format!("{note}; {text}")));
        member.names_lost = lost.len();
    }
    view.names_compared = is_whole;
}

/// Looks at all directories that every member has.
fn compare(roots: &[PathBuf], count_max: usize) -> Comparison {
    let (mut differing, mut pending, mut count) = (Vec::new(), vec![PathBuf::new()], 0);
    while let Some(directory) = pending.pop() {
        let lists: Option<Vec<_>> =
            roots.iter().map(|root| listed(&root.join(&directory), directory.as_os_str().is_empty())).collect();
        // What this user may not see is not judged, nor what is gone by now.
        let Some(lists) = lists else { continue };
        count += lists.iter().map(BTreeMap::len).max().unwrap_or(0);
        if count > count_max || differing.len() >= DIFFERENCE_COUNT_MAX {
            return Comparison { differing, is_whole: false };
        }
        let names: BTreeSet<_> = lists.iter().flat_map(BTreeMap::keys).collect();
        for name in names {
            let path = directory.join(name);
            let kinds = || lists.iter().map(|list| list.get(name));
            if kinds().all(|kind| kind.is_some_and(FileType::is_dir)) {
                pending.push(path);
            } else if !kinds().all(|kind| kind.is_some_and(FileType::is_file)) && holds_file_somewhere(roots, &path) {
                differing.push(path);
            }
        }
    }
    differing.sort();
    Comparison { differing, is_whole: true }
}

/// The names in a directory and their kinds; None if it cannot be read.
fn listed(directory: &Path, is_root: bool) -> Option<BTreeMap<std::ffi::OsString, FileType>> {
    let mut names = BTreeMap::new();
    for entry in fs::read_dir(directory).ok()? {
        let entry = entry.ok()?;
        let is_own = is_root && matches!(entry.file_name().as_bytes(), b".cxlraid" | b"lost+found");
        if !is_own {
            names.insert(entry.file_name(), entry.file_type().ok()?);
        }
    }
    Some(names)
}

/// Whether a member has a file of the array at a path, or below it.
fn holds_file_somewhere(roots: &[PathBuf], path: &Path) -> bool {
    roots.iter().any(|root| holds_file(roots, &root.join(path)))
}

fn holds_file(roots: &[PathBuf], place: &Path) -> bool {
    any_file(roots, place, &mut |_| true)
}

/// Whether a file of the array at a place on a member, or below it, is one that `is_wanted`. That
/// function is told which file it is, or None if the file's attribute is damaged: a damaged
/// attribute proves as well that there is a file.
fn any_file(roots: &[PathBuf], place: &Path, is_wanted: &mut dyn FnMut(Option<Attribute>) -> bool) -> bool {
    let Ok(kind) = fs::symlink_metadata(place).map(|metadata| metadata.file_type()) else { return false };
    if kind.is_file() {
        let mut value = [0u8; 64];
        let attribute = match lgetxattr(place, format::ATTRIBUTE_NAME, &mut value) {
            Ok(bytes) => Attribute::decode(&value[..bytes]).ok(),
            Err(OsError::RANGE) => None,
            Err(_) => return false,
        };
        return attribute.is_none_or(|attribute| is_known(roots, attribute)) && is_wanted(attribute);
    }
    let entries = || fs::read_dir(place).into_iter().flatten().flatten();
    kind.is_dir() && entries().any(|entry| any_file(roots, &entry.path(), is_wanted))
}

/// How many names each file has on a member, by inode number and generation.
type NameCounts = BTreeMap<(u64, u64), u32>;

/// Counts the names of files in the tree of the member `root`.
fn name_counts(roots: &[PathBuf], root: &Path) -> NameCounts {
    let mut counts = NameCounts::new();
    let mut count = |attribute| {
        if let Some(Attribute { inode, generation }) = attribute {
            *counts.entry((inode, generation)).or_default() += 1;
        }
        false
    };
    for name in listed(root, true).unwrap_or_default().keys() {
        any_file(roots, &root.join(name), &mut count);
    }
    counts
}

/// Whether a member's inode table has the file to which an attribute belongs, or no table can be
/// read. A backing file that was put back after the array had removed the file is known to none:
/// nobody lacks it.
fn is_known(roots: &[PathBuf], attribute: Attribute) -> bool {
    let mut records = roots.iter().filter_map(|root| record(root, attribute.inode)).peekable();
    records.peek().is_none()
        || records.any(|record| match InodeRecord::decode_version_1(attribute.inode, &record) {
            Ok(found) => found.is_some_and(|found| found.generation == attribute.generation),
            Err(_) => true,
        })
}

/// The bytes of an inode's record in a member's table; zeros, as in a free record, if the table
/// ends before it. None if the table cannot be read.
fn record(root: &Path, inode: u64) -> Option<[u8; INODE_RECORD_BYTES]> {
    let table = crate::inspect::open_regular(&root.join(".cxlraid/inodes")).ok()?;
    let mut bytes = [0; INODE_RECORD_BYTES];
    match table.read_exact_at(&mut bytes, inode_record_offset(inode)) {
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Some([0; INODE_RECORD_BYTES]),
        read => read.ok().map(|()| bytes),
    }
}

/// Whether member `slot` has not what others have at a path at which a file of the array is. A file
/// that has as many names on this member as on the others has been renamed: no name is lost.
fn lacks(slot: usize, roots: &[PathBuf], path: &Path, counts: &[NameCounts]) -> bool {
    let kind = |root: &Path| fs::symlink_metadata(root.join(path)).ok().map(|metadata| metadata.file_type());
    let own = kind(&roots[slot]);
    let is_like = |other: FileType| own.is_some_and(|own| own.is_file() == other.is_file() && own.is_dir() == other.is_dir());
    let has_more = |other: usize, attribute: Option<Attribute>| {
        attribute.is_none_or(|Attribute { inode, generation }| {
            let count = |slot: usize| counts[slot].get(&(inode, generation));
            count(other) > count(slot)
        })
    };
    !holds_file(roots, &roots[slot].join(path))
        && (0..roots.len()).any(|other| {
            kind(&roots[other]).is_some_and(|kind| !is_like(kind))
                && any_file(roots, &roots[other].join(path), &mut |attribute| has_more(other, attribute))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::rustix::fs::{XattrFlags, lsetxattr};

    /// Two members with the same files of an array: f, d/g and d/e/h.
    fn members(home: &Path) -> Vec<PathBuf> {
        let roots = ["m0", "m1"].map(|name| home.join(name));
        for root in &roots {
            fs::create_dir_all(root.join("d/e")).unwrap();
            fs::create_dir(root.join(".cxlraid")).unwrap();
            for file in ["f", "d/g", "d/e/h"] {
                fs::write(root.join(file), "").unwrap();
                lsetxattr(root.join(file), format::ATTRIBUTE_NAME, &[1], XattrFlags::empty()).unwrap();
            }
        }
        fs::write(home.join("m0/.cxlraid/aside-1"), "").unwrap();
        roots.into()
    }

    #[test]
    fn what_a_member_lacks_is_found_and_what_proves_nothing_is_not() {
        let home = tempfile::tempdir_in("/dev/shm").unwrap();
        let roots = members(home.path());
        let differing = || compare(&roots, 100).differing;
        // Directories, symlinks and files that are none of the array's.
        fs::create_dir(roots[0].join("empty")).unwrap();
        std::os::unix::fs::symlink("f", roots[1].join("link")).unwrap();
        fs::write(roots[1].join("d/plain"), "").unwrap();
        assert!(differing().is_empty());
        fs::remove_file(roots[0].join("f")).unwrap();
        fs::remove_dir_all(roots[1].join("d/e")).unwrap();
        assert_eq!(differing(), [PathBuf::from("d/e"), PathBuf::from("f")]);
        let counts: Vec<NameCounts> = roots.iter().map(|root| name_counts(&roots, root)).collect();
        let lacks_it = |slot: usize, path: &str| lacks(slot, &roots, Path::new(path), &counts);
        assert_eq!([lacks_it(0, "f"), lacks_it(1, "f")], [true, false]);
        assert_eq!([lacks_it(0, "d/e"), lacks_it(1, "d/e")], [false, true]);
        // Something else in its place.
        fs::create_dir(roots[0].join("f")).unwrap();
        assert_eq!([lacks_it(0, "f"), lacks_it(1, "f")], [true, false]);
    }

    #[test]
    fn a_file_that_was_removed_or_renamed_is_lacked_by_nobody() {
        let home = tempfile::tempdir_in("/dev/shm").unwrap();
        let roots = members(home.path());
        let put_back = |generation| {
            let value = Attribute { inode: 2, generation }.encode();
            fs::write(roots[1].join("back"), "").unwrap();
            lsetxattr(roots[1].join("back"), format::ATTRIBUTE_NAME, &value, XattrFlags::empty()).unwrap();
        };
        put_back(7);
        // Without tables nothing says that it was removed.
        assert_eq!(compare(&roots, 100).differing, [PathBuf::from("back")]);
        let slots = units::MemberSet::first(2);
        let shape = format::Shape::new(layout::Level::Raid1, units::ChunkBytes::new(4096).unwrap(), slots, 0).unwrap();
        let mut table = vec![0u8; inode_record_offset(2) as usize];
        table.extend(InodeRecord::new(7, shape).encode(2));
        roots.iter().for_each(|root| fs::write(root.join(".cxlraid/inodes"), &table).unwrap());
        assert_eq!(compare(&roots, 100).differing, [PathBuf::from("back")]);
        // Under that other name the array has it.
        let counts = || roots.iter().map(|root| name_counts(&roots, root)).collect::<Vec<_>>();
        assert!(lacks(0, &roots, Path::new("back"), &counts()));
        let value = Attribute { inode: 2, generation: 7 }.encode();
        lsetxattr(roots[0].join("f"), format::ATTRIBUTE_NAME, &value, XattrFlags::empty()).unwrap();
        assert!(!lacks(0, &roots, Path::new("back"), &counts()));
        put_back(6);
        assert!(compare(&roots, 100).differing.is_empty());
        // The tables end before its record, as where no file has so high a number.
        roots.iter().for_each(|root| fs::write(root.join(".cxlraid/inodes"), &table[..4096]).unwrap());
        assert!(compare(&roots, 100).differing.is_empty());
    }

    #[test]
    fn no_more_names_are_looked_at_than_permitted() {
        let home = tempfile::tempdir_in("/dev/shm").unwrap();
        let roots = members(home.path());
        assert!(compare(&roots, 5).is_whole);
        assert!(!compare(&roots, 4).is_whole);
    }
}
