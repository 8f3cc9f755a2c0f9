//! The arrays under test: levels, file systems, persistence domains, as both sides name them.

use crate::{Outcome, job::Job};
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

    /// Those of them that lack only members that are `present`.
    pub(crate) fn absences_of(self, present: &[usize]) -> impl Iterator<Item = Vec<usize>> {
        self.absences().into_iter().filter(|absent| absent.iter().all(|slot| present.contains(slot)))
    }

    /// Sets of `count` of the `present` members that, left out one after the other, have every copy
    /// read and all parity computed with, as a scrub does.
    pub(crate) fn covering(self, present: &[usize], count: usize) -> Vec<Vec<usize>> {
        let sets = self.absences_of(present).filter(|absent| absent.len() == count);
        match (self.level, count) {
            // Each copy alone.
            (1, _) => sets.collect(),
            // Halves: what one holds is computed from the other.
            (6, 2) => sets.filter(|absent| absent == &present[..2] || absent == &present[2..]).collect(),
            // A parity chunk is computed with unless it is what is left out, or nothing but other
            // parity is.
            _ => sets.take(2).collect(),
        }
    }
}

/// What an array is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Array {
    pub(crate) shape: Shape,
    /// On every member.
    pub(crate) system: FileSystem,
    /// On the members.
    pub(crate) journal: bool,
}

impl Array {
    /// How the host tells the guest.
    pub(crate) fn tell(self, job: Job) -> Job {
        let job = job.with("level", self.shape.level).with("fs", self.system);
        if self.journal { job.with("journal", "internal") } else { job }
    }

    pub(crate) fn told(job: &Job) -> Outcome<Self> {
        let journal = job.find::<String>("journal")?.is_some();
        Ok(Self { shape: Shape::of_level(job.get("level")?)?, system: job.get("fs")?, journal })
    }

    /// How many members may be lost in the same instant as the power: with parity none without a
    /// journal (the write hole).
    pub(crate) const fn bears_in_a_cut(self) -> usize {
        if self.journal || self.shape.level == 1 { self.shape.bears } else { 0 }
    }
}

impl fmt::Display for Array {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}{}", self.shape.level, if self.journal { "-journal" } else { "" })
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

    /// Whether contents are computed with the role `tested`, of all roles by slot, when the roles
    /// of `absent` are not there: data roles are below `data`, then P, then Q.
    fn needs(roles: &[usize], data: usize, absent: &[usize], tested: usize) -> bool {
        let is_absent = |role: usize| absent.iter().any(|&slot| roles[slot] == role);
        let missing = (0..data).filter(|&role| is_absent(role)).count();
        match tested {
            _ if is_absent(tested) => false,
            role if role < data => true,
            // P computes the first missing chunk.
            role if role == data => missing > 0,
            _ => missing > usize::from(!is_absent(data)),
        }
    }

    #[test]
    fn covering_sets_need_all_parity() {
        for shape in [Shape::of_level(5).unwrap(), Shape::of_level(6).unwrap()] {
            let (slots, data) = (shape.member_count, shape.member_count - shape.bears);
            let lost_at_once = 0..shape.bears;
            for lost in
                lost_at_once.flat_map(|count| if count == 0 { vec![vec![]] } else { (0..slots).map(|slot| vec![slot]).collect() })
            {
                let present: Vec<usize> = (0..slots).filter(|slot| !lost.contains(slot)).collect();
                let sets = shape.covering(&present, shape.bears - lost.len());
                assert!(sets.len() == 2, "{shape:?} {lost:?}: {sets:?}");
                // Every assignment of roles to slots, as the numbers 0..slots^slots in base slots.
                for number in 0..slots.pow(slots as u32) {
                    let roles: Vec<usize> = (0..slots).map(|slot| number / slots.pow(slot as u32) % slots).collect();
                    if (0..slots).any(|role| !roles.contains(&role)) {
                        continue;
                    }
                    for &slot in &present {
                        let needed = |set: &Vec<usize>| needs(&roles, data, &[&lost[..], set].concat(), roles[slot]);
                        assert!(sets.iter().any(needed) || needs(&roles, data, &lost, roles[slot]), "{roles:?} {lost:?} {slot}");
                    }
                }
            }
        }
        assert_eq!(Shape::of_level(1).unwrap().covering(&[0, 1, 2], 2), [[0, 1], [0, 2], [1, 2]]);
    }

    #[test]
    fn an_array_survives_the_command_line() {
        for journal in [false, true] {
            let array = Array { shape: Shape::ALL[2], system: FileSystem::Xfs, journal };
            assert_eq!(Array::told(&array.tell(Job::new("load"))), Ok(array));
            assert_eq!(array.bears_in_a_cut(), if journal { 2 } else { 0 });
        }
        assert!(Array::told(&Job::new("load")).is_err());
    }

    #[test]
    fn file_systems_are_known_by_name() {
        assert_eq!("xfs".parse(), Ok(FileSystem::Xfs));
        assert_eq!(FileSystem::from_str("btrfs"), Err(()));
    }
}
