//! Which copy of the bytes a read takes, on levels that keep copies: the shares of the members.
//!
//! Copies take turns by region and by file (`mirror`). The read policy changes from that where it
//! must: a member's *share* is the portion of its turns that it keeps.
//!
//! - Round robin: each member keeps all of its turns.
//! - Local: a member keeps its turns for readers whose processor none of the other copies is nearer
//!   to. `near` says which members are nearest to the processors of a node.
//! - Latency: one of about [`sampling::GAP`] reads is timed. Each member has a decaying mean of the
//!   time per line and of the deviation from it; their sum is its *cost*. Shares are in inverse
//!   proportion to costs (RAIF, section 2.5). What a member gives away goes to one other member
//!   (Walker's alias method), so that a choice costs one comparison, and the same bytes come from the
//!   same copy until the shares change.
//!
//! A member that is written mostly keeps no turn while another one has a copy.
//!
//! Invariants:
//! - All zeros is round robin with nobody written mostly.
//! - Any word may have any value, and may change at any instant: a choice is one of the members
//!   that were asked for, whatever the words say. Copies agree, so nothing waits for a change of a
//!   word to reach the processes. Where copies may not agree, shares are not asked
//!   ([`Reading::LOWEST`]).
//! - A read takes no lock here, allocates nothing and makes no system call.

use crate::sampling;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use format::ReadPolicy;
use layout::Geometry;
use sys::thread::block;
use units::{MEMBER_COUNT_MAX, MemberSet, Slot};

/// Nodes of memory whose processors can have nearest members. To processors of further nodes all
/// members are equally near.
pub const NODE_COUNT: usize = 64;

/// Of how many timed reads one takes the member whose turn it is, whatever its share is. So a
/// member that has become fast again is noticed.
const PROBE_GAP: u32 = 16;
/// All of a member's turns.
pub const WHOLE: u32 = 256;
/// Times of that many reads have half of the weight or so in a mean.
const MEMORY: u32 = 32;
/// Shares are computed anew after so many timed reads.
const ROUND: u32 = 32;
/// Fewer times of a member than this say nothing.
const KNOWN: u32 = 16;
/// A read that took longer than so many means is counted as having taken that: its thread may have
/// been put to sleep.
const OUTLIER: u64 = 8;
/// A read that took less than one of so many means moves the mean that much further. Chance makes
/// reads slow; a fast one says that the member has become fast, and slow members are seldom read.
const HASTE: i64 = 8;
/// Short reads count as this many lines: what they cost does not depend on their length.
const LINES_MIN: u64 = 16;

/// How long reads of a member take.
#[derive(Default)]
struct Delay {
    /// The decaying mean of the ticks of 256 lines.
    mean: AtomicU32,
    /// The decaying mean of the difference from that.
    deviation: AtomicU32,
    /// How many reads were timed, up to [`MEMORY`].
    count: AtomicU32,
}

impl Delay {
    fn note(&self, sample: u64) {
        let (mean, deviation) = (i64::from(self.mean.load(Relaxed)), i64::from(self.deviation.load(Relaxed)));
        let count = self.count.load(Relaxed).min(MEMORY - 1) + 1;
        let limit = if mean == 0 { u64::from(u32::MAX / 2) } else { (mean as u64 * OUTLIER).min(u64::from(u32::MAX / 2)) };
        let sample = sample.min(limit) as i64;
        let weight = if sample.saturating_mul(HASTE) < mean { HASTE.min(count.into()) } else { count.into() };
        let step = |from: i64, to: i64| (from + (to - from) / weight.max(1)).clamp(0, i64::from(u32::MAX)) as u32;
        self.mean.store(step(mean, sample), Relaxed);
        self.deviation.store(step(deviation, (sample - mean).abs()), Relaxed);
        self.count.store(count, Relaxed);
    }

    /// The cost of a read; None if too few were timed.
    fn cost(&self) -> Option<u64> {
        let cost = u64::from(self.mean.load(Relaxed)) + u64::from(self.deviation.load(Relaxed));
        (self.count.load(Relaxed) >= KNOWN).then_some(cost.max(1))
    }

    fn forget(&self) {
        [&self.mean, &self.deviation, &self.count].iter().for_each(|word| word.store(0, Relaxed));
    }
}

/// The shares of an array's members, in the runtime segment.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Shares {
    /// Members that do not keep all of their turns, or whose reads are timed: the other words are
    /// looked at before one of them is read.
    asked: AtomicU32,
    /// Members that are read from only where no other member in use has a copy of the bytes.
    write_mostly: AtomicU32,
    /// The read policy ([`ReadPolicy::code`]).
    policy: AtomicU32,
    /// 1: reads compare blocks with their sums.
    verify: AtomicU32,
    /// Members of a backed array that a restart of the machine empties.
    fast: AtomicU32,
    /// By member, what latency makes of its turns: how many of [`WHOLE`] it gives away, in the
    /// lower half, and to whom.
    turns: [AtomicU32; MEMBER_COUNT_MAX],
    /// By node, the members that are nearest to its processors; none stands for all.
    near: Near,
    timed: Timed,
}

/// By node, the members that are nearest to its processors.
#[repr(C, align(64))]
struct Near([AtomicU32; NODE_COUNT]);

impl Default for Near {
    fn default() -> Self {
        Self([const { AtomicU32::new(0) }; NODE_COUNT])
    }
}

/// What timed reads change, on lines of its own.
#[repr(C, align(64))]
#[derive(Default)]
struct Timed {
    count: AtomicU32,
    delays: [Delay; MEMBER_COUNT_MAX],
}

/// How one read chooses among copies.
#[derive(Clone, Copy)]
pub struct Reading<'a> {
    /// Members that must not be read just because it is their turn.
    pub(crate) asked: MemberSet,
    /// None: the lowest copy in use is read.
    pub(crate) shares: Option<&'a Shares>,
}

impl core::fmt::Debug for Reading<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Reading").field("asked", &self.asked).finish_non_exhaustive()
    }
}

impl Reading<'_> {
    /// Copies take turns, and where one is out the lowest of the others is read.
    pub const IN_TURN: Reading<'static> = Reading { asked: MemberSet::EMPTY, shares: None };

    /// Reads the lowest copy in use: the one that a resync makes the others equal to. This is for
    /// bytes that may differ between copies, since a process died while it stored them or the
    /// machine crashed. Two reads of them do not see now one copy and now another, and do not see
    /// bytes that the resync will take back.
    pub const LOWEST: Reading<'static> = Reading { asked: MemberSet::first(MEMBER_COUNT_MAX), shares: None };
}

/// A choice among copies.
pub(crate) struct Choice {
    /// The members that have a copy and are in use.
    pub(crate) there: MemberSet,
    /// The one whose turn it is.
    pub(crate) first: Slot,
    /// Which region of which file it is.
    pub(crate) region: u64,
}

impl Choice {
    /// A number that spreads regions.
    const fn spread(&self) -> u64 {
        self.region.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// The member whose turn it is if it is in `members`, else one of them.
    fn among(&self, members: MemberSet) -> Option<Slot> {
        if members.contains(self.first) {
            return Some(self.first);
        }
        let index = ((self.spread() >> 16 & u64::from(u32::MAX)) * members.len() as u64) >> 32;
        members.iter().nth(index as usize)
    }
}

impl Shares {
    /// What a read needs to know.
    #[inline(always)]
    pub fn reading(&self) -> Reading<'_> {
        Reading { asked: MemberSet::from_bits(self.asked.load(Relaxed)), shares: Some(self) }
    }

    /// The members that are written mostly.
    pub fn write_mostly(&self) -> MemberSet {
        MemberSet::from_bits(self.write_mostly.load(Relaxed))
    }

    /// The members that a restart of the machine empties.
    #[inline]
    pub fn fast(&self) -> MemberSet {
        MemberSet::from_bits(self.fast.load(Relaxed))
    }

    /// Says which members a restart of the machine empties. Every process goes by that from then on.
    pub fn set_fast(&self, members: MemberSet) {
        self.fast.store(members.bits(), Relaxed);
    }

    /// Tells whether reads compare blocks with their sums.
    #[inline(always)]
    pub fn verifies_reads(&self) -> bool {
        self.verify.load(Relaxed) == 1
    }

    /// Says whether reads compare blocks with their sums. Every process follows from its next read on.
    pub fn set_verifies_reads(&self, is_so: bool) {
        self.verify.store(is_so.into(), Relaxed);
    }

    /// The read policy.
    pub fn policy(&self) -> ReadPolicy {
        ReadPolicy::from_code(self.policy.load(Relaxed).min(255) as u8)
    }

    /// Sets what the shares follow from, for members `0..member_count`. Every process follows from
    /// its next read on. What is known of delays is forgotten if the policy is another one.
    pub fn set(&self, policy: ReadPolicy, write_mostly: MemberSet, near: &[MemberSet; NODE_COUNT], member_count: usize) {
        let all = MemberSet::first(member_count);
        if policy != self.policy() {
            self.turns.iter().for_each(|word| word.store(0, Relaxed));
            self.timed.delays.iter().for_each(Delay::forget);
        }
        self.near.0.iter().zip(near).for_each(|(word, members)| word.store(members.bits(), Relaxed));
        let are_apart = near.iter().any(|members| !members.is_empty() && !all.minus(*members).is_empty());
        let asked = match policy {
            ReadPolicy::Latency => all,
            ReadPolicy::Local if are_apart => all,
            _ => write_mostly,
        };
        self.write_mostly.store(write_mostly.bits(), Relaxed);
        self.policy.store(policy.code().into(), Relaxed);
        self.asked.store(asked.bits(), Relaxed);
    }

    /// How many of [`WHOLE`] turns a member keeps by its delay; and what a read of it costs by the
    /// last timed ones, in ticks of the processor's clock for 256 lines. None if too few were
    /// timed.
    #[must_use]
    pub fn of(&self, slot: Slot) -> (u32, Option<u64>) {
        let given = self.turns.get(slot).map_or(0, |word| (word.load(Relaxed) & 0xffff).min(WHOLE));
        (WHOLE - given, self.timed.delays.get(slot).and_then(Delay::cost))
    }

    /// The member to read from; None if no copy is in use.
    #[inline(never)]
    pub(crate) fn choose(&self, choice: &Choice) -> Option<Slot> {
        let willing = choice.there.minus(self.write_mostly());
        let willing = if willing.is_empty() { choice.there } else { willing };
        match self.policy() {
            ReadPolicy::RoundRobin => {}
            ReadPolicy::Local => {
                let near = self.near.0.get(sys::node::current()).map_or(0, |word| word.load(Relaxed));
                let close = willing.minus(willing.minus(MemberSet::from_bits(near)));
                if !close.is_empty() {
                    return choice.among(close);
                }
            }
            ReadPolicy::Latency => {
                let word = self.turns.get(choice.first).map_or(0, |word| word.load(Relaxed));
                let alias = (word >> 16) as Slot;
                if (choice.spread() >> 56) < u64::from(word & 0xffff) && willing.contains(alias) {
                    return Some(alias);
                }
            }
        }
        choice.among(willing)
    }

    /// Whether the calling thread is to time its next read.
    #[inline(always)]
    pub(crate) fn is_due(&self) -> bool {
        if self.policy.load(Relaxed) != u32::from(ReadPolicy::Latency.code()) {
            return false;
        }
        let left = &block().reads_left;
        let count = left.load(Relaxed);
        left.store(count.wrapping_sub(1), Relaxed);
        count == 0
    }

    /// Does a read that is timed. `fetch` gets the member.
    #[cold]
    pub(crate) fn timed<E>(
        &self,
        choice: &Choice,
        geometry: &Geometry,
        bytes: usize,
        fetch: impl FnOnce(Slot) -> Result<(), E>,
    ) -> Option<Result<(), E>> {
        let begin = persist::timestamp_in_order();
        block().reads_left.store(sampling::gap(begin), Relaxed);
        let probed = choice.there.minus(self.write_mostly());
        let is_probe = (sampling::mixed(begin) >> 8).is_multiple_of(PROBE_GAP) && probed.contains(choice.first);
        let slot = if is_probe { choice.first } else { self.choose(choice)? };
        let done = fetch(slot);
        if done.is_ok() {
            self.note(slot, bytes, persist::timestamp_in_order().wrapping_sub(begin));
            if self.timed.count.fetch_add(1, Relaxed) % ROUND == ROUND - 1 {
                self.balance(geometry);
            }
        }
        Some(done)
    }

    /// Notes how many ticks a read of so many bytes took.
    fn note(&self, slot: Slot, bytes: usize, ticks: u64) {
        let lines = (bytes as u64 / 64).max(LINES_MIN);
        if let Some(delay) = self.timed.delays.get(slot) {
            delay.note(ticks.min(u64::from(u32::MAX)) * 256 / lines);
        }
    }

    /// Computes the shares anew, for each set of members that are copies of one another.
    fn balance(&self, geometry: &Geometry) {
        for column in 0..geometry.data_columns() {
            let copies = (0..geometry.copy_count()).map(|copy| geometry.data_slot(0, column, copy)).collect::<MemberSet>();
            let mut costs = [0; MEMBER_COUNT_MAX];
            // A member of which nothing is known keeps its turns, until enough is known of it.
            let known = copies.minus(self.write_mostly()).iter().filter_map(|slot| {
                costs[place(slot)] = self.timed.delays[place(slot)].cost()?;
                Some(slot)
            });
            let known: MemberSet = known.collect();
            let was_even = known.iter().all(|slot| self.turns[place(slot)].load(Relaxed) == 0);
            self.put_turns(known, &turns(known, &costs, was_even));
        }
    }

    /// Stores what members keep of their turns, if it differs from what they keep now by more than
    /// chance: each change moves regions of files from one copy to another.
    fn put_turns(&self, members: MemberSet, turns: &[u32; MEMBER_COUNT_MAX]) {
        let differs = |slot: Slot| {
            let (old, new) = (self.turns[place(slot)].load(Relaxed), turns[place(slot)]);
            let (old_kept, new_kept) = (WHOLE.saturating_sub(old & 0xffff), WHOLE.saturating_sub(new & 0xffff));
            let is_other = (old == 0) != (new == 0) || old != 0 && old >> 16 != new >> 16;
            is_other || old_kept.abs_diff(new_kept) > (old_kept / 4).max(2)
        };
        if members.iter().any(differs) {
            members.iter().for_each(|slot| self.turns[place(slot)].store(turns[place(slot)], Relaxed));
        }
    }
}

/// The place of a member in an array of all members.
const fn place(slot: Slot) -> usize {
    slot % MEMBER_COUNT_MAX
}

/// Returns the part of its turns that each member keeps, as a word of [`Shares::turns`], where a read
/// of each member costs what `costs` says.
/// Costs that differ by less than a half (a quarter, if they differed before) count as equal: much
/// of such a difference is chance.
fn turns(members: MemberSet, costs: &[u64; MEMBER_COUNT_MAX], was_even: bool) -> [u32; MEMBER_COUNT_MAX] {
    let mut words = [0; MEMBER_COUNT_MAX];
    let cost = |slot: Slot| costs[place(slot)];
    let Some(least) = members.iter().map(cost).min() else { return words };
    let limit = if was_even { least.saturating_mul(3) / 2 } else { least.saturating_mul(5) / 4 };
    if members.iter().all(|slot| cost(slot) <= limit) {
        return words;
    }
    let is_least = |slot: Slot| cost(slot) <= least.saturating_mul(5) / 4;
    let weight = |slot: Slot| if is_least(slot) { 1 << 16 } else { (least << 16) / cost(slot).max(1) };
    let sum: u64 = members.iter().map(weight).sum::<u64>().max(1);
    // How many of the turns of one member each is to have.
    let mut wanted = [0; MEMBER_COUNT_MAX];
    for slot in members.iter() {
        wanted[place(slot)] = (weight(slot) * members.len() as u64 * u64::from(WHOLE) / sum) as u32;
    }
    let mut open = members;
    while let Some(taker) = open.iter().max_by_key(|&slot| wanted[place(slot)]).filter(|&slot| wanted[place(slot)] > WHOLE) {
        let Some(giver) = open.iter().find(|&slot| wanted[place(slot)] < WHOLE) else { break };
        let given = WHOLE - wanted[place(giver)];
        words[place(giver)] = given | (taker as u32) << 16;
        wanted[place(taker)] = wanted[place(taker)].saturating_sub(given);
        open = open.without(giver);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::Level;
    use units::ChunkBytes;

    const ANYWHERE: [MemberSet; NODE_COUNT] = [MemberSet::EMPTY; NODE_COUNT];

    fn geometry(level: Level, members: usize) -> Geometry {
        Geometry::new(level, members, ChunkBytes::DEFAULT).unwrap()
    }

    fn shares(policy: ReadPolicy, members: usize, mostly: &[Slot]) -> Shares {
        let shares = Shares::default();
        shares.set(policy, mostly.iter().copied().collect(), &ANYWHERE, members);
        shares
    }

    /// How many of so many regions are read from each member of RAID 1.
    fn counts(shares: &Shares, members: usize, out: MemberSet) -> Vec<usize> {
        let mut counts = vec![0; members];
        for region in 0..3000 {
            let first = region as usize % members;
            let choice = Choice { there: MemberSet::first(members).minus(out), first, region };
            counts[shares.choose(&choice).unwrap()] += 1;
        }
        counts
    }

    fn assert_near(found: &[usize], expected: &[usize]) {
        let near = found.iter().zip(expected).all(|(found, expected)| found.abs_diff(*expected) <= 60);
        assert!(near, "{found:?} is not {expected:?}");
    }

    /// Times that members take, in ticks of a line, until shares no longer change.
    fn balanced(shares: &Shares, geometry: &Geometry, ticks: &[u64]) {
        for _ in 0..200 {
            ticks.iter().enumerate().for_each(|(slot, ticks)| shares.note(slot, 4096, ticks * 64));
        }
        shares.balance(geometry);
    }

    #[test]
    fn members_get_shares_in_inverse_proportion_to_their_delays() {
        for (ticks, expected) in [
            (&[10, 10][..], &[1500, 1500][..]),
            (&[10, 30], &[2250, 750]),
            (&[30, 10], &[750, 2250]),
            (&[10, 1_000_000], &[3000, 0]),
            (&[10, 12, 11], &[1000, 1000, 1000]),
            (&[10, 20, 20], &[1500, 750, 750]),
            (&[10, 20, 40], &[1714, 857, 429]),
            (&[40, 10, 10, 10, 40], &[214, 857, 857, 857, 214]),
        ] {
            let shares = shares(ReadPolicy::Latency, ticks.len(), &[]);
            balanced(&shares, &geometry(Level::Raid1, ticks.len()), ticks);
            assert_near(&counts(&shares, ticks.len(), MemberSet::EMPTY), expected);
        }
    }

    #[test]
    fn a_member_that_is_written_mostly_gets_nothing_while_another_has_a_copy() {
        for policy in ReadPolicy::ALL {
            let shares = shares(policy, 3, &[1]);
            // It looks faster than the others.
            balanced(&shares, &geometry(Level::Raid1, 3), &[50, 1, 50]);
            assert_near(&counts(&shares, 3, MemberSet::EMPTY), &[1500, 0, 1500]);
            assert_eq!(counts(&shares, 3, MemberSet::EMPTY.with(0)), [0, 0, 3000]);
            assert_eq!(counts(&shares, 3, MemberSet::EMPTY.with(0).with(2)), [0, 3000, 0]);
        }
    }

    #[test]
    fn only_copies_of_the_same_bytes_are_compared() {
        let shares = shares(ReadPolicy::Latency, 4, &[]);
        balanced(&shares, &geometry(Level::Raid10, 4), &[10, 10, 90, 30]);
        let kept: Vec<u32> = (0..4).map(|slot| shares.of(slot).0).collect();
        assert_eq!((kept[0], kept[1], kept[3]), (WHOLE, WHOLE, WHOLE));
        assert!((118..138).contains(&kept[2]), "a quarter of all reads of the column: {kept:?}");
        balanced(&shares, &geometry(Level::Raid01, 4), &[10, 10, 90, 30]);
        assert!(shares.of(2).0 < 70, "now the other copy is member 0");
    }

    #[test]
    fn shares_follow_a_member_that_becomes_slow_and_fast_again() {
        let (shares, geometry) = (shares(ReadPolicy::Latency, 2, &[]), geometry(Level::Raid1, 2));
        balanced(&shares, &geometry, &[10, 10]);
        assert!(shares.turns.iter().all(|word| word.load(Relaxed) == 0));
        balanced(&shares, &geometry, &[10, 10_000]);
        assert!(shares.of(1).0 < 5);
        // The deviation is the last to be forgotten.
        (0..2).for_each(|_| balanced(&shares, &geometry, &[10, 10]));
        assert_eq!((shares.of(0).0, shares.of(1).0), (WHOLE, WHOLE));
        // What is chance moves nothing.
        balanced(&shares, &geometry, &[10, 13]);
        assert!(shares.turns.iter().all(|word| word.load(Relaxed) == 0));
    }

    #[test]
    fn a_thread_that_slept_in_a_read_is_no_reason() {
        let (shares, geometry) = (shares(ReadPolicy::Latency, 2, &[]), geometry(Level::Raid1, 2));
        balanced(&shares, &geometry, &[100, 100]);
        shares.note(1, 4096, 50_000_000);
        shares.balance(&geometry);
        assert_eq!((shares.of(0).0, shares.of(1).0), (WHOLE, WHOLE));
    }

    #[test]
    fn nearest_members_are_read() {
        let shares = Shares::default();
        let here = sys::node::current().min(NODE_COUNT - 1);
        let mut near = ANYWHERE;
        near[here] = MemberSet::EMPTY.with(1).with(2);
        shares.set(ReadPolicy::Local, MemberSet::EMPTY, &near, 3);
        assert_eq!(shares.reading().asked, MemberSet::first(3));
        assert_near(&counts(&shares, 3, MemberSet::EMPTY), &[0, 1500, 1500]);
        assert_eq!(counts(&shares, 3, MemberSet::EMPTY.with(1)), [0, 0, 3000]);
        // No copy is near: all others serve.
        assert_eq!(counts(&shares, 3, near[here]), [3000, 0, 0]);
        // Where all are equally near, nobody is asked: that is round robin.
        near[here] = MemberSet::first(3);
        shares.set(ReadPolicy::Local, MemberSet::EMPTY, &near, 3);
        assert!(shares.reading().asked.is_empty());
        assert_eq!(counts(&shares, 3, MemberSet::EMPTY), [1000; 3]);
    }

    #[test]
    fn whatever_the_words_say_a_copy_that_is_there_is_read() {
        let shares = Shares::default();
        for seed in 0..2000_u32 {
            let word = |index: u32| (seed ^ index << 8).wrapping_mul(0x9e37_79b9).rotate_left(seed % 31) ^ index;
            shares.policy.store(if seed % 2 == 0 { seed % 4 } else { word(7) }, Relaxed);
            shares.write_mostly.store(word(1), Relaxed);
            (0..).zip(&shares.turns).for_each(|(index, turns)| turns.store(word(index), Relaxed));
            (0..).zip(&shares.near.0).for_each(|(index, near)| near.store(word(index + 99), Relaxed));
            (0..).zip(&shares.timed.delays).for_each(|(index, delay)| {
                [&delay.mean, &delay.deviation, &delay.count].iter().for_each(|field| field.store(word(index + 400), Relaxed));
            });
            for out in 0..7 {
                let there = MemberSet::first(3).minus(MemberSet::from_bits(out));
                let chosen = shares.choose(&Choice { there, first: seed as usize % 3, region: seed.into() });
                assert!(chosen.is_some_and(|slot| there.contains(slot)));
            }
            shares.note(seed as usize % 40, seed as usize, u64::MAX >> (seed % 64));
            shares.balance(&geometry(Level::Raid1, 32));
            assert!((0..32).all(|slot| shares.of(slot).0 <= WHOLE));
        }
    }
}
