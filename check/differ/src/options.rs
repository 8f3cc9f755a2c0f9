//! The command line.

use crate::{program::draw_only, run::Shape};
use stage::options::{Words, drawn, library, must_be_built};
use std::{ffi::OsString, path::PathBuf};

pub(crate) const HELP: &str = "\
cxlraid-differ [OPTIONS]

Runs random programs of system calls on arrays and on a plain directory, and compares what each call answers and stores, and what is left.
It takes root: programs drop their rights on the way.

  --calls N       how many calls on each array (40000); 1000000 take some minutes
  --seed S        of the first program, the next have the numbers behind it (else drawn, and printed)
  --level L       only arrays of this label: raid1, raid5, raid6, degraded, journal, mount; may be given several times
  --quick         for make test: 4000 calls on each array from seed 1
  --shown N       how many classes of differences are cut down and shown of each array (12); all are counted
  --steps A,B,..  only these steps of the one program --seed
  --only A,B,..   draws programs from these calls only, by the names of the table; a seed's program is another one then
  --lib PATH      libcxlraid.so (else CXLRAID_LIB, else beside this program)
  --keep          leave the directories and say where they are";

const CALLS: u64 = 40_000;
const CALLS_QUICK: u64 = 4_000;
const SHOWN: usize = 12;

/// What is asked for.
pub(crate) struct Options {
    pub(crate) calls: u64,
    pub(crate) seed: u64,
    /// Labels of shapes. Empty: all.
    pub(crate) levels: Vec<String>,
    /// The steps of one program. Empty: all of all programs.
    pub(crate) steps: Vec<usize>,
    /// Classes of differences that are cut down and shown of each array.
    pub(crate) shown: usize,
    pub(crate) library: PathBuf,
    pub(crate) keep: bool,
}

impl Options {
    /// None: help is asked for.
    pub(crate) fn from_arguments(arguments: impl Iterator<Item = OsString> + 'static) -> Result<Option<Self>, String> {
        let (mut calls, mut seed, mut quick) = (None, None, false);
        let mut options =
            Self { calls: 0, seed: 0, levels: Vec::new(), steps: Vec::new(), shown: SHOWN, library: library(), keep: false };
        let mut words = Words::new(arguments, HELP);
        while let Some(word) = words.next_word() {
            match word.as_str() {
                "--calls" => calls = Some(words.number()?),
                "--seed" => seed = Some(words.number()?),
                "--level" => options.levels.push(known(words.value()?)?),
                "--quick" => quick = true,
                "--shown" => options.shown = words.number()?,
                "--steps" => {
                    let text = words.value()?;
                    let steps: Result<Vec<usize>, _> = text.split(',').map(str::parse).collect();
                    options.steps = steps.map_err(|_| format!("--steps: {text}: numbers with commas between them"))?;
                }
                "--only" => draw_only(words.value()?.split(',').map(str::to_owned).collect())?,
                "--lib" => options.library = words.value()?.into(),
                "--keep" => options.keep = true,
                "--help" | "-h" => return Ok(None),
                _ => return Err(words.unknown()),
            }
        }
        options.calls = calls.unwrap_or(if quick { CALLS_QUICK } else { CALLS });
        options.seed = seed.unwrap_or_else(|| if quick { 1 } else { drawn() });
        options.library = std::path::absolute(&options.library).map_err(|error| error.to_string())?;
        must_be_built(&options.library, "cxlraid-preload")?;
        Ok(Some(options))
    }

    pub(crate) fn wants(&self, label: &str) -> bool {
        self.levels.is_empty() || self.levels.iter().any(|level| level == label)
    }
}

fn known(word: String) -> Result<String, String> {
    let labels: Vec<&str> = Shape::ALL.iter().map(|shape| shape.label).collect();
    if labels.contains(&word.as_str()) { Ok(word) } else { Err(format!("unknown: {word}; known are {}", labels.join(", "))) }
}
