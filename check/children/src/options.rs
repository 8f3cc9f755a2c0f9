//! The command line.

use crate::array::Shape;
use stage::options::{Words, drawn, is_option, library, must_be_built};
use std::{ffi::OsString, path::PathBuf};

pub(crate) const HELP: &str = "\
cxlraid-children [OPTIONS] [NAME...]

Runs the cases whose name contains one of NAME; all of them without. A child that is started while other threads of its process
work on files must change nothing of its parent: each case runs on a plain directory, then on arrays, with the same outcome.

  --spawns N      children of the crowd on each level (3000); 100000 take some minutes per level
  --seed S        of the crowd (else drawn, and printed)
  --level L       only this level: 1, 5 or 6; may be given several times; plain: the cases themselves, without an array
  --quick         for make test: most cases, each on one level, and the crowd on all of them with 300 children and seed 1
  --jobs N        cases at a time (2)
  --lib PATH      libcxlraid.so (else CXLRAID_LIB, else beside this program)
  --list          names of the cases and what they are about
  --keep          leave the directories of failed runs and say where they are";

const SPAWNS: u64 = 3000;
const SPAWNS_QUICK: u64 = 300;

/// What is asked for.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) names: Vec<String>,
    /// Labels of shapes, or "plain". Empty: all shapes.
    pub(crate) levels: Vec<String>,
    /// Children of the crowd on each level.
    pub(crate) spawns: u64,
    pub(crate) seed: u64,
    pub(crate) quick: bool,
    pub(crate) jobs: usize,
    pub(crate) library: PathBuf,
    /// The operator's command, beside the library.
    pub(crate) command: PathBuf,
    pub(crate) list: bool,
    pub(crate) keep: bool,
}

impl Options {
    /// None: help is asked for.
    pub(crate) fn from_arguments(arguments: impl Iterator<Item = OsString> + 'static) -> Result<Option<Self>, String> {
        let (mut spawns, mut seed) = (None, None);
        let mut options = Self {
            names: Vec::new(),
            levels: Vec::new(),
            spawns: 0,
            seed: 0,
            quick: false,
            jobs: 2,
            library: library(),
            command: PathBuf::new(),
            list: false,
            keep: false,
        };
        let mut words = Words::new(arguments, HELP);
        while let Some(word) = words.next_word() {
            match word.as_str() {
                "--spawns" => spawns = Some(words.number()?),
                "--seed" => seed = Some(words.number()?),
                "--level" => options.levels.push(label(&words.value()?)?),
                "--quick" => options.quick = true,
                "--jobs" => options.jobs = words.number::<usize>()?.max(1),
                "--lib" => options.library = words.value()?.into(),
                "--list" => options.list = true,
                "--keep" => options.keep = true,
                "--help" | "-h" => return Ok(None),
                option if is_option(option) => return Err(words.unknown()),
                _ => options.names.push(word),
            }
        }
        options.spawns = spawns.unwrap_or(if options.quick { SPAWNS_QUICK } else { SPAWNS });
        options.seed = seed.unwrap_or_else(|| if options.quick { 1 } else { drawn() });
        options.library = std::path::absolute(&options.library).map_err(|error| error.to_string())?;
        options.command = options.library.with_file_name("cxlraid");
        Ok(Some(options))
    }

    /// Whether a case of this name is wanted.
    pub(crate) fn wants_name(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|part| name.contains(part.as_str()))
    }

    /// Whether the command line asks for runs on this shape (its label), or on a plain directory
    /// ("plain").
    pub(crate) fn wants_level(&self, label: &str) -> bool {
        if self.levels.is_empty() { label != "plain" } else { self.levels.iter().any(|level| level == label) }
    }

    /// Everything but plain runs needs the library.
    pub(crate) fn check_library(&self) -> Result<(), String> {
        if !self.levels.is_empty() && self.levels.iter().all(|level| level == "plain") {
            return Ok(());
        }
        must_be_built(&self.library, "cxlraid-preload")?;
        must_be_built(&self.command, "cxlraid-cli")
    }
}

/// The label of the shape that is meant by `5` or `raid5`.
fn label(level: &str) -> Result<String, String> {
    let known = || Shape::ALL.iter().map(|shape| shape.label);
    let meant = level.strip_prefix("raid").unwrap_or(level);
    let found = Shape::ALL.iter().find(|shape| shape.level == meant).map(|shape| shape.label);
    match found.or((level == "plain").then_some("plain")) {
        Some(label) => Ok(label.to_owned()),
        None => Err(format!("unknown level {level}; known are {}, plain", known().collect::<Vec<_>>().join(", "))),
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
        let options = parse(&["--level", "5", "crowd", "--spawns", "100_000", "--seed", "7", "--lib", "/x/lib.so"]).unwrap();
        assert!(options.wants_name("crowd") && !options.wants_name("java"));
        assert!(options.wants_level("raid5") && !options.wants_level("raid6") && !options.wants_level("plain"));
        assert_eq!((options.spawns, options.seed), (100_000, 7));
        assert_eq!(options.command, std::path::Path::new("/x/cxlraid"));
        let options = parse(&["--quick"]).unwrap();
        assert!(options.wants_name("java") && options.wants_level("raid6") && !options.wants_level("plain"));
        assert_eq!((options.spawns, options.seed), (SPAWNS_QUICK, 1));
    }

    #[test]
    fn mistakes_are_named() {
        assert!(parse(&["--level", "raid7"]).unwrap_err().contains("raid7"));
        assert!(parse(&["--nonsense"]).unwrap_err().contains("--nonsense"));
        assert!(parse(&["--spawns", "x"]).is_err());
    }
}
