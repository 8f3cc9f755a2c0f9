//! A client program that is driven line by line: what it has answered has been acknowledged.

use crate::{Outcome, process::Process};
use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{ChildStdin, ChildStdout},
};

/// A program with our ends of its pipes.
pub(crate) struct Session<'a> {
    process: Process<'a>,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl<'a> Session<'a> {
    pub(crate) fn new(process: Process<'a>, input: ChildStdin, output: ChildStdout) -> Self {
        Self { process, input, output: BufReader::new(output) }
    }

    fn failed(&self, what: &str) -> String {
        format!("{what}\n{}", self.process.tail())
    }

    /// The next line it writes; an error at its end.
    pub(crate) fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(0) => Err(self.failed("the client ended")),
            Ok(_) => Ok(line.trim_end_matches('\n').to_owned()),
            Err(error) => Err(self.failed(&error.to_string())),
        }
    }

    /// Sends a line.
    pub(crate) fn say(&mut self, line: &str) -> Outcome {
        let written = self.input.write_all(format!("{line}\n").as_bytes());
        written.map_err(|error| self.failed(&error.to_string()))
    }

    /// Sends a line and waits for the line that answers it.
    pub(crate) fn ask(&mut self, line: &str) -> Outcome<String> {
        self.say(line)?;
        self.line()
    }

    /// Sends a line; the answer must be `expected`.
    pub(crate) fn expect(&mut self, line: &str, expected: &str) -> Outcome {
        let answer = self.ask(line)?;
        if answer == expected { Ok(()) } else { Err(self.failed(&format!("answer {answer:?} instead of {expected:?}"))) }
    }

    /// For who kills it while another thread waits for its answer.
    pub(crate) fn pid(&self) -> i32 {
        self.process.pid()
    }
}
