//! All cases one after the other, and what is looked at when one is done.

use crate::check::Wish;
use crate::crowd;
use crate::ground::{self, Ground};
use crate::options::Options;
use crate::shape::{Case, LEVELS, Mode, Scenario};
use crate::stores;
use std::fs;
use std::time::{Duration, Instant};

/// Slower than this and something hangs.
const OPERATIONS_PER_SECOND_MIN: u64 = 200;
const KILLS_PER_SECOND_MIN: u64 = 2;

pub(crate) fn run(options: &Options) -> Result<(), String> {
    println!("seed {}", options.seed);
    ground::remove_stale();
    if options.plain {
        return plain(options);
    }
    if !options.library.is_file() {
        return Err(format!(
            "{}: not there; build it with 'cargo build --release -p cxlraid-preload'",
            options.library.display()
        ));
    }
    let library = fs::canonicalize(&options.library).map_err(|error| error.to_string())?;
    let begun = Instant::now();
    for level in LEVELS {
        let cases: Vec<Case> = options.cases.iter().copied().filter(|case| case.level == level).collect();
        if cases.is_empty() {
            continue;
        }
        let (begun, mut done) = (Instant::now(), 0);
        let share = options.operations.div_ceil(cases.len() as u64);
        for &case in &cases {
            let mut ground = Ground::new(case, &library).map_err(|error| format!("{case}: {error}"))?;
            done += run_case(&ground, options, share).map_err(|message| {
                ground.keep = options.keep;
                let maps = if options.maps { "" } else { " --no-maps" };
                let kept = if options.keep { format!("\nkept in {}", ground.root().display()) } else { String::new() };
                let extent = match options.kills {
                    Some(kills) => format!("--kills {kills}"),
                    None => format!("--operations {share}"),
                };
                format!("{message}\nrepeat with: cargo x soak {case}{maps} --seed {} {extent}{kept}", options.seed)
            })?;
        }
        let seconds = begun.elapsed().as_secs_f64();
        println!("level {:>2}: {done} operations in {} cases, {seconds:.1} s", level.name, cases.len());
    }
    println!("everything took {:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// Runs a case and looks at what it left. Returns the operations done.
fn run_case(ground: &Ground, options: &Options, operations: u64) -> Result<u64, String> {
    let seed = options.seed;
    let case = ground.case;
    if let (Mode::Doors, Err(why)) = (case.mode, stage::door::may_mount()) {
        println!("  NOT RUN: {case}: {why}");
        return Ok(0);
    }
    let lost = match case.scenario {
        Scenario::Missing => {
            // The array is made with all its members.
            ground.check(&Wish::default())?;
            ground.forget_runtime();
            let slot = (case.seed(seed) % case.level.member_count as u64) as usize;
            ground.lose(slot).map_err(|error| error.to_string())?;
            1
        }
        Scenario::Cut => 1,
        Scenario::Healthy => 0,
    };
    let wanted = operations / OPERATIONS_PER_SECOND_MIN;
    let limit = Duration::from_secs(60 + options.kills.map_or(wanted, |kills| kills / KILLS_PER_SECOND_MIN));
    let done = match case.mode {
        Mode::Single => single(ground, options, operations, limit)?,
        Mode::Stores => stores::run(ground, case.seed(seed), operations, limit)?,
        Mode::Threads | Mode::Processes | Mode::Doors => {
            let until = options.kills.map_or(crowd::Until::Operations(operations), crowd::Until::Kills);
            crowd::run(ground, case.seed(seed), until, limit)?
        }
    };
    let leaked = ground.leaked();
    if !leaked.is_empty() {
        return Err(format!("{leaked:?} outside the array"));
    }
    inspect(ground, lost)?;
    Ok(done)
}

fn single(ground: &Ground, options: &Options, operations: u64, limit: Duration) -> Result<u64, String> {
    let case = ground.case;
    let (directory, expected) = (ground.data().display().to_string(), ground.expected().display().to_string());
    let (seed, count, chunk) = (case.seed(options.seed).to_string(), operations.to_string(), case.chunk.to_string());
    let cut = ground.member(case.level.first_slot).display().to_string();
    let mut words = vec!["single", "--directory", &directory, "--seed", &seed, "--operations", &count, "--chunk", &chunk];
    words.extend(["--expected", &expected]);
    match case.scenario {
        Scenario::Cut => words.extend(["--cut", &cut]),
        // Pages are composed of chunks of a page and more, and only while all members are there.
        Scenario::Healthy if case.chunk >= 4096 || !case.level.has_chunks => words.push("--coherent-maps"),
        _ => {}
    }
    if options.maps {
        words.push("--maps");
    }
    let command = ground.role(&words, true).map_err(|error| error.to_string())?;
    ground::finish(command, limit)?;
    Ok(operations)
}

/// With all members there, and with each of those that the level can do without.
fn inspect(ground: &Ground, lost: usize) -> Result<(), String> {
    let case = ground.case;
    let expected = ground.expected();
    if expected.exists() {
        ground.check(&Wish { expected: Some(expected.clone()), ..Wish::default() })?;
    } else {
        ground.check(&Wish { save: Some(expected.clone()), ..Wish::default() })?;
    }
    if lost >= case.level.bears {
        return Ok(());
    }
    for slot in 0..case.level.member_count {
        if !ground.member(slot).exists() || case.scenario == Scenario::Cut && slot == case.level.first_slot {
            continue;
        }
        ground.forget_runtime();
        ground.lose(slot).map_err(|error| error.to_string())?;
        let result = ground.check(&Wish { expected: Some(expected.clone()), ..Wish::default() });
        ground.bring_back(slot).map_err(|error| error.to_string())?;
        result.map_err(|message| format!("without member {slot}: {message}"))?;
    }
    Ok(())
}

/// The model against the kernel.
fn plain(options: &Options) -> Result<(), String> {
    let case = options.cases[0];
    let ground = Ground::new(case, &options.library).map_err(|error| error.to_string())?;
    fs::create_dir(ground.data()).map_err(|error| error.to_string())?;
    let directory = ground.data().display().to_string();
    let (seed, count, chunk) = (options.seed.to_string(), options.operations.to_string(), case.chunk.to_string());
    let words = ["single", "--directory", &directory, "--seed", &seed, "--operations", &count, "--chunk", &chunk, "--maps"];
    let mut command = ground.role(&words, false).map_err(|error| error.to_string())?;
    command.args(["--plain", "--coherent-maps"]);
    ground::finish(command, Duration::from_secs(60 + options.operations / OPERATIONS_PER_SECOND_MIN))?;
    println!("plain: {} operations", options.operations);
    Ok(())
}
