//! What pjdfstest printed: each case's verdict, and why it failed.

use std::collections::BTreeMap;

/// The verdict on one case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Skipped,
    /// With what was said about it.
    Failed(String),
}

/// The cases of one run by name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome(pub(crate) BTreeMap<String, Verdict>);

/// Lines of a failure worth showing; a backtrace follows.
const REASON_LINES_MAX: usize = 4;

impl Outcome {
    pub(crate) fn parse(text: &str) -> Self {
        let mut cases = BTreeMap::new();
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let mut words = line.split_whitespace();
            let (Some(name), Some(verdict), None) = (words.next(), words.next(), words.next()) else { continue };
            let verdict = match verdict {
                "ok" => Verdict::Passed,
                "skipped" => Verdict::Skipped,
                "FAILED" => {
                    let mut reason = Vec::new();
                    while let Some(line) = lines.next_if(|line| line.starts_with([' ', '\t'])) {
                        reason.push(line.trim());
                    }
                    reason.truncate(REASON_LINES_MAX);
                    Verdict::Failed(reason.join("; "))
                }
                _ => continue,
            };
            cases.insert(name.to_owned(), verdict);
        }
        Self(cases)
    }

    pub(crate) fn count(&self, is: impl Fn(&Verdict) -> bool) -> usize {
        self.0.values().filter(|verdict| is(verdict)).count()
    }

    pub(crate) fn passed(&self) -> usize {
        self.count(|verdict| *verdict == Verdict::Passed)
    }

    /// The cases that pass in the reference and not here, with the reason.
    pub(crate) fn worse_than(&self, reference: &Self) -> Vec<String> {
        let passed = reference.0.iter().filter(|(_, verdict)| **verdict == Verdict::Passed);
        passed
            .filter_map(|(name, _)| match self.0.get(name) {
                Some(Verdict::Passed) => None,
                Some(Verdict::Skipped) => Some(format!("{name}: skipped")),
                Some(Verdict::Failed(reason)) => Some(format!("{name}: {reason}")),
                None => Some(format!("{name}: did not run")),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_read_and_compared() {
        let reference =
            Outcome::parse("cxlraid: a line\na::b   ok\nc   skipped\n\tnot allowed here\nd ok\ne ok\nSummary: 0 failed\n");
        assert_eq!((reference.passed(), reference.0.len()), (3, 4));
        let here = Outcome::parse("a::b   ok\nc   ok\nd  FAILED\n\tleft: 1\n\tright: 2\nBacktrace:\n   0: main\n");
        assert_eq!(here.worse_than(&reference), ["d: left: 1; right: 2", "e: did not run"]);
        assert!(reference.worse_than(&reference).is_empty());
    }
}
