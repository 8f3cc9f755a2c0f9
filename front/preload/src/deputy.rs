//! Deputies: processes that live for one call, which a guest cannot make itself.
//!
//! A guest ([`crate::guest`]) must not touch what its process knows of open files. So it forks. The
//! deputy has the guest's descriptors and directory in common with it (clone(2): CLONE_FILES,
//! CLONE_FS), and a copy of the memory. It forgets all that the tables in that copy say, attaches
//! to the array as a process of its own, and serves the call as any process would. A file that it
//! opens, the guest has open; a directory that it changes to is the guest's. Two things are carried
//! back by way of the arena ([`crate::arena`]), which both see at one address: what the call stores
//! into memory, and a call that the guest is still to make itself. A deputy's end sends no signal;
//! only the guest waits for it.
//!
//! A deputy also serves a call for which its process has no number left ([`crate::scarce`]). That
//! deputy has a descriptor table of its own. Below, *guest* means whoever has made the deputy.
//!
//! Invariants: of the copied memory only what never changes after the start is believed
//! (configuration, prefixes, patched sites): a thread of the process may have been in the middle of
//! anything. When a deputy has ended, no descriptor of the library's that it opened is left.

use crate::arena;
use crate::call::{Call, Verdict};
use crate::calls::data::{self, Buffer};
use crate::calls::links;
use crate::calls::{OPEN, directory, handler};
use crate::uapi::{PR_SET_PDEATHSIG, SIGKILL};
use crate::{apart, array, counts, guest, process, program, renewal, signals};
use core::mem::ManuallyDrop;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use heap::boxed::Box;
use heap::vec::Vec;
use linux_raw_sys::general as nr;
use linux_raw_sys::general::{__WALL, CLONE_FILES, CLONE_FS, CLONE_VFORK};
use namespace::Node;
use sys::raw::syscall;
use sys::{OsError, RawFd, high_fd};

/// The deputy's words to its guest, which waits until the deputy has ended before it looks. They
/// lie in the arena.
struct Answer {
    /// None until the deputy has done everything.
    verdict: Option<Verdict>,
    /// The call's scratch words, for the function that the guest calls after it.
    scratch: [u64; 6],
    /// The function that the guest calls after a call that it makes itself.
    then: Option<fn(&mut Call) -> isize>,
    /// Whether the guest gives that call up for a handler.
    gives_up: bool,
    /// The addresses in the program's memory that the call stored to, each with its bytes.
    stored: Vec<(usize, Vec<u8>)>,
}

/// In a deputy: the address of its answer. Null in every other process.
static ANSWER: AtomicPtr<Answer> = AtomicPtr::new(null_mut());

/// Whether this process is a deputy.
#[inline]
pub(crate) fn is_active() -> bool {
    !ANSWER.load(Ordering::Relaxed).is_null()
}

/// Has a call of the calling guest served, with `args` for its arguments. The arena is the
/// caller's, and active.
pub(crate) fn serve(call: &mut Call, args: [usize; 6]) -> Verdict {
    have_served(call, args, Table::Shared)
}

/// Has a call of the calling thread served by a deputy with descriptors of its own. The arena is the
/// caller's, and active. EMFILE if there is no such deputy.
pub(crate) fn serve_apart(call: &mut Call) -> Verdict {
    have_served(call, call.args, Table::Own)
}

/// Whose descriptors a deputy has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Table {
    /// The guest's.
    Shared,
    /// A copy of the guest's.
    Own,
}

fn have_served(call: &mut Call, args: [usize; 6], table: Table) -> Verdict {
    debug_assert!(arena::is_active());
    let answer = Answer { verdict: None, scratch: call.scratch, then: None, gives_up: false, stored: Vec::new() };
    let answer = Box::into_raw(Box::new(answer));
    let shared = if table == Table::Shared { CLONE_FILES } else { 0 };
    let flags = (shared | CLONE_FS | CLONE_VFORK) as usize;
    let guest = process::getpid();
    // SAFETY: a copy of this process, which goes on here with memory of its own; this thread waits
    // until it has ended.
    let pid = unsafe { syscall(nr::__NR_clone as usize, [flags, 0, 0, 0, 0, 0]) };
    if pid == 0 {
        (call.args, call.then) = (args, None);
        die_with(guest);
        act(call, answer, guest, table);
    }
    if pid < 0 {
        return if table == Table::Shared { Verdict::Done(pid) } else { Verdict::error(OsError::MFILE) };
    }
    // A handler of the program may interrupt the wait.
    // SAFETY: waits for the deputy, and stores nothing.
    while unsafe { syscall(nr::__NR_wait4 as usize, [pid as usize, 0, __WALL as usize, 0, 0, 0]) }
        == -(OsError::INTR.raw_os_error() as isize)
    {}
    // For the compiler nothing in this process has stored to the answer since it was made: it is
    // loaded as what another process has changed. SAFETY: the deputy is gone, and nobody else knows
    // the address. What the answer owns lies in the arena, which frees nothing by itself.
    let answer = unsafe { ManuallyDrop::new(answer.read_volatile()) };
    for (address, bytes) in &answer.stored {
        // The deputy has stored to a copy of the same page.
        let _ = program::write_bytes(*address, bytes);
    }
    (call.scratch, call.then, call.gives_up) = (answer.scratch, answer.then, answer.gives_up);
    answer.verdict.unwrap_or(Verdict::error(OsError::IO))
}

/// A guest that is killed in a call does not go on with it: its deputy is killed as the guest ends,
/// before anybody can wait for that end.
fn die_with(guest: u32) {
    // SAFETY: questions, and a request for a signal.
    let parent = unsafe {
        syscall(nr::__NR_prctl as usize, [PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0, 0]);
        syscall(nr::__NR_getppid as usize, [0; 6])
    };
    if parent != guest as isize {
        end();
    }
}

fn end() -> ! {
    loop {
        // SAFETY: the process ends.
        unsafe { syscall(nr::__NR_exit_group as usize, [0; 6]) };
    }
}

/// The deputy's life.
fn act(call: &mut Call, answer: *mut Answer, guest: u32, table: Table) -> ! {
    ANSWER.store(answer, Ordering::Relaxed);
    let table = if table == Table::Shared && apart::leave_full_table(call) { Table::Own } else { table };
    if table == Table::Own {
        apart::make_room(call);
    }
    high_fd::forget_all();
    signals::catch_faults();
    // Signals come to the guest.
    sys::waiting::refuse();
    directory::expect_moves();
    process::own_tables();
    renewal::forget();
    renewal::attach();
    // Calls on a descriptor would be told something else.
    let lacks_numbers = array::namespace().is_err_and(|error| error == OsError::MFILE);
    let verdict = if lacks_numbers { Verdict::error(OsError::MFILE) } else { counts::apart(|| answer_to(call, table)) };
    if let Verdict::Done(descriptor @ 0..) = verdict
        && guest::opens(call.number)
        && let Ok(namespace) = array::namespace()
    {
        // The file must not be freed with this process, and one without a name (O_TMPFILE) is to be
        // found again.
        if let Some(held) = OPEN.lookup(descriptor as RawFd)
            && let Node::File(file) = held.node()
        {
            file.keep_nameless();
        }
        let _ = namespace.hold_for(guest, directory::borrow(descriptor as RawFd));
    }
    array::leave();
    for descriptor in high_fd::raised_within(0, u32::MAX) {
        crate::calls::descriptor::close_unheld(descriptor as RawFd);
    }
    // SAFETY: the guest waits until this process has ended.
    unsafe {
        (&raw mut (*answer).scratch).write_volatile(call.scratch);
        (&raw mut (*answer).gives_up).write_volatile(call.gives_up);
        (&raw mut (*answer).verdict).write_volatile(Some(verdict));
    }
    end()
}

fn answer_to(call: &mut Call, table: Table) -> Verdict {
    let verdict = match handler(call.number)(call) {
        Verdict::Pass if table == Table::Own => links::serve_apart(call),
        Verdict::Pass => links::on_nameless(call).unwrap_or(Verdict::Pass),
        verdict => verdict,
    };
    let verdict = match verdict {
        // The function that follows the call needs this process' view of the array. The call itself
        // acts on descriptors and a directory that are the guest's as well.
        Verdict::PassWith { number, args } if call.then.is_some() && !crate::exec::is_exec(number) => {
            let (mut number, mut args) = (number, args);
            loop {
                // SAFETY: the program's call, with arguments that the handler has put in the place
                // of the program's.
                call.result = unsafe { syscall(number, args) };
                let Some(then) = call.then.take() else { break Verdict::Done(call.result) };
                let result = then(call);
                if call.then.is_none() {
                    break Verdict::Done(result);
                }
                // There is another call to make, as behind `finish` of the dispatcher.
                let [next, rest @ ..] = call.instead;
                (number, args) = (next, rest);
            }
        }
        verdict => verdict,
    };
    if let Verdict::Done(count @ 1..) = verdict {
        note_read(call, count as usize);
    }
    verdict
}

/// Carries to the guest the bytes that a read has put into the program's buffers, which are copies
/// here.
fn note_read(call: &Call, count: usize) {
    let mut left = count;
    let mut note_one = |buffer: Buffer| {
        let bytes = buffer.bytes.min(left);
        left -= bytes;
        if let Ok(read) = program::read_bytes(buffer.address, bytes) {
            note(buffer.address, read);
        }
    };
    match call.number as u32 {
        nr::__NR_read | nr::__NR_pread64 => note_one(Buffer { address: call.args[1], bytes: call.args[2] }),
        nr::__NR_readv | nr::__NR_preadv | nr::__NR_preadv2 => data::buffers(call).into_iter().flatten().for_each(note_one),
        _ => {}
    }
}

/// In a deputy: carries to the guest the bytes that were stored at `address` in this process.
fn note(address: usize, bytes: Vec<u8>) {
    // SAFETY: the guest waits until this process, which has one thread, has ended.
    if let Some(answer) = unsafe { ANSWER.load(Ordering::Relaxed).as_mut() } {
        answer.stored.push((address, bytes));
    }
}

/// The program's memory at `address` was given `bytes`. In a deputy that is to be carried to the
/// guest.
pub(crate) fn has_stored(address: usize, bytes: &[u8]) {
    if is_active() {
        note(address, bytes.to_vec());
    }
}

/// A descriptor of the library's that the next program needs: it stays when the deputy ends.
pub(crate) fn hand_over(descriptor: RawFd) {
    if is_active() {
        high_fd::forget(descriptor);
    }
}

/// In a deputy: names the function that the guest calls after the call that it makes itself.
pub(crate) fn leave_to_guest(then: fn(&mut Call) -> isize) {
    // SAFETY: the guest waits until this process, which has one thread, has ended.
    if let Some(answer) = unsafe { ANSWER.load(Ordering::Relaxed).as_mut() } {
        answer.then = Some(then);
    }
}
