//! Mappings that are write-protected, in which the library's fault handler lets stores through
//! granule by granule.
//!
//! A mapping that the program may store to is write-protected at first in two cases:
//! - *Space.* A store into a hole needs space on every member, and a file system that is full would
//!   answer it with a fault. If the space for the whole mapping is much, or cannot be allocated,
//!   when the mapping is made, then the handler allocates it at the first store to each 2 MiB. If
//!   there is no space for these, the program gets SIGBUS, as from a file system that is full.
//! - *Stores.* The kernel may not tell which pages were stored to (userfaultfd is not permitted,
//!   Linux is older than 6.7, or the members are on a DAX file system). Then the fault at the first
//!   store to each 64 KiB tells it. Before the library follows the 64 KiB it write-protects them
//!   again, so that the next store faults again.
//!
//! Where the right is given for space, and the kernel tells what was stored to, a granule that has
//! never had the right is *untouched*: nothing was stored there, so it is in no scan, and the
//! tracker protects its pages when it gets the right. What a mapping costs goes by what is stored to
//! it and not by how long it is.
//!
//! A granule has the *right* to store if the handler has made it writable. Invariant: in a mapping
//! with [`Rights`], as far as it is composed, the granules in `given` are writable, and no others.
//! Whoever changes a mapping's addresses calls [`Mapping::take_back`] for all of it first.

use super::compose::{show_file, show_nothing};
use super::robust;
use super::runs::Runs;
use super::{Mapping, Mappings, PAGE};
use heap::vec::Vec;
use linux_raw_sys::general::{__NR_mprotect, PROT_WRITE};
use sys::OsError;
use sys::raw::{check, syscall};
use sys::tracking::Tracker;

/// Bytes of a granule whose space is allocated at the first store. A mapping of no more has its space
/// when it is made.
pub(super) const SPACE_GRANULE_BYTES: u64 = 2 << 20;
/// A longer mapping does not get the space of all its granules at once.
const PROVIDED_AT_ONCE_BYTES: u64 = 64 << 20;
/// Bytes of a granule in which the first store tells that there were stores.
pub(super) const STORE_GRANULE_BYTES: u64 = 64 << 10;

/// Which granules of a write-protected mapping have the right to store.
#[derive(Clone)]
pub(super) struct Rights {
    granule_bytes: u64,
    /// Whether rights are given in order to notice stores: then every granule in `given` was stored
    /// to and must be followed.
    pub(super) tells_stores: bool,
    /// The granules that have the right, ascending: each is its offset in the file divided by
    /// `granule_bytes`.
    given: Vec<u64>,
    /// The granules that are untouched.
    untouched: Runs,
    /// Ranges of addresses that system calls may store to at the moment: granules in them keep the
    /// right.
    pub(super) lent: Vec<(usize, usize)>,
}

impl Rights {
    /// For a mapping whose space is allocated at stores. From now on system calls may meet
    /// protected pages, so the library begins to lend ([`super::lend`]).
    pub(super) fn for_space() -> Self {
        super::lend::begin();
        Self::of(SPACE_GRANULE_BYTES, false)
    }

    /// For a mapping whose stores are noticed by faults. The library begins to lend here too.
    pub(super) fn for_stores() -> Self {
        super::lend::begin();
        Self::of(STORE_GRANULE_BYTES, true)
    }

    const fn of(granule_bytes: u64, tells_stores: bool) -> Self {
        Self { granule_bytes, tells_stores, given: Vec::new(), untouched: Runs::new(), lent: Vec::new() }
    }
}

impl Mapping {
    /// The protection of a page that shows the file and whose granule does not have the right to
    /// store. In a mapping without [`Rights`] it is the program's protection.
    pub(super) const fn shown_protection(&self) -> usize {
        if self.rights.is_some() { self.protection & !(PROT_WRITE as usize) } else { self.protection }
    }

    /// The protection of pages between being mapped and being watched by the tracker. The tracker
    /// begins with all pages marked as not stored to, so it would forget a store in between. Hence
    /// the pages are not writable until then, and a thread that stores waits in the fault handler.
    pub(super) const fn unwatched_protection(&self) -> usize {
        if self.followed { self.shown_protection() & !(PROT_WRITE as usize) } else { self.shown_protection() }
    }

    /// Lets stores to `start..end` through: the tracker watches these pages now.
    pub(super) fn open_stores(&self, start: usize, end: usize) -> Result<(), OsError> {
        if self.unwatched_protection() == self.shown_protection() {
            return Ok(());
        }
        protect(start, end, self.shown_protection())
    }

    /// Whether the library knows from the rights given, and not from a tracker, what was stored to.
    pub(super) fn tells_stores(&self) -> bool {
        self.rights.as_ref().is_some_and(|rights| rights.tells_stores)
    }

    /// The addresses of granule `index`, cut to what is composed. If it begins behind that, or ends
    /// before the mapping, the range is empty (start ≥ end).
    fn granule(&self, index: u64, granule_bytes: u64) -> (usize, usize) {
        let from = (index * granule_bytes).saturating_sub(self.offset) as usize;
        let to = ((index + 1) * granule_bytes).saturating_sub(self.offset) as usize;
        (self.start + from, (self.start + to).min(self.composed))
    }

    /// Begins to watch `start..end`, to which nothing has been stored since it was mapped, and in
    /// which nothing can be stored to before a granule gets the right: these granules are untouched.
    /// Returns false, and has done nothing, if all of the range must be protected by the tracker.
    pub(super) fn watch_untouched(&mut self, tracker: &Tracker, start: usize, end: usize) -> Result<bool, OsError> {
        let (first, last) = (self.offset_at(start), self.offset_at(end));
        let Some(rights) = self.rights.as_mut().filter(|rights| !rights.tells_stores) else { return Ok(false) };
        let granule_bytes = rights.granule_bytes;
        let index = first / granule_bytes;
        // Of a granule whose beginning was composed before, that beginning may have been stored to.
        let is_whole = start == self.start || first.is_multiple_of(granule_bytes) || rights.untouched.holds(index);
        let from = if is_whole { first } else { ((index + 1) * granule_bytes).min(last) };
        let edge_bytes = (from - first) as usize;
        if edge_bytes > 0 {
            tracker.watch(start, edge_bytes)?;
        }
        if from < last {
            tracker.watch_inherited(start + edge_bytes, end - start - edge_bytes)?;
            rights.untouched.add(from / granule_bytes, last.div_ceil(granule_bytes));
        }
        Ok(true)
    }

    /// The first addresses of `start..end` that may have been stored to, as far as they are
    /// adjacent. None if there are none.
    pub(super) fn touched(&self, start: usize, end: usize) -> Option<(usize, usize)> {
        let Some(rights) = self.rights.as_ref().filter(|rights| !rights.untouched.is_empty()) else {
            return (start < end).then_some((start, end));
        };
        if start >= end {
            return None;
        }
        let (from, to) = (self.offset_at(start), self.offset_at(end));
        let (first, last) = rights.untouched.first_gap(from / rights.granule_bytes, to.div_ceil(rights.granule_bytes))?;
        let (from, to) = (from.max(first * rights.granule_bytes), to.min(last * rights.granule_bytes));
        Some((self.start + (from - self.offset) as usize, self.start + (to - self.offset) as usize))
    }

    /// Gives the granule at `address` the right to store. If it is untouched, the tracker, which
    /// this takes for it, forgets first what was loaded there. Returns false if a missing right is
    /// not the reason why a store there faults: the program may not store to the mapping, it is not
    /// composed there, or the granule has the right. (Two threads can fault at one granule: for the
    /// second `fault::is_possible` finds that the store is possible by now.)
    ///
    /// # Errors
    /// `NOSPC`, `DQUOT` and the like: there is no space for what is stored. `NOMEM`: the kernel
    /// does not split the mapping further (vm.max_map_count).
    pub(super) fn give(&mut self, address: usize, tracker: Option<&Tracker>) -> Result<bool, OsError> {
        if address >= self.composed || !self.is_writable() || self.sealed {
            return Ok(false);
        }
        let offset = self.offset_at(address);
        let Some(granule_bytes) = self.rights.as_ref().map(|rights| rights.granule_bytes) else { return Ok(false) };
        let index = offset / granule_bytes;
        let (start, end) = self.granule(index, granule_bytes);
        let Some(rights) = &mut self.rights else { return Ok(false) };
        let Err(place) = rights.given.binary_search(&index) else { return Ok(false) };
        let from = self.offset + (start - self.start) as u64;
        self.file.provide(from, from + (end - start) as u64)?;
        if rights.untouched.holds(index)
            && let Some(tracker) = tracker
        {
            // If this fails, what was loaded of the granule counts as stored to.
            let _ = tracker.forget_stores(start, end - start);
        }
        // Before a store is possible: from here on scans look at the granule.
        rights.untouched.take(index);
        protect(start, end, self.protection)?;
        rights.given.insert(place, index);
        Ok(true)
    }

    /// Gives every granule the right to store, since the one at `address` needs it. The kernel
    /// changes the protection of whole areas of memory then and need not split any. No granule is
    /// untouched afterwards. Of a long mapping only the granule at `address` gets its space now; the
    /// others get it when what was stored to them is followed.
    ///
    /// # Errors
    /// This function returns the errors of [`Self::give`].
    pub(super) fn give_all(&mut self, address: usize) -> Result<(), OsError> {
        let Some(rights) = &self.rights else { return Ok(()) };
        if self.composed == self.start {
            return Ok(());
        }
        let granule_bytes = rights.granule_bytes;
        let (from, to) = (self.offset, self.offset_at(self.composed - 1));
        let all = (from / granule_bytes..=to / granule_bytes).collect();
        if to - from < PROVIDED_AT_ONCE_BYTES {
            self.file.provide(from, to + 1)?;
        } else {
            let at = self.offset_at(address) / granule_bytes * granule_bytes;
            self.file.provide(at.max(from), (at + granule_bytes).min(to + 1))?;
        }
        if let Some(rights) = &mut self.rights {
            rights.untouched.clear();
        }
        protect(self.start, self.composed, self.protection)?;
        if let Some(rights) = &mut self.rights {
            rights.given = all;
        }
        Ok(())
    }

    /// Makes the granules writable again that have the right to store, as far as they lie in
    /// `start..end`, after all of it was protected.
    pub(super) fn open_given(&self, start: usize, end: usize) {
        let Some(rights) = &self.rights else { return };
        for (from, to) in rights.given.iter().map(|&index| self.granule(index, rights.granule_bytes)) {
            let (from, to) = (from.max(start), to.min(end));
            if from < to {
                // Where the kernel refuses to split the mapping, the granule stays protected, and a
                // store to it is answered as a fault of the program's.
                let _ = protect(from, to, self.protection);
            }
        }
    }

    /// Takes the right to store back from all granules that touch `start..end`, except those that
    /// are lent. Returns the addresses of all these granules, also of the lent ones: they may have
    /// been stored to. More granules than asked for may have to give the right back.
    pub(super) fn take_back(&mut self, start: usize, end: usize) -> Vec<(usize, usize)> {
        let Some(rights) = &self.rights else { return Vec::new() };
        let shown = self.shown_protection();
        let granule = |index: u64| self.granule(index, rights.granule_bytes);
        let touches = |&(from, to): &(usize, usize)| from < end && start < to;
        let held = robust::words();
        let is_lent = |&(from, to): &(usize, usize)| {
            let meets = |&(lent_start, lent_end): &(usize, usize)| from < lent_end && lent_start < to;
            rights.lent.iter().any(meets) || held.iter().any(|word| (from..to).contains(word))
        };
        let all = || rights.given.iter().map(|&index| granule(index));
        let is_refused = |&(from, to): &(usize, usize)| protect(from, to, shown).is_err();
        // The kernel may refuse to split the mapping further. All of it is protected then, which
        // splits nothing, and no granule keeps the right but those that are lent.
        let is_split = !all().filter(touches).filter(|range| !is_lent(range)).any(|range| is_refused(&range));
        if !is_split {
            let _ = protect(self.start, self.composed, shown);
            all().filter(is_lent).for_each(|(from, to)| {
                let _ = protect(from, to, self.protection);
            });
        }
        let gives_back = |range: &(usize, usize)| !is_split || touches(range);
        let taken = all().filter(gives_back).collect();
        let keeps = |&index: &u64| !gives_back(&granule(index)) || is_lent(&granule(index));
        let given = rights.given.iter().copied().filter(keeps).collect();
        if let Some(rights) = &mut self.rights {
            rights.given = given;
        }
        // A lock that a thread has taken just now.
        self.give_held();
        taken
    }

    /// Gives the granules that hold robust locks of this process the right to store. If the right
    /// cannot be given, the lock is lost with its owner.
    pub(super) fn give_held(&mut self) {
        if self.rights.is_none() {
            return;
        }
        let shown = self.start..self.composed;
        for word in robust::words().into_iter().filter(|word| shown.contains(word)) {
            // Without the tracker: all of the granule is followed once.
            let _ = self.give(word, None);
        }
    }

    /// Protects all of the mapping and takes the right to store back from every granule, also from
    /// those that are lent or hold a lock. Returns the addresses of the granules that had the
    /// right.
    ///
    /// # Errors
    /// What mprotect(2) says. The granules are noted as having the right then: they may be writable
    /// still.
    pub(super) fn take_back_all(&mut self) -> Result<Vec<(usize, usize)>, OsError> {
        protect(self.start, self.composed, self.shown_protection())?;
        let Some(rights) = &mut self.rights else { return Ok(Vec::new()) };
        let (granule_bytes, given) = (rights.granule_bytes, core::mem::take(&mut rights.given));
        let granules = given.into_iter().map(|index| self.granule(index, granule_bytes));
        Ok(granules.filter(|(from, to)| from < to).collect())
    }

    /// Makes the page at `address` inaccessible, so that the store that found no space, which the
    /// processor repeats, raises SIGBUS. [`Mappings::mend_page`] undoes it. A mapping remembers one
    /// such page.
    pub(super) fn break_page(&mut self, address: usize) -> Result<(), OsError> {
        let page = address / PAGE * PAGE;
        show_nothing(self, page, page + PAGE)?;
        self.broken = Some(page);
        Ok(())
    }
}

impl Mappings {
    /// Puts the page at `address` back as it was before [`Mapping::break_page`]. Returns whether
    /// that was the page's state, so whether the fault at `address` is the program's SIGBUS.
    pub(super) fn mend_page(&mut self, mapping: &mut Mapping, address: usize) -> bool {
        let page = address / PAGE * PAGE;
        if mapping.broken != Some(page) {
            return false;
        }
        mapping.broken = None;
        // If the file cannot be mapped there, the page stays inaccessible. If the tracker cannot
        // watch the page, it stays write-protected: a store to it would go unseen.
        if show_file(mapping, page, PAGE).is_ok() && mapping.followed {
            let is_watched = self.tracker_of(mapping).is_none_or(|tracker| tracker.watch(page, PAGE).is_ok());
            if is_watched && !mapping.sealed {
                let _ = mapping.open_stores(page, page + PAGE);
            }
        }
        true
    }

    /// As [`Mapping::give`] for the mapping at `index` of the list, also if the kernel does not
    /// split the mapping further.
    pub(super) fn give(&mut self, index: usize, address: usize) -> Result<bool, OsError> {
        match self.list[index].give(address, self.tracker.as_ref()) {
            Err(OsError::NOMEM) => {
                let mut mapping = self.list.remove(index);
                let given = self.give_unsplit(&mut mapping, address);
                self.list.insert(index, mapping);
                given
            }
            given => given,
        }
    }

    /// Gives every granule that `start..end` of the mapping `index` touches the right to store, up to
    /// the first that cannot have it. Returns whether one has got it.
    pub(super) fn give_part(&mut self, index: usize, start: usize, end: usize) -> bool {
        let (mut at, mut given) = (start, false);
        while at < end {
            let mapping = &self.list[index];
            let Some(granule_bytes) = mapping.rights.as_ref().map(|rights| rights.granule_bytes) else { break };
            let next = mapping.granule(mapping.offset_at(at) / granule_bytes, granule_bytes).1;
            match self.give(index, at) {
                Ok(is_new) => given |= is_new,
                Err(_) => break,
            }
            // Behind what is composed nothing can be given.
            if next <= at {
                break;
            }
            at = next;
        }
        given
    }

    /// Gives the granule at `address` of `mapping` the right to store after the kernel has refused
    /// to split the mapping further. First the granules of all mappings give the right back and are
    /// followed, so that the kernel joins the pieces. If the kernel still refuses, the program
    /// itself has as many areas of memory as there may be: then all granules of `mapping` get the
    /// right.
    ///
    /// # Errors
    /// As for [`Mapping::give`].
    pub(super) fn give_unsplit(&mut self, mapping: &mut Mapping, address: usize) -> Result<bool, OsError> {
        for index in 0..self.list.len() {
            let mut other = self.list.remove(index);
            self.take_back_and_follow(&mut other);
            self.list.insert(index, other);
        }
        self.take_back_and_follow(mapping);
        match mapping.give(address, self.tracker.as_ref()) {
            Err(OsError::NOMEM) => mapping.give_all(address).map(|()| true),
            given => given,
        }
    }

    /// Takes the right to store back from all granules of a mapping, and follows those that were
    /// stored to. What cannot be followed is owed.
    pub(super) fn take_back_and_follow(&mut self, mapping: &mut Mapping) {
        let (start, end) = (mapping.start, mapping.end);
        if mapping.tells_stores() {
            let _ = self.follow_given(mapping, start, end);
        } else {
            mapping.take_back(start, end);
        }
    }

    /// Takes the right to store back from the granules of `start..end`, in a mapping with
    /// [`Rights::tells_stores`], and follows them. All are followed; the first error is returned.
    pub(super) fn follow_given(&mut self, mapping: &mut Mapping, start: usize, end: usize) -> Result<(), OsError> {
        let mut result = Ok(());
        for (from, to) in mapping.take_back(start, end) {
            result = result.and(self.make_follow(mapping, [(from, to)]));
        }
        result
    }
}

/// Sets the protection of a range of a mapping.
pub(super) fn protect(start: usize, end: usize, protection: usize) -> Result<(), OsError> {
    if start >= end {
        return Ok(());
    }
    // SAFETY: callers pass addresses of a mapping of an array's file, and at most the program's own
    // protection of it.
    check(unsafe { syscall(__NR_mprotect as usize, [start, end - start, protection, 0, 0, 0]) }).map(|_| ())
}
