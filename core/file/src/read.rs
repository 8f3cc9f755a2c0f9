//! Reading: no lock in the common case, and never a torn result.

use crate::Inode;
use crate::full_tmpfs::Missed;
use crate::stripes::{Blocks, Snapshot, StripesHeld};
use crate::undo;
use array::{IoFault, Reading, Rot, Striper};
use core::hint::spin_loop;
use core::sync::atomic::Ordering;
use dax::Backing;
use sys::OsError;

/// How often a reader that met a writer tries again before it takes the locks.
const TRY_COUNT: u32 = 3;

impl crate::Files {
    /// The process may soon not make calls any more that it makes now: what was read by calls is
    /// mapped.
    pub fn map_what_is_read(&self) {
        self.for_each_set(|inode| inode.backing.iter().flatten().for_each(Backing::map_what_is_read));
    }
}

impl Inode {
    /// Reads up to `bytes` from `offset` into `dst` and returns how many there were before the end
    /// of the file.
    ///
    /// # Errors
    /// `FAULT` if `dst` is a bad pointer, `IO` if more members failed than the level bears, or if a
    /// writer died here while a member was out and only who may write to the file can undo what it
    /// left.
    ///
    /// # Safety
    /// `dst` is the program's: it may be invalid, but if it is valid memory it is the program's to
    /// be written.
    #[inline]
    pub unsafe fn read_at(&self, offset: u64, dst: *mut u8, bytes: usize) -> Result<usize, OsError> {
        let shared = self.shared();
        let mut size = shared.size();
        if offset.saturating_add(bytes as u64) > size {
            size = self.settled_size();
        }
        if offset >= size || bytes == 0 {
            return self.ended();
        }
        let count = (bytes as u64).min(size - offset) as usize;
        let blocks = Blocks::of(&self.geometry, offset, count as u64);
        // The file may have been cut since its size was read: the zeros behind its end are not to
        // be read.
        if let Some(snapshot) = Snapshot::take(shared, blocks)
            && shared.size() >= offset + count as u64
            && !self.waits_for_undo(blocks)
        {
            let mut rot = Rot::default();
            // SAFETY: as the caller promises.
            let result = unsafe { self.read_range(offset, dst, count, &mut rot) };
            if result.is_ok() && rot.block.is_none() && snapshot.is_current(shared) {
                return Ok(count);
            }
        }
        // SAFETY: as the caller promises.
        unsafe { self.read_contended(offset, dst, bytes) }
    }

    /// Nothing is read behind the end, if it is one: without the runtime segment nobody knows where
    /// it is.
    pub(crate) fn ended(&self) -> Result<usize, OsError> {
        if self.files.array().runtime().is_lost() { Err(OsError::IO) } else { Ok(0) }
    }

    /// Whether data of these blocks may be computed from what a process that died has left half
    /// stored. Whoever may write to the file undoes that under the locks.
    #[inline]
    pub(crate) fn waits_for_undo(&self, blocks: Blocks) -> bool {
        undo::is_needed(&self.geometry, self.out())
            && self.shared().stripes_unfinished.load(Ordering::Acquire) & blocks.mask() != 0
    }

    /// Reads from the members, or from where stores of mappings land. `rot` notes blocks that do not
    /// fit their sums.
    #[inline(always)]
    pub(crate) unsafe fn read_range(&self, offset: u64, dst: *mut u8, bytes: usize, rot: &mut Rot) -> Result<(), IoFault> {
        if !self.shared().is_mapped() {
            // SAFETY: as the caller promises.
            return unsafe { self.read_members(&self.reader(), offset, dst, bytes, rot) };
        }
        // SAFETY: as above.
        unsafe { self.read_mapped(offset, dst, bytes, rot) }
    }

    /// The striper for reads. Where copies may differ, since a writer died or the machine crashed
    /// and nobody has made them agree yet, it reads the copy that they will be made equal to.
    #[inline(always)]
    pub(crate) fn reader(&self) -> Striper<'_, Backing> {
        let mut striper = self.striper(self.out());
        if self.shared().is_unsettled() {
            striper.reading = Reading::LOWEST;
        }
        striper
    }

    /// Reads again after a fault: a member that is merely full can still be read.
    #[cold]
    unsafe fn read_range_again(&self, offset: u64, dst: *mut u8, bytes: usize, rot: &mut Rot) -> Result<(), Missed> {
        // SAFETY: as the caller promises.
        match unsafe { self.read_range(offset, dst, bytes, rot) } {
            Err(IoFault::Member(slot)) if self.is_full(slot) && !self.shared().is_mapped() => {
                // SAFETY: as above.
                unsafe { self.read_by_calls(offset, dst, bytes) }
            }
            result => result.map_err(Missed::Otherwise),
        }
    }

    /// Once more after a writer or a fault got in the way.
    #[cold]
    unsafe fn read_contended(&self, offset: u64, dst: *mut u8, bytes: usize) -> Result<usize, OsError> {
        let shared = self.shared();
        let mut tries = 0;
        loop {
            let size = shared.size();
            if offset >= size {
                return self.ended();
            }
            let count = (bytes as u64).min(size - offset) as usize;
            let blocks = Blocks::of(&self.geometry, offset, count as u64);
            tries += 1;
            let mut rot = Rot::default();
            let (result, current) = if tries <= TRY_COUNT {
                for _ in 0..100 {
                    spin_loop();
                }
                let Some(snapshot) = Snapshot::take(shared, blocks) else { continue };
                if self.waits_for_undo(blocks) {
                    tries = TRY_COUNT;
                    continue;
                }
                let reaches = shared.size() >= offset + count as u64;
                // SAFETY: as the caller promises.
                let result = unsafe { self.read_range_again(offset, dst, count, &mut rot) };
                (result, reaches && snapshot.is_current(shared))
            } else {
                let held = self.lock_stripes(blocks)?;
                if self.waits_for_undo(blocks) {
                    // This process may not store. What it would compute may be bytes that nobody
                    // wrote.
                    return Err(OsError::IO);
                }
                let current = shared.size() >= offset + count as u64;
                // SAFETY: as the caller promises.
                let result = unsafe { self.read_range_again(offset, dst, count, &mut rot) };
                drop(held);
                (result, current)
            };
            // What a writer did meanwhile may be why it failed: only a current result counts.
            if current {
                self.tell_rot(&rot);
                match result {
                    Ok(()) => return Ok(count),
                    Err(missed) => self.after_missed(missed)?,
                }
            }
        }
    }

    /// How many bytes of redundancy do not fit the data, with every writer kept out meanwhile (a
    /// scrub of one file).
    pub fn verify(&self) -> Result<u64, OsError> {
        self.finish_mappings()?;
        self.with_size_locked(|size| {
            let _held = self.lock_stripes(Blocks::ALL)?;
            let mut mismatches = 0;
            self.each_step(0, size, |offset, bytes| {
                mismatches +=
                    self.striper(self.out()).verify(offset, bytes).or_else(|fault| self.after_fault(fault).map(|()| 0))?;
                Ok(())
            })?;
            Ok(mismatches)
        })
    }

    /// Keeps every reader and writer out.
    pub(crate) fn lock_all_stripes(&self) -> Result<StripesHeld<'_>, OsError> {
        self.lock_stripes(Blocks::ALL)
    }

    /// What follows from a fault: Ok if the operation can be done again on the members that are
    /// left.
    #[cold]
    pub(crate) fn after_fault(&self, fault: IoFault) -> Result<(), OsError> {
        match fault {
            IoFault::Member(slot) if self.is_full(slot) => Err(OsError::NOSPC),
            IoFault::Member(slot) if self.leave_out_if_cut(slot)? => Ok(()),
            IoFault::Member(slot) => self.files.array().fail_member(slot),
            IoFault::BadAddress => Err(OsError::FAULT),
            IoFault::Lost => Err(OsError::IO),
            IoFault::Os(error) => Err(error),
        }
    }
}
