//! The plan of a run of the benchmark (how much is measured), and the tasks that its worker
//! processes are given.

use crate::beside::Marks;
use crate::party::Ground;
use crate::scale::Job;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Bytes of a small call.
pub(crate) const SMALL_BYTES: usize = 4 << 10;
/// Bytes of a large call.
pub(crate) const LARGE_BYTES: usize = 1 << 20;
/// Bytes of a call that is so small that nearly all of its time is overhead and not copying.
pub(crate) const TINY_BYTES: usize = 64;

/// Sizes and counts of one run.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
pub(crate) struct Plan {
    /// Bytes of the file that is read and written.
    pub(crate) region_bytes: u64,
    /// Rounds per case. In each round every contender (way to do the same thing) runs once.
    pub(crate) rounds: usize,
    /// Small calls of a contender in one round. Rounds are short, so that most of them are not
    /// disturbed.
    pub(crate) small_calls: usize,
    /// Large calls of a contender in one round.
    pub(crate) large_calls: usize,
    /// Bytes appended in one round.
    pub(crate) append_bytes: u64,
    /// Rounds of appending.
    pub(crate) append_rounds: usize,
    /// Calls on names in one round. Each call takes microseconds.
    pub(crate) name_calls: usize,
    /// Bytes of a file on which two parties (threads or processes) work at once.
    pub(crate) shared_bytes: u64,
    /// Calls of each party in one round.
    pub(crate) shared_calls: usize,
    /// Rounds with two parties.
    pub(crate) rounds_of_two: usize,
    /// Programs started in each way.
    pub(crate) spawns: usize,
    /// Scrubs, rebuilds, and pairs of processes that read with and without a member.
    pub(crate) repair_rounds: usize,
    /// Small files that a program makes, and how often each program runs.
    pub(crate) fresh_count: usize,
    pub(crate) fresh_rounds: usize,
    /// Worker processes with the library, and as many without it, for calls that do not concern an
    /// array.
    pub(crate) pairs: usize,
}

impl Plan {
    /// The plan by which the goals are judged.
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
            fresh_count: 4872,
            fresh_rounds: 5,
            pairs: 9,
        }
    }

    /// A plan that is large enough to see that everything runs. Its times mean nothing.
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
            fresh_count: 40,
            fresh_rounds: 1,
            pairs: 1,
        }
    }
}

/// What a worker process does. The task is handed over as JSON on the worker's command line, and
/// the worker writes its results to standard output.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) enum Task {
    /// Measures the cases of one level, through the library.
    Level { plan: Plan, array: ArrayPlace, scratch: PathBuf },
    /// Fills a file of the array.
    Fill { plan: Plan, array: ArrayPlace },
    /// Measures writes to the file of [`Task::Fill`] with a member out, through the library.
    Degraded { plan: Plan, array: ArrayPlace },
    /// Reads at random of that file, through the library.
    Reads { plan: Plan, array: ArrayPlace },
    /// Measures appends.
    Append { plan: Plan, array: ArrayPlace, scratch: PathBuf },
    /// Makes a member anew, but for the bytes of files.
    FillMember { array: ArrayPlace, slot: usize },
    /// Writes at random to a file through the library, alone and while another process rebuilds
    /// another file (`marks`).
    Beside { plan: Plan, array: ArrayPlace, marks: Marks },
    /// Appends `appends` times, while another process counts the system calls.
    CountedAppends { path: PathBuf, appends: usize },
    /// Measures calls on names, on the array and in an ordinary directory.
    Names { plan: Plan, array: ArrayPlace, plain: PathBuf },
    /// Measures two parties at once.
    Scaling { plan: Plan, ground: Ground },
    /// Is one of the two parties of [`Task::Scaling`], as a process of its own.
    Party { ground: Ground, index: usize },
    /// Measures writable shared mappings, through the library.
    Mapped { plan: Plan, array: ArrayPlace, chunk_bytes: u64, scratch: PathBuf },
    /// Measures writable shared mappings on members with huge pages, in chunks of 2 MiB.
    Units { plan: Plan, array: ArrayPlace },
    /// Measures calls that do not concern an array.
    NotOurs { plan: Plan, file: PathBuf },
    /// Does a job of `scale`; begins when it is told to, if it waits.
    Scale { job: Job, waits: bool },
    /// Measures the start of programs with and without the library. `cache` is where the library
    /// looks for its caches.
    Startup { plan: Plan, library: PathBuf, array: ArrayPlace, cache: PathBuf },
}

/// An array and the file on it.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct ArrayPlace {
    /// The value of `CXLRAID_LEVEL`.
    pub(crate) level: String,
    /// Member directories.
    pub(crate) members: Vec<PathBuf>,
    /// The prefix that belongs to the array.
    pub(crate) prefix: PathBuf,
    /// The value of `CXLRAID_JOURNAL`; empty for no journal.
    pub(crate) journal: String,
}

impl ArrayPlace {
    /// The path of a file of the array as programs see it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.prefix.join(name)
    }

    /// The path of that file's backing file on a member.
    pub(crate) fn backing(&self, slot: usize, name: &str) -> PathBuf {
        self.members[slot].join(self.prefix.strip_prefix("/").unwrap_or(&self.prefix)).join(name)
    }
}
