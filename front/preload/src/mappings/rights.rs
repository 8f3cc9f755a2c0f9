//! Stores that are let through one granule at a time, by way of the library's fault handler.
//!
//! For two reasons a mapping that the program may store to is write-protected at first:
//! - *Space.* A store into a hole needs space on every member, and a mapping cannot ask for it.
//!   Where that is too much to be got at once (or is not there), the first store to each 2 MiB gets
//!   it, or SIGBUS, as from a file system that is full.
//! - *Stores.* Where the kernel does not tell which pages were stored to (userfaultfd not
//!   permitted, before Linux 6.7, or a DAX file system), the first store to each 64 KiB tells;
//!   following takes the right to store back first.
//!
//! Invariant: a granule that may be stored to is writable up to where the mapping is composed, and
//! no other memory is. A change of a mapping's addresses takes the right to store back from all of
//! its granules.

use super::compose::{show_file, show_nothing};
use super::{Mapping, Mappings, PAGE};
use heap::vec::Vec;
use linux_raw_sys::general::{__NR_mprotect, PROT_WRITE};
use sys::OsError;
use sys::raw::{check, syscall};

/// Space is got in steps of this many bytes of the file.
const SPACE_BYTES: u64 = 2 << 20;
/// Stores are noticed in steps of this many.
pub(super) const STORE_BYTES: u64 = 64 << 10;

/// Which granules of a mapping can be stored to.
#[derive(Clone)]
pub(super) struct Rights {
    granule_bytes: u64,
    /// Whether a granule that is given was stored to, and is to be followed.
    pub(super) tells_stores: bool,
    /// Ascending: offset in the file by the granule.
    given: Vec<u64>,
    /// Ranges of addresses that system calls may store to at the moment.
    pub(super) lent: Vec<(usize, usize)>,
}

impl Rights {
    pub(super) fn for_space() -> Self {
        super::lend::begin();
        Self { granule_bytes: SPACE_BYTES, tells_stores: false, given: Vec::new(), lent: Vec::new() }
    }

    pub(super) fn for_stores() -> Self {
        super::lend::begin();
        Self { granule_bytes: STORE_BYTES, tells_stores: true, given: Vec::new(), lent: Vec::new() }
    }
}

impl Mapping {
    /// The protection of pages nobody has a right to yet.
    pub(super) const fn shown_protection(&self) -> usize {
        if self.rights.is_some() { self.protection & !(PROT_WRITE as usize) } else { self.protection }
    }

    /// The protection of pages that are shown but not watched yet. A thread that stored there meanwhile would have done so unseen: the page is marked
    /// as protected with all others. It waits in the fault handler instead.
    pub(super) const fn unwatched_protection(&self) -> usize {
        if self.followed { self.shown_protection() & !(PROT_WRITE as usize) } else { self.shown_protection() }
    }

    /// Lets stores through to pages that are watched now.
    pub(super) fn open_stores(&self, start: usize, end: usize) -> Result<(), OsError> {
        if self.unwatched_protection() == self.shown_protection() {
            return Ok(());
        }
        protect(start, end, self.shown_protection())
    }

    /// Whether stores are known from the rights given.
    pub(super) fn tells_stores(&self) -> bool {
        self.rights.as_ref().is_some_and(|rights| rights.tells_stores)
    }

    /// Addresses of a granule, as far as the mapping is composed.
    fn granule(&self, index: u64, granule_bytes: u64) -> (usize, usize) {
        let from = (index * granule_bytes).saturating_sub(self.offset) as usize;
        let to = ((index + 1) * granule_bytes - self.offset) as usize;
        (self.start + from, (self.start + to).min(self.composed))
    }

    /// Lets stores to the granule at `address` through. False if that is not what keeps them out.
    ///
    /// # Errors
    /// `NOSPC` and its like: there is no space for what is stored.
    pub(super) fn give(&mut self, address: usize) -> Result<bool, OsError> {
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
        protect(start, end, self.protection)?;
        rights.given.insert(place, index);
        Ok(true)
    }

    /// Takes back every right, in what of the mapping lies in `start..end`. Returns what was given: ranges of addresses.
    pub(super) fn take_back(&mut self, start: usize, end: usize) -> Vec<(usize, usize)> {
        let Some(rights) = &self.rights else { return Vec::new() };
        let (granule_bytes, shown) = (rights.granule_bytes, self.shown_protection());
        let touches = |&(from, to): &(usize, usize)| from < end && start < to;
        let taken: Vec<(usize, usize)> =
            rights.given.iter().map(|&index| self.granule(index, granule_bytes)).filter(touches).collect();
        let is_lent = |&(from, to): &(usize, usize)| rights.lent.iter().any(|&(start, end)| from < end && start < to);
        for &(from, to) in taken.iter().filter(|range| !is_lent(range)) {
            // A right that cannot be taken back would be one that nobody knows of: then nothing of the mapping is readable either.
            if protect(from, to, shown).is_err() {
                let _ = protect(self.start, self.composed, shown);
            }
        }
        let kept = |&index: &u64| {
            let granule = self.granule(index, granule_bytes);
            !touches(&granule) || is_lent(&granule)
        };
        let given = rights.given.iter().copied().filter(kept).collect();
        if let Some(rights) = &mut self.rights {
            rights.given = given;
        }
        taken
    }

    /// There is no space for a store to the page at `address`: the next access to it, the same store again, is to be a SIGBUS.
    pub(super) fn break_page(&mut self, address: usize) -> Result<(), OsError> {
        let page = address / PAGE * PAGE;
        show_nothing(self, page, page + PAGE)?;
        self.broken = Some(page);
        Ok(())
    }
}

impl Mappings {
    /// If the fault at `address` is the SIGBUS that [`Mapping::break_page`] made, the page is put back as it was.
    pub(super) fn mend_page(&mut self, mapping: &mut Mapping, address: usize) -> bool {
        let page = address / PAGE * PAGE;
        if mapping.broken != Some(page) {
            return false;
        }
        mapping.broken = None;
        // What cannot be shown stays a SIGBUS.
        if show_file(mapping, page, PAGE).is_ok() && mapping.followed {
            if let Some(tracker) = self.tracker_of(mapping) {
                let _ = tracker.watch(page, PAGE);
            }
            if !mapping.sealed {
                let _ = mapping.open_stores(page, page + PAGE);
            }
        }
        true
    }

    /// Follows what was stored to in `start..end` of a mapping whose rights tell.
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
    // SAFETY: pages of a mapping of ours, with no more rights than the program asked for.
    check(unsafe { syscall(__NR_mprotect as usize, [start, end - start, protection, 0, 0, 0]) }).map(|_| ())
}
