//! What workers do: one job each, on the array with the library loaded, in an ordinary directory
//! without it.
//!
//! A worker that is to wait says a line when it has prepared its job, and begins at a line on its
//! standard input. At the input's end it ends in order without having done the job. Its result is
//! one line: nanoseconds, or counts, in the order that each job names.

use super::mappings::{self, Mapping};
use super::open::{self, Opening};
use super::sizes::{self, Sized};
use super::{files, processes};
use crate::library::said;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead as _, Write as _};
use std::path::PathBuf;
use std::time::Instant;

/// Files with numbers for names, all in one directory or so many in each.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct Tree {
    pub(crate) directory: PathBuf,
    /// Files in a directory; 0 if all lie in one.
    pub(crate) per_directory: u64,
}

impl Tree {
    pub(crate) fn parent(&self, index: u64) -> PathBuf {
        self.directory.join(index.checked_div(self.per_directory).unwrap_or(0).to_string())
    }

    pub(crate) fn path(&self, index: u64) -> PathBuf {
        self.parent(index).join(index.to_string())
    }
}

/// What a worker is to do.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) enum Job {
    /// Nothing, by a program that is none of ours.
    Idle,
    /// Makes the files of a tree that have these numbers.
    Fill { tree: Tree, from: u64, to: u64 },
    /// Makes `calls` files of 100 bytes beside the first `count` of a tree, and removes them:
    /// nanoseconds of each creation, of each removal.
    Churn { tree: Tree, count: u64, calls: usize, seed: u64 },
    /// Asks about files of a tree at random: nanoseconds of each stat.
    Stat { tree: Tree, count: u64, calls: usize, seed: u64 },
    /// Opens, reads and closes files of a tree that this process has not opened before, then opens
    /// and closes the last few again: nanoseconds of each.
    Read { tree: Tree, count: u64, calls: usize, seed: u64 },
    /// Lists all names and types: nanoseconds in all.
    Walk { tree: Tree, count: u64 },
    /// Has files open.
    Open(Opening),
    /// Works on one file of a known size.
    Sized(Sized),
    /// Works on a mapping of a file.
    Mapping(Mapping),
    /// Works beside others.
    Beside(processes::Beside),
}

/// A worker's talk with who started it.
pub(crate) struct Talk {
    waits: bool,
    began_ns: u64,
}

impl Talk {
    /// Tells whether the worker is to wait.
    pub(crate) const fn waits(&self) -> bool {
        self.waits
    }

    /// Says that all is prepared, and waits. False if the job is not to be done.
    pub(crate) fn ready(&mut self) -> Result<bool, String> {
        if self.waits {
            say("ready")?;
            let mut text = String::new();
            if io::stdin().lock().read_line(&mut text).map_err(said)? == 0 {
                return Ok(false);
            }
        }
        self.began_ns = sys::clock::monotonic_ns();
        Ok(true)
    }
}

/// Does a job. Its result is said on standard output; one that waited also says when it began and
/// ended, before everything else.
pub(crate) fn work(job: Job, waits: bool) -> Result<(), String> {
    let mut talk = Talk { waits, began_ns: 0 };
    let found = match job {
        Job::Idle => Ok(None),
        Job::Fill { tree, from, to } => files::fill(&tree, from, to).map(|()| Some(Vec::new())),
        Job::Churn { tree, count, calls, seed } => files::churn(&tree, count, calls, seed).map(Some),
        Job::Stat { tree, count, calls, seed } => files::stat(&tree, count, calls, seed).map(Some),
        Job::Read { tree, count, calls, seed } => files::read(&tree, count, calls, seed).map(Some),
        Job::Walk { tree, count } => files::walk(&tree, count).map(Some),
        Job::Open(opening) => open::work(&opening, &mut talk),
        Job::Sized(sized) => sizes::work(&sized, &mut talk),
        Job::Mapping(mapping) => mappings::work(&mapping).map(Some),
        Job::Beside(beside) => processes::work(&beside, &mut talk),
    }?;
    let Some(mut found) = found else { return Ok(()) };
    if waits {
        found.splice(0..0, [talk.began_ns as f64, sys::clock::monotonic_ns() as f64]);
    }
    say(&serde_json::to_string(&found).map_err(|error| error.to_string())?)
}

/// Says a line.
pub(crate) fn say(text: &str) -> Result<(), String> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}").and_then(|()| stdout.flush()).map_err(said)
}

/// Runs `work`, and returns how long it took in nanoseconds.
pub(crate) fn timed(work: impl FnOnce() -> io::Result<()>) -> Result<f64, String> {
    let begun = Instant::now();
    work().map_err(said)?;
    Ok(begun.elapsed().as_nanos() as f64)
}

/// How long something takes that is done for each item; nanoseconds of one.
pub(crate) fn each<T>(items: impl IntoIterator<Item = T>, mut work: impl FnMut(T) -> io::Result<()>) -> Result<f64, String> {
    let mut count = 0;
    let nanoseconds = timed(|| {
        items.into_iter().try_for_each(|item| {
            count += 1;
            work(item)
        })
    })?;
    Ok(nanoseconds / f64::from(count.max(1)))
}
