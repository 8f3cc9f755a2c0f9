//! Running programs: what they find in their environment, where they are looked for, waiting for
//! them and telling how they ended.

use std::{
    io,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, ExitStatus},
    thread,
    time::{Duration, Instant},
};

/// The same for every program. What the caller's environment has is not seen.
pub const ENVIRONMENT: [(&str, &str); 13] = [
    // Before shims of version managers, which are programs of their own; with servers that Debian
    // keeps out of PATH.
    ("PATH", "/usr/lib/postgresql/15/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("LC_ALL", "C.UTF-8"),
    // Arrays of the machine are none of a test's.
    ("CXLRAID_SYSTEM_ARRAYS", "/nonexistent"),
    ("TZ", "UTC"),
    ("PYTHONHASHSEED", "0"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_CONFIG_SYSTEM", "/dev/null"),
    ("GIT_AUTHOR_NAME", "somebody"),
    ("GIT_AUTHOR_EMAIL", "somebody@example.org"),
    ("GIT_AUTHOR_DATE", "2026-01-01T00:00:00Z"),
    ("GIT_COMMITTER_NAME", "somebody"),
    ("GIT_COMMITTER_EMAIL", "somebody@example.org"),
    ("GIT_COMMITTER_DATE", "2026-01-01T00:00:00Z"),
];

/// Where programs with that environment find `program`.
#[must_use]
pub fn find_program(program: &str) -> Option<PathBuf> {
    ENVIRONMENT[0].1.split(':').map(|directory| Path::new(directory).join(program)).find(|path| path.is_file())
}

/// Tells whether we run with root's rights.
#[must_use]
pub fn are_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Waits for a child; None if it still runs after `limit`.
pub fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    let mut pause = Duration::from_micros(200);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begun.elapsed() > limit {
            return Ok(None);
        }
        thread::sleep(pause);
        pause = (pause * 3 / 2).min(Duration::from_millis(5));
    }
}

/// The exit status as a number, or "signal N".
#[must_use]
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => code.to_string(),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn ends_are_told_apart() {
        let mut child = Command::new("sh").args(["-c", "exit 7"]).spawn().unwrap();
        assert_eq!(describe(wait(&mut child, Duration::from_secs(10)).unwrap().unwrap()), "7");
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(wait(&mut child, Duration::from_millis(20)).unwrap().is_none());
        child.kill().unwrap();
        assert_eq!(describe(wait(&mut child, Duration::from_secs(10)).unwrap().unwrap()), "signal 9");
        assert!(find_program("sh").is_some() && find_program("no-such-program").is_none());
    }
}
