//! One line per run, details of what failed, and the count in the end.

use crate::run::Output;
use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Lines of details per complaint.
const DETAIL_LINES: usize = 16;

/// Why a run failed; empty: it did not.
pub type Complaints = Vec<String>;

/// Collects results of runs that go on at the same time.
#[derive(Default)]
pub struct Report {
    passed: AtomicUsize,
    failures: Mutex<Vec<String>>,
}

impl Report {
    /// The result of one run; `note` says more about one that passed.
    pub fn result(&self, level: &str, name: &str, time: Duration, note: &str, complaints: &Complaints) {
        let Ok(mut failures) = self.failures.lock() else { return };
        let word = if complaints.is_empty() { "ok  " } else { "FAIL" };
        let line = format!("{word} {level:<6} {name:<20} {:.1} s  {note}", time.as_secs_f64());
        println!("{}", line.trim_end());
        if complaints.is_empty() {
            self.passed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        for complaint in complaints {
            println!("{}", first_lines(complaint).lines().map(|line| format!("       {line}\n")).collect::<String>().trim_end());
        }
        failures.push(format!("{level} {name}"));
    }

    /// The closing lines, for what was run; whether nothing failed.
    pub fn finish(&self, what: &str, time: Duration) -> bool {
        let failures = self.failures.lock().map(|failures| failures.clone()).unwrap_or_default();
        failures.iter().for_each(|failure| println!("failed: {failure}"));
        println!("{what} took {:.0} s", time.as_secs_f64());
        println!("{} passed, {} failed", self.passed.load(Ordering::Relaxed), failures.len());
        failures.is_empty()
    }
}

/// Complains if two outputs differ. Of a program that failed only what it said and where its output
/// ends is worth a look.
pub fn compare(what: &str, expected: &Output, found: &Output, complaints: &mut Complaints) {
    if expected.status != found.status {
        let said = found.stderr.trim_end();
        let said = if said.is_empty() { String::new() } else { format!(": {}", first_lines(said)) };
        let reached = found.stdout.lines().last().map_or_else(String::new, |line| format!("\nits output ends with: {line}"));
        complaints.push(format!("{what}: exit status {}, must be {}{said}{reached}", found.status, expected.status));
    } else if expected.stdout != found.stdout {
        complaints.push(format!("{what}: not as on a plain directory (-)\n{}", difference(&expected.stdout, &found.stdout)));
    }
}

/// The lines that only one of two texts has.
fn difference(expected: &str, found: &str) -> String {
    let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
    expected.lines().for_each(|line| *counts.entry(line).or_default() += 1);
    found.lines().for_each(|line| *counts.entry(line).or_default() -= 1);
    let only = |text: &str, sign: &str, wanted: fn(i64) -> bool| -> String {
        let lines = text.lines().filter(|line| wanted(counts[line]));
        lines.take(DETAIL_LINES / 2).map(|line| format!("{sign}{line}\n")).collect()
    };
    let lines = only(expected, "-", |count| count > 0) + &only(found, "+", |count| count < 0);
    if lines.is_empty() { "the same lines in another order".to_owned() } else { lines }
}

/// As much as a reader wants to see.
fn first_lines(text: &str) -> String {
    let mut lines: Vec<String> = text.lines().take(DETAIL_LINES).map(|line| line.chars().take(300).collect()).collect();
    let count = text.lines().count();
    if count > DETAIL_LINES {
        lines.push(format!("... {} more lines", count - DETAIL_LINES));
    }
    lines.join("\n")
}

/// A run that should have succeeded, with what it said.
#[must_use]
pub fn with_output(what: &str, output: &Output) -> String {
    let said = [first_lines(&output.stdout), first_lines(&output.stderr)].join("\n");
    format!("{what}: exit status {}\n{}", output.status, said.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_shown_by_line() {
        let mut complaints = Complaints::new();
        let output = |stdout: &str, status: &str| Output {
            stdout: stdout.into(),
            stderr: "why\n".into(),
            status: status.into(),
            ..Output::default()
        };
        compare("x", &output("a\nb\n", "0"), &output("a\nb\n", "0"), &mut complaints);
        assert!(complaints.is_empty());
        compare("x", &output("a\nb\n", "0"), &output("a\nc\n", "1"), &mut complaints);
        assert_eq!(complaints[0], "x: exit status 1, must be 0: why\nits output ends with: c");
        compare("x", &output("a\nb\n", "0"), &output("a\nc\n", "0"), &mut complaints);
        assert!(complaints[1].ends_with("-b\n+c\n"), "{}", complaints[1]);
        assert!(difference("a\nb\n", "b\na\n").ends_with("another order"));
    }

    #[test]
    fn a_report_counts() {
        let report = Report::default();
        report.result("raid5", "x", Duration::ZERO, "", &Vec::new());
        assert!(report.finish("tests", Duration::ZERO));
        report.result("raid5", "y", Duration::ZERO, "", &vec!["wrong".to_owned()]);
        assert!(!report.finish("tests", Duration::ZERO));
    }
}
