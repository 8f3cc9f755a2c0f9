//! What following stores through a mapping costs without an engine: the kernel's calls and a loop
//! that sums pages.
//!
//! A mapping is composed of the pieces of a RAID 5 file of three as the library composes it, of the
//! same backing files, and watched in the same way. So what is measured on it is the least that any
//! following by pages can cost on this machine: the fault of the first store to each page, the scan
//! that lists those pages and protects them again, and their parity. There are no locks, no records
//! and no table.

use crate::members::{Mapped, os};
use crate::plan::ArrayPlace;
use layout::Geometry;
use std::fs::OpenOptions;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use sys::tracking::{Tracker, Written};
use units::PAGE_BYTES;

/// Runs of pages asked for at a time, as the library does.
const REGION_COUNT: usize = 256;

/// A composed and watched mapping of the first bytes of a file.
pub(crate) struct Followed {
    start: *mut u8,
    bytes: usize,
    tracker: Tracker,
    geometry: Geometry,
    members: Vec<Mapped>,
}

impl Followed {
    /// `name` is a file of the array with at least `bytes`, a multiple of a stripe.
    pub(crate) fn new(array: &ArrayPlace, geometry: &Geometry, name: &str, bytes: usize) -> io::Result<Self> {
        let member_bytes = geometry.member_bytes(bytes as u64);
        let members = (0..array.members.len()).map(|slot| Mapped::new(&array.backing(slot, name), member_bytes));
        let members = members.collect::<io::Result<_>>()?;
        let open = |slot| OpenOptions::new().read(true).write(true).open(array.backing(slot, name));
        let files = (0..array.members.len()).map(open).collect::<io::Result<Vec<_>>>()?;
        let map = |at: *mut u8, bytes: u64, protection, flags, fd, offset: u64| {
            // SAFETY: a new mapping, or a piece of one that is ours.
            let found = unsafe { libc::mmap(at.cast(), bytes as usize, protection, flags, fd, offset as libc::off_t) };
            if found == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(found.cast::<u8>()) }
        };
        let start =
            map(null_mut(), bytes as u64, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1, 0)?;
        let piece_bytes = geometry.chunk().bytes();
        for offset in (0..bytes as u64).step_by(piece_bytes as usize) {
            let place = geometry.locate(offset);
            let fd = files[geometry.data_slot(place.stripe, place.column, 0)].as_raw_fd();
            let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
            map(start.wrapping_add(offset as usize), piece_bytes, access, flags, fd, geometry.member_offset(place.stripe))?;
        }
        let tracker = Tracker::new().map_err(os)?;
        tracker.watch(start as usize, bytes).map_err(os)?;
        Ok(Self { start, bytes, tracker, geometry: *geometry, members })
    }

    /// Stores a word to a page.
    pub(crate) fn store(&self, page: usize, value: u64) {
        assert!(page < self.bytes / PAGE_BYTES);
        // SAFETY: within the mapping, aligned.
        unsafe { self.start.add(page * PAGE_BYTES).cast::<u64>().write_volatile(value) };
    }

    /// Stores a whole page.
    pub(crate) fn fill(&self, page: usize, block: &[u8; PAGE_BYTES]) {
        assert!(page < self.bytes / PAGE_BYTES);
        // SAFETY: within the mapping.
        unsafe { self.start.add(page * PAGE_BYTES).copy_from_nonoverlapping(block.as_ptr(), PAGE_BYTES) };
    }

    /// The scan alone: lists the pages that were stored to, and protects them again.
    pub(crate) fn scan(&self, mut found: impl FnMut(&[Written])) {
        let mut regions = [const { MaybeUninit::uninit() }; REGION_COUNT];
        let (mut at, end) = (self.start as usize, self.start as usize + self.bytes);
        while at < end {
            let (runs, next) = self.tracker.written(at, end, true, &mut regions).expect("the mapping is watched");
            found(runs);
            at = next;
        }
    }

    /// The scan, and the parity of what it finds.
    pub(crate) fn sync(&self) {
        self.scan(|runs| self.sum_all(runs));
    }

    /// The parity of pages alone.
    pub(crate) fn sum_all(&self, runs: &[Written]) {
        for run in runs {
            (run.start as usize..run.end as usize).step_by(PAGE_BYTES).for_each(|page| self.sum(page - self.start as usize));
        }
    }

    /// Stores the parity of the row of a page.
    fn sum(&self, offset: usize) {
        let place = self.geometry.locate(offset as u64);
        let at = self.geometry.member_offset(place.stripe) + place.within;
        let words = |slot: usize| self.members[slot].at(at).cast::<u64>();
        let data = [0, 1].map(|column| words(self.geometry.data_slot(place.stripe, column, 0)));
        let parity = words(self.geometry.parity_slot(place.stripe, 0));
        for word in 0..PAGE_BYTES / 8 {
            // SAFETY: the members are mapped for whole pages.
            unsafe { parity.add(word).write(data[0].add(word).read() ^ data[1].add(word).read()) };
        }
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        // SAFETY: ours, and nobody has pointers into it any more.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}
