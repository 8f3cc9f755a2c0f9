//! How much is measured, and what a worker process is told to do.

use crate::party::Ground;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Bytes of a small call.
pub(crate) const SMALL_BYTES: usize = 4 << 10;
/// Bytes of a large call.
pub(crate) const LARGE_BYTES: usize = 1 << 20;
/// Bytes of a call so small that only what surrounds the copy is measured.
pub(crate) const TINY_BYTES: usize = 64;

/// Sizes and counts of one run.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
pub(crate) struct Plan {
    /// Bytes of the file that is read and written.
    pub(crate) region_bytes: u64,
    /// Rounds per case: in each, every contender runs once.
    pub(crate) rounds: usize,
    /// Calls of a contender in one round, small and large ones. Short rounds: most of them are not disturbed.
    pub(crate) small_calls: usize,
    pub(crate) large_calls: usize,
    /// Bytes appended in one round, and how many rounds.
    pub(crate) append_bytes: u64,
    pub(crate) append_rounds: usize,
    /// Calls on names in one round, of which each takes microseconds.
    pub(crate) name_calls: usize,
    /// Bytes of a file on which two work at once, calls of each in one round, and rounds.
    pub(crate) shared_bytes: u64,
    pub(crate) shared_calls: usize,
    pub(crate) rounds_of_two: usize,
    /// Programs started in each way.
    pub(crate) spawns: usize,
    /// Scrubs, rebuilds, and pairs of processes that read with and without a member.
    pub(crate) repair_rounds: usize,
    /// Worker processes per side for calls that are not ours.
    pub(crate) pairs: usize,
}

impl Plan {
    /// What the goals are judged by.
    pub(crate) const fn full() -> Self {
        Self {
            region_bytes: 1 << 30,
            rounds: 101,
            small_calls: 1024,
            large_calls: 8,
            append_bytes: 64 << 20,
            append_rounds: 11,
            name_calls: 128,
            shared_bytes: 128 << 20,
            shared_calls: 4096,
            rounds_of_two: 41,
            spawns: 60,
            repair_rounds: 7,
            pairs: 9,
        }
    }

    /// Enough to see that everything runs; the times mean nothing.
    pub(crate) const fn sanity() -> Self {
        Self {
            region_bytes: 4 << 20,
            rounds: 2,
            small_calls: 64,
            large_calls: 2,
            append_bytes: 2 << 20,
            append_rounds: 1,
            name_calls: 8,
            shared_bytes: 2 << 20,
            shared_calls: 64,
            rounds_of_two: 1,
            spawns: 2,
            repair_rounds: 1,
            pairs: 1,
        }
    }
}

/// What a worker does. It is handed over as JSON on the command line; what it found goes to its standard output.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) enum Task {
    /// The cases of one level, through the library.
    Level { plan: Plan, array: ArrayPlace, scratch: PathBuf },
    /// A file of the array, filled.
    Fill { plan: Plan, array: ArrayPlace },
    /// Writes to that file with a member out, through the library.
    Degraded { plan: Plan, array: ArrayPlace },
    /// Reads at random of that file, through the library.
    Reads { plan: Plan, array: ArrayPlace },
    /// Appends, timed.
    Append { plan: Plan, array: ArrayPlace, scratch: PathBuf },
    /// Appends, to be counted from outside.
    CountedAppends { path: PathBuf, appends: usize },
    /// Calls on names, on the array and in an ordinary directory.
    Names { plan: Plan, array: ArrayPlace, plain: PathBuf },
    /// Two parties at once.
    Scaling { plan: Plan, ground: Ground },
    /// One of them, a process.
    Party { ground: Ground, index: usize },
    /// Writable shared mappings, through the library.
    Mapped { plan: Plan, array: ArrayPlace, chunk_bytes: u64, scratch: PathBuf },
    /// The same on members with huge pages, in chunks of 2 MiB.
    Units { plan: Plan, array: ArrayPlace },
    /// Calls that do not concern an array.
    NotOurs { plan: Plan, file: PathBuf },
    /// Programs started with and without the library; `cache` is where the library looks for its caches.
    Startup { plan: Plan, library: PathBuf, array: ArrayPlace, cache: PathBuf },
}

/// An array and the file on it.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct ArrayPlace {
    /// As in CXLRAID_LEVEL.
    pub(crate) level: String,
    /// Member directories.
    pub(crate) members: Vec<PathBuf>,
    /// The prefix that belongs to the array.
    pub(crate) prefix: PathBuf,
    /// As in CXLRAID_JOURNAL; empty for none.
    pub(crate) journal: String,
}

impl ArrayPlace {
    /// A file of the array as programs see it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.prefix.join(name)
    }

    /// The same file's backing file on a member.
    pub(crate) fn backing(&self, slot: usize, name: &str) -> PathBuf {
        self.members[slot].join(self.prefix.strip_prefix("/").unwrap_or(&self.prefix)).join(name)
    }
}
