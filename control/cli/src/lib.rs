//! What `cxlraid` does: the operator's command.
//!
//! It makes arrays, gives them names, runs programs on them and says how they are. The data path is
//! not here: programs serve themselves through libcxlraid.so.
//!
//! Invariants: an error is one line on standard error (`cxlraid: thing: what happened; what to
//! do`); the exit statuses are those of [`failure::Exit`]; commands that only look change nothing.
#![deny(unsafe_code)]
// It ends the process where standard error cannot be written.
#![deny(clippy::print_stderr)]

/// Prints a line on standard error. Where that cannot be written (it is full, or nobody reads it any
/// more), the line is lost, and the command goes on with what it was asked to do.
macro_rules! say {
    ($($line:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($line)*);
    }};
}

mod access;
mod args;
mod backed;
mod commands;
mod compute;
mod control;
mod copy;
mod copy_report;
mod create;
mod drift;
mod events;
mod examine;
mod fail;
mod failure;
mod files;
mod gc;
mod helper;
mod inspect;
mod job;
mod journal;
mod manual;
mod mapped;
mod member;
mod migrate;
mod mirror;
mod monitor;
mod mount;
mod moving;
mod name;
mod names;
mod names_lock;
mod new_name;
mod own;
mod policy;
mod private;
mod program;
mod prometheus;
mod rebuild;
mod records;
mod registry;
mod repairing;
mod replace;
mod rules;
mod rules_text;
mod run;
mod runtime;
mod scrub;
mod spare;
mod spec;
mod taken;
mod top;
mod tree;
mod view;

use args::Cli;
use clap::Parser as _;
use failure::{Exit, from_usage};
use std::process::ExitCode;

/// Does what the process' arguments ask for.
#[must_use]
pub fn main() -> ExitCode {
    // Before anything is mapped that may have no room, or lie on a member that fails.
    if let Err(error) = persist::fault::install_handlers() {
        let what = format!("its signals cannot be handled: {}", std::io::Error::from(error));
        say!("{}", failure::Failure::new("cxlraid", what, "see what limits the process"));
        return ExitCode::from(Exit::Error as u8);
    }
    let mut words = std::env::args_os();
    if helper::is_meant(words.next().as_deref()) {
        let mounted = helper::arguments(words).and_then(|wanted| wanted.as_ref().map_or(Ok(Exit::Fine), commands::mount_once));
        let exit = mounted.unwrap_or_else(|failure| {
            say!("{failure}");
            failure.exit
        });
        return ExitCode::from(helper::status(exit));
    }
    let exit = match Cli::try_parse() {
        Ok(cli) => commands::execute(cli.command).unwrap_or_else(|failure| {
            say!("{failure}");
            failure.exit
        }),
        Err(error) => match from_usage(&error) {
            Some(failure) => {
                say!("{failure}");
                failure.exit
            }
            // Help or version; a closed standard output is the reader's choice.
            None => match error.print() {
                Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                    say!("{}", failure::Failure::new("standard output", error, ""));
                    Exit::Error
                }
                _ => Exit::Fine,
            },
        },
    };
    ExitCode::from(exit as u8)
}

/// What a file of a named array says, written anew. For the fuzzing of that file's parser.
///
/// # Errors
/// The line that says why the file is refused.
pub fn rewrite_named_array(text: &str) -> Result<String, String> {
    let array = registry::from_toml(text).map_err(|what| failure::Failure::new("file", what, "").to_string())?;
    registry::to_toml(&array).map_err(|failure| failure.to_string())
}
