//! pjdfstest itself: one pinned version, built by cargo where builds are kept.

use std::path::{Path, PathBuf};
use std::process::Command;

const VERSION: &str = "0.2.2";

/// The program, installed below `directory` if it is not there yet.
pub(crate) fn install(directory: &Path) -> Result<PathBuf, String> {
    let root = directory.join(format!("pjdfstest-{VERSION}"));
    let program = root.join("bin/pjdfstest");
    if program.is_file() {
        return Ok(program);
    }
    println!("building pjdfstest {VERSION}");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["install", "--quiet", "--locked", "pjdfstest", "--version"]).arg(format!("={VERSION}"));
    cargo.arg("--root").arg(&root).arg("--target-dir").arg(directory.join("build"));
    match cargo.status() {
        Ok(status) if status.success() => Ok(program),
        Ok(status) => Err(format!("cargo install pjdfstest: {status}")),
        Err(error) => Err(format!("cargo: {error}")),
    }
}
