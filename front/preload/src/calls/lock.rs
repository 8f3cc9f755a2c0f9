//! Locks of programs (fcntl(2) F_SETLK, F_OFD_SETLK and their like, flock(2)): the kernel keeps
//! them on the anchor.
//!
//! A range that is given relative to the position or the end of the file is made absolute first,
//! since the anchor knows neither. A lock to the end of all offsets leaves out the last bytes,
//! which are the library's (`file::RESERVED_OFFSET`).
//!
//! Since the file was opened, the lowest member in use may have gone or come back. Then descriptors
//! lie on several backing files, and a lock is given only if it fits the locks on the others
//! ([`file::FileLock`]). A process that waits for such a lock asks for it again and again: the
//! kernel wakes nobody for a lock on another file, and finds no deadlock, so the library looks for
//! deadlocks each time. A descriptor on another backing file may appear between the first look and
//! the kernel's answer. So a process that was given a lock looks once more, and a process that
//! opens the file notes the backing file before it can ask for a lock: at least one of the two sees
//! the other.

use super::OPEN;
use super::node::{Held, Node};
use crate::call::{Call, Verdict};
use crate::program;
use crate::thread::word;
use crate::thread::word::HANDLED;
use core::sync::atomic::Ordering;
use file::{FileLock, FileRef, LockKind, RESERVED_OFFSET};
use linux_raw_sys::general::{
    __NR_clock_nanosleep, __NR_flock, CLOCK_MONOTONIC, F_GETLK, F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW, F_RDLCK, F_SETLK,
    F_SETLKW, F_UNLCK, F_WRLCK, LOCK_EX, LOCK_NB, LOCK_UN,
};
use sys::OsError;
use sys::raw::{check, syscall};
use sys::rustix::time::Timespec;

/// How long a call rests before it asks again for a lock that somebody holds on another backing
/// file.
static REST: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// `struct flock`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Record {
    kind: i16,
    whence: i16,
    start: i64,
    length: i64,
    process: i32,
}

const _: () = assert!(size_of::<Record>() == 32);

/// What a call asks for.
struct Request {
    /// The lock that the call asks for; None if the call gives a lock back.
    lock: Option<FileLock>,
    waits: bool,
    /// The arguments of the call to the kernel, with which it waits if the program's call waits.
    args: [usize; 6],
    /// The arguments with which the kernel answers at once.
    args_at_once: [usize; 6],
}

/// Serves the commands of `fcntl` that concern locks.
pub(crate) fn serve(call: &mut Call) -> Verdict {
    let descriptor = call.descriptor(0);
    let Some(held) = OPEN.lookup(descriptor) else { return Verdict::Pass };
    let (Node::File(file), Ok(wanted)) = (held.node(), program::read::<Record>(call.args[2])) else { return Verdict::Pass };
    let base = match wanted.whence {
        0 => Ok(0),
        1 => held.with_position(descriptor, file, |position| Ok(*position)),
        2 => Ok(file.settled_size()),
        _ => return Verdict::Pass,
    };
    let start = base.and_then(|base| (base as i64).checked_add(wanted.start).ok_or(OsError::OVERFLOW));
    let start = match start {
        Ok(start) => start,
        // The kernel looks first at what kind of lock is asked about.
        Err(_) if call.args[1] as u32 == F_GETLK && !matches!(wanted.kind as u32, F_RDLCK | F_WRLCK) => {
            return Verdict::error(OsError::INVAL);
        }
        Err(error) => return Verdict::error(error),
    };
    let mut record = Record { whence: 0, start, ..wanted };
    (record.start, record.length) = before_reserved(start, record.length);
    put(call, record);
    if matches!(call.args[1] as u32, F_GETLK | F_OFD_GETLK) {
        call.then = Some(tell);
        let [_, command, ..] = call.args;
        return Verdict::PassWith { number: call.number, args: [call.args[0], command, call.scratch.as_ptr() as usize, 0, 0, 0] };
    }
    lock(call, &held, file)
}

/// Returns the range of a lock without the library's own bytes, as start and length. A range that
/// lies only in the library's bytes becomes the byte before them. A range that makes no sense is
/// left as it is, for the kernel to refuse.
fn before_reserved(start: i64, length: i64) -> (i64, i64) {
    let range = match length {
        ..0 => start.checked_add(length).map(|first| (first, start.saturating_sub(1))),
        0 => Some((start, i64::MAX)),
        _ => start.checked_add(length - 1).map(|last| (start, last)),
    };
    match range {
        Some((first, last)) if first >= 0 && last >= RESERVED_OFFSET => {
            let first = first.min(RESERVED_OFFSET - 1);
            (first, RESERVED_OFFSET - first)
        }
        _ => (start, length),
    }
}

/// Serves `flock`.
pub(crate) fn flock(call: &mut Call) -> Verdict {
    if call.args[1] as u32 & LOCK_UN != 0 {
        // The lock that the program gives back is on the anchor and nowhere else.
        return Verdict::Pass;
    }
    let Some(held) = OPEN.lookup(call.descriptor(0)) else { return Verdict::Pass };
    let Node::File(file) = held.node() else { return Verdict::Pass };
    lock(call, &held, file)
}

/// Leaves in the call's scratch words the record by which the kernel is asked.
fn put(call: &mut Call, record: Record) {
    // SAFETY: the scratch words have the record's size, and any alignment it needs.
    unsafe { call.scratch.as_mut_ptr().cast::<Record>().write(record) };
}

/// Returns the record that [`put`] has left in the call's scratch words. The kernel may have
/// answered in it.
fn put_there(call: &Call) -> Record {
    // SAFETY: `put` has stored a record there, and the kernel stores nothing but a record.
    unsafe { call.scratch.as_ptr().cast::<Record>().read() }
}

fn request(call: &Call) -> Request {
    if call.number == __NR_flock as usize { request_flock(call) } else { request_record(call) }
}

fn request_flock(call: &Call) -> Request {
    let operation = call.args[1] as u32;
    let with = |operation: u32| [call.args[0], operation as usize, 0, 0, 0, 0];
    let lock = FileLock { kind: LockKind::Flock, excludes: operation & LOCK_EX != 0, process: 0, start: 0, last: u64::MAX };
    Request {
        lock: (operation & LOCK_UN == 0).then_some(lock),
        waits: operation & LOCK_NB == 0,
        args: with(operation),
        args_at_once: with(operation | LOCK_NB),
    }
}

fn request_record(call: &Call) -> Request {
    let (command, record) = (call.args[1] as u32, put_there(call));
    let of_process = matches!(command, F_SETLK | F_SETLKW);
    let at_once = if of_process { F_SETLK } else { F_OFD_SETLK };
    // A negative length means the bytes before the start. The kernel refuses what makes no sense.
    let (start, end) = match record.length {
        ..0 => (record.start.saturating_add(record.length), record.start),
        0 => (record.start, i64::MAX),
        length => (record.start, record.start.saturating_add(length)),
    };
    let lock = FileLock {
        kind: if of_process { LockKind::Process } else { LockKind::Description },
        excludes: record.kind == F_WRLCK as i16,
        process: 0,
        start: start.max(0) as u64,
        last: (end.max(1) - 1) as u64,
    };
    let with = |command: u32| [call.args[0], command as usize, call.scratch.as_ptr() as usize, 0, 0, 0];
    Request {
        lock: (record.kind != F_UNLCK as i16).then_some(lock),
        waits: matches!(command, F_SETLKW | F_OFD_SETLKW),
        args: with(command),
        args_at_once: with(at_once),
    }
}

/// Returns a lock on another backing file because of which the call cannot be given `wanted`; None
/// if there is none.
fn conflict(call: &Call, file: &FileRef, wanted: FileLock) -> Option<FileLock> {
    let wanted = FileLock { process: crate::process::getpid() as i32, ..wanted };
    file.conflict_elsewhere(super::directory::borrow(call.descriptor(0)), &wanted)
}

/// Makes the program's call with other arguments, and returns the kernel's result.
fn kernel(call: &Call, args: [usize; 6]) -> isize {
    // SAFETY: the call is the one that the program made, on an anchor; the record is the library's.
    unsafe { syscall(call.number, args) }
}

/// Whether the kernel says that somebody else has the lock.
fn is_held_by_another(result: isize) -> bool {
    matches!(check(result), Err(OsError::AGAIN | OsError::ACCESS))
}

/// Takes or gives back a lock.
fn lock(call: &mut Call, held: &Held, file: &FileRef) -> Verdict {
    let request = request(call);
    // Of the program's handlers only one that runs from here on ends a wait.
    word(HANDLED).store(0, Ordering::Relaxed);
    if request.lock.is_some_and(|lock| lock.kind == LockKind::Process) {
        // The kernel, too, answers ENOLCK where it has no room for a lock.
        if file.note_process_lock().is_err() {
            return Verdict::error(OsError::NOLCK);
        }
    }
    if file.has_locks_apart() {
        return answer(call, attempt(call, held, file));
    }
    let waits = request.waits && request.lock.is_some();
    // Most locks are free, and a call that does not wait needs no second step.
    let result = kernel(call, if waits { request.args_at_once } else { request.args });
    if waits && is_held_by_another(result) {
        call.then = Some(granted);
        return Verdict::PassWith { number: call.number, args: request.args };
    }
    if result == 0 && request.lock.is_some() && file.has_locks_apart() {
        call.result = result;
        let outcome = confirm(call, held, file);
        return answer(call, outcome);
    }
    Verdict::Done(result)
}

/// How far a request has come.
#[derive(Clone, Copy)]
enum Outcome {
    Done(isize),
    /// The kernel is to wait for the lock, in a call with these arguments.
    Wait([usize; 6]),
    /// Somebody holds the lock on another backing file: the library rests and asks again.
    Rest,
}

impl Outcome {
    const fn refused(error: OsError) -> Self {
        Self::Done(-(error.raw_os_error() as isize))
    }
}

fn answer(call: &mut Call, outcome: Outcome) -> Verdict {
    match outcome {
        Outcome::Done(result) => Verdict::Done(result),
        Outcome::Wait(args) => {
            call.then = Some(granted);
            Verdict::PassWith { number: call.number, args }
        }
        Outcome::Rest => {
            call.then = Some(rested);
            let rest = &raw const REST as usize;
            Verdict::PassWith { number: __NR_clock_nanosleep as usize, args: [CLOCK_MONOTONIC as usize, 0, rest, 0, 0, 0] }
        }
    }
}

/// Asks once for a lock, or gives one back, on a file whose locks lie apart.
fn attempt(call: &Call, held: &Held, file: &FileRef) -> Outcome {
    let request = request(call);
    let result = file.with_locks_held(|| {
        if let Some(found) = request.lock.and_then(|lock| conflict(call, file, lock)) {
            return Err(found);
        }
        let result = kernel(call, request.args_at_once);
        if result == 0 {
            replace_own(call, held, file);
        }
        Ok(result)
    });
    match result {
        Err(found) if request.waits && is_deadlock(&request, file, &found) => Outcome::refused(OsError::DEADLK),
        Err(_) if request.waits => Outcome::Rest,
        Err(_) => Outcome::refused(OsError::AGAIN),
        Ok(result) if request.waits && is_held_by_another(result) => Outcome::Wait(request.args),
        Ok(result) => Outcome::Done(result),
    }
}

/// Tells whether this process would wait for ever for the lock `found` on another backing file. As in
/// the kernel, only locks of processes are looked at.
fn is_deadlock(request: &Request, file: &FileRef, found: &FileLock) -> bool {
    let is_of_process = request.lock.is_some_and(|lock| lock.kind == LockKind::Process) && found.kind == LockKind::Process;
    is_of_process && file.waits_in_a_circle(found.process as u32, crate::process::getpid())
}

/// Gives back what this process holds in the new lock's range on other backing files. A process'
/// own lock (F_SETLK) is one lock, by whichever descriptor the process asks for it, so the new one
/// takes the place of the older ones.
fn replace_own(call: &Call, held: &Held, file: &FileRef) {
    if call.number == __NR_flock as usize || !matches!(call.args[1] as u32, F_SETLK | F_SETLKW) {
        return;
    }
    let own = super::directory::borrow(call.descriptor(0));
    let back = Record { kind: F_UNLCK as i16, ..put_there(call) };
    for (descriptor, other) in OPEN.all() {
        if let Node::File(same) = other.node()
            && !core::ptr::eq(&raw const *other, &raw const **held)
            && same.attribute() == file.attribute()
            && !file.lie_together(own, super::directory::borrow(descriptor))
        {
            kernel(call, [descriptor as usize, F_SETLK as usize, &raw const back as usize, 0, 0, 0]);
        }
    }
}

/// Looks whether a lock that the kernel has given fits the locks on other backing files. One that
/// does not fit is given back.
fn confirm(call: &Call, held: &Held, file: &FileRef) -> Outcome {
    let request = request(call);
    let fits = file.with_locks_held(|| {
        let fits = request.lock.is_none_or(|lock| conflict(call, file, lock).is_none());
        if fits {
            replace_own(call, held, file);
        } else {
            give_back(call);
        }
        fits
    });
    match fits {
        true => Outcome::Done(call.result),
        false if request.waits => Outcome::Rest,
        false => Outcome::refused(OsError::AGAIN),
    }
}

/// Gives back a lock that the kernel has given although it does not fit the locks on other backing
/// files. Locks that this process held in the same range before are lost with it. That happens only
/// to a call that met the moment in which a member was lost.
fn give_back(call: &Call) {
    let back = Record { kind: F_UNLCK as i16, ..put_there(call) };
    let [descriptor, command, ..] = call.args;
    let (command, record) =
        if call.number == __NR_flock as usize { (LOCK_UN as usize, 0) } else { (command, &raw const back as usize) };
    kernel(call, [descriptor, command, record, 0, 0, 0]);
}

/// The result of a call for which the kernel has waited, or what the entry stub is to do next.
fn granted(call: &mut Call) -> isize {
    let Some(held) = OPEN.lookup(call.descriptor(0)) else { return call.result };
    let Node::File(file) = held.node() else { return call.result };
    if call.result != 0 || !file.has_locks_apart() {
        return call.result;
    }
    let outcome = confirm(call, &held, file);
    go_on(call, outcome)
}

/// Asks again after a rest: the result of the call, or what the entry stub is to do next.
fn rested(call: &mut Call) -> isize {
    let Some(held) = OPEN.lookup(call.descriptor(0)) else { return -(OsError::BADF.raw_os_error() as isize) };
    let Node::File(file) = held.node() else { return call.result };
    file.end_wait();
    // A handler of the program has run. Whatever the handler's flags are, the call ends with EINTR,
    // as a wait in the kernel does without SA_RESTART.
    if word(HANDLED).load(Ordering::Relaxed) != 0 {
        return -(OsError::INTR.raw_os_error() as isize);
    }
    let outcome = attempt(call, &held, file);
    go_on(call, outcome)
}

/// Returns the result of the call, or leaves in `call.instead` what the entry stub is to do next.
fn go_on(call: &mut Call, outcome: Outcome) -> isize {
    match answer(call, outcome) {
        Verdict::PassWith { number, args } => {
            call.instead[0] = number;
            call.instead[1..].copy_from_slice(&args);
            call.result
        }
        Verdict::Done(result) => result,
        Verdict::Pass => call.result,
    }
}

/// Gives the program what F_GETLK found. If nothing conflicts, only the type of the program's record
/// changes.
fn tell(call: &mut Call) -> isize {
    if call.result < 0 {
        return call.result;
    }
    let mut found = put_there(call);
    if found.kind == F_UNLCK as i16
        && let Some(elsewhere) = elsewhere(call)
    {
        found = elsewhere;
    }
    let written = if found.kind == F_UNLCK as i16 {
        program::write(call.args[2], &found.kind)
    } else {
        if found.start.checked_add(found.length) == Some(RESERVED_OFFSET) {
            found.length = 0;
        }
        program::write(call.args[2], &found)
    };
    written.map_or_else(|error| -(error.raw_os_error() as isize), |()| call.result)
}

/// Returns the conflicting lock that F_GETLK finds on other backing files; None if there is none.
fn elsewhere(call: &mut Call) -> Option<Record> {
    let held = OPEN.lookup(call.descriptor(0))?;
    let Node::File(file) = held.node() else { return None };
    if !file.has_locks_apart() {
        return None;
    }
    let mut asked = put_there(call);
    asked.kind = program::read::<Record>(call.args[2]).ok()?.kind;
    put(call, asked);
    let lock = request_record(call).lock?;
    let lock = FileLock { kind: if call.args[1] as u32 == F_GETLK { LockKind::Process } else { LockKind::Description }, ..lock };
    let found = conflict(call, file, lock)?;
    let last = found.last.min(RESERVED_OFFSET as u64 - 1);
    let kind = if found.excludes { F_WRLCK } else { F_RDLCK };
    let length = last.saturating_sub(found.start) as i64 + 1;
    Some(Record { kind: kind as i16, whence: 0, start: found.start as i64, length, process: found.process })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_range_reaches_the_reserved_bytes() {
        let all = (0, RESERVED_OFFSET);
        assert_eq!([before_reserved(0, 0), before_reserved(0, i64::MAX), before_reserved(0, RESERVED_OFFSET + 1)], [all; 3]);
        assert_eq!(before_reserved(i64::MAX, -i64::MAX), all);
        assert_eq!(before_reserved(10, i64::MAX - 9), (10, RESERVED_OFFSET - 10));
        assert_eq!(before_reserved(RESERVED_OFFSET, 1), (RESERVED_OFFSET - 1, 1));
        assert_eq!(before_reserved(i64::MAX, 0), (RESERVED_OFFSET - 1, 1));
        // Left as they are: what does not reach there, and what the kernel refuses.
        for range in [(0, 10), (0, RESERVED_OFFSET), (10, -5), (10, i64::MAX), (-5, 0), (5, -10)] {
            assert_eq!(before_reserved(range.0, range.1), range);
        }
    }
}
