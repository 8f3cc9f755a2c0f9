//! `cxlraid-trees`: members of an array are lost under a tree of processes, and what the tree does
//! and leaves is as on a plain directory.
//!
//! A scene ([`scenes`]) is a tree of programs: shells with redirections, make, git, SQLite's
//! writers, daemons with locks, workers of multiprocessing, a server that hands descriptors on. It
//! runs on a plain directory first. Each run ([`run`]) then has a seed, which chooses level, events
//! and their instants ([`shape`]): a member's directory is renamed, or its file system is shut
//! down. Output and tree must be the same. Afterwards every file is read with each further member
//! away that the level bears ([`judge`]).
//!
//! Invariant: whatever happens to this process, what it started and made is ended and removed
//! ([`stage::Janitor`]).

mod ground;
mod judge;
mod options;
mod run;
mod scenes;
mod shape;

use std::process::ExitCode;

fn main() -> ExitCode {
    // How a run looks at its array: from a process of its own.
    if std::env::args_os().nth(1).is_some_and(|word| word == judge::SCRUB) {
        return match stage::scrub::scrub() {
            Ok(wrong) if wrong.is_empty() => ExitCode::SUCCESS,
            Ok(wrong) => fail(&wrong.join("\n")),
            Err(message) => fail(&message),
        };
    }
    let options = options::Options::from_arguments(std::env::args_os().skip(1));
    stage::options::conclude("cxlraid-trees", options::HELP, options, run::all)
}

fn fail(message: &str) -> ExitCode {
    eprintln!("{message}");
    ExitCode::FAILURE
}
