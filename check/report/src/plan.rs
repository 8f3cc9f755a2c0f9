//! How much a run measures: tiny sizes that show that everything works, a run of minutes, or one of
//! hours whose figures can be published.

use serde::{Deserialize, Serialize};

/// The size of a run.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Extent {
    /// Sizes so small that times mean nothing.
    Quick,
    /// Some rounds of some seconds.
    Usual,
    /// Enough rounds, long enough, to publish what is found.
    Full,
}

/// Sizes and counts of one run. Times are in milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub(crate) struct Plan {
    pub(crate) extent: Extent,
    /// How often each measurement is taken. In each round every compared system runs once.
    pub(crate) rounds: usize,
    /// Bytes of the file that fio reads and writes.
    pub(crate) file_bytes: u64,
    /// How long fio measures.
    pub(crate) run_ms: u64,
    /// How long fio works before it measures.
    pub(crate) ramp_ms: u64,
    /// Records that a key-value store is filled with, and operations on them in one round.
    pub(crate) records: usize,
    pub(crate) operations: usize,
}

impl Plan {
    pub(crate) const fn new(extent: Extent) -> Self {
        let (rounds, file_bytes, run_ms, ramp_ms, records, operations) = match extent {
            Extent::Quick => (1, 4 << 20, 50, 0, 100, 200),
            Extent::Usual => (3, 256 << 20, 1000, 200, 10_000, 20_000),
            Extent::Full => (5, 512 << 20, 5000, 1000, 50_000, 50_000),
        };
        Self { extent, rounds, file_bytes, run_ms, ramp_ms, records, operations }
    }

    /// Tells whether times mean nothing.
    pub(crate) fn is_quick(&self) -> bool {
        self.extent == Extent::Quick
    }

    /// The seconds that `runs` runs of fio take in all rounds, with starting the program.
    pub(crate) fn fio_seconds(&self, runs: usize) -> f64 {
        let one = (self.run_ms + self.ramp_ms) as f64 / 1000.0 + 0.45;
        // Several run at once in a quick run.
        one * (runs * self.rounds) as f64 / if self.is_quick() { 3.0 } else { 1.0 }
    }
}
