//! Modes, owners, times and extended attributes: changed on every member alike.
//!
//! By path, what the path leads to is changed on each member. By descriptor, a file is changed
//! through its backing files, which also works when it has no name any more; anything else through
//! the path the kernel knows it by.

use crate::everywhere::On;
use crate::located::{Located, open_below};
use crate::log::change as record;
use crate::{Namespace, Node, ProgramPath, Reached};
use alloc::vec::Vec;
use format::{ATTRIBUTE_NAME, Attribute, NameKind};
use sys::rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags, chmodat, chownat, fchmod,
    fchown, fremovexattr, fsetxattr, fstat, futimens, getxattr, removexattr, setxattr, statat, utimensat,
};
use sys::{AsFd, AsRawFd, BorrowedFd, OsError, OwnedFd, Result};
use units::{MemberSet, Slot};

/// Values of extended attributes are at most this long (xattr(7)).
const XATTR_BYTES_MAX: usize = 65536;

/// Names a file only: to open and close it would take the program's locks on it away (fcntl(2)).
pub(crate) const ANCHOR: OFlags = OFlags::PATH.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// One change of a file's attributes.
enum Change<'a> {
    Mode(Mode),
    Owner(Option<Uid>, Option<Gid>),
    Times(Timestamps),
    Set(&'a [u8], &'a [u8], XattrFlags),
    Remove(&'a [u8]),
}

impl Change<'_> {
    /// On a member, if that has there what the first member has.
    fn at(&self, names: &Namespace, on: &On, subject: &Subject<'_>) -> Result<()> {
        if on.slot == subject.slot {
            return self.by_link(on, subject.fd);
        }
        let fd = open_below(on.root, &subject.path[1..], ANCHOR, Mode::empty())?;
        if FileType::from_raw_mode(fstat(&fd)?.st_mode) != subject.kind || !subject.is_on(names, on.slot, &fd)? {
            // It is not the array's.
            return Err(OsError::NOENT);
        }
        self.by_link(on, fd.as_fd())
    }

    fn on_descriptor(&self, on: &On, fd: BorrowedFd<'_>) -> Result<()> {
        match *self {
            Self::Mode(mode) => fchmod(fd, mode),
            Self::Owner(owner, group) => fchown(fd, owner, group),
            Self::Times(ref times) => futimens(fd, times),
            Self::Set(name, value, flags) => fsetxattr(fd, name, value, on.flags(flags)),
            Self::Remove(name) => on.removed(fremovexattr(fd, name)),
        }
    }

    /// Makes the change on the thing that `fd` is open on, through its link under /proc: `fd` may
    /// be a descriptor that only names it (O_PATH), also a symlink.
    fn by_link(&self, on: &On, fd: BorrowedFd<'_>) -> Result<()> {
        let link = || crate::descriptor::link(fd.as_raw_fd());
        match *self {
            Self::Mode(mode) => chmodat(CWD, link(), mode, AtFlags::empty()),
            Self::Owner(owner, group) => chownat(fd, c"", owner, group, AtFlags::EMPTY_PATH),
            Self::Times(ref times) => utimensat(CWD, link(), times, AtFlags::empty()),
            Self::Set(name, value, flags) => setxattr(link(), name, value, on.flags(flags)),
            Self::Remove(name) => on.removed(removexattr(link(), name)),
        }
    }

    /// Whether it may change who may open the file.
    fn concerns_access(&self) -> bool {
        match *self {
            Self::Mode(_) | Self::Owner(..) => true,
            Self::Times(_) => false,
            Self::Set(name, ..) | Self::Remove(name) => name.starts_with(b"system."),
        }
    }

    /// Whether the file may give privileges to whoever executes it by this change, or by undoing it
    /// on a file that has this mode.
    fn concerns_privileges(&self, mode: u32) -> bool {
        match *self {
            Self::Mode(new) => (new.bits() | mode) & file::SET_ID != 0,
            Self::Owner(..) => mode & file::SET_ID != 0,
            Self::Times(_) => false,
            Self::Set(name, ..) | Self::Remove(name) => name == file::CAPABILITIES.to_bytes(),
        }
    }

    fn sets_modification_time(&self) -> bool {
        matches!(self, Self::Times(times) if times.last_modification.tv_nsec != UTIME_OMIT)
    }
}

/// The thing that a call changes by its name, as the first member has it.
struct Subject<'a> {
    /// Logical.
    path: &'a [u8],
    /// The member that was first when the change began.
    slot: Slot,
    /// Open on the thing there.
    fd: BorrowedFd<'a>,
    kind: FileType,
    /// Of a file, if it has one.
    attribute: Option<Attribute>,
    /// Of a file, whether this process could find its attribute out.
    is_attribute_known: bool,
}

impl Subject<'_> {
    /// Tells whether a file of a later member says that it is what the first member has: a file
    /// without an attribute of its own there must be one here too, or a change would reach another
    /// user's file that has been put in its place. Where this process may not read the attribute,
    /// the member's table of backing files tells; a file of which it tells nothing counts as the
    /// right one, since its kind was compared.
    fn is_on(&self, names: &Namespace, slot: Slot, fd: &OwnedFd) -> Result<bool> {
        if self.kind != FileType::RegularFile || !self.is_attribute_known {
            return Ok(true);
        }
        match names.attribute_named(slot, fd.as_fd()) {
            Err(OsError::ACCESS) => {
                let stat = fstat(fd)?;
                let is_another = |attribute| {
                    names.files().is_backing_of(attribute, [stat.st_dev, stat.st_ino], MemberSet::EMPTY.with(slot)) == Some(false)
                };
                Ok(!self.attribute.is_some_and(is_another))
            }
            found => Ok(found? == self.attribute),
        }
    }
}

impl On {
    /// Only on the first member it matters whether the attribute was there.
    fn flags(&self, flags: XattrFlags) -> XattrFlags {
        if self.first { flags } else { XattrFlags::empty() }
    }

    fn removed(&self, result: Result<()>) -> Result<()> {
        if !self.first && result == Err(OsError::NODATA) { Ok(()) } else { result }
    }
}

impl Namespace {
    /// chmod(2), fchmodat2(2).
    ///
    /// # Errors
    /// `OPNOTSUPP` for a symlink, which has no mode of its own.
    pub fn chmod<'p>(&self, path: impl Into<ProgramPath<'p>>, mode: u32, follow: bool) -> Result<Reached<()>> {
        self.make_way_for_program(mode);
        self.change_at(path.into(), follow, &Change::Mode(Mode::from_raw_mode(mode & 0o7777)))
    }

    /// fchmod(2).
    pub fn fchmod(&self, fd: BorrowedFd<'_>, node: &Node, mode: u32) -> Result<()> {
        if let Node::File(file) = node {
            file.let_stay(false);
        }
        self.change_open(fd, node, &Change::Mode(Mode::from_raw_mode(mode & 0o7777)))
    }

    /// The kernel does not execute what is open for writing: what may become a program is not kept
    /// open.
    fn make_way_for_program(&self, mode: u32) {
        if mode & crate::text::EXECUTE != 0 {
            self.files.discard_idle();
        }
    }

    /// chown(2), lchown(2); `u32::MAX` leaves an id as it is.
    pub fn chown<'p>(&self, path: impl Into<ProgramPath<'p>>, owner: u32, group: u32, follow: bool) -> Result<Reached<()>> {
        self.change_at(path.into(), follow, &owner_change(owner, group))
    }

    /// fchown(2).
    pub fn fchown(&self, fd: BorrowedFd<'_>, node: &Node, owner: u32, group: u32) -> Result<()> {
        self.change_open(fd, node, &owner_change(owner, group))
    }

    /// utimensat(2) with a path.
    pub fn utimens<'p>(&self, path: impl Into<ProgramPath<'p>>, times: &Timestamps, follow: bool) -> Result<Reached<()>> {
        self.change_at(path.into(), follow, &Change::Times(times.clone()))
    }

    /// futimens(3): utimensat(2) without a path.
    pub fn futimens(&self, fd: BorrowedFd<'_>, node: &Node, times: &Timestamps) -> Result<()> {
        self.change_open(fd, node, &Change::Times(times.clone()))
    }

    /// setxattr(2), lsetxattr(2). `PERM` for the array's own attribute.
    pub fn setxattr<'p>(
        &self,
        path: impl Into<ProgramPath<'p>>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
        follow: bool,
    ) -> Result<Reached<()>> {
        refuse_own(name)?;
        self.change_at(path.into(), follow, &Change::Set(name, value, flags))
    }

    /// fsetxattr(2).
    pub fn fsetxattr(&self, fd: BorrowedFd<'_>, node: &Node, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        refuse_own(name)?;
        self.change_open(fd, node, &Change::Set(name, value, flags))
    }

    /// removexattr(2), lremovexattr(2). `PERM` for the array's own attribute.
    pub fn removexattr<'p>(&self, path: impl Into<ProgramPath<'p>>, name: &[u8], follow: bool) -> Result<Reached<()>> {
        refuse_own(name)?;
        self.change_at(path.into(), follow, &Change::Remove(name))
    }

    /// fremovexattr(2).
    pub fn fremovexattr(&self, fd: BorrowedFd<'_>, node: &Node, name: &[u8]) -> Result<()> {
        refuse_own(name)?;
        self.change_open(fd, node, &Change::Remove(name))
    }

    /// truncate(2).
    pub fn truncate<'p>(&self, path: impl Into<ProgramPath<'p>>, bytes: u64) -> Result<Reached<()>> {
        let place = self.find(path.into(), OFlags::PATH | OFlags::CLOEXEC, true)?;
        place.and_then(|found| self.truncate_open(found.fd.as_fd(), &Node::Path(None), bytes))
    }

    fn change_at(&self, path: ProgramPath<'_>, follow: bool, change: &Change<'_>) -> Result<Reached<()>> {
        self.changing_at(path, |path| {
            let place = self.find(path, OFlags::PATH | OFlags::CLOEXEC, follow)?;
            place.and_then(|found| self.change_found(&found.path, found.slot, found.fd.as_fd(), change))
        })
    }

    /// Changes what `fd` is open on, on the member `slot`, and what is there on the others. The
    /// namespace lock is held; the path, which leads there, has no symlinks but perhaps as its last
    /// component, which is not followed.
    fn change_found(&self, path: &[u8], slot: Slot, fd: BorrowedFd<'_>, change: &Change<'_>) -> Result<()> {
        let stat = fstat(fd)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if matches!(change, Change::Mode(_)) && kind == FileType::Symlink {
            return Err(OsError::OPNOTSUPP);
        }
        let (attribute, is_attribute_known) = match kind {
            FileType::RegularFile => match self.attribute_named(slot, fd) {
                // A file's owner may change its mode though he may not read the file, and its
                // attribute with it.
                Err(OsError::ACCESS) => {
                    let remembered =
                        self.epochs().and_then(|epochs| self.remembered_attribute([stat.st_dev, stat.st_ino], epochs));
                    (remembered, remembered.is_some())
                }
                result => (result?, true),
            },
            _ => (None, false),
        };
        let previous = Previous::of(change, &stat, |name| get(&crate::descriptor::link(fd.as_raw_fd()), name))?;
        let subject = Subject { path, slot, fd, kind, attribute, is_attribute_known };
        let undo =
            |on: &On| previous.as_ref().map_or(Ok(()), |previous| previous.undo(change, |change| change.at(self, on, &subject)));
        let result = self.logged(record(NameKind::Attributes, path, None), || {
            self.everywhere(&[path], |on| change.at(self, on, &subject), Some(&undo))
        });
        if kind == FileType::RegularFile && change.concerns_privileges(stat.st_mode) {
            match attribute {
                Some(attribute) => self.files.note_privileges(attribute),
                None => self.files.note_privileges_of_any(),
            }
        }
        result?;
        if let Some(attribute) = attribute {
            if change.sets_modification_time() {
                self.files.discard_pending_times(attribute);
            }
            if change.concerns_access() {
                let has_failed = self.array().first_in_use() != Ok(slot);
                let open = || self.on_first(|root| open_below(root, &path[1..], ANCHOR, Mode::empty()));
                let other = if has_failed { open().ok() } else { None };
                self.files.change_copy_access(attribute, other.as_ref().map_or(subject.fd, AsFd::as_fd));
            }
        }
        Ok(())
    }

    fn change_open(&self, fd: BorrowedFd<'_>, node: &Node, change: &Change<'_>) -> Result<()> {
        self.changing(|| {
            let Node::File(file) = node else {
                // The descriptor of a directory may lie on a lost member.
                let held = crate::stat::current(fd, node)?;
                let fd = held.as_fd();
                match self.logical_path_of(fd)? {
                    Some(path) if self.leads_to(&path, fd) => {
                        let slot = self.slot_in_use_of(fd).map_or_else(|| self.array().first_in_use(), Ok)?;
                        return self.change_found(&path, slot, fd, change);
                    }
                    _ => {}
                }
                let stat = fstat(fd)?;
                if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                    // It has no name any more, and is on one member only.
                    let slot = self.array().first_in_use()?;
                    return change
                        .by_link(&On { slot, root: self.root(slot)?, first: true, afresh: false, caught_up: false }, fd);
                }
                // A descriptor that only names a file without this name.
                let attribute = self.attribute_open(fd)?.ok_or(OsError::STALE);
                let file = match attribute.and_then(|attribute| self.attach_open_locked(fd, attribute, false)) {
                    // Somebody has replaced or removed the file after it was looked up.
                    Err(OsError::STALE) if self.is_gone(fd)? => {
                        let slot = self.array().first_in_use()?;
                        return change
                            .by_link(&On { slot, root: self.root(slot)?, first: true, afresh: false, caught_up: false }, fd);
                    }
                    file => file?,
                };
                return self.change_file(fd, &file, change);
            };
            self.change_file(fd, file, change)
        })
    }

    fn change_file(&self, fd: BorrowedFd<'_>, file: &file::FileRef, change: &Change<'_>) -> Result<()> {
        let current = file.current(fd)?;
        let fd = current.as_fd();
        let stat = fstat(fd)?;
        let previous = Previous::of(change, &stat, |name| get(&crate::descriptor::link(fd.as_raw_fd()), name))?;
        let backing = |on: &On| file.backing_on(on.slot).map(|backing| backing.fd()).transpose();
        let undo = |on: &On| {
            let previous = previous.as_ref().zip(backing(on)?);
            previous.map_or(Ok(()), |(previous, fd)| previous.undo(change, |change| change.on_descriptor(on, fd.as_fd())))
        };
        let act = |on: &On| match backing(on)? {
            Some(fd) => change.on_descriptor(on, fd.as_fd()),
            // What joined while the file was open has it by its name.
            None if file.without().contains(on.slot) => match self.apart(on, fd, file)? {
                Some(there) => change.by_link(on, there.as_fd()),
                None => Ok(()),
            },
            None => Ok(()),
        };
        // What has no name is nobody's to find after a crash.
        let attribute = file.attribute();
        let path = match self.remembered_place(attribute) {
            None => self.logical_path_of(fd)?.filter(|path| self.leads_to_what(path, fd, || Ok(stat))),
            remembered => remembered,
        };
        let result = match &path {
            Some(path) => self.logged(record(NameKind::Attributes, path, None), || self.everywhere(&[path], act, Some(&undo))),
            None => self.everywhere(&[], act, Some(&undo)),
        };
        if let Some(path) = path.filter(|_| result.is_ok()) {
            self.remember_place(attribute, &path);
        }
        if change.concerns_privileges(stat.st_mode) {
            file.note_privileges();
        }
        result?;
        if change.sets_modification_time() {
            file.discard_pending_times();
        }
        if change.concerns_access() {
            file.change_copy_access();
        }
        Ok(())
    }

    /// The backing file, only named, of a file on a member that joined while the file was open.
    /// None if the file has no name any more that leads there. `fd` is a descriptor of the file.
    pub(crate) fn apart(&self, on: &On, fd: BorrowedFd<'_>, file: &file::FileRef) -> Result<Option<OwnedFd>> {
        let there = |path: &[u8]| {
            let found = open_below(on.root, path, ANCHOR, Mode::empty()).ok()?;
            let is_it = self.attribute_named(on.slot, found.as_fd()) == Ok(Some(file.attribute()));
            is_it.then_some(found)
        };
        let named = self.logical_path_of(fd)?.filter(|path| self.leads_to(path, fd));
        let known = named.and_then(|path| there(&path[1..])).or_else(|| there(&file::orphan_path(file.attribute())));
        Ok(known.or_else(|| self.path_of(file.attribute()).and_then(|path| there(&path[1..]))))
    }

    /// Tells whether a logical path still leads to what a descriptor is open on, be that on the
    /// lowest member or on a later one.
    pub(crate) fn leads_to(&self, path: &[u8], fd: BorrowedFd<'_>) -> bool {
        self.leads_to_what(path, fd, || fstat(fd))
    }

    /// Tells what [`Self::leads_to`] does. `look` says what the descriptor is open on.
    fn leads_to_what(&self, path: &[u8], fd: BorrowedFd<'_>, look: impl Fn() -> Result<Stat>) -> bool {
        // The kernel has just given the path, so no symlink is on it. If somebody puts one there
        // now, whoever acts on the path afterwards does not follow it.
        let stat = |root: &OwnedFd| match statat(root, &path[1..], AtFlags::SYMLINK_NOFOLLOW) {
            Err(OsError::NAMETOOLONG) => Located::below(root.as_fd(), &path[1..])?.stat(),
            found => found,
        };
        let is_named =
            |named: Result<Stat>| matches!((named, look()), (Ok(a), Ok(b)) if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino));
        let on_later = || self.root(self.slot_in_use_of(fd).ok_or(OsError::NODEV)?).and_then(stat);
        is_named(self.on_first(stat)) || is_named(on_later())
    }
}

/// What a change replaces, for undoing it on members that made it when a later one refuses.
struct Previous {
    value: Replaced,
    /// The mode, where the kernel changes it along: it takes set-user-id and set-group-id with the
    /// owner, and keeps the group's bits and an access list (acl(5)) alike.
    mode: Option<Mode>,
    /// The capabilities of a program (capabilities(7)), which the kernel takes with the owner.
    capabilities: Option<Vec<u8>>,
}

/// The value that stood there before a change.
enum Replaced {
    Mode(Mode),
    Owner(Uid, Gid),
    Times(Timestamps),
    /// None if there was no such attribute.
    Value(Option<Vec<u8>>),
}

impl Previous {
    /// `get` reads an extended attribute; None is there if it has no value. Returns None for what
    /// cannot be read and is not undone.
    fn of(change: &Change<'_>, stat: &Stat, get: impl Fn(&[u8]) -> Result<Option<Vec<u8>>>) -> Result<Option<Self>> {
        let time = |seconds: i64, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
        let value = match change {
            Change::Mode(_) => Replaced::Mode(mode),
            Change::Owner(..) => Replaced::Owner(Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid)),
            Change::Times(_) => Replaced::Times(Timestamps {
                last_access: time(stat.st_atime, stat.st_atime_nsec as i64),
                last_modification: time(stat.st_mtime, stat.st_mtime_nsec as i64),
            }),
            Change::Set(name, ..) | Change::Remove(name) => match get(name) {
                Ok(value) => Replaced::Value(value),
                Err(_) => return Ok(None),
            },
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        let is_owner = matches!(value, Replaced::Owner(..));
        let changes_mode = matches!(value, Replaced::Owner(..) | Replaced::Value(_)) && change.concerns_access();
        let is_program = kind == FileType::RegularFile && stat.st_mode & crate::text::EXECUTE != 0;
        let capabilities = if is_owner && is_program { get(file::CAPABILITIES.to_bytes()).ok().flatten() } else { None };
        Ok(Some(Self { value, mode: Some(mode).filter(|_| changes_mode && kind != FileType::Symlink), capabilities }))
    }

    /// Runs `make` on the changes that undo the change `undone`, in their order. Returns the first
    /// error. Where the owner cannot be given back, no more is.
    fn undo(&self, undone: &Change<'_>, make: impl Fn(&Change<'_>) -> Result<()>) -> Result<()> {
        let result = match (&self.value, undone) {
            (Replaced::Mode(mode), _) => make(&Change::Mode(*mode)),
            (Replaced::Owner(owner, group), _) => make(&Change::Owner(Some(*owner), Some(*group))),
            (Replaced::Times(times), _) => make(&Change::Times(times.clone())),
            (Replaced::Value(Some(value)), Change::Set(name, ..) | Change::Remove(name)) => {
                make(&Change::Set(name, value, XattrFlags::empty()))
            }
            (Replaced::Value(_), Change::Set(name, ..) | Change::Remove(name)) => make(&Change::Remove(name)),
            (Replaced::Value(_), _) => Ok(()),
        };
        // Set-user-id and capabilities would give the wrong owner's privileges to whoever executes the
        // file.
        if result.is_err() && matches!(self.value, Replaced::Owner(..)) {
            return result;
        }
        let capabilities = self
            .capabilities
            .as_ref()
            .map_or(Ok(()), |value| make(&Change::Set(file::CAPABILITIES.to_bytes(), value, XattrFlags::empty())));
        let mode = self.mode.map_or(Ok(()), |mode| make(&Change::Mode(mode)));
        result.and(capabilities).and(mode)
    }
}

fn get(link: &[u8], name: &[u8]) -> Result<Option<Vec<u8>>> {
    let mut value = alloc::vec![0; XATTR_BYTES_MAX];
    match getxattr(link, name, value.as_mut_slice()) {
        Ok(bytes) => {
            value.truncate(bytes);
            Ok(Some(value))
        }
        Err(OsError::NODATA) => Ok(None),
        Err(error) => Err(error),
    }
}

fn owner_change(owner: u32, group: u32) -> Change<'static> {
    let given = |id: u32| Some(id).filter(|&id| id != u32::MAX);
    Change::Owner(given(owner).map(Uid::from_raw), given(group).map(Gid::from_raw))
}

fn refuse_own(name: &[u8]) -> Result<()> {
    if name == ATTRIBUTE_NAME.to_bytes() { Err(OsError::PERM) } else { Ok(()) }
}
