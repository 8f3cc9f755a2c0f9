//! Reading extended attributes. The array's own, `user.cxlraid`, is not there for programs.
//!
//! Changing them is a change of attributes like others: `attributes`.

use crate::everywhere::is_dead;
use crate::{Namespace, Node, ProgramPath, Reached};
use alloc::vec::Vec;
use format::ATTRIBUTE_NAME;
use sys::AsFd as _;
use sys::rustix::fs::{fgetxattr, fgetxattr_query, flistxattr, getxattr, getxattr_query, listxattr};
use sys::{AsRawFd, BorrowedFd, OsError, Result};

/// Lists of names are at most this long (xattr(7)).
const LIST_BYTES_MAX: usize = 65536;

impl Namespace {
    /// getxattr(2), lgetxattr(2). With an empty buffer the length of the value.
    pub fn getxattr<'p>(
        &self,
        path: impl Into<ProgramPath<'p>>,
        name: &[u8],
        buffer: &mut [u8],
        follow: bool,
    ) -> Result<Reached<usize>> {
        self.asking_found(path.into(), follow, |found| {
            if name == ATTRIBUTE_NAME.to_bytes() {
                return Err(OsError::NODATA);
            }
            // The link leads to what was found, also to a symlink.
            let link = crate::descriptor::link(found.fd.as_raw_fd());
            if buffer.is_empty() { getxattr_query(link, name) } else { getxattr(link, name, &mut *buffer) }
        })
    }

    /// fgetxattr(2).
    pub fn fgetxattr(&self, fd: BorrowedFd<'_>, node: &Node, name: &[u8], buffer: &mut [u8]) -> Result<usize> {
        self.asking_open(fd, node, |fd| match &mut *buffer {
            _ if name == ATTRIBUTE_NAME.to_bytes() => Err(OsError::NODATA),
            [] => fgetxattr_query(fd, name),
            buffer => fgetxattr(fd, name, buffer),
        })
    }

    /// listxattr(2), llistxattr(2). With an empty buffer the length of the list.
    pub fn listxattr<'p>(&self, path: impl Into<ProgramPath<'p>>, buffer: &mut [u8], follow: bool) -> Result<Reached<usize>> {
        self.asking_found(path.into(), follow, |found| {
            listed(buffer, |list| listxattr(crate::descriptor::link(found.fd.as_raw_fd()), list))
        })
    }

    /// flistxattr(2).
    pub fn flistxattr(&self, fd: BorrowedFd<'_>, node: &Node, buffer: &mut [u8]) -> Result<usize> {
        self.asking_open(fd, node, |fd| listed(buffer, |list| flistxattr(fd, list)))
    }

    /// Asks about what is open. If the member that answers has failed, the next one is asked.
    fn asking_open<T>(&self, fd: BorrowedFd<'_>, node: &Node, mut ask: impl FnMut(BorrowedFd<'_>) -> Result<T>) -> Result<T> {
        loop {
            match crate::stat::current(fd, node).and_then(|held| ask(held.as_fd())) {
                Err(error) if is_dead(error) && self.let_failing_go(error) => {}
                result => return result,
            }
        }
    }
}

/// Copies the names that programs may see; each ends with a NUL.
pub(crate) fn listed(buffer: &mut [u8], list: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<usize> {
    let mut all = alloc::vec![0; LIST_BYTES_MAX];
    let bytes = list(&mut all)?;
    let seen = |name: &&[u8]| *name != ATTRIBUTE_NAME.to_bytes_with_nul();
    let kept: Vec<u8> = all[..bytes].split_inclusive(|&byte| byte == 0).filter(seen).flatten().copied().collect();
    if !buffer.is_empty() {
        buffer.get_mut(..kept.len()).ok_or(OsError::RANGE)?.copy_from_slice(&kept);
    }
    Ok(kept.len())
}
