//! Calls after which the kernel remembers a file by itself: watches (inotify, fanotify) and file
//! handles. The kernel is given the anchor. At the end: calls that do not exist for paths of the
//! array.
//!
//! The library changes names and attributes on every member, so also on the backing file that is
//! watched, and the kernel raises the events. [`super::events`] raises events for data that are
//! stored and loaded.

use super::node::Node;
use super::on_path::{self, At};
use super::paths::{self, Where};
use super::{OPEN, directory, events, judge};
use crate::array;
use crate::call::{Call, Verdict};
use crate::deputy;
use crate::uapi::{FAN_MARK_DONT_FOLLOW, IN_DONT_FOLLOW};
use linux_raw_sys::general::{
    __NR_close, __NR_fanotify_mark, __NR_file_getattr, __NR_file_setattr, __NR_inotify_add_watch, __NR_name_to_handle_at,
    AT_EMPTY_PATH, AT_SYMLINK_FOLLOW, AT_SYMLINK_NOFOLLOW, O_TRUNC,
};
use namespace::{ProgramPath, Reached};
use sys::raw::{check, syscall};
use sys::{AsRawFd, OsError, OwnedFd, RawFd};

/// Makes inotify_add_watch, fanotify_mark or name_to_handle_at on the anchor of what the program
/// names. Flags and watches that the library does not serve are refused.
pub(crate) fn by_anchor(call: &mut Call) -> Verdict {
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
    // The path is a magic link: the call is made on the path of what its descriptor is open on.
    if follow && let Some(link) = at.link(call) {
        begin(call);
        let leads = || array::namespace().and_then(|namespace| namespace.link_of(link.descriptor(), link.node()));
        return leads().map_or_else(Verdict::error, |path| on_path::elsewhere(call, &[(at, path)]));
    }
    if call.number == __NR_fanotify_mark as usize && call.args[4] == 0 {
        // Without a path the descriptor's own file is watched.
        let descriptor = call.descriptor(3);
        if super::is_ours(descriptor) || directory::is_ours(descriptor) {
            begin(call);
        }
    }
    if deputy::is_active() {
        // A deputy cannot make this call for its guest: the watch belongs to the guest's
        // descriptors, and a handle is stored into the guest's memory. In the guest's process the
        // deputy's descriptors do not exist. So the guest makes the call itself, with the path of
        // the backing file by way of the member's directory.
        let is_watch = makes_watch(call);
        let act = |path: ProgramPath<'_>| -> Result<Reached<()>, OsError> {
            let namespace = array::namespace()?;
            match namespace.resolve(path, follow)? {
                Reached::Array(path) => {
                    if is_watch {
                        // The guest begins: the deputy's own watches end with it.
                        deputy::leave_to_guest(begin_watching);
                    }
                    namespace.anchor_path_for_others(&path).map(Reached::Host)
                }
                Reached::Host(path) => Ok(Reached::Host(path)),
            }
        };
        // `act` never returns `Reached::Array`, so the last argument is not called.
        return on_path::serve(call, at, act, |()| Ok(0));
    }
    // The kernel is given the magic link of a descriptor of what was found. With a path, somebody
    // could put a symlink into it after the library has resolved it and before the kernel uses it.
    let answer = |found: OwnedFd| {
        let mut link = namespace::link(found.as_raw_fd());
        link.push(0);
        let mut args = call.args;
        at.replace(&mut args, &link);
        // The kernel must follow the magic link. It stops at what the descriptor is open on, even
        // if that is a symlink.
        if call.number == __NR_inotify_add_watch as usize {
            args[2] &= !IN_DONT_FOLLOW;
        } else if call.number == __NR_fanotify_mark as usize {
            args[1] &= !FAN_MARK_DONT_FOLLOW;
        } else {
            args[4] |= AT_SYMLINK_FOLLOW as usize;
        }
        if makes_watch(call) {
            // Before the watch exists, so that no store after it is missed.
            events::begin();
        }
        // SAFETY: the program's call, with the path `link`, which lives until the call returns.
        check(unsafe { syscall(call.number, args) })
    };
    on_path::serve(call, at, |path| array::namespace()?.look_at(path, follow), answer)
}

/// The call may make a watch on what is known to be the array's: stores are told of from now on.
fn begin(call: &Call) {
    if !makes_watch(call) {
    } else if deputy::is_active() {
        // The guest begins: the deputy's own watches end with it.
        deputy::leave_to_guest(begin_watching);
    } else {
        events::begin();
    }
}

/// The guest has made its watch: its process may watch files of the array.
fn begin_watching(call: &mut Call) -> isize {
    events::begin();
    call.result
}

/// Whether a call of [`by_anchor`] makes a watch, and not a file handle.
fn makes_watch(call: &Call) -> bool {
    call.number != __NR_name_to_handle_at as usize
}

/// `open_by_handle_at`. If the handle leads to a backing file, the descriptor becomes an anchor of
/// its file, as a descriptor does that came through a socket ([`array::adopt`]).
pub(crate) fn open_handle(call: &mut Call) -> Verdict {
    // With O_TRUNC the kernel would truncate the backing file on one member only.
    let mut args = call.args;
    let truncates = args[2] as u32 & O_TRUNC != 0;
    args[2] &= !(O_TRUNC as usize);
    // SAFETY: the program's own call without O_TRUNC.
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
        // A backing file to which none of the array's names leads: no file can be opened for it.
        Err(OsError::STALE)
    } else if truncates {
        // Another file. The kernel truncates it as the program asked, also if it is opened for
        // reading only. SAFETY: the program's own call.
        check(unsafe { syscall(call.number, call.args) }).map(|second| {
            close(second);
            descriptor as usize
        })
    } else {
        Ok(descriptor as usize)
    };
    if answer.is_err() {
        match OPEN.claim(descriptor) {
            Some(claim) => drop(super::descriptor::end(claim, descriptor)),
            None => close(descriptor as usize),
        }
    }
    Verdict::from_result(answer)
}

/// Closes a descriptor that was opened in this file and of whose number the program has not been
/// told.
fn close(descriptor: usize) {
    // SAFETY: nobody else uses the descriptor.
    unsafe { syscall(__NR_close as usize, [descriptor, 0, 0, 0, 0, 0]) };
}

/// Calls that are so new that programs must do without them: `ENOSYS` on paths of the array.
/// Elsewhere the kernel does them. They have the directory in their first argument and the path in
/// their second.
pub(crate) fn absent(call: &mut Call) -> Verdict {
    let has_flags_last = [__NR_file_getattr, __NR_file_setattr].contains(&(call.number as u32));
    let flags = call.args[if has_flags_last { 4 } else { 2 }] as u32;
    if flags & AT_EMPTY_PATH != 0 && (call.args[1] == 0 || paths::is_empty(call.args[1])) {
        let descriptor = call.descriptor(0);
        let is_ours = super::is_ours(descriptor) || directory::is_ours(descriptor);
        return if is_ours { Verdict::error(OsError::NOSYS) } else { Verdict::Done(call.kernel()) };
    }
    let follow = flags & AT_SYMLINK_NOFOLLOW == 0;
    let refuse = |_: ProgramPath<'_>| Err::<Reached<()>, _>(OsError::NOSYS);
    on_path::serve_followed(call, At::directory(0, 1), follow, refuse, |_| Err(OsError::NOSYS), |()| Ok(0))
}
