//! Reads that believe no block which does not fit its sum.
//!
//! Invariants:
//! - A read looks at sums without a lock, so a writer may make a block seem rotten that is not. What
//!   is found counts only if the caller finds afterwards that no writer was there, as for the bytes.
//! - A block without a sum is believed.

use crate::striper::{IoFault, Striper};
use crate::sums::{SUM_BLOCK_BYTES, Said, Summing};
use medium::Medium;
use units::{MemberSet, Slot};

/// Bytes that are looked at together where there are no chunks.
const STEP_BYTES: u64 = 64 << 10;

/// A block that does not fit its sum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RottenBlock {
    /// The member that holds it.
    pub slot: Slot,
    /// Where in the file the bytes lie that were to be read.
    pub offset: u64,
}

/// What a read has met of blocks that do not fit their sums.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Rot {
    /// The first such block, or the one of which nothing else gives the bytes.
    pub block: Option<RottenBlock>,
    /// Tells whether the bytes cannot be had without that block.
    pub is_lost: bool,
}

impl Rot {
    /// Notes a block of which the bytes could be had elsewhere, if it is the first.
    fn note(&mut self, slot: Slot, offset: u64) {
        self.block.get_or_insert(RottenBlock { slot, offset });
    }
}

/// Without which members a range is to be read.
struct Doubt {
    /// Those that are out, and those with a block there that does not fit.
    out: MemberSet,
    /// Tells whether the rest gives the bytes.
    can_be_had: bool,
}

impl<M: Medium> Striper<'_, M> {
    /// Tells whether some block of a member that a range of its backing file touches does not fit its
    /// sum.
    fn is_rotten(&self, slot: Slot, start: u64, bytes: u64) -> Result<bool, IoFault> {
        for block in start / SUM_BLOCK_BYTES..(start + bytes).div_ceil(SUM_BLOCK_BYTES) {
            if matches!(self.look_at_sum(slot, block)?, Said::Differs(_)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Looks at the sums of what a read of a range would use. The range lies in one chunk.
    fn doubt(&self, at: u64, bytes: u64, all: bool) -> Result<Doubt, IoFault> {
        let geometry = self.geometry;
        let place = geometry.locate(at);
        let start = geometry.member_offset(place.stripe) + place.within;
        let mut out = self.out;
        let copies = (0..geometry.copy_count()).map(|copy| geometry.data_slot(place.stripe, place.column, copy));
        if all || geometry.copy_count() > 1 {
            for slot in copies.clone().filter(|&slot| !self.out.contains(slot)) {
                if self.is_rotten(slot, start, bytes)? {
                    out = out.with(slot);
                }
            }
        }
        let is_there = copies.clone().any(|slot| !out.contains(slot));
        if !is_there && geometry.level().parity_count() > 0 {
            for slot in MemberSet::first(geometry.member_count()).minus(out).iter() {
                if self.is_rotten(slot, start, bytes)? {
                    out = out.with(slot);
                }
            }
        }
        // Without doubts it is the read itself that says what is missing.
        Ok(Doubt { out, can_be_had: is_there || geometry.survives(out) || out == self.out })
    }

    /// Reads a range as [`Striper::read`] does, and computes nothing from a block that does not fit
    /// its sum. With `all` nothing is read from such a block either, as long as the others give what
    /// it was. `rot` notes what was found.
    ///
    /// # Errors
    /// [`IoFault::Os`] with `IO` if the bytes cannot be had without such a block.
    ///
    /// # Safety
    /// As for [`Striper::read`].
    pub unsafe fn read_checked(&self, offset: u64, dst: *mut u8, bytes: usize, all: bool, rot: &mut Rot) -> Result<(), IoFault> {
        let unit = if self.geometry.level().has_chunks() { self.geometry.chunk().bytes() } else { STEP_BYTES };
        let mut done = 0;
        while done < bytes {
            let at = offset + done as u64;
            let mut step = (unit - at % unit).min((bytes - done) as u64);
            let mut doubt = self.doubt(at, step, all)?;
            if doubt.out != self.out {
                // Other blocks of the same members may be right.
                step = step.min(SUM_BLOCK_BYTES - at % SUM_BLOCK_BYTES);
                doubt = self.doubt(at, step, all)?;
            }
            if let Some(slot) = doubt.out.minus(self.out).iter().next() {
                if !doubt.can_be_had {
                    *rot = Rot { block: Some(RottenBlock { slot, offset: at }), is_lost: true };
                    return Err(IoFault::Os(sys::OsError::IO));
                }
                rot.note(slot, at);
            }
            let striper = Striper { out: doubt.out, sums: Summing::Off, ..*self };
            // SAFETY: the caller's promise, for a part of the range.
            unsafe { striper.read(at, dst.wrapping_add(done), step as usize) }?;
            done += step as usize;
        }
        Ok(())
    }
}
