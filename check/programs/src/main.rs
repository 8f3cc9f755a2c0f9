//! `cxlraid-programs`: unmodified programs on arrays, compared byte for byte with the same programs
//! on a plain directory.
//!
//! A case is a script that runs ordinary programs. It runs on a plain directory first, for
//! reference; then, through `LD_PRELOAD`, on arrays of several levels: healthy, and again with a
//! member taken away. Output, exit status, names, modes and contents must be the same, redundancy
//! must fit the data, and nothing may appear in the host's directory of that name. One run of each
//! case is traced with strace: no call that concerns the array may reach the kernel ([`trace`]).
//! Starts that must be refused are in [`refusals`].
//!
//! Invariant: whatever happens to this process, what it started and made is ended and removed
//! ([`stage::Janitor`]).

mod array;
mod assets;
mod cases;
mod matrix;
mod options;
mod place;
mod process;
mod refusals;
mod report;
mod snapshot;
mod suite;
mod trace;

use std::process::ExitCode;

fn main() -> ExitCode {
    // How a run looks at its array: from a process of its own.
    if std::env::args_os().nth(1).is_some_and(|word| word == array::SCRUB) {
        return scrub();
    }
    let options = options::Options::from_arguments(std::env::args_os().skip(1));
    stage::options::conclude("cxlraid-programs", options::HELP, options, |options| {
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
