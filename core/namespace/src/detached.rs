//! Finds the place of what is open on a member's file system that *hangs in the air*: the file system
//! is in no tree of directories any more, since it was unmounted with umount(8) `--lazy`, or the mount
//! namespace in which it was mounted has ended.
//!
//! Of such a file or directory the kernel tells a path that begins at the root of the file system, and
//! not at that of the process. Such a descriptor must not pass for one of the host: what is made or
//! written by way of it would be on one member alone. So its place in the array is found out in other
//! ways: a directory's by climbing from it to the root of a member, a file's by its attribute and by
//! the end of the path that the kernel tells.
//!
//! This concerns only descriptors on a device that holds, or has held, a member, and whose path leads
//! elsewhere or nowhere. Others cost one fstat(2) more when they are looked at. No descriptor is opened
//! for it.

use crate::twin::host_path_of;
use crate::{DELETED, Namespace, is_backing};
use alloc::vec::Vec;
use sys::rustix::fs::{AtFlags, CWD, FileType, Stat, StatxFlags, fstat, statat, statx};
use sys::{AsFd, AsRawFd, BorrowedFd, OsError};
use units::Slot;

/// How many directories a climb goes up at most: so many `..` make a path that the kernel takes.
const CLIMB_MAX: usize = 1000;

impl Namespace {
    /// Returns the logical path of what `fd` is open on, of which the kernel tells `told`, and the
    /// slot of its member, if this process reaches the member in the same mount. None if it does not
    /// hang in the air, is not the array's, or a directory above it may not be searched.
    pub(crate) fn detached_place(&self, fd: BorrowedFd<'_>, told: &[u8]) -> Option<(Vec<u8>, Option<Slot>)> {
        let open = self.on_device_of_member(fd).filter(|open| is_hanging(fd, open, told))?;
        match FileType::from_raw_mode(open.st_mode) {
            FileType::Directory => {
                let up = self.climb_to_root(fd)?;
                let path = last_components(told, up.len() / UP.len()).filter(|path| self.owns(path))?;
                Some((path.to_vec(), self.slot_of_mount(fd, &up)))
            }
            FileType::RegularFile if is_backing(fd) => self.path_at_end(told).map(|path| (path.to_vec(), None)),
            _ => None,
        }
    }

    /// Tells whether a descriptor is open on what is a member's, of this array or another one, and
    /// hangs in the air, or has a path that is longer than the kernel tells.
    pub(crate) fn is_detached(&self, fd: BorrowedFd<'_>) -> bool {
        let Some(open) = self.on_device_of_member(fd) else { return false };
        match host_path_of(fd) {
            Ok(told) if !is_hanging(fd, &open, &told) => return false,
            Ok(_) | Err(OsError::NAMETOOLONG) => {}
            Err(_) => return false,
        }
        match FileType::from_raw_mode(open.st_mode) {
            FileType::Directory => crate::deep::lies_below_tables(fd) == Ok(true),
            _ => is_backing(fd),
        }
    }

    /// Returns what fstat(2) says of a descriptor if the root of a member is, or was, on its device.
    fn on_device_of_member(&self, fd: BorrowedFd<'_>) -> Option<Stat> {
        let open = stat_of(fd).ok()?;
        self.array().runtime().has_root_on(open.st_dev).then_some(open)
    }

    /// Climbs from a directory to the nearest that is, or was, the root of a member. Returns the path
    /// from the directory to that root, which consists of [`UP`]s.
    fn climb_to_root(&self, directory: BorrowedFd<'_>) -> Option<Vec<u8>> {
        let (mut up, mut here) = (Vec::new(), stat_of(directory).ok()?);
        while !self.array().runtime().is_root(here.st_dev, here.st_ino) {
            up.extend_from_slice(UP);
            let above = statat(directory, &*up, AtFlags::empty()).ok()?;
            if (above.st_dev, above.st_ino) == (here.st_dev, here.st_ino) || up.len() > CLIMB_MAX * UP.len() {
                return None;
            }
            here = above;
        }
        Some(up)
    }

    /// Returns the member in use whose root lies `up` from a directory, in the mount by which this
    /// process reaches the member. The kernel moves and links nothing from one mount to another.
    fn slot_of_mount(&self, directory: BorrowedFd<'_>, up: &[u8]) -> Option<Slot> {
        let identity = |directory: BorrowedFd<'_>, path: &[u8]| {
            let path = if path.is_empty() { b"." } else { path };
            let found = statx(directory, path, AtFlags::empty(), StatxFlags::INO | StatxFlags::MNT_ID).ok()?;
            let is_told = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::MNT_ID);
            is_told.then_some((found.stx_dev_major, found.stx_dev_minor, found.stx_ino, found.stx_mnt_id))
        };
        let open = identity(directory, up)?;
        let is_it = |slot: &Slot| self.root(*slot).is_ok_and(|root| identity(root.as_fd(), b"") == Some(open));
        self.array().in_use().iter().find(is_it)
    }

    /// Returns the longest end of a path that is a path of the array.
    fn path_at_end<'a>(&self, told: &'a [u8]) -> Option<&'a [u8]> {
        let starts = told.iter().enumerate().filter(|&(_, &byte)| byte == b'/').map(|(at, _)| at);
        starts.map(|at| &told[at..]).find(|path| self.owns(path))
    }
}

/// The path of one step of a climb.
const UP: &[u8] = b"../";

fn stat_of(fd: BorrowedFd<'_>) -> Result<Stat, OsError> {
    if fd.as_raw_fd() == CWD.as_raw_fd() { statat(fd, c".", AtFlags::empty()) } else { fstat(fd) }
}

/// Tells whether the path that the kernel tells of a descriptor leads to something else. What was
/// removed does not hang in the air if the directory is there that it was removed from.
fn is_hanging(fd: BorrowedFd<'_>, open: &Stat, told: &[u8]) -> bool {
    let is = |one: &Stat, other: &Stat| (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino);
    if statat(CWD, told, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|there| is(&there, open)) {
        return false;
    }
    let Some(parent) = told.strip_suffix(DELETED).and_then(|path| path.rsplitn(2, |&byte| byte == b'/').nth(1)) else {
        return true;
    };
    let parent = if parent.is_empty() { b"/" } else { parent };
    let above = (statat(fd, c"..", AtFlags::empty()), statat(CWD, parent, AtFlags::SYMLINK_NOFOLLOW));
    !matches!(above, (Ok(above), Ok(there)) if is(&above, &there))
}

/// Returns the end of a path that consists of its last components, with the slash before them.
fn last_components(path: &[u8], count: usize) -> Option<&[u8]> {
    let starts = path.iter().enumerate().rev().filter(|&(_, &byte)| byte == b'/').map(|(at, _)| at);
    starts.take(count).last().filter(|_| count > 0).map(|at| &path[at..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_path_has_as_many_components_as_were_climbed() {
        assert_eq!(last_components(b"/sub/data/d", 2), Some(&b"/data/d"[..]));
        assert_eq!(last_components(b"/sub/data/d", 3), Some(&b"/sub/data/d"[..]));
        assert_eq!(last_components(b"/sub/data/d", 0), None);
    }
}
