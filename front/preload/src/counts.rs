//! Counts the calls that are served, for `cxlraid top`: each thread in a counter cell of the runtime
//! segment ([`array::runtime::counters`]), which a word of its thread block leads to. About one of
//! [`sampling::GAP`] calls is timed, and looked at for what it moved on which member.
//!
//! Invariants:
//! - The word holds the distance of the thread's cell from [`NOWHERE`]: 0, as in a new thread, leads
//!   to counters that nobody reads. So counting asks nothing and cannot go wrong.
//! - A thread without a cell counts apart during each call ([`apart`]), and takes a cell when a call
//!   was counted. So a child of fork that has nothing to do with the array does not attach for this,
//!   and no call is lost.
//! - A copy of a process forgets its maker's cell before its first call ([`forget`]).

use crate::call::{Call, Verdict};
use crate::thread::word;
use ::array::runtime::counters::{CounterCell, Counts, Kind};
use ::array::{Runtime, Spread, Way, sampling};
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::general as nr;

/// What a thread without a cell counts in.
static NOWHERE: Counts = Counts::new();

fn nowhere() -> usize {
    (&raw const NOWHERE).addr()
}

/// What the calling thread counts in.
#[inline(always)]
fn counts() -> &'static Counts {
    let address = nowhere().wrapping_add(word(crate::thread::word::COUNTERS).load(Relaxed));
    // SAFETY: the word leads to `NOWHERE`, to the cell of a caller that waits (`apart`), or to a cell
    // of the segment, which is mapped for good. Counts are atomics, for which any bytes are valid.
    unsafe { &*(address as *const Counts) }
}

/// Counts a call that read so many bytes of a file.
#[inline(always)]
pub(crate) fn read(bytes: usize) {
    counts().read(bytes);
}

/// Counts a call that wrote so many bytes of a file.
#[inline(always)]
pub(crate) fn written(bytes: usize) {
    counts().write(bytes);
}

/// Counts a call that made something durable, unless it failed.
pub(crate) fn synced(verdict: Verdict) -> Verdict {
    done(Kind::Sync, verdict)
}

/// Counts a call on something of the array that is none of the other kinds, unless it failed.
pub(crate) fn other(verdict: Verdict) -> Verdict {
    done(Kind::Other, verdict)
}

fn done(kind: Kind, verdict: Verdict) -> Verdict {
    if let Verdict::Done(0..) = verdict {
        counts().call(kind);
    }
    verdict
}

/// Tells whether the calling thread's next call is one that is timed. A thread's first call is.
#[inline(always)]
pub(crate) fn is_due() -> bool {
    let left = word(crate::thread::word::CALLS_LEFT).as_ptr();
    // SAFETY: a word of the calling thread's block, which no handler touches: none runs in here.
    unsafe {
        *left = (*left).wrapping_sub(1);
        (*left as isize) < 0
    }
}

/// A call that is timed.
pub(crate) struct Timed {
    begin: u64,
    /// The timed call stands for so many calls.
    weight: u64,
}

/// Begins to time a call, and says which of the next is due unless `always`.
pub(crate) fn begin(always: bool) -> Timed {
    let begin = persist::timestamp_in_order();
    let gap = if always { 0 } else { sampling::gap(begin) as usize };
    word(crate::thread::word::CALLS_LEFT).store(gap, Relaxed);
    Timed { begin, weight: if is_ready() { sampling::GAP.into() } else { 1 } }
}

/// What a call that was timed has moved.
pub(crate) struct Moved {
    pub(crate) way: Way,
    /// None: at the offset of the description, which the call has moved.
    pub(crate) offset: Option<u64>,
    pub(crate) bytes: u64,
}

/// Ends it. None if the call moved no bytes of a file, or has failed.
pub(crate) fn end(timed: &Timed, call: &Call, verdict: Verdict) -> Option<Moved> {
    let Verdict::Done(bytes @ 0..) = verdict else { return None };
    let (way, offset) = place(call)?;
    let ticks = persist::timestamp_in_order().wrapping_sub(timed.begin);
    let cell = core::ptr::from_ref(counts());
    if !core::ptr::eq(cell, &raw const NOWHERE) {
        // SAFETY: other counts than `NOWHERE` are the first field of a cell.
        unsafe { &*cell.cast::<CounterCell>() }.note_ticks(way, ticks);
    }
    Some(Moved { way, offset, bytes: bytes as u64 })
}

/// Notes what it has moved on which member.
pub(crate) fn note_spread(timed: &Timed, spread: &Spread<'_>) {
    if let Some(runtime) = runtime() {
        runtime.note_spread(sampling::mixed(timed.begin) as usize, spread, timed.weight);
    }
}

/// Which way a call moves bytes, and at which offset; None for the offset of the description.
fn place(call: &Call) -> Option<(Way, Option<u64>)> {
    let offset = call.args[3] as u64;
    Some(match call.number as u32 {
        nr::__NR_read | nr::__NR_readv => (Way::Read, None),
        nr::__NR_write | nr::__NR_writev => (Way::Write, None),
        nr::__NR_preadv2 if offset == u64::MAX => (Way::Read, None),
        nr::__NR_pwritev2 if offset == u64::MAX => (Way::Write, None),
        nr::__NR_pread64 | nr::__NR_preadv | nr::__NR_preadv2 => (Way::Read, Some(offset)),
        nr::__NR_pwrite64 | nr::__NR_pwritev | nr::__NR_pwritev2 => (Way::Write, Some(offset)),
        _ => return None,
    })
}

fn runtime() -> Option<&'static Runtime> {
    crate::array::namespace().ok().map(|namespace| namespace.files().array().runtime())
}

/// Tells whether the calling thread has a cell, or counts apart.
#[inline]
pub(crate) fn is_ready() -> bool {
    word(crate::thread::word::COUNTERS).load(Relaxed) != 0
}

/// Has the calling thread count in this cell.
fn count_in(cell: &CounterCell) {
    let distance = core::ptr::from_ref(cell).addr().wrapping_sub(nowhere());
    word(crate::thread::word::COUNTERS).store(distance, Relaxed);
}

fn claim(runtime: &'static Runtime) -> Option<&'static CounterCell> {
    // SAFETY: asks for the calling thread's number.
    let thread = unsafe { sys::raw::syscall(nr::__NR_gettid as usize, [0; 6]) };
    runtime.claim_counters(thread as u32).inspect(|cell| count_in(cell))
}

/// Runs `serve` for a thread that has no cell. The thread gets one at once if its process is
/// attached, else if `serve` has counted anything.
pub(crate) fn apart<R>(serve: impl FnOnce() -> R) -> R {
    let attached = runtime().filter(|runtime| runtime.own().is_some());
    if attached.is_some_and(|runtime| claim(runtime).is_some()) {
        return serve();
    }
    let cell = CounterCell::new();
    count_in(&cell);
    let result = serve();
    let left = word(crate::thread::word::CALLS_LEFT).load(Relaxed);
    forget();
    if !cell.counts().is_empty()
        && let Some(own) = runtime().and_then(claim)
    {
        own.take_in(&cell);
        word(crate::thread::word::CALLS_LEFT).store(left, Relaxed);
    }
    result
}

/// The calling thread has no cell: its process is a copy of the one whose cell it counted in.
pub(crate) fn forget() {
    word(crate::thread::word::COUNTERS).store(0, Relaxed);
    word(crate::thread::word::CALLS_LEFT).store(0, Relaxed);
}
