//! Holes of backing files on tmpfs: reading them takes no space.
//!
//! tmpfs gives a page to a hole as soon as a mapping loads from it, and read(2) does not. So once a
//! caller says that a file may have holes ([`Backing::mind_holes`]), a range is mapped for callers
//! only where it is known to be no hole: where this process has got space for it (`allocated`), or
//! where the kernel said that there is data. Elsewhere [`Medium::span`] gives None, and callers use
//! the byte-range face.
//!
//! Where data are is asked of the kernel (lseek(2), SEEK_DATA and SEEK_HOLE), and noted in
//! granules. The kernel looks at each page of the file up to the next hole, so a long file is not
//! asked about before as much has been read by calls.
//!
//! What is noted here may be outdated if somebody punches a hole while the kernel is asked, until
//! notes are next forgotten. Then a load takes a page, and that is all: nobody counts upon these
//! notes to have space.

use crate::Backing;
use crate::allocated::{GRANULE_BYTES, GRANULE_SHIFT};
use core::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use medium::Span;
use persist::PersistenceDomain;
use sys::OsError;
use sys::rustix::fs::{SeekFrom, fstatfs, seek};
use units::PAGE_BYTES;

/// For one read by a call, so many pages may be looked at by the kernel: about as long takes
/// either.
const PAGES_PER_CALL: i64 = 64;

/// What a backing file remembers of holes.
pub(crate) struct Holes {
    minded: AtomicBool,
    /// How many pages the kernel has looked at, or would look at, that no reads by calls have paid
    /// for yet.
    unpaid_pages: AtomicI64,
}

impl Holes {
    pub(crate) const fn new() -> Self {
        Self { minded: AtomicBool::new(false), unpaid_pages: AtomicI64::new(0) }
    }

    /// Whether loads must mind holes.
    #[inline(always)]
    pub(crate) fn are_minded(&self) -> bool {
        self.minded.load(Ordering::Relaxed)
    }
}

impl Backing {
    /// Says that the file may have holes. On tmpfs they are read by calls from now on; elsewhere
    /// loads take no space.
    pub fn mind_holes(&self) {
        let is_tmpfs = || self.fd().and_then(fstatfs).is_ok_and(|stat| stat.f_type == crate::domain::TMPFS);
        if self.domain != PersistenceDomain::Volatile || self.holes.are_minded() || !is_tmpfs() {
            return;
        }
        let pages = self.bytes().unwrap_or(0) / PAGE_BYTES as u64;
        self.holes.unpaid_pages.store((pages as i64).saturating_sub(PAGES_PER_CALL), Ordering::Relaxed);
        self.holes.minded.store(true, Ordering::Release);
    }

    /// The mapped bytes from `offset` on that are known to be no hole.
    #[inline(never)]
    pub(crate) fn span_of_known(&self, offset: u64) -> Option<Span> {
        let window = self.windows.at(offset)?;
        let within = offset & (self.windows.bytes() - 1);
        let first = (within >> GRANULE_SHIFT) as usize;
        let mut count = window.known_from(first);
        if count == 0 {
            self.ask(offset & !(GRANULE_BYTES - 1));
            count = window.known_from(first);
        }
        if count == 0 {
            return None;
        }
        let span = self.span_of_window(offset)?;
        let known = ((first + count) as u64 * GRANULE_BYTES - within) as usize;
        Some(Span { bytes: span.bytes.min(known), ..span })
    }

    /// Notes where data are from `start` on, if the kernel may be asked by now.
    #[cold]
    fn ask(&self, start: u64) {
        if self.holes.unpaid_pages.fetch_sub(PAGES_PER_CALL, Ordering::Relaxed) > 0 {
            return;
        }
        let mut looked_at = PAGES_PER_CALL;
        if let Ok(fd) = self.fd()
            && seek(&fd, SeekFrom::Data(start)) == Ok(start)
            && let Ok(end) = seek(&fd, SeekFrom::Hole(start))
        {
            looked_at += (end.saturating_sub(start) / PAGE_BYTES as u64) as i64;
            // The rest of the last granule may become a hole when the file grows.
            for (window, first, end) in self.runs(start, end & !(GRANULE_BYTES - 1)) {
                window.data_or_new().insert(first, end);
            }
        }
        self.holes.unpaid_pages.fetch_add(looked_at, Ordering::Relaxed);
    }

    /// Holds a range that is read by calls for want of data to what a mapping would show: pages
    /// behind the end of the file are none, and somebody has cut the file.
    #[cold]
    pub(crate) fn require_reach(&self, offset: u64, bytes: u64) -> Result<(), OsError> {
        if self.holes.are_minded()
            && offset < self.windows.bytes_max()
            && offset.saturating_add(bytes) > self.bytes()?.next_multiple_of(PAGE_BYTES as u64)
        {
            return Err(OsError::IO);
        }
        Ok(())
    }
}
