//! RocksDB, a store of keys in sorted files, under its own benchmark.

use super::configurations::{PROGRAMS, Places};
use super::{Group, Part, by_turns};
use crate::figure::{Better, Figure, Kind, Unit};
use crate::ground::{Ground, Place, succeeded};
use crate::plan::Plan;
use crate::record::Sample;

/// The loads that `db_bench` runs one after another, and their names in the report.
const WORKLOADS: [(&str, &str); 3] = [("fillrandom", "fill, synced"), ("overwrite", "overwrite, synced"), ("readrandom", "read")];
const FIGURE: &str = "rocksdb";
const VALUE_BYTES: u64 = 1000;

/// The figure of RocksDB.
pub(crate) struct RocksDb;

/// One run of `db_bench`. Returns the operations each second of every workload.
fn run(ground: &Ground, place: &Place, plan: &Plan) -> Result<Vec<f64>, String> {
    let names = WORKLOADS.map(|(name, _)| name).join(",");
    let arguments = [
        format!("--benchmarks={names}"),
        format!("--db={}", place.directory.join("db").display()),
        format!("--num={}", plan.records),
        format!("--value_size={VALUE_BYTES}"),
        "--sync=1".to_owned(),
        "--compression_type=none".to_owned(),
    ];
    let output = ground.program("db_bench", place)?.args(arguments).output();
    let text = succeeded("db_bench", &output)?;
    WORKLOADS.iter().map(|(name, _)| rate(text, name).ok_or_else(|| format!("db_bench: no figure of {name}"))).collect()
}

/// The operations each second in a line such as `fillrandom : 5.3 micros/op 187369 ops/sec 0.1 s`.
fn rate(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(name))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "ops/sec")?;
    words.get(at.checked_sub(1)?)?.parse().ok()
}

impl Part for RocksDb {
    fn name(&self) -> &'static str {
        "rocksdb"
    }

    fn title(&self) -> &'static str {
        "RocksDB"
    }

    fn figures(&self) -> Vec<Figure> {
        vec![Figure {
            id: FIGURE.to_owned(),
            title: "RocksDB, operations each second".to_owned(),
            kind: Kind::Groups,
            unit: Unit::Operations,
            better: Better::Higher,
            x: "workload",
            baseline: "posix",
            measured: format!(
                "`db_bench` with one thread, keys of 16 bytes at random and values of {VALUE_BYTES}, `sync=1` (each write \
                 waits for fdatasync of the log), without compression; otherwise as it comes."
            ),
            seed: String::new(),
            differs: "The seeds did not measure RocksDB. On tmpfs, and on arrays of it, fdatasync costs the kernel nothing; on \
                ext4 and btrfs it waits for a loop device."
                .to_owned(),
            goals: Vec::new(),
        }]
    }

    fn needs_bytes(&self, plan: &Plan) -> u64 {
        // The log, the sorted files, and what is merged from them.
        let plan = Plan { file_bytes: 4 * plan.records as u64 * VALUE_BYTES + (64 << 20), ..*plan };
        PROGRAMS.iter().map(|one| one.takes_bytes(&plan)).sum()
    }

    fn groups(&self, plan: &Plan) -> Vec<Group> {
        let seconds = if plan.is_quick() { 3.0 } else { (plan.rounds * plan.records) as f64 / 1500.0 };
        vec![Group { name: "db-bench".to_owned(), seconds }]
    }

    fn measure(&self, ground: &Ground, plan: &Plan, _: usize) -> Result<Vec<Sample>, String> {
        if let Some(absent) = Places::without("db_bench", FIGURE, &PROGRAMS) {
            return Ok(absent);
        }
        let places = Places::make_empty(ground, &PROGRAMS)?;
        let found = by_turns(plan, places.found.len(), |index| run(ground, &places.found[index].1, plan))?;
        let mut samples = places.left_out(FIGURE);
        for ((one, _), rounds) in places.found.iter().zip(found) {
            for (index, (_, words)) in WORKLOADS.iter().enumerate() {
                let rates = rounds.iter().map(|round| round[index]).collect();
                samples.push(Sample::new(FIGURE, one.name, *words, rates).with("records", plan.records.to_string()));
            }
        }
        places.discard(ground)?;
        Ok(samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_db_bench_says_is_read() {
        let text =
            "DB path: [/d]\nfillrandom   :       5.336 micros/op 187369 ops/sec 0.107 seconds 20000 operations;   20.7 MB/s\n";
        assert_eq!(rate(text, "fillrandom"), Some(187_369.0));
        assert_eq!(rate(text, "readrandom"), None);
    }
}
