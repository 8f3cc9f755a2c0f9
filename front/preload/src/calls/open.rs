//! open and its relatives: the program gets the anchor, a real descriptor.

use super::descriptor::close_unheld;
use super::directory::Base;
use super::magic::Link;
use super::on_path::{self, At};
use super::paths::{self, AT_FDCWD, Asked, Where};
use super::{OPEN, directory, judge, other_end};
use crate::array;
use crate::call::{Call, Verdict};
use crate::program;
use ::array::config::normalise;
use core::cell::Cell;
use heap::vec::Vec;
use namespace::{Node, OFlags, Opened, Reached, ResolveFlags};
use sys::raw::{check, syscall};
use sys::{AsRawFd, IntoRawFd, OsError, RawFd};

/// `struct open_how` (openat2(2)).
#[derive(Clone, Copy)]
#[repr(C)]
struct How {
    flags: u64,
    mode: u64,
    resolve: u64,
}

pub(crate) fn open(call: &mut Call) -> Verdict {
    let verdict = serve(call, At::cwd(0), call.args[1] as u32, call.args[2] as u32);
    note_direct(verdict, call.args[1])
}

pub(crate) fn creat(call: &mut Call) -> Verdict {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC;
    serve(call, At::cwd(0), flags.bits(), call.args[1] as u32)
}

pub(crate) fn openat(call: &mut Call) -> Verdict {
    let verdict = serve(call, At::directory(0, 1), call.args[2] as u32, call.args[3] as u32);
    note_direct(verdict, call.args[2])
}

/// Notes if the kernel is to open a file that is read past the page cache.
fn note_direct(verdict: Verdict, flags: usize) -> Verdict {
    if flags as u32 & OFlags::DIRECT.bits() != 0 && !matches!(verdict, Verdict::Done(_)) {
        crate::mappings::lend::begin_direct();
    }
    verdict
}

pub(crate) fn openat2(call: &mut Call) -> Verdict {
    if call.args[3] < size_of::<How>() || call.args[3] > 4096 {
        // The kernel says what is wrong before it looks at anything.
        return Verdict::Pass;
    }
    let how = match program::read::<How>(call.args[2]) {
        Ok(how) => how,
        Err(error) if matches!(At::directory(0, 1).locate(call), Where::Array(_)) => return Verdict::error(error),
        Err(error) if At::directory(0, 1).link(call).is_some() => return Verdict::error(error),
        // The kernel says what is wrong.
        _ => return Verdict::Pass,
    };
    let at = At::directory(0, 1);
    let asks_root = ResolveFlags::from_bits_retain(how.resolve).contains(ResolveFlags::IN_ROOT);
    // In the host's root every path means what it means without; but links that /proc has made are
    // not followed.
    let how = match asks_root && is_root_of_host(call.descriptor(0)) {
        true => How { resolve: how.resolve & !ResolveFlags::IN_ROOT.bits() | ResolveFlags::NO_MAGICLINKS.bits(), ..how },
        false => how,
    };
    let is_rooted = ResolveFlags::from_bits_retain(how.resolve).contains(ResolveFlags::IN_ROOT);
    let link = if asks_root { None } else { at.link(call) };
    if is_rooted && !directory::is_ours(call.descriptor(0)) {
        // An absolute path, too, means what lies below that directory.
        return Verdict::Pass;
    }
    let path = match at.locate(call) {
        Where::Array(path) => path,
        // The kernel would look in a member.
        Where::Host if is_rooted => Asked::absolute(Vec::new()),
        Where::Host if link.is_some() => Asked::absolute(Vec::new()),
        Where::Host => return note_direct(Verdict::Pass, how.flags as usize),
    };
    // Flags are strict here, and the structure may grow: the kernel judges them, with a path that
    // leads nowhere.
    let empty = c"".as_ptr() as usize;
    // SAFETY: opens nothing; the structure is the program's.
    let judged = unsafe { syscall(call.number, [AT_FDCWD as usize, empty, call.args[2], call.args[3], 0, 0]) };
    if judged != -(OsError::NOENT.raw_os_error() as isize) {
        return Verdict::Done(judged);
    }
    let resolve = ResolveFlags::from_bits_retain(how.resolve);
    if link.is_none() && ResolveFlags::NO_MAGICLINKS.union(ResolveFlags::CACHED).contains(resolve) {
        return serve_but(call, at, how.flags as u32, how.mode as u32, resolve.contains(ResolveFlags::NO_MAGICLINKS));
    }
    array::tell();
    if let Err(error) = path.is_open() {
        return Verdict::error(error);
    }
    if let Some(link) = link {
        return restricted_link(call, &link, &how).unwrap_or_else(Verdict::error);
    }
    let climbs = !resolve.intersects(ResolveFlags::BENEATH | ResolveFlags::IN_ROOT | ResolveFlags::NO_XDEV) && leaves(&path);
    if climbs && resolve.contains(ResolveFlags::NO_SYMLINKS) {
        return across(call, at, &path, &how).unwrap_or_else(Verdict::error);
    }
    let opened = restricted(call, &path, &how);
    answer(call, opened, how.flags as u32)
}

/// Whether a descriptor, or AT_FDCWD, is the root directory.
fn is_root_of_host(base: RawFd) -> bool {
    // No descriptor has that number, and none is borrowed by it.
    if base == -1 {
        return false;
    }
    let identity = |stat: sys::rustix::fs::Stat| (stat.st_dev, stat.st_ino);
    let own = sys::rustix::fs::statat(directory::borrow(base), c"", sys::rustix::fs::AtFlags::EMPTY_PATH).map(identity);
    own.is_ok() && own == sys::rustix::fs::stat(c"/").map(identity)
}

/// A path without symlinks (RESOLVE_NO_SYMLINKS) that leaves the array by `..`, and may come back.
/// Each part of it is looked at where it lies: a part in the array in the array's tree, a part
/// outside by the kernel on the host.
fn across(call: &mut Call, at: At, path: &Asked, how: &How) -> Result<Verdict, OsError> {
    let (namespace, resolve) = (array::namespace()?, ResolveFlags::from_bits_retain(how.resolve));
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let (program, base) = (paths::text(call.args[1])?, Base::of(call.descriptor(0)));
    // How much of the path is the name of a directory of the array that is open, from which the
    // kernel starts.
    let is_relative = !program.starts_with(b"/") && directory::is_ours(base.descriptor);
    let mut open_bytes = if is_relative { path.text().len() - program.len() } else { 0 };
    let mut rest = path.text().to_vec();
    while let Some(climb) = way_out(&rest) {
        let inside = &rest[..climb];
        match inside.get(open_bytes..).filter(|part| open_bytes > 0 && !part.is_empty()) {
            Some(part) => drop(namespace.open_restricted(Some(base.present()), part, directory, 0, resolve)?),
            None if open_bytes > 0 => {}
            None => drop(namespace.open_restricted(None, inside, directory, 0, resolve)?),
        }
        // The host's directory above the array, by its name without symlinks: the kernel comes to
        // it from below.
        let above = [normalise(&rest[..climb + 3]).as_slice(), b"/"].concat();
        let above = sys::rustix::fs::open(above.as_slice(), directory, sys::rustix::fs::Mode::empty())?;
        let above = directory::link_target(above.as_raw_fd()).ok_or(OsError::NOENT)?;
        rest = [above.as_slice(), &rest[climb + 3..]].concat();
        open_bytes = 0;
    }
    if array::prefixes().is_some_and(|prefixes| prefixes.own(&normalise(&rest))) {
        let reached =
            namespace.open_restricted(None, &rest, OFlags::from_bits_retain(how.flags as u32), how.mode as u32, resolve)?;
        let Reached::Array(opened) = reached else { return Err(OsError::XDEV) };
        return Ok(answer(call, Ok(opened), how.flags as u32));
    }
    Ok(on_path::elsewhere(call, &[(at, rest)]))
}

/// Where each `/..` of a path begins that is a whole component.
fn climbs(path: &[u8]) -> impl Iterator<Item = usize> {
    let is_whole = |at: usize| path.get(at + 3).is_none_or(|&byte| byte == b'/');
    path.windows(3).enumerate().filter(move |&(at, part)| part == b"/.." && is_whole(at)).map(|(at, _)| at)
}

/// Where the first `/..` of a path begins that leads out of the array.
fn way_out(path: &[u8]) -> Option<usize> {
    let prefixes = array::prefixes()?;
    climbs(path).find(|&at| prefixes.own(&normalise(&path[..at])) && !prefixes.own(&normalise(&path[..at + 3])))
}

/// The kernel applies the restrictions on the first member, whose tree is the array's.
fn restricted(call: &Call, path: &Asked, how: &How) -> Result<Opened, OsError> {
    let (text, base) = (paths::text(call.args[1])?, Base::of(call.descriptor(0)));
    let resolve = ResolveFlags::from_bits_retain(how.resolve);
    let absolute = text.starts_with(b"/");
    if text.is_empty() {
        return Err(OsError::NOENT);
    }
    if absolute && resolve.contains(ResolveFlags::BENEATH) {
        return Err(OsError::XDEV);
    }
    // The way into the array leads across its border, as onto a file system that is mounted there.
    let starts_outside = absolute && !resolve.contains(ResolveFlags::IN_ROOT) || !directory::is_ours(base.descriptor);
    let is_rooted = resolve.contains(ResolveFlags::IN_ROOT);
    if resolve.contains(ResolveFlags::NO_XDEV) && (starts_outside || !is_rooted && leaves(path)) {
        return Err(OsError::XDEV);
    }
    let (flags, namespace) = (OFlags::from_bits_retain(how.flags as u32), array::namespace()?);
    let reached = if directory::is_ours(base.descriptor) && (!absolute || resolve.contains(ResolveFlags::IN_ROOT)) {
        namespace.open_restricted(Some(base.present()), &text, flags, how.mode as u32, resolve)
    } else {
        namespace.open_restricted(None, path.text(), flags, how.mode as u32, resolve)
    }?;
    match reached {
        Reached::Array(opened) => Ok(opened),
        Reached::Host(_) => Err(OsError::XDEV),
    }
}

/// Whether a path that starts in the array leads out of it by its text, be it for a moment.
fn leaves(path: &Asked) -> bool {
    let (text, prefixes) = (path.text(), array::prefixes());
    prefixes.is_some_and(|prefixes| climbs(text).any(|at| !prefixes.own(&normalise(&text[..at + 3]))))
}

/// A magic link: whether it may be followed the kernel knows, which follows it without opening what
/// it leads to.
fn restricted_link(call: &mut Call, link: &Link, how: &How) -> Result<Verdict, OsError> {
    let flags = OFlags::from_bits_retain(how.flags as u32);
    let kept = OFlags::PATH | OFlags::CLOEXEC | flags & OFlags::NOFOLLOW;
    let asked = How { flags: kept.bits().into(), mode: 0, ..*how };
    let args = [call.args[0], call.args[1], &raw const asked as usize, size_of::<How>(), 0, 0];
    // SAFETY: the path is the program's, the structure is ours; nothing is read or written through
    // the descriptor.
    let found = check(unsafe { syscall(call.number, args) })? as RawFd;
    // Not followed, it is the link that is opened: an error, but with O_PATH.
    if flags.contains(OFlags::NOFOLLOW) {
        if flags.contains(OFlags::PATH) {
            return Ok(Verdict::Done(found as isize));
        }
        close_unheld(found);
        return Err(OsError::LOOP);
    }
    close_unheld(found);
    let opened = array::namespace()?.reopen(link.descriptor(), link.node(), flags, how.mode as u32);
    Ok(answer(call, opened, flags.bits()))
}

fn serve(call: &mut Call, at: At, flags: u32, mode: u32) -> Verdict {
    let kinds = OFlags::from_bits_retain(flags);
    let is_odd =
        kinds.intersects(OFlags::TMPFILE.difference(OFlags::DIRECTORY)) || kinds.contains(OFlags::CREATE | OFlags::DIRECTORY);
    if is_odd && let Some(refusal) = judge::refusal_of_open(flags as usize, mode as usize) {
        return refusal;
    }
    // Making a file under such a name follows it too, but with O_EXCL, when anything there is an
    // error.
    let follow = !kinds.contains(OFlags::NOFOLLOW) && !kinds.contains(OFlags::CREATE | OFlags::EXCL);
    serve_opening(call, at, kinds, mode, follow, false)
}

/// Serves openat2(2), whose flags have been judged. With `no_magic`, links under /proc are not
/// followed.
fn serve_but(call: &mut Call, at: At, flags: u32, mode: u32, no_magic: bool) -> Verdict {
    let kinds = OFlags::from_bits_retain(flags);
    let follow = !kinds.contains(OFlags::NOFOLLOW) && !kinds.contains(OFlags::CREATE | OFlags::EXCL);
    serve_opening(call, at, kinds, mode, follow, no_magic)
}

fn serve_opening(call: &mut Call, at: At, kinds: OFlags, mode: u32, follow: bool, no_magic: bool) -> Verdict {
    let by_link = |link: &Link| {
        if no_magic { Err(OsError::LOOP) } else { array::namespace()?.reopen(link.descriptor(), link.node(), kinds, mode) }
    };
    let waits = Cell::new(None);
    let verdict = on_path::serve_followed(
        call,
        at,
        follow,
        |path| array::namespace()?.open(path, kinds, mode),
        by_link,
        |opened| match opened.waits {
            true => {
                waits.set(Some(opened));
                Ok(0)
            }
            false => publish(opened, kinds.bits()),
        },
    );
    match waits.take() {
        Some(opened) => answer(call, Ok(opened), kinds.bits()),
        None => verdict,
    }
}

/// Beside the O_* flags of a description: the call that opened it made the file (fcntl(2)
/// F_CREATED_QUERY).
pub(super) const MADE: u32 = 1 << 31;

/// What a call answers that has opened something. Where that is still to be waited for, the stub
/// opens it.
fn answer(call: &mut Call, opened: Result<Opened, OsError>, flags: u32) -> Verdict {
    match opened {
        Ok(opened) if opened.waits => other_end::open(call, opened.anchor, flags),
        opened => Verdict::from_result(opened.and_then(|opened| publish(opened, flags))),
    }
}

/// Enters a new anchor into the table.
fn publish(opened: Opened, flags: u32) -> Result<usize, OsError> {
    if flags & OFlags::TRUNC.bits() != 0 {
        // Mappings of a file that was cut.
        crate::mappings::fault::catch_up();
    }
    let flags = if opened.is_made { flags | MADE } else { flags & !MADE };
    enter(opened.anchor.into_raw_fd(), opened.node, flags)
}

/// Enters what a new descriptor means into the table.
pub(super) fn enter(descriptor: RawFd, node: Node, flags: u32) -> Result<usize, OsError> {
    if OPEN.install(descriptor, OPEN.describe(node, flags)) {
        Ok(descriptor as usize)
    } else {
        close_unheld(descriptor);
        Err(OsError::MFILE)
    }
}
