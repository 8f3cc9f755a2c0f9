//! The machine that measures: processor, kernel, memory, how busy it is, and the versions of what
//! runs on it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

/// What a measurement ran on.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize, Debug)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) processors: usize,
    pub(crate) memory_bytes: u64,
    pub(crate) kernel: String,
    /// The load average of the last minute when the measurement ended.
    pub(crate) load: String,
}

impl Machine {
    pub(crate) fn find() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("an unknown processor");
        Self {
            processor: model.trim_start_matches([' ', '\t', ':']).to_owned(),
            processors: std::thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: kib("MemTotal:").unwrap_or(0),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load: read("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned(),
        }
    }

    pub(crate) fn text(&self) -> String {
        format!(
            "{} × {}, {} GiB of memory, Linux {}",
            self.processors,
            self.processor,
            self.memory_bytes.div_ceil(1 << 30),
            self.kernel
        )
    }
}

/// A line of /proc/meminfo, in bytes.
fn kib(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kib| kib << 10)
}

/// Bytes of memory that can be had without taking it from others.
pub(crate) fn available_bytes() -> u64 {
    kib("MemAvailable:").unwrap_or(0)
}

/// Bytes that a file system has room for.
pub(crate) fn free_bytes(directory: &Path) -> Option<u64> {
    let output = Command::new("df").args(["-B1", "--output=avail"]).arg(directory).output().ok()?;
    String::from_utf8_lossy(&output.stdout).lines().nth(1)?.trim().parse().ok()
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The first line that a program prints about itself. None if it is not there.
fn says(program: &str, argument: &str) -> Option<String> {
    let program = stage::process::find_program(program)?;
    let output = Command::new(program).arg(argument).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    text.lines().next().map(|line| line.trim().to_owned())
}

/// The versions of the programs that measure or are measured, by name.
pub(crate) fn versions(command: &Path) -> BTreeMap<String, String> {
    let mut versions = BTreeMap::new();
    let programs = [
        ("fio", "--version"),
        ("redis-server", "--version"),
        ("mkfs.ext4", "-V"),
        ("btrfs", "--version"),
        ("sqlite3", "--version"),
        ("git", "--version"),
        ("tar", "--version"),
        ("gcc", "--version"),
    ];
    for (program, argument) in programs {
        if let Some(version) = says(program, argument) {
            versions.insert(program.to_owned(), version);
        }
    }
    let own = Command::new(command).arg("--version").env_remove("LD_PRELOAD").output().ok();
    let own = own.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    let commit = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).stderr(Stdio::null()).output().ok();
    let commit = commit.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    versions.insert("cxlraid".to_owned(), format!("{own} {commit}").trim().to_owned());
    versions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_told() {
        let machine = Machine::find();
        assert!(machine.processors > 0 && machine.memory_bytes > 0 && !machine.kernel.is_empty());
        assert!(machine.text().contains("Linux"));
        assert!(available_bytes() > 0 && free_bytes(Path::new("/")).is_some());
    }
}
