//! Local sockets with a name on the array: bind, connect, sendto, sendmsg. What the kernel says of their names is `peer`'s.
//!
//! The socket that the kernel knows lies on the first member. A name that does not fit into an address there is reached through a
//! descriptor of its directory; of such a socket getsockname tells the path under /proc.

use super::paths::{self, AT_FDCWD, Asked, Where};
use super::{judge, links};
use crate::array;
use crate::dispatch::{Call, Verdict};
use crate::program;
use core::mem::size_of;
use core::sync::atomic::{AtomicBool, Ordering};
use heap::boxed::Box;
use heap::vec::Vec;
use namespace::{Namespace, Reached};
use sys::OsError;
use sys::high_fd::Raised;
use sys::raw::{check, syscall};

pub(super) const AF_UNIX: u16 = 1;
const FAMILY_BYTES: usize = size_of::<u16>();
pub(super) const PATH_BYTES_MAX: usize = 108;

/// Whether this process has named a socket of the array: until then no address need be looked at.
static USED: AtomicBool = AtomicBool::new(false);

/// `struct sockaddr_un`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Address {
    pub(super) family: u16,
    pub(super) path: [u8; PATH_BYTES_MAX],
}

impl Address {
    /// The address of a path, and its length.
    pub(super) fn of(path: &[u8]) -> (Self, usize) {
        let mut address = Self { family: AF_UNIX, path: [0; PATH_BYTES_MAX] };
        address.path[..path.len()].copy_from_slice(path);
        (address, (FAMILY_BYTES + path.len() + 1).min(size_of::<Self>()))
    }
}

/// The array's path in the address at `address`; None if the address is no affair of the array.
fn located(address: usize, bytes: usize, follow: bool) -> Option<(&'static Namespace, Asked)> {
    let namespace = array::namespace().ok()?;
    if address == 0 || !(FAMILY_BYTES + 1..=size_of::<Address>()).contains(&bytes) || program::read(address) != Ok(AF_UNIX) {
        return None;
    }
    let path = program::read_bytes(address + FAMILY_BYTES, bytes - FAMILY_BYTES).ok()?;
    let end = path.iter().position(|&byte| byte == 0).unwrap_or(path.len());
    match paths::locate_bytes(AT_FDCWD, &path[..end]) {
        Where::Array(path) => {
            USED.store(true, Ordering::Relaxed);
            Some((namespace, path))
        }
        Where::Host => {
            let mut found = links::entered_by_text(AT_FDCWD, &path[..end], follow, false)?;
            found.pop();
            USED.store(true, Ordering::Relaxed);
            Some((namespace, Asked::absolute(found)))
        }
    }
}

pub(crate) fn bind(call: &mut Call) -> Verdict {
    let Some((namespace, path)) = located(call.args[1], call.args[2], false) else { return Verdict::Pass };
    if let Some(refusal) = judge::refusal_of_socket(call.descriptor(0)) {
        return refusal;
    }
    array::tell();
    let bound = namespace.bind_socket(path.path(), PATH_BYTES_MAX, |host| {
        let (address, bytes) = Address::of(host);
        // SAFETY: the address is read while the call runs.
        check(unsafe { syscall(call.number, [call.args[0], &raw const address as usize, bytes, 0, 0, 0]) }).map(|_| ())
    });
    match bound {
        Ok(Reached::Array(())) => Verdict::Done(0),
        Ok(Reached::Host(_)) => Verdict::Pass,
        Err(OsError::EXIST) => Verdict::error(OsError::ADDRINUSE),
        Err(error) => Verdict::error(error),
    }
}

pub(crate) fn connect(call: &mut Call) -> Verdict {
    to_address(call, 1, 2)
}

pub(crate) fn sendto(call: &mut Call) -> Verdict {
    to_address(call, 4, 5)
}

/// A call that may block, with the address of the member's socket in place of the program's.
fn to_address(call: &mut Call, address: usize, bytes: usize) -> Verdict {
    let Some((namespace, path)) = located(call.args[address], call.args[bytes], true) else { return Verdict::Pass };
    if let Some(refusal) = judge::refusal_of_socket(call.descriptor(0)) {
        return refusal;
    }
    match member_address(namespace, &path) {
        Ok(None) => Verdict::Pass,
        Ok(Some(place)) => {
            let mut args = call.args;
            (args[address], args[bytes]) = (core::ptr::from_ref(&place.address) as usize, place.bytes);
            give_back_after(call, place);
            Verdict::PassWith { number: call.number, args }
        }
        Err(error) => refused_by_path(call, address, bytes, error),
    }
}

/// The socket's name cannot be found. Whatever else is wrong with the call the kernel says first: it is given a name that leads nowhere, and if that is all that it finds wrong, it is the error of the
/// name that the program gets.
fn refused_by_path(call: &mut Call, address: usize, bytes: usize, error: OsError) -> Verdict {
    const NOWHERE: &[u8; 18] = b"/proc/self/nowhere";
    let (nowhere, length) = Address::of(NOWHERE);
    let place = Box::new(Place { address: nowhere, bytes: length, message: [0; 7], _directory: None });
    let mut args = call.args;
    (args[address], args[bytes]) = (core::ptr::from_ref(&place.address) as usize, place.bytes);
    call.scratch[0] = Box::into_raw(place) as u64;
    call.scratch[1] = error.raw_os_error() as u64;
    call.then = Some(|call| {
        // SAFETY: put there by `refused_by_path` for this very call.
        drop(unsafe { Box::from_raw(call.scratch[0] as *mut Place) });
        let is_nowhere = call.result == -(OsError::NOENT.raw_os_error() as isize);
        if is_nowhere { -(call.scratch[1] as isize) } else { call.result }
    });
    Verdict::PassWith { number: call.number, args }
}

/// An address in memory of its own, and the message that names it.
struct Place {
    address: Address,
    bytes: usize,
    message: [usize; 7],
    /// The directory a long path goes through.
    _directory: Option<Raised>,
}

fn member_address(namespace: &Namespace, path: &Asked) -> Result<Option<Box<Place>>, OsError> {
    let reached = namespace.socket_path(path.path(), PATH_BYTES_MAX)?;
    Ok(match reached {
        Reached::Array((path, directory)) => {
            let directory = directory.map(Raised::new).transpose()?;
            let (address, bytes) = Address::of(&path);
            Some(Box::new(Place { address, bytes, message: [0; 7], _directory: directory }))
        }
        // A symlink of the array's leads there.
        Reached::Host(path) if path.len() < PATH_BYTES_MAX => {
            let (address, bytes) = Address::of(&path);
            Some(Box::new(Place { address, bytes, message: [0; 7], _directory: None }))
        }
        Reached::Host(_) => None,
    })
}

/// Keeps `place` until the call is over.
fn give_back_after(call: &mut Call, place: Box<Place>) {
    call.scratch[0] = Box::into_raw(place) as u64;
    call.then = Some(|call| {
        // SAFETY: put there by `give_back_after` for this very call.
        drop(unsafe { Box::from_raw(call.scratch[0] as *mut Place) });
        call.result
    });
}

/// For sendmsg: the call to make if its message names a socket of the array.
pub(crate) fn send_message(call: &mut Call) -> Verdict {
    let Ok(mut message) = program::read::<[usize; 7]>(call.args[1]) else { return Verdict::Pass };
    let [name, bytes, ..] = message;
    let Some((namespace, path)) = located(name, bytes as u32 as usize, true) else { return Verdict::Pass };
    if let Some(refusal) = judge::refusal_of_socket(call.descriptor(0)) {
        return refusal;
    }
    match member_address(namespace, &path) {
        Ok(None) => Verdict::Pass,
        Ok(Some(mut place)) => {
            (message[0], message[1]) = (core::ptr::from_ref(&place.address) as usize, place.bytes);
            place.message = message;
            let mut args = call.args;
            args[1] = core::ptr::from_ref(&place.message) as usize;
            give_back_after(call, place);
            Verdict::PassWith { number: call.number, args }
        }
        Err(error) => Verdict::error(error),
    }
}

/// Whether this process has to do with sockets of the array.
pub(super) fn in_use() -> bool {
    USED.load(Ordering::Relaxed)
}

/// `struct mmsghdr`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Many {
    message: [usize; 7],
    sent_bytes: usize,
}

/// sendmmsg with messages to sockets of the array: copies of its headers, and the addresses they name.
struct Batch {
    headers: Vec<Many>,
    #[expect(clippy::vec_box, reason = "the headers point into the places")]
    _places: Vec<Box<Place>>,
}

/// For sendmmsg: the call to make if any of its messages names a socket of the array; `then` is to be called afterwards.
pub(super) fn send_many(call: &mut Call, count: usize) -> Option<Verdict> {
    let headers = (0..count).map(|index| program::read::<Many>(call.args[1] + index * size_of::<Many>()));
    let mut headers: Vec<Many> = headers.collect::<Result<_, _>>().ok()?;
    let mut places = Vec::new();
    for header in &mut headers {
        let [name, bytes, ..] = header.message;
        let Some((namespace, path)) = located(name, bytes as u32 as usize, true) else { continue };
        match member_address(namespace, &path) {
            Ok(Some(place)) => {
                (header.message[0], header.message[1]) = (core::ptr::from_ref(&place.address) as usize, place.bytes);
                places.push(place);
            }
            Ok(None) => {}
            // Those before it are sent; the kernel finds no socket here.
            Err(_) => header.message[0] = c"".as_ptr() as usize,
        }
    }
    if places.is_empty() {
        return None;
    }
    let batch = Box::new(Batch { headers, _places: places });
    let mut args = call.args;
    args[1] = batch.headers.as_ptr() as usize;
    call.scratch[0] = Box::into_raw(batch) as u64;
    Some(Verdict::PassWith { number: call.number, args })
}

/// Tells the program how many bytes of each message were sent.
pub(super) fn sent_many(call: &mut Call) {
    // SAFETY: put there by `send_many` for this very call.
    let batch = unsafe { Box::from_raw(call.scratch[0] as *mut Batch) };
    for (index, header) in batch.headers.iter().take(call.result.max(0) as usize).enumerate() {
        let place = call.args[1] + index * size_of::<Many>() + size_of::<[usize; 7]>();
        let _ = program::write(place, &(header.sent_bytes as u32));
    }
}
