//! `cxlraid-suites`: test suites that nobody here wrote, on arrays, compared case by case with the
//! same on a plain directory.
//!
//! CPython's own tests (each method is a case), stress-ng's stressors for file systems, pipes and
//! memory, dbench, bonnie++ and postmark run with their working directory and TMPDIR in a directory
//! of tmpfs, for reference; then at the same path on arrays with tmpfs members. What passes there
//! must pass here. Afterwards redundancy must fit.
//!
//! Invariant: a suite whose package is missing is shown as not run, and one that was cut off by its
//! time limit counts as not passed.

mod allowed;
mod array;
mod options;
mod outcome;
mod place;
mod run;
mod suites;

use std::process::ExitCode;

fn main() -> ExitCode {
    // How a run looks at its array: from a process of its own.
    if std::env::args_os().nth(1).is_some_and(|word| word == array::SCRUB) {
        return match stage::scrub::scrub() {
            Ok(wrong) if wrong.is_empty() => ExitCode::SUCCESS,
            Ok(wrong) => fail(&wrong.join("\n")),
            Err(message) => fail(&message),
        };
    }
    let options = options::Options::from_arguments(std::env::args_os().skip(1));
    stage::options::conclude("cxlraid-suites", options::HELP, options, run::all)
}

fn fail(message: &str) -> ExitCode {
    eprintln!("{message}");
    ExitCode::FAILURE
}
