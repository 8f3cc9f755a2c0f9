//! The order of real-time signals of one number.
//!
//! The kernel gives a thread such signals in the order in which they were sent to it. One that is
//! deferred is sent again, and so comes behind those that wait already. Nothing can be put before
//! them. So what was deferred is kept in the thread's block, and what is sent again only *stands*
//! for it: the next signal of the number that comes, whichever that is, tells what was kept first,
//! and what it tells itself is kept in its turn. When the one that stands comes at last, it tells
//! what is still kept. There is one that stands for each that is kept.
//!
//! If no room is left for more, a signal is sent again as it is, and its order is lost. So is that
//! of a signal which may interrupt its own handler (SA_NODEFER), where the last one runs first. A
//! signal that stands and that the program takes by itself (sigwaitinfo(2), in a handler of another
//! signal) tells what was deferred first.

use super::{ENTRIES, Info, SIGNAL_COUNT, queue, send_plainly};
use crate::mask::{ALL_BUT_FAULTS, set_mask};
use crate::stack;
use crate::thread::word;
use crate::uapi::SA_NODEFER;
use core::sync::atomic::{AtomicUsize, Ordering};
use linux_raw_sys::general::__NR_rt_sigpending;
use sys::raw::syscall;

/// The lowest real-time signal of the kernel.
const FIRST: usize = 32;
/// The number of words of siginfo that the kernel keeps of a signal.
const INFO_WORDS: usize = 6;
/// The index of the last of these words, which no kind of real-time signal uses.
const MARK: usize = INFO_WORDS - 1;
/// The value of the word at [`MARK`] in a signal that stands for one that is kept.
const STANDS: usize = 0x6378_6c72_6169_6473;
/// The number of words that are kept of a signal: those of its siginfo as they came, and behind them,
/// at index [`INFO_WORDS`], the number of [`FLUSHES`] when the signal was kept.
const KEPT_WORDS: usize = INFO_WORDS + 1;
/// The most signals that a thread can keep.
const KEPT_COUNT: usize = word::KEPT_SIGNALS_WORDS / KEPT_WORDS;

/// Counts for each number the times that the program has begun to ignore that signal. The kernel
/// then forgets those signals of the number that wait.
static FLUSHES: [AtomicUsize; SIGNAL_COUNT + 1] = [const { AtomicUsize::new(0) }; SIGNAL_COUNT + 1];

/// Notes that the program ignores a signal from now on.
pub(super) fn flush(signal: usize) {
    if let Some(flushes) = FLUSHES.get(signal) {
        flushes.fetch_add(1, Ordering::Relaxed);
    }
}

fn flushes(signal: usize) -> usize {
    FLUSHES.get(signal).map_or(0, |flushes| flushes.load(Ordering::Relaxed))
}

type Kept = [usize; KEPT_WORDS];

fn load(index: usize) -> Kept {
    core::array::from_fn(|at| word(word::KEPT_SIGNALS + index * KEPT_WORDS + at).load(Ordering::Relaxed))
}

fn store(index: usize, kept: &Kept) {
    for (at, &value) in kept.iter().enumerate() {
        word(word::KEPT_SIGNALS + index * KEPT_WORDS + at).store(value, Ordering::Relaxed);
    }
}

/// Returns how many signals the calling thread has kept. A child of fork or vfork has a copy of its
/// parent's thread block, or that block itself, but none of the signals in it: in the child the
/// number is 0.
fn count() -> usize {
    let count = word(word::KEPT_SIGNALS_COUNT).load(Ordering::Relaxed);
    if count != 0 && word(word::KEPT_SIGNALS_THREAD).load(Ordering::Relaxed) != stack::thread() { 0 } else { count }
}

/// Keeps a signal behind all others. Returns false if there is no room.
fn push(kept: &Kept) -> bool {
    let count = count();
    if count == KEPT_COUNT {
        return false;
    }
    store(count, kept);
    word(word::KEPT_SIGNALS_THREAD).store(stack::thread(), Ordering::Relaxed);
    word(word::KEPT_SIGNALS_COUNT).store(count + 1, Ordering::Relaxed);
    true
}

/// Takes the signal at `index` out of those that are kept, and returns it.
fn remove(index: usize) -> Kept {
    let (removed, count) = (load(index), count());
    for index in index + 1..count {
        store(index - 1, &load(index));
    }
    word(word::KEPT_SIGNALS_COUNT).store(count.saturating_sub(1), Ordering::Relaxed);
    removed
}

/// Returns the index of the first kept signal of this number. Signals that were kept before the
/// program last began to ignore their number are forgotten here.
fn first(signal: usize) -> Option<usize> {
    let mut index = 0;
    while index < count() {
        let kept = load(index);
        let number = kept[0] as u32 as usize;
        if kept[INFO_WORDS] != flushes(number) {
            remove(index);
        } else if number == signal {
            return Some(index);
        } else {
            index += 1;
        }
    }
    None
}

fn words(info: &mut Info) -> &mut [usize; INFO_WORDS] {
    // SAFETY: the kernel's siginfo has 128 bytes.
    unsafe { &mut *core::ptr::from_mut(info).cast() }
}

/// Returns what is to be kept of a signal.
fn kept(info: &mut Info) -> Kept {
    let [a, b, c, d, e, f] = *words(info);
    [a, b, c, d, e, f, flushes(a as u32 as usize)]
}

/// Tells whether the order of signals of this number is kept: real-time signals that may not interrupt
/// their own handler.
fn has_order(signal: usize) -> bool {
    signal >= FIRST && ENTRIES.get(signal).is_some_and(|entry| entry.flags.load(Ordering::Relaxed) & SA_NODEFER == 0)
}

/// Sends the calling thread again a signal that is deferred.
pub(super) fn send_again(signal: usize, info: &mut Info) {
    if has_order(signal) {
        undisturbed(|| send_in_order(signal, info));
    } else {
        send_plainly(signal, info);
    }
}

/// Runs `work` while no other signal is deferred or handled in this thread.
fn undisturbed(work: impl FnOnce()) {
    let before = set_mask(ALL_BUT_FAULTS);
    work();
    set_mask(before);
}

fn send_in_order(signal: usize, info: &mut Info) {
    if words(info)[MARK] == STANDS {
        if !queue(signal, info) {
            super::raise(signal);
        }
    } else {
        let kept = kept(info);
        if !push(&kept) {
            return send_plainly(signal, info);
        }
        words(info)[MARK] = STANDS;
        if !queue(signal, info) {
            remove(count().saturating_sub(1));
            words(info)[MARK] = kept[MARK];
            send_plainly(signal, info);
        }
    }
}

/// Puts into `info`, when a signal is about to be handled, what the program is to be told first.
#[inline]
pub(super) fn tell_first(signal: usize, info: &mut Info) {
    if signal >= FIRST {
        exchange(signal, info);
    }
}

fn exchange(signal: usize, info: &mut Info) {
    let stands = words(info)[MARK] == STANDS;
    if stands {
        words(info)[MARK] = 0;
    }
    if count() != 0 && has_order(signal) {
        undisturbed(|| exchange_kept(signal, info, stands));
    }
}

fn exchange_kept(signal: usize, info: &mut Info, stands: bool) {
    let Some(index) = first(signal) else { return };
    if !stands && !is_pending(signal) {
        // No signal stands for what is kept any more: the program has taken those by itself.
        while let Some(index) = first(signal) {
            remove(index);
        }
        return;
    }
    let own = kept(info);
    let [a, b, c, d, e, f, _] = remove(index);
    if !stands {
        push(&own);
    }
    *words(info) = [a, b, c, d, e, f];
}

/// Tells whether a further signal of this number waits. The number is blocked here, since its handler
/// is about to begin.
fn is_pending(signal: usize) -> bool {
    let mut pending = 0_u64;
    // SAFETY: the kernel stores a mask.
    let result = unsafe { syscall(__NR_rt_sigpending as usize, [&raw mut pending as usize, size_of::<u64>(), 0, 0, 0, 0]) };
    result == 0 && pending & super::bit(signal) != 0
}
