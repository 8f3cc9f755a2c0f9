//! Power cuts: one machine under load, several images of its NVDIMMs, each booted in a machine of its own.
//!
//! Programs in the machine say what was acknowledged to them on a port that leads to a file of the host. A line is in that file
//! before the program goes on, so an image holds at least what the file says when the machine stands still.

use super::{
    machine::{Hardware, Machine, Platform},
    scenes::Stage,
};
use crate::{
    Outcome, about,
    array::{FileSystem, Shape},
    job::Job,
};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

/// What writes.
const WRITERS: [&str; 3] = ["sqlite", "postgresql", "fio"];

/// What each writer was told last: the second word of its last line and what follows.
pub(crate) type Acknowledged = BTreeMap<String, Vec<u64>>;

/// The NVDIMMs of a machine whose power was cut.
pub(crate) struct Image {
    shape: Shape,
    system: FileSystem,
    number: usize,
    /// A member that is lost in the same instant.
    without: Option<usize>,
    nvdimms: Vec<PathBuf>,
    acknowledged: Acknowledged,
}

/// Loads an array, takes images. What the report says of it.
pub(crate) fn images(
    stage: &Stage<'_>,
    directory: &Path,
    shape: Shape,
    system: FileSystem,
) -> Outcome<(Vec<String>, Vec<Image>)> {
    let hardware = Hardware::new(directory, Platform::Silent, shape.member_count, system)?;
    let job = Job::new("load").with("level", shape.level).with("fs", system);
    let mut machine = Machine::boot(stage.packages, stage.system, directory, &hardware, &job)?;
    let mut random = Random(stage.seed ^ u64::from(shape.level) << 32);
    let mut images = Vec::new();
    let mut before = Acknowledged::new();
    for number in 0..stage.options.images {
        let progress = |machine: &Machine| {
            let now = acknowledged(&machine.read("acknowledged"));
            WRITERS.iter().all(|&writer| now.contains_key(writer) && now.get(writer) > before.get(writer))
        };
        machine.until(format!("every writer went on (image {number})"), progress)?;
        thread::sleep(Duration::from_micros(random.next() % 700_000));
        let target = stage.directory(&format!("image-{}-{number}", shape.level))?;
        let nvdimms: Vec<_> = (0..shape.member_count).map(|slot| target.join(format!("nvdimm{slot}"))).collect();
        let acknowledged = machine.frozen(|machine| {
            for (from, to) in hardware.nvdimms.iter().zip(&nvdimms) {
                super::tool::output(Command::new("cp").arg("--sparse=always").arg(from).arg(to))?;
            }
            Ok(acknowledged(&machine.read("acknowledged")))
        })?;
        before.clone_from(&acknowledged);
        // A mirror bears the loss of a member in the same instant; parity does so with a journal only (docs: the write hole).
        let without = (shape.level == 1 && number % 2 == 1).then(|| (random.next() % shape.member_count as u64) as usize);
        images.push(Image { shape, system, number, without, nvdimms, acknowledged });
    }
    let lines = vec![format!("{} images; acknowledged at the last: {}", images.len(), show(&before))];
    Ok((lines, images))
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
        format!("recover-{}-{}", self.shape.level, self.number)
    }

    /// Boots it, recovers, and checks everything that must hold.
    pub(crate) fn recover(&self, stage: &Stage<'_>, directory: &Path) -> Outcome<Vec<String>> {
        let mut job = Job::new("recover").with("level", self.shape.level).with("fs", self.system);
        for (writer, numbers) in &self.acknowledged {
            let numbers: Vec<_> = numbers.iter().map(u64::to_string).collect();
            job = job.with(writer, numbers.join(","));
        }
        let mut nvdimms = self.nvdimms.clone();
        if let Some(slot) = self.without {
            nvdimms.remove(slot);
            job = job.with("without", slot);
        }
        let hardware = Hardware { platform: Platform::Silent, nvdimms, cxl: None, processors: 1 };
        let told = show(&self.acknowledged);
        let lines = stage.play(directory, &hardware, &job).map_err(|message| format!("acknowledged: {told}\n{message}"))?;
        if !stage.options.keep {
            let place = self.nvdimms[0].parent().unwrap_or(directory);
            fs::remove_dir_all(place).map_err(about(place.display()))?;
        }
        let lost = self.without.map(|slot| format!("; member {slot} lost in the cut")).unwrap_or_default();
        Ok([vec![format!("acknowledged: {told}{lost}")], lines].concat())
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
