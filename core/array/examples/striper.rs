//! The striper against plain loops over the same kernels ("limit"): what the engine adds.
//!
//! `cargo run --release -p cxlraid-array --example striper [part of a row's name]`. Members are
//! unnamed files of 512 MiB on /dev/shm; both ways use the same files, by turns, and of several
//! rounds the median of the ratios counts. Times are nanoseconds per call.

use cxlraid_array::sums::Summing;
use cxlraid_array::{Reading, Striper};
use dax::{Access, Backing, PersistenceDomain};
use layout::{Geometry, Level};
use medium::Medium;
use persist::{Kernels, kernels};
use std::time::Instant;
use sys::rustix::fs::{CWD, Mode, OFlags, openat};
use units::{ChunkBytes, MemberSet};

const MEMBER_BYTES: u64 = 512 << 20;
const ROUNDS: usize = 9;

type Call<'a> = Box<dyn FnMut(u64) + 'a>;

fn members(count: usize) -> Vec<Option<Backing>> {
    let file = |_| {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let fd = openat(CWD, "/dev/shm", flags, Mode::RUSR | Mode::WUSR).expect("an unnamed file in /dev/shm");
        let backing = Backing::new(fd, Access::ReadWrite, PersistenceDomain::Volatile);
        backing.allocate(0, MEMBER_BYTES).expect("space in /dev/shm");
        let base = backing.span(0).expect("a mapping").start;
        // SAFETY: just allocated. Every page is touched, so that no fault is measured.
        unsafe { base.as_ptr().write_bytes(1, MEMBER_BYTES as usize) };
        Some(backing)
    };
    (0..count).map(file).collect()
}

/// Where `offset` of a member is mapped.
fn at(members: &[Option<Backing>], slot: usize, offset: u64) -> *mut u8 {
    members[slot].as_ref().unwrap().span(0).unwrap().start.as_ptr().wrapping_add(offset as usize)
}

/// Offsets of `bytes`-sized calls within `limit`, in order or not.
fn offsets(random: bool, bytes: u64, limit: u64, count: usize) -> Vec<u64> {
    let slots = limit / bytes;
    let mut state = 88_172_645_463_325_252u64;
    let next = |index: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        if random { state % slots * bytes } else { index as u64 % slots * bytes }
    };
    (0..count).map(next).collect()
}

fn time(call: &mut Call<'_>, offsets: &[u64]) -> f64 {
    let start = Instant::now();
    offsets.iter().for_each(|&offset| call(offset));
    persist::fence();
    start.elapsed().as_nanos() as f64 / offsets.len() as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn row(name: &str, bytes: u64, limit_bytes: u64, mut limit: Call<'_>, mut engine: Call<'_>) {
    if std::env::args().nth(1).is_some_and(|wanted| !name.contains(&wanted)) {
        return;
    }
    for random in [false, true] {
        let count = ((64 << 20) / bytes).max(64) as usize;
        let offsets = offsets(random, bytes, limit_bytes, count);
        let (mut limits, mut engines, mut ratios) = (vec![], vec![], vec![]);
        for round in 0..ROUNDS {
            let (a, b) = if round % 2 == 0 {
                let a = time(&mut limit, &offsets);
                (a, time(&mut engine, &offsets))
            } else {
                let b = time(&mut engine, &offsets);
                (time(&mut limit, &offsets), b)
            };
            limits.push(a);
            engines.push(b);
            ratios.push(b / a);
        }
        let order = if random { "random" } else { "sequential" };
        println!("{name:34} {order:10} {:>9.0} {:>9.0} {:>6.2}", median(limits), median(engines), median(ratios));
    }
}

struct Bench<'a> {
    level: Level,
    geometry: Geometry,
    members: &'a [Option<Backing>],
    out: MemberSet,
}

impl<'a> Bench<'a> {
    fn new(level: Level, members: &'a [Option<Backing>], chunk: u64) -> Self {
        let geometry = Geometry::new(level, members.len(), ChunkBytes::new(chunk).unwrap()).unwrap();
        Self { level, geometry, members, out: MemberSet::EMPTY }
    }

    fn without(mut self, slot: usize) -> Self {
        self.out = self.out.with(slot);
        self
    }

    fn striper(&self) -> Striper<'_, Backing> {
        Striper {
            geometry: &self.geometry,
            members: self.members,
            out: self.out,
            turn: 0,
            reading: Reading::IN_TURN,
            kernels: kernels(),
            undo: None,
            sums: Summing::Off,
        }
    }

    fn limit_bytes(&self) -> u64 {
        MEMBER_BYTES * self.geometry.data_columns() as u64 - (64 << 20)
    }

    fn name(&self, what: &str) -> String {
        let degraded = if self.out.is_empty() { "" } else { ", degraded" };
        format!("RAID {} x{} {what}{degraded}", self.level, self.members.len())
    }

    fn write(&self, what: &str, buffer: &[u8], limit: impl FnMut(u64) + 'a) {
        let striper = self.striper();
        let engine = |offset| {
            // SAFETY: the buffer is a slice.
            unsafe { striper.write(offset, buffer.as_ptr(), buffer.len()) }.unwrap();
        };
        row(&self.name(what), buffer.len() as u64, self.limit_bytes(), Box::new(limit), Box::new(engine));
    }

    fn read(&self, what: &str, buffer: &mut [u8], limit: impl FnMut(u64) + 'a) {
        let striper = self.striper();
        let (start, bytes) = (buffer.as_mut_ptr(), buffer.len());
        let engine = |offset| {
            // SAFETY: the buffer is a slice.
            unsafe { striper.read(offset, start, bytes) }.unwrap();
        };
        row(&self.name(what), bytes as u64, self.limit_bytes(), Box::new(limit), Box::new(engine));
    }
}

/// The members of a RAID 5 of three, as a plain loop knows them: data of (stripe, column), and
/// parity.
fn raid5(members: &[Option<Backing>], offset: u64) -> (*mut u8, *mut u8, *mut u8) {
    let (stripe, rest) = (offset / (128 << 10), offset % (128 << 10));
    let (column, within) = (rest >> 16, rest & 0xffff);
    let parity = 2 - stripe % 3;
    let place = |slot: u64| at(members, (slot % 3) as usize, (stripe << 16) + within);
    (place(parity + 1 + column), place(parity), place(parity + 2 - column))
}

fn small(three: &[Option<Backing>], k: &'static Kernels, new: &[u8], old: &mut [u8]) {
    let (src, dst, bytes) = (new.as_ptr(), old.as_mut_ptr(), new.len());
    let what = |what: &str| format!("{what} {bytes}");
    let raid5_bench = Bench::new(Level::Raid5, three, 64 << 10);
    raid5_bench.write(&what("write vs update"), new, |offset| {
        let (data, parity, _) = raid5(three, offset);
        // SAFETY: the members are mapped and long enough; so in every loop below.
        unsafe { k.update_p(data, parity, src, bytes) };
    });
    raid5_bench.write(&what("write vs recompute"), new, |offset| {
        let (data, parity, other) = raid5(three, offset);
        // SAFETY: as above.
        unsafe { k.stripe_p(&[src, other.cast_const()], &[data, std::ptr::null_mut()], parity, bytes) };
    });
    let raid1 = Bench::new(Level::Raid1, three, 64 << 10);
    raid1.write(&what("write vs three copies"), new, |offset| {
        // SAFETY: as above.
        (0..3).for_each(|slot| unsafe { k.copy_to_media(at(three, slot, offset), src, bytes) });
    });
    let raid0 = Bench::new(Level::Raid0, three, 64 << 10);
    raid0.write(&what("write vs copy"), new, |offset| {
        // SAFETY: as above.
        unsafe { k.copy_to_media(at(three, (offset / bytes as u64 % 3) as usize, (offset / 3) & !63), src, bytes) };
    });
    let kernel = |offset: u64| {
        let (data, ..) = raid5(three, offset);
        // SAFETY: as above.
        unsafe { k.copy_from_media(dst, data, bytes) };
    };
    let memcpy = |offset: u64| {
        let (data, ..) = raid5(three, offset);
        // SAFETY: as above.
        unsafe { dst.copy_from_nonoverlapping(data, bytes) };
    };
    row(&what("kernel vs memcpy"), bytes as u64, raid5_bench.limit_bytes(), Box::new(memcpy), Box::new(kernel));
    raid5_bench.read(&what("read vs kernel"), old, kernel);
    raid5_bench.read(&what("read vs memcpy"), old, memcpy);
    raid1.read(&what("read vs memcpy"), old, |offset| {
        // SAFETY: as above.
        unsafe { dst.copy_from_nonoverlapping(at(three, (offset >> 20) as usize % 3, offset), bytes) };
    });
    Bench::new(Level::Raid5, three, 64 << 10).without(1).read(&what("read vs memcpy"), old, memcpy);
    Bench::new(Level::Raid5, three, 64).read(&what("chunk 64, read vs memcpy"), old, memcpy);
}

fn main() {
    println!("{:34} {:10} {:>9} {:>9} {:>6}", "", "", "limit ns", "engine ns", "ratio");
    let k = kernels();
    let members = members(6);
    let three = &members[..3];
    for bytes in [64, 4096] {
        // On a page boundary, as programs that care have it.
        let mut buffers = vec![3u8; 2 * bytes + 4096];
        let start = buffers.as_ptr().align_offset(4096);
        let (new, old) = buffers[start..start + 2 * bytes].split_at_mut(bytes);
        small(three, k, new, old);
    }
    let large = vec![5u8; 1 << 20];
    let full_stripes = |chunk: usize| {
        let src = large.as_ptr();
        move |offset: u64| {
            for stripe in 0..(1 << 20) / (2 * chunk) {
                let from = offset / 2 + (stripe * chunk) as u64;
                let sources = [0, chunk].map(|at| src.wrapping_add(2 * stripe * chunk + at));
                let datas = [0, 1].map(|slot| at(three, slot, from));
                // SAFETY: as above.
                unsafe { k.stripe_p(&sources, &datas, at(three, 2, from), chunk) };
            }
        }
    };
    Bench::new(Level::Raid5, three, 64 << 10).write("write 1 MiB vs stripes", &large, full_stripes(64 << 10));
    Bench::new(Level::Raid5, three, 4 << 10).write("chunk 4K, write 1 MiB", &large, full_stripes(4 << 10));
    Bench::new(Level::Raid5, three, 64).write("chunk 64, write 1 MiB", &large, full_stripes(64));
    let raid1_large = |offset: u64| {
        // SAFETY: as above.
        (0..3).for_each(|slot| unsafe { k.copy_to_media(at(three, slot, offset), large.as_ptr(), 1 << 20) });
    };
    Bench::new(Level::Raid1, three, 64 << 10).write("write 1 MiB vs three copies", &large, raid1_large);
    let small_buffer = vec![7u8; 4096];
    let src = small_buffer.as_ptr();
    let raid6 = Bench::new(Level::Raid6, &members, 64 << 10);
    raid6.write("write 4096 vs update", &small_buffer, |offset| {
        let slot = (offset >> 16) as usize % 6;
        let place = |slot: usize| at(&members, slot % 6, (offset / 4) & !4095);
        // SAFETY: as above.
        unsafe { k.update_pq(place(slot), place(slot + 1), place(slot + 2), src, 4, 4096) };
    });
    Bench::new(Level::Raid10, &members, 64 << 10).write("write 4096 vs two copies", &small_buffer, |offset| {
        let slot = (offset >> 16) as usize % 3;
        // SAFETY: as above.
        (0..2).for_each(|copy| unsafe { k.copy_to_media(at(&members, 2 * slot + copy, (offset / 3) & !4095), src, 4096) });
    });
}
