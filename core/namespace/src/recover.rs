//! After a change was cut short: the names on every member are made like the first member's again.
//!
//! The fault it exists for: a process dies between two members, so that a name is here on one and
//! there on the other; or a power failure, after which each member's file system has come back to a
//! moment of its own. Files are told by their attribute, not by their name, so a backing file that
//! a rename left behind is found and moved, never copied.
//!
//! Invariants: the first member is only read, but for empty files that lack their attribute. A
//! backing file that any name of the first member refers to is set aside in `.cxlraid` before its
//! place is cleared. A process that dies in here leaves what the next run can finish. Cost: it
//! walks the trees. The namespace lock is held.

use crate::Namespace;
use crate::change::{link_on, rename_on};
use crate::everywhere::{On, is_dead_to_changes, is_divergence};
use crate::located::{Located, names_in, open_below};
use crate::replay::{Purpose, UNDECIDED};
use crate::resolve::join;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use array::config::is_below;
use core::cell::Cell;
use core::sync::atomic::Ordering;
use file::CAPABILITIES;
use format::{ATTRIBUTE_NAME, Attribute, InodeState};
use sync::Acquired;
use sys::rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Uid, XattrFlags, chownat, lgetxattr, llistxattr, lremovexattr,
    lsetxattr, mkdirat, mknodat, symlinkat, unlinkat,
};
use sys::{AsFd, OsError, OwnedFd, Result};
use units::{MemberSet, Slot};

/// How the names of files set aside begin, within `.cxlraid`; the inode number follows.
pub(crate) const ASIDE: &[u8] = b"aside-";
const XATTR_BYTES_MAX: usize = 65536;
/// Values of [`Namespace::mends`]: a mend runs; a mend runs while a member is away that is not on
/// record.
const MENDS: u32 = 1;
const MENDS_UNRECORDED: u32 = 2;

/// One name of a member.
pub(crate) struct Item {
    pub(crate) kind: FileType,
    pub(crate) stat: Stat,
    /// Of a file.
    pub(crate) attribute: Option<Attribute>,
    /// Of a symlink.
    pub(crate) target: Vec<u8>,
}

/// Logical paths; a directory comes before what is in it.
pub(crate) type Tree = BTreeMap<Vec<u8>, Item>;
/// Where a member has a file, below its root.
pub(crate) type Places = BTreeMap<(u64, u64), Vec<u8>>;

impl Item {
    pub(crate) fn is_file(&self) -> bool {
        self.kind == FileType::RegularFile
    }

    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.kind == other.kind
            && self.attribute == other.attribute
            && self.target == other.target
            && self.stat.st_rdev == other.stat.st_rdev
    }
}

pub(crate) const fn key(attribute: Attribute) -> (u64, u64) {
    (attribute.inode, attribute.generation)
}

impl Namespace {
    /// Runs `act` with the namespace lock held, after making good what another process left
    /// unfinished when it died.
    ///
    /// `act` is told the error if that failed, most likely because this process may not see or
    /// change enough of the tree: another one will do it. Until then names may be looked up, but
    /// nothing may be changed: with one more change in the log nobody would know that the one
    /// before it is half made.
    pub(crate) fn locked<T>(&self, act: impl FnOnce(Result<()>) -> Result<T>) -> Result<T> {
        self.locked_for(Purpose::Change, act)
    }

    /// Does what [`Self::locked`] does. For a look no member that is away becomes stale.
    pub(crate) fn locked_for<T>(&self, purpose: Purpose, act: impl FnOnce(Result<()>) -> Result<T>) -> Result<T> {
        let runtime = self.array().runtime();
        runtime.with_namespace(|acquired| {
            self.holding(|| {
                let whole = match acquired {
                    Acquired::Inherited if self.is_sandboxed.load(Ordering::Relaxed) => Err(OsError::ACCESS),
                    Acquired::Inherited => match self.restructuring(|| self.replay(purpose)) {
                        Ok(()) => {
                            // A link that a file was given in `.cxlraid` for its last name, which
                            // did not go then.
                            self.files().clear_orphans();
                            runtime.names_are_whole();
                            Ok(())
                        }
                        // All members that are here have the names as they were before the last
                        // change.
                        Err(UNDECIDED) => {
                            runtime.names_wait_for_member();
                            Ok(())
                        }
                        Err(error) => Err(error),
                    },
                    Acquired::Clean => Ok(()),
                };
                act(whole)
            })
        })
    }

    /// Runs a mend, which gives members names again that others prove, and nothing else. What the
    /// names stand for stays as it is. So a member that is away, and not on record, has missed
    /// nothing: it does not become stale by a mend. The namespace lock is held.
    pub(crate) fn mending<T>(&self, mend: impl FnOnce() -> Result<T>) -> Result<T> {
        let is_away = !self.array().runtime().out_unrecorded().is_empty();
        if !is_away {
            self.array().before_change()?;
        }
        // A mend may need another one: what holds for the outer one holds again after the inner
        // one.
        let outer = self.mends.swap(if is_away { MENDS_UNRECORDED } else { MENDS }, Ordering::Relaxed);
        let result = self.restructuring(mend);
        self.mends.store(outer, Ordering::Relaxed);
        result
    }

    /// Called before anything is changed that a mend may change, too: puts on record what is to be
    /// ([`array::Array::before_change`]), but not within a mend ([`Self::mending`]). The namespace
    /// lock is held.
    pub(crate) fn before_change(&self) -> Result<()> {
        if self.mends.load(Ordering::Relaxed) == MENDS_UNRECORDED { Ok(()) } else { self.array().before_change() }
    }

    /// Whether the thread that holds the namespace lock is in the middle of a mend.
    pub(crate) fn is_mending(&self) -> bool {
        self.mends.load(Ordering::Relaxed) != 0
    }

    /// Makes the names on all members in use the first's, by comparing all of them. After deaths
    /// and crashes the log does that by itself, and this only if the log is damaged. Returns how
    /// many members are in use then: one that lacks bytes of a file goes out.
    pub fn recover(&self) -> Result<usize> {
        let runtime = self.array().runtime();
        runtime.with_namespace(|_| {
            self.holding(|| {
                self.restructuring(|| self.without_failing(|| self.recover_all(self.array().first_in_use()?)))?;
                runtime.names_are_whole();
                Ok(self.array().in_use().len())
            })
        })
    }

    /// Runs `act` while no name is being changed.
    pub fn between_changes<T>(&self, act: impl FnOnce() -> T) -> T {
        self.array().runtime().with_namespace(|_| act())
    }

    /// Removes files without a name that nobody has open any more. Where this process may not
    /// finish a change of names that another one began, that is left to who finishes it.
    pub fn clear_nameless(&self) {
        let _ = self.locked_for(Purpose::Look, |whole| whole.map(|()| self.files().clear_orphans()));
    }

    /// Makes the names of all members those of `reference`.
    pub(crate) fn recover_all(&self, reference: Slot) -> Result<()> {
        self.refuse_emptied_locked(false)?;
        let is_left = self.array().in_use().contains(reference);
        let reference = if is_left { reference } else { self.array().first_in_use()? };
        let reference = self.reference_that_lacks_nothing(reference)?;
        self.array().before_change()?;
        self.complete_first(reference)?;
        for slot in self.array().in_use().without(reference).iter() {
            // What the reference has lost and cannot be spared for stays where it is.
            let kept = self.lost_by(reference, slot)?;
            match self.recover_member(slot, reference, &kept) {
                // Also what is read-only for this process alone: a start is not refused for it.
                Err(error) if is_dead_to_changes(error) => self.array().do_without(slot, error)?,
                Err(error) => self.take_out_full(MemberSet::EMPTY.with(slot), error)?,
                // A user who changes names of his while this runs must not keep everybody from the
                // array; what differs then is met again by who uses it.
                Ok(_is_whole) => {}
            }
        }
        // Not before: some member may have a file of the reference's in `.cxlraid` alone.
        self.files().clear_orphans();
        self.array().before_change()
    }

    /// Whether a recovery that was cut short has set a file aside on a member.
    pub(crate) fn has_set_aside(&self, slot: Slot, attribute: Attribute) -> Result<bool> {
        let name = alloc::format!("{}", attribute.inode);
        let names = names_in(self.root(slot)?, format::DIRECTORY.to_bytes())?;
        Ok(names.iter().any(|other| other.strip_prefix(ASIDE) == Some(name.as_bytes())))
    }

    /// Gives files of the first member their attribute whose maker died before, and notes that files
    /// have a name whose maker died as it gave them their first.
    fn complete_first(&self, first: Slot) -> Result<()> {
        for (path, item) in self.tree(first)? {
            if item.kind == FileType::RegularFile && item.attribute.is_none() && item.stat.st_size == 0 && item.stat.st_nlink == 1
            {
                let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
                let fd = open_below(self.root(first)?, &path[1..], flags, Mode::empty())?;
                self.bind(first, &fd, self.files().create_inode(&path)?)?;
            }
            if let Some(file) = item.attribute.filter(|&file| self.files().state_of(file) == Some(InodeState::Orphan)) {
                self.files().linked(file);
            }
        }
        Ok(())
    }

    /// Makes one member's names those of `reference`. Returns whether all are: a user without
    /// rights to the array may change names of his meanwhile, and what he moves away by hand on
    /// `reference` alone stays where it is on this member. So do the names in `kept`, and the
    /// directories on the way to them.
    ///
    /// # Errors
    /// `IO` if the member lacks bytes of a file that the first has.
    pub(crate) fn recover_member(&self, slot: Slot, reference: Slot, kept: &[Vec<u8>]) -> Result<bool> {
        let is_whole = Cell::new(kept.is_empty());
        let is_kept = |path: &[u8]| kept.iter().any(|name| is_below(name, path) || is_below(path, name));
        let wanted = self.tree(reference)?;
        let present = self.tree(slot)?;
        let mut places = self.set_aside(slot, &wanted, &present, &is_whole)?;
        let root = self.root(slot)?;
        for (path, item) in &present {
            if !wanted.get(path).is_some_and(|other| other.is_like(item)) && !is_kept(path) {
                self.unless_changed(path, self.clear_from(slot, path, item, wanted.contains_key(path)), &is_whole)?;
            }
        }
        for (path, item) in &wanted {
            let is_there = present.get(path).is_some_and(|other| other.is_like(item));
            if !is_there && is_kept(path) {
                continue;
            }
            let mut make = || {
                if is_there || self.put(slot, path, item, &mut places)? {
                    self.equalise_with(reference, path, slot, path, item)?;
                }
                Ok(())
            };
            self.unless_changed(path, make(), &is_whole)?;
        }
        // What could not be brought back to its place waits for the next run.
        for name in if is_whole.get() { aside(root)? } else { Vec::new() } {
            unlinkat(root, &name, AtFlags::empty())?;
        }
        Ok(is_whole.get())
    }

    /// Removes what one member has at a path and the first has not.
    ///
    /// # Errors
    /// `NOTEMPTY` for a file in foreign hands that has no other name on this member, and no log
    /// says that it was removed, and for a directory with such a file in it.
    fn clear_from(&self, slot: Slot, path: &[u8], item: &Item, is_name_wanted: bool) -> Result<()> {
        let at = match Located::below(self.root(slot)?.as_fd(), &path[1..]) {
            // It went with its directory.
            Err(OsError::NOENT) => return Ok(()),
            found => found?,
        };
        if !self.is_in_foreign_hands(path) {
            // Files that the first member knows have been set aside.
            return at.clear(&|_| Ok(false));
        }
        let is_used = item.attribute.is_some_and(|attribute| self.files().state_of(attribute) == Some(InodeState::Used));
        let is_here = || at.stat().is_ok_and(|stat| [stat.st_dev, stat.st_ino] == [item.stat.st_dev, item.stat.st_ino]);
        if is_used && !is_name_wanted && item.stat.st_nlink == 1 && is_here() {
            return Err(OsError::NOTEMPTY);
        }
        self.clear(slot, &at)
    }

    /// Passes a result on, but for an error that says that names are others than before where a
    /// user may have changed them: then `is_whole` says so.
    fn unless_changed(&self, path: &[u8], result: Result<()>, is_whole: &Cell<bool>) -> Result<()> {
        match result {
            Err(error) if is_divergence(error) && self.is_in_foreign_hands(path) => {
                is_whole.set(false);
                Ok(())
            }
            result => result,
        }
    }

    /// Finds every file the first member knows, and moves those away that are not in their place.
    fn set_aside(&self, slot: Slot, wanted: &Tree, present: &Tree, is_whole: &Cell<bool>) -> Result<Places> {
        let root = self.root(slot)?;
        let mut places = Places::new();
        for (path, item) in present {
            if let Some(attribute) = item.attribute
                && wanted.get(path).is_some_and(|other| other.is_like(item))
            {
                places.insert(key(attribute), path[1..].to_vec());
            }
        }
        for name in aside(root)? {
            if let Some(attribute) = self.attribute_at(slot, &Located::below(root.as_fd(), &name)?)? {
                places.entry(key(attribute)).or_insert(name);
            }
        }
        for attribute in wanted.values().filter_map(|item| item.attribute) {
            let place = file::orphan_path(attribute);
            if !places.contains_key(&key(attribute)) && !self.lacks(slot, &join(b"/", &place), Some(attribute))? {
                places.insert(key(attribute), place);
            }
        }
        let known: BTreeMap<_, ()> = wanted.values().filter_map(|item| Some((key(item.attribute?), ()))).collect();
        for (path, item) in present {
            let Some(attribute) = item.attribute.filter(|&attribute| known.contains_key(&key(attribute))) else { continue };
            if let alloc::collections::btree_map::Entry::Vacant(place) = places.entry(key(attribute)) {
                let name = alloc::format!("{}", attribute.inode).into_bytes();
                let name = [format::DIRECTORY.to_bytes(), b"/", ASIDE, &name].concat();
                match rename_on(root, &path[1..], &name, RenameFlags::empty()) {
                    Ok(()) => drop(place.insert(name)),
                    Err(error) => self.unless_changed(path, Err(error), is_whole)?,
                }
            }
        }
        Ok(places)
    }

    /// Makes a name that is missing. Returns whether it is there now: a file of which too much is
    /// lost stays away.
    pub(crate) fn put(&self, slot: Slot, path: &[u8], item: &Item, places: &mut Places) -> Result<bool> {
        let (root, relative) = (self.root(slot)?, &path[1..]);
        let mode = Mode::from_raw_mode(item.stat.st_mode & 0o7777);
        let at = Located::below(root.as_fd(), relative)?;
        match item.kind {
            FileType::Directory => mkdirat(at.directory(), at.name(), mode)?,
            FileType::Symlink => symlinkat(item.target.as_slice(), at.directory(), at.name())?,
            FileType::RegularFile => {
                // Put there by other hands: it is no file of the array.
                let Some(attribute) = item.attribute else { return Ok(false) };
                if let Some(place) = places.get(&key(attribute)) {
                    link_on(root, place, relative)?;
                    return Ok(true);
                }
                if !self.can_be_empty(slot, attribute)? {
                    // Its owner may have removed it on this member while a program has it open,
                    // which needs no name. The member works as well as before.
                    if self.is_in_foreign_hands(path) {
                        return Ok(false);
                    }
                    // A member that can be spared goes out, if that helps this file; otherwise the
                    // bytes are lost, and who opens this file gets EIO.
                    let out = self.array().runtime().out().union(MemberSet::EMPTY.with(slot));
                    return if self.array().bears(out) && self.files().file_bears(attribute, out) {
                        Err(OsError::IO)
                    } else {
                        Ok(false)
                    };
                }
                places.insert(key(attribute), relative.to_vec());
                self.make_stub(
                    &On { slot, root, first: false, afresh: true, caught_up: false },
                    relative,
                    &item.stat,
                    attribute,
                )?;
            }
            kind => mknodat(at.directory(), at.name(), kind, mode, item.stat.st_rdev)?,
        }
        Ok(true)
    }

    /// Whether nothing is lost if a member that lacks a file gets an empty one. What it held is
    /// computed from the others when the file is opened, if it held anything and anybody is going
    /// to ask.
    fn can_be_empty(&self, slot: Slot, file: Attribute) -> Result<bool> {
        if !matches!(self.files().state_of(file), Some(InodeState::Used | InodeState::Orphan)) {
            return Ok(true);
        }
        if !self.array().in_use().contains(slot) {
            // It is made anew: of all files it is noted that it has lost their bytes, before it
            // comes into use.
            return Ok(true);
        }
        Ok(self.files().size_on_members(file)? == 0 || self.files().note_lost(file, slot) || self.never_had(slot, file, None)?)
    }

    /// Gives a name the owner, mode and extended attributes of `item`, which is at `there` on
    /// `reference`.
    pub(crate) fn equalise_with(&self, reference: Slot, there: &[u8], slot: Slot, path: &[u8], item: &Item) -> Result<()> {
        if item.kind == FileType::RegularFile && item.attribute.is_none() {
            return Ok(());
        }
        let at = Located::below(self.root(slot)?.as_fd(), &path[1..])?;
        let stat = at.stat()?;
        let owner = (item.stat.st_uid, item.stat.st_gid);
        if (stat.st_uid, stat.st_gid) != owner {
            self.before_change()?;
            let (user, group) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
            chownat(at.directory(), at.name(), Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        self.equalise_xattrs(&Located::below(self.root(reference)?.as_fd(), &there[1..])?, &at)?;
        if item.kind == FileType::Symlink {
            return Ok(());
        }
        let mode = item.stat.st_mode & 0o7777;
        // The kernel takes set-ID bits away as it changes owners, and a set-group-ID bit as it
        // gives a file an access control list.
        if at.stat()?.st_mode & 0o7777 != mode {
            self.before_change()?;
            at.chmod(Mode::from_raw_mode(mode))?;
        }
        Ok(())
    }

    fn equalise_xattrs(&self, reference: &Located<'_>, own: &Located<'_>) -> Result<()> {
        let (from, to) = (reference.path(), own.path());
        let (wanted, present) = (xattrs(&from)?, xattrs(&to)?);
        // Few processes may change a file's capabilities. Where this one may not, a scrub tells the
        // difference.
        let is_refused =
            |name: &[u8], error| name == CAPABILITIES.to_bytes() && matches!(error, OsError::PERM | OsError::OPNOTSUPP);
        let allowed = |name: &[u8], result: Result<()>| match result {
            Err(error) if is_refused(name, error) => Ok(()),
            result => result,
        };
        for (name, value) in &wanted {
            if present.get(name) != Some(value) {
                self.before_change()?;
                allowed(name, lsetxattr(to.as_slice(), name, value, XattrFlags::empty()))?;
            }
        }
        for name in present.keys().filter(|name| !wanted.contains_key(*name)) {
            self.before_change()?;
            allowed(name, lremovexattr(to.as_slice(), name))?;
        }
        Ok(())
    }

    /// All names of a member that belong to the array.
    pub(crate) fn tree(&self, slot: Slot) -> Result<Tree> {
        self.tree_below(slot, self.array().config().prefixes.clone())
    }

    /// The names of a member from some logical paths on.
    pub(crate) fn tree_below(&self, slot: Slot, mut pending: Vec<Vec<u8>>) -> Result<Tree> {
        let mut tree = Tree::new();
        while let Some(path) = pending.pop() {
            let item = match self.item(slot, &path) {
                Ok(item) => item,
                // It went meanwhile, or a directory on the way to it did.
                Err(OsError::NOENT | OsError::NOTDIR | OsError::LOOP) => continue,
                Err(error) => return Err(error),
            };
            if item.kind == FileType::Directory {
                match names_in(self.root(slot)?, &path[1..]) {
                    Err(OsError::NOENT | OsError::NOTDIR | OsError::LOOP) => continue,
                    names => pending.extend(names?.iter().map(|name| join(&path, name))),
                }
            }
            tree.insert(path, item);
        }
        Ok(tree)
    }

    pub(crate) fn item(&self, slot: Slot, path: &[u8]) -> Result<Item> {
        let at = Located::below(self.root(slot)?.as_fd(), &path[1..])?;
        let mut stat = at.stat()?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if !matches!(kind, FileType::CharacterDevice | FileType::BlockDevice) {
            stat.st_rdev = 0;
        }
        let attribute = if kind == FileType::RegularFile { self.attribute_at(slot, &at)? } else { None };
        let target = match kind {
            FileType::Symlink => at.readlink()?,
            _ => Vec::new(),
        };
        Ok(Item { kind, stat, attribute, target })
    }
}

/// What a run that was cut short has set aside, below the member's root.
pub(crate) fn aside(root: &OwnedFd) -> Result<Vec<Vec<u8>>> {
    let directory = format::DIRECTORY.to_bytes();
    let names = names_in(root, directory)?;
    Ok(names.iter().filter(|name| name.starts_with(ASIDE)).map(|name| join(directory, name)).collect())
}

/// The extended attributes that are the same on all members: those that programs see, and a file's
/// capabilities. Other labels (security.*) are each file system's own affair.
pub(crate) fn xattrs(host: &[u8]) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut list = alloc::vec![0; XATTR_BYTES_MAX];
    let bytes = match llistxattr(host, list.as_mut_slice()) {
        Err(OsError::OPNOTSUPP) => 0,
        result => result?,
    };
    let mut found = BTreeMap::new();
    for name in list[..bytes].split(|&byte| byte == 0) {
        let is_label = name.starts_with(b"security.") && name != CAPABILITIES.to_bytes();
        if name.is_empty() || name == ATTRIBUTE_NAME.to_bytes() || is_label {
            continue;
        }
        let mut value = alloc::vec![0; XATTR_BYTES_MAX];
        let bytes = lgetxattr(host, name, value.as_mut_slice())?;
        value.truncate(bytes);
        found.insert(name.to_vec(), value);
    }
    Ok(found)
}
