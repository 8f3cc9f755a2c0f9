//! Kernel, QEMU and the tools of NVDIMMs, CXL and XFS: unpacked by check/vm/packages.sh, once.

use super::tool;
use crate::{Outcome, about};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const SCRIPT: &str = include_str!("../../packages.sh");
/// Older ones crash the guest (cmpxchg16b) and have no CXL in software emulation.
const QEMU_MAJOR_MIN: u32 = 9;

/// Where things are.
pub(crate) struct Packages {
    /// As `uname -r` will say.
    pub(crate) kernel: String,
    /// What the packages hold, as if it were /.
    pub(crate) unpacked: PathBuf,
    pub(crate) qemu: PathBuf,
    /// Where QEMU finds its firmware; none if it knows.
    pub(crate) firmware: Vec<PathBuf>,
}

impl Packages {
    /// Downloads and unpacks them unless that was done before.
    pub(crate) fn ready(directory: &Path) -> Outcome<Self> {
        let complete = directory.join("complete");
        if !complete.exists() {
            fs::create_dir_all(directory).map_err(about(directory.display()))?;
            tool::output(Command::new("bash").args(["-c", SCRIPT, "packages.sh"]).arg(directory))?;
        }
        let kernel = fs::read_to_string(&complete).map_err(about(complete.display()))?.trim().to_owned();
        let own = directory.join("qemu/usr/bin/qemu-system-x86_64");
        let (qemu, firmware) = if own.is_file() {
            (own, ["qemu", "seabios"].map(|name| directory.join("qemu/usr/share").join(name)).to_vec())
        } else {
            (tool::need("qemu-system-x86_64", "qemu-system-x86")?, Vec::new())
        };
        check_version(&qemu)?;
        Ok(Self { kernel, unpacked: directory.join("unpacked"), qemu, firmware })
    }
}

/// A QEMU that runs, and is new enough.
fn check_version(qemu: &Path) -> Outcome {
    let version = tool::output(Command::new(qemu).arg("--version")).map_err(|error| {
        format!("{error}\nits libraries come with the host's own QEMU: run 'check/setup vm', or as root: apt-get install qemu-system-x86")
    })?;
    let version = String::from_utf8_lossy(&version).into_owned();
    match major(&version) {
        Some(major) if major >= QEMU_MAJOR_MIN => Ok(()),
        _ => Err(format!(
            "{}: {}; version {QEMU_MAJOR_MIN} or newer is needed",
            qemu.display(),
            version.lines().next().unwrap_or("")
        )),
    }
}

fn major(version: &str) -> Option<u32> {
    version.strip_prefix("QEMU emulator version ")?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(major("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)\nCopyright"), Some(10));
        assert_eq!(major("something else"), None);
    }
}
