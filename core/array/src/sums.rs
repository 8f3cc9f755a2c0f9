//! Sums: what is stored beside each block of a backing file to tell whether its bytes are those
//! that were written last.
//!
//! A block is [`SUM_BLOCK_BYTES`] of the backing file of one member, whatever lies there: data, a
//! copy, or parity. Its sum is CRC-32C of these bytes, or 0: the block has none, and nothing is
//! claimed of it.
//!
//! Invariants:
//! - A sum that is there fits its block whenever nobody holds the stripe lock of the block, unless
//!   the block has rotted. So every operation that stores takes the sums of the blocks it touches
//!   away before its first store, and gives them new ones, if it does, after its last. A process
//!   that dies in between leaves blocks without sums.
//! - Bytes that have rotted do not get a sum that fits them, and none of what is computed from them
//!   does. Where a block is stored to in part, its other bytes are compared with its sum before; if
//!   they do not fit, it keeps a sum that does not. Parity of whole blocks gets the sum that follows
//!   from the sums of what it is computed from: CRC is linear, so the sum of what parity ought to be
//!   is known without looking at it. Where that is not so (Q, parts of blocks), what parity is
//!   computed from is compared with its sums before, or, for Q of whole blocks, while it is loaded.
//! - Sums are kept only where a lock block is made of whole blocks of each member, or two writers
//!   with different locks would change one sum: not for chunks of less than a block.

use crate::striper::{Done, IoFault, Stop, Striper};
use crate::walk::{Pieces, Stripes};
use core::sync::atomic::{AtomicU32, Ordering};
use layout::Geometry;
use medium::Medium;
pub use medium::SUM_BLOCK_BYTES;
use units::{MemberSet, Slot};

/// What becomes of the sums of blocks that are stored to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Summing {
    /// The file has no sums.
    Off,
    /// They are taken away: somebody may store to the file past the stripe locks.
    Forget,
    /// The blocks get new ones.
    Keep,
}

/// Tells whether files of this shape can have sums: they have redundancy, which follows what programs
/// store through mappings, and no block lies in two chunks.
#[must_use]
pub fn can_have_sums(geometry: &Geometry) -> bool {
    let has_redundancy = geometry.level().failures_max(geometry.member_count()) > 0;
    has_redundancy && (!geometry.level().has_chunks() || geometry.chunk().bytes() >= SUM_BLOCK_BYTES)
}

/// CRC-32C of a block of zeros.
const SUM_OF_ZEROS: u32 = persist::CRC_OF_ZEROS;
/// What stands for a CRC of 0, which stands for no sum.
pub(crate) const IN_PLACE_OF_NONE: u32 = u32::MAX;
/// Members of an array at most.
const SLOTS_MAX: usize = units::MEMBER_COUNT_MAX;
/// Sums of blocks that one operation remembers.
const OLDS_MAX: usize = 32;
/// Blocks that have rotted and one operation keeps as such.
const ROTTEN_MAX: usize = 16;

/// The sum of the block at `block` in memory, never 0.
///
/// # Safety
/// As for [`persist::crc32c_block`].
#[inline]
pub(crate) unsafe fn sum_of(block: *const u8) -> u32 {
    // SAFETY: the caller's promise.
    sum_of_crc(unsafe { persist::crc32c_block(block) })
}

/// The sum of a block with this CRC.
#[inline(always)]
pub(crate) const fn sum_of_crc(crc: u32) -> u32 {
    if crc == 0 { IN_PLACE_OF_NONE } else { crc }
}

/// The sum of the exclusive or of blocks with these sums; None if it is not known: one has none, or
/// a CRC of 0 is in doubt.
fn sum_of_all(sums: impl Iterator<Item = u32>) -> Option<u32> {
    let (mut all, mut count) = (0, 0u32);
    for sum in sums {
        if sum == 0 || sum == IN_PLACE_OF_NONE {
            return None;
        }
        all ^= sum;
        count += 1;
    }
    // CRC is affine: each sum has that of zeros in it.
    let all = if count.is_multiple_of(2) { all ^ SUM_OF_ZEROS } else { all };
    (all != 0 && all != IN_PLACE_OF_NONE).then_some(all)
}

/// A sum that is not `sum`.
const fn other_than(sum: u32) -> u32 {
    if sum == 1 { 2 } else { sum ^ 1 }
}

/// Bytes of members at one range of member offsets.
struct Run<'r> {
    start: u64,
    bytes: u64,
    /// The slots of the data that are stored.
    data: &'r [Slot],
    parities: &'r [Slot],
    /// The slots of the stripe's data that are not stored.
    others: &'r [Slot],
}

impl Run<'_> {
    /// The blocks that the run touches, and whether each is touched only in part.
    fn blocks(&self) -> impl Iterator<Item = (u64, bool)> {
        let (start, end) = (self.start, self.start + self.bytes);
        let blocks = start / SUM_BLOCK_BYTES..end.div_ceil(SUM_BLOCK_BYTES);
        blocks.map(move |block| (block, block * SUM_BLOCK_BYTES < start || end < (block + 1) * SUM_BLOCK_BYTES))
    }
}

/// What an operation remembers of the sums that it has taken away.
struct Taken {
    olds: [u32; OLDS_MAX],
    count: usize,
    /// Member, block, and its sum.
    rotten: [(Slot, u64, u32); ROTTEN_MAX],
    rotten_count: usize,
    /// Blocks at which parity is computed from something that has rotted.
    spoiled: [u64; ROTTEN_MAX],
    spoiled_count: usize,
}

impl Taken {
    const fn new() -> Self {
        Self {
            olds: [0; OLDS_MAX],
            count: 0,
            rotten: [(0, 0, 0); ROTTEN_MAX],
            rotten_count: 0,
            spoiled: [0; ROTTEN_MAX],
            spoiled_count: 0,
        }
    }

    const fn note(&mut self, old: u32) {
        if self.count < OLDS_MAX {
            self.olds[self.count] = old;
        }
        self.count += 1;
    }

    const fn note_rotten(&mut self, slot: Slot, block: u64, sum: u32) {
        if self.rotten_count < ROTTEN_MAX {
            self.rotten[self.rotten_count] = (slot, block, sum);
        }
        self.rotten_count += 1;
    }

    const fn note_spoiled(&mut self, block: u64) {
        if self.spoiled_count < ROTTEN_MAX {
            self.spoiled[self.spoiled_count] = block;
        }
        self.spoiled_count += 1;
    }

    fn rotten(&self, slot: Slot, block: u64) -> Option<u32> {
        let known = &self.rotten[..self.rotten_count.min(ROTTEN_MAX)];
        known.iter().find(|known| known.0 == slot && known.1 == block).map(|&(.., sum)| sum)
    }

    /// Tells whether parity at a block does not count. With more such blocks than are remembered none
    /// counts.
    fn is_spoiled(&self, block: u64) -> bool {
        self.spoiled_count > ROTTEN_MAX || self.spoiled[..self.spoiled_count].contains(&block)
    }

    /// Tells whether so many sums more are remembered.
    const fn has_room(&self, more: usize) -> bool {
        self.count + more <= OLDS_MAX
    }

    fn old(&self, index: usize) -> u32 {
        self.olds.get(index).copied().unwrap_or(0)
    }
}

/// Which bytes an operation touches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Those of the range, and parity in its rows.
    Range,
    /// All bytes of its rows.
    Rows,
}

/// How parity comes to be what it is after an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parity {
    /// As [`Striper::write`] makes it.
    Written,
    /// In another way.
    Otherwise,
}

impl<M: Medium> Striper<'_, M> {
    /// Runs `act`, which stores to a range under its locks, and keeps its sums.
    #[inline(never)]
    pub(crate) fn summed(
        &self,
        offset: u64,
        bytes: u64,
        parity: Parity,
        act: impl FnOnce() -> Result<(), IoFault>,
    ) -> Result<(), IoFault> {
        let mut taken = Taken::new();
        self.take_sums(offset, bytes, Reach::Range, parity, &mut taken)?;
        act()?;
        if self.sums == Summing::Keep {
            // Without a fence in between: a lane names what a crash may leave out of step, and a reader
            // finds that somebody writes.
            let taken = &taken;
            self.guarded(|| self.give_sums(offset, bytes, parity, taken))?;
        }
        Ok(())
    }

    /// Takes away the sums of all blocks in the rows of a range. The caller holds its locks.
    pub fn forget_sums(&self, offset: u64, bytes: u64) -> Result<(), IoFault> {
        if self.sums == Summing::Off {
            return Ok(());
        }
        let forgetting = Striper { sums: Summing::Forget, ..*self };
        forgetting.take_sums(offset, bytes, Reach::Rows, Parity::Otherwise, &mut Taken::new())
    }

    /// Takes away the sums of the blocks of one member that a range of its backing file touches. The
    /// caller holds their locks.
    pub(crate) fn forget_sums_on(&self, slot: Slot, member_offset: u64, bytes: u64) -> Result<(), IoFault> {
        if self.sums == Summing::Off || bytes == 0 {
            return Ok(());
        }
        let Some(member) = self.summing_member(slot) else { return Ok(()) };
        member.ready_sums(member_offset, bytes).map_err(|error| unready(slot, error))?;
        self.guarded(|| {
            let blocks = member_offset / SUM_BLOCK_BYTES..(member_offset + bytes).div_ceil(SUM_BLOCK_BYTES);
            blocks.filter_map(|block| member.sum(block)).for_each(|sum| self.put_sum(sum, 0));
            Ok(())
        })
    }

    /// Makes the sums of the blocks that an operation touches ready to be changed; and those of the
    /// other blocks of their rows ready to be looked at. Parity may be computed from those blocks, and
    /// a sum that this process does not see would count as none, so that a rotten block would go
    /// unnoticed into parity that fits it.
    pub(crate) fn ready_sums(&self, offset: u64, bytes: u64, reach: Reach) -> Result<(), IoFault> {
        let mut unready_on = None;
        let ready = self.each_run(offset, bytes, reach, |run| {
            for &slot in run.data.iter().chain(run.others).chain(run.parities) {
                let Some(member) = self.summing_member(slot) else { continue };
                if let Err(error) = member.ready_sums(run.start, run.bytes) {
                    unready_on = Some(unready(slot, error));
                    return Err(Stop::Lost);
                }
            }
            Ok(())
        });
        if let Some(fault) = unready_on {
            return Err(fault);
        }
        Ok(ready?)
    }

    fn take_sums(&self, offset: u64, bytes: u64, reach: Reach, parity: Parity, taken: &mut Taken) -> Result<(), IoFault> {
        self.ready_sums(offset, bytes, reach)?;
        self.guarded(|| {
            self.each_run(offset, bytes, reach, |run| {
                for (block, is_part) in run.blocks() {
                    if self.sums == Summing::Keep {
                        self.find_rotten(run, block, is_part, parity, taken);
                    }
                    for &slot in run.data.iter().chain(run.parities) {
                        let sum = self.sum_at(slot, block);
                        let old = sum.map_or(0, |sum| sum.load(Ordering::Relaxed));
                        taken.note(old);
                        if let Some(sum) = sum.filter(|_| old != 0) {
                            self.put_sum(sum, 0);
                        }
                    }
                }
                Ok(())
            })
        })
    }

    /// Tells whether parity of a run is computed from the old parity and the old data, as the write
    /// itself decides it (`write::Write::prefers_update`).
    fn is_updated(&self, run: &Run<'_>) -> bool {
        let is_out = |slot: &Slot| self.out.contains(*slot);
        if run.data.iter().chain(run.others).any(is_out) {
            return !run.data.iter().any(is_out);
        }
        run.others.len() > run.data.len() * (1 + run.parities.len())
    }

    pub(crate) fn stored_sum(&self, slot: Slot, block: u64) -> u32 {
        self.sum_at(slot, block).map_or(0, |sum| sum.load(Ordering::Relaxed))
    }

    /// Tells whether the sum of parity at a block follows from sums: nothing need be looked at.
    fn follows(&self, run: &Run<'_>, is_part: bool, parity: Parity) -> bool {
        parity == Parity::Written && run.parities.len() == 1 && !is_part
    }

    /// Notes which blocks that go on counting have rotted: what a block keeps when it is stored to in
    /// part, and what parity is computed from.
    fn find_rotten(&self, run: &Run<'_>, block: u64, is_part: bool, parity: Parity, taken: &mut Taken) {
        let is_rotten = |slot: Slot| {
            let sum = self.stored_sum(slot, block);
            (sum != 0 && self.sum_now(slot, block).is_some_and(|now| now != sum)).then_some(sum)
        };
        if run.parities.is_empty() || run.others.is_empty() && !is_part {
            if is_part {
                for &slot in run.data {
                    if let Some(sum) = is_rotten(slot) {
                        taken.note_rotten(slot, block, sum);
                    }
                }
            }
            return;
        }
        let is_updated = self.is_updated(run);
        if self.follows(run, is_part, parity) {
            let sums_of = |slots: &[Slot]| slots.iter().all(|&slot| self.stored_sum(slot, block) != 0);
            let is_known = match is_updated {
                true => taken.has_room(run.data.len() + 1) && sums_of(run.data) && sums_of(run.parities),
                false => sums_of(run.others),
            };
            if is_known {
                return;
            }
        }
        let is_otherwise = parity == Parity::Otherwise;
        let mut is_spoiled = false;
        if is_part || is_otherwise || is_updated {
            for &slot in run.data.iter().chain(run.parities) {
                if let Some(sum) = is_rotten(slot) {
                    is_spoiled |= is_otherwise || is_updated;
                    if is_part {
                        taken.note_rotten(slot, block, sum);
                    }
                }
            }
        }
        if is_otherwise || !is_updated {
            is_spoiled |= run.others.iter().any(|&slot| is_rotten(slot).is_some());
        }
        if is_spoiled {
            taken.note_spoiled(block);
        }
    }

    fn give_sums(&self, offset: u64, bytes: u64, parity: Parity, taken: &Taken) -> Done {
        let mut index = 0;
        self.each_run(offset, bytes, Reach::Range, |run| {
            let is_updated = self.is_updated(run);
            for (block, is_part) in run.blocks() {
                let olds = index;
                index += run.data.len() + run.parities.len();
                let mut news = [0; SLOTS_MAX];
                for (new, &slot) in news.iter_mut().zip(run.data) {
                    *new = self.give_sum(slot, block, None, taken);
                }
                let news = &news[..run.data.len().min(SLOTS_MAX)];
                for (which, &slot) in run.parities.iter().enumerate() {
                    if taken.is_spoiled(block) {
                        self.spoil(slot, block);
                        continue;
                    }
                    let is_full = run.others.is_empty() && !is_part && parity == Parity::Written && which == 0;
                    let known = if is_full {
                        sum_of_all(news.iter().copied())
                    } else if !self.follows(run, is_part, parity) {
                        None
                    } else if is_updated {
                        // The old parity, the old data and the new.
                        let before = (0..=run.data.len()).map(|at| taken.old(olds + at));
                        sum_of_all(before.chain(news.iter().copied()))
                    } else {
                        sum_of_all(run.others.iter().map(|&slot| self.stored_sum(slot, block)).chain(news.iter().copied()))
                    };
                    self.give_sum(slot, block, known, taken);
                }
            }
            Ok(())
        })
    }

    /// Gives a block its sum: `known`, or that of what it holds. Returns the sum, 0 if it has none
    /// that says what the block ought to hold.
    fn give_sum(&self, slot: Slot, block: u64, known: Option<u32>, taken: &Taken) -> u32 {
        let Some(sum) = self.sum_at(slot, block) else { return 0 };
        if taken.rotten_count > 0
            && let Some(old) = taken.rotten(slot, block)
        {
            // What it ought to hold is not known any more: perhaps what had rotted was overwritten.
            self.put_sum(sum, if self.sum_now(slot, block) == Some(old) { other_than(old) } else { old });
            return 0;
        }
        let Some(new) = known.or_else(|| self.sum_now(slot, block)) else { return 0 };
        self.put_sum(sum, new);
        new
    }

    /// Gives a block a sum that does not fit it.
    pub(crate) fn spoil(&self, slot: Slot, block: u64) {
        if let (Some(sum), Some(now)) = (self.sum_at(slot, block), self.sum_now(slot, block)) {
            self.put_sum(sum, other_than(now));
        }
    }

    #[inline]
    fn put_sum(&self, sum: &AtomicU32, value: u32) {
        sum.store(value, Ordering::Release);
        self.settle_sums(core::slice::from_ref(sum));
    }

    /// Writes sums back that were stored to, where that is needed. Inside a guard.
    #[inline(always)]
    pub(crate) fn settle_sums(&self, sums: &[AtomicU32]) {
        if self.kernels.flush() == persist::Flush::Needed {
            // SAFETY: inside a guard, of what was just stored to.
            unsafe { persist::write_back(sums.as_ptr().cast(), size_of_val(sums)) };
        }
    }

    #[inline]
    fn summing_member(&self, slot: Slot) -> Option<&M> {
        if self.out.contains(slot) { None } else { self.members.get(slot)?.as_ref() }
    }

    #[inline]
    pub(crate) fn sum_at(&self, slot: Slot, block: u64) -> Option<&AtomicU32> {
        self.summing_member(slot)?.sum(block)
    }

    /// The sum of what a block holds that has been stored to; None if it is not mapped in one piece.
    /// Inside a guard.
    pub(crate) fn sum_now(&self, slot: Slot, block: u64) -> Option<u32> {
        Self::sum_of_span(self.summing_member(slot)?.span_to_store(block * SUM_BLOCK_BYTES)?)
    }

    fn sum_of_span(span: medium::Span) -> Option<u32> {
        // SAFETY: mapped for a block, at the beginning of a page, of which some byte lies within the
        // file.
        (span.bytes as u64 >= SUM_BLOCK_BYTES).then(|| unsafe { sum_of(span.start.as_ptr()) })
    }

    /// Calls `visit` with the runs of what an operation on a range touches.
    fn each_run(&self, offset: u64, bytes: u64, reach: Reach, mut visit: impl FnMut(&Run<'_>) -> Done) -> Done {
        let geometry = self.geometry;
        let members = geometry.member_count().min(SLOTS_MAX);
        let mut slots = [0; SLOTS_MAX];
        if bytes == 0 {
            return Ok(());
        }
        if !geometry.level().has_chunks() {
            slots.iter_mut().enumerate().for_each(|(slot, place)| *place = slot);
            return visit(&Run { start: offset, bytes, data: &slots[..members], parities: &[], others: &[] });
        }
        let parities = geometry.level().parity_count();
        if parities == 0 {
            let mut stripe = geometry.stripe_of(offset);
            for piece in Pieces::new(geometry, offset, bytes) {
                let copies = geometry.copy_count().min(SLOTS_MAX);
                (0..copies).for_each(|copy| slots[copy] = geometry.data_slot(stripe, piece.column, copy));
                let run = Run {
                    start: piece.member_offset(),
                    bytes: piece.bytes as u64,
                    data: &slots[..copies],
                    parities: &[],
                    others: &[],
                };
                visit(&run)?;
                stripe += u64::from(piece.column + 1 == geometry.data_columns());
            }
            return Ok(());
        }
        for part in Stripes::new(geometry, offset, bytes) {
            for rows in part.rows(geometry) {
                // Data that are stored, then the parities, then the other data.
                let all = rows.first_column..rows.end_column;
                let stored = if reach == Reach::Rows { 0..geometry.data_columns() } else { all };
                let mut count = 0;
                let mut add = |distance: usize| {
                    if let Some(place) = slots.get_mut(count) {
                        *place = part.stripe.slot(distance, members);
                        count += 1;
                    }
                };
                stored.clone().for_each(|column| add(parities + column));
                (0..parities).for_each(&mut add);
                (0..geometry.data_columns()).filter(|column| !stored.contains(column)).for_each(|column| add(parities + column));
                let (data, rest) = slots[..count].split_at(stored.len());
                let (parities, others) = rest.split_at(parities);
                visit(&Run { start: part.stripe.member_offset + rows.start, bytes: rows.bytes as u64, data, parities, others })?;
            }
        }
        Ok(())
    }
}

/// Why sums cannot be changed on a member.
#[cold]
fn unready(slot: Slot, error: sys::OsError) -> IoFault {
    if crate::member::has_failed(error) { IoFault::Member(slot) } else { IoFault::Os(error) }
}

/// What a block's sum says of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Said {
    Fits,
    /// The block has no sum.
    Nothing,
    /// This is its sum, and does not fit.
    Differs(u32),
}

impl<M: Medium> Striper<'_, M> {
    /// The blocks in the rows of a range, by member, of members in use.
    pub(crate) fn blocks_in_rows(&self, offset: u64, bytes: u64) -> Result<alloc::vec::Vec<(Slot, u64)>, IoFault> {
        let mut blocks = alloc::vec::Vec::new();
        self.each_run(offset, bytes, Reach::Rows, |run| {
            for &slot in run.data.iter().chain(run.parities).filter(|slot| !self.out.contains(**slot)) {
                blocks.extend(run.blocks().map(|(block, _)| (slot, block)));
            }
            Ok(())
        })?;
        blocks.sort_unstable();
        blocks.dedup();
        Ok(blocks)
    }

    /// What a block's sum says of it.
    pub(crate) fn look_at_sum(&self, slot: Slot, block: u64) -> Result<Said, IoFault> {
        let Some(member) = self.summing_member(slot) else { return Ok(Said::Nothing) };
        member.ready_sums(block * SUM_BLOCK_BYTES, 1).map_err(|error| unready(slot, error))?;
        let mut said = Said::Nothing;
        let result = &mut said;
        self.guarded(|| {
            let sum = member.sum(block).map_or(0, |sum| sum.load(Ordering::Acquire));
            if sum != 0 {
                *result = match self.sum_now(slot, block) {
                    Some(now) if sum == now => Said::Fits,
                    Some(_) => Said::Differs(sum),
                    None => Said::Nothing,
                };
            }
            Ok(())
        })?;
        Ok(said)
    }

    /// Tells whether some block in the rows of a range, of the members in use but those in `lost`,
    /// does not fit its sum.
    pub(crate) fn has_rotten(&self, lost: MemberSet, offset: u64, bytes: u64) -> Result<bool, IoFault> {
        for (slot, block) in self.blocks_in_rows(offset, bytes)? {
            if !lost.contains(slot) && matches!(self.look_at_sum(slot, block)?, Said::Differs(_)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Tells whether every block in the rows of a range has a sum that fits.
    ///
    /// # Errors
    /// As for [`Striper::verify`].
    pub fn is_sealed(&self, offset: u64, bytes: u64) -> Result<bool, IoFault> {
        for (slot, block) in self.blocks_in_rows(offset, bytes)? {
            if self.look_at_sum(slot, block)? != Said::Fits {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Gives sums to those blocks in the rows of a range that have none. The caller holds the locks
    /// of the range, and has found that its redundancy fits.
    ///
    /// # Errors
    /// As for [`Striper::verify`].
    pub fn seal(&self, offset: u64, bytes: u64) -> Result<(), IoFault> {
        if self.sums != Summing::Keep {
            return Ok(());
        }
        for (slot, block) in self.blocks_in_rows(offset, bytes)? {
            self.seal_block(slot, block, false)?;
        }
        Ok(())
    }

    /// Gives a block a sum that fits it. One that it has goes only if `is_wrong` says so.
    pub(crate) fn seal_block(&self, slot: Slot, block: u64, is_wrong: bool) -> Result<(), IoFault> {
        let Some(member) = self.summing_member(slot) else { return Ok(()) };
        member.ready_sums(block * SUM_BLOCK_BYTES, 1).map_err(|error| unready(slot, error))?;
        self.guarded(|| {
            if let Some(sum) = member.sum(block).filter(|sum| is_wrong || sum.load(Ordering::Acquire) == 0)
                // What may be a hole has no sum: a load would take space for it.
                && let Some(now) = member.span(block * SUM_BLOCK_BYTES).and_then(Self::sum_of_span)
            {
                self.put_sum(sum, now);
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::striper::Block;

    fn sum(bytes: impl Fn(usize) -> u8) -> u32 {
        let block = Block(core::array::from_fn(bytes));
        // SAFETY: the block is aligned and that long.
        unsafe { sum_of(block.0.as_ptr()) }
    }

    #[test]
    fn the_sum_of_parity_follows_from_those_of_the_data() {
        assert_eq!(sum(|_| 0), SUM_OF_ZEROS);
        let a = |at: usize| (at * 7 + at / 256) as u8;
        let b = |at: usize| ((at * 31) ^ (at >> 5)) as u8;
        let c = |at: usize| (at * at) as u8;
        assert_eq!(sum_of_all([sum(a), sum(b)].into_iter()), Some(sum(|at| a(at) ^ b(at))));
        assert_eq!(sum_of_all([sum(a), sum(b), sum(c)].into_iter()), Some(sum(|at| a(at) ^ b(at) ^ c(at))));
        assert_eq!(sum_of_all([sum(a), 0, sum(c)].into_iter()), None);
        assert_eq!(sum_of_all([sum(a), IN_PLACE_OF_NONE].into_iter()), None);
    }
}
