//! How a command ends when it cannot do what was asked: one line, `cxlraid: thing: what happened;
//! what to do`, and an exit status.

use std::fmt;
use units::Shown;

/// The exit statuses of every command.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Everything asked for was done.
    Fine = 0,
    /// `status` only: an array works without some of its members.
    Degraded = 3,
    /// Something failed.
    Error = 1,
    /// The command line was wrong.
    Usage = 2,
    /// `run` only: the program was found and could not be started.
    NotStarted = 126,
    /// `run` only: there is no such program.
    NotFound = 127,
}

/// One line for standard error, and the status to exit with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    thing: String,
    what: String,
    todo: String,
    pub(crate) exit: Exit,
}

impl Failure {
    /// What failed (a path, an array), what happened to it, and what to do about it.
    pub(crate) fn new(thing: impl fmt::Display, what: impl fmt::Display, todo: impl fmt::Display) -> Self {
        Self { thing: thing.to_string(), what: without_numbers(what.to_string()), todo: todo.to_string(), exit: Exit::Error }
    }

    /// What happened.
    pub(crate) fn what(&self) -> &str {
        &self.what
    }

    /// Whether it is this path that failed.
    pub(crate) fn is_about(&self, path: &std::path::Path) -> bool {
        self.thing == path.display().to_string()
    }

    /// The same with another exit status.
    pub(crate) fn with_exit(self, exit: Exit) -> Self {
        Self { exit, ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [thing, what, todo] = [&self.thing, &self.what, &self.todo].map(|text| Shown(text.as_bytes()));
        write!(f, "cxlraid: {thing}: {what}")?;
        if self.todo.is_empty() { Ok(()) } else { write!(f, "; {todo}") }
    }
}

/// A text without the numbers that std appends to what the system says: they tell an operator
/// nothing.
pub(crate) fn without_numbers(mut text: String) -> String {
    while let Some(start) = text.find(" (os error ") {
        let end = text[start..].find(')').map_or(text.len(), |length| start + length + 1);
        text.replace_range(start..end, "");
    }
    text
}

/// A clap error in the shape of every other error. Help and version requests are not errors and
/// come back as `None`.
pub(crate) fn from_usage(error: &clap::Error) -> Option<Failure> {
    if !error.use_stderr() {
        return None;
    }
    let text = error.to_string();
    let first_paragraph = text.split("\n\n").next().unwrap_or_default();
    let what = first_paragraph.strip_prefix("error: ").unwrap_or(first_paragraph);
    let what = what.split_whitespace().collect::<Vec<_>>().join(" ");
    let what = if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        "a command is needed".to_owned()
    } else {
        what
    };
    // `Usage: cxlraid journal <COMMAND>` in what clap says: the command that it is about.
    let usage = text.lines().find_map(|line| line.trim().strip_prefix("Usage: ")).unwrap_or("cxlraid");
    let about: Vec<_> = usage.split_whitespace().take_while(|word| !word.starts_with(['<', '[', '-'])).collect();
    Some(Failure::new("usage", what, format!("see '{} --help'", about.join(" "))).with_exit(Exit::Usage))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::Parser;

    #[test]
    fn a_failure_is_one_line() {
        let failure = Failure::new("/mnt/a\nb\u{202e}", "not a directory", "create it");
        assert_eq!(failure.to_string(), "cxlraid: /mnt/a\\nb\\u{202e}: not a directory; create it");
        assert_eq!(Failure::new("x", "y", "").to_string(), "cxlraid: x: y");
        let error = std::io::Error::from_raw_os_error(2);
        assert_eq!(
            Failure::new("x", format!("{error}, {error}"), "").to_string(),
            "cxlraid: x: No such file or directory, No such file or directory"
        );
    }

    #[test]
    fn usage_errors_have_the_same_shape() {
        let error = Cli::try_parse_from(["cxlraid", "create", "db"]).unwrap_err();
        let failure = from_usage(&error).unwrap();
        assert_eq!(failure.exit, Exit::Usage);
        assert_eq!(
            failure.to_string(),
            "cxlraid: usage: the following required arguments were not provided: --at <PATH> --level <LEVEL> <MEMBER>...; \
             see 'cxlraid create --help'"
        );
        let error = Cli::try_parse_from(["cxlraid", "--help"]).unwrap_err();
        assert!(from_usage(&error).is_none());
    }
}
