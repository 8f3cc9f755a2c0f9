//! Writes of whole blocks that keep sums: a block is summed while it is stored, from the very lines
//! that are stored ([`persist::BlockKernels`]), and what parity ought to be follows from sums.
//!
//! [`Striper::write_summed`] is all that others call. What does not suit goes the way of
//! [`Striper::summed`], with passes of their own that sum: parts of blocks, members that are out or
//! not mapped in one piece, old blocks without sums from which those of parity would have to follow,
//! processors without these kernels.
//!
//! Invariants, besides those of [`crate::sums`]:
//! - The sums of a *line of blocks*, of which a cache line of sums tells ([`SUM_LINE_BLOCKS`]), are
//!   taken away before the first store to them, and each is given after the last store to its block;
//!   on each member there is one write-back for the line, not one for a block.
//! - Data whose old bytes or neighbours enter parity P are believed by their sums: P gets the sum of
//!   what it ought to be. If they have rotted, what is computed from them does not fit it. For Q, of
//!   which sums do not tell what it ought to be, they are summed as they are loaded, and Q gets a sum
//!   that does not fit if they do not fit theirs.

use crate::mirror::region_left;
use crate::stripe::{Lost, Shape};
use crate::striper::{IoFault, Striper};
use crate::sums::{IN_PLACE_OF_NONE, Parity, Reach, Summing, sum_of_crc};
use crate::walk::{Pieces, Stripes};
use crate::write::Write;
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, Ordering};
use medium::{Medium, SUM_BLOCK_BYTES, SUM_LINE_BLOCKS};
use parity::q_coefficient;
use persist::{BlockKernels, CRC_OF_ZEROS};
use units::{CACHE_LINE_BYTES, MEMBER_COUNT_MAX, Slot};

const BLOCK_BYTES: usize = SUM_BLOCK_BYTES as usize;
const LINE_BLOCKS: usize = SUM_LINE_BLOCKS as usize;

/// Up to as many items as an array has members. Not initialised, which for a short write would cost
/// as much as all else.
struct Few<T: Copy> {
    items: MaybeUninit<[T; MEMBER_COUNT_MAX]>,
    count: usize,
}

impl<T: Copy> Few<T> {
    #[inline(always)]
    const fn new() -> Self {
        Self { items: MaybeUninit::uninit(), count: 0 }
    }

    /// Adds an item. There are no more than members.
    #[inline(always)]
    const fn push(&mut self, item: T) {
        debug_assert!(self.count < MEMBER_COUNT_MAX);
        if self.count < MEMBER_COUNT_MAX {
            // SAFETY: within the array.
            unsafe { self.items.as_mut_ptr().cast::<T>().add(self.count).write(item) };
            self.count += 1;
        }
    }

    #[inline(always)]
    const fn items(&self) -> &[T] {
        // SAFETY: so many items were written.
        unsafe { core::slice::from_raw_parts(self.items.as_ptr().cast(), self.count) }
    }

    #[inline(always)]
    const fn items_mut(&mut self) -> &mut [T] {
        // SAFETY: so many items were written.
        unsafe { core::slice::from_raw_parts_mut(self.items.as_mut_ptr().cast(), self.count) }
    }
}

/// The sums of a line of blocks, or a part of one, on one member each.
type SumLines<'m> = Few<&'m [AtomicU32]>;

/// The blocks of `bytes` bytes from `start` on, a line at a time: the number of the first block, how
/// many there are, and how many bytes lie before them.
fn lines(start: u64, bytes: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let mut done = 0;
    core::iter::from_fn(move || {
        let block = (start + done as u64) / SUM_BLOCK_BYTES;
        let count = (LINE_BLOCKS - block as usize % LINE_BLOCKS).min((bytes - done) / BLOCK_BYTES);
        let line = (block, count, done);
        done += count * BLOCK_BYTES;
        (count > 0).then_some(line)
    })
}

/// Moves places on by a block; null stays null.
#[inline(always)]
fn advance<T>(places: &mut [*mut T], bytes: usize) {
    for place in places.iter_mut().filter(|place| !place.is_null()) {
        *place = place.wrapping_byte_add(bytes);
    }
}

impl<'a, M: Medium> Striper<'a, M> {
    /// Writes a range and keeps the sums of its blocks.
    ///
    /// # Safety
    /// The caller promises what [`Striper::write`] asks for.
    #[inline(never)]
    pub(crate) unsafe fn write_summed(&self, offset: u64, src: *const u8, bytes: usize) -> Result<(), IoFault> {
        let (start, end) = (offset.next_multiple_of(SUM_BLOCK_BYTES), (offset + bytes as u64) & !(SUM_BLOCK_BYTES - 1));
        let suits = self.sums == Summing::Keep && self.out.is_empty() && self.undo.is_none();
        // SAFETY: the caller's promise, for the range and parts of it.
        unsafe {
            let Some(kernels) = (suits && start < end).then(|| self.kernels.blocks()).flatten() else {
                return self.write_then_sum(offset, src, bytes);
            };
            let (head, whole) = ((start - offset) as usize, (end - start) as usize);
            // A bad address, or want of space for sums, is found before anything is stored.
            self.probe_source(src, bytes)?;
            self.ready_sums(offset, bytes as u64, Reach::Range)?;
            if head > 0 {
                self.write_then_sum(offset, src, head)?;
            }
            self.write_blocks(&kernels, start, src.wrapping_add(head), whole)?;
            let tail = bytes - head - whole;
            if tail > 0 {
                self.write_then_sum(end, src.wrapping_add(head + whole), tail)?;
            }
        }
        Ok(())
    }

    /// Writes a range, and sums the blocks in passes of their own.
    ///
    /// # Safety
    /// The caller promises what [`Striper::write`] asks for.
    unsafe fn write_then_sum(&self, offset: u64, src: *const u8, bytes: usize) -> Result<(), IoFault> {
        // SAFETY: the caller's promise.
        unsafe {
            // A bad address is found before sums are taken away.
            self.probe_source(src, bytes)?;
            self.summed(offset, bytes as u64, Parity::Written, || self.write_unsummed(offset, src, bytes))
        }
    }

    /// Writes whole blocks, whose sums are ready, from a buffer that was probed. No member is out.
    ///
    /// # Safety
    /// The caller promises what [`Striper::write`] asks for.
    unsafe fn write_blocks(&self, kernels: &BlockKernels, offset: u64, src: *const u8, bytes: usize) -> Result<(), IoFault> {
        let mut done = 0;
        while done < bytes {
            let (offset, src, bytes) = (offset + done as u64, src.wrapping_add(done), bytes - done);
            let mut stored = 0;
            let count = &mut stored;
            // SAFETY: the caller's promise, for a part of the range; inside a guard.
            self.guarded(|| unsafe {
                match self.geometry.level().parity_count() {
                    0 => self.store_copies(kernels, offset, src, bytes, count),
                    1 => self.store_stripes::<1>(kernels, offset, src, bytes, count),
                    _ => self.store_stripes::<2>(kernels, offset, src, bytes, count),
                }
                Ok(())
            })?;
            if stored < bytes {
                // Of this part some rows may be stored, but no harm is in storing them once more.
                let part = self.part_bytes(offset + stored as u64).min(bytes - stored);
                // SAFETY: as above.
                unsafe { self.write_then_sum(offset + stored as u64, src.wrapping_add(stored), part)? };
                stored += part;
            }
            done += stored;
        }
        Ok(())
    }

    /// How many bytes there are from `offset` to the end of what is stored as one part: a stripe, a
    /// chunk of copies, or a read region.
    fn part_bytes(&self, offset: u64) -> usize {
        let geometry = self.geometry;
        let left = match (geometry.level().has_chunks(), geometry.level().parity_count()) {
            (false, _) => region_left(offset),
            (true, 0) => geometry.chunk().bytes() - (offset & (geometry.chunk().bytes() - 1)),
            (true, _) => (geometry.stripe_of(offset) + 1) * geometry.stripe_bytes() - offset,
        };
        left as usize
    }

    /// The sums of some blocks on a member; None if it keeps none of them.
    #[inline(always)]
    fn sum_line(&self, slot: Slot, block: u64, count: usize) -> Option<&'a [AtomicU32]> {
        self.members.get(slot)?.as_ref()?.sums(block, count)
    }

    /// Takes sums away.
    #[inline(always)]
    fn take_lines(&self, lines: &SumLines<'_>) {
        for line in lines.items() {
            let mut had_some = false;
            for sum in line.iter().filter(|sum| sum.load(Ordering::Relaxed) != 0) {
                sum.store(0, Ordering::Release);
                had_some = true;
            }
            if had_some {
                self.settle_sums(line);
            }
        }
    }

    /// Stores copies and their sums. `stored` grows by the bytes of the range that are.
    ///
    /// # Safety
    /// The caller promises what [`Striper::write`] asks for, and is inside a guard.
    unsafe fn store_copies(&self, kernels: &BlockKernels, offset: u64, src: *const u8, bytes: usize, stored: &mut usize) {
        let geometry = self.geometry;
        let mut slots = Few::new();
        if geometry.level().has_chunks() {
            for piece in Pieces::new(geometry, offset, bytes as u64) {
                slots.count = 0;
                (0..geometry.copy_count()).for_each(|copy| slots.push(geometry.data_slot(0, piece.column, copy)));
                // SAFETY: the caller's promise, for a piece of the range.
                if !unsafe {
                    self.store_piece(kernels, slots.items(), piece.member_offset(), src.wrapping_add(*stored), piece.bytes)
                } {
                    return;
                }
                *stored += piece.bytes;
            }
            return;
        }
        (0..geometry.member_count()).for_each(|slot| slots.push(slot));
        while *stored < bytes {
            let at = offset + *stored as u64;
            let step = (region_left(at) as usize).min(bytes - *stored);
            // SAFETY: as above.
            if !unsafe { self.store_piece(kernels, slots.items(), at, src.wrapping_add(*stored), step) } {
                return;
            }
            *stored += step;
        }
    }

    /// Stores one piece to all its copies, and their sums. False if something is not mapped.
    ///
    /// # Safety
    /// The caller promises what [`Striper::write`] asks for, and is inside a guard.
    #[inline(always)]
    unsafe fn store_piece(&self, kernels: &BlockKernels, slots: &[Slot], start: u64, src: *const u8, bytes: usize) -> bool {
        let io = self.io();
        let mut places = Few::new();
        for &slot in slots {
            let Some(place) = io.mapped(slot, start, bytes) else { return false };
            places.push(place);
        }
        for (block, count, done) in lines(start, bytes) {
            let mut sums = SumLines::new();
            for &slot in slots {
                let Some(line) = self.sum_line(slot, block, count) else { return false };
                sums.push(line);
            }
            self.take_lines(&sums);
            for index in 0..count {
                // SAFETY: the copies are mapped for `bytes`; `src` is the caller's promise.
                let crc = unsafe { kernels.mirror(places.items(), src.wrapping_add(done + index * BLOCK_BYTES)) };
                let of_each = sums.items().iter().filter_map(|line| line.get(index));
                of_each.for_each(|sum| sum.store(sum_of_crc(crc), Ordering::Release));
                advance(places.items_mut(), BLOCK_BYTES);
            }
            sums.items().iter().for_each(|line| self.settle_sums(line));
        }
        true
    }

    /// Stores stripes and their sums. `stored` grows by the bytes of the stripes that are stored.
    ///
    /// # Safety
    /// The caller promises what [`Striper::write`] asks for, and is inside a guard.
    unsafe fn store_stripes<const PARITIES: usize>(
        &self,
        kernels: &BlockKernels,
        offset: u64,
        src: *const u8,
        bytes: usize,
        stored: &mut usize,
    ) {
        let io = self.io();
        let shape = Shape::<M, PARITIES>::new(&io);
        for part in Stripes::new(self.geometry, offset, bytes as u64) {
            let base = src.wrapping_add(*stored).wrapping_sub(part.start as usize);
            for rows in part.rows(self.geometry) {
                let write = Write { shape: &shape, stripe: part.stripe, lost: Lost::default(), rows, base };
                // SAFETY: the rows of the part lie within the program's buffer.
                let is_done = unsafe {
                    if write.prefers_update() { self.update_rows(kernels, &write) } else { self.recompute_rows(kernels, &write) }
                };
                if is_done.is_none() {
                    return;
                }
            }
            *stored += (part.end - part.start) as usize;
        }
    }

    /// The sums of what a write stores: the columns that it writes, then the parities.
    #[inline(always)]
    fn lines_of<const PARITIES: usize>(
        &self,
        write: &Write<'_, '_, '_, M, PARITIES>,
        block: u64,
        count: usize,
    ) -> Option<SumLines<'a>> {
        let (shape, rows) = (write.shape, &write.rows);
        let mut lines = SumLines::new();
        for source in (rows.first_column..rows.end_column).chain(shape.columns..shape.columns + PARITIES) {
            lines.push(self.sum_line(shape.slot(&write.stripe, source), block, count)?);
        }
        Some(lines)
    }

    /// Read-modify-write. None if something is not mapped, or has no sum from which that of parity
    /// would follow; then some of the rows may be stored.
    ///
    /// # Safety
    /// The caller promises what [`Striper::write`] asks for, and is inside a guard.
    unsafe fn update_rows<const PARITIES: usize>(
        &self,
        kernels: &BlockKernels,
        write: &Write<'_, '_, '_, M, PARITIES>,
    ) -> Option<()> {
        let (shape, rows) = (write.shape, &write.rows);
        let [p, q] = write.parities()?;
        let mut datas = Few::new();
        for column in rows.first_column..rows.end_column {
            datas.push(write.mapped(column)?);
        }
        let written = datas.items().len();
        for (block, count, done) in lines(write.stripe.member_offset + rows.start, rows.bytes) {
            let sums = self.lines_of(write, block, count)?;
            let (of_data, of_parities) = sums.items().split_at_checked(written)?;
            // What the sums of the parities ought to be, at first those of old P and old Q.
            let mut ought = [[0; LINE_BLOCKS]; PARITIES];
            // Sums that may stand for two values, and old data that do not fit their sums.
            let (mut is_doubtful, mut is_rotten) = ([false; LINE_BLOCKS], [false; LINE_BLOCKS]);
            let mut olds = Few::new();
            for line in sums.items() {
                let mut old = [0; LINE_BLOCKS];
                for ((sum, old), is_doubtful) in line.iter().zip(&mut old).zip(&mut is_doubtful) {
                    *old = sum.load(Ordering::Relaxed);
                    if *old == 0 {
                        return None;
                    }
                    *is_doubtful |= *old == IN_PLACE_OF_NONE;
                }
                olds.push(old);
            }
            let (olds, old_parities) = olds.items().split_at_checked(written)?;
            ought.iter_mut().zip(old_parities).for_each(|(ought, old)| *ought = *old);
            self.take_lines(&sums);
            for (number, ((old, line), &data)) in olds.iter().zip(of_data).zip(datas.items()).enumerate() {
                let column = rows.first_column + number;
                for (index, (sum, &old)) in line.iter().zip(old).enumerate() {
                    let at = done + index * BLOCK_BYTES;
                    let place = |of: *mut u8| of.wrapping_add(at);
                    let source = write.source(column).wrapping_add(at);
                    // The lines have no more blocks than that.
                    let index = index % LINE_BLOCKS;
                    // SAFETY: data and parities are mapped for the rows; the program's buffer is the
                    // caller's promise.
                    let new = unsafe {
                        if PARITIES == 1 {
                            kernels.update_p(place(data), place(p), source, rows.bytes)
                        } else {
                            let parities = [place(p), place(q)];
                            let [new, was, change] =
                                kernels.update_pq(place(data), parities, source, q_coefficient(column), rows.bytes);
                            is_rotten[index] |= sum_of_crc(was) != old;
                            ought[PARITIES - 1][index] ^= change;
                            new
                        }
                    };
                    ought[0][index] ^= old ^ new;
                    sum.store(sum_of_crc(new), Ordering::Release);
                }
            }
            for (which, (line, ought)) in of_parities.iter().zip(&ought).enumerate() {
                for (index, (sum, &ought)) in line.iter().zip(ought).enumerate() {
                    let (slot, block) = (shape.slot(&write.stripe, shape.columns + which), block + index as u64);
                    let (is_rotten, is_doubtful) = (is_rotten[index % LINE_BLOCKS], is_doubtful[index % LINE_BLOCKS]);
                    if is_rotten && (which == 1 || is_doubtful) {
                        self.spoil(slot, block);
                    } else if is_doubtful {
                        sum.store(self.sum_now(slot, block).unwrap_or(0), Ordering::Release);
                    } else {
                        sum.store(sum_of_crc(ought), Ordering::Release);
                    }
                }
            }
            sums.items().iter().for_each(|line| self.settle_sums(line));
        }
        Some(())
    }

    /// Full-stripe or reconstruct-write. None if something is not mapped; then some of the rows may
    /// be stored.
    ///
    /// # Safety
    /// The caller promises what [`Striper::write`] asks for, and is inside a guard.
    unsafe fn recompute_rows<const PARITIES: usize>(
        &self,
        kernels: &BlockKernels,
        write: &Write<'_, '_, '_, M, PARITIES>,
    ) -> Option<()> {
        let (shape, rows) = (write.shape, &write.rows);
        let mut parities = write.parities()?;
        let (mut news, mut datas) = (Few::new(), Few::new());
        for column in 0..shape.columns {
            let place = write.mapped(column)?;
            news.push(if write.writes(column) { write.source(column).cast_mut() } else { place });
            datas.push(if write.writes(column) { place } else { null_mut() });
        }
        let is_full = rows.end_column - rows.first_column == shape.columns;
        let mut crcs = [0; MEMBER_COUNT_MAX];
        let crcs = crcs.get_mut(..shape.columns)?;
        for (block, count, _) in lines(write.stripe.member_offset + rows.start, rows.bytes) {
            let sums = self.lines_of(write, block, count)?;
            let (of_data, of_parities) = sums.items().split_at_checked(rows.end_column - rows.first_column)?;
            self.take_lines(&sums);
            for index in 0..count {
                let at = block + index as u64;
                // Of a column that is not written, what its sum leaves open is summed; and all for Q.
                let mut wanted = u32::MAX;
                if !is_full {
                    for (column, &place) in news.items().iter().enumerate().filter(|(column, _)| !write.writes(*column)) {
                        let stored = self.stored_sum(shape.slot(&write.stripe, column), at);
                        let is_open = PARITIES > 1 || stored == 0 || stored == IN_PLACE_OF_NONE;
                        wanted &= !(u32::from(!is_open) << column);
                        load_lines(place);
                    }
                }
                let sources = news.items().as_ptr().cast::<*const u8>();
                // SAFETY: the places are mapped for the rows; the program's buffer is the caller's
                // promise. A pointer is a pointer, whether to store through it or not.
                let of_q = unsafe {
                    let sources = core::slice::from_raw_parts(sources, shape.columns);
                    kernels.stripe(sources, datas.items(), parities, wanted, crcs)
                };
                let mut ought = if shape.columns.is_multiple_of(2) { CRC_OF_ZEROS } else { 0 };
                let (mut is_rotten, mut is_doubtful) = (false, false);
                for (column, &mut crc) in crcs.iter_mut().enumerate() {
                    if write.writes(column) {
                        if let Some(sum) = of_data.get(column - rows.first_column).and_then(|line| line.get(index)) {
                            sum.store(sum_of_crc(crc), Ordering::Release);
                        }
                        ought ^= crc;
                        continue;
                    }
                    let stored = self.stored_sum(shape.slot(&write.stripe, column), at);
                    let is_summed = wanted >> column & 1 == 1;
                    if is_summed && (stored == 0 || stored == sum_of_crc(crc)) {
                        ought ^= crc;
                    } else {
                        is_rotten |= is_summed;
                        is_doubtful |= stored == IN_PLACE_OF_NONE;
                        ought ^= stored;
                    }
                }
                for (which, line) in of_parities.iter().enumerate() {
                    if is_rotten && (which == 1 || is_doubtful) {
                        self.spoil(shape.slot(&write.stripe, shape.columns + which), at);
                    } else if let Some(sum) = line.get(index) {
                        sum.store(sum_of_crc(if which == 0 { ought } else { of_q }), Ordering::Release);
                    }
                }
                advance(news.items_mut(), BLOCK_BYTES);
                advance(datas.items_mut(), BLOCK_BYTES);
                advance(&mut parities, BLOCK_BYTES);
            }
            sums.items().iter().for_each(|line| self.settle_sums(line));
        }
        Some(())
    }
}

/// Loads every line of a block. If its member fails now, nothing of the stripe's block is stored yet,
/// and data and parities are still those that give the block back.
#[inline(always)]
fn load_lines(block: *mut u8) {
    for line in (0..BLOCK_BYTES).step_by(CACHE_LINE_BYTES) {
        // SAFETY: the caller has it mapped; a fault leaves the guard.
        unsafe { block.add(line).read_volatile() };
    }
}
