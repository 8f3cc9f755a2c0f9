//! The command line of `cxlraid-trees`.

use crate::{scenes, shape::Shape};
use stage::options::{Words, drawn, is_option, library, must_be_built};
use std::{ffi::OsString, path::PathBuf};

pub(crate) const HELP: &str = "\
cxlraid-trees [OPTIONS] [SCENE...]

Runs trees of processes on arrays that lose members meanwhile, and compares the results with those of the same processes on a plain
directory.

  --runs N        how many runs (200)
  --seed S        seed of the first run; that of each next run is one more (drawn and printed unless given)
  --level L       only arrays of the shape with this label: raid1, raid5, raid5/64K, raid6, raid10,
                  journal; may be given several times
  --quick         as make test runs it: 42 runs from seed 1 unless --runs and --seed say otherwise, and no members that must be mounted
  --jobs N        runs at a time (2)
  --lib PATH      libcxlraid.so (else CXLRAID_LIB, else beside this program)
  --list          names of the scenes and what they are about
  --keep          leave the directories of failed runs and say where they are";

const RUNS: u64 = 200;
const RUNS_QUICK: u64 = 42;
const JOBS: usize = 2;

/// What the command line asks for.
#[derive(Debug)]
pub(crate) struct Options {
    /// Names of the wanted scenes; if empty, all are wanted.
    pub(crate) scenes: Vec<String>,
    /// Labels of the wanted shapes; if empty, all are wanted.
    pub(crate) levels: Vec<String>,
    pub(crate) runs: u64,
    pub(crate) seed: u64,
    /// Runs at a time.
    pub(crate) jobs: usize,
    /// Whether some runs mount a file system for each member, and then shut it down, make it
    /// read-only or fill it. That needs the right to mount.
    pub(crate) mounts: bool,
    pub(crate) library: PathBuf,
    /// Path of `cxlraid`, the operator's command, in the library's directory.
    pub(crate) command: PathBuf,
    pub(crate) list: bool,
    pub(crate) keep: bool,
}

impl Options {
    /// Reads the arguments. None if they ask for help. The error is the message for the user.
    pub(crate) fn from_arguments(arguments: impl Iterator<Item = OsString> + 'static) -> Result<Option<Self>, String> {
        let (mut runs, mut seed, mut quick) = (None, None, false);
        let mut options = Self {
            scenes: Vec::new(),
            levels: Vec::new(),
            runs: 0,
            seed: 0,
            jobs: JOBS,
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
                "--level" => {
                    options.levels.push(one_of("level", words.value()?, Shape::ALL.iter().map(|shape| shape.label))?);
                }
                "--quick" => quick = true,
                // `--jobs 0` counts as `--jobs 1`.
                "--jobs" => options.jobs = words.number::<usize>()?.max(1),
                "--lib" => options.library = words.value()?.into(),
                "--list" => options.list = true,
                "--keep" => options.keep = true,
                "--help" | "-h" => return Ok(None),
                option if is_option(option) => return Err(words.unknown()),
                _ => options.scenes.push(one_of("scene", word, scenes::SCENES.iter().map(|scene| scene.name))?),
            }
        }
        options.runs = runs.unwrap_or(if quick { RUNS_QUICK } else { RUNS });
        options.mounts = !quick;
        options.seed = seed.unwrap_or_else(|| if quick { 1 } else { drawn() });
        options.library = std::path::absolute(&options.library).map_err(|error| error.to_string())?;
        options.command = options.library.with_file_name("cxlraid");
        Ok(Some(options))
    }

    /// Whether the scene called `name` is wanted.
    pub(crate) fn wants_scene(&self, name: &str) -> bool {
        self.scenes.is_empty() || self.scenes.iter().any(|scene| scene == name)
    }

    /// Whether arrays of the shape with this label are wanted.
    pub(crate) fn wants_level(&self, label: &str) -> bool {
        self.levels.is_empty() || self.levels.iter().any(|level| level == label)
    }

    /// An error that says how to build the library or the command, if one of them is missing.
    pub(crate) fn check_built(&self) -> Result<(), String> {
        must_be_built(&self.library, "cxlraid-preload")?;
        must_be_built(&self.command, "cxlraid-cli")
    }
}

/// `word` if it is one of `names`, which are names of a `what`; else an error that lists them.
fn one_of<'a>(what: &str, word: String, mut names: impl Iterator<Item = &'a str> + Clone) -> Result<String, String> {
    if names.clone().any(|name| name == word) {
        return Ok(word);
    }
    let first = names.next().unwrap_or_default().to_owned();
    Err(format!("unknown {what} {word}; there are {}", names.fold(first, |all, name| format!("{all}, {name}"))))
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
    fn the_help_tells_the_defaults() {
        for default in [format!("({RUNS})"), format!(": {RUNS_QUICK} runs"), format!("({JOBS})")] {
            assert!(HELP.contains(&default), "{default}");
        }
        Shape::ALL.iter().for_each(|shape| assert!(HELP.contains(shape.label), "{}", shape.label));
    }

    #[test]
    fn mistakes_are_named() {
        assert!(parse(&["--level", "raid7"]).unwrap_err().starts_with("unknown level raid7; there are raid1, "));
        let first = scenes::SCENES[0].name;
        assert!(parse(&["nonsense"]).unwrap_err().starts_with(&format!("unknown scene nonsense; there are {first}, ")));
        assert!(parse(&["--runs", "x"]).is_err());
    }
}
