//! Results: tables for people, JSON for programs.

use super::axis::{Axis, On, Record};
use super::curve::{Curve, Growth, Point, Verdict};
use crate::report::machine;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write as _};

/// A point without result, and why.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct LeftOut {
    pub(crate) axis: String,
    pub(crate) x: u64,
    pub(crate) why: String,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}: {}", self.axis, self.x, self.why)
    }
}

/// The whole run.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct Results {
    pub(crate) machine: String,
    /// The limits of the machine that were found.
    pub(crate) limits: String,
    pub(crate) rounds: usize,
    pub(crate) curves: Vec<Curve>,
    /// Points that the machine cannot do.
    pub(crate) left_out: Vec<LeftOut>,
    /// Points that were begun and failed.
    pub(crate) failed: Vec<LeftOut>,
}

impl Results {
    pub(crate) fn new(rounds: usize, limits: String) -> Self {
        Self { machine: machine(), limits, rounds, curves: Vec::new(), left_out: Vec::new(), failed: Vec::new() }
    }

    /// Adds the curves of an axis.
    pub(crate) fn add(&mut self, axis: &dyn Axis, record: &Record) {
        for measure in axis.measures().iter().filter(|measure| record.wants(measure.name)) {
            let values = |x, on| record.values(measure.name, x, on);
            let points = record.xs.iter().map(|&x| Point::of(x, values(x, On::Array), values(x, On::Plain)));
            let points: Vec<Point> = points.filter(|point| point.array.is_some() || point.plain.is_some()).collect();
            if !points.is_empty() {
                self.curves.push(Curve::new(axis.name(), measure.name, measure.what, measure.expected, points));
            }
        }
    }

    pub(crate) fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data")
    }

    /// Every curve with its points, then one line for each curve.
    pub(crate) fn table(&self) -> String {
        let mut text = format!("{}\n{}\nmedians of {} rounds\n", self.machine, self.limits, self.rounds);
        for curve in &self.curves {
            let _ = writeln!(text, "\n{}/{}: {}", curve.axis, curve.measure, curve.what);
            let _ = writeln!(text, "{:>16} {:>12} {:>12} {:>8}", "", "plain", "array", "ratio");
            for point in &curve.points {
                let ratio = cell(point.ratio);
                let _ = writeln!(text, "{:>16} {:>12} {:>12} {ratio:>8}", point.x, cell(point.plain), cell(point.array));
            }
        }
        let (at, last) = ("at", "last decade");
        let _ = writeln!(
            text,
            "\n{:<28} {at:>14} {:>12} {:>12} {:>8}  exponent of plain and array: {last} (whole)",
            "curve", "plain", "array", "ratio"
        );
        for curve in &self.curves {
            let Some(point) = curve.points.last() else { continue };
            let growth = |growth: Option<Growth>| {
                growth.map_or_else(|| "-".to_owned(), |growth| format!("{:.2} ({:.2})", growth.last_decade, growth.whole))
            };
            let verdict = match curve.verdict {
                Verdict::Ok => "ok".to_owned(),
                Verdict::Grows => format!("GROWS (expected {})", curve.expected.unwrap_or_default()),
                Verdict::TooFew => "too few points".to_owned(),
                Verdict::NotJudged => String::new(),
            };
            let _ = writeln!(
                text,
                "{:<28} {:>14} {:>12} {:>12} {:>8}  {:>14} {:>14}  {verdict}",
                format!("{}/{}", curve.axis, curve.measure),
                point.x,
                cell(point.plain),
                cell(point.array),
                cell(point.ratio),
                growth(curve.plain),
                growth(curve.array),
            );
        }
        self.left_out.iter().for_each(|point| text.push_str(&format!("\nleft out: {point}")));
        self.failed.iter().for_each(|point| text.push_str(&format!("\nfailed: {point}")));
        text
    }
}

/// A number with the digits that mean something.
fn cell(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value >= 100.0 => format!("{value:.0}"),
        Some(value) if value >= 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_name_curves_points_and_what_was_left_out() {
        let points = vec![Point::of(10, &[2.0], &[1.0]), Point::of(100, &[20.0], &[1.0])];
        let mut results = Results::new(3, "l".to_owned());
        results.curves.push(Curve::new("files", "stat", "us each", Some(0.0), points));
        results.left_out.push(LeftOut { axis: "files".to_owned(), x: 1000, why: "no memory".to_owned() });
        let table = results.table();
        assert!(table.contains("files/stat: us each"), "{table}");
        assert!(table.contains("0.00 (0.00)") && table.contains("1.00 (1.00)  GROWS (expected 0)"), "{table}");
        assert!(table.contains("left out: files 1000: no memory"), "{table}");
        let again: Results = serde_json::from_str(&results.json()).unwrap();
        assert_eq!(again.curves[0].points, results.curves[0].points);
    }
}
