//! Opening: the anchor with the program's flags, and behind it the backing files with ours.
//!
//! The kernel's check of the program's open on the anchor member decides. Our own backing files are opened for reading and writing
//! where that is permitted, moved out of the way of the program's numbers, and only if this process does not have the file open yet.
//!
//! The first look takes no lock. If the members do not agree in it (a file being made, renamed or removed), the second is under the
//! namespace lock, where the answer is final.

use crate::absent::{AGAIN, identity};
use crate::located::open_below;
use crate::remembered::Epochs;
use crate::resolve::Found;
use crate::{Namespace, Node, Opened, ProgramPath, Reached};
use alloc::vec::Vec;
use core::cell::Cell;
use dax::Access;
use file::{BackingFds, FileRef};
use format::Attribute;
use sys::rustix::fs::{
    Access as FileAccess, AtFlags, CWD, FileType, Mode, OFlags, Stat, accessat, fcntl_getfl, fstat, openat, statat,
};
use sys::{AsRawFd, OsError, OwnedFd, Result};
use units::Slot;

/// How often an open starts anew that meets something else each time it looks.
const TRY_COUNT: u32 = 8;
/// What openat2(2) takes besides; open(2) ignores unknown bits, openat2 refuses them.
pub(crate) const FLAGS_KNOWN: u32 = {
    const NOCTTY_ASYNC_LARGEFILE: u32 = 0o400 | 0o20_000 | 0o100_000;
    let known = OFlags::ACCMODE.union(OFlags::APPEND).union(OFlags::CREATE).union(OFlags::DIRECTORY).union(OFlags::SYNC);
    let known = known.union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::TRUNC);
    let known = known.union(OFlags::PATH).union(OFlags::CLOEXEC).union(OFlags::TMPFILE).union(OFlags::NOATIME);
    known.union(OFlags::DIRECT).bits() | NOCTTY_ASYNC_LARGEFILE
};
pub(crate) const MAKING: OFlags = OFlags::CREATE.union(OFlags::EXCL).union(OFlags::TRUNC);

/// Why something could not be opened.
pub(crate) enum Trouble {
    /// The members do not agree on what is there: it is being changed, or a change was cut short.
    Changed,
    Os(OsError),
}

impl From<OsError> for Trouble {
    fn from(error: OsError) -> Self {
        Self::Os(error)
    }
}

impl Namespace {
    /// Opens or makes what an absolute path leads to, as open(2) does. `mode` is what the program passed; the kernel applies the umask.
    pub fn open<'p>(&self, path: impl Into<ProgramPath<'p>>, flags: OFlags, mode: u32) -> Result<Reached<Opened>> {
        let path = path.into();
        match self.open_once(path, flags, mode) {
            // What is kept for later must not be in the way of what is wanted now.
            Err(OsError::MFILE) if self.files.discard_idle() => self.open_once(path, flags, mode),
            result => result,
        }
    }

    fn open_once(&self, path: ProgramPath<'_>, flags: OFlags, mode: u32) -> Result<Reached<Opened>> {
        let mut flags = OFlags::from_bits_retain(flags.bits() & FLAGS_KNOWN);
        if flags.contains(OFlags::PATH) {
            flags &= OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        } else if flags.contains(OFlags::TMPFILE) {
            return self.open_unnamed(path, flags, mode);
        } else if flags.contains(OFlags::CREATE | OFlags::DIRECTORY) {
            return Err(OsError::INVAL);
        }
        if flags.contains(OFlags::CREATE) && path.text().ends_with(b"/") {
            return self.refuse_slash(path, OsError::ISDIR);
        }
        let exclusive = flags.contains(OFlags::CREATE | OFlags::EXCL);
        for _ in 0..TRY_COUNT {
            if !exclusive {
                match self.open_existing(path, flags) {
                    Err(Trouble::Os(OsError::NOENT)) if flags.contains(OFlags::CREATE) => {}
                    // Whether it is a directory the kernel looks at first.
                    Err(Trouble::Os(OsError::ACCESS | OsError::INVAL | OsError::PERM))
                        if flags.intersects(OFlags::CREATE | OFlags::TRUNC) && self.is_directory(path, flags) =>
                    {
                        return Err(OsError::ISDIR);
                    }
                    // That the file may not be cut the kernel says before it asks whose file it is (O_NOATIME).
                    Err(Trouble::Os(OsError::PERM)) if self.may_not_cut(path, flags) => return Err(OsError::ACCESS),
                    Err(Trouble::Os(error)) => return Err(error),
                    Err(Trouble::Changed) => {}
                    Ok(reached) => return Ok(reached),
                }
            }
            match self.locked(|whole| self.with_present(path, |path| self.open_locked(path, flags, mode, whole))) {
                Ok(Some(reached)) => return Ok(reached),
                Ok(None) | Err(AGAIN) => {}
                Err(error) => return Err(error),
            }
        }
        Err(OsError::BUSY)
    }

    /// Whether a path leads to a directory, as far as this process may see.
    fn is_directory(&self, path: ProgramPath<'_>, flags: OFlags) -> bool {
        let found = self.find(path, OFlags::PATH | OFlags::CLOEXEC, !flags.contains(OFlags::NOFOLLOW));
        let Ok(Reached::Array(found)) = found else { return false };
        fstat(&found.fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    }

    /// Whether a file is to be opened for reading and cut which this process may not write to.
    fn may_not_cut(&self, path: ProgramPath<'_>, flags: OFlags) -> bool {
        if !flags.contains(OFlags::TRUNC) || flags & OFlags::RWMODE != OFlags::RDONLY {
            return false;
        }
        let found = self.find(path, OFlags::PATH | OFlags::CLOEXEC, !flags.contains(OFlags::NOFOLLOW));
        let Ok(Reached::Array(found)) = found else { return false };
        let link = crate::descriptor::link(found.fd.as_raw_fd());
        accessat(CWD, link.as_slice(), FileAccess::WRITE_OK, AtFlags::EACCESS) == Err(OsError::ACCESS)
    }

    /// What the kernel says of a name that a call which makes no directory cannot make: it has a slash behind it, or is `.` or `..`.
    pub(crate) fn refusal_to_make<T>(&self, path: ProgramPath<'_>) -> Option<Result<Reached<T>>> {
        if crate::create::is_dots(path.text()) {
            return Some(self.refuse_slash(path, OsError::EXIST));
        }
        if !path.text().ends_with(b"/") {
            return None;
        }
        let end = path.text().iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
        let is_there = matches!(self.find(path.up_to(end), OFlags::PATH | OFlags::CLOEXEC, false), Ok(Reached::Array(_)));
        Some(self.refuse_slash(path, if is_there { OsError::EXIST } else { OsError::NOENT }))
    }

    /// Refuses to make a name that has a slash behind it, or is `.` or `..`. The kernel answers first what is wrong with the directories on the way.
    ///
    /// # Errors
    /// `error`, and what is wrong with the directories.
    pub(crate) fn refuse_slash<T>(&self, path: ProgramPath<'_>, error: OsError) -> Result<Reached<T>> {
        let text = path.text();
        let end = text.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
        let cut = text[..end].iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        match self.find(path.up_to(cut), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, true)? {
            Reached::Array(_) => Err(error),
            Reached::Host(directory) => Ok(Reached::Host([directory.as_slice(), b"/", &text[cut..]].concat())),
        }
    }

    /// With the namespace lock held. None if it is no affair of the lock: opening a pipe may wait for long. `whole` is why nothing may be changed,
    /// if so.
    fn open_locked(&self, path: ProgramPath<'_>, flags: OFlags, mode: u32, whole: Result<()>) -> Result<Option<Reached<Opened>>> {
        if !flags.contains(OFlags::CREATE | OFlags::EXCL) {
            match self.find(path, OFlags::PATH | OFlags::CLOEXEC, !flags.contains(OFlags::NOFOLLOW)) {
                Ok(Reached::Host(path)) => return Ok(Some(Reached::Host(path))),
                Ok(Reached::Array(found)) => return self.open_found_locked(path, flags, &found, whole),
                Err(OsError::NOENT) if flags.contains(OFlags::CREATE) => {}
                Err(error) => return Err(error),
            }
        }
        whole?;
        self.create(path, flags, mode).map(Some)
    }

    fn open_found_locked(
        &self,
        path: ProgramPath<'_>,
        flags: OFlags,
        found: &Found,
        whole: Result<()>,
    ) -> Result<Option<Reached<Opened>>> {
        match FileType::from_raw_mode(fstat(&found.fd)?.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory | FileType::Symlink => return final_result(self.open_existing(path, flags)).map(Some),
            _ => return Ok(None),
        }
        match self.open_existing(path, flags) {
            Err(Trouble::Changed) => {}
            result => return final_result(result).map(Some),
        }
        whole?;
        self.complete(&found.path)?;
        final_result(self.open_existing(path, flags)).map(Some)
    }

    fn open_existing(&self, path: ProgramPath<'_>, flags: OFlags) -> core::result::Result<Reached<Opened>, Trouble> {
        let (epochs, found, stat) = loop {
            let epochs = self.epochs();
            let found = match self.find(path, flags.difference(MAKING), !flags.contains(OFlags::NOFOLLOW))? {
                Reached::Array(found) => found,
                Reached::Host(path) => return Ok(Reached::Host(path)),
            };
            let stat = fstat(&found.fd)?;
            let is_contradicted = match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => false,
                FileType::Directory if !flags.contains(OFlags::PATH) => self.lists_fewer(&found.path, &stat, epochs)?,
                _ => self.is_contradicted(&found.path, identity(&stat), epochs)?,
            };
            if !is_contradicted {
                break (epochs, found, stat);
            }
        };
        let node = match FileType::from_raw_mode(stat.st_mode) {
            _ if flags.contains(OFlags::PATH) => Node::Path,
            FileType::RegularFile => Node::File(self.file_of(&found, flags, &stat, epochs)?),
            FileType::Directory if flags.intersects(OFlags::CREATE | OFlags::TRUNC) => return Err(OsError::ISDIR.into()),
            FileType::Directory => Node::Directory,
            _ => Node::Other,
        };
        Ok(Reached::Array(Opened { anchor: found.fd, node, path: found.path, is_made: false }))
    }

    fn file_of(
        &self,
        found: &Found,
        flags: OFlags,
        stat: &Stat,
        epochs: Option<Epochs>,
    ) -> core::result::Result<FileRef, Trouble> {
        let cuts = flags.contains(OFlags::TRUNC);
        let for_writing = cuts || flags & OFlags::RWMODE != OFlags::RDONLY;
        if for_writing {
            crate::text::refuse_busy(&found.fd, stat.st_mode)?;
        }
        if cuts && flags & OFlags::RWMODE == OFlags::RDONLY {
            // The anchor was opened for reading. To cut the file takes the right to write, also where this process has it open for writing already.
            let link = crate::descriptor::link(found.fd.as_raw_fd());
            accessat(CWD, link.as_slice(), FileAccess::WRITE_OK, AtFlags::EACCESS)?;
        }
        let file = self.file_behind(found, [stat.st_dev, stat.st_ino], for_writing, epochs)?;
        file.note_anchor([stat.st_dev, stat.st_ino]);
        file.let_stay(self.may_be_cut_by_all(stat));
        if cuts {
            file.truncate(0)?;
        }
        Ok(file)
    }

    /// The file of an anchor, known by the anchor's device and inode if it was met before, otherwise by its attribute.
    fn file_behind(
        &self,
        found: &Found,
        backing: [u64; 2],
        for_writing: bool,
        epochs: Option<Epochs>,
    ) -> core::result::Result<FileRef, Trouble> {
        let known = epochs.and_then(|epochs| self.remembered_attribute(backing, epochs));
        if let Some(attribute) = known {
            match self.attach(&found.path, attribute, for_writing) {
                // Removed since; the number is another file's now.
                Err(Trouble::Changed) => {}
                result => return result,
            }
        }
        let attribute = self.attribute_on(found.slot, &found.fd)?.ok_or(Trouble::Changed)?;
        if let Some(epochs) = epochs {
            self.remember_attribute(backing, attribute, epochs);
        }
        self.attach(&found.path, attribute, for_writing)
    }

    /// Whether whoever may attach to the array may also write to a file, and so cut it, and it is no program: then its backing files
    /// may stay open when it is closed.
    fn may_be_cut_by_all(&self, stat: &Stat) -> bool {
        const OWNER: u32 = 0o200;
        const GROUP: u32 = 0o020;
        const OTHERS: u32 = 0o002;
        let access = self.array().access();
        let may = |own: bool, bit: u32| stat.st_mode & OTHERS != 0 || own && stat.st_mode & bit != 0;
        let owner = may(stat.st_uid == access.owner_uid, OWNER);
        let group = access.mode & 0o060 == 0 || may(stat.st_gid == access.owner_gid, GROUP);
        let others = access.mode & 0o006 == 0 || stat.st_mode & OTHERS != 0;
        stat.st_mode & crate::text::EXECUTE == 0 && owner && group && others
    }

    /// The file that `attribute` names, by its backing files at a logical path if it is not open yet.
    pub(crate) fn attach(&self, path: &[u8], attribute: Attribute, for_writing: bool) -> core::result::Result<FileRef, Trouble> {
        let changed = Cell::new(false);
        let had_locks = Cell::new(false);
        let backing = || self.open_backing(path, attribute, for_writing, &changed, &had_locks);
        match self.files.open(attribute, for_writing, backing) {
            Ok(file) => {
                if had_locks.get() {
                    file.note_process_lock();
                }
                Ok(file)
            }
            // Also IO: the inode table does not know it (any more).
            Err(error) if changed.get() || error == OsError::IO => Err(Trouble::Changed),
            Err(error) => Err(Trouble::Os(error)),
        }
    }

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
            if let Some(fd) = self.taken_over(slot, root, &path[1..], attribute) {
                had_locks.set(true);
                fds[slot] = Some(fd);
                continue;
            }
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

    /// A backing file that the former program of this process has left open, for reading and writing.
    fn taken_over(&self, slot: Slot, root: &OwnedFd, relative: &[u8], attribute: Attribute) -> Option<OwnedFd> {
        let identify = || {
            let stat = statat(root, relative, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            Some([stat.st_dev, stat.st_ino])
        };
        let fd = self.files.taken_over(identify)?;
        let writes = fcntl_getfl(&fd).is_ok_and(|flags| flags & OFlags::RWMODE == OFlags::RDWR);
        (writes && self.attribute_on(slot, &fd) == Ok(Some(attribute))).then_some(fd)
    }
}

impl Namespace {
    /// The backing files of an open file once more, for reading and writing.
    pub(crate) fn backing_again(&self, file: &FileRef) -> Result<(BackingFds, Access)> {
        let mut fds: BackingFds = Vec::new();
        fds.resize_with(self.array().members().len(), || None);
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        for (slot, backing) in file.backing_fds() {
            let link = crate::descriptor::link(backing.as_raw_fd());
            match openat(sys::rustix::fs::CWD, link.as_slice(), flags, Mode::empty()) {
                Ok(fd) => fds[slot] = Some(fd),
                Err(error) if self.array().has_member_failed(slot, error) => self.array().spare(slot, error)?,
                Err(error) => return Err(error),
            }
        }
        Ok((fds, Access::ReadWrite))
    }
}

/// One backing file; for reading only if writing is neither permitted nor needed.
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

fn final_result(result: core::result::Result<Reached<Opened>, Trouble>) -> Result<Reached<Opened>> {
    result.map_err(|trouble| match trouble {
        // The members still disagree though nobody changes anything: a foreign file, or damage.
        Trouble::Changed => OsError::IO,
        Trouble::Os(error) => error,
    })
}
