//! The frame of every call that takes a path: is it the array's, what does the array say, and what if a symlink leads out of it.

use super::paths::{self, AT_FDCWD, Where};
use crate::array;
use crate::deputy;
use crate::dispatch::{Call, Verdict};
use heap::vec::Vec;
use namespace::Reached;
use sys::raw::syscall;
use sys::{OsError, RawFd};

/// Which arguments are the path and the directory it is relative to.
#[derive(Clone, Copy)]
pub(crate) struct At {
    directory: Option<usize>,
    path: usize,
}

impl At {
    /// A path relative to the current directory.
    pub(crate) const fn cwd(path: usize) -> Self {
        Self { directory: None, path }
    }

    /// A path relative to a directory argument.
    pub(crate) const fn directory(directory: usize, path: usize) -> Self {
        Self { directory: Some(directory), path }
    }

    /// Which argument is the path.
    pub(crate) const fn path(self) -> usize {
        self.path
    }

    fn base(self, call: &Call) -> RawFd {
        self.directory.map_or(AT_FDCWD, |index| call.descriptor(index))
    }

    /// What the kernel would say of a path it cannot read.
    fn refusal(self, call: &Call) -> Option<OsError> {
        paths::text(call.args[self.path]).err()
    }

    /// What the path means.
    pub(crate) fn locate(self, call: &Call) -> Where {
        paths::locate(self.base(call), call.args[self.path])
    }

    /// Puts a host path in the place of the program's.
    fn replace(self, args: &mut [usize; 6], path: &[u8]) {
        args[self.path] = path.as_ptr() as usize;
        if let Some(index) = self.directory {
            args[index] = AT_FDCWD as usize;
        }
    }
}

/// Serves a call with one path: `act` asks the array, `answer` makes the result of what it said. A host path goes to the kernel.
pub(crate) fn serve<T>(
    call: &Call,
    at: At,
    act: impl FnOnce(&[u8]) -> Result<Reached<T>, OsError>,
    answer: impl FnOnce(T) -> Result<usize, OsError>,
) -> Verdict {
    let Where::Array(path) = at.locate(call) else { return Verdict::Pass };
    array::tell();
    match act(&path) {
        Ok(Reached::Array(value)) => Verdict::from_result(answer(value)),
        Ok(Reached::Host(path)) => elsewhere(call, &[(at, path)]),
        Err(error) => Verdict::error(error),
    }
}

/// Serves a call with two paths. Across the array's border it is EXDEV, as between two file systems.
pub(crate) fn serve_two(
    call: &Call,
    [from, to]: [At; 2],
    act: impl FnOnce(&[u8], &[u8]) -> Result<Reached<(), (Vec<u8>, Vec<u8>)>, OsError>,
) -> Verdict {
    let places = (from.locate(call), to.locate(call));
    if matches!(places, (Where::Host, Where::Host)) {
        return Verdict::Pass;
    }
    array::tell();
    match places {
        (Where::Array(one), Where::Array(two)) => match act(&one, &two) {
            Ok(Reached::Array(())) => Verdict::Done(0),
            Ok(Reached::Host((one, two))) => elsewhere(call, &[(from, one), (to, two)]),
            Err(error) => Verdict::error(error),
        },
        // A path that cannot be read counts as the host's.
        _ => {
            let refusal = from.refusal(call).or_else(|| to.refusal(call)).or_else(|| array::namespace().err());
            Verdict::error(refusal.unwrap_or(OsError::XDEV))
        }
    }
}

/// The kernel's answer for paths that symlinks of the array led out to.
fn elsewhere(call: &Call, paths: &[(At, Vec<u8>)]) -> Verdict {
    let mut args = call.args;
    let mut terminated: Vec<Vec<u8>> = paths.iter().map(|(_, path)| [path.as_slice(), b"\0"].concat()).collect();
    for ((at, _), path) in paths.iter().zip(&terminated) {
        at.replace(&mut args, path);
    }
    if deputy::is_active() {
        // What the kernel stores, it is to store into the guest's memory, which sees the paths.
        terminated.drain(..).for_each(|path| _ = path.leak());
        return Verdict::PassWith { number: call.number, args };
    }
    // SAFETY: the program's call with paths of ours, which live until it returns.
    Verdict::Done(unsafe { syscall(call.number, args) })
}
