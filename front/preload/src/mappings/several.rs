//! mremap(2) that moves all mappings of a range at once (Linux 6.17): they keep their distances,
//! and the first one must begin at or before the range. Each is moved by a call of its own.
//!
//! Invariant: a call on one mapping is left to [`change::mremap`], and so is every call on a kernel
//! that moves one mapping at a time.

use super::{PAGE, change, private, table};
use crate::alloc::map_anonymous;
use crate::call::{Call, Verdict};
use crate::maps::Area;
use core::sync::atomic::{AtomicU8, Ordering};
use linux_raw_sys::general::{__NR_mprotect, __NR_mremap, __NR_munmap, MREMAP_FIXED, MREMAP_MAYMOVE, PROT_NONE};
use sys::OsError;
use sys::raw::{check, syscall};

/// `mremap`.
pub(crate) fn mremap(call: &mut Call) -> Verdict {
    if !private::any() && !super::any() {
        return Verdict::Pass;
    }
    match range(call) {
        Some((start, end)) => moved(call, start, end),
        None => change::mremap(call),
    }
}

/// The range that the call moves, if it moves more than one mapping and the kernel can do so.
fn range(call: &Call) -> Option<(usize, usize)> {
    let [address, old_bytes, new_bytes, flags, target, _] = call.args;
    if flags & MREMAP_FIXED as usize == 0 {
        return None;
    }
    let (start, end) = change::pages(address, old_bytes)?;
    let bytes = new_bytes.checked_next_multiple_of(PAGE).filter(|&bytes| bytes == end - start)?;
    let is_ours = {
        let table = table();
        table.touches_any(start, end) || table.touches_any(target, target.saturating_add(bytes))
    };
    let overlaps = target < end && address < target.wrapping_add(bytes);
    if !is_ours || overlaps || end_of_one(start)? >= end || change::refusal_of_remap(call).is_some() {
        return None;
    }
    moves_several().then_some((start, end))
}

/// Where the mapping ends that holds `at`, as the program has made it; None if nothing is mapped
/// there.
fn end_of_one(at: usize) -> Option<usize> {
    let whole = {
        let table = table();
        if let Some(end) = table.end_of_shared(at) {
            return Some(end);
        }
        table.end_of_private(at)
    };
    let first = Area::around(at)?;
    let mut end = first.addresses.end;
    // A private mapping of a file of the array is made of the members' chunks.
    while let Some(limit) = whole.filter(|&limit| end < limit) {
        match Area::around(end).filter(|next| !next.is_shared && next.protection == first.protection) {
            Some(next) => end = next.addresses.end.min(limit),
            None => break,
        }
    }
    Some(end)
}

/// Moves one mapping after the other. The first one that cannot be moved ends it; those before it
/// stay where they are by then.
fn moved(call: &mut Call, start: usize, end: usize) -> Verdict {
    let args = call.args;
    let (mut at, mut first) = (start, None);
    while at < end {
        let Some(stop) = end_of_one(at).map(|stop| stop.min(end)) else {
            let next = Area::find(b"/proc/self/maps\0", |area| area.addresses.start > at);
            at = next.map_or(end, |area| area.addresses.start);
            continue;
        };
        call.args = [at, stop - at, stop - at, args[3], args[4].wrapping_add(at - start), 0];
        let answer = match change::mremap(call) {
            Verdict::Done(answer) => answer,
            _ => call.kernel(),
        };
        if check(answer).is_err() {
            first = Some(answer);
            break;
        }
        first.get_or_insert(answer);
        at = stop;
    }
    call.args = args;
    first.map_or(Verdict::error(OsError::FAULT), Verdict::Done)
}

/// Whether the kernel moves several mappings at once. It is asked once, with two of the library's
/// own.
fn moves_several() -> bool {
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);
    match ANSWER.load(Ordering::Relaxed) {
        UNKNOWN => {}
        answer => return answer == YES,
    }
    let Ok(start) = map_anonymous(4 * PAGE) else { return false };
    let flags = (MREMAP_MAYMOVE | MREMAP_FIXED) as usize;
    // SAFETY: four pages of the library's own that nobody knows: the first two become two mappings,
    // and take the place of the others.
    let result = unsafe {
        let _ = syscall(__NR_mprotect as usize, [start + PAGE, PAGE, PROT_NONE as usize, 0, 0, 0]);
        let result = syscall(__NR_mremap as usize, [start, 2 * PAGE, 2 * PAGE, flags, start + 2 * PAGE, 0]);
        // What was moved has left a hole that another thread may fill at any instant, so only what
        // is known to be there is unmapped.
        let kept = if check(result).is_ok() { start + 2 * PAGE..start + 4 * PAGE } else { start..start + 4 * PAGE };
        let _ = syscall(__NR_munmap as usize, [kept.start, kept.len(), 0, 0, 0, 0]);
        result
    };
    let answer = if check(result).is_ok() { YES } else { NO };
    ANSWER.store(answer, Ordering::Relaxed);
    answer == YES
}
