//! Descriptors that travel between processes in SCM_RIGHTS messages.
//!
//! One sent away is shared from then on: its offset goes to the kernel. One received may be an
//! anchor and is adopted like an inherited one.

use super::OPEN;
use super::node::{Held, Node};
use super::process::share;
use crate::call::{Call, Verdict};
use crate::uapi::{MSG_PEEK, SCM_RIGHTS, SOL_SOCKET};
use crate::{array, process, program};
use heap::boxed::Box;
use heap::vec::Vec;
use linux_raw_sys::general as nr;
use sys::RawFd;

/// `struct mmsghdr`: a message and what was transferred of it.
const MANY_BYTES: usize = 64;
/// The kernel's UIO_MAXIOV, the most messages of one call.
const MANY_COUNT_MAX: usize = 1024;

/// `struct msghdr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Message {
    /// Where the address of a socket is.
    pub(super) name: usize,
    pub(super) name_bytes: u32,
    _padding: u32,
    parts: [usize; 2],
    control: usize,
    control_bytes: usize,
    flags: u64,
}

impl Message {
    /// Names a socket by the address at a pointer, with a length.
    pub(super) const fn set_name(&mut self, (pointer, bytes): (usize, usize)) {
        (self.name, self.name_bytes) = (pointer, bytes as u32);
    }
}

/// `struct cmsghdr`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Control {
    bytes: usize,
    level: i32,
    kind: i32,
}

/// `sendmsg`.
pub(crate) fn send(call: &mut Call) -> Verdict {
    if names_ours(call.args[1]) {
        return Verdict::error(sys::OsError::BADF);
    }
    let mut nameless = false;
    descriptors(call.args[1], |descriptor| nameless |= share_one(descriptor));
    let addressed = super::socket::send(call);
    if !nameless && addressed.is_none() {
        return Verdict::Pass;
    }
    call.scratch[1] = u64::from(addressed.is_some());
    call.then = Some(|call| {
        let result = if call.scratch[1] != 0 { super::socket::sent(call) } else { call.result };
        if result < 0 {
            descriptors(call.args[1], take_back);
        }
        result
    });
    addressed.unwrap_or(Verdict::PassWith { number: call.number, args: call.args })
}

/// Whether a message names a descriptor of the library's own, which the program never got.
fn names_ours(message: usize) -> bool {
    let mut found = false;
    descriptors(message, |descriptor| found |= sys::high_fd::is_raised(descriptor));
    found
}

/// `sendmmsg`.
pub(crate) fn send_many(call: &mut Call) -> Verdict {
    let (mut nameless, mut names_own) = (false, false);
    each(call.args[1], call.args[2], |message| names_own |= names_ours(message));
    if names_own {
        return Verdict::error(sys::OsError::BADF);
    }
    each(call.args[1], call.args[2], |message| descriptors(message, |descriptor| nameless |= share_one(descriptor)));
    let addressed = super::socket::send_many(call, call.args[2].min(MANY_COUNT_MAX));
    if !nameless && addressed.is_none() {
        return Verdict::Pass;
    }
    call.scratch[1] = u64::from(addressed.is_some());
    call.then = Some(|call| {
        let result = if call.scratch[1] != 0 { super::socket::sent_many(call) } else { call.result };
        let mut sent = result.max(0);
        each(call.args[1], call.args[2], |message| {
            sent -= 1;
            if sent < 0 {
                descriptors(message, take_back);
            }
        });
        result
    });
    addressed.unwrap_or(Verdict::PassWith { number: call.number, args: call.args })
}

/// Whether it is a file without a name, which is now on its way.
fn share_one(descriptor: RawFd) -> bool {
    let Some(user) = OPEN.lookup(descriptor) else { return false };
    // Until its offset is the kernel's the number must not be closed by another thread.
    process::begin_sharing();
    share(descriptor, &user);
    process::end_sharing();
    let Some(file) = nameless(&user) else { return false };
    file.send();
    true
}

fn take_back(descriptor: RawFd) {
    OPEN.lookup(descriptor).iter().filter_map(nameless).for_each(|file| file.receive());
}

fn nameless(user: &Held) -> Option<&file::FileRef> {
    match user.node() {
        Node::File(file) if file.name() != file::Name::Has => Some(file),
        _ => None,
    }
}

/// A descriptor has come by a call with these flags. The message of which it is a part is still on
/// its way if it was only looked at.
fn adopt_by(flags: usize) -> impl FnMut(RawFd) {
    move |descriptor| {
        array::adopt(descriptor);
        if flags & MSG_PEEK == 0 {
            take_back(descriptor);
        }
    }
}

/// `recvmsg`.
pub(crate) fn receive(call: &mut Call) -> Verdict {
    if !takes_control(call.args[1]) && !super::socket::in_use() {
        return Verdict::Pass;
    }
    call.scratch[0] = room_of(call.args[1]);
    call.then = Some(|call| {
        if call.result >= 0 {
            descriptors(call.args[1], adopt_by(call.args[2]));
            super::peer::received(call.args[1], call.scratch[0]);
        }
        call.result
    });
    Verdict::PassWith { number: call.number, args: call.args }
}

/// How much room a message has for its sender's address.
fn room_of(message: usize) -> u64 {
    program::read::<Message>(message).map_or(0, |message| message.name_bytes.into())
}

/// `recvmmsg`.
pub(crate) fn receive_many(call: &mut Call) -> Verdict {
    let mut control = false;
    each(call.args[1], call.args[2], |message| control |= takes_control(message));
    if !control && !super::socket::in_use() {
        return Verdict::Pass;
    }
    let mut rooms = Vec::new();
    each(call.args[1], call.args[2], |message| rooms.push(room_of(message)));
    call.scratch[0] = Box::into_raw(Box::new(rooms)) as u64;
    call.then = Some(|call| {
        // SAFETY: put there above for this very call.
        let mut rooms = unsafe { Box::from_raw(call.scratch[0] as *mut Vec<u64>) }.into_iter();
        each(call.args[1], call.result.max(0) as usize, |message| {
            descriptors(message, adopt_by(call.args[3]));
            super::peer::received(message, rooms.next().unwrap_or_default());
        });
        call.result
    });
    Verdict::PassWith { number: call.number, args: call.args }
}

/// Calls `visit` with every descriptor that a call has brought.
pub(crate) fn each_received(call: &Call, mut visit: impl FnMut(RawFd)) {
    match call.number as u32 {
        nr::__NR_pidfd_getfd => visit(call.result as RawFd),
        nr::__NR_recvmsg => descriptors(call.args[1], visit),
        _ => each(call.args[1], call.result.max(0) as usize, |message| descriptors(message, &mut visit)),
    }
}

fn each(vector: usize, count: usize, mut visit: impl FnMut(usize)) {
    (0..count.min(MANY_COUNT_MAX)).for_each(|index| visit(vector.wrapping_add(index * MANY_BYTES)));
}

fn takes_control(message: usize) -> bool {
    program::read::<Message>(message).is_ok_and(|message| message.control != 0 && message.control_bytes != 0)
}

/// Calls `visit` with every descriptor in the control data of the message at `message`. Bad
/// pointers are the kernel's to complain about.
fn descriptors(message: usize, mut visit: impl FnMut(RawFd)) {
    let Ok(message) = program::read::<Message>(message) else { return };
    // The kernel refuses more (ENOBUFS).
    if message.control_bytes > i32::MAX as usize {
        return;
    }
    let (mut at, Some(end)) = (message.control, message.control.checked_add(message.control_bytes)) else { return };
    while message.control != 0 && end.saturating_sub(at) >= size_of::<Control>() {
        let Ok(control) = program::read::<Control>(at) else { return };
        if control.bytes < size_of::<Control>() || control.bytes > end - at {
            return;
        }
        if (control.level, control.kind) == (SOL_SOCKET, SCM_RIGHTS) {
            for place in (at + size_of::<Control>()..at + control.bytes).step_by(size_of::<RawFd>()) {
                let Ok(descriptor) = program::read::<RawFd>(place) else { return };
                visit(descriptor);
            }
        }
        at += control.bytes.next_multiple_of(size_of::<usize>());
    }
}
