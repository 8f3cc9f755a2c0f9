//! open and its relatives: the program gets the anchor, a real descriptor.

use super::node::{Held, Node};
use super::on_path::{self, At};
use super::paths::{self, AT_FDCWD, Where};
use super::{OPEN, directory};
use crate::array;
use crate::dispatch::{Call, Verdict};
use crate::program;
use linux_raw_sys::general::__NR_close;
use namespace::{OFlags, Opened, Reached, ResolveFlags};
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

pub(crate) fn openat2(call: &mut Call) -> Verdict {
    let how = match program::read::<How>(call.args[2]) {
        Ok(how) if call.args[3] >= size_of::<How>() => how,
        Err(error) if matches!(At::directory(0, 1).locate(call), Where::Array(_)) => return Verdict::error(error),
        // The kernel says what is wrong.
        _ => return Verdict::Pass,
    };
    let at = At::directory(0, 1);
    let Where::Array(path) = at.locate(call) else { return Verdict::Pass };
    // Flags are strict here, and the structure may grow: the kernel judges them, with a path that leads nowhere.
    let empty = c"".as_ptr() as usize;
    // SAFETY: opens nothing; the structure is the program's.
    let judged = unsafe { syscall(call.number, [AT_FDCWD as usize, empty, call.args[2], call.args[3], 0, 0]) };
    if judged != -(OsError::NOENT.raw_os_error() as isize) {
        return Verdict::Done(judged);
    }
    if how.resolve == 0 {
        return serve(call, at, how.flags as u32, how.mode as u32);
    }
    array::tell();
    Verdict::from_result(restricted(call, &path, &how).and_then(|opened| publish(opened, how.flags as u32)))
}

/// The kernel applies the restrictions on the first member, whose tree is the array's.
fn restricted(call: &Call, path: &[u8], how: &How) -> Result<Opened, OsError> {
    let (text, base) = (paths::text(call.args[1])?, call.descriptor(0));
    let resolve = ResolveFlags::from_bits_retain(how.resolve);
    let absolute = text.starts_with(b"/");
    let process = absolute && paths::descriptor_path(&text).is_some();
    if process && resolve.intersects(ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS) {
        return Err(OsError::LOOP);
    }
    if absolute && resolve.contains(ResolveFlags::BENEATH) {
        return Err(OsError::XDEV);
    }
    let (flags, namespace) = (OFlags::from_bits_retain(how.flags as u32), array::namespace()?);
    let reached = if directory::is_ours(base) && (!absolute || resolve.contains(ResolveFlags::IN_ROOT)) {
        namespace.open_restricted(Some(directory::borrow(base)), &text, flags, how.mode as u32, resolve)
    } else {
        namespace.open_restricted(None, path, flags, how.mode as u32, resolve)
    }?;
    match reached {
        Reached::Array(opened) => Ok(opened),
        Reached::Host(_) => Err(OsError::XDEV),
    }
}

fn serve(call: &Call, at: At, flags: u32, mode: u32) -> Verdict {
    if let Some((descriptor, held)) = nameless(call.args[at.path()])
        && let Node::File(file) = held.node()
    {
        let flags = OFlags::from_bits_retain(flags);
        if flags.intersects(OFlags::PATH | OFlags::NOFOLLOW) {
            return Verdict::Pass;
        }
        let reopened = || array::namespace()?.reopen(directory::borrow(descriptor), file, flags);
        return Verdict::from_result(reopened().and_then(|opened| publish(opened, flags.bits())));
    }
    on_path::serve(
        call,
        at,
        |path| array::namespace()?.open(path, OFlags::from_bits_retain(flags), mode),
        |opened| publish(opened, flags),
    )
}

/// The open file without a name that a path under /proc or /dev leads to.
fn nameless(address: usize) -> Option<(RawFd, Held)> {
    let start = program::read::<[u8; 5]>(address).ok()?;
    if !matches!(&start, b"/proc" | b"/dev/") {
        return None;
    }
    let descriptor = paths::descriptor_path(&paths::text(address).ok()?)?;
    let held = OPEN.lookup(descriptor)?;
    let found = matches!(held.node(), Node::File(file) if file.name() != file::Name::Has);
    found.then_some((descriptor, held))
}

/// Enters a new anchor into the table.
fn publish(opened: Opened, flags: u32) -> Result<usize, OsError> {
    if flags & OFlags::TRUNC.bits() != 0 {
        // Mappings of a file that was cut.
        crate::mappings::fault::catch_up();
    }
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
