//! A copy of the process that begins anew: it has one thread, and memory in which other threads of
//! the original may have been in the middle of anything.
//!
//! Such a copy is made by a clone with a stack of its own, or by a fork by a guest
//! ([`crate::guest`]); a deputy ([`crate::deputy`]) is one, too. It forgets what the tables say
//! without looking into them, since a list may be half changed and a lock held by nobody, and
//! attaches to the array as a process of its own. It believes what never changes after the start:
//! the environment, the patched sites, the actions of signals.
//!
//! The copy has the original's mappings as well, and does not follow its stores to them. A child of
//! an ordinary fork is no such copy, and follows its own stores ([`crate::mappings::process`]).

use crate::calls::{OPEN, aio, directory, other_end};
use crate::{array, mappings, process, stack};
use core::sync::atomic::Ordering;

/// The calling process, seen for the first time, is such a copy.
pub(crate) fn begin() {
    if process::shares_tables() {
        sys::high_fd::leave_to_others();
    }
    #[cfg(not(test))]
    crate::runtime::renew_heap();
    forget();
    attach();
}

/// Forgets everything that others may have been changing. The heap, or the arena, is the caller's
/// own.
pub(crate) fn forget() {
    process::own_copy();
    stack::abandon();
    mappings::abandon();
    array::abandon_held();
    directory::abandon();
    aio::abandon();
    file::parked::abandon();
    other_end::abandon();
    OPEN.begin_anew();
    sys::thread::block().lane.store(0, Ordering::Relaxed);
}

/// Attaches to the array, with the descriptors and the directory that the kernel says.
pub(crate) fn attach() {
    let _room = sys::low_limit::make_room(|| !::array::runtime::is_filtered());
    sys::file_limit::refresh();
    array::start_again(crate::own::environment());
    directory::look();
}
