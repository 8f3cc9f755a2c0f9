//! The sums of a file's blocks: when they are opened, kept, and taken away.
//!
//! The striper keeps sums in step with what it stores ([`array::sums`]), and a backing file takes
//! away those of what it cuts or punches. Here is what is left: who stores past the stripe locks,
//! and what a crash leaves.
//!
//! Invariants:
//! - Whoever has stripe locks and may store under them has the sums open: it opens them once it has
//!   the locks, so none that another process has made for these blocks is missed.
//! - While a file has records of writable mappings, no block of it gets a sum. The range of a record
//!   loses its sums under its locks, once the record is there, before it has that range and before
//!   the program can store.
//! - Of what waits for resync no sum is believed, and it has none left before it is made to agree.
//!   So a crash needs no order between bytes and sums: a lane, or a note of the whole file, names
//!   all that may be out of step.

use crate::files::{Files, may_park};
use crate::inode::Inode;
use crate::stripes::Blocks;
use array::sums::SUM_BLOCK_BYTES;
use array::sums::Summing;
use array::{IoFault, Rot, Striper};
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};
use dax::Backing;
use format::{Attribute, Resync};
use layout::Geometry;
use medium::Medium;
use sys::OsError;
use units::{MemberSet, Slot};

/// So many reads of a process that met rotten blocks are told of.
const TOLD_MAX: u32 = 100;

impl Files {
    /// Tells whether files of this shape have sums.
    pub(crate) fn has_sums(&self, geometry: &Geometry) -> bool {
        self.array().has_sums() && array::sums::can_have_sums(geometry)
    }

    /// Removes the sums of a file that is gone.
    pub(crate) fn remove_sums(&self, file: Attribute) {
        self.array().remove_sums(file);
    }

    /// Removes the sums of files that are gone, which deaths and crashes have left behind, and whoever
    /// removed a file while a member was away. What cannot be removed now is the next one's affair: it
    /// costs its space, and nothing else.
    pub fn clear_sums(&self) {
        let array = self.array();
        if !array.has_sums() {
            return;
        }
        for slot in array.in_use().iter() {
            for file in array.files_with_sums(slot).unwrap_or_default() {
                let is_gone = || self.is_free(file) == Ok(true);
                // Most are there, and nobody need wait for that.
                if is_gone() {
                    array.runtime().with_open_files(|_| {
                        if is_gone() && !self.is_open(file) {
                            array.remove_sums(file);
                        }
                    });
                }
            }
        }
    }
}

impl Inode {
    /// What becomes of the sums of blocks that are stored to now.
    #[inline]
    pub(crate) fn summing(&self) -> Summing {
        if !self.has_sums {
            return Summing::Off;
        }
        if self.shared().is_mapped() { Summing::Forget } else { Summing::Keep }
    }

    /// Makes the sums ready for stores. The caller has stripe locks, or looks only.
    pub(crate) fn ready_sums(&self) -> Result<(), OsError> {
        self.refresh_allocations();
        let out = self.files.array().runtime().out();
        for (slot, backing) in self.backings_but(out) {
            if backing.has_sums() {
                continue;
            }
            match self.files.array().open_sums(slot, self.attribute()) {
                // Not a number that the program may close, or counts on.
                Ok(Some(fd)) => backing.open_sums(sys::high_fd::raise(fd)?, may_park),
                // There are none, and there is no space for any: nothing is out of step.
                Ok(None) => {}
                Err(error) => self.files.array().after_call(slot, Err(error))?,
            }
        }
        Ok(())
    }

    fn backings_but(&self, out: MemberSet) -> impl Iterator<Item = (Slot, &Backing)> {
        let all = self.backing.iter().enumerate().filter(move |(slot, _)| !out.contains(*slot));
        all.filter_map(|(slot, backing)| Some((slot, backing.as_ref()?)))
    }

    /// Takes away the sums of a range of some members' backing files. The caller has its locks, and
    /// the sums are ready.
    fn forget_sums(&self, members: MemberSet, range: Range<u64>) -> Result<(), OsError> {
        let array = self.files.array();
        for (slot, backing) in self.backings_but(array.runtime().out()).filter(|(slot, _)| members.contains(*slot)) {
            array.after_call(slot, backing.forget_sums(range.start, range.end - range.start))?;
        }
        self.shared().allocation_epoch.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// The bytes of each backing file in the rows of a range of the file.
    fn rows_of(&self, range: &Range<u64>) -> Range<u64> {
        let geometry = &self.geometry;
        if !geometry.level().has_chunks() {
            return range.clone();
        }
        let rows = |stripe| geometry.member_offset(stripe);
        rows(geometry.stripe_of(range.start))..rows(geometry.stripe_of(range.end.saturating_sub(1)) + 1)
    }

    /// Takes away the sums of what a program may store to past the locks from now on: its mapping has
    /// a record, so no block gets a new one.
    pub(crate) fn forget_sums_of_mapping(&self, start: u64, end: u64) -> Result<(), OsError> {
        if !self.has_sums || start >= end {
            return Ok(());
        }
        let held = self.lock_stripes(Blocks::of(&self.geometry, start, end - start))?;
        let result = self.forget_sums(MemberSet::first(self.backing.len()), self.rows_of(&(start..end)));
        drop(held);
        result
    }

    /// Takes away the sums of what is about to be made to agree: of a noted range, and of all that
    /// members have lost. All stripes are locked.
    pub(crate) fn forget_sums_of_noted(&self, range: &Resync, size: u64) -> Result<(), OsError> {
        if !self.has_sums {
            return Ok(());
        }
        self.forget_sums(range.lost, 0..u64::MAX)?;
        if range.start >= range.end {
            return Ok(());
        }
        let rows = self.rows_of(&(range.start.min(size)..range.end.min(size)));
        // What lies behind the end is noted with it.
        let end = if range.end >= size { u64::MAX } else { rows.end };
        self.forget_sums(MemberSet::first(self.backing.len()), rows.start..end)
    }

    /// Takes away the sums of what lies behind the end of the file. All stripes are locked.
    pub(crate) fn forget_sums_behind(&self, size: u64) -> Result<(), OsError> {
        if !self.has_sums {
            return Ok(());
        }
        let start = if self.geometry.level().has_chunks() { self.rows_of(&(size..size + 1)).start } else { size };
        self.forget_sums(MemberSet::first(self.backing.len()), start..u64::MAX)
    }

    /// Tells whether the sums of the file count now: no block of it waits for resync.
    pub(crate) fn believes_sums(&self) -> bool {
        self.has_sums && self.shared().resync_waits.load(Ordering::Acquire) == 0
    }

    /// Reads from members: where bytes have to be computed, or the array's reads verify what they
    /// return, nothing is believed that does not fit its sum. `rot` notes what was found; it counts if
    /// no writer was there.
    ///
    /// # Errors
    /// [`IoFault::Os`] with `IO` for bytes that nothing else gives.
    ///
    /// # Safety
    /// The caller promises what [`Striper::read`] asks for.
    #[inline(always)]
    pub(crate) unsafe fn read_members(
        &self,
        striper: &Striper<'_, Backing>,
        offset: u64,
        dst: *mut u8,
        bytes: usize,
        rot: &mut Rot,
    ) -> Result<(), IoFault> {
        if self.has_sums && (self.files.array().verifies_reads() || !self.out().is_empty()) {
            // SAFETY: as the caller promises.
            return unsafe { self.read_checked(striper, offset, dst, bytes, rot) };
        }
        // SAFETY: as above.
        unsafe { striper.read(offset, dst, bytes) }
    }

    #[inline(never)]
    unsafe fn read_checked(
        &self,
        striper: &Striper<'_, Backing>,
        offset: u64,
        dst: *mut u8,
        bytes: usize,
        rot: &mut Rot,
    ) -> Result<(), IoFault> {
        if !self.believes_sums() {
            // SAFETY: as the caller promises.
            return unsafe { striper.read(offset, dst, bytes) };
        }
        match self.ready_sums() {
            Ok(()) => {}
            // A program that has given up rights, or has no descriptor left, reads as before.
            Err(error) if array::is_of_process(error) && self.out().is_empty() => {
                // SAFETY: as the caller promises.
                return unsafe { striper.read(offset, dst, bytes) };
            }
            Err(error) => return Err(IoFault::Os(error)),
        }
        let all = self.files.array().verifies_reads();
        // SAFETY: as the caller promises.
        let done = unsafe { striper.read_checked(offset, dst, bytes, all, rot) };
        let others = striper.out.minus(self.out());
        if !rot.is_lost || others.is_empty() {
            return done;
        }
        // Stores through mappings do not land on these copies. But blocks with sums have none.
        let mut read = 0;
        while read < bytes {
            let at = offset + read as u64;
            let step = (SUM_BLOCK_BYTES - at % SUM_BLOCK_BYTES).min((bytes - read) as u64) as usize;
            let mut own = Rot::default();
            // SAFETY: as the caller promises, for a part of the range.
            let mut done = unsafe { striper.read_checked(at, dst.wrapping_add(read), step, all, &mut own) };
            if own.is_lost {
                let met = own.block;
                let striper = self.striper(self.out());
                // SAFETY: as above.
                done = unsafe { striper.read_checked(at, dst.wrapping_add(read), step, all, &mut own) };
                own = Rot { block: own.block.or(met), is_lost: done.is_err() };
            }
            if own.block.is_some() && (own.is_lost || rot.block.is_none() || rot.is_lost) {
                *rot = own;
            }
            done?;
            read += step;
        }
        Ok(())
    }

    /// Tells that a read has met a block that does not fit its sum: once for reads of the same block
    /// that follow each other, and for so many reads of a process. A scrub finds all.
    #[cold]
    pub(crate) fn tell_rot(&self, rot: &Rot) {
        static TOLD: AtomicU32 = AtomicU32::new(0);
        let Some(block) = rot.block else { return };
        let which = (block.offset / SUM_BLOCK_BYTES + 1) << 1 | u64::from(rot.is_lost);
        if self.rot_told.swap(which, Ordering::Relaxed) == which || TOLD.load(Ordering::Relaxed) >= TOLD_MAX {
            return;
        }
        TOLD.fetch_add(1, Ordering::Relaxed);
        let path = self.backing.get(block.slot).and_then(Option::as_ref).map(Self::host_path).unwrap_or_default();
        self.files.array().tell_rot(block.slot, &path, rot);
    }

    /// Tells whether blocks without sums may get some that fit, where redundancy fits.
    pub(crate) fn may_seal(&self) -> bool {
        let shared = self.shared();
        self.believes_sums()
            && self.writable
            && self.out().is_empty()
            && !self.is_left_alone()
            && shared.mapped.load(Ordering::Acquire) == 0
            && shared.tail_unfinished.load(Ordering::Acquire) == 0
            && shared.stripes_unfinished.load(Ordering::Acquire) == 0
    }
}
