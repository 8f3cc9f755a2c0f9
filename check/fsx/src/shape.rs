//! What is tested: level, members, chunk; who works on the files; what happens to a member.

use std::fmt;

/// Level and members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Level {
    pub(crate) name: &'static str,
    pub(crate) member_count: usize,
    /// How many members may be out, whichever they are.
    pub(crate) bears: usize,
    /// Whether files are cut into chunks.
    pub(crate) has_chunks: bool,
    /// The member with the first byte of every file.
    pub(crate) first_slot: usize,
}

const fn level(name: &'static str, member_count: usize, bears: usize) -> Level {
    Level { name, member_count, bears, has_chunks: true, first_slot: 0 }
}

/// Every level there is.
pub(crate) const LEVELS: [Level; 7] = [
    level("0", 3, 0),
    Level { has_chunks: false, ..level("1", 3, 2) },
    level("4", 3, 1),
    level("5", 4, 1),
    // Q of the first stripe is on the first member.
    Level { first_slot: 1, ..level("6", 5, 2) },
    level("01", 4, 1),
    level("10", 4, 1),
];

/// The smallest, a page, and the default.
pub(crate) const CHUNKS: [u64; 3] = [64, 4096, 65536];

/// Who works on the files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// One process on many descriptors, against an exact model.
    Single,
    /// Threads of one process.
    Threads,
    /// Processes, of which some are killed.
    Processes,
    /// Processes, of which some are killed. Every other one uses the array through a mount, without
    /// the library.
    Doors,
    /// Processes that store to one mapped file, of which some are killed.
    Stores,
}

/// What happens to a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scenario {
    Healthy,
    /// One is missing from the start.
    Missing,
    /// The memory of one is gone in the middle: its files are cut short under the mappings.
    Cut,
}

pub(crate) const MODES: [Mode; 5] = [Mode::Single, Mode::Threads, Mode::Processes, Mode::Doors, Mode::Stores];
pub(crate) const SCENARIOS: [Scenario; 3] = [Scenario::Healthy, Scenario::Missing, Scenario::Cut];

impl Mode {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Threads => "threads",
            Self::Processes => "processes",
            Self::Doors => "doors",
            Self::Stores => "stores",
        }
    }
}

impl Scenario {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Missing => "missing",
            Self::Cut => "cut",
        }
    }
}

/// One run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Case {
    pub(crate) level: Level,
    pub(crate) chunk: u64,
    pub(crate) mode: Mode,
    pub(crate) scenario: Scenario,
    /// Whether the array has a journal, on its members.
    pub(crate) journal: bool,
}

impl Case {
    /// Whether it makes sense: without chunks, and for a mount, one chunk size is enough, and a
    /// level without redundancy loses nothing.
    pub(crate) fn is_sensible(&self) -> bool {
        let chunk = self.level.has_chunks || self.chunk == CHUNKS[CHUNKS.len() - 1];
        let mode = match self.mode {
            Mode::Stores => crate::stores::bears(self.scenario),
            Mode::Doors => self.chunk == 4096 || !self.level.has_chunks,
            _ => true,
        };
        chunk && mode && (self.level.bears > 0 || self.scenario == Scenario::Healthy)
    }

    /// Whether the case's mappings show members as far as that can be, which half of the cases do.
    /// Without that setting they would show copies, since the files are small.
    pub(crate) fn maps_members(&self) -> bool {
        self.seed(0) & 1 == 0
    }

    /// Different for every case, the same in every run.
    pub(crate) fn seed(&self, seed: u64) -> u64 {
        let text = self.to_string();
        text.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { level, chunk, mode, scenario, journal } = self;
        let journal = if *journal { " --journal" } else { "" };
        write!(f, "--level {} --chunk {chunk} --mode {} --scenario {}{journal}", level.name, mode.name(), scenario.name())
    }
}
