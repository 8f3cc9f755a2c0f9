//! Mounts inside a member's tree that somebody outside the array made.
//!
//! What such a mount shows is no part of the member. If it were taken for the member, names would
//! be made there and not on the member, names of the other members would be removed as left over,
//! and the member would go out for names that it has underneath the mount. So no path below a
//! member's root is walked across a mount, except a mount of the member's own file system: that is
//! what [`crate::Namespace::bind_mount`] makes, on every member alike. The error is
//! [`FOREIGN_MOUNT`]; the member stays in use.

use crate::resolve::split_last;
use alloc::vec::Vec;
use array::{Array, proc_file};
use sys::high_fd::Raised;
use sys::rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, fstat, openat2, statat};
use sys::rustix::path::Arg as _;
use sys::{AsFd, BorrowedFd, OsError, OwnedFd, Result};

/// The error of a path that leads across a mount which is not the array's. No file system answers
/// with it. Programs are told EIO.
pub const FOREIGN_MOUNT: OsError = OsError::REMCHG;

/// Beside flags of an open that may have to wait for another process: where a signal is to be handled
/// first, it fails with [`sys::waiting::NOT_MADE`]. The bit is none of the kernel's.
pub(crate) const INTERRUPTIBLE: OFlags = OFlags::from_bits_retain(1 << 30);

/// PATH_MAX: the kernel takes paths of fewer bytes.
const PATH_BYTES_MAX: usize = 4096;

/// Opens or makes what `path` leads to below `directory`, which lies on a member, with openat2(2).
///
/// # Errors
/// [`FOREIGN_MOUNT`], and what the kernel says.
pub(crate) fn open_within(
    directory: impl AsFd,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> Result<OwnedFd> {
    match open_as_asked(directory.as_fd(), path, flags, mode, resolve | ResolveFlags::NO_XDEV) {
        Err(OsError::XDEV) => {
            // Not by fstat(2), to which the working directory (AT_FDCWD) is no descriptor.
            let start = statat(&directory, c"", AtFlags::EMPTY_PATH)?.st_dev;
            look_across(directory.as_fd(), path, resolve, start)?;
            open_as_asked(directory.as_fd(), path, flags, mode, resolve)
        }
        result => result,
    }
}

/// Calls openat2(2); with [`INTERRUPTIBLE`] in such a way that a signal ends the wait.
fn open_as_asked(directory: BorrowedFd<'_>, path: &[u8], flags: OFlags, mode: Mode, resolve: ResolveFlags) -> Result<OwnedFd> {
    if flags.contains(INTERRUPTIBLE) {
        let flags = flags.difference(INTERRUPTIBLE);
        return path.into_with_c_str(|path| sys::waiting::open(directory, path, flags, resolve));
    }
    openat2(directory, path, flags, mode, resolve)
}

/// Opens or makes what a path leads to below a directory, as [`open_within`] does, however long the
/// path is: renamed directories and relative paths make names that lie deeper than the kernel walks
/// in one call.
pub(crate) fn open_deep(
    directory: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> Result<OwnedFd> {
    let (mut rest, mut above) = (path, None::<Raised>);
    loop {
        let from = above.as_ref().map_or(directory, AsFd::as_fd);
        if rest.len() < PATH_BYTES_MAX {
            return open_within(from, rest, flags, mode, resolve);
        }
        let cut = rest[..PATH_BYTES_MAX].iter().rposition(|&byte| byte == b'/').filter(|&cut| cut > 0);
        let (near, far) = rest.split_at(cut.ok_or(OsError::NAMETOOLONG)?);
        let way = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        above = Some(open_within(from, near, way, Mode::empty(), resolve).and_then(Raised::new)?);
        rest = far.strip_prefix(b"/").unwrap_or(far);
    }
}

/// Sees to it that what a path leads to, or would be made in, is on the device `start`.
#[cold]
fn look_across(directory: BorrowedFd<'_>, path: &[u8], resolve: ResolveFlags, start: u64) -> Result<()> {
    let device = |path: &[u8]| {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat2(directory, path, flags, Mode::empty(), resolve).and_then(|found| fstat(&found)).map(|stat| stat.st_dev)
    };
    let parent = split_last(path).0;
    let is_foreign = |found: Result<u64>| match found {
        Ok(device) => Ok(device != start),
        Err(OsError::NOENT) => Ok(false),
        Err(error) => Err(error),
    };
    if !parent.is_empty() && is_foreign(device(parent))? || is_foreign(device(path))? { Err(FOREIGN_MOUNT) } else { Ok(()) }
}

/// The mount points below members' roots, as the kernel lists them for this process
/// (proc_pid_mountinfo(5)).
#[must_use]
pub fn mounts_in_members(array: &Array) -> Vec<Vec<u8>> {
    mounts_told_in(array, &proc_file::read("/proc/self/mountinfo"))
}

/// Tells whether a mount hides names of a member from this process, or may do so: one of the
/// member's own file system is walked into as any directory. True also where the kernel lists no
/// mounts.
pub(crate) fn may_hide_names(array: &Array) -> bool {
    let text = proc_file::read("/proc/self/mountinfo");
    text.is_empty() || !mounts_told_in(array, &text).is_empty()
}

fn mounts_told_in(array: &Array, text: &[u8]) -> Vec<Vec<u8>> {
    let points =
        text.split(|&byte| byte == b'\n').filter_map(|line| line.split(|&byte| byte == b' ').nth(4)).map(proc_file::unescaped);
    let is_below = |point: &[u8], root: &[u8]| point.strip_prefix(root).is_some_and(|rest| rest.starts_with(b"/"));
    points.filter(|point| array.members().iter().any(|member| is_below(point, &member.path))).collect()
}
