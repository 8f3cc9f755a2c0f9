//! Resync and scrub for levels with parity: computes the parity of stripes from their data and
//! stores it, or compares it with theirs. The caller has locked the range.

use crate::mirror::differences;
use crate::stripe::{Lost, Scratch, Shape};
use crate::striper::{BLOCK_BYTES, Done, Io, Stop};
use crate::walk::{Stripe, Stripes};
use core::ptr::null;
use medium::Medium;
use parity::SOURCES_MAX;

/// In a mask of parities P is bit 0.
const Q: u32 = 1 << 1;

/// What is done with the parities.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Task {
    Repair,
    Compare,
}

/// Computes P and Q of all rows that the file's bytes `offset..offset + bytes` touch, and stores
/// them. Skips stripes in which members are out so that no parity can be computed.
///
/// # Errors
/// [`Stop::Lost`] if a stripe has lost more columns than it has parities.
pub(crate) fn resync_stripes<M: Medium, const PARITIES: usize>(io: &Io<'_, M>, offset: u64, bytes: u64) -> Done {
    for_each_block::<M, PARITIES>(io, offset, bytes, Task::Repair).map(|_| ())
}

/// Counts the bytes of parity that differ from what the data give. Counts nothing in stripes that
/// cannot be checked because members are out.
///
/// # Errors
/// As for [`resync_stripes`].
pub(crate) fn verify_stripes<M: Medium, const PARITIES: usize>(io: &Io<'_, M>, offset: u64, bytes: u64) -> Result<u64, Stop> {
    for_each_block::<M, PARITIES>(io, offset, bytes, Task::Compare)
}

/// Does `task` block by block of rows, and returns the number of bytes that differ; 0 for a repair.
fn for_each_block<M: Medium, const PARITIES: usize>(io: &Io<'_, M>, offset: u64, bytes: u64, task: Task) -> Result<u64, Stop> {
    let shape = Shape::<M, PARITIES>::new(io);
    let (all, mut mismatches) = ((1 << PARITIES) - 1, 0);
    for part in Stripes::new(io.geometry, offset, bytes) {
        let lost = shape.lost(&part.stripe);
        if lost.count() > PARITIES {
            return Err(Stop::Lost);
        }
        // The parities that can be handled, as a mask. If all data columns are there: those whose
        // members are in use. If one data column is out, P is used up for computing it, so only Q.
        // Else none.
        let handled = match (lost.columns.count_ones(), lost.parities) {
            (0, out) => !out & all,
            (1, 0) => all & Q,
            _ => 0,
        };
        if handled == 0 {
            continue;
        }
        for rows in part.rows(io.geometry) {
            if task == Task::Compare && shape.fits_in_place(&part.stripe, &lost, handled, rows.start, rows.bytes) {
                continue;
            }
            for done in (0..rows.bytes).step_by(BLOCK_BYTES) {
                let step = BLOCK_BYTES.min(rows.bytes - done);
                mismatches += shape.handle_block(&part.stripe, &lost, handled, rows.start + done as u64, step, task)?;
            }
        }
    }
    Ok(mismatches)
}

impl<M: Medium, const PARITIES: usize> Shape<'_, '_, M, PARITIES> {
    /// Repairs or compares the parities in `handled` of one block: `bytes` rows, at most
    /// [`BLOCK_BYTES`], from offset `within` of the chunks on. Returns the number of bytes that
    /// differ; 0 for a repair.
    fn handle_block(
        &self,
        stripe: &Stripe,
        lost: &Lost,
        handled: u32,
        within: u64,
        bytes: usize,
        task: Task,
    ) -> Result<u64, Stop> {
        if task == Task::Repair && lost.columns == 0 && self.compute_in_place(stripe, lost, within, bytes) {
            return Ok(0);
        }
        let mut scratch = Scratch::new();
        let [p, q, work, _] = scratch.blocks();
        // SAFETY: each buffer holds BLOCK_BYTES, and `bytes` is at most that.
        unsafe {
            self.compute(stripe, lost, within, [p, q, work], bytes)?;
            if task == Task::Repair {
                // `store_parities` leaves out what is lost, so what is not to be handled is given
                // to it as lost.
                let kept = Lost { columns: 0, parities: !handled };
                self.store_parities(stripe, &kept, within, [p, q], bytes)?;
                return Ok(0);
            }
            let mut mismatches = 0;
            for (which, &sum) in [p, q].iter().enumerate().filter(|(which, _)| handled >> which & 1 == 1) {
                // Parity columns are numbered behind the data columns.
                let slot = self.slot(stripe, self.columns + which);
                self.io.fetch(slot, stripe.member_offset + within, work, bytes)?;
                mismatches += differences(sum, work, bytes);
            }
            Ok(mismatches)
        }
    }

    /// Computes the parities from mapped data straight into the mapped parities, without buffers.
    /// Returns false, and does nothing, if a column in use is not mapped. If a source faults in the
    /// middle, the first rows have new parity and the rest the old: no worse than before.
    fn compute_in_place(&self, stripe: &Stripe, lost: &Lost, within: u64, bytes: usize) -> bool {
        let Some(sources) = self.sources(stripe, within, bytes) else { return false };
        let Some([p, q]) = self.parities(stripe, lost, within, bytes) else { return false };
        // SAFETY: all are mapped for `bytes`. The pointer of a parity that is out is null, and the
        // kernels skip it.
        unsafe {
            if PARITIES == 1 {
                self.io.kernels.parity_p(&sources[..self.columns], p, bytes);
            } else {
                self.io.kernels.parity_pq(&sources[..self.columns], p, q, bytes);
            }
        }
        true
    }

    /// Whether the parities in `handled` are seen to be what the data give, in one pass over the
    /// mapped bytes without buffers. False if they differ, and if that cannot be told so: a column
    /// in use is not mapped or out.
    fn fits_in_place(&self, stripe: &Stripe, lost: &Lost, handled: u32, within: u64, bytes: usize) -> bool {
        if lost.columns != 0 {
            return false;
        }
        let Some(sources) = self.sources(stripe, within, bytes) else { return false };
        // What is not handled counts as lost: null, and not compared.
        let compared = Lost { columns: 0, parities: lost.parities | !handled };
        let Some([p, q]) = self.parities(stripe, &compared, within, bytes) else { return false };
        // SAFETY: all are mapped for `bytes`; the kernels do not look at a parity that is null.
        unsafe {
            if PARITIES == 1 {
                self.io.kernels.fits_p(&sources[..self.columns], p, bytes)
            } else {
                self.io.kernels.fits_pq(&sources[..self.columns], p, q, bytes)
            }
        }
    }

    /// Where the data of a block of rows are mapped. None if a column is not mapped or its member
    /// is out.
    pub(crate) fn sources(&self, stripe: &Stripe, within: u64, bytes: usize) -> Option<[*const u8; SOURCES_MAX]> {
        let mut sources = [null::<u8>(); SOURCES_MAX];
        for (column, source) in sources.iter_mut().enumerate().take(self.columns) {
            *source = self.mapped(stripe, column, within, bytes)?;
        }
        Some(sources)
    }

    /// Computes what P and Q ought to be into the buffers `p` and `q`; `work` is room to compute
    /// in.
    ///
    /// # Safety
    /// Each buffer is valid for `bytes`.
    unsafe fn compute(&self, stripe: &Stripe, lost: &Lost, within: u64, [p, q, work]: [*mut u8; 3], bytes: usize) -> Done {
        // SAFETY: the sources are mapped for `bytes`, the buffers valid for as many (caller).
        unsafe {
            if let Some(sources) = self.sources(stripe, within, bytes) {
                // No stores past the cache: the caller reads the buffers at once.
                let kernels = self.io.kernels.never_streaming();
                if PARITIES == 1 {
                    kernels.parity_p(&sources[..self.columns], p, bytes);
                } else {
                    kernels.parity_pq(&sources[..self.columns], p, q, bytes);
                }
                return Ok(());
            }
            p.write_bytes(0, bytes);
            q.write_bytes(0, bytes);
            for column in 0..self.columns {
                self.fetch_column(stripe, lost, column, within, work, bytes)?;
                self.add_column([p, q], column, work, bytes);
            }
        }
        Ok(())
    }
}
