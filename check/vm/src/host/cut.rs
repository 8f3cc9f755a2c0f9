//! Power cuts: one machine under load, several images of its NVDIMMs, each booted in a machine of
//! its own.
//!
//! Programs in the machine say what was acknowledged to them on a port that leads to a file of the
//! host. A line is in that file before the program goes on, so an image holds at least what the
//! file says when the machine stands still.

use super::{
    machine::{Hardware, Machine, Platform},
    scenes::Stage,
};
use crate::{Outcome, about, array::Array, job::Job};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// What writes.
const WRITERS: [&str; 3] = ["sqlite", "postgresql", "fio"];

/// On a busy host everything takes longer; nobody waits that long.
const PERIOD_MAX_US: u64 = 10_000_000;

/// What each writer was told last: the second word of its last line and what follows.
pub(crate) type Acknowledged = BTreeMap<String, Vec<u64>>;

/// The NVDIMMs of a machine whose power was cut.
pub(crate) struct Image {
    array: Array,
    number: usize,
    /// How many members are lost in the same instant.
    lost_count: usize,
    nvdimms: Vec<PathBuf>,
    acknowledged: Acknowledged,
}

/// Loads an array, takes images. What the report says of it.
pub(crate) fn images(stage: &Stage<'_>, directory: &Path, array: Array) -> Outcome<(Vec<String>, Vec<Image>)> {
    let hardware = Hardware::new(directory, Platform::Silent, array.shape.member_count, array.system)?;
    let job = array.tell(Job::new("load"));
    let mut machine = Machine::boot(stage.packages, stage.system, directory, &hardware, &job)?;
    let mut random = Random(stage.seed ^ u64::from(array.shape.level) << 32 ^ u64::from(array.journal) << 40);
    let first_lost_count = random.below(array.bears_in_a_cut() as u64 + 1) as usize;
    let mut images = Vec::new();
    machine.until("every writer has begun", |machine| progress(machine, &Acknowledged::new()))?;
    let mut before = acknowledged(&machine.read("acknowledged"));
    for number in 0..stage.options.images {
        let begun = Instant::now();
        machine.until(format!("every writer went on (image {number})"), |machine| progress(machine, &before))?;
        // Any instant of what the slowest of them does, not only those after an acknowledgement.
        let period = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        thread::sleep(Duration::from_micros(random.below(period.min(PERIOD_MAX_US))));
        let target = stage.directory(&format!("image-{array}-{number}"))?;
        let mut nvdimms: Vec<_> = (0..array.shape.member_count).map(|slot| target.join(format!("nvdimm{slot}"))).collect();
        let acknowledged = machine.frozen(|machine| {
            for (from, to) in hardware.nvdimms.iter().zip(&nvdimms) {
                super::tool::output(Command::new("cp").arg("--sparse=always").arg(from).arg(to))?;
            }
            Ok(acknowledged(&machine.read("acknowledged")))
        })?;
        before.clone_from(&acknowledged);
        // Members lost in the same instant: none, one, as many as can be borne, and again, from a
        // number that the seed says.
        let lost_count = (number + first_lost_count) % (array.bears_in_a_cut() + 1);
        random.shuffle(&mut nvdimms);
        nvdimms.truncate(array.shape.member_count - lost_count);
        images.push(Image { array, number, lost_count, nvdimms, acknowledged });
    }
    let lines = vec![format!("{} images; acknowledged at the last: {}", images.len(), show(&before))];
    Ok((lines, images))
}

/// Whether every writer was told more than `before`.
fn progress(machine: &Machine, before: &Acknowledged) -> bool {
    let now = acknowledged(&machine.read("acknowledged"));
    WRITERS.iter().all(|&writer| now.contains_key(writer) && now.get(writer) > before.get(writer))
}

/// The last complete line of each writer.
fn acknowledged(text: &str) -> Acknowledged {
    let complete = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
    let mut last = Acknowledged::new();
    for line in complete.lines() {
        let mut words = line.split_whitespace();
        if let Some(writer) = words.next() {
            last.insert(writer.to_owned(), words.filter_map(|word| word.parse().ok()).collect());
        }
    }
    last
}

fn show(acknowledged: &Acknowledged) -> String {
    let one = |(writer, numbers): (&String, &Vec<u64>)| format!("{writer} {}", numbers.first().copied().unwrap_or(0));
    acknowledged.iter().map(one).collect::<Vec<_>>().join(", ")
}

impl Image {
    pub(crate) fn name(&self) -> String {
        format!("recover-{}-{}", self.array, self.number)
    }

    /// Boots it, recovers, and checks everything that must hold.
    pub(crate) fn recover(&self, stage: &Stage<'_>, directory: &Path) -> Outcome<Vec<String>> {
        let mut job = self.array.tell(Job::new("recover")).with("lost", self.lost_count);
        for (writer, numbers) in &self.acknowledged {
            let numbers: Vec<_> = numbers.iter().map(u64::to_string).collect();
            job = job.with(writer, numbers.join(","));
        }
        let hardware = Hardware { platform: Platform::Silent, nvdimms: self.nvdimms.clone(), cxl: None, processors: 1 };
        let told = show(&self.acknowledged);
        let lines = stage.play(directory, &hardware, &job).map_err(|message| format!("acknowledged: {told}\n{message}"))?;
        if !stage.options.keep {
            let place = self.nvdimms[0].parent().unwrap_or(directory);
            fs::remove_dir_all(place).map_err(about(place.display()))?;
        }
        Ok([vec![format!("acknowledged: {told}")], lines].concat())
    }
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// Below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// Fisher and Yates.
    fn shuffle<T>(&mut self, things: &mut [T]) {
        for last in (1..things.len()).rev() {
            things.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_lines_are_acknowledgements() {
        let told = acknowledged("sqlite 1\nfio 1 40\nsqlite 2\npostgresql 7\nsqlite 31");
        assert_eq!(told["sqlite"], [2]);
        assert_eq!(told["fio"], [1, 40]);
        assert_eq!(show(&told), "fio 1, postgresql 7, sqlite 2");
        assert!(acknowledged("sqlite 3").is_empty());
    }
}
