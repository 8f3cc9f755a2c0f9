//! Levels that keep copies: 1, 01 and 10.
//!
//! A write loads the program's bytes once and stores them to all copies, so copies agree even if
//! the program changes its buffer meanwhile.

use crate::shares::Choice;
use crate::striper::{BLOCK_BYTES, Block, Done, Io, Stop};
use crate::walk::Pieces;
use core::mem::MaybeUninit;
use layout::Geometry;
use medium::Medium;
use units::{MEMBER_COUNT_MAX, MemberSet, Slot};

/// Readers change to another copy every this many bytes of a member.
///
/// By region, not in turn as in the thesis (section 4.2): the same bytes come from the same copy
/// each time, so the processor's caches hold them once and not once per copy, a sequential reader
/// stays one stream for the prefetcher, and no counter is shared. Readers of different regions
/// still spread over all members, and so do readers of different files: the first region of each
/// file is another copy's ([`crate::Striper::turn`]).
const READ_REGION_SHIFT: u32 = 20;

/// A run of bytes on all its copies.
struct Copies<'a, 'b, M> {
    io: &'a Io<'b, M>,
    column: usize,
    offset: u64,
    bytes: usize,
}

/// The range, if it is one piece, as most are.
#[inline(always)]
fn one_piece<'a, 'b, M: Medium>(io: &'a Io<'b, M>, offset: u64, bytes: usize) -> Option<Copies<'a, 'b, M>> {
    let (column, offset, left) = if io.geometry.level().has_chunks() {
        let place = io.geometry.locate(offset);
        let start = io.geometry.member_offset(place.stripe);
        (place.column, start + place.within, io.geometry.chunk().bytes() - place.within)
    } else {
        (0, offset, region_left(offset))
    };
    (bytes as u64 <= left).then_some(Copies { io, column, offset, bytes })
}

/// How many bytes from `offset` on are in the same read region.
#[inline(always)]
pub(crate) const fn region_left(offset: u64) -> u64 {
    (1 << READ_REGION_SHIFT) - (offset & ((1 << READ_REGION_SHIFT) - 1))
}

/// The number of the read region that an offset lies in.
pub(crate) const fn region_of(offset: u64) -> u64 {
    offset >> READ_REGION_SHIFT
}

/// The copy to read what lies at `offset` of the members from, of a file whose turn is `turn`.
#[inline(always)]
pub(crate) const fn preferred_copy(geometry: &Geometry, offset: u64, turn: u64) -> usize {
    let region = (offset >> READ_REGION_SHIFT).wrapping_add(turn);
    if geometry.level().has_chunks() { region as usize % geometry.copy_count() } else { geometry.turn(region) }
}

/// Calls `visit(copies, bytes of the range before them)` for the pieces of a range. RAID 1 is cut
/// into read regions.
#[inline(never)]
fn each_piece<'b, M: Medium>(
    io: &Io<'b, M>,
    offset: u64,
    bytes: u64,
    mut visit: impl FnMut(&Copies<'_, 'b, M>, usize) -> Done,
) -> Done {
    let mut done = 0;
    if io.geometry.level().has_chunks() {
        return Pieces::new(io.geometry, offset, bytes).try_for_each(|piece| {
            let copies = Copies { io, column: piece.column, offset: piece.member_offset(), bytes: piece.bytes };
            visit(&copies, done)?;
            done += piece.bytes;
            Ok(())
        });
    }
    while (done as u64) < bytes {
        let at = offset + done as u64;
        let step = region_left(at).min(bytes - done as u64) as usize;
        visit(&Copies { io, column: 0, offset: at, bytes: step }, done)?;
        done += step;
    }
    Ok(())
}

/// Reads a range.
///
/// # Safety
/// Inside a guard; `dst` is the program's for `bytes`.
pub(crate) unsafe fn read<M: Medium>(io: &Io<'_, M>, offset: u64, dst: *mut u8, bytes: usize) -> Done {
    if let Some(copies) = one_piece(io, offset, bytes) {
        // SAFETY: the caller's promise.
        return unsafe { copies.read(dst) };
    }
    // SAFETY: the pieces make up `bytes`.
    each_piece(io, offset, bytes as u64, |copies, done| unsafe { copies.read(dst.wrapping_add(done)) })
}

/// Writes a range.
///
/// # Safety
/// Inside a guard; `src` is the program's for `bytes`.
pub(crate) unsafe fn write<M: Medium>(io: &Io<'_, M>, offset: u64, src: *const u8, bytes: usize) -> Done {
    if let Some(copies) = one_piece(io, offset, bytes) {
        // SAFETY: the caller's promise.
        return unsafe { copies.write(src) };
    }
    // SAFETY: the pieces make up `bytes`.
    each_piece(io, offset, bytes as u64, |copies, done| unsafe { copies.write(src.wrapping_add(done)) })
}

/// Copies the lowest copy that is in over the others.
pub(crate) fn resync<M: Medium>(io: &Io<'_, M>, offset: u64, bytes: u64) -> Done {
    each_piece(io, offset, bytes, |copies, _| copies.resync())
}

/// Copies the lowest copy that is in and not among `lost` over those that are. False if it is not
/// mapped in one piece.
pub(crate) fn rebuild<M: Medium>(io: &Io<'_, M>, lost: MemberSet, offset: u64, bytes: u64) -> Result<bool, Stop> {
    let mut is_done = true;
    each_piece(io, offset, bytes, |copies, _| copies.rebuild(lost).map(|done| is_done &= done))?;
    Ok(is_done)
}

/// Counts the bytes in which copies differ from the lowest copy that is in.
pub(crate) fn verify<M: Medium>(io: &Io<'_, M>, offset: u64, bytes: u64) -> Result<u64, Stop> {
    let mut mismatches = 0;
    each_piece(io, offset, bytes, |copies, _| copies.verify().map(|found| mismatches += found))?;
    Ok(mismatches)
}

impl<M: Medium> Copies<'_, '_, M> {
    /// The members of this piece that are in, ascending by copy.
    #[inline(always)]
    fn slots(&self) -> impl Iterator<Item = Slot> {
        let slot = |copy| self.io.geometry.data_slot(0, self.column, copy);
        (0..self.io.geometry.copy_count()).map(slot).filter(|&slot| !self.io.out.contains(slot))
    }

    /// Reads the piece from one of the copies that are in.
    ///
    /// # Safety
    /// Inside a guard; `dst` is the program's for the piece.
    #[inline(always)]
    unsafe fn read(&self, dst: *mut u8) -> Done {
        let (io, copy) = (self.io, preferred_copy(self.io.geometry, self.offset, self.io.turn));
        let first = io.geometry.data_slot(0, self.column, copy);
        // SAFETY: the caller's promise.
        let fetch = |slot| unsafe { io.fetch(slot, self.offset, dst, self.bytes) };
        if !io.out.union(io.reading.asked).contains(first) {
            return fetch(first);
        }
        let Some(shares) = io.reading.shares else { return fetch(self.slots().next().ok_or(Stop::Lost)?) };
        let region = (self.offset >> READ_REGION_SHIFT).wrapping_add(io.turn);
        let choice = Choice { there: self.slots().collect(), first, region };
        if shares.is_due() {
            return shares.timed(&choice, io.geometry, self.bytes, fetch).unwrap_or(Err(Stop::Lost));
        }
        fetch(shares.choose(&choice).ok_or(Stop::Lost)?)
    }

    /// Writes the piece to all copies that are in.
    #[inline(always)]
    unsafe fn write(&self, src: *const u8) -> Done {
        let mut places = MaybeUninit::<[*mut u8; MEMBER_COUNT_MAX]>::uninit();
        let places = places.as_mut_ptr().cast::<*mut u8>();
        let mut count = 0;
        for slot in self.slots() {
            // SAFETY: there are no more copies than members; what is written through is mapped for
            // `bytes`; `src` is the caller's promise.
            unsafe {
                match self.io.mapped(slot, self.offset, self.bytes) {
                    Some(place) => places.add(count).write(place),
                    None => return self.write_staged(src),
                }
            }
            count += 1;
        }
        if count == 0 {
            return Err(Stop::Lost);
        }
        // SAFETY: `count` places were written, each mapped for `bytes`; `src` is the caller's
        // promise.
        unsafe { self.io.kernels.mirror_to_media(core::slice::from_raw_parts(places, count), src, self.bytes) };
        Ok(())
    }

    /// Writes where not all copies are mapped, by way of a block on the stack, which keeps the
    /// copies equal.
    #[inline(never)]
    unsafe fn write_staged(&self, src: *const u8) -> Done {
        let mut stage = MaybeUninit::<Block>::uninit();
        let stage = stage.as_mut_ptr().cast::<u8>();
        for done in (0..self.bytes).step_by(BLOCK_BYTES) {
            let step = BLOCK_BYTES.min(self.bytes - done);
            // SAFETY: the stage holds a block; `src` is the caller's promise.
            unsafe {
                self.io.kernels.copy_from_media(stage, src.wrapping_add(done), step);
                self.slots().try_for_each(|slot| self.io.store(slot, self.offset + done as u64, stage, step))?;
            }
        }
        if self.slots().next().is_none() { Err(Stop::Lost) } else { Ok(()) }
    }

    fn resync(&self) -> Done {
        let mut slots = self.slots();
        let first = slots.next().ok_or(Stop::Lost)?;
        slots.try_for_each(|slot| self.copy_between(first, slot))
    }

    fn rebuild(&self, lost: MemberSet) -> Result<bool, Stop> {
        let first = self.slots().find(|&slot| !lost.contains(slot)).ok_or(Stop::Lost)?;
        let Some(source) = self.io.mapped(first, self.offset, self.bytes) else { return Ok(false) };
        for slot in self.slots().filter(|&slot| lost.contains(slot)) {
            // SAFETY: mapped for `bytes`.
            unsafe { self.io.store(slot, self.offset, source, self.bytes)? };
        }
        Ok(true)
    }

    fn copy_between(&self, from: Slot, to: Slot) -> Done {
        if let Some(source) = self.io.mapped(from, self.offset, self.bytes) {
            // SAFETY: mapped for `bytes`.
            return unsafe { self.io.store(to, self.offset, source, self.bytes) };
        }
        let mut stage = MaybeUninit::<Block>::uninit();
        let stage = stage.as_mut_ptr().cast::<u8>();
        for done in (0..self.bytes).step_by(BLOCK_BYTES) {
            let (at, step) = (self.offset + done as u64, BLOCK_BYTES.min(self.bytes - done));
            // SAFETY: the stage holds a block.
            unsafe {
                self.io.fetch(from, at, stage, step)?;
                self.io.store(to, at, stage, step)?;
            }
        }
        Ok(())
    }

    /// Whether all copies that are in are seen to be equal, in one pass over the mapped bytes.
    /// False if they differ, and if one of them is not mapped.
    fn fit_in_place(&self) -> bool {
        let mut slots = self.slots();
        let Some(first) = slots.next().and_then(|slot| self.io.mapped(slot, self.offset, self.bytes)) else { return false };
        slots.all(|slot| {
            let other = self.io.mapped(slot, self.offset, self.bytes);
            // SAFETY: both are mapped for `bytes`.
            other.is_some_and(|other| unsafe { self.io.kernels.fits_p(&[other.cast_const()], first, self.bytes) })
        })
    }

    fn verify(&self) -> Result<u64, Stop> {
        if self.fit_in_place() {
            return Ok(0);
        }
        let mut blocks = MaybeUninit::<[Block; 2]>::uninit();
        let [first, other] = [0, BLOCK_BYTES].map(|at| blocks.as_mut_ptr().cast::<u8>().wrapping_add(at));
        let mut mismatches = 0;
        for done in (0..self.bytes).step_by(BLOCK_BYTES) {
            let (at, step) = (self.offset + done as u64, BLOCK_BYTES.min(self.bytes - done));
            let mut slots = self.slots();
            let lowest = slots.next().ok_or(Stop::Lost)?;
            // SAFETY: each of the two buffers holds a block and is written before it is compared.
            unsafe {
                self.io.fetch(lowest, at, first, step)?;
                for slot in slots {
                    self.io.fetch(slot, at, other, step)?;
                    mismatches += differences(first, other, step);
                }
            }
        }
        Ok(mismatches)
    }
}

/// How many bytes differ.
///
/// # Safety
/// Both are readable for `bytes`.
pub(crate) unsafe fn differences(a: *const u8, b: *const u8, bytes: usize) -> u64 {
    // SAFETY: the caller's promise.
    let (a, b) = unsafe { (core::slice::from_raw_parts(a, bytes), core::slice::from_raw_parts(b, bytes)) };
    a.iter().zip(b).map(|(a, b)| u64::from(a != b)).sum()
}
