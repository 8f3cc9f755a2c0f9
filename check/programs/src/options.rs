//! The command line.

use crate::array::Shape;
use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

pub(crate) const HELP: &str = "\
cxlraid-programs [OPTIONS] [NAME...]

Runs the cases whose name contains one of NAME; all of them without.

  --level LEVEL   only runs on this shape: raid1, raid5, raid5/4K, raid6, or plain to check the cases themselves;
                  traced: only the traced runs; may be given several times
  --lib PATH      libcxlraid.so (else CXLRAID_LIB, else beside this program)
  --jobs N        cases at a time (2)
  --list          names of the cases and what they need
  --keep          leave the directories of failed runs and say where they are";

/// What is asked for.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) names: Vec<String>,
    /// Empty: all.
    pub(crate) levels: Vec<String>,
    pub(crate) library: PathBuf,
    /// The operator's command, beside the library.
    pub(crate) command: PathBuf,
    pub(crate) jobs: usize,
    pub(crate) list: bool,
    pub(crate) keep: bool,
    pub(crate) help: bool,
}

impl Options {
    pub(crate) fn from_arguments(arguments: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let mut options = Self {
            names: Vec::new(),
            levels: Vec::new(),
            library: env::var_os("CXLRAID_LIB").map_or_else(|| beside_us("libcxlraid.so"), PathBuf::from),
            command: PathBuf::new(),
            jobs: 2,
            list: false,
            keep: false,
            help: false,
        };
        let mut arguments = arguments.map(|argument| argument.to_string_lossy().into_owned());
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value\n\n{HELP}"));
            match argument.as_str() {
                "--level" => options.levels.push(value()?),
                "--lib" => options.library = value()?.into(),
                "--jobs" => options.jobs = value()?.parse().map_err(|_| "--jobs needs a number".to_owned())?,
                "--list" => options.list = true,
                "--keep" => options.keep = true,
                "--help" | "-h" => options.help = true,
                option if option.starts_with('-') => return Err(format!("unknown option {option}\n\n{HELP}")),
                name => options.names.push(name.to_owned()),
            }
        }
        options.library = std::path::absolute(&options.library).map_err(|error| error.to_string())?;
        options.command = options.library.with_file_name("cxlraid");
        options.check_levels()?;
        Ok(options)
    }

    fn check_levels(&self) -> Result<(), String> {
        let known: Vec<&str> = Shape::ALL.iter().map(|shape| shape.label).chain(["plain", "traced", "refused"]).collect();
        match self.levels.iter().find(|level| !known.contains(&level.as_str())) {
            Some(level) => Err(format!("unknown level {level}; known are {}", known.join(", "))),
            None => Ok(()),
        }
    }

    /// Whether a case of this name is wanted.
    pub(crate) fn wants_name(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|part| name.contains(part.as_str()))
    }

    /// Whether runs on this shape, or "traced" or "refused" ones, are wanted.
    pub(crate) fn wants_level(&self, label: &str) -> bool {
        if self.levels.is_empty() { label != "plain" } else { self.levels.iter().any(|level| level == label) }
    }

    /// Everything but plain runs needs the library.
    pub(crate) fn check_library(&self) -> Result<(), String> {
        if self.levels.iter().all(|level| level == "plain") && !self.levels.is_empty() {
            return Ok(());
        }
        for (file, package) in [(&self.library, "cxlraid-preload"), (&self.command, "cxlraid-cli")] {
            if !file.is_file() {
                return Err(format!("{}: not there; build it with 'cargo build --release -p {package}'", file.display()));
            }
        }
        Ok(())
    }
}

fn beside_us(name: &str) -> PathBuf {
    let own = env::current_exe().unwrap_or_default();
    own.parent().unwrap_or(Path::new(".")).join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Options, String> {
        Options::from_arguments(arguments.iter().map(OsString::from))
    }

    #[test]
    fn names_and_levels_select() {
        let options = parse(&["--level", "raid5", "git", "sql", "--lib", "/x/lib.so"]).unwrap();
        assert!(options.wants_name("sqlite3") && options.wants_name("git") && !options.wants_name("java"));
        assert!(options.wants_level("raid5") && !options.wants_level("raid6") && !options.wants_level("plain"));
        assert_eq!(options.command, Path::new("/x/cxlraid"));
        let options = parse(&[]).unwrap();
        assert!(options.wants_name("java") && options.wants_level("raid6") && !options.wants_level("plain"));
    }

    #[test]
    fn mistakes_are_named() {
        assert!(parse(&["--level", "raid7"]).unwrap_err().contains("raid7"));
        assert!(parse(&["--nonsense"]).unwrap_err().contains("--nonsense"));
        assert!(parse(&["--jobs", "x"]).is_err());
    }
}
