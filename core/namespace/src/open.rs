//! Opens files. The kernel opens the anchor with the program's flags, and its check of permissions
//! decides. The library then opens the backing files with flags of its own: for reading and writing
//! where that is permitted, with descriptor numbers that programs do not use, and only if this
//! process does not have the file open yet.
//!
//! First a file is looked for without a lock (not with O_EXCL). If the members disagree (a file is
//! being made, renamed or removed), or if the file is to be made, the namespace lock is taken and
//! the file is looked for again. If that cannot decide either, everything starts again, at most
//! [`TRY_COUNT`] times in all.

use crate::absent::{AGAIN, identity};
use crate::attributes::ANCHOR;
use crate::create::is_dots;
use crate::located::open_below;
use crate::mounts::INTERRUPTIBLE;
use crate::remembered::{Epochs, hash};
use crate::replay::Purpose;
use crate::resolve::{Found, without_slashes};
use crate::{Namespace, Node, Opened, ProgramPath, Reached, Twin};
use alloc::vec::Vec;
use core::cell::Cell;
use dax::Access;
use file::{BackingFds, FileRef};
use format::Attribute;
use sys::rustix::fs::{Access as FileAccess, AtFlags, CWD, FileType, Mode, OFlags, Stat, accessat, fstat, openat, statat};
use sys::waiting::NOT_MADE;
use sys::{AsFd as _, AsRawFd, OsError, OwnedFd, Result};
use units::Slot;

/// After so many tries an open gives up with BUSY: names have changed during each of them.
const TRY_COUNT: u32 = 8;
/// All flags that the kernel knows for opening. open(2) ignores other bits; who serves openat2(2)
/// refuses them.
pub(crate) const FLAGS_KNOWN: u32 = {
    const NOCTTY_ASYNC_LARGEFILE: u32 = 0o400 | 0o20_000 | 0o100_000;
    let known = OFlags::ACCMODE.union(OFlags::APPEND).union(OFlags::CREATE).union(OFlags::DIRECTORY).union(OFlags::SYNC);
    let known = known.union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::TRUNC);
    let known = known.union(OFlags::PATH).union(OFlags::CLOEXEC).union(OFlags::TMPFILE).union(OFlags::NOATIME);
    known.union(OFlags::DIRECT).bits() | NOCTTY_ASYNC_LARGEFILE
};
/// Flags with which the kernel would change one member alone: the anchor is opened without them.
pub(crate) const CHANGING: OFlags = OFlags::CREATE.union(OFlags::EXCL).union(OFlags::TRUNC);

/// Why something could not be opened.
pub(crate) enum Trouble {
    /// What lies there is not the file that was looked for, or not on all members: names are being
    /// changed, or a change was cut short.
    Changed,
    Os(OsError),
}

impl From<OsError> for Trouble {
    fn from(error: OsError) -> Self {
        Self::Os(error)
    }
}

impl Namespace {
    /// Opens or makes what a path leads to, as open(2) does. `mode` is what the program passed; the
    /// kernel applies the umask. Returns [`Reached::Host`] with the path to use if the path leads
    /// out of the array.
    ///
    /// # Errors
    /// Those of open(2). `BUSY` if names change all the time, `IO` if the members disagree though
    /// the namespace lock is held.
    pub fn open<'p>(&self, path: impl Into<ProgramPath<'p>>, flags: OFlags, mode: u32) -> Result<Reached<Opened>> {
        let (path, flags) = (path.into(), OFlags::from_bits_retain(flags.bits() & FLAGS_KNOWN));
        let waits = !flags.intersects(OFlags::PATH | OFlags::NONBLOCK);
        match self.open_with_room(path, if waits { flags | INTERRUPTIBLE } else { flags }, mode) {
            Err(NOT_MADE) => self.open_looking_first(path, flags, mode),
            result => result,
        }
    }

    /// Opens what is there where a signal is to be handled first. What may have to be waited for is
    /// left to the caller ([`Opened::waits`]), everything else is opened whatever signal has come.
    fn open_looking_first(&self, path: ProgramPath<'_>, flags: OFlags, mode: u32) -> Result<Reached<Opened>> {
        let looked = flags & (OFlags::NOFOLLOW | OFlags::DIRECTORY) | OFlags::PATH | OFlags::CLOEXEC;
        if let Ok(Reached::Array(found)) = self.open_with_room(path, looked, 0)
            && may_wait(FileType::from_raw_mode(fstat(&found.anchor)?.st_mode))
        {
            return Ok(Reached::Array(Opened { node: Node::Other, waits: true, ..found }));
        }
        // The number of what was looked at is free again: the program gets the lowest.
        self.open_with_room(path, flags, mode)
    }

    fn open_with_room(&self, path: ProgramPath<'_>, flags: OFlags, mode: u32) -> Result<Reached<Opened>> {
        match self.open_once(path, flags, mode) {
            // No descriptor is free: some are made free, and it is tried once more. (To undo what was
            // half done may have made some free already.)
            Err(OsError::MFILE) => {
                self.files.free_descriptors();
                self.open_once(path, flags, mode)
            }
            result => result,
        }
    }

    /// `flags` may hold [`INTERRUPTIBLE`].
    fn open_once(&self, path: ProgramPath<'_>, mut flags: OFlags, mode: u32) -> Result<Reached<Opened>> {
        if flags.contains(OFlags::PATH) {
            flags &= OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        } else if flags.contains(OFlags::TMPFILE) {
            return self.open_unnamed(path, flags.difference(INTERRUPTIBLE), mode, None);
        } else if flags.contains(OFlags::CREATE | OFlags::DIRECTORY) {
            // As the kernel since 6.4.
            return Err(OsError::INVAL);
        }
        // open(2) makes no name that has a slash behind it.
        if flags.contains(OFlags::CREATE) && path.text().ends_with(b"/") {
            let is_there = is_dots(without_slashes(path.text())) && flags.contains(OFlags::EXCL);
            return self.refuse_to_make(path, if is_there { OsError::EXIST } else { OsError::ISDIR });
        }
        let exclusive = flags.contains(OFlags::CREATE | OFlags::EXCL);
        let purpose = if flags.contains(OFlags::CREATE) { Purpose::Change } else { Purpose::Look };
        for _ in 0..TRY_COUNT {
            if !exclusive {
                match self.open_existing(path, flags, flags.contains(OFlags::CREATE)) {
                    Err(Trouble::Os(OsError::NOENT)) if flags.contains(OFlags::CREATE) => {}
                    // The kernel checks whether the path leads to a directory before it checks
                    // other things, so ISDIR wins.
                    Err(Trouble::Os(OsError::ACCESS | OsError::INVAL | OsError::PERM))
                        if flags.intersects(OFlags::CREATE | OFlags::TRUNC) && self.is_directory(path, flags) =>
                    {
                        return Err(OsError::ISDIR);
                    }
                    // Two refusals are possible here: no right to truncate the file (ACCESS), and
                    // O_NOATIME by a user who does not own it (PERM). The kernel checks the first
                    // one first.
                    Err(Trouble::Os(OsError::PERM)) if self.may_not_truncate(path, flags) => return Err(OsError::ACCESS),
                    Err(Trouble::Os(error)) => return Err(error),
                    Err(Trouble::Changed) => {}
                    Ok(reached) => return Ok(reached),
                }
            }
            // AGAIN: a name on the path was missing on the lowest member alone.
            let opened = self.locked_for(purpose, |may_change| {
                let open = |path: ProgramPath<'_>| self.open_locked(path, flags, mode, may_change);
                if flags.contains(OFlags::CREATE) { self.with_present_to_make(path, open) } else { self.with_present(path, open) }
            });
            match opened {
                Ok(Some(reached)) => return Ok(reached),
                Ok(None) | Err(AGAIN) => {}
                Err(error) => return Err(error),
            }
        }
        Err(OsError::BUSY)
    }

    /// Whether a path leads to a directory. False if this process may not see it.
    fn is_directory(&self, path: ProgramPath<'_>, flags: OFlags) -> bool {
        let found = self.find(path, OFlags::PATH | OFlags::CLOEXEC, !flags.contains(OFlags::NOFOLLOW));
        let Ok(Reached::Array(found)) = found else { return false };
        fstat(&found.fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    }

    /// Whether `flags` ask to truncate a file that is opened for reading only, and this process has
    /// no right to write to the file.
    fn may_not_truncate(&self, path: ProgramPath<'_>, flags: OFlags) -> bool {
        if !flags.contains(OFlags::TRUNC) || flags & OFlags::RWMODE != OFlags::RDONLY {
            return false;
        }
        let found = self.find(path, OFlags::PATH | OFlags::CLOEXEC, !flags.contains(OFlags::NOFOLLOW));
        let Ok(Reached::Array(found)) = found else { return false };
        let link = crate::descriptor::link(found.fd.as_raw_fd());
        accessat(CWD, link.as_slice(), FileAccess::WRITE_OK, AtFlags::EACCESS) == Err(OsError::ACCESS)
    }

    /// The kernel's refusal to make `path` as something else than a directory, if the path ends
    /// with a slash, `.` or `..`; None if it does not. An `Ok` in it is always [`Reached::Host`].
    pub(crate) fn refusal_to_make<T>(&self, path: ProgramPath<'_>) -> Option<Result<Reached<T>>> {
        if crate::create::is_dots(path.text()) {
            return Some(self.refuse_to_make(path, OsError::EXIST));
        }
        if !path.text().ends_with(b"/") {
            return None;
        }
        let end = without_slashes(path.text()).len();
        let is_there = matches!(self.find(path.up_to(end), OFlags::PATH | OFlags::CLOEXEC, false), Ok(Reached::Array(_)));
        Some(self.refuse_to_make(path, if is_there { OsError::EXIST } else { OsError::NOENT }))
    }

    /// Refuses to make `path`. Returns [`Reached::Host`] instead if its directory is not in the
    /// array: the kernel answers for itself there.
    ///
    /// # Errors
    /// That of looking up the directory of `path`, which the kernel does first; `error` otherwise.
    pub(crate) fn refuse_to_make<T>(&self, path: ProgramPath<'_>, error: OsError) -> Result<Reached<T>> {
        let text = path.text();
        let name_start = without_slashes(text).iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        match self.find(path.up_to(name_start), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, true)? {
            Reached::Array(_) => Err(error),
            Reached::Host(directory) => Ok(Reached::Host([directory.as_slice(), b"/", &text[name_start..]].concat())),
        }
    }

    /// Opens or makes the file; the caller holds the namespace lock. Returns None for a fifo, a
    /// socket or a device: opening it may wait for long, so the caller opens it without the lock.
    /// `may_change` is an error, the reason, if names cannot be changed at present.
    fn open_locked(
        &self,
        path: ProgramPath<'_>,
        flags: OFlags,
        mode: u32,
        may_change: Result<()>,
    ) -> Result<Option<Reached<Opened>>> {
        let mut is_free = false;
        if !flags.contains(OFlags::CREATE | OFlags::EXCL) {
            let (makes, follow) = (flags.contains(OFlags::CREATE), !flags.contains(OFlags::NOFOLLOW));
            let find = |follow| self.find(path, OFlags::PATH | OFlags::CLOEXEC, follow);
            // Of a name that may have to be made it is asked first what is there itself: where
            // there is nothing, no symlink needs to be looked for.
            let itself = find(follow && !makes);
            is_free = matches!(itself, Err(OsError::NOENT));
            let found = match itself {
                Ok(Reached::Array(found)) if makes && follow && is_symlink(&found)? => find(true),
                found => found,
            };
            match found {
                Ok(Reached::Host(path)) => return Ok(Some(Reached::Host(path))),
                Ok(Reached::Array(found)) => return self.open_found_locked(path, flags, &found, may_change),
                Err(OsError::NOENT) if makes => {}
                Err(error) => return Err(error),
            }
        }
        may_change?;
        self.create(path, flags.difference(INTERRUPTIBLE), mode, is_free).map(Some)
    }

    /// Opens what was found. If the members disagree on it though the caller holds the namespace
    /// lock, a change was cut short: completes it on all members, and opens again.
    fn open_found_locked(
        &self,
        path: ProgramPath<'_>,
        flags: OFlags,
        found: &Found,
        may_change: Result<()>,
    ) -> Result<Option<Reached<Opened>>> {
        match FileType::from_raw_mode(fstat(&found.fd)?.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory | FileType::Symlink => return final_result(self.open_existing(path, flags, false)).map(Some),
            _ => return Ok(None),
        }
        match self.open_existing(path, flags, false) {
            Err(Trouble::Changed) => {}
            result => return final_result(result).map(Some),
        }
        may_change?;
        // The replay has completed changes that were cut short before anybody comes here. So where
        // members still differ, somebody has changed names by hand, and the other members prove who
        // is right.
        if self.arbitrate_locked(&found.path)? {
            return Err(AGAIN);
        }
        self.complete(&found.path)?;
        let mut opened = self.open_existing(path, flags, false);
        if matches!(opened, Err(Trouble::Changed)) && self.lacks_record(found) {
            if self.match_records_once() || flags.contains(OFlags::TRUNC) && self.record_emptied(found)? {
                opened = self.open_existing(path, flags, false);
            }
            if matches!(opened, Err(Trouble::Changed)) {
                self.array().tell_unrecorded(&found.path);
            }
        }
        final_result(opened).map(Some)
    }

    /// Opens what is there. Looks again as long as a witness contradicts the lowest member: each
    /// contradiction is settled before the next look, at worst by taking a member out. If `makes`,
    /// the caller goes on with the namespace lock held if there is nothing.
    fn open_existing(&self, path: ProgramPath<'_>, flags: OFlags, makes: bool) -> core::result::Result<Reached<Opened>, Trouble> {
        let (epochs, found, stat, twin) = loop {
            let (epochs, names_epoch) = (self.epochs(), self.array().runtime().names_epoch());
            let found = match self.find_or_make(path, flags.difference(CHANGING), !flags.contains(OFlags::NOFOLLOW), makes)? {
                Reached::Array(found) => found,
                Reached::Host(path) => return Ok(Reached::Host(path)),
            };
            let stat = fstat(&found.fd)?;
            let is_contradicted = match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile if flags.contains(OFlags::PATH) => {
                    let (_, known) = self.ask(found.fd.as_fd(), &Node::Path(None))?;
                    known.is_ok_and(|known| known.is_none()) && self.is_foreign_contradicted(&found.path)?
                }
                // That the members agree shows when the backing files are opened.
                FileType::RegularFile => false,
                FileType::Directory if !flags.contains(OFlags::PATH) => self.lists_fewer(&found.path, &stat, epochs)?,
                _ => self.is_contradicted(&found.path, identity(&stat), epochs)?,
            };
            if is_contradicted {
                continue;
            }
            let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            let twin = if is_directory { self.twin_of_found(&found, names_epoch) } else { None };
            // Where a directory is that lies on a member which went out meanwhile its twin alone
            // would tell.
            if !is_directory || twin.is_some() || self.array().in_use().contains(found.slot) {
                break (epochs, found, stat, twin);
            }
        };
        if flags.contains(OFlags::CREATE) {
            self.check_opening_made(path, &found.path, &stat)?;
        }
        let node = match FileType::from_raw_mode(stat.st_mode) {
            kind if flags.contains(OFlags::PATH) => self.path_node(kind, || twin),
            FileType::RegularFile => {
                let file = self.file_of(&found, flags, &stat, epochs)?;
                if flags.contains(OFlags::NOATIME) {
                    file.keep_access_time();
                }
                Node::File(file)
            }
            FileType::Directory if flags.intersects(OFlags::CREATE | OFlags::TRUNC) => return Err(OsError::ISDIR.into()),
            FileType::Directory => Node::Directory(twin),
            _ => Node::Other,
        };
        Ok(Reached::Array(Opened { anchor: found.fd, node, path: found.path, is_made: false, waits: false }))
    }

    /// What a descriptor stands for that was opened with O_PATH.
    pub(crate) fn path_node(&self, kind: FileType, twin: impl FnOnce() -> Option<Twin>) -> Node {
        match kind {
            FileType::RegularFile => self.files.note_path_opened(),
            FileType::Directory => return Node::Path(twin()),
            _ => {}
        }
        Node::Path(None)
    }

    /// Opens the file behind the anchor `found` and, with O_TRUNC, truncates it.
    ///
    /// # Errors
    /// `TXTBSY` for a program that runs, `ACCESS` if the file is to be truncated and may not be
    /// written, and those of opening and truncating.
    fn file_of(
        &self,
        found: &Found,
        flags: OFlags,
        stat: &Stat,
        epochs: Option<Epochs>,
    ) -> core::result::Result<FileRef, Trouble> {
        let truncates = flags.contains(OFlags::TRUNC);
        let for_writing = truncates || flags & OFlags::RWMODE != OFlags::RDONLY;
        if for_writing {
            crate::text::refuse_busy(&found.fd, stat.st_mode)?;
        }
        if truncates && flags & OFlags::RWMODE == OFlags::RDONLY {
            // The kernel opened the anchor for reading only. Opening the backing files would not
            // find out that the right to write is missing, if the process has them open already.
            let link = crate::descriptor::link(found.fd.as_raw_fd());
            accessat(CWD, link.as_slice(), FileAccess::WRITE_OK, AtFlags::EACCESS)?;
        }
        let file = self.file_behind(found, [stat.st_dev, stat.st_ino], for_writing, epochs)?;
        file.note_anchor([stat.st_dev, stat.st_ino]);
        file.let_stay(self.may_be_truncated_by_all(stat));
        if truncates {
            file.truncate(0)?;
        }
        Ok(file)
    }

    /// The file of an anchor. The attribute is remembered from an earlier open of an anchor with
    /// the same device and inode (`anchor_id`), or read from the anchor. `epochs` is None while
    /// what is remembered cannot be used.
    fn file_behind(
        &self,
        found: &Found,
        anchor_id: [u64; 2],
        for_writing: bool,
        epochs: Option<Epochs>,
    ) -> core::result::Result<FileRef, Trouble> {
        let known = epochs.and_then(|epochs| self.remembered_attribute(anchor_id, epochs));
        if let Some(attribute) = known {
            match self.attach_checked(&found.path, attribute, for_writing, epochs) {
                // The remembered file was removed, and its inode on the member is another file's
                // now.
                Err(Trouble::Changed) => {}
                result => return result,
            }
        }
        let attribute = self.attribute_on(found.slot, &found.fd)?.ok_or(Trouble::Changed)?;
        if let Some(epochs) = epochs {
            self.remember_attribute(anchor_id, attribute, epochs);
        }
        self.attach_checked(&found.path, attribute, for_writing, epochs)
    }

    /// Does what [`Self::attach`] does for the file that the lowest member has at `path`. To open
    /// the backing files shows that the others have it there, too. Where this process has the file
    /// open already, nothing is opened, and the witnesses are asked instead, once for each name and
    /// state of the tree: somebody may have exchanged files of the lowest member by hand.
    fn attach_checked(
        &self,
        path: &[u8],
        attribute: Attribute,
        for_writing: bool,
        epochs: Option<Epochs>,
    ) -> core::result::Result<FileRef, Trouble> {
        let is_new = Cell::new(false);
        let file = self.letting_owner_in(path, || self.attach_noting(path, attribute, for_writing, &is_new))?;
        let Some(epochs) = epochs else { return Ok(file) };
        let words = [attribute.inode, attribute.generation, hash(path)];
        if self.is_confirmed(&words, epochs) {
            return Ok(file);
        }
        if !is_new.get() && !self.is_named_alike(path, attribute, &file)? {
            return Err(Trouble::Changed);
        }
        self.confirm(&words, epochs);
        Ok(file)
    }

    /// Tells whether no witness has another file of the array at a logical path. A witness that has
    /// no such name, or does not let this process see it, says nothing of whose the name is.
    ///
    /// # Errors
    /// If this process has no descriptor or memory left to look.
    fn is_named_alike(&self, path: &[u8], attribute: Attribute, file: &FileRef) -> Result<bool> {
        let (without, relative) = (file.without(), path.get(1..).unwrap_or_default());
        for slot in self.witnesses().filter(|&slot| !without.contains(slot)) {
            let there = self.root(slot).and_then(|root| open_below(root, relative, ANCHOR, Mode::empty()));
            match there.and_then(|there| self.attribute_named(slot, there.as_fd())) {
                Ok(Some(other)) if other != attribute => return Ok(false),
                Err(error @ (OsError::MFILE | OsError::NFILE | OsError::NOMEM)) => return Err(error),
                _ => {}
            }
        }
        Ok(true)
    }

    /// Whether a file may be kept open after its last close: if everybody who may attach to the
    /// array may also truncate it, since who removes a kept file truncates it; and if it is not
    /// executable, since nothing can be executed that is open for writing.
    ///
    /// The kernel asks a user for the right of one class only: the file's owner, its group or
    /// others. Where it is not known to which class somebody belongs, all that are possible must
    /// have the right.
    fn may_be_truncated_by_all(&self, stat: &Stat) -> bool {
        const OWNER: u32 = 0o200;
        const GROUP: u32 = 0o020;
        const OTHERS: u32 = 0o002;
        let access = self.array().access();
        let mut needed = if stat.st_uid == access.owner_uid { OWNER } else { GROUP | OTHERS };
        if access.mode & 0o060 != 0 {
            needed |= if stat.st_gid == access.owner_gid { OWNER | GROUP } else { OWNER | GROUP | OTHERS };
        }
        if access.mode & 0o006 != 0 {
            needed |= OWNER | GROUP | OTHERS;
        }
        stat.st_mode & crate::text::EXECUTE == 0 && stat.st_mode & needed == needed
    }

    /// The file of `attribute`. If this process does not have it open, opens its backing files at
    /// the logical path `path`, which begins with a slash.
    pub(crate) fn attach(&self, path: &[u8], attribute: Attribute, for_writing: bool) -> core::result::Result<FileRef, Trouble> {
        self.attach_noting(path, attribute, for_writing, &Cell::new(false))
    }

    /// Does what [`Self::attach`] does, and sets `is_new` if the backing files were opened for it.
    fn attach_noting(
        &self,
        path: &[u8],
        attribute: Attribute,
        for_writing: bool,
        is_new: &Cell<bool>,
    ) -> core::result::Result<FileRef, Trouble> {
        let changed = Cell::new(false);
        let had_locks = Cell::new(false);
        let backing = || {
            is_new.set(true);
            self.open_backing(path, attribute, for_writing, &changed, &had_locks)
        };
        match self.files.open(attribute, for_writing, backing) {
            Ok(file) => {
                if had_locks.get() {
                    file.note_process_lock().map_err(Trouble::Os)?;
                }
                Ok(file)
            }
            // `files.open` gives IO if the inode table has no such file (any more). A real IO error
            // gets here too; the caller's look with the lock held reports it.
            Err(error) if changed.get() || error == OsError::IO => Err(Trouble::Changed),
            Err(error) => Err(Trouble::Os(error)),
        }
    }

    /// Opens the backing files on all members in use. Sets `changed` if a member has something else
    /// at `path`; sets `had_locks` if a backing file was open before exec, because the process may
    /// then have locks of fcntl(2) on it.
    fn open_backing(
        &self,
        path: &[u8],
        attribute: Attribute,
        for_writing: bool,
        changed: &Cell<bool>,
        had_locks: &Cell<bool>,
    ) -> Result<(BackingFds, Access)> {
        let members = self.array().members();
        let mut fds: BackingFds = Vec::with_capacity(members.len());
        fds.resize_with(members.len(), || None);
        let mut access = Access::ReadWrite;
        for slot in self.array().in_use().iter() {
            let root = self.root(slot)?;
            if let Some((fd, found)) = self.taken_over(slot, root, &path[1..], attribute, for_writing) {
                had_locks.set(true);
                if found == Access::ReadOnly {
                    access = found;
                }
                fds[slot] = Some(fd);
                continue;
            }
            // NOENT also stands for another file that lies there.
            let result = open_one(root, &path[1..], for_writing)
                .and_then(|(fd, found)| if self.is_bound(slot, &fd, attribute)? { Ok((fd, found)) } else { Err(OsError::NOENT) });
            match result {
                Ok((fd, found)) => {
                    if found == Access::ReadOnly {
                        access = found;
                    }
                    fds[slot] = Some(fd);
                }
                Err(error) if self.array().has_member_failed(slot, error) => self.array().spare(slot, error)?,
                Err(error @ (OsError::NOENT | OsError::NOTDIR | OsError::LOOP | OsError::ISDIR | OsError::NXIO)) => {
                    changed.set(true);
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok((fds, access))
    }

    /// The descriptor of a backing file that the program before exec had open, if it is of `attribute`
    /// (another one is closed), with what can be done by it.
    fn taken_over(
        &self,
        slot: Slot,
        root: &OwnedFd,
        relative: &[u8],
        attribute: Attribute,
        for_writing: bool,
    ) -> Option<(OwnedFd, Access)> {
        let identify = || {
            let stat = statat(root, relative, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            Some([stat.st_dev, stat.st_ino])
        };
        let (fd, can_write) = self.files.taken_over(for_writing, identify)?;
        let access = if can_write { Access::ReadWrite } else { Access::ReadOnly };
        (self.attribute_on(slot, &fd) == Ok(Some(attribute))).then_some((fd, access))
    }

    /// Opens the backing files of `file` a second time, for reading and writing, through their
    /// magic links.
    pub(crate) fn backing_again(&self, file: &FileRef) -> Result<(BackingFds, Access)> {
        let mut fds: BackingFds = Vec::new();
        fds.resize_with(self.array().members().len(), || None);
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        for (slot, backing) in file.in_use() {
            let held = backing.fd()?;
            let link = crate::descriptor::link(held.as_raw_fd());
            match openat(CWD, link.as_slice(), flags, Mode::empty()) {
                Ok(fd) => fds[slot] = Some(fd),
                Err(error) if self.array().has_member_failed(slot, error) => self.array().spare(slot, error)?,
                Err(error) => return Err(error),
            }
        }
        Ok((fds, Access::ReadWrite))
    }
}

/// Opens one backing file for reading and writing. If that is refused and `for_writing` is false,
/// opens it for reading.
fn open_one(root: &OwnedFd, relative: &[u8], for_writing: bool) -> Result<(OwnedFd, Access)> {
    let flags = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::NONBLOCK;
    match open_below(root, relative, flags | OFlags::RDWR, Mode::empty()) {
        Ok(fd) => Ok((fd, Access::ReadWrite)),
        Err(OsError::ACCESS | OsError::PERM | OsError::ROFS | OsError::TXTBSY) if !for_writing => {
            open_below(root, relative, flags | OFlags::RDONLY, Mode::empty()).map(|fd| (fd, Access::ReadOnly))
        }
        Err(error) => Err(error),
    }
}

/// Whether opening something of this kind may have to wait for another process.
pub(crate) fn may_wait(kind: FileType) -> bool {
    !matches!(kind, FileType::RegularFile | FileType::Directory | FileType::Symlink)
}

fn is_symlink(found: &Found) -> Result<bool> {
    fstat(&found.fd).map(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}

/// Turns `Changed` into IO, after a look with the namespace lock held.
fn final_result(result: core::result::Result<Reached<Opened>, Trouble>) -> Result<Reached<Opened>> {
    result.map_err(|trouble| match trouble {
        // Nobody can be changing the name, so a foreign file lies there, or the array is damaged.
        Trouble::Changed => OsError::IO,
        Trouble::Os(error) => error,
    })
}
