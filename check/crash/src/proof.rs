//! The mutation run: every line of the engine that flushes, fences or stores is changed in recorded
//! runs until a crash state comes back wrong.
//!
//! Which runs show a line is known ([`STAGES`]): those are tried first, then all others. So one
//! command without options tells whether each line is needed and seen; a line that no run reaches
//! counts as not seen. With options the runs are those asked for, and what they do not reach is not
//! judged.

use crate::case::Case;
use crate::explore::{Extent, record_case};
use crate::log::Log;
use crate::mutation::{self, Site, Verdict};
use crate::options::Options;
use crate::states::Effort;
use crate::suite::{CASE_SECONDS_MAX, cases, in_parallel};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

/// States of each run that are looked at, all of them such as only the change makes possible.
const STATES_MAX: usize = 96;
/// How long a site may take.
const SITE_SECONDS_MAX: u32 = 4 * 3600;

/// Runs, as options of the command line, and the lines that they are there for: file, function, and
/// what stands in the line.
struct Stage {
    options: &'static str,
    lines: &'static [(&'static str, &'static str, &'static str)],
}

/// Lines that no stage names belong to the first.
const STAGES: [Stage; 12] = [
    Stage {
        options: "--level 1 --level 5 --chunk 64 --states 48 --seed 1 --workload overwrite --workload small --workload append \
                  --workload truncate --workload create --workload failing --workload mapped --workload writers",
        lines: &[],
    },
    // Degraded, P or Q is what gives the data.
    Stage {
        options: "--level 4 --level 6 --chunk 4096 --states 64 --seed 1 --no-journal --workload degraded",
        lines: &[("base/persist/src/kernels.rs", "update", "settle(")],
    },
    Stage {
        options: "--level 4 --level 6 --chunk 4096 --states 64 --seed 1 --no-journal --workload small",
        lines: &[("base/persist/src/kernels.rs", "stripe", "settle(")],
    },
    // The last line of a range that recovery has made to agree.
    Stage {
        options: "--again --recoveries 24 --seed 10 --level 4 --level 6 --chunk 4096 --states 64 --no-journal --workload small",
        lines: &[("base/persist/src/kernels.rs", "parity", "settle(")],
    },
    Stage {
        options: "--level 4 --chunk 4096 --states 64 --seed 1 --workload mapped",
        lines: &[("core/file/src/mapped.rs", "write_back", "write_back(")],
    },
    // Who asks for the size only is told another one after the second crash.
    Stage {
        options: "--again --recoveries 8 --level 1 --chunk 64 --states 64 --seed 1 --no-journal --workload lengths",
        lines: &[("core/file/src/table.rs", "store_bytes", "write_back(")],
    },
    // A new record is torn on two members at once, and the one that had it whole is lost in the
    // second crash.
    Stage {
        options: "--again --recoveries 20 --seed 490 --level 5 --chunk 64 --states 64 --no-journal --workload create \
                  --workload grow",
        lines: &[("core/file/src/table.rs", "store_bytes", "fence()")],
    },
    // The medium of one member has lost the journal in the first crash, the other member is lost in
    // the second.
    Stage {
        options: "--again --recoveries 8 --level 1 --chunk 64 --states 64 --seed 1 --journal --workload small",
        lines: &[("core/intent/src/journal.rs", "equalise", "fence()")],
    },
    // Replayed and resynchronised bytes that are gone when the note of them is.
    Stage {
        options: "--level 1 --chunk 64 --states 64 --seed 1 --workload overwrite",
        lines: &[("media/dax/src/lib.rs", "persist", "fence()")],
    },
    Stage {
        options: "--again --recoveries 5 --level 5 --level 6 --chunk 4096 --states 64 --seed 1 --no-journal --workload small",
        lines: &[("core/array/src/resync.rs", "", "parity")],
    },
    Stage { options: "--level 1 --level 5 --chunk 64 --chunk 4096 --states 64 --seed 1 --workload punch", lines: &[] },
    // The lane that named the bytes is another write's when the old sum comes back.
    Stage {
        options: "--sums --level 1 --level 5 --states 64 --seed 1 --no-journal --workload small --workload overwrite",
        lines: &[("core/array/src/sums.rs", "settle_sums", "write_back(")],
    },
];

/// Where to look for what none of these shows.
const FURTHER: [&str; 3] = [
    "--level 1 --level 5 --chunk 64 --states 64 --seed 2",
    "--level 1 --level 4 --level 6 --chunk 4096 --states 64 --seed 3",
    "--again --recoveries 8 --level 1 --level 5 --level 6 --chunk 64 --chunk 4096 --states 64 --seed 4",
];

/// What is done to a line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    /// It does not flush or fence.
    TakenOut,
    /// Its stores come behind the next fence.
    Moved,
}

/// Recorded runs, and how much is done with each.
struct Runs {
    list: Vec<(Case, Log)>,
    extent: Extent,
}

impl Runs {
    fn record(options: &Options, shown: &str, below: &Path) -> Result<Self, String> {
        let mut wanted = Vec::new();
        for case in cases(options) {
            // Which crash the recovery is of, the seed tells.
            let count = if case.again { options.recoveries } else { 1 };
            wanted.extend((0..count).map(|more| Case { seed: case.seed + more, ..case.clone() }));
        }
        let logs = in_parallel(options.jobs, &wanted, CASE_SECONDS_MAX, |case| record_case(case, below))?;
        let mut list: Vec<(Case, Log)> = wanted.into_iter().zip(logs).collect();
        // Short ones tell as much and sooner.
        list.sort_by_key(|(_, log)| log.events.len());
        println!("{} recorded runs: {shown}", list.len());
        let effort = Effort { exhaustive_max: 64, sample: 24 };
        let extent = Extent { effort, loss_every: 3, failures_max: 1, states_max: options.states_max.min(STATES_MAX) };
        Ok(Self { list, extent })
    }
}

/// Lines, what is done to them, and what came of it.
struct Proof<'a> {
    options: &'a Options,
    below: &'a Path,
    verdicts: BTreeMap<(Change, Site), Verdict>,
}

/// Does what `--mutations` asks for.
pub(crate) fn prove(options: &Options, below: &Path) -> Result<(), String> {
    let begun = Instant::now();
    let mut proof = Proof { options, below, verdicts: BTreeMap::new() };
    proof.add(Change::TakenOut, mutation::sites()?);
    if options.names_runs {
        let runs = Runs::record(options, "those asked for", below)?;
        proof.add(Change::Moved, mutation::store_sites(&runs.list));
        proof.judge(&runs, |_, _| true)?;
    } else {
        proof.walk_stages()?;
    }
    let unseen = proof.finish();
    println!("{} changes of the source, {unseen} not seen; {:.0} s", proof.verdicts.len(), begun.elapsed().as_secs_f64());
    match unseen {
        0 => Ok(()),
        unseen => Err(format!("{unseen} changes of the source would not be seen")),
    }
}

impl Proof<'_> {
    fn add(&mut self, change: Change, sites: Vec<Site>) {
        let only = self.options.site.as_ref();
        let is_wanted = |site: &Site| only.is_none_or(|wanted| *wanted == format!("{}:{}", site.file, site.line));
        for site in sites.into_iter().filter(is_wanted) {
            self.verdicts.entry((change, site)).or_insert(Verdict::NotReached);
        }
    }

    fn walk_stages(&mut self) -> Result<(), String> {
        let mut recorded = Vec::new();
        for stage in &STAGES {
            let runs = self.record(stage.options)?;
            self.add(Change::Moved, mutation::store_sites(&runs.list));
            recorded.push(runs);
        }
        for (index, runs) in recorded.iter().enumerate() {
            self.judge(runs, |_, site| home(site) == index)?;
        }
        for (index, runs) in recorded.iter().enumerate() {
            self.judge(runs, |change, site| home(site) != index && !is_explained(change, site))?;
        }
        for options in FURTHER {
            if self.unseen().next().is_some() {
                let runs = self.record(options)?;
                self.judge(&runs, |change, site| !is_explained(change, site))?;
            }
        }
        Ok(())
    }

    fn record(&self, options: &str) -> Result<Runs, String> {
        let words = format!("--mutations --platform adr {options}");
        let jobs = ["--jobs".to_owned(), self.options.jobs.to_string()];
        let options = Options::from_arguments(words.split_whitespace().map(str::to_owned).chain(jobs))?;
        Runs::record(&options, &words, self.below)
    }

    /// Looks at the chosen lines that were not seen yet, and prints those that are seen now.
    fn judge(&mut self, runs: &Runs, is_chosen: impl Fn(Change, &Site) -> bool) -> Result<(), String> {
        let is_left = |((change, site), verdict): &(&(Change, Site), &Verdict)| {
            !matches!(verdict, Verdict::Seen { .. }) && is_chosen(*change, site)
        };
        let left: Vec<(Change, Site)> = self.verdicts.iter().filter(is_left).map(|(key, _)| key.clone()).collect();
        let attempt = |(change, site): &(Change, Site)| match change {
            Change::TakenOut => mutation::without(site, &runs.list, &runs.extent, self.below),
            Change::Moved => mutation::reordered(site, &runs.list, &runs.extent, self.below),
        };
        let jobs = self.options.jobs;
        // Some at a time, so that the table grows.
        let mut judged = Vec::new();
        for left in left.chunks(jobs * 4) {
            for (key, verdict) in left.iter().zip(in_parallel(jobs, left, SITE_SECONDS_MAX, attempt)?) {
                if let Verdict::Seen { case, states, failure } = &verdict {
                    let first = failure.lines().next().unwrap_or_default();
                    print_line(key, &format!("seen after {states} states: {first}\n      {case}"));
                }
                judged.push((key.clone(), verdict));
            }
        }
        for (key, verdict) in judged {
            let before = self.verdicts.remove(&key);
            self.verdicts.insert(key, before.map_or(Verdict::NotReached, |before| before.and(verdict)));
        }
        Ok(())
    }

    /// Lines that would not be missed, but for those that need not be.
    fn unseen(&self) -> impl Iterator<Item = (&(Change, Site), &Verdict)> {
        let names_runs = self.options.names_runs;
        self.verdicts.iter().filter(move |((change, site), verdict)| match verdict {
            Verdict::Seen { .. } => false,
            Verdict::NotReached => !names_runs,
            Verdict::Unseen { .. } => !is_explained(*change, site),
        })
    }

    /// Prints what was not seen. Returns how much of it should have been.
    fn finish(&self) -> usize {
        for (key, verdict) in &self.verdicts {
            match verdict {
                Verdict::Seen { .. } => {}
                Verdict::NotReached => print_line(key, "NOT REACHED by any run"),
                Verdict::Unseen { .. } if let Some(why) = explained(key.0, &key.1) => {
                    print_line(key, &format!("not seen, as it need not be: {why}"));
                }
                Verdict::Unseen { events, states } => {
                    print_line(key, &format!("NOT SEEN: {events} events changed, {states} states came back right"));
                }
            }
        }
        self.unseen().count()
    }
}

/// The stage that is there for a line.
fn home(site: &Site) -> usize {
    let names = |(file, function, part): &(&str, &str, &str)| {
        site.file == *file && (function.is_empty() || site.function == *function) && site.text.contains(part)
    };
    STAGES.iter().position(|stage| stage.lines.iter().any(names)).unwrap_or(0)
}

/// Why stores of a line may come later, and nothing tells.
fn explained(change: Change, site: &Site) -> Option<&'static str> {
    let fits = |(file, function, _): &&(&str, &str, &str)| site.file == *file && site.function == *function;
    let found = mutation::EXPLAINED.iter().find(fits);
    found.map(|(.., why)| *why).filter(|_| change == Change::Moved)
}

fn is_explained(change: Change, site: &Site) -> bool {
    explained(change, site).is_some()
}

/// A row of the table.
fn print_line((change, site): &(Change, Site), became: &str) {
    let what = if *change == Change::TakenOut { "taken out" } else { "stores moved" };
    println!("  {}:{} {what}: {}\n      {became}", site.file, site.line, site.text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_options_and_name_lines_there_are() {
        let sites = mutation::sites().unwrap();
        for words in STAGES.iter().map(|stage| stage.options).chain(FURTHER) {
            let all = std::iter::once("--mutations").chain(words.split_whitespace()).map(str::to_owned);
            let options = Options::from_arguments(all).unwrap();
            assert!(options.names_runs && !cases(&options).is_empty(), "{words}");
        }
        // What is named by a part of a flush or fence is one.
        for (index, stage) in STAGES.iter().enumerate() {
            for (file, function, part) in stage.lines.iter().filter(|(_, function, _)| !function.is_empty()) {
                assert!(sites.iter().any(|site| home(site) == index && site.file == *file), "{file} {function} {part}");
            }
        }
    }

    #[test]
    fn what_is_not_seen_or_not_reached_is_a_failure() {
        let (file, function) = ("core/file/src/table.rs".to_owned(), "store_new".to_owned());
        let site = Site { file, line: 1, text: String::new(), function };
        let count = |words: &str, change, verdict| {
            let options = Options::from_arguments(words.split_whitespace().map(str::to_owned)).unwrap();
            let verdicts = BTreeMap::from([((change, site.clone()), verdict)]);
            Proof { options: &options, below: Path::new("/"), verdicts }.finish()
        };
        let unseen = || Verdict::Unseen { events: 1, states: 1 };
        let seen = Verdict::Seen { case: String::new(), states: 1, failure: String::new() };
        assert_eq!(count("--mutations --jobs 1", Change::TakenOut, Verdict::NotReached), 1);
        assert_eq!(count("--mutations --level 1", Change::TakenOut, Verdict::NotReached), 0);
        assert_eq!(count("--mutations --level 1", Change::TakenOut, unseen()), 1);
        assert_eq!(count("--mutations", Change::Moved, unseen()), 0);
        assert_eq!(count("--mutations", Change::TakenOut, seen), 0);
    }
}
