//! The thesis' figures 10 and 11: RAID beside RAID. The thesis had md; here it is btrfs, which is the
//! kernel's RAID that this machine has.
//!
//! Each system is also held against an unprotected file of its own stack: arrays against the
//! ordinary directory of the tmpfs, btrfs against btrfs on one loop device. Only those multiples are
//! fit for one axis, because the loop devices cost something by themselves.

use super::configurations::{BTRFS_RAID1, BTRFS_RAID5, Configuration, EXT4, POSIX, Places, RAID1, RAID5, btrfs};
use super::{Group, Part, by_turns};
use crate::figure::{Better, Figure, Kind, Unit};
use crate::fio::{Job, Pattern};
use crate::ground::Ground;
use crate::plan::Plan;
use crate::record::Sample;

const BLOCK_BYTES: u64 = 4096;

/// Each configuration, and the unprotected one of its stack.
const CONFIGURATIONS: [(Configuration, &str); 11] = [
    (POSIX, ""),
    (RAID1, "posix"),
    (RAID5, "posix"),
    (EXT4, ""),
    (btrfs("btrfs single", "single", 1, ""), ""),
    (BTRFS_RAID1, "btrfs single"),
    (btrfs("btrfs raid1c3", "raid1c3", 3, ""), "btrfs single"),
    (BTRFS_RAID5, "btrfs single"),
    (btrfs("btrfs single nodatacow", "single", 1, "nodatacow"), ""),
    (btrfs("btrfs raid1 nodatacow", "raid1", 3, "nodatacow"), "btrfs single nodatacow"),
    (btrfs("btrfs raid5 nodatacow", "raid5", 3, "nodatacow"), "btrfs single nodatacow"),
];

/// The figures 10 and 11.
pub(crate) struct Raid;

const RATES: &str = "f10-bandwidth";
const FACTORS: &str = "f11-factor";

fn figures() -> [Figure; 2] {
    let differs = "The thesis had md on three NVMe disks beside Optane modules. The kernel here has no md; btrfs keeps checksums \
        (unless nodatacow), writes data elsewhere each time (unless nodatacow), and its loop devices cost time that a disk's \
        driver would not. Its metadata have the profile of its data.";
    let rates = Figure {
        id: RATES.to_owned(),
        title: "F10: RAID beside RAID, calls of 4 KiB, bandwidth".to_owned(),
        kind: Kind::Groups,
        unit: Unit::Rate,
        better: Better::Higher,
        x: "pattern",
        baseline: "posix",
        measured:
            "fio as in F3 to F6 on arrays of three members in one tmpfs, and on btrfs and ext4 on loop devices with direct \
            I/O whose files lie in that tmpfs."
                .to_owned(),
        seed: "md RAID 1 wrote as fast as a partition and read as fast; RAID 5 wrote slower and read faster.".to_owned(),
        differs: differs.to_owned(),
        goals: Vec::new(),
    };
    let factors = Figure {
        id: FACTORS.to_owned(),
        title: "F11: RAID as a multiple of an unprotected file of the same stack".to_owned(),
        unit: Unit::Factor,
        baseline: "",
        measured: "the rates of F10, each divided, round by round, by that of an unprotected file of the same stack: arrays by \
            the ordinary directory, btrfs by btrfs on one loop device with the same options. 1 means that protection costs \
            nothing."
            .to_owned(),
        seed: "RAID 5 wrote up to 3.8 times as fast as md's (as multiples of what memory and disk differ in), RAID 1 read up to \
            1.4 times as fast and wrote on par; RAID 5 read slower."
            .to_owned(),
        ..rates.clone()
    };
    [rates, factors]
}

/// The plan with a smaller file: there are many devices, and each is filled in time.
fn smaller(plan: &Plan) -> Plan {
    Plan { file_bytes: if plan.is_quick() { plan.file_bytes } else { plan.file_bytes / 4 }, ..*plan }
}

impl Part for Raid {
    fn name(&self) -> &'static str {
        "raid"
    }

    fn title(&self) -> &'static str {
        "The thesis' figures 10 and 11: RAID beside RAID"
    }

    fn figures(&self) -> Vec<Figure> {
        figures().to_vec()
    }

    fn needs_bytes(&self, plan: &Plan) -> u64 {
        CONFIGURATIONS.iter().map(|(one, _)| one.takes_bytes(&smaller(plan))).sum()
    }

    fn groups(&self, plan: &Plan) -> Vec<Group> {
        let seconds = plan.fio_seconds(CONFIGURATIONS.len()) + 4.0;
        Pattern::ALL.into_iter().map(|pattern| Group { name: pattern.name().to_owned(), seconds }).collect()
    }

    fn measure(&self, ground: &Ground, plan: &Plan, group: usize) -> Result<Vec<Sample>, String> {
        let (pattern, plan) = (Pattern::ALL[group], &smaller(plan));
        let job = Job::psync(pattern, BLOCK_BYTES, true);
        let places = Places::make(ground, plan, &CONFIGURATIONS.map(|(one, _)| one))?;
        let found =
            by_turns(plan, places.found.len(), |index| Ok(job.run(ground, &places.found[index].1, plan)?.bytes_per_second))?;
        let rates: Vec<(&str, &Vec<f64>)> = places.found.iter().map(|(one, _)| one.name).zip(&found).collect();
        let sample = |figure, name, rounds| Sample::new(figure, name, pattern.words(), rounds).with("fio", job.text(plan));
        let mut samples: Vec<Sample> = rates.iter().map(|(name, rounds)| sample(RATES, name, (*rounds).clone())).collect();
        for (one, base) in &CONFIGURATIONS {
            let rounds_of = |wanted: &str| rates.iter().find(|(name, _)| *name == wanted).map(|(_, rounds)| *rounds);
            if let (Some(these), Some(those)) = (rounds_of(one.name), rounds_of(base)) {
                let factors = these.iter().zip(those).map(|(this, that)| this / that).collect();
                samples.push(sample(FACTORS, one.name, factors).with("divided by", *base));
            }
        }
        for (name, why) in &places.absent {
            samples.push(Sample::absent(RATES, name, why));
            if CONFIGURATIONS.iter().any(|(one, base)| one.name == *name && !base.is_empty()) {
                samples.push(Sample::absent(FACTORS, name, why));
            }
        }
        places.discard(ground)?;
        Ok(samples)
    }
}
