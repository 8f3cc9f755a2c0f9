//! Deliveries to a maildir: many small files, each synced and linked to its place.

use super::configurations::{PROGRAMS, Places};
use super::{Group, Part, by_turns};
use crate::figure::{Better, Figure, Kind, Unit};
use crate::ground::{Ground, Place, succeeded};
use crate::plan::Plan;
use crate::record::Sample;
use std::sync::atomic::{AtomicUsize, Ordering};

const FIGURE: &str = "maildir";
const SCRIPT: &str = include_str!("maildir.py");
/// As the programs under test of this project, since a version manager may have others.
const PYTHON: &str = "python3";

/// The figure of deliveries.
pub(crate) struct Maildir;

/// Messages of one round.
fn messages(plan: &Plan) -> usize {
    plan.records / 10
}

/// One round. Returns the deliveries each second.
fn run(ground: &Ground, place: &Place, plan: &Plan, round: usize) -> Result<f64, String> {
    let directory = place.directory.join(format!("mail-{round}")).display().to_string();
    let output = ground.program(PYTHON, place)?.args(["-c", SCRIPT, &directory, &messages(plan).to_string()]).output();
    succeeded("the deliveries", &output)?.trim().parse().map_err(|error| format!("the deliveries: {error}"))
}

impl Part for Maildir {
    fn name(&self) -> &'static str {
        "maildir"
    }

    fn title(&self) -> &'static str {
        "Mail"
    }

    fn figures(&self) -> Vec<Figure> {
        vec![Figure {
            id: FIGURE.to_owned(),
            title: "Deliveries to a maildir, each second".to_owned(),
            kind: Kind::Bars,
            unit: Unit::Operations,
            better: Better::Higher,
            x: "",
            baseline: "posix",
            measured: "A Python program delivers messages of 4 KiB: create in tmp, write, fsync, close, link into new, unlink. \
                Each round has directories of its own."
                .to_owned(),
            seed: String::new(),
            differs: "The seeds did not measure mail. Here the price of names is seen: three members have three files, three \
                links and three fsyncs for each message; Python's own work is in all figures."
                .to_owned(),
            goals: Vec::new(),
        }]
    }

    fn needs_bytes(&self, plan: &Plan) -> u64 {
        let plan = Plan { file_bytes: (plan.rounds * messages(plan)) as u64 * 8192 + (64 << 20), ..*plan };
        PROGRAMS.iter().map(|one| one.takes_bytes(&plan)).sum()
    }

    fn groups(&self, plan: &Plan) -> Vec<Group> {
        let seconds = if plan.is_quick() { 2.0 } else { (plan.rounds * messages(plan)) as f64 / 250.0 };
        vec![Group { name: "deliveries".to_owned(), seconds }]
    }

    fn measure(&self, ground: &Ground, plan: &Plan, _: usize) -> Result<Vec<Sample>, String> {
        if let Some(absent) = Places::without(PYTHON, FIGURE, &PROGRAMS) {
            return Ok(absent);
        }
        let places = Places::make_empty(ground, &PROGRAMS)?;
        let count = AtomicUsize::new(0);
        let found = by_turns(plan, places.found.len(), |index| {
            run(ground, &places.found[index].1, plan, count.fetch_add(1, Ordering::Relaxed))
        })?;
        let mut samples = places.left_out(FIGURE);
        samples.extend(
            places
                .found
                .iter()
                .zip(found)
                .map(|((one, _), rounds)| Sample::new(FIGURE, one.name, "", rounds).with("messages", messages(plan).to_string())),
        );
        places.discard(ground)?;
        Ok(samples)
    }
}
