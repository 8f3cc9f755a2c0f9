//! Holes of backing files on tmpfs: reading them takes no space.
//!
//! tmpfs gives a page to a hole as soon as a mapping loads from it, and read(2) does not. So once a
//! caller says that a file may have holes ([`Backing::mind_holes`]), a range is mapped for callers
//! only where it is known to be no hole: where this process has got space for it (`allocated`), or
//! where the kernel said that there is data. Elsewhere [`Medium::span`] gives None, and callers read
//! by system calls (the byte-range face of `Medium`).
//!
//! This module asks the kernel where data are (lseek(2), SEEK_DATA and SEEK_HOLE), and notes the
//! answers in granules. The kernel looks at each page of the file up to the next hole. So that the
//! questions do not cost more than the reads, a file is asked about only once reads by calls have
//! paid for as many pages as the kernel would look at ([`PAGES_PER_CALL`] each).
//!
//! If somebody punches a hole while the kernel is asked, what is noted stays wrong until notes are
//! next forgotten. A load from that hole then takes a page, and nothing worse happens: nobody takes
//! a note for a proof that there is space.

use crate::Backing;
use crate::allocated::{GRANULE_BYTES, GRANULE_SHIFT};
use core::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use medium::Span;
use persist::PersistenceDomain;
use sys::OsError;
use sys::rustix::fs::{SeekFrom, fstatfs, seek};
use units::PAGE_BYTES;

/// How many pages the kernel may look at for each read that is made by a call. To look at so many
/// takes about as long as such a read.
const PAGES_PER_CALL: i64 = 64;

/// What a backing file remembers of holes.
pub(crate) struct Holes {
    minded: AtomicBool,
    /// The pages that the kernel has looked at, or would look at if it were asked, less those that
    /// reads by calls have paid for. The kernel is asked when this is not above 0.
    unpaid_pages: AtomicI64,
}

impl Holes {
    pub(crate) const fn new() -> Self {
        Self { minded: AtomicBool::new(false), unpaid_pages: AtomicI64::new(0) }
    }

    /// Tells whether a load may meet a hole that would take space by it.
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

    /// Notes where data are in `start..end`, for a caller that is about to read all of it and to whom
    /// the kernel looks at each page once: the reads need no calls then.
    pub fn look_for_data(&self, start: u64, end: u64) {
        if !self.holes.are_minded() {
            return;
        }
        let Ok(fd) = self.fd() else { return };
        let mut at = start;
        while at < end
            && let Ok(data) = seek(&fd, SeekFrom::Data(at))
            && data < end
            && let Ok(hole) = seek(&fd, SeekFrom::Hole(data))
            && data < hole
        {
            // The rest of a granule at either end is not known.
            for (window, first, end) in self.runs(data.next_multiple_of(GRANULE_BYTES), hole & !(GRANULE_BYTES - 1)) {
                window.data_or_new().insert(first, end);
            }
            at = hole;
        }
    }

    /// Returns the mapped bytes from `offset` on that are known to be no hole. None if none is known.
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
        let span = self.span_of_window(offset, || true)?;
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

    /// Makes a read by calls answer what a load would have answered. A file with holes is read by
    /// calls where no data is known, and the first reads of a file may be calls. A mapping has no
    /// pages behind the end of the file, so a range that reaches behind the last page shows that
    /// somebody has cut the file.
    ///
    /// # Errors
    /// `IO` for such a range, and what the kernel says when it is asked for the file's length.
    #[cold]
    pub(crate) fn require_reach(&self, offset: u64, bytes: u64) -> Result<(), OsError> {
        let would_load = || self.windows.may_wait() && self.span_of_window(offset, || true).is_some();
        if (self.holes.are_minded() || would_load())
            && offset < self.windows.bytes_max()
            && offset.saturating_add(bytes) > self.bytes()?.next_multiple_of(PAGE_BYTES as u64)
        {
            return Err(OsError::IO);
        }
        Ok(())
    }
}
