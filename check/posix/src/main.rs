//! `cxlraid-posix`: pjdfstest on arrays, compared case by case with the same cases on a plain directory.
//!
//! pjdfstest runs on a directory first, for reference; then, through `LD_PRELOAD`, on RAID 1 and RAID 5 whose members lie on the same file
//! system, and on a RAID 5 that lacks a member. What passes there must pass here. This is done on a disk and on tmpfs, and by root also as
//! a user without privileges.

mod outcome;
mod place;
mod runs;
mod suite;
mod users;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const HELP: &str = "\
cxlraid-posix [OPTIONS] [NAME...]

Runs the cases of pjdfstest whose name contains one of NAME; all of them without.

  --lib PATH   libcxlraid.so (else CXLRAID_LIB, else beside this program)
  --disk DIR   a directory on a disk (/var/tmp)
  --quick      only on tmpfs: on a disk one case makes 65,000 links
  --keep       leave what runs print in the directory for builds";

struct Options {
    library: PathBuf,
    disk: PathBuf,
    quick: bool,
    keep: bool,
    names: Vec<String>,
}

fn options() -> Result<Option<Options>, String> {
    let library = std::env::var_os("CXLRAID_LIB").map_or_else(|| beside_us("libcxlraid.so"), PathBuf::from);
    let mut options = Options { library, disk: "/var/tmp".into(), quick: false, keep: false, names: Vec::new() };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value\n\n{HELP}"));
        match argument.as_str() {
            "--lib" => options.library = value()?.into(),
            "--disk" => options.disk = value()?.into(),
            "--quick" => options.quick = true,
            "--keep" => options.keep = true,
            "--help" | "-h" => return Ok(None),
            option if option.starts_with('-') => return Err(format!("unknown option {option}\n\n{HELP}")),
            name => options.names.push(name.to_owned()),
        }
    }
    if options.library.is_file() {
        return Ok(Some(options));
    }
    Err(format!("{}: not there; build it with 'cargo build --release -p cxlraid-preload'", options.library.display()))
}

/// A file in the directory of this program.
fn beside_us(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.parent().unwrap_or(Path::new(".")).join(name)
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    let result = suite::install(&beside_us("..").join("posix")).and_then(|program| runs::all(&program, &options));
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("cxlraid-posix: {message}");
            ExitCode::FAILURE
        }
    }
}
