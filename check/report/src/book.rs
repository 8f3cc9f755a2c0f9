//! The report's content, computed from the records: what each figure shows, what is found, which
//! goals are met. [`crate::page`] and [`crate::markdown`] only write it down.

use crate::chart::{self, Across, Bar, Line, Scale, Value};
use crate::figure::{Better, Figure, Kind, Unit, bytes, shown};
use crate::machine::Machine;
use crate::parts::Part;
use crate::plan::Extent;
use crate::record::{Record, Sample};
use crate::statistics::{Ratio, median, range};
use std::collections::{BTreeMap, BTreeSet};

/// A goal, and what became of it.
#[derive(Clone, Debug)]
pub(crate) struct Judged {
    /// The figure that shows it.
    pub(crate) figure: String,
    pub(crate) text: String,
    /// What was found, with its spread.
    pub(crate) found: String,
    pub(crate) source: String,
    pub(crate) verdict: Verdict,
}

/// What became of a goal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Met,
    Short,
    /// The goal lies within the spread of the rounds.
    Noise,
    /// A side of it was not measured.
    NotMeasured,
}

impl Verdict {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Short => "short",
            Self::Noise => "within noise",
            Self::NotMeasured => "not measured",
        }
    }
}

/// A row of a figure's table.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) series: String,
    pub(crate) x: String,
    pub(crate) value: Value,
    pub(crate) rounds: usize,
    /// What the measurement was taken with.
    pub(crate) parameters: String,
}

/// A figure with its data.
#[derive(Clone, Debug)]
pub(crate) struct Plate {
    pub(crate) figure: Figure,
    /// Empty if there are no data.
    pub(crate) svg: String,
    pub(crate) rows: Vec<Row>,
    /// Sentences about the data.
    pub(crate) findings: Vec<String>,
    /// Series that are left out, and why.
    pub(crate) absent: Vec<(String, String)>,
}

/// A part with its figures.
#[derive(Clone, Debug)]
pub(crate) struct Chapter {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) plates: Vec<Plate>,
}

/// The whole report.
#[derive(Clone, Debug)]
pub(crate) struct Book {
    pub(crate) extent: Extent,
    pub(crate) machine: Machine,
    pub(crate) versions: BTreeMap<String, String>,
    /// Load averages when groups were done: least and greatest.
    pub(crate) loads: (f64, f64),
    pub(crate) chapters: Vec<Chapter>,
    pub(crate) goals: Vec<Judged>,
    /// Groups that failed, with the reason.
    pub(crate) failed: Vec<String>,
    /// Parts of which nothing was measured.
    pub(crate) not_run: Vec<&'static str>,
}

impl Book {
    /// Computes everything from the records.
    pub(crate) fn new(extent: Extent, parts: &[Box<dyn Part>], records: &[Record], failed: Vec<String>) -> Result<Self, String> {
        let last = records.iter().max_by_key(|record| record.finished);
        let loads: Vec<f64> = records.iter().filter_map(|record| record.machine.load.parse().ok()).collect();
        let mut book = Self {
            extent,
            machine: last.map_or_else(Machine::find, |record| record.machine.clone()),
            versions: last.map(|record| record.versions.clone()).unwrap_or_default(),
            loads: range(&loads),
            chapters: Vec::new(),
            goals: Vec::new(),
            failed,
            not_run: Vec::new(),
        };
        for part in parts {
            let samples: Vec<&Sample> =
                records.iter().filter(|record| record.part == part.name()).map(|record| &record.sample).collect();
            if samples.is_empty() {
                book.not_run.push(part.title());
                continue;
            }
            let mut plates = Vec::new();
            for figure in part.figures() {
                let own: Vec<&Sample> = samples.iter().copied().filter(|sample| sample.figure == figure.id).collect();
                book.goals.extend(judge(&figure, &own));
                plates.push(Plate::new(figure, &own)?);
            }
            book.chapters.push(Chapter { name: part.name(), title: part.title(), plates });
        }
        Ok(book)
    }

    /// Every peer that is missing, with the reason and how many figures it is missing in.
    pub(crate) fn missing(&self) -> BTreeMap<String, usize> {
        let mut missing = BTreeMap::new();
        let plates = self.chapters.iter().flat_map(|chapter| &chapter.plates);
        for (series, why) in plates.flat_map(|plate| &plate.absent) {
            *missing.entry(format!("{series}: {why}")).or_insert(0) += 1;
        }
        missing
    }

    pub(crate) fn count(&self, verdict: Verdict) -> usize {
        self.goals.iter().filter(|goal| goal.verdict == verdict).count()
    }
}

impl Plate {
    fn new(figure: Figure, samples: &[&Sample]) -> Result<Self, String> {
        let (measured, missing): (Vec<&Sample>, Vec<&Sample>) =
            samples.iter().copied().partition(|sample| sample.absent.is_none());
        let mut absent: Vec<(String, String)> =
            missing.iter().map(|sample| (sample.series.clone(), sample.absent.clone().unwrap_or_default())).collect();
        absent.sort();
        absent.dedup();
        let rows: Vec<Row> = ordered(&figure, &measured).into_iter().map(|sample| row(&figure, sample)).collect();
        let svg = if rows.is_empty() { String::new() } else { draw(&figure, &rows)? };
        let findings = findings(&figure, &measured);
        Ok(Self { figure, svg, rows, findings, absent })
    }
}

/// Samples by x, those of one x in the order in which they were measured.
fn ordered<'a>(figure: &Figure, samples: &[&'a Sample]) -> Vec<&'a Sample> {
    let mut samples = samples.to_vec();
    if matches!(figure.kind, Kind::Bytes | Kind::Growth) {
        samples.sort_by(|one, other| number(&one.x).total_cmp(&number(&other.x)));
    } else {
        samples.sort_by(|one, other| one.x.cmp(&other.x));
    }
    samples
}

fn number(x: &str) -> f64 {
    x.parse().unwrap_or(f64::NAN)
}

fn value(rounds: &[f64]) -> Value {
    let (low, high) = range(rounds);
    Value { median: median(rounds), low, high }
}

fn row(figure: &Figure, sample: &Sample) -> Row {
    let parameters = sample.parameters.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>();
    Row {
        series: sample.series.clone(),
        x: x_shown(figure, &sample.x),
        value: value(&sample.rounds),
        rounds: sample.rounds.len(),
        parameters: parameters.join("; "),
    }
}

fn x_shown(figure: &Figure, x: &str) -> String {
    match figure.kind {
        Kind::Bytes => x.parse().map_or_else(|_| x.to_owned(), bytes),
        _ => x.to_owned(),
    }
}

/// Tells whether a series is none of ours.
fn is_peer(series: &str) -> bool {
    ["posix", "libpmem", "null", "ext4", "btrfs", "plain", "tmpfs", "kernel", "bare"]
        .iter()
        .any(|start| series.starts_with(start))
}

/// The names of the series in the order in which they come first.
fn series_of(rows: &[Row]) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    rows.iter().map(|row| row.series.as_str()).filter(|series| seen.insert(*series)).collect()
}

fn draw(figure: &Figure, rows: &[Row]) -> Result<String, String> {
    if matches!(figure.kind, Kind::Bars | Kind::Groups) {
        let mut groups: Vec<(String, Vec<Bar>)> = Vec::new();
        for row in rows {
            if groups.last().is_none_or(|(x, _)| *x != row.x) {
                groups.push((row.x.clone(), Vec::new()));
            }
            let color = (!is_peer(&row.series)).then_some(0);
            let bar = Bar { name: row.series.clone(), value: row.value, shown: shown(row.value.median, figure.unit), color };
            if let Some((_, bars)) = groups.last_mut() {
                bars.push(bar);
            }
        }
        return chart::bars(&groups);
    }
    let xs = |row: &Row| -> f64 {
        // What was shown for people is a number again.
        let (count, unit) = row.x.split_once(' ').unwrap_or((&row.x, ""));
        let factor = match unit {
            "KiB" => 1024.0,
            "MiB" => 1_048_576.0,
            "GiB" => 1_073_741_824.0,
            _ => 1.0,
        };
        number(count) * factor
    };
    let lines: Vec<Line> = series_of(rows)
        .into_iter()
        .map(|series| Line {
            name: series.to_owned(),
            points: rows.iter().filter(|row| row.series == series).map(|row| (xs(row), row.value)).collect(),
        })
        .collect();
    let x_text = |x: f64| {
        let x = x.round() as u64;
        if figure.kind == Kind::Bytes {
            bytes(x).replace(" KiB", "K").replace(" MiB", "M").replace(" B", "")
        } else {
            x.to_string()
        }
    };
    let scale = if figure.kind == Kind::Growth { Scale::Logarithmic } else { Scale::Linear };
    chart::lines(&lines, Across { name: figure.x, shown: &x_text }, scale, &|y| shown(y, figure.unit))
}

/// Sentences about what the data say.
fn findings(figure: &Figure, samples: &[&Sample]) -> Vec<String> {
    if samples.is_empty() {
        return vec!["Nothing was measured.".to_owned()];
    }
    match figure.kind {
        Kind::Bars | Kind::Groups => {
            let xs: BTreeSet<&str> = samples.iter().map(|sample| sample.x.as_str()).collect();
            xs.into_iter().filter_map(|x| against_baseline(figure, samples, x)).collect()
        }
        Kind::Bytes => peaks(figure, samples),
        Kind::Growth => ends(figure, samples),
    }
}

/// Every series of one x beside the baseline.
fn against_baseline(figure: &Figure, samples: &[&Sample], x: &str) -> Option<String> {
    let here: Vec<&&Sample> = samples.iter().filter(|sample| sample.x == x).collect();
    let base = here.iter().find(|sample| sample.series == figure.baseline)?;
    let (mut clear, mut noise) = (Vec::new(), Vec::new());
    for sample in here.iter().filter(|sample| sample.series != figure.baseline) {
        let Some(ratio) = Ratio::of(&sample.rounds, &base.rounds) else { continue };
        if ratio.reaches(1.0) == Some(true) {
            noise.push(sample.series.as_str());
        } else {
            clear.push(format!("{} {}", sample.series, ratio.text()));
        }
    }
    let at = if x.is_empty() { String::new() } else { format!("{x}: ") };
    let mut text = format!("{at}{} gives {}.", figure.baseline, shown(median(&base.rounds), figure.unit));
    if !clear.is_empty() {
        let what = if figure.better == Better::Higher { "Beside it, each" } else { "Beside it, each time" };
        text.push_str(&format!(" {what} as a multiple of it: {}.", clear.join(", ")));
    }
    if !noise.is_empty() {
        text.push_str(&format!(" No difference beyond noise: {}.", noise.join(", ")));
    }
    if base.rounds.len() < 3 {
        text.push_str(" There are too few rounds to tell differences from noise.");
    }
    Some(text)
}

/// Where each line is highest and lowest.
fn peaks(figure: &Figure, samples: &[&Sample]) -> Vec<String> {
    let mut by_series: BTreeMap<&str, Vec<(&str, f64)>> = BTreeMap::new();
    for sample in samples {
        by_series.entry(&sample.series).or_default().push((&sample.x, median(&sample.rounds)));
    }
    let told = by_series.into_iter().filter_map(|(series, points)| {
        let most = points.iter().max_by(|one, other| one.1.total_cmp(&other.1))?;
        let least = points.iter().min_by(|one, other| one.1.total_cmp(&other.1))?;
        Some(format!(
            "{series} is highest at {} ({}), lowest at {} ({}).",
            x_shown(figure, most.0),
            shown(most.1, figure.unit),
            x_shown(figure, least.0),
            shown(least.1, figure.unit)
        ))
    });
    told.collect()
}

/// How each line goes from its first to its last x.
fn ends(figure: &Figure, samples: &[&Sample]) -> Vec<String> {
    let mut by_series: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for sample in samples {
        by_series.entry(&sample.series).or_default().push((number(&sample.x), median(&sample.rounds)));
    }
    let told = by_series.into_iter().filter_map(|(series, mut points)| {
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        let (first, last) = (points.first()?, points.last()?);
        Some(format!(
            "{series} goes from {} at {} to {} at {}, {:.2} times.",
            shown(first.1, figure.unit),
            first.0,
            shown(last.1, figure.unit),
            last.0,
            last.1 / first.1
        ))
    });
    told.collect()
}

/// The figure's goals, and those that the measuring programs have judged.
fn judge(figure: &Figure, samples: &[&Sample]) -> Vec<Judged> {
    let find = |series: &str, x: &str| samples.iter().find(|sample| sample.series == series && sample.x == x);
    let mut judged = Vec::new();
    for goal in &figure.goals {
        let ratio = find(goal.series, goal.x).zip(find(goal.against, goal.x)).and_then(|(this, that)| {
            let ratio = Ratio::of(&this.rounds, &that.rounds)?;
            Some(if figure.better == Better::Higher { ratio } else { ratio.inverse() })
        });
        let verdict = match ratio {
            None => Verdict::NotMeasured,
            Some(ratio) if ratio.reaches(goal.at_least) == Some(true) => Verdict::Noise,
            Some(ratio) if ratio.median >= goal.at_least => Verdict::Met,
            Some(_) => Verdict::Short,
        };
        let at = if goal.x.is_empty() { String::new() } else { format!(" at {}", x_shown(figure, goal.x)) };
        let what = if figure.better == Better::Higher { "reaches" } else { "is as fast as" };
        judged.push(Judged {
            figure: figure.id.clone(),
            text: format!("{}: {} {what} {} times {}{at}", figure.title, goal.series, goal.at_least, goal.against),
            found: ratio.map_or_else(|| "–".to_owned(), Ratio::text),
            source: goal.source.to_owned(),
            verdict,
        });
    }
    for sample in samples {
        for check in &sample.checks {
            let relation = if check.at_most { "at most" } else { "at least" };
            judged.push(Judged {
                figure: figure.id.clone(),
                text: format!("{}: {}, {relation} {:.2} {}", judged_of(figure, sample), sample.series, check.goal, check.what),
                found: format!("{:.2}", check.value),
                source: "cargo x bench".to_owned(),
                verdict: if check.ok { Verdict::Met } else { Verdict::Short },
            });
        }
    }
    judged
}

/// Returns what a judged sample is a measurement of: its place on the x axis says so in words, except
/// on a curve, where the place is a number and the whole curve is judged.
fn judged_of<'a>(figure: &'a Figure, sample: &'a Sample) -> &'a str {
    if figure.kind == Kind::Growth { &figure.title } else { &sample.x }
}

/// A value of a unit in which tables sort: the unit's base.
pub(crate) const fn base_unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Rate => "bytes/s",
        Unit::Time => "ns",
        Unit::Operations => "1/s",
        Unit::Factor => "times",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Goal;

    fn figure(kind: Kind, better: Better) -> Figure {
        Figure {
            id: "f".into(),
            title: "F".into(),
            kind,
            unit: Unit::Rate,
            better,
            x: "bytes",
            baseline: "posix",
            measured: "m".into(),
            seed: "s".into(),
            differs: "d".into(),
            goals: vec![Goal { series: "raid5", against: "posix", x: "", at_least: 1.0, source: "here" }],
        }
    }

    fn sample(series: &str, x: &str, rounds: &[f64]) -> Sample {
        Sample::new("f", series, x, rounds.to_vec())
    }

    fn verdict(better: Better, raid5: &[f64], posix: &[f64]) -> Verdict {
        let samples = [sample("raid5", "", raid5), sample("posix", "", posix)];
        judge(&figure(Kind::Bars, better), &samples.iter().collect::<Vec<_>>())[0].verdict
    }

    #[test]
    fn goals_are_met_short_or_within_noise() {
        assert_eq!(verdict(Better::Higher, &[2.0, 2.0, 2.0], &[1.0, 1.0, 1.0]), Verdict::Met);
        assert_eq!(verdict(Better::Lower, &[2.0, 2.0, 2.0], &[1.0, 1.0, 1.0]), Verdict::Short);
        assert_eq!(verdict(Better::Higher, &[0.9, 1.1, 1.2], &[1.0, 1.0, 1.0]), Verdict::Noise);
        assert_eq!(verdict(Better::Higher, &[2.0], &[]), Verdict::NotMeasured);
    }

    #[test]
    fn a_judged_curve_is_called_by_its_figure() {
        let mut last = sample("array", "300", &[1.0]);
        last.checks.push(crate::record::Check { what: "as its exponent".into(), value: 0.1, goal: 0.0, at_most: true, ok: true });
        let text = |kind| judge(&figure(kind, Better::Lower), &[&last]).pop().unwrap().text;
        assert_eq!(text(Kind::Growth), "F: array, at most 0.00 as its exponent");
        assert_eq!(text(Kind::Groups), "300: array, at most 0.00 as its exponent");
    }

    #[test]
    fn noise_is_called_so_and_what_is_missing_is_named() {
        let mut gone = sample("ext4 on loop", "", &[]);
        gone.absent = Some("no root".into());
        let samples = [
            sample("posix", "", &[1e9, 1e9, 1e9]),
            sample("raid1", "", &[0.9e9, 1.1e9, 1e9]),
            sample("raid5", "", &[2e9, 2e9, 2e9]),
            gone,
        ];
        let plate = Plate::new(figure(Kind::Bars, Better::Higher), &samples.iter().collect::<Vec<_>>()).unwrap();
        let text = plate.findings.join(" ");
        assert!(text.contains("No difference beyond noise: raid1."), "{text}");
        assert!(text.contains("raid5 2.00 times (2.00 to 2.00)"), "{text}");
        assert_eq!(plate.absent, [("ext4 on loop".to_owned(), "no root".to_owned())]);
        assert_eq!(plate.rows.len(), 3);
        assert!(plate.svg.contains("raid5"));
    }

    #[test]
    fn lines_are_sorted_by_their_numbers() {
        let samples = [sample("a", "4096", &[3.0]), sample("a", "64", &[1.0]), sample("a", "1048576", &[2.0])];
        let plate = Plate::new(figure(Kind::Bytes, Better::Higher), &samples.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(plate.rows.iter().map(|row| row.x.as_str()).collect::<Vec<_>>(), ["64 B", "4 KiB", "1 MiB"]);
        assert!(plate.findings[0].contains("highest at 4 KiB"), "{:?}", plate.findings);
    }
}
