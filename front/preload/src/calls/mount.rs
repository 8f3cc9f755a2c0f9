//! Calls that give the kernel a place of the array for good: mounts, swap files, the log of
//! accounting, quota files, loop devices.
//!
//! The kernel would take one member's directory or backing file. A mount there hides one member's
//! names; a swap file or loop device writes to one member past redundancy. Only binding a directory
//! of the array onto another is served, on every member. Everything else is refused, with the error
//! of a file system that cannot do it and, for programs that would have the right to do it, one
//! line. What concerns the host alone is the kernel's.

use super::border::Looks;
use super::on_path::{self, At};
use super::paths::{self, AT_FDCWD, Where};
use super::{is_ours, links, magic, root};
use crate::call::{Call, Verdict};
use crate::report::report;
use crate::uapi::{
    EXT4_IOC_MOVE_EXT, FICLONE, FICLONERANGE, FSCONFIG_SET_FD, FSCONFIG_SET_PATH, FSCONFIG_SET_PATH_EMPTY, FSCONFIG_SET_STRING,
    FUSE_DEV_IOC_BACKING_OPEN, LOOP_CHANGE_FD, LOOP_CONFIGURE, LOOP_SET_FD, MOVE_MOUNT_F_EMPTY_PATH, MOVE_MOUNT_T_EMPTY_PATH,
    Q_QUOTAON, XFS_IOC_EXCHANGE_RANGE,
};
use crate::{array, program};
use heap::vec::Vec;
use linux_raw_sys::general::{
    __NR_fspick, AT_EMPTY_PATH, FSPICK_EMPTY_PATH, MS_BIND, MS_MGC_MSK, MS_MGC_VAL, MS_MOVE, MS_REC, MS_SILENT,
};
use namespace::{FileType, Reached};
use sys::rustix::fs::fstat;
use sys::rustix::thread::{CapabilitySet, capabilities};
use sys::{OsError, RawFd};
use units::Shown;

/// The parameters that name directories or files of other file systems, up to a `+`.
const PARAMETERS: [&[u8]; 5] = [b"source", b"lowerdir", b"upperdir", b"workdir", b"datadir"];

/// Where a path argument leads.
enum Leads {
    /// To something of the array, which is there.
    Array,
    /// To what the kernel makes of it.
    Host,
    /// Out of the array to this path of the host.
    Out(Vec<u8>),
}

/// What a path leads to. Magic links and symlinks of the host are followed into the array.
fn leads(call: &Call, at: At) -> Result<Leads, OsError> {
    if at.link(call).is_some() {
        return Ok(Leads::Array);
    }
    match paths::locate(at.base(call), call.args[at.path()]) {
        Where::Array(path) => {
            array::tell();
            match array::namespace()?.look_at(path.path(), true)? {
                Reached::Array(_) => Ok(Leads::Array),
                Reached::Host(path) if magic::at_host(&path).is_some() => Ok(Leads::Array),
                Reached::Host(path) => Ok(Leads::Out(path)),
            }
        }
        Where::Host if links::entered(at.base(call), call.args[at.path()], true, false).is_some() => Ok(Leads::Array),
        Where::Host => Ok(Leads::Host),
    }
}

/// Runs `refuse` if one of the paths leads to the array. What leads out of it goes to the kernel as
/// it is there.
fn unless_array(call: &Call, ats: &[At], refuse: impl FnOnce(At) -> Verdict) -> Verdict {
    let mut out = Vec::new();
    for &at in ats {
        match leads(call, at) {
            Ok(Leads::Array) => return refuse(at),
            Ok(Leads::Host) => {}
            Ok(Leads::Out(path)) => out.push((at, path)),
            Err(error) => return Verdict::error(error),
        }
    }
    if out.is_empty() { Verdict::Pass } else { on_path::elsewhere(call, &out) }
}

pub(super) fn may(right: CapabilitySet) -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(right))
}

/// The error for who has the right to do such a thing, and for who has not.
fn refuse(right: CapabilitySet, error: OsError, name: &[u8], what: &str) -> Verdict {
    if !may(right) {
        return Verdict::error(OsError::PERM);
    }
    report!(
        "{}: {what} of the array is refused, since the kernel would take one member's; use a place outside the array",
        Shown(name)
    );
    Verdict::error(error)
}

fn refuse_mount(call: &Call, at: At) -> Verdict {
    let mut buffer = [0; crate::uapi::PATH_MAX];
    let name = program::read_string(call.args[at.path()], &mut buffer).unwrap_or(b"a directory");
    refuse(CapabilitySet::SYS_ADMIN, OsError::OPNOTSUPP, name, "a mount with a directory or file")
}

pub(crate) fn mount(call: &mut Call) -> Verdict {
    let flags = call.args[3] as u32;
    // In old programs the upper half is a magic number.
    let flags = if flags & MS_MGC_MSK == MS_MGC_VAL { flags & !MS_MGC_MSK } else { flags };
    let binds = flags & MS_BIND != 0 && flags & !(MS_BIND | MS_REC | MS_SILENT) == 0;
    let at = [At::cwd(0).by_name(), At::cwd(1).by_name()];
    if binds && at.iter().all(|at| matches!(at.locate(call), Where::Array(_))) {
        // The kernel reads the type, though it needs none.
        if call.args[2] != 0
            && let Err(error) = paths::text(call.args[2])
        {
            return Verdict::error(error);
        }
        return on_path::serve_two(call, at, Looks::Rename, |from, to| {
            array::namespace()?.bind_mount(from, to, flags & MS_REC != 0)
        });
    }
    let takes_source = flags & (MS_BIND | MS_MOVE) != 0 && call.args[0] != 0;
    if takes_source {
        return unless_array(call, &[at[1], at[0]], |at| refuse_mount(call, at));
    }
    if call.args[4] != 0
        && (call.args[2] != 0 && paths::text(call.args[2]).is_ok_and(|kind| kind == b"overlay"))
        && paths::text(call.args[4]).is_ok_and(|options| options.split(|&byte| byte == b',').any(names_array))
    {
        return refuse_mount(call, at[1]);
    }
    unless_array(call, &at[1..], |at| refuse_mount(call, at))
}

/// Whether an option `name=path:path` of a mount names something of the array.
fn names_array(option: &[u8]) -> bool {
    let Some(equals) = option.iter().position(|&byte| byte == b'=') else { return false };
    let (name, value) = (option[..equals].strip_suffix(b"+").unwrap_or(&option[..equals]), &option[equals + 1..]);
    PARAMETERS.contains(&name) && value.split(|&byte| byte == b':').any(is_in_array)
}

/// Whether something of the array is at a path that is not an argument.
fn is_in_array(path: &[u8]) -> bool {
    let look = |path: &[u8]| match paths::locate_bytes(AT_FDCWD, path) {
        Where::Array(path) => array::namespace().ok()?.look_at(path.path(), true).ok(),
        Where::Host => None,
    };
    matches!(look(path), Some(Reached::Array(_)))
}

pub(crate) fn unmount(call: &mut Call) -> Verdict {
    on_path::serve(call, At::cwd(0).by_name(), |path| array::namespace()?.unmount(path, call.args[1] as u32), |()| Ok(0))
}

/// `pivot_root`.
pub(crate) fn pivot_root(call: &mut Call) -> Verdict {
    if !may(CapabilitySet::SYS_ADMIN) {
        return Verdict::Pass;
    }
    match unless_array(call, &[At::cwd(0), At::cwd(1)], |at| refuse_mount(call, at)) {
        // The root of this process becomes another one.
        Verdict::Pass => root::enter(call, call.args),
        verdict => verdict,
    }
}

/// `open_tree`, `open_tree_attr`, `fspick`: programs fall back to mount(2), which says what it
/// refuses.
pub(crate) fn open_tree(call: &mut Call) -> Verdict {
    let flag = if call.number == __NR_fspick as usize { FSPICK_EMPTY_PATH } else { AT_EMPTY_PATH };
    let is_empty = call.args[2] as u32 & flag != 0 && paths::is_empty(call.args[1]);
    if is_empty && is_ours(call.descriptor(0)) {
        return Verdict::error(OsError::NOSYS);
    }
    unless_array(call, &[At::directory(0, 1)], |_| Verdict::error(OsError::NOSYS))
}

/// `mount_setattr`.
pub(crate) fn set_attributes(call: &mut Call) -> Verdict {
    let is_empty = call.args[2] as u32 & AT_EMPTY_PATH != 0 && paths::is_empty(call.args[1]);
    if is_empty && is_ours(call.descriptor(0)) {
        return refuse(CapabilitySet::SYS_ADMIN, OsError::OPNOTSUPP, b"an open directory", "a mount with a directory or file");
    }
    unless_array(call, &[At::directory(0, 1)], |at| refuse_mount(call, at))
}

/// `move_mount`.
pub(crate) fn move_mount(call: &mut Call) -> Verdict {
    if !may(CapabilitySet::SYS_ADMIN) {
        return Verdict::Pass;
    }
    let is_empty = |flag, path| call.args[4] & flag != 0 && paths::is_empty(call.args[path]);
    let by_descriptor = [(MOVE_MOUNT_F_EMPTY_PATH, 0), (MOVE_MOUNT_T_EMPTY_PATH, 2)];
    if by_descriptor.iter().any(|&(flag, index)| is_empty(flag, index + 1) && is_ours(call.descriptor(index))) {
        return refuse(CapabilitySet::SYS_ADMIN, OsError::OPNOTSUPP, b"an open directory", "a mount with a directory or file");
    }
    unless_array(call, &[At::directory(2, 3), At::directory(0, 1)], |at| refuse_mount(call, at))
}

/// Whether an fsconfig(2) gives the kernel a descriptor that `is_ours` knows.
pub(crate) fn given_to_file_system(call: &Call, is_ours: impl Fn(RawFd) -> bool) -> bool {
    call.args[1] == FSCONFIG_SET_FD && is_ours(call.args[4] as RawFd)
}

/// `fsconfig`: a file system that is to be mounted may be told paths and descriptors.
pub(crate) fn configure(call: &mut Call) -> Verdict {
    let [_, command, key, value, ..] = call.args;
    let aux = call.args[4] as RawFd;
    let refused = || {
        refuse(
            CapabilitySet::SYS_ADMIN,
            OsError::OPNOTSUPP,
            &paths::text(key).unwrap_or_default(),
            "a mount with a directory or file",
        )
    };
    match command & 0xffff_ffff {
        FSCONFIG_SET_FD if is_ours(aux) => refused(),
        FSCONFIG_SET_PATH_EMPTY if paths::is_empty(value) && is_ours(aux) => refused(),
        FSCONFIG_SET_PATH | FSCONFIG_SET_PATH_EMPTY => match leads(call, At::directory(4, 3)) {
            Ok(Leads::Array) => refused(),
            Ok(Leads::Out(path)) => on_path::elsewhere(call, &[(At::directory(4, 3), path)]),
            // What cannot be read the kernel says.
            _ => Verdict::Pass,
        },
        FSCONFIG_SET_STRING => match (paths::text(key), paths::text(value)) {
            (Ok(key), Ok(value)) if names_array(&[key.as_slice(), b"=", value.as_slice()].concat()) => refused(),
            _ => Verdict::Pass,
        },
        _ => Verdict::Pass,
    }
}

/// `swapon`, `swapoff`.
pub(crate) fn swap(call: &mut Call) -> Verdict {
    if !may(CapabilitySet::SYS_ADMIN) {
        return Verdict::Pass;
    }
    unless_array(call, &[At::cwd(0)], |at| {
        let name = paths::text(call.args[at.path()]).unwrap_or_default();
        refuse(CapabilitySet::SYS_ADMIN, OsError::INVAL, &name, "swapping to a file")
    })
}

/// `acct`.
pub(crate) fn account(call: &mut Call) -> Verdict {
    if call.args[0] == 0 || !may(CapabilitySet::SYS_PACCT) {
        return Verdict::Pass;
    }
    unless_array(call, &[At::cwd(0)], |at| {
        let name = paths::text(call.args[at.path()]).unwrap_or_default();
        refuse(CapabilitySet::SYS_PACCT, OsError::INVAL, &name, "accounting to a file")
    })
}

/// `quotactl`: the device is a file of the array, or the file of quotas is.
pub(crate) fn quota(call: &mut Call) -> Verdict {
    if call.args[1] != 0 {
        match look(call, 1) {
            Ok(Some(FileType::BlockDevice) | None) => {}
            Ok(Some(_)) => return Verdict::error(OsError::NOTBLK),
            Err(error) => return Verdict::error(error),
        }
    }
    if call.args[0] as u32 >> 8 != Q_QUOTAON {
        return Verdict::Pass;
    }
    // On another file system than the device's.
    unless_array(call, &[At::cwd(3)], |_| Verdict::error(OsError::XDEV))
}

/// The kind of what a path of the array leads to; None if it is the host's.
fn look(call: &Call, path: usize) -> Result<Option<FileType>, OsError> {
    let Where::Array(path) = paths::locate(AT_FDCWD, call.args[path]) else { return Ok(None) };
    match array::namespace()?.look_at(path.path(), true)? {
        Reached::Array(found) => Ok(Some(FileType::from_raw_mode(fstat(&found)?.st_mode))),
        Reached::Host(_) => Ok(None),
    }
}

/// `quotactl_fd`: no quotas on the array.
pub(crate) fn quota_of_descriptor(call: &mut Call) -> Verdict {
    if is_ours(call.descriptor(0)) { Verdict::error(OsError::NOSYS) } else { Verdict::Pass }
}

/// The answer to an ioctl(2) on something of the host whose argument is, or begins with, a
/// descriptor of the array that the kernel would read, write or keep.
pub(crate) fn given_by_ioctl(call: &Call, is_ours: impl Fn(RawFd) -> bool) -> Option<Verdict> {
    let [_, request, argument, ..] = call.args;
    let first = |offset: usize| program::read::<RawFd>(argument.wrapping_add(offset)).unwrap_or(-1);
    let descriptor = match request & 0xffff_ffff {
        LOOP_SET_FD | LOOP_CHANGE_FD | FICLONE => argument as RawFd,
        LOOP_CONFIGURE | FICLONERANGE | XFS_IOC_EXCHANGE_RANGE | FUSE_DEV_IOC_BACKING_OPEN => first(0),
        EXT4_IOC_MOVE_EXT => first(4),
        _ => return None,
    };
    if sys::high_fd::is_raised(descriptor) {
        return Some(Verdict::error(OsError::BADF));
    }
    if !is_ours(descriptor) || is_ours(call.descriptor(0)) {
        return None;
    }
    Some(match request & 0xffff_ffff {
        LOOP_SET_FD | LOOP_CHANGE_FD | LOOP_CONFIGURE => {
            report!(
                "a loop device on a file of the array is refused, since the kernel would take one member's; use a file outside the array"
            );
            Verdict::error(OsError::INVAL)
        }
        FUSE_DEV_IOC_BACKING_OPEN => Verdict::error(OsError::OPNOTSUPP),
        _ => Verdict::error(OsError::XDEV),
    })
}
