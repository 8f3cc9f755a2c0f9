//! `cxlraid-children`: a child that is started while other threads of its process work on files
//! changes nothing of its parent and corrupts nothing.
//!
//! The reference is the kernel: every case runs on a plain directory of tmpfs first, then on arrays
//! of RAID 1, 5 and 6, and the outcome must be the same: exit status, output, names, modes and
//! contents. After each run on an array all members are in sync, redundancy fits the data on all of
//! them, and nothing is left in `/dev/shm`. The cases are programs in C, Python, JavaScript and
//! Java ([`cases`]); the crowd ([`crowd`]) is one in C that makes children of every kind at random
//! beside threads that verify every byte they read.
//!
//! Invariant: whatever happens to this process, what it started and made is ended and removed
//! ([`stage::Janitor`]).

mod array;
mod cases;
mod crowd;
mod ground;
mod options;
mod suite;

use std::process::ExitCode;

fn main() -> ExitCode {
    // How a run looks at its array: from a process of its own.
    if std::env::args_os().nth(1).is_some_and(|word| word == array::SCRUB) {
        return scrub();
    }
    let options = options::Options::from_arguments(std::env::args_os().skip(1));
    stage::options::conclude("cxlraid-children", options::HELP, options, |options| {
        if options.list {
            suite::list(options);
            return Ok(true);
        }
        suite::run(options)
    })
}

fn scrub() -> ExitCode {
    match stage::scrub::scrub() {
        Ok(wrong) if wrong.is_empty() => ExitCode::SUCCESS,
        Ok(wrong) => fail(&wrong.join("\n")),
        Err(message) => fail(&message),
    }
}

fn fail(message: &str) -> ExitCode {
    eprintln!("{message}");
    ExitCode::FAILURE
}
