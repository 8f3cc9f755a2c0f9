//! `cxlraid-posix`: pjdfstest on arrays, compared case by case with the same cases on a plain
//! directory.
//!
//! pjdfstest runs on a directory first, for reference; then, through `LD_PRELOAD`, on RAID 1 and
//! RAID 5 whose members lie on the same file system, and on a RAID 5 that lacks a member; if asked
//! for, also through a mount. What passes there must pass here. This is done on a disk and on
//! tmpfs, and by root also as a user without privileges.

mod outcome;
mod place;
mod runs;
mod suite;
mod users;

use stage::options::{Words, beside_us, conclude, is_option, library, must_be_built};
use std::path::PathBuf;
use std::process::ExitCode;

const HELP: &str = "\
cxlraid-posix [OPTIONS] [NAME...]

Runs the cases of pjdfstest whose name contains one of NAME; all of them without.

  --lib PATH   libcxlraid.so (else CXLRAID_LIB, else beside this program)
  --disk DIR   a directory on a disk (/var/tmp)
  --quick      only on tmpfs: on a disk one case makes 65,000 links
  --mount      also through a mount of a RAID 5 on tmpfs; needs root and /dev/fuse
  --keep       leave what runs print in the directory for builds";

struct Options {
    library: PathBuf,
    disk: PathBuf,
    quick: bool,
    mount: bool,
    keep: bool,
    names: Vec<String>,
}

fn options() -> Result<Option<Options>, String> {
    let (library, names) = (library(), Vec::new());
    let mut options = Options { library, disk: "/var/tmp".into(), quick: false, mount: false, keep: false, names };
    let mut words = Words::new(std::env::args_os().skip(1), HELP);
    while let Some(word) = words.next_word() {
        match word.as_str() {
            "--lib" => options.library = words.value()?.into(),
            "--disk" => options.disk = words.value()?.into(),
            "--quick" => options.quick = true,
            "--mount" => options.mount = true,
            "--keep" => options.keep = true,
            "--help" | "-h" => return Ok(None),
            option if is_option(option) => return Err(words.unknown()),
            _ => options.names.push(word),
        }
    }
    must_be_built(&options.library, "cxlraid-preload")?;
    Ok(Some(options))
}

fn main() -> ExitCode {
    conclude("cxlraid-posix", HELP, options(), |options| {
        suite::install(&beside_us("..").join("posix")).and_then(|program| runs::all(&program, options))
    })
}
