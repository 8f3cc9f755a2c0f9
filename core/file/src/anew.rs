//! This module computes from the other members what some members have lost of a file.
//!
//! Only that is computed of which some member has data, and only the members that have lost it get
//! space for it: what is a hole on all members stays one. Nothing is stored to the other members, and
//! they get no space. So a rebuild takes on a member about what the others have taken, and members
//! that are full are no hindrance.
//!
//! There is one exception, in which the stripes are written to all members: where a block has rotted of
//! which the others give the bytes, so that redundancy which fits the rotten bytes is not made
//! afterwards.
//!
//! What lies behind the file's end in its last stripe is computed as well, and not taken for zeros: a
//! mapping may have stored something there, or a process that died, and parity counts it. Zeros in one
//! column would make of another one, which is out, bytes that nobody wrote.

use crate::Inode;
use crate::resync::STEP_BYTES;
use alloc::vec::Vec;
use array::runtime::is_filtered;
use array::sums::Summing;
use array::{IoFault, Reading, Rot, Striper};
use core::ops::Range;
use sys::OsError;
use units::MemberSet;

/// Some stripes of a file, or some rows of one stripe.
pub(crate) struct Piece {
    /// The offset in the file at which the stripes begin.
    pub(crate) offset: u64,
    /// The number of bytes of the file that they have, up to its end.
    pub(crate) bytes: u64,
    /// The part of the backing files that is meant.
    rows: Range<u64>,
    /// Tells whether `rows` are all rows of the stripes.
    is_whole: bool,
    /// The number of bytes of the file that are computed.
    pub(crate) computed_bytes: u64,
}

impl Inode {
    /// Computes what the members in `lost` hold of a file of `size` bytes, piece by piece. `each` is
    /// given a piece, and what computes it and returns whether its redundancy is known to fit then. The
    /// caller holds the size lock and all stripe locks, and the backing files have their length.
    pub(crate) fn compute_lost(
        &self,
        lost: MemberSet,
        size: u64,
        mut each: impl FnMut(&Piece, &dyn Fn() -> Result<bool, OsError>) -> Result<(), OsError>,
    ) -> Result<(), OsError> {
        self.refresh_allocations();
        // A process that died while it made such a backing file shorter or longer has told nobody.
        self.in_use().filter(|(slot, _)| lost.contains(*slot)).for_each(|(_, backing)| backing.forget_allocations());
        // A filter of system calls may end the process for a call that it has not made before.
        let populates = size >= STEP_BYTES && !is_filtered();
        let (mut at, end) = (0, self.geometry.member_bytes(size));
        while let Some(run) = self.next_run(at, end) {
            at = run.end;
            if run != (0..end) {
                // Nobody must take all of it for allocated, nor load from what is not.
                self.add_flags(format::FLAG_HOLES);
            }
            if self.has_holes() {
                self.mind_holes();
                self.in_use().for_each(|(_, backing)| backing.look_for_data(run.start, run.end));
            }
            self.each_piece(&run, size, |piece| each(piece, &|| self.compute_piece(lost, piece, populates)))?;
        }
        if at == 0 && end > 0 {
            // All of it is a hole.
            self.add_flags(format::FLAG_HOLES);
        }
        Ok(())
    }

    /// Cuts a run of bytes of the backing files into pieces: as many whole stripes as are computed at a
    /// time, and what of a stripe is left at either end. A stripe in which the file ends is a piece of
    /// its own.
    fn each_piece(
        &self,
        run: &Range<u64>,
        size: u64,
        mut visit: impl FnMut(&Piece) -> Result<(), OsError>,
    ) -> Result<(), OsError> {
        // At RAID 1 each byte is a stripe.
        let chunk = if self.geometry.level().has_chunks() { self.geometry.chunk().bytes() } else { 1 };
        let stripe = self.stripe_step();
        let step = STEP_BYTES.div_ceil(stripe) * chunk;
        let full = size / stripe * chunk;
        let mut at = run.start;
        while at < run.end {
            let (first, last) = (at / chunk * chunk, run.end / chunk * chunk);
            let is_whole = at == first && at < last;
            let end = match is_whole {
                true if at < full => full.min(last).min(at + step),
                true => last,
                false => run.end.min(first + chunk),
            };
            let offset = first / chunk * stripe;
            let bytes = ((end.div_ceil(chunk) - first / chunk) * stripe).min(size.saturating_sub(offset));
            let computed_bytes = ((end - at) * (stripe / chunk)).min(bytes);
            visit(&Piece { offset, bytes, rows: at..end, is_whole, computed_bytes })?;
            at = end;
        }
        Ok(())
    }

    /// Computes what the members in `lost` hold of a piece. This can be cut short and repeated. Does
    /// nothing if the others do not suffice and never will. Returns whether the redundancy is known to
    /// fit now.
    fn compute_piece(&self, lost: MemberSet, piece: &Piece, populates: bool) -> Result<bool, OsError> {
        loop {
            let lost = lost.minus(self.out());
            if lost.is_empty() || !self.can_compute(lost)? {
                return Ok(false);
            }
            self.on_some(lost, |backing| backing.fill(piece.rows.start, piece.rows.end))?;
            if populates {
                self.populate(lost, &piece.rows);
            }
            match self.compute_in_place(lost, piece) {
                Ok(fits) => return Ok(fits),
                Err(fault) => self.after_fault(fault).and_then(|()| self.files.array().before_change())?,
            }
        }
    }

    /// Puts the pages of these members in place that are about to be stored to: a fault for each of
    /// them costs more than computing its bytes.
    fn populate(&self, lost: MemberSet, rows: &Range<u64>) {
        for (_, backing) in self.in_use().filter(|(slot, _)| lost.contains(*slot)) {
            backing.populate(rows.start, rows.end - rows.start);
        }
    }

    /// Computes a piece on the members in `lost`, which have its space. Returns whether its redundancy
    /// is known to fit now.
    fn compute_in_place(&self, lost: MemberSet, piece: &Piece) -> Result<bool, IoFault> {
        let striper = self.striper(self.out());
        let is_cut = !piece.bytes.is_multiple_of(self.stripe_step());
        if piece.is_whole && !is_cut && striper.rebuild(lost, piece.offset, piece.bytes)? {
            return Ok(striper.fits_when_rebuilt(lost));
        }
        let mut rot = Rot::default();
        if piece.is_whole { self.compute_stripes(lost, piece, &mut rot) } else { self.compute_rows(lost, piece, &mut rot) }?;
        if rot.block.is_some() {
            return self.write_anew(lost, piece).map(|()| false);
        }
        // The comparison of the file's last stripe ends with the file: so it is not known whether
        // all of the stripe fits.
        Ok(!is_cut && striper.fits_when_rebuilt(lost))
    }

    /// Reads whole stripes without the members in `lost`, and stores what these are to hold of them.
    fn compute_stripes(&self, lost: MemberSet, piece: &Piece, rot: &mut Rot) -> Result<(), IoFault> {
        let stripe_bytes = self.stripe_step();
        let mut data = alloc::vec![0; piece.bytes.next_multiple_of(stripe_bytes) as usize];
        self.read_without(lost, piece.offset, &mut data, rot)?;
        if rot.block.is_some() {
            return Ok(());
        }
        let striper = self.striper(self.out());
        if !self.geometry.level().has_chunks() {
            return striper.store_lost(lost, 0, piece.rows.clone(), &data, data.len());
        }
        let (first, chunk) = (piece.offset / stripe_bytes, self.geometry.chunk().bytes());
        let stripes = (first..).zip(data.chunks_exact(stripe_bytes as usize));
        stripes.into_iter().try_for_each(|(stripe, data)| striper.store_lost(lost, stripe, 0..chunk, data, chunk as usize))
    }

    /// Does what [`Self::compute_stripes`] does for some rows of one stripe.
    fn compute_rows(&self, lost: MemberSet, piece: &Piece, rot: &mut Rot) -> Result<(), IoFault> {
        let (stripe_bytes, chunk) = (self.stripe_step(), self.geometry.chunk().bytes());
        let stripe = piece.offset / stripe_bytes;
        let start = self.geometry.member_offset(stripe);
        let rows = piece.rows.start - start..piece.rows.end - start;
        let bytes = (rows.end - rows.start) as usize;
        let mut data = alloc::vec![0; bytes * self.geometry.data_columns()];
        for (column, held) in (0..).zip(data.chunks_exact_mut(bytes)) {
            let at = column * chunk + rows.start;
            self.read_without(lost, piece.offset + at, held, rot)?;
        }
        if rot.block.is_some() {
            return Ok(());
        }
        self.striper(self.out()).store_lost(lost, stripe, rows, &data, bytes)
    }

    /// Reads bytes of the file without the members in `lost`, and believes no block that has rotted.
    fn read_without(&self, lost: MemberSet, offset: u64, data: &mut [u8], rot: &mut Rot) -> Result<(), IoFault> {
        if data.is_empty() {
            return Ok(());
        }
        // Where copies differ, the one that readers have seen and the others will be made equal to.
        let without = Striper { reading: Reading::LOWEST, ..self.striper(self.out().union(lost)) };
        // SAFETY: the buffer is our own.
        unsafe {
            match without.sums {
                Summing::Off => without.read(offset, data.as_mut_ptr(), data.len()),
                // Nothing is made anew from what has rotted.
                _ => without.read_checked(offset, data.as_mut_ptr(), data.len(), true, rot),
            }
        }
    }

    /// Reads the stripes of a piece without the members in `lost`, and writes them to all members in
    /// use, with the zeros behind the end of the file. Parity comes out as it was.
    #[cold]
    fn write_anew(&self, lost: MemberSet, piece: &Piece) -> Result<(), IoFault> {
        let whole = piece.bytes.next_multiple_of(self.stripe_step());
        self.fill_holes(piece.offset, piece.offset + whole).map_err(IoFault::Os)?;
        let mut data: Vec<u8> = alloc::vec![0; whole as usize];
        self.read_without(lost, piece.offset, &mut data[..piece.bytes as usize], &mut Rot::default())?;
        // SAFETY: the buffer is our own.
        unsafe { self.striper(self.out()).write(piece.offset, data.as_ptr(), data.len()) }
    }
}
