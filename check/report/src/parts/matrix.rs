//! The thesis' figures 3 to 6: fio with calls of 4 KiB, on every configuration.

use super::configurations::{
    Configuration, EXT4, LIBPMEM, MAPPING, NULL, POSIX, Places, RAID1, RAID1_BROKEN, RAID1_JOURNAL, RAID5, RAID5_64K,
    RAID5_BROKEN, RAID5_JOURNAL,
};
use super::{Group, Part, by_turns};
use crate::figure::{Better, Figure, Goal, Kind, Unit};
use crate::fio::{Job, Pattern};
use crate::ground::Ground;
use crate::plan::Plan;
use crate::record::Sample;

const BLOCK_BYTES: u64 = 4096;

const CONFIGURATIONS: [Configuration; 12] =
    [POSIX, LIBPMEM, MAPPING, RAID1, RAID1_JOURNAL, RAID1_BROKEN, RAID5, RAID5_64K, RAID5_JOURNAL, RAID5_BROKEN, EXT4, NULL];

/// The figures 3 to 6.
pub(crate) struct Matrix;

/// The thesis' number of a figure, and what it found.
const fn seed(pattern: Pattern) -> (&'static str, &'static str) {
    match pattern {
        Pattern::Write => (
            "F3",
            "mapping and libpmem were fastest and about equal, close to the 2.14 GiB/s that one thread can write to \
             Optane memory; posix was slower. raid1_broken (two copies) came just behind mapping, raid1 (three copies) \
             was notably slower, RAID 5 slower than RAID 1, raid5_broken faster than raid5, and the journal cost much.",
        ),
        Pattern::Read => (
            "F4",
            "mapping read at the limit of the Optane modules, libpmem below it, posix slowest by far. RAID 5 read \
             slightly faster than RAID 1.",
        ),
        Pattern::RandomWrite => (
            "F5",
            "as with sequential writes, at lower rates: mapping and libpmem stayed at the limit of the memory, posix \
             fell behind more, and raid5_broken lost more than half of its sequential rate.",
        ),
        Pattern::RandomRead => (
            "F6",
            "all configurations read about equally fast, except posix, which was notably slower, and raid5_broken, \
             which computes what is lost.",
        ),
    }
}

/// Why figures of this machine differ from the thesis'.
pub(crate) const DIFFERS: &str = "The thesis had two Xeon Gold 5220 and eight Optane modules with ext4 and \
    `dax=always`. Here all members lie on one tmpfs in DRAM: a read comes from memory that is several times faster, all members \
    share one memory controller, and the kernel's path to tmpfs has no file system with a journal below it. Parity is \
    computed with vector instructions here, byte by byte there.";

fn figure(pattern: Pattern, is_latency: bool) -> Figure {
    let (number, found) = seed(pattern);
    let quantity = if is_latency { "latency" } else { "bandwidth" };
    let mode = if is_latency { "each call timed (`gtod_reduce=0`); the mean" } else { "calls not timed (`gtod_reduce=1`)" };
    let goal = |series: &'static str, source| Goal { series, against: "posix", x: "", at_least: 1.0, source };
    let raid1 = if matches!(pattern, Pattern::Read | Pattern::RandomRead) {
        "the thesis: all configurations read faster than posix"
    } else {
        "the design: a mirrored write of three copies can cost less than one unprotected write by the kernel"
    };
    Figure {
        id: format!("{}-{quantity}", number.to_lowercase()),
        title: format!("{number}: {} of {BLOCK_BYTES} bytes, {quantity}", pattern.words()),
        kind: Kind::Bars,
        unit: if is_latency { Unit::Time } else { Unit::Rate },
        better: if is_latency { Better::Lower } else { Better::Higher },
        x: "",
        baseline: "posix",
        measured: format!(
            "fio with one thread and pread or pwrite (psync), `direct=1`, `sync=0`, `rw={}`, {mode}. posix is an ordinary \
             directory of the tmpfs that the members lie on, mapping an array of one member, raid1 and raid5 have three \
             members and chunks of 4 KiB, _journal a journal in a file of its own, _broken an array whose first member is \
             lost. The null engine does nothing: what fio itself takes.",
            pattern.name()
        ),
        seed: found.to_owned(),
        differs: DIFFERS.to_owned(),
        goals: vec![goal("mapping", "the thesis: a mapping is faster than the kernel's path"), goal("raid1", raid1)],
    }
}

impl Part for Matrix {
    fn name(&self) -> &'static str {
        "thesis"
    }

    fn title(&self) -> &'static str {
        "The thesis' figures 3 to 6: calls of 4 KiB"
    }

    fn figures(&self) -> Vec<Figure> {
        Pattern::ALL.into_iter().flat_map(|pattern| [figure(pattern, false), figure(pattern, true)]).collect()
    }

    fn needs_bytes(&self, plan: &Plan) -> u64 {
        CONFIGURATIONS.iter().map(|one| one.takes_bytes(plan)).sum()
    }

    fn groups(&self, plan: &Plan) -> Vec<Group> {
        let runs = CONFIGURATIONS.len() * if plan.is_quick() { 1 } else { 2 };
        let group = |pattern: Pattern| Group { name: pattern.name().to_owned(), seconds: plan.fio_seconds(runs) + 1.0 };
        Pattern::ALL.into_iter().map(group).collect()
    }

    fn measure(&self, ground: &Ground, plan: &Plan, group: usize) -> Result<Vec<Sample>, String> {
        let pattern = Pattern::ALL[group];
        let [rate, latency] = [figure(pattern, false), figure(pattern, true)].map(|figure| figure.id);
        let places = Places::make(ground, plan, &CONFIGURATIONS)?;
        let job = |configuration: &Configuration, reduced| Job {
            engine: configuration.engine,
            ..Job::psync(pattern, BLOCK_BYTES, reduced)
        };
        let found = by_turns(plan, places.found.len(), |index| {
            let (configuration, place) = &places.found[index];
            let timed = job(configuration, false).run(ground, place, plan)?;
            // A run that shows that everything works does not need both.
            let untimed = if plan.is_quick() { timed } else { job(configuration, true).run(ground, place, plan)? };
            let latency = timed.latency_ns.ok_or("fio tells no latency")?;
            Ok((untimed.bytes_per_second, latency))
        })?;
        let mut samples = Vec::new();
        for ((configuration, _), rounds) in places.found.iter().zip(found) {
            let (rates, latencies) = rounds.into_iter().unzip();
            let sample = |id: &str, reduced, rounds| {
                let sample = Sample::new(id, configuration.name, "", rounds);
                sample.with("fio", job(configuration, reduced).text(plan))
            };
            samples.push(sample(&rate, !plan.is_quick(), rates));
            samples.push(sample(&latency, false, latencies));
        }
        for (name, why) in &places.absent {
            samples.extend([&rate, &latency].map(|id| Sample::absent(id, name, why)));
        }
        places.discard(ground)?;
        Ok(samples)
    }
}
