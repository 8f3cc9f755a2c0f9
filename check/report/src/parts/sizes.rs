//! The thesis' figures 7 and 8: sequential writes by the size of calls, and by the size of chunks.

use super::configurations::{
    Configuration, EXT4, MAPPING, POSIX, Places, RAID1, RAID1_JOURNAL, RAID5, RAID5_BROKEN, RAID5_JOURNAL,
};
use super::matrix::DIFFERS;
use super::{Group, Part, by_turns};
use crate::figure::{Better, Figure, Goal, Kind, Unit};
use crate::fio::{Job, Pattern};
use crate::ground::Ground;
use crate::plan::Plan;
use crate::record::Sample;

/// The size of calls while chunks vary.
const BLOCK_BYTES: u64 = 4096;

const BY_BLOCK: [Configuration; 7] = [POSIX, MAPPING, RAID1, RAID1_JOURNAL, RAID5, RAID5_JOURNAL, EXT4];
const BY_CHUNK: [Configuration; 3] = [RAID5, RAID5_JOURNAL, RAID5_BROKEN];

/// The figures 7 and 8.
pub(crate) struct Sizes;

/// What is measured at once.
#[derive(Clone, Copy)]
enum Point {
    Block(u64),
    Chunk(u64),
}

impl Point {
    fn all(plan: &Plan) -> Vec<Self> {
        let sizes: &[u64] = if plan.is_quick() {
            &[64, 4096, 1 << 20]
        } else {
            &[64, 256, 512, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20]
        };
        let blocks = sizes.iter().map(|&bytes| Self::Block(bytes));
        // ext4 and O_DIRECT take blocks of 512 bytes and more.
        blocks.chain(sizes.iter().map(|&bytes| Self::Chunk(bytes))).collect()
    }

    fn configurations(self) -> Vec<Configuration> {
        match self {
            Self::Block(bytes) => BY_BLOCK.iter().filter(|one| one.name != EXT4.name || bytes >= 4096).copied().collect(),
            Self::Chunk(bytes) => BY_CHUNK.iter().map(|one| one.with_chunks(bytes)).collect(),
        }
    }
}

fn figures() -> [Figure; 2] {
    let figure = |id: &str, title: &str, measured: &str, seed: &str, x, goals| Figure {
        id: id.to_owned(),
        title: title.to_owned(),
        kind: Kind::Bytes,
        unit: Unit::Rate,
        better: Better::Higher,
        x,
        baseline: "",
        measured: measured.to_owned(),
        seed: seed.to_owned(),
        differs: DIFFERS.to_owned(),
        goals,
    };
    let goal = |series, against, x, source| Goal { series, against, x, at_least: 1.0, source };
    [
        figure(
            "f7-bandwidth",
            "F7: sequential writes by the size of a call",
            "fio (psync, `rw=write`, `direct=1`) with calls of 64 bytes to 1 MiB; chunks of 4 KiB. ext4 begins at 4 KiB: \
             direct I/O takes whole blocks.",
            "rates rose up to calls of about 4 KiB and then fell slightly, most of all for RAID 1; posix gained from every \
             larger size.",
            "bytes of a call",
            vec![
                goal("mapping", "posix", "64", "the thesis: small calls gain most from not entering the kernel"),
                goal("mapping", "posix", "4096", "the thesis: mapping is faster than posix at 4 KiB"),
                goal("raid5", "posix", "64", "small calls gain most from not entering the kernel"),
            ],
        ),
        figure(
            "f8-bandwidth",
            "F8: sequential writes of 4 KiB by the size of chunks",
            "fio (psync, `rw=write`, `direct=1`, calls of 4 KiB) on RAID 5 of three members with chunks of 64 bytes to 1 MiB: \
             whole, with a journal, with the first member lost.",
            "best with chunks of about 512 bytes, little difference from 256 bytes to 4 KiB; raid5_broken collapsed with \
             chunks smaller than a call.",
            "bytes of a chunk",
            Vec::new(),
        ),
    ]
}

impl Part for Sizes {
    fn name(&self) -> &'static str {
        "sizes"
    }

    fn title(&self) -> &'static str {
        "The thesis' figures 7 and 8: sizes of calls and chunks"
    }

    fn figures(&self) -> Vec<Figure> {
        figures().to_vec()
    }

    fn needs_bytes(&self, plan: &Plan) -> u64 {
        BY_BLOCK.iter().map(|one| one.takes_bytes(plan)).sum()
    }

    fn groups(&self, plan: &Plan) -> Vec<Group> {
        let group = |point: Point| {
            let name = match point {
                Point::Block(bytes) => format!("block-{bytes}"),
                Point::Chunk(bytes) => format!("chunk-{bytes}"),
            };
            Group { name, seconds: plan.fio_seconds(point.configurations().len()) + 0.5 }
        };
        Point::all(plan).into_iter().map(group).collect()
    }

    fn measure(&self, ground: &Ground, plan: &Plan, group: usize) -> Result<Vec<Sample>, String> {
        let point = Point::all(plan)[group];
        let (id, x, block_bytes) = match point {
            Point::Block(bytes) => ("f7-bandwidth", bytes, bytes),
            Point::Chunk(bytes) => ("f8-bandwidth", bytes, BLOCK_BYTES),
        };
        let job = Job::psync(Pattern::Write, block_bytes, true);
        let places = Places::make(ground, plan, &point.configurations())?;
        let found =
            by_turns(plan, places.found.len(), |index| Ok(job.run(ground, &places.found[index].1, plan)?.bytes_per_second))?;
        let measured = places.found.iter().zip(found).map(|((configuration, _), rounds)| {
            Sample::new(id, configuration.name, x.to_string(), rounds).with("fio", job.text(plan))
        });
        let mut samples: Vec<Sample> = measured.collect();
        samples.extend(places.absent.iter().map(|(name, why)| Sample::absent(id, name, why)));
        places.discard(ground)?;
        Ok(samples)
    }
}
