//! One of two parties that work at the same time: a thread or a process, with its own descriptors
//! and mappings, told what to do by words in shared memory.
//!
//! The one who measures posts a job and sleeps until it is done. The parties of a job wait for each
//! other without sleeping and begin together; each notes when it began and ended, by a clock that
//! all processes share.

use crate::levels;
use crate::limit::{Limit, Work};
use crate::members::{Mapped, plain_file};
use crate::places::{Order, Places};
use crate::plan::{ArrayPlace, SMALL_BYTES};
use crate::rounds::Contender;
use crate::subject::{Buffer, Reads, Writes};
use layout::Geometry;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{sleep, yield_now};
use std::time::{Duration, Instant};

/// How many parties there are at most.
pub(crate) const PARTY_COUNT: usize = 2;
/// How long a party sleeps that has nothing to do.
const IDLE: Duration = Duration::from_micros(50);
/// How long the one who measures sleeps: it must not take the processors from those who work.
const WATCH: Duration = Duration::from_millis(1);
/// Longer than any job takes, and the filling before the first.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where the parties find everything.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct Ground {
    pub(crate) array: ArrayPlace,
    /// A directory of the tmpfs that the members lie on.
    pub(crate) directory: PathBuf,
    /// Bytes of each file.
    pub(crate) region_bytes: u64,
    /// Calls of each party in a job.
    pub(crate) calls: usize,
}

/// On what a job works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum On {
    /// A file of the array.
    Ours,
    /// A file of the tmpfs.
    Kernel,
    /// Mappings of ordinary files, as the members would be used, in a bare loop.
    Memory,
}

/// What is to be done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) on: On,
    pub(crate) writes: bool,
    /// Whether all parties work on one file.
    pub(crate) same: bool,
    pub(crate) parties: usize,
}

impl Job {
    const fn code(self) -> u64 {
        let on = match self.on {
            On::Ours => 0,
            On::Kernel => 1,
            On::Memory => 2,
        };
        on | (self.writes as u64) << 2 | (self.same as u64) << 3 | (self.parties as u64) << 4
    }

    /// None if it is the end.
    const fn decode(code: u64) -> Option<Self> {
        let on = match code & 3 {
            0 => On::Ours,
            1 => On::Kernel,
            2 => On::Memory,
            _ => return None,
        };
        Some(Self { on, writes: code >> 2 & 1 == 1, same: code >> 3 & 1 == 1, parties: (code >> 4 & 3) as usize })
    }
}

/// Job codes are shorter than this many bits; the number of the job stands above.
const CODE_BITS: u32 = 8;
const END: u64 = 3;

/// The words in shared memory.
#[repr(C)]
struct Words {
    /// Number and code of the last job posted.
    posted: AtomicU64,
    ready: AtomicU64,
    arrived: AtomicU64,
    done: AtomicU64,
    began_ns: [AtomicU64; PARTY_COUNT],
    ended_ns: [AtomicU64; PARTY_COUNT],
}

/// The board on which jobs are posted: a file that everybody maps.
pub(crate) struct Board(Mapped);

impl Board {
    pub(crate) fn open(directory: &Path) -> io::Result<Self> {
        let path = directory.join("board");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
        file.set_len(size_of::<Words>() as u64)?;
        Mapped::untouched(&path, size_of::<Words>() as u64).map(Self)
    }

    fn words(&self) -> &Words {
        // SAFETY: mapped, at a page boundary and that long; every word is an atomic.
        unsafe { &*self.0.at(0).cast() }
    }

    /// Waits for every party to be there; `lives` tells whether all of them still can.
    pub(crate) fn wait_for_parties(&self, lives: &mut impl FnMut() -> bool) -> io::Result<()> {
        wait(|| self.words().ready.load(Ordering::Acquire) == PARTY_COUNT as u64, lives)
    }

    /// Has a job done; returns the nanoseconds from the first party's begin to the last one's end.
    pub(crate) fn run(&self, job: Job, lives: &mut impl FnMut() -> bool) -> io::Result<f64> {
        let words = self.words();
        words.arrived.store(0, Ordering::Relaxed);
        words.done.store(0, Ordering::Relaxed);
        self.post(job.code());
        wait(|| words.done.load(Ordering::Acquire) == job.parties as u64, lives)?;
        let times = |words: &[AtomicU64; PARTY_COUNT]| words[..job.parties].iter().map(|ns| ns.load(Ordering::Relaxed)).collect();
        let (began, ended): (Vec<u64>, Vec<u64>) = (times(&words.began_ns), times(&words.ended_ns));
        let end = ended.into_iter().max().unwrap_or_default();
        Ok(end.saturating_sub(began.into_iter().min().unwrap_or_default()) as f64)
    }

    /// Sends the parties home.
    pub(crate) fn end(&self) {
        self.post(END);
    }

    fn post(&self, code: u64) {
        let number = (self.words().posted.load(Ordering::Relaxed) >> CODE_BITS) + 1;
        self.words().posted.store(number << CODE_BITS | code, Ordering::Release);
    }
}

fn wait(is_done: impl Fn() -> bool, lives: &mut impl FnMut() -> bool) -> io::Result<()> {
    let begun = Instant::now();
    while !is_done() {
        if begun.elapsed() > PATIENCE || !lives() {
            return Err(io::Error::other("a party that was to work with others is gone"));
        }
        sleep(WATCH);
    }
    Ok(())
}

/// Everything a party works on: by file, the one of all parties first.
struct Tools {
    ours: Vec<File>,
    kernel: Vec<File>,
    memory: Vec<[Mapped; 3]>,
    geometry: Geometry,
}

/// Names of the files that the bare loop works on, in place of members.
fn memory_name(file: usize, slot: usize) -> String {
    format!("memory-{file}-{slot}")
}

/// Makes all files, before the parties come.
pub(crate) fn prepare(ground: &Ground) -> io::Result<()> {
    let geometry = levels::geometry(&ground.array)?;
    for file in 0..PARTY_COUNT {
        let ours = File::create(ground.array.file(&file.to_string()))?;
        levels::write_all(&ours, ground.region_bytes);
        plain_file(&ground.directory.join(file.to_string()), ground.region_bytes)?;
        for slot in 0..3 {
            let bytes = geometry.member_bytes(ground.region_bytes);
            plain_file(&ground.directory.join(memory_name(file, slot)), bytes)?;
        }
    }
    Ok(())
}

impl Tools {
    /// Opens and maps all files, and has every page in place.
    fn new(ground: &Ground) -> io::Result<Self> {
        let geometry = levels::geometry(&ground.array)?;
        let open = |path: PathBuf| OpenOptions::new().read(true).write(true).open(path);
        let bytes = geometry.member_bytes(ground.region_bytes);
        let map = |file: usize| -> io::Result<[Mapped; 3]> {
            let one = |slot| Mapped::new(&ground.directory.join(memory_name(file, slot)), bytes);
            Ok([one(0)?, one(1)?, one(2)?])
        };
        let files = 0..PARTY_COUNT;
        let ours: Vec<File> = files.clone().map(|file| open(ground.array.file(&file.to_string()))).collect::<io::Result<_>>()?;
        ours.iter().for_each(|file| levels::fill(file, ground.region_bytes));
        let kernel = files.clone().map(|file| open(ground.directory.join(file.to_string()))).collect::<io::Result<_>>()?;
        Ok(Self { ours, kernel, memory: files.map(map).collect::<io::Result<_>>()?, geometry })
    }

    /// The side of a comparison that a job is for party `index`.
    fn contender<'a>(&'a self, job: Job, index: usize, buffer: &'a mut Buffer) -> Box<dyn Contender + 'a> {
        let file = if job.same { 0 } else { index };
        match (job.on, job.writes) {
            (On::Ours, false) => Box::new(Reads(&self.ours[file], buffer)),
            (On::Ours, true) => Box::new(Writes(&self.ours[file], buffer)),
            (On::Kernel, false) => Box::new(Reads(&self.kernel[file], buffer)),
            (On::Kernel, true) => Box::new(Writes(&self.kernel[file], buffer)),
            (On::Memory, false) => Box::new(Limit::new(Work::Read, &self.geometry, &self.memory[file], buffer)),
            (On::Memory, true) => Box::new(Limit::new(Work::Update, &self.geometry, &self.memory[file], buffer)),
        }
    }
}

/// Works as party `index` until the end is posted.
pub(crate) fn work(ground: &Ground, index: usize) -> io::Result<()> {
    let board = Board::open(&ground.directory)?;
    let (words, tools) = (board.words(), Tools::new(ground)?);
    let mut places = Places::new(Order::Random, ground.region_bytes, SMALL_BYTES, index, PARTY_COUNT);
    let (mut offsets, mut seen) = (Vec::new(), words.posted.load(Ordering::Acquire));
    let mut buffer = Buffer::of(&levels::content(SMALL_BYTES));
    words.ready.fetch_add(1, Ordering::AcqRel);
    loop {
        let posted = words.posted.load(Ordering::Acquire);
        if posted == seen {
            sleep(IDLE);
            continue;
        }
        seen = posted;
        let Some(job) = Job::decode(posted & ((1 << CODE_BITS) - 1)) else { return Ok(()) };
        if index >= job.parties {
            continue;
        }
        places.fill(&mut offsets, ground.calls);
        let mut contender = tools.contender(job, index, &mut buffer);
        contender.prepare(&offsets);
        words.arrived.fetch_add(1, Ordering::AcqRel);
        while words.arrived.load(Ordering::Acquire) != job.parties as u64 {
            yield_now();
        }
        words.began_ns[index].store(sys::clock::monotonic_ns(), Ordering::Relaxed);
        contender.run(&offsets);
        words.ended_ns[index].store(sys::clock::monotonic_ns(), Ordering::Relaxed);
        words.done.fetch_add(1, Ordering::AcqRel);
    }
}
