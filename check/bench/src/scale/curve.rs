//! Curves: what something costs along an axis, and how its cost grows.

use crate::rounds::median;
use serde::{Deserialize, Serialize};

/// An exponent that is larger than expected by no more than this is no growth: times are noisy.
const TOLERANCE: f64 = 0.2;
/// A curve whose last value is at most this many times its least one is flat, whatever its end
/// looks like.
const FLAT: f64 = 1.5;

/// One measure at one point of its axis: medians of the rounds, in the measure's unit.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub(crate) struct Point {
    pub(crate) x: u64,
    pub(crate) array: Option<f64>,
    /// In an ordinary directory of the same tmpfs. None where there is no such thing.
    pub(crate) plain: Option<f64>,
    /// The array's over the plain one: the median of the rounds' ratios.
    pub(crate) ratio: Option<f64>,
    /// What the medians are of: every round.
    #[serde(default)]
    pub(crate) array_rounds: Vec<f64>,
    #[serde(default)]
    pub(crate) plain_rounds: Vec<f64>,
}

impl Point {
    /// A point of what the rounds gave.
    pub(crate) fn of(x: u64, array: &[f64], plain: &[f64]) -> Self {
        let middle = |values: &[f64]| (!values.is_empty()).then(|| median(values.to_vec()));
        let ratios: Vec<f64> =
            array.iter().zip(plain).filter(|(_, plain)| **plain > 0.0).map(|(array, plain)| array / plain).collect();
        Self {
            x,
            array: middle(array),
            plain: middle(plain),
            ratio: middle(&ratios),
            array_rounds: array.to_vec(),
            plain_rounds: plain.to_vec(),
        }
    }
}

/// The growth of a curve: `y` is about a constant times `x` to this power.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize, Debug)]
pub(crate) struct Growth {
    /// Over all points.
    pub(crate) whole: f64,
    /// Over the points from a tenth of the last one on.
    pub(crate) last_decade: f64,
}

impl Growth {
    /// The growth of what has these values, of which the last has the largest `x`. None if there are
    /// fewer than two.
    pub(crate) fn of(values: &[(u64, f64)]) -> Option<Self> {
        let last = values.last()?.0;
        let from = values.iter().position(|(x, _)| *x >= last / 10).unwrap_or(0);
        // A decade without another point is as long as the last two points.
        let from = from.min(values.len().saturating_sub(2));
        Some(Self { whole: exponent(values)?, last_decade: exponent(&values[from..])? })
    }
}

/// The slope of the least-squares line through the logarithms.
fn exponent(values: &[(u64, f64)]) -> Option<f64> {
    let logs: Vec<(f64, f64)> =
        values.iter().filter(|(x, y)| *x > 0 && *y > 0.0).map(|&(x, y)| ((x as f64).ln(), y.ln())).collect();
    let count = logs.len() as f64;
    let (sum_x, sum_y) = logs.iter().fold((0.0, 0.0), |(sum_x, sum_y), (x, y)| (sum_x + x, sum_y + y));
    let (mean_x, mean_y) = (sum_x / count, sum_y / count);
    let spread: f64 = logs.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    let together: f64 = logs.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    (logs.len() >= 2 && spread > 0.0).then(|| together / spread)
}

/// What a curve's growth is judged to be.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// It grows as expected at most, or as the ordinary directory's does.
    Ok,
    /// It grows faster than expected, and faster than in the ordinary directory.
    Grows,
    /// There are too few points.
    TooFew,
    /// It is no cost.
    NotJudged,
}

/// A measure along its axis.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct Curve {
    pub(crate) axis: String,
    pub(crate) measure: String,
    /// What is measured, in words, with its unit.
    pub(crate) what: String,
    /// The exponent that it may have: 0 for what should cost the same everywhere. None for what is no
    /// cost.
    pub(crate) expected: Option<f64>,
    pub(crate) points: Vec<Point>,
    pub(crate) array: Option<Growth>,
    pub(crate) plain: Option<Growth>,
    pub(crate) verdict: Verdict,
}

impl Curve {
    pub(crate) fn new(axis: &str, measure: &str, what: &str, expected: Option<f64>, points: Vec<Point>) -> Self {
        let values = |of: fn(&Point) -> Option<f64>| -> Vec<(u64, f64)> {
            points.iter().filter_map(|point| of(point).map(|y| (point.x, y))).collect()
        };
        let ours = values(|point| point.array);
        let (array, plain) = (Growth::of(&ours), Growth::of(&values(|point| point.plain)));
        let verdict = match (array, expected) {
            (_, None) => Verdict::NotJudged,
            (None, _) => Verdict::TooFew,
            (Some(array), Some(expected)) => {
                let allowed = plain.map_or(expected, |plain| expected.max(plain.last_decade)) + TOLERANCE;
                let least = ours.iter().map(|(_, y)| *y).fold(f64::INFINITY, f64::min);
                let is_flat = ours.last().is_some_and(|(_, y)| *y <= FLAT * least);
                if array.last_decade > allowed && !is_flat { Verdict::Grows } else { Verdict::Ok }
            }
        };
        let [axis, measure, what] = [axis, measure, what].map(str::to_owned);
        Self { axis, measure, what, expected, points, array, plain, verdict }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(expected: f64, values: &[(u64, f64, f64)]) -> Curve {
        let points = values.iter().map(|&(x, array, plain)| Point::of(x, &[array], &[plain])).collect();
        Curve::new("a", "m", "w", Some(expected), points)
    }

    #[test]
    fn powers_are_found() {
        let values: Vec<(u64, f64)> = [1, 10, 100, 1000].map(|x| (x, 3.0 * (x as f64).powf(1.5))).to_vec();
        let growth = Growth::of(&values).unwrap();
        assert!((growth.whole - 1.5).abs() < 1e-9 && (growth.last_decade - 1.5).abs() < 1e-9, "{growth:?}");
        assert_eq!(Growth::of(&[(5, 1.0)]), None);
    }

    #[test]
    fn the_last_decade_counts_by_itself() {
        let growth = Growth::of(&[(1, 1.0), (10, 1.0), (100, 1.0), (300, 3.0), (1000, 10.0)]).unwrap();
        assert!((growth.last_decade - 1.0).abs() < 0.01 && growth.whole < 0.5, "{growth:?}");
        // The points of a wide axis lie further apart than a decade.
        let growth = Growth::of(&[(1, 1.0), (1 << 10, 1.0), (1 << 20, 1024.0)]).unwrap();
        assert!((growth.last_decade - 1.0).abs() < 1e-9, "{growth:?}");
    }

    #[test]
    fn what_grows_faster_than_expected_and_than_the_plain_directory_is_told() {
        assert_eq!(curve(0.0, &[(10, 5.0, 1.0), (100, 50.0, 1.0)]).verdict, Verdict::Grows);
        assert_eq!(curve(1.0, &[(10, 5.0, 1.0), (100, 50.0, 1.0)]).verdict, Verdict::Ok);
        assert_eq!(curve(0.0, &[(10, 5.0, 1.0), (100, 50.0, 10.0)]).verdict, Verdict::Ok);
        assert_eq!(curve(0.0, &[(90, 5.0, 1.0), (100, 7.0, 1.0)]).verdict, Verdict::Ok);
        assert_eq!(curve(0.0, &[(10, 5.0, 1.0)]).verdict, Verdict::TooFew);
    }

    #[test]
    fn ratios_are_formed_within_rounds() {
        let point = Point::of(1, &[10.0, 200.0, 30.0], &[5.0, 100.0, 10.0]);
        assert_eq!((point.array, point.plain, point.ratio), (Some(30.0), Some(10.0), Some(2.0)));
        assert_eq!((point.array_rounds, point.plain_rounds), (vec![10.0, 200.0, 30.0], vec![5.0, 100.0, 10.0]));
        assert_eq!(Point::of(1, &[10.0], &[]).ratio, None);
    }
}
