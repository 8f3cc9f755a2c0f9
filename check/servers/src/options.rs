//! The command line of `cxlraid-servers`.

use crate::{Outcome, array::Shape};
use stage::options::{Words, is_option, library, must_be_built};
use std::{ffi::OsString, path::PathBuf};

pub(crate) const HELP: &str = "\
cxlraid-servers [OPTIONS] [NAME...]

Runs the cases whose name contains one of NAME; all of them without.

  --level LEVEL   raid1, raid5, raid6, journal (RAID 5 with one) or all; may be given several times (raid5)
  --state STATE   only arrays that begin healthy, or only those that begin with a member missing
  --rounds N      how often each server is killed and started again (3)
  --quick         one round, little data, some cases in one state only: for every test run
  --mount         programs use arrays through a mount, without the library; servers alone unless names are given (needs root)
  --watched       every system call under watch (CXLRAID_DEBUG_SUD): one that concerns the array and comes from an instruction
                  that was not patched is a failure
  --lib PATH      libcxlraid.so (else CXLRAID_LIB, else beside this program)
  --jobs N        cases at a time (1)
  --plain         on a plain directory, without the library: checks the cases themselves
  --list          names of the cases and what they need
  --keep          leave the directories of failed runs and say where they are";

/// Cases that are run through a mount if none is named.
const SERVERS: [&str; 4] = ["sqlite", "postgresql", "mariadb", "redis"];

/// What the command line asks for.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) names: Vec<String>,
    pub(crate) shapes: Vec<Shape>,
    /// The state, "healthy" or "missing", in which the arrays begin; None for both.
    pub(crate) state: Option<String>,
    pub(crate) rounds: usize,
    pub(crate) quick: bool,
    /// The programs use the arrays through a mount instead of the library (`--mount`).
    pub(crate) mounted: bool,
    /// Whether system calls are under watch.
    pub(crate) watched: bool,
    pub(crate) library: PathBuf,
    pub(crate) jobs: usize,
    pub(crate) plain: bool,
    pub(crate) list: bool,
    pub(crate) keep: bool,
}

impl Options {
    /// Reads the arguments. None if they ask for help. The error is the message for the user.
    pub(crate) fn from_arguments(arguments: impl Iterator<Item = OsString> + 'static) -> Outcome<Option<Self>> {
        let mut options = Self {
            names: Vec::new(),
            shapes: Vec::new(),
            state: None,
            rounds: 0,
            quick: false,
            mounted: false,
            watched: false,
            library: library(),
            jobs: 1,
            plain: false,
            list: false,
            keep: false,
        };
        let mut words = Words::new(arguments, HELP);
        while let Some(word) = words.next_word() {
            match word.as_str() {
                "--level" => options.shapes.extend(shapes_of(&words.value()?)?),
                "--state" => options.state = Some(state_of(&words.value()?)?),
                "--rounds" => options.rounds = above_zero(&word, words.number()?)?,
                "--jobs" => options.jobs = above_zero(&word, words.number()?)?,
                "--lib" => options.library = words.value()?.into(),
                "--quick" => options.quick = true,
                "--mount" => options.mounted = true,
                "--watched" => options.watched = true,
                "--plain" => options.plain = true,
                "--list" => options.list = true,
                "--keep" => options.keep = true,
                "--help" | "-h" => return Ok(None),
                option if is_option(option) => return Err(words.unknown()),
                _ => options.names.push(word),
            }
        }
        if options.shapes.is_empty() {
            options.shapes.push(Shape::RAID5);
        }
        if options.plain {
            options.shapes = vec![Shape::PLAIN];
        }
        if options.mounted {
            stage::door::may_mount()?;
            if options.plain || options.watched {
                return Err("--mount: not with --plain or --watched".to_owned());
            }
            if options.names.is_empty() {
                options.names = SERVERS.map(str::to_owned).to_vec();
            }
        }
        if options.rounds == 0 {
            options.rounds = if options.quick { 1 } else { 3 };
        }
        options.library = std::path::absolute(&options.library).map_err(|error| error.to_string())?;
        Ok(Some(options))
    }

    /// Whether a case of this name is wanted.
    pub(crate) fn wants_name(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|part| name.contains(part.as_str()))
    }

    /// Whether runs that begin "healthy" or "missing" are wanted.
    pub(crate) fn wants_state(&self, state: &str) -> bool {
        self.state.as_ref().is_none_or(|wanted| wanted == state)
    }

    /// Everything but plain runs needs the library.
    pub(crate) fn check_library(&self) -> Outcome {
        if self.plain { Ok(()) } else { must_be_built(&self.library, "cxlraid-preload") }
    }
}

fn shapes_of(level: &str) -> Outcome<Vec<Shape>> {
    if level == "all" {
        return Ok(Shape::ALL.to_vec());
    }
    let shape = Shape::ALL.iter().find(|shape| shape.label == level || shape.level == level);
    shape.map(|shape| vec![*shape]).ok_or_else(|| {
        let known: Vec<&str> = Shape::ALL.iter().map(|shape| shape.label).collect();
        format!("unknown level {level}; known are {} and all", known.join(", "))
    })
}

fn state_of(word: &str) -> Outcome<String> {
    match word {
        "healthy" | "missing" => Ok(word.to_owned()),
        _ => Err(format!("unknown state {word}; known are healthy and missing")),
    }
}

fn above_zero(option: &str, number: usize) -> Outcome<usize> {
    if number > 0 { Ok(number) } else { Err(format!("{option} needs a number above zero")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Outcome<Options> {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        Options::from_arguments(arguments.into_iter()).map(|options| options.expect("no help was asked for"))
    }

    #[test]
    fn names_levels_and_states_select() {
        let options = parse(&["--level", "6", "git", "--state", "missing", "--rounds", "7"]).unwrap();
        assert!(options.wants_name("git") && !options.wants_name("redis"));
        assert!(options.wants_state("missing") && !options.wants_state("healthy"));
        assert_eq!((options.shapes[0].label, options.rounds), ("raid6", 7));
        let options = parse(&["--quick"]).unwrap();
        assert!(options.wants_name("redis") && options.wants_state("healthy"));
        assert_eq!((options.shapes[0].label, options.rounds), ("raid5", 1));
        assert_eq!(parse(&["--level", "all"]).unwrap().shapes.len(), 4);
    }

    #[test]
    fn what_is_not_understood_is_said() {
        assert!(parse(&["--level", "raid7"]).unwrap_err().starts_with("unknown level raid7"));
        assert!(parse(&["--rounds", "0"]).unwrap_err().contains("above zero"));
        assert!(parse(&["--lib"]).unwrap_err().starts_with("--lib needs a value"));
        assert!(parse(&["--bogus"]).unwrap_err().starts_with("unknown option --bogus"));
    }
}
