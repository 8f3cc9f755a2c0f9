//! Writing: announced in a lane, whole to every reader, redundant before it returns.

use crate::Inode;
use crate::stripes::Blocks;
use array::IoFault;
use core::sync::atomic::Ordering;
use format::LaneKind;
use intent::Change;
use persist::fault::guard;
use sys::OsError;
use units::MemberSet;

impl Inode {
    /// Writes `bytes` from `src` at `offset`; all or, with an error, nothing that changes the file's size.
    ///
    /// # Errors
    /// `FAULT` if `src` is a bad pointer (bytes before the bad page may have been written), `NOSPC`, `DQUOT`, `FBIG`, and `IO` if more
    /// members failed than the level bears.
    ///
    /// # Safety
    /// `src` is the program's: it may be invalid.
    #[inline]
    pub unsafe fn write_at(&self, offset: u64, src: *const u8, bytes: usize) -> Result<usize, OsError> {
        if bytes == 0 {
            return Ok(0);
        }
        self.files.array().before_change()?;
        let end = end_of(offset, bytes)?;
        let shared = self.shared();
        while end <= shared.size.load(Ordering::Acquire) {
            let held = self.lock_stripes(Blocks::of(&self.geometry, offset, bytes as u64))?;
            if end > shared.size.load(Ordering::Acquire) {
                // Truncated while we waited.
                continue;
            }
            if shared.flags.load(Ordering::Relaxed) & format::FLAG_HOLES != 0 {
                self.fill_holes(offset, end)?;
            }
            // SAFETY: as the caller promises; the stripes are locked.
            unsafe { self.store(offset, src, bytes) }?;
            drop(held);
            self.touch();
            return Ok(bytes);
        }
        // SAFETY: as the caller promises.
        unsafe { self.write_growing(Some(offset), src, bytes) }.map(|_| bytes)
    }

    /// Writes at the end of the file, wherever that is. Returns the offset after the last byte written.
    ///
    /// # Errors
    /// As [`Self::write_at`].
    ///
    /// # Safety
    /// `src` is the program's: it may be invalid.
    pub unsafe fn append(&self, src: *const u8, bytes: usize) -> Result<u64, OsError> {
        if bytes == 0 {
            return Ok(self.size());
        }
        self.files.array().before_change()?;
        // SAFETY: as the caller promises.
        unsafe { self.write_growing(None, src, bytes) }
    }

    /// A write that may end past the size. Returns the offset after its last byte.
    unsafe fn write_growing(&self, offset: Option<u64>, src: *const u8, bytes: usize) -> Result<u64, OsError> {
        self.with_size_locked(|size| {
            let offset = offset.unwrap_or(size);
            let end = end_of(offset, bytes)?;
            if end > size {
                self.make_room(size, offset, end)?;
            }
            let shared = self.shared();
            if shared.flags.load(Ordering::Relaxed) & format::FLAG_HOLES != 0 {
                self.fill_holes(offset, end)?;
            }
            let held = self.lock_stripes(Blocks::of(&self.geometry, offset, bytes as u64))?;
            // SAFETY: as the caller promises; the stripes are locked.
            unsafe { self.store(offset, src, bytes) }?;
            if end > size {
                persist::fence();
                self.set_size(end);
            }
            drop(held);
            self.touch();
            Ok(end)
        })
    }

    /// Announces and stores. The stripes are locked, the space is there. After a member's failure it is done again on the rest.
    ///
    /// # Safety
    /// `src` is the program's: it may be invalid.
    #[inline]
    unsafe fn store(&self, offset: u64, src: *const u8, bytes: usize) -> Result<(), OsError> {
        loop {
            let out = self.out();
            self.announce(LaneKind::Write, offset, bytes as u64, out)?;
            // SAFETY: as the caller promises.
            match unsafe { self.striper(out).write(offset, src, bytes) } {
                Ok(()) => return Ok(()),
                Err(fault) => self.after_write_fault(fault, offset, bytes as u64)?,
            }
        }
    }

    #[cold]
    fn after_write_fault(&self, fault: IoFault, offset: u64, bytes: u64) -> Result<(), OsError> {
        let result = self.after_fault(fault);
        if matches!(fault, IoFault::BadAddress) {
            // Some of the stripes may be half written: their redundancy must follow.
            let _ = self.striper(self.out()).resync(offset, bytes);
        }
        result?;
        // The member that failed goes on record before the write is done without it.
        self.files.array().before_change()
    }

    /// Puts a change into this thread's lane on every member in use.
    #[inline]
    pub(crate) fn announce(&self, kind: LaneKind, offset: u64, length: u64, out: MemberSet) -> Result<(), OsError> {
        let runtime = self.files.array().runtime();
        let (lanes, me) = (self.files.lanes(), runtime.me());
        let lane = lanes.own(runtime.lanes(), me, |owner| sync::Liveness::is_alive(runtime, owner));
        let change = Change { kind, inode: self.number, generation: self.generation, offset, length };
        let members = MemberSet::first(self.backing.len()).minus(out);
        // SAFETY: the lane is ours, and the closure owns nothing.
        match unsafe { guard(|| lanes.announce(lane, me, &change, members)) } {
            Ok(()) => Ok(()),
            Err(fault) => {
                let slot = lanes.member_at(fault.address).ok_or(OsError::IO)?;
                self.files.array().fail_member(slot)?;
                self.files.array().before_change()
            }
        }
    }

    /// Stores a new size on every member and for every process. The size lock is held.
    pub(crate) fn set_size(&self, size: u64) {
        self.files.table().set_size(self.files.array(), self.number, size);
        self.shared().size.store(size, Ordering::Release);
    }
}

/// The offset after the last byte, if a file can be that long.
fn end_of(offset: u64, bytes: usize) -> Result<u64, OsError> {
    offset.checked_add(bytes as u64).filter(|&end| end <= i64::MAX as u64).ok_or(OsError::FBIG)
}
