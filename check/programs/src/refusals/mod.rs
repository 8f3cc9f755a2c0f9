//! Bad input: starts that are refused, and starts that go on with a warning.
//!
//! A refused start says one line on standard error that names the thing, the program's call fails
//! with the right errno, nothing on any member is changed, and a program that names nothing of the
//! array does not notice. The cases are in [`table`], room that runs out in [`space`].

mod given;
mod handed;
mod loss;
mod others;
mod scene;
mod space;
mod table;
mod unreached;

use crate::{
    array::Shape,
    options::Options,
    place::{Ground, Place},
    report::{Complaints, Report},
};
use scene::Scene;
use std::{io, time::Instant};

/// What became of a case that began.
enum Outcome {
    Ran,
    /// Why it cannot be run here.
    NotRun(&'static str),
}

/// One row: how the scene is set and what is expected of it.
struct Case {
    name: &'static str,
    shape: Shape,
    act: fn(&mut Scene<'_>, &mut Complaints) -> io::Result<Outcome>,
}

fn all() -> impl Iterator<Item = &'static Case> {
    table::CASES.iter().chain(&space::CASES)
}

pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    all().map(|case| case.name)
}

/// Runs those that are wanted, one after the other.
pub(crate) fn run(ground: &Ground, options: &Options, report: &Report) {
    for case in all().filter(|case| options.wants_name(case.name)) {
        let begun = Instant::now();
        let mut complaints = Complaints::new();
        match one(ground, case, &mut complaints) {
            Ok(Outcome::Ran) => {}
            Ok(Outcome::NotRun(why)) => {
                report.not_run(case.name, why);
                continue;
            }
            Err(error) => complaints.push(format!("the harness failed: {error}")),
        }
        report.result(case.shape.label, "refused", case.name, begun.elapsed(), &complaints);
    }
}

fn one(ground: &Ground, case: &Case, complaints: &mut Complaints) -> io::Result<Outcome> {
    let place = Place::new(ground, case.name)?;
    let mut scene = Scene::new(&place, case.shape)?;
    let outcome = (case.act)(&mut scene, complaints);
    drop(scene);
    place.clear()?;
    outcome
}
