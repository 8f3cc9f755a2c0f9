//! Runs the suites that the command line asks for, each on the plain directory and then on each
//! array, and prints a table and the differences.

use crate::{
    allowed,
    array::{Array, Tested},
    options::Options,
    outcome::{Difference, Outcome, differences, passed},
    place::Place,
    suites::{SUITES, Suite},
};
use std::time::Instant;

/// Runs the suites that `options` ask for, or lists them. Returns whether nothing differs but what
/// is documented (`allowed`).
pub(crate) fn all(options: &Options) -> Result<bool, String> {
    let is_named = |suite: &Suite| options.names.iter().any(|name| name == suite.name || name == suite.family());
    let wanted = |suite: &&Suite| if options.names.is_empty() { !options.quick || suite.is_quick } else { is_named(suite) };
    let suites: Vec<&Suite> = SUITES.iter().filter(wanted).collect();
    if suites.is_empty() {
        return Err(format!("no suite is called {}; --list shows them", options.names.join(" or ")));
    }
    if options.list {
        suites.iter().for_each(|suite| println!("{:<12} {}", suite.family(), suite.name));
        return Ok(true);
    }
    let place = Place::new(&options.library)?;
    let mut totals = Totals::default();
    for suite in suites {
        match suite.missing() {
            Some(package) => totals.not_run.push(format!("{} (install {package})", suite.name)),
            None => one(&place, suite, options, &mut totals)?,
        }
    }
    Ok(totals.conclude())
}

#[derive(Default)]
struct Totals {
    passed: usize,
    allowed: usize,
    failed: Vec<String>,
    not_run: Vec<String>,
}

impl Totals {
    fn conclude(&self) -> bool {
        self.failed.iter().for_each(|failure| println!("failed: {failure}"));
        if !self.not_run.is_empty() {
            println!("NOT RUN: {}: {}", self.not_run.len(), self.not_run.join(", "));
        }
        let (passed, allowed, failed) = (self.passed, self.allowed, self.failed.len());
        println!("suites: {passed} cases passed, {allowed} differ as documented, {failed} failed");
        self.failed.is_empty()
    }
}

/// Runs one suite on the plain directory and on each array, and adds to `totals` what was found.
fn one(place: &Place, suite: &Suite, options: &Options, totals: &mut Totals) -> Result<(), String> {
    let plain = Tested::Plain(place);
    let reference = suite.run(&plain);
    place.clear().map_err(|error| format!("{}: {error}", place.data.display()))?;
    // A module's end is a case, too. If no other case passes, the suite has run nothing.
    let end = format!("test.{}", suite.name);
    if !reference.iter().any(|(case, outcome)| *outcome == Outcome::Passed && *case != end) {
        totals.not_run.push(format!("{} (none of its cases passes on the plain directory)", suite.name));
        return Ok(());
    }
    for shape in options.shapes() {
        let begun = Instant::now();
        let mut tested = Tested::Array(Array::new(place, shape)?);
        let outcomes = suite.run(&tested);
        let mut found = differences(&reference, &outcomes);
        if !found.is_empty() {
            // A case that depends on time, or on what else runs, differs once. A case in which the
            // array errs differs again.
            let again = differences(&reference, &suite.run(&tested));
            found.retain(|difference| again.iter().any(|other| other.case == difference.case));
        }
        let complaints = if let Tested::Array(array) = &tested { array.check() } else { Vec::new() };
        let (documented, open): (Vec<&Difference>, Vec<&Difference>) =
            found.iter().partition(|difference| allowed::reason(&difference.case).is_some());
        let word = if open.is_empty() && complaints.is_empty() { "ok  " } else { "FAIL" };
        println!(
            "{word} {:<8} {:<34} {:>4} of {:>4} {:>6.1} s",
            shape.label,
            suite.name,
            passed(&reference) - found.len(),
            passed(&reference),
            begun.elapsed().as_secs_f64()
        );
        open.iter().for_each(|difference| println!("       {}: {}", difference.case, difference.what));
        complaints.iter().for_each(|complaint| println!("       {complaint}"));
        totals.passed += passed(&reference) - found.len();
        totals.allowed += documented.len();
        totals.failed.extend(open.iter().map(|difference| format!("{} {}", shape.label, difference.case)));
        totals.failed.extend(complaints.iter().map(|_| format!("{} {}: what is left of the array", shape.label, suite.name)));
        if let (Tested::Array(array), true) = (&mut tested, options.keep && word == "FAIL") {
            array.is_kept = true;
        }
    }
    Ok(())
}
