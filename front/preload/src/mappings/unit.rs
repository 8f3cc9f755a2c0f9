//! The unit in which stores to a mapping are followed: a page of 4 KiB, or the 2 MiB of a huge page, chosen per mapping.
//!
//! Where members have huge pages (tmpfs with huge=) a mapping could show them as such: a fault per 2 MiB, and a scan of 1 GiB in 0.06 instead of 0.6 ms.
//! But then one byte stored is 2 MiB to follow. Measured (chunks of 2 MiB, Linux 6.18): 64 MiB stored in sequence 11.6 ms against 33.8 with 4 KiB; one page
//! at random 512 pages to follow against 1. So it is 4 KiB unless the program says that it wants huge pages (madvise(2) with MADV_HUGEPAGE; MADV_NOHUGEPAGE ends
//! it), or its environment does for all of its mappings (`CXLRAID_MAP_UNIT=2M`), and where the pieces are large enough for them.
//!
//! UFFDIO_WRITEPROTECT would split huge pages: a mapping that keeps them is protected by a scan, which leaves them whole. It can only protect what is there, so
//! everything is loaded first. (Of DAX files stores are noticed by granules of 64 KiB, [`super::rights`].)
//!
//! The process' record of the file names the units in use, so that `cxlraid status` can tell.

use super::rights::STORE_BYTES;
use super::{Followed, Mapping, Mappings, PAGE};
use ::array::mapped::UNITS_BYTES;
use linux_raw_sys::general::{__NR_madvise, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_POPULATE_READ};
use sys::OsError;
use sys::raw::{check, syscall};
use sys::tracking::Tracker;

pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// What a mapping wants that the program has not advised.
pub(super) fn wants_huge_by_default() -> bool {
    matches!(crate::start::environment().get(b"CXLRAID_MAP_UNIT"), Some(b"2M" | b"2m"))
}

fn advise(start: usize, bytes: usize, advice: u32) -> Result<(), OsError> {
    // SAFETY: advice about pages of a mapping of ours; none of it changes what they hold.
    check(unsafe { syscall(__NR_madvise as usize, [start, bytes, advice as usize, 0, 0, 0]) }).map(|_| ())
}

impl Mapping {
    /// Whether its pieces are large enough for huge pages, if they lie at the right addresses.
    pub(super) fn may_be_huge(&self) -> bool {
        let geometry = self.file.geometry();
        !geometry.level().has_chunks() || geometry.chunk().bytes() >= HUGE_PAGE_BYTES as u64
    }

    /// The unit in which its stores are followed, as a bit for each of [`UNITS_BYTES`]; 0 if they are not.
    fn unit(&self) -> u32 {
        let unit_bytes = if !self.followed {
            return 0;
        } else if self.tells_stores() {
            STORE_BYTES
        } else if self.shows_huge {
            HUGE_PAGE_BYTES as u64
        } else {
            PAGE as u64
        };
        UNITS_BYTES.iter().position(|&bytes| bytes == unit_bytes).map_or(0, |index| 1 << index)
    }

    /// Whether it keeps huge pages where there are any. Not over holes: to load them would fill them.
    pub(super) fn keeps_huge(&self) -> bool {
        self.wants_huge && !self.copied && self.may_be_huge() && self.rights.is_none() && !self.file.has_holes()
    }
}

impl Mappings {
    /// Watches a part of a mapping that is followed, and that cannot be stored to yet.
    pub(super) fn watch(&self, mapping: &mut Mapping, start: usize, bytes: usize) -> Result<(), OsError> {
        let tracker = self.tracker_of(mapping);
        mapping.shows_huge = mapping.keeps_huge() && tracker.is_some_and(|tracker| watch_huge(tracker, start, bytes).is_ok());
        if !mapping.shows_huge {
            if bytes >= HUGE_PAGE_BYTES {
                let _ = advise(start, bytes, MADV_NOHUGEPAGE);
            }
            tracker.map_or(Ok(()), |tracker| tracker.watch(start, bytes))?;
        }
        let attribute = mapping.file.attribute();
        if let Some(Followed { mapped, .. }) = self.files.iter().find(|followed| followed.mapped.file().attribute() == attribute)
        {
            mapped.set_units(mapped.units() | mapping.unit());
        }
        Ok(())
    }

    /// Composes the mapping anew, with the unit that is wanted now.
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
        // Its own unit is noted when it is watched.
        self.files
            .iter()
            .filter(|followed| followed.mapped.file().attribute() == attribute)
            .for_each(|followed| note_units(&self.list, followed));
        self.follow_size(mapping).map(|_| ())
    }
}

/// Notes the units of all mappings of a file.
pub(super) fn note_units(list: &[Mapping], followed: &Followed) {
    let attribute = followed.mapped.file().attribute();
    let own = list.iter().filter(|mapping| mapping.file.attribute() == attribute);
    followed.mapped.set_units(own.fold(0, |units, mapping| units | mapping.unit()));
}

/// Nothing can be stored meanwhile.
fn watch_huge(tracker: &Tracker, start: usize, bytes: usize) -> Result<(), OsError> {
    advise(start, bytes, MADV_HUGEPAGE)?;
    advise(start, bytes, MADV_POPULATE_READ)?;
    tracker.watch_present(start, bytes)
}
