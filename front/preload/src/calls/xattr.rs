//! Extended attributes. The array's own one is not seen.

use super::magic::Link;
use super::on_path::{self, At};
use super::{OPEN, directory};
use crate::array;
use crate::call::{Call, Verdict};
use crate::program;
use heap::vec::Vec;
use linux_raw_sys::general::{XATTR_CREATE, XATTR_REPLACE};
use namespace::{ProgramPath, Reached, XattrFlags};
use sys::OsError;

/// The longest name with its NUL, and the longest value (xattr(7)).
const NAME_BYTES_MAX: usize = 256;
const VALUE_BYTES_MAX: usize = 64 << 10;
/// XATTR_CREATE and XATTR_REPLACE.
const FLAGS_KNOWN: u32 = XATTR_CREATE | XATTR_REPLACE;

fn name(address: usize) -> Result<Vec<u8>, OsError> {
    let mut buffer = [0; NAME_BYTES_MAX];
    let name = program::read_string(address, &mut buffer).map_err(|error| match error {
        OsError::NAMETOOLONG => OsError::RANGE,
        error => error,
    })?;
    if name.is_empty() { Err(OsError::RANGE) } else { Ok(name.to_vec()) }
}

fn value(call: &Call) -> Result<Vec<u8>, OsError> {
    let [_, _, address, bytes, ..] = call.args;
    if bytes > VALUE_BYTES_MAX { Err(OsError::TOOBIG) } else { program::read_bytes(address, bytes) }
}

/// Gives the program what `read` put into a buffer of the program's size.
fn fill<T>(bytes: usize, read: impl FnOnce(&mut [u8]) -> Result<T, OsError>) -> Result<(T, Vec<u8>), OsError> {
    let mut buffer = heap::vec![0; bytes.min(VALUE_BYTES_MAX)];
    read(&mut buffer).map(|result| (result, buffer))
}

fn give(address: usize, (count, buffer): (usize, Vec<u8>)) -> Result<usize, OsError> {
    if !buffer.is_empty() {
        program::write_bytes(address, &buffer[..count.min(buffer.len())])?;
    }
    Ok(count)
}

fn reached(filled: (Reached<usize>, Vec<u8>)) -> Reached<(usize, Vec<u8>)> {
    match filled {
        (Reached::Array(count), buffer) => Reached::Array((count, buffer)),
        (Reached::Host(path), _) => Reached::Host(path),
    }
}

/// getxattr and lgetxattr.
pub(crate) fn get(call: &mut Call) -> Verdict {
    let [_, attribute, address, bytes, ..] = call.args;
    let follow = call.number == 191;
    let act = |path: ProgramPath<'_>| {
        let (namespace, name) = (array::namespace()?, name(attribute)?);
        fill(bytes, |buffer| namespace.getxattr(path, &name, buffer, follow)).map(reached)
    };
    let open = |link: &Link| {
        let (namespace, name) = (array::namespace()?, name(attribute)?);
        fill(bytes, |buffer| namespace.getxattr_open(link.descriptor(), link.node(), &name, buffer))
    };
    on_path::serve_followed(call, At::cwd(0), follow, act, open, |filled| give(address, filled))
}

pub(crate) fn fget(call: &mut Call) -> Verdict {
    let [_, attribute, address, bytes, ..] = call.args;
    let descriptor = call.descriptor(0);
    let Some(held) = OPEN.lookup(descriptor) else { return Verdict::Pass };
    let read = || {
        let (namespace, name) = (array::namespace()?, name(attribute)?);
        let filled = fill(bytes, |buffer| namespace.fgetxattr(directory::borrow(descriptor), held.node(), &name, buffer))?;
        give(address, filled)
    };
    Verdict::from_result(read())
}

/// listxattr and llistxattr.
pub(crate) fn list(call: &mut Call) -> Verdict {
    let [_, address, bytes, ..] = call.args;
    let follow = call.number == 194;
    let act = |path: ProgramPath<'_>| {
        let namespace = array::namespace()?;
        fill(bytes, |buffer| namespace.listxattr(path, buffer, follow)).map(reached)
    };
    let open = |link: &Link| {
        let namespace = array::namespace()?;
        fill(bytes, |buffer| namespace.listxattr_open(link.descriptor(), link.node(), buffer))
    };
    on_path::serve_followed(call, At::cwd(0), follow, act, open, |filled| give(address, filled))
}

pub(crate) fn flist(call: &mut Call) -> Verdict {
    let [_, address, bytes, ..] = call.args;
    let descriptor = call.descriptor(0);
    let Some(held) = OPEN.lookup(descriptor) else { return Verdict::Pass };
    let read = || {
        let namespace = array::namespace()?;
        let filled = fill(bytes, |buffer| namespace.flistxattr(directory::borrow(descriptor), held.node(), buffer))?;
        give(address, filled)
    };
    Verdict::from_result(read())
}

/// setxattr and lsetxattr.
pub(crate) fn set(call: &mut Call) -> Verdict {
    let (flags, follow) = (XattrFlags::from_bits_retain(call.args[4] as u32), call.number == 188);
    if flags.bits() & !FLAGS_KNOWN != 0 {
        return Verdict::error(OsError::INVAL);
    }
    let act = |path: ProgramPath<'_>| array::namespace()?.setxattr(path, &name(call.args[1])?, &value(call)?, flags, follow);
    let open =
        |link: &Link| array::namespace()?.fsetxattr(link.descriptor(), link.node(), &name(call.args[1])?, &value(call)?, flags);
    on_path::serve_followed(call, At::cwd(0), follow, act, open, |()| Ok(0))
}

pub(crate) fn fset(call: &mut Call) -> Verdict {
    let descriptor = call.descriptor(0);
    let Some(held) = OPEN.lookup(descriptor).filter(|_| !super::only_names(descriptor)) else { return Verdict::Pass };
    let set = || {
        let flags = XattrFlags::from_bits_retain(call.args[4] as u32);
        if flags.bits() & !FLAGS_KNOWN != 0 {
            return Err(OsError::INVAL);
        }
        let (namespace, fd) = (array::namespace()?, directory::borrow(descriptor));
        namespace.fsetxattr(fd, held.node(), &name(call.args[1])?, &value(call)?, flags).map(|()| 0)
    };
    Verdict::from_result(set())
}

/// removexattr and lremovexattr.
pub(crate) fn remove(call: &mut Call) -> Verdict {
    let follow = call.number == 197;
    let act = |path: ProgramPath<'_>| array::namespace()?.removexattr(path, &name(call.args[1])?, follow);
    let open = |link: &Link| array::namespace()?.fremovexattr(link.descriptor(), link.node(), &name(call.args[1])?);
    on_path::serve_followed(call, At::cwd(0), follow, act, open, |()| Ok(0))
}

pub(crate) fn fremove(call: &mut Call) -> Verdict {
    let descriptor = call.descriptor(0);
    let Some(held) = OPEN.lookup(descriptor).filter(|_| !super::only_names(descriptor)) else { return Verdict::Pass };
    let remove =
        || array::namespace()?.fremovexattr(directory::borrow(descriptor), held.node(), &name(call.args[1])?).map(|()| 0);
    Verdict::from_result(remove())
}
