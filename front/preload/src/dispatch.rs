//! From the entry stub to the function that serves a call, and back.
//!
//! A served call is a function `fn(&mut Call) -> Verdict` (`calls::handler` names one per row of
//! the table). It runs inside the library: no handler of the program interrupts it, and it must not
//! block in the kernel on the program's behalf; a call that may block is left to the program
//! ([`Verdict::Pass`]) or made by the stub ([`Verdict::PassWith`]).

use crate::call::{Call, DONE, PASS, RUN, Verdict};
use crate::calls;
use crate::counts;
use crate::coverage;
use crate::descriptors::{Moment, Presence};
use crate::guest;
use crate::mappings;
use crate::process;
use crate::scarce;
use crate::shortage::NO_NUMBER;
use crate::signals::{self, alternate};
use crate::stack;
use crate::table::{ROWS, Row, Way, moves_bytes};
use crate::thread;
use core::sync::atomic::{Ordering, compiler_fence};
use linux_raw_sys::general as nr;
use sys::high_fd;

/// A buffer of the program is not there; or not yet: it may be a mapping of a file that has grown.
const FAULT: isize = -(sys::OsError::FAULT.raw_os_error() as isize);

/// What the entry stub calls first. Returns [`PASS`], [`DONE`] or [`RUN`].
pub(crate) unsafe extern "C" fn enter(call: &mut Call) -> u32 {
    (call.unblock, call.result, call.then, call.gives_up) = (0, call.number as isize, None, false);
    process::take_back();
    let verdict = inside(call, serve);
    match verdict {
        Verdict::Pass => PASS,
        Verdict::Done(result) => {
            call.result = result;
            DONE
        }
        Verdict::PassWith { number, args } => {
            call.instead[0] = number;
            call.instead[1..].copy_from_slice(&args);
            RUN
        }
    }
}

/// What the entry stub calls behind the call of a `PassWith` that has something to do after it.
/// Returns [`RUN`] if there is another call to make in `instead`, with something to do after that,
/// and [`DONE`] otherwise.
pub(crate) unsafe extern "C" fn finish(call: &mut Call) -> u32 {
    call.unblock = 0;
    call.gives_up = false;
    if let Some(then) = call.then.take() {
        let result = inside(call, then);
        // The call was made already, and its number means something else by now: the call cannot be
        // served anew.
        call.result = if result == REPLACED { -(sys::OsError::BADF.raw_os_error() as isize) } else { result };
    }
    if call.then.is_some() { RUN } else { DONE }
}

/// As [`enter`], for a call that is made on the thread's alternate stack.
pub(crate) unsafe extern "C" fn enter_from_alternate(call: &mut Call) -> u32 {
    let stack = alternate::put_aside();
    // SAFETY: the caller's promise.
    let verdict = unsafe { enter(call) };
    alternate::give_back(stack, call);
    verdict
}

/// As [`finish`], for a call that was made on the thread's alternate stack.
pub(crate) unsafe extern "C" fn finish_from_alternate(call: &mut Call) -> u32 {
    let stack = alternate::put_aside();
    // SAFETY: the caller's promise.
    let verdict = unsafe { finish(call) };
    alternate::give_back(stack, call);
    verdict
}

/// Runs `work` as code no handler of the program interrupts.
#[inline(always)]
fn inside<R>(call: &mut Call, work: impl FnOnce(&mut Call) -> R) -> R {
    let depth = thread::inside();
    depth.store(depth.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    let result = work(call);
    compiler_fence(Ordering::SeqCst);
    depth.store(depth.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    // From here on a signal finds the thread outside; one that came before is waiting with the mask
    // raised.
    signals::leave(call);
    result
}

/// What [`namespace::FOREIGN_MOUNT`] looks like as a result.
const FOREIGN_MOUNT: isize = -(namespace::FOREIGN_MOUNT.raw_os_error() as isize);

/// What [`calls::node::REPLACED`] looks like as a result.
const REPLACED: isize = -(calls::node::REPLACED.raw_os_error() as isize);

/// Serves a call. For `enter`, and for handlers that carry out another call.
#[inline]
pub(crate) fn serve(call: &mut Call) -> Verdict {
    loop {
        let verdict = match serve_row(call) {
            Verdict::Done(NO_NUMBER) => scarce::serve(call, serve_row),
            verdict => verdict,
        };
        match verdict {
            Verdict::Done(REPLACED) => {}
            Verdict::Done(FOREIGN_MOUNT) => {
                crate::array::tell_foreign_mount();
                return Verdict::error(sys::OsError::IO);
            }
            verdict => return verdict,
        }
    }
}

#[inline(always)]
fn serve_row(call: &mut Call) -> Verdict {
    // The filter looked at 16 bits only; the kernel looks at 32.
    let number = call.number as u32 as usize;
    let Some(row) = ROWS.get(number) else { return Verdict::Pass };
    call.number = number;
    process::notice_fork();
    row.cut(&mut call.args);
    if row.descriptors != 0 && names_ours(call, number, row) {
        return Verdict::error(sys::OsError::BADF);
    }
    if process::may_be_guest() && process::is_guest() {
        return guest::serve(call, row);
    }
    stack::list();
    if counts::is_due() {
        return serve_due(call, number, row);
    }
    serve_here(call, number, row)
}

/// Serves a call that is timed, or a thread's first.
#[cold]
#[inline(never)]
fn serve_due(call: &mut Call, number: usize, row: &Row) -> Verdict {
    coverage::count(number);
    if counts::is_ready() { serve_timed(call, number, row) } else { counts::apart(|| serve_timed(call, number, row)) }
}

#[inline(never)]
fn serve_timed(call: &mut Call, number: usize, row: &Row) -> Verdict {
    let timed = counts::begin(coverage::is_on());
    let verdict = serve_here(call, number, row);
    if let Some(moved) = counts::end(&timed, call, verdict) {
        calls::moved::note(&timed, call, &moved);
    }
    verdict
}

#[inline(always)]
fn serve_here(call: &mut Call, number: usize, row: &Row) -> Verdict {
    mappings::fault::forget();
    let moment = calls::OPEN.moment();
    let verdict = match decide(call, number, row) {
        Verdict::Done(FAULT) => try_again(call, number, row),
        Verdict::Pass if row.descriptors != 0 && row.paths == 0 => leave_to_kernel(call, number, row, moment),
        verdict => verdict,
    };
    mappings::fault::notice_members();
    mappings::lend::serve(call, verdict)
}

/// Whether an argument of a call is the number of a descriptor of the library's own, which the
/// program never got.
#[inline]
fn names_ours(call: &Call, number: usize, row: &Row) -> bool {
    let mut indices = row.descriptors;
    while indices != 0 && !high_fd::is_raised(call.descriptor(indices.trailing_zeros() as usize)) {
        indices &= indices - 1;
    }
    if indices == 0 {
        return false;
    }
    match number as u32 {
        // close_range leaves those numbers out itself.
        nr::__NR_close_range => false,
        // An anonymous mapping has no file, whatever the number.
        nr::__NR_mmap => call.args[3] as u32 & nr::MAP_ANONYMOUS == 0,
        _ => true,
    }
}

/// A call that no descriptor of ours made the library's affair: the program's instruction is to
/// run. Between the look and the instruction another thread may make a number ours that was closed
/// (dup2), and the kernel would act on the anchor. So a call with a number that was ours and is
/// closed gets the kernel's answer to a number that cannot be open.
fn leave_to_kernel(call: &Call, number: usize, row: &Row, moment: Moment) -> Verdict {
    let mut args = call.args;
    for index in (0..args.len()).filter(|index| row.descriptors >> index & 1 == 1) {
        let may_be_closed = match (number as u32, index) {
            // What dup2 makes of a closed number is its purpose.
            (nr::__NR_dup2 | nr::__NR_dup3, 1) => true,
            (nr::__NR_mmap, _) => call.args[3] as u32 & nr::MAP_ANONYMOUS != 0,
            _ => false,
        };
        if may_be_closed {
            continue;
        }
        match calls::OPEN.presence(call.descriptor(index), moment) {
            Presence::Unchanged => {}
            Presence::Changed => return Verdict::Done(REPLACED),
            Presence::Closed => args[index] = usize::MAX,
        }
    }
    if args == call.args {
        return Verdict::Pass;
    }
    if number as u32 == nr::__NR_dup3 {
        // Whether they are equal the kernel looks at first.
        if call.args[0] as u32 == call.args[1] as u32 {
            args[1] = args[0];
        } else if args[0] as u32 == args[1] as u32 {
            args[0] = usize::MAX - 1;
        }
    }
    // SAFETY: the program's call, which fails: one of its descriptors is no number that can be
    // open.
    Verdict::Done(unsafe { sys::raw::syscall(call.number, args) })
}

#[inline]
fn decide(call: &mut Call, number: usize, row: &Row) -> Verdict {
    match row.way {
        Way::Serve | Way::Observe => match calls::handler(number)(call) {
            Verdict::Pass if row.paths != 0 && row.way == Way::Serve => calls::links::serve(call),
            verdict => verdict,
        },
        Way::Refuse => Verdict::error(sys::OsError::NOSYS),
        Way::Pass => Verdict::Pass,
    }
}

/// The most times that a call is tried again of which nobody knows what address has faulted.
const GUESS_COUNT: usize = 32;
/// The most times that any call is tried again. So many tries take seconds.
const TRY_COUNT: usize = 1 << 16;

/// A call found that a buffer of the program was not there. The call is tried again if the buffer
/// is a mapping of ours that is there now: its file has grown, its member was lost, stores were
/// kept out for a moment, or it had to be asked for. Before each try that access is found possible,
/// so if it faults again, another thread has changed the mapping in between.
#[cold]
fn try_again(call: &mut Call, number: usize, row: &Row) -> Verdict {
    let lent = mappings::lend::Lent::to(call);
    let mut guesses_left = GUESS_COUNT;
    for _ in 0..TRY_COUNT {
        let is_there = match mappings::fault::last() {
            Some(access) => mappings::fault::resolve_for_call(access),
            // Where the kernel met the fault, nobody knows its address. It may have been where another
            // thread was just replacing a mapping.
            None if guesses_left == 0 => false,
            None => {
                guesses_left -= 1;
                let is_given = lent.let_through() || lent.is_any() && guesses_left + 1 == GUESS_COUNT;
                is_given || mappings::fault::catch_up() || moves_bytes(number) && mappings::any()
            }
        };
        if !is_there {
            break;
        }
        mappings::fault::forget();
        match decide(call, number, row) {
            Verdict::Done(FAULT) => {}
            verdict => return verdict,
        }
    }
    Verdict::Done(FAULT)
}
