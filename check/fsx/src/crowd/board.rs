//! What the processes of a crowd know together: which stamps each region may bear, which records
//! were written, how far they are.
//!
//! A file outside the array, mapped by all. A writer announces a stamp before it writes and commits
//! it afterwards; a reader that loads the commits before reading and the announcements after knows
//! which stamps it may meet.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) const REGION_COUNT: usize = 24;
/// Writers of records: every thread of every incarnation of every worker.
pub(super) const WRITER_COUNT: usize = 4096;

/// Announced and committed stamps.
#[repr(C)]
pub(super) struct Progress {
    pub(super) announced: AtomicU64,
    pub(super) committed: AtomicU64,
}

#[repr(C)]
pub(super) struct Board {
    pub(super) operations: AtomicU64,
    /// Workers are to end.
    pub(super) stop: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) kills: AtomicU64,
    /// A member has lost its memory.
    pub(super) cut: AtomicU64,
    /// The longest operation, in microseconds.
    pub(super) longest: AtomicU64,
    pub(super) regions: [Progress; REGION_COUNT],
    /// Odd while the region may hold a mixture, since its writer was killed or is about to be;
    /// another number each time.
    torn: [AtomicU64; REGION_COUNT],
    /// Records in the file that all append to.
    pub(super) appended: [Progress; WRITER_COUNT],
    /// Records written through one shared descriptor.
    pub(super) shared: [Progress; WRITER_COUNT],
}

impl Board {
    /// Maps the board; the first makes it, all zeros.
    pub(super) fn open(path: &Path) -> io::Result<&'static Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        if file.metadata()?.len() == 0 {
            file.set_len(size_of::<Self>() as u64)?;
        }
        let (bytes, access) = (size_of::<Self>(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping of the file's whole length, for the life of the process.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: mapped for good; all fields are atomics, of which any bytes are valid.
        Ok(unsafe { &*start.cast::<Self>() })
    }

    /// How often a region was torn and made whole: odd while it is torn.
    pub(super) fn tears(&self, region: usize) -> u64 {
        self.torn[region].load(Ordering::SeqCst)
    }

    pub(super) fn is_torn(&self, region: usize) -> bool {
        !self.tears(region).is_multiple_of(2)
    }

    /// Notes that a region may be torn from now on. Returns whether it was not.
    pub(super) fn tear(&self, region: usize) -> bool {
        self.torn[region].fetch_or(1, Ordering::SeqCst).is_multiple_of(2)
    }

    /// Notes that a torn region is whole again.
    pub(super) fn mend(&self, region: usize) {
        self.torn[region].fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) != 0 || self.failed.load(Ordering::Relaxed) != 0
    }
}

impl Progress {
    /// The next stamp, announced.
    pub(super) fn announce(&self) -> u64 {
        self.announced.fetch_add(1, Ordering::AcqRel) + 1
    }

    pub(super) fn commit(&self, stamp: u64) {
        self.committed.store(stamp, Ordering::Release);
    }
}
