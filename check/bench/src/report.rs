//! Results: rows, goals, a table for people and JSON for programs.

use serde::{Deserialize, Serialize};
pub(crate) use stage::goal::Check;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// One case.
#[derive(Clone, Default, Serialize, Deserialize, Debug)]
pub(crate) struct Row {
    pub(crate) case: String,
    /// Nanoseconds per call: ours, the limit's, the kernel's.
    pub(crate) ours_ns: Option<f64>,
    pub(crate) limit_ns: Option<f64>,
    pub(crate) kernel_ns: Option<f64>,
    /// Ours over the limit's: the median of the rounds' ratios.
    pub(crate) limit_ratio: Option<f64>,
    /// The kernel's over ours: likewise.
    pub(crate) kernel_ratio: Option<f64>,
    pub(crate) checks: Vec<Check>,
    /// The nanoseconds of every round, by what was measured, where a report needs them (`cargo x
    /// report`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) rounds: BTreeMap<String, Vec<f64>>,
    /// What else there is to say, such as why it was not measured.
    pub(crate) note: String,
}

impl Row {
    pub(crate) fn new(case: impl Into<String>) -> Self {
        Self { case: case.into(), ..Self::default() }
    }

    /// A case that could not be measured, and why.
    pub(crate) fn not_measured(case: &str, why: &str) -> Self {
        Self { note: format!("not measured: {why}"), ..Self::new(case) }
    }

    /// Whether every figure is one: times and ratios are positive, what is held against a goal (a
    /// difference, perhaps) is a number.
    pub(crate) fn is_plausible(&self) -> bool {
        let figures = [self.ours_ns, self.limit_ns, self.kernel_ns, self.limit_ratio, self.kernel_ratio];
        let positive = figures.into_iter().flatten().all(|figure| figure.is_finite() && figure > 0.0);
        positive && self.checks.iter().all(|check| check.value.is_finite())
    }
}

/// The whole run.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct Report {
    /// What it ran on.
    pub(crate) machine: String,
    pub(crate) rows: Vec<Row>,
}

impl Report {
    pub(crate) fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data")
    }

    /// Times in nanoseconds per call.
    pub(crate) fn table(&self) -> String {
        let mut text = format!("{}\n\n", self.machine);
        let _ = writeln!(
            text,
            "{:<42} {:>9} {:>9} {:>9} {:>8} {:>8}  goals",
            "ns per call", "cxlraid", "limit", "kernel", "x limit", "x faster"
        );
        for row in &self.rows {
            let cell = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"));
            let ratio = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
            let notes = row.checks.iter().map(Check::text).chain(Some(row.note.clone()).filter(|note| !note.is_empty()));
            let _ = writeln!(
                text,
                "{:<42} {:>9} {:>9} {:>9} {:>8} {:>8}  {}",
                row.case,
                cell(row.ours_ns),
                cell(row.limit_ns),
                cell(row.kernel_ns),
                ratio(row.limit_ratio),
                ratio(row.kernel_ratio),
                notes.collect::<Vec<_>>().join("; ")
            );
        }
        let checks = || self.rows.iter().flat_map(|row| &row.checks);
        let short = checks().filter(|check| !check.ok).count();
        let _ = writeln!(text, "\ngoals: {} reached, {short} short", checks().count() - short);
        text
    }
}

/// A number with the digits that mean something.
/// The processor and the kernel.
pub(crate) fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("an unknown processor");
    let count = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "{} x {count}, Linux {}, loops {}, kernels {}",
        model.trim_start_matches([' ', '\t', ':']),
        read("/proc/sys/kernel/osrelease").trim(),
        crate::limit::Loops::best().name(),
        persist::kernels().isa().name(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_judged_and_counted() {
        let mut row = Row { ours_ns: Some(200.0), limit_ns: Some(160.0), limit_ratio: Some(1.25), ..Row::new("read") };
        row.checks = vec![Check::at_most("of the limit", 1.25, 1.25), Check::at_least("times faster", 2.9, 3.0)];
        assert!(row.is_plausible());
        let mut report = Report { machine: "m".to_owned(), rows: vec![row] };
        let table = report.table();
        assert!(table.contains("(<= 1.25) ok") && table.contains("(>= 3.00) SHORT"), "{table}");
        assert!(table.contains("1 reached, 1 short"), "{table}");
        let again: Report = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(again.rows[0].checks.len(), 2);
        report.rows[0].limit_ratio = Some(f64::NAN);
        assert!(!report.rows[0].is_plausible());
    }
}
