//! Everything that is wanted, a few cases at a time, the long ones first.

use crate::{
    assets,
    cases::{ALWAYS, CASES, Case},
    matrix,
    options::Options,
    place::Ground,
    refusals,
    report::Report,
};
use stage::process::find_program;
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

/// What installs a program that is missing.
const PACKAGES: [(&str, &str); 22] = [
    ("musl-gcc", "musl-tools"),
    ("/usr/lib32/libc.so", "gcc-multilib"),
    ("valgrind", "valgrind"),
    ("faketime", "faketime libjemalloc2 libtcmalloc-minimal4"),
    ("eatmydata", "eatmydata"),
    ("fakeroot", "fakeroot"),
    ("bwrap", "bubblewrap"),
    ("gdb", "gdb"),
    ("cc", "gcc libc6-dev"),
    ("/usr/bin/python3", "python3 python3-lmdb python3-numpy"),
    ("node", "nodejs"),
    ("java", "default-jdk-headless"),
    ("javac", "default-jdk-headless"),
    ("redis-server", "redis-server"),
    ("redis-cli", "redis-tools"),
    ("redis-check-aof", "redis-tools"),
    ("fio", "fio"),
    ("strace", "strace"),
    ("find", "findutils"),
    ("xargs", "findutils"),
    ("sha256sum", "coreutils"),
    ("setpriv", "util-linux"),
];

/// Shows the table.
pub(crate) fn list(options: &Options) {
    for case in CASES.iter().filter(|case| options.wants_name(case.name)) {
        println!("{:<16} {}", case.name, case.needs.join(" "));
    }
    for name in refusals::names().filter(|name| options.wants_name(name)) {
        println!("{name:<16} (bad input)");
    }
}

/// Runs it. Whether all passed; an error if nothing could be run.
pub(crate) fn run(options: &Options) -> Result<bool, String> {
    options.check_library()?;
    let begun = Instant::now();
    let report = Report::default();
    let wanted = |case: &Case| options.wants_name(case.name) && (case.watchable || !options.watched);
    let mut cases: Vec<(usize, &Case)> = CASES.iter().enumerate().filter(|(_, case)| wanted(case)).collect();
    cases.sort_by_key(|(_, case)| std::cmp::Reverse(case.weight));
    if let Some(missing) = ALWAYS.iter().find(|program| find_program(program).is_none()) {
        return Err(format!("{missing} is not installed; install {}", package_of(missing)));
    }
    let ground = Ground::new(&options.library, &options.command, options.watched)?;
    let java = find_program("javac").is_some() && cases.iter().any(|(_, case)| case.needs.contains(&"javac"));
    assets::prepare(&ground, java)?;
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                while let Some(&(number, case)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    one(&ground, case, number, options, &report);
                }
            });
        }
        if options.wants_level("refused") {
            scope.spawn(|| refusals::run(&ground, options, &report));
        }
    });
    drop(ground);
    Ok(report.finish(begun.elapsed()))
}

fn one(ground: &Ground, case: &Case, number: usize, options: &Options, report: &Report) {
    if let Some(missing) = case.needs.iter().find(|program| find_program(program).is_none()) {
        let complaint = format!("{missing} is not installed; install {}", package_of(missing));
        if case.optional {
            return report.not_run(case.name, &complaint);
        }
        report.result("all", "", case.name, Duration::ZERO, &vec![complaint]);
    } else if let Err(error) = matrix::run(ground, case, number, options, report) {
        report.result("all", "", case.name, Duration::ZERO, &vec![format!("the harness failed: {error}")]);
    }
}

fn package_of(program: &str) -> &str {
    PACKAGES.iter().find(|(name, _)| *name == program).map_or(program, |(_, package)| package)
}
