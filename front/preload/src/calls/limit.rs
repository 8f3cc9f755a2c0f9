//! RLIMIT_FSIZE: a program that makes a file grow past the limit gets EFBIG, and SIGXFSZ with it
//! (setrlimit(2)). RLIMIT_NOFILE, where it is set below the library's own descriptors.

use crate::call::{Call, Verdict};
use crate::uapi::SIGXFSZ;
use crate::{filter, process, signals};
use linux_raw_sys::general::{__NR_setrlimit, RLIMIT_FSIZE, RLIMIT_NOFILE};
use sys::OsError;

/// setrlimit, prlimit64: a new limit is remembered, but not of a child that shares its parent's
/// memory: its limit is its own.
pub(crate) fn set(call: &mut Call) -> Verdict {
    let by_pid = call.number != __NR_setrlimit as usize;
    let limited = call.args[usize::from(by_pid)] as u32;
    if !matches!(limited, RLIMIT_FSIZE | RLIMIT_NOFILE) || by_pid && call.args[2] == 0 {
        return Verdict::Pass;
    }
    let result = call.kernel();
    // Also of a call that fails: the limit is set before the old one is stored.
    if process::owns_tables() && process::has_memory() {
        if limited == RLIMIT_FSIZE {
            sys::file_limit::refresh();
        } else {
            filter::follow_limit();
            sys::low_limit::refresh(|| !::array::runtime::is_filtered());
        }
    }
    Verdict::Done(result)
}

/// The result of a call that may have met the limit.
#[inline]
pub(crate) fn answer(result: Result<usize, OsError>) -> Verdict {
    notice(Verdict::from_result(result))
}

/// Sends the signal if the limit is what refused the call.
#[inline]
pub(crate) fn notice(verdict: Verdict) -> Verdict {
    if verdict == Verdict::error(OsError::FBIG) {
        exceeded();
    }
    verdict
}

/// A call has met the limit, whatever it answers.
#[cold]
pub(super) fn exceeded() {
    if sys::file_limit::is_set() {
        signals::raise(SIGXFSZ);
    }
}
