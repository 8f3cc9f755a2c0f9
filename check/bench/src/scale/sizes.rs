//! Sizes of a file, from 1 byte to 1 TiB. Beyond what is filled a file is a hole.

use super::agent::{Job, Talk, each, timed};
use super::axis::{Axis, Bench, Extent, Measure, On, Record, flat};
use super::limits::Needs;
use super::pair::{ATTACH, Ground, RECOVER, START, STATUS, STOP, US};
use crate::library::said;
use crate::members::Mapped;
use crate::places::{Order, Places};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use units::PAGE_BYTES;

/// Bytes of a call.
const SMALL_BYTES: usize = 4 << 10;
pub(crate) const LARGE_BYTES: usize = 1 << 20;
/// So much of a file has bytes.
const FILLED_BYTES: u64 = 64 << 20;
const CALLS: usize = 256;
const LARGE_CALLS: usize = 16;
const LARGE_MAP_BYTES: u64 = 1 << 30;

/// Work on one file.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct Sized {
    path: PathBuf,
    /// The file gets so many bytes, if it is not there.
    bytes: u64,
    /// Calls of each kind; with none the file is only made.
    calls: usize,
}

impl Sized {
    /// Makes a file.
    pub(crate) const fn prepare(path: PathBuf, bytes: u64) -> Self {
        Self { path, bytes, calls: 0 }
    }

    /// Makes a file, if it is not there, and works on it.
    pub(crate) fn new(path: PathBuf, bytes: u64, bench: &Bench) -> Self {
        Self { path, bytes, calls: bench.calls(CALLS) }
    }

    fn make(&self, path: &std::path::Path) -> Result<File, String> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(said)?;
        if file.metadata().map_err(said)?.len() < self.bytes {
            let block = vec![7; LARGE_BYTES];
            for offset in (0..self.bytes.min(FILLED_BYTES)).step_by(block.len()) {
                let length = block.len().min((self.bytes - offset) as usize);
                file.write_all_at(&block[..length], offset).map_err(said)?;
            }
            file.set_len(self.bytes).map_err(said)?;
        }
        Ok(file)
    }
}

/// What [`work`] measures, in this order.
pub(crate) const MEASURED: [(&str, f64); 9] = [
    ("open", US),
    ("stat", US),
    ("read", US),
    ("write", US),
    ("write-1M", US),
    ("sync", US),
    ("map", US),
    ("resize", US),
    ("remove", US),
];

/// Nanoseconds of each of [`MEASURED`]. A file that is smaller than a call is read and written whole.
pub(crate) fn work(sized: &Sized, talk: &mut Talk) -> Result<Option<Vec<f64>>, String> {
    let file = sized.make(&sized.path)?;
    if sized.calls == 0 {
        return Ok(Some(Vec::new()));
    }
    if !talk.ready()? {
        return Ok(None);
    }
    let calls = sized.calls;
    let small = SMALL_BYTES.min(sized.bytes as usize);
    let large = LARGE_BYTES.min(sized.bytes as usize);
    let offsets = |block: usize, count, seed| {
        let mut offsets = Vec::new();
        Places::new(Order::Random, sized.bytes, block, seed, 3).fill(&mut offsets, count);
        offsets
    };
    let open = each(0..calls, |_| File::open(&sized.path).map(|_| ()))?;
    let stat = each(0..calls, |_| fs::metadata(&sized.path).map(|_| ()))?;
    let mut buffer = vec![9; large];
    // The first calls have tables and pages put in place.
    let reads = [offsets(small, calls, 0), offsets(small, calls, 1)]
        .map(|offsets| each(offsets, |offset| file.read_exact_at(&mut buffer[..small], offset)));
    let writes = [offsets(small, calls, 1), offsets(small, calls, 2)]
        .map(|offsets| each(offsets, |offset| file.write_all_at(&buffer[..small], offset)));
    let large_writes = [0, 1].map(|seed| {
        let filled = sized.bytes.min(FILLED_BYTES);
        let mut places = Vec::new();
        Places::new(Order::Random, filled, large, seed, 3).fill(&mut places, LARGE_CALLS);
        each(places, |offset| file.write_all_at(&buffer[..large], offset))
    });
    let sync = each(0..calls / 16 + 1, |_| {
        file.write_all_at(&buffer[..small], 0)?;
        file.sync_data()
    })?;
    // What grows with the size is measured once where it may take seconds.
    let maps = if sized.bytes > LARGE_MAP_BYTES { 1 } else { calls / 16 + 1 };
    let map = each(0..maps, |_| {
        let mapped = Mapped::untouched(&sized.path, sized.bytes)?;
        // SAFETY: within the mapping, in which nobody else stores.
        unsafe { mapped.at(0).write_volatile(7) };
        mapped.sync(0, PAGE_BYTES.min(sized.bytes as usize))
    })?;
    let resize = each(0..calls / 16 + 1, |_| {
        file.set_len(sized.bytes + 1)?;
        file.set_len(sized.bytes)
    })?;
    let other = sized.path.with_extension("other");
    drop(sized.make(&other)?);
    let remove = timed(|| fs::remove_file(&other))?;
    let [[_, read], [_, write], [_, large_write]] = [reads, writes, large_writes];
    Ok(Some(vec![open, stat, read?, write?, large_write?, sync, map, resize, remove]))
}

struct Sizes;

pub(crate) fn axes() -> Vec<Box<dyn Axis>> {
    vec![Box::new(Sizes)]
}

const MEASURES: &[Measure] = &[
    flat("open", "open and close of a file that was closed just before, us"),
    flat("stat", "stat, us"),
    flat("read", "4 KiB at random (smaller files whole), us"),
    flat("write", "4 KiB at random (smaller files whole), us"),
    flat("write-1M", "1 MiB at random (smaller files whole), us"),
    flat("sync", "4 KiB and fdatasync, us"),
    flat("map", "mmap, a store to one page, msync of that page, munmap; us"),
    flat("resize", "ftruncate to one byte more and back, us"),
    flat("remove", "unlink of a file that was just made, us"),
    ATTACH,
    STATUS,
    STOP,
    START,
    RECOVER,
];

impl Axis for Sizes {
    fn name(&self) -> &'static str {
        "size"
    }

    fn what(&self) -> &'static str {
        "bytes of a file; what is beyond 64 MiB is a hole"
    }

    fn points(&self, extent: Extent) -> Vec<u64> {
        if extent == Extent::Quick {
            return vec![1, 64 << 10];
        }
        vec![1, 64, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 1 << 30, 16 << 30, 256 << 30, 1 << 40]
    }

    fn measures(&self) -> &'static [Measure] {
        MEASURES
    }

    fn needs(&self, x: u64) -> Needs {
        // A second file is made for being removed.
        Needs { bytes: 6 * x.min(FILLED_BYTES) + (256 << 20), ..Needs::default() }
    }

    fn seconds(&self, _: u64) -> f64 {
        4.0
    }

    fn point(&mut self, bench: &Bench, x: u64, record: &mut Record) -> Result<(), String> {
        let ground = Ground::new("size", "5", 3)?;
        let path = |on| ground.directory(on).join("file");
        for on in [On::Plain, On::Array] {
            let tree = super::agent::Tree { directory: ground.directory(on), per_directory: 0 };
            ground.run(bench, on, Job::Fill { tree, from: 0, to: 1 })?;
            ground.run(bench, on, Job::Sized(Sized::prepare(path(on), x)))?;
        }
        ground.compare(bench, record, &MEASURED, |on, _| Job::Sized(Sized::new(path(on), x, bench)))?;
        ground.live(bench, record, &|on| Job::Beside(super::processes::Beside::writes(path(on))))
    }
}
