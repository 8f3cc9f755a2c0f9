//! What is open on a member's file system that hangs in no tree of directories any more: it was
//! unmounted with umount(8) `--lazy`, or the mount namespace in which it was mounted has ended.
//!
//! Of such a file or directory the kernel tells a path that begins at the root of the file system, and
//! not at that of the process. Such a descriptor must not pass for one of the host: what is made or
//! written by way of it would be on one member alone. So its place in the array is found out in other
//! ways: a directory's by climbing from it to the root of a member, a file's by its attribute and by
//! the end of the path that the kernel tells.
//!
//! This concerns only descriptors on a device that holds, or has held, a member, and whose path leads
//! elsewhere or nowhere: others cost one fstat(2) more, when they are looked at.

use crate::twin::host_path_of;
use crate::{Namespace, is_backing};
use alloc::vec::Vec;
use sys::high_fd::Raised;
use sys::rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, StatxFlags, fstat, openat, statat, statx};
use sys::{AsFd, AsRawFd, BorrowedFd};
use units::Slot;

impl Namespace {
    /// Returns the logical path of what `fd` is open on, of which the kernel tells `told`, and the
    /// slot of its member, if this process reaches the member in the same mount. None if it does not
    /// hang in the air, or is not the array's.
    pub(crate) fn detached_place(&self, fd: BorrowedFd<'_>, told: &[u8]) -> Option<(Vec<u8>, Option<Slot>)> {
        let open = self.hanging(fd, told)?;
        match FileType::from_raw_mode(open.st_mode) {
            FileType::Directory => {
                let root = self.root_above(fd)?;
                let root_path = host_path_of(root.as_fd()).ok()?;
                let path = if root_path == b"/" { told } else { told.strip_prefix(&*root_path)? };
                Some((path.to_vec(), self.slot_of_mount(root.as_fd()))).filter(|(path, _)| self.owns(path))
            }
            FileType::RegularFile if is_backing(fd) => self.path_at_end(told).map(|path| (path.to_vec(), None)),
            _ => None,
        }
    }

    /// Tells whether a descriptor is open on what is a member's, of this array or another one, and
    /// hangs in the air.
    pub(crate) fn is_detached(&self, fd: BorrowedFd<'_>) -> bool {
        let Some(open) = host_path_of(fd).ok().and_then(|told| self.hanging(fd, &told)) else { return false };
        match FileType::from_raw_mode(open.st_mode) {
            FileType::Directory => crate::deep::is_directory_of_a_member(fd),
            _ => is_backing(fd),
        }
    }

    /// Returns what fstat(2) says of a descriptor if its device has a member's directory, and the path
    /// that the kernel tells of it leads to something else.
    fn hanging(&self, fd: BorrowedFd<'_>, told: &[u8]) -> Option<Stat> {
        let open = if fd.as_raw_fd() == CWD.as_raw_fd() { statat(fd, c".", AtFlags::empty()) } else { fstat(fd) }.ok()?;
        if !self.array().runtime().has_root_on(open.st_dev) {
            return None;
        }
        let there = statat(CWD, told, AtFlags::SYMLINK_NOFOLLOW);
        let is_there = there.is_ok_and(|there| (there.st_dev, there.st_ino) == (open.st_dev, open.st_ino));
        (!is_there).then_some(open)
    }

    /// Climbs from a directory to the nearest that is, or was, the root of a member.
    fn root_above(&self, directory: BorrowedFd<'_>) -> Option<Raised> {
        let above = |from: BorrowedFd<'_>, path| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            openat(from, path, flags, Mode::empty()).and_then(Raised::new).ok()
        };
        let mut at = above(directory, c".")?;
        loop {
            let here = fstat(&at).ok()?;
            if self.array().runtime().is_root(here.st_dev, here.st_ino) {
                return Some(at);
            }
            let next = above(at.as_fd(), c"..")?;
            let there = fstat(&next).ok()?;
            if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino) {
                return None;
            }
            at = next;
        }
    }

    /// Returns the member in use whose root an open directory is, in the mount by which this process
    /// reaches the member. The kernel moves and links nothing from one mount to another.
    fn slot_of_mount(&self, root: BorrowedFd<'_>) -> Option<Slot> {
        let identity = |directory: BorrowedFd<'_>| {
            let found = statx(directory, c"", AtFlags::EMPTY_PATH, StatxFlags::INO | StatxFlags::MNT_ID).ok()?;
            Some((found.stx_dev_major, found.stx_dev_minor, found.stx_ino, found.stx_mnt_id))
        };
        let open = identity(root)?;
        self.array().in_use().iter().find(|&slot| self.root(slot).is_ok_and(|root| identity(root.as_fd()) == Some(open)))
    }

    /// Returns the longest end of a path that is a path of the array.
    fn path_at_end<'a>(&self, told: &'a [u8]) -> Option<&'a [u8]> {
        let starts = told.iter().enumerate().filter(|&(_, &byte)| byte == b'/').map(|(at, _)| at);
        starts.map(|at| &told[at..]).find(|path| self.owns(path))
    }
}
