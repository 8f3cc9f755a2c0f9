//! Makes the redundancy of stripes with parity agree with the data again, or compares the two.

use crate::mirror::differences;
use crate::stripe::{Lost, Scratch, Shape};
use crate::striper::{BLOCK_BYTES, Done, Io, Stop};
use crate::walk::{Row, Stripes};
use core::ptr::null;
use medium::Medium;
use parity::SOURCES_MAX;

/// What is done with each row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Task {
    Repair,
    Compare,
}

/// Recomputes the parities of a range, widened to whole rows.
pub(crate) fn resync_stripes<M: Medium, const PARITIES: usize>(io: &Io<'_, M>, offset: u64, bytes: u64) -> Done {
    each_rows::<M, PARITIES>(io, offset, bytes, Task::Repair).map(|_| ())
}

/// Counts the bytes of parity that are not what the data says.
pub(crate) fn verify_stripes<M: Medium, const PARITIES: usize>(io: &Io<'_, M>, offset: u64, bytes: u64) -> Result<u64, Stop> {
    each_rows::<M, PARITIES>(io, offset, bytes, Task::Compare)
}

fn each_rows<M: Medium, const PARITIES: usize>(io: &Io<'_, M>, offset: u64, bytes: u64, task: Task) -> Result<u64, Stop> {
    let shape = Shape::<M, PARITIES>::new(io);
    let mut mismatches = 0;
    for part in Stripes::new(io.geometry, offset, bytes) {
        let lost = shape.lost(&part.row);
        if lost.count() > PARITIES {
            return Err(Stop::Lost);
        }
        // Which parities can be computed: with one column out, Q if P gives the column.
        let checked = match (lost.columns.count_ones(), lost.parities) {
            (0, out) => !out & ((1 << PARITIES) - 1),
            (1, 0) => ((1 << PARITIES) - 1) & 2,
            _ => 0,
        };
        if checked == 0 {
            continue;
        }
        for rows in part.rows(io.geometry) {
            for done in (0..rows.bytes).step_by(BLOCK_BYTES) {
                let step = BLOCK_BYTES.min(rows.bytes - done);
                mismatches += shape.block(&part.row, &lost, checked, rows.start + done as u64, step, task)?;
            }
        }
    }
    Ok(mismatches)
}

impl<M: Medium, const PARITIES: usize> Shape<'_, '_, M, PARITIES> {
    /// Repairs or compares the parities in `checked` of one block of rows.
    fn block(&self, row: &Row, lost: &Lost, checked: u32, within: u64, bytes: usize, task: Task) -> Result<u64, Stop> {
        if task == Task::Repair && lost.columns == 0 && self.store_sums(row, lost, within, bytes) {
            return Ok(0);
        }
        let mut scratch = Scratch::new();
        let [p, q, block, _] = scratch.blocks();
        // SAFETY: the buffers hold a block each, `bytes` is at most that.
        unsafe {
            self.sum(row, lost, within, [p, q, block], bytes)?;
            if task == Task::Repair {
                let kept = Lost { columns: 0, parities: !checked };
                self.store_parities(row, &kept, within, [p, q], bytes)?;
                return Ok(0);
            }
            let mut mismatches = 0;
            for (which, &sum) in [p, q].iter().enumerate().filter(|(which, _)| checked >> which & 1 == 1) {
                let slot = self.slot(row, self.columns + which);
                self.io.fetch(slot, row.member_offset + within, block, bytes)?;
                mismatches += differences(sum, block, bytes);
            }
            Ok(mismatches)
        }
    }

    /// Sums the data into the parities where they lie: the common case, with nothing that passes through a buffer. False if something of it is not
    /// mapped. (A source that faults half way leaves the first part of the parity new and the rest as it was: no worse than all of it as it was.)
    fn store_sums(&self, row: &Row, lost: &Lost, within: u64, bytes: usize) -> bool {
        let Some(sources) = self.sources(row, within, bytes) else { return false };
        let Some([p, q]) = self.parities(row, lost, within, bytes) else { return false };
        // SAFETY: all are mapped for `bytes`; what is out is null.
        unsafe {
            if PARITIES == 1 {
                self.io.kernels.parity_p(&sources[..self.columns], p, bytes);
            } else {
                self.io.kernels.parity_pq(&sources[..self.columns], p, q, bytes);
            }
        }
        true
    }

    /// Where the data of a block of rows is mapped, if all of it is.
    fn sources(&self, row: &Row, within: u64, bytes: usize) -> Option<[*const u8; SOURCES_MAX]> {
        let mut sources = [null::<u8>(); SOURCES_MAX];
        for (column, source) in sources.iter_mut().enumerate().take(self.columns) {
            *source = self.mapped(row, column, within, bytes)?;
        }
        Some(sources)
    }

    /// What the parities of a block of rows ought to be, into the first two buffers; the third is for work.
    unsafe fn sum(&self, row: &Row, lost: &Lost, within: u64, [p, q, block]: [*mut u8; 3], bytes: usize) -> Done {
        // SAFETY: the sources are mapped for `bytes`, the buffers valid for as many (caller).
        unsafe {
            if let Some(sources) = self.sources(row, within, bytes) {
                // The result is read again at once.
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
                self.fetch_column(row, lost, column, within, block, bytes)?;
                self.add_column([p, q], column, block, bytes);
            }
        }
        Ok(())
    }
}
