//! Stripes with parity, for levels 4, 5 and 6: what of a stripe is out, where the rest lies, and
//! reconstruction.
//!
//! Sources of a stripe are numbered as in core/parity: data columns, then P, then Q. On the members
//! they lie in the order P, Q, data columns, from the member with P on, wrapping around.

use crate::striper::{BLOCK_BYTES, Block, Done, Io, Stop};
use crate::walk::Stripe;
use core::mem::MaybeUninit;
use core::ptr::{null, null_mut};
use medium::Medium;
use parity::{Recovery, SOURCES_MAX, q_coefficient};
use units::{MemberSet, Slot};

/// One stripe level on its members.
pub(crate) struct Shape<'a, 'b, M, const PARITIES: usize> {
    pub(crate) io: &'a Io<'b, M>,
    pub(crate) members: usize,
    pub(crate) columns: usize,
    pub(crate) chunk_shift: u32,
}

/// What of a stripe is on members that are out.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Lost {
    /// A bit per data column.
    pub(crate) columns: u32,
    /// A bit per parity.
    pub(crate) parities: u32,
}

impl Lost {
    pub(crate) const fn has(&self, column: usize) -> bool {
        self.columns >> column & 1 == 1
    }

    pub(crate) const fn count(&self) -> usize {
        (self.columns.count_ones() + self.parities.count_ones()) as usize
    }
}

/// Buffers on the stack for what cannot be worked on in place.
pub(crate) struct Scratch(MaybeUninit<[Block; 4]>);

impl Scratch {
    #[inline(always)]
    pub(crate) const fn new() -> Self {
        Self(MaybeUninit::uninit())
    }

    #[inline(always)]
    pub(crate) const fn blocks(&mut self) -> [*mut u8; 4] {
        let first = self.0.as_mut_ptr().cast::<u8>();
        [first, first.wrapping_add(BLOCK_BYTES), first.wrapping_add(2 * BLOCK_BYTES), first.wrapping_add(3 * BLOCK_BYTES)]
    }
}

impl<'a, 'b, M: Medium, const PARITIES: usize> Shape<'a, 'b, M, PARITIES> {
    #[inline(always)]
    pub(crate) fn new(io: &'a Io<'b, M>) -> Self {
        let members = io.geometry.member_count();
        Self { io, members, columns: members - PARITIES, chunk_shift: io.geometry.chunk().shift() }
    }

    /// The member of a source.
    #[inline(always)]
    pub(crate) fn slot(&self, stripe: &Stripe, source: usize) -> Slot {
        let distance = if source < self.columns { PARITIES + source } else { source - self.columns };
        stripe.slot(distance, self.members)
    }

    /// What of the stripe is out.
    #[inline(always)]
    pub(crate) fn lost(&self, stripe: &Stripe) -> Lost {
        if self.io.out.is_empty() { Lost::default() } else { self.lost_among(stripe, self.io.out) }
    }

    /// What of the stripe is on these members.
    #[inline(always)]
    pub(crate) fn lost_among(&self, stripe: &Stripe, members: MemberSet) -> Lost {
        let mut lost = Lost::default();
        for source in 0..self.members {
            if members.contains(self.slot(stripe, source)) {
                if source < self.columns {
                    lost.columns |= 1 << source;
                } else {
                    lost.parities |= 1 << (source - self.columns);
                }
            }
        }
        lost
    }

    /// Where `bytes` of a source are mapped; None if they are not or it is out.
    #[inline(always)]
    pub(crate) fn mapped(&self, stripe: &Stripe, source: usize, within: u64, bytes: usize) -> Option<*mut u8> {
        self.io.mapped(self.slot(stripe, source), stripe.member_offset + within, bytes)
    }

    /// Where the parities are mapped, null for one that is out; None if one that is in is not
    /// mapped.
    #[inline(always)]
    pub(crate) fn parities(&self, stripe: &Stripe, lost: &Lost, within: u64, bytes: usize) -> Option<[*mut u8; 2]> {
        let mut places = [null_mut(); 2];
        for (which, place) in places.iter_mut().enumerate().take(PARITIES) {
            if lost.parities >> which & 1 == 0 {
                *place = self.mapped(stripe, self.columns + which, within, bytes)?;
            }
        }
        Some(places)
    }

    /// Stores whichever parities are in, from buffers.
    pub(crate) unsafe fn store_parities(
        &self,
        stripe: &Stripe,
        lost: &Lost,
        within: u64,
        parities: [*const u8; 2],
        bytes: usize,
    ) -> Done {
        for (which, &parity) in parities.iter().enumerate().take(PARITIES) {
            if lost.parities >> which & 1 == 0 {
                let slot = self.slot(stripe, self.columns + which);
                // SAFETY: the caller's buffers hold `bytes`.
                unsafe { self.io.store(slot, stripe.member_offset + within, parity, bytes)? };
            }
        }
        Ok(())
    }

    /// Computes data that is out from what is left.
    ///
    /// # Safety
    /// Inside a guard; `dst` is valid for `bytes` or the program's. The range lies within the
    /// chunk.
    pub(crate) unsafe fn reconstruct(
        &self,
        stripe: &Stripe,
        lost: &Lost,
        column: usize,
        within: u64,
        dst: *mut u8,
        bytes: usize,
    ) -> Done {
        let recovery = self.recovery(lost)?;
        let coefficients = recovery.coefficients_of(column).ok_or(Stop::Lost)?;
        let mut sources = [null::<u8>(); SOURCES_MAX];
        let mut all_mapped = true;
        for (source, &coefficient) in coefficients.iter().enumerate() {
            if coefficient != 0 {
                match self.mapped(stripe, source, within, bytes) {
                    Some(place) => sources[source] = place,
                    None => all_mapped = false,
                }
            }
        }
        // SAFETY: the sources are mapped for `bytes` where they are used; `dst` is the caller's
        // promise.
        unsafe {
            if all_mapped {
                self.io.kernels.dot(coefficients, &sources[..coefficients.len()], dst, bytes);
                return Ok(());
            }
            self.reconstruct_by_bytes(stripe, coefficients, within, dst, bytes)
        }
    }

    pub(crate) fn recovery(&self, lost: &Lost) -> Result<Recovery, Stop> {
        let mut missing = [0; 2];
        let count = lost.columns.count_ones() as usize;
        if count > PARITIES {
            return Err(Stop::Lost);
        }
        let low = lost.columns.trailing_zeros() as usize;
        missing[0] = low;
        if count == 2 {
            missing[1] = 31 - lost.columns.leading_zeros() as usize;
        }
        Recovery::new(self.columns, PARITIES, &missing[..count], lost.parities & 1 != 0, lost.parities & 2 != 0).ok_or(Stop::Lost)
    }

    /// Reconstruction where not all sources are mapped: summed up source by source.
    #[inline(never)]
    unsafe fn reconstruct_by_bytes(&self, stripe: &Stripe, coefficients: &[u8], within: u64, dst: *mut u8, bytes: usize) -> Done {
        let mut blocks = MaybeUninit::<[Block; 2]>::uninit();
        let [sum, block] = [0, BLOCK_BYTES].map(|at| blocks.as_mut_ptr().cast::<u8>().wrapping_add(at));
        for done in (0..bytes).step_by(BLOCK_BYTES) {
            let step = BLOCK_BYTES.min(bytes - done);
            let at = stripe.member_offset + within + done as u64;
            // SAFETY: both buffers hold a block; `sum` is zeroed before it is added to; `dst` is
            // the caller's promise.
            unsafe {
                sum.write_bytes(0, step);
                for (source, &coefficient) in coefficients.iter().enumerate().filter(|(_, coefficient)| **coefficient != 0) {
                    self.io.fetch(self.slot(stripe, source), at, block, step)?;
                    self.add(sum, coefficient, block, step);
                }
                self.io.kernels.copy_from_media(dst.wrapping_add(done), sum, step);
            }
        }
        Ok(())
    }

    /// sum += coefficient * block, in our own buffers.
    ///
    /// # Safety
    /// Both are valid for `bytes`.
    pub(crate) unsafe fn add(&self, sum: *mut u8, coefficient: u8, block: *const u8, bytes: usize) {
        // SAFETY: the caller's promise; a source may be the destination.
        unsafe { self.io.kernels.dot(&[1, coefficient], &[sum, block], sum, bytes) }
    }

    /// p += block, q += 2^column * block, in our own buffers.
    ///
    /// # Safety
    /// All are valid for `bytes`.
    pub(crate) unsafe fn add_column(&self, sums: [*mut u8; 2], column: usize, block: *const u8, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            self.add(sums[0], 1, block, bytes);
            if PARITIES == 2 {
                self.add(sums[1], q_coefficient(column), block, bytes);
            }
        }
    }

    /// Copies what a data column holds into a buffer, reconstructed if it is out.
    ///
    /// # Safety
    /// Inside a guard; `dst` is valid for `bytes`.
    pub(crate) unsafe fn fetch_column(
        &self,
        stripe: &Stripe,
        lost: &Lost,
        column: usize,
        within: u64,
        dst: *mut u8,
        bytes: usize,
    ) -> Done {
        // SAFETY: the caller's promise.
        unsafe {
            if lost.has(column) {
                self.reconstruct(stripe, lost, column, within, dst, bytes)
            } else {
                self.io.fetch(self.slot(stripe, column), stripe.member_offset + within, dst, bytes)
            }
        }
    }
}
