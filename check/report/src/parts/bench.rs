//! Parts that `cxlraid-bench` measures: the report runs it and reads its JSON.
//!
//! What takes minutes and what takes microseconds is no matter for one axis: each piece of work is
//! shown as a multiple of the same work beside it, round by round.

use super::{Group, Part};
use crate::figure::{Better, Figure, Goal, Kind, Unit, shown};
use crate::ground::{Ground, succeeded};
use crate::plan::{Extent, Plan};
use crate::record::{Check, Sample};
use crate::statistics::median;
use serde::Deserialize;
use std::collections::BTreeMap;

/// What one case of the bench gave.
#[derive(Deserialize)]
struct Row {
    case: String,
    checks: Vec<Check>,
    #[serde(default)]
    rounds: BTreeMap<String, Vec<f64>>,
    note: String,
}

#[derive(Deserialize)]
struct Report {
    rows: Vec<Row>,
}

/// Runs a case of the bench.
fn rows(ground: &Ground, plan: &Plan, case: &str) -> Result<Vec<Row>, String> {
    let run = ground.bench()?.args(["--json", case]);
    let output = if plan.is_quick() { run.arg("--sanity") } else { run }.output();
    let report: Report = serde_json::from_str(succeeded("cxlraid-bench", &output)?).map_err(|error| error.to_string())?;
    Ok(report.rows)
}

/// Each value of `these` divided by that of `those` in the same round.
fn factors(these: &[f64], those: &[f64]) -> Vec<f64> {
    these.iter().zip(those).map(|(this, that)| this / that).collect()
}

/// What a full run of a case takes, in seconds.
const fn seconds(plan: &Plan, full: f64) -> f64 {
    match plan.extent {
        Extent::Quick => 5.0,
        Extent::Usual | Extent::Full => full,
    }
}

const APPLICATIONS: &str = "applications";
const SAFETY: &str = "safety";

fn figure(id: &str, title: &str, measured: &str, differs: &str, seed: &str) -> Figure {
    let goals: Vec<Goal> = Vec::new();
    Figure {
        id: id.to_owned(),
        title: title.to_owned(),
        kind: Kind::Groups,
        unit: Unit::Factor,
        better: Better::Lower,
        x: "work",
        baseline: "",
        measured: measured.to_owned(),
        seed: seed.to_owned(),
        differs: differs.to_owned(),
        goals,
    }
}

/// Programs that make new bytes and small files, SQLite, redis, git, tar, a C build.
pub(crate) struct Applications;

impl Part for Applications {
    fn name(&self) -> &'static str {
        "applications"
    }

    fn title(&self) -> &'static str {
        "Applications"
    }

    fn figures(&self) -> Vec<Figure> {
        vec![figure(
            APPLICATIONS,
            "Applications: time as a multiple of the time on a plain tmpfs",
            "`cargo x bench new`: each program runs by turns on arrays of RAID 5, 1 and 6, in an ordinary directory of the same \
             tmpfs, and on ext4 on a loop device. A bar is its time divided by that in the ordinary directory in the same round: \
             1 is as fast as no protection at all.",
            "The thesis remapped a file for each append; here files are mapped in windows that are larger than they are. Small \
             files cost an entry in every member's tree, which a plain directory has once.",
            "the thesis measured Valkey only: without the library it was faster, most of all with many writes. MariaDB and \
             PostgreSQL did not run on it.",
        )]
    }

    fn needs_bytes(&self, plan: &Plan) -> u64 {
        if plan.is_quick() { 512 << 20 } else { 8 << 30 }
    }

    fn groups(&self, plan: &Plan) -> Vec<Group> {
        vec![Group { name: "new".to_owned(), seconds: seconds(plan, 900.0) }]
    }

    fn measure(&self, ground: &Ground, plan: &Plan, _: usize) -> Result<Vec<Sample>, String> {
        let mut samples = Vec::new();
        for row in rows(ground, plan, "new")? {
            // "tar x, small files, RAID 5 x 3"
            let Some((work, level)) = row.case.rsplit_once(", RAID ") else {
                samples.push(Sample::absent(APPLICATIONS, &row.case, &row.note));
                continue;
            };
            let Some(plain) = row.rounds.get("plain tmpfs") else { return Err(format!("{}: no rounds", row.case)) };
            let sample = |series: &str, rounds: &[f64]| {
                Sample::new(APPLICATIONS, series, work, factors(rounds, plain))
                    .with("median", shown(median(rounds), Unit::Time))
                    .with("plain", shown(median(plain), Unit::Time))
            };
            if let Some(array) = row.rounds.get("array") {
                samples.push(Sample { checks: row.checks, ..sample(&format!("RAID {level}"), array) });
            }
            // ext4 stands in the row of every level.
            if let (Some(ext4), true) = (row.rounds.get("ext4 on loop"), level.starts_with('5')) {
                samples.push(sample("ext4 on loop", ext4));
            }
            if row.note.contains("no ext4 beside") {
                samples.push(Sample::absent(APPLICATIONS, "ext4 on loop", &row.note));
            }
        }
        Ok(samples)
    }
}

/// Rebuild, scrub, reads with a member out.
pub(crate) struct Safety;

impl Part for Safety {
    fn name(&self) -> &'static str {
        "safety"
    }

    fn title(&self) -> &'static str {
        "Safety: what losses and their repair cost"
    }

    fn figures(&self) -> Vec<Figure> {
        vec![figure(
            SAFETY,
            "Safety: time as a multiple of what stands beside it",
            "`cargo x bench repair`: a scrub and a rebuild by the command on RAID 5 of three members, divided by a bare loop that \
             looks at every word once; reads with a member out, divided by reads with all members in; writes while a rebuild \
             runs, divided by writes alone.",
            "The bare loop is the least that the work can take on this memory.",
            "the thesis' `repair` went over every file on every mount, and was not measured.",
        )]
    }

    fn needs_bytes(&self, plan: &Plan) -> u64 {
        if plan.is_quick() { 128 << 20 } else { 4 << 30 }
    }

    fn groups(&self, plan: &Plan) -> Vec<Group> {
        vec![Group { name: "repair".to_owned(), seconds: seconds(plan, 120.0) }]
    }

    fn measure(&self, ground: &Ground, plan: &Plan, _: usize) -> Result<Vec<Sample>, String> {
        let sides = [("cxlraid", "bare loop"), ("one member out", "all members in"), ("during a rebuild", "alone")];
        let mut samples = Vec::new();
        for row in rows(ground, plan, "repair")? {
            let side = sides.iter().find_map(|(this, that)| Some((this, that, row.rounds.get(*this)?, row.rounds.get(*that)?)));
            let Some((this, that, these, those)) = side else { return Err(format!("{}: no rounds", row.case)) };
            let sample = Sample::new(SAFETY, this, &row.case, factors(these, those))
                .with("median", shown(median(these), Unit::Time))
                .with(that, shown(median(those), Unit::Time));
            samples.push(Sample { checks: row.checks, ..sample });
        }
        Ok(samples)
    }
}
