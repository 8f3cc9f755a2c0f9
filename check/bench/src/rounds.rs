//! Measuring: contenders take turns in short rounds, and medians are what counts.
//!
//! The machine is shared and its memory is not always equally fast. So ratios are formed within a
//! round, where both sides met the same conditions, and the median of the rounds' ratios is
//! reported beside the median times.

use crate::places::Places;
use std::collections::BTreeMap;
use std::time::Instant;

/// One side of a comparison.
pub(crate) trait Contender {
    /// Gets ready for these calls; not timed.
    fn prepare(&mut self, _offsets: &[u64]) {}

    /// Makes one call per offset.
    fn run(&mut self, offsets: &[u64]);
}

/// A call, once per offset.
pub(crate) struct Calling<F>(pub(crate) F);

impl<F: FnMut(u64)> Contender for Calling<F> {
    fn run(&mut self, offsets: &[u64]) {
        offsets.iter().for_each(|&offset| (self.0)(offset));
    }
}

/// The times of a comparison: nanoseconds per call, by contender, by round.
pub(crate) struct Times(Vec<Vec<f64>>);

/// Runs the contenders by turns, each with its own places.
pub(crate) fn measure(contenders: &mut [(&mut dyn Contender, Places)], rounds: usize, calls: usize) -> Times {
    let count = contenders.len();
    let mut times = vec![Vec::with_capacity(rounds); count];
    let mut offsets = Vec::with_capacity(calls);
    // One round more: the first one warms up.
    for round in 0..=rounds {
        for turn in 0..count {
            let index = (turn + round) % count;
            let (contender, places) = &mut contenders[index];
            places.fill(&mut offsets, calls);
            contender.prepare(&offsets);
            let begun = Instant::now();
            contender.run(&offsets);
            let nanoseconds = begun.elapsed().as_nanos() as f64;
            if round > 0 {
                times[index].push(nanoseconds / calls as f64);
            }
        }
    }
    Times(times)
}

impl Times {
    /// Times that were taken elsewhere.
    pub(crate) const fn new(by_contender: Vec<Vec<f64>>) -> Self {
        Self(by_contender)
    }

    /// The times of contenders with their names, round by round.
    pub(crate) fn named(&self, names: &[(&str, usize)]) -> BTreeMap<String, Vec<f64>> {
        names.iter().map(|&(name, index)| (name.to_owned(), self.0[index].clone())).collect()
    }

    /// The median time of a contender.
    pub(crate) fn nanoseconds(&self, index: usize) -> f64 {
        median(self.0[index].clone())
    }

    /// The median of how much longer `index` took than `other`, as a factor.
    pub(crate) fn ratio(&self, index: usize, other: usize) -> f64 {
        median(self.0[index].iter().zip(&self.0[other]).map(|(own, other)| own / other).collect())
    }
}

/// The middle value; NaN if there is none.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert!(median(Vec::new()).is_nan());
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn ratios_are_formed_within_rounds() {
        let times = Times::new(vec![vec![10.0, 200.0, 30.0], vec![5.0, 100.0, 10.0]]);
        assert_eq!(times.ratio(0, 1), 2.0);
        assert_eq!(times.nanoseconds(0), 30.0);
        assert_eq!(times.named(&[("bare", 1)])["bare"], [5.0, 100.0, 10.0]);
    }
}
