//! `cxlraid-fsx`: random operations on files of arrays, against a model.
//!
//! The program runs itself in several roles. Without a role it makes arrays of every level in
//! shared memory and runs workers on them through `LD_PRELOAD`; a worker does operations by plain
//! calls of the C library ([`single`], [`crowd`], [`stores`]); `check` looks at the members from
//! outside, without interception ([`mod@check`]). Faults stay within what the level promises, so
//! every failure is a bug.
//!
//! Everything but the timing of threads and processes follows from a seed, which is printed at the
//! start and with a failure.

mod call;
mod check;
mod crowd;
mod expected;
mod ground;
mod model;
mod options;
mod shape;
mod single;
mod stores;
mod suite;

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some("single") => single_role(&arguments[1..]),
        Some("crowd") => crowd::role(&arguments[1..]),
        Some("serve") => stage::door::serve(std::path::Path::new(&arguments[1..].concat())),
        Some("stores") => stores::role(&arguments[1..]),
        Some("stores-file") => stores::make_file(std::path::Path::new(&arguments[1..].concat())),
        Some("check") => check_role(&arguments[1..]),
        _ => return suite_role(arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn suite_role(arguments: Vec<String>) -> ExitCode {
    let options = options::Options::from_arguments(arguments.into_iter());
    stage::options::conclude("cxlraid-fsx", options::HELP, options, |options| suite::run(options).map(|()| true))
}

/// The value after `name`.
fn value<'a>(words: &'a [String], name: &str) -> Option<&'a str> {
    let at = words.iter().position(|word| word == name)?;
    words.get(at + 1).map(String::as_str)
}

fn number(words: &[String], name: &str) -> Result<u64, String> {
    value(words, name).and_then(|text| text.parse().ok()).ok_or_else(|| format!("{name} is missing"))
}

fn path(words: &[String], name: &str) -> Option<PathBuf> {
    value(words, name).map(PathBuf::from)
}

fn single_role(words: &[String]) -> Result<(), String> {
    let orders = single::Orders {
        directory: path(words, "--directory").ok_or("--directory is missing")?,
        seed: number(words, "--seed")?,
        operations: number(words, "--operations")?,
        chunk: number(words, "--chunk")?,
        array: !words.iter().any(|word| word == "--plain"),
        coherent_maps: words.iter().any(|word| word == "--coherent-maps"),
        maps: words.iter().any(|word| word == "--maps"),
        cut: path(words, "--cut"),
        expected: path(words, "--expected"),
    };
    single::run(orders).map(|_| ())
}

fn check_role(words: &[String]) -> Result<(), String> {
    let live = words.iter().any(|word| word == "--live");
    let wish = check::Wish { expected: path(words, "--expected"), save: path(words, "--save"), live };
    let wrong = check::check(&wish)?;
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}
