//! One line per run, details of what failed, and the count in the end.

use crate::process::Output;
use std::{
    fs,
    path::Path,
    process::{self, Command},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Lines of details per complaint.
const DETAIL_LINES: usize = 40;

/// Why a run failed; empty: it did not.
pub(crate) type Complaints = Vec<String>;

/// Collects results of runs that go on at the same time.
#[derive(Default)]
pub(crate) struct Report {
    passed: AtomicUsize,
    failed: AtomicUsize,
    not_run: Mutex<Vec<String>>,
    failures: Mutex<Vec<String>>,
}

impl Report {
    /// The result of one run.
    pub(crate) fn result(&self, level: &str, state: &str, name: &str, time: Duration, complaints: &Complaints) {
        let what = format!("{level:<9} {state:<8} {name:<16}");
        let seconds = time.as_secs_f64();
        let Ok(mut failures) = self.failures.lock() else { return };
        if complaints.is_empty() {
            self.passed.fetch_add(1, Ordering::Relaxed);
            println!("ok   {what} {seconds:.1} s");
        } else {
            self.failed.fetch_add(1, Ordering::Relaxed);
            println!("FAIL {what} {seconds:.1} s");
            for complaint in complaints {
                println!("{}", indent(complaint));
            }
            failures.push(format!("{level} {state} {name}"));
        }
    }

    /// Something that cannot be run here, and why.
    pub(crate) fn not_run(&self, name: &str, why: &str) {
        println!("NOT RUN {name}: {why}");
        if let Ok(mut not_run) = self.not_run.lock() {
            not_run.push(format!("{name} ({why})"));
        }
    }

    /// The closing lines; whether nothing failed.
    pub(crate) fn finish(&self, time: Duration) -> bool {
        if let Ok(failures) = self.failures.lock() {
            failures.iter().for_each(|failure| println!("failed: {failure}"));
        }
        if let Ok(not_run) = self.not_run.lock()
            && !not_run.is_empty()
        {
            println!("not run: {}: {}", not_run.len(), not_run.join(", "));
        }
        println!("programs took {:.0} s", time.as_secs_f64());
        let (passed, failed) = (self.passed.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed));
        println!("programs: {passed} passed, {failed} failed");
        failed == 0
    }
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("       {line}")).collect::<Vec<_>>().join("\n")
}

/// Complains if two outputs differ.
pub(crate) fn compare(what: &str, expected: &Output, found: &Output, complaints: &mut Complaints) {
    if expected.status != found.status {
        complaints.push(format!("{what}: exit status {}, must be {}", found.status, expected.status));
    }
    for (stream, expected, found) in [("stdout", &expected.stdout, &found.stdout), ("stderr", &expected.stderr, &found.stderr)] {
        if expected != found {
            complaints.push(format!("{what}: {stream} differs\n{}", difference(expected, found)));
        }
    }
}

/// The first lines of a unified diff.
pub(crate) fn difference(expected: &[u8], found: &[u8]) -> String {
    static COUNTER: AtomicUsize = AtomicUsize::new(0);
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    let stem = std::env::temp_dir().join(format!("cxlraid-programs-diff.{}.{number}", process::id()));
    let (left, right) = (stem.with_extension(format!("{number}.plain")), stem.with_extension(format!("{number}.array")));
    let written = fs::write(&left, expected).and_then(|()| fs::write(&right, found));
    let diff = Command::new("diff").args(["-a", "-U1", "--label", "plain", "--label", "array"]).args([&left, &right]).output();
    for file in [&left, &right] {
        // Nothing depends on them any more.
        let _ = fs::remove_file(file);
    }
    match (written, diff) {
        (Ok(()), Ok(diff)) => first_lines(&String::from_utf8_lossy(&diff.stdout)),
        _ => first_lines(&String::from_utf8_lossy(found)),
    }
}

/// As much as a reader wants to see.
pub(crate) fn first_lines(text: &str) -> String {
    let mut lines: Vec<String> = text.lines().take(DETAIL_LINES).map(|line| line.chars().take(300).collect()).collect();
    let count = text.lines().count();
    if count > DETAIL_LINES {
        lines.push(format!("... {} more lines", count - DETAIL_LINES));
    }
    lines.join("\n")
}

/// Moves a file's worth of complaints under one heading.
pub(crate) fn with_output(what: &str, output: &Output) -> String {
    format!(
        "{what}: exit status {}\n{}\n{}",
        output.status,
        first_lines(&output.stdout_text()),
        first_lines(&output.stderr_text())
    )
}

/// Shows a path by its last parts.
pub(crate) fn short(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_shown_by_line() {
        let mut complaints = Complaints::new();
        let output = |stdout: &str, status: &str| Output { stdout: stdout.into(), stderr: Vec::new(), status: status.into() };
        compare("x", &output("a\nb\n", "0"), &output("a\nb\n", "0"), &mut complaints);
        assert!(complaints.is_empty());
        compare("x", &output("a\nb\n", "0"), &output("a\nc\n", "1"), &mut complaints);
        assert_eq!(complaints[0], "x: exit status 1, must be 0");
        assert!(complaints[1].contains("-b\n+c"), "{}", complaints[1]);
    }

    #[test]
    fn a_report_counts() {
        let report = Report::default();
        report.result("raid5", "healthy", "x", Duration::ZERO, &Vec::new());
        assert!(report.finish(Duration::ZERO));
        report.result("raid5", "healthy", "y", Duration::ZERO, &vec!["wrong".to_owned()]);
        assert!(!report.finish(Duration::ZERO));
    }
}
