//! Open files: how many a program may have, and what each costs when there are many.

use super::agent::{Job, Talk, Tree, each, timed};
use super::axis::{Axis, Bench, Extent, Measure, On, Record, flat, linear};
use super::limits::Needs;
use super::pair::{ATTACH, COUNT, Crew, Fall, Ground, RECOVER, STATUS, US};
use crate::library::said;
use crate::places::{Order, Places};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use sys::rustix::process::{Resource, Rlimit, setrlimit};

const CALLS: usize = 512;
const FORKS: usize = 8;
/// What the kernel and the files' bytes take for a file, in the array and beside it.
const FILE_BYTES: u64 = 16 << 10;

/// Files that are opened.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct Opening {
    tree: Tree,
    count: u64,
    /// The worker's RLIMIT_NOFILE, if it is to have another. It then only says how many files it
    /// could open.
    limit: Option<u64>,
    calls: usize,
}

/// Nanoseconds of each open, of each read at random, of a fork, of each close; the number of
/// mappings that this process has got by opening.
pub(crate) fn work(opening: &Opening, talk: &mut Talk) -> Result<Option<Vec<f64>>, String> {
    let open = |index| File::open(opening.tree.path(index));
    if let Some(limit) = opening.limit {
        setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum: Some(limit) }).map_err(|error| error.to_string())?;
        let files: Vec<File> = (0..opening.count).map_while(|index| open(index).ok()).collect();
        return Ok(Some(vec![files.len() as f64]));
    }
    let before = mappings().map_err(said)?;
    let mut files = Vec::new();
    let opened = each(0..opening.count, |index| {
        files.push(open(index)?);
        Ok(())
    })?;
    let mapped = mappings().map_err(said)?.saturating_sub(before);
    if !talk.ready()? {
        return Ok(None);
    }
    let mut places = Vec::new();
    Places::new(Order::Random, opening.count, 1, 0, 1).fill(&mut places, opening.calls);
    let read = each(places, |place| {
        let mut buffer = [0; 100];
        files[place as usize].read_at(&mut buffer, 0).map(|_| ())
    })?;
    let forked = each(0..FORKS, |_| fork())?;
    let closed = timed(|| {
        files.clear();
        Ok(())
    })?;
    Ok(Some(vec![opened, read, forked, closed / opening.count as f64, mapped as f64]))
}

/// How many mappings this process has.
fn mappings() -> io::Result<usize> {
    Ok(fs::read_to_string("/proc/self/maps")?.lines().count())
}

/// Forks, and waits for the child, which ends at once.
fn fork() -> io::Result<()> {
    // SAFETY: this process has one thread, and the child does nothing but end.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: nobody is told the status.
    if child > 0 && unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) } == child {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

/// Files that one process has open.
struct OpenFiles;

/// How many files a limit of descriptors allows.
struct Descriptors;

pub(crate) fn axes() -> Vec<Box<dyn Axis>> {
    vec![Box::new(OpenFiles), Box::new(Descriptors)]
}

const OPEN_FILES: &[Measure] = &[
    flat("open", "open of a file that this process has not had open, us each"),
    flat("read", "100 bytes of one of the open files at random, us each"),
    linear("fork", "fork, end of the child and wait; us"),
    flat("close", "close, us each"),
    linear("mappings", "mappings that a process has got by opening"),
    ATTACH,
    STATUS,
    Measure { expected: Some(1.0), ..RECOVER },
];

impl Axis for OpenFiles {
    fn name(&self) -> &'static str {
        "open"
    }

    fn what(&self) -> &'static str {
        "files that one process has open"
    }

    fn points(&self, extent: Extent) -> Vec<u64> {
        if extent == Extent::Quick { vec![10, 50] } else { vec![10, 30, 100, 300, 1000, 3000, 10_000, 16_000, 30_000, 100_000] }
    }

    fn measures(&self) -> &'static [Measure] {
        OPEN_FILES
    }

    fn needs(&self, x: u64) -> Needs {
        Needs { bytes: x * FILE_BYTES, open_files: x, ..Needs::default() }
    }

    fn seconds(&self, x: u64) -> f64 {
        2.0 + x as f64 / 500.0
    }

    fn point(&mut self, bench: &Bench, x: u64, record: &mut Record) -> Result<(), String> {
        let ground = filled(bench, "open", x)?;
        let calls = bench.calls(CALLS);
        let job = |on| Job::Open(Opening { tree: tree(&ground, on), count: x, limit: None, calls });
        let measures = [("open", US), ("read", US), ("fork", US), ("close", US), ("mappings", COUNT)];
        ground.compare(bench, record, &measures, |on, _| job(on))?;
        if record.wants_any(&["attach", "status"]) {
            let crew = Crew::start(bench, &ground, On::Array, 1, |_| job(On::Array))?;
            ground.attend(bench, record)?;
            crew.end()?;
        }
        for round in 0..bench.rounds {
            for on in On::turns(round) {
                if record.wants("recover") {
                    let crew = Crew::start(bench, &ground, on, 1, |_| job(on))?;
                    let write = Job::Beside(super::processes::Beside::writes(tree(&ground, on).path(0)));
                    ground.fall(bench, record, Fall::Crash(on), crew, write)?;
                }
            }
        }
        Ok(())
    }
}

const DESCRIPTORS: &[Measure] = &[Measure { name: "files", what: "files that a program can have open at once", expected: None }];

impl Axis for Descriptors {
    fn name(&self) -> &'static str {
        "descriptors"
    }

    fn what(&self) -> &'static str {
        "the limit of open descriptors (ulimit -n)"
    }

    fn points(&self, extent: Extent) -> Vec<u64> {
        if extent == Extent::Quick { vec![64, 256] } else { vec![64, 256, 1024, 4096, 16_384, 20_000, 65_536] }
    }

    fn measures(&self) -> &'static [Measure] {
        DESCRIPTORS
    }

    fn needs(&self, x: u64) -> Needs {
        Needs { bytes: x * FILE_BYTES, open_files: x.saturating_sub(1), ..Needs::default() }
    }

    fn seconds(&self, x: u64) -> f64 {
        1.0 + x as f64 / 1000.0
    }

    fn point(&mut self, bench: &Bench, x: u64, record: &mut Record) -> Result<(), String> {
        let ground = filled(bench, "descriptors", x)?;
        let job = |on| Job::Open(Opening { tree: tree(&ground, on), count: x, limit: Some(x), calls: 0 });
        // One run tells: the number is the same each time.
        for on in [On::Plain, On::Array] {
            let found = ground.run(bench, on, job(on))?;
            found.into_iter().for_each(|count| record.add("files", on, count));
        }
        Ok(())
    }
}

fn tree(ground: &Ground, on: On) -> Tree {
    Tree { directory: ground.directory(on).join("t"), per_directory: 1000 }
}

/// An array and a directory with so many files.
fn filled(bench: &Bench, name: &str, count: u64) -> Result<Ground, String> {
    let ground = Ground::new(name, "5", 3)?;
    for on in [On::Plain, On::Array] {
        ground.run(bench, on, Job::Fill { tree: tree(&ground, on), from: 0, to: count })?;
    }
    Ok(ground)
}
