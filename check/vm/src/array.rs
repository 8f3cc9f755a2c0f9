//! The arrays under test: levels, file systems, persistence domains, as both sides name them.

use crate::Outcome;
use std::{fmt, str::FromStr};

/// Where programs see the array.
pub(crate) const PREFIX: &str = "/data";

/// A level with its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// As the command line takes it.
    pub(crate) level: u8,
    pub(crate) member_count: usize,
    /// How many members may be missing.
    pub(crate) bears: usize,
}

impl Shape {
    pub(crate) const ALL: [Self; 3] = [
        Self { level: 1, member_count: 3, bears: 2 },
        Self { level: 5, member_count: 3, bears: 1 },
        Self { level: 6, member_count: 4, bears: 2 },
    ];

    pub(crate) fn of_level(level: u8) -> Outcome<Self> {
        Self::ALL.into_iter().find(|shape| shape.level == level).ok_or_else(|| format!("level {level} is not among those tested"))
    }

    /// Sets of members, by slot, that may be missing: one each, then two each.
    pub(crate) fn absences(self) -> Vec<Vec<usize>> {
        let slots = 0..self.member_count;
        let one = slots.clone().map(|slot| vec![slot]);
        let two = slots.clone().flat_map(|first| (first + 1..slots.end).map(move |second| vec![first, second]));
        one.chain(two).filter(|absent| absent.len() <= self.bears).collect()
    }
}

/// A file system that can be mounted with `dax=always`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileSystem {
    Ext4,
    Xfs,
}

impl FileSystem {
    /// Of an NVDIMM: mkfs.xfs makes nothing smaller than 300 MiB.
    pub(crate) const fn device_bytes(self) -> u64 {
        match self {
            Self::Ext4 => 192 << 20,
            Self::Xfs => 320 << 20,
        }
    }
}

impl fmt::Display for FileSystem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        })
    }
}

impl FromStr for FileSystem {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        [Self::Ext4, Self::Xfs].into_iter().find(|system| system.to_string() == text).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absences_are_what_a_level_bears() {
        assert_eq!(Shape::of_level(5).unwrap().absences(), [[0], [1], [2]]);
        assert_eq!(Shape::of_level(6).unwrap().absences().len(), 4 + 6);
        assert_eq!(Shape::of_level(1).unwrap().absences().last().unwrap(), &[1, 2]);
        assert!(Shape::of_level(0).is_err());
    }

    #[test]
    fn file_systems_are_known_by_name() {
        assert_eq!("xfs".parse(), Ok(FileSystem::Xfs));
        assert_eq!(FileSystem::from_str("btrfs"), Err(()));
    }
}
