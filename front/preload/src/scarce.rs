//! Calls of a program that has taken every number which RLIMIT_NOFILE allows.
//!
//! A call that returns no descriptor does not fail with EMFILE on a plain directory. The library opens
//! the way to a name (O_PATH), on each member. Where the kernel refuses it a number for that, the call
//! has changed nothing, or has undone what it had changed. Then the library gives up what it keeps open
//! for later, and the call is served once more. If there is still no number, a deputy
//! ([`crate::deputy`]) serves it with a descriptor table of its own: a copy of the program's, in which
//! the deputy closes everything but what the call names. No number is reserved for that, so no thread
//! of the program can take one away in between.
//!
//! A path of the host may lead into the array by a symlink, and to find out takes a number, too. Where
//! there is none, the call is refused rather than left to the kernel, which would act on what the host
//! has there, or on one member ([`crate::shortage::Shortage`]). Then it is served as above.

use crate::arena::{self, Arena};
use crate::call::{Call, Verdict};
use crate::calls::{directory, rights};
use crate::shortage::{NO_NUMBER, can_be_served_apart};
use crate::{array, deputy, process};
use linux_raw_sys::general as nr;

/// Serves a call for which no number was free. `once` serves it as any call.
#[cold]
#[inline(never)]
pub(crate) fn serve(call: &mut Call, once: fn(&mut Call) -> Verdict) -> Verdict {
    let refusal = Verdict::Done(NO_NUMBER);
    let is_served = can_be_served_apart(call.number) && !links_a_descriptor(call);
    if !is_served || deputy::is_active() || arena::is_active() || rights::are_calls_filtered() {
        return refusal;
    }
    if process::owns_tables() && array::namespace().is_ok_and(|namespace| namespace.files().free_descriptors()) {
        call.then = None;
        match once(call) {
            verdict if verdict == refusal => {}
            verdict => return verdict,
        }
    }
    let Some(_arena) = Arena::enter() else { return refusal };
    (call.then, call.gives_up) = (None, false);
    let verdict = deputy::serve_apart(call);
    if call.number == nr::__NR_chdir as usize && verdict == Verdict::Done(0) && process::owns_tables() {
        // The deputy has moved the process, too.
        directory::look();
    }
    verdict
}

/// Tells whether a call gives a name to what a descriptor is open on. A deputy cannot find a file that
/// has none (O_TMPFILE).
fn links_a_descriptor(call: &Call) -> bool {
    call.number == nr::__NR_linkat as usize && call.args[4] as u32 & (nr::AT_EMPTY_PATH | nr::AT_SYMLINK_FOLLOW) != 0
}
