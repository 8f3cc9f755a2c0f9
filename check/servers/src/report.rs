//! The report: one line for each case, details of what failed, and the counts in the end.

use crate::Outcome;
use std::{sync::Mutex, time::Duration};

/// Collects results of cases that run at the same time.
#[derive(Default)]
pub(crate) struct Report {
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    passed: usize,
    failures: Vec<String>,
}

impl Report {
    /// Takes and prints the result of one case: what the case did, or why it failed.
    pub(crate) fn result(&self, level: &str, state: &str, name: &str, time: Duration, result: &Outcome<String>) {
        let what = format!("{level:<6} {state:<10} {name:<15} {:>6.1} s", time.as_secs_f64());
        let Ok(mut counts) = self.counts.lock() else { return };
        match result {
            Ok(details) => {
                counts.passed += 1;
                println!("ok   {what}  {details}");
            }
            Err(message) => {
                println!("FAIL {what}");
                message.lines().for_each(|line| println!("       {line}"));
                counts.failures.push(format!("{level} {state} {name}"));
            }
        }
    }

    /// Prints the closing lines. Returns whether some case passed and none failed.
    pub(crate) fn finish(&self, time: Duration) -> bool {
        let Ok(counts) = self.counts.lock() else { return false };
        counts.failures.iter().for_each(|failure| println!("failed: {failure}"));
        println!("servers took {:.0} s", time.as_secs_f64());
        println!("servers: {} passed, {} failed", counts.passed, counts.failures.len());
        counts.failures.is_empty() && counts.passed > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_counts() {
        let report = Report::default();
        report.result("raid5", "healthy", "x", Duration::ZERO, &Ok("fine".to_owned()));
        assert!(report.finish(Duration::ZERO));
        report.result("raid5", "healthy", "y", Duration::ZERO, &Err("wrong".to_owned()));
        assert!(!report.finish(Duration::ZERO));
        assert!(!Report::default().finish(Duration::ZERO), "nothing run is nothing shown");
    }
}
