//! chroot: into a directory of the host it is the kernel's affair, and the array's paths are not
//! there any more; into the array it is refused.
//!
//! The kernel would make a member's directory the root. Of the files there it knows only the parts
//! that lie on that member, and neither the runtime segment nor /proc can be reached from it.

use super::mount::may;
use super::paths::{self, AT_FDCWD, Where};
use crate::array;
use crate::call::{Call, Verdict};
use crate::process;
use core::sync::atomic::{AtomicBool, Ordering};
use namespace::Reached;
use sys::OsError;
use sys::rustix::fs::stat;
use sys::rustix::thread::CapabilitySet;

/// Whether this process has another root than the one that the array's paths are meant for.
static IS_ELSEWHERE: AtomicBool = AtomicBool::new(false);

/// Whether absolute paths mean something else than when the program began, and names on the array
/// lead nowhere: open descriptors are all that is left of it.
#[inline]
pub(crate) fn is_elsewhere() -> bool {
    IS_ELSEWHERE.load(Ordering::Relaxed)
}

pub(crate) fn chroot(call: &mut Call) -> Verdict {
    if let Where::Array(path) = paths::locate(AT_FDCWD, call.args[0]) {
        array::tell();
        return match array::namespace().and_then(|namespace| namespace.directory_to_enter(path.path())) {
            Ok(Reached::Array(_)) if !may(CapabilitySet::SYS_CHROOT) => Verdict::error(OsError::PERM),
            Ok(Reached::Array(_)) => Verdict::error(OsError::OPNOTSUPP),
            Ok(Reached::Host(mut path)) => {
                path.push(0);
                enter(call, [path.as_ptr() as usize, 0, 0, 0, 0, 0])
            }
            Err(error) => Verdict::error(error),
        };
    }
    if super::links::entered(AT_FDCWD, call.args[0], true, false).is_some() {
        return Verdict::error(OsError::OPNOTSUPP);
    }
    enter(call, call.args)
}

/// Makes a call that changes the root of this process, with `args` for its arguments.
pub(super) fn enter(call: &Call, args: [usize; 6]) -> Verdict {
    let root = || stat(c"/").map(|stat| (stat.st_dev, stat.st_ino));
    let before = root();
    // SAFETY: the program's own call, or the same with a path that lives until it returns.
    let result = unsafe { sys::raw::syscall(call.number, args) };
    // A child that shares memory has a root of its own, but not this variable; it is about to
    // execute another program.
    if result == 0 && process::owns_tables() && root() != before {
        IS_ELSEWHERE.store(true, Ordering::Relaxed);
    }
    Verdict::Done(result)
}
