//! Sets of numbers as the runs that they consist of.

use heap::vec::Vec;

/// A set of numbers. Each run is its first number and the one after its last; runs ascend, none is
/// empty, and no two touch.
#[derive(Clone, Default)]
pub(super) struct Runs(Vec<(u64, u64)>);

impl Runs {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Tells whether the set is empty.
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The runs, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().copied()
    }

    /// Makes the set empty.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds the numbers `from..to`.
    pub(super) fn add(&mut self, mut from: u64, mut to: u64) {
        if from >= to {
            return;
        }
        let first = self.0.partition_point(|&(_, end)| end < from);
        let last = self.0.partition_point(|&(start, _)| start <= to).max(first);
        for (start, end) in self.0.drain(first..last) {
            (from, to) = (from.min(start), to.max(end));
        }
        self.0.insert(first, (from, to));
    }

    /// Takes one number out of the set.
    pub(super) fn take(&mut self, number: u64) {
        let Some(run) = self.run_of(number) else { return };
        let (from, to) = self.0[run];
        match (from < number, number + 1 < to) {
            (false, false) => drop(self.0.remove(run)),
            (true, false) => self.0[run].1 = number,
            (false, true) => self.0[run].0 = number + 1,
            (true, true) => {
                self.0[run].1 = number;
                self.0.insert(run + 1, (number + 1, to));
            }
        }
    }

    /// Tells whether a number is in the set.
    pub(super) fn holds(&self, number: u64) -> bool {
        self.run_of(number).is_some()
    }

    /// The first numbers of `from..to` that are not in the set, as far as they are adjacent.
    pub(super) fn first_gap(&self, from: u64, to: u64) -> Option<(u64, u64)> {
        let run = self.0.partition_point(|&(_, end)| end <= from);
        let (start, next) = match self.0.get(run) {
            None => return (from < to).then_some((from, to)),
            Some(&(first, end)) if first <= from => (end, self.0.get(run + 1)),
            present => (from, present),
        };
        let end = next.map_or(to, |&(next, _)| next.min(to));
        (start < end).then_some((start, end))
    }

    /// Keeps the runs for which `wanted` holds.
    pub(super) fn retain(&mut self, mut wanted: impl FnMut((u64, u64)) -> bool) {
        self.0.retain(|&run| wanted(run));
    }

    fn run_of(&self, number: u64) -> Option<usize> {
        let run = self.0.partition_point(|&(_, end)| end <= number);
        self.0.get(run).filter(|&&(from, _)| from <= number).map(|_| run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: u64 = 40;

    fn agrees(runs: &Runs, model: &[bool]) {
        let listed: Vec<(u64, u64)> = runs.iter().collect();
        assert!(listed.iter().all(|(from, to)| from < to), "{listed:?}");
        assert!(listed.windows(2).all(|pair| pair[0].1 < pair[1].0), "{listed:?}");
        for number in 0..COUNT {
            assert_eq!(runs.holds(number), model[number as usize], "{number} of {listed:?}");
        }
        for from in 0..COUNT {
            for to in from..=COUNT {
                let start = (from..to).find(|&number| !model[number as usize]);
                let gap = start.map(|start| (start, (start..to).find(|&number| model[number as usize]).unwrap_or(to)));
                assert_eq!(runs.first_gap(from, to), gap, "{from}..{to} of {listed:?}");
            }
        }
        assert_eq!(runs.is_empty(), !model.contains(&true));
    }

    #[test]
    fn a_set_of_runs_is_the_set_of_its_numbers() {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut below = |count: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % count
        };
        let (mut runs, mut model) = (Runs::new(), [false; COUNT as usize]);
        for _ in 0..2000 {
            let (from, to) = (below(COUNT), below(COUNT + 1));
            match below(8) {
                0..3 => {
                    runs.add(from, to);
                    (from..to).for_each(|number| model[number as usize] = true);
                }
                3..7 => {
                    runs.take(from);
                    model[from as usize] = false;
                }
                _ if below(8) == 0 => {
                    runs.clear();
                    model.fill(false);
                }
                _ => {
                    let wanted = |(from, _): (u64, u64)| from % 3 != 0;
                    for (from, to) in runs.iter().filter(|&run| !wanted(run)).collect::<Vec<_>>() {
                        (from..to).for_each(|number| model[number as usize] = false);
                    }
                    runs.retain(wanted);
                }
            }
            agrees(&runs, &model);
        }
    }
}
