//! What a program is told about something: the anchor's values, with the array's size and time.
//!
//! The anchor's own size says nothing about a striped file: the logical size is the runtime segment's or the inode table's. Space is
//! allocated alike on all members, so the anchor's blocks times their number are the file's. A write whose time the members do not
//! know yet gives modification and change time.

use crate::resolve::Found;
use crate::{Namespace, Node, Reached};
use alloc::vec::Vec;
use format::{ATTRIBUTE_BYTES, ATTRIBUTE_NAME, Attribute};
use sys::rustix::fs::{
    Access, AtFlags, FileType, OFlags, Stat, Statx, StatxFlags, accessat, fstat, getxattr, lgetxattr, readlinkat, statx,
};
use sys::{AsFd, AsRawFd, BorrowedFd, OsError, Result};

const LOOK: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
const NS_PER_SECOND: u64 = 1_000_000_000;

/// What the array knows better than the anchor.
struct Known {
    size: u64,
    /// ns since 1970.
    modified_ns: Option<u64>,
}

impl Namespace {
    /// stat(2), lstat(2), newfstatat(2).
    pub fn stat(&self, path: &[u8], follow: bool) -> Result<Reached<Stat>> {
        self.find(path, LOOK, follow)?.and_then(|found| self.fstat(found.fd.as_fd(), &Node::Path))
    }

    /// fstat(2).
    pub fn fstat(&self, fd: BorrowedFd<'_>, node: &Node) -> Result<Stat> {
        let mut stat = fstat(fd)?;
        let Some(known) = self.known(fd, node, stat.st_mode) else { return Ok(stat) };
        stat.st_size = known.size as i64;
        stat.st_blocks *= self.array().in_use().len() as i64;
        if let Some(ns) = known.modified_ns {
            let (seconds, nanoseconds) = ((ns / NS_PER_SECOND) as i64, ns % NS_PER_SECOND);
            (stat.st_mtime, stat.st_mtime_nsec) = (seconds, nanoseconds);
            if (stat.st_ctime, stat.st_ctime_nsec) < (seconds, nanoseconds) {
                (stat.st_ctime, stat.st_ctime_nsec) = (seconds, nanoseconds);
            }
        }
        Ok(stat)
    }

    /// statx(2) with a path. `flags` are AT_STATX_* and AT_NO_AUTOMOUNT.
    pub fn statx(&self, path: &[u8], flags: AtFlags, mask: StatxFlags, follow: bool) -> Result<Reached<Statx>> {
        self.find(path, LOOK, follow)?.and_then(|found| self.fstatx(found.fd.as_fd(), &Node::Path, flags, mask))
    }

    /// statx(2) with AT_EMPTY_PATH.
    pub fn fstatx(&self, fd: BorrowedFd<'_>, node: &Node, flags: AtFlags, mask: StatxFlags) -> Result<Statx> {
        let mut stat = statx(fd, c"", flags | AtFlags::EMPTY_PATH, mask | StatxFlags::TYPE)?;
        let Some(known) = self.known(fd, node, stat.stx_mode.into()) else { return Ok(stat) };
        stat.stx_size = known.size;
        stat.stx_blocks *= self.array().in_use().len() as u64;
        if let Some(ns) = known.modified_ns {
            let (seconds, nanoseconds) = ((ns / NS_PER_SECOND) as i64, (ns % NS_PER_SECOND) as u32);
            (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec) = (seconds, nanoseconds);
            if (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec) < (seconds, nanoseconds) {
                (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec) = (seconds, nanoseconds);
            }
        }
        Ok(stat)
    }

    /// None if the anchor knows best: it is no file, or one that is none of the array's or not readable by the program.
    fn known(&self, fd: BorrowedFd<'_>, node: &Node, mode: u32) -> Option<Known> {
        match node {
            Node::File(file) => Some(Known { size: file.size(), modified_ns: file.pending_modified_ns() }),
            Node::Path if FileType::from_raw_mode(mode) == FileType::RegularFile => {
                let mut value = [0; ATTRIBUTE_BYTES];
                let result = getxattr(crate::descriptor::link(fd.as_raw_fd()), ATTRIBUTE_NAME, &mut value);
                let attribute = crate::open::decode(result, &value).ok()??;
                let (size, modified_ns) = self.files.size_and_time(attribute).ok()?;
                Some(Known { size, modified_ns })
            }
            _ => None,
        }
    }

    /// The attribute of the file at a logical path without symlinks.
    pub(crate) fn attribute_at(&self, path: &[u8]) -> Result<Option<Attribute>> {
        let mut value = [0; ATTRIBUTE_BYTES];
        let host = self.anchor_path(path)?;
        crate::open::decode(lgetxattr(host, ATTRIBUTE_NAME, &mut value), &value)
    }

    /// access(2), faccessat2(2). `flags` may hold AT_EACCESS.
    pub fn access(&self, path: &[u8], access: Access, flags: AtFlags, follow: bool) -> Result<Reached<()>> {
        let check = |found: Found| {
            let flags = flags & AtFlags::EACCESS | AtFlags::SYMLINK_NOFOLLOW;
            self.on_first(|root| accessat(root, &found.path[1..], access, flags))
        };
        self.find(path, LOOK, follow)?.and_then(check)
    }

    /// readlink(2): the whole target.
    pub fn readlink(&self, path: &[u8]) -> Result<Reached<Vec<u8>>> {
        self.find(path, LOOK, false)?.and_then(|found| match readlinkat(&found.fd, c"", Vec::new()) {
            // Of what is no symlink the kernel says that an empty path leads nowhere.
            Err(OsError::NOENT) => Err(OsError::INVAL),
            result => result.map(|target| target.into_bytes()),
        })
    }
}
