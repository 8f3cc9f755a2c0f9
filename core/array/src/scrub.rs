//! Which copies of a piece of a file are wrong, where its redundancy does not fit, as far as its
//! level can say.
//!
//! Bytes are judged in units of [`UNIT_BYTES`] of each chunk, as md's raid6check judges pages. P
//! alone says that a stripe does not fit, but not which column is wrong. P and Q together name the
//! column if one column is wrong: with the differences p and q between the two parities and what
//! they ought to be, q / p = 2^column in every byte that is wrong (H. P. Anvin, "The mathematics of
//! RAID-6", section 4). Three copies and more name the copies that differ from most of them. A unit
//! in which bytes name different columns has more than one wrong column, and none of them is
//! believed.
//!
//! Invariants: looking stores nothing. The caller holds the locks of the range, or compares their
//! counts afterwards. The right bytes are computed from what one and the same look has read.

use crate::striper::{BLOCK_BYTES, Done, IoFault, Striper};
use crate::sums::Summing;
use crate::walk::{Pieces, Stripes};
use alloc::vec::Vec;
use core::ops::Range;
use layout::Place;
use medium::{Medium, SUM_BLOCK_BYTES};
use parity::{mul, q_coefficient};
use units::{MemberSet, Slot};

/// Bytes of each chunk that are judged as one.
pub const UNIT_BYTES: usize = BLOCK_BYTES;

/// What a member holds of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Bytes of the file, or a copy of them.
    Data,
    /// The first parity.
    P,
    /// The second parity.
    Q,
}

/// What can be said of a unit that does not fit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// These members are wrong; the bytes that each of them ought to have there.
    Located(Vec<(Slot, Role, Vec<u8>)>),
    /// Which is wrong cannot be known without checksums.
    Unknown,
    /// More than one column is wrong, and which cannot be known.
    Several,
    /// What these members hold does not fit its sum, and nothing that fits it can be computed from
    /// the others.
    Rotten(Vec<Slot>),
    /// The redundancy fits: it is the sums of these members that are wrong.
    Sums(Vec<Slot>),
}

/// A unit whose redundancy does not fit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// The bytes of the file that the unit is about: those of the wrong column if one is known to
    /// be wrong, else those of the first column.
    pub file: Range<u64>,
    /// Where in the file the unit's rows begin in the first column: a range from there on is about
    /// the unit, whichever column is wrong.
    pub rows: u64,
    /// Where the unit lies on its members.
    pub member_offset: u64,
    /// How many bytes do not fit.
    pub bytes: u64,
    /// The members that hold the unit and are in use.
    pub members: MemberSet,
    /// What can be said of it.
    pub verdict: Verdict,
}

/// The bytes at one offset of all chunks of a stripe, or of one chunk of a level that keeps copies.
struct Unit {
    stripe: u64,
    column: usize,
    within: u64,
    member_offset: u64,
    bytes: usize,
}

impl<M: Medium> Striper<'_, M> {
    /// The units of a range whose redundancy does not fit. The range is widened as by
    /// [`Striper::verify`], which says in less time whether there are any.
    pub fn examine(&self, offset: u64, bytes: u64) -> Result<Vec<Mismatch>, IoFault> {
        let mut found = Vec::new();
        for unit in self.units(offset, bytes) {
            let mismatch = if self.geometry.level().parity_count() == 0 { self.copies(&unit) } else { self.stripe(&unit) };
            found.extend(mismatch?);
        }
        Ok(found)
    }

    /// Stores what a member ought to have. If the process dies meanwhile, [`Striper::undo`] has
    /// what is to be.
    ///
    /// The caller holds the locks of the unit, and has allocated it.
    pub fn mend(&self, slot: Slot, member_offset: u64, right: &[u8]) -> Result<(), IoFault> {
        let io = self.io();
        let bytes = right.len();
        if let Some(undo) = self.undo.filter(|_| bytes <= UNIT_BYTES) {
            // SAFETY: the record saves a unit of one member, and is this thread's.
            unsafe { undo.place(0, 1).copy_from_nonoverlapping(right.as_ptr(), bytes) };
            undo.arm_mending(slot, member_offset, bytes);
        }
        self.forget_sums_on(slot, member_offset, bytes as u64)?;
        let from = right.as_ptr();
        // SAFETY: `right` is that long; inside a guard.
        let done = self.guarded(|| unsafe { io.store(slot, member_offset, from, bytes) });
        persist::fence();
        if let Some(undo) = self.undo {
            undo.end_mending();
        }
        done?;
        if self.sums == Summing::Keep && bytes as u64 == SUM_BLOCK_BYTES && member_offset.is_multiple_of(SUM_BLOCK_BYTES) {
            self.seal_block(slot, member_offset / SUM_BLOCK_BYTES, false)?;
        }
        Ok(())
    }

    fn units(&self, offset: u64, bytes: u64) -> Vec<Unit> {
        let geometry = self.geometry;
        let mut units: Vec<Unit> = Vec::new();
        let mut add = |stripe, column, within: u64, member_offset: u64, bytes: usize| {
            for done in (0..bytes).step_by(UNIT_BYTES) {
                let (within, member_offset) = (within + done as u64, member_offset + done as u64);
                units.push(Unit { stripe, column, within, member_offset, bytes: UNIT_BYTES.min(bytes - done) });
            }
        };
        if geometry.level().parity_count() > 0 {
            for (stripe, part) in (geometry.stripe_of(offset)..).zip(Stripes::new(geometry, offset, bytes)) {
                for rows in part.rows(geometry) {
                    add(stripe, 0, rows.start, geometry.member_offset(stripe) + rows.start, rows.bytes);
                }
            }
        } else if geometry.level().has_chunks() {
            let mut at = offset;
            for piece in Pieces::new(geometry, offset, bytes) {
                add(geometry.stripe_of(at), piece.column, piece.within, piece.member_offset(), piece.bytes);
                at += piece.bytes as u64;
            }
        } else {
            for at in (offset..offset + bytes).step_by(UNIT_BYTES) {
                let place = geometry.locate(at);
                add(place.stripe, 0, place.within, at, UNIT_BYTES.min((offset + bytes - at) as usize));
            }
        }
        units
    }

    fn fetch(&self, slot: Slot, unit: &Unit) -> Result<Vec<u8>, IoFault> {
        let mut bytes = alloc::vec![0; unit.bytes];
        let (io, to) = (self.io(), bytes.as_mut_ptr());
        // SAFETY: the buffer is ours and that long; inside a guard.
        self.guarded(|| -> Done { unsafe { io.fetch(slot, unit.member_offset, to, unit.bytes) } })?;
        Ok(bytes)
    }

    fn mismatch(&self, unit: &Unit, column: usize, members: MemberSet, bytes: u64, verdict: Verdict) -> Mismatch {
        let start = |column| self.geometry.offset_of(Place { stripe: unit.stripe, column, within: unit.within });
        let file = start(column)..start(column) + unit.bytes as u64;
        Mismatch { file, rows: start(unit.column), member_offset: unit.member_offset, bytes, members, verdict }
    }

    fn copies(&self, unit: &Unit) -> Result<Option<Mismatch>, IoFault> {
        let slot = |copy| self.geometry.data_slot(unit.stripe, unit.column, copy);
        let slots: Vec<Slot> = (0..self.geometry.copy_count()).map(slot).filter(|&slot| !self.out.contains(slot)).collect();
        let copies = slots.iter().map(|&slot| self.fetch(slot, unit)).collect::<Result<Vec<_>, _>>()?;
        let Some(first) = copies.first() else { return Err(IoFault::Lost) };
        let differing = |right: &[u8]| -> u64 { copies.iter().map(|copy| differences(right, copy)).sum() };
        if differing(first) == 0 {
            return Ok(None);
        }
        let verdict = match majority(&copies) {
            None => Verdict::Unknown,
            Some(right) => {
                let wrong = slots.iter().zip(&copies).filter(|(_, copy)| *copy != right);
                Verdict::Located(wrong.map(|(&slot, _)| (slot, Role::Data, right.clone())).collect())
            }
        };
        let bytes = differing(majority(&copies).unwrap_or(first));
        let members = slots.iter().copied().collect();
        Ok(Some(self.mismatch(unit, unit.column, members, bytes, verdict)))
    }

    fn stripe(&self, unit: &Unit) -> Result<Option<Mismatch>, IoFault> {
        let geometry = self.geometry;
        let (columns, parities) = (geometry.data_columns(), geometry.level().parity_count());
        let slots: Vec<Slot> = (0..columns)
            .map(|column| geometry.data_slot(unit.stripe, column, 0))
            .chain((0..parities).map(|which| geometry.parity_slot(unit.stripe, which)))
            .collect();
        let members: MemberSet = slots.iter().copied().filter(|&slot| !self.out.contains(slot)).collect();
        if members.len() < slots.len() {
            // What is left may still show that it does not fit, and never where.
            let start = geometry.offset_of(Place { stripe: unit.stripe, column: 0, within: unit.within });
            let bytes = self.verify(start, unit.bytes as u64)?;
            return Ok((bytes > 0).then(|| self.mismatch(unit, 0, members, bytes, Verdict::Unknown)));
        }
        let chunks = slots.iter().map(|&slot| self.fetch(slot, unit)).collect::<Result<Vec<_>, _>>()?;
        let (bytes, wrong) = locate(&chunks, columns);
        let (column, verdict) = match wrong {
            _ if bytes == 0 => return Ok(None),
            Wrong::Unknown => (0, Verdict::Unknown),
            Wrong::Several => (0, Verdict::Several),
            Wrong::Source(source) => {
                let role = [Role::P, Role::Q].get(source.wrapping_sub(columns)).copied().unwrap_or(Role::Data);
                let right = computed(&chunks, columns, source);
                (if source < columns { source } else { 0 }, Verdict::Located(alloc::vec![(slots[source], role, right)]))
            }
        };
        Ok(Some(self.mismatch(unit, column, members, bytes, verdict)))
    }
}

/// What most of three copies and more have.
fn majority(copies: &[Vec<u8>]) -> Option<&Vec<u8>> {
    let agreeing = |copy: &&Vec<u8>| 2 * copies.iter().filter(|other| other == copy).count() > copies.len();
    copies.iter().find(agreeing).filter(|_| copies.len() > 2)
}

fn differences(a: &[u8], b: &[u8]) -> u64 {
    a.iter().zip(b).map(|(a, b)| u64::from(a != b)).sum()
}

/// What is wrong in a unit of a stripe.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Wrong {
    /// This source: a data column, or behind those P or Q.
    Source(usize),
    Unknown,
    Several,
}

/// How many bytes of a unit do not fit, and which source is wrong. `chunks` are the data columns,
/// then P, then Q if there is one.
pub(crate) fn locate(chunks: &[Vec<u8>], columns: usize) -> (u64, Wrong) {
    let has_q = chunks.len() > columns + 1;
    let (mut bytes, mut named) = (0, None);
    for at in 0..chunks[0].len() {
        let (p, q) = differences_at(chunks, columns, at);
        if p == 0 && q == 0 {
            continue;
        }
        bytes += 1;
        let source = match (p, q) {
            _ if !has_q => return (count_of_p(chunks, columns), Wrong::Unknown),
            (_, 0) => Some(columns),
            (0, _) => Some(columns + 1),
            _ => (0..columns).find(|&column| mul(q_coefficient(column), p) == q),
        };
        named = Some(match (named, source) {
            (None, Some(source)) => Wrong::Source(source),
            (Some(Wrong::Source(known)), Some(source)) if known == source => Wrong::Source(source),
            _ => Wrong::Several,
        });
    }
    (bytes, named.unwrap_or(Wrong::Unknown))
}

fn count_of_p(chunks: &[Vec<u8>], columns: usize) -> u64 {
    (0..chunks[0].len()).map(|at| u64::from(differences_at(chunks, columns, at).0 != 0)).sum()
}

/// By what P and Q differ from what the data says, in one byte. Without Q its difference is 0.
fn differences_at(chunks: &[Vec<u8>], columns: usize, at: usize) -> (u8, u8) {
    let p = chunks[..=columns].iter().fold(0, |sum, chunk| sum ^ chunk[at]);
    let Some(q) = chunks.get(columns + 1) else { return (p, 0) };
    (p, chunks[..columns].iter().enumerate().fold(q[at], |sum, (column, chunk)| sum ^ mul(q_coefficient(column), chunk[at])))
}

/// What a source ought to be by the others: P gives data, data give P and Q.
pub(crate) fn computed(chunks: &[Vec<u8>], columns: usize, source: usize) -> Vec<u8> {
    let at = |at: usize| {
        let (p, q) = differences_at(chunks, columns, at);
        chunks[source][at] ^ if source > columns { q } else { p }
    };
    (0..chunks[source].len()).map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two data columns with P and Q.
    fn whole() -> Vec<Vec<u8>> {
        let data: Vec<Vec<u8>> =
            (1..4u8).map(|column| (0..64u8).map(|at| at.wrapping_mul(7) ^ (column * 31)).collect()).collect();
        let sum = |at: usize, weight: fn(usize) -> u8| {
            data.iter().enumerate().fold(0, |sum, (column, chunk)| sum ^ mul(weight(column), chunk[at]))
        };
        let p = (0..64).map(|at| sum(at, |_| 1)).collect();
        let q = (0..64).map(|at| sum(at, q_coefficient)).collect();
        data.into_iter().chain([p, q]).collect()
    }

    #[test]
    fn p_and_q_name_the_wrong_source_and_give_what_it_was() {
        let right = whole();
        assert_eq!(locate(&right, 3).0, 0);
        for source in 0..5 {
            for mask in 1..=255u8 {
                let mut chunks = right.clone();
                chunks[source][9] ^= mask;
                chunks[source][40] ^= mask / 2 + 1;
                assert_eq!(locate(&chunks, 3), (2, Wrong::Source(source)));
                assert_eq!(computed(&chunks, 3, source), right[source]);
            }
        }
    }

    #[test]
    fn two_wrong_columns_are_not_taken_for_one() {
        let mut chunks = whole();
        chunks[0][9] ^= 1;
        chunks[2][11] ^= 1;
        assert_eq!(locate(&chunks, 3), (2, Wrong::Several));
    }

    #[test]
    fn p_alone_does_not_say_where() {
        let mut chunks = whole();
        chunks.pop();
        chunks[1][3] ^= 4;
        chunks[1][5] ^= 4;
        assert_eq!(locate(&chunks, 3), (2, Wrong::Unknown));
    }

    #[test]
    fn most_of_three_copies_are_believed_and_none_of_two() {
        let (a, b) = (vec![1, 2], vec![1, 3]);
        assert_eq!(majority(&[a.clone(), b.clone(), a.clone()]), Some(&a));
        assert_eq!(majority(&[a.clone(), b.clone()]), None);
        assert_eq!(majority(&[a.clone(), a, b.clone(), b]), None);
    }
}
