//! Calls by a path that leads to what a descriptor is open on (its link under /proc). They act on
//! the open file, whatever its name is by now and whatever has its old name.
//!
//! The kernel's checks are those of such a link: of the file itself, not of the way to a name of
//! it.

use crate::open::CHANGING;
use crate::{Namespace, Node, Opened, ProgramPath};
use alloc::vec::Vec;
use core::ffi::CStr;
use file::FileRef;
use format::ATTRIBUTE_NAME;
use sys::rustix::fs::{
    Access, AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, accessat, fstat, getxattr, getxattr_query, listxattr, openat,
};
use sys::rustix::path::Arg as _;
use sys::waiting::NOT_MADE;
use sys::{AsFd, AsRawFd, BorrowedFd, OsError, Result};

impl Namespace {
    /// open(2).
    ///
    /// # Errors
    /// `STALE` for a file that has no name that could be found, and is not open here.
    pub fn reopen(&self, fd: BorrowedFd<'_>, node: &Node, flags: OFlags, mode: u32) -> Result<Opened> {
        let mut flags = OFlags::from_bits_retain(flags.bits() & crate::open::FLAGS_KNOWN);
        if flags.contains(OFlags::PATH) {
            flags &= OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        } else if flags.contains(OFlags::CREATE | OFlags::DIRECTORY) {
            return Err(OsError::INVAL);
        } else if flags.contains(OFlags::CREATE | OFlags::EXCL) {
            return Err(OsError::EXIST);
        }
        let stat = fstat(crate::stat::current(fd, node)?)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory && !flags.contains(OFlags::PATH) {
            if flags.contains(OFlags::TMPFILE)
                && stat.st_nlink != 0
                && let Some(path) = self.logical_path_of(fd)?
            {
                return self.unnamed_in(fd, &path, flags, mode);
            }
            if flags.intersects(OFlags::CREATE | OFlags::TRUNC) {
                return Err(OsError::ISDIR);
            }
        }
        // O_TMPFILE contains O_DIRECTORY. The kernel looks at the kind before it looks at rights.
        if flags.contains(OFlags::DIRECTORY) && kind != FileType::Directory {
            return Err(OsError::NOTDIR);
        }
        let held = crate::stat::current(fd, node)?;
        let link = crate::descriptor::link(held.as_raw_fd());
        let writes = flags & OFlags::RWMODE != OFlags::RDONLY;
        let cuts = flags.contains(OFlags::TRUNC) && kind == FileType::RegularFile;
        if cuts && !writes {
            self.access_open(fd, node, Access::WRITE_OK, AtFlags::EACCESS)?;
        }
        let kept = flags.difference(CHANGING);
        if crate::open::may_wait(kind) && !flags.intersects(OFlags::PATH | OFlags::NONBLOCK) {
            let wait = |link: &CStr| sys::waiting::open(CWD, link, kept, ResolveFlags::empty());
            return match link.as_slice().into_with_c_str(wait) {
                Err(NOT_MADE) => {
                    let looked = OFlags::PATH | OFlags::CLOEXEC;
                    let anchor = openat(CWD, link.as_slice(), looked, Mode::empty())?;
                    Ok(Opened { anchor, node: Node::Other, path: Vec::new(), is_made: false, waits: true })
                }
                anchor => Ok(Opened { anchor: anchor?, node: Node::Other, path: Vec::new(), is_made: false, waits: false }),
            };
        }
        let anchor = openat(CWD, link.as_slice(), kept, Mode::empty())?;
        let node = match kind {
            kind if flags.contains(OFlags::PATH) => self.path_node(kind, || self.twin_of(anchor.as_fd())),
            FileType::RegularFile => Node::File(self.file_open_as(fd, node, writes || cuts)?),
            FileType::Directory => Node::Directory(self.twin_of(anchor.as_fd())),
            _ => Node::Other,
        };
        if let Node::File(file) = &node {
            file.note_anchor([stat.st_dev, stat.st_ino]);
            if writes || cuts {
                crate::text::refuse_busy(&anchor, stat.st_mode)?;
            }
            if cuts {
                file.truncate(0)?;
            }
        }
        Ok(Opened { anchor, node, path: Vec::new(), is_made: false, waits: false })
    }

    /// Makes a file without a name in an open directory, which has this logical path or had it a
    /// moment ago: the directory itself leads to where it is now.
    fn unnamed_in(&self, fd: BorrowedFd<'_>, path: &[u8], flags: OFlags, mode: u32) -> Result<Opened> {
        let text = [path, b"/."].concat();
        let here = ProgramPath::relative(fd, self.slot_of(fd), &text, path.len());
        match self.open(here, flags, mode)? {
            crate::Reached::Array(opened) => Ok(opened),
            crate::Reached::Host(_) => Err(OsError::XDEV),
        }
    }

    /// truncate(2). Nothing of it is opened and closed, which would take the program's locks on it
    /// away (fcntl(2)).
    pub fn truncate_open(&self, fd: BorrowedFd<'_>, node: &Node, bytes: u64) -> Result<()> {
        let stat = fstat(crate::stat::current(fd, node)?)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return Err(OsError::ISDIR),
            _ => return Err(OsError::INVAL),
        }
        self.access_open(fd, node, Access::WRITE_OK, AtFlags::EACCESS)?;
        let file = self.file_open_as(fd, node, true)?;
        let lowest = file.in_use().next().map(|(_, backing)| backing);
        if let Some(backing) = lowest {
            crate::text::refuse_busy(backing.fd()?, stat.st_mode)?;
        }
        file.truncate(bytes)?;
        // Members' files need not change with the size. The program has no descriptor by which
        // those who watch could be told.
        if let Some(backing) = lowest.filter(|_| file.may_be_watched()) {
            file.tell_modified(backing.fd()?.as_fd());
        }
        Ok(())
    }

    /// access(2), faccessat2(2). `flags` may hold AT_EACCESS.
    pub fn access_open(&self, fd: BorrowedFd<'_>, node: &Node, access: Access, flags: AtFlags) -> Result<()> {
        self.with_link(fd, node, |link| accessat(CWD, link, access, flags & AtFlags::EACCESS))
    }

    /// getxattr(2). With an empty buffer the length of the value.
    pub fn getxattr_open(&self, fd: BorrowedFd<'_>, node: &Node, name: &[u8], buffer: &mut [u8]) -> Result<usize> {
        self.with_link(fd, node, |link| match buffer {
            _ if name == ATTRIBUTE_NAME.to_bytes() => Err(OsError::NODATA),
            [] => getxattr_query(link, name),
            buffer => getxattr(link, name, buffer),
        })
    }

    /// listxattr(2). With an empty buffer the length of the list.
    pub fn listxattr_open(&self, fd: BorrowedFd<'_>, node: &Node, buffer: &mut [u8]) -> Result<usize> {
        self.with_link(fd, node, |link| crate::xattr::listed(buffer, |list| listxattr(link, list)))
    }

    /// The path under /proc that leads to what is open, on a member in use if that has a descriptor
    /// which stays.
    ///
    /// # Errors
    /// What keeps a parked file from getting a descriptor.
    pub fn link_of(&self, fd: BorrowedFd<'_>, node: &Node) -> Result<Vec<u8>> {
        let held = crate::stat::current(fd, node)?;
        Ok(crate::descriptor::link(if held.is_fetched() { fd.as_raw_fd() } else { held.as_raw_fd() }))
    }

    /// Runs `act` with the path under /proc that leads to what is open, on a member in use.
    ///
    /// # Errors
    /// Those of `act`, and what keeps a parked file from getting a descriptor.
    pub fn with_link<T>(&self, fd: BorrowedFd<'_>, node: &Node, act: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
        let held = crate::stat::current(fd, node)?;
        act(&crate::descriptor::link(held.as_raw_fd()))
    }

    /// Tells whether a descriptor is all that is left of a file: it has no name, nobody has it open,
    /// and the array has given its number back. What is done to such a file nobody can see.
    ///
    /// # Errors
    /// Those of reading its attribute and its record.
    pub fn is_gone(&self, fd: BorrowedFd<'_>) -> Result<bool> {
        let stat = fstat(fd)?;
        if stat.st_nlink != 0 || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(false);
        }
        crate::backing::attribute_behind(fd)?.map_or(Ok(true), |attribute| self.files.is_free(attribute))
    }

    /// The file that is open.
    pub(crate) fn file_open_as(&self, fd: BorrowedFd<'_>, node: &Node, for_writing: bool) -> Result<FileRef> {
        match node {
            Node::File(file) if file.is_writable() || !for_writing => Ok(file.clone()),
            // What is open leads to itself on every member.
            Node::File(file) => self.files.open(file.attribute(), true, || self.backing_again(file)),
            Node::Lost => Err(OsError::STALE),
            _ => {
                let attribute = self.attribute_open(fd)?.ok_or(OsError::IO)?;
                self.attach_open(fd, attribute, for_writing)
            }
        }
    }
}
