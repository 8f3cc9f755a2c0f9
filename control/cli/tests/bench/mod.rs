//! The built command in a home of its own, with three empty member directories on tmpfs, as the
//! tests of it use it.
#![allow(dead_code)] // Each test program uses a part of it.

pub(crate) mod filled;
pub(crate) mod library;
pub(crate) mod seen;
pub(crate) mod turned;

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    process::{Child, Command, Output},
};

/// Numbers from a seed, which is not 0 (xorshift64*).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % limit.max(1)
    }
}

/// A process that ends with the test, whatever becomes of that.
pub(crate) struct Begun(Option<Child>);

impl Begun {
    pub(crate) fn new(command: &mut Command) -> Self {
        Self(Some(command.spawn().unwrap()))
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }

    /// Waits for the first line of its standard output.
    pub(crate) fn first_line(&mut self) -> String {
        let mut line = Vec::new();
        let output = self.0.as_mut().unwrap().stdout.as_mut().unwrap();
        let mut byte = [0];
        while output.read(&mut byte).unwrap() == 1 && byte != *b"\n" {
            line.push(byte[0]);
        }
        String::from_utf8(line).unwrap()
    }

    /// Waits for its end.
    pub(crate) fn ended(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A home of one's own, and three empty member directories on tmpfs.
pub(crate) struct Bench {
    pub(crate) home: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let home = tempfile::tempdir_in("/dev/shm").unwrap();
        for member in ["m0", "m1", "m2"] {
            fs::create_dir(home.path().join(member)).unwrap();
        }
        Self { home }
    }

    /// The UUID of the array called db.
    pub(crate) fn uuid(&self) -> String {
        let report = out(&self.run(&["status", "db", "--json"]));
        let at = report.find("\"uuid\":").unwrap();
        report[at + 7..].split('"').nth(1).unwrap().to_owned()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        self.program(Path::new(env!("CARGO_BIN_EXE_cxlraid")), arguments)
    }

    /// `program`, the command or a copy of it, with what every command of this bench gets.
    pub(crate) fn program(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.home.path());
        for (variable, _) in std::env::vars().filter(|(variable, _)| variable.starts_with("CXLRAID_")) {
            command.env_remove(variable);
        }
        command.env("XDG_STATE_HOME", self.path("state"));
        command.env("XDG_CONFIG_HOME", self.path("config")).env_remove("LD_PRELOAD");
        // The machine may have arrays.
        command.env("CXLRAID_SYSTEM_ARRAYS", self.path("system"));
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    pub(crate) fn create(&self) -> Output {
        self.run(&["create", "db", "--level", "5", "--at", "/data", "m0", "m1", "m2"])
    }
}

/// The exit status by which a script says that it may not do what it needs.
const NOT_PERMITTED: i32 = 99;

impl Bench {
    /// Runs a shell script in a mount namespace of its own: `$1` is the command, and the rest of its
    /// arguments and the environment are what `prepare` adds. Returns None, and says so for `test`,
    /// if this process may not make such a namespace, or the script ends with status 99.
    pub(crate) fn with_own_mounts(&self, test: &str, script: &str, prepare: impl FnOnce(&mut Command)) -> Option<Output> {
        let mut shell = self.program("unshare".as_ref(), &["--mount", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_cxlraid")]);
        prepare(&mut shell);
        let output = shell.output().unwrap();
        if output.status.code() == Some(NOT_PERMITTED) || err(&output).contains("unshare failed") {
            eprintln!("NOT RUN: {test} needs rights to mount");
            return None;
        }
        Some(output)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        for member in ["m0", "m1", "m2", "away", "away2"] {
            let report = out(&self.run(&["examine", member]));
            let uuids = report.lines().filter_map(|line| line.strip_prefix("├─ UUID: "));
            for uuid in uuids {
                let _ = fs::remove_file(format!("/dev/shm/cxlraid-{uuid}"));
            }
        }
    }
}

pub(crate) fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The exit status, and the one line of standard error.
#[track_caller]
pub(crate) fn refused(output: &Output) -> (i32, String) {
    let text = err(output);
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("cxlraid: ") && text.ends_with('\n'), "{text}");
    (output.status.code().unwrap(), text.trim_end().to_owned())
}

/// The exit status, and the line of standard error that is no warning.
#[track_caller]
pub(crate) fn refused_after_warnings(output: &Output) -> (i32, String) {
    let text = err(output);
    let mut lines = text.lines().filter(|line| !line.contains(": warning: "));
    let line = lines.next().unwrap_or_default().to_owned();
    assert_eq!(lines.next(), None, "{text}");
    (output.status.code().unwrap(), line)
}

pub(crate) fn snapshot(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.push((path.clone(), Vec::new()));
            files.extend(snapshot(&path));
        } else {
            files.push((path.clone(), fs::read(&path).unwrap()));
        }
    }
    files.sort();
    files
}
