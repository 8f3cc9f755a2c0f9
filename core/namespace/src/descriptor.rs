//! The file or directory that a descriptor of the program stands for, and the current directory.

use crate::open::Trouble;
use crate::{Namespace, Node, ProgramPath, Reached};
use alloc::vec::Vec;
use file::FileRef;
use format::Attribute;
use sys::rustix::fs::{AtFlags, CWD, FileType, OFlags, fcntl_getfl, fstat, readlinkat, statat};
use sys::rustix::process::getcwd;
use sys::{AsRawFd, BorrowedFd, OsError, OwnedFd, RawFd, Result};
use units::Slot;

/// The path under /proc that leads to what a descriptor of ours is open on.
#[must_use]
pub fn link(fd: RawFd) -> Vec<u8> {
    alloc::format!("/proc/thread-self/fd/{fd}").into_bytes()
}

impl Namespace {
    /// The logical path of a descriptor, if it is in the array. Of something that has no name any more it ends with ` (deleted)`.
    pub fn logical_path_of(&self, fd: BorrowedFd<'_>) -> Result<Option<Vec<u8>>> {
        let path = readlinkat(CWD, link(fd.as_raw_fd()).as_slice(), Vec::new())?;
        Ok(self.logical(path.as_bytes()).map(<[u8]>::to_vec))
    }

    /// The member that a descriptor lies on, by the path that the kernel says. The result is None if this process cannot see that member.
    pub(crate) fn slot_of(&self, fd: BorrowedFd<'_>) -> Option<Slot> {
        let path = readlinkat(CWD, link(fd.as_raw_fd()).as_slice(), Vec::new()).ok()?;
        self.placed(path.as_bytes())?.1.filter(|&slot| self.root(slot).is_ok())
    }

    /// The logical path of a host path that lies in a member and belongs to the array.
    #[must_use]
    pub fn logical<'a>(&self, host: &'a [u8]) -> Option<&'a [u8]> {
        self.placed(host).map(|(path, _)| path)
    }

    /// The logical path of a host path, as [`Self::logical`], with the slot of the member. The slot is None if the path
    /// lies in a directory that was a member and is none any more.
    #[must_use]
    pub fn placed<'a>(&self, host: &'a [u8]) -> Option<(&'a [u8], Option<Slot>)> {
        let below = |root: &Vec<u8>| !root.is_empty() && array::config::is_below(host, root);
        let slot = self.roots.iter().position(below);
        let root_bytes = match slot {
            Some(slot) => self.roots[slot].len(),
            None => self.lost_root_bytes(host)?,
        };
        Some(&host[root_bytes..]).filter(|path| self.owns(path)).map(|path| (path, slot))
    }

    /// Whether descriptors may lie on what was a member and is none.
    fn has_lost_roots(&self) -> bool {
        let runtime = self.array().runtime();
        !runtime.out().is_empty() || runtime.root_count() > self.array().members().len()
    }

    /// Whether the directory of the member that anchors lie on was renamed, which nobody has noticed yet: this process has it open.
    fn first_root_has_moved(&self) -> bool {
        let Some(root) = self.array().first_in_use().ok().and_then(|slot| self.roots.get(slot)) else { return false };
        let is_there = |stat: sys::rustix::fs::Stat| self.array().runtime().is_root(stat.st_dev, stat.st_ino);
        !root.is_empty() && !statat(CWD, root.as_slice(), AtFlags::SYMLINK_NOFOLLOW).is_ok_and(is_there)
    }

    /// The length of the part of a host path that is the root of a lost member, wherever that is now: a descriptor that was opened while the member was in
    /// use still lies in it.
    fn lost_root_bytes(&self, host: &[u8]) -> Option<usize> {
        if !self.has_lost_roots() && !self.first_root_has_moved() {
            return None;
        }
        let (array, runtime) = (self.array(), self.array().runtime());
        let is_root = |end: &usize| {
            // Where the member's file system answers nothing any more, its configured path must do.
            let is_configured = || array.members().iter().any(|member| member.path == host[..*end]);
            match statat(CWD, &host[..*end], AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => runtime.is_root(stat.st_dev, stat.st_ino),
                Err(_) => is_configured(),
            }
        };
        let ends = host.iter().enumerate().filter(|&(at, &byte)| at > 0 && byte == b'/').map(|(at, _)| at);
        ends.chain([host.len()]).find(is_root)
    }

    /// Sees to it that the file behind `fd`, an anchor that process `pid` has as well, is not freed before that process' next program has
    /// found it or the process has ended. See [`array::Runtime::hold_for`].
    pub fn hold_for(&self, pid: u32, fd: BorrowedFd<'_>) -> Result<()> {
        match self.attribute_open(fd)? {
            Some(attribute) => self.array().runtime().hold_for(pid, file::key(attribute.inode, attribute.generation)),
            None => Ok(()),
        }
    }

    /// The current directory as the program knows it, if it is in the array.
    pub fn logical_cwd(&self) -> Result<Option<Vec<u8>>> {
        let path = getcwd(Vec::new())?;
        Ok(self.logical(path.as_bytes()).map(<[u8]>::to_vec))
    }

    /// A descriptor (O_PATH, close-on-exec) of a directory for fchdir(2); the kernel checks there whether it may be searched.
    pub fn enter_directory<'p>(&self, path: impl Into<ProgramPath<'p>>) -> Result<Reached<OwnedFd>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        self.find(path.into(), flags, true)?.and_then(|found| Ok(found.fd))
    }

    /// A descriptor (O_PATH, close-on-exec) of what a path leads to, for calls that name it to the kernel for good.
    pub fn look_at<'p>(&self, path: impl Into<ProgramPath<'p>>, follow: bool) -> Result<Reached<OwnedFd>> {
        self.find(path.into(), OFlags::PATH | OFlags::CLOEXEC, follow)?.and_then(|found| Ok(found.fd))
    }

    /// What an anchor stands for that came from before exec, or from another process. None if the descriptor is not the array's.
    ///
    /// # Errors
    /// `STALE` for a file whose last name went by hands that could not keep it, and that is not open here: its backing files cannot be
    /// found; `IO` for damage, and what opening the backing files gives.
    pub fn inherit(&self, fd: BorrowedFd<'_>) -> Result<Option<Node>> {
        let Ok(Some(_)) = self.logical_path_of(fd) else { return Ok(None) };
        let flags = fcntl_getfl(fd)?;
        if flags.contains(OFlags::PATH) {
            return Ok(Some(Node::Path));
        }
        let stat = fstat(fd)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return Ok(Some(Node::Directory)),
            _ => return Ok(Some(Node::Other)),
        }
        let attribute = match self.attribute_open(fd) {
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

    /// The file with this attribute that a descriptor is open on.
    ///
    /// # Errors
    /// As for [`Self::inherit`].
    pub(crate) fn attach_open(&self, fd: BorrowedFd<'_>, attribute: Attribute, for_writing: bool) -> Result<FileRef> {
        let path = self.logical_path_of(fd)?.ok_or(OsError::STALE)?;
        match self.attach(&path, attribute, for_writing) {
            // It was renamed or removed since, or is being so.
            Err(Trouble::Changed) => self.locked(|_| self.attach_open_locked(fd, attribute, for_writing)),
            Err(Trouble::Os(error)) => Err(error),
            Ok(file) => Ok(file),
        }
    }

    /// Joins an open file, as [`Self::attach_open`] does, with the namespace lock held.
    pub(crate) fn attach_open_locked(&self, fd: BorrowedFd<'_>, attribute: Attribute, for_writing: bool) -> Result<FileRef> {
        let path = self.logical_path_of(fd)?.ok_or(OsError::STALE)?;
        let orphan = [b"/", file::orphan_path(attribute).as_slice()].concat();
        let found = match self.attach(&path, attribute, for_writing) {
            Err(Trouble::Changed) => self.attach(&orphan, attribute, for_writing),
            found => found,
        };
        // What lies on a lost member was not renamed with the others: its name there says nothing. And a file may have lost the name that it was opened by, and have others.
        let has_others = || fstat(fd).is_ok_and(|stat| stat.st_nlink > 0);
        let found = match found {
            Err(Trouble::Changed) if self.has_lost_roots() || has_others() => match self.path_of(attribute) {
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
