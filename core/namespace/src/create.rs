//! New files: the same name, mode and attribute on every member, or nowhere.
//!
//! A file gets an inode number, as a file without a name, and is noted in the log. It is made on
//! the first member with its attribute, and then in the same way on the others, all under the
//! namespace lock. A crash in between leaves an empty file that lacks its attribute or is not on
//! every member: `complete` makes it whole.

use crate::absent::AGAIN;
use crate::everywhere::{NOTHING, On, is_shortage};
use crate::located::{Located, open_below};
use crate::log::change;
use crate::recover::Places;
use crate::resolve::join;
use crate::target::Target;
use crate::{Namespace, Node, Opened, ProgramPath, Reached};
use core::cell::Cell;
use core::sync::atomic::Ordering;
use dax::Access;
use file::{BackingFds, FileRef, Name};
use format::{Attribute, NameKind, NameRecord, Shape};
use sys::rustix::fs::{AtFlags, Gid, Mode, OFlags, Stat, Uid, fchmod, fchown, fstat};
use sys::{AsFd, AsRawFd, OsError, OwnedFd, Result};
use units::{MemberSet, Slot};

const OURS: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC);
const NEW: OFlags = OURS.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW);

/// Which file is made.
#[derive(Clone, Copy)]
enum Kind {
    /// One with a name.
    Named,
    /// One without, of the shape that the rules give there.
    Nameless,
    /// One without, of this shape.
    NamelessOf(Shape),
}

impl Namespace {
    /// Makes a file that is not there. The namespace lock is held. `is_free`: it was seen meanwhile
    /// that the name has nothing, not even a symlink that leads to nothing.
    pub(crate) fn create(&self, path: ProgramPath<'_>, flags: OFlags, mode: u32, is_free: bool) -> Result<Reached<Opened>> {
        self.array().before_change()?;
        if is_dots(path.text()) {
            return self.refuse_to_make(path, if flags.contains(OFlags::EXCL) { OsError::EXIST } else { OsError::ISDIR });
        }
        let exclusive = flags.intersects(OFlags::EXCL | OFlags::NOFOLLOW);
        let target = match self.target(path)? {
            Reached::Array(target) if exclusive || is_free || !self.is_there(&target) => target,
            // A symlink that leads to nothing: what it leads to is made.
            Reached::Array(target) => match self.walk(path, true)? {
                (Reached::Array(_), true) => return Err(OsError::ISDIR),
                (Reached::Array(path), false) => target.instead(path),
                (Reached::Host(path), _) => return Ok(Reached::Host(path)),
            },
            Reached::Host(path) => return Ok(Reached::Host(path)),
        };
        let mode = Mode::from_raw_mode(mode & 0o7777);
        let file = self.make(
            &target.path,
            Kind::Named,
            |on| {
                let make = || target.open(on, NEW, mode);
                match make() {
                    Err(OsError::EXIST) if !on.first => {
                        self.clear_unproven(on.slot, &target.on(on)?, &target.path).and_then(|()| make())
                    }
                    result => result,
                }
            },
            |on| on.remove(&target, AtFlags::empty()),
        )?;
        if mode.bits() & file::SET_ID == 0 {
            file.note_made_without_privileges();
        }
        // NOFOLLOW is not added here: the program would see it in the descriptor's flags.
        let flags = flags.difference(OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC);
        let anchor = || self.doubting(&target.path, || self.asking_first(|on| target.open(on, flags, Mode::empty())));
        match open_as_owner(&file, anchor) {
            Ok(anchor) => {
                self.remember_place(file.attribute(), &target.path);
                if let Ok(stat) = fstat(&anchor) {
                    let identity = [stat.st_dev, stat.st_ino];
                    file.note_anchor(identity);
                    if let Some(epochs) = self.epochs() {
                        self.remember_attribute(identity, file.attribute(), epochs);
                    }
                }
                Ok(Reached::Array(Opened { anchor, node: Node::File(file), path: target.path, is_made: true, waits: false }))
            }
            Err(error) => {
                // Most likely the process has no descriptor left. The kernel would have said so
                // before it made the file, so the file is taken away again.
                let attribute = file.attribute();
                drop(file);
                self.files.free_descriptors();
                let remove = |on: &On| on.remove(&target, AtFlags::empty());
                // Where a member does not let the file be taken away, the removal is left
                // unfinished, and the other members do not get the file back.
                let record = NameRecord { replaced: Some(attribute), ..change(NameKind::Unlink, &target.path, Some(attribute)) };
                let _ = self.logged(record, || {
                    self.everywhere(&[&target.path], remove, None)?;
                    self.files.unlinked(attribute, Name::None, || false);
                    Ok(())
                });
                Err(error)
            }
        }
    }

    /// Whether the lowest member has the name.
    pub(crate) fn is_there(&self, target: &Target<'_>) -> bool {
        self.asking_first(|on| target.on(on)?.stat()).is_ok()
    }

    /// Makes the backing files of a new file by `make_one`, and opens it. `path` is where that
    /// happens: its name if it gets one.
    fn make(
        &self,
        path: &[u8],
        kind: Kind,
        mut make_one: impl FnMut(&On) -> Result<OwnedFd>,
        remove: impl Fn(&On) -> Result<()>,
    ) -> Result<FileRef> {
        let attribute = match kind {
            Kind::Named | Kind::Nameless => self.files.create_nameless_inode(path)?,
            Kind::NamelessOf(shape) => self.files.create_nameless_inode_of(shape)?,
        };
        let fds: Cell<BackingFds> = Cell::default();
        let hold = |slot: Slot, fd: Option<OwnedFd>| {
            let mut held = fds.take();
            if held.len() <= slot {
                held.resize_with(self.array().members().len(), || None);
            }
            held[slot] = fd;
            fds.set(held);
        };
        // The file's descriptor is closed first: a process that has no other left needs its number
        // to reach the name.
        let take_back = |on: &On| {
            hold(on.slot, None);
            remove(on)
        };
        let mut first_mode = None;
        let mut make_all = || {
            self.everywhere(
                &[path],
                |on| {
                    let fd = make_one(on)?;
                    let result = self.follow_mode(&fd, &mut first_mode).and_then(|()| self.bind(on.slot, &fd, attribute));
                    hold(on.slot, Some(fd));
                    // The members before this one undo the change by themselves; this one has the
                    // file and is not among them.
                    if result.is_err() && take_back(on).is_err_and(is_shortage) {
                        self.array().runtime().names_are_unfinished();
                    }
                    result
                },
                Some(&take_back),
            )?;
            let opened = self.files.open(attribute, true, || Ok((fds.take(), Access::ReadWrite)));
            if opened.is_err() {
                let _ = self.everywhere(&[path], |on| remove(on), None);
            }
            opened
        };
        let opened = if matches!(kind, Kind::Named) {
            self.logged(change(NameKind::Make, path, Some(attribute)), || {
                // The inode counts as named only once the log has the change: without the log
                // nobody would know, after a death, that the inode belongs to no file.
                self.files.has_name(attribute);
                make_all()
            })
        } else {
            make_all()
        };
        // A file that could not be taken away everywhere stays a file, without bytes.
        if opened.is_err() && !self.is_change_unfinished() {
            self.files.discard_inode(attribute);
        }
        opened
    }

    /// Gives a new backing file the mode of the first member's, if the umask may have changed since
    /// that was made.
    fn follow_mode(&self, fd: &OwnedFd, first: &mut Option<u32>) -> Result<()> {
        if !self.shares_umask.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mode = fstat(fd)?.st_mode;
        match *first.get_or_insert(mode) {
            first if first == mode => Ok(()),
            first => fchmod(fd, Mode::from_raw_mode(first)),
        }
    }

    /// A file without a name (O_TMPFILE). It is gone when it is closed, unless it is linked first
    /// ([`Namespace::link_descriptor`]).
    pub(crate) fn open_unnamed(
        &self,
        path: ProgramPath<'_>,
        flags: OFlags,
        mode: u32,
        shape: Option<Shape>,
    ) -> Result<Reached<Opened>> {
        if flags & OFlags::RWMODE == OFlags::RDONLY || flags.contains(OFlags::CREATE) {
            return Err(OsError::INVAL);
        }
        let mode = Mode::from_raw_mode(mode & 0o7777);
        let kind = shape.map_or(Kind::Nameless, Kind::NamelessOf);
        self.changing_at(path, |given| {
            let follow = !flags.contains(OFlags::NOFOLLOW);
            let found = self.find(given, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, follow)?;
            found.and_then(|found| {
                let path = found.path;
                // The number of this descriptor is to be free for the program's.
                drop(found.fd);
                let here = Target::new(given, join(&path, b"."), false);
                let make_one = |on: &On| here.open(on, OURS | OFlags::TMPFILE, mode);
                let file = self.make(&here.path, kind, make_one, |_| Ok(())).map_err(|error| match error {
                    // A symlink that is not followed is no directory.
                    OsError::LOOP if !follow => OsError::NOTDIR,
                    error => error,
                })?;
                let name = if flags.contains(OFlags::EXCL) { Name::Never } else { Name::None };
                self.files.unlinked(file.attribute(), name, || false);
                let flags = flags.difference(OFlags::TMPFILE | OFlags::EXCL | OFlags::TRUNC | OFlags::NOFOLLOW);
                let anchor = {
                    let own = file.in_use().next().ok_or(OsError::IO)?.1.fd()?;
                    let reopen = || sys::rustix::fs::open(crate::descriptor::link(own.as_raw_fd()), flags, Mode::empty());
                    open_as_owner(&file, reopen)?
                };
                let stat = fstat(&anchor)?;
                file.note_anchor([stat.st_dev, stat.st_ino]);
                Ok(Opened { anchor, node: Node::File(file), path, is_made: false, waits: false })
            })
        })
    }

    /// Makes an empty file whole that was left half made, at a logical path without symlinks. A
    /// member that lacks a file with bytes in it may have that file at another name (`recover`);
    /// otherwise it has lost the bytes, and goes out. The namespace lock is held.
    ///
    /// # Errors
    /// `IO` if the first member's file has no attribute and is not empty: somebody has put it there
    /// by hand, or it is damaged.
    pub(crate) fn complete(&self, path: &[u8]) -> Result<()> {
        let relative = &path[1..];
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let (slot, first) = self.asking_first(|on| Ok((on.slot, open_below(on.root, relative, flags, Mode::empty())?)))?;
        let stat = fstat(&first)?;
        let found = self.attribute_on(slot, &first)?;
        let has = |slot: Slot, attribute: Attribute| {
            let there = self.root(slot).and_then(|root| open_below(root, relative, flags, Mode::empty()));
            there.and_then(|there| self.attribute_on(slot, &there)) == Ok(Some(attribute))
        };
        if let Some(attribute) = found {
            let lacking: MemberSet = self.array().in_use().iter().filter(|&slot| !has(slot, attribute)).collect();
            let Some(one) = lacking.lowest() else {
                // Nothing was cut short here. What is missing of the file itself is no matter of
                // names, and a member that is away may be needed for it: that member is not to
                // become stale by this.
                return Ok(());
            };
            let bears = |lost: MemberSet| self.files.file_bears(attribute, self.array().runtime().out().union(lost));
            if !bears(lacking) && self.files.size_on_members(attribute)? != 0 && !bears(self.without_file(lacking, attribute)?) {
                // To make the file there anew would need bytes that only members which are out may
                // still have.
                self.array().tell_difference(one, path);
                return Err(OsError::IO);
            }
        }
        let is_mend = found.is_some_and(|attribute| self.files.told_of_named(attribute).is_some());
        if !is_mend && self.is_foreign_contradicted(path)? {
            return Err(AGAIN);
        }
        if found.is_none() && (stat.st_size != 0 || stat.st_nlink != 1) {
            // Nothing is put on record for this: a member that is away may have the file, and is
            // not to become stale by a look.
            return Err(OsError::IO);
        }
        if !is_mend {
            self.array().before_change()?;
        }
        let (attribute, fresh) = match found {
            Some(attribute) => (attribute, false),
            None => (self.files.create_inode(path)?, true),
        };
        let empty = self.files.size_on_members(attribute)? == 0;
        let make = || {
            self.everywhere(
                &[path],
                |on| match open_below(on.root, relative, flags, Mode::empty()) {
                    Ok(fd) if self.attribute_on(on.slot, &fd)? == Some(attribute) => Ok(()),
                    Ok(fd) if on.first => self.bind(on.slot, &fd, attribute),
                    Ok(_) | Err(OsError::NOENT | OsError::LOOP | OsError::NXIO) if empty => {
                        self.make_stub(on, relative, &stat, attribute)
                    }
                    Ok(_) | Err(OsError::NOENT | OsError::LOOP | OsError::NXIO | OsError::ISDIR) if is_mend && !on.first => {
                        self.put_lost(on.slot, path)
                    }
                    Ok(_) => Err(OsError::NOENT),
                    Err(error) => Err(error),
                },
                NOTHING,
            )
        };
        let result = if is_mend { self.mending(make) } else { self.restructuring(make) };
        if result.is_err() && fresh {
            self.files.discard_inode(attribute);
        }
        result
    }

    /// Gives a member a file again of which it has lost all names, and nothing else: what else it
    /// has or lacks stays as it is. Its bytes are computed when the file is opened.
    ///
    /// # Errors
    /// `NOENT` or another divergence if more than this name must be made like the first member's.
    fn put_lost(&self, slot: Slot, path: &[u8]) -> Result<()> {
        let first = self.array().first_in_use()?;
        let item = self.item(first, path)?;
        let Some(attribute) = item.attribute else { return Err(OsError::NOENT) };
        let is_anothers = self.item_or_none(slot, path)?.is_some_and(|own| self.is_proven(&own));
        if is_anothers || self.without_file(MemberSet::EMPTY.with(slot), attribute)?.is_empty() {
            return Err(OsError::NOENT);
        }
        self.clear(slot, &Located::below(self.root(slot)?.as_fd(), &path[1..])?)?;
        if !self.put(slot, path, &item, &mut Places::new())? {
            return Err(OsError::NOENT);
        }
        self.equalise_with(first, path, slot, path, &item)
    }

    /// Makes an empty backing file like the first member's, in the place of what the member has
    /// there.
    pub(crate) fn make_stub(&self, on: &On, relative: &[u8], stat: &Stat, attribute: Attribute) -> Result<()> {
        self.clear(on.slot, &Located::below(on.root.as_fd(), relative)?)?;
        let fd = open_below(on.root, relative, NEW, Mode::from_raw_mode(0o600))?;
        self.bind(on.slot, &fd, attribute)?;
        match fchown(&fd, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid))) {
            Ok(()) | Err(OsError::PERM) => {}
            Err(error) => return Err(error),
        }
        fchmod(&fd, Mode::from_raw_mode(stat.st_mode & 0o7777))
    }
}

/// Whether a path ends with `.` or `..`, which no call makes.
pub(crate) fn is_dots(path: &[u8]) -> bool {
    matches!(path.rsplit(|&byte| byte == b'/').next(), Some(b"." | b".."))
}

/// Opens an anchor on a file just made. The call that makes a file may open it in a way that the
/// file's mode forbids.
fn open_as_owner(file: &FileRef, open: impl Fn() -> Result<OwnedFd>) -> Result<OwnedFd> {
    let (_, backing) = file.in_use().next().ok_or(OsError::IO)?;
    with_owner_access(backing.fd()?, open)
}

/// Runs `act`. If the mode of the file `fd` forbids it, `act` runs once more while the owner may
/// read and write the file. This process is the file's owner.
pub(crate) fn with_owner_access<T>(fd: impl AsFd, act: impl Fn() -> Result<T>) -> Result<T> {
    match act() {
        Err(OsError::ACCESS) => {
            let mode = Mode::from_raw_mode(fstat(&fd)?.st_mode & 0o7777);
            fchmod(&fd, mode | Mode::RUSR | Mode::WUSR)?;
            let result = act();
            fchmod(&fd, mode)?;
            result
        }
        result => result,
    }
}
