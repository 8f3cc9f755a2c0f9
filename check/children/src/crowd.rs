//! The random crowd: threads that keep files and threads that make children of every kind
//! (`c/crowd.c`), in rounds with a seed each.
//!
//! A round runs on a plain directory first. What the files hold in the end depends on the seed and
//! the number of children only, so each level must give the same; the program itself ends at the
//! first wrong byte, offset or errno. After each round on an array all is looked at as after a
//! case.

use crate::{
    array::{Array, Shape},
    ground::{Ground, Place},
    options::Options,
    suite::content,
};
use stage::{
    report::{Complaints, Report, compare, with_output},
    run::{Output, Run},
};
use std::time::{Duration, Instant};

/// Children of a round: after so many the members are looked at.
const ROUND_SPAWNS: u64 = 5000;
/// How long a round may take: a base, and so much for each child. Most are done in a tenth of it.
const LIMIT_BASE: Duration = Duration::from_secs(30);
const LIMIT_PER_SPAWN: Duration = Duration::from_millis(40);

/// One row of the table.
pub(crate) struct Crowd {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Further arguments of the program.
    arguments: &'static [&'static str],
    /// Whether it runs if no names are given.
    pub(crate) is_default: bool,
}

/// The crowds.
pub(crate) const CROWDS: [Crowd; 2] = [
    Crowd {
        name: "crowd",
        about: "children of every kind at random, beside threads that verify files; fork children are killed at any instant",
        arguments: &[],
        is_default: true,
    },
    Crowd {
        name: "anywhere",
        about: "the same, and vfork children are killed in the middle of calls, too (only if named)",
        arguments: &["anywhere"],
        is_default: false,
    },
];

/// The counts of one level over the rounds that it has run, and what went wrong there.
struct Level {
    shape: Shape,
    spawns: u64,
    operations: u64,
    complaints: Complaints,
    time: Duration,
}

/// All rounds of a crowd, and a line for each level.
pub(crate) fn run(ground: &Ground, crowd: &Crowd, options: &Options, report: &Report) {
    println!("     {}: {} children on each level, seed {}", crowd.name, options.spawns, options.seed);
    let place = match Place::new(ground, crowd.name) {
        Ok(place) => place,
        Err(error) => return report.result("plain", crowd.name, Duration::ZERO, "", &vec![error.to_string()]),
    };
    let wanted = Shape::ALL.iter().filter(|shape| options.wants_level(shape.label));
    let begin = |shape: &Shape| Level { shape: *shape, spawns: 0, operations: 0, complaints: Vec::new(), time: Duration::ZERO };
    let mut levels: Vec<Level> = wanted.map(begin).collect();
    let begun = Instant::now();
    let round_count = options.spawns.div_ceil(ROUND_SPAWNS);
    for round in 0..round_count {
        let words = Words { crowd, seed: options.seed + round, spawns: ROUND_SPAWNS.min(options.spawns - round * ROUND_SPAWNS) };
        if let Err(message) = words.round(&place, &mut levels, round) {
            return report.result("plain", crowd.name, begun.elapsed(), "", &vec![message]);
        }
        if round_count > 1 && (round + 1) % 4 == 0 {
            println!("     {}: {} of {round_count} rounds after {} s", crowd.name, round + 1, begun.elapsed().as_secs());
        }
    }
    if options.wants_level("plain") {
        report.result("plain", crowd.name, begun.elapsed(), "", &Vec::new());
    }
    for level in levels {
        let Level { spawns, operations, complaints, .. } = &level;
        let note = format!("{spawns} spawns, {operations} operations, {} differences", complaints.len());
        report.result(level.shape.label, crowd.name, level.time, &note, complaints);
    }
}

/// The seed and the number of children that the program of one round gets as arguments.
struct Words<'a> {
    crowd: &'a Crowd,
    seed: u64,
    spawns: u64,
}

impl Words<'_> {
    /// One round on a plain directory and on each level that has not failed yet. An error if it
    /// fails on the plain directory.
    fn round(&self, place: &Place<'_>, levels: &mut [Level], round: u64) -> Result<(), String> {
        place.clear().map_err(|error| format!("{}: {error}", place.data.display()))?;
        let program = place.ground.assets.join("crowd");
        let reference = self.told(place, place.run(&program)).output();
        let files = content(place, place.run("bash"));
        if !reference.succeeded() || !files.succeeded() {
            return Err(with_output(&format!("seed {}, on a plain directory", self.seed), &reference));
        }
        for level in levels.iter_mut().filter(|level| level.complaints.is_empty()) {
            let begun = Instant::now();
            match Array::new(place, level.shape, &format!("{}-{round}", self.crowd.name)) {
                Ok(mut array) => {
                    let found = self.told(place, array.run(&program)).output();
                    self.judge(level, &reference, &found);
                    if level.complaints.is_empty() {
                        compare("the files", &files, &content(place, array.run("bash")), &mut level.complaints);
                    }
                    array.check(&mut level.complaints);
                    if !level.complaints.is_empty() && place.ground.keep {
                        array.keep();
                    }
                }
                Err(message) => level.complaints.push(message),
            }
            level.time += begun.elapsed();
        }
        Ok(())
    }

    fn told<'a>(&self, place: &Place<'_>, run: Run<'a>) -> Run<'a> {
        let numbers = [self.seed, self.spawns].map(|number| number.to_string());
        let limit = LIMIT_BASE + LIMIT_PER_SPAWN * u32::try_from(self.spawns).unwrap_or(u32::MAX);
        let run = run.arg(&place.data).args(numbers).arg(place.ground.assets.join("nothing")).args(self.crowd.arguments);
        run.limit(limit)
    }

    fn judge(&self, level: &mut Level, reference: &Output, found: &Output) {
        if let Some((spawns, operations)) = counted(&found.stderr) {
            level.spawns += spawns;
            level.operations += operations;
        }
        compare(&format!("seed {}, {} children", self.seed, self.spawns), reference, found, &mut level.complaints);
    }
}

/// Spawns and operations, as the last line of a program says that came to its end.
fn counted(text: &str) -> Option<(u64, u64)> {
    let (spawns, operations) = text.lines().last()?.split_once(" spawns, ")?;
    Some((spawns.parse().ok()?, operations.strip_suffix(" operations")?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_counts() {
        assert_eq!(counted("noise\n2000 spawns, 55982 operations\n"), Some((2000, 55_982)));
        assert_eq!(counted("kept-13: mmap gave -1\n"), None);
    }
}
