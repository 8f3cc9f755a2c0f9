//! What the virtual machine needs: a kernel, QEMU, and tools for NVDIMMs, CXL and XFS.
//!
//! The script check/vm/packages.sh, which is compiled into this program, downloads and unpacks them
//! into a directory. When all is there it makes the file `complete`, which holds the kernel's
//! version; while that file exists, the script is not run again. QEMU is taken from the directory
//! or, if the script has left it out, from the host.

use super::tool;
use crate::{Outcome, about};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const SCRIPT: &str = include_str!("../../packages.sh");
/// The oldest major version of QEMU that serves. Older ones crash the virtual machine at the
/// instruction cmpxchg16b, and offer no CXL with software emulation.
const QEMU_MAJOR_MIN: u32 = 9;

/// Where the packages' files and QEMU are.
pub(crate) struct Packages {
    /// The kernel's version, as `uname -r` prints it in the virtual machine.
    pub(crate) kernel: String,
    /// The directory into which the packages are unpacked, as if it were the root directory.
    pub(crate) unpacked: PathBuf,
    pub(crate) qemu: PathBuf,
    /// Directories to name to QEMU for its firmware; empty for the host's QEMU, which knows its
    /// own.
    pub(crate) firmware: Vec<PathBuf>,
}

impl Packages {
    /// Sees to it that `directory` is complete, which may take a download, and that QEMU serves;
    /// says where everything is.
    pub(crate) fn ensure(directory: &Path) -> Outcome<Self> {
        let complete = directory.join("complete");
        if !complete.exists() {
            fs::create_dir_all(directory).map_err(about(directory.display()))?;
            // The word after the script is its $0; the directory is its $1.
            tool::output(Command::new("bash").args(["-c", SCRIPT, "packages.sh"]).arg(directory))?;
        }
        let kernel = fs::read_to_string(&complete).map_err(about(complete.display()))?.trim().to_owned();
        let unpacked_qemu = directory.join("qemu/usr/bin/qemu-system-x86_64");
        let (qemu, firmware) = if unpacked_qemu.is_file() {
            (unpacked_qemu, ["qemu", "seabios"].map(|name| directory.join("qemu/usr/share").join(name)).to_vec())
        } else {
            (tool::need("qemu-system-x86_64", "qemu-system-x86")?, Vec::new())
        };
        check_version(&qemu)?;
        Ok(Self { kernel, unpacked: directory.join("unpacked"), qemu, firmware })
    }
}

/// Checks that `qemu` runs and is new enough.
fn check_version(qemu: &Path) -> Outcome {
    let version = tool::output(Command::new(qemu).arg("--version")).map_err(|error| {
        format!(
            "{error}\nQEMU does not run; the libraries that it needs come with the host's package qemu-system-x86: run 'check/setup vm', or as \
             root: apt-get install qemu-system-x86"
        )
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

/// The major version in what `qemu --version` prints.
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
