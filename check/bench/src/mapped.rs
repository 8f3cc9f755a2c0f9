//! Writable shared mappings: what a store costs, what msync costs, against the same on a plain
//! tmpfs file without redundancy.
//!
//! Where members have huge pages, also what keeping them is worth.
//!
//! The limit of an msync is a loop that loads the two data pages of a RAID 5 row (2+1) and stores
//! their sum. The other limits are what following by pages costs without an engine (`followed`):
//! the kernel's part of it is the same for everybody.

use crate::followed::Followed;
use crate::levels::FILE;
use crate::plan::{ArrayPlace, Plan};
use crate::report::{Check, Row};
use layout::{Geometry, Level};
use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::time::Instant;
use units::ChunkBytes;

const PAGE: usize = 4096;
/// Pages that are stored to before an msync that is timed.
const DIRTY_COUNT: usize = 1000;
/// Stores of 4 KiB between two msyncs, as a database would.
const SYNC_EVERY: usize = 256;

/// A shared mapping of a whole file.
struct Mapping {
    start: *mut u8,
    bytes: usize,
}

impl Mapping {
    fn new(file: &File, bytes: usize) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, wherever the kernel likes.
        let start = unsafe { libc::mmap(null_mut(), bytes, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Self { start: start.cast(), bytes }) }
    }

    fn anonymous(bytes: usize) -> io::Result<Self> {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, wherever the kernel likes.
        let start = unsafe { libc::mmap(null_mut(), bytes, access, flags, -1, 0) };
        if start == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Self { start: start.cast(), bytes }) }
    }

    fn pages(&self) -> usize {
        self.bytes / PAGE
    }

    /// Stores a word to a page.
    fn store(&self, page: usize, value: u64) {
        assert!(page < self.pages());
        // SAFETY: within the mapping, aligned.
        unsafe { self.start.add(page * PAGE).cast::<u64>().write_volatile(value) };
    }

    /// Stores a whole page.
    fn fill(&self, page: usize, block: &[u8; PAGE]) {
        assert!(page < self.pages());
        // SAFETY: within the mapping.
        unsafe { self.start.add(page * PAGE).copy_from_nonoverlapping(block.as_ptr(), PAGE) };
    }

    fn sync(&self) {
        // SAFETY: the mapping's own range.
        let result = unsafe { libc::msync(self.start.cast(), self.bytes, libc::MS_SYNC) };
        assert_eq!(result, 0, "msync: {}", io::Error::last_os_error());
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours, and nobody has pointers into it any more.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

/// Numbers from a seed (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

fn nanoseconds(work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    begun.elapsed().as_nanos() as f64
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// The rows of level 5 with three members. `subject` and `kernel` are files of `plan.region_bytes`,
/// the first in chunks of `chunk_bytes`.
pub(crate) fn rows(plan: &Plan, array: &ArrayPlace, chunk: ChunkBytes, subject: &File, kernel: &File) -> io::Result<Vec<Row>> {
    assert_eq!((array.level.as_str(), array.members.len()), ("5", 3));
    let geometry = Geometry::new(Level::Raid5, 3, chunk).map_err(|error| io::Error::other(error.to_string()))?;
    let whole = plan.region_bytes as usize;
    let part = whole.min(64 << 20);
    // Without userfaultfd there is nothing to compare with.
    let bare = |bytes| Followed::new(array, &geometry, FILE, bytes).ok();
    let mut rows = vec![
        first_stores(plan, subject, kernel, bare(part).as_ref(), part)?,
        later_stores(plan, subject, kernel, part)?,
        clean_sync(plan, subject, whole)?,
        clean_scan(plan, subject, bare(whole).as_ref(), whole)?,
        dirty_sync(plan, subject, bare(part).as_ref(), part)?,
        database(plan, subject, kernel, bare(part).as_ref(), part)?,
    ];
    rows.iter_mut().for_each(|row| row.case.push_str(&format!(", chunk {} KiB", chunk.bytes() >> 10)));
    Ok(rows)
}

fn rounds(plan: &Plan) -> usize {
    plan.rounds.clamp(1, 9)
}

/// The median of ours over the limit's, round by round, if there is a limit.
fn ratio(ours: &[f64], limits: &[f64]) -> Option<f64> {
    (!limits.is_empty()).then(|| median(ours.iter().zip(limits).map(|(ours, limit)| ours / limit).collect()))
}

fn first_stores(plan: &Plan, subject: &File, kernel: &File, bare: Option<&Followed>, bytes: usize) -> io::Result<Row> {
    let (mut ours, mut kernels, mut limits) = (Vec::new(), Vec::new(), Vec::new());
    let ours_at = Mapping::new(subject, bytes)?;
    for round in 0..rounds(plan) {
        ours_at.sync();
        let store_all = |mapping: &Mapping| (0..mapping.pages()).for_each(|page| mapping.store(page, round as u64));
        ours.push(nanoseconds(|| store_all(&ours_at)) / ours_at.pages() as f64);
        // Without tracking a page has its first store only once in a mapping.
        let fresh = Mapping::new(kernel, bytes)?;
        kernels.push(nanoseconds(|| store_all(&fresh)) / fresh.pages() as f64);
        if let Some(bare) = bare {
            bare.sync();
            let spent = nanoseconds(|| (0..ours_at.pages()).for_each(|page| bare.store(page, round as u64)));
            limits.push(spent / ours_at.pages() as f64);
        }
    }
    if let Some(bare) = bare {
        bare.sync();
    }
    let limit_ratio = ratio(&ours, &limits);
    let (ours, kernels) = (median(ours), median(kernels));
    Ok(Row {
        ours_ns: Some(ours),
        limit_ns: limit_ratio.map(|_| median(limits)),
        limit_ratio,
        kernel_ns: Some(kernels),
        kernel_ratio: Some(kernels / ours),
        checks: vec![Check::at_most("us for the first store to a page", ours / 1000.0, 2.5)],
        ..Row::new("mmap: first store to a page after a sync, RAID 5")
    })
}

fn later_stores(plan: &Plan, subject: &File, kernel: &File, bytes: usize) -> io::Result<Row> {
    let (ours_at, kernel_at) = (Mapping::new(subject, bytes)?, Mapping::new(kernel, bytes)?);
    let (mut ours, mut kernels) = (Vec::new(), Vec::new());
    for round in 0..rounds(plan) {
        for (mapping, times) in [(&ours_at, &mut ours), (&kernel_at, &mut kernels)] {
            // The pages of a loop this short stay in the caches, and the period hardly ever comes
            // between.
            let page = round % mapping.pages();
            mapping.store(page, 1);
            let count = 4096;
            times.push(nanoseconds(|| (0..count).for_each(|value| mapping.store(page, black_box(value)))) / count as f64);
        }
    }
    let (ours, kernels) = (median(ours), median(kernels));
    Ok(Row {
        ours_ns: Some(ours),
        kernel_ns: Some(kernels),
        kernel_ratio: Some(kernels / ours),
        checks: vec![Check::at_most("ns more than the kernel's", ours - kernels, 1.0)],
        ..Row::new("mmap: later stores to it")
    })
}

fn clean_sync(plan: &Plan, subject: &File, bytes: usize) -> io::Result<Row> {
    let mapping = Mapping::new(subject, bytes)?;
    // Every page is there, as in a program that has been at work.
    (0..mapping.pages()).for_each(|page| mapping.store(page, page as u64));
    mapping.sync();
    let times = (0..rounds(plan)).map(|_| nanoseconds(|| mapping.sync())).collect();
    let time = median(times);
    let of_a_gib = time / 1e6 * (1u64 << 30) as f64 / bytes as f64;
    Ok(Row {
        ours_ns: Some(time),
        checks: vec![Check::at_most("ms per clean GiB", of_a_gib, 3.0)],
        ..Row::new("mmap: msync of what is clean, RAID 5")
    })
}

/// As [`clean_sync`], but the process has had a page fault somewhere since: it may have been a
/// first store, so it takes a scan.
fn clean_scan(plan: &Plan, subject: &File, bare: Option<&Followed>, bytes: usize) -> io::Result<Row> {
    let mapping = Mapping::new(subject, bytes)?;
    (0..mapping.pages()).for_each(|page| mapping.store(page, page as u64));
    mapping.sync();
    if let Some(bare) = bare {
        (0..mapping.pages()).for_each(|page| bare.store(page, page as u64));
        bare.sync();
    }
    let (mut ours, mut limits) = (Vec::new(), Vec::new());
    let elsewhere = Mapping::anonymous(rounds(plan) * PAGE)?;
    for round in 0..rounds(plan) {
        elsewhere.store(round, 1);
        ours.push(nanoseconds(|| mapping.sync()));
        if let Some(bare) = bare {
            limits.push(nanoseconds(|| bare.scan(|_| ())));
        }
    }
    let limit_ratio = ratio(&ours, &limits);
    let time = median(ours);
    let of_a_gib = time / 1e6 * (1u64 << 30) as f64 / bytes as f64;
    Ok(Row {
        ours_ns: Some(time),
        limit_ns: limit_ratio.map(|_| median(limits)),
        limit_ratio,
        checks: vec![Check::at_most("ms per clean GiB", of_a_gib, 3.0)],
        note: "the limit is the kernel's scan alone".into(),
        ..Row::new("mmap: the same after a page fault elsewhere, RAID 5")
    })
}

fn dirty_sync(plan: &Plan, subject: &File, bare: Option<&Followed>, bytes: usize) -> io::Result<Row> {
    let mapping = Mapping::new(subject, bytes)?;
    let count = DIRTY_COUNT.min(mapping.pages() / 4);
    let mut random = Random(88_172_645_463_325_252);
    let mut memory = vec![0u64; 3 * bytes / 8];
    memory.iter_mut().enumerate().for_each(|(index, word)| *word = index as u64);
    let (mut ours, mut limits, mut scans, mut bares) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds(plan) {
        mapping.sync();
        let mut some_pages = || {
            let mut pages: Vec<usize> = (0..count * 2).map(|_| random.below(mapping.pages())).collect();
            pages.sort_unstable();
            pages.dedup();
            pages.truncate(count);
            pages
        };
        let (pages, others) = (some_pages(), some_pages());
        pages.iter().for_each(|&page| mapping.store(page, round as u64));
        let spent = nanoseconds(|| mapping.sync());
        let (data, parity) = memory.split_at_mut(2 * bytes / 8);
        let (first, second) = data.split_at(bytes / 8);
        let limit = nanoseconds(|| {
            for &page in &pages {
                let words = page * PAGE / 8..(page + 1) * PAGE / 8;
                let sources = first[words.clone()].iter().zip(&second[words.clone()]);
                parity[words].iter_mut().zip(sources).for_each(|(sum, (a, b))| *sum = a ^ b);
            }
        });
        black_box(&parity);
        // Per page, less what a call may cost at all.
        ours.push((spent - 50_000.0) / pages.len() as f64);
        limits.push(limit / pages.len() as f64);
        if let Some(bare) = bare {
            // Others, since these are in the caches now.
            let count = others.len() as f64;
            others.iter().for_each(|&page| bare.store(page, round as u64));
            let mut listed = Vec::new();
            let scan = nanoseconds(|| bare.scan(|runs| listed.extend_from_slice(runs)));
            scans.push(scan / count);
            bares.push((scan + nanoseconds(|| bare.sum_all(&listed))) / count);
        }
    }
    let ratio = median(ours.iter().zip(&limits).map(|(ours, limit)| ours / limit).collect());
    let mut note = "less 50 us per call".to_owned();
    if !scans.is_empty() {
        note =
            format!("{note}; the kernel's scan alone {:.0} ns, with the sums of a bare loop {:.0}", median(scans), median(bares));
    }
    Ok(Row {
        ours_ns: Some(median(ours)),
        limit_ns: Some(median(limits)),
        limit_ratio: Some(ratio),
        checks: vec![Check::at_most("of the limit", ratio, 1.5)],
        note,
        ..Row::new("mmap: msync, per 4 KiB page stored to, RAID 5")
    })
}

fn database(plan: &Plan, subject: &File, kernel: &File, bare: Option<&Followed>, bytes: usize) -> io::Result<Row> {
    let (ours_at, kernel_at) = (Mapping::new(subject, bytes)?, Mapping::new(kernel, bytes)?);
    let mut random = Random(2_463_534_242);
    let (mut ours, mut kernels, mut limits) = (Vec::new(), Vec::new(), Vec::new());
    let mut block = [0u8; PAGE];
    for round in 0..=rounds(plan) {
        let pages: Vec<usize> = (0..8 * SYNC_EVERY).map(|_| random.below(ours_at.pages())).collect();
        let mut run = |times: &mut Vec<f64>, fill: &dyn Fn(usize, &[u8; PAGE]), sync: &dyn Fn()| {
            let spent = nanoseconds(|| {
                for batch in pages.chunks(SYNC_EVERY) {
                    for &page in batch {
                        block[page % PAGE] = round as u8;
                        fill(page, &block);
                    }
                    sync();
                }
            });
            if round > 0 {
                times.push(spent / pages.len() as f64);
            }
        };
        run(&mut ours, &|page, block| ours_at.fill(page, block), &|| ours_at.sync());
        run(&mut kernels, &|page, block| kernel_at.fill(page, block), &|| kernel_at.sync());
        if let Some(bare) = bare {
            run(&mut limits, &|page, block| bare.fill(page, block), &|| bare.sync());
        }
    }
    let limit_ratio = ratio(&ours, &limits);
    let note =
        ratio(&kernels, &limits).map_or_else(String::new, |least| format!("the limit's is {least:.2} times the plain file's"));
    let (ours, kernels) = (median(ours), median(kernels));
    Ok(Row {
        ours_ns: Some(ours),
        limit_ns: limit_ratio.map(|_| median(limits)),
        limit_ratio,
        kernel_ns: Some(kernels),
        kernel_ratio: Some(kernels / ours),
        checks: vec![Check::at_least("times the plain file's speed", kernels / ours, 0.6)],
        note,
        ..Row::new("mmap: 4 KiB random, msync every 256, RAID 5")
    })
}

/// What is stored in sequence, and at random, followed in units of 4 KiB and of the huge pages that
/// the members have: the same mapping, advised. `subject` is a file of `plan.region_bytes` in
/// chunks of 2 MiB.
pub(crate) fn unit_rows(plan: &Plan, subject: &File) -> io::Result<Vec<Row>> {
    let mapping = Mapping::new(subject, (plan.region_bytes as usize).min(64 << 20))?;
    let block = [7u8; PAGE];
    let mut random = Random(88_172_645_463_325_252);
    let (mut sequence, mut scattered) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for (unit, advice) in [libc::MADV_NOHUGEPAGE, libc::MADV_HUGEPAGE].into_iter().enumerate() {
        // SAFETY: advice about the mapping's own pages.
        if unsafe { libc::madvise(mapping.start.cast(), mapping.bytes, advice) } != 0 {
            return Err(io::Error::last_os_error());
        }
        mapping.sync();
        for _ in 0..rounds(plan) {
            let stored = nanoseconds(|| {
                (0..mapping.pages()).for_each(|page| mapping.fill(page, &block));
                mapping.sync();
            });
            sequence[unit].push(stored / mapping.pages() as f64);
            let pages: Vec<usize> = (0..16).map(|_| random.below(mapping.pages())).collect();
            let stored = nanoseconds(|| {
                pages.iter().for_each(|&page| mapping.fill(page, &block));
                mapping.sync();
            });
            scattered[unit].push(stored / pages.len() as f64);
        }
    }
    let row = |case: &str, times: [Vec<f64>; 2]| {
        let [small, huge] = times.map(median);
        Row { ours_ns: Some(huge), note: format!("in units of 4 KiB {small:.0} ns"), ..Row::new(case) }
    };
    Ok(vec![
        row("mmap: huge pages, 4 KiB in sequence and msync, RAID 5", sequence),
        row("mmap: huge pages, 16 x 4 KiB random and msync, RAID 5", scattered),
    ])
}
