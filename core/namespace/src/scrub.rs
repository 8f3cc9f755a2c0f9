//! A scrub of names: what the members have in one directory is compared, name by name, while
//! programs make changes.
//!
//! Changes of names are made on all members under the namespace lock. So while a scrub holds that
//! lock, the members' names, modes, owners, targets, extended attributes, numbers of links and the
//! inodes of files must agree. The lock is held for a few names at a time.
//!
//! Of each property the value that most members have counts. If no value has a majority, as between
//! two members that differ, nothing says which is right; then the value of the lowest member
//! counts, since programs see that. Some properties are not compared: a directory's times, which
//! each member's kernel sets by its own clock; the times of files that are open; differences of
//! file times below [`TIME_TOLERANCE_NS`], since they come of clocks, too; and times of access,
//! which the lowest member alone has. Nor are the length and the times of a file compared on a
//! member on which it waits to be rebuilt: the rebuild gives them back.
//!
//! Mending gives modes, owners, extended attributes and file times the values that count. A scrub
//! never makes or removes names: a file that a member lacks has lost its bytes, and a rebuild of
//! the member gives them back.

use crate::Namespace;
use crate::located::{Located, names_in, open_below};
use crate::recover::{Item, xattrs};
use crate::resolve::join;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use dax::Access;
use file::{BackingFds, FileRef};
use format::Attribute;
use sys::rustix::fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, utimensat};
use sys::{AsFd, OsError, Result};
use units::{MemberSet, Slot};

/// How many names are compared under one hold of the namespace lock.
const BATCH_COUNT: usize = 16;
/// Members make the same change one after the other, so the times that they note may be this far
/// apart.
pub const TIME_TOLERANCE_NS: i128 = 1_000_000_000;
/// How often what differs is looked at again: a backing file that is too short for the size may be
/// about to grow, and a close may be giving back space.
const LOOK_COUNT: u32 = 3;

/// In what a member differs from what counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Difference {
    /// The member has nothing there.
    Missing,
    /// The member has something there that the others have not.
    Extra,
    /// The member has something of another kind there: a directory for a file, say, or another
    /// device.
    Kind,
    /// The member has another inode's file there.
    File,
    /// A symlink leads elsewhere.
    Target,
    /// Permission bits.
    Mode,
    /// Owner or group.
    Owner,
    /// The number of names.
    Links,
    /// An extended attribute, by its name.
    Attribute(Vec<u8>),
    /// The time of the last modification.
    Modified,
    /// The backing file is too short for the file's size.
    Short,
}

/// A name that members have differently.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NameMismatch {
    /// The logical path.
    pub path: Vec<u8>,
    /// The member that differs.
    pub slot: Slot,
    /// In what the member differs.
    pub difference: Difference,
    /// Whether most members say otherwise. If not, nothing says which is right.
    pub is_known: bool,
    /// Whether the member was given what counts.
    pub is_mended: bool,
}

/// A name in a directory, as programs are shown it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scanned {
    /// The logical path.
    pub path: Vec<u8>,
    /// What has this name.
    pub kind: FileType,
    /// The attribute of a file of the array.
    pub attribute: Option<Attribute>,
}

/// What one member has of a name.
struct Own {
    slot: Slot,
    item: Option<Item>,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// What members have of a name; whether a process had the file open before they were looked at or
/// after; and the members on which the file waits to be rebuilt.
struct Owns {
    owns: Vec<Own>,
    is_open: bool,
    lost: MemberSet,
}

/// Of the members that have a name, those that have the same thing there as most: what it is, and
/// what each has.
struct Alike<'a> {
    kind: FileType,
    attribute: Option<Attribute>,
    members: Vec<(&'a Own, &'a Item)>,
}

impl Namespace {
    /// Compares what members in use have at a path, and tells what programs are shown there; None
    /// if no member has anything.
    ///
    /// # Errors
    /// What the kernel says where this process may not look.
    pub fn scrub_name(&self, path: &[u8], repair: bool, found: &mut dyn FnMut(NameMismatch)) -> Result<Option<Scanned>> {
        self.locked(|whole| {
            whole?;
            self.scrub_held(path, repair, found)
        })
    }

    /// Compares what members in use have in a directory, and tells what programs are shown there.
    ///
    /// # Errors
    /// As for [`Self::scrub_name`], for the first name that cannot be looked at; the others are
    /// compared all the same.
    pub fn scrub_directory(
        &self,
        directory: &[u8],
        repair: bool,
        found: &mut dyn FnMut(NameMismatch),
        scanned: &mut dyn FnMut(Scanned),
    ) -> Result<()> {
        let names: Vec<Vec<u8>> = self
            .locked(|whole| {
                whole?;
                let mut names = BTreeSet::new();
                for slot in self.array().in_use().iter() {
                    match names_in(self.root(slot)?, &directory[1..]) {
                        Err(OsError::NOENT | OsError::NOTDIR | OsError::LOOP) => {}
                        own => names.extend(own?),
                    }
                }
                Ok(names)
            })?
            .into_iter()
            .filter(|name| !self.hides(directory, name))
            .collect();
        let mut result = Ok(());
        for batch in names.chunks(BATCH_COUNT) {
            let seen = self.locked(|whole| {
                whole?;
                Ok(batch.iter().map(|name| self.scrub_held(&join(directory, name), repair, found)).collect::<Vec<_>>())
            })?;
            for seen in seen {
                match seen {
                    Ok(seen) => seen.into_iter().for_each(&mut *scanned),
                    Err(error) => result = result.and(Err(error)),
                }
            }
        }
        result
    }

    /// Gives all members the log of names of the one that has the most whole records, where logs
    /// differ.
    ///
    /// # Errors
    /// What the kernel says of a member.
    pub fn equalise_log(&self) -> Result<()> {
        self.locked(|whole| {
            whole?;
            let (log, in_use) = (self.log()?, self.array().in_use());
            let count = |slot: &Slot| log.read(MemberSet::EMPTY.with(*slot)).len();
            // Of members that have as many records the lowest is taken.
            let Some(reference) = in_use.iter().collect::<Vec<_>>().into_iter().rev().max_by_key(count) else { return Ok(()) };
            in_use.without(reference).iter().try_for_each(|slot| self.files().copy_name_log(reference, slot))
        })
    }

    /// Opens a file so that nothing that waits there is made good: no resync, and no bytes that
    /// members have lost. Unless it is opened `for_writing`, its backing files are opened for
    /// reading only, as by a user who may not write to them.
    ///
    /// # Errors
    /// `NOENT` if the file has not this name any more; what the kernel says.
    pub fn open_as_it_is(&self, path: &[u8], attribute: Attribute, for_writing: bool) -> Result<FileRef> {
        let (wanted, access) = if for_writing { (OFlags::RDWR, Access::ReadWrite) } else { (OFlags::RDONLY, Access::ReadOnly) };
        let backing = || {
            let mut fds: BackingFds = Vec::new();
            fds.resize_with(self.array().members().len(), || None);
            for slot in self.array().in_use().iter() {
                let flags = wanted | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                let fd = open_below(self.root(slot)?, &path[1..], flags, Mode::empty())?;
                if !self.is_bound(slot, &fd, attribute)? {
                    return Err(OsError::NOENT);
                }
                fds[slot] = Some(fd);
            }
            Ok((fds, access))
        };
        self.files().open_as_it_is(attribute, for_writing, backing)
    }

    /// Does what [`Self::scrub_name`] does. The namespace lock is held.
    fn scrub_held(&self, path: &[u8], repair: bool, found: &mut dyn FnMut(NameMismatch)) -> Result<Option<Scanned>> {
        let Owns { owns, is_open, lost } = self.owns_of(path)?;
        let is_there = |own: &Own| own.item.is_some();
        if !owns.iter().any(is_there) {
            // The name went since the directory was listed.
            return Ok(None);
        }
        let mut tell = |slot, difference, is_known, is_mended| {
            found(NameMismatch { path: path.to_vec(), slot, difference, is_known, is_mended });
        };
        let (exists, is_known) = counting(&owns, is_there);
        for own in owns.iter().filter(|own| is_there(own) != exists) {
            tell(own.slot, if exists { Difference::Missing } else { Difference::Extra }, is_known, false);
        }
        for (slot, difference, is_known) in identities(&there(&owns)) {
            tell(slot, difference, is_known, false);
        }
        let Alike { kind, attribute, members } = alike(&owns);
        for (own, item, difference, reference, is_known) in properties(&members, is_open, lost) {
            let mended = repair && self.equalise_property(path, own.slot, item, reference, &difference).is_ok();
            tell(own.slot, difference, is_known, mended);
        }
        if let Some(attribute) = attribute.filter(|_| kind == FileType::RegularFile) {
            for slot in self.short(path, attribute, &members)?.iter() {
                tell(slot, Difference::Short, true, false);
            }
        }
        let lowest =
            there(&owns).first().map(|(_, item)| Scanned { path: path.to_vec(), kind: item.kind, attribute: item.attribute });
        Ok(lowest)
    }

    /// What the members in use have of a name.
    ///
    /// Who closes a file last gives back the space that growth took in advance, which changes the
    /// file's time, and perhaps its mode, on one member after the other, for an instant, in which
    /// the file counts as closed. So what differs is looked at again, once such a close has ended.
    fn owns_of(&self, path: &[u8]) -> Result<Owns> {
        let mut was_open = false;
        for look in 0.. {
            let owns = self.array().in_use().iter().map(|slot| self.own_of(slot, path)).collect::<Result<Vec<_>>>()?;
            let (attribute, differs, is_open, lost) = {
                let Alike { attribute, members, .. } = alike(&owns);
                let is_open = was_open || attribute.is_some_and(|attribute| self.files().is_open(attribute));
                let lost = attribute.map_or(MemberSet::EMPTY, |attribute| self.files().lost_by(attribute));
                (attribute, !properties(&members, is_open, lost).is_empty(), is_open, lost)
            };
            if !differs || look == LOOK_COUNT {
                return Ok(Owns { owns, is_open, lost });
            }
            was_open = attribute.is_some_and(|attribute| self.files().is_open_after_closes(attribute));
        }
        Err(OsError::AGAIN)
    }

    fn own_of(&self, slot: Slot, path: &[u8]) -> Result<Own> {
        let item = match self.item(slot, path) {
            Ok(item) => Some(item),
            Err(OsError::NOENT | OsError::NOTDIR | OsError::LOOP) => None,
            Err(error) => return Err(error),
        };
        let mut attributes = BTreeMap::new();
        if item.as_ref().is_some_and(|item| item.kind != FileType::Symlink) {
            attributes = xattrs(&Located::below(self.root(slot)?.as_fd(), &path[1..])?.path())?;
        }
        Ok(Own { slot, item, attributes })
    }

    /// The members whose backing files are too short, and do not wait to be rebuilt.
    fn short(&self, path: &[u8], attribute: Attribute, alike: &[(&Own, &Item)]) -> Result<MemberSet> {
        let mut bytes: Vec<(Slot, u64)> = alike.iter().map(|(own, item)| (own.slot, item.stat.st_size as u64)).collect();
        for look in 0.. {
            // The file's record may be damaged on all members: then the file cannot be opened,
            // which is told elsewhere.
            let Ok(wanted) = self.files().backing_bytes(attribute) else { return Ok(MemberSet::EMPTY) };
            let short: MemberSet = bytes.iter().filter(|(_, bytes)| *bytes < wanted).map(|&(slot, _)| slot).collect();
            let short = short.minus(self.files().lost_by(attribute));
            if short.is_empty() || look == LOOK_COUNT {
                return Ok(short);
            }
            for (slot, bytes) in &mut bytes {
                *bytes = Located::below(self.root(*slot)?.as_fd(), &path[1..])?.stat()?.st_size as u64;
            }
        }
        Ok(MemberSet::EMPTY)
    }

    fn equalise_property(&self, path: &[u8], slot: Slot, own: &Item, reference: (Slot, &Item), what: &Difference) -> Result<()> {
        self.array().before_change()?;
        match what {
            Difference::Attribute(name) if own.kind != FileType::Symlink => {
                self.equalise_with(reference.0, path, slot, path, reference.1)?;
                let values = [slot, reference.0]
                    .map(|slot| Ok(xattrs(&Located::below(self.root(slot)?.as_fd(), &path[1..])?.path())?.remove(name)));
                let [own, wanted] = values;
                // A file's capabilities may be left as they are.
                if own? == wanted? { Ok(()) } else { Err(OsError::PERM) }
            }
            Difference::Mode | Difference::Owner if own.kind != FileType::Symlink => {
                self.equalise_with(reference.0, path, slot, path, reference.1)
            }
            Difference::Owner => self.equalise_with(reference.0, path, slot, path, reference.1),
            Difference::Modified => {
                let stat = &reference.1.stat;
                let times = Timestamps {
                    last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                    last_modification: Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec as i64 },
                };
                let at = Located::below(self.root(slot)?.as_fd(), &path[1..])?;
                utimensat(at.directory(), at.name(), &times, AtFlags::SYMLINK_NOFOLLOW)
            }
            _ => Err(OsError::OPNOTSUPP),
        }
    }
}

/// The value that most members have, and true. If no value has a majority: the lowest member's
/// value, and false. At least one member is asked.
fn counting<T, V: PartialEq>(owns: &[T], value: impl Fn(&T) -> V) -> (V, bool) {
    let is_most = |own: &&T| {
        let own = value(own);
        2 * owns.iter().filter(|other| value(other) == own).count() > owns.len()
    };
    match owns.iter().find(is_most) {
        Some(own) => (value(own), true),
        None => (value(&owns[0]), false),
    }
}

/// The members that have a name.
fn there(owns: &[Own]) -> Vec<(&Own, &Item)> {
    owns.iter().filter_map(|own| Some((own, own.item.as_ref()?))).collect()
}

fn alike(owns: &[Own]) -> Alike<'_> {
    let there = there(owns);
    if there.is_empty() {
        return Alike { kind: FileType::Unknown, attribute: None, members: there };
    }
    let (kind, _) = counting(&there, |(_, item)| item.kind);
    let (attribute, _) = counting(&there, |(_, item)| item.attribute);
    let members = there.into_iter().filter(|(_, item)| item.kind == kind && item.attribute == attribute).collect();
    Alike { kind, attribute, members }
}

/// The differences by which members have different things at one name: in kind, file or target.
fn identities(there: &[(&Own, &Item)]) -> Vec<(Slot, Difference, bool)> {
    let mut found = Vec::new();
    let (kind, is_known) = counting(there, |(_, item)| (item.kind, item.stat.st_rdev));
    for (own, item) in there {
        if (item.kind, item.stat.st_rdev) != kind {
            found.push((own.slot, Difference::Kind, is_known));
        }
    }
    let same: Vec<(&Own, &Item)> = there.iter().copied().filter(|(_, item)| (item.kind, item.stat.st_rdev) == kind).collect();
    let (file, is_known) = counting(&same, |(_, item)| item.attribute);
    found.extend(same.iter().filter(|(_, item)| item.attribute != file).map(|(own, _)| (own.slot, Difference::File, is_known)));
    let (target, is_known) = counting(&same, |(_, item)| &item.target);
    let other = same.iter().filter(|(_, item)| item.target != *target);
    found.extend(other.map(|(own, _)| (own.slot, Difference::Target, is_known)));
    found
}

/// A property in which a member differs: the member, what it has at the name, the difference, a
/// member that has the value which counts, and whether most members have that value.
type Property<'a> = (&'a Own, &'a Item, Difference, (Slot, &'a Item), bool);

/// What a member has of a property.
type Value<'v> = &'v dyn Fn(&Own, &Item) -> Option<Vec<u8>>;

fn properties<'a>(alike: &[(&'a Own, &'a Item)], is_open: bool, lost: MemberSet) -> Vec<Property<'a>> {
    let mut found = Vec::new();
    let Some((_, first)) = alike.first() else { return found };
    let mut compare_of = |members: &[(&'a Own, &'a Item)], value: Value<'_>, difference: Difference| {
        let (right, is_known) = counting(members, |(own, item)| value(own, item));
        let Some(&(reference, reference_item)) = members.iter().find(|(own, item)| value(own, item) == right) else { return };
        for &(own, item) in members.iter().filter(|(own, item)| value(own, item) != right) {
            found.push((own, item, difference.clone(), (reference.slot, reference_item), is_known));
        }
    };
    let mut compare = |value: Value<'_>, difference: Difference| compare_of(alike, value, difference);
    let bytes = |value: u64| Some(value.to_le_bytes().to_vec());
    if first.kind != FileType::Symlink {
        compare(&|_, item| bytes(u64::from(item.stat.st_mode & 0o7777)), Difference::Mode);
    }
    compare(&|_, item| bytes(u64::from(item.stat.st_uid) << 32 | u64::from(item.stat.st_gid)), Difference::Owner);
    if first.kind != FileType::Directory {
        compare(&|_, item| bytes(item.stat.st_nlink), Difference::Links);
    }
    let names: BTreeSet<&Vec<u8>> = alike.iter().flat_map(|(own, _)| own.attributes.keys()).collect();
    for name in names {
        compare(&|own, _| own.attributes.get(name).cloned(), Difference::Attribute(name.clone()));
    }
    // A member on which the file waits to be rebuilt gets its time then.
    let timed: Vec<_> = alike.iter().copied().filter(|(own, _)| !lost.contains(own.slot)).collect();
    if first.kind == FileType::RegularFile && !is_open && !timed.is_empty() {
        // Times within the tolerance of the middle one count as the same.
        let mut times: Vec<i128> = timed.iter().map(|(_, item)| modified_ns(item)).collect();
        times.sort_unstable();
        let middle = times[times.len() / 2];
        let near = |item: &Item| (modified_ns(item) - middle).abs() < TIME_TOLERANCE_NS;
        let value: Value<'_> = &|_, item| if near(item) { None } else { Some(modified_ns(item).to_le_bytes().to_vec()) };
        compare_of(&timed, value, Difference::Modified);
    }
    found
}

fn modified_ns(item: &Item) -> i128 {
    i128::from(item.stat.st_mtime) * 1_000_000_000 + i128::from(item.stat.st_mtime_nsec)
}
