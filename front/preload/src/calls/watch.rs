//! Calls that name a file to the kernel for good: inotify, fanotify, file handles. The anchor
//! stands for the file.
//!
//! Changes of names and attributes are made on the anchor as on every member, so the kernel raises
//! their events. [`super::events`] raises events for data that is stored and loaded.

use super::node::Node;
use super::on_path::{self, At};
use super::paths::Where;
use super::{OPEN, directory, events, judge};
use crate::array;
use crate::deputy;
use crate::dispatch::{Call, Verdict};
use linux_raw_sys::general::{
    __NR_close, __NR_fanotify_mark, __NR_inotify_add_watch, __NR_name_to_handle_at, AT_EMPTY_PATH, AT_SYMLINK_FOLLOW, O_TRUNC,
};
use namespace::{ProgramPath, Reached};
use sys::raw::{check, syscall};
use sys::rustix::fs::ftruncate;
use sys::{AsRawFd, OsError, OwnedFd, RawFd};

/// inotify_add_watch, fanotify_mark, name_to_handle_at.
pub(crate) fn by_anchor(call: &mut Call) -> Verdict {
    const IN_DONT_FOLLOW: usize = 0x0200_0000;
    const FAN_MARK_DONT_FOLLOW: usize = 4;
    let (at, follow) = if call.number == __NR_inotify_add_watch as usize {
        (At::cwd(1), call.args[2] & IN_DONT_FOLLOW == 0)
    } else if call.number == __NR_fanotify_mark as usize {
        (At::directory(3, 4), call.args[1] & FAN_MARK_DONT_FOLLOW == 0)
    } else {
        (At::directory(0, 1), call.args[4] as u32 & AT_SYMLINK_FOLLOW != 0)
    };
    let refusal = if call.number == __NR_name_to_handle_at as usize {
        judge::odd(call, &[at], call.args[4], AT_SYMLINK_FOLLOW | AT_EMPTY_PATH)
    } else if at.is_link(call) || matches!(at.locate(call), Where::Array(_)) {
        judge::refusal_of_watch(call, at)
    } else {
        None
    };
    if let Some(refusal) = refusal {
        return refusal;
    }
    if follow && let Some(link) = at.link(call) {
        let leads = || array::namespace().map(|namespace| namespace.link_of(link.descriptor(), link.node()));
        return leads().map_or_else(Verdict::error, |path| on_path::elsewhere(call, &[(at, path)]));
    }
    if deputy::is_active() {
        // What the kernel stores, it is to store into the guest's memory, which has none of our descriptors.
        let act = |path: ProgramPath<'_>| -> Result<Reached<()>, OsError> {
            let namespace = array::namespace()?;
            match namespace.resolve(path, follow)? {
                Reached::Array(path) => namespace.anchor_path(&path).map(Reached::Host),
                Reached::Host(path) => Ok(Reached::Host(path)),
            }
        };
        return on_path::serve(call, at, act, |()| Ok(0));
    }
    // The kernel gets the link of the descriptor of what was found, so nobody can put a symlink on the way between the look and the call.
    let answer = |found: OwnedFd| {
        let mut link = namespace::link(found.as_raw_fd());
        link.push(0);
        let mut args = call.args;
        at.replace(&mut args, &link);
        // The link under /proc leads to what the descriptor is open on, be it a symlink, so the kernel has to follow it.
        if call.number == __NR_inotify_add_watch as usize {
            args[2] &= !IN_DONT_FOLLOW;
        } else if call.number == __NR_fanotify_mark as usize {
            args[1] &= !FAN_MARK_DONT_FOLLOW;
        } else {
            args[4] |= AT_SYMLINK_FOLLOW as usize;
        }
        if call.number != __NR_name_to_handle_at as usize {
            // First, so that no store after it is missed.
            events::begin();
        }
        // SAFETY: the program's call with a path of ours, which lives until it returns.
        check(unsafe { syscall(call.number, args) })
    };
    on_path::serve(call, at, |path| array::namespace()?.look_at(path, follow), answer)
}

/// `open_by_handle_at`: what it opens on a member becomes the anchor of the file, as if it had been received from another process.
pub(crate) fn open_handle(call: &mut Call) -> Verdict {
    let mut args = call.args;
    // The kernel would cut one member's copy.
    let truncates = args[2] as u32 & O_TRUNC != 0;
    args[2] &= !(O_TRUNC as usize);
    // SAFETY: the program's own call without a flag.
    let result = unsafe { syscall(call.number, args) };
    if result < 0 {
        return Verdict::Done(result);
    }
    let descriptor = result as RawFd;
    array::adopt(descriptor);
    let fd = directory::borrow(descriptor);
    let answer = if super::is_ours(descriptor) {
        match OPEN.lookup(descriptor).as_ref().map(|held| held.node()) {
            Some(Node::File(file)) if truncates => file.truncate(0).map(|()| descriptor as usize),
            Some(Node::Lost) => Err(array::lost()),
            _ => Ok(descriptor as usize),
        }
    } else if namespace::is_backing(fd) {
        // A copy without a name that could be found.
        Err(OsError::STALE)
    } else if truncates {
        ftruncate(fd, 0).map(|()| descriptor as usize)
    } else {
        Ok(descriptor as usize)
    };
    if answer.is_err() {
        drop(OPEN.remove(descriptor));
        // SAFETY: the number was made here and nobody knows it yet.
        unsafe { syscall(__NR_close as usize, [descriptor as usize, 0, 0, 0, 0, 0]) };
    }
    Verdict::from_result(answer)
}

/// Calls so new that every program can do without: not there on array paths.
pub(crate) fn absent(call: &mut Call) -> Verdict {
    on_path::serve(call, At::directory(0, 1), |_| Err::<Reached<()>, _>(OsError::NOSYS), |()| Ok(0))
}
