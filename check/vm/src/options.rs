//! The command line.

use crate::Outcome;
use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

pub(crate) const HELP: &str = "\
cxlraid-vm [OPTIONS] [SCENE...]

Runs the scenes whose name contains one of SCENE; all of them without.

  round-trip-ext4, round-trip-xfs   levels 1, 5 and 6 on NVDIMMs: MAP_SYNC, persistence domain, members missing
  cxl                               a CXL memory device as a member beside NVDIMMs
  power-cut-1, -5, -6, -5-journal, -6-journal
                                    images of the NVDIMMs while databases and fio write; each recovered and checked, some
                                    with members lost in the cut where the array bears that

  --images N     power-cut images per scene (3)
  --quick        one image, and of the scenes only round-trip-ext4, cxl and power-cut-6-journal
  --seed N       of the instants of the cuts (from the clock; printed)
  --jobs N       machines at a time (2)
  --build PATH   directory with libcxlraid.so and cxlraid (else the one of this program)
  --dir PATH     where packages, the guest's root and images go (target/vm)
  --keep         leave images and logs of failed scenes and say where they are";

/// What --quick plays.
const QUICK: [&str; 3] = ["round-trip-ext4", "cxl", "power-cut-6-journal"];

/// What is asked for.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) names: Vec<String>,
    pub(crate) images: usize,
    pub(crate) seed: Option<u64>,
    pub(crate) jobs: usize,
    pub(crate) build: PathBuf,
    pub(crate) directory: PathBuf,
    pub(crate) keep: bool,
    pub(crate) help: bool,
}

impl Options {
    pub(crate) fn from_arguments(arguments: impl Iterator<Item = OsString>) -> Outcome<Self> {
        let own = env::current_exe().unwrap_or_default();
        let mut options = Self {
            names: Vec::new(),
            images: 3,
            seed: None,
            jobs: 2,
            build: own.parent().unwrap_or(Path::new(".")).to_owned(),
            directory: PathBuf::from("target/vm"),
            keep: false,
            help: false,
        };
        let mut arguments = arguments.map(|argument| argument.to_string_lossy().into_owned());
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value\n\n{HELP}"));
            match argument.as_str() {
                "--quick" => {
                    options.images = 1;
                    options.names.extend(QUICK.map(str::to_owned));
                }
                "--images" => options.images = number(&argument, &value()?)?,
                "--jobs" => options.jobs = number(&argument, &value()?)?,
                "--seed" => options.seed = Some(number(&argument, &value()?)? as u64),
                "--build" => options.build = value()?.into(),
                "--dir" => options.directory = value()?.into(),
                "--keep" => options.keep = true,
                "--help" | "-h" => options.help = true,
                option if option.starts_with('-') => return Err(format!("unknown option {option}\n\n{HELP}")),
                name => options.names.push(name.to_owned()),
            }
        }
        options.directory = std::path::absolute(&options.directory).map_err(|error| error.to_string())?;
        Ok(options)
    }

    /// Whether a scene of this name is wanted.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|part| name.contains(part.as_str()))
    }
}

fn number(option: &str, value: &str) -> Outcome<usize> {
    value.parse().ok().filter(|&number| number > 0).ok_or_else(|| format!("{option} needs a number above zero"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Outcome<Options> {
        Options::from_arguments(arguments.iter().map(OsString::from))
    }

    #[test]
    fn scenes_and_numbers_are_understood() {
        let options = parse(&["cut", "--images", "9", "--seed", "5"]).unwrap();
        assert!(options.wants("power-cut-5") && !options.wants("cxl"));
        assert_eq!((options.images, options.seed, options.jobs), (9, Some(5), 2));
        assert!(parse(&[]).unwrap().wants("cxl"));
        let options = parse(&["--quick"]).unwrap();
        assert!(options.images == 1 && options.wants("cxl") && !options.wants("power-cut-1"));
    }

    #[test]
    fn what_is_not_understood_is_said() {
        assert!(parse(&["--images", "0"]).unwrap_err().contains("above zero"));
        assert!(parse(&["--seed"]).unwrap_err().starts_with("--seed needs a value"));
        assert!(parse(&["--bogus"]).unwrap_err().starts_with("unknown option --bogus"));
    }
}
