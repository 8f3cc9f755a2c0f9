//! The command line.

use crate::shape::Shape;
use stage::options::{Words, drawn, library, must_be_built};
use std::{ffi::OsString, path::PathBuf};

pub(crate) const HELP: &str = "\
cxlraid-operator [OPTIONS]

Arrays are filled, stopped and damaged on as many members as their level bears: files of .cxlraid and backing files deleted, cut, overwritten, replaced by others, exchanged; members emptied, swapped, copied over others,
put back from older copies, used apart in halves; and, where mounting is permitted, file systems of members made read-only, unmounted, full. Then they are read, written, mended and read again, and compared with a plain directory.

  --cases N       how many cases (1000); 10000 with three at a time take half an hour
  --seed S        of the first case, the next have the numbers behind it (else drawn, and printed)
  --level L       only arrays of this label: raid1, raid1-3, raid4, raid5, raid6, raid10, raid01,
                  journal, journal6, apart, apart1; may be given several times
  --only WORD     only damages whose name begins with this word; may be given several times
  --quick         for make test: 100 cases from seed 1
  --jobs N        cases at a time (2)
  --lib PATH      libcxlraid.so (else CXLRAID_LIB, else beside this program)
  --keep          leave the directories of failed cases and say where they are";

const CASES: u64 = 1000;
const CASES_QUICK: u64 = 100;

/// What is asked for.
#[derive(Debug)]
pub(crate) struct Options {
    /// Labels of shapes. Empty: all.
    levels: Vec<String>,
    /// Beginnings of names of damages. Empty: all.
    pub(crate) only: Vec<String>,
    pub(crate) case_count: u64,
    pub(crate) seed: u64,
    pub(crate) jobs: usize,
    pub(crate) library: PathBuf,
    /// The operator's command, beside the library.
    pub(crate) command: PathBuf,
    pub(crate) keep: bool,
}

impl Options {
    /// None: help is asked for.
    pub(crate) fn from_arguments(arguments: impl Iterator<Item = OsString> + 'static) -> Result<Option<Self>, String> {
        let (mut case_count, mut seed, mut quick) = (None, None, false);
        let mut options = Self {
            levels: Vec::new(),
            only: Vec::new(),
            case_count: 0,
            seed: 0,
            jobs: 2,
            library: library(),
            command: PathBuf::new(),
            keep: false,
        };
        let mut words = Words::new(arguments, HELP);
        while let Some(word) = words.next_word() {
            match word.as_str() {
                "--cases" => case_count = Some(words.number()?),
                "--seed" => seed = Some(words.number()?),
                "--jobs" => options.jobs = words.number()?,
                "--only" => options.only.push(words.value()?),
                "--level" => {
                    let level = words.value()?;
                    if Shape::ALL.iter().all(|shape| shape.label != level) {
                        return Err(format!("unknown: {level}; known are {}", Shape::ALL.map(|shape| shape.label).join(", ")));
                    }
                    options.levels.push(level);
                }
                "--quick" => quick = true,
                "--lib" => options.library = words.value()?.into(),
                "--keep" => options.keep = true,
                "--help" | "-h" => return Ok(None),
                _ => return Err(words.unknown()),
            }
        }
        options.case_count = case_count.unwrap_or(if quick { CASES_QUICK } else { CASES });
        options.seed = seed.unwrap_or_else(|| if quick { 1 } else { drawn() });
        options.library = std::path::absolute(&options.library).map_err(|error| error.to_string())?;
        options.command = options.library.with_file_name("cxlraid");
        Ok(Some(options))
    }

    /// Whether arrays of this label are asked for.
    pub(crate) fn wants(&self, label: &str) -> bool {
        self.levels.is_empty() || self.levels.iter().any(|level| level == label)
    }

    pub(crate) fn check_library(&self) -> Result<(), String> {
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
    fn what_is_asked_for_is_done() {
        let options = parse(&["--level", "raid5", "--cases", "10_000", "--seed", "7", "--only", "inodes"]).unwrap();
        assert!(options.wants("raid5") && !options.wants("raid6"));
        assert_eq!((options.case_count, options.seed, options.only.len()), (10_000, 7, 1));
        let options = parse(&["--quick"]).unwrap();
        assert_eq!((options.case_count, options.seed), (CASES_QUICK, 1));
    }

    #[test]
    fn mistakes_are_named() {
        assert!(parse(&["--level", "raid7"]).unwrap_err().contains("raid10"));
        assert!(parse(&["nonsense"]).is_err());
    }
}
