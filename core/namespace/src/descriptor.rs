//! The file or directory that a descriptor of the program stands for, and the current directory.

use crate::absent::AGAIN;
use crate::located::open_below;
use crate::open::Trouble;
use crate::replay::Purpose;
use crate::twin::host_path_of;
use crate::{Namespace, Node, ProgramPath, Reached};
use alloc::vec::Vec;
use file::FileRef;
use format::{Attribute, InodeState};
use sys::rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fcntl_getfl, fstat, statat};
use sys::{BorrowedFd, OsError, OwnedFd, RawFd, Result};
use units::Slot;

/// The kernel writes this behind the path of what has lost its name.
pub const DELETED: &[u8] = b" (deleted)";

/// The magic link of descriptor `fd` of this thread (a guest's thread can have other descriptors
/// than its process).
#[must_use]
pub fn link(fd: RawFd) -> Vec<u8> {
    alloc::format!("/proc/thread-self/fd/{fd}").into_bytes()
}

impl Namespace {
    /// The logical path of what `fd` is open on; None if that is not the array's. If the thing has
    /// lost its name, the kernel appends ` (deleted)` to the path; this cannot be told from a name
    /// that ends so.
    pub fn logical_path_of(&self, fd: BorrowedFd<'_>) -> Result<Option<Vec<u8>>> {
        Ok(self.place_of(fd)?.map(|(path, _)| path))
    }

    /// Returns the logical path of what `fd` is open on, which may be `AT_FDCWD`, and the slot of the
    /// member, as [`Self::placed`] tells it; also where the kernel tells no whole path
    /// ([`crate::detached`]). None if that is not the array's.
    ///
    /// # Errors
    /// Those of readlink(2).
    pub fn place_of(&self, fd: BorrowedFd<'_>) -> Result<Option<(Vec<u8>, Option<Slot>)>> {
        Ok(self.place_told(fd, &host_path_of(fd)?))
    }

    /// As [`Self::place_of`], of a descriptor of which the kernel tells `told`.
    pub(crate) fn place_told(&self, fd: BorrowedFd<'_>, told: &[u8]) -> Option<(Vec<u8>, Option<Slot>)> {
        let placed = self.placed(told).map(|(path, slot)| (path.to_vec(), slot));
        placed.or_else(|| self.detached_place(fd, told))
    }

    /// The slot of the member that holds what `fd` is open on, judged by the magic link. None if
    /// that is no member whose root this process has open, or if the link cannot be read.
    pub(crate) fn slot_of(&self, fd: BorrowedFd<'_>) -> Option<Slot> {
        self.place_of(fd).ok()??.1.filter(|&slot| self.root(slot).is_ok())
    }

    /// The slot of the member in use that holds what `fd` is open on, judged as [`Self::slot_of`]
    /// does.
    pub(crate) fn slot_in_use_of(&self, fd: BorrowedFd<'_>) -> Option<Slot> {
        self.slot_of(fd).filter(|&slot| self.array().in_use().contains(slot))
    }

    /// The logical path of a host path; None if that lies in no member, or is not the array's.
    #[must_use]
    pub fn logical<'a>(&self, host: &'a [u8]) -> Option<&'a [u8]> {
        self.placed(host).map(|(path, _)| path)
    }

    /// The logical path of a host path, as [`Self::logical`], with the slot of the member. The slot
    /// is None if the path lies in what was the directory of a member that is out, or of one that
    /// was replaced.
    #[must_use]
    pub fn placed<'a>(&self, host: &'a [u8]) -> Option<(&'a [u8], Option<Slot>)> {
        let below = |root: &Vec<u8>| !root.is_empty() && array::config::is_below(host, root);
        let slot = self.roots.iter().position(below);
        let (root_bytes, slot) = match slot {
            Some(slot) => (self.roots[slot].len(), Some(slot)),
            None => {
                let bytes = self.lost_root_bytes(host)?;
                (bytes, self.slot_of_root(&host[..bytes]))
            }
        };
        Some(&host[root_bytes..]).filter(|path| self.owns(path)).map(|path| (path, slot))
    }

    /// Whether a descriptor may lie on a *lost root*: the directory of a member that is out, or the
    /// former directory of a member that was replaced (the runtime segment knows more roots than
    /// there are members then).
    fn has_lost_roots(&self) -> bool {
        let runtime = self.array().runtime();
        !runtime.out().is_empty() || runtime.root_count() > self.array().members().len()
    }

    /// Whether the directory of the lowest member is no longer at the path that this process knows.
    /// Such a rename is not noticed otherwise, since the library reaches the member through a
    /// descriptor. Any error counts as moved: that only costs the slower search.
    fn lowest_root_has_moved(&self) -> bool {
        let Some(root) = self.array().first_in_use().ok().and_then(|slot| self.roots.get(slot)) else { return false };
        let is_there = |stat: sys::rustix::fs::Stat| self.array().runtime().is_root(stat.st_dev, stat.st_ino);
        !root.is_empty() && !statat(CWD, root.as_slice(), AtFlags::SYMLINK_NOFOLLOW).is_ok_and(is_there)
    }

    /// The member in use whose directory is at a path, to which it was renamed since this process
    /// opened it.
    fn slot_of_root(&self, path: &[u8]) -> Option<Slot> {
        let there = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_it = |stat: sys::rustix::fs::Stat| (stat.st_dev, stat.st_ino) == (there.st_dev, there.st_ino);
        self.array().in_use().iter().find(|&slot| self.root(slot).and_then(fstat).is_ok_and(is_it))
    }

    /// The length of the shortest prefix of `host` that is the root of a member, be that out,
    /// replaced or moved: descriptors that were opened while the member was in use still have paths
    /// below it. Roots are known by device and inode.
    fn lost_root_bytes(&self, host: &[u8]) -> Option<usize> {
        if !self.has_lost_roots() && !self.lowest_root_has_moved() {
            return None;
        }
        let (array, runtime) = (self.array(), self.array().runtime());
        let is_root = |end: &usize| {
            // If the prefix cannot be looked at (the member's file system may be dead), it counts
            // as a root if it is the configured path of a member.
            let is_configured = || array.members().iter().any(|member| member.path == host[..*end]);
            match statat(CWD, &host[..*end], AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => runtime.is_root(stat.st_dev, stat.st_ino),
                Err(_) => is_configured(),
            }
        };
        let ends = host.iter().enumerate().filter(|&(at, &byte)| at > 0 && byte == b'/').map(|(at, _)| at);
        ends.chain([host.len()]).find(is_root)
    }

    /// Keeps the file of anchor `fd` from being freed while process `pid`, which has the same
    /// anchor, executes a new program: until that program has opened the file, or the process ends.
    /// Does nothing if `fd` is no file of the array. See [`array::Runtime::hold_for`].
    pub fn hold_for(&self, pid: u32, fd: BorrowedFd<'_>) -> Result<()> {
        match self.attribute_open(fd)? {
            Some(attribute) => self.array().runtime().hold_for(pid, file::key(attribute.inode, attribute.generation)),
            None => Ok(()),
        }
    }

    /// A descriptor (O_PATH, close-on-exec) of a directory, for the caller to give to fchdir(2).
    /// Not this function but fchdir checks the right to search the directory.
    pub fn directory_to_enter<'p>(&self, path: impl Into<ProgramPath<'p>>) -> Result<Reached<OwnedFd>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        self.find(path.into(), flags, true)?.and_then(|found| Ok(found.fd))
    }

    /// A descriptor (O_PATH, close-on-exec) of what a path leads to, for calls that the kernel
    /// makes as a whole on this descriptor. `follow`: whether a symlink at the end of the path is
    /// followed.
    pub fn look_at<'p>(&self, path: impl Into<ProgramPath<'p>>, follow: bool) -> Result<Reached<OwnedFd>> {
        self.find(path.into(), OFlags::PATH | OFlags::CLOEXEC, follow)?.and_then(|found| Ok(found.fd))
    }

    /// A descriptor (O_PATH, close-on-exec) of what has a logical path on one member, whatever the
    /// others say. No symlink is followed.
    pub fn look_at_on(&self, slot: Slot, path: &[u8]) -> Result<OwnedFd> {
        open_below(self.root(slot)?, &path[1..], OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
    }

    /// What an anchor stands for that this process did not open itself: it was open before exec, or
    /// another process sent it. None if the descriptor is not the array's ([`Self::is_open_on`]).
    ///
    /// # Errors
    /// `STALE` if it is open on a member's file system that hangs in the air, and its place in the
    /// array is not found ([`crate::detached`]). It is told, too, if the file's last name was removed
    /// by a program that could not make an orphan of the file, and this process does not have the
    /// file open: no path leads to its backing files.
    /// `IO` if the file has no attribute. Errors of fcntl(2), fstat(2) and of opening the backing
    /// files.
    pub fn adopt_anchor(&self, fd: BorrowedFd<'_>) -> Result<Option<Node>> {
        if !self.is_open_on(fd) {
            return if self.is_detached(fd) { Err(OsError::STALE) } else { Ok(None) };
        }
        let flags = fcntl_getfl(fd)?;
        if flags.contains(OFlags::PATH) {
            // It may be a directory's.
            self.files.note_path_opened();
            return Ok(Some(Node::Path(None)));
        }
        let stat = fstat(fd)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return Ok(Some(Node::Directory(None))),
            _ => return Ok(Some(Node::Other)),
        }
        let attribute = match self.attribute_open(fd) {
            // The member of the anchor has failed. This process may remember the attribute, or the
            // table of backing files tells it by device and inode.
            Err(error) if array::has_failed(error) => {
                let in_table = || self.files.attribute_in_table(self.slot_of(fd)?, fd);
                self.files.attribute_of_anchor(fd).or_else(in_table).ok_or(error)?
            }
            found => found?.ok_or(OsError::IO)?,
        };
        let for_writing = flags & OFlags::RWMODE != OFlags::RDONLY;
        let file = self.attach_open(fd, attribute, for_writing)?;
        file.note_anchor([stat.st_dev, stat.st_ino]);
        Ok(Some(Node::File(file)))
    }

    /// Opens the file with this attribute, on whose backing file `fd` is open.
    ///
    /// # Errors
    /// As for [`Self::adopt_anchor`].
    pub(crate) fn attach_open(&self, fd: BorrowedFd<'_>, attribute: Attribute, for_writing: bool) -> Result<FileRef> {
        let path = self.logical_path_of(fd)?.ok_or(OsError::STALE)?;
        match self.letting_owner_in(&path, || self.attach(&path, attribute, for_writing)) {
            // The file was renamed or removed after its path was read, or is being renamed now.
            // While the namespace lock is held, names stand still.
            Err(Trouble::Changed) => {
                let attach = |whole: Result<()>| match whole {
                    Ok(()) => self.attach_open_locked(fd, attribute, for_writing),
                    Err(_) => self.attach_found(fd, attribute, for_writing),
                };
                self.locked_for(Purpose::Look, attach)
            }
            Err(Trouble::Os(error)) => Err(error),
            Ok(file) => Ok(file),
        }
    }

    /// As [`Self::attach_open`]; the caller holds the namespace lock, and no change of names is
    /// unfinished.
    pub(crate) fn attach_open_locked(&self, fd: BorrowedFd<'_>, attribute: Attribute, for_writing: bool) -> Result<FileRef> {
        match self.attach_found(fd, attribute, for_writing) {
            Err(OsError::STALE) => self.attach_settled(fd, attribute, for_writing),
            result => result,
        }
    }

    /// As [`Self::attach_open_locked`], after the members have settled what they have at the file's
    /// path: one of them may lack the file there, since somebody has removed it by hand.
    fn attach_settled(&self, fd: BorrowedFd<'_>, attribute: Attribute, for_writing: bool) -> Result<FileRef> {
        if self.files.state_of(attribute) != Some(InodeState::Used) {
            return Err(OsError::STALE);
        }
        let path = self.logical_path_of(fd)?.ok_or(OsError::STALE)?;
        if !self.is_settled_anew(fd, attribute)? && self.leads_to(&path, fd) {
            match self.complete(&path) {
                // A member went out in it.
                Ok(()) | Err(AGAIN) => {}
                Err(error) => return Err(error),
            }
        }
        self.attach_found(fd, attribute, for_writing)
    }

    /// Tells whether the lowest member is another one now, or has a name again, since the members
    /// have settled what they have at the path of an open file that has a name: somebody may have
    /// removed that by hand. The namespace lock is held.
    pub(crate) fn is_settled_anew(&self, fd: BorrowedFd<'_>, attribute: Attribute) -> Result<bool> {
        if self.files.state_of(attribute) != Some(InodeState::Used) {
            return Ok(false);
        }
        let Some(path) = self.logical_path_of(fd)? else { return Ok(false) };
        self.arbitrate_locked(path.strip_suffix(DELETED).unwrap_or(&path))
    }

    /// As [`Self::attach_open`], by the paths that the file may have. The caller holds the
    /// namespace lock. A path that the file no longer has does no harm: what lies there does not
    /// have the attribute.
    fn attach_found(&self, fd: BorrowedFd<'_>, attribute: Attribute, for_writing: bool) -> Result<FileRef> {
        let path = self.logical_path_of(fd)?.ok_or(OsError::STALE)?;
        let orphan = [b"/", file::orphan_path(attribute).as_slice()].concat();
        let found = match self.attach(&path, attribute, for_writing) {
            Err(Trouble::Changed) => self.attach(&orphan, attribute, for_writing),
            found => found,
        };
        // Two cases are left. The descriptor lies on a lost root: renames were not made there, so
        // its path tells nothing. Or the name by which the file was opened is gone, and the file
        // has other names. In both the file is looked up by its attribute.
        let has_other_names = || fstat(fd).is_ok_and(|stat| stat.st_nlink > 0);
        let found = match found {
            Err(Trouble::Changed) if self.has_lost_roots() || has_other_names() => match self.path_of(attribute) {
                Some(path) => self.attach(&path, attribute, for_writing),
                None => Err(Trouble::Changed),
            },
            found => found,
        };
        found.map_err(|trouble| match trouble {
            Trouble::Changed => OsError::STALE,
            Trouble::Os(error) => error,
        })
    }
}
