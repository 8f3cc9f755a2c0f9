//! open and its relatives: the program gets the anchor, a real descriptor.

use super::OPEN;
use super::on_path::{self, At};
use crate::array;
use crate::dispatch::{Call, Verdict};
use crate::program;
use linux_raw_sys::general::__NR_close;
use namespace::{OFlags, Opened};
use sys::raw::syscall;
use sys::{IntoRawFd, OsError, RawFd};

/// `struct open_how` (openat2(2)).
#[derive(Clone, Copy)]
#[repr(C)]
struct How {
    flags: u64,
    mode: u64,
    resolve: u64,
}

pub(crate) fn open(call: &mut Call) -> Verdict {
    serve(call, At::cwd(0), call.args[1] as u32, call.args[2] as u32)
}

pub(crate) fn creat(call: &mut Call) -> Verdict {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC;
    serve(call, At::cwd(0), flags.bits(), call.args[1] as u32)
}

pub(crate) fn openat(call: &mut Call) -> Verdict {
    serve(call, At::directory(0, 1), call.args[2] as u32, call.args[3] as u32)
}

/// Its RESOLVE_* restrictions are not applied inside the array: names there resolve as by openat.
pub(crate) fn openat2(call: &mut Call) -> Verdict {
    match program::read::<How>(call.args[2]) {
        Ok(how) if call.args[3] >= size_of::<How>() => serve(call, At::directory(0, 1), how.flags as u32, how.mode as u32),
        // The kernel says what is wrong.
        _ => Verdict::Pass,
    }
}

fn serve(call: &Call, at: At, flags: u32, mode: u32) -> Verdict {
    on_path::serve(
        call,
        at,
        |path| array::namespace()?.open(path, OFlags::from_bits_retain(flags), mode),
        |opened| publish(opened, flags),
    )
}

/// Enters a new anchor into the table.
fn publish(opened: Opened, flags: u32) -> Result<usize, OsError> {
    let descriptor = opened.anchor.into_raw_fd();
    if OPEN.install(descriptor, OPEN.describe(opened.node, flags)) {
        Ok(descriptor as usize)
    } else {
        close(descriptor);
        Err(OsError::MFILE)
    }
}

fn close(descriptor: RawFd) {
    // SAFETY: the number was made here and nobody knows it yet.
    unsafe { syscall(__NR_close as usize, [descriptor as usize, 0, 0, 0, 0, 0]) };
}
