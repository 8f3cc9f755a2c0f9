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
pub(crate) enum Event {
    /// Its directory is renamed.
    Away(usize),
    /// Its file system is shut down: every call fails with EIO.
    Shut(usize),
}

impl Event {
    pub(crate) fn slot(self) -> usize {
        match self {
            Self::Away(slot) | Self::Shut(slot) => slot,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Away(slot) => write!(f, "member {slot} away"),
            Self::Shut(slot) => write!(f, "member {slot} shut down"),
        }
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

/// The events of a run: the member that is lost goes through all of them, and where the level bears two, two are lost in a third of the runs.
pub(crate) fn events(shape: &Shape, scene: &Scene, random: &mut Random) -> Vec<Event> {
    let mut lost: Vec<usize> = Vec::new();
    let count = if shape.survives(&[0, 2]) && random.below(3) == 0 { 2 } else { 1 };
    while lost.len() < count {
        let slot = random.below(shape.member_count);
        if !lost.contains(&slot) && shape.survives(&[&lost[..], &[slot]].concat()) {
            lost.push(slot);
        }
    }
    // A member that fails without warning takes with it what dead writers left half written in its stripes, where only a journal helps: README.
    let may_shut = !scene.kills || !matches!(shape.level, "5" | "6") || shape.journal;
    let event = |slot| if may_shut && random.below(3) == 0 { Event::Shut(slot) } else { Event::Away(slot) };
    lost.into_iter().map(event).collect()
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
                    let lost: Vec<usize> = events.iter().map(|event| event.slot()).collect();
                    assert!(!lost.is_empty() && shape.survives(&lost), "{} {seed}: {events:?}", shape.label);
                    lost.iter().for_each(|&slot| hit[slot] += 1);
                }
                assert!(hit.iter().all(|&count| count > 20), "{}: {hit:?}", shape.label);
            }
        }
    }
}
