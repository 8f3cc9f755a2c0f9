//! All cases asked for, some at a time, and their report.

use crate::case::Case;
use crate::child::Child;
use crate::explore::{Extent, Outcome, explore, ground, record_case, short};
use crate::options::Options;
use crate::proof::prove;
use crate::record::sites;
use crate::states::{Effort, Focus};
use crate::workload::Workload;
use serde::{Serialize, de::DeserializeOwned};
use std::path::Path;
use std::time::Instant;

/// How long a case may take.
pub(crate) const CASE_SECONDS_MAX: u32 = 3600;
/// States that `--quick` must have looked at.
const QUICK_STATES_MIN: usize = 5000;
/// A quick run takes one of so many cases.
const QUICK_SHARE: usize = 27;
/// About how many states of a run a quick run looks at.
const QUICK_STATES_PER_RUN: usize = 64;
/// Says how far it is after so many runs.
const REPORT_EVERY: usize = 50;
/// Failures printed of a case.
const FAILURES_SHOWN: usize = 2;

pub(crate) fn cases(options: &Options) -> Vec<Case> {
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
        return prove(options, home.path());
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

/// Does `work` on each of `items` in processes of their own, `jobs` at a time. The results are in the order of the items.
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
