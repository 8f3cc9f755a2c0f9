//! Running programs in the guest: as root beside the array, or as an ordinary user who sees it.

use super::{USER_ID, members::Members};
use crate::{Outcome, about, array::PREFIX};
use std::{
    ffi::OsStr,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::process::CommandExt as _,
    process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio},
};

pub(super) const LIBRARY: &str = "/usr/lib/libcxlraid.so";
/// Where the user's programs keep what is not on the array.
pub(super) const HOME: &str = "/tmp/user";

/// A program to be run.
pub(super) struct Program {
    command: Command,
}

impl Program {
    /// By root, beside the array.
    pub(super) fn new(name: &str) -> Self {
        let mut command = Command::new(name);
        command.env_clear().env("PATH", "/usr/bin").env("LC_ALL", "C").env("TZ", "GMT").env("HOME", "/tmp");
        command.current_dir("/").stdin(Stdio::null());
        Self { command }
    }

    /// By the user, beside the array.
    pub(super) fn of_user(name: &str) -> Self {
        let mut program = Self::new(name);
        program.command.uid(USER_ID).gid(USER_ID).env("HOME", HOME).current_dir(HOME);
        program
    }

    /// By the user, who sees the array.
    pub(super) fn inside(name: &str, members: &Members) -> Self {
        Self::of_user(name).env("LD_PRELOAD", LIBRARY).on(members)
    }

    /// With the array in its environment.
    pub(super) fn on(mut self, members: &Members) -> Self {
        self.command.env("CXLRAID_LEVEL", members.array.shape.level.to_string()).env("CXLRAID_MOUNTS", members.mounts());
        self.command.env("CXLRAID_PATHS", PREFIX).env("CXLRAID_STRIPE_SIZE", "64K");
        if members.array.journal {
            self.command.env("CXLRAID_JOURNAL", "internal");
        }
        self
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    pub(super) fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    /// Arguments separated by blanks.
    pub(super) fn words(mut self, words: &str) -> Self {
        self.command.args(words.split_whitespace());
        self
    }

    fn shown(&self) -> String {
        let words = std::iter::once(self.command.get_program()).chain(self.command.get_args());
        words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ").chars().take(160).collect()
    }

    fn output(&mut self) -> Outcome<Output> {
        let shown = self.shown();
        self.command.output().map_err(about(shown))
    }

    /// Its standard output; an error if it does not exit with 0.
    pub(super) fn text(mut self) -> Outcome<String> {
        let output = self.output()?;
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(self.failed(&output)) }
    }

    /// Its standard output, if it exits with this status.
    pub(super) fn exits_with(mut self, status: i32) -> Outcome<String> {
        let output = self.output()?;
        if output.status.code() == Some(status) { Ok(text(&output.stdout)) } else { Err(self.failed(&output)) }
    }

    /// What it says on both outputs, however it exits.
    pub(super) fn text_of_any_end(mut self) -> Outcome<String> {
        let output = self.output()?;
        Ok(text(&output.stdout) + &text(&output.stderr))
    }

    fn failed(&self, output: &Output) -> String {
        let both = format!("{}{}", text(&output.stdout), text(&output.stderr));
        let lines: Vec<&str> = both.lines().collect();
        format!("{}: {}\n{}", self.shown(), output.status, lines[lines.len().saturating_sub(12)..].join("\n"))
    }

    /// For its effect only.
    pub(super) fn done(self) -> Outcome {
        self.text().map(drop)
    }

    /// Starts it; what it says goes to the machine's log, that is nowhere.
    pub(super) fn start(mut self) -> Outcome<Child> {
        let shown = self.shown();
        let log = std::fs::File::create(format!("/run/{}.log", self.command.get_program().to_string_lossy()));
        let log = log.map_err(about(&shown))?;
        let other = log.try_clone().map_err(about(&shown))?;
        self.command.stdout(log).stderr(other).spawn().map_err(about(shown))
    }

    /// Starts it; lines go to and fro.
    pub(super) fn session(mut self) -> Outcome<Session> {
        let shown = self.shown();
        let mut child = self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(about(&shown))?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(input), Some(output)) => Ok(Session { child, input, output: BufReader::new(output), shown }),
            _ => Err(format!("{shown}: no pipes")),
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A program that answers lines with lines.
pub(super) struct Session {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    shown: String,
}

impl Session {
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn say(&mut self, line: &str) -> Outcome {
        self.input.write_all(format!("{line}\n").as_bytes()).map_err(about(&self.shown))
    }

    /// Sends a line; the next answer must be `expected`.
    pub(super) fn expect(&mut self, line: &str, expected: &str) -> Outcome {
        self.say(line)?;
        let mut answer = String::new();
        self.output.read_line(&mut answer).map_err(about(&self.shown))?;
        if answer.trim_end() == expected { Ok(()) } else { Err(format!("{}: {answer:?} instead of {expected:?}", self.shown)) }
    }

    /// Ends its input and waits for it.
    pub(super) fn end(self) -> Outcome {
        let Self { mut child, input, shown, .. } = self;
        drop(input);
        let status = child.wait().map_err(about(&shown))?;
        if status.success() { Ok(()) } else { Err(format!("{shown}: {status}")) }
    }
}
