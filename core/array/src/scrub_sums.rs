//! Which blocks do not fit their sums, and what they ought to hold.
//!
//! Sums tell which member is wrong where redundancy alone cannot. What is computed for a block from
//! the other members is believed only if the block's own sum fits it: so a sum that is wrong, or
//! two blocks that are, never make right bytes wrong.
//!
//! Invariants: those of `scrub`.

use crate::scrub::{Mismatch, Role, Verdict, computed, locate};
use crate::shares::Reading;
use crate::striper::{Block, Done, IoFault, Striper};
use crate::sums::{Said, Summing, sum_of};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use layout::Place;
use medium::{Medium, SUM_BLOCK_BYTES};
use units::{MemberSet, Slot};

const BYTES: usize = SUM_BLOCK_BYTES as usize;

/// Blocks at one member offset that belong together: those of a stripe, or the copies of one column.
struct Group {
    stripe: u64,
    /// The column of copies; 0 on levels with parity.
    column: usize,
    within: u64,
    block: u64,
    /// The members whose blocks do not fit their sums, and these.
    bad: Vec<(Slot, u32)>,
}

fn differing(a: &[u8], b: &[u8]) -> u64 {
    a.iter().zip(b).map(|(a, b)| u64::from(a != b)).sum()
}

fn sum_of_bytes(bytes: &[u8]) -> u32 {
    let mut block = Box::new(Block([0; BYTES]));
    block.0.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    // SAFETY: the block is aligned and that long.
    unsafe { sum_of(block.0.as_ptr()) }
}

impl<M: Medium> Striper<'_, M> {
    /// The blocks in the rows of a range that do not fit their sums, a mismatch for all that belong
    /// together. None of what lies behind `Geometry::member_bytes` of the range's end is told.
    ///
    /// # Errors
    /// As for [`Striper::examine`].
    pub fn examine_sums(&self, offset: u64, bytes: u64) -> Result<Vec<Mismatch>, IoFault> {
        let mut groups: BTreeMap<(u64, usize), Group> = BTreeMap::new();
        for (slot, block) in self.blocks_in_rows(offset, bytes)? {
            let Said::Differs(sum) = self.look_at_sum(slot, block)? else { continue };
            let (stripe, column, within) = self.place_of(slot, block);
            let group = groups.entry((block, column)).or_insert(Group { stripe, column, within, block, bad: Vec::new() });
            group.bad.push((slot, sum));
        }
        let reach = self.geometry.member_bytes(offset + bytes);
        groups.values().map(|group| self.judge_group(group, reach)).collect()
    }

    /// The stripe of a block on a member, the column of copies that the member holds there (0 on
    /// levels with parity), and where in the chunk the block begins.
    fn place_of(&self, slot: Slot, block: u64) -> (u64, usize, u64) {
        let (geometry, at) = (self.geometry, block * SUM_BLOCK_BYTES);
        if !geometry.level().has_chunks() {
            let place = geometry.locate(at);
            return (place.stripe, 0, place.within);
        }
        let stripe = at >> geometry.chunk().shift();
        let holds = |column: &usize| (0..geometry.copy_count()).any(|copy| geometry.data_slot(stripe, *column, copy) == slot);
        let column = if geometry.level().parity_count() > 0 { 0 } else { (0..geometry.data_columns()).find(holds).unwrap_or(0) };
        (stripe, column, at - geometry.member_offset(stripe))
    }

    fn block_bytes(&self, slot: Slot, block: u64) -> Result<Vec<u8>, IoFault> {
        let mut bytes = alloc::vec![0; BYTES];
        let (io, to) = (self.io(), bytes.as_mut_ptr());
        // SAFETY: the buffer is ours and that long; inside a guard.
        self.guarded(|| -> Done { unsafe { io.fetch(slot, block * SUM_BLOCK_BYTES, to, BYTES) } })?;
        Ok(bytes)
    }

    fn judge_group(&self, group: &Group, reach: u64) -> Result<Mismatch, IoFault> {
        let start = group.block * SUM_BLOCK_BYTES;
        let told = SUM_BLOCK_BYTES.min(reach.saturating_sub(start)).max(1) as usize;
        let (members, mut verdict, mut count) =
            if self.geometry.level().parity_count() > 0 { self.judge_stripe(group)? } else { self.judge_copies(group)? };
        let offset_of = |column| self.geometry.offset_of(Place { stripe: group.stripe, column, within: group.within });
        let mut column = group.column;
        if let Verdict::Located(wrong) = &mut verdict {
            wrong.iter_mut().for_each(|(.., right)| right.truncate(told));
            if self.geometry.level().parity_count() > 0
                && let Some((slot, Role::Data, _)) = wrong.first()
            {
                let holds = |column: &usize| self.geometry.data_slot(group.stripe, *column, 0) == *slot;
                column = (0..self.geometry.data_columns()).find(holds).unwrap_or(0);
            }
        }
        count = count.max(1);
        let file = offset_of(column)..offset_of(column) + told as u64;
        Ok(Mismatch { file, rows: offset_of(group.column), member_offset: start, bytes: count, members, verdict })
    }

    fn judge_copies(&self, group: &Group) -> Result<(MemberSet, Verdict, u64), IoFault> {
        let geometry = self.geometry;
        let slot = |copy| geometry.data_slot(group.stripe, group.column, copy);
        let slots: Vec<Slot> = (0..geometry.copy_count()).map(slot).filter(|&slot| !self.out.contains(slot)).collect();
        let members: MemberSet = slots.iter().copied().collect();
        let bad: Vec<Slot> = group.bad.iter().map(|&(slot, _)| slot).collect();
        if slots.len() < 2 {
            return Ok((members, Verdict::Rotten(bad), BYTES as u64));
        }
        let mut copies = Vec::new();
        let mut believed: Vec<u32> = group.bad.iter().map(|&(_, sum)| sum).collect();
        for &slot in &slots {
            let bytes = self.block_bytes(slot, group.block)?;
            let sum = sum_of_bytes(&bytes);
            if self.look_at_sum(slot, group.block)? == Said::Fits {
                believed.push(sum);
            }
            copies.push((slot, bytes, sum));
        }
        if copies.iter().all(|(_, bytes, _)| *bytes == copies[0].1) {
            // One copy may have been made from the other when that had rotted.
            let verdict = if believed.contains(&copies[0].2) { Verdict::Sums(bad) } else { Verdict::Rotten(bad) };
            return Ok((members, verdict, 4));
        }
        let mut right: Option<&Vec<u8>> = None;
        for (_, bytes, sum) in &copies {
            if believed.contains(sum) {
                if right.is_some_and(|right| right != bytes) {
                    return Ok((members, Verdict::Several, BYTES as u64));
                }
                right = Some(bytes);
            }
        }
        let Some(right) = right else { return Ok((members, Verdict::Rotten(bad), BYTES as u64)) };
        let wrong: Vec<_> = copies.iter().filter(|(_, bytes, _)| bytes != right).collect();
        let count = wrong.iter().map(|(_, bytes, _)| differing(bytes, right)).sum();
        Ok((members, Verdict::Located(wrong.iter().map(|(slot, ..)| (*slot, Role::Data, right.clone())).collect()), count))
    }

    fn judge_stripe(&self, group: &Group) -> Result<(MemberSet, Verdict, u64), IoFault> {
        let geometry = self.geometry;
        let (columns, parities) = (geometry.data_columns(), geometry.level().parity_count());
        let slots: Vec<Slot> = (0..columns)
            .map(|column| geometry.data_slot(group.stripe, column, 0))
            .chain((0..parities).map(|which| geometry.parity_slot(group.stripe, which)))
            .collect();
        let members: MemberSet = slots.iter().copied().filter(|&slot| !self.out.contains(slot)).collect();
        let mut chunks = Vec::new();
        for &slot in &slots {
            chunks.push(if self.out.contains(slot) { alloc::vec![0; BYTES] } else { self.block_bytes(slot, group.block)? });
        }
        let bad: Vec<Slot> = group.bad.iter().map(|&(slot, _)| slot).collect();
        let fits = |slot: Slot| Ok::<_, IoFault>(self.look_at_sum(slot, group.block)? == Said::Fits);
        if members.len() == slots.len() && locate(&chunks, columns).0 == 0 {
            // Parity may have been made from data that had rotted.
            let mut is_sum = bad.len() == 1;
            for &slot in slots.iter().filter(|slot| !bad.contains(slot)) {
                is_sum &= fits(slot)?;
            }
            return Ok((members, if is_sum { Verdict::Sums(bad) } else { Verdict::Rotten(bad) }, 4));
        }
        // If all data fit, parity is what they say, whatever its sum is.
        let mut is_parity = true;
        for &slot in &slots[..columns] {
            is_parity &= !self.out.contains(slot) && fits(slot)?;
        }
        if is_parity {
            let mut wrong = Vec::new();
            for source in (columns..slots.len()).filter(|&source| bad.contains(&slots[source])) {
                let right = computed(&chunks, columns, source);
                if right != chunks[source] {
                    wrong.push((slots[source], if source == columns { Role::P } else { Role::Q }, right));
                }
            }
            let of = |slot: Slot| slots.iter().position(|&other| other == slot).unwrap_or(0);
            let count = wrong.iter().map(|(slot, _, right)| differing(right, &chunks[of(*slot)])).sum();
            let verdict = if wrong.is_empty() { Verdict::Sums(bad) } else { Verdict::Located(wrong) };
            return Ok((members, verdict, count));
        }
        // All that do not fit are taken for wrong first, then each alone: the sum of another one may
        // have rotted.
        let alone = group.bad.iter().map(core::slice::from_ref);
        for wrong in core::iter::once(&group.bad[..]).chain(alone) {
            let erased: MemberSet = wrong.iter().map(|&(slot, _)| slot).collect();
            if !geometry.survives(self.out.union(erased)) {
                continue;
            }
            let right = self.without(erased, group, &slots, &chunks)?;
            let is_right = |&(slot, sum): &(Slot, u32)| {
                let source = slots.iter().position(|&other| other == slot)?;
                let role = [Role::P, Role::Q].get(source.wrapping_sub(columns)).copied().unwrap_or(Role::Data);
                let differs = right[source] != chunks[source];
                (differs && sum_of_bytes(&right[source]) == sum).then(|| (slot, role, right[source].clone(), source))
            };
            let found: Vec<_> = wrong.iter().filter_map(is_right).collect();
            if !found.is_empty() {
                let count = found.iter().map(|(.., right, source)| differing(right, &chunks[*source])).sum();
                return Ok((
                    members,
                    Verdict::Located(found.into_iter().map(|(slot, role, right, _)| (slot, role, right)).collect()),
                    count,
                ));
            }
        }
        Ok((members, Verdict::Rotten(bad), BYTES as u64))
    }

    /// What the sources of a stripe ought to hold of a block if those on `erased` members are not
    /// looked at.
    fn without(&self, erased: MemberSet, group: &Group, slots: &[Slot], chunks: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, IoFault> {
        let (columns, mut right) = (self.geometry.data_columns(), chunks.to_vec());
        let out = self.out.union(erased);
        let striper = Striper { out, reading: Reading::LOWEST, undo: None, sums: Summing::Off, ..*self };
        for column in (0..columns).filter(|&column| out.contains(slots[column])) {
            let offset = self.geometry.offset_of(Place { stripe: group.stripe, column, within: group.within });
            // SAFETY: the buffer is ours and that long.
            unsafe { striper.read(offset, right[column].as_mut_ptr(), BYTES) }?;
        }
        for source in (columns..slots.len()).filter(|&source| out.contains(slots[source])) {
            right[source] = computed(&right, columns, source);
        }
        Ok(right)
    }

    /// Gives blocks that hold what they ought to hold sums that fit. The caller holds their locks.
    ///
    /// # Errors
    /// As for [`Striper::mend`].
    pub fn mend_sums(&self, slots: &[Slot], member_offset: u64) -> Result<(), IoFault> {
        slots.iter().try_for_each(|&slot| self.seal_block(slot, member_offset / SUM_BLOCK_BYTES, true))
    }
}
