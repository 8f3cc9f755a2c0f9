//! Programs of the host: finding them and running them to their end.

use crate::{Outcome, about};
use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Where programs are looked for: PATH, then where Debian keeps what only root or servers use.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let own = std::env::var("PATH").unwrap_or_default();
    let places = own.split(':').chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"]);
    places.map(|place| Path::new(place).join(program)).find(|path| path.is_file())
}

/// A program that must be there; `package` is what Debian calls where it comes from.
pub(crate) fn need(program: &str, package: &str) -> Outcome<PathBuf> {
    find(program).ok_or_else(|| format!("{program} is missing; run 'check/setup vm', or as root: apt-get install {package}"))
}

/// Runs a command to its end; its standard output.
pub(crate) fn output(command: &mut Command) -> Outcome<Vec<u8>> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(about(&name))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let words: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
    Err(format!("{name} {}: {}\n{}", words.join(" "), output.status, String::from_utf8_lossy(&output.stderr).trim_end()))
}
