//! The cases of one level: reading and writing, small and large, in order and not, against the
//! limit and the kernel.

use crate::limit::{Limit, Work};
use crate::members::Mapped;
use crate::places::{Order, Places};
use crate::plan::{ArrayPlace, LARGE_BYTES, Plan, SMALL_BYTES, TINY_BYTES};
use crate::report::{Check, Row};
use crate::rounds::{Contender, Times, measure};
use crate::subject::{Buffer, Reads, Subject, Writes};
use layout::{Geometry, Level};
use std::fs::File;
use std::io;
use units::ChunkBytes;

/// The file that is measured, by its name on the array.
pub(crate) const FILE: &str = "bench";
/// A region that stays in the nearest cache, for calls of which only the surroundings are of
/// interest.
const HOT_BYTES: u64 = 16 << 10;

/// A level with everything its cases need.
pub(crate) struct Bench<'a, S> {
    plan: Plan,
    geometry: Geometry,
    /// The file on the array.
    subject: &'a S,
    /// The same file's backing files. The limits work on these very pages, so nothing but the
    /// engine makes the difference.
    members: Vec<Mapped>,
    /// A file on the same tmpfs for the kernel.
    kernel: &'a File,
    /// What the array's journal is called in a row; empty for none.
    journal: &'static str,
}

/// One case, without its order.
#[derive(Clone, Copy)]
struct Case {
    what: &'static str,
    bytes: usize,
    writes: bool,
    limit: Work,
    /// The most that ours may take, in units of the limit.
    limit_goal: Option<f64>,
    /// How many times faster than the kernel ours has to be: in order, and not.
    kernel_goals: Option<[f64; 2]>,
}

/// The geometry of a benched array.
pub(crate) fn geometry(place: &ArrayPlace) -> io::Result<Geometry> {
    let level: Level = place.level.parse().map_err(|_| io::Error::other("unknown level"))?;
    Geometry::new(level, place.members.len(), ChunkBytes::DEFAULT).map_err(|error| io::Error::other(error.to_string()))
}

/// Writes the region through the subject, as a program would.
pub(crate) fn write_all(subject: &impl Subject, bytes: u64) {
    let block = content(LARGE_BYTES);
    (0..bytes).step_by(LARGE_BYTES).for_each(|offset| subject.write(offset, &block));
}

/// Fills the region and reads it back.
pub(crate) fn fill(subject: &impl Subject, bytes: u64) {
    write_all(subject, bytes);
    // Every page of every copy is in the page tables before the clock starts; members map what is
    // written, readers too.
    read_all(subject, bytes);
}

/// Reads a filled region.
pub(crate) fn read_all(subject: &impl Subject, bytes: u64) {
    let block = content(LARGE_BYTES);
    let mut back = vec![0; LARGE_BYTES];
    for offset in (0..bytes).step_by(LARGE_BYTES) {
        subject.read(offset, &mut back);
        assert!(back == block, "what was written at {offset} is read back");
    }
}

/// What the file holds everywhere while times are taken: it repeats every 4 KiB.
pub(crate) fn content(bytes: usize) -> Vec<u8> {
    pattern(SMALL_BYTES, 0).into_iter().cycle().take(bytes).collect()
}

/// Bytes that depend on their place and on `seed`.
fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    (0..bytes as u64).map(|at| ((at ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

impl<'a, S: Subject> Bench<'a, S> {
    /// The file of `place` is filled and at least `plan.region_bytes` long, as is the kernel's.
    pub(crate) fn new(plan: Plan, place: &ArrayPlace, subject: &'a S, kernel: &'a File) -> io::Result<Self> {
        let geometry = geometry(place)?;
        let bytes = geometry.member_bytes(plan.region_bytes);
        let members = (0..place.members.len()).map(|slot| Mapped::new(&place.backing(slot, FILE), bytes));
        let journal = match place.journal.as_str() {
            "" => "",
            "internal" => ", journal on members",
            _ => ", journal",
        };
        Ok(Self { plan, geometry, subject, members: members.collect::<io::Result<_>>()?, kernel, journal })
    }

    /// All rows of this level, and a proof at the end that the file is still right.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for case in self.cases() {
            let large = case.bytes == LARGE_BYTES;
            for &order in if large { &[Order::Sequential][..] } else { &Order::BOTH } {
                rows.push(self.row(&case, order));
            }
        }
        if !self.journal.is_empty() {
            self.verify();
            return rows;
        }
        if self.geometry.level() == Level::Raid1 {
            rows.extend(Order::BOTH.into_iter().flat_map(|order| [1, 2].map(|count| self.copies(count, order))));
        }
        rows.push(self.surroundings(false));
        rows.push(self.surroundings(true));
        self.verify();
        rows
    }

    fn cases(&self) -> Vec<Case> {
        let (small, large) = (SMALL_BYTES, LARGE_BYTES);
        let reads = |what, bytes, kernel_goals| {
            let (limit, limit_goal) = (Work::Read, Some(1.25));
            Case { what, bytes, writes: false, limit, limit_goal, kernel_goals }
        };
        let writes = |what, bytes, limit, limit_goal, kernel_goals| {
            let writes = true;
            Case { what, bytes, writes, limit, limit_goal, kernel_goals }
        };
        if !self.journal.is_empty() {
            // The journal on the members is stored to as many of them, and has no goal.
            let has_goal = self.journal == ", journal";
            let (small_work, large_work, goal) = match self.geometry.level() {
                Level::Raid1 => (Work::Copies(3), Work::Copies(3), 1.7),
                _ => (Work::Update, Work::Stripes, 2.2),
            };
            let small_case = writes("write 4 KiB", small, small_work, Some(goal).filter(|_| has_goal), None);
            return vec![small_case, writes("write 1 MiB", large, large_work, None, None)];
        }
        let mut cases = vec![reads("read 4 KiB", small, Some([3.0, 1.8])), reads("read 1 MiB", large, None)];
        if self.geometry.level() == Level::Raid1 {
            cases.push(writes("write 4 KiB", small, Work::Copies(3), Some(1.35), Some([1.0, 1.0])));
            cases.push(writes("write 1 MiB", large, Work::Copies(3), None, None));
        } else {
            cases.push(writes("write 4 KiB", small, Work::Update, Some(1.35), None));
            // 80 % of the limit's speed.
            cases.push(writes("write 1 MiB", large, Work::Stripes, Some(1.25), None));
        }
        cases
    }

    fn name(&self, what: &str, order: Option<Order>) -> String {
        let order = order.map_or("", Order::name);
        let (level, count) = (self.geometry.level(), self.geometry.member_count());
        format!("{what} {order} RAID {level} x {count}{}", self.journal).replace("  ", " ")
    }

    /// One case in one order: ours, the limit, the kernel.
    fn row(&self, case: &Case, order: Order) -> Row {
        let new = content(case.bytes);
        let [mut first, mut second, mut third] = [(); 3].map(|()| Buffer::of(&new));
        let mut limit = Limit::new(case.limit, &self.geometry, &self.members, &mut first);
        let times = if case.writes {
            let (mut ours, mut kernel) = (Writes(self.subject, &second), Writes(self.kernel, &third));
            self.measure(vec![&mut ours, &mut limit, &mut kernel], case.bytes, order)
        } else {
            let (mut ours, mut kernel) = (Reads(self.subject, &mut second), Reads(self.kernel, &mut third));
            self.measure(vec![&mut ours, &mut limit, &mut kernel], case.bytes, order)
        };
        let (limit_ratio, kernel_ratio) = (times.ratio(0, 1), times.ratio(2, 0));
        let mut row = Row {
            ours_ns: Some(times.nanoseconds(0)),
            limit_ns: Some(times.nanoseconds(1)),
            kernel_ns: Some(times.nanoseconds(2)),
            limit_ratio: Some(limit_ratio),
            kernel_ratio: Some(kernel_ratio),
            ..Row::new(self.name(case.what, Some(order)))
        };
        if let Some(goal) = case.limit_goal {
            row.checks.push(Check::at_most("of the limit", limit_ratio, goal));
        }
        if let Some([sequential, random]) = case.kernel_goals {
            let goal = if order == Order::Sequential { sequential } else { random };
            let what = if case.writes { "times faster than one pwrite" } else { "times faster than pread" };
            row.checks.push(Check::at_least(what, kernel_ratio, goal));
        }
        row
    }

    fn measure<'b>(&self, contenders: Vec<&'b mut (dyn Contender + 'b)>, bytes: usize, order: Order) -> Times {
        let count = contenders.len();
        let calls = if bytes == LARGE_BYTES { self.plan.large_calls } else { self.plan.small_calls };
        let places = |index| Places::new(order, self.plan.region_bytes, bytes, index, count);
        let with_places = |(index, contender): (usize, &'b mut (dyn Contender + 'b))| (contender, places(index));
        measure(&mut contenders.into_iter().enumerate().map(with_places).collect::<Vec<_>>(), self.plan.rounds, calls)
    }

    /// A call of 64 bytes in the nearest cache: what stands around the copy.
    fn surroundings(&self, writes: bool) -> Row {
        let [mut own, mut other] = [(); 2].map(|()| Buffer::of(&content(TINY_BYTES)));
        let places = |index| Places::new(Order::Sequential, HOT_BYTES, TINY_BYTES, index, 2);
        let times = if writes {
            let (mut ours, mut kernel) = (Writes(self.subject, &own), Writes(self.kernel, &other));
            measure(&mut [(&mut ours, places(0)), (&mut kernel, places(1))], self.plan.rounds, self.plan.small_calls)
        } else {
            let (mut ours, mut kernel) = (Reads(self.subject, &mut own), Reads(self.kernel, &mut other));
            measure(&mut [(&mut ours, places(0)), (&mut kernel, places(1))], self.plan.rounds, self.plan.small_calls)
        };
        Row {
            ours_ns: Some(times.nanoseconds(0)),
            kernel_ns: Some(times.nanoseconds(1)),
            kernel_ratio: Some(times.ratio(1, 0)),
            note: "what stands around a copy".to_owned(),
            ..Row::new(self.name(if writes { "write 64 B hot" } else { "read 64 B hot" }, None))
        }
    }

    /// The limit of fewer copies, for comparison. What is copied is what the file holds everywhere,
    /// so the copies stay equal.
    fn copies(&self, count: usize, order: Order) -> Row {
        let mut buffer = Buffer::of(&content(SMALL_BYTES));
        let mut limit = Limit::new(Work::Copies(count), &self.geometry, &self.members, &mut buffer);
        let times = self.measure(vec![&mut limit], SMALL_BYTES, order);
        Row { limit_ns: Some(times.nanoseconds(0)), ..Row::new(format!("nt-copy x {count}, 4 KiB {}", order.name())) }
    }

    /// Writes here and there, reads it back, and holds the members against each other over the
    /// whole region.
    fn verify(&self) {
        let mut places = Places::new(Order::Random, self.plan.region_bytes - LARGE_BYTES as u64, 64, 7, 8);
        let mut offsets = Vec::new();
        places.fill(&mut offsets, 200);
        for (index, &offset) in offsets.iter().enumerate() {
            let bytes = [1, 4095, 4096, 70_001][index % 4];
            let (offset, new) = (offset + index as u64 % 64, pattern(bytes, offset));
            let mut back = vec![0; bytes];
            self.subject.write(offset, &new);
            self.subject.read(offset, &mut back);
            assert!(back == new, "what was written at {offset} is read back");
        }
        let words: Vec<&[u64]> = self.members.iter().map(Mapped::words).collect();
        let right = if self.geometry.level() == Level::Raid1 {
            words[1..].iter().all(|copy| copy == &words[0])
        } else {
            // Of three members each byte is the sum of the other two.
            words[0].iter().zip(words[1]).zip(words[2]).all(|((a, b), c)| a ^ b ^ c == 0)
        };
        assert!(right, "the members of RAID {} agree", self.geometry.level());
    }
}
