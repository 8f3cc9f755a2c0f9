//! Arrays, and what happens to their members: both chosen by a run's seed.

use crate::scenes::Scene;
use std::fmt;

/// Level, members and chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) label: &'static str,
    pub(crate) level: &'static str,
    pub(crate) member_count: usize,
    pub(crate) chunk: &'static str,
    /// How many members it bears to lose.
    bears: usize,
    /// Whether neighbours mirror each other: never both may be lost.
    pairs: bool,
    /// Whether it has a journal, on its members.
    pub(crate) journal: bool,
}

impl Shape {
    pub(crate) const ALL: [Self; 6] = [
        Self { label: "raid1", level: "1", member_count: 3, chunk: "64K", bears: 2, pairs: false, journal: false },
        Self { label: "raid5", level: "5", member_count: 3, chunk: "4K", bears: 1, pairs: false, journal: false },
        Self { label: "raid5/64K", level: "5", member_count: 4, chunk: "64K", bears: 1, pairs: false, journal: false },
        Self { label: "raid6", level: "6", member_count: 4, chunk: "8K", bears: 2, pairs: false, journal: false },
        Self { label: "raid10", level: "10", member_count: 4, chunk: "4K", bears: 2, pairs: true, journal: false },
        Self { label: "journal", level: "5", member_count: 3, chunk: "4K", bears: 1, pairs: false, journal: true },
    ];

    pub(crate) fn survives(&self, lost: &[usize]) -> bool {
        lost.len() <= self.bears && !(self.pairs && lost.iter().any(|&slot| lost.contains(&(slot ^ 1))))
    }
}

/// What happens to a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Event {
    pub(crate) what: What,
    pub(crate) slot: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    /// Its directory is renamed.
    Away,
    /// Its memory goes: all its files are cut to nothing, so that loads and stores end with SIGBUS.
    Cut,
    /// Its file system is shut down: every call fails with EIO.
    Shut,
    /// Its file system takes no changes any more, as after an error of its disk.
    ReadOnly,
    /// Its file system has no room for a while. The member stays in use.
    Full,
}

impl What {
    /// The director's word for it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Away => "away",
            Self::Cut => "cut",
            Self::Shut => "shut",
            Self::ReadOnly => "read-only",
            Self::Full => "full",
        }
    }

    /// Whether the member must be a file system of its own.
    pub(crate) fn needs_mount(self) -> bool {
        matches!(self, Self::Shut | Self::ReadOnly | Self::Full)
    }

    /// Whether the member is lost by it.
    pub(crate) fn loses(self) -> bool {
        self != Self::Full
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "member {} {}", self.slot, self.what.word())
    }
}

/// xorshift64*.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        // Neighbouring seeds give numbers that have nothing in common.
        Self((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % limit as u64) as usize
    }
}

/// The events of a run: the member that is lost goes through all of them, and where the level bears
/// two, two are lost in a third of the runs.
pub(crate) fn events(shape: &Shape, scene: &Scene, random: &mut Random) -> Vec<Event> {
    let mut lost: Vec<usize> = Vec::new();
    let count = if shape.survives(&[0, 2]) && random.below(3) == 0 { 2 } else { 1 };
    while lost.len() < count {
        let slot = random.below(shape.member_count);
        if !lost.contains(&slot) && shape.survives(&[&lost[..], &[slot]].concat()) {
            lost.push(slot);
        }
    }
    // A member that fails without warning takes with it what dead writers left half written in its
    // stripes, where only a journal helps: README.
    let may_fail = !scene.kills || !matches!(shape.level, "5" | "6") || shape.journal;
    let mut event = |slot| {
        let what = match random.below(9) {
            0 | 1 if may_fail => What::Shut,
            2 | 3 if may_fail => What::ReadOnly,
            4 if may_fail => What::Cut,
            5 | 6 if scene.bears_full => What::Full,
            _ => What::Away,
        };
        Event { what, slot }
    };
    lost.into_iter().map(&mut event).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenes::SCENES;

    #[test]
    fn no_more_is_lost_than_the_level_bears() {
        for shape in &Shape::ALL {
            for scene in &SCENES {
                let mut hit = vec![0; shape.member_count];
                for seed in 0..200 {
                    let events = events(shape, scene, &mut Random::new(seed));
                    let lost: Vec<usize> = events.iter().map(|event| event.slot).collect();
                    assert!(!lost.is_empty() && shape.survives(&lost), "{} {seed}: {events:?}", shape.label);
                    lost.iter().for_each(|&slot| hit[slot] += 1);
                }
                assert!(hit.iter().all(|&count| count > 20), "{}: {hit:?}", shape.label);
            }
        }
    }
}
