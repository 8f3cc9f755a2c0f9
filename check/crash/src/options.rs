//! The command line.

use crate::case::{CHUNKS, Journal, LEVELS, PLATFORMS, Shape};
use crate::record::Platform;
use crate::workload::NAMES;
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) const HELP: &str = "\
cxlraid-crash [OPTIONS]

Records runs of the engine store by store, lets it recover from what the members may hold after a crash at any instant, and compares what
comes back with a model. A failure prints what repeats it.

  --quick           a selection that ends within a minute; at least 5000 states, unless other options select cases
  --mutations       takes every flush and fence of the source out in turn: each must make a state come back wrong. Chooses the runs by itself unless
                    options name them; fails if a line is not seen, or not reached
  --site F:L        with --mutations: this line only; names no runs, nor does --jobs
  --recoveries N    with --mutations: of so many crashes in each run the recovery is recorded (2)
  --states N        states per case at most (2000)
  --seed S          of samples and of the order of threads (from the clock; printed)
  --level L         0, 1, 4, 5, 6, 01 or 10; may be given several times, as may the following
  --chunk C         64, 4096, 65536
  --platform P      adr: caches are lost with the power; eadr: they are flushed
  --workload W      see `--list`
  --journal         arrays with a journal on members: each write is old or new as a whole, also with a member lost
  --journal-elsewhere
                    the same with a journal on a device of its own
  --no-journal      arrays without one
  --sums            arrays whose blocks have checksums: redundant levels, chunks of 4096 (and 65536 if named)
  --no-sums         arrays without
  --again           only recoveries: each is recorded in its turn, crashes in it are recovered from
  --jobs N          cases at the same time (number of processors)
  --list            names the workloads
  --show            prints the events of the recorded runs instead of recovering from them";

/// What is asked for.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) quick: bool,
    pub(crate) mutations: bool,
    pub(crate) show: bool,
    /// Whether options other than `--quick` leave cases or states out.
    pub(crate) selects_cases: bool,
    /// Whether the runs were chosen by options.
    pub(crate) names_runs: bool,
    pub(crate) site: Option<String>,
    pub(crate) list: bool,
    pub(crate) help: bool,
    pub(crate) again: bool,
    pub(crate) recoveries: u64,
    pub(crate) journals: Vec<Journal>,
    /// With sums, without, or both.
    pub(crate) sums: Vec<bool>,
    pub(crate) states_max: usize,
    pub(crate) seed: u64,
    pub(crate) jobs: usize,
    pub(crate) levels: Vec<usize>,
    pub(crate) chunks: Vec<u64>,
    pub(crate) platforms: Vec<Platform>,
    pub(crate) workloads: Vec<&'static str>,
}

impl Options {
    pub(crate) fn from_arguments(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            quick: false,
            mutations: false,
            show: false,
            selects_cases: false,
            names_runs: false,
            site: None,
            list: false,
            help: false,
            again: false,
            recoveries: 2,
            journals: Vec::new(),
            sums: Vec::new(),
            states_max: 2000,
            seed: SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64 >> 10),
            jobs: std::thread::available_parallelism().map_or(1, usize::from),
            levels: Vec::new(),
            chunks: Vec::new(),
            platforms: Vec::new(),
            workloads: Vec::new(),
        };
        while let Some(argument) = arguments.next() {
            options.names_runs |= !matches!(argument.as_str(), "--mutations" | "--site" | "--jobs");
            options.selects_cases |= matches!(
                argument.as_str(),
                "--level"
                    | "--chunk"
                    | "--platform"
                    | "--workload"
                    | "--journal"
                    | "--journal-elsewhere"
                    | "--no-journal"
                    | "--sums"
                    | "--no-sums"
                    | "--again"
                    | "--states"
            );
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value\n\n{HELP}"));
            match argument.as_str() {
                "--quick" => options.quick = true,
                "--mutations" => options.mutations = true,
                "--show" => options.show = true,
                "--sums" => options.sums.push(true),
                "--no-sums" => options.sums.push(false),
                "--again" => options.again = true,
                "--journal" => options.journals.push(Journal::Members),
                "--journal-elsewhere" => options.journals.push(Journal::Elsewhere),
                "--no-journal" => options.journals.push(Journal::None),
                "--list" => options.list = true,
                "--help" | "-h" => options.help = true,
                "--states" => options.states_max = number(&argument, &value()?)? as usize,
                "--recoveries" => options.recoveries = number(&argument, &value()?)?,
                "--site" => options.site = Some(value()?),
                "--seed" => options.seed = number(&argument, &value()?)?,
                "--jobs" => options.jobs = number(&argument, &value()?)?.max(1) as usize,
                "--level" => {
                    options.levels.push(place(&argument, &value()?, LEVELS.iter().map(|(name, ..)| (*name).to_owned()))?)
                }
                "--chunk" => options.chunks.push(CHUNKS[place(&argument, &value()?, CHUNKS.iter().map(u64::to_string))?]),
                "--platform" => {
                    let names = PLATFORMS.iter().map(|(name, _)| (*name).to_owned());
                    options.platforms.push(PLATFORMS[place(&argument, &value()?, names)?].1);
                }
                "--workload" => {
                    options.workloads.push(NAMES[place(&argument, &value()?, NAMES.iter().map(|name| (*name).to_owned()))?]);
                }
                other => return Err(format!("unknown argument {other}\n\n{HELP}")),
            }
        }
        options.fill_in();
        Ok(options)
    }

    /// What was not named: everything.
    fn fill_in(&mut self) {
        if self.journals.is_empty() {
            self.journals = vec![Journal::None, Journal::Members, Journal::Elsewhere];
        }
        if self.levels.is_empty() {
            let known = |name: &str| LEVELS.iter().position(|(level, ..)| *level == name);
            // Lines of the source are the same ones on other levels with copies, and with parity.
            self.levels = if self.mutations {
                ["1", "5"].iter().filter_map(|name| known(name)).collect()
            } else {
                (0..LEVELS.len()).collect()
            };
        }
        if self.sums.is_empty() {
            self.sums = if self.mutations { vec![false] } else { vec![false, true] };
        }
        if self.chunks.is_empty() && self.sums == [true] {
            self.chunks = vec![array::sums::SUM_BLOCK_BYTES];
        }
        if self.chunks.is_empty() {
            self.chunks = if self.mutations { CHUNKS[..2].to_vec() } else { CHUNKS.to_vec() };
        }
        if self.platforms.is_empty() {
            self.platforms = PLATFORMS.iter().map(|&(_, platform)| platform).collect();
        }
        if self.workloads.is_empty() {
            self.workloads = NAMES.to_vec();
        }
    }

    /// Every shape asked for. RAID 1 has no chunks.
    pub(crate) fn shapes(&self) -> Vec<Shape> {
        let shape = |journal, level: usize, chunk_bytes, sums| {
            let (_, level, member_count) = LEVELS[level];
            Shape { level, member_count, chunk_bytes, journal, sums }
        };
        let of = |sums: bool| {
            let all = self.journals.iter().flat_map(move |&journal| {
                self.levels
                    .iter()
                    .flat_map(move |&level| self.chunks.iter().map(move |&chunk| shape(journal, level, chunk, sums)))
            });
            let all = all.filter(|shape| !sums || shape.can_have_sums()).collect::<Vec<_>>();
            let first = all.first().map(|shape| shape.chunk_bytes);
            all.into_iter().filter(move |shape| shape.level.has_chunks() || Some(shape.chunk_bytes) == first)
        };
        self.sums.iter().flat_map(|&sums| of(sums)).collect()
    }
}

fn number(argument: &str, text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{argument} {text}: not a number"))
}

fn place(argument: &str, text: &str, mut names: impl Iterator<Item = String> + Clone) -> Result<usize, String> {
    let all: Vec<String> = names.clone().collect();
    names.position(|name| name == text).ok_or_else(|| format!("{argument} {text}: not one of {}", all.join(", ")))
}
