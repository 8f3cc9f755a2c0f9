//! The command line.

use crate::shape::{self, CHUNKS, Case, LEVELS, MODES, SCENARIOS};
use std::path::PathBuf;

pub(crate) const HELP: &str = "\
cxlraid-fsx [OPTIONS]

Random operations on files of arrays of every level, against a model. A failure prints what repeats it.

  --operations N  per level, divided among its cases (1000000)
  --seed S        of the random numbers (from the clock; printed)
  --level L       0, 1, 4, 5, 6, 01 or 10; may be given several times, as may the following
  --chunk C       64, 4096, 65536
  --mode M        single: one process and an exact model; threads; processes: some are killed; doors: processes too, every other
                  one through a mount (needs root and /dev/fuse);
                  stores: processes store to one mapped file, some are killed
  --scenario S    healthy; missing: without a member from the start; cut: one loses its memory
  --no-maps       nothing is stored through mappings: not in the single mode, and without the stores mode
  --journal       on arrays with a journal on their members
  --quick         12000 operations per level; one case per level of threads, of processes, of doors and of a journal, chosen by the seed, and all of the others
  --kills N       only the mode processes, one case per level without a journal and one with, until N of them were killed in each
  --plain         the single mode on a plain directory: checks the model itself
  --lib PATH      libcxlraid.so (else CXLRAID_LIB, else beside this program)
  --keep          leave the directories of a failed case and say where they are";

/// What is asked for.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) operations: u64,
    pub(crate) seed: u64,
    pub(crate) cases: Vec<Case>,
    pub(crate) plain: bool,
    /// Stores through mappings, in the single mode as well.
    pub(crate) maps: bool,
    /// So many processes are killed in each case, however many operations that takes.
    pub(crate) kills: Option<u64>,
    pub(crate) library: PathBuf,
    pub(crate) keep: bool,
}

impl Options {
    /// None: help is asked for.
    pub(crate) fn from_arguments(arguments: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let library = stage::options::library();
        let (operations, seed, cases) = (1_000_000, clock(), Vec::new());
        let mut options = Self { operations, seed, cases, plain: false, maps: true, kills: None, library, keep: false };
        let (mut levels, mut chunks, mut modes, mut scenarios) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut arguments, mut quick, mut journal, mut count) = (arguments, false, false, None);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value\n\n{HELP}"));
            match argument.as_str() {
                "--operations" => count = Some(number(&argument, &value()?)?),
                "--seed" => options.seed = number(&argument, &value()?)?,
                "--level" => levels.push(one_of(&argument, &value()?, &LEVELS, |level| level.name.to_owned())?),
                "--chunk" => chunks.push(one_of(&argument, &value()?, &CHUNKS, u64::to_string)?),
                "--mode" => modes.push(one_of(&argument, &value()?, &MODES, |mode| mode.name().to_owned())?),
                "--scenario" => {
                    scenarios.push(one_of(&argument, &value()?, &SCENARIOS, |scenario| scenario.name().to_owned())?);
                }
                "--kills" => options.kills = Some(number(&argument, &value()?)?),
                "--quick" => quick = true,
                "--journal" => journal = true,
                "--no-maps" => options.maps = false,
                "--plain" => options.plain = true,
                "--lib" => options.library = value()?.into(),
                "--keep" => options.keep = true,
                "--help" | "-h" => return Ok(None),
                other => return Err(format!("unknown argument {other}\n\n{HELP}")),
            }
        }
        if modes.is_empty() {
            modes.extend(MODES.into_iter().filter(|&mode| options.maps || mode != shape::Mode::Stores));
        }
        if options.kills.is_some() {
            (modes, scenarios) = (vec![shape::Mode::Processes], vec![shape::Scenario::Healthy]);
        }
        options.cases = make_cases(
            &or_all(levels, &LEVELS),
            &or_all(chunks, &CHUNKS),
            &or_all(modes, &MODES),
            &or_all(scenarios, &SCENARIOS),
        );
        if quick || options.kills.is_some() {
            options.cases = quick_cases(&options.cases, options.seed);
        }
        options.cases.iter_mut().for_each(|case| case.journal |= journal);
        options.operations = count.unwrap_or(if quick { 12_000 } else { 1_000_000 });
        if options.cases.is_empty() { Err("the level cannot bear that".to_owned()) } else { Ok(Some(options)) }
    }
}

fn make_cases(levels: &[shape::Level], chunks: &[u64], modes: &[shape::Mode], scenarios: &[shape::Scenario]) -> Vec<Case> {
    let mut cases = Vec::new();
    for &level in levels {
        for &scenario in scenarios {
            for &mode in modes {
                cases.extend(chunks.iter().map(|&chunk| Case { level, chunk, mode, scenario, journal: false }));
            }
        }
    }
    cases.retain(Case::is_sensible);
    cases
}

/// One case per level of the modes in which many work, which take longest, and one with a journal;
/// all of the others.
fn quick_cases(cases: &[Case], seed: u64) -> Vec<Case> {
    let mut rng = oracle::Rng::new(seed);
    let mut chosen = Vec::new();
    for (level, mode) in LEVELS.into_iter().flat_map(|level| MODES.map(|mode| (level, mode))) {
        let fitting: Vec<Case> = cases.iter().filter(|case| case.level == level && case.mode == mode).copied().collect();
        if !matches!(mode, shape::Mode::Threads | shape::Mode::Processes | shape::Mode::Doors) {
            chosen.extend(fitting);
        } else if !fitting.is_empty() {
            chosen.push(fitting[rng.below(fitting.len() as u64) as usize]);
        }
    }
    for level in LEVELS {
        let fitting: Vec<Case> = cases.iter().filter(|case| case.level == level).copied().collect();
        if !fitting.is_empty() {
            chosen.push(Case { journal: true, ..fitting[rng.below(fitting.len() as u64) as usize] });
        }
    }
    chosen
}

fn or_all<T: Copy>(asked: Vec<T>, all: &[T]) -> Vec<T> {
    if asked.is_empty() { all.to_vec() } else { asked }
}

fn number(argument: &str, value: &str) -> Result<u64, String> {
    value.replace('_', "").parse().map_err(|_| format!("{argument} needs a number"))
}

fn one_of<T: Copy>(argument: &str, value: &str, all: &[T], name: impl Fn(&T) -> String) -> Result<T, String> {
    let known = || all.iter().map(&name).collect::<Vec<_>>().join(", ");
    all.iter().find(|one| name(one) == value).copied().ok_or_else(|| format!("{argument} {value}: known are {}", known()))
}

fn clock() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |since| since.as_nanos() as u64 % 1_000_000_007)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Options, String> {
        let options = Options::from_arguments(arguments.iter().map(|&argument| argument.to_owned()))?;
        Ok(options.expect("no help was asked for"))
    }

    #[test]
    fn selections_make_cases() {
        let all = parse(&[]).unwrap().cases;
        // RAID 0 has no redundancy to lose, RAID 1 no chunks.
        assert_eq!(all.len(), 5 * 3 * (3 * 3 + 2 + 1) + (3 * 3 + 2 + 1) + 3 * 5);
        let one = parse(&["--level", "5", "--chunk", "64", "--mode", "single", "--scenario", "cut", "--seed", "1_000"]).unwrap();
        assert_eq!((one.cases.len(), one.seed), (1, 1000));
        let quick = parse(&["--quick"]).unwrap().cases;
        assert_eq!(quick.len(), 7 * 4 + 5 * 3 * (3 + 2) + (3 + 2) + 3 * 2);
        assert!(parse(&["--no-maps"]).unwrap().cases.iter().all(|case| case.mode != shape::Mode::Stores));
        assert_eq!(parse(&["--kills", "1000"]).unwrap().cases.len(), 14);
        assert_eq!(one.cases[0].to_string(), "--level 5 --chunk 64 --mode single --scenario cut");
        let journaled = parse(&["--journal", "--level", "1", "--mode", "threads", "--scenario", "healthy"]).unwrap().cases;
        assert_eq!(journaled[0].to_string(), "--level 1 --chunk 65536 --mode threads --scenario healthy --journal");
    }

    #[test]
    fn mistakes_are_named() {
        assert!(parse(&["--level", "7"]).unwrap_err().contains("01"));
        assert!(parse(&["--level", "0", "--scenario", "cut"]).is_err());
        assert!(parse(&["--operations", "many"]).is_err());
        assert!(parse(&["--nonsense"]).unwrap_err().contains("--nonsense"));
    }
}
