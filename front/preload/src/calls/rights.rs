//! A thread changes its credentials (setresuid(2), capset(2), setns(2), a new user namespace): what the program has open stays open, as the kernel has it; what the
//! library keeps open beyond that, for speed, goes. What the library will need to go on it opens before: the log of names.
//!
//! The C library changes them in every thread, each of which makes the call (nptl(7)); the first one ends the keeping for all. Which of these calls takes rights away is not
//! asked: a process that changes them has nothing kept from then on.

use crate::array;
use crate::dispatch::{Call, Verdict};

/// A call that changes credentials. The kernel makes the change, and says whether it may be.
pub(crate) fn change(_: &mut Call) -> Verdict {
    end_keeping();
    Verdict::Pass
}

/// Files that the program has closed are closed, and the log of names is opened.
#[cold]
pub(super) fn end_keeping() {
    if let Ok(namespace) = array::namespace() {
        namespace.files().end_keeping_ready();
        namespace.keep_log();
    }
}
