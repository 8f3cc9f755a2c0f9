//! The command line.

use crate::shape::Shape;
use stage::options::{Words, drawn, library, must_be_built};
use std::{ffi::OsString, path::PathBuf};

pub(crate) const HELP: &str = "\
cxlraid-attack [OPTIONS]

A user without rights does what the kernel lets him to his own files on the members of an array, to /dev/shm, to attributes and names, while root and another user
use the array, lose members of it, recover it, and add and retrieve files. Nothing outside the array and nothing of the others may be read, changed or created, and nobody may hang.
It takes root, to be three users.

  --actions N     the attacker's actions, over all rounds (20000); 100000 take some minutes
  --seed S        of the first round, the next have the numbers behind it (else drawn, and printed)
  --level L       only arrays of this label: raid1, raid5, raid6, raid10, journal; may be given several times
  --forge         with actions that forge the attribute which says whose a backing file is
  --outages       judge also whether members go out by what the attacker does; else they are counted, and the round ends
  --quick         for make test: 12000 actions from seed 1
  --lib PATH      libcxlraid.so (else CXLRAID_LIB, else beside this program)
  --keep          stop at the first round that fails, leave its directories and say where they are";

const ACTIONS: u64 = 20_000;
const ACTIONS_QUICK: u64 = 12_000;

/// What is asked for.
#[derive(Debug)]
pub(crate) struct Options {
    /// Labels of shapes. Empty: all.
    levels: Vec<String>,
    pub(crate) action_count: u64,
    pub(crate) seed: u64,
    pub(crate) forges: bool,
    pub(crate) outages: bool,
    pub(crate) library: PathBuf,
    /// The operator's command, beside the library.
    pub(crate) command: PathBuf,
    pub(crate) keep: bool,
}

impl Options {
    /// None: help is asked for.
    pub(crate) fn from_arguments(arguments: impl Iterator<Item = OsString> + 'static) -> Result<Option<Self>, String> {
        let (mut action_count, mut seed, mut quick) = (None, None, false);
        let mut options = Self {
            levels: Vec::new(),
            action_count: 0,
            seed: 0,
            forges: false,
            outages: false,
            library: library(),
            command: PathBuf::new(),
            keep: false,
        };
        let mut words = Words::new(arguments, HELP);
        while let Some(word) = words.next_word() {
            match word.as_str() {
                "--actions" => action_count = Some(words.number()?),
                "--seed" => seed = Some(words.number()?),
                "--level" => {
                    let level = words.value()?;
                    if Shape::ALL.iter().all(|shape| shape.label != level) {
                        return Err(format!("unknown: {level}; known are {}", Shape::ALL.map(|shape| shape.label).join(", ")));
                    }
                    options.levels.push(level);
                }
                "--forge" => options.forges = true,
                "--outages" => options.outages = true,
                "--quick" => quick = true,
                "--lib" => options.library = words.value()?.into(),
                "--keep" => options.keep = true,
                "--help" | "-h" => return Ok(None),
                _ => return Err(words.unknown()),
            }
        }
        options.action_count = action_count.unwrap_or(if quick { ACTIONS_QUICK } else { ACTIONS });
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
        let options = parse(&["--level", "raid5", "--actions", "100_000", "--seed", "7", "--lib", "/x/lib.so"]).unwrap();
        assert!(options.wants("raid5") && !options.wants("raid6") && !options.forges);
        assert_eq!((options.action_count, options.seed), (100_000, 7));
        assert_eq!(options.command, std::path::Path::new("/x/cxlraid"));
        let options = parse(&["--quick", "--forge"]).unwrap();
        assert_eq!((options.action_count, options.seed, options.forges), (ACTIONS_QUICK, 1, true));
    }

    #[test]
    fn mistakes_are_named() {
        assert!(parse(&["--level", "raid7"]).unwrap_err().contains("raid10"));
        assert!(parse(&["nonsense"]).is_err());
        assert!(parse(&["--actions", "x"]).is_err());
    }
}
