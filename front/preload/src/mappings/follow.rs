//! Following: finds the pages of watched mappings that were stored to, and makes their redundancy
//! fit.

use super::change::is_mapped;
use super::rights::protect;
use super::{COUNT, Followed, Mapping, Mappings, any, table};
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;
use file::FileRef;
use format::Attribute;
use linux_raw_sys::general::PROT_READ;
use sys::OsError;
use sys::tracking::Written;

/// How many runs of pages a scan asks the tracker for at a time.
const REGION_COUNT: usize = 256;

/// Follows all mappings that this process has of a file (fsync(2) and its like).
pub(crate) fn file(file: &FileRef) -> Result<(), OsError> {
    if !any() {
        return Ok(());
    }
    let wanted = file.attribute();
    table().follow_where(|attribute| attribute == wanted)
}

/// Follows every mapping of this process (sync(2)).
pub(crate) fn all() -> Result<(), OsError> {
    if any() { table().follow_where(|_| true) } else { Ok(()) }
}

impl Mappings {
    /// Follows the mappings of the files for which `wanted` holds.
    fn follow_where(&mut self, wanted: impl Fn(Attribute) -> bool) -> Result<(), OsError> {
        let mut result = self.follow_kept(usize::MAX, &wanted);
        let mut list = core::mem::take(&mut self.list);
        for mapping in list.iter_mut().filter(|mapping| mapping.followed && wanted(mapping.file.attribute())) {
            result = result.and(self.follow_stored(mapping, mapping.start, mapping.end));
        }
        self.list = list;
        result
    }

    /// Keeps stores through all mappings out while a member is about to go out, as
    /// [`Self::withhold`] does for one mapping.
    pub(super) fn withhold_all(&mut self) {
        for index in 0..self.list.len() {
            let mut mapping = self.list.remove(index);
            self.withhold(&mut mapping);
            self.list.insert(index, mapping);
        }
    }

    /// Brings the mappings of a file up to date with it, and follows them.
    pub(super) fn look_at(&mut self, attribute: Attribute) {
        // A failure is noted in the record, for the process that has called.
        let _ = self.follow_owed(attribute);
        for index in 0..self.list.len() {
            if self.list[index].file.attribute() == attribute {
                self.answer(index);
            }
        }
    }

    /// Answers the calls of other processes for one mapping.
    pub(super) fn answer(&mut self, index: usize) {
        let mut mapping = self.list.remove(index);
        mapping.answered = mapping.file.news();
        // What cannot be done now is tried again in the next period.
        let _ = self.follow_size(&mut mapping);
        if mapping.followed {
            let (start, end) = (mapping.start, mapping.end);
            let _ = self.follow_stored(&mut mapping, start, end);
        }
        self.list.insert(index, mapping);
    }

    /// Follows the pages of a mapping in `start..end` as [`Self::follow`] does, but without a scan if
    /// the mapping is quiet: then only what is owed is followed.
    pub(super) fn follow_stored(&mut self, mapping: &mut Mapping, start: usize, end: usize) -> Result<(), OsError> {
        if mapping.is_quiet() {
            return self.follow_owed(mapping.file.attribute());
        }
        self.follow(mapping, start, end)
    }

    /// Follows what is owed of a mapping's file, and then the pages of the mapping in `start..end`.
    /// What fails is tried again the next time.
    pub(super) fn follow(&mut self, mapping: &mut Mapping, start: usize, end: usize) -> Result<(), OsError> {
        let end = end.min(mapping.composed);
        let mut at = start;
        let mut result = self.follow_owed(mapping.file.attribute());
        while at < end {
            let (next, done) = self.follow_some(mapping, at, end);
            result = result.and(done);
            at = next;
        }
        result
    }

    /// Follows the first pages in `at..end` that were stored to. Returns the address at which to go
    /// on.
    pub(super) fn follow_some(&mut self, mapping: &mut Mapping, at: usize, end: usize) -> (usize, Result<(), OsError>) {
        if mapping.tells_stores() {
            return (end, self.follow_given(mapping, at, end));
        }
        mapping.begin_pass(at);
        let Some((from, to)) = mapping.touched(at, end) else {
            mapping.pass_reaches(at, end);
            return (end, Ok(()));
        };
        let mut regions = [const { MaybeUninit::<Written>::uninit() }; REGION_COUNT];
        let Some(tracker) = &self.tracker else { return (end, Err(OsError::NODEV)) };
        match tracker.written(from, to, true, &mut regions) {
            Ok((found, next)) => {
                mapping.pass_reaches(at, next);
                (next, self.make_follow(mapping, found.iter().map(|run| (run.start as usize, run.end as usize))))
            }
            // Something in `from..to` is not watched, so all of it may have been stored to.
            Err(_) => {
                (mapping.quiet_since, mapping.pass) = (None, None);
                let _ = tracker.watch_inherited(from, to - from);
                (to, self.make_follow(mapping, [(from, to)]))
            }
        }
    }

    /// Makes the redundancy of ranges of addresses agree with what was stored there. If that fails,
    /// all of the ranges are *owed*: they are noted, and followed at the next occasion.
    pub(super) fn make_follow(
        &mut self,
        mapping: &Mapping,
        ranges: impl IntoIterator<Item = (usize, usize), IntoIter: Clone>,
    ) -> Result<(), OsError> {
        let attribute = mapping.file.attribute();
        let followed =
            self.files.iter_mut().find(|followed| followed.mapped.file().attribute() == attribute).ok_or(OsError::NODEV)?;
        let ranges = ranges.into_iter().map(|(start, end)| (mapping.offset_at(start), mapping.offset_at(end)));
        followed.mapped.follow(ranges.clone()).inspect_err(|&error| {
            ranges.for_each(|range| followed.owe(range));
            followed.mapped.note_failure(Some(error));
        })
    }

    /// Follows all that is owed of a file.
    fn follow_owed(&mut self, attribute: Attribute) -> Result<(), OsError> {
        self.follow_all_owed(usize::MAX, |file| file == attribute)
    }

    /// Follows what is owed as [`Self::follow_all_owed`] does. A file that has no mapping any more and
    /// was kept only because something of it was owed is then forgotten, if nothing is owed now.
    pub(super) fn follow_kept(&mut self, failures_max: usize, wanted: impl Fn(Attribute) -> bool) -> Result<(), OsError> {
        let result = self.follow_all_owed(failures_max, wanted);
        if COUNT.load(Ordering::Acquire) != self.list.len() {
            self.forget_files();
        }
        result
    }

    /// Follows what is owed of the files for which `wanted` holds, also of those that have no mapping
    /// any more. After `failures_max` ranges of a file have failed, the file's other ranges wait: each
    /// range costs a call of a member's file system if that is full.
    fn follow_all_owed(&mut self, failures_max: usize, wanted: impl Fn(Attribute) -> bool) -> Result<(), OsError> {
        let is_owing = |followed: &&mut Followed| !followed.owed.is_empty() && wanted(followed.mapped.file().attribute());
        let mut result = Ok(());
        for followed in self.files.iter_mut().filter(is_owing) {
            result = result.and(followed.follow_owed(failures_max));
        }
        result
    }

    /// Makes a call that unmaps `start..end` or maps something else there. Before the call, stores to
    /// the parts of mappings that lie there are kept out, and the parts are followed for the last
    /// time. After the call the parts are forgotten, those of private mappings as well. If the call
    /// fails, the mappings stay as they were, unless the kernel has unmapped them nevertheless.
    pub(super) fn replace<T>(
        &mut self,
        start: usize,
        end: usize,
        call: impl FnOnce() -> Result<T, OsError>,
    ) -> Result<T, OsError> {
        self.replace_by(start, end, |_| call())
    }

    /// As [`Self::replace`], where the call may say that the range is not what it was although it
    /// fails. What is there then is none of the mappings, and left alone.
    pub(super) fn replace_by<T>(
        &mut self,
        start: usize,
        end: usize,
        call: impl FnOnce(&mut bool) -> Result<T, OsError>,
    ) -> Result<T, OsError> {
        super::fault::prepare_stack()?;
        super::fault::reach(start, end);
        for index in self.touching(start, end) {
            self.seal(index, start, end);
        }
        let mut is_changed = false;
        let result = call(&mut is_changed);
        if result.is_ok() || is_changed || self.has_gap(start, end) {
            self.forget(start, end);
            self.forget_private(start, end);
        } else {
            self.let_in(start, end);
        }
        result
    }

    /// Tells whether a part of a mapping in `start..end` is mapped no more: before a driver refuses an
    /// mmap(2) with MAP_FIXED, the kernel has unmapped the whole range.
    fn has_gap(&self, start: usize, end: usize) -> bool {
        let shared = self.list[self.touching(start, end)].iter().map(|mapping| mapping.part(start, end));
        shared.chain(self.private_parts(start, end)).any(|(start, end)| !is_mapped(start, end))
    }

    /// Lets in again the stores that [`Self::seal`] has kept out of `start..end`.
    fn let_in(&self, start: usize, end: usize) {
        for mapping in &self.list[self.touching(start, end)] {
            let (start, end) = mapping.part(start, end.min(mapping.composed));
            if mapping.stored && !mapping.sealed {
                // If the kernel refuses, the next store there is a fault that the program sees.
                let _ = protect(start, end, mapping.shown_protection());
                mapping.open_given(start, end);
            }
        }
    }

    /// Keeps stores out of the part of mapping `index` that lies in `start..end`, and follows it.
    pub(super) fn seal(&mut self, index: usize, start: usize, end: usize) {
        let mut mapping = self.list.remove(index);
        self.keep_out(&mut mapping, start, end);
        self.list.insert(index, mapping);
    }

    /// Keeps stores out of the part of a mapping that lies in `start..end`, and follows it. The caller
    /// has taken the mapping out of the table.
    pub(super) fn keep_out(&mut self, mapping: &mut Mapping, start: usize, end: usize) {
        if !mapping.stored {
            return;
        }
        let (start, end) = mapping.part(start, end.min(mapping.composed));
        if start >= end {
            return;
        }
        // A thread that stores meanwhile waits in the library's fault handler.
        let _ = protect(start, end, mapping.protection & PROT_READ as usize);
        if mapping.followed {
            // What fails now is owed: the data are there, and their redundancy is made at the next
            // occasion.
            let _ = self.follow(mapping, start, end);
        }
    }
}
