//! Records of measurements, and the directory that keeps them.
//!
//! What is measured together (compared systems, by turns) is a group, and a group is a file:
//! `records/PART/GROUP.json`. It is written under another name and renamed when the group is done,
//! so a run that is cut short leaves whole groups, and `--resume` measures the others only.

use crate::machine::Machine;
use serde::{Deserialize, Serialize};
pub(crate) use stage::goal::Check;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What a part measured, before it is known on what machine.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize, Debug)]
pub(crate) struct Sample {
    /// The figure, the line or bar in it, and where on its x axis.
    pub(crate) figure: String,
    pub(crate) series: String,
    pub(crate) x: String,
    /// What the measurement was taken with.
    pub(crate) parameters: BTreeMap<String, String>,
    /// Every round, in the figure's unit: bytes each second, nanoseconds, operations each second.
    pub(crate) rounds: Vec<f64>,
    /// Goals that the measuring program has judged.
    #[serde(default)]
    pub(crate) checks: Vec<Check>,
    /// Why there is nothing, where a peer cannot be had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) absent: Option<String>,
}

impl Sample {
    pub(crate) fn new(figure: &str, series: &str, x: impl Into<String>, rounds: Vec<f64>) -> Self {
        Self { figure: figure.to_owned(), series: series.to_owned(), x: x.into(), rounds, ..Self::default() }
    }

    /// A bar that is left out, and why.
    pub(crate) fn absent(figure: &str, series: &str, why: &str) -> Self {
        Self { absent: Some(why.to_owned()), ..Self::new(figure, series, "", Vec::new()) }
    }

    /// The sample with another parameter.
    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.parameters.insert(name.to_owned(), value.into());
        self
    }

    /// Tells whether it has rounds, and each is a number that can be.
    pub(crate) fn is_plausible(&self) -> bool {
        !self.rounds.is_empty() && self.rounds.iter().all(|value| value.is_finite() && *value > 0.0)
    }
}

/// One measurement.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct Record {
    pub(crate) part: String,
    #[serde(flatten)]
    pub(crate) sample: Sample,
    pub(crate) versions: BTreeMap<String, String>,
    pub(crate) machine: Machine,
    /// When the group was done, in seconds since 1970.
    pub(crate) finished: u64,
}

/// A group of measurements, as it is kept.
#[derive(Serialize, Deserialize, Debug)]
struct Kept {
    /// What the measurements depend on; others are not resumed from.
    basis: String,
    records: Vec<Record>,
}

/// The directory with everything that a run keeps.
pub(crate) struct Store {
    directory: PathBuf,
    /// What measurements of this run depend on: sizes and versions.
    basis: String,
}

impl Store {
    pub(crate) fn new(directory: PathBuf, basis: String) -> Self {
        Self { directory, basis }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    fn part(&self, part: &str) -> PathBuf {
        self.directory.join("records").join(part)
    }

    fn file(&self, part: &str, group: &str) -> PathBuf {
        self.part(part).join(format!("{group}.json"))
    }

    /// Forgets what was measured for a part.
    pub(crate) fn clear(&self, part: &str) -> Result<(), String> {
        let directory = self.part(part);
        stage::remove(&directory).map_err(|error| format!("{}: {error}", directory.display()))
    }

    /// Tells whether a group was measured as it would be now, and no peer was missing.
    pub(crate) fn has(&self, part: &str, group: &str) -> bool {
        let kept = fs::read(self.file(part, group)).ok().and_then(|bytes| serde_json::from_slice::<Kept>(&bytes).ok());
        kept.is_some_and(|kept| kept.basis == self.basis && kept.records.iter().all(|record| record.sample.absent.is_none()))
    }

    /// Keeps a group that is done.
    pub(crate) fn keep(&self, part: &str, group: &str, records: Vec<Record>) -> Result<(), String> {
        let file = self.file(part, group);
        let told = |error: std::io::Error| format!("{}: {error}", file.display());
        fs::create_dir_all(self.part(part)).map_err(told)?;
        let kept = Kept { basis: self.basis.clone(), records };
        let bytes = serde_json::to_vec_pretty(&kept).map_err(|error| error.to_string())?;
        let new = file.with_extension("new");
        fs::write(&new, bytes).and_then(|()| fs::rename(&new, &file)).map_err(told)
    }

    /// Every record that is kept, in the order of the groups' names.
    pub(crate) fn records(&self) -> Result<Vec<Record>, String> {
        let mut files = Vec::new();
        let list = |directory: &Path| -> Vec<PathBuf> {
            let entries = fs::read_dir(directory).into_iter().flatten();
            entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
        };
        for part in list(&self.directory.join("records")) {
            files.extend(list(&part).into_iter().filter(|file| file.extension().is_some_and(|end| end == "json")));
        }
        files.sort();
        let mut records = Vec::new();
        for file in files {
            let told = |why: String| format!("{}: {why}; remove it and measure its part again", file.display());
            let bytes = fs::read(&file).map_err(|error| told(error.to_string()))?;
            let kept: Kept = serde_json::from_slice(&bytes).map_err(|error| told(error.to_string()))?;
            records.extend(kept.records);
        }
        Ok(records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(series: &str, absent: Option<&str>) -> Record {
        let mut sample = Sample::new("f", series, "", vec![1.0, 2.0]).with("bs", "4096");
        sample.absent = absent.map(str::to_owned);
        Record { part: "p".into(), sample, versions: BTreeMap::new(), machine: Machine::default(), finished: 1 }
    }

    #[test]
    fn groups_that_are_done_are_found_again_and_others_are_not() {
        let directory = std::env::temp_dir().join(format!("cxlraid-report-store-{}", std::process::id()));
        let store = Store::new(directory.clone(), "a".into());
        assert!(!store.has("p", "g"));
        store.keep("p", "g", vec![record("s", None)]).unwrap();
        store.keep("p", "h", vec![record("t", Some("no fio"))]).unwrap();
        // A file that a run was writing when it was cut short.
        fs::write(directory.join("records/p/i.new"), "{").unwrap();
        assert!(store.has("p", "g"));
        assert!(!store.has("p", "h"), "a peer that was missing is tried again");
        assert!(!Store::new(directory.clone(), "b".into()).has("p", "g"), "other sizes are no basis");
        let records = store.records().unwrap();
        assert_eq!(records.len(), 2);
        assert_eq!(records[0].sample, record("s", None).sample);
        store.clear("p").unwrap();
        assert!(store.records().unwrap().is_empty());
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn figures_that_are_none_are_told() {
        let sample = |rounds: &[f64]| Sample::new("f", "s", "", rounds.to_vec());
        assert!(sample(&[1.0]).is_plausible());
        assert!(!sample(&[]).is_plausible() && !sample(&[1.0, f64::NAN]).is_plausible() && !sample(&[0.0]).is_plausible());
    }
}
