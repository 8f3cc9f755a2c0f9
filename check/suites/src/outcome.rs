//! What became of the cases of a suite, and how two runs of it differ.

use std::collections::BTreeMap;

/// What became of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    /// The suite itself left it out, and why.
    Skipped(String),
    Failed(String),
}

/// The cases of one run, by name.
pub(crate) type Outcomes = BTreeMap<String, Outcome>;

/// A case that passes on the plain directory and not on the array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) case: String,
    pub(crate) what: String,
}

/// How many cases passed.
pub(crate) fn passed(outcomes: &Outcomes) -> usize {
    outcomes.values().filter(|outcome| **outcome == Outcome::Passed).count()
}

/// The cases that pass in `plain` and not in `array`.
pub(crate) fn differences(plain: &Outcomes, array: &Outcomes) -> Vec<Difference> {
    let differs = |(case, outcome): (&String, &Outcome)| {
        if *outcome != Outcome::Passed {
            return None;
        }
        let what = match array.get(case) {
            Some(Outcome::Passed) => return None,
            Some(Outcome::Failed(why)) => why.clone(),
            Some(Outcome::Skipped(why)) => format!("skipped: {why}"),
            None => "not reached".to_owned(),
        };
        Some(Difference { case: case.clone(), what })
    };
    plain.iter().filter_map(differs).collect()
}

/// Reads what `cases/cpython.py` has written: a word, a case and a reason per line. A case that was
/// begun and has no end is one that did not come back.
pub(crate) fn read(text: &str) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, '\t');
        let (Some(word), Some(case), Some(why)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let outcome = match word {
            "begun" => Outcome::Failed("it did not come to its end".to_owned()),
            "ok" | "ended" => Outcome::Passed,
            "skipped" => Outcome::Skipped(why.to_owned()),
            _ => Outcome::Failed(why.to_owned()),
        };
        outcomes.insert(case.to_owned(), outcome);
    }
    outcomes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_on_the_plain_directory_must_pass() {
        let plain = read("begun\ta\t\nok\ta\t\nskipped\tb\tno root\nok\tc\t\nok\td\t\nended\tm\t\n");
        let array = read("ok\ta\t\nok\tb\t\nfailed\tc\tEIO\nbegun\td\t\n");
        assert_eq!((passed(&plain), passed(&array)), (4, 2));
        let found = differences(&plain, &array);
        let found: Vec<(&str, &str)> = found.iter().map(|it| (it.case.as_str(), it.what.as_str())).collect();
        assert_eq!(found, [("c", "EIO"), ("d", "it did not come to its end"), ("m", "not reached")]);
    }
}
