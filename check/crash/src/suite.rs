//! All cases asked for, some at a time, and their report.

use crate::case::Case;
use crate::child::Child;
use crate::explore::{Extent, Outcome, explore, ground, record_case, short};
use crate::log::Log;
use crate::mutation::{self, Site, Verdict};
use crate::options::Options;
use crate::record::sites;
use crate::states::{Effort, Focus};
use crate::workload::Workload;
use serde::{Serialize, de::DeserializeOwned};
use std::path::Path;
use std::time::Instant;

/// How long a case may take.
const CASE_SECONDS_MAX: u32 = 3600;
/// States that `--quick` must have looked at.
const QUICK_STATES_MIN: usize = 5000;
/// A quick run takes one of so many cases.
const QUICK_SHARE: usize = 27;
/// About how many states of a run a quick run looks at.
const QUICK_STATES_PER_RUN: usize = 64;
/// Says how far it is after so many runs.
const REPORT_EVERY: usize = 50;
/// States of each run that a mutation run looks at, all of them such as only the change makes possible.
const MUTATION_STATES_MAX: usize = 96;
/// How long a site may take.
const SITE_SECONDS_MAX: u32 = 4 * 3600;
/// Failures printed of a case.
const FAILURES_SHOWN: usize = 2;

fn cases(options: &Options) -> Vec<Case> {
    let mut cases = Vec::new();
    for (turn, shape) in options.shapes().into_iter().enumerate() {
        let fitting = options.workloads.iter().filter(|name| Workload::new(name, &shape).is_some());
        for (index, &workload) in fitting.enumerate() {
            for (which, &platform) in options.platforms.iter().enumerate() {
                for again in if options.again { vec![true] } else { vec![false, true] } {
                    // Names and chunks have little to do with each other; a quick run takes each workload with some of the shapes.
                    let number = turn + index + 2 * which + 3 * usize::from(again) + options.seed as usize;
                    if !options.quick || number.is_multiple_of(QUICK_SHARE) {
                        cases.push(Case { shape, platform, workload, again, seed: options.seed });
                    }
                }
            }
        }
    }
    cases
}

fn extent(options: &Options) -> Extent {
    if options.quick {
        let effort = Effort { exhaustive_max: 32, sample: 8 };
        return Extent { effort, loss_every: 8, failures_max: 1, states_max: options.states_max.min(QUICK_STATES_PER_RUN) };
    }
    Extent { effort: Effort { exhaustive_max: 256, sample: 32 }, loss_every: 4, failures_max: 3, states_max: options.states_max }
}

/// Does what was asked for.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    println!("seed {}", options.seed);
    sites::sites()?;
    let home = ground(Path::new("/dev/shm"))?;
    if options.show {
        return show(options, home.path());
    }
    if options.mutations {
        return mutate(options, home.path());
    }
    recover(options, home.path())
}

/// Records every case, and recovers from its crash states.
fn recover(options: &Options, below: &Path) -> Result<(), String> {
    let begun = Instant::now();
    let (cases, extent) = (cases(options), extent(options));
    let mut total = Outcome::default();
    let (mut failed, mut reported) = (0, 0usize);
    let mut report = |case: &Case, result: Result<Outcome, String>| {
        let outcome = result.unwrap_or_else(|error| Outcome { failures: vec![error], ..Outcome::default() });
        total.states += outcome.states;
        total.states_with_loss += outcome.states_with_loss;
        total.instants += outcome.instants;
        total.events += outcome.events;
        reported += 1;
        if reported.is_multiple_of(REPORT_EVERY) {
            println!("{reported} of {} runs, {} states", cases.len(), total.states);
        }
        if !outcome.failures.is_empty() {
            failed += 1;
            println!("FAILED cxlraid-crash {case}");
            outcome.failures.iter().take(FAILURES_SHOWN).for_each(|failure| println!("  {failure}"));
        }
    };
    let mut running: Vec<(&Case, Child)> = Vec::new();
    for case in &cases {
        if running.len() == options.jobs {
            let (case, child) = running.remove(Child::first_ready(running.iter().map(|(_, child)| child)));
            report(case, child.finish());
        }
        running.push((
            case,
            Child::start(CASE_SECONDS_MAX, || {
                explore(case, &record_case(case, below)?, &extent, below, &|_| false, &Focus::Everything)
            })?,
        ));
    }
    running.into_iter().for_each(|(case, child)| report(case, child.finish()));
    let (count, seconds) = (cases.len(), begun.elapsed().as_secs_f64());
    println!(
        "{} crash states ({} with a member lost) at {} instants of {count} runs ({} events): {failed} runs failed; {seconds:.0} s",
        total.states, total.states_with_loss, total.instants, total.events
    );
    if failed > 0 {
        return Err(format!("{failed} of {count} runs have crash states that come back wrong"));
    }
    if options.quick && total.states < QUICK_STATES_MIN {
        return Err(format!("only {} states; a quick run must look at {QUICK_STATES_MIN}", total.states));
    }
    Ok(())
}

fn show(options: &Options, below: &Path) -> Result<(), String> {
    for case in cases(options) {
        println!("{case}");
        let log = record_case(&case, below)?;
        log.events.iter().enumerate().for_each(|(index, event)| println!("{index:6} {}", short(&log, event)));
    }
    Ok(())
}

/// The mutation run. Each site is taken out of the runs that reach it.
fn mutate(options: &Options, below: &Path) -> Result<(), String> {
    let mut wanted = Vec::new();
    for case in cases(options) {
        // Which crash the recovery is of, the seed tells.
        let count = if case.again { options.recoveries } else { 1 };
        wanted.extend((0..count).map(|more| Case { seed: case.seed + more, ..case.clone() }));
    }
    let recorded = in_parallel(options.jobs, &wanted, CASE_SECONDS_MAX, |case| record_case(case, below))?;
    let mut runs: Vec<(Case, Log)> = wanted.into_iter().zip(recorded).collect();
    // Short ones tell as much and sooner.
    runs.sort_by_key(|(_, log)| log.events.len());
    let effort = Effort { exhaustive_max: 64, sample: 24 };
    let states_max = options.states_max.min(MUTATION_STATES_MAX);
    let extent = Extent { effort, loss_every: 3, failures_max: 1, states_max };
    println!("{} recorded runs", runs.len());
    println!("flushes and fences taken out:");
    let wanted = |sites: Vec<Site>| -> Vec<Site> {
        let is_wanted =
            |site: &Site| options.site.as_ref().is_none_or(|wanted| *wanted == format!("{}:{}", site.file, site.line));
        sites.into_iter().filter(is_wanted).collect()
    };
    let jobs = options.jobs;
    let removed = judge_all(jobs, &wanted(mutation::sites()?), |site| mutation::without(site, &runs, &extent, below))?;
    println!("stores moved behind the next fence:");
    let moved = judge_all(jobs, &wanted(mutation::store_sites(&runs)), |site| mutation::reordered(site, &runs, &extent, below))?;
    match removed + moved {
        0 => Ok(()),
        unseen => Err(format!("{unseen} changes of the source would not be seen")),
    }
}

/// Does `work` on each of `items` in processes of their own, `jobs` at a time. The results are in the order of the items.
fn in_parallel<I, T: Serialize + DeserializeOwned>(
    jobs: usize,
    items: &[I],
    seconds_max: u32,
    work: impl Fn(&I) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let mut results: Vec<Option<T>> = items.iter().map(|_| None).collect();
    let mut running: Vec<(usize, Child)> = Vec::new();
    let mut fetch = |running: &mut Vec<(usize, Child)>| -> Result<(), String> {
        let (index, child) = running.remove(Child::first_ready(running.iter().map(|(_, child)| child)));
        results[index] = Some(child.finish()?);
        Ok(())
    };
    for (index, item) in items.iter().enumerate() {
        if running.len() == jobs {
            fetch(&mut running)?;
        }
        running.push((index, Child::start(seconds_max, || work(item))?));
    }
    while !running.is_empty() {
        fetch(&mut running)?;
    }
    Ok(results.into_iter().flatten().collect())
}

/// Prints what becomes of each site. Returns how many were changed and nothing was seen.
fn judge_all(jobs: usize, sites: &[Site], judge: impl Fn(&Site) -> Result<Verdict, String>) -> Result<usize, String> {
    let mut unseen = 0;
    // Some at a time, so that the table grows.
    for sites in sites.chunks(jobs * 4) {
        let verdicts = in_parallel(jobs, sites, SITE_SECONDS_MAX, &judge)?;
        unseen += sites.iter().zip(verdicts).filter(|(site, verdict)| !print_verdict(site, verdict)).count();
    }
    Ok(unseen)
}

/// A row of the table. Whether it is as it should be.
fn print_verdict(site: &Site, verdict: &Verdict) -> bool {
    let (shown, right) = match verdict {
        Verdict::NotReached => ("not reached by any run".to_owned(), true),
        Verdict::Seen { case, states, failure } => {
            (format!("seen after {states} states: {}\n      {case}", failure.lines().next().unwrap_or_default()), true)
        }
        Verdict::Unseen { .. } if let Some(why) = explained(site) => (format!("not seen, as it need not be: {why}"), true),
        Verdict::Unseen { events, states } => {
            (format!("NOT SEEN: {events} events changed, {states} states came back right"), false)
        }
    };
    println!("  {}:{}  {}\n      {shown}", site.file, site.line, site.text);
    right
}

/// Why a site that nothing tells of is there.
fn explained(site: &Site) -> Option<&'static str> {
    let fits = |(file, function, _): &&(&str, &str, &str)| site.file == *file && site.function == *function;
    mutation::EXPLAINED.iter().find(fits).map(|(.., why)| *why)
}
