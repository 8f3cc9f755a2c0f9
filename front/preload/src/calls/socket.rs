//! Unix sockets with a path on the array: bind, connect, sendto, sendmsg and sendmmsg. Module
//! `peer` serves the calls that return the names of sockets (getsockname, recvfrom and others).
//!
//! The kernel's socket file is on the lowest member, so the address in a call is replaced by one
//! that leads there. An address has room for a path of 108 bytes. If the path on the member is
//! longer, the library opens the directory and names the socket through /proc/self/fd; getsockname
//! then returns this path.
//!
//! Invariant: what replaces the program's address lies in a box, whose pointer is in
//! `call.scratch[0]` from the making of the verdict until the system call is over. What is called
//! then frees it: the closure of [`to_address`], [`sent`] or [`sent_many`].

use super::message::Message;
use super::paths::{self, AT_FDCWD, Asked, Where};
use super::{judge, links};
use crate::array;
use crate::call::{Call, Verdict};
use crate::program;
use crate::uapi::{AF_UNIX, UNIX_PATH_MAX};
use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicBool, Ordering};
use heap::boxed::Box;
use heap::vec::Vec;
use namespace::{Namespace, ProgramPath, Reached};
use sys::high_fd::Raised;
use sys::raw::{check, syscall};
use sys::rustix::fs::{Mode, OFlags, open};
use sys::{AsRawFd, OsError};

const FAMILY_BYTES: usize = size_of::<u16>();
/// A path at which the kernel never finds a socket: looking for one there is `ENOENT`.
const NOWHERE: &[u8] = b"/proc/self/nowhere";

/// Whether this process has named a path of the array in a socket call. Before the first such call
/// the kernel returns no address of the array, so no address is translated.
static USED: AtomicBool = AtomicBool::new(false);

/// `struct sockaddr_un`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Address {
    pub(super) family: u16,
    pub(super) path: [u8; UNIX_PATH_MAX],
}

impl Address {
    /// The address of a path of at most [`UNIX_PATH_MAX`] bytes, and its length. A path of that
    /// many bytes has no NUL behind it, which the kernel accepts.
    pub(super) fn of(path: &[u8]) -> (Self, usize) {
        let mut address = Self { family: AF_UNIX, path: [0; UNIX_PATH_MAX] };
        address.path[..path.len()].copy_from_slice(path);
        (address, (FAMILY_BYTES + path.len() + 1).min(size_of::<Self>()))
    }
}

/// The path on the array that the program's address of `bytes` bytes at `pointer` names; with
/// `follow` it may also be a path of the host whose last component is a symlink into the array.
/// None for every other address, so for one that cannot be read or is ill-formed (the kernel
/// refuses it), and for unnamed and abstract sockets, whose path begins with a NUL.
fn located(pointer: usize, bytes: usize, follow: bool) -> Option<(&'static Namespace, Asked)> {
    let namespace = array::namespace().ok()?;
    if pointer == 0 || !(FAMILY_BYTES + 1..=size_of::<Address>()).contains(&bytes) || program::read(pointer) != Ok(AF_UNIX) {
        return None;
    }
    let path = program::read_bytes(pointer + FAMILY_BYTES, bytes - FAMILY_BYTES).ok()?;
    let end = path.iter().position(|&byte| byte == 0).unwrap_or(path.len());
    match paths::locate_bytes(AT_FDCWD, &path[..end]) {
        Where::Array(path) => {
            USED.store(true, Ordering::Relaxed);
            Some((namespace, path))
        }
        Where::Host => {
            let mut found = links::entered_by_text(AT_FDCWD, &path[..end], follow, false)?;
            // The path's NUL.
            found.pop();
            if follow && is_nameless(namespace, &found) {
                return None;
            }
            USED.store(true, Ordering::Relaxed);
            Some((namespace, Asked::absolute(found)))
        }
    }
}

/// Whether a path into the array is what /proc says of something open that has no name any more.
/// The kernel finds it by the link that the program has named.
fn is_nameless(namespace: &Namespace, path: &[u8]) -> bool {
    path.ends_with(b" (deleted)") && matches!(namespace.stat(ProgramPath::from(path), true), Err(OsError::NOENT))
}

/// `bind`: makes the socket's file on the members, by binding to the path on the member.
pub(crate) fn bind(call: &mut Call) -> Verdict {
    let Some((namespace, path)) = located(call.args[1], call.args[2], false) else { return Verdict::Pass };
    if let Some(refusal) = judge::refusal_of_socket(call.descriptor(0)) {
        return refusal;
    }
    array::tell();
    let bound = namespace.bind_socket(path.path(), UNIX_PATH_MAX, |member_path| {
        let (address, bytes) = Address::of(member_path);
        // SAFETY: the address is read while the call runs.
        check(unsafe { syscall(call.number, [call.args[0], &raw const address as usize, bytes, 0, 0, 0]) }).map(|_| ())
    });
    match bound {
        Ok(Reached::Array(())) => Verdict::Done(0),
        Ok(Reached::Host(host)) => with_replacement(call, 1, 2, Replacement::at(outside(host))),
        // bind(2) has its own error for a path that exists.
        Err(OsError::EXIST) => Verdict::error(OsError::ADDRINUSE),
        Err(error) => Verdict::error(error),
    }
}

/// `connect`.
pub(crate) fn connect(call: &mut Call) -> Verdict {
    to_address(call, 1, 2)
}

/// `sendto`.
pub(crate) fn sendto(call: &mut Call) -> Verdict {
    to_address(call, 4, 5)
}

/// Serves a call whose arguments number `pointer_index` and `bytes_index` are an address. The call
/// may block, so the stub makes it, with the replaced address.
fn to_address(call: &mut Call, pointer_index: usize, bytes_index: usize) -> Verdict {
    let Some((namespace, path)) = located(call.args[pointer_index], call.args[bytes_index], true) else { return Verdict::Pass };
    with_replacement(call, pointer_index, bytes_index, Replacement::of(namespace, &path))
}

/// Has the stub make a call with this address in place of the one that the arguments number
/// `pointer_index` and `bytes_index` are.
fn with_replacement(call: &mut Call, pointer_index: usize, bytes_index: usize, replacement: Box<Replacement>) -> Verdict {
    let mut args = call.args;
    (args[pointer_index], args[bytes_index]) = replacement.argument();
    call.scratch[0] = Box::into_raw(replacement) as u64;
    call.then = Some(|call| {
        // SAFETY: put there by `with_replacement` for this very call.
        unsafe { Box::from_raw(call.scratch[0] as *mut Replacement) }.result(call.result)
    });
    Verdict::PassWith { number: call.number, args }
}

/// What takes the place of an address of the array. It is boxed, because the kernel is given
/// pointers into it.
struct Replacement {
    address: Address,
    bytes: usize,
    /// For sendmsg: the copy of the program's message that points to `address`.
    message: Option<Message>,
    /// Why the socket was not found. `address` is that of [`NOWHERE`] then.
    error: Option<OsError>,
    /// Keeps the directory open through which a long path is named.
    _directory: Option<Raised>,
}

impl Replacement {
    /// The address of the socket at `path` on its member, or of a path outside of the array to
    /// which a symlink of the array leads.
    ///
    /// If the path cannot be looked up, it is an address at which no socket is. The kernel reports
    /// everything else that is wrong with a call before it looks for the socket; so only if it
    /// finds none is nothing else wrong, and the program gets the error of the look-up
    /// ([`Self::result`]).
    fn of(namespace: &Namespace, path: &Asked) -> Box<Self> {
        Self::at(namespace.socket_path(path.path(), UNIX_PATH_MAX).and_then(|reached| match reached {
            Reached::Array(found) => Ok(found),
            Reached::Host(path) => outside(path),
        }))
    }

    /// The address of this path, which may be valid only while a directory is open; where there is
    /// none, the address at which no socket is.
    fn at(found: Result<(Vec<u8>, Option<Raised>), OsError>) -> Box<Self> {
        let (path, directory, error) = match found {
            Ok((path, directory)) => (path, directory, None),
            Err(error) => (NOWHERE.to_vec(), None, Some(error)),
        };
        let (address, bytes) = Address::of(&path);
        Box::new(Self { address, bytes, message: None, error, _directory: directory })
    }

    /// Pointer and length of the address.
    fn argument(&self) -> (usize, usize) {
        (core::ptr::from_ref(&self.address) as usize, self.bytes)
    }

    /// What the program gets if the call with this address had the result `result`.
    fn result(&self, result: isize) -> isize {
        match self.error {
            Some(error) if result == -(OsError::NOENT.raw_os_error() as isize) => -(error.raw_os_error() as isize),
            _ => result,
        }
    }
}

/// A path of the host by which an address can name it, and the descriptor that keeps it valid.
fn outside(path: Vec<u8>) -> Result<(Vec<u8>, Option<Raised>), OsError> {
    if path.len() <= UNIX_PATH_MAX {
        return Ok((path, None));
    }
    through_directory(&path).map(|(path, directory)| (path, Some(directory)))
}

/// A path of the host that is too long for an address: a short one, through a descriptor of its
/// directory.
fn through_directory(path: &[u8]) -> Result<(Vec<u8>, Raised), OsError> {
    let cut = path.iter().rposition(|&byte| byte == b'/').ok_or(OsError::NAMETOOLONG)?;
    let directory = open(&path[..=cut], OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let directory = Raised::new(directory)?;
    let short = [namespace::link(directory.as_raw_fd()).as_slice(), &path[cut..]].concat();
    if short.len() > UNIX_PATH_MAX { Err(OsError::NAMETOOLONG) } else { Ok((short, directory)) }
}

/// The call that the stub makes in place of a sendmsg whose message names a socket of the array;
/// None for any other message. After the call [`sent`] must be called, once.
pub(super) fn send(call: &mut Call) -> Option<Verdict> {
    let mut message = program::read::<Message>(call.args[1]).ok()?;
    let (namespace, path) = located(message.name, message.name_bytes as usize, true)?;
    let mut replacement = Replacement::of(namespace, &path);
    message.set_name(replacement.argument());
    let mut args = call.args;
    args[1] = core::ptr::from_ref(replacement.message.insert(message)) as usize;
    call.scratch[0] = Box::into_raw(replacement) as u64;
    Some(Verdict::PassWith { number: call.number, args })
}

/// Ends what [`send`] began: returns the program's result.
pub(super) fn sent(call: &mut Call) -> isize {
    // SAFETY: put there by `send` for this very call.
    unsafe { Box::from_raw(call.scratch[0] as *mut Replacement) }.result(call.result)
}

/// Whether addresses that the kernel returns may be the array's.
pub(super) fn in_use() -> bool {
    USED.load(Ordering::Relaxed)
}

/// `struct mmsghdr`.
#[repr(C)]
#[derive(Clone, Copy)]
struct CountedMessage {
    message: Message,
    /// How many bytes of the message were sent; the kernel stores it.
    sent_bytes: u32,
    _padding: u32,
}

/// What a sendmmsg with messages to sockets of the array is made with: copies of the program's
/// headers, and what they point to.
struct Batch {
    headers: Vec<CountedMessage>,
    #[expect(clippy::vec_box, reason = "the headers point into the replacements")]
    _replacements: Vec<Box<Replacement>>,
    /// Why the socket of the first message was not found. An error of a later one is not reported:
    /// the kernel returns the number of messages that it has sent before.
    error: Option<OsError>,
}

/// The call that the stub makes in place of a sendmmsg of which a message names a socket of the
/// array; None for any other batch. After the call [`sent_many`] must be called, once.
pub(super) fn send_many(call: &mut Call, count: usize) -> Option<Verdict> {
    let header = |index| program::read::<CountedMessage>(call.args[1].wrapping_add(index * size_of::<CountedMessage>()));
    // The kernel sends what comes before a header that it cannot read.
    let mut headers: Vec<CountedMessage> = (0..count).map_while(|index| header(index).ok()).collect();
    let mut replacements = Vec::new();
    let mut error = None;
    for (index, CountedMessage { message, .. }) in headers.iter_mut().enumerate() {
        let Some((namespace, path)) = located(message.name, message.name_bytes as usize, true) else { continue };
        let replacement = Replacement::of(namespace, &path);
        message.set_name(replacement.argument());
        if index == 0 {
            error = replacement.error;
        }
        replacements.push(replacement);
    }
    if replacements.is_empty() {
        return None;
    }
    let batch = Box::new(Batch { headers, _replacements: replacements, error });
    let mut args = call.args;
    (args[1], args[2]) = (batch.headers.as_ptr() as usize, batch.headers.len());
    call.scratch[0] = Box::into_raw(batch) as u64;
    Some(Verdict::PassWith { number: call.number, args })
}

/// Ends what [`send_many`] began: stores in the program's headers how much of each message was
/// sent, and returns the program's result.
pub(super) fn sent_many(call: &mut Call) -> isize {
    // SAFETY: put there by `send_many` for this very call.
    let batch = unsafe { Box::from_raw(call.scratch[0] as *mut Batch) };
    for (index, header) in batch.headers.iter().take(call.result.max(0) as usize).enumerate() {
        // `args` are the program's: those of the call that was made are in `instead`.
        let place = call.args[1] + index * size_of::<CountedMessage>() + offset_of!(CountedMessage, sent_bytes);
        // The program's headers were read a moment ago. If another thread has unmapped them, nobody
        // misses the number.
        let _ = program::write(place, &header.sent_bytes);
    }
    match batch.error {
        Some(error) if call.result == -(OsError::NOENT.raw_os_error() as isize) => -(error.raw_os_error() as isize),
        _ => call.result,
    }
}
