//! What loading the library adds to the start of a program, with a site cache that is warm and one that is empty.

use crate::library::Library;
use crate::members::Scratch;
use crate::plan::{ArrayPlace, Plan};
use crate::report::{Check, Row};
use crate::rounds::median;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

const PROGRAM: &str = "/bin/true";

/// The two rows: warm and cold.
pub(crate) fn rows(plan: &Plan, library: &Library, place: &ArrayPlace, scratch: &Scratch) -> io::Result<Vec<Row>> {
    let warm_cache = scratch.path().join("cache-warm");
    std::fs::create_dir(&warm_cache)?;
    // Makes the array, so that no run but this one assembles it for the first time, and fills the cache.
    spawn(library.preloaded(Command::new(PROGRAM), place, &warm_cache))?;
    let (mut plain, mut warm, mut cold) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..plan.spawns {
        plain.push(spawn(Command::new(PROGRAM))?);
        warm.push(spawn(library.preloaded(Command::new(PROGRAM), place, &warm_cache))?);
        let cache = scratch.path().join(format!("cache-{run}"));
        std::fs::create_dir(&cache)?;
        cold.push(spawn(library.preloaded(Command::new(PROGRAM), place, &cache))?);
        std::fs::remove_dir_all(&cache)?;
    }
    let kernel = median(plain);
    let row = |case: &str, times: Vec<f64>, goal_ms: f64| {
        let ours = median(times);
        Row {
            ours_ns: Some(ours),
            kernel_ns: Some(kernel),
            checks: vec![Check::at_most("ms added", (ours - kernel) / 1e6, goal_ms)],
            ..Row::new(case)
        }
    };
    Ok(vec![row("start of /bin/true, warm site cache", warm, 1.0), row("start of /bin/true, no site cache", cold, 10.0)])
}

/// Nanoseconds from start to end.
fn spawn(mut command: Command) -> io::Result<f64> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let begun = Instant::now();
    let status = command.status()?;
    let nanoseconds = begun.elapsed().as_nanos() as f64;
    if status.success() { Ok(nanoseconds) } else { Err(io::Error::other(format!("{PROGRAM}: {status}"))) }
}

/// Whether the program that is measured is there.
pub(crate) fn is_measurable() -> bool {
    Path::new(PROGRAM).exists()
}
