//! Reading and writing the program's memory for small arguments: structures and paths. A bad
//! pointer is EFAULT, not a crash.

use crate::deputy;
use core::mem::MaybeUninit;
use heap::vec::Vec;
use persist::fault::guard;
use sys::OsError;

/// The value at `address`.
pub(crate) fn read<T: Copy>(address: usize) -> sys::Result<T> {
    if address == 0 {
        return Err(OsError::FAULT);
    }
    let mut value = MaybeUninit::<T>::uninit();
    let target = value.as_mut_ptr();
    // SAFETY: the closure owns nothing and may be left anywhere; `target` has room for a T.
    unsafe { guard(|| core::ptr::copy_nonoverlapping(address as *const u8, target.cast(), size_of::<T>())) }
        .map_err(|_| OsError::FAULT)?;
    // SAFETY: the guard ended normally, so every byte was copied; T is a plain kernel structure.
    Ok(unsafe { value.assume_init() })
}

/// Stores `value` at `address`.
pub(crate) fn write<T: Copy>(address: usize, value: &T) -> sys::Result<()> {
    if address == 0 {
        return Err(OsError::FAULT);
    }
    let source = core::ptr::from_ref(value);
    // SAFETY: the closure owns nothing and may be left anywhere; the program named the target.
    unsafe { guard(|| core::ptr::copy_nonoverlapping(source.cast::<u8>(), address as *mut u8, size_of::<T>())) }
        .map_err(|_| OsError::FAULT)?;
    // SAFETY: `source` is a T, whose bytes are read.
    deputy::has_stored(address, unsafe { core::slice::from_raw_parts(source.cast(), size_of::<T>()) });
    Ok(())
}

/// Copies the string at `address` with its NUL into `buffer`; returns it without the NUL.
/// ENAMETOOLONG if it does not fit.
pub(crate) fn read_string(address: usize, buffer: &mut [u8]) -> sys::Result<&[u8]> {
    let (target, limit) = (buffer.as_mut_ptr(), buffer.len());
    let mut length = usize::MAX;
    let found = &raw mut length;
    // SAFETY: the closure owns nothing and may be left anywhere; it writes at most `limit` bytes at
    // `target`, and `found`.
    let outcome = unsafe {
        guard(|| {
            for index in 0..limit {
                let byte = (address as *const u8).add(index).read_volatile();
                target.add(index).write(byte);
                if byte == 0 {
                    found.write(index);
                    return;
                }
            }
        })
    };
    match (outcome, length) {
        (Err(_), _) => Err(OsError::FAULT),
        (Ok(()), usize::MAX) => Err(OsError::NAMETOOLONG),
        (Ok(()), length) => Ok(&buffer[..length]),
    }
}

/// The `count` bytes at `address`.
pub(crate) fn read_bytes(address: usize, count: usize) -> sys::Result<Vec<u8>> {
    if address == 0 {
        return if count == 0 { Ok(Vec::new()) } else { Err(OsError::FAULT) };
    }
    let mut bytes = Vec::<u8>::new();
    bytes.try_reserve_exact(count).map_err(|_| OsError::NOMEM)?;
    // SAFETY: room for `count` bytes was just reserved; without an error every one of them was
    // copied.
    unsafe {
        copy(address, bytes.as_mut_ptr(), count)?;
        bytes.set_len(count);
    }
    Ok(bytes)
}

/// Copies the `count` bytes at `address` to `target`, which is memory of the library.
///
/// # Safety
/// `target` has room for `count` bytes.
pub(crate) unsafe fn copy(address: usize, target: *mut u8, count: usize) -> sys::Result<()> {
    if address == 0 {
        return if count == 0 { Ok(()) } else { Err(OsError::FAULT) };
    }
    // SAFETY: the closure owns nothing and may be left anywhere; the caller promises the room.
    unsafe { guard(|| core::ptr::copy_nonoverlapping(address as *const u8, target, count)) }.map_err(|_| OsError::FAULT)
}

/// Stores `bytes` at `address`.
pub(crate) fn write_bytes(address: usize, bytes: &[u8]) -> sys::Result<()> {
    if address == 0 {
        return if bytes.is_empty() { Ok(()) } else { Err(OsError::FAULT) };
    }
    let (source, count) = (bytes.as_ptr(), bytes.len());
    // SAFETY: the closure owns nothing and may be left anywhere; the program named the target.
    unsafe { guard(|| core::ptr::copy_nonoverlapping(source, address as *mut u8, count)) }.map_err(|_| OsError::FAULT)?;
    deputy::has_stored(address, bytes);
    Ok(())
}

/// How many of the `count` bytes at `address` can be read, or stored to if `stores`, from the first
/// on. What is there stays.
pub(crate) fn reachable(address: usize, count: usize, stores: bool) -> usize {
    const PAGE_BYTES: usize = 4096;
    let mut reached = 0;
    while reached < count {
        let byte = address.wrapping_add(reached) as *mut u8;
        // SAFETY: the closure owns nothing and may be left anywhere; a byte is read, and stored
        // again as it is at that moment.
        let touched = unsafe { guard(|| if stores { crate::arch::touch(byte) } else { _ = byte.read_volatile() }) };
        if touched.is_err() {
            break;
        }
        reached = (reached + PAGE_BYTES - (address + reached) % PAGE_BYTES).min(count);
    }
    reached
}
