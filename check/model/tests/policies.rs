//! Which copy is read, by read policy: a slow member gets less under the latency policy, and one that
//! is written mostly nothing while another has a copy.

use array::shares::{NODE_COUNT, WHOLE};
use array::sums::Summing;
use array::{Shares, Striper};
use cxlraid_model::{Face, Member as _, Memory};
use format::ReadPolicy;
use layout::{Geometry, Level};
use medium::{Medium, Span};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use sys::OsError;
use units::{ChunkBytes, MemberSet};

const FILE_BYTES: u64 = 32 << 10;

/// A member that can only be reached by calls, each of which takes a while. It counts them.
struct Slow {
    memory: Memory,
    nanoseconds: AtomicU64,
    reads: AtomicU64,
}

impl Slow {
    fn new(nanoseconds: u64) -> Self {
        Self { memory: Memory::new(FILE_BYTES, Face::Bytes), nanoseconds: nanoseconds.into(), reads: 0.into() }
    }
}

impl Medium for Slow {
    fn span(&self, _: u64) -> Option<Span> {
        None
    }

    unsafe fn get(&self, offset: u64, dst: *mut u8, bytes: usize) -> Result<(), OsError> {
        let (begin, delay) = (Instant::now(), Duration::from_nanos(self.nanoseconds.load(Relaxed)));
        while begin.elapsed() < delay {
            std::hint::spin_loop();
        }
        self.reads.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.memory.get(offset, dst, bytes) }
    }

    unsafe fn put(&self, offset: u64, src: *const u8, bytes: usize) -> Result<(), OsError> {
        // SAFETY: the caller's promise.
        unsafe { self.memory.put(offset, src, bytes) }
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<(), OsError> {
        self.memory.allocate(offset, bytes)
    }

    fn set_len(&self, bytes: u64) -> Result<(), OsError> {
        self.memory.set_len(bytes)
    }

    fn punch(&self, offset: u64, bytes: u64) -> Result<(), OsError> {
        self.memory.punch(offset, bytes)
    }

    fn persist(&self, _: u64, _: u64) -> Result<(), OsError> {
        Ok(())
    }

    fn owns(&self, address: usize) -> bool {
        self.memory.owns(address)
    }
}

struct Mirror {
    geometry: Geometry,
    members: Vec<Option<Slow>>,
    shares: Shares,
    out: MemberSet,
}

impl Mirror {
    fn new(level: Level, nanoseconds: &[u64], policy: ReadPolicy, mostly: MemberSet) -> Self {
        persist::fault::install_handlers().unwrap();
        let geometry = Geometry::new(level, nanoseconds.len(), ChunkBytes::new(4096).unwrap()).unwrap();
        let members: Vec<_> = nanoseconds.iter().map(|&nanoseconds| Some(Slow::new(nanoseconds))).collect();
        members.iter().flatten().for_each(|member| member.spoil(0, &[7; FILE_BYTES as usize]));
        let mirror = Self { geometry, members, shares: Shares::default(), out: MemberSet::EMPTY };
        mirror.shares.set(policy, mostly, &[MemberSet::EMPTY; NODE_COUNT], nanoseconds.len());
        mirror
    }

    /// Reads 4 KiB of many files, and returns which part of the reads each member got, in percent.
    fn read(&self, reads: u64) -> Vec<u64> {
        self.members.iter().flatten().for_each(|member| member.reads.store(0, Relaxed));
        for turn in 0..reads {
            let striper = Striper {
                geometry: &self.geometry,
                members: &self.members,
                out: self.out,
                turn,
                reading: self.shares.reading(),
                kernels: persist::kernels(),
                undo: None,
                sums: Summing::Off,
            };
            let mut bytes = [0; 4096];
            // SAFETY: the buffer is ours.
            unsafe { striper.read(turn % 7 * 4096, bytes.as_mut_ptr(), bytes.len()) }.unwrap();
            assert_eq!(bytes, [7; 4096]);
        }
        self.members.iter().flatten().map(|member| member.reads.load(Relaxed) * 100 / reads).collect()
    }

    /// Reads until the parts are as wanted. Reads are timed by the clock, and whatever else runs on the
    /// machine delays some.
    fn comes_to(&self, is_so: impl Fn(&[u64]) -> bool, what: &str) {
        let came = (0..400).any(|_| is_so(&self.read(10_000)));
        assert!(came, "{what}: {:?} of {WHOLE}", self.shares.of(1));
    }

    fn set_delay(&self, slot: usize, nanoseconds: u64) {
        self.members[slot].as_ref().unwrap().nanoseconds.store(nanoseconds, Relaxed);
    }
}

#[test]
fn a_slow_member_gets_less_and_more_again_when_it_is_fast() {
    let mirror = Mirror::new(Level::Raid1, &[1000, 1000], ReadPolicy::Latency, MemberSet::EMPTY);
    mirror.read(40_000);
    mirror.comes_to(|parts| parts.iter().all(|part| (40..=60).contains(part)), "members that are as fast get as much");
    mirror.set_delay(1, 9000);
    mirror.read(60_000);
    mirror.comes_to(|parts| (2..=20).contains(&parts[1]), "a ninth as fast");
    mirror.set_delay(1, 1_000_000);
    mirror.comes_to(|parts| parts[1] <= 1, "hardly any");
    mirror.set_delay(1, 1000);
    // Some of its turns are taken, whatever its share is, until it is seen to be fast.
    mirror.comes_to(|parts| parts.iter().all(|part| (40..=60).contains(part)), "as before");
}

#[test]
fn round_robin_does_not_mind_how_slow_a_member_is() {
    let mirror = Mirror::new(Level::Raid1, &[100, 10_000], ReadPolicy::RoundRobin, MemberSet::EMPTY);
    assert_eq!(mirror.read(4000), [50, 50]);
}

#[test]
fn a_slow_member_is_read_where_no_other_copy_is_in() {
    let mut mirror = Mirror::new(Level::Raid10, &[1000, 50_000, 1000, 1000], ReadPolicy::Latency, MemberSet::EMPTY);
    let is_so = |parts: &[u64]| parts[1] <= 3 && parts[0] >= 50 && parts[2].abs_diff(parts[3]) <= 6;
    mirror.comes_to(is_so, "hardly any of the first pair, and the other pair is as it was");
    mirror.out = MemberSet::EMPTY.with(0);
    let parts = mirror.read(2000);
    assert!(parts[0] == 0 && parts[1] >= 50, "{parts:?}");
}

#[test]
fn what_is_written_mostly_is_read_only_where_nothing_else_is_in() {
    for policy in ReadPolicy::ALL {
        let mut mirror = Mirror::new(Level::Raid1, &[2000, 100, 2000], policy, MemberSet::EMPTY.with(1));
        let reads = |mirror: &Mirror, slot: usize| mirror.members[slot].as_ref().unwrap().reads.load(Relaxed);
        mirror.read(20_000);
        assert_eq!(reads(&mirror, 1), 0, "{policy:?}");
        assert!(reads(&mirror, 0) > 5000 && reads(&mirror, 2) > 5000, "{policy:?}");
        mirror.out = MemberSet::EMPTY.with(0).with(2);
        assert_eq!(mirror.read(1000), [0, 100, 0], "{policy:?}");
    }
}
