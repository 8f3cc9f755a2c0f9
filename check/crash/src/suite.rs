//! Runs all cases that the options select, several at a time, and reports.
//!
//! A case is one recorded run of a workload, or of the recovery from a crash in it, and the crash
//! states of that run ([`Case`]).

use crate::case::Case;
use crate::child::Child;
use crate::explore::{Extent, Outcome, explore, ground, record_case, short};
use crate::log::Event;
use crate::options::Options;
use crate::proof::prove;
use crate::record::sites;
use crate::states::{Effort, Focus};
use crate::workload::Workload;
use layout::Level;
use serde::{Serialize, de::DeserializeOwned};
use std::path::Path;
use std::time::Instant;

/// The seconds after which the process of a case is killed.
pub(crate) const CASE_SECONDS_MAX: u32 = 3600;
/// Crash states that `--quick` must look at, or it fails; if options select cases, there may be
/// fewer.
const QUICK_STATES_MIN: usize = 5000;
/// `--quick` takes one case in so many.
const QUICK_SHARE: usize = 27;
/// The most crash states of a case that `--quick` looks at.
const QUICK_STATES_PER_CASE: usize = 64;
/// A line of progress is printed after so many cases.
const REPORT_EVERY: usize = 50;
/// How many failures of one case are printed.
const FAILURES_SHOWN: usize = 2;

/// The cases that the options select: each workload on each shape that it fits, on each platform,
/// with a crash in the workload, and with one in the recovery. `--quick` takes a share of them.
pub(crate) fn cases(options: &Options) -> Vec<Case> {
    let mut all = Vec::new();
    let seed = (options.seed % QUICK_SHARE as u64) as usize;
    for (shape_index, shape) in options.shapes().into_iter().enumerate() {
        let fitting = options.workloads.iter().filter(|name| Workload::new(name, &shape).is_some());
        for (workload_index, &workload) in fitting.enumerate() {
            for (platform_index, &platform) in options.platforms.iter().enumerate() {
                for again in if options.again { vec![true] } else { vec![false, true] } {
                    // It differs by one from shape to shape, and from workload to workload: cases
                    // that are far apart have one number.
                    let number = shape_index + workload_index + 2 * platform_index + 3 * usize::from(again) + seed;
                    all.push((number, Case { shape, platform, workload, again, seed: options.seed }));
                }
            }
        }
    }
    let is_taken = |number: usize| !options.quick || number.is_multiple_of(QUICK_SHARE);
    let mut taken: Vec<Case> = all.iter().filter(|(number, _)| is_taken(*number)).map(|(_, case)| case.clone()).collect();
    // Sums are looked at on copies and on parity.
    for level in [Level::Raid1, Level::Raid5] {
        let is_one = |case: &Case| case.shape.sums && case.shape.level == level;
        let mut own = all.iter().map(|(_, case)| case).filter(|case| is_one(case));
        if !taken.iter().any(is_one)
            && let Some(case) = own.nth(seed % own.clone().count().max(1))
        {
            taken.push(case.clone());
        }
    }
    // A workload that fits few shapes may have no case with that number.
    for &workload in &options.workloads {
        let mut own = all.iter().filter(|(_, case)| case.workload == workload);
        if taken.iter().all(|case| case.workload != workload)
            && let Some((_, case)) = own.nth(seed % own.clone().count().max(1))
        {
            taken.push(case.clone());
        }
    }
    taken
}

/// How thoroughly each case is explored.
fn extent(options: &Options) -> Extent {
    if options.quick {
        let effort = Effort { exhaustive_max: 32, sample: 8 };
        return Extent { effort, loss_every: 8, failures_max: 1, states_max: options.states_max.min(QUICK_STATES_PER_CASE) };
    }
    Extent { effort: Effort { exhaustive_max: 256, sample: 32 }, loss_every: 4, failures_max: 3, states_max: options.states_max }
}

/// Prints the events of all cases (`--show`), proves that missing flushes and fences are found
/// (`--mutations`), or else explores all cases.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    println!("seed {}", options.seed);
    // The processes of the cases inherit what is found here.
    sites::sites()?;
    let home = ground(Path::new("/dev/shm"))?;
    if options.show {
        return show(options, home.path());
    }
    if options.mutations {
        return prove(options, home.path());
    }
    recover(options, home.path())
}

/// Records every case, recovers from its crash states, and reports.
///
/// # Errors
/// If a case failed, if `--quick` has looked at too few states, or if the process of a case cannot
/// be started.
fn recover(options: &Options, below: &Path) -> Result<(), String> {
    let begun = Instant::now();
    let (all, extent) = (cases(options), extent(options));
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
            println!("{reported} of {} cases, {} states", all.len(), total.states);
        }
        if !outcome.failures.is_empty() {
            failed += 1;
            println!("FAILED cxlraid-crash {case}");
            outcome.failures.iter().take(FAILURES_SHOWN).for_each(|failure| println!("  {failure}"));
        }
    };
    let mut running: Vec<(&Case, Child)> = Vec::new();
    let no_mutation = |_: &Event| false;
    // Unlike `in_parallel` it goes on after a failure.
    for case in &all {
        if running.len() == options.jobs {
            let (done, child) = running.remove(Child::first_ready(running.iter().map(|(_, child)| child)));
            report(done, child.finish());
        }
        running.push((
            case,
            Child::start(CASE_SECONDS_MAX, || {
                explore(case, &record_case(case, below)?, &extent, below, &no_mutation, &Focus::Everything)
            })?,
        ));
    }
    running.into_iter().for_each(|(case, child)| report(case, child.finish()));
    let (count, seconds) = (all.len(), begun.elapsed().as_secs_f64());
    println!(
        "{} crash states ({} with a member lost) at {} instants of {count} cases ({} events): {failed} cases failed; {seconds:.0} s",
        total.states, total.states_with_loss, total.instants, total.events
    );
    if failed > 0 {
        return Err(format!("{failed} of {count} cases failed"));
    }
    if count == 0 {
        let what = "no case is left: no workload that options name fits a shape that they name, or --quick leaves them all out";
        return Err(format!("{what}; name others, or leave --quick out"));
    }
    if options.quick && !options.selects_cases && total.states < QUICK_STATES_MIN {
        return Err(format!("only {} states; --quick must look at {QUICK_STATES_MIN}", total.states));
    }
    Ok(())
}

/// Prints the events of all cases.
fn show(options: &Options, below: &Path) -> Result<(), String> {
    for case in cases(options) {
        println!("{case}");
        let log = record_case(&case, below)?;
        log.events.iter().enumerate().for_each(|(index, event)| println!("{index:6} {}", short(&log, event)));
    }
    Ok(())
}

/// Does `work` on each item in a process of its own, `jobs` processes at a time (at least one).
/// Returns the results in the order of the items.
///
/// # Errors
/// The first error of an item. The processes that still run then end with this process at the
/// latest.
pub(crate) fn in_parallel<I, T: Serialize + DeserializeOwned>(
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::NAMES;

    #[test]
    fn a_quick_suite_has_every_workload_whatever_the_seed() {
        for seed in (0..2 * QUICK_SHARE as u64).chain([u64::MAX]) {
            let words = ["--quick", "--seed", &seed.to_string()].map(str::to_owned);
            let cases = cases(&Options::from_arguments(words.into_iter()).unwrap());
            let missing: Vec<_> = NAMES.iter().filter(|name| cases.iter().all(|case| case.workload != **name)).collect();
            assert!(missing.is_empty(), "seed {seed}: {missing:?}");
        }
    }
}
