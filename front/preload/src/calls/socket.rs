//! Local sockets with a name on the array: bind, connect, sendto, sendmsg, and what the kernel says of their names.
//!
//! The socket that the kernel knows lies on the first member. A name that does not fit into an address there is reached through a
//! descriptor of its directory; of such a socket getsockname tells the path under /proc.

use super::paths::{self, AT_FDCWD, Where};
use crate::array;
use crate::dispatch::{Call, Verdict};
use crate::program;
use core::mem::size_of;
use heap::boxed::Box;
use heap::vec::Vec;
use namespace::{Namespace, Reached};
use sys::raw::{check, syscall};
use sys::{AsRawFd, OsError, OwnedFd, high_fd};

const AF_UNIX: u16 = 1;
const FAMILY_BYTES: usize = size_of::<u16>();
const PATH_BYTES_MAX: usize = 108;

/// `struct sockaddr_un`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Address {
    family: u16,
    path: [u8; PATH_BYTES_MAX],
}

impl Address {
    /// The address of a path, and its length.
    fn of(path: &[u8]) -> (Self, usize) {
        let mut address = Self { family: AF_UNIX, path: [0; PATH_BYTES_MAX] };
        address.path[..path.len()].copy_from_slice(path);
        (address, (FAMILY_BYTES + path.len() + 1).min(size_of::<Self>()))
    }
}

/// The array's path in the address at `address`; None if the address is no affair of the array.
fn located(address: usize, bytes: usize) -> Option<(&'static Namespace, Vec<u8>)> {
    let namespace = array::namespace().ok()?;
    if address == 0 || !(FAMILY_BYTES + 1..=size_of::<Address>()).contains(&bytes) || program::read(address) != Ok(AF_UNIX) {
        return None;
    }
    let path = program::read_bytes(address + FAMILY_BYTES, bytes - FAMILY_BYTES).ok()?;
    let end = path.iter().position(|&byte| byte == 0).unwrap_or(path.len());
    match paths::locate_bytes(AT_FDCWD, &path[..end]) {
        Where::Array(path) => Some((namespace, path)),
        Where::Host => None,
    }
}

pub(crate) fn bind(call: &mut Call) -> Verdict {
    let Some((namespace, path)) = located(call.args[1], call.args[2]) else { return Verdict::Pass };
    array::tell();
    let bound = namespace.bind_socket(&path, PATH_BYTES_MAX, |host| {
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
    let Some((namespace, path)) = located(call.args[address], call.args[bytes]) else { return Verdict::Pass };
    match member_address(namespace, &path) {
        Ok(None) => Verdict::Pass,
        Ok(Some(place)) => {
            let mut args = call.args;
            (args[address], args[bytes]) = (core::ptr::from_ref(&place.address) as usize, place.bytes);
            give_back_after(call, place);
            Verdict::PassWith { number: call.number, args }
        }
        Err(error) => Verdict::error(error),
    }
}

/// An address in memory of its own, and the message that names it.
struct Place {
    address: Address,
    bytes: usize,
    message: [usize; 7],
    /// The directory a long path goes through.
    directory: Option<OwnedFd>,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(directory) = &self.directory {
            high_fd::forget(directory.as_raw_fd());
        }
    }
}

fn member_address(namespace: &Namespace, path: &[u8]) -> Result<Option<Box<Place>>, OsError> {
    let reached = namespace.socket_path(path, PATH_BYTES_MAX)?;
    Ok(match reached {
        Reached::Array((path, directory)) => {
            let directory = directory.map(high_fd::raise).transpose()?;
            let (address, bytes) = Address::of(&path);
            Some(Box::new(Place { address, bytes, message: [0; 7], directory }))
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
    let Some((namespace, path)) = located(name, bytes as u32 as usize) else { return Verdict::Pass };
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

/// getsockname and getpeername: a path on a member is told as the array's.
pub(crate) fn name(call: &mut Call) -> Verdict {
    let [_, address, length, ..] = call.args;
    let Ok(room) = program::read::<u32>(length) else { return Verdict::Pass };
    let (mut whole, mut bytes) = (Address { family: 0, path: [0; PATH_BYTES_MAX] }, size_of::<Address>() as u32);
    // SAFETY: the address has the room that is said.
    let result = unsafe { syscall(call.number, [call.args[0], &raw mut whole as usize, &raw mut bytes as usize, 0, 0, 0]) };
    if result < 0 || whole.family != AF_UNIX || whole.path[0] == 0 {
        return Verdict::Pass;
    }
    let end = whole.path.iter().position(|&byte| byte == 0).unwrap_or(PATH_BYTES_MAX);
    let Some(path) = array::namespace().ok().and_then(|namespace| namespace.logical(&whole.path[..end])) else {
        return Verdict::Pass;
    };
    let (told, told_bytes) = Address::of(path);
    // SAFETY: an address is plain bytes.
    let image = unsafe { core::slice::from_raw_parts((&raw const told).cast::<u8>(), told_bytes) };
    let copied = program::write_bytes(address, &image[..told_bytes.min(room as usize)]);
    Verdict::from_result(copied.and_then(|()| program::write(length, &(told_bytes as u32))).map(|()| 0))
}
