//! The program that makes calls as it is told, on one door or the other.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

const SOURCE: &str = include_str!("peer.c");
const HANDED: &str = include_str!("handed.c");
const RACED: &str = include_str!("raced.c");
const RING: &str = include_str!("ring.c");

/// Both forms of the program.
pub(crate) struct Programs {
    pub(crate) fixed: PathBuf,
    pub(crate) dynamic: PathBuf,
    /// Another one, linked statically, which does what its arguments say.
    pub(crate) handed: PathBuf,
    /// One that executes programs while its other threads are at work.
    pub(crate) raced: PathBuf,
    /// One that uses io_uring, linked statically.
    pub(crate) ring: PathBuf,
}

impl Programs {
    /// Has them built by gcc.
    pub(crate) fn build(directory: &Path) -> Result<Self, String> {
        let build = |name: &str, text: &str, flags: &[&str]| {
            let source = directory.join(name).with_extension("c");
            std::fs::write(&source, text).map_err(|error| error.to_string())?;
            let program = directory.join(name);
            let mut gcc = Command::new("gcc");
            let status = gcc.args(flags).args(["-O1", "-pthread", "-o"]).arg(&program).arg(&source).status();
            match status {
                Ok(status) if status.success() => Ok(program),
                Ok(status) => Err(format!("gcc: {status}")),
                Err(error) => Err(format!("gcc, which builds the programs: {error}")),
            }
        };
        Ok(Self {
            fixed: build("peer-static", SOURCE, &["-static"])?,
            dynamic: build("peer", SOURCE, &[])?,
            handed: build("handed", HANDED, &["-static"])?,
            raced: build("raced", RACED, &[])?,
            ring: build("ring", RING, &["-static"])?,
        })
    }
}

/// The program at work.
pub(crate) struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// What the array's paths begin with for it.
    root: String,
}

impl Peer {
    /// Starts it. In each line that it is told, `@` stands for `root`.
    pub(crate) fn start(mut command: Command, root: &Path) -> Result<Self, String> {
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = started.map_err(|error| format!("{command:?}: {error}"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else { return Err("no pipe".into()) };
        Ok(Self { child, input, output: BufReader::new(output), root: root.display().to_string() })
    }

    /// The number of the process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end of the process that was started.
    pub(crate) fn await_end(&mut self) -> Result<(), String> {
        self.child.wait().map(drop).map_err(|error| error.to_string())
    }

    /// Has it make a call.
    pub(crate) fn tell(&mut self, line: &str) -> Result<(), String> {
        let line = line.replace('@', &self.root);
        self.input.write_all(format!("{line}\n").as_bytes()).map_err(|error| format!("{line}: {error}"))
    }

    /// What the call gave.
    pub(crate) fn answer(&mut self) -> Result<String, String> {
        let mut answer = String::new();
        self.output.read_line(&mut answer).map_err(|error| error.to_string())?;
        if answer.ends_with('\n') { Ok(answer.trim_end().to_owned()) } else { Err("it has ended".into()) }
    }

    pub(crate) fn ask(&mut self, line: &str) -> Result<String, String> {
        self.tell(line)?;
        self.answer().map_err(|error| format!("{line}: {error}"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
