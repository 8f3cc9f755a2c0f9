//! Memory that processes share by way of a file: where the file is cut short, other memory stands
//! in for it.
//!
//! The fault it exists for: a user who may write to the file cuts it. The next access of every
//! process raises SIGBUS, outside of any guard, since nobody expects that memory to fail. The
//! memory that stands in holds zeros and what its owner puts there. The interrupted access is done
//! again, on that memory.
//!
//! Invariant: memory stands in once and for good, for the whole range at once. No allocation and no
//! lock: this runs in a signal handler.

use core::sync::atomic::{AtomicUsize, Ordering};
use sys::raw::syscall;

/// Ranges that can be known at once. One that is not known faults as any memory does.
const RANGE_COUNT: usize = 64;

const MMAP: usize = 9;
const MUNMAP: usize = 11;
const MREMAP: usize = 25;
const PROT_READ_WRITE: usize = 1 | 2;
const MAP_PRIVATE_ANONYMOUS_NORESERVE: usize = 0x2 | 0x20 | 0x4000;
const MREMAP_MAYMOVE_FIXED: usize = 1 | 2;

/// A range; all zeros for none.
struct Range {
    start: AtomicUsize,
    bytes: AtomicUsize,
    /// The function that prepares what stands in, and what it is given.
    prepare: AtomicUsize,
    given: AtomicUsize,
    /// This is 1 once a thread sees to the fault.
    begun: AtomicUsize,
}

static RANGES: [Range; RANGE_COUNT] = [const {
    Range {
        start: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        prepare: AtomicUsize::new(0),
        given: AtomicUsize::new(0),
        begun: AtomicUsize::new(0),
    }
}; RANGE_COUNT];

/// From here on zeros stand in for a mapping as soon as an access to it faults. `prepare` gets
/// their address before anybody sees them, and what is `given`. It runs in a handler: it takes no
/// lock, and nothing that it touches faults.
///
/// # Safety
/// The whole range is one mapping of the caller's, of whole pages, until [`end`]; any bytes are
/// valid in it, and may be others at any time.
pub unsafe fn begin(start: usize, bytes: usize, given: usize, prepare: fn(usize, usize)) {
    let claim = |range: &&Range| range.start.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if let Some(range) = RANGES.iter().find(claim) {
        range.bytes.store(bytes, Ordering::Relaxed);
        range.prepare.store(prepare as usize, Ordering::Relaxed);
        range.given.store(given, Ordering::Relaxed);
        range.begun.store(0, Ordering::Relaxed);
        range.start.store(start, Ordering::Release);
    }
}

/// The mapping at `start` is about to be unmapped.
pub fn end(start: usize) {
    for range in RANGES.iter().filter(|range| range.start.load(Ordering::Acquire) == start) {
        range.bytes.store(0, Ordering::Relaxed);
        range.start.store(0, Ordering::Release);
    }
}

/// Whether `address` lies in such a range, where other memory stands in now.
pub(crate) fn replace(address: usize) -> bool {
    let holds = |range: &&Range| {
        let start = range.start.load(Ordering::Acquire);
        start > 1 && address.wrapping_sub(start) < range.bytes.load(Ordering::Relaxed)
    };
    let Some(range) = RANGES.iter().find(holds) else { return false };
    if range.begun.swap(1, Ordering::AcqRel) != 0 {
        // Another thread sees to it: this one faults again until that is done.
        return true;
    }
    let (start, bytes) = (range.start.load(Ordering::Relaxed), range.bytes.load(Ordering::Relaxed));
    // SAFETY: a new mapping, chosen by the kernel.
    let new = unsafe { syscall(MMAP, [0, bytes, PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS_NORESERVE, usize::MAX, 0]) };
    if new <= 0 {
        return false;
    }
    // SAFETY: stored by `begin` from such a function.
    let prepare = unsafe { core::mem::transmute::<usize, fn(usize, usize)>(range.prepare.load(Ordering::Relaxed)) };
    prepare(new as usize, range.given.load(Ordering::Relaxed));
    // SAFETY: in one step the range is the new mapping; any bytes are valid in it (`begin`).
    let moved = unsafe { syscall(MREMAP, [new as usize, bytes, bytes, MREMAP_MAYMOVE_FIXED, start, 0]) };
    if moved != start as isize {
        // SAFETY: made above, and nobody knows it.
        unsafe { syscall(MUNMAP, [new as usize, bytes, 0, 0, 0, 0]) };
        return false;
    }
    true
}
