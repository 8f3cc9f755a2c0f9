//! Shapes of an array: how many members there are, and how large a chunk is.

use super::agent::{Job, Tree};
use super::axis::{Axis, Bench, Extent, Measure, On, Record, flat, linear};
use super::limits::Needs;
use super::pair::{ATTACH, Ground, RECOVER, START, STATUS, STOP, US};
use super::sizes::{MEASURED, Sized};

const CALLS: usize = 256;
/// Small files that are there.
const FILES: u64 = 512;
/// Bytes of the file that is read and written.
const REGION_BYTES: u64 = 64 << 20;
/// The axis of chunks needs a stripe of the largest ones.
const CHUNK_REGION_BYTES: u64 = 128 << 20;
/// What small files take on each member.
const SMALL_BYTES: u64 = 16 << 20;

struct Members;

struct Chunks;

pub(crate) fn axes() -> Vec<Box<dyn Axis>> {
    vec![Box::new(Members), Box::new(Chunks)]
}

const MEMBERS: &[Measure] = &[
    linear("create", "create, write 100 bytes, close; us each"),
    linear("unlink", "unlink, us each"),
    linear("cold", "open, read, close of a small file that this process has not had open, us each"),
    linear("kept", "open and close of a file that was closed just before, us each"),
    flat("stat", "stat, us"),
    flat("read", "4 KiB at random, us"),
    flat("write", "4 KiB at random, us"),
    flat("write-1M", "1 MiB at random, us"),
    linear("sync", "4 KiB and fdatasync, us"),
    linear("map", "mmap, a store to one page, msync of that page, munmap; us"),
    linear("resize", "ftruncate to one byte more and back, us"),
    linear("remove", "unlink of a file of 64 MiB, us"),
    Measure { expected: Some(1.0), ..ATTACH },
    Measure { expected: Some(1.0), ..STATUS },
    Measure { expected: Some(1.0), ..STOP },
    Measure { expected: Some(1.0), ..START },
    Measure { expected: Some(1.0), ..RECOVER },
];

impl Axis for Members {
    fn name(&self) -> &'static str {
        "members"
    }

    fn what(&self) -> &'static str {
        "members of the array (RAID 5, chunks of 64 KiB)"
    }

    fn points(&self, extent: Extent) -> Vec<u64> {
        if extent == Extent::Quick { vec![3, 4] } else { vec![3, 4, 6, 8, 12, 16, 24, 32] }
    }

    fn measures(&self) -> &'static [Measure] {
        MEMBERS
    }

    fn needs(&self, x: u64) -> Needs {
        Needs { bytes: 5 * REGION_BYTES + x * SMALL_BYTES, ..Needs::default() }
    }

    fn seconds(&self, x: u64) -> f64 {
        6.0 + x as f64 / 4.0
    }

    fn point(&mut self, bench: &Bench, x: u64, record: &mut Record) -> Result<(), String> {
        let ground = Ground::new("members", "5", x as usize)?;
        shape(bench, record, &ground, REGION_BYTES)
    }
}

const CHUNKS: &[Measure] = &[
    flat("create", "create, write 100 bytes, close; us each"),
    flat("unlink", "unlink, us each"),
    flat("cold", "open, read, close of a small file that this process has not had open, us each"),
    flat("kept", "open and close of a file that was closed just before, us each"),
    flat("stat", "stat, us"),
    flat("read", "4 KiB at random, us"),
    flat("write", "4 KiB at random, us"),
    flat("write-1M", "1 MiB at random, us"),
    flat("sync", "4 KiB and fdatasync, us"),
    flat("map", "mmap, a store to one page, msync of that page, munmap; us"),
    flat("resize", "ftruncate to one byte more and back, us"),
    flat("remove", "unlink of a file of 64 MiB, us"),
    ATTACH,
    STATUS,
    STOP,
    START,
    RECOVER,
];

impl Axis for Chunks {
    fn name(&self) -> &'static str {
        "chunk"
    }

    fn what(&self) -> &'static str {
        "bytes of a chunk (RAID 5 of 3 members)"
    }

    fn points(&self, extent: Extent) -> Vec<u64> {
        if extent == Extent::Quick { vec![64, 64 << 10] } else { (0..8).map(|step| 64 << (20 * step / 7)).collect() }
    }

    fn measures(&self) -> &'static [Measure] {
        CHUNKS
    }

    fn needs(&self, _: u64) -> Needs {
        Needs { bytes: 5 * CHUNK_REGION_BYTES + 3 * SMALL_BYTES, ..Needs::default() }
    }

    fn seconds(&self, _: u64) -> f64 {
        6.0
    }

    fn point(&mut self, bench: &Bench, x: u64, record: &mut Record) -> Result<(), String> {
        let mut ground = Ground::new("chunk", "5", 3)?;
        ground.chunk = Some(x.to_string());
        shape(bench, record, &ground, CHUNK_REGION_BYTES)
    }
}

/// Takes the measures of both axes.
fn shape(bench: &Bench, record: &mut Record, ground: &Ground, full_bytes: u64) -> Result<(), String> {
    let bytes = if bench.extent == Extent::Quick { full_bytes / 16 } else { full_bytes };
    let tree = |on| Tree { directory: ground.directory(on).join("t"), per_directory: 0 };
    let path = |on| ground.directory(on).join("file");
    for on in [On::Plain, On::Array] {
        ground.run(bench, on, Job::Fill { tree: tree(on), from: 0, to: FILES })?;
        ground.run(bench, on, Job::Sized(Sized::prepare(path(on), bytes)))?;
    }
    let calls = bench.calls(CALLS);
    ground.compare(bench, record, &[("create", US), ("unlink", US)], |on, round| Job::Churn {
        tree: tree(on),
        count: FILES,
        calls,
        seed: round as u64,
    })?;
    ground.compare(bench, record, &[("cold", US), ("kept", US)], |on, round| Job::Read {
        tree: tree(on),
        count: FILES,
        calls,
        seed: round as u64,
    })?;
    // The first, of an open and a close, is measured above.
    ground.compare(bench, record, &MEASURED, |on, _| Job::Sized(Sized::new(path(on), bytes, bench)))?;
    ground.live(bench, record, &|on| Job::Beside(super::processes::Beside::writes(path(on))))
}
