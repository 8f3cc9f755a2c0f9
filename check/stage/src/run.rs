//! Running a program to its end, with a time limit, in a process group of its own of which nothing
//! outlives the run.

use crate::{
    Janitor,
    process::{ENVIRONMENT, describe},
};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How long processes may take to be gone that were killed.
const DYING: Duration = Duration::from_secs(10);

/// What a program left behind.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Output {
    /// Its standard output.
    pub stdout: String,
    /// Its standard error, without what the library says.
    pub stderr: String,
    /// The lines of the library.
    pub notices: Vec<String>,
    /// Exit status, or "signal N", or why it has none.
    pub status: String,
}

impl Output {
    /// Whether it ended with 0.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.status == "0"
    }
}

/// A program to be run.
pub struct Run<'a> {
    command: Command,
    janitor: &'a Janitor,
    limit: Duration,
    /// Where its output goes while it runs: `<stem>.out` and `<stem>.err`.
    stem: PathBuf,
}

impl<'a> Run<'a> {
    /// A program with a clean environment: what cases need, and nothing of the caller's.
    pub fn new(program: impl AsRef<OsStr>, janitor: &'a Janitor, stem: PathBuf) -> Self {
        let mut command = Command::new(program);
        command.env_clear().envs(ENVIRONMENT).env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null()).process_group(0);
        Self { command, janitor, limit: Duration::from_secs(60), stem }
    }

    /// The same run with one more argument.
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    /// The same run with more arguments.
    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.command.args(arguments);
        self
    }

    /// The same run with a variable in its environment.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// The same run in another working directory.
    #[must_use]
    pub fn directory(mut self, directory: &Path) -> Self {
        self.command.current_dir(directory);
        self
    }

    /// The same run as another user, without supplementary groups; only root may ask for it.
    #[must_use]
    pub fn user(mut self, uid: u32, gid: u32) -> Self {
        self.command.uid(uid).gid(gid);
        self
    }

    /// After this time it is a failure, and every process of its group is killed.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs it to its end.
    pub fn output(mut self) -> Output {
        self.collect().unwrap_or_else(|error| Output { status: format!("not started: {error}"), ..Output::default() })
    }

    fn collect(&mut self) -> io::Result<Output> {
        let (out, err) = (self.stem.with_extension("out"), self.stem.with_extension("err"));
        self.command.stdout(File::create(&out)?).stderr(File::create(&err)?);
        let mut child = self.command.spawn()?;
        let group = child.id();
        self.janitor.begun(group);
        let status = crate::process::wait(&mut child, self.limit);
        let left = end_group(group, matches!(status, Ok(None)))?;
        if matches!(status, Ok(None)) {
            child.wait()?;
        }
        self.janitor.ended(group);
        let status = match status? {
            Some(status) if left == 0 => describe(status),
            Some(status) => format!("{}, and left {left} processes running", describe(status)),
            None => format!("still running after {} s, {left} processes", self.limit.as_secs()),
        };
        let text = |path: &Path| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let said = text(&err)?;
        let (notices, stderr): (Vec<&str>, Vec<&str>) =
            said.split_inclusive('\n').partition(|line| line.starts_with("cxlraid: "));
        let notices = notices.into_iter().map(|line| line.trim_end().to_owned()).collect();
        let output = Output { stdout: text(&out)?, stderr: stderr.concat(), notices, status };
        fs::remove_file(out)?;
        fs::remove_file(err)?;
        Ok(output)
    }
}

/// Kills what is left of a process group, each process by its number, and waits until it is gone.
/// Returns how many there were. `leader_runs`: the leader, which is our child, is among them and
/// stays a zombie.
fn end_group(group: u32, leader_runs: bool) -> io::Result<usize> {
    let found = members_of(group);
    let begun = Instant::now();
    let mut left = found.clone();
    while !left.is_empty() {
        for pid in &left {
            if let Some(pid) = i32::try_from(*pid).ok().and_then(Pid::from_raw) {
                // It may have ended meanwhile.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        if begun.elapsed() > DYING {
            return Err(io::Error::other(format!("processes {left:?} cannot be killed")));
        }
        thread::sleep(Duration::from_millis(1));
        left = members_of(group);
    }
    Ok(found.len().max(usize::from(leader_runs)))
}

/// The processes of a group that have not ended.
fn members_of(group: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
    pids.filter(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // proc(5): behind the name in parentheses come the state, the parent and the group.
        let mut fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields).split(' ');
        let runs = fields.next().is_some_and(|state| !matches!(state, "Z" | "X" | ""));
        runs && fields.nth(1).is_some_and(|found| found.parse() == Ok(group))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str, limit: Duration) -> Output {
        let janitor = Janitor::new(&[]).unwrap();
        let stem = std::env::temp_dir().join(format!("cxlraid-run-{}-{}", std::process::id(), script.len()));
        Run::new("sh", &janitor, stem).args(["-c", script]).limit(limit).output()
    }

    #[test]
    fn output_and_status_are_kept() {
        let output = run("echo out; echo err >&2; echo 'cxlraid: m0: stale' >&2; exit 7", Duration::from_secs(10));
        let notices = vec!["cxlraid: m0: stale".to_owned()];
        assert_eq!(output, Output { stdout: "out\n".into(), stderr: "err\n".into(), notices, status: "7".into() });
        assert_eq!(run("kill -9 $$", Duration::from_secs(10)).status, "signal 9");
    }

    #[test]
    fn what_does_not_end_is_killed_and_counted() {
        let begun = Instant::now();
        assert_eq!(run("sleep 50 & wait", Duration::from_millis(300)).status, "still running after 0 s, 2 processes");
        assert_eq!(run("sleep 50 & exit 3", Duration::from_secs(10)).status, "3, and left 1 processes running");
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}
