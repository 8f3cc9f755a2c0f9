//! What loading the library adds to the start of a program, with a site cache that is warm and one
//! that is empty.
//!
//! A user's cache lies where XDG_CACHE_HOME says, root's in /var/cache. To have it warm and empty
//! at will without touching the machine's, root measures in a mount namespace of its own, where
//! /var/cache is a tmpfs.

use crate::library::{Library, worker};
use crate::members::Scratch;
use crate::plan::{ArrayPlace, Plan, Task};
use crate::report::{Check, Row};
use crate::rounds::median;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;
use sys::rustix::process::geteuid;

const PROGRAM: &str = "/bin/true";
const ROOT_CACHE: &str = "/var/cache";
const PRIVATE_CACHE: &str = "mount -t tmpfs cxlraid-bench /var/cache && exec \"$@\"";

/// The worker that measures.
pub(crate) fn command(plan: &Plan, library: &Library, array: &ArrayPlace, scratch: &Scratch) -> Result<Command, String> {
    let library = library.path().to_owned();
    let task = |cache| Task::Startup { plan: *plan, library, array: array.clone(), cache };
    if !geteuid().is_root() {
        return worker(&task(scratch.path().to_owned()));
    }
    let worker = worker(&task(PathBuf::from(ROOT_CACHE)))?;
    let mut namespace = Command::new("unshare");
    namespace.args(["--mount", "sh", "-c", PRIVATE_CACHE, "sh"]).arg(worker.get_program()).args(worker.get_args());
    Ok(namespace)
}

/// The two rows: warm and cold.
pub(crate) fn rows(plan: &Plan, library: &Library, array: &ArrayPlace, cache: &Path) -> io::Result<Vec<Row>> {
    let preloaded = || library.preloaded(Command::new(PROGRAM), array, cache);
    let empty = || match std::fs::remove_dir_all(cache.join("cxlraid")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    // Makes the array, so that no run that counts assembles it for the first time.
    spawn(preloaded())?;
    let mut times = [const { Vec::new() }; 3];
    for run in 0..plan.spawns * 3 {
        // Each follows each other one: the run before it may have left memory and caches in another
        // state.
        let which = if run / 3 % 2 == 0 { run % 3 } else { 2 - run % 3 };
        match which {
            0 => times[0].push(spawn(Command::new(PROGRAM))?),
            1 => {
                spawn(preloaded())?;
                times[1].push(spawn(preloaded())?);
            }
            _ => {
                empty()?;
                times[2].push(spawn(preloaded())?);
            }
        }
    }
    let [plain, warm, cold] = times.map(median);
    let row = |case: &str, ours: f64, goal_ms: f64| Row {
        ours_ns: Some(ours),
        kernel_ns: Some(plain),
        checks: vec![Check::at_most("ms added", (ours - plain) / 1e6, goal_ms)],
        ..Row::new(case)
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
