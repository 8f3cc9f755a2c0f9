//! `cxlraid-servers`: what a server's users run, on arrays: databases, key-value stores, compilers,
//! file tools.
//!
//! A case is a function that starts unmodified programs on an array, loads them, kills them with
//! SIGKILL in the middle, starts them again and compares what is there with what must be there:
//! every acknowledged change, the program's own consistency check, and the sums of all files read
//! with each member taken away ([`audit`]). Each case runs on an array with all members and again
//! on one that began with a member missing.
//!
//! Invariant: whatever happens to this process, what it started and made is ended and removed
//! ([`process`], [`stage::Janitor`]).

mod array;
mod audit;
mod cases;
mod ground;
mod ledger;
mod options;
mod process;
mod report;
mod session;
mod suite;
mod tree;

use std::process::ExitCode;

/// Why something failed, in words for the reader of the report.
type Outcome<T = ()> = Result<T, String>;

/// The word that makes this program serve a mount of an array.
const SERVE: &str = "serve-mount";

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    if let (Some(word), Some(directory)) = (words.next(), words.next())
        && word == SERVE
    {
        let served = stage::door::serve(std::path::Path::new(&directory));
        return served.map_or_else(
            |message| {
                eprintln!("{message}");
                ExitCode::FAILURE
            },
            |()| ExitCode::SUCCESS,
        );
    }
    let options = options::Options::from_arguments(std::env::args_os().skip(1));
    stage::options::conclude("cxlraid-servers", options::HELP, options, |options| {
        if options.list {
            suite::list(options);
            return Ok(true);
        }
        suite::run(options)
    })
}
