//! How costs grow: curves of `cxlraid-bench scale`, which says by exponents whether a cost grows
//! faster than it should.

use super::{Group, Part};
use crate::figure::{Better, Figure, Kind, Unit};
use crate::ground::{Ground, succeeded};
use crate::plan::{Extent, Plan};
use crate::record::{Check, Sample};
use serde::Deserialize;

/// A curve that has a figure.
struct Chosen {
    axis: &'static str,
    measure: &'static str,
    title: &'static str,
    x: &'static str,
}

const fn chosen(axis: &'static str, measure: &'static str, title: &'static str, x: &'static str) -> Chosen {
    Chosen { axis, measure, title, x }
}

const CHOSEN: [Chosen; 10] = [
    chosen("files-one", "create", "creating a file, by files in one directory", "files"),
    chosen("files-one", "stat", "stat, by files in one directory", "files"),
    chosen("files-one", "recover", "the first start after a crash, by files", "files"),
    chosen("open", "open", "opening a file, by files that are open", "open files"),
    chosen("attached", "attach", "starting a program, by processes that use the array", "processes"),
    chosen("attached", "write", "writing 4 KiB, by processes that use the array", "processes"),
    chosen("members", "create", "creating a file, by members", "members"),
    chosen("members", "write", "writing 4 KiB, by members", "members"),
    chosen("size", "open", "opening a file, by its size", "bytes"),
    chosen("mapping", "map", "mmap of a whole file, by its size", "bytes"),
];

/// The curves.
pub(crate) struct Growth;

fn id(chosen: &Chosen) -> String {
    format!("growth-{}-{}", chosen.axis, chosen.measure)
}

#[derive(Deserialize)]
struct Results {
    curves: Vec<Curve>,
    left_out: Vec<LeftOut>,
}

#[derive(Deserialize)]
struct LeftOut {
    axis: String,
    x: u64,
    why: String,
}

#[derive(Deserialize)]
struct Curve {
    axis: String,
    measure: String,
    what: String,
    expected: Option<f64>,
    points: Vec<Point>,
    array: Option<Exponent>,
    verdict: String,
}

#[derive(Deserialize)]
struct Exponent {
    last_decade: f64,
}

#[derive(Deserialize)]
struct Point {
    x: u64,
    array_rounds: Vec<f64>,
    plain_rounds: Vec<f64>,
}

/// The axes, each once, in the order of their figures.
fn axes() -> Vec<&'static str> {
    let mut axes: Vec<&str> = CHOSEN.iter().map(|chosen| chosen.axis).collect();
    axes.dedup();
    axes
}

/// Nanoseconds in the unit that the bench's words name at their end.
fn nanoseconds(what: &str) -> f64 {
    if what.split([' ', ',', ';']).any(|word| word == "ms") { 1e6 } else { 1e3 }
}

impl Part for Growth {
    fn name(&self) -> &'static str {
        "growth"
    }

    fn title(&self) -> &'static str {
        "How costs grow"
    }

    fn figures(&self) -> Vec<Figure> {
        let figure = |chosen: &Chosen| Figure {
            id: id(chosen),
            title: format!("Growth: {}", chosen.title),
            kind: Kind::Growth,
            unit: Unit::Time,
            better: Better::Lower,
            x: chosen.x,
            baseline: "plain tmpfs",
            measured: format!(
                "`cargo x bench scale --only {}/{}`, on RAID 5 of three members where the axis says nothing else, and in an \
                 ordinary directory of the same tmpfs. Both axes are logarithmic: what costs the same everywhere is a level \
                 line. `cargo x bench scale` has more axes and measures ([measurements](measurements.md) in docs).",
                chosen.axis, chosen.measure
            ),
            seed: String::new(),
            differs: "The seeds measured no growth.".to_owned(),
            goals: Vec::new(),
        };
        CHOSEN.iter().map(figure).collect()
    }

    fn needs_bytes(&self, _: &Plan) -> u64 {
        // The bench leaves out by itself what does not fit.
        256 << 20
    }

    fn groups(&self, plan: &Plan) -> Vec<Group> {
        let seconds = match plan.extent {
            Extent::Quick => 1.0,
            Extent::Usual => 120.0,
            Extent::Full => 240.0,
        };
        axes().into_iter().map(|axis| Group { name: axis.to_owned(), seconds }).collect()
    }

    fn measure(&self, ground: &Ground, plan: &Plan, group: usize) -> Result<Vec<Sample>, String> {
        let axis = axes()[group];
        let own: Vec<&Chosen> = CHOSEN.iter().filter(|chosen| chosen.axis == axis).collect();
        let mut run = ground.bench()?.args(["scale", "--json", "--rounds", &plan.rounds.to_string()]);
        for chosen in &own {
            run = run.args(["--only", &format!("{}/{}", chosen.axis, chosen.measure)]);
        }
        let output = if plan.is_quick() { run.arg("--quick") } else { run }.output();
        let results: Results =
            serde_json::from_str(succeeded("cxlraid-bench scale", &output)?).map_err(|error| error.to_string())?;
        let mut samples = Vec::new();
        for chosen in own {
            let curve = results.curves.iter().find(|curve| curve.axis == chosen.axis && curve.measure == chosen.measure);
            let curve = curve.ok_or_else(|| format!("{}/{}: the bench has no such curve", chosen.axis, chosen.measure))?;
            samples.extend(of_curve(&id(chosen), curve));
            for left_out in results.left_out.iter().filter(|left_out| left_out.axis == chosen.axis) {
                samples.push(Sample::absent(&id(chosen), &format!("the point {}", left_out.x), &left_out.why));
            }
        }
        Ok(samples)
    }
}

/// Every point of a curve; the last one of the array's says how it grows.
fn of_curve(id: &str, curve: &Curve) -> Vec<Sample> {
    let unit = nanoseconds(&curve.what);
    let mut samples = Vec::new();
    for point in &curve.points {
        let sample = |series: &str, rounds: &[f64]| {
            let rounds = rounds.iter().map(|value| value * unit).collect();
            Sample::new(id, series, point.x.to_string(), rounds).with("measure", curve.what.as_str())
        };
        // A curve may have points that only one side has.
        let sides = [("plain tmpfs", &point.plain_rounds), ("array", &point.array_rounds)];
        samples.extend(sides.iter().filter(|(_, rounds)| !rounds.is_empty()).map(|(series, rounds)| sample(series, rounds)));
    }
    let last = samples.iter_mut().rev().find(|sample| sample.series == "array");
    if let (Some(sample), Some(growth), Some(expected)) = (last, &curve.array, curve.expected) {
        sample.checks.push(Check {
            what: "as the exponent of its growth, or as the ordinary directory's".to_owned(),
            value: growth.last_decade,
            goal: expected,
            at_most: true,
            ok: curve.verdict != "grows",
        });
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_become_samples_in_nanoseconds() {
        let text = r#"{"curves": [{"axis": "a", "measure": "m", "what": "cxlraid stop, ms", "expected": 0.0, "verdict": "grows",
            "array": {"last_decade": 1.5, "whole": 1.0}, "points": [
            {"x": 1, "array_rounds": [2.0], "plain_rounds": []}, {"x": 10, "array_rounds": [3.0], "plain_rounds": [1.0]}]}],
            "left_out": []}"#;
        let results: Results = serde_json::from_str(text).unwrap();
        let samples = of_curve("g", &results.curves[0]);
        assert_eq!(samples.iter().map(|sample| sample.rounds[0]).collect::<Vec<_>>(), [2e6, 1e6, 3e6]);
        assert!(samples[2].checks.len() == 1 && !samples[2].checks[0].ok);
        assert_eq!(nanoseconds("unlink, us each"), 1e3);
    }
}
