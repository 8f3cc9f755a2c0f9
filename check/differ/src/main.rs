//! `cxlraid-differ`: random programs of system calls run on an array and on a plain directory, and
//! no program may tell the difference.
//!
//! A seed makes a program ([`program`]): calls of the table ([`table`]) with good and bad arguments
//! ([`draw`]), made by one process, its threads or its children ([`tasks`]). One process runs many
//! programs, each in a child of its own ([`act`]), once on a plain directory and once with the
//! library on an array whose prefix is the same path. Each call's result, what it stored and the
//! tree that the program leaves are compared ([`run`]); then redundancy must fit. A program whose
//! results differ is cut down to the steps that are needed. What may differ is listed, with the
//! reason ([`allowed`]). What once differed is run first ([`known`]).
//!
//! Invariant: whatever happens to this process, what it started and made is ended and removed
//! ([`stage::Janitor`]).

mod act;
mod actor;
mod allowed;
mod calls;
mod contain;
mod draw;
mod known;
mod log;
mod options;
mod probe;
mod program;
mod run;
mod table;
mod tasks;
mod tree;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.split_first() {
        Some((word, rest)) if word == act::ROLE => done(act::act(rest).map_err(|error| format!("act: {error}"))),
        Some((word, rest)) if word == act::ROLE_OF_CHILD => {
            done(act::act_as_child(rest).map_err(|error| format!("child: {error}")))
        }
        Some((word, rest)) if word == run::SERVE => done(stage::door::serve(std::path::Path::new(&rest.concat()))),
        Some((word, _)) if word == run::SCRUB => done(match stage::scrub::scrub() {
            Ok(wrong) if wrong.is_empty() => Ok(()),
            Ok(wrong) => Err(wrong.join("\n")),
            Err(message) => Err(message),
        }),
        _ => {
            let options = options::Options::from_arguments(std::env::args_os().skip(1));
            stage::options::conclude("cxlraid-differ", options::HELP, options, run::all)
        }
    }
}

fn done(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}
