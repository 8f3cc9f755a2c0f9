//! The command line.

use crate::array::Shape;
use stage::options::{Words, is_option, library, must_be_built};
use std::{ffi::OsString, path::PathBuf};

pub(crate) const HELP: &str = "\
cxlraid-programs [OPTIONS] [NAME...]

Runs the cases whose name contains one of NAME; all of them without.

  --level LEVEL   only runs on this shape: raid1, raid5, raid5/4K, raid6, journal, raid5/1M (for cases of mappings), or plain to check
                  the cases themselves; traced: only the traced runs; may be given several times
  --lib PATH      libcxlraid.so (else CXLRAID_LIB, else beside this program)
  --watched       only the shape raid5, with every system call under watch (CXLRAID_DEBUG_SUD): one that concerns the array and
                  comes from an instruction that was not patched is a failure
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
    /// Whether system calls are under watch.
    pub(crate) watched: bool,
    pub(crate) jobs: usize,
    pub(crate) list: bool,
    pub(crate) keep: bool,
}

impl Options {
    /// None: help is asked for.
    pub(crate) fn from_arguments(arguments: impl Iterator<Item = OsString> + 'static) -> Result<Option<Self>, String> {
        let mut options = Self {
            names: Vec::new(),
            levels: Vec::new(),
            library: library(),
            command: PathBuf::new(),
            watched: false,
            jobs: 2,
            list: false,
            keep: false,
        };
        let mut words = Words::new(arguments, HELP);
        while let Some(word) = words.next_word() {
            match word.as_str() {
                "--level" => options.levels.push(words.value()?),
                "--lib" => options.library = words.value()?.into(),
                "--jobs" => options.jobs = words.number()?,
                "--watched" => options.watched = true,
                "--list" => options.list = true,
                "--keep" => options.keep = true,
                "--help" | "-h" => return Ok(None),
                option if is_option(option) => return Err(words.unknown()),
                _ => options.names.push(word),
            }
        }
        if options.watched && options.levels.is_empty() {
            options.levels.push(Shape::RAID5.label.to_owned());
        }
        options.library = std::path::absolute(&options.library).map_err(|error| error.to_string())?;
        options.command = options.library.with_file_name("cxlraid");
        options.check_levels()?;
        Ok(Some(options))
    }

    fn check_levels(&self) -> Result<(), String> {
        let shapes = Shape::ALL.iter().map(|shape| shape.label);
        let known: Vec<&str> = shapes.chain([Shape::RAID5_LARGE.label, "plain", "traced", "refused"]).collect();
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
        must_be_built(&self.library, "cxlraid-preload")?;
        must_be_built(&self.command, "cxlraid-cli")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Options, String> {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        Options::from_arguments(arguments.into_iter()).map(|options| options.expect("no help was asked for"))
    }

    #[test]
    fn names_and_levels_select() {
        let options = parse(&["--level", "raid5", "git", "sql", "--lib", "/x/lib.so"]).unwrap();
        assert!(options.wants_name("sqlite3") && options.wants_name("git") && !options.wants_name("java"));
        assert!(options.wants_level("raid5") && !options.wants_level("raid6") && !options.wants_level("plain"));
        assert_eq!(options.command, std::path::Path::new("/x/cxlraid"));
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
