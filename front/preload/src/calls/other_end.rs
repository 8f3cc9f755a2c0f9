//! Opens that wait until somebody else opens the other end of a pipe (FIFO) of the array.
//!
//! Such an open begins inside the library. When a signal comes that has a handler, the library
//! gives the wait up (`sys::waiting`), and from then on the stub waits, where handlers run at once:
//! it opens what the path has led to by the link under /proc of a descriptor (O_PATH) that the
//! library holds meanwhile. Behind each handler the path is looked up again, as the kernel does it.
//!
//! A handler may leave by a jump, or the thread be cancelled in it, and then nobody comes back to
//! close that descriptor. So descriptors are listed with the place of the call on the program's
//! stack, where a *ticket* lies as long as the call goes on. The next open that waits closes those
//! whose ticket is gone.

use super::paths::AT_FDCWD;
use crate::arch::entry::carried;
use crate::call::{Call, Verdict};
use crate::filter::watch_descriptor;
use crate::lock::{Lock, RawLock};
use crate::table::ROWS;
use crate::{deputy, guest, process, program};
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering};
use heap::vec::Vec;
use linux_raw_sys::general::{__NR_close, __NR_openat};
use namespace::{Node, OFlags};
use sys::high_fd::Raised;
use sys::raw::{check, syscall};
use sys::waiting::NOT_MADE;
use sys::{AsRawFd, OsError, OwnedFd, RawFd};

/// The scratch words: the path takes the first four, behind it come descriptor and flags, and the
/// ticket.
const PATH_BYTES: usize = 32;
const OPENED: usize = 4;
const TICKET: usize = 5;

/// A descriptor that a call opens by its link.
struct Named {
    /// Closed with the entry.
    _descriptor: Raised,
    ticket: u64,
    /// Where the ticket lies while the call goes on.
    place: usize,
}

static NAMED: Lock<Vec<Named>> = Lock::new(Vec::new());
static TICKETS: AtomicU64 = AtomicU64::new(0x6378_6c72_6169_0001);

/// The lock of the list, to hold it across a fork.
pub(crate) fn lock() -> &'static RawLock {
    NAMED.raw()
}

/// Forgets the list, which says nothing of this process.
pub(crate) fn abandon() {
    core::mem::forget(core::mem::take(&mut *NAMED.lock()));
}

/// Has the stub, or in a deputy the guest, open what `anchor` (O_PATH) names, with the program's
/// flags.
pub(super) fn open(call: &mut Call, anchor: OwnedFd, flags: u32) -> Verdict {
    let descriptor = match Raised::new(anchor) {
        Ok(descriptor) => descriptor,
        Err(error) => return Verdict::error(error),
    };
    let number = descriptor.as_raw_fd();
    let path = heap::format!("/proc/thread-self/fd/{number}\0");
    let mut bytes = [0; PATH_BYTES];
    match bytes.get_mut(..path.len()) {
        Some(room) => room.copy_from_slice(path.as_bytes()),
        None => return Verdict::error(OsError::MFILE),
    }
    for (word, part) in call.scratch.iter_mut().zip(bytes.chunks_exact(size_of::<u64>())) {
        *word = part.try_into().map_or(0, u64::from_ne_bytes);
    }
    call.scratch[OPENED] = u64::from(flags) << 32 | number as u64;
    if deputy::is_active() {
        deputy::hand_over(number);
        core::mem::forget(descriptor);
        deputy::leave_to_guest(opened_by_guest);
    } else {
        let ticket = TICKETS.fetch_add(1, Ordering::Relaxed);
        call.scratch[TICKET] = ticket;
        let place = carried(call) + offset_of!(Call, scratch) + TICKET * size_of::<u64>();
        let mut named = NAMED.lock();
        named.retain(|named| program::read::<u64>(named.place) == Ok(named.ticket));
        named.push(Named { _descriptor: descriptor, ticket, place });
        call.then = Some(opened);
    }
    call.gives_up = true;
    // The link is followed, and leads to what is there.
    let flags = OFlags::from_bits_retain(flags).difference(OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC | OFlags::NOFOLLOW);
    let args = [AT_FDCWD as usize, call.scratch.as_ptr() as usize, flags.bits() as usize, 0, 0, 0];
    Verdict::PassWith { number: __NR_openat as usize, args }
}

/// The wait is over.
fn opened(call: &mut Call) -> isize {
    let ticket = call.scratch[TICKET];
    NAMED.lock().retain(|named| named.ticket != ticket);
    match check(call.result) {
        Err(NOT_MADE) => again(call),
        Ok(descriptor) => {
            let flags = (call.scratch[OPENED] >> 32) as u32;
            super::open::enter(descriptor as RawFd, Node::Other, flags & !super::open::MADE)
                .map_or_else(|error| -(error.raw_os_error() as isize), |descriptor| descriptor as isize)
        }
        Err(_) => call.result,
    }
}

/// The wait is over in a guest, to which its deputy has left the descriptor.
fn opened_by_guest(call: &mut Call) -> isize {
    // SAFETY: the deputy has opened it, and nobody else was told of it.
    unsafe { syscall(__NR_close as usize, [call.scratch[OPENED] as u32 as usize, 0, 0, 0, 0, 0]) };
    match check(call.result) {
        Err(NOT_MADE) => return again(call),
        Ok(descriptor) => watch_descriptor(descriptor as RawFd),
        Err(_) => {}
    }
    call.result
}

/// Serves the call as if the program had just made it.
fn serve_again(call: &mut Call) -> Verdict {
    if process::may_be_guest() && process::is_guest() {
        return ROWS.get(call.number).map_or(Verdict::Pass, |row| guest::serve(call, row));
    }
    match super::handler(call.number)(call) {
        Verdict::Pass => super::links::serve(call),
        verdict => verdict,
    }
}

/// A handler has run, and behind it the kernel makes a call once more from its beginning: something
/// else may have the name by now.
fn again(call: &mut Call) -> isize {
    match serve_again(call) {
        Verdict::Done(result) => return result,
        Verdict::PassWith { number, args: [a, b, c, d, e, f] } => call.instead = [number, a, b, c, d, e, f],
        Verdict::Pass => {
            let [a, b, c, d, e, f] = call.args;
            call.instead = [call.number, a, b, c, d, e, f];
        }
    }
    if call.then.is_none() {
        call.then = Some(|call| call.result);
    }
    call.result
}
