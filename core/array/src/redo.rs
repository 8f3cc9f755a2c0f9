//! The payload of a redo record of the journal: how the payload is made from what a write stores,
//! and how the payload is put in place on the members.
//!
//! The payload holds the new data, filled up to whole lines. For levels with parity the parities of
//! each run of rows follow, in the order in which a write comes to the runs, P before Q, each
//! filled up to whole lines (docs/format/journal.md). The payload does not depend on which members
//! are in: the range of the write alone says where each byte of the payload goes.
//!
//! Invariants:
//! - Making a payload changes nothing on any member. The program's buffer is read once, and the
//!   parities are computed from the data in the payload. So data and parities fit even if the
//!   program changes its buffer meanwhile.
//! - Putting a payload in place reads nothing but the payload. So any process may put it in place
//!   again, with more members out, after a part of it was put in place.

use crate::stripe::{Scratch, Shape};
use crate::striper::{BLOCK_BYTES, Done, IoFault, Stop, Striper, probe};
use crate::sums::{Parity, Summing};
use crate::walk::Stripes;
use crate::write::Write;
use core::ptr::null;
use medium::Medium;
use parity::SOURCES_MAX;
use units::CACHE_LINE_BYTES;

impl<M: Medium> Striper<'_, M> {
    /// Bytes of the payload for a write of `bytes` at `offset`.
    #[inline]
    #[must_use]
    pub fn redo_bytes(&self, offset: u64, bytes: usize) -> usize {
        let (parities, mut total) = (self.geometry.level().parity_count(), whole_lines(bytes));
        if parities > 0 {
            for part in Stripes::new(self.geometry, offset, bytes as u64) {
                total += part.rows(self.geometry).map(|rows| parities * whole_lines(rows.bytes)).sum::<usize>();
            }
        }
        total
    }

    /// Makes the payload of a write of `bytes` from `src` (zeros if null) at `offset`. Nothing on
    /// the members changes. The room for a parity whose member is out is there and may hold
    /// anything.
    ///
    /// # Safety
    /// `payload` is [`Self::redo_bytes`] long, or faults, and nobody else uses it. For `src` the
    /// same holds as for [`Self::write`].
    pub unsafe fn make_redo(&self, offset: u64, src: *const u8, bytes: usize, payload: *mut u8) -> Result<(), IoFault> {
        self.guarded(|| {
            // The payload is read again at once, so the stores leave it in the caches.
            let kernels = self.kernels.never_streaming();
            // SAFETY: as the caller promises.
            unsafe {
                if src.is_null() {
                    kernels.zero_media(payload, bytes);
                } else {
                    probe(src, bytes);
                    kernels.copy_to_media(payload, src, bytes);
                }
                match self.geometry.level().parity_count() {
                    1 => self.make_parities::<1>(offset, bytes, payload),
                    2 => self.make_parities::<2>(offset, bytes, payload),
                    _ => Ok(()),
                }
            }
        })
    }

    /// Puts a payload in place on every member that is in use. The caller has locked the range and
    /// has space for it on the members.
    ///
    /// # Safety
    /// `payload` is [`Self::redo_bytes`] long, or faults. The call is not inside a guard.
    pub unsafe fn put_redo(&self, offset: u64, bytes: usize, payload: *const u8) -> Result<(), IoFault> {
        // SAFETY: the caller's promise.
        let act = || unsafe { self.put_redo_unsummed(offset, bytes, payload) };
        if self.sums == Summing::Off { act() } else { self.summed(offset, bytes as u64, Parity::Otherwise, act) }
    }

    /// # Safety
    /// As for [`Self::put_redo`].
    #[inline(always)]
    unsafe fn put_redo_unsummed(&self, offset: u64, bytes: usize, payload: *const u8) -> Result<(), IoFault> {
        self.guarded(|| {
            // SAFETY: as the caller promises.
            unsafe {
                match self.geometry.level().parity_count() {
                    1 => self.put_stripes::<1>(offset, bytes, payload),
                    2 => self.put_stripes::<2>(offset, bytes, payload),
                    _ => self.write_guarded(offset, payload, bytes),
                }
            }
        })
    }

    #[inline]
    unsafe fn make_parities<const PARITIES: usize>(&self, offset: u64, bytes: usize, payload: *mut u8) -> Done {
        let io = self.io();
        let shape = Shape::<M, PARITIES>::new(&io);
        let mut at = payload.wrapping_add(whole_lines(bytes));
        let mut data = payload.cast_const();
        for part in Stripes::new(self.geometry, offset, bytes as u64) {
            let lost = shape.lost(&part.stripe);
            if lost.count() > PARITIES {
                return Err(Stop::Lost);
            }
            let base = data.wrapping_sub(part.start as usize);
            for rows in part.rows(self.geometry) {
                let sums = [at, at.wrapping_add(whole_lines(rows.bytes))];
                let write = Write { shape: &shape, stripe: part.stripe, lost, rows, base };
                // SAFETY: the data and the room for the parities lie within the payload.
                unsafe { write.make(sums)? };
                at = at.wrapping_add(PARITIES * whole_lines(rows.bytes));
            }
            data = data.wrapping_add((part.end - part.start) as usize);
        }
        Ok(())
    }

    #[inline]
    unsafe fn put_stripes<const PARITIES: usize>(&self, offset: u64, bytes: usize, payload: *const u8) -> Done {
        let io = self.io();
        let shape = Shape::<M, PARITIES>::new(&io);
        let (mut at, mut data) = (payload.wrapping_add(whole_lines(bytes)), payload);
        for part in Stripes::new(self.geometry, offset, bytes as u64) {
            let lost = shape.lost(&part.stripe);
            if lost.count() > PARITIES {
                return Err(Stop::Lost);
            }
            let base = data.wrapping_sub(part.start as usize);
            for rows in part.rows(self.geometry) {
                let place = part.stripe.member_offset + rows.start;
                for column in (rows.first_column..rows.end_column).filter(|&column| !lost.has(column)) {
                    let new = base.wrapping_add((column << shape.chunk_shift) + rows.start as usize);
                    // SAFETY: the new bytes lie within the payload.
                    unsafe { io.store(shape.slot(&part.stripe, column), place, new, rows.bytes)? };
                }
                let parities = [at, at.wrapping_add(whole_lines(rows.bytes))];
                // SAFETY: the parities lie within the payload.
                unsafe { shape.store_parities(&part.stripe, &lost, rows.start, parities, rows.bytes)? };
                at = at.wrapping_add(PARITIES * whole_lines(rows.bytes));
            }
            data = data.wrapping_add((part.end - part.start) as usize);
        }
        Ok(())
    }
}

/// Computes the parities of some rows, from the payload's data and what the members hold, and
/// stores nothing on the members.
impl<M: Medium, const PARITIES: usize> Write<'_, '_, '_, M, PARITIES> {
    #[inline(always)]
    unsafe fn make(&self, sums: [*mut u8; 2]) -> Done {
        // SAFETY: the caller's promise is passed on.
        unsafe {
            if self.lost.count() == 0 {
                let written = self.rows.end_column - self.rows.first_column;
                let fewer = PARITIES == 1 && self.shape.columns - written > 2 * written;
                if (if fewer { self.sum_difference(sums) } else { self.sum_columns(sums) }).is_some() {
                    return Ok(());
                }
            }
            self.sum_by_bytes(sums)
        }
    }

    /// Makes P as the sum of old P, old data and new data (read-modify-write). None if one of these
    /// is not mapped.
    #[inline(always)]
    unsafe fn sum_difference(&self, [p, _]: [*mut u8; 2]) -> Option<()> {
        let mut sources = [null::<u8>(); SOURCES_MAX];
        let mut count = 1;
        sources[0] = self.mapped(self.shape.columns)?;
        for column in self.rows.first_column..self.rows.end_column {
            sources[count] = self.mapped(column)?;
            sources[count + 1] = self.source(column);
            count += 2;
        }
        // SAFETY: the sources are mapped for `bytes` or lie within the payload.
        unsafe { self.shape.io.kernels.never_streaming().parity_p(&sources[..count], p, self.rows.bytes) };
        Some(())
    }

    /// Makes the parities from the new data and what the other columns hold (reconstruct-write).
    /// None if one of these is not mapped.
    #[inline(always)]
    unsafe fn sum_columns(&self, [p, q]: [*mut u8; 2]) -> Option<()> {
        let mut sources = [null::<u8>(); SOURCES_MAX];
        for (column, source) in sources.iter_mut().enumerate().take(self.shape.columns) {
            *source = if self.writes(column) { self.source(column) } else { self.mapped(column)? };
        }
        let (sources, kernels) = (&sources[..self.shape.columns], self.shape.io.kernels.never_streaming());
        // SAFETY: the sources are mapped for `bytes` or lie within the payload.
        unsafe {
            if PARITIES == 1 {
                kernels.parity_p(sources, p, self.rows.bytes);
            } else {
                kernels.parity_pq(sources, p, q, self.rows.bytes);
            }
        }
        Some(())
    }

    /// Makes the parities by way of buffers. For stripes with a member that is out or not mapped.
    #[inline(never)]
    unsafe fn sum_by_bytes(&self, sums: [*mut u8; 2]) -> Done {
        let shape = self.shape;
        let mut scratch = Scratch::new();
        let [p, q, block, _] = scratch.blocks();
        for done in (0..self.rows.bytes).step_by(BLOCK_BYTES) {
            let step = BLOCK_BYTES.min(self.rows.bytes - done);
            let within = self.rows.start + done as u64;
            // SAFETY: the buffers hold a block each; the rest lies within the payload.
            unsafe {
                p.write_bytes(0, step);
                q.write_bytes(0, step);
                for column in 0..shape.columns {
                    if self.writes(column) {
                        shape.io.kernels.copy_from_media(block, self.source(column).wrapping_add(done), step);
                    } else if self.lost.parities.count_ones() as usize == PARITIES {
                        // All parities are lost, so none needs to be made.
                        continue;
                    } else {
                        shape.fetch_column(&self.stripe, &self.lost, column, within, block, step)?;
                    }
                    shape.add_column([p, q], column, block, step);
                }
                for (sum, to) in [p, q].into_iter().zip(sums).take(PARITIES) {
                    shape.io.kernels.copy_to_media_temporal(to.wrapping_add(done), sum, step);
                }
            }
        }
        Ok(())
    }
}

/// `bytes` filled up to whole lines.
#[inline(always)]
const fn whole_lines(bytes: usize) -> usize {
    bytes.next_multiple_of(CACHE_LINE_BYTES)
}
