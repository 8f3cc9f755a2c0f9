//! The library as `cxlraid run` loads it into a program.

use super::Bench;
use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// The library of this very state of the code, unless `CXLRAID_LIB` names another.
pub(crate) fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        if let Some(library) = env::var_os("CXLRAID_LIB") {
            return library.into();
        }
        let target = Path::new(env!("CARGO_BIN_EXE_cxlraid")).ancestors().nth(2).unwrap();
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--release", "--locked", "-p", "cxlraid-preload", "--target-dir"]).arg(target);
        assert!(build.status().unwrap().success());
        target.join("release/libcxlraid.so")
    })
}

/// A program with the library on the array called db, which ends within a minute, even if it waits
/// for ever.
pub(crate) fn on_array(bench: &Bench, program: &[&str]) -> Command {
    let mut command = bench.program(Path::new("timeout"), &["60", env!("CARGO_BIN_EXE_cxlraid"), "run", "db", "--"]);
    command.args(program).env("CXLRAID_LIB", library());
    command
}
