//! A process leaves its mount namespace (unshare(2), setns(2), clone(2)).
//!
//! The members stay open where they were opened: in the mounts of the namespace that the process
//! leaves. When the last process has left a namespace, that ends, and the kernel tells no whole path
//! any more of what is open there. The library would take the array's files and directories for
//! ones of the host, and calls on them would reach one member alone.
//!
//! Most namespaces outlive whoever leaves them. That of `cxlraid run --mount` ends with its last
//! process. So whoever leaves it keeps it by a descriptor. The descriptor stays over exec, since
//! what is open may stay open in the next program too, which finds the descriptor among those that
//! it inherits ([`is_kept`]). A program that the library does not serve sees a descriptor more, with
//! a high number. Who can have no descriptor for that does not leave.

use super::directory::link_target_of_any;
use crate::{own, process};
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering};
use heap::vec::Vec;
use sys::rustix::fs::{CWD, Mode, OFlags, openat, readlinkat};
use sys::rustix::io::{FdFlags, fcntl_setfd};
use sys::{AsRawFd as _, IntoRawFd as _, OsError, RawFd, Result, high_fd};

/// The setting by which programs know that their mount namespace may end before them.
const SETTING: &[u8] = b"CXLRAID_APART";
/// The beginning of the link of a descriptor of a mount namespace.
const KIND: &[u8] = b"mnt:[";

/// The mount namespace of the calling thread.
const PRESENT: &CStr = c"/proc/thread-self/ns/mnt";

/// This is true if the program keeps the namespace in which it has attached to the array. Members are
/// opened in no other.
static KEEPS: AtomicBool = AtomicBool::new(false);

/// Tells whether this program's mount namespace may end before the program. Without `cxlraid run
/// --mount` this is false, and nothing here is done.
pub(crate) fn may_end() -> bool {
    own::environment().get(SETTING).is_some()
}

/// To be called before the calling process, or a child that it is about to make, goes to another
/// mount namespace: keeps the present one.
///
/// # Errors
/// Those of open(2), as `MFILE`. Then the call that would leave the namespace is not to be made.
#[cold]
pub(crate) fn keep() -> Result<()> {
    // A guest's descriptors are its own, and it keeps no note of them.
    let is_guest = process::may_be_guest() && process::is_guest();
    if !may_end() || !is_guest && KEEPS.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    let opened = openat(CWD, PRESENT, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let kept = opened.and_then(high_fd::raise).and_then(|kept| {
        // The next program would not know a low one, and might close it.
        if (kept.as_raw_fd() as u32) < high_fd::BASE_MIN {
            high_fd::forget(kept.as_raw_fd());
            return Err(OsError::MFILE);
        }
        fcntl_setfd(&kept, FdFlags::empty()).map(|()| kept)
    });
    match kept {
        Ok(kept) => {
            if is_guest {
                high_fd::forget(kept.as_raw_fd());
            }
            let _ = kept.into_raw_fd();
            Ok(())
        }
        Err(error) => {
            KEEPS.store(false, Ordering::Relaxed);
            Err(error)
        }
    }
}

/// Tells whether a descriptor that this program has inherited keeps a namespace ([`keep`]).
pub(crate) fn is_kept(descriptor: RawFd) -> bool {
    let link = if may_end() { link_target_of_any(descriptor) } else { None };
    let Some(link) = link.filter(|link| link.starts_with(KIND)) else { return false };
    high_fd::keep(descriptor);
    if readlinkat(CWD, PRESENT, Vec::new()).is_ok_and(|present| present.as_bytes() == link) {
        // One for each exec would be too many.
        KEEPS.store(true, Ordering::Relaxed);
    }
    true
}
