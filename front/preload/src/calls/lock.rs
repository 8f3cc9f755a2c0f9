//! Record locks (fcntl(2) F_SETLK, F_OFD_SETLK and their like): the kernel keeps them on the anchor.
//!
//! What is told relative to the position or the end of the file is made absolute first, since the anchor knows neither. A lock to the
//! end of all offsets leaves the last byte alone, by which texts are held (`namespace::hold_text`).

use super::OPEN;
use super::node::Node;
use crate::dispatch::{Call, Verdict};
use crate::program;
use linux_raw_sys::general::{F_GETLK, F_OFD_GETLK, F_UNLCK};
use namespace::TEXT_OFFSET;
use sys::OsError;

/// `struct flock`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Record {
    kind: i16,
    whence: i16,
    start: i64,
    length: i64,
    process: i32,
}

const _: () = assert!(size_of::<Record>() == 32);

pub(crate) fn serve(call: &mut Call) -> Verdict {
    let descriptor = call.descriptor(0);
    let Some(held) = OPEN.lookup(descriptor) else { return Verdict::Pass };
    let (Node::File(file), Ok(wanted)) = (held.node(), program::read::<Record>(call.args[2])) else { return Verdict::Pass };
    let base = match wanted.whence {
        0 => Ok(0),
        1 => held.with_position(descriptor, file, |position| Ok(*position)),
        2 => Ok(file.settled_size()),
        _ => return Verdict::Pass,
    };
    let start = base.and_then(|base| (base as i64).checked_add(wanted.start).ok_or(OsError::OVERFLOW));
    let start = match start {
        Ok(start) => start,
        Err(error) => return Verdict::error(error),
    };
    let mut record = Record { whence: 0, start, ..wanted };
    if record.length == 0 && (0..TEXT_OFFSET).contains(&start) {
        record.length = TEXT_OFFSET - start;
    }
    // SAFETY: the scratch words have the record's size, and any alignment it needs.
    unsafe { call.scratch.as_mut_ptr().cast::<Record>().write(record) };
    let [_, command, ..] = call.args;
    let args = [call.args[0], command, call.scratch.as_ptr() as usize, 0, 0, 0];
    if matches!(command as u32, F_GETLK | F_OFD_GETLK) {
        call.then = Some(tell);
    }
    Verdict::PassWith { number: call.number, args }
}

/// What F_GETLK found goes to the program. Without a conflict only the type changes.
fn tell(call: &mut Call) -> isize {
    if call.result < 0 {
        return call.result;
    }
    // SAFETY: the record put there by `serve`, in which the kernel has answered.
    let mut found = unsafe { call.scratch.as_ptr().cast::<Record>().read() };
    let written = if found.kind == F_UNLCK as i16 {
        program::write(call.args[2], &found.kind)
    } else {
        if found.start.checked_add(found.length) == Some(TEXT_OFFSET) {
            found.length = 0;
        }
        program::write(call.args[2], &found)
    };
    written.map_or_else(|error| -(error.raw_os_error() as isize), |()| call.result)
}
