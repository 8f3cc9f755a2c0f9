//! Names of sockets that the kernel tells: a path on a member is told as the array's.
//!
//! A call that may wait is made by the stub, with an address buffer of the library's in place of
//! the program's, which has room for any address.

use super::socket::{Address, in_use};
use crate::array;
use crate::call::{Call, Verdict};
use crate::program;
use crate::uapi::{AF_UNIX, UNIX_PATH_MAX};
use heap::boxed::Box;
use linux_raw_sys::general::{__NR_close, __NR_recvfrom};
use sys::OsError;
use sys::raw::syscall;

/// `struct sockaddr_storage`: no address is longer.
const STORAGE_BYTES: usize = 128;

/// An address of the kernel's.
#[repr(C, align(8))]
struct Storage {
    bytes: [u8; STORAGE_BYTES],
    length: u32,
}

impl Storage {
    const fn new() -> Self {
        Self { bytes: [0; STORAGE_BYTES], length: STORAGE_BYTES as u32 }
    }

    /// Stores the address as the program is to see it where it has room for it, and how long it is.
    fn tell(&self, address: usize, length: usize, room: u32) -> Result<(), OsError> {
        let whole = &self.bytes[..(self.length as usize).min(STORAGE_BYTES)];
        let told = translated(whole);
        let (image, bytes) = match &told {
            Some((address, bytes)) => {
                // SAFETY: an address is plain bytes.
                (unsafe { core::slice::from_raw_parts(core::ptr::from_ref(address).cast::<u8>(), *bytes) }, *bytes as u32)
            }
            None => (whole, self.length),
        };
        program::write_bytes(address, &image[..image.len().min(room as usize)])?;
        program::write(length, &bytes)
    }
}

/// The array's name for an address on a member.
fn translated(address: &[u8]) -> Option<(Address, usize)> {
    let (family, path) = address.split_first_chunk::<2>()?;
    if u16::from_ne_bytes(*family) != AF_UNIX || path.first().is_none_or(|&byte| byte == 0) {
        return None;
    }
    let path = &path[..path.len().min(UNIX_PATH_MAX)];
    let end = path.iter().position(|&byte| byte == 0).unwrap_or(path.len());
    let path = array::namespace().ok()?.logical(&path[..end])?;
    Some(Address::of(path))
}

/// getsockname, getpeername.
pub(crate) fn name(call: &mut Call) -> Verdict {
    let [_, address, length, ..] = call.args;
    let Ok(room) = program::read::<u32>(length) else { return Verdict::Pass };
    let mut storage = Storage::new();
    let args = [call.args[0], storage.bytes.as_mut_ptr() as usize, &raw mut storage.length as usize, 0, 0, 0];
    // SAFETY: the address has the room that is said.
    let result = unsafe { syscall(call.number, args) };
    if result < 0 || room > i32::MAX as u32 || translated(&storage.bytes).is_none() {
        return Verdict::Pass;
    }
    Verdict::from_result(storage.tell(address, length, room).map(|()| 0))
}

/// accept, accept4, recvfrom.
pub(crate) fn peer(call: &mut Call) -> Verdict {
    let first = if call.number == __NR_recvfrom as usize { 4 } else { 1 };
    if !in_use() || call.args[first] == 0 {
        return Verdict::Pass;
    }
    let Ok(room @ 0..=0x7fff_ffff) = program::read::<u32>(call.args[first + 1]) else { return Verdict::Pass };
    let storage = Box::into_raw(Box::new(Storage::new()));
    let mut args = call.args;
    // SAFETY: just made; only its fields' addresses are taken.
    (args[first], args[first + 1]) = unsafe { (&raw mut (*storage).bytes as usize, &raw mut (*storage).length as usize) };
    (call.scratch[0], call.scratch[1], call.scratch[2]) = (storage as u64, first as u64, u64::from(room));
    call.then = Some(tell);
    Verdict::PassWith { number: call.number, args }
}

fn tell(call: &mut Call) -> isize {
    // SAFETY: put there by `peer` for this very call.
    let storage = unsafe { Box::from_raw(call.scratch[0] as *mut Storage) };
    let first = call.scratch[1] as usize;
    // The kernel leaves everything as it is if there is no address.
    if call.result < 0 || storage.length as usize == STORAGE_BYTES {
        return call.result;
    }
    match storage.tell(call.args[first], call.args[first + 1], call.scratch[2] as u32) {
        Ok(()) => call.result,
        Err(error) => {
            if call.number != __NR_recvfrom as usize {
                // SAFETY: the connection was made by this call and nobody knows it yet.
                unsafe { syscall(__NR_close as usize, [call.result as usize, 0, 0, 0, 0, 0]) };
            }
            -(error.raw_os_error() as isize)
        }
    }
}

/// Translates the name in a message that was received: it lies in the program's own memory, where
/// it had so much room. A name that was cut stays as it is.
pub(super) fn received(message: usize, room: u64) {
    let Ok([name, bytes]) = program::read::<[usize; 2]>(message) else { return };
    let bytes = bytes as u32 as usize;
    if !in_use() || name == 0 || bytes > size_of::<Address>() || bytes as u64 > room {
        return;
    }
    let Ok(image) = program::read_bytes(name, bytes) else { return };
    if let Some((told, count)) = translated(&image) {
        // SAFETY: an address is plain bytes.
        let image = unsafe { core::slice::from_raw_parts((&raw const told).cast::<u8>(), count) };
        // The array's path is shorter than a member's.
        let _ = program::write_bytes(name, &image[..count.min(bytes)]);
        let _ = program::write(message + size_of::<usize>(), &(count as u32));
    }
}
