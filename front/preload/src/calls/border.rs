//! Calls with two paths of which one is in the array and the other is not: they answer EXDEV, as
//! between two file systems. But first they answer whatever error the kernel would find in either
//! path before that.

use super::links;
use super::on_path::At;
use super::paths::{self, AT_FDCWD, Where};
use crate::array;
use crate::call::Call;
use heap::vec::Vec;
use linux_raw_sys::general::{__NR_newfstatat, __NR_openat, AT_SYMLINK_NOFOLLOW, S_IFDIR, S_IFMT};
use namespace::{OFlags, ProgramPath, Reached, Stat, without_slashes};
use sys::raw::{check, syscall};
use sys::rustix::fs::{StatVfsMountFlags, fstatvfs};
use sys::{OsError, RawFd};

/// What is looked at of each path before the border between them is met.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Looks {
    /// The first path as a whole, and then whether the second is free (link(2)).
    Link { follow: bool },
    /// As [`Self::Link`], where the first path is empty and its descriptor has been looked at
    /// (AT_EMPTY_PATH).
    LinkOpen,
    /// The directories of both (rename(2)).
    Rename,
}

/// The error of a call across the border.
pub(crate) fn error(call: &Call, [from, to]: [At; 2], looks: Looks) -> OsError {
    let look = || -> Result<(), OsError> {
        let (source, goal) = (|| paths::text(call.args[from.path()]), || paths::text(call.args[to.path()]));
        match looks {
            Looks::Link { follow } => {
                stat(from.base(call), &source()?, follow)?;
                // The second path is read when the first is found.
                look_at_new_name(to.base(call), &goal()?)
            }
            Looks::LinkOpen => look_at_new_name(to.base(call), &goal()?),
            Looks::Rename => {
                look_at_directory(from.base(call), &source()?)?;
                look_at_directory(to.base(call), &goal()?)
            }
        }
    };
    look().err().unwrap_or(OsError::XDEV)
}

/// The error of a call that would give something of the array a name outside it.
pub(crate) fn error_of_new_name(call: &Call, to: At) -> OsError {
    paths::text(call.args[to.path()]).and_then(|goal| look_at_new_name(to.base(call), &goal)).err().unwrap_or(OsError::XDEV)
}

/// Looks whether a name can be made.
fn look_at_new_name(base: RawFd, goal: &[u8]) -> Result<(), OsError> {
    look_at_directory(base, goal)?;
    match stat(base, without_slashes(goal), false) {
        Ok(_) => Err(OsError::EXIST),
        // A name that is to be made has no slash behind it.
        Err(OsError::NOENT) if goal.ends_with(b"/") => Err(OsError::NOENT),
        Err(OsError::NOENT) if is_read_only(base, goal) => Err(OsError::ROFS),
        Err(OsError::NOENT) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether a name of the host would be made on a file system that is mounted read-only.
fn is_read_only(base: RawFd, goal: &[u8]) -> bool {
    if !matches!(paths::locate_bytes(base, goal), Where::Host) {
        return false;
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let path = [directory_of(goal).as_slice(), b"\0"].concat();
    let args = [base as usize, path.as_ptr() as usize, flags.bits() as usize, 0, 0, 0];
    // SAFETY: the path ends with a NUL; what is opened is closed below.
    let opened = check(unsafe { syscall(__NR_openat as usize, args) });
    let Ok(directory) = opened else { return false };
    let directory = directory as RawFd;
    let found = fstatvfs(super::directory::borrow(directory)).is_ok_and(|stat| stat.f_flag.contains(StatVfsMountFlags::RDONLY));
    super::descriptor::close_unheld(directory);
    found
}

/// Looks at the directory that a path's last component is in.
fn look_at_directory(base: RawFd, path: &[u8]) -> Result<(), OsError> {
    if path.is_empty() {
        return Err(OsError::NOENT);
    }
    let stat = stat(base, &directory_of(path), true)?;
    if stat.st_mode & S_IFMT == S_IFDIR { Ok(()) } else { Err(OsError::NOTDIR) }
}

/// The path of the directory that a path's last component is in.
fn directory_of(path: &[u8]) -> Vec<u8> {
    // Its own name for itself takes the right to search it, as the last component does.
    match without_slashes(path).iter().rposition(|&byte| byte == b'/') {
        Some(slash) => [&path[..=slash], b"."].concat(),
        None if path.starts_with(b"/") => b"/".to_vec(),
        None => b".".to_vec(),
    }
}

/// What is at a path, in the array or not.
fn stat(base: RawFd, path: &[u8], follow: bool) -> Result<Stat, OsError> {
    if path.is_empty() {
        return Err(OsError::NOENT);
    }
    match paths::locate_bytes(base, path) {
        Where::Host => stat_from_host(base, path, follow),
        Where::Array(asked) => match array::namespace()?.stat(asked.path(), follow)? {
            Reached::Array(stat) => Ok(stat),
            // A symlink of the array has led out, to an absolute path.
            Reached::Host(path) => stat_from_host(AT_FDCWD, &path, follow),
        },
    }
}

/// What is at a path that starts on the host. A symlink of the host's may lead from there into the
/// array.
fn stat_from_host(base: RawFd, path: &[u8], follow: bool) -> Result<Stat, OsError> {
    let error = match kernel_stat(base, path, follow) {
        Err(error) if path.starts_with(b"/") && links::is_absence(error) => error,
        found => return found,
    };
    let follow = follow || path.ends_with(b"/");
    let again = array::namespace()?.entered_from_host(without_slashes(path), follow).ok_or(error)?;
    let found = array::namespace()?.stat(ProgramPath::from(again.as_slice()), follow);
    // The kernel has come upon an open file without a name any more, which is no directory.
    let is_nameless = error == OsError::NOTDIR && matches!(found, Err(OsError::NOENT));
    match if is_nameless { Err(error) } else { found }? {
        Reached::Array(stat) if path.ends_with(b"/") && stat.st_mode & S_IFMT != S_IFDIR => Err(OsError::NOTDIR),
        Reached::Array(stat) => Ok(stat),
        Reached::Host(_) => Err(error),
    }
}

/// What the kernel finds at a path.
fn kernel_stat(base: RawFd, path: &[u8], follow: bool) -> Result<Stat, OsError> {
    let terminated = [path, b"\0"].concat();
    let mut stat = core::mem::MaybeUninit::<Stat>::uninit();
    let flags = if follow { 0 } else { AT_SYMLINK_NOFOLLOW as usize };
    let args = [base as usize, terminated.as_ptr() as usize, stat.as_mut_ptr() as usize, flags, 0, 0];
    // SAFETY: the path ends with a NUL, and there is room for what the kernel stores.
    check(unsafe { syscall(__NR_newfstatat as usize, args) })?;
    // SAFETY: the kernel has stored all of it.
    Ok(unsafe { stat.assume_init() })
}
