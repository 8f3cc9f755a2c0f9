//! stat and its relatives, permissions, owners, times, file system figures.

use super::node::Held;
use super::on_path::{self, At};
use super::{OPEN, directory, judge, paths};
use crate::array;
use crate::call::{Call, Verdict};
use crate::program;
use core::mem::size_of;
use linux_raw_sys::general::{
    AT_EACCESS, AT_EMPTY_PATH, AT_NO_AUTOMOUNT, AT_STATX_SYNC_TYPE, AT_SYMLINK_NOFOLLOW, STATX__RESERVED, UTIME_NOW, UTIME_OMIT,
};
use namespace::{Access, AtFlags, Reached, Stat, StatxFlags, Timestamps};
use sys::rustix::fs::Timespec;
use sys::{OsError, RawFd};

// What rustix calls Stat, Statx and StatFs is what the kernel writes.
const _: () = assert!(size_of::<Stat>() == 144 && size_of::<namespace::Statx>() == 256 && size_of::<namespace::StatFs>() == 120);

/// The path of a call whose first two arguments are a directory and a path.
const AT: At = At::directory(0, 1);

/// Serves a call on an open descriptor of ours.
fn on_descriptor(descriptor: RawFd, act: impl FnOnce(&Held) -> Result<usize, OsError>) -> Verdict {
    match OPEN.lookup(descriptor) {
        Some(held) => Verdict::from_result(act(&held)),
        None => Verdict::Pass,
    }
}

/// Serves a call on a descriptor, as [`on_descriptor`], but leaves descriptors that only name
/// something (O_PATH) to the kernel, which refuses them.
fn on_opened(descriptor: RawFd, act: impl FnOnce(&Held) -> Result<usize, OsError>) -> Verdict {
    if super::only_names(descriptor) { Verdict::Pass } else { on_descriptor(descriptor, act) }
}

/// Whether a call with AT_EMPTY_PATH means its descriptor. A null pointer means it only for the
/// calls that ask (stat); to the others it is a bad pointer.
fn is_meant(call: &Call, path: usize, flags: u32) -> bool {
    call.args[path] != 0 && means_descriptor(call, path, flags)
}

/// Whether a call that asks, with AT_EMPTY_PATH, means its descriptor.
fn means_descriptor(call: &Call, path: usize, flags: u32) -> bool {
    flags & AT_EMPTY_PATH != 0 && paths::is_empty(call.args[path])
}

/// Whether the descriptor that an empty path means is the current directory, and that is the
/// array's. It has no descriptor that could be looked up: to the kernel it is a directory of one
/// member.
fn is_current(call: &Call) -> bool {
    call.descriptor(0) == directory::AT_FDCWD && directory::is_ours(directory::AT_FDCWD)
}

/// Serves a call that means the current directory by an empty path as one that calls it `.`.
fn by_name(call: &mut Call, serve: impl FnOnce(&Call) -> Verdict) -> Verdict {
    let kept = core::mem::replace(&mut call.args[1], c".".as_ptr() as usize);
    let verdict = serve(call);
    call.args[1] = kept;
    verdict
}

pub(crate) fn stat(call: &mut Call) -> Verdict {
    stat_path(call, At::cwd(0), call.args[1], true)
}

pub(crate) fn lstat(call: &mut Call) -> Verdict {
    stat_path(call, At::cwd(0), call.args[1], false)
}

pub(crate) fn fstat(call: &mut Call) -> Verdict {
    stat_descriptor(call.descriptor(0), call.args[1])
}

pub(crate) fn newfstatat(call: &mut Call) -> Verdict {
    let flags = call.args[3] as u32;
    let (means_descriptor, is_current) = (means_descriptor(call, 1, flags), is_current(call));
    // The kernel does not look at other flags then.
    if means_descriptor && !is_current {
        return stat_descriptor(call.descriptor(0), call.args[2]);
    }
    if let Some(refusal) = judge::odd(call, &[AT], call.args[3], AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH | AT_NO_AUTOMOUNT) {
        return refusal;
    }
    let buffer = call.args[2];
    if means_descriptor {
        return by_name(call, |call| stat_path(call, AT, buffer, true));
    }
    stat_path(call, AT, buffer, flags & AT_SYMLINK_NOFOLLOW == 0)
}

fn stat_path(call: &Call, at: At, buffer: usize, follow: bool) -> Verdict {
    on_path::serve_followed(
        call,
        at,
        follow,
        |path| array::namespace()?.stat(path, follow),
        |link| array::namespace()?.fstat(link.descriptor(), link.node()),
        |stat| program::write(buffer, &stat).map(|()| 0),
    )
}

fn stat_descriptor(descriptor: RawFd, buffer: usize) -> Verdict {
    on_descriptor(descriptor, |held| {
        let stat = array::namespace()?.fstat(directory::borrow(descriptor), held.node())?;
        program::write(buffer, &stat).map(|()| 0)
    })
}

pub(crate) fn statx(call: &mut Call) -> Verdict {
    let [_, _, flags, mask, buffer, _] = call.args;
    let (bits, mask) = (flags as u32, StatxFlags::from_bits_retain(mask as u32));
    let sync = AtFlags::from_bits_retain(bits & AT_STATX_SYNC_TYPE);
    let (means_descriptor, is_current) = (means_descriptor(call, 1, bits), is_current(call));
    if ((!means_descriptor || is_current) && bits & !(AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH | AT_NO_AUTOMOUNT) != 0
        || mask.bits() & STATX__RESERVED != 0)
        && let Some(refusal) = judge::refusal(call, &[AT])
    {
        return refusal;
    }
    if means_descriptor {
        let descriptor = call.descriptor(0);
        if is_current {
            return by_name(call, |call| statx_path(call, sync, mask, true));
        }
        return on_descriptor(descriptor, |held| {
            let stat = array::namespace()?.fstatx(directory::borrow(descriptor), held.node(), sync, mask)?;
            program::write(buffer, &stat).map(|()| 0)
        });
    }
    statx_path(call, sync, mask, bits & AT_SYMLINK_NOFOLLOW == 0)
}

fn statx_path(call: &Call, sync: AtFlags, mask: StatxFlags, follow: bool) -> Verdict {
    let buffer = call.args[4];
    on_path::serve_followed(
        call,
        At::directory(0, 1),
        follow,
        |path| array::namespace()?.statx(path, sync, mask, follow),
        |link| array::namespace()?.fstatx(link.descriptor(), link.node(), sync, mask),
        |stat| program::write(buffer, &stat).map(|()| 0),
    )
}

pub(crate) fn access(call: &mut Call) -> Verdict {
    access_path(call, At::cwd(0), call.args[1], 0)
}

/// faccessat, and faccessat2 with its flags.
pub(crate) fn faccessat(call: &mut Call) -> Verdict {
    let flags = if call.number == 439 { call.args[3] as u32 } else { 0 };
    if let Some(refusal) = judge::odd(call, &[AT], flags as usize, AT_EACCESS | AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) {
        return refusal;
    }
    if is_meant(call, 1, flags) {
        // The anchor's permissions are the file's.
        return Verdict::Pass;
    }
    access_path(call, At::directory(0, 1), call.args[2], flags)
}

fn access_path(call: &Call, at: At, mode: usize, flags: u32) -> Verdict {
    // R_OK, W_OK and X_OK.
    if mode as u32 & !7 != 0 {
        return Verdict::error(OsError::INVAL);
    }
    let wanted = Access::from_bits_retain(mode as u32);
    let (own, follow) = (AtFlags::from_bits_retain(flags & AT_EACCESS), flags & AT_SYMLINK_NOFOLLOW == 0);
    let real = if own.is_empty() { super::rights::Real::take() } else { None };
    let verdict = on_path::serve_followed(
        call,
        at,
        follow,
        |path| array::namespace()?.access(path, wanted, own, follow),
        |link| array::namespace()?.access_open(link.descriptor(), link.node(), wanted, own),
        |()| Ok(0),
    );
    drop(real);
    verdict
}

pub(crate) fn chmod(call: &mut Call) -> Verdict {
    chmod_path(call, At::cwd(0), call.args[1] as u32, true)
}

fn chmod_path(call: &Call, at: At, mode: u32, follow: bool) -> Verdict {
    on_path::serve_followed(
        call,
        at,
        follow,
        |path| array::namespace()?.chmod(path, mode, follow),
        |link| array::namespace()?.fchmod(link.descriptor(), link.node(), mode),
        |()| Ok(0),
    )
}

pub(crate) fn fchmod(call: &mut Call) -> Verdict {
    let descriptor = call.descriptor(0);
    on_opened(descriptor, |held| {
        array::namespace()?.fchmod(directory::borrow(descriptor), held.node(), call.args[1] as u32).map(|()| 0)
    })
}

/// fchmodat, and fchmodat2 with its flags.
pub(crate) fn fchmodat(call: &mut Call) -> Verdict {
    let flags = if call.number == 452 { call.args[3] as u32 } else { 0 };
    if let Some(refusal) = judge::odd(call, &[AT], flags as usize, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) {
        return refusal;
    }
    if is_meant(call, 1, flags) {
        let (descriptor, mode) = (call.descriptor(0), call.args[2] as u32);
        if is_current(call) {
            return by_name(call, |call| chmod_path(call, AT, mode, true));
        }
        return on_descriptor(descriptor, |held| {
            array::namespace()?.fchmod(directory::borrow(descriptor), held.node(), mode).map(|()| 0)
        });
    }
    chmod_path(call, At::directory(0, 1), call.args[2] as u32, flags & AT_SYMLINK_NOFOLLOW == 0)
}

pub(crate) fn chown(call: &mut Call) -> Verdict {
    chown_path(call, At::cwd(0), [call.args[1], call.args[2]], true)
}

pub(crate) fn lchown(call: &mut Call) -> Verdict {
    chown_path(call, At::cwd(0), [call.args[1], call.args[2]], false)
}

pub(crate) fn fchown(call: &mut Call) -> Verdict {
    if super::only_names(call.descriptor(0)) {
        return Verdict::Pass;
    }
    chown_descriptor(call.descriptor(0), [call.args[1], call.args[2]])
}

pub(crate) fn fchownat(call: &mut Call) -> Verdict {
    let flags = call.args[4] as u32;
    let owners = [call.args[2], call.args[3]];
    if let Some(refusal) = judge::odd(call, &[AT], call.args[4], AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) {
        return refusal;
    }
    if is_meant(call, 1, flags) {
        if is_current(call) {
            return by_name(call, |call| chown_path(call, AT, owners, true));
        }
        return chown_descriptor(call.descriptor(0), owners);
    }
    chown_path(call, At::directory(0, 1), owners, flags & AT_SYMLINK_NOFOLLOW == 0)
}

fn chown_path(call: &Call, at: At, [owner, group]: [usize; 2], follow: bool) -> Verdict {
    let (owner, group) = (owner as u32, group as u32);
    on_path::serve_followed(
        call,
        at,
        follow,
        |path| array::namespace()?.chown(path, owner, group, follow),
        |link| array::namespace()?.fchown(link.descriptor(), link.node(), owner, group),
        |()| Ok(0),
    )
}

fn chown_descriptor(descriptor: RawFd, [owner, group]: [usize; 2]) -> Verdict {
    on_descriptor(descriptor, |held| {
        array::namespace()?.fchown(directory::borrow(descriptor), held.node(), owner as u32, group as u32).map(|()| 0)
    })
}

pub(crate) fn utimensat(call: &mut Call) -> Verdict {
    let [_, path, times, flags, ..] = call.args;
    // Nothing is to be set: the kernel does not even look at the path.
    if times != 0
        && let Ok([_, access, _, modification]) = program::read::<[i64; 4]>(times)
        && [access, modification] == [i64::from(UTIME_OMIT); 2]
    {
        return Verdict::Done(0);
    }
    if path != 0
        && let Some(refusal) = judge::odd(call, &[AT], flags, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW)
    {
        return refusal;
    }
    // Flags are refused for an open file (utimensat(2)).
    if path == 0 && (flags as u32 != 0 || super::only_names(call.descriptor(0))) {
        return Verdict::Pass;
    }
    if path != 0 && means_descriptor(call, 1, flags as u32) && is_current(call) {
        return by_name(call, |call| set_times(call, AT, || timespecs(times), true));
    }
    if path == 0 || means_descriptor(call, 1, flags as u32) {
        let descriptor = call.descriptor(0);
        return on_descriptor(descriptor, |held| {
            let times = timespecs(times)?;
            array::namespace()?.futimens(directory::borrow(descriptor), held.node(), &times).map(|()| 0)
        });
    }
    set_times(call, At::directory(0, 1), || timespecs(times), flags as u32 & AT_SYMLINK_NOFOLLOW == 0)
}

pub(crate) fn utime(call: &mut Call) -> Verdict {
    let address = call.args[1];
    set_times(call, At::cwd(0), || times_of(address, |[access, modification]: [i64; 2]| [(access, 0), (modification, 0)]), true)
}

pub(crate) fn utimes(call: &mut Call) -> Verdict {
    let address = call.args[1];
    set_times(call, At::cwd(0), || timevals(address), true)
}

pub(crate) fn futimesat(call: &mut Call) -> Verdict {
    let address = call.args[2];
    if call.args[1] == 0 {
        let descriptor = call.descriptor(0);
        if super::only_names(descriptor) {
            // The kernel refuses it.
            return Verdict::Pass;
        }
        return on_descriptor(descriptor, |held| {
            array::namespace()?.futimens(directory::borrow(descriptor), held.node(), &timevals(address)?).map(|()| 0)
        });
    }
    set_times(call, At::directory(0, 1), || timevals(address), true)
}

fn set_times(call: &Call, at: At, times: impl Fn() -> Result<Timestamps, OsError>, follow: bool) -> Verdict {
    on_path::serve_followed(
        call,
        at,
        follow,
        |path| -> Result<Reached<()>, OsError> { array::namespace()?.utimens(path, &times()?, follow) },
        |link| array::namespace()?.futimens(link.descriptor(), link.node(), &times()?),
        |()| Ok(0),
    )
}

fn timespecs(address: usize) -> Result<Timestamps, OsError> {
    times_of(address, |[access, access_ns, modification, modification_ns]: [i64; 4]| {
        [(access, access_ns), (modification, modification_ns)]
    })
}

fn timevals(address: usize) -> Result<Timestamps, OsError> {
    const MICROSECONDS: core::ops::Range<i64> = 0..1_000_000;
    if address != 0 {
        let [_, access_us, _, modification_us]: [i64; 4] = program::read(address)?;
        if !MICROSECONDS.contains(&access_us) || !MICROSECONDS.contains(&modification_us) {
            return Err(OsError::INVAL);
        }
    }
    times_of(address, |[access, access_us, modification, modification_us]: [i64; 4]| {
        [(access, access_us.saturating_mul(1000)), (modification, modification_us.saturating_mul(1000))]
    })
}

/// Two times from what the program stored, or now if it stored nothing.
fn times_of<const N: usize>(address: usize, split: impl FnOnce([i64; N]) -> [(i64, i64); 2]) -> Result<Timestamps, OsError> {
    let now = (0, i64::from(UTIME_NOW));
    let [access, modification] = if address == 0 { [now; 2] } else { split(program::read(address)?) };
    let time = |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec };
    Ok(Timestamps { last_access: time(access), last_modification: time(modification) })
}

pub(crate) fn statfs(call: &mut Call) -> Verdict {
    let buffer = call.args[1];
    on_path::serve_followed(
        call,
        At::cwd(0),
        true,
        |path| array::namespace()?.statfs(path),
        |_| array::namespace()?.fstatfs(),
        |figures| program::write(buffer, &figures).map(|()| 0),
    )
}

pub(crate) fn fstatfs(call: &mut Call) -> Verdict {
    on_descriptor(call.descriptor(0), |_| {
        let figures = array::namespace()?.fstatfs()?;
        program::write(call.args[1], &figures).map(|()| 0)
    })
}
