//! The moments before a thread executes a program that must not be given anything of the array:
//! from its last look at what that program would inherit until the kernel makes the call.
//!
//! Meanwhile the process' other threads change nothing of that:
//!
//! - A thread that makes another number mean a file of the array marks the number close-on-exec and
//!   waits ([`crate::descriptors::Table::begin_exec`]). A thread that forks, or moves the process
//!   into a directory of the array, waits before.
//! - Numbers that the exec closes, and those that are handed over to the mount, are claimed until
//!   the exec: who uses, closes or duplicates one waits.
//! - A thread that reads or sets whether an exec closes a number of ours waits
//!   ([`crate::descriptors::Table::apart_from_execs`]).
//! - No handler of the program runs in the thread that executes, since it would wait for what its
//!   own thread has claimed. A signal that arrives ends the call before it is made
//!   ([`crate::signals`]); everything is put back, the handler runs, and the exec begins anew
//!   ([`crate::exec`]).
//!
//! If the kernel makes the call, the other threads end where they wait. If it refuses, everything
//! is put back, and they go on.
//!
//! What is left: a thread that the kernel has just given a descriptor of the array, and that has
//! not entered it in the table, is not waited for. If it stands still there until the other
//! thread's exec, the program inherits that descriptor.

use crate::calls::{OPEN, directory};
use crate::process;
use crate::thread::word;
use core::sync::atomic::Ordering;

const OPEN_NOW: usize = 1;
const GIVEN_UP: usize = 2;
/// In how many attempts of one exec the window is opened. If a signal ends each of them, the program
/// is executed without a window, and nothing is handed over to it from a mount.
const COUNT_MAX: usize = 8;

/// Opens the window for the calling thread. Returns false, and does nothing, in a task whose
/// descriptors are not the ones of the table; in a child that shares the memory of another process,
/// which would wait for good; and after too many attempts ([`COUNT_MAX`]).
pub(crate) fn open() -> bool {
    let opens = process::owns_tables() && process::has_memory() && !is_interrupted_too_often();
    if opens {
        OPEN.begin_exec();
        directory::keep_from_moving();
        word(word::EXECUTING).store(OPEN_NOW, Ordering::Relaxed);
    }
    opens
}

/// Closes the window, if the calling thread has opened it, because there is no exec. Returns true if
/// a signal that has arrived is the reason.
pub(crate) fn close() -> bool {
    let state = word(word::EXECUTING).swap(0, Ordering::Relaxed);
    if state != 0 {
        directory::let_move();
        OPEN.end_exec();
    }
    state == GIVEN_UP
}

/// Tells whether the calling thread has opened the window.
pub(crate) fn is_open() -> bool {
    word(word::EXECUTING).load(Ordering::Relaxed) != 0
}

/// Notes that a signal has arrived before the exec call was made, which therefore is not made.
pub(crate) fn give_up() {
    word(word::EXECUTING).store(GIVEN_UP, Ordering::Relaxed);
}

/// Counts an attempt of the calling thread's exec that a signal has ended.
pub(crate) fn count() {
    let count = word(word::EXECUTING_COUNT);
    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// Forgets the count of attempts: the exec has come to an end.
pub(crate) fn end_counting() {
    word(word::EXECUTING_COUNT).store(0, Ordering::Relaxed);
}

/// Tells whether no signal has ended an attempt of the calling thread's exec yet.
pub(crate) fn is_first() -> bool {
    word(word::EXECUTING_COUNT).load(Ordering::Relaxed) == 0
}

/// Tells whether signals have arrived so often that the exec is not to be begun anew again.
pub(crate) fn is_interrupted_too_often() -> bool {
    word(word::EXECUTING_COUNT).load(Ordering::Relaxed) >= COUNT_MAX
}
