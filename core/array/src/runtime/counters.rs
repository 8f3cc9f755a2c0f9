//! How many calls the threads of all processes have served on the array, with how many bytes, and
//! how long calls took of which some are timed.
//!
//! Each thread counts in a *counter cell* of its own by plain additions: no other thread stores to
//! it, so no instruction locks the bus, and what a process has counted is there if it is killed at
//! any instant.
//!
//! Invariants:
//! - The numbers of a cell only grow. A thread that takes over the cell of one that has ended goes
//!   on from what it finds there. So the sum over all cells is what was counted since the segment
//!   was made, whoever has died, and never falls; nothing is moved from one place to another, and a
//!   death in the middle of that cannot count anything twice.
//! - `base` is what a cell had counted when its process took it over: the difference is the
//!   process' own.
//! - A cell's owner is its process' owner id and its thread. A cell is free if it has none, if that
//!   process is attached no more, or for another thread of that process if the thread is gone.
//! - The library never reads these numbers: it only adds to them. Whoever shows them believes none:
//!   any word may have any value.

use super::{MAGIC, Runtime, Segment, VERSION, attach::slot_of, owner_id};
use crate::liveness::{ProcessId, process_lives};
use crate::spread::{Spread, Way};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, Ordering::Relaxed};
use sync::OwnerId;
use units::{MEMBER_COUNT_MAX, Slot};

/// Threads that can count at once.
pub const CELL_COUNT: usize = 16384;
/// Among so many cells a thread looks for a free one first: few threads touch few pages.
const WINDOW_MIN: usize = 1024;
/// At so many cells of a window it looks before it takes one twice as large.
const LOOK_COUNT: usize = 64;
/// Kinds of calls: see [`Kind`].
pub const KIND_COUNT: usize = 4;
/// How many ranges of times are told apart. The first holds times below 2^[`SHIFT`] ticks, and each
/// further one times up to twice as long; the last also all that are longer.
pub const RANGE_COUNT: usize = 20;
/// See [`RANGE_COUNT`].
pub const SHIFT: u32 = 7;
/// Places in which the members' numbers are kept: threads share them.
const PLACE_COUNT: usize = 64;
const HOT_WORDS: usize = KIND_COUNT + 4;
const WORDS: usize = HOT_WORDS + 2 * RANGE_COUNT;

/// What a call does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Kind {
    /// It reads bytes of a file.
    Read = 0,
    /// It writes bytes of a file.
    Write = 1,
    /// It makes durable what was written.
    Sync = 2,
    /// Anything else on a file or a name of the array.
    Other = 3,
}

/// What one thread counts with each call.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Counts {
    calls: [AtomicU64; KIND_COUNT],
    /// Read, written.
    bytes: [AtomicU64; 2],
    /// Ticks of the processor's clock that timed reads and writes took.
    ticks: [AtomicU64; 2],
}

/// Adds to a word to which no other thread stores: no instruction is locked.
#[inline(always)]
fn add(word: &AtomicU64, number: u64) {
    word.store(word.load(Relaxed).wrapping_add(number), Relaxed);
}

impl Counts {
    /// Nothing counted.
    #[must_use]
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self {
            calls: [const { AtomicU64::new(0) }; KIND_COUNT],
            bytes: [const { AtomicU64::new(0) }; 2],
            ticks: [const { AtomicU64::new(0) }; 2],
        }
    }

    /// Counts a call that read so many bytes.
    #[inline(always)]
    pub fn read(&self, bytes: usize) {
        add(&self.calls[Kind::Read as usize], 1);
        add(&self.bytes[0], bytes as u64);
    }

    /// Counts a call that wrote so many bytes.
    #[inline(always)]
    pub fn write(&self, bytes: usize) {
        add(&self.calls[Kind::Write as usize], 1);
        add(&self.bytes[1], bytes as u64);
    }

    /// Counts a call that moves no bytes of a file.
    #[inline(always)]
    pub fn call(&self, kind: Kind) {
        add(&self.calls[kind as usize], 1);
    }

    /// Tells whether any call was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.calls.iter().all(|word| word.load(Relaxed) == 0)
    }

    fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        self.calls.iter().chain(&self.bytes).chain(&self.ticks)
    }
}

/// The counters of one thread.
#[repr(C, align(64))]
pub struct CounterCell {
    counts: Counts,
    /// How many of the timed reads and writes took how long.
    ranges: [[AtomicU64; RANGE_COUNT]; 2],
    base: [AtomicU64; WORDS],
}

impl core::fmt::Debug for CounterCell {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CounterCell").field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl CounterCell {
    /// Nothing counted: a cell that is in no segment yet.
    #[must_use]
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self {
            counts: Counts::new(),
            ranges: [const { [const { AtomicU64::new(0) }; RANGE_COUNT] }; 2],
            base: [const { AtomicU64::new(0) }; WORDS],
        }
    }

    /// Adds what `other` has counted.
    pub fn take_in(&self, other: &Self) {
        self.words().zip(other.words()).for_each(|(own, more)| add(own, more.load(Relaxed)));
    }

    /// What its thread adds to with each call.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Notes how long a read or write took.
    pub fn note_ticks(&self, way: Way, ticks: u64) {
        let range = (u64::BITS - ticks.leading_zeros()).saturating_sub(SHIFT) as usize;
        add(&self.counts.ticks[way as usize], ticks);
        add(&self.ranges[way as usize][range.min(RANGE_COUNT - 1)], 1);
    }

    fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        self.counts.words().chain(self.ranges.iter().flatten())
    }
}

/// What sampled calls moved: calls and bytes, by [`Way`].
#[repr(C, align(32))]
struct Moved {
    calls: [AtomicU64; 2],
    bytes: [AtomicU64; 2],
}

/// By member, what sampled calls moved there; and what the calls moved for the program.
#[repr(C, align(64))]
struct Place {
    members: [Moved; MEMBER_COUNT_MAX],
    all: Moved,
}

/// All of it, in the runtime segment.
#[repr(C, align(64))]
pub(super) struct Counters {
    /// 1 once a thread found no free cell: the numbers are too low.
    missing: AtomicU32,
    /// Cells from here on were never owned.
    used: AtomicU32,
    /// Owner id in the upper half, thread in the lower. While the cell is taken over the thread is 0.
    owners: [AtomicU64; CELL_COUNT],
    cells: [CounterCell; CELL_COUNT],
    places: [Place; PLACE_COUNT],
}

impl Runtime {
    /// Takes a counter cell for the calling thread, whose number is `thread`; it attaches the process
    /// if that is a new child. None if every cell is another thread's, which is noted.
    pub fn claim_counters(&self, thread: u32) -> Option<&CounterCell> {
        let (me, counters) = (self.me(), &self.segment().counters);
        let hash = slot_of(me).wrapping_add(thread as usize);
        let mut window = WINDOW_MIN;
        loop {
            let count = if window == CELL_COUNT { CELL_COUNT } else { LOOK_COUNT };
            let found = (0..count).map(|step| (hash + step) % window).find(|&index| self.claim_cell(index, me, thread));
            if let Some(index) = found {
                counters.used.fetch_max(index as u32 + 1, Ordering::AcqRel);
                return Some(&counters.cells[index]);
            }
            if window == CELL_COUNT {
                counters.missing.store(1, Relaxed);
                return None;
            }
            window *= 2;
        }
    }

    fn claim_cell(&self, index: usize, me: OwnerId, thread: u32) -> bool {
        let counters = &self.segment().counters;
        let (owner, cell) = (&counters.owners[index], &counters.cells[index]);
        let (before, mine) = (owner.load(Ordering::Acquire), u64::from(me.get()) << 32 | u64::from(thread));
        let take = |to: u64| owner.compare_exchange(before, to, Ordering::AcqRel, Relaxed).is_ok();
        let former = OwnerId::new((before >> 32) as u32);
        if former == Some(me) {
            // The process goes on counting where its former thread has ended.
            let (former, pid) = (before as u32, self.slot_process(slot_of(me)).pid);
            return former == thread || former != 0 && !sys::task::is_there(pid, former) && take(mine);
        }
        if former.is_some_and(|former| self.is_attached(former)) || !take(mine & !u64::from(u32::MAX)) {
            return false;
        }
        cell.words().zip(&cell.base).for_each(|(word, base)| base.store(word.load(Relaxed), Relaxed));
        owner.store(mine, Ordering::Release);
        true
    }

    /// Tells whether a process has its slot still, dead or alive.
    fn is_attached(&self, owner: OwnerId) -> bool {
        owns_slot(self.segment(), owner)
    }

    /// Notes what a call that stands for `weight` calls moved on each member. `hash` spreads threads.
    pub fn note_spread(&self, hash: usize, spread: &Spread<'_>, weight: u64) {
        let place = &self.segment().counters.places[hash % PLACE_COUNT];
        let note = |moved: &Moved, bytes: u64| {
            moved.calls[spread.way as usize].fetch_add(weight, Relaxed);
            moved.bytes[spread.way as usize].fetch_add(bytes.wrapping_mul(weight), Relaxed);
        };
        note(&place.all, spread.bytes);
        let on_members = spread.on_members(self.out(), self.shares());
        let moved = on_members.iter().zip(&place.members).filter(|(bytes, _)| **bytes > 0);
        moved.for_each(|(&bytes, moved)| note(moved, bytes));
    }
}

fn owns_slot(segment: &Segment, owner: OwnerId) -> bool {
    let index = slot_of(owner);
    let tenancy = segment.attach[index].tenancy.load(Ordering::Acquire);
    tenancy & 1 == 1 && owner_id(index, tenancy) == owner
}

/// Numbers that were counted, as they were at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counted {
    words: [u64; WORDS],
}

impl Default for Counted {
    fn default() -> Self {
        Self { words: [0; WORDS] }
    }
}

impl Counted {
    /// Calls of a kind that were served without an error.
    #[must_use]
    pub const fn calls(&self, kind: Kind) -> u64 {
        self.words[kind as usize]
    }

    /// Bytes that calls read or wrote.
    #[must_use]
    pub const fn bytes(&self, way: Way) -> u64 {
        self.words[KIND_COUNT + way as usize]
    }

    /// Ticks of the processor's clock that timed calls took.
    #[must_use]
    pub const fn ticks(&self, way: Way) -> u64 {
        self.words[KIND_COUNT + 2 + way as usize]
    }

    /// How many timed calls took how long: see [`RANGE_COUNT`].
    #[must_use]
    pub fn ranges(&self, way: Way) -> &[u64] {
        let start = HOT_WORDS + way as usize * RANGE_COUNT;
        &self.words[start..start + RANGE_COUNT]
    }

    /// What was counted since `earlier`. What seems to have become less counts as nothing.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut words = self.words;
        words.iter_mut().zip(earlier.words).for_each(|(word, earlier)| *word = word.saturating_sub(earlier));
        Self { words }
    }

    fn add(&mut self, other: impl Iterator<Item = u64>) {
        self.words.iter_mut().zip(other).for_each(|(word, more)| *word = word.wrapping_add(more));
    }
}

/// What sampled calls moved, estimated for all calls. By [`Way`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MovedCounts {
    /// Calls.
    pub calls: [u64; 2],
    /// Bytes.
    pub bytes: [u64; 2],
}

impl MovedCounts {
    fn add(&mut self, other: &Moved) {
        let add = |word: &mut u64, more: &AtomicU64| *word = word.wrapping_add(more.load(Relaxed));
        self.calls.iter_mut().zip(&other.calls).for_each(|(word, more)| add(word, more));
        self.bytes.iter_mut().zip(&other.bytes).for_each(|(word, more)| add(word, more));
    }

    /// What was moved since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let less = |one: [u64; 2], other: [u64; 2]| [one[0].saturating_sub(other[0]), one[1].saturating_sub(other[1])];
        Self { calls: less(self.calls, earlier.calls), bytes: less(self.bytes, earlier.bytes) }
    }
}

/// What one living process has counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessCounted {
    /// Its pid.
    pub pid: u32,
    /// Its owner id: another program of the same process has another one.
    pub owner: u32,
    /// The numbers since it attached.
    pub counted: Counted,
}

/// What all processes have counted since an array's segment was made.
#[derive(Clone, Default, Debug)]
pub struct AllCounted {
    /// The sum, also of processes that have ended.
    pub all: Counted,
    /// Living processes that have counted anything, by pid.
    pub processes: Vec<ProcessCounted>,
    /// By slot, what calls moved on the member: estimates from sampled calls.
    pub members: [MovedCounts; MEMBER_COUNT_MAX],
    /// What the same calls moved for their programs.
    pub sampled: MovedCounts,
    /// Tells whether a thread found no free cell: then the numbers are too low.
    pub is_incomplete: bool,
}

impl AllCounted {
    /// What calls moved on a member since `earlier`. What is known exactly of all calls makes the
    /// estimate better: sampled calls tell how bytes are spread over the members, not how many there
    /// were.
    #[must_use]
    pub fn on_member(&self, slot: Slot, earlier: &Self) -> MovedCounts {
        let (mut member, sampled) = (self.members[slot].since(&earlier.members[slot]), self.sampled.since(&earlier.sampled));
        let all = self.all.since(&earlier.all);
        for (way, kind) in [(Way::Read, Kind::Read), (Way::Write, Kind::Write)] {
            let scale = |part: &mut u64, sampled: u64, exact: u64| {
                if sampled > 0 {
                    *part = (u128::from(*part) * u128::from(exact) / u128::from(sampled)).min(u64::MAX.into()) as u64;
                }
            };
            let index = way as usize;
            scale(&mut member.calls[index], sampled.calls[index], all.calls(kind));
            scale(&mut member.bytes[index], sampled.bytes[index], all.bytes(way));
        }
        member
    }
}

/// Looks at the counters of an array without attaching to it. None if its segment is not there, is
/// another version's, or may not be read.
#[must_use]
pub fn counted(uuid: format::Uuid) -> Option<AllCounted> {
    super::showing::look_at(uuid, counted_in)
}

fn counted_in(segment: &Segment) -> Option<AllCounted> {
    if segment.magic.load(Ordering::Acquire) != MAGIC || segment.version.load(Relaxed) != VERSION {
        return None;
    }
    let counters = &segment.counters;
    let mut found = AllCounted { is_incomplete: counters.missing.load(Relaxed) != 0, ..AllCounted::default() };
    let mut processes: BTreeMap<u32, Counted> = BTreeMap::new();
    let used = (counters.used.load(Ordering::Acquire) as usize).min(CELL_COUNT);
    for (owner, cell) in counters.owners[..used].iter().zip(&counters.cells) {
        let before = owner.load(Ordering::Acquire);
        if before == 0 {
            continue;
        }
        let mut words = Counted::default();
        words.add(cell.words().map(|word| word.load(Relaxed)));
        found.all.add(words.words.into_iter());
        let mut base = Counted::default();
        base.add(cell.base.iter().map(|word| word.load(Relaxed)));
        let is_whole = before as u32 != 0 && owner.load(Ordering::Acquire) == before;
        let owner = OwnerId::new((before >> 32) as u32).filter(|&owner| is_whole && owns_slot(segment, owner));
        if let Some(owner) = owner {
            processes.entry(owner.get()).or_default().add(words.since(&base).words.into_iter());
        }
    }
    for place in &counters.places {
        found.sampled.add(&place.all);
        found.members.iter_mut().zip(&place.members).for_each(|(all, member)| all.add(member));
    }
    let living = processes.into_iter().filter_map(|(owner, counted)| {
        let slot = &segment.attach[slot_of(OwnerId::new(owner)?)];
        let process = ProcessId { pid: slot.pid.load(Ordering::Acquire), start_ticks: slot.start_ticks.load(Relaxed) };
        let lives = process.pid != 0 && process_lives(process);
        lives.then_some(ProcessCounted { pid: process.pid, owner, counted })
    });
    found.processes = living.collect();
    found.processes.sort_by_key(|process| process.pid);
    // Zeros may have come to stand in for it meanwhile.
    (segment.magic.load(Ordering::Acquire) == MAGIC).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::super::attach::tests::segment;
    use super::*;
    use crate::test_array::is_alone;
    use layout::{Geometry, Level};
    use sys::rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
    use units::ChunkBytes;

    const NOBODY: ProcessId = ProcessId { pid: (1 << 22) + 1, start_ticks: 0 };

    fn all(runtime: &Runtime) -> AllCounted {
        counted_in(runtime.segment()).unwrap()
    }

    fn unlink(runtime: &Runtime) {
        sys::rustix::fs::unlink(runtime.path.as_str()).unwrap();
    }

    /// A child of fork that runs `act` for ever.
    fn forked(act: impl Fn()) -> Pid {
        const FORK: usize = 57;
        // SAFETY: the child uses nothing but `act`, and is killed.
        let pid = unsafe { sys::raw::syscall(FORK, [0; 6]) };
        if pid == 0 {
            loop {
                act();
            }
        }
        Pid::from_raw(pid as i32).unwrap()
    }

    #[test]
    fn what_was_counted_survives_sigkill_at_any_instant() {
        if !is_alone() {
            return;
        }
        let runtime = segment(30);
        let mut before = 0;
        for round in 0..20_u64 {
            let child = forked(|| {
                let cell = runtime.claim_counters(7).unwrap();
                (0..1000).for_each(|_| cell.counts().write(10));
                cell.note_ticks(Way::Write, 300);
            });
            let seen = || all(&runtime).all.calls(Kind::Write);
            let (begun, mut last) = (std::time::Instant::now(), before);
            while last < before + 5000 && begun.elapsed().as_secs() < 20 {
                let now = seen();
                assert!(now >= last, "{now} after {last}");
                last = now;
                std::thread::yield_now();
            }
            let of_child = |all: AllCounted| {
                all.processes.iter().find(|found| found.pid == child.as_raw_nonzero().get() as u32).map(|found| found.counted)
            };
            assert!(of_child(all(&runtime)).is_some_and(|counted| counted.calls(Kind::Write) > 0), "{round}");
            kill_process(child, Signal::KILL).unwrap();
            waitpid(Some(child), WaitOptions::empty()).unwrap();
            let after = all(&runtime);
            // Killed between two additions, each may have counted a call and not its bytes.
            let calls = after.all.calls(Kind::Write);
            let lacking = calls * 10 - after.all.bytes(Way::Write);
            assert!(calls >= last && lacking <= 10 * (round + 1), "{calls} {last} {lacking}");
            assert_eq!(of_child(after.clone()), None, "a process that has ended is none of those that run");
            // Whoever finds it dead, and whoever takes its cell, takes nothing away.
            runtime.reap();
            assert_eq!(all(&runtime).all, after.all);
            before = calls;
        }
        unlink(&runtime);
    }

    #[test]
    fn a_cell_goes_on_with_another_process_which_has_counted_its_own_part() {
        let runtime = segment(31);
        let counters = &runtime.segment().counters;
        let (first, second) = (runtime.attach_as(NOBODY).unwrap(), runtime.attach_as(NOBODY).unwrap());
        assert!(runtime.claim_cell(5, first, 1));
        counters.used.store(6, Relaxed);
        counters.cells[5].counts().read(100);
        assert!(!runtime.claim_cell(5, second, 2), "its process has its slot");
        runtime.reap();
        let me = runtime.me();
        assert!(runtime.claim_cell(5, me, sys::rustix::thread::gettid().as_raw_nonzero().get() as u32));
        counters.cells[5].counts().read(1);
        counters.cells[5].note_ticks(Way::Read, 1 << 40);
        counters.cells[5].note_ticks(Way::Read, 0);
        let found = all(&runtime);
        assert_eq!((found.all.calls(Kind::Read), found.all.bytes(Way::Read)), (2, 101));
        let [own] = found.processes[..] else { panic!("{:?}", found.processes) };
        assert_eq!((own.pid, own.counted.calls(Kind::Read), own.counted.bytes(Way::Read)), (std::process::id(), 1, 1));
        assert_eq!((own.counted.ranges(Way::Read)[0], own.counted.ranges(Way::Read)[RANGE_COUNT - 1]), (1, 1));
        // Another thread of the process takes it when this one's number is free.
        assert!(!runtime.claim_cell(5, me, 9));
        counters.owners[5].store(u64::from(me.get()) << 32 | u64::from(NOBODY.pid), Relaxed);
        assert!(runtime.claim_cell(5, me, 9));
        assert_eq!(all(&runtime).processes[0].counted, own.counted);
        unlink(&runtime);
    }

    #[test]
    fn threads_have_cells_of_their_own_until_there_are_no_more() {
        let runtime = segment(32);
        let other = runtime.attach_as(ProcessId { pid: 1, start_ticks: 0 }).unwrap();
        let cells: Vec<usize> =
            (1..100).map(|thread| runtime.claim_counters(thread << 24).map(|cell| cell as *const _ as usize).unwrap()).collect();
        let mut different = cells;
        different.sort_unstable();
        different.dedup();
        // Such threads are not there, so that the next takes its place; none is given twice at once.
        assert!(!different.is_empty());
        let counters = &runtime.segment().counters;
        counters.owners.iter().for_each(|owner| owner.store(u64::from(other.get()) << 32 | 1, Relaxed));
        assert!(runtime.claim_counters(1).is_none() && all(&runtime).is_incomplete);
        unlink(&runtime);
    }

    #[test]
    fn members_are_estimated_from_sampled_calls() {
        let runtime = segment(33);
        let geometry = Geometry::new(Level::Raid5, 3, ChunkBytes::new(4096).unwrap()).unwrap();
        let cell = runtime.claim_counters(1).unwrap();
        for index in 0..1000_u64 {
            cell.counts().write(4096);
            if index % 10 == 0 {
                let spread = Spread { geometry: &geometry, turn: 0, way: Way::Write, offset: index / 10 % 6 * 4096, bytes: 4096 };
                runtime.note_spread(index as usize, &spread, 7);
            }
        }
        let (found, none) = (all(&runtime), AllCounted::default());
        let sum: u64 = (0..3).map(|slot| found.on_member(slot, &none).bytes[1]).sum();
        assert!(sum.abs_diff(2 * 4096 * 1000) < 10, "data and parity: {sum}");
        assert!((0..3).all(|slot| found.on_member(slot, &none).calls[1].abs_diff(667) < 30));
        assert_eq!(found.on_member(3, &none), MovedCounts::default());
        unlink(&runtime);
    }

    #[test]
    fn whatever_the_words_say_looking_at_them_is_safe() {
        let runtime = segment(34);
        let counters = &runtime.segment().counters;
        let mut seed = 9_u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed ^ seed >> 29
        };
        counters.used.store(u32::MAX, Relaxed);
        counters.owners.iter().for_each(|owner| owner.store(random(), Relaxed));
        counters.cells.iter().step_by(64).for_each(|cell| {
            cell.words().chain(&cell.base).for_each(|word| word.store(random(), Relaxed));
        });
        for place in &counters.places {
            let moved = place.members.iter().chain([&place.all]);
            moved.flat_map(|moved| moved.calls.iter().chain(&moved.bytes)).for_each(|word| word.store(random(), Relaxed));
        }
        let found = all(&runtime);
        for slot in 0..MEMBER_COUNT_MAX {
            let _ = found.on_member(slot, &AllCounted::default());
        }
        assert_eq!(found.processes.len(), 0);
        // A thread counts on.
        let _ = runtime.claim_counters(1).map(|cell| cell.counts().read(1));
        unlink(&runtime);
    }
}
