//! The command line.

use crate::array::Shape;
use stage::options::{Words, is_option, library, must_be_built};
use std::{ffi::OsString, path::PathBuf};

pub(crate) const HELP: &str = "\
cxlraid-suites [OPTIONS] [NAME...]

Runs the suites that are named; a family's name (cpython, stress-ng, programs) stands for all of its suites. Without NAME
all suites are run.

  --level LEVEL   only on this shape: raid5, missing (raid5 that lacks a member), raid1, journal; may be given several times
  --lib PATH      libcxlraid.so (else CXLRAID_LIB, else beside this program)
  --quick         run a selection, on raid5
  --list          print the names of the suites
  --keep          do not remove the members, and what the suites print";

/// What is asked for.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) names: Vec<String>,
    /// The labels of the shapes to run on; if there are none, all shapes, or the one of `quick`.
    levels: Vec<String>,
    pub(crate) library: PathBuf,
    pub(crate) quick: bool,
    pub(crate) list: bool,
    pub(crate) keep: bool,
}

impl Options {
    /// Reads the command line. None if help is asked for.
    pub(crate) fn from_arguments(arguments: impl Iterator<Item = OsString> + 'static) -> Result<Option<Self>, String> {
        let mut options =
            Self { names: Vec::new(), levels: Vec::new(), library: library(), quick: false, list: false, keep: false };
        let mut words = Words::new(arguments, HELP);
        while let Some(word) = words.next_word() {
            match word.as_str() {
                "--level" => options.levels.push(words.value()?),
                "--lib" => options.library = words.value()?.into(),
                "--quick" => options.quick = true,
                "--list" => options.list = true,
                "--keep" => options.keep = true,
                "--help" | "-h" => return Ok(None),
                option if is_option(option) => return Err(words.unknown()),
                _ => options.names.push(word),
            }
        }
        if let Some(level) = options.levels.iter().find(|level| Shape::ALL.iter().all(|shape| shape.label != **level)) {
            let known: Vec<&str> = Shape::ALL.iter().map(|shape| shape.label).collect();
            return Err(format!("unknown level {level}; known are {}", known.join(", ")));
        }
        if !options.list {
            must_be_built(&options.library, "cxlraid-preload")?;
        }
        Ok(Some(options))
    }

    /// The shapes to run on.
    pub(crate) fn shapes(&self) -> impl Iterator<Item = Shape> + '_ {
        let wanted = |shape: &Shape| match &self.levels[..] {
            [] => !self.quick || shape.label == "raid5",
            levels => levels.iter().any(|level| level == shape.label),
        };
        Shape::ALL.into_iter().filter(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_select_shapes() {
        let parse = |arguments: &'static [&'static str]| Options::from_arguments(arguments.iter().map(OsString::from));
        let labels = |options: Options| options.shapes().map(|shape| shape.label).collect::<Vec<_>>();
        assert_eq!(labels(parse(&["--list", "--quick"]).unwrap().unwrap()), ["raid5"]);
        assert_eq!(labels(parse(&["--list", "--level", "journal"]).unwrap().unwrap()), ["journal"]);
        assert_eq!(labels(parse(&["--list"]).unwrap().unwrap()).len(), Shape::ALL.len());
        assert!(parse(&["--level", "raid7"]).unwrap_err().contains("raid7"));
    }
}
