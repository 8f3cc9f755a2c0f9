//! The library's thread, which follows the process' mappings in rounds, one per *period* of 100 ms.
//! So little is lost with a member, and little is to be resynced after a kill.
//!
//! The thread exists only in processes that have mapped an array file shared. Between rounds it
//! listens to the bell of the runtime segment. Another process that has cut a file or synchronises
//! one rings the bell: all processes are to look at the file, and that process waits until they
//! have. The thread is made by a bare clone, with every signal blocked, runs on a stack and thread
//! block of its own, and holds the table's lock for a short time only. It takes no more than a few
//! percent of one processor: the longer a round took, the later is the next. A child of fork makes
//! a thread of its own.

use super::{any, table};
use crate::arch::helper::{spawn, thread_bytes};
use crate::mask::{ALL_BUT_FAULTS, set_mask};
use array::Runtime;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use linux_raw_sys::general::{__NR_clock_gettime, __NR_munmap, __NR_nanosleep, CLOCK_MONOTONIC};
use sys::raw::syscall;

const PERIOD_MS_DEFAULT: u64 = 100;
/// A round is followed by at least this many times its own duration of rest.
const REST_FACTOR: u64 = 30;
/// Every this many rounds the thread asks whether other processes have died with mappings of the
/// same files. In that round it also scans quiet mappings, since another process may have stored to
/// this process' memory.
const ROUNDS_PER_INQUIRY: u64 = 8;
/// With so many ranges of one file that cannot be followed in a round, the file's others wait for
/// the next round or a call of the program's.
const FAILURES_PER_ROUND: usize = 16;

static RUNNING: AtomicBool = AtomicBool::new(false);
/// Nanoseconds; 0 before the first use.
static PERIOD_NS: AtomicU64 = AtomicU64::new(0);
/// How often the bell had been rung when the thread was made. The thread need not answer these
/// rings.
static HEARD: AtomicU32 = AtomicU32::new(0);

/// Makes sure that the thread runs. The table's lock is held.
pub(super) fn start() {
    let period_ms = crate::own::environment()
        .get(b"CXLRAID_MAP_PERIOD_MS")
        .and_then(|text| core::str::from_utf8(text).ok()?.trim().parse().ok())
        .unwrap_or(PERIOD_MS_DEFAULT);
    PERIOD_NS.store(period_ms.clamp(1, 3_600_000) * 1_000_000, Ordering::Relaxed);
    if RUNNING.swap(true, Ordering::AcqRel) {
        return;
    }
    if start_thread().is_none() {
        // Without the thread the program's own calls follow its mappings. The next mapping tries to
        // make the thread again.
        RUNNING.store(false, Ordering::Release);
    }
}

/// The time between two rounds.
pub(super) fn period_ns() -> u64 {
    PERIOD_NS.load(Ordering::Relaxed)
}

/// Notes that there is no such thread in this process, a child of fork or a deputy.
pub(super) fn forget() {
    RUNNING.store(false, Ordering::Release);
}

fn start_thread() -> Option<()> {
    let memory = crate::alloc::map_anonymous(thread_bytes()).ok()?;
    // The thread does not ask this itself: by the time it runs the process may have detached from
    // the array.
    HEARD.store(runtime().map_or(0, Runtime::heard), Ordering::Relaxed);
    // The thread begins with the mask of its maker: everything but the faults of guarded copies.
    let before = set_mask(ALL_BUT_FAULTS);
    // SAFETY: the memory is new, writable, of that length, and the thread's for good.
    let made = unsafe { spawn(run, memory) };
    set_mask(before);
    if made > 0 {
        if let Some(runtime) = runtime() {
            // This comes before the thread's maker shows other processes that it has mappings.
            runtime.set_listener(made as u32);
        }
    } else {
        // SAFETY: no thread was made, so nobody uses the memory.
        unsafe { syscall(__NR_munmap as usize, [memory, thread_bytes(), 0, 0, 0, 0]) };
        return None;
    }
    Some(())
}

extern "C" fn run() -> ! {
    let mut rest_ns = PERIOD_NS.load(Ordering::Relaxed);
    // The thread answers at once what was rung since it was made.
    let mut rings = HEARD.load(Ordering::Relaxed);
    for round in 1u64.. {
        rest(rest_ns, &mut rings);
        let start = now_ns();
        if any() {
            crate::mappings::fault::catch_up();
            let inquires = round.is_multiple_of(ROUNDS_PER_INQUIRY);
            follow_all(inquires);
            // What cannot be followed now is tried again in the next round.
            let _ = table().follow_kept(FAILURES_PER_ROUND, |_| true);
            if inquires {
                table().files.iter().for_each(|followed| {
                    // What cannot be made good now is tried again in a later round.
                    let _ = followed.mapped.finish_others();
                });
            }
        }
        super::unused::drop_old();
        rest_ns = PERIOD_NS.load(Ordering::Relaxed).max((now_ns() - start) * REST_FACTOR);
    }
    unreachable!("rounds do not end")
}

fn runtime() -> Option<&'static Runtime> {
    crate::array::namespace().ok().map(|namespace| namespace.files().array().runtime())
}

/// Rests, and answers calls of other processes meanwhile. `rings` is how often the bell had been
/// rung when the thread last looked at it.
fn rest(ns: u64, rings: &mut u32) {
    let end = now_ns() + ns;
    loop {
        let left = end.saturating_sub(now_ns());
        if left == 0 {
            return;
        }
        let Some(runtime) = runtime() else { return sleep(left) };
        runtime.await_ring(*rings, left);
        let heard = runtime.rings();
        if heard != *rings {
            *rings = heard;
            answer(runtime, heard);
        }
    }
}

/// Looks at the files that others have called for, and notes that this process has answered the
/// bell up to ring `heard`.
fn answer(runtime: &Runtime, heard: u32) {
    let mut table = table();
    if !runtime.leaving().is_empty() {
        table.withhold_all();
    }
    for index in 0..table.files.len() {
        let mapped = &table.files[index].mapped;
        let call = mapped.file().last_call();
        if mapped.has_answered(call) && !mapped.file().is_copy_wanted() {
            continue;
        }
        let attribute = mapped.file().attribute();
        table.look_at(attribute);
        if let Some(followed) = table.files.iter().find(|followed| followed.mapped.file().attribute() == attribute) {
            followed.mapped.answer(call);
        }
    }
    // Mappings that are only loaded from have no record of their file, and answer here. So do
    // mappings from which stores were kept out until now, and all mappings if a member went out.
    for index in 0..table.list.len() {
        if table.list[index].sealed || table.list[index].answered != table.list[index].file.news() {
            table.answer(index);
        }
    }
    // This is noted with the table's lock held: a process that has detached never gives that lock
    // back, so it notes nothing.
    runtime.hear(heard);
}

/// Follows every mapping, a few pages at a time: the program's own calls get the lock in between.
/// Quiet mappings are followed only if `asks`.
fn follow_all(asks: bool) {
    let mut at = 0;
    loop {
        let mut table = table();
        let index = table.list.partition_point(|mapping| mapping.end <= at);
        if index == table.list.len() {
            return;
        }
        let mut mapping = table.list.remove(index);
        let (start, end) = (at.max(mapping.start), mapping.composed);
        let passes = !mapping.followed || start >= end || !asks && mapping.is_quiet();
        at = if passes { mapping.end } else { table.follow_some(&mut mapping, start, end).0 };
        table.list.insert(index, mapping);
    }
}

pub(super) fn now_ns() -> u64 {
    let mut time = [0u64; 2];
    // SAFETY: the kernel fills two words.
    unsafe { syscall(__NR_clock_gettime as usize, [CLOCK_MONOTONIC as usize, &raw mut time as usize, 0, 0, 0, 0]) };
    time[0] * 1_000_000_000 + time[1]
}

fn sleep(ns: u64) {
    let time = [ns / 1_000_000_000, ns % 1_000_000_000];
    // SAFETY: the kernel reads two words.
    unsafe { syscall(__NR_nanosleep as usize, [&raw const time as usize, 0, 0, 0, 0, 0]) };
}
