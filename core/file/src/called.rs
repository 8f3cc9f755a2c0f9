//! The bytes of small files: written by calls, without mapping the files.
//!
//! Most small files are written by one call or two and closed. To map such a file on each member, to
//! meet the fault of each page there and to unmap it costs more than one call on each member does.
//!
//! What lies in the first column of the first stripe needs no arithmetic: the other columns hold
//! zeros there, so each parity is a copy of it (the coefficient of Q is 1 for that column). The call
//! that stores also gets the space and makes the backing file longer. A member that stores none of
//! the bytes gets the space alone, so all backing files are alike in length and space.

use crate::Inode;
use crate::stripes::Blocks;
use alloc::vec::Vec;
use array::IoFault;
use core::sync::atomic::{AtomicU8, Ordering};
use dax::{Backing, PersistenceDomain};
use format::LaneKind;
use layout::Geometry;
use medium::Medium as _;
use persist::fault::guard;
use sys::OsError;
use sys::rustix::fs::fstat;
use units::{MemberSet, PAGE_BYTES};

/// A file is written by calls as long as it has at most so many bytes.
const CALLED_BYTES_MAX: u64 = 64 << 10;
/// How many times a file that a process has opened grows by no more than it needs, and by calls where
/// they are better.
pub(crate) const EXACT_GROWTHS: u32 = 2;

/// What is known of the pages that the members' file systems give files: all of the usual size, or huge
/// ones too.
pub(crate) struct Pages(AtomicU8);

impl Pages {
    const UNKNOWN: u8 = 0;
    const USUAL: u8 = 1;
    const HUGE: u8 = 2;

    pub(crate) const fn new() -> Self {
        Self(AtomicU8::new(Self::UNKNOWN))
    }

    /// Asks the members once: a tmpfs that gives files huge pages says so by the block size that it
    /// recommends (stat(2)).
    fn are_usual<'a>(&self, mut backing: impl Iterator<Item = &'a Backing>) -> bool {
        if self.0.load(Ordering::Relaxed) == Self::UNKNOWN {
            let is_usual = |backing: &Backing| {
                let stat = backing.fd().and_then(fstat);
                stat.is_ok_and(|stat| stat.st_blksize as u64 <= PAGE_BYTES as u64)
            };
            let found = if backing.all(is_usual) { Self::USUAL } else { Self::HUGE };
            self.0.store(found, Ordering::Relaxed);
        }
        self.0.load(Ordering::Relaxed) == Self::USUAL
    }
}

impl Inode {
    /// Writes `src` behind the last byte of a file of `size` bytes, which has `end` bytes then, by
    /// calls. The size lock is held. False if nothing was written, and it is to be stored: where
    /// that is better, where there is no space for all of it, and where a call fails that a store
    /// does not need.
    ///
    /// # Errors
    /// `FAULT` if `src` is a bad pointer, and those of members that fail. Nothing is changed then.
    ///
    /// # Safety
    /// `src` is the program's: it may be invalid.
    pub(crate) unsafe fn write_called(&self, size: u64, end: u64, src: *const u8) -> Result<bool, OsError> {
        if !self.is_better_called(size, end) {
            return Ok(false);
        }
        let bytes = (end - size) as usize;
        let mut buffer = Vec::<u8>::new();
        if buffer.try_reserve_exact(bytes).is_err() {
            return Ok(false);
        }
        // All members get the same bytes, whatever another thread of the program does to its own.
        let (kernels, copy) = (self.files.kernels(), buffer.as_mut_ptr());
        // SAFETY: the buffer has room for `bytes`; a fault at `src` leaves the guard. What is run
        // owns nothing.
        if unsafe { guard(|| kernels.copy_from_media(copy, src, bytes)) }.is_err() {
            return self.after_fault(IoFault::BadAddress).map(|()| false);
        }
        let shared = self.shared();
        let had_slack = shared.flags.load(Ordering::Acquire) & format::FLAG_SLACK != 0;
        // Until the size is stored the backing files are too long.
        self.add_flags(format::FLAG_SLACK);
        let held = self.lock_stripes(Blocks::of(&self.geometry, size, bytes as u64))?;
        // What a dead process has left may have been found with the locks.
        let is_sound = || self.out().is_empty() && shared.tail_unfinished.load(Ordering::Relaxed) == 0;
        if !is_sound() {
            return Ok(false);
        }
        self.announce(LaneKind::Write, size, bytes as u64, MemberSet::EMPTY)?;
        // The announcement may have found that a member fails, and so may each call. What the file
        // bears without it is for a striper to say.
        let stored = if is_sound() { self.put_on_members(size, end, copy) } else { return Ok(false) };
        if stored.is_err() || !is_sound() {
            drop(held);
            self.take_back(size)?;
            return Ok(false);
        }
        self.growths.fetch_add(1, Ordering::Relaxed);
        shared.allocated_end.store(end, Ordering::Release);
        persist::fence();
        self.set_size(end);
        if !had_slack && self.files.pages().are_usual(self.in_use().map(|(_, backing)| backing)) {
            // They are as long as the file asks for, and take no more space: the last close need not
            // look at them.
            self.change_flags(0, format::FLAG_SLACK);
        }
        drop(held);
        self.touch();
        Ok(true)
    }

    /// Tells whether what makes a file of `size` bytes `end` bytes long is better written by calls.
    /// A call is not as good as a store where stores are durable without a call, on an array with a
    /// journal, with sums or with a member out, and while a program has mapped the file.
    fn is_better_called(&self, size: u64, end: u64) -> bool {
        let shared = self.shared();
        let is_small = end <= CALLED_BYTES_MAX
            && (!self.geometry.level().has_chunks() || end <= self.geometry.chunk().bytes())
            && self.growths.load(Ordering::Relaxed) < EXACT_GROWTHS;
        let is_volatile = || self.in_use().all(|(_, backing)| backing.domain() == PersistenceDomain::Volatile);
        is_small
            && self.writable
            && !self.has_sums
            && !self.has_holes()
            // Nothing lies behind the end, so what is written there can be taken back.
            && shared.allocated_end() == size
            && shared.tail_unfinished.load(Ordering::Relaxed) == 0
            && self.out().is_empty()
            && self.files.journal().is_none()
            && !shared.is_mapped()
            && is_volatile()
    }

    /// Puts the bytes from `size` to `end` on all members that store them, and gets the others the
    /// same space. The stripes are locked, and the range is announced.
    ///
    /// A call, unlike a store, does not meet the end of a backing file that somebody has cut, and
    /// makes the file long again. So each file of some length is looked at first.
    fn put_on_members(&self, size: u64, end: u64, bytes: *const u8) -> Result<(), OsError> {
        let storing = storing(&self.geometry);
        self.on_slots(|slot, backing| {
            if storing.contains(slot) {
                // SAFETY: the bytes are this process' own.
                unsafe { backing.put(size, bytes, (end - size) as usize) }
            } else {
                backing.allocate_just(size, end)
            }
        })
    }

    /// Takes away what a failed call has put behind the end. The size lock is held, and no stripe
    /// lock.
    #[cold]
    fn take_back(&self, size: u64) -> Result<(), OsError> {
        // As for `lengthen_backing_files`.
        let held = self.lock_stripes(Blocks::ALL)?;
        let cut = self.on_members(|backing| backing.set_len(size));
        self.shared().allocation_epoch.fetch_add(1, Ordering::AcqRel);
        if cut.is_err() {
            self.leave_tail();
        }
        drop(held);
        cut
    }
}

/// The members that store what lies in the first column of the first stripe, or copies of it, or
/// parity.
fn storing(geometry: &Geometry) -> MemberSet {
    let copies = (0..geometry.copy_count()).map(|copy| geometry.data_slot(0, 0, copy));
    let parities = (0..geometry.level().parity_count()).map(|which| geometry.parity_slot(0, which));
    copies.chain(parities).collect()
}

#[cfg(test)]
mod tests {
    use super::storing;
    use layout::{Geometry, Level};
    use units::{ChunkBytes, MemberSet};

    #[test]
    fn the_first_column_lies_on_its_copies_and_parities() {
        let chunk = ChunkBytes::from_shift(12).unwrap();
        let of = |level, members| storing(&Geometry::new(level, members, chunk).unwrap());
        let set = |slots: &[usize]| slots.iter().fold(MemberSet::EMPTY, |set, &slot| set.with(slot));
        assert_eq!(of(Level::Raid0, 3), set(&[0]));
        assert_eq!(of(Level::Raid1, 3), set(&[0, 1, 2]));
        assert_eq!(of(Level::Raid4, 4), set(&[0, 3]));
        assert_eq!(of(Level::Raid5, 4), set(&[0, 3]));
        assert_eq!(of(Level::Raid6, 5), set(&[1, 4, 0]));
        assert_eq!(of(Level::Raid10, 4), set(&[0, 1]));
        assert_eq!(of(Level::Raid01, 4), set(&[0, 2]));
    }
}
