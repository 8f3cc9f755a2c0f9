//! `cargo x fuzz`: every target of check/fuzz, with coverage.
//!
//! The crate is a workspace of its own and is built with the compiler's coverage pass, which stable
//! Rust has; so are the crates under test. What a run finds interesting is kept in
//! target/fuzz/corpus beside what check/fuzz/corpus holds; an input that fails in
//! target/fuzz/artifacts.

use crate::steps::{Outcome, cargo, command, root, run};
use std::{fs, path::PathBuf};

const MANIFEST: &str = "--manifest-path check/fuzz/Cargo.toml";
/// As in check/fuzz/src/main.rs.
const TARGETS: [&str; 14] = [
    "superblock",
    "table",
    "inode",
    "lane",
    "changed",
    "names",
    "journal",
    "attribute",
    "environment",
    "named-array",
    "paths",
    "geometry",
    "resolution",
    "segment",
];
/// The targets that use arrays, and by which number their executions are fewer than those of
/// targets that only read bytes, in a long run and in a quick one: each takes some 100 µs, or a
/// process of its own.
const WITH_ARRAYS: [(&str, u64, u64); 2] = [("resolution", 100, 1), ("segment", 500, 100)];
/// With a triple, so that build scripts are built without.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";
const COVERAGE: &str = "-C passes=sancov-module -C llvm-args=-sanitizer-coverage-level=4 \
                        -C llvm-args=-sanitizer-coverage-inline-8bit-counters -C llvm-args=-sanitizer-coverage-pc-table \
                        -C llvm-args=-sanitizer-coverage-trace-compares -C codegen-units=1";
/// The longest input: a superblock with both copies, and its first byte.
const BYTES_MAX: usize = 9000;
/// Executions of each target in a long run, and in `cargo x test`: some seconds.
const RUNS: u64 = 100_000_000;
const RUNS_QUICK: u64 = 100_000;

fn directory() -> PathBuf {
    root().join("target/fuzz")
}

/// Formatting and lints of the crate, which the workspace's do not see.
pub(crate) fn fmt(rest: &[String]) -> Outcome {
    run(cargo(&format!("fmt {MANIFEST}"), rest))
}

pub(crate) fn lint() -> Outcome {
    let mut clippy = cargo(&format!("clippy --quiet {MANIFEST} -- -D warnings"), &[]);
    clippy.env("CARGO_TARGET_DIR", directory());
    run(clippy)
}

/// Runs the targets named, or all. `--quick` runs each for some seconds, always the same inputs;
/// `--runs N` so many; words that begin with `-` are libFuzzer's.
pub(crate) fn fuzz(rest: &[String]) -> Outcome {
    let quick = rest.iter().any(|word| word == "--quick");
    let mut runs = if quick { RUNS_QUICK } else { RUNS };
    let (mut names, mut options) = (Vec::new(), Vec::new());
    let mut words = rest.iter().filter(|word| *word != "--quick");
    while let Some(word) = words.next() {
        if word == "--runs" {
            runs = words.next().and_then(|count| count.parse().ok()).ok_or("--runs needs a number")?;
        } else if word.starts_with('-') {
            options.push(word.clone());
        } else if TARGETS.contains(&word.as_str()) {
            names.push(word.as_str());
        } else {
            return Err(format!("{word}: no such target; there are {}", TARGETS.join(", ")));
        }
    }
    let mut build = cargo(&format!("build --quiet --release --target {TRIPLE} {MANIFEST}"), &[]);
    run({
        build.env("CARGO_TARGET_DIR", directory()).env("RUSTFLAGS", COVERAGE);
        build
    })?;
    for name in TARGETS.iter().filter(|name| names.is_empty() || names.contains(*name)) {
        fuzz_one(name, runs, quick, &options)?;
    }
    Ok(())
}

/// A directory in shared memory, for a target that uses an array. Removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> std::io::Result<Self> {
        let path = PathBuf::from(format!("/dev/shm/cxlraid-fuzz.{}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The segment target has arrays in directories two levels below.
        let below =
            |directory: PathBuf| fs::read_dir(directory).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
        stage::segment::forget(below(self.0.clone()).flat_map(below).map(|array| array.join("m0")));
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn fuzz_one(name: &str, runs: u64, quick: bool, options: &[String]) -> Outcome {
    let (artifacts, found) = (directory().join("artifacts"), directory().join(if quick { "quick" } else { "corpus" }).join(name));
    if quick {
        // The same each time: nothing that an earlier run found.
        let _ = fs::remove_dir_all(&found);
    }
    for directory in [&artifacts, &found] {
        fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    }
    let program = directory().join(TRIPLE).join("release/cxlraid-fuzz");
    let fewer = WITH_ARRAYS.iter().find(|(known, ..)| *known == name);
    let runs = runs / fewer.map_or(1, |&(_, long, short)| if quick { short } else { long });
    let scratch = Scratch::new().map_err(|error| format!("a directory for the array: {error}"))?;
    let mut fuzzer = command(program.to_str().ok_or("the target directory's name is no text")?);
    fuzzer.env("CXLRAID_FUZZ_TARGET", name).env("CXLRAID_FUZZ_DIRECTORY", &scratch.0);
    fuzzer.arg(format!("-runs={runs}")).arg(format!("-max_len={BYTES_MAX}")).arg("-timeout=10").args(options);
    fuzzer.arg(format!("-artifact_prefix={}/{name}-", artifacts.display()));
    if name == "segment" {
        // Inputs of many steps from the start.
        fuzzer.arg("-len_control=0");
    }
    fuzzer.args(if quick { ["-seed=1"] } else { ["-print_final_stats=1"] });
    fuzzer.arg(found).arg(root().join("check/fuzz/corpus").join(name));
    if !quick {
        return run(fuzzer);
    }
    let output = fuzzer.output().map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    Err(format!("fuzz target {name}: {}", output.status))
}
