//! Records of writable mappings, in the runtime segment: which process has one of which file. So
//! what a process stored through a mapping is not forgotten when the process dies.
//!
//! A record belongs to one process and one file. It names the range of the file that the process
//! may store to, and the write-intent lane that says the same on the members. A record whose owner
//! is dead says that the redundancy of its range may not fit. A process that has the file open
//! claims such a record, makes the redundancy agree with the data, and only then frees the record.
//!
//! A process can ask the others that have a file mapped to look at it now (because it was cut, or
//! is to be synchronised): it raises `SharedFile::calls` and rings the segment's bell. Each process
//! answers in its records when it is done.
//!
//! Invariants: records are taken, claimed and freed under the open-files lock, and
//! `SharedFile::mapped` is the number of records with the file's key. That number is counted anew
//! with each change, so that a death in the middle of one leaves nothing wrong. The range of a
//! record with an owner only grows.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sync::OwnerId;
use sys::OsError;

/// Files that can have writable mappings, counted once per process.
pub const MAPPED_COUNT: usize = 8192;
/// The units in which stores through mappings may be followed, in bytes: of a page, of page
/// protection, of a huge page.
pub const UNITS_BYTES: [u64; 3] = [4 << 10, 64 << 10, 2 << 20];

/// What one process may store to of one file through mappings. All zeros: free.
#[repr(C)]
pub struct MappedRecord {
    owner: AtomicU32,
    /// The write-intent lane that holds the range on the members, plus one; 0 for none.
    lane: AtomicU32,
    /// 1 while stores land on the members directly and not in a shared copy.
    direct: AtomicU32,
    /// The last call of the others that was answered.
    answered: AtomicU32,
    /// In which of [`UNITS_BYTES`] the process follows what is stored through its mappings, a bit
    /// each. For who looks from outside.
    units: AtomicU32,
    /// 1 once the process may store to the file; under the open-files lock ([`Self::is_storing`]).
    storing: AtomicU32,
    padding: AtomicU32,
    /// The error with which something of what the process stored could not be followed yet; 0 if
    /// there is nothing of that kind.
    failure: AtomicU32,
    key: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
}

/// The records of an array.
#[repr(C)]
pub struct MappedRecords {
    /// No record from here on was ever used.
    high: AtomicU32,
    records: [MappedRecord; MAPPED_COUNT],
}

impl MappedRecords {
    /// Takes a record for file `key`. None if there is none left. The open-files lock is held.
    pub fn take(&self, me: OwnerId, key: u64) -> Option<&MappedRecord> {
        let index = self.records.iter().position(|record| record.owner.load(Ordering::Relaxed) == 0)?;
        let record = &self.records[index];
        for (word, value) in [(&record.start, u64::MAX), (&record.end, 0), (&record.key, key)] {
            word.store(value, Ordering::Relaxed);
        }
        record.lane.store(0, Ordering::Relaxed);
        record.direct.store(0, Ordering::Relaxed);
        record.answered.store(0, Ordering::Relaxed);
        record.units.store(0, Ordering::Relaxed);
        record.failure.store(0, Ordering::Relaxed);
        record.storing.store(0, Ordering::Relaxed);
        self.high.fetch_max(index as u32 + 1, Ordering::Relaxed);
        record.owner.store(me.get(), Ordering::Release);
        Some(record)
    }

    /// The records of file `key` with their owners.
    pub fn of(&self, key: u64) -> impl Iterator<Item = (&MappedRecord, OwnerId)> {
        self.owned().filter(move |(record, _)| record.key() == key)
    }

    /// The records of all files with their owners.
    pub fn owned(&self) -> impl Iterator<Item = (&MappedRecord, OwnerId)> {
        self.used().iter().filter_map(|record| record.owner().map(|owner| (record, owner)))
    }

    /// The records that were ever used. How many that are lies in shared memory.
    fn used(&self) -> &[MappedRecord] {
        &self.records[..(self.high.load(Ordering::Acquire) as usize).min(MAPPED_COUNT)]
    }

    /// Of how many files stores are followed in each of [`UNITS_BYTES`], by owners for which
    /// `lives` holds.
    pub(crate) fn files_by_unit(&self, lives: impl Fn(OwnerId) -> bool) -> [usize; UNITS_BYTES.len()] {
        let used = self.used();
        let lives = |record: &&MappedRecord| record.owner().is_some_and(&lives);
        let mut files: Vec<(u64, u32)> = used.iter().filter(lives).map(|record| (record.key(), record.units())).collect();
        files.sort_unstable();
        files.dedup_by(|later, first| {
            let is_same = later.0 == first.0;
            first.1 |= if is_same { later.1 } else { 0 };
            is_same
        });
        core::array::from_fn(|unit| files.iter().filter(|(_, units)| units >> unit & 1 == 1).count())
    }
}

impl MappedRecords {
    /// A number of a record that no other has.
    #[must_use]
    pub fn index_of(&self, record: &MappedRecord) -> u32 {
        let bytes = core::ptr::from_ref(record) as usize - self.records.as_ptr() as usize;
        (bytes / size_of::<MappedRecord>()) as u32
    }
}

impl MappedRecord {
    /// Whether call number `call` of the others was answered, or a later one.
    #[must_use]
    pub fn has_answered(&self, call: u32) -> bool {
        self.answered.load(Ordering::Acquire).wrapping_sub(call) as i32 >= 0
    }

    /// Answers the others' calls up to number `call`.
    pub fn answer(&self, call: u32) {
        self.answered.store(call, Ordering::Release);
    }

    /// In which of [`UNITS_BYTES`] stores are followed, a bit each.
    #[must_use]
    pub fn units(&self) -> u32 {
        self.units.load(Ordering::Relaxed)
    }

    /// Notes the units.
    pub fn set_units(&self, units: u32) {
        self.units.store(units, Ordering::Relaxed);
    }

    /// Why something of what the process stored could not be followed yet.
    #[must_use]
    pub fn failure(&self) -> Option<OsError> {
        match self.failure.load(Ordering::Acquire) {
            0 => None,
            error @ 1..4096 => Some(OsError::from_raw_os_error(error as i32)),
            _ => Some(OsError::IO),
        }
    }

    /// Notes such a failure, or that nothing is left to follow again.
    pub fn note_failure(&self, failure: Option<OsError>) {
        self.failure.store(failure.map_or(0, |error| error.raw_os_error() as u32), Ordering::Release);
    }

    /// The file's key.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.key.load(Ordering::Relaxed)
    }

    /// The process whose record it is; None if it is free.
    #[must_use]
    pub fn owner(&self) -> Option<OwnerId> {
        OwnerId::new(self.owner.load(Ordering::Acquire))
    }

    /// The range of the file, as offsets; empty if the end is not greater than the start.
    #[must_use]
    pub fn range(&self) -> (u64, u64) {
        let offset = |word: &AtomicU64| word.load(Ordering::Relaxed).min(i64::MAX as u64);
        (offset(&self.start), offset(&self.end))
    }

    /// Widens the range to hold `start..end`. Seen by whoever finds the owner dead.
    pub fn widen(&self, start: u64, end: u64) {
        self.start.fetch_min(start, Ordering::Release);
        self.end.fetch_max(end, Ordering::Release);
    }

    /// Whether stores land on the members directly.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Acquire) != 0
    }

    /// Tells whether the process may store to the file, or could at some time since the record was
    /// taken. A process that only shows a shared copy may have a record, too.
    #[must_use]
    pub fn is_storing(&self) -> bool {
        self.storing.load(Ordering::Acquire) != 0
    }

    /// Notes that the process may store to the file. Nobody caches the file
    /// ([`crate::Runtime::begin_storing`]), or the stores are those of a child of a process that
    /// stores.
    pub fn set_storing(&self) {
        self.storing.store(1, Ordering::Release);
    }

    /// Notes where stores land.
    pub fn set_direct(&self, direct: bool) {
        self.direct.store(u32::from(direct), Ordering::Release);
    }

    /// The lane.
    #[must_use]
    pub fn lane(&self) -> Option<usize> {
        (self.lane.load(Ordering::Acquire) as usize).checked_sub(1).filter(|&lane| lane < format::LANE_COUNT)
    }

    /// Names another lane.
    pub fn set_lane(&self, lane: Option<usize>) {
        self.lane.store(lane.map_or(0, |lane| lane as u32 + 1), Ordering::Release);
    }

    /// Makes the record another one's: of a dead owner the caller's, or that of a child of fork.
    /// The open-files lock is held.
    pub fn claim(&self, me: OwnerId) {
        self.owner.store(me.get(), Ordering::Release);
    }

    /// Gives the record back. The open-files lock is held.
    pub fn free(&self) {
        self.key.store(0, Ordering::Relaxed);
        self.owner.store(0, Ordering::Release);
    }
}
