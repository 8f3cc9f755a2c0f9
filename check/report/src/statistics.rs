//! Medians, spreads, and whether two measurements differ by more than their own noise.
//!
//! Compared systems run by turns, so the same round of both met about the same machine: ratios are
//! formed within rounds, and a difference whose sign is not the same in every round is called noise.

/// Rounds below which nothing is said about noise.
const ROUNDS_MIN: usize = 3;

/// The middle value; NaN if there is none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

/// The least and the greatest value.
pub(crate) fn range(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &value| (low.min(value), high.max(value)))
}

/// One measurement divided by another, round by round.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Ratio {
    /// The median of the rounds' ratios, the least and the greatest.
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    rounds: usize,
}

impl Ratio {
    /// None if a side was not measured.
    pub(crate) fn of(these: &[f64], those: &[f64]) -> Option<Self> {
        let ratios: Vec<f64> = these.iter().zip(those).filter(|(_, that)| **that > 0.0).map(|(this, that)| this / that).collect();
        let (low, high) = range(&ratios);
        (!ratios.is_empty()).then(|| Self { median: median(&ratios), low, high, rounds: ratios.len() })
    }

    /// The ratio of the other side to this one.
    pub(crate) fn inverse(self) -> Self {
        Self { median: 1.0 / self.median, low: 1.0 / self.high, high: 1.0 / self.low, rounds: self.rounds }
    }

    /// Tells whether `value` lies within what the rounds gave. None if there are too few rounds.
    pub(crate) fn reaches(self, value: f64) -> Option<bool> {
        (self.rounds >= ROUNDS_MIN).then_some(self.low <= value && value <= self.high)
    }

    /// The ratio with its spread, as "1.93 times (1.80 to 2.01)".
    pub(crate) fn text(self) -> String {
        if self.rounds < 2 {
            return format!("{:.2} times", self.median);
        }
        format!("{:.2} times ({:.2} to {:.2})", self.median, self.low, self.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ranges() {
        assert!(median(&[]).is_nan());
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(range(&[3.0, 1.0, 2.0]), (1.0, 3.0));
    }

    #[test]
    fn a_difference_that_changes_its_sign_is_noise() {
        let ratio = |these: &[f64], those: &[f64]| Ratio::of(these, those).expect("both sides are there");
        let noise = ratio(&[1.0, 2.0, 3.0], &[1.1, 1.9, 3.1]);
        assert_eq!(noise.reaches(1.0), Some(true));
        let clear = ratio(&[2.0, 20.0, 4.0], &[1.0, 10.0, 2.0]);
        assert_eq!((clear.median, clear.reaches(1.0)), (2.0, Some(false)));
        assert_eq!(clear.inverse().median, 0.5);
        assert_eq!(ratio(&[2.0], &[1.0]).reaches(1.0), None);
        assert_eq!(Ratio::of(&[], &[1.0]), None);
        assert_eq!(clear.text(), "2.00 times (2.00 to 2.00)");
    }
}
