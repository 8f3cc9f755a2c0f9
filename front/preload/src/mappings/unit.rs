//! The *unit* of a mapping: how many bytes are followed together when one of them was stored to. It
//! is a page of 4 KiB, a huge page of 2 MiB, or, where page protection tells what was stored to, a
//! granule of 64 KiB ([`super::rights`]).
//!
//! Where members have huge pages (tmpfs with huge=), a mapping can consist of huge pages. It then
//! faults once per 2 MiB, and a scan for pages that were stored to takes 0.06 ms per GiB instead of
//! 0.6 ms. But then a store of one byte makes 2 MiB to follow. Measured with chunks of 2 MiB on
//! Linux 6.18: storing 64 MiB in sequence takes 11.6 ms with units of 2 MiB and 33.8 ms with units
//! of 4 KiB; storing one page at a random place leaves 512 pages to follow with 2 MiB, and 1 with 4
//! KiB.
//!
//! So the unit is 4 KiB, with one exception: a mapping has units of 2 MiB if its pieces are at
//! least 2 MiB, and if the program asked for huge pages with madvise(MADV_HUGEPAGE) or its
//! environment has `CXLRAID_MAP_UNIT=2M`. MADV_NOHUGEPAGE takes the wish back. In the names here a
//! mapping *wants* huge pages if it was so asked, *may be huge* if its pieces are large enough,
//! *keeps* huge pages if nothing else is against them, and *shows* huge pages if its part that was
//! watched last has them.
//!
//! UFFDIO_WRITEPROTECT would split huge pages. PAGEMAP_SCAN can protect pages too and leaves huge
//! pages whole, so a mapping that keeps them is protected by a scan. A scan protects only pages
//! that are present, so [`watch_huge`] loads all of them first.
//!
//! [`Followed::mapped`], this process' record of the file in the runtime segment, has a bit for
//! each unit in use; `cxlraid status` shows them.

use super::rights::STORE_GRANULE_BYTES;
use super::{Followed, Mapping, Mappings, PAGE};
use ::array::mapped::UNITS_BYTES;
use heap::boxed::Box;
use linux_raw_sys::general::{__NR_madvise, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_POPULATE_READ};
use sys::OsError;
use sys::raw::{check, syscall};
use sys::tracking::Tracker;

/// Bytes of a huge page of the smallest size (x86-64, and arm64 with pages of 4 KiB).
pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Whether a mapping for which the program has not called madvise(2) wants huge pages.
pub(super) fn wants_huge_by_default() -> bool {
    matches!(crate::own::environment().get(b"CXLRAID_MAP_UNIT"), Some(b"2M" | b"2m"))
}

/// Gives the kernel one of the three kinds of advice that are imported here.
fn advise(start: usize, bytes: usize, advice: u32) -> Result<(), OsError> {
    // SAFETY: the pages are of a mapping of an array's file, and none of the three kinds of advice
    // changes a byte of them.
    check(unsafe { syscall(__NR_madvise as usize, [start, bytes, advice as usize, 0, 0, 0]) }).map(|_| ())
}

impl Mapping {
    /// Whether the pieces of the mapping's file are at least 2 MiB long. Whether they lie at
    /// multiples of 2 MiB is left to the kernel.
    pub(super) fn may_be_huge(&self) -> bool {
        let geometry = self.file.geometry();
        !geometry.level().has_chunks() || geometry.chunk().bytes() >= HUGE_PAGE_BYTES as u64
    }

    /// The unit in which stores to this mapping are followed, as the bit with its index in
    /// [`UNITS_BYTES`]; 0 if the mapping is not followed.
    fn unit_bit(&self) -> u32 {
        let unit_bytes = if !self.followed {
            return 0;
        } else if self.tells_stores() {
            STORE_GRANULE_BYTES
        } else if self.shows_huge {
            HUGE_PAGE_BYTES as u64
        } else {
            PAGE as u64
        };
        UNITS_BYTES.iter().position(|&bytes| bytes == unit_bytes).map_or(0, |index| 1 << index)
    }

    /// Whether [`Mappings::watch`] is to let this mapping have huge pages. Not if the file has
    /// holes: [`watch_huge`] loads every page, and to load a hole allocates it.
    pub(super) fn keeps_huge(&self) -> bool {
        self.wants_huge && !self.copied && self.may_be_huge() && self.rights.is_none() && !self.file.has_holes()
    }
}

impl Mappings {
    /// Begins to notice stores to `bytes` bytes at `start` of a mapping that is followed. Nobody
    /// can store to them until this returns.
    pub(super) fn watch(&self, mapping: &mut Mapping, start: usize, bytes: usize) -> Result<(), OsError> {
        let tracker = self.tracker_of(mapping);
        mapping.shows_huge = mapping.keeps_huge() && tracker.is_some_and(|tracker| watch_huge(tracker, start, bytes).is_ok());
        if !mapping.shows_huge {
            // The tracker would have to split huge pages, which a system may give without being
            // asked. A shorter part has none. Without the advice stores are noticed all the same.
            if bytes >= HUGE_PAGE_BYTES {
                let _ = advise(start, bytes, MADV_NOHUGEPAGE);
            }
            if let Some(tracker) = tracker
                && !mapping.watch_untouched(tracker, start, start + bytes)?
            {
                tracker.watch(start, bytes)?;
            }
        }
        let attribute = mapping.file.attribute();
        if let Some(Followed { mapped, .. }) = self.files.iter().find(|followed| followed.mapped.file().attribute() == attribute)
        {
            mapped.set_units(mapped.units() | mapping.unit_bit());
        }
        Ok(())
    }

    /// Notes whether the program wants huge pages for a mapping. If that changes the unit, composes
    /// the mapping anew.
    ///
    /// # Errors
    /// What composing it gives; the wish is noted then, and the mapping may show nothing.
    pub(super) fn change_unit(&mut self, mapping: &mut Mapping, wants_huge: bool) -> Result<(), OsError> {
        if mapping.wants_huge == wants_huge {
            return Ok(());
        }
        mapping.wants_huge = wants_huge;
        if !mapping.followed || mapping.copied || mapping.sealed || mapping.rights.is_some() || !mapping.may_be_huge() {
            return Ok(());
        }
        self.keep_out(mapping, mapping.start, mapping.end);
        super::compose::show_nothing(mapping, mapping.start, mapping.end)?;
        (mapping.composed, mapping.quiet_since) = (mapping.start, None);
        let attribute = mapping.file.attribute();
        // `self.list` is without `mapping` now, so its old unit leaves the record; `watch` adds the
        // new one.
        self.files
            .iter()
            .filter(|followed| followed.mapped.file().attribute() == attribute)
            .for_each(|followed| note_units(&self.list, followed));
        self.follow_size(mapping).map(|_| ())
    }
}

/// Notes in the record of a file the units of all its mappings in `list`.
pub(super) fn note_units(list: &[Box<Mapping>], followed: &Followed) {
    let attribute = followed.mapped.file().attribute();
    let of_file = list.iter().filter(|mapping| mapping.file.attribute() == attribute);
    followed.mapped.set_units(of_file.fold(0, |units, mapping| units | mapping.unit_bit()));
}

/// Loads the part's pages, as huge pages where the kernel has them, and protects them. Nobody can
/// store to the part until this returns: a store between loading and protecting would not be
/// noticed.
fn watch_huge(tracker: &Tracker, start: usize, bytes: usize) -> Result<(), OsError> {
    advise(start, bytes, MADV_HUGEPAGE)?;
    advise(start, bytes, MADV_POPULATE_READ)?;
    tracker.watch_present(start, bytes)
}
