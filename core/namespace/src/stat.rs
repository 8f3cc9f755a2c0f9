//! What a program is told about a file or directory: the anchor's values, with the array's size and
//! time.
//!
//! The anchor's own size says nothing about a striped file: the logical size is the runtime
//! segment's or the inode table's. Space is allocated alike on all members, so the anchor's blocks
//! times their number are the file's. If there was a write whose time the members do not know yet,
//! that write gives modification and change time.

use crate::absent::identity;
use crate::everywhere::{On, is_dead};
use crate::remembered::Epochs;
use crate::resolve::Found;
use crate::{Namespace, Node, ProgramPath, Reached};
use alloc::vec::Vec;
use dax::Held;
use file::{Name, Told};
use format::Attribute;
use sys::rustix::fs::{
    Access, AtFlags, CWD, FileType, OFlags, Stat, Statx, StatxFlags, accessat, fstat, major, makedev, minor, readlinkat, statat,
    statx,
};
use sys::{AsFd, AsRawFd, BorrowedFd, OsError, Result};
use units::{MemberSet, PAGE_BYTES};

const LOOK: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
/// How often something is looked for anew that members contradict.
const LOOK_COUNT: u32 = 40;
const NS_PER_SECOND: u64 = 1_000_000_000;
/// What is asked for besides: to know the file.
const IDENTITY: StatxFlags = StatxFlags::TYPE.union(StatxFlags::INO);

/// What the array knows better than the anchor.
#[derive(Clone, Copy)]
pub(crate) struct Known {
    told: Told,
    nameless: bool,
}

impl Namespace {
    /// stat(2), lstat(2), newfstatat(2).
    pub fn stat<'p>(&self, path: impl Into<ProgramPath<'p>>, follow: bool) -> Result<Reached<Stat>> {
        let (path, sequence) = (path.into(), self.names_sequence());
        if let Some((epochs, stat)) =
            self.look(path, |directory, name, flags| statat(directory, name, flags | AtFlags::NO_AUTOMOUNT))?
            && let identity = [stat.st_dev, stat.st_ino]
            && let remembered = self.remembered(stat.st_mode, identity, follow, epochs)
            && let Some(known) = remembered.or_else(|| self.read_by_name(path, stat.st_mode, identity, epochs, sequence))
        {
            return Ok(Reached::Array(self.told(stat, known)));
        }
        self.look_longer(path, follow, |found| {
            let (stat, known) = self.ask(found.fd.as_fd(), &Node::Path(None))?;
            let known = known?;
            Ok((identity(&stat), known.is_some(), self.told(stat, known)))
        })
    }

    /// Finds what a path leads to and asks about it, until no member contradicts: `ask` gives its
    /// identity, whether it is a file of the array, and the answer.
    fn look_longer<T>(
        &self,
        path: ProgramPath<'_>,
        follow: bool,
        ask: impl Fn(&Found) -> Result<([u64; 3], bool, T)>,
    ) -> Result<Reached<T>> {
        for _ in 0..LOOK_COUNT {
            let epochs = self.epochs();
            // That members contradict each other is no failure of the one that is asked, though the
            // error is the same.
            let looked = self.on_first(|_| match self.find(path, LOOK, follow) {
                Ok(Reached::Array(found)) => ask(&found).map(|asked| Ok(Reached::Array((found.path, asked)))),
                Ok(Reached::Host(path)) => Ok(Ok(Reached::Host(path))),
                Err(error) => Ok(Err(error)),
            })??;
            let (path, (identity, is_known, answer)) = match looked {
                Reached::Array(found) => found,
                Reached::Host(path) => return Ok(Reached::Host(path)),
            };
            let is_contradicted = match FileType::from_raw_mode(identity[2] as u32) {
                FileType::RegularFile => !is_known && self.is_foreign_contradicted(&path)?,
                _ => self.is_contradicted(&path, identity, epochs)?,
            };
            if !is_contradicted {
                return Ok(Reached::Array(answer));
            }
        }
        Err(OsError::IO)
    }

    /// Asks the kernel about a path whose directory is known to be reached without symlinks. None,
    /// and errors but that nothing is there, are left to the longer way.
    fn look<T>(
        &self,
        path: ProgramPath<'_>,
        ask: impl Fn(BorrowedFd<'_>, &[u8], AtFlags) -> Result<T>,
    ) -> Result<Option<(Epochs, T)>> {
        let Some(epochs) = self.epochs() else { return Ok(None) };
        let Some(parent) = self.plain_parent(path.text()) else { return Ok(None) };
        if !path.is_known(parent.len()) && !self.is_remembered(parent, epochs) {
            return Ok(None);
        }
        let ask_on = |on: &On| match path.on(on.slot) {
            Some((directory, rest)) => ask(directory, rest, AtFlags::SYMLINK_NOFOLLOW).map(Some),
            None if path.known_part().is_empty() => ask(on.root.as_fd(), &path.text()[1..], AtFlags::SYMLINK_NOFOLLOW).map(Some),
            // The kernel would follow symlinks in what is known.
            None => Ok(None),
        };
        let answer = match self.asking_first(ask_on) {
            // Asking the other members costs no more than looking once more.
            Err(OsError::NOENT) if !self.is_denied(path.text()) && self.epochs() == Some(epochs) => {
                return Err(OsError::NOENT);
            }
            answer => answer.ok().flatten(),
        };
        // The answer stands if nothing was changed meanwhile.
        Ok(answer.filter(|_| self.epochs() == Some(epochs)).map(|answer| (epochs, answer)))
    }

    /// What is known of what [`Self::look`] has found. None if it must be looked at again: a
    /// symlink that is to be followed, or a file not met before.
    fn remembered(&self, mode: u32, backing: [u64; 2], follow: bool, epochs: Epochs) -> Option<Option<Known>> {
        match FileType::from_raw_mode(mode) {
            FileType::Symlink if follow => None,
            FileType::RegularFile => {
                let attribute = self.remembered_attribute(backing, epochs)?;
                Some(Some(Known { told: self.files.told_of_named(attribute)?, nameless: false }))
            }
            _ => self.is_confirmed(&[backing[0], backing[1], mode.into()], epochs).then_some(None),
        }
    }

    /// Returns what is known of a file that [`Self::look`] has found and that this process has not met
    /// before. To know the file, this function reads the file's attribute by its name. `sequence` was
    /// read before that look ([`Self::names_sequence`]): the name leads to the same file still only if
    /// no name was made or changed since. The result is None if one was, or if the file must be looked
    /// at longer.
    #[cold]
    fn read_by_name(
        &self,
        path: ProgramPath<'_>,
        mode: u32,
        backing: [u64; 2],
        epochs: Epochs,
        sequence: u64,
    ) -> Option<Option<Known>> {
        if FileType::from_raw_mode(mode) != FileType::RegularFile {
            return None;
        }
        let read = |directory: BorrowedFd<'_>, name: &[u8], _| crate::backing::attribute_below(directory, name);
        let (epochs_after, attribute) = self.look(path, read).ok()??;
        let attribute = attribute.filter(|_| epochs_after == epochs && self.names_sequence() == sequence)?;
        let among = MemberSet::first(self.array().members().len());
        if self.files.is_backing_of(attribute, backing, among) != Some(true) {
            return None;
        }
        self.remember_attribute(backing, attribute, epochs);
        Some(Some(Known { told: self.files.told_of_named(attribute)?, nameless: false }))
    }

    /// fstat(2).
    pub fn fstat(&self, fd: BorrowedFd<'_>, node: &Node) -> Result<Stat> {
        let (stat, known) = self.ask(fd, node)?;
        Ok(self.told(stat, known.unwrap_or(None)))
    }

    /// As [`Self::fstat`], but fails where a member that has failed can only tell what its own
    /// backing file is like.
    pub fn fstat_surely(&self, fd: BorrowedFd<'_>, node: &Node) -> Result<Stat> {
        let (stat, known) = self.ask(fd, node)?;
        Ok(self.told(stat, known?))
    }

    /// What the kernel says of a descriptor, and what the array knows of the file; None if it is
    /// none of the array's. To ask the array may fail.
    pub(crate) fn ask(&self, fd: BorrowedFd<'_>, node: &Node) -> Result<(Stat, Result<Option<Known>>)> {
        let (epochs, held) = (self.epochs(), current(fd, node)?);
        let fd = held.as_fd();
        let stat = fstat(fd)?;
        if let Node::File(file) = node {
            let ns = |seconds: i64, rest: u64| (seconds.max(0) as u64).saturating_mul(NS_PER_SECOND).saturating_add(rest);
            file.note_times(ns(stat.st_mtime, stat.st_mtime_nsec), ns(stat.st_ctime, stat.st_ctime_nsec));
        }
        let known = self.known(fd, node, stat.st_mode, || [stat.st_dev, stat.st_ino], epochs);
        Ok((stat, known))
    }

    fn told(&self, mut stat: Stat, known: Option<Known>) -> Stat {
        self.note_told_time(stat.st_ctime, stat.st_ctime_nsec);
        let Some(Known { told, nameless }) = known else { return stat };
        stat.st_size = told.size as i64;
        if let Some([device, inode]) = told.identity {
            (stat.st_dev, stat.st_ino) = (device, inode);
        }
        if nameless {
            stat.st_nlink = 0;
        }
        stat.st_blocks = blocks(stat.st_blocks as u64, told) as i64;
        if let Some(ns) = told.modified_ns {
            let (seconds, nanoseconds) = ((ns / NS_PER_SECOND) as i64, ns % NS_PER_SECOND);
            (stat.st_mtime, stat.st_mtime_nsec) = (seconds, nanoseconds);
            if (stat.st_ctime, stat.st_ctime_nsec) < (seconds, nanoseconds) {
                (stat.st_ctime, stat.st_ctime_nsec) = (seconds, nanoseconds);
            }
        }
        stat
    }

    /// statx(2) with a path. `flags` are AT_STATX_* and AT_NO_AUTOMOUNT.
    pub fn statx<'p>(
        &self,
        path: impl Into<ProgramPath<'p>>,
        flags: AtFlags,
        mask: StatxFlags,
        follow: bool,
    ) -> Result<Reached<Statx>> {
        let (path, sequence) = (path.into(), self.names_sequence());
        let ask = |directory: BorrowedFd<'_>, name: &[u8], kind: AtFlags| statx(directory, name, flags | kind, mask | IDENTITY);
        if let Some((epochs, stat)) = self.look(path, ask)?
            && let (mode, identity) = (stat.stx_mode.into(), backing_of(&stat))
            && let remembered = self.remembered(mode, identity, follow, epochs)
            && let Some(known) = remembered.or_else(|| self.read_by_name(path, mode, identity, epochs, sequence))
        {
            return Ok(Reached::Array(self.told_more(stat, known)));
        }
        self.look_longer(path, follow, |found| {
            let (stat, known) = self.ask_more(found.fd.as_fd(), &Node::Path(None), flags, mask)?;
            let (known, [device, inode]) = (known?, backing_of(&stat));
            Ok(([device, inode, stat.stx_mode.into()], known.is_some(), self.told_more(stat, known)))
        })
    }

    /// statx(2) with AT_EMPTY_PATH.
    pub fn fstatx(&self, fd: BorrowedFd<'_>, node: &Node, flags: AtFlags, mask: StatxFlags) -> Result<Statx> {
        let (stat, known) = self.ask_more(fd, node, flags, mask)?;
        Ok(self.told_more(stat, known.unwrap_or(None)))
    }

    /// As [`Self::fstatx`], but fails where a member that has failed can only tell what its own
    /// backing file is like.
    pub fn fstatx_surely(&self, fd: BorrowedFd<'_>, node: &Node, flags: AtFlags, mask: StatxFlags) -> Result<Statx> {
        let (stat, known) = self.ask_more(fd, node, flags, mask)?;
        Ok(self.told_more(stat, known?))
    }

    fn ask_more(
        &self,
        fd: BorrowedFd<'_>,
        node: &Node,
        flags: AtFlags,
        mask: StatxFlags,
    ) -> Result<(Statx, Result<Option<Known>>)> {
        let (epochs, held) = (self.epochs(), current(fd, node)?);
        let fd = held.as_fd();
        let stat = statx(fd, c"", flags | AtFlags::EMPTY_PATH, mask | IDENTITY)?;
        if let Node::File(file) = node {
            let ns = |seconds: i64, rest: u32| (seconds.max(0) as u64).saturating_mul(NS_PER_SECOND).saturating_add(rest.into());
            file.note_times(ns(stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec), ns(stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec));
        }
        let known = self.known(fd, node, stat.stx_mode.into(), || backing_of(&stat), epochs);
        Ok((stat, known))
    }

    /// Notes that a program is told when something was changed: no write has an earlier time from now
    /// on.
    fn note_told_time(&self, seconds: i64, nanoseconds: u64) {
        self.array().runtime().note_told_time((seconds.max(0) as u64).saturating_mul(NS_PER_SECOND).saturating_add(nanoseconds));
    }

    fn told_more(&self, mut stat: Statx, known: Option<Known>) -> Statx {
        self.note_told_time(stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec.into());
        let Some(Known { told, nameless }) = known else { return stat };
        stat.stx_size = told.size;
        if let Some([device, inode]) = told.identity {
            (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino) = (major(device), minor(device), inode);
        }
        if nameless {
            stat.stx_nlink = 0;
        }
        stat.stx_blocks = blocks(stat.stx_blocks, told);
        if let Some(ns) = told.modified_ns {
            let (seconds, nanoseconds) = ((ns / NS_PER_SECOND) as i64, (ns % NS_PER_SECOND) as u32);
            (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec) = (seconds, nanoseconds);
            if (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec) < (seconds, nanoseconds) {
                (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec) = (seconds, nanoseconds);
            }
        }
        stat
    }

    /// None if the anchor knows best: it is no file, or one that is none of the array's or not
    /// readable by the program.
    ///
    /// # Errors
    /// If the member's file system has failed: what that says of the file's length is the backing
    /// file's.
    fn known(
        &self,
        fd: BorrowedFd<'_>,
        node: &Node,
        mode: u32,
        backing: impl Fn() -> [u64; 2],
        epochs: Option<Epochs>,
    ) -> Result<Option<Known>> {
        Ok(match node {
            Node::File(file) => Some(Known { told: file.told(), nameless: file.name() != Name::Has }),
            Node::Path(_) if FileType::from_raw_mode(mode) == FileType::RegularFile => {
                let attribute = match self.attribute_open(fd) {
                    Ok(Some(attribute)) => attribute,
                    Err(error) if is_dead(error) => return Err(error),
                    // Who may look at a file and not read it does not see its attribute either. The
                    // array's tables know whose the backing file is.
                    Err(OsError::ACCESS) => match self.attribute_unread(fd, backing(), epochs) {
                        Some(attribute) => attribute,
                        None => return Ok(None),
                    },
                    _ => return Ok(None),
                };
                if let Some(epochs) = epochs {
                    self.remember_attribute(backing(), attribute, epochs);
                }
                let Ok(told) = self.files.told(attribute) else { return Ok(None) };
                Some(Known { told, nameless: self.files.lacks_name(attribute) })
            }
            _ => None,
        })
    }

    /// The attribute of a file that this process may not read, by its backing file's device and
    /// number: what this process remembers, what others have open, or what the tables of all files
    /// say.
    fn attribute_unread(&self, fd: BorrowedFd<'_>, backing: [u64; 2], epochs: Option<Epochs>) -> Option<Attribute> {
        let remembered = || self.remembered_attribute(backing, epochs?);
        let in_table = || self.files.attribute_in_table(self.slot_of(fd)?, fd);
        remembered().or_else(|| self.files.attribute_of_anchor(fd)).or_else(in_table)
    }

    /// access(2), faccessat2(2). `flags` may hold AT_EACCESS.
    pub fn access<'p>(
        &self,
        path: impl Into<ProgramPath<'p>>,
        access: Access,
        flags: AtFlags,
        follow: bool,
    ) -> Result<Reached<()>> {
        self.asking_found(path.into(), follow, |found| {
            accessat(CWD, crate::descriptor::link(found.fd.as_raw_fd()), access, flags & AtFlags::EACCESS)
        })
    }

    /// Asks about what a path leads to. If the member on which that was found has failed, it goes
    /// out, and the path is looked up once more.
    pub(crate) fn asking_found<T>(
        &self,
        path: ProgramPath<'_>,
        follow: bool,
        mut ask: impl FnMut(&Found) -> Result<T>,
    ) -> Result<Reached<T>> {
        loop {
            let found = match self.find(path, LOOK, follow)? {
                Reached::Array(found) => found,
                Reached::Host(path) => return Ok(Reached::Host(path)),
            };
            match ask(&found) {
                Err(error) if self.array().has_member_failed(found.slot, error) => self.array().spare(found.slot, error)?,
                result => return result.map(Reached::Array),
            }
        }
    }

    /// readlink(2): the whole target.
    pub fn readlink<'p>(&self, path: impl Into<ProgramPath<'p>>) -> Result<Reached<Vec<u8>>> {
        self.look_longer(path.into(), false, |found| match readlinkat(&found.fd, c"", Vec::new()) {
            // Of what is no symlink the kernel says that an empty path leads nowhere.
            Err(OsError::NOENT) => Ok((identity(&fstat(&found.fd)?), true, Err(OsError::INVAL))),
            result => result.and_then(|target| Ok((identity(&fstat(&found.fd)?), true, Ok(target.into_bytes())))),
        })?
        .and_then(|target| target)
    }
}

/// The descriptor that knows a file or directory: an anchor on a member that went out of use does
/// not see what happens to the others.
pub(crate) fn current<'a>(fd: BorrowedFd<'a>, node: &'a Node) -> Result<Held<'a>> {
    match node {
        Node::File(file) => file.current(fd),
        _ => Ok(Held::borrowed(node.twin().map_or(fd, |twin| twin.present(fd)))),
    }
}

fn backing_of(stat: &Statx) -> [u64; 2] {
    [makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino]
}

/// The blocks of 512 bytes that a file's data take, without redundancy, and without what its last
/// stripe has behind the end. `own` are the first member's.
fn blocks(own: u64, told: Told) -> u64 {
    (own * told.data_columns).min(told.size.div_ceil(PAGE_BYTES as u64) * (PAGE_BYTES as u64 / 512))
}
