//! Starting programs: to their end with a time limit, or as a server that is killed or asked to
//! stop. None outlives its handle.

use crate::{
    Outcome,
    ground::{Ground, User},
    session::Session,
    tree,
};
use rustix::process::{Pid, Signal, kill_process};
use stage::process::{ENVIRONMENT, describe};
use std::{
    ffi::OsStr,
    fs::{self, File},
    io::Write as _,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

/// How long a program that ends by itself may run.
const LIMIT: Duration = Duration::from_secs(180);

/// Lines of a program's output that a report shows.
const TAIL_LINES: usize = 12;

/// A program to be run.
pub(crate) struct Run<'a> {
    command: Command,
    ground: &'a Ground,
    input: Option<Vec<u8>>,
    /// Where its output goes: `<stem>.out` and `<stem>.err`.
    stem: PathBuf,
}

impl<'a> Run<'a> {
    /// A program with a clean environment, in a process group of its own.
    pub(crate) fn new(program: impl AsRef<OsStr>, ground: &'a Ground, stem: PathBuf, user: Option<User>) -> Self {
        let mut command = Command::new(program);
        command.env_clear().envs(ENVIRONMENT).stdin(Stdio::null()).process_group(0);
        if let Some(user) = user {
            command.uid(user.uid).gid(user.gid);
        }
        Self { command, ground, input: None, stem }
    }

    pub(crate) fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    pub(crate) fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.command.args(arguments);
        self
    }

    /// Arguments separated by blanks.
    pub(crate) fn words(self, words: &str) -> Self {
        self.args(words.split_whitespace())
    }

    pub(crate) fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn directory(mut self, directory: &Path) -> Self {
        self.command.current_dir(directory);
        self
    }

    /// What it reads on standard input.
    pub(crate) fn input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = Some(input.into());
        self
    }

    fn shown(&self) -> String {
        let words = std::iter::once(self.command.get_program()).chain(self.command.get_args());
        let text = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        text.chars().take(160).collect::<String>().replace('\n', " ")
    }

    /// Starts it; its output goes to files.
    pub(crate) fn start(mut self) -> Outcome<Process<'a>> {
        let shown = self.shown();
        let files = [self.stem.with_extension("out"), self.stem.with_extension("err")];
        let spawn = |run: &mut Self| {
            run.command.stdout(File::create(&files[0])?).stderr(File::create(&files[1])?);
            if let Some(input) = &run.input {
                let path = run.stem.with_extension("in");
                File::create(&path)?.write_all(input)?;
                run.command.stdin(File::open(&path)?);
                fs::remove_file(path)?;
            }
            run.command.spawn()
        };
        let child = spawn(&mut self).map_err(|error| format!("{shown}: {error}"))?;
        self.ground.janitor.begun(child.id());
        Ok(Process { child, ground: self.ground, shown, files, done: false })
    }

    /// Starts it; lines go to and fro.
    pub(crate) fn session(mut self) -> Outcome<Session<'a>> {
        let files = [self.stem.with_extension("none"), self.stem.with_extension("err")];
        let shown = self.shown();
        let errors = File::create(&files[1]).map_err(|error| format!("{}: {error}", files[1].display()))?;
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let mut child = self.command.spawn().map_err(|error| format!("{shown}: {error}"))?;
        self.ground.janitor.begun(child.id());
        let pipes = (child.stdin.take(), child.stdout.take());
        let process = Process { child, ground: self.ground, shown, files, done: false };
        match pipes {
            (Some(input), Some(output)) => Ok(Session::new(process, input, output)),
            _ => Err("a child without pipes".to_owned()),
        }
    }

    /// Runs it to its end; its standard output. An error if it could not be started, took too long,
    /// or did not exit with 0.
    pub(crate) fn text(self) -> Outcome<String> {
        let mut process = self.start()?;
        let Some(status) = process.wait(LIMIT)? else {
            process.kill()?;
            return Err(format!("{}: still running after {} s\n{}", process.shown, LIMIT.as_secs(), process.tail()));
        };
        if !status.success() {
            return Err(format!("{}: ended with {}\n{}", process.shown, describe(status), process.tail()));
        }
        let [out, err] = &process.files;
        let text = fs::read(out).map_err(|error| format!("{}: {error}", out.display()))?;
        // Nobody will ask for them again.
        let _ = fs::remove_file(out).and_then(|()| fs::remove_file(err));
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// For its effect only.
    pub(crate) fn done(self) -> Outcome {
        self.text().map(drop)
    }
}

/// A running program. Killed with all its descendants when dropped.
pub(crate) struct Process<'a> {
    child: Child,
    ground: &'a Ground,
    shown: String,
    files: [PathBuf; 2],
    done: bool,
}

impl Process<'_> {
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap_or(i32::MAX)
    }

    /// Its exit status; None if it still runs after `limit`.
    pub(crate) fn wait(&mut self, limit: Duration) -> Outcome<Option<ExitStatus>> {
        let status = stage::process::wait(&mut self.child, limit).map_err(|error| error.to_string())?;
        self.done |= status.is_some();
        Ok(status)
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.done || matches!(self.wait(Duration::ZERO), Ok(Some(_)))
    }

    /// SIGKILL to it and everything it started. Returns how many processes that were; 0 if it had
    /// ended before.
    pub(crate) fn kill(&mut self) -> Outcome<usize> {
        if self.has_ended() {
            return Ok(0);
        }
        let count = tree::kill(self.pid())?;
        self.child.wait().map_err(|error| error.to_string())?;
        self.done = true;
        Ok(count)
    }

    /// As an operator stops a server; it must exit with 0.
    pub(crate) fn stop(&mut self, signal: Signal) -> Outcome {
        if let Some(pid) = Pid::from_raw(self.pid()).filter(|_| !self.done) {
            kill_process(pid, signal).map_err(|error| format!("{}: {error}", self.shown))?;
        }
        self.ended()
    }

    /// It ends by itself, with 0.
    pub(crate) fn ended(&mut self) -> Outcome {
        match self.wait(Duration::from_secs(90))? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("{}: ended with {} when stopped\n{}", self.shown, describe(status), self.tail())),
            None => Err(format!("{}: does not stop\n{}", self.shown, self.tail())),
        }
    }

    /// The last lines it wrote.
    pub(crate) fn tail(&self) -> String {
        let texts = self.files.iter().map(|file| String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned());
        texts.map(|text| last_lines(&text)).filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Process<'_> {
    fn drop(&mut self) {
        if let Err(message) = self.kill() {
            eprintln!("cxlraid-servers: {message}");
        }
        self.ground.janitor.ended(self.child.id());
    }
}

/// As much of the end of a text as a reader wants to see.
pub(crate) fn last_lines(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(|line| line.chars().take(300).collect()).collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}
