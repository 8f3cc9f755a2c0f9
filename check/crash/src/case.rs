//! What is varied: the shape of the array, the platform, the workload.

use crate::record::Platform;
use array::{Config, JournalPlace};
use layout::Level;
use std::path::Path;
use units::ChunkBytes;

/// Lanes of a journal: as many as threads write at once, so that images stay small.
const JOURNAL_LANES: usize = 2;

/// The prefix of the array; operations name files below it.
pub(crate) const PREFIX: &str = "/data";

/// Whether an array has a journal, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Journal {
    None,
    /// In `.cxlraid` of some members.
    Members,
    /// One file on a device of its own.
    Elsewhere,
}

/// Level, members, chunk and journal, and whether blocks have sums.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    pub(crate) level: Level,
    pub(crate) member_count: usize,
    pub(crate) chunk_bytes: u64,
    pub(crate) journal: Journal,
    /// Tells whether blocks have sums.
    pub(crate) sums: bool,
}

/// A level as users write it, and the members arrays of it have here.
pub(crate) const LEVELS: [(&str, Level, usize); 7] = [
    ("0", Level::Raid0, 2),
    ("1", Level::Raid1, 2),
    ("4", Level::Raid4, 3),
    ("5", Level::Raid5, 3),
    ("6", Level::Raid6, 4),
    ("01", Level::Raid01, 4),
    ("10", Level::Raid10, 4),
];

pub(crate) const CHUNKS: [u64; 3] = [64, 4096, 65536];
pub(crate) const PLATFORMS: [(&str, Platform); 2] = [("adr", Platform::Adr), ("eadr", Platform::Eadr)];

impl Shape {
    /// Chunks of data in a stripe; 1 where there are no stripes.
    pub(crate) const fn columns(&self) -> u64 {
        match self.level {
            Level::Raid1 => 1,
            Level::Raid0 => self.member_count as u64,
            Level::Raid4 | Level::Raid5 => self.member_count as u64 - 1,
            Level::Raid6 => self.member_count as u64 - 2,
            Level::Raid01 | Level::Raid10 => self.member_count as u64 / 2,
        }
    }

    /// Whether redundancy is parity: then a member lost in the crash itself may take with it what
    /// was under way (the write hole).
    pub(crate) const fn has_parity(&self) -> bool {
        matches!(self.level, Level::Raid4 | Level::Raid5 | Level::Raid6)
    }

    pub(crate) fn has_journal(&self) -> bool {
        self.journal != Journal::None
    }

    /// Directories that are recorded: the members', and behind them the one of a journal that lies
    /// elsewhere.
    pub(crate) fn directory_count(&self) -> usize {
        self.member_count + usize::from(self.journal == Journal::Elsewhere)
    }

    /// Whether the array lives on without one member.
    pub(crate) const fn is_redundant(&self) -> bool {
        !matches!(self.level, Level::Raid0)
    }

    /// Whether arrays of this shape can have sums.
    pub(crate) const fn can_have_sums(&self) -> bool {
        self.is_redundant() && self.chunk_bytes >= array::sums::SUM_BLOCK_BYTES
    }

    /// Whether each byte is on some of the members only, without parity.
    pub(crate) const fn has_pairs(&self) -> bool {
        matches!(self.level, Level::Raid01 | Level::Raid10)
    }

    /// Whether the array lives on without any two members.
    pub(crate) const fn bears_two(&self) -> bool {
        matches!(self.level, Level::Raid6)
    }

    /// The configuration of an array whose members lie below `home`.
    pub(crate) fn config(&self, home: &Path) -> Result<Config, String> {
        let mounts: Vec<Vec<u8>> = (0..self.member_count)
            .map(|member| crate::image::member_directory(home, member).into_os_string().into_encoded_bytes())
            .collect();
        let chunk = ChunkBytes::new(self.chunk_bytes).ok_or("no such chunk")?;
        let config = Config::new(self.level, Some(chunk), &mounts, &[PREFIX.as_bytes().to_vec()], "crash".into())
            .map_err(|error| error.to_string())?;
        let config = Config { sums: self.sums, ..config };
        let place = match self.journal {
            Journal::None => return Ok(config),
            Journal::Members => JournalPlace::Members,
            Journal::Elsewhere => {
                let path = crate::image::member_directory(home, self.member_count).join("journal");
                JournalPlace::File(path.into_os_string().into_encoded_bytes())
            }
        };
        let config = config.with_journal(&place).map_err(|error| error.to_string())?;
        Ok(Config { journal_lanes: JOURNAL_LANES, ..config })
    }
}

/// One recorded run and its crash states.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) shape: Shape,
    pub(crate) platform: Platform,
    pub(crate) workload: &'static str,
    /// What is recorded is the recovery from a crash in the workload.
    pub(crate) again: bool,
    pub(crate) seed: u64,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let level = LEVELS.iter().find(|(_, level, _)| *level == self.shape.level).map_or("?", |(name, ..)| name);
        let platform = PLATFORMS.iter().find(|(_, platform)| *platform == self.platform).map_or("?", |(name, _)| name);
        let (chunk, seed) = (self.shape.chunk_bytes, self.seed);
        let again = if self.again { " --again" } else { "" };
        let sums = if self.shape.sums { " --sums" } else { "" };
        let journal = match self.shape.journal {
            Journal::None => " --no-journal",
            Journal::Members => " --journal",
            Journal::Elsewhere => " --journal-elsewhere",
        };
        write!(
            f,
            "--level {level} --chunk {chunk} --platform {platform} --workload {}{again}{journal}{sums} --seed {seed}",
            self.workload
        )
    }
}
