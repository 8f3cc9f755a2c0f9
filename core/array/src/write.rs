//! Writing stripes with parity, for levels 4, 5 and 6.
//!
//! The part of a write that lies in a stripe is cut into rows: the same bytes of every chunk, on
//! which a fixed run of columns is written. For each, one of
//! - *recompute*: the parities from the new data and what the other columns hold, in one pass that
//!   also stores the data. A full-stripe write if there are no other columns, a reconstruct-write
//!   otherwise. Also when a written column is out: its new content then lives in the parities only.
//! - *update*: old data, old parities and new data give the new parities, in one pass per written
//!   column (read-modify-write). Also when a column that is not written is out.
//! - *by bytes*: recompute by way of buffers, for media that are not mapped.
//!
//! With all parities of a stripe out, data is written plainly. With a data chunk out, what makes a
//! block whole is saved before it is stored to (core/array/undo.rs).

use crate::stripe::{Lost, Scratch, Shape};
use crate::striper::{BLOCK_BYTES, Done, Io, Stop, ZEROS};
use crate::undo::UndoRecord;
use crate::walk::{Rows, Stripe, Stripes};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::slice;
use medium::Medium;
use parity::{SOURCES_MAX, q_coefficient};
use persist::Kernels;
use units::{CACHE_LINE_BYTES, MemberSet};

/// Writes a range of a level with `PARITIES` parities.
///
/// # Safety
/// Inside a guard; `src` is the program's for `bytes`.
pub(crate) unsafe fn write_stripes<M: Medium, const PARITIES: usize>(
    io: &Io<'_, M>,
    offset: u64,
    mut src: *const u8,
    bytes: usize,
) -> Done {
    let shape = Shape::<M, PARITIES>::new(io);
    for part in Stripes::new(io.geometry, offset, bytes as u64) {
        let lost = shape.lost(&part.stripe);
        if lost.count() > PARITIES {
            return Err(Stop::Lost);
        }
        // Where the first byte of the stripe would be in the program's buffer.
        let base = src.wrapping_sub(part.start as usize);
        for rows in part.rows(io.geometry) {
            let write = Write { shape: &shape, stripe: part.stripe, lost, rows, base };
            // SAFETY: the rows of the part lie within the program's buffer.
            unsafe { write.run()? };
        }
        src = src.wrapping_add((part.end - part.start) as usize);
    }
    Ok(())
}

/// Zeroes a range of any level with chunks: whole stripes member by member (zeros have zero
/// parity), the rest by `write`.
pub(crate) fn zero_stripes<M: Medium>(
    io: &Io<'_, M>,
    offset: u64,
    bytes: u64,
    write: unsafe fn(&Io<'_, M>, u64, *const u8, usize) -> Done,
) -> Done {
    let stripe_bytes = io.geometry.stripe_bytes();
    let end = offset + bytes;
    let whole_start = offset.next_multiple_of(stripe_bytes).min(end);
    let whole_end = (end - end % stripe_bytes).max(whole_start);
    let write_zeros = |mut at: u64, end: u64| {
        while at < end {
            let step = (end - at).min(BLOCK_BYTES as u64);
            // SAFETY: the block of zeros is that long.
            unsafe { write(io, at, ZEROS.0.as_ptr(), step as usize)? };
            at += step;
        }
        Ok(())
    };
    write_zeros(offset, whole_start)?;
    if whole_start < whole_end {
        let start = io.geometry.member_offset(whole_start / stripe_bytes);
        let bytes = io.geometry.member_offset(whole_end / stripe_bytes) - start;
        if let Some(undo) = &io.undo {
            undo.arm_zeros(start, bytes);
        }
        io.zero_members(start, bytes)?;
        if let Some(undo) = &io.undo {
            undo.disarm();
        }
    }
    write_zeros(whole_end, end)
}

/// The write of some rows of a stripe.
pub(crate) struct Write<'a, 'b, 'c, M, const PARITIES: usize> {
    pub(crate) shape: &'a Shape<'b, 'c, M, PARITIES>,
    pub(crate) stripe: Stripe,
    pub(crate) lost: Lost,
    pub(crate) rows: Rows,
    /// Where the stripe's first byte is or would be in the program's buffer, or in the payload of a
    /// redo record.
    pub(crate) base: *const u8,
}

impl<M: Medium, const PARITIES: usize> Write<'_, '_, '_, M, PARITIES> {
    #[inline(always)]
    unsafe fn run(&self) -> Done {
        // SAFETY: the caller's promise is passed on.
        unsafe {
            if self.lost.parities.count_ones() as usize == PARITIES {
                return self.plainly();
            }
            match &self.shape.io.undo {
                Some(undo) if self.lost.columns != 0 || self.may_lose(undo.leaving()) => self.undoably(undo),
                _ => self.store(),
            }
        }
    }

    /// Whether one of these members holds data of the stripe.
    fn may_lose(&self, leaving: MemberSet) -> bool {
        !leaving.is_empty() && self.shape.lost_among(&self.stripe, leaving).columns != 0
    }

    #[inline(always)]
    unsafe fn store(&self) -> Done {
        // SAFETY: the caller's promise is passed on.
        unsafe {
            let done = if self.prefers_update() {
                self.update()
            } else {
                self.recompute(self.shape.io.kernels, |source| self.place(source))?
            };
            if done.is_some() { Ok(()) } else { self.by_bytes() }
        }
    }

    /// A block at a time, with a record of what makes it whole if its stores end half way.
    #[inline(never)]
    unsafe fn undoably(&self, undo: &UndoRecord<'_>) -> Done {
        let shape = self.shape;
        let written = (self.rows.first_column..self.rows.end_column).filter(|&column| !self.lost.has(column));
        let parities = (0..PARITIES).filter(|which| self.lost.parities >> which & 1 == 0).map(|which| shape.columns + which);
        let members: MemberSet = written.chain(parities).map(|source| shape.slot(&self.stripe, source)).collect();
        if members.len() == 1 {
            // One parity, and it alone is the column that is written: each of its bytes is old or
            // new, whatever happens to the next. SAFETY: the caller's promise is passed on.
            return unsafe { self.store() };
        }
        for done in (0..self.rows.bytes).step_by(UndoRecord::step_bytes(members.len())) {
            let bytes = UndoRecord::step_bytes(members.len()).min(self.rows.bytes - done);
            let rows = Rows { start: self.rows.start + done as u64, bytes, ..self.rows };
            // SAFETY: the caller's promise, for a part of the rows; a record has room for that many
            // bytes of each member.
            unsafe { Write { rows, ..*self }.store_block(undo, members)? };
        }
        Ok(())
    }

    /// Stores rows that a record has room for. What it is to make of them is what costs less: what
    /// they are to be where that is computed from the new data, and nothing need be loaded that is
    /// stored over; what they were where the parities are updated.
    #[inline(always)]
    unsafe fn store_block(&self, undo: &UndoRecord<'_>, members: MemberSet) -> Done {
        let (io, bytes) = (self.shape.io, self.rows.bytes);
        let at = self.stripe.member_offset + self.rows.start;
        let saved = || members.iter().enumerate().map(|(index, slot)| (slot, undo.place(index, members.len())));
        let place = |source: usize| {
            let slot = self.shape.slot(&self.stripe, source);
            saved().find(|&(member, _)| member == slot).map_or(null_mut(), |(_, place)| place)
        };
        // Read again at once, and in memory that need not be written back to.
        let kernels = persist::kernels().never_streaming();
        // SAFETY: the places have room for `bytes`; otherwise the caller's promise.
        unsafe {
            if !self.prefers_update() && self.recompute(&kernels, |source| Some(place(source)))?.is_some() {
                undo.arm_saved(members, at, bytes);
                for (slot, place) in saved() {
                    io.store(slot, at, place, bytes)?;
                }
            } else {
                for (slot, place) in saved() {
                    io.fetch(slot, at, place, bytes)?;
                }
                undo.arm_saved(members, at, bytes);
                self.store()?;
            }
        }
        undo.disarm();
        Ok(())
    }

    /// The new content of a written column.
    #[inline(always)]
    pub(crate) fn source(&self, column: usize) -> *const u8 {
        self.base.wrapping_add((column << self.shape.chunk_shift) + self.rows.start as usize)
    }

    #[inline(always)]
    pub(crate) const fn writes(&self, column: usize) -> bool {
        self.rows.first_column <= column && column < self.rows.end_column
    }

    /// Whether to update the parities rather than recompute them: whichever loads less, if both
    /// can.
    #[inline(always)]
    pub(crate) const fn prefers_update(&self) -> bool {
        let written = self.rows.end_column - self.rows.first_column;
        if self.lost.columns != 0 {
            let mask = ((1u64 << written) - 1) as u32;
            return self.lost.columns >> self.rows.first_column & mask == 0;
        }
        self.shape.columns - written > written * (1 + PARITIES)
    }

    #[inline(always)]
    pub(crate) fn mapped(&self, source: usize) -> Option<*mut u8> {
        self.shape.mapped(&self.stripe, source, self.rows.start, self.rows.bytes)
    }

    #[inline(always)]
    pub(crate) fn parities(&self) -> Option<[*mut u8; 2]> {
        self.shape.parities(&self.stripe, &self.lost, self.rows.start, self.rows.bytes)
    }

    /// Read-modify-write; None, with nothing stored, if something is not mapped.
    #[inline(always)]
    unsafe fn update(&self) -> Option<()> {
        let [p, q] = self.parities()?;
        let columns = self.rows.first_column..self.rows.end_column;
        if columns.len() > 1 && columns.clone().any(|column| self.mapped(column).is_none()) {
            return None;
        }
        let (kernels, bytes) = (self.shape.io.kernels, self.rows.bytes);
        for column in columns {
            let data = self.mapped(column)?;
            let new = self.source(column);
            // SAFETY: data and parities are mapped for `bytes`, or null where they are out; the
            // program's buffer is the caller's promise.
            unsafe {
                match (p.is_null(), q.is_null()) {
                    (false, true) => kernels.update_p(data, p, new, bytes),
                    (false, false) => kernels.update_pq(data, p, q, new, q_coefficient(column), bytes),
                    (true, _) => kernels.update_q(data, q, new, q_coefficient(column), bytes),
                }
            }
        }
        Some(())
    }

    /// Where a source is mapped, null if it is out; None if it is not mapped.
    #[inline(always)]
    fn place(&self, source: usize) -> Option<*mut u8> {
        let columns = self.shape.columns;
        let is_lost = if source < columns { self.lost.has(source) } else { self.lost.parities >> (source - columns) & 1 == 1 };
        if is_lost { Some(null_mut()) } else { self.mapped(source) }
    }

    /// Full-stripe or reconstruct-write to where `to` has each source that is stored (null:
    /// nowhere); None, with nothing stored, if something is not mapped.
    #[inline(always)]
    unsafe fn recompute(&self, kernels: &Kernels, to: impl Fn(usize) -> Option<*mut u8>) -> Result<Option<()>, Stop> {
        let columns = self.shape.columns;
        let mut parities = [null_mut(); 2];
        for (which, parity) in parities.iter_mut().enumerate().take(PARITIES) {
            let Some(place) = to(columns + which) else { return Ok(None) };
            *parity = place;
        }
        // Not initialised: for a short write, that would cost as much as everything else here.
        let (mut news, mut datas) =
            (MaybeUninit::<[*const u8; SOURCES_MAX]>::uninit(), MaybeUninit::<[*mut u8; SOURCES_MAX]>::uninit());
        let (news, datas) = (news.as_mut_ptr().cast::<*const u8>(), datas.as_mut_ptr().cast::<*mut u8>());
        let mut reconstructed = None;
        for column in 0..columns {
            let written = self.writes(column);
            let Some(place) = (if written { to(column) } else { self.place(column) }) else { return Ok(None) };
            if !written && place.is_null() {
                reconstructed = Some(column);
            }
            // SAFETY: there are fewer columns than SOURCES_MAX.
            unsafe {
                news.add(column).write(if written { self.source(column) } else { place });
                datas.add(column).write(if written { place } else { null_mut() });
            }
        }
        // SAFETY: `columns` entries are initialised, with places valid for `bytes` or null; the
        // program's buffer is the caller's promise.
        unsafe {
            let (news, datas) = (slice::from_raw_parts_mut(news, columns), slice::from_raw_parts_mut(datas, columns));
            match reconstructed {
                None if self.rows.end_column - self.rows.first_column == columns => {
                    stripe::<PARITIES>(kernels, news, datas, parities, self.rows.bytes)
                }
                None => self.recompute_from_rest(kernels, news, datas, parities),
                Some(column) => self.recompute_beside(column, kernels, news, datas, parities)?,
            }
        }
        Ok(Some(()))
    }

    /// Recompute with columns that are not written. Every line of those is loaded before anything
    /// of its block is stored: if their member fails now, data and parities are still those that
    /// give its content back.
    #[inline(always)]
    unsafe fn recompute_from_rest(
        &self,
        kernels: &Kernels,
        news: &mut [*const u8],
        datas: &mut [*mut u8],
        mut parities: [*mut u8; 2],
    ) {
        for done in (0..self.rows.bytes).step_by(BLOCK_BYTES) {
            let step = BLOCK_BYTES.min(self.rows.bytes - done);
            for (column, place) in news.iter().enumerate() {
                if !self.writes(column) {
                    for line in (0..step).step_by(CACHE_LINE_BYTES).chain([step - 1]) {
                        // SAFETY: the place is mapped for `step` bytes; a fault leaves the guard
                        // with nothing stored in this block.
                        unsafe { place.add(line).read_volatile() };
                    }
                }
            }
            // SAFETY: the places are valid for `bytes`, of which this is a part.
            unsafe { stripe::<PARITIES>(kernels, news, datas, parities, step) };
            advance(news, datas, &mut parities, step);
        }
    }

    /// Recompute where `column` is out, not written, and has to be reconstructed before anything is
    /// stored. (Of RAID 6 with another, written, column out; so it is the only one.)
    #[inline(never)]
    unsafe fn recompute_beside(
        &self,
        column: usize,
        kernels: &Kernels,
        news: &mut [*const u8],
        datas: &mut [*mut u8],
        mut parities: [*mut u8; 2],
    ) -> Done {
        let mut scratch = Scratch::new();
        let [old, ..] = scratch.blocks();
        for done in (0..self.rows.bytes).step_by(BLOCK_BYTES) {
            let step = BLOCK_BYTES.min(self.rows.bytes - done);
            let within = self.rows.start + done as u64;
            news[column] = old;
            // SAFETY: `old` holds a block; the places are valid for `bytes`, of which this is a
            // part.
            unsafe {
                self.shape.reconstruct(&self.stripe, &self.lost, column, within, old, step)?;
                stripe::<PARITIES>(kernels, news, datas, parities, step);
            }
            advance(news, datas, &mut parities, step);
        }
        Ok(())
    }

    /// Data alone: the stripe has no parity left.
    #[inline(never)]
    unsafe fn plainly(&self) -> Done {
        for column in self.rows.first_column..self.rows.end_column {
            let slot = self.shape.slot(&self.stripe, column);
            let at = self.stripe.member_offset + self.rows.start;
            // SAFETY: the program's buffer is the caller's promise.
            unsafe { self.shape.io.store(slot, at, self.source(column), self.rows.bytes)? };
        }
        Ok(())
    }

    /// Recompute by way of buffers, where not everything is mapped: first what is not written is
    /// summed up, for which all that is out must still be as it was; then each written column is
    /// added and stored; then the parities.
    #[inline(never)]
    unsafe fn by_bytes(&self) -> Done {
        let shape = self.shape;
        let mut scratch = Scratch::new();
        let [p, q, block, _] = scratch.blocks();
        for done in (0..self.rows.bytes).step_by(BLOCK_BYTES) {
            let step = BLOCK_BYTES.min(self.rows.bytes - done);
            let within = self.rows.start + done as u64;
            // SAFETY: the buffers hold a block each; the program's buffer is the caller's promise.
            unsafe {
                p.write_bytes(0, step);
                q.write_bytes(0, step);
                for column in (0..shape.columns).filter(|&column| !self.writes(column)) {
                    shape.fetch_column(&self.stripe, &self.lost, column, within, block, step)?;
                    shape.add_column([p, q], column, block, step);
                }
                for column in self.rows.first_column..self.rows.end_column {
                    shape.io.kernels.copy_from_media(block, self.source(column).wrapping_add(done), step);
                    shape.add_column([p, q], column, block, step);
                    if !self.lost.has(column) {
                        shape.io.store(shape.slot(&self.stripe, column), self.stripe.member_offset + within, block, step)?;
                    }
                }
                shape.store_parities(&self.stripe, &self.lost, within, [p, q], step)?;
            }
        }
        Ok(())
    }
}

/// One pass over a whole stripe.
#[inline(always)]
unsafe fn stripe<const PARITIES: usize>(
    kernels: &Kernels,
    news: &[*const u8],
    datas: &[*mut u8],
    [p, q]: [*mut u8; 2],
    bytes: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if PARITIES == 1 {
            kernels.stripe_p(news, datas, p, bytes);
        } else {
            kernels.stripe_pq(news, datas, p, q, bytes);
        }
    }
}

/// Moves all places on by a block; null stays null.
#[inline(always)]
fn advance(news: &mut [*const u8], datas: &mut [*mut u8], parities: &mut [*mut u8; 2], step: usize) {
    news.iter_mut().for_each(|new| *new = new.wrapping_add(step));
    let place = |place: &mut *mut u8| *place = if place.is_null() { *place } else { place.wrapping_add(step) };
    datas.iter_mut().chain(parities).for_each(place);
}
