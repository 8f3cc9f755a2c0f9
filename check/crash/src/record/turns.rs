//! Which of several recorded threads runs: one at a time, changing only where one traps, by numbers
//! from a seed.
//!
//! So a run with two writers is the same each time, and threads meet at every place where what one
//! has done can be seen by the other or by a crash. A thread that would sleep for a lock gives its
//! turn away instead and looks again.

use super::raw;
use oracle::Rng;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

thread_local! {
    static ME: Cell<Option<u8>> = const { Cell::new(None) };
}

/// Threads that have not ended, one bit each.
static LIVE: AtomicU32 = AtomicU32::new(0);
static TURN: AtomicU32 = AtomicU32::new(0);

/// How often a thread goes on where it might have given way: once in so many traps it does.
const STEPS_MEAN: u64 = 12;

/// The number of this thread, 0 for one that is alone.
pub(super) fn me() -> u8 {
    ME.get().unwrap_or(0)
}

/// What the engine takes for the number of the thread that is alone; those of the others follow.
const ID_OF_MAIN: u32 = 1 << 20;
/// How far apart their numbers are: the engine spreads threads over lanes by them.
static STRIDE: AtomicU32 = AtomicU32::new(1);

/// The calling thread's number as the engine sees it: the kernel's would be another one in each
/// run, and the run with it.
pub(super) fn my_id() -> u32 {
    ME.get().map_or(ID_OF_MAIN, |me| ID_OF_MAIN + (u32::from(me) + 1) * STRIDE.load(Ordering::Relaxed))
}

/// Whether that is a thread which has not ended.
pub(super) fn is_live_id(id: usize) -> bool {
    let (number, stride) = ((id as u32).wrapping_sub(ID_OF_MAIN), STRIDE.load(Ordering::Relaxed));
    number == 0 || number.is_multiple_of(stride) && LIVE.load(Ordering::SeqCst) >> (number / stride - 1) & 1 == 1
}

/// Announces that `count` threads will run, `stride` apart in number; thread 0 has the first turn.
pub(super) fn expect(count: usize, stride: u32) {
    STRIDE.store(stride, Ordering::Relaxed);
    TURN.store(0, Ordering::SeqCst);
    LIVE.store((1 << count) - 1, Ordering::SeqCst);
}

/// A thread's first act: waits for its turn.
pub(crate) fn enter(number: u8) {
    ME.set(Some(number));
    wait(number);
}

/// A thread's last act.
pub(crate) fn leave() {
    if let Some(me) = ME.take() {
        let left = LIVE.fetch_and(!(1 << me), Ordering::SeqCst) & !(1 << me);
        if left != 0 {
            TURN.store(left.trailing_zeros(), Ordering::SeqCst);
        }
    }
}

fn wait(me: u8) {
    while TURN.load(Ordering::SeqCst) != u32::from(me) {
        raw::call(libc::SYS_sched_yield, [0; 6]);
    }
}

/// Lets another thread run, if there is one.
pub(super) fn yield_turn() {
    let Some(me) = ME.get() else { return };
    let others = LIVE.load(Ordering::SeqCst) & !(1 << me);
    if others == 0 {
        return;
    }
    // The next one after us, around.
    let after = others & !((2u32 << me) - 1);
    TURN.store(if after != 0 { after } else { others }.trailing_zeros(), Ordering::SeqCst);
    wait(me);
}

/// Perhaps lets another thread run.
pub(super) fn perhaps_yield(rng: &mut Rng) -> bool {
    ME.get().is_some() && rng.one_in(STEPS_MEAN)
}

/// Whether this thread is one of several.
pub(super) fn is_one_of_several() -> bool {
    ME.get().is_some_and(|me| LIVE.load(Ordering::SeqCst) & !(1 << me) != 0)
}
