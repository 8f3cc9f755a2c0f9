//! Changes of names: directories, links, removal, renaming.

use crate::absent::AGAIN;
use crate::create::is_dots;
use crate::everywhere::{On, Undo};
use crate::located::Located;
use crate::log::change as record;
use crate::resolve::without_slashes;
use crate::target::Target;
use crate::{Namespace, Node, ProgramPath, Reached};
use alloc::vec::Vec;
use file::Name;
use format::{Attribute, InodeState, NameKind, NameRecord};
use sys::rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Stat, ftruncate, linkat, mkdirat, mknodat, openat, renameat_with, statat,
    symlinkat, unlinkat,
};
use sys::{AsFd, AsRawFd, BorrowedFd, OsError, OwnedFd, Result};

/// The host paths of a call that takes two, if neither is the array's.
pub type HostPair = (Vec<u8>, Vec<u8>);

impl Namespace {
    /// mkdir(2). The kernel applies the umask.
    pub fn mkdir<'p>(&self, path: impl Into<ProgramPath<'p>>, mode: u32) -> Result<Reached<()>> {
        self.change_name(path.into(), |target| {
            let mode = Mode::from_raw_mode(mode & 0o7777);
            let make = || self.make_everywhere(target, AtFlags::REMOVEDIR, |_, at| mkdirat(at.directory(), at.name(), mode));
            self.logged(record(NameKind::Make, &target.path, None), make)
        })
    }

    /// rmdir(2). The array's prefixes are busy, as mount points are.
    pub fn rmdir<'p>(&self, path: impl Into<ProgramPath<'p>>) -> Result<Reached<()>> {
        self.change_name(path.into(), |target| {
            self.refuse_prefix(target)?;
            self.foresee(target)?;
            let act = |on: &On| {
                let at = target.on(on)?;
                match unlinkat(at.directory(), at.name(), AtFlags::REMOVEDIR) {
                    Err(OsError::NOENT) if !on.first => Ok(()),
                    Err(OsError::NOTEMPTY | OsError::NOTDIR) if !on.first => self.clear_unproven(on.slot, &at, &target.path),
                    result => result,
                }
            };
            self.logged(record(NameKind::RemoveDirectory, &target.path, None), || self.everywhere(&[&target.path], act, None))
        })
    }

    /// unlink(2). The file's data go with its last name and descriptor.
    pub fn unlink<'p>(&self, path: impl Into<ProgramPath<'p>>) -> Result<Reached<()>> {
        self.change_name(path.into(), |target| {
            self.foresee(target)?;
            let (file, last) = self.file_and_last(target, self.stat_of(target));
            let act = |on: &On| {
                let at = target.on(on)?;
                match unlinkat(at.directory(), at.name(), AtFlags::empty()) {
                    Err(OsError::NOENT) if !on.first => Ok(()),
                    Err(OsError::ISDIR | OsError::PERM) if !on.first => self.clear_unproven(on.slot, &at, &target.path),
                    result => result,
                }
            };
            let gone = self.last_name(target, last);
            let record = NameRecord { replaced: last, ..record(NameKind::Unlink, &target.path, file) };
            self.logged(record, || self.forgetting(gone, self.everywhere(&[&target.path], act, None)))
        })
    }

    /// symlink(2). `contents` is stored as it is.
    pub fn symlink<'p>(&self, contents: &[u8], path: impl Into<ProgramPath<'p>>) -> Result<Reached<()>> {
        self.change_name(path.into(), |target| {
            let make = |_: &On, at: &Located<'_>| symlinkat(contents, at.directory(), at.name());
            let make = || self.restructuring(|| self.make_everywhere(target, AtFlags::empty(), make));
            self.logged(record(NameKind::Make, &target.path, None), make)
        })
    }

    /// mknod(2): a pipe, socket or device on every member, a regular file as open(2) makes it. The
    /// anchor's alone is used.
    pub fn mknod<'p>(&self, path: impl Into<ProgramPath<'p>>, kind: FileType, mode: u32, device: u64) -> Result<Reached<()>> {
        let path = path.into();
        if kind == FileType::RegularFile {
            if let Some(refusal) = self.refusal_to_make(path) {
                return refusal;
            }
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            return self.open(path, flags, mode)?.and_then(|_| Ok(()));
        }
        if matches!(kind, FileType::Directory) {
            return Err(OsError::PERM);
        }
        self.change_name(path, |target| {
            let mode = Mode::from_raw_mode(mode & 0o7777);
            let make = |_: &On, at: &Located<'_>| mknodat(at.directory(), at.name(), kind, mode, device);
            let make = || self.make_everywhere(target, AtFlags::empty(), make);
            self.logged(record(NameKind::Make, &target.path, None), make)
        })
    }

    /// rename(2), renameat2(2) with NOREPLACE and EXCHANGE.
    ///
    /// # Errors
    /// `XDEV` across the array's border; `BUSY` for a prefix.
    pub fn rename<'p>(
        &self,
        from: impl Into<ProgramPath<'p>>,
        to: impl Into<ProgramPath<'p>>,
        flags: RenameFlags,
    ) -> Result<Reached<(), HostPair>> {
        let (from, to) = (from.into(), to.into());
        let renamed = self.changing_two(from, to, |from, to| {
            let from = self.target(from)?;
            if let Reached::Host(path) = &from {
                self.look_at_directory_at_host(path)?;
            }
            both(from, self.target(to)?)?.and_then(|(from, to)| {
                self.refuse_prefix(&from)?;
                self.refuse_prefix(&to)?;
                self.rename_targets(&from, &to, flags)
            })
        });
        // The kernel looks for the directory of the first path, and whether it may be searched,
        // before it looks at the second path.
        match renamed {
            Err(error) => Err(self.look_at_directory_of(from).err().unwrap_or(error)),
            renamed => renamed,
        }
    }

    /// Finds the directory of the name that `path` ends with, and looks whether this process may
    /// search it.
    ///
    /// # Errors
    /// What the kernel says of a directory that is not there or may not be searched.
    pub fn look_at_directory_of<'p>(&self, path: impl Into<ProgramPath<'p>>) -> Result<()> {
        self.changing_at(path.into(), |path| match self.target(path)? {
            Reached::Array(target) => self.asking_first(|on| {
                let at = target.on(on)?;
                statat(at.directory(), c".", AtFlags::empty()).map(|_| ())
            }),
            Reached::Host(path) => self.look_at_directory_at_host(&path),
        })
    }

    /// Refuses a path of the host whose last component is in nothing that is a directory. A path
    /// that leads on into the array is not refused: the caller finds out what is there, since a
    /// name of the array and one outside it are apart.
    fn look_at_directory_at_host(&self, path: &[u8]) -> Result<()> {
        let cut = without_slashes(path).iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let (directory, _) = path.split_at_checked(cut).unwrap_or((path, b""));
        match openat(CWD, directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
            Err(OsError::NOENT | OsError::NOTDIR) if self.entered_from_host(directory, true).is_some() => Ok(()),
            found => found.map(|_| ()),
        }
    }

    fn rename_targets(&self, from: &Target<'_>, to: &Target<'_>, flags: RenameFlags) -> Result<()> {
        let (source, replaced) = (self.stat_of(from), self.stat_of(to));
        let served = RenameFlags::NOREPLACE | RenameFlags::EXCHANGE;
        if flags.bits() & !served.bits() != 0 {
            // A file system that lacks a flag (RENAME_WHITEOUT) refuses it after it has looked at
            // the names. Names that are `.` or `..` the kernel refuses before, whatever the flags.
            if [from, to].iter().any(|target| is_dots(without_slashes(target.relative()))) {
                return self.asking_first(|on| renamed(&from.on(on)?, &to.on(on)?, flags & served));
            }
            // A path may begin at a descriptor that is none of a directory.
            self.asking_first(|on| {
                for target in [from, to] {
                    statat(target.on(on)?.directory(), c".", AtFlags::empty())?;
                }
                Ok(())
            })?;
            return Err(match (source, replaced) {
                (None, _) => OsError::NOENT,
                (_, Some(_)) if flags.contains(RenameFlags::NOREPLACE) => OsError::EXIST,
                (Some(source), Some(replaced)) if is_directory(&source) && !is_directory(&replaced) => OsError::NOTDIR,
                (Some(source), Some(replaced)) if !is_directory(&source) && is_directory(&replaced) => OsError::ISDIR,
                _ => OsError::INVAL,
            });
        }
        let same = matches!((source, replaced), (Some(a), Some(b)) if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino));
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let (there, last_there) = self.file_and_last(to, replaced);
        let last = if same || exchange { None } else { last_there };
        let record = NameRecord {
            exchange,
            replaced: if exchange { there } else { last },
            to: &to.path,
            ..record(NameKind::Rename, &from.path, self.file_and_last(from, source).0)
        };
        let act = |on: &On| {
            // Made twice, an exchange would be none.
            if exchange && on.caught_up {
                return Ok(());
            }
            let (source, goal) = (from.on(on)?, to.on(on)?);
            let rename = || renamed(&source, &goal, flags);
            match rename() {
                // Left over from a change cut short.
                Err(OsError::EXIST | OsError::NOTEMPTY | OsError::ISDIR | OsError::NOTDIR) if !on.first && !exchange => {
                    self.clear_unproven(on.slot, &goal, &to.path)?;
                    rename()
                }
                result => result,
            }
        };
        let back = |on: &On| renamed(&to.on(on)?, &from.on(on)?, flags);
        // A rename that replaces something cannot be undone: the replaced file is gone from the
        // members that have made it.
        let undo: Option<Undo<'_>> = if replaced.is_none() || exchange { Some(&back) } else { None };
        let rename = || self.everywhere(&[&from.path, &to.path], act, undo);
        // Files on their own are on nobody's way.
        let is_apart = is_file(source) && (!exchange || is_file(replaced));
        if same {
            // Two names of one file stay as they are (rename(2)): nothing is to be done on the
            // others or done again, and nobody could tell that it was done. The first member says
            // whether the program may.
            return self.asking_first(|on| renamed(&from.on(on)?, &to.on(on)?, flags));
        }
        if undo.is_none() {
            self.foresee_replacement(from, to)?;
        }
        let gone = self.last_name(to, last);
        self.logged(record, || self.forgetting(gone, if is_apart { rename() } else { self.restructuring(rename) }))
    }

    /// link(2), linkat(2): another name for what `from` names, or with `follow` for what a symlink
    /// there leads to.
    pub fn link<'p>(
        &self,
        from: impl Into<ProgramPath<'p>>,
        to: impl Into<ProgramPath<'p>>,
        follow: bool,
    ) -> Result<Reached<(), HostPair>> {
        self.changing_two(from.into(), to.into(), |from, to| self.link_locked(from, to, follow))
    }

    /// Does what [`Self::link`] does; the namespace lock is held, and the paths are as they are
    /// called now.
    fn link_locked(&self, from: ProgramPath<'_>, to: ProgramPath<'_>, follow: bool) -> Result<Reached<(), HostPair>> {
        // A slash behind the name means the directory that a symlink there leads to.
        let follow = follow || from.text().ends_with(b"/") || is_dots(from.text());
        let from = if follow {
            let found = self.find(from, OFlags::PATH | OFlags::CLOEXEC, true)?;
            found.and_then(|found| Ok(Target::new(from, found.path, false)))?
        } else {
            self.target(from)?
        };
        let stat = match &from {
            // What is to have another name is looked at before the place of that.
            Reached::Array(from) => Some(self.doubting(&from.path, || self.asking_first(|on| from.on(on)?.stat()))?),
            Reached::Host(_) => None,
        };
        let to = self.target(to);
        if to.is_err() && matches!(from, Reached::Host(_)) {
            // The first path is to be looked at first: whoever knows the host does that.
            return Err(OsError::XDEV);
        }
        both(from, to?)?.and_then(|(from, to)| {
            let make = |on: &On, goal: &Located<'_>| {
                let source = from.on(on)?;
                match linkat(source.directory(), source.name(), goal.directory(), goal.name(), AtFlags::empty()) {
                    // Somebody has removed the source on this member by hand, after it was
                    // looked at.
                    Err(OsError::NOENT) if on.first && self.is_denied(&from.path) && self.arbitrate_locked(&from.path)? => {
                        Err(AGAIN)
                    }
                    // A directory, or what is another user's, has the file's place on this
                    // member.
                    Err(OsError::PERM) if !on.first => Err(OsError::NOENT),
                    result => result,
                }
            };
            let link = || self.make_everywhere(&to, AtFlags::empty(), make);
            let record = NameRecord { to: &to.path, ..record(NameKind::Link, &from.path, self.file_and_last(&from, stat).0) };
            let is_apart = is_file(stat);
            self.logged(record, || if is_apart { link() } else { self.restructuring(link) })
        })
    }

    /// Runs a change of where directories or symlinks lie.
    pub(crate) fn restructuring<T>(&self, change: impl FnOnce() -> T) -> T {
        self.array().runtime().restructuring(change)
    }

    /// linkat(2) with AT_EMPTY_PATH or through /proc/self/fd: gives an open file a name, also one
    /// made with O_TMPFILE.
    pub fn link_descriptor<'p>(&self, fd: BorrowedFd<'_>, node: &Node, to: impl Into<ProgramPath<'p>>) -> Result<Reached<()>> {
        let to = to.into();
        let opened = match node {
            Node::Path(_) if is_file(sys::rustix::fs::fstat(fd).ok()) => match self.link_by_name(fd, to)? {
                Some(linked) => return Ok(linked),
                // What only names a file may have another name by now.
                None => Some(self.file_open_as(fd, node, false)?),
            },
            _ => None,
        };
        let ((Node::File(file), _) | (_, Some(file))) = (node, &opened) else {
            if matches!(FileType::from_raw_mode(sys::rustix::fs::fstat(fd)?.st_mode), FileType::Directory) {
                // The kernel looks at the new name first.
                return self.change_name(to, |target| {
                    let is_for_directory = to.text().ends_with(b"/");
                    match self.asking_first(|on| target.on(on)?.stat()) {
                        Ok(_) => Err(OsError::EXIST),
                        Err(OsError::NOENT) if !is_for_directory => Err(OsError::PERM),
                        Err(error) => Err(error),
                    }
                });
            }
            let missing = if self.logical_path_of(fd)?.is_some() { OsError::NOENT } else { OsError::XDEV };
            return self.link_by_name(fd, to)?.ok_or(missing);
        };
        self.change_name(to, |target| {
            // The kernel looks at the new name first.
            if matches!(file.name(), Name::Lost | Name::Never) {
                return Err(if self.is_there(target) { OsError::EXIST } else { OsError::NOENT });
            }
            let make = |on: &On, at: &Located<'_>| {
                let apart;
                let held;
                let own = match file.backing_on(on.slot) {
                    Some(backing) => {
                        held = backing.fd()?;
                        held.as_fd()
                    }
                    None if file.without().contains(on.slot) => {
                        held = file.current(fd)?;
                        apart = self.apart(on, held.as_fd(), file)?.ok_or(OsError::IO)?;
                        apart.as_fd()
                    }
                    None => return Err(OsError::IO),
                };
                let from = crate::descriptor::link(own.as_raw_fd());
                match linkat(CWD, from.as_slice(), at.directory(), at.name(), AtFlags::SYMLINK_FOLLOW) {
                    // The kernel gives no name to what has lost all of its names, be it by hand.
                    Err(OsError::NOENT) if on.first && self.is_settled_anew(own, file.attribute())? => Err(AGAIN),
                    result => result,
                }
            };
            let record = NameRecord { to: &target.path, ..record(NameKind::Link, b"", Some(file.attribute())) };
            self.logged(record, || {
                self.make_everywhere(target, AtFlags::empty(), make)?;
                self.files.linked(file.attribute());
                Ok(())
            })
        })
    }

    /// Gives what a descriptor names another name, by the name that the kernel knows it by; None if
    /// that does not lead there. While the namespace lock is held no program renames it.
    fn link_by_name(&self, fd: BorrowedFd<'_>, to: ProgramPath<'_>) -> Result<Option<Reached<()>>> {
        self.changing_at(to, |to| {
            let Some(from) = self.logical_path_of(fd)?.filter(|path| self.leads_to(path, fd)) else { return Ok(None) };
            match self.link_locked(ProgramPath::known(&from), to, false)? {
                Reached::Array(()) => Ok(Some(Reached::Array(()))),
                Reached::Host(_) => Err(OsError::XDEV),
            }
        })
    }

    fn change_name(&self, path: ProgramPath<'_>, change: impl Fn(&Target<'_>) -> Result<()>) -> Result<Reached<()>> {
        self.changing_at(path, |path| self.target(path)?.and_then(|target| change(&target)))
    }

    /// Runs a change alone among all changes of names, with what its path is called meanwhile.
    pub(crate) fn changing_at<T>(&self, path: ProgramPath<'_>, change: impl Fn(ProgramPath<'_>) -> Result<T>) -> Result<T> {
        self.changing(|| self.with_present(path, &change))
    }

    /// Runs a change with two paths alone among all changes of names.
    fn changing_two<T>(
        &self,
        from: ProgramPath<'_>,
        to: ProgramPath<'_>,
        change: impl Fn(ProgramPath<'_>, ProgramPath<'_>) -> Result<T>,
    ) -> Result<T> {
        let result = self.changing(|| self.with_present(from, |from| self.with_present(to, |to| change(from, to))));
        // What is wrong with the first path the kernel says first.
        if result.is_err() && from.starts_at_no_directory() { Err(OsError::NOTDIR) } else { result }
    }

    fn refuse_prefix(&self, target: &Target<'_>) -> Result<()> {
        if self.is_prefix(&target.path) { Err(OsError::BUSY) } else { Ok(()) }
    }

    fn stat_of(&self, target: &Target<'_>) -> Option<Stat> {
        self.asking_first(|on| target.on(on)?.stat()).ok()
    }

    /// The attribute of what has this name, if it is a file; and once more if the file has no other
    /// name. `stat` is what the first member says of it.
    pub(crate) fn file_and_last(&self, target: &Target<'_>, stat: Option<Stat>) -> (Option<Attribute>, Option<Attribute>) {
        let Some(stat) = stat.filter(|&stat| is_file(Some(stat))) else { return (None, None) };
        let backing = [stat.st_dev, stat.st_ino];
        let remembered = self.epochs().and_then(|epochs| self.remembered_attribute(backing, epochs));
        let named = remembered.filter(|&attribute| self.files.told_of_named(attribute).is_some());
        // An attribute that its owner has written may name a file that is gone, or only going to be
        // made.
        let is_in_use = |&attribute: &Attribute| self.files.state_of(attribute) == Some(InodeState::Used);
        let found = || self.asking_first(|on| self.attribute_at(on.slot, &target.on(on)?)).ok().flatten().filter(is_in_use);
        let file = named.or_else(found);
        (file, file.filter(|_| stat.st_nlink == 1))
    }

    /// A file that is about to lose its last name.
    pub(crate) fn last_name(&self, target: &Target<'_>, last: Option<Attribute>) -> Option<LastName> {
        let attribute = last?;
        let kept = if self.files.is_kept_elsewhere(attribute) { self.backing_to_cut(target, attribute) } else { Vec::new() };
        Some(LastName { attribute, kept, name: self.keep_if_open(target, attribute) })
    }

    /// The backing files of a file that other processes keep open, to be cut when it has no name
    /// any more. Empty if that is not permitted.
    fn backing_to_cut(&self, target: &Target<'_>, attribute: Attribute) -> Vec<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let open = |slot| {
            let on = On { slot, root: self.root(slot)?, first: false, afresh: false, caught_up: false };
            let fd = target.open(&on, flags, Mode::empty())?;
            if self.attribute_on(slot, &fd)? == Some(attribute) { Ok(fd) } else { Err(OsError::NOENT) }
        };
        self.array().in_use().iter().map(open).collect::<Result<_>>().unwrap_or_default()
    }

    /// A file that is about to lose its last name is kept in `.cxlraid` if it is open. What cannot
    /// be linked there is of use only to those who have it open.
    fn keep_if_open(&self, target: &Target<'_>, attribute: Attribute) -> Name {
        let link = |slot: usize, path: &[u8]| {
            let root = self.root(slot)?;
            let at = target.on(&On { slot, root, first: false, afresh: false, caught_up: false })?;
            linkat(at.directory(), at.name(), root, path, AtFlags::empty())
        };
        let kept = self.files.is_open(attribute) && self.files.keep_orphan(attribute, link).is_ok();
        if kept { Name::Lost } else { Name::None }
    }

    /// The file has lost its last name, if the change was made. It is part of the change: once the
    /// members' positions are behind it, a crash would leave the record of a file that has no name.
    pub(crate) fn forgetting(&self, last: Option<LastName>, change: Result<()>) -> Result<()> {
        let Some(LastName { attribute, kept, name }) = last else { return change };
        if change.is_ok() {
            let cut = || !kept.is_empty() && kept.iter().all(|fd| ftruncate(fd, 0).is_ok());
            self.files.unlinked(attribute, name, cut);
        } else if name == Name::Lost {
            self.files.discard_orphan(attribute);
        }
        change
    }
}

/// Gives a name of one member another one.
pub(crate) fn rename_on(root: &OwnedFd, from: &[u8], to: &[u8], flags: RenameFlags) -> Result<()> {
    let source = Located::below(root.as_fd(), from)?;
    let goal = source.and(root, from, to)?;
    renamed(&source, &goal, flags)
}

/// Makes the kernel's call for a change of a name on one member.
pub(crate) fn renamed(source: &Located<'_>, goal: &Located<'_>, flags: RenameFlags) -> Result<()> {
    renameat_with(source.directory(), source.name(), goal.directory(), goal.name(), flags)
}

/// Takes a name of one member away.
pub(crate) fn remove_on(root: &OwnedFd, relative: &[u8], flags: AtFlags) -> Result<()> {
    let at = Located::below(root.as_fd(), relative)?;
    unlinkat(at.directory(), at.name(), flags)
}

/// Gives what has one name on a member a second one.
pub(crate) fn link_on(root: &OwnedFd, from: &[u8], to: &[u8]) -> Result<()> {
    let source = Located::below(root.as_fd(), from)?;
    let goal = source.and(root, from, to)?;
    linkat(source.directory(), source.name(), goal.directory(), goal.name(), AtFlags::empty())
}

/// A file whose last name is about to go.
pub(crate) struct LastName {
    attribute: Attribute,
    /// Whether it is kept in `.cxlraid`.
    name: Name,
    /// Its backing files, if other processes keep them open.
    kept: Vec<OwnedFd>,
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

fn is_file(stat: Option<Stat>) -> bool {
    stat.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}

fn both<'a>(from: Reached<Target<'a>>, to: Reached<Target<'a>>) -> Result<Reached<(Target<'a>, Target<'a>), HostPair>> {
    match (from, to) {
        (Reached::Array(from), Reached::Array(to)) => {
            let to = to.beside(&from);
            Ok(Reached::Array((from, to)))
        }
        (Reached::Host(from), Reached::Host(to)) => Ok(Reached::Host((from, to))),
        _ => Err(OsError::XDEV),
    }
}
