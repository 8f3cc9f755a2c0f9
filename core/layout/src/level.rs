//! The RAID levels and what each promises, as data.

use core::{fmt, str::FromStr};

/// A RAID level (RAIF's set, MSST 2007). The number is what is stored on media and typed by users;
/// 01 is stored as 101.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Level {
    /// Striping, no redundancy.
    Raid0 = 0,
    /// Mirroring: every member holds the file as it is.
    Raid1 = 1,
    /// Striping with parity on the last member.
    Raid4 = 4,
    /// Striping with rotating parity.
    Raid5 = 5,
    /// Striping with rotating P and Q, Q over GF(2^8).
    Raid6 = 6,
    /// A stripe of mirrored pairs.
    Raid10 = 10,
    /// A mirror of two stripe sets.
    Raid01 = 101,
}

impl Level {
    /// Every level, ascending.
    pub const ALL: [Self; 7] = [Self::Raid0, Self::Raid1, Self::Raid4, Self::Raid5, Self::Raid6, Self::Raid01, Self::Raid10];

    /// The number stored on media.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The level stored as `code`.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.code() == code)
    }

    /// The fewest members the level works with.
    #[must_use]
    pub const fn members_min(self) -> usize {
        match self {
            Self::Raid0 | Self::Raid1 => 1,
            Self::Raid4 | Self::Raid5 => 3,
            Self::Raid6 | Self::Raid01 | Self::Raid10 => 4,
        }
    }

    /// Whether the number of members must be even.
    #[must_use]
    pub const fn members_even(self) -> bool {
        matches!(self, Self::Raid01 | Self::Raid10)
    }

    /// How many members may fail, whichever they are, without loss.
    #[must_use]
    pub const fn failures_max(self, member_count: usize) -> usize {
        match self {
            Self::Raid0 => 0,
            Self::Raid1 => member_count - 1,
            Self::Raid4 | Self::Raid5 | Self::Raid01 | Self::Raid10 => 1,
            Self::Raid6 => 2,
        }
    }

    /// Parity chunks per stripe.
    #[must_use]
    pub const fn parity_count(self) -> usize {
        match self {
            Self::Raid0 | Self::Raid1 | Self::Raid01 | Self::Raid10 => 0,
            Self::Raid4 | Self::Raid5 => 1,
            Self::Raid6 => 2,
        }
    }

    /// Whether every byte lies on more than one member as it is.
    #[must_use]
    pub const fn keeps_copies(self) -> bool {
        self.parity_count() == 0 && self.failures_max(2) > 0
    }

    /// Whether the level cuts files into chunks.
    #[must_use]
    pub const fn has_chunks(self) -> bool {
        !matches!(self, Self::Raid1)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Raid0 => "0",
            Self::Raid1 => "1",
            Self::Raid4 => "4",
            Self::Raid5 => "5",
            Self::Raid6 => "6",
            Self::Raid01 => "01",
            Self::Raid10 => "10",
        })
    }
}

/// The text is not one of 0, 1, 4, 5, 6, 01, 10.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownLevel;

impl fmt::Display for UnknownLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown RAID level; use 0, 1, 4, 5, 6, 01 or 10")
    }
}

impl core::error::Error for UnknownLevel {}

impl FromStr for Level {
    type Err = UnknownLevel;

    fn from_str(text: &str) -> Result<Self, UnknownLevel> {
        match text {
            "0" => Ok(Self::Raid0),
            "1" => Ok(Self::Raid1),
            "4" => Ok(Self::Raid4),
            "5" => Ok(Self::Raid5),
            "6" => Ok(Self::Raid6),
            "01" => Ok(Self::Raid01),
            "10" => Ok(Self::Raid10),
            _ => Err(UnknownLevel),
        }
    }
}
