//! Running a program to its end, with a time limit, in a process group of its own.

use rustix::process::{Pid, Signal, kill_process_group};
use stage::{
    Janitor,
    process::{ENVIRONMENT, describe},
};
use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

/// What a program left behind.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Output {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    /// Exit status, or "signal N", or why it has none.
    pub(crate) status: String,
}

impl Output {
    pub(crate) fn succeeded(&self) -> bool {
        self.status == "0"
    }

    pub(crate) fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub(crate) fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

/// A program to be run.
pub(crate) struct Run<'a> {
    command: Command,
    janitor: &'a Janitor,
    limit: Duration,
    /// Where its output goes while it runs: `<stem>.out` and `<stem>.err`.
    stem: PathBuf,
}

impl<'a> Run<'a> {
    /// A program with a clean environment: what cases need, and nothing of the caller's.
    pub(crate) fn new(program: impl AsRef<OsStr>, janitor: &'a Janitor, stem: PathBuf) -> Self {
        let mut command = Command::new(program);
        command.env_clear().envs(ENVIRONMENT).env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null()).process_group(0);
        Self { command, janitor, limit: Duration::from_secs(60), stem }
    }

    pub(crate) fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    pub(crate) fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.command.args(arguments);
        self
    }

    pub(crate) fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn directory(mut self, directory: &Path) -> Self {
        self.command.current_dir(directory);
        self
    }

    pub(crate) fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs it. Whatever it left running is ended.
    pub(crate) fn output(mut self) -> Output {
        self.collect().unwrap_or_else(|error| Output { status: format!("not started: {error}"), ..Output::default() })
    }

    fn collect(&mut self) -> io::Result<Output> {
        let (out, err) = (self.stem.with_extension("out"), self.stem.with_extension("err"));
        self.command.stdout(File::create(&out)?).stderr(File::create(&err)?);
        let mut child = self.command.spawn()?;
        let group = child.id();
        self.janitor.begun(group);
        let status = stage::process::wait(&mut child, self.limit);
        end_group(group);
        if matches!(status, Ok(None)) {
            child.wait()?;
        }
        self.janitor.ended(group);
        let status = match status? {
            Some(status) => describe(status),
            None => format!("still running after {} s", self.limit.as_secs()),
        };
        let output = Output { stdout: fs::read(&out)?, stderr: fs::read(&err)?, status };
        fs::remove_file(out)?;
        fs::remove_file(err)?;
        Ok(output)
    }
}

fn end_group(group: u32) {
    if let Some(group) = i32::try_from(group).ok().and_then(Pid::from_raw) {
        // The usual case: nothing of it is left.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Without what the library says about members.
pub(crate) fn without_notices(mut output: Output) -> Output {
    let lines = output.stderr.split_inclusive(|&byte| byte == b'\n');
    output.stderr = lines.filter(|line| !line.starts_with(b"cxlraid: ")).collect::<Vec<_>>().concat();
    output
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn run(script: &str, limit: Duration) -> Output {
        let janitor = Janitor::new(&[]).unwrap();
        let stem = std::env::temp_dir().join(format!("cxlraid-process-{}-{}", std::process::id(), script.len()));
        Run::new("sh", &janitor, stem).args(["-c", script]).limit(limit).output()
    }

    #[test]
    fn output_and_status_are_kept() {
        let output = run("echo out; echo err >&2; exit 7", Duration::from_secs(10));
        assert_eq!(output, Output { stdout: b"out\n".into(), stderr: b"err\n".into(), status: "7".into() });
        assert_eq!(run("kill -9 $$", Duration::from_secs(10)).status, "signal 9");
    }

    #[test]
    fn a_program_that_does_not_end_is_ended_with_its_children() {
        let begun = Instant::now();
        assert!(run("sleep 50 & sleep 50", Duration::from_millis(50)).status.starts_with("still running"));
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}
