//! Everything that is wanted: cases times levels times states, a few at a time.

use crate::{
    Outcome,
    array::{Array, Shape},
    audit,
    cases::{CASES, Case, Scene},
    ground::Ground,
    options::Options,
    report::Report,
    tree,
};
use stage::process::find_program;
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Instant,
};

/// One case on one array.
struct Job<'a> {
    case: &'a Case,
    number: usize,
    shape: Shape,
    missing: bool,
}

/// Shows the table.
pub(crate) fn list(options: &Options) {
    for case in CASES.iter().filter(|case| options.wants_name(case.name)) {
        let needs: Vec<&str> = case.needs.iter().map(|(program, _)| *program).collect();
        println!("{:<16} {}", case.name, needs.join(" "));
    }
}

/// Runs it. Whether all passed; an error if nothing could be run.
pub(crate) fn run(options: &Options) -> Outcome<bool> {
    options.check_library()?;
    tree::adopt_orphans()?;
    let begun = Instant::now();
    let jobs = jobs(options);
    let ground = Ground::new(options)?;
    let report = Report::default();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    one(&ground, job, options, &report);
                }
            });
        }
    });
    drop(ground);
    Ok(report.finish(begun.elapsed()))
}

fn jobs(options: &Options) -> Vec<Job<'_>> {
    let mut jobs = Vec::new();
    for &shape in &options.shapes {
        for (state, missing) in [("healthy", false), ("missing", true)] {
            if !options.wants_state(state) || missing && shape.bears == 0 {
                continue;
            }
            let wanted =
                CASES.iter().enumerate().filter(|(_, case)| options.wants_name(case.name) && in_time(case, state, options));
            jobs.extend(wanted.map(|(number, case)| Job { case, number, shape, missing }));
        }
    }
    jobs
}

/// Quick runs take only one state of some cases, unless it is asked for.
fn in_time(case: &Case, state: &str, options: &Options) -> bool {
    !options.quick || options.state.is_some() || options.plain || case.quick.is_none_or(|only| only == state)
}

fn one(ground: &Ground, job: &Job<'_>, options: &Options, report: &Report) {
    let begun = Instant::now();
    // Every member is the missing one for some case.
    let victim = job.missing.then(|| (job.number + job.shape.bears) % job.shape.member_count);
    let state = victim.map_or_else(|| "healthy".to_owned(), |slot| format!("without {slot}"));
    let result = missing_program(job.case).map_or_else(|| play(ground, job, victim, options), Err);
    report.result(job.shape.label, &state, job.case.name, begun.elapsed(), &result);
}

fn play(ground: &Ground, job: &Job<'_>, victim: Option<usize>, options: &Options) -> Outcome<String> {
    let name = format!("{}-{}-{}", job.case.name, job.shape.label, if victim.is_some() { "missing" } else { "healthy" });
    let user = if job.case.unprivileged { ground.user } else { None };
    let array = Array::new(ground, &name, job.shape, user)?;
    if let Some(slot) = victim {
        array.lose(slot)?;
    }
    if options.mounted {
        array.open_door()?;
    }
    let ran = (job.case.run)(&Scene { array: &array, rounds: options.rounds, quick: options.quick });
    let closed = array.close_door();
    let result = ran
        .and_then(|details| closed.map(|_| details))
        .and_then(|details| audit::audit(&array).map(|_| details))
        .and_then(|details| array.seen().map(|seen| if seen.is_empty() { details } else { format!("{details}\n       {seen}") }));
    if result.is_err() && ground.keep {
        println!("       kept: {} and {}", array.data.display(), array.work.display());
        array.keep();
    }
    result
}

fn missing_program(case: &Case) -> Option<String> {
    let (program, package) = case.needs.iter().find(|(program, _)| find_program(program).is_none())?;
    Some(format!("{program} is not installed; install it as root: apt-get install {package}"))
}
