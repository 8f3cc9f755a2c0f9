//! Writable mappings of a sparse file, from 16 MiB to 1 TiB: a database that maps its whole file, as
//! LMDB with writemap does, a log with one page in use, and mappings whose pages are put in place at
//! once.

use super::agent::{Job, each, timed};
use super::axis::{Axis, Bench, Extent, Measure, On, Record, flat, linear};
use super::limits::Needs;
use super::pair::{COUNT, Ground, US};
use crate::library::said;
use crate::members::Mapped;
use crate::places::{Order, Places};
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use units::PAGE_BYTES;

/// What is stored to lies in the first bytes of the file.
const USED_BYTES: u64 = 16 << 20;
/// Pages that a commit stores to.
const PAGES: usize = 3;
const COMMITS: usize = 16;
/// Larger mappings are not put in place at once.
const POPULATED_BYTES: u64 = 1 << 30;
/// Blocks of stat(2) have 512 bytes.
const BLOCKS_PER_KIB: u64 = 2;

/// Work on a mapping of a file that is made for it and removed afterwards.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct Mapping {
    path: PathBuf,
    bytes: u64,
    commits: usize,
}

/// What [`work`] measures, in this order.
const MEASURED: [(&str, f64); 6] =
    [("map", US), ("commit", US), ("hot", US), ("unmap", US), ("allocated", COUNT), ("populate", US)];

/// Nanoseconds of each of [`MEASURED`], but for what is allocated: KiB. Populating is left out where
/// it would take too much.
pub(crate) fn work(mapping: &Mapping) -> Result<Vec<f64>, String> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&mapping.path).map_err(said)?;
    file.set_len(mapping.bytes).map_err(said)?;
    let mut mapped = None;
    let map = timed(|| {
        mapped = Some(Mapped::untouched(&mapping.path, mapping.bytes)?);
        Ok(())
    })?;
    let mapped = mapped.ok_or("no mapping")?;
    let store = |offset: u64| {
        // SAFETY: within the mapping, in which nobody else stores.
        unsafe { mapped.at(offset).write_volatile(7) };
    };
    let mut places = Places::new(Order::Random, USED_BYTES.min(mapping.bytes), PAGE_BYTES, 0, 1);
    let mut offsets = Vec::new();
    let commit = each(0..mapping.commits, |_| {
        places.fill(&mut offsets, PAGES);
        offsets.iter().for_each(|&offset| store(offset));
        mapped.sync(0, mapping.bytes as usize)
    })?;
    let hot = each(0..mapping.commits, |_| {
        store(0);
        mapped.sync(0, PAGE_BYTES)
    })?;
    let unmap = timed(|| {
        drop(mapped);
        Ok(())
    })?;
    let allocated = file.metadata().map_err(said)?.blocks() / BLOCKS_PER_KIB;
    let mut found = vec![map, commit, hot, unmap, allocated as f64];
    if mapping.bytes <= POPULATED_BYTES {
        found.push(timed(|| Mapped::populated(&mapping.path, mapping.bytes).map(|_| ()))?);
    }
    drop(file);
    std::fs::remove_file(&mapping.path).map_err(said)?;
    Ok(found)
}

struct Mappings;

pub(crate) fn axes() -> Vec<Box<dyn Axis>> {
    vec![Box::new(Mappings)]
}

const MEASURES: &[Measure] = &[
    flat("map", "mmap of the whole file, us"),
    flat("commit", "stores to 3 pages of the first 16 MiB and msync of the whole mapping, us"),
    flat("hot", "a store to one page and msync of that page, us"),
    flat("unmap", "munmap, us"),
    flat("allocated", "KiB that the file takes afterwards, as stat says"),
    linear("populate", "mmap with MAP_POPULATE and munmap, us"),
];

impl Axis for Mappings {
    fn name(&self) -> &'static str {
        "mapping"
    }

    fn what(&self) -> &'static str {
        "bytes of a writable mapping of a sparse file"
    }

    fn points(&self, extent: Extent) -> Vec<u64> {
        if extent == Extent::Quick {
            return vec![1 << 20, 16 << 20];
        }
        vec![16 << 20, 64 << 20, 256 << 20, 1 << 30, 4 << 30, 16 << 30, 64 << 30, 256 << 30, 1 << 40]
    }

    fn measures(&self) -> &'static [Measure] {
        MEASURES
    }

    fn needs(&self, x: u64) -> Needs {
        Needs { bytes: x.min(POPULATED_BYTES) * 5 / 2 + (256 << 20), ..Needs::default() }
    }

    fn seconds(&self, x: u64) -> f64 {
        2.0 + (x >> 30) as f64 / 10.0
    }

    fn point(&mut self, bench: &Bench, x: u64, record: &mut Record) -> Result<(), String> {
        let ground = Ground::new("mapping", "5", 3)?;
        let commits = bench.calls(COMMITS);
        for on in [On::Plain, On::Array] {
            let tree = super::agent::Tree { directory: ground.directory(on), per_directory: 0 };
            ground.run(bench, on, Job::Fill { tree, from: 0, to: 1 })?;
        }
        let path = |on| ground.directory(on).join("map");
        ground.compare(bench, record, &MEASURED, |on, _| Job::Mapping(Mapping { path: path(on), bytes: x, commits }))
    }
}
