//! The command line.

use crate::{scenes, shape::Shape};
use stage::options::{Words, drawn, is_option, library, must_be_built};
use std::{ffi::OsString, path::PathBuf};

pub(crate) const HELP: &str = "\
cxlraid-trees [OPTIONS] [SCENE...]

Runs trees of processes on arrays that lose members meanwhile, and compares what they do with the same on a plain directory.

  --runs N        how many runs (200); 2000 take ten minutes
  --seed S        of the first run, the next have the numbers behind it (else drawn, and printed)
  --level L       only arrays of this label: raid1, raid5, raid6, raid10, journal; may be given several times
  --quick         for make test: 42 runs from seed 1, without those that need the right to mount
  --jobs N        runs at a time (2)
  --lib PATH      libcxlraid.so (else CXLRAID_LIB, else beside this program)
  --list          names of the scenes and what they are about
  --keep          leave the directories of failed runs and say where they are";

const RUNS: u64 = 200;
const RUNS_QUICK: u64 = 42;

/// What is asked for.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) scenes: Vec<String>,
    /// Labels of shapes. Empty: all.
    pub(crate) levels: Vec<String>,
    pub(crate) runs: u64,
    pub(crate) seed: u64,
    pub(crate) jobs: usize,
    /// Whether members are file systems of their own, too, that are shut down, read-only or full.
    pub(crate) mounts: bool,
    pub(crate) library: PathBuf,
    /// The operator's command, beside the library.
    pub(crate) command: PathBuf,
    pub(crate) list: bool,
    pub(crate) keep: bool,
}

impl Options {
    /// None: help is asked for.
    pub(crate) fn from_arguments(arguments: impl Iterator<Item = OsString> + 'static) -> Result<Option<Self>, String> {
        let (mut runs, mut seed, mut quick) = (None, None, false);
        let mut options = Self {
            scenes: Vec::new(),
            levels: Vec::new(),
            runs: 0,
            seed: 0,
            jobs: 2,
            mounts: true,
            library: library(),
            command: PathBuf::new(),
            list: false,
            keep: false,
        };
        let mut words = Words::new(arguments, HELP);
        while let Some(word) = words.next_word() {
            match word.as_str() {
                "--runs" => runs = Some(words.number()?),
                "--seed" => seed = Some(words.number()?),
                "--level" => options.levels.push(known(words.value()?, Shape::ALL.iter().map(|shape| shape.label))?),
                "--quick" => quick = true,
                "--jobs" => options.jobs = words.number::<usize>()?.max(1),
                "--lib" => options.library = words.value()?.into(),
                "--list" => options.list = true,
                "--keep" => options.keep = true,
                "--help" | "-h" => return Ok(None),
                option if is_option(option) => return Err(words.unknown()),
                _ => options.scenes.push(known(word, scenes::SCENES.iter().map(|scene| scene.name))?),
            }
        }
        options.runs = runs.unwrap_or(if quick { RUNS_QUICK } else { RUNS });
        options.mounts = !quick;
        options.seed = seed.unwrap_or_else(|| if quick { 1 } else { drawn() });
        options.library = std::path::absolute(&options.library).map_err(|error| error.to_string())?;
        options.command = options.library.with_file_name("cxlraid");
        Ok(Some(options))
    }

    /// Whether the command line asks for a scene.
    pub(crate) fn wants_scene(&self, name: &str) -> bool {
        self.scenes.is_empty() || self.scenes.iter().any(|scene| scene == name)
    }

    /// Whether it asks for arrays of this label.
    pub(crate) fn wants_level(&self, label: &str) -> bool {
        self.levels.is_empty() || self.levels.iter().any(|level| level == label)
    }

    pub(crate) fn check_library(&self) -> Result<(), String> {
        must_be_built(&self.library, "cxlraid-preload")?;
        must_be_built(&self.command, "cxlraid-cli")
    }
}

fn known<'a>(word: String, mut names: impl Iterator<Item = &'a str> + Clone) -> Result<String, String> {
    if names.clone().any(|name| name == word) {
        return Ok(word);
    }
    let first = names.next().unwrap_or_default().to_owned();
    Err(format!("unknown: {word}; known are {}", names.fold(first, |all, name| format!("{all}, {name}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Options, String> {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        Options::from_arguments(arguments.into_iter()).map(|options| options.expect("no help was asked for"))
    }

    #[test]
    fn scenes_and_levels_select() {
        let options = parse(&["--level", "raid5", "git", "--runs", "2_000", "--seed", "7", "--lib", "/x/lib.so"]).unwrap();
        assert!(options.wants_scene("git") && !options.wants_scene("make"));
        assert!(options.wants_level("raid5") && !options.wants_level("raid6"));
        assert_eq!((options.runs, options.seed), (2000, 7));
        assert_eq!(options.command, std::path::Path::new("/x/cxlraid"));
        let options = parse(&["--quick"]).unwrap();
        assert_eq!((options.runs, options.seed, options.mounts), (RUNS_QUICK, 1, false));
    }

    #[test]
    fn mistakes_are_named() {
        assert!(parse(&["--level", "raid7"]).unwrap_err().contains("raid7"));
        assert!(parse(&["nonsense"]).unwrap_err().contains("shell"));
        assert!(parse(&["--runs", "x"]).is_err());
    }
}
