//! Two axes of growth: the number of files in the array, all in one directory and 200 in each.

use super::agent::{Job, Tree, each, timed};
use super::axis::{Axis, Bench, Extent, Measure, On, Record, flat, linear};
use super::limits::Needs;
use super::pair::{ATTACH, Ground, RECOVER, START, STATUS, STOP, US};
use crate::library::said;
use crate::places::{Order, Places};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;

/// What a file holds that is not empty.
const BYTES: [u8; 100] = [7; 100];
/// Behind the first [`FULL`] files one file of so many holds bytes, so that memory is not what ends
/// the axis.
const ONE_OF: u64 = 16;
/// How many files there are, from the first one on, that all hold bytes.
const FULL: u64 = 4096;
/// How often a job makes its call.
const CALLS: usize = 512;
/// How many files the measure "kept" opens again and again.
const KEPT: usize = 8;
/// How much memory the kernel takes for an empty file on one member.
const FILE_BYTES: u64 = 1400;
/// How much memory the bytes of a file take on all three members together.
const FILLED_BYTES: u64 = 12 << 10;

const MEASURES: &[Measure] = &[
    flat("create", "create, write 100 bytes, close; us each"),
    flat("unlink", "unlink, us each"),
    flat("stat", "stat at random, us each"),
    flat("read", "open, read, close of a file that this process has not had open, at random; us each"),
    flat("kept", "open and close of a file that was closed just before, us each"),
    linear("walk", "all names and types, us"),
    ATTACH,
    Measure { expected: Some(1.0), ..STATUS },
    STOP,
    Measure { expected: Some(1.0), ..START },
    Measure { expected: Some(1.0), ..RECOVER },
];

struct Files {
    per_directory: u64,
    /// The ground of the point before, and the number of files on it.
    ground: Option<(Ground, u64)>,
}

pub(crate) fn axes() -> Vec<Box<dyn Axis>> {
    vec![Box::new(Files { per_directory: 0, ground: None }), Box::new(Files { per_directory: 200, ground: None })]
}

impl Axis for Files {
    fn name(&self) -> &'static str {
        if self.per_directory == 0 { "files-one" } else { "files-many" }
    }

    fn what(&self) -> &'static str {
        if self.per_directory == 0 { "files, all in one directory" } else { "files, 200 in each directory" }
    }

    fn points(&self, extent: Extent) -> Vec<u64> {
        let mut points = match extent {
            Extent::Quick => vec![100, 300],
            _ => vec![1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000],
        };
        if extent == Extent::Long {
            points.extend([3_000_000, 10_000_000]);
        }
        points
    }

    fn measures(&self) -> &'static [Measure] {
        MEASURES
    }

    fn needs(&self, x: u64) -> Needs {
        Needs { bytes: x * 4 * FILE_BYTES + (FULL.min(x) + x / ONE_OF) * FILLED_BYTES, ..Needs::default() }
    }

    fn seconds(&self, x: u64) -> f64 {
        1.0 + x as f64 / 10_000.0
    }

    fn point(&mut self, bench: &Bench, x: u64, record: &mut Record) -> Result<(), String> {
        let (ground, count) = match self.ground.take() {
            Some(ground) => ground,
            None => (Ground::new(self.name(), "5", 3)?, 0),
        };
        let tree = |on| Tree { directory: ground.directory(on).join("t"), per_directory: self.per_directory };
        for on in [On::Plain, On::Array] {
            ground.run(bench, on, Job::Fill { tree: tree(on), from: count, to: x })?;
        }
        let calls = bench.calls(CALLS);
        let seed = |round: usize| x + round as u64;
        ground.compare(bench, record, &[("create", US), ("unlink", US)], |on, round| Job::Churn {
            tree: tree(on),
            count: x,
            calls,
            seed: seed(round),
        })?;
        ground.compare(bench, record, &[("stat", US)], |on, round| Job::Stat {
            tree: tree(on),
            count: x,
            calls,
            seed: seed(round),
        })?;
        ground.compare(bench, record, &[("read", US), ("kept", US)], |on, round| Job::Read {
            tree: tree(on),
            count: x,
            calls,
            seed: seed(round),
        })?;
        ground.compare(bench, record, &[("walk", US)], |on, _| Job::Walk { tree: tree(on), count: x })?;
        let write = |on| Job::Beside(super::processes::Beside::writes(tree(on).path(0)));
        ground.live(bench, record, &write)?;
        self.ground = Some((ground, x));
        Ok(())
    }
}

const fn has_bytes(index: u64) -> bool {
    index < FULL || index.is_multiple_of(ONE_OF)
}

pub(crate) fn fill(tree: &Tree, from: u64, to: u64) -> Result<(), String> {
    for index in from..to {
        if index == from || index.checked_rem(tree.per_directory) == Some(0) {
            fs::create_dir_all(tree.parent(index)).map_err(said)?;
        }
        let path = tree.path(index);
        let made = if has_bytes(index) { fs::write(&path, BYTES) } else { File::create(&path).map(|_| ()) };
        made.map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// Draws `calls` numbers below `count`.
fn numbers(count: u64, calls: usize, seed: u64) -> Vec<u64> {
    let mut numbers = Vec::new();
    Places::new(Order::Random, count, 1, seed as usize, 1).fill(&mut numbers, calls);
    numbers
}

fn paths(tree: &Tree, count: u64, calls: usize, seed: u64) -> Vec<PathBuf> {
    numbers(count, calls, seed).into_iter().map(|index| tree.path(index)).collect()
}

pub(crate) fn churn(tree: &Tree, count: u64, calls: usize, seed: u64) -> Result<Vec<f64>, String> {
    let parents = numbers(count, calls, seed).into_iter().map(|index| tree.parent(index));
    let new: Vec<PathBuf> = parents.enumerate().map(|(number, parent)| parent.join(format!("new-{number}"))).collect();
    let create = |path: &PathBuf| OpenOptions::new().write(true).create_new(true).open(path)?.write_all(&BYTES);
    Ok(vec![each(&new, create)?, each(&new, fs::remove_file)?])
}

pub(crate) fn stat(tree: &Tree, count: u64, calls: usize, seed: u64) -> Result<Vec<f64>, String> {
    Ok(vec![each(&paths(tree, count, calls, seed), |path| fs::symlink_metadata(path).map(|_| ()))?])
}

pub(crate) fn read(tree: &Tree, count: u64, calls: usize, seed: u64) -> Result<Vec<f64>, String> {
    let with_bytes = |index: u64| if has_bytes(index) { index } else { index - index % ONE_OF };
    let mut indices: Vec<u64> = numbers(count, calls, seed).into_iter().map(with_bytes).collect();
    indices.sort_unstable();
    indices.dedup();
    // Sorting has removed repetitions. Now the indices are mixed again, so that files are read in
    // no order.
    indices.sort_unstable_by_key(|index| index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let paths: Vec<PathBuf> = indices.into_iter().map(|index| tree.path(index)).collect();
    let read = |path: &PathBuf| {
        let mut buffer = [0; 200];
        let length = File::open(path)?.read(&mut buffer)?;
        if buffer[..length] == BYTES { Ok(()) } else { Err(io::Error::other(format!("{}: wrong bytes", path.display()))) }
    };
    let cold = each(&paths, read)?;
    let last = &paths[paths.len().saturating_sub(KEPT)..];
    let kept = (0..calls).map(|number| &last[number % last.len()]);
    Ok(vec![cold, each(kept, |path| File::open(path).map(|_| ()))?])
}

pub(crate) fn walk(tree: &Tree, count: u64) -> Result<Vec<f64>, String> {
    let mut found = 0;
    let nanoseconds = timed(|| {
        for directory in fs::read_dir(&tree.directory)? {
            for entry in fs::read_dir(directory?.path())? {
                found += u64::from(entry?.file_type()?.is_file());
            }
        }
        Ok(())
    })?;
    if found == count { Ok(vec![nanoseconds]) } else { Err(format!("{found} files were found of {count}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_filled_read_walked_and_left_as_it_was() {
        let directory = std::env::temp_dir().join(format!("cxlraid-scale-{}", std::process::id()));
        for per_directory in [0, 7] {
            let tree = Tree { directory: directory.join(per_directory.to_string()), per_directory };
            fill(&tree, 0, 20).unwrap();
            fill(&tree, 20, 50).unwrap();
            for _ in 0..2 {
                churn(&tree, 50, 30, 3).unwrap();
            }
            stat(&tree, 50, 100, 1).unwrap();
            assert_eq!(read(&tree, 50, 100, 2).unwrap().len(), 2);
            walk(&tree, 50).unwrap();
            assert!(walk(&tree, 51).is_err());
        }
        fs::remove_dir_all(directory).unwrap();
    }
}
