//! Descriptors that come and go: close, dup and their like. While the kernel's table and ours do
//! not agree about a number, it is claimed: no other thread gets to use it
//! ([`crate::descriptors`]).

use super::OPEN;
use super::node::{Held, Node, REPLACED};
use crate::call::{Call, Verdict};
use crate::descriptors::Claim;
use crate::patch::objects;
use crate::process;
use crate::uapi::{CLOSE_RANGE_CLOEXEC, CLOSE_RANGE_UNSHARE};
use core::sync::atomic::Ordering;
use linux_raw_sys::general::{
    __NR_close, __NR_dup3, F_CREATED_QUERY, F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_GETLK, F_NOTIFY, F_OFD_GETLK, F_OFD_SETLK,
    F_OFD_SETLKW, F_SETFD, F_SETFL, F_SETLK, F_SETLKW, O_APPEND, O_CLOEXEC, O_DIRECT, O_NOATIME, O_NONBLOCK,
};
use sys::{OsError, RawFd, high_fd};

/// Status flags that F_SETFL changes.
pub(super) const SETTABLE: u32 = O_APPEND | O_NONBLOCK | O_DIRECT | O_NOATIME;

/// `close`.
pub(crate) fn close(call: &mut Call) -> Verdict {
    let descriptor = call.descriptor(0);
    if high_fd::is_raised(descriptor) {
        // Ours: the program closes every number it can think of.
        return Verdict::error(OsError::BADF);
    }
    objects::closing(descriptor);
    match OPEN.claim(descriptor) {
        Some(claim) => Verdict::Done(end(claim, descriptor)),
        // A number that nothing has may be the library's for an instant.
        None if file::parked::is_used() && !file::parked::while_none_is_fetched(|| is_open(descriptor)) => {
            Verdict::error(OsError::BADF)
        }
        None => Verdict::Pass,
    }
}

fn is_open(descriptor: RawFd) -> bool {
    sys::rustix::io::fcntl_getfd(super::directory::borrow(descriptor)).is_ok()
}

/// Has the kernel give `to` the meaning of another number. While files are parked, the library takes
/// the lowest free number for an instant each time that it fetches one: it does not have it then.
fn replace(call: &Call, to: RawFd) -> isize {
    // What is open is the program's, and to close it may take long.
    let on_a_free_one = || {
        if high_fd::is_raised(to) {
            return Some(-(OsError::BADF.raw_os_error() as isize));
        }
        (!is_open(to)).then(|| call.kernel())
    };
    let replaced = if file::parked::is_used() { file::parked::while_none_is_fetched(on_a_free_one) } else { None };
    replaced.unwrap_or_else(|| call.kernel())
}

/// Closes a descriptor of ours, and does what is to be done after its last close. Returns the
/// kernel's answer.
pub(super) fn end(claim: Claim<Node>, descriptor: RawFd) -> isize {
    claim.end_moves();
    // SAFETY: the program has asked for it, or never got to know the number; the claim keeps other
    // threads from using it.
    let result = unsafe { sys::raw::syscall(__NR_close as usize, [descriptor as usize, 0, 0, 0, 0, 0]) };
    drop(claim.settle(None));
    result
}

/// A use of what a descriptor means, with a claim, so that its meaning stays while the kernel is
/// asked by its number. There is no claim where the table is not used.
///
/// # Errors
/// What becomes of the call if the descriptor is not ours, or not any more.
fn hold(descriptor: RawFd) -> Result<(Held, Option<Claim<Node>>), Verdict> {
    let held = OPEN.lookup(descriptor).ok_or(Verdict::Pass)?;
    match OPEN.claim(descriptor) {
        Some(claim) => Ok((claim.user().unwrap_or(held), Some(claim))),
        None if process::shares_tables() => Ok((held, None)),
        None => Err(Verdict::error(REPLACED)),
    }
}

/// `dup`.
pub(crate) fn dup(call: &mut Call) -> Verdict {
    duplicate(call)
}

/// `fcntl`: the commands that make a descriptor or change status flags, and locks.
pub(crate) fn fcntl(call: &mut Call) -> Verdict {
    match call.args[1] as u32 {
        F_DUPFD | F_DUPFD_CLOEXEC => duplicate(call),
        F_SETFL => set_flags(call),
        F_GETFD | F_SETFD => close_on_exec(call),
        F_CREATED_QUERY => {
            let result = call.kernel();
            let is_made =
                OPEN.lookup(call.descriptor(0)).is_some_and(|held| held.flags.load(Ordering::Relaxed) & super::open::MADE != 0);
            Verdict::Done(if result >= 0 && is_made { 1 } else { result })
        }
        F_NOTIFY => {
            if OPEN.lookup(call.descriptor(0)).is_some() {
                super::events::begin();
            }
            Verdict::Pass
        }
        F_GETLK | F_SETLK | F_SETLKW | F_OFD_GETLK | F_OFD_SETLK | F_OFD_SETLKW => super::lock::serve(call),
        _ => Verdict::Pass,
    }
}

/// A call that reads or sets whether an exec closes a number.
pub(super) fn close_on_exec(call: &Call) -> Verdict {
    match OPEN.lookup(call.descriptor(0)) {
        Some(_) if !process::shares_tables() => Verdict::Done(OPEN.apart_from_execs(|| call.kernel())),
        _ => Verdict::Pass,
    }
}

/// Status flags belong to the description: every descriptor made from it follows.
fn set_flags(call: &Call) -> Verdict {
    if call.args[2] as u32 & O_DIRECT != 0 {
        // Whosever file it is: a device may store into a mapping of the array from then on.
        crate::mappings::lend::begin_direct();
    }
    let (user, claim) = match hold(call.descriptor(0)) {
        Ok(held) => held,
        Err(verdict) => return verdict,
    };
    let result = call.kernel();
    drop(claim);
    if result >= 0 {
        let wanted = call.args[2] as u32 & SETTABLE;
        // Two threads that set flags at once race in the kernel too.
        user.replace_flags(SETTABLE, wanted);
        if let Node::File(file) = user.node()
            && wanted & O_NOATIME != 0
        {
            file.keep_access_time();
        }
        if let Node::File(file) = user.node()
            && user.shared.load(Ordering::Acquire)
        {
            file.status_changes().fetch_add(1, Ordering::AcqRel);
        }
    }
    Verdict::Done(result)
}

/// A call that gives a new number for argument 0.
fn duplicate(call: &Call) -> Verdict {
    let (user, claim) = match hold(call.descriptor(0)) {
        Ok(held) => held,
        Err(verdict) => return verdict,
    };
    let result = call.kernel();
    drop(claim);
    if result >= 0 && !OPEN.install(result as RawFd, user) {
        close_unheld(result as RawFd);
        return Verdict::error(OsError::MFILE);
    }
    Verdict::Done(result)
}

/// `dup2` and `dup3`.
pub(crate) fn dup_to(call: &mut Call) -> Verdict {
    let (from, to) = (call.descriptor(0), call.descriptor(1));
    if high_fd::is_raised(to) {
        return Verdict::error(OsError::BADF);
    }
    let source = OPEN.lookup(from);
    if from == to || source.is_none() && OPEN.lookup(to).is_none() {
        return if from != to && file::parked::is_used() { Verdict::Done(replace(call, to)) } else { Verdict::Pass };
    }
    if process::shares_tables() {
        let result = replace(call, to);
        if result >= 0
            && let Some(source) = source
        {
            OPEN.install(to, source);
        }
        return Verdict::Done(result);
    }
    drop(source);
    let Some((source, target)) = OPEN.claim_two(from, to) else {
        // No file of ours can have such a number. What is wrong with the flags the kernel says
        // first.
        let is_odd = call.number == __NR_dup3 as usize && call.args[2] as u32 & !O_CLOEXEC != 0;
        return if is_odd { Verdict::Pass } else { Verdict::error(OsError::BADF) };
    };
    target.end_moves();
    let result = replace(call, to);
    if result < 0 {
        return Verdict::Done(result);
    }
    let replaced = target.settle(source.as_ref().and_then(Claim::user));
    drop(source);
    OPEN.share_if_asked(to);
    drop(replaced);
    Verdict::Done(result)
}

/// `close_range`.
pub(crate) fn close_range(call: &mut Call) -> Verdict {
    let [first, last, flags, ..] = call.args;
    let (first, last, flags) = (first as u32, last as u32, flags as u32);
    if flags & CLOSE_RANGE_UNSHARE != 0 && flags & !(CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC) == 0 && first <= last {
        // First the descriptors of its own, then what is to be done with them.
        match super::process::leave_descriptors() {
            Ok(()) => {}
            Err(error) => return Verdict::error(error),
        }
    }
    let closes = flags & CLOSE_RANGE_CLOEXEC == 0 && flags & !CLOSE_RANGE_UNSHARE == 0 && first <= last;
    if closes && OPEN.count() != 0 && process::owns_tables() {
        for (descriptor, _) in OPEN.within(first..=last) {
            if let Some(claim) = OPEN.claim(descriptor) {
                end(claim, descriptor);
            }
        }
    }
    if closes && high_fd::raised_within(first, last).next().is_some() {
        close_around_ours(call, first, last)
    } else if !closes && OPEN.count() != 0 && process::owns_tables() && !process::shares_tables() {
        Verdict::Done(OPEN.apart_from_execs(|| call.kernel()))
    } else {
        Verdict::Pass
    }
}

/// Closes what lies between our own descriptors.
fn close_around_ours(call: &Call, first: u32, last: u32) -> Verdict {
    let mut start = first;
    let mut flags = call.args[2];
    for end in high_fd::raised_within(first, last).map(Some).chain([None]) {
        let stop = end.map_or(Some(last), |end| end.checked_sub(1));
        if let Some(stop) = stop.filter(|&stop| start <= stop) {
            // SAFETY: what the program asked for, but for descriptors it does not know.
            let result = unsafe { sys::raw::syscall(call.number, [start as usize, stop as usize, flags, 0, 0, 0]) };
            if result < 0 {
                return Verdict::Done(result);
            }
            // The table was unshared by the first call.
            flags &= !(CLOSE_RANGE_UNSHARE as usize);
        }
        start = end.unwrap_or(last).saturating_add(1);
    }
    Verdict::Done(0)
}

/// Closes a descriptor that the library made, or was handed, and that no table of ours knows.
pub(crate) fn close_unheld(descriptor: RawFd) {
    // SAFETY: the number was made by the library and nobody uses it, not yet or not any more.
    unsafe { sys::raw::syscall(__NR_close as usize, [descriptor as usize, 0, 0, 0, 0, 0]) };
}
