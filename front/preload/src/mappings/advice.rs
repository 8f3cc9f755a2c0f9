//! madvise(2) on mappings of array files. Most advice concerns pages, whatever they map, and is
//! left to the kernel. Some advice would lose what is known of stores to the pages, and some
//! concerns the file; both kinds are served here.

use super::change::{is_locked, pages};
use super::{Mappings, any, table};
use crate::call::{Call, Verdict};
use crate::calls::data::{Buffer, buffers};
use crate::calls::fetch;
use linux_raw_sys::general::{
    __NR_madvise, MADV_COLD, MADV_COLLAPSE, MADV_DOFORK, MADV_DONTFORK, MADV_DONTNEED, MADV_DONTNEED_LOCKED, MADV_HUGEPAGE,
    MADV_NOHUGEPAGE, MADV_PAGEOUT, MADV_POPULATE_WRITE, MADV_REMOVE,
};
use sys::place::PART;
use sys::raw::syscall;
use sys::{OsError, RawFd};

/// Serves madvise(2). A range may begin below the library's part of the address space and reach into
/// it. The advice is then given without that part: if a child did not have the library's memory
/// (MADV_WIPEONFORK), or its pages were dropped (MADV_DONTNEED), the program would end.
pub(crate) fn madvise(call: &mut Call) -> Verdict {
    let [start, bytes, ..] = call.args;
    match pages(start, bytes) {
        Some((start, end)) if start < PART.start && end > PART.start => around_ours(call, start, end),
        _ => advise(call),
    }
}

/// Advises what lies below and above the library's part of the address space, as if nothing were
/// mapped there.
fn around_ours(call: &mut Call, start: usize, end: usize) -> Verdict {
    const NOT_MAPPED: isize = -(OsError::NOMEM.raw_os_error() as isize);
    let kept = call.args;
    let mut answer = Verdict::Done(NOT_MAPPED);
    for (from, to) in [(start, PART.start), (PART.end, end)] {
        if from >= to {
            continue;
        }
        (call.args[0], call.args[1]) = (from, to - from);
        let result = match advise(call) {
            Verdict::Done(result) => result,
            _ => call.kernel(),
        };
        if result != 0 && result != NOT_MAPPED {
            answer = Verdict::Done(result);
            break;
        }
    }
    call.args = kept;
    answer
}

fn advise(call: &mut Call) -> Verdict {
    let Some((start, end)) = pages(call.args[0], call.args[1]).filter(|_| any()) else { return Verdict::Pass };
    let mut table = table();
    if table.touching(start, end).is_empty() {
        return Verdict::Pass;
    }
    match call.args[2] as u32 {
        // Dropped pages of a shared mapping come back as they were, but what is known of stores to
        // them would be lost.
        advice @ (MADV_DONTNEED | MADV_DONTNEED_LOCKED | MADV_COLD | MADV_PAGEOUT | MADV_COLLAPSE) => {
            Verdict::Done(table.walk(call, start, end, |table, index, from, to| {
                let is_refused = match advice {
                    // The kernel gives this error for a file without huge pages.
                    MADV_COLLAPSE => !table.list[index].keeps_huge(),
                    MADV_DONTNEED_LOCKED => false,
                    _ => is_locked(from, to),
                };
                if is_refused { Err(OsError::INVAL) } else { Ok(()) }
            }))
        }
        advice @ (MADV_HUGEPAGE | MADV_NOHUGEPAGE) => {
            Verdict::Done(table.walk(call, start, end, |table, _, from, to| table.advise_unit(from, to, advice == MADV_HUGEPAGE)))
        }
        MADV_REMOVE => Verdict::Done(table.walk(call, start, end, |table, index, from, to| {
            let mapping = &table.list[index];
            if is_locked(from, to) {
                return Err(OsError::INVAL);
            }
            // As in Linux since 6.8, it does not matter whether the pages may be stored to at the
            // moment.
            if !mapping.may_write {
                return Err(OsError::ACCESS);
            }
            mapping.file.punch(mapping.offset_at(from), (to - from) as u64, false)
        })),
        advice @ (MADV_DONTFORK | MADV_DOFORK) => {
            table.split(start);
            table.split(end);
            let range = table.touching(start, end);
            table.list[range].iter_mut().for_each(|mapping| mapping.dont_fork = advice == MADV_DONTFORK);
            Verdict::Done(call.kernel())
        }
        // The kernel makes these pages as if they were stored to, which granules without the right
        // do not permit. So the right is given first, and the table's lock keeps it there until the
        // kernel has used it.
        MADV_POPULATE_WRITE if table.let_store(start, end) => Verdict::Done(call.kernel()),
        _ => Verdict::Pass,
    }
}

/// Tells whether an advice concerns what the library knows of mappings, so that it cannot be left to
/// the kernel.
pub(crate) const fn is_served(advice: u32) -> bool {
    matches!(advice, MADV_DONTNEED | MADV_DONTNEED_LOCKED | MADV_COLD | MADV_PAGEOUT | MADV_COLLAPSE | MADV_HUGEPAGE)
        || matches!(advice, MADV_NOHUGEPAGE | MADV_REMOVE | MADV_DONTFORK | MADV_DOFORK | MADV_POPULATE_WRITE)
}

/// Serves process_madvise(2), by which a process may give any advice to itself since Linux 6.13.
/// Advice that concerns mappings of the array is served range by range, as by madvise(2).
pub(crate) fn process_madvise(call: &mut Call) -> Verdict {
    let kept = (call.number, call.args);
    let [pidfd, _, _, advice, flags, _] = call.args;
    if !any() || !is_served(advice as u32) || flags != 0 {
        return Verdict::Pass;
    }
    // The kernel reads and cuts the ranges as it does buffers (import_iovec).
    let ranges = match buffers(call) {
        Ok(ranges) => ranges,
        Err(error) => return Verdict::error(error),
    };
    if !fetch::means_own_memory(pidfd as RawFd) {
        return Verdict::Pass;
    }
    // The kernel is asked with an empty list of ranges whether it lets a process give itself such
    // advice.
    // SAFETY: the call advises nothing.
    let judged = unsafe { syscall(call.number, [pidfd, 0, 0, advice, flags, 0]) };
    if judged != 0 {
        return Verdict::Done(judged);
    }
    let (mut advised, mut result) = (0, 0);
    // If all ranges are without bytes, the kernel looks at none. Otherwise it looks at the first
    // range, with bytes or without, and at those of the others that have bytes.
    if ranges.iter().all(|range| range.bytes == 0) {
        return Verdict::Done(0);
    }
    let is_looked_at = |(index, range): &(usize, Buffer)| *index == 0 || range.bytes > 0;
    for (_, Buffer { address: start, bytes }) in ranges.into_iter().enumerate().filter(is_looked_at) {
        (call.number, call.args) = (__NR_madvise as usize, [start, bytes, advice, 0, 0, 0]);
        result = match madvise(call) {
            Verdict::Done(result) => result,
            _ => call.kernel(),
        };
        if result < 0 {
            break;
        }
        advised += bytes;
    }
    (call.number, call.args) = kept;
    Verdict::Done(if advised > 0 { advised as isize } else { result })
}

impl Mappings {
    /// Gives the right to store to those parts of a range that lie in writable mappings whose
    /// granules need a right. Returns whether there is such a mapping.
    fn let_store(&mut self, start: usize, end: usize) -> bool {
        let mut is_any = false;
        for index in self.touching(start, end) {
            let mapping = &self.list[index];
            if mapping.rights.is_none() || !mapping.is_writable() {
                continue;
            }
            is_any = true;
            let (from, to) = mapping.part(start, end);
            let to = to.min(mapping.composed);
            // A granule for which there is no space gets no right, and the kernel's call fails.
            self.give_part(index, from, to);
        }
        is_any
    }

    /// Sets the unit in which stores to the range are followed, as MADV_HUGEPAGE and
    /// MADV_NOHUGEPAGE wish it.
    fn advise_unit(&mut self, start: usize, end: usize, wants_huge: bool) -> Result<(), OsError> {
        self.split(start);
        self.split(end);
        let mut result = Ok(());
        for index in self.touching(start, end) {
            let mut mapping = self.list.remove(index);
            result = result.and(self.change_unit(&mut mapping, wants_huge));
            self.list.insert(index, mapping);
        }
        result
    }
}
