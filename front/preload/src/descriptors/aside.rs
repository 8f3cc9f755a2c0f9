//! What an open file keeps for programs with fewer rights ([`crate::exec::keep_aside`]).

use core::sync::atomic::{AtomicI32, Ordering};
use sys::{FromRawFd, OwnedFd, RawFd, high_fd};

/// Says that an open file keeps nothing.
pub(crate) const NOTHING_ASIDE: RawFd = -1;

/// The open file is not open any more: what it has kept is closed. That is a descriptor of a mount,
/// and the close waits for who serves the mount.
pub(super) fn let_go(aside: &AtomicI32) {
    if aside.load(Ordering::Relaxed) == NOTHING_ASIDE {
        return;
    }
    let kept = aside.swap(NOTHING_ASIDE, Ordering::AcqRel);
    if kept != NOTHING_ASIDE && high_fd::is_raised(kept) {
        high_fd::forget(kept);
        // SAFETY: the number was given to the open file alone, whose last user is here.
        drop(unsafe { OwnedFd::from_raw_fd(kept) });
    }
}
