//! `cargo x bench`: the limits of the machine, the kernel, and cxlraid, in one run.
//!
//! For each level a worker process runs with the library loaded, where limit loops, the kernel's
//! calls and ours take turns on the same memory (`levels`, `limit`, `rounds`). Appends, names, two
//! parties at once, calls that are not ours and start-up have workers of their own. Medians of many
//! short rounds are held against the goals (`report`). How costs grow is a part of its own (`scale`).

mod append;
mod beside;
mod degraded;
mod engine;
mod followed;
mod fresh;
mod levels;
mod library;
mod limit;
mod mapped;
mod members;
mod names;
mod notours;
mod party;
mod places;
mod plan;
mod repair;
mod report;
mod rounds;
mod scale;
mod scaling;
mod startup;
mod strace;
mod subject;

use plan::Plan;
use report::{Report, Row};
use std::process::ExitCode;

const HELP: &str = "\
cxlraid-bench [--json] [--sanity] [--engine] [CASE...]
cxlraid-bench scale [--help]

  --json     results as JSON instead of a table
  --sanity   sizes so small that times mean nothing; fails if something does not run or data is wrong
  --engine   the engine itself, without the library
  CASE       raid1, raid5, degraded, repair, journal, append, mmap, names, new (programs that
             make new bytes and small files), scaling, notours, startup; all if none is given

The library is CXLRAID_LIB, or libcxlraid.so beside this program.";

const CASES: [&str; 12] =
    ["raid1", "raid5", "degraded", "repair", "journal", "append", "mmap", "names", "new", "scaling", "notours", "startup"];

/// What was asked for.
#[derive(Default)]
struct Options {
    json: bool,
    sanity: bool,
    engine: bool,
    cases: Vec<String>,
}

impl Options {
    fn parse(arguments: impl Iterator<Item = String>) -> Option<Self> {
        let mut options = Self::default();
        for argument in arguments {
            match argument.as_str() {
                "--json" => options.json = true,
                "--sanity" => options.sanity = true,
                "--engine" => options.engine = true,
                case if CASES.contains(&case) => options.cases.push(argument),
                _ => return None,
            }
        }
        Some(options)
    }

    fn wants(&self, case: &str) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|wanted| wanted == case)
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.peek().is_some_and(|first| first == "worker") {
        return finish(library::work(&arguments.nth(1).unwrap_or_default()));
    }
    if arguments.peek().is_some_and(|first| first == scale::WORD) {
        return match scale::run(arguments.skip(1)) {
            Err(scale::Failure::Usage(message)) => {
                eprintln!("{message}");
                ExitCode::from(2)
            }
            Err(scale::Failure::Run(message)) => finish(Err(message)),
            Ok(()) => ExitCode::SUCCESS,
        };
    }
    match Options::parse(arguments) {
        Some(options) => finish(run(&options)),
        None => {
            eprintln!("{HELP}");
            ExitCode::from(2)
        }
    }
}

fn finish(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("cxlraid-bench: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), String> {
    let plan = if options.sanity { Plan::sanity() } else { Plan::full() };
    let wants = |case: &str| options.wants(case);
    let rows = if options.engine { engine_rows(&plan, wants) } else { library::rows(&plan, wants) }?;
    let report = Report { machine: report::machine(), rows };
    println!("{}", if options.json { report.json() } else { report.table() });
    match report.rows.iter().find(|row| !row.is_plausible()) {
        Some(row) => Err(format!("{}: a figure is not one", row.case)),
        None => Ok(()),
    }
}

fn engine_rows(plan: &Plan, wants: impl Fn(&str) -> bool) -> Result<Vec<Row>, String> {
    let said = |error: std::io::Error| error.to_string();
    let mut rows = Vec::new();
    for (name, level) in [("raid1", "1"), ("raid5", "5")] {
        if wants(name) {
            rows.extend(engine::level_rows(plan, level, None).map_err(said)?);
        }
        if wants("journal") {
            for on_members in [false, true] {
                rows.extend(engine::level_rows(plan, level, Some(on_members)).map_err(said)?);
            }
        }
    }
    if wants("degraded") {
        rows.extend(engine::degraded_rows(plan).map_err(said)?);
    }
    if wants("append") {
        rows.push(engine::append_row(plan).map_err(said)?);
    }
    Ok(rows)
}
