//! What all calls that take a path have in common: this module finds out whether the path leads
//! into the array, asks the array, and hands the call to the kernel if a symlink leads out of the
//! array.

use super::border::{self, Looks};
use super::links;
use super::magic::{self, Link};
use super::paths::{self, AT_FDCWD, Asked, Where};
use crate::array;
use crate::call::{Call, Verdict};
use crate::deputy;
use crate::shortage::Shortage;
use crate::table::ROWS;
use heap::vec::Vec;
use namespace::{ProgramPath, Reached};
use sys::raw::syscall;
use sys::{OsError, RawFd};

/// How often a path may leave the array and come back, as many symlinks as the kernel follows
/// (path_resolution(7)).
pub(crate) const LINK_COUNT_MAX: u32 = 40;

/// Which arguments are the path and the directory it is relative to.
#[derive(Clone, Copy)]
pub(crate) struct At {
    directory: Option<usize>,
    path: usize,
    /// Whether a magic link (`/proc/…/fd/N` or the like) stands for the name of what it leads to,
    /// and not for the open file.
    by_name: bool,
}

impl At {
    /// A path relative to the current directory.
    pub(crate) const fn cwd(path: usize) -> Self {
        Self { directory: None, path, by_name: false }
    }

    /// A path relative to a directory argument.
    pub(crate) const fn directory(directory: usize, path: usize) -> Self {
        Self { directory: Some(directory), path, by_name: false }
    }

    /// The same argument, in a call for which a magic link stands for the name of what it leads to
    /// (mount points are names).
    pub(crate) const fn by_name(self) -> Self {
        Self { by_name: true, ..self }
    }

    /// Which argument is the path.
    pub(crate) const fn path(self) -> usize {
        self.path
    }

    /// The descriptor of the directory that the path is relative to.
    pub(crate) fn base(self, call: &Call) -> RawFd {
        self.directory.map_or(AT_FDCWD, |index| call.descriptor(index))
    }

    /// Replaces the program's path by one that leads nowhere: it is relative to a number that is no
    /// descriptor. This needs a directory argument.
    pub(crate) fn lead_nowhere(self, args: &mut [usize; 6]) {
        args[self.path] = c"x".as_ptr() as usize;
        if let Some(index) = self.directory {
            args[index] = usize::MAX;
        }
    }

    /// Whether the path leads into the array, and to which path there.
    pub(crate) fn locate(self, call: &Call) -> Where {
        if self.by_name
            && let Some(link) = self.link(call)
            && let Ok(Some(path)) = array::namespace().and_then(|namespace| namespace.logical_path_of(link.descriptor()))
        {
            return Where::Array(Asked::known(path));
        }
        paths::locate(self.base(call), call.args[self.path])
    }

    /// Whether the path names a magic link, and not by the rule of [`At::by_name`].
    pub(crate) fn is_link(self, call: &Call) -> bool {
        !self.by_name && magic::name(self.base(call), call.args[self.path]).is_some()
    }

    /// What the path leads to, if it is a magic link to something of the array.
    pub(crate) fn link(self, call: &Call) -> Option<Link> {
        magic::at(self.base(call), call.args[self.path])
    }

    /// Replaces the program's path by an absolute host path that ends with a NUL.
    pub(crate) fn replace(self, args: &mut [usize; 6], path: &[u8]) {
        args[self.path] = path.as_ptr() as usize;
        if let Some(index) = self.directory {
            args[index] = AT_FDCWD as usize;
        }
    }
}

/// Serves a call with one path whose last component is not followed. `act` asks the array, and
/// `answer` makes the call's result from what `act` returns. The kernel serves a host path.
pub(crate) fn serve<T>(
    call: &Call,
    at: At,
    act: impl Fn(ProgramPath<'_>) -> Result<Reached<T>, OsError>,
    answer: impl FnOnce(T) -> Result<usize, OsError>,
) -> Verdict {
    // The call is about the magic link itself, which is the kernel's.
    if at.is_link(call) {
        return Verdict::Done(call.kernel());
    }
    on_name(call, at, false, act, answer, |path| elsewhere(call, &[(at, path)]))
}

/// Serves a call on a name of the array that the kernel must not make with a name outside. Where a
/// symlink of the array leads the path out, `outside` answers.
pub(super) fn serve_inside(
    call: &Call,
    at: At,
    act: impl Fn(ProgramPath<'_>) -> Result<Reached<()>, OsError>,
    outside: impl FnOnce() -> Verdict,
) -> Verdict {
    on_name(call, at, false, act, |()| Ok(0), |_| outside())
}

/// Serves a call that follows the last component if `follow`. If the path is a magic link to
/// something of the array, `open` asks the open file. Otherwise as [`serve`].
pub(crate) fn serve_followed<T>(
    call: &Call,
    at: At,
    follow: bool,
    act: impl Fn(ProgramPath<'_>) -> Result<Reached<T>, OsError>,
    open: impl FnOnce(&Link) -> Result<T, OsError>,
    answer: impl Fn(T) -> Result<usize, OsError>,
) -> Verdict {
    if !follow {
        return serve(call, at, act, answer);
    }
    if let Some(link) = at.link(call) {
        array::tell();
        return Verdict::from_result(open(&link).and_then(answer));
    }
    on_name(call, at, true, act, &answer, |path| match magic::at_host(&path) {
        Some(link) => Verdict::from_result(open(&link).and_then(&answer)),
        None => elsewhere(call, &[(at, path)]),
    })
}

fn on_name<T>(
    call: &Call,
    at: At,
    follow: bool,
    act: impl Fn(ProgramPath<'_>) -> Result<Reached<T>, OsError>,
    answer: impl FnOnce(T) -> Result<usize, OsError>,
    led_out: impl FnOnce(Vec<u8>) -> Verdict,
) -> Verdict {
    let Where::Array(mut path) = at.locate(call) else { return Verdict::Pass };
    array::tell();
    let shortage = Shortage::begin();
    for _ in 0..LINK_COUNT_MAX {
        match act(path.path()) {
            Ok(Reached::Array(value)) => return Verdict::from_result(answer(value)),
            Ok(Reached::Host(host)) if follow && magic::names(&host) => return led_out(host),
            // A symlink may have led out of the array and back into it, by way of /proc.
            Ok(Reached::Host(host)) => match links::entered_again(&host, follow) {
                Some(again) => match links::open_behind(&host).filter(|_| follow) {
                    // What is open is meant, whatever it is called by now.
                    Some(open) => return led_out(open.link().to_vec()),
                    None => path = Asked::absolute(again),
                },
                None => return shortage.refusal().unwrap_or_else(|| led_out(host)),
            },
            Err(error) => return Verdict::error(error),
        }
    }
    Verdict::error(OsError::LOOP)
}

/// Serves a call with two paths. If only one of them leads into the array, the call fails with
/// EXDEV, as between two file systems.
pub(crate) fn serve_two(
    call: &Call,
    [from, to]: [At; 2],
    looks: Looks,
    act: impl FnOnce(ProgramPath<'_>, ProgramPath<'_>) -> Result<Reached<(), (Vec<u8>, Vec<u8>)>, OsError>,
) -> Verdict {
    let mut places = (from.locate(call), to.locate(call));
    let shortage = Shortage::begin();
    match places {
        (Where::Host, Where::Host) => return Verdict::Pass,
        (Where::Host, _) => places.0 = entered(call, from),
        (_, Where::Host) => places.1 = entered(call, to),
        _ => {}
    }
    if let Some(refusal) = shortage.refusal() {
        return refusal;
    }
    array::tell();
    match places {
        (Where::Array(one), Where::Array(two)) => match act(one.path(), two.path()) {
            Ok(Reached::Array(())) => Verdict::Done(0),
            // A symlink has led out of the array and another back into it. The library does not
            // follow that: on the host both paths would lead to one member's backing files.
            Ok(Reached::Host((one, two))) if [&one, &two].iter().any(|path| links::entered_again(path, false).is_some()) => {
                Verdict::error(OsError::XDEV)
            }
            Ok(Reached::Host((one, two))) => elsewhere(call, &[(from, one), (to, two)]),
            Err(OsError::XDEV) => Verdict::error(border::error(call, [from, to], looks)),
            Err(error) => Verdict::error(error),
        },
        // A symlink of the array that linkat(2) follows may lead out: then both are the host's.
        (Where::Array(one), Where::Host) if looks == (Looks::Link { follow: true }) => match led_out(&one) {
            Some(one) => elsewhere(call, &[(from, one)]),
            None => Verdict::error(border::error(call, [from, to], looks)),
        },
        // One path is the host's. A path that cannot be read counts as the host's too.
        _ => Verdict::error(array::namespace().err().unwrap_or_else(|| border::error(call, [from, to], looks))),
    }
}

/// Returns the path of the host to which a symlink at the end of a path of the array leads, if that
/// does not lead into the array again.
fn led_out(asked: &Asked) -> Option<Vec<u8>> {
    match array::namespace().ok()?.look_at(asked.path(), true) {
        Ok(Reached::Host(host)) if !magic::names(&host) && links::entered_again(&host, true).is_none() => Some(host),
        _ => None,
    }
}

/// Whether a path of the host leads into the array by a symlink, and to which path there.
fn entered(call: &Call, at: At) -> Where {
    match links::entered_by(call, &ROWS[call.number], at.base(call), at.path()) {
        Some(mut path) => {
            // The path ends with a NUL, which is not part of it.
            path.pop();
            Where::Array(Asked::absolute(path))
        }
        None => Where::Host,
    }
}

/// The kernel's answer for paths that symlinks of the array led out to.
pub(super) fn elsewhere(call: &Call, paths: &[(At, Vec<u8>)]) -> Verdict {
    let mut args = call.args;
    let mut terminated: Vec<Vec<u8>> = paths.iter().map(|(_, path)| [path.as_slice(), b"\0"].concat()).collect();
    for ((at, _), path) in paths.iter().zip(&terminated) {
        at.replace(&mut args, path);
    }
    if deputy::is_active() {
        // The kernel must store its results into the guest's memory, so the guest makes the call.
        // The guest sees the deputy's memory with the paths, and nothing tells when it has read
        // them: they are never freed.
        terminated.drain(..).for_each(|path| _ = path.leak());
        return Verdict::PassWith { number: call.number, args };
    }
    // SAFETY: the program's call with paths of ours, which live until it returns.
    Verdict::Done(unsafe { syscall(call.number, args) })
}
