//! Rebuild of a piece of a file: what some members ought to hold is computed from the others, in
//! place.
//!
//! Each byte of the other members is loaded once and nothing is stored to them, so a rebuild that
//! is cut short leaves them as they were. Only whole stripes are computed (any range at RAID 1);
//! they end before the end of the file, so no zeros behind it come in. The caller has locked the
//! range, and has its space on the members that are rebuilt.

use crate::stripe::{Lost, Scratch, Shape};
use crate::striper::{BLOCK_BYTES, Io, IoFault, Stop, Striper};
use crate::sums::Summing;
use crate::walk::{Stripe, Stripes};
use alloc::vec::Vec;
use core::ops::Range;
use core::ptr::null;
use layout::Geometry;
use medium::Medium;
use parity::SOURCES_MAX;
use sys::OsError;
use units::{MemberSet, Slot};

impl<M: Medium> Striper<'_, M> {
    /// Stores what the members in `lost`, which are in use, ought to hold of a range of whole
    /// stripes, computed from the other members in use. Returns false if some of it cannot be
    /// computed in place, because a member is not mapped in pieces of a chunk, or because it takes
    /// what a member that is out holds: then the caller reads the range without these members and
    /// writes it. No guard is open.
    ///
    /// # Errors
    /// [`IoFault::Lost`] if more members are out or rebuilt than the level bears.
    pub fn rebuild(&self, lost: MemberSet, offset: u64, bytes: u64) -> Result<bool, IoFault> {
        let (io, lost) = (self.io(), lost.minus(self.out));
        if self.sums != Summing::Off && self.has_rotten(lost, offset, bytes)? {
            // Not from these.
            return Ok(false);
        }
        let (start, end) = (self.geometry.member_bytes(offset), self.geometry.member_bytes(offset + bytes));
        lost.iter().try_for_each(|slot| self.forget_sums_on(slot, start, end - start))?;
        let mut is_done = false;
        let done = &mut is_done;
        self.guarded(|| (self.table().rebuild)(&io, lost, offset, bytes).map(|found| *done = found))?;
        Ok(is_done)
    }

    /// Stores what the members in `lost`, which are in use, ought to hold of some rows of a stripe. The
    /// rows are counted from the beginning of each chunk (at RAID 1, where stripe 0 is meant, from that
    /// of the file). `data` is what the data columns hold of these rows: column after column, each of
    /// which begins `stride` bytes behind the one before. What the other members hold stays as it is.
    /// The caller has locked the stripe, and has the space of the rows on the members in `lost`. No
    /// guard is open.
    ///
    /// # Errors
    /// `INVAL` if `data` is shorter than that; a fault of a member in `lost`.
    pub fn store_lost(&self, lost: MemberSet, stripe: u64, rows: Range<u64>, data: &[u8], stride: usize) -> Result<(), IoFault> {
        let (io, geometry, lost) = (self.io(), self.geometry, lost.minus(self.out));
        let (at, bytes) = (geometry.member_offset(stripe) + rows.start, (rows.end - rows.start) as usize);
        let (columns, parity_count) = (geometry.data_columns(), geometry.level().parity_count());
        let held = |column: usize| data.get(column * stride..).and_then(|data| data.get(..bytes));
        let sources = (0..columns).map(|column| held(column).ok_or(IoFault::Os(OsError::INVAL)));
        let sources: Vec<&[u8]> = sources.collect::<Result<_, _>>()?;
        let mut parities: Vec<u8> = Vec::new();
        if (0..parity_count).any(|which| lost.contains(geometry.parity_slot(stripe, which))) {
            parities.resize(parity_count * bytes, 0);
            let places: Vec<*const u8> = sources.iter().map(|source| source.as_ptr()).collect();
            let (p, q) = parities.split_at_mut(bytes);
            // SAFETY: each source and each parity that the level has is `bytes` long.
            unsafe {
                match parity_count {
                    1 => self.kernels.parity_p(&places, p.as_mut_ptr(), bytes),
                    _ => self.kernels.parity_pq(&places, p.as_mut_ptr(), q.as_mut_ptr(), bytes),
                }
            }
        }
        let copies = |column: usize| (0..geometry.copy_count()).map(move |copy| geometry.data_slot(stripe, column, copy));
        let of_data = sources.iter().enumerate().flat_map(|(column, source)| copies(column).map(move |slot| (slot, *source)));
        let of_parity =
            parities.chunks_exact(bytes.max(1)).enumerate().map(|(which, parity)| (geometry.parity_slot(stripe, which), parity));
        let stores: Vec<(Slot, &[u8])> = of_data.chain(of_parity).filter(|(slot, _)| lost.contains(*slot)).collect();
        stores.iter().try_for_each(|&(slot, _)| self.forget_sums_on(slot, at, bytes as u64))?;
        self.guarded(|| {
            // SAFETY: inside a guard; each source is `bytes` long.
            stores.iter().try_for_each(|&(slot, source)| unsafe { io.store(slot, at, source.as_ptr(), bytes) })
        })
    }

    /// Whether everything fits once [`Self::rebuild`] has computed what the members in `lost` hold,
    /// whatever the other members hold: no redundancy is left that was not computed.
    #[must_use]
    pub fn fits_when_rebuilt(&self, lost: MemberSet) -> bool {
        nothing_is_left_to_compare(self.geometry, self.out.union(lost).len())
    }
}

/// Whether the members that are left hold nothing twice when so many are missing: each column of a
/// level of copies lies on exactly one of them, or as many members are missing as a level has
/// parities.
fn nothing_is_left_to_compare(geometry: &Geometry, missing: usize) -> bool {
    match geometry.level().parity_count() {
        0 => geometry.member_count() - missing == geometry.data_columns(),
        parities => missing == parities,
    }
}

/// Computes what the members in `lost` hold of whole stripes. False if that cannot be done in
/// place.
pub(crate) fn rebuild_stripes<M: Medium, const PARITIES: usize>(
    io: &Io<'_, M>,
    lost: MemberSet,
    offset: u64,
    bytes: u64,
) -> Result<bool, Stop> {
    let shape = Shape::<M, PARITIES>::new(io);
    for part in Stripes::new(io.geometry, offset, bytes) {
        let missing = shape.lost_among(&part.stripe, io.out.union(lost));
        if missing.count() > PARITIES {
            return Err(Stop::Lost);
        }
        let wanted = shape.lost_among(&part.stripe, lost);
        if !shape.rebuild(&part.stripe, &missing, &wanted)? {
            return Ok(false);
        }
    }
    Ok(true)
}

impl<M: Medium, const PARITIES: usize> Shape<'_, '_, M, PARITIES> {
    /// Computes what is `wanted` of a stripe from what is not `missing` of it. False, and perhaps a
    /// part of it is done, if that takes something that is not mapped.
    fn rebuild(&self, stripe: &Stripe, missing: &Lost, wanted: &Lost) -> Result<bool, Stop> {
        let bytes = self.io.geometry.chunk().bytes() as usize;
        for column in (0..self.columns).filter(|&column| wanted.has(column)) {
            if !self.rebuild_column(stripe, missing, column, bytes)? {
                return Ok(false);
            }
        }
        // The data columns are whole now, but for those whose members are out.
        if wanted.parities == 0 {
            return Ok(true);
        }
        let Some(sources) = self.sources(stripe, 0, bytes) else { return Ok(false) };
        let kept = Lost { columns: 0, parities: !wanted.parities };
        let Some([p, q]) = self.parities(stripe, &kept, 0, bytes) else { return Ok(false) };
        let kernels = self.io.kernels;
        // SAFETY: all are mapped for `bytes`; the kernels skip a parity that is null.
        unsafe {
            if q.is_null() {
                kernels.parity_p(&sources[..self.columns], p, bytes);
            } else {
                kernels.parity_pq(&sources[..self.columns], p, q, bytes);
            }
        }
        Ok(true)
    }

    /// Computes one chunk of data. False, and nothing is done, if something is not mapped.
    fn rebuild_column(&self, stripe: &Stripe, missing: &Lost, column: usize, bytes: usize) -> Result<bool, Stop> {
        let recovery = self.recovery(missing)?;
        let coefficients = recovery.coefficients_of(column).ok_or(Stop::Lost)?;
        let Some(to) = self.mapped(stripe, column, 0, bytes) else { return Ok(false) };
        let (mut sources, mut factors, mut count) = ([null::<u8>(); SOURCES_MAX], [0; SOURCES_MAX], 0);
        for (source, &coefficient) in coefficients.iter().enumerate().filter(|(_, coefficient)| **coefficient != 0) {
            let Some(place) = self.mapped(stripe, source, 0, bytes) else { return Ok(false) };
            let (Some(to), Some(factor)) = (sources.get_mut(count), factors.get_mut(count)) else { return Ok(false) };
            (*to, *factor) = (place.cast_const(), coefficient);
            count += 1;
        }
        let (Some(sources), Some(factors)) = (sources.get(..count), factors.get(..count)) else { return Ok(false) };
        let kernels = self.io.kernels;
        // SAFETY: all are mapped for `bytes`; the scratch block is that long.
        unsafe {
            if factors.iter().all(|&factor| factor == 1) {
                kernels.parity_p(sources, to, bytes);
                return Ok(true);
            }
            let mut scratch = Scratch::new();
            let [block, ..] = scratch.blocks();
            for done in (0..bytes).step_by(BLOCK_BYTES) {
                let step = BLOCK_BYTES.min(bytes - done);
                let mut places = [null::<u8>(); SOURCES_MAX];
                for (place, source) in places.iter_mut().zip(sources) {
                    *place = source.wrapping_add(done);
                }
                let Some(places) = places.get(..count) else { return Ok(false) };
                kernels.dot(factors, places, block, step);
                kernels.copy_to_media(to.wrapping_add(done), block, step);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::Level;
    use units::ChunkBytes;

    #[test]
    fn one_copy_made_anew_says_nothing_of_other_columns() {
        let cases = [
            (Level::Raid1, 2, 1, true),
            (Level::Raid1, 3, 1, false),
            (Level::Raid1, 3, 2, true),
            (Level::Raid10, 4, 1, false),
            (Level::Raid10, 4, 2, true),
            (Level::Raid01, 4, 1, false),
            (Level::Raid01, 4, 2, true),
            (Level::Raid5, 3, 0, false),
            (Level::Raid5, 3, 1, true),
            (Level::Raid6, 5, 1, false),
            (Level::Raid6, 5, 2, true),
        ];
        for (level, members, missing, expected) in cases {
            let geometry = Geometry::new(level, members, ChunkBytes::DEFAULT).unwrap();
            assert_eq!(nothing_is_left_to_compare(&geometry, missing), expected, "{level} of {members} without {missing}");
        }
    }
}
