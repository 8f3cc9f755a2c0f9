//! madvise(2) on mappings of array files. Most advice concerns pages, whatever they map; some would lose what is known about them, or concerns the file.

use super::change::pages;
use super::{Mapping, Mappings, any, table};
use crate::dispatch::{Call, Verdict};
use linux_raw_sys::general::{
    MADV_COLD, MADV_COLLAPSE, MADV_DOFORK, MADV_DONTFORK, MADV_DONTNEED, MADV_DONTNEED_LOCKED, MADV_HUGEPAGE, MADV_NOHUGEPAGE,
    MADV_PAGEOUT, MADV_REMOVE,
};
use sys::OsError;

/// `madvise`.
pub(crate) fn madvise(call: &mut Call) -> Verdict {
    let Some((start, end)) = pages(call.args[0], call.args[1]).filter(|_| any()) else { return Verdict::Pass };
    let mut table = table();
    if table.touching(start, end).is_empty() {
        return Verdict::Pass;
    }
    match call.args[2] as u32 {
        // As the kernel says of a file without huge pages.
        MADV_COLLAPSE if !table.list[table.touching(start, end)].iter().any(Mapping::keeps_huge) => {
            Verdict::error(OsError::INVAL)
        }
        // Pages of a shared mapping come back as they were; dropping them would drop what is known of stores to them.
        MADV_DONTNEED | MADV_DONTNEED_LOCKED | MADV_COLD | MADV_PAGEOUT | MADV_COLLAPSE => {
            Verdict::Done(table.call_on_others(call, start, end))
        }
        advice @ (MADV_HUGEPAGE | MADV_NOHUGEPAGE) => {
            let done = table.advise_unit(start, end, advice == MADV_HUGEPAGE);
            let others = table.call_on_others(call, start, end);
            done.map_or_else(Verdict::error, |()| Verdict::Done(others))
        }
        MADV_REMOVE => Verdict::from_result(table.remove(start, end).map(|()| 0)),
        advice @ (MADV_DONTFORK | MADV_DOFORK) => {
            table.split(start);
            table.split(end);
            let range = table.touching(start, end);
            table.list[range].iter_mut().for_each(|mapping| mapping.dont_fork = advice == MADV_DONTFORK);
            Verdict::Done(call.kernel())
        }
        _ => Verdict::Pass,
    }
}

impl Mappings {
    /// MADV_HUGEPAGE, MADV_NOHUGEPAGE: the unit in which stores to the range are followed.
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

    /// MADV_REMOVE: the range becomes a hole of the file.
    fn remove(&mut self, start: usize, end: usize) -> Result<(), OsError> {
        let mut at = start;
        while at < end {
            let mapping = self.at(at).map(|index| &self.list[index]).ok_or(OsError::NOMEM)?;
            // Whether its pages may be stored to now is not asked, as since Linux 6.8.
            if !mapping.may_write {
                return Err(OsError::ACCESS);
            }
            let stop = mapping.end.min(end);
            mapping.file.punch(mapping.offset_at(at), (stop - at) as u64, false)?;
            at = stop;
        }
        Ok(())
    }
}
