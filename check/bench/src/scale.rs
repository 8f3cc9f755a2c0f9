//! `cargo x bench scale`: how costs grow with what a user has more and more of: files, open files,
//! processes, members, chunks, bytes, mappings.
//!
//! Each of those is an [`axis`](axis::Axis). For each of its points an array and an ordinary
//! directory of the same tmpfs are made, and every measure is taken on both by turns, some rounds
//! long (`pair`). A measure's medians along the axis are a curve. Its growth is told by an exponent:
//! the slope of the least-squares line through the logarithms (`curve`). What the machine cannot do
//! is found before the first run and left out by name (`limits`).
//!
//! The work itself is done by workers (`agent`), which are this program with the library loaded on
//! the array, and without it in the ordinary directory.

mod agent;
mod axis;
mod curve;
mod files;
mod limits;
mod mappings;
mod open;
mod pair;
mod processes;
mod progress;
mod results;
mod shapes;
mod sizes;

pub(crate) use agent::{Job, work};

use crate::library::Library;
use axis::{Axis, Bench, Extent, Record};
use limits::Limits;
use progress::Progress;
use results::{LeftOut, Results};
use stage::options::Words;
use std::ffi::OsString;

/// The word by which this part of the bench is asked for.
pub(crate) const WORD: &str = "scale";

const HELP: &str = "\
cxlraid-bench scale [--only AXIS[/MEASURE]]... [--quick | --long] [--rounds N] [--json] [--list]

  --only A[/M]  only this axis, or only this measure of it; may be given several times
  --quick       the smallest points, one round: shows that everything runs, times mean little
  --long        also the points that take hours or very much memory (10^7 files)
  --rounds N    how often each measure of a point is taken (5; with --quick 1)
  --json        results as JSON instead of tables
  --list        says what axes and measures there are

The library is CXLRAID_LIB, or libcxlraid.so beside this program. Progress goes to standard error.";

/// What was asked for.
struct Options {
    /// Axes, or measures of axes; all if empty.
    only: Vec<String>,
    extent: Extent,
    rounds: Option<usize>,
    json: bool,
    list: bool,
}

impl Options {
    fn parse(arguments: impl Iterator<Item = String> + 'static) -> Result<Self, String> {
        let mut words = Words::new(arguments.map(OsString::from), HELP);
        let mut options = Self { only: Vec::new(), extent: Extent::Full, rounds: None, json: false, list: false };
        while let Some(word) = words.next_word() {
            match word.as_str() {
                "--only" => options.only.push(words.value()?),
                "--quick" => options.extent = Extent::Quick,
                "--long" => options.extent = Extent::Long,
                "--rounds" => options.rounds = Some(words.number()?),
                "--json" => options.json = true,
                "--list" => options.list = true,
                _ => return Err(words.unknown()),
            }
        }
        let axes = axes();
        let known =
            |only: &String| axes.iter().any(|axis| axis.measures().iter().any(|measure| names(only, &**axis, measure.name)));
        match options.only.iter().find(|only| !known(only)) {
            Some(unknown) => Err(format!("{unknown}: no such axis or measure; --list says what there is")),
            None => Ok(options),
        }
    }

    fn wants(&self, axis: &dyn Axis, measure: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| names(only, axis, measure))
    }
}

/// Tells whether `only` names the axis or this measure of it.
fn names(only: &str, axis: &dyn Axis, measure: &str) -> bool {
    match only.split_once('/') {
        Some((first, second)) => first == axis.name() && second == measure,
        None => only == axis.name(),
    }
}

fn axes() -> Vec<Box<dyn Axis>> {
    let mut axes = files::axes();
    axes.extend(open::axes());
    axes.extend(processes::axes());
    axes.extend(shapes::axes());
    axes.extend(sizes::axes());
    axes.extend(mappings::axes());
    axes
}

/// Runs what the arguments ask for. Returns how the command line was wrong, or what failed.
pub(crate) fn run(arguments: impl Iterator<Item = String> + 'static) -> Result<(), Failure> {
    let options = Options::parse(arguments).map_err(Failure::Usage)?;
    if options.list {
        for axis in axes() {
            println!("{:<12} {}", axis.name(), axis.what());
            axis.measures().iter().for_each(|measure| println!("    {:<14} {}", measure.name, measure.what));
        }
        return Ok(());
    }
    let results = measure(&options).map_err(Failure::Run)?;
    println!("{}", if options.json { results.json() } else { results.table() });
    match results.failed.len() {
        0 => Ok(()),
        count => Err(Failure::Run(format!("{count} points could not be measured; the output names them"))),
    }
}

/// Why there is no result.
pub(crate) enum Failure {
    Usage(String),
    Run(String),
}

fn measure(options: &Options) -> Result<Results, String> {
    let rounds = options.rounds.unwrap_or(if options.extent == Extent::Quick { 1 } else { 5 }).max(1);
    let bench = Bench { library: Library::find()?, rounds, extent: options.extent };
    let limits = Limits::find(&bench)?;
    eprintln!("limits: {}", limits.text());
    let mut results = Results::new(rounds, limits.text());
    let mut planned = Vec::new();
    for axis in axes() {
        if !axis.measures().iter().any(|measure| options.wants(&*axis, measure.name)) {
            continue;
        }
        let mut points = Vec::new();
        for x in axis.points(options.extent) {
            match limits.forbid(&axis.needs(x)) {
                None => points.push(x),
                Some(why) => {
                    let left_out = LeftOut { axis: axis.name().to_owned(), x, why };
                    eprintln!("left out: {left_out}");
                    results.left_out.push(left_out);
                }
            }
        }
        planned.push((axis, points));
    }
    let weights = planned.iter().flat_map(|(axis, points)| points.iter().map(|&x| axis.seconds(x)));
    let mut progress = Progress::new(weights.sum());
    for (mut axis, points) in planned {
        let wanted: Vec<&str> =
            axis.measures().iter().map(|measure| measure.name).filter(|measure| options.wants(&*axis, measure)).collect();
        let mut record = Record::new(wanted);
        for x in points {
            progress.tell(&format!("{} {x}", axis.name()));
            record.begin(x);
            if let Err(why) = axis.point(&bench, x, &mut record) {
                let failed = LeftOut { axis: axis.name().to_owned(), x, why };
                eprintln!("failed: {failed}");
                results.failed.push(failed);
            }
            progress.done(axis.seconds(x));
        }
        results.add(&*axis, &record);
    }
    progress.end();
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn parse(words: &[&str]) -> Result<Options, String> {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        Options::parse(words.into_iter())
    }

    #[test]
    fn what_is_asked_for_is_known_or_refused() {
        let options = parse(&["--only", "files-one/stat", "--only", "size"]).unwrap_or_else(|why| panic!("{why}"));
        let axes = axes();
        let axis = |name: &str| axes.iter().find(|axis| axis.name() == name).expect("there is such an axis");
        assert!(options.wants(&**axis("files-one"), "stat") && !options.wants(&**axis("files-one"), "walk"));
        assert!(options.wants(&**axis("size"), "read") && !options.wants(&**axis("members"), "read"));
        assert!(parse(&["--only", "files-one/none"]).is_err_and(|why| why.contains("files-one/none")));
        assert!(parse(&["--rounds", "many"]).is_err());
    }

    #[test]
    fn axes_and_measures_have_names_of_their_own_and_points_that_grow() {
        let mut seen = BTreeSet::new();
        for axis in axes() {
            for measure in axis.measures() {
                assert!(seen.insert(format!("{}/{}", axis.name(), measure.name)), "{} has {} twice", axis.name(), measure.name);
            }
            for extent in [Extent::Quick, Extent::Full, Extent::Long] {
                let points = axis.points(extent);
                assert!(points.len() >= 2 && points.is_sorted_by(|one, next| one < next), "{}: {points:?}", axis.name());
            }
        }
    }
}
