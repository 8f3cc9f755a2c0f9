//! Writing: announced in a lane, whole to every reader, redundant before it returns.

use crate::Inode;
use crate::journal::After;
use crate::stripes::Blocks;
use crate::undo;
use array::{IoFault, Striper, Undo};
use core::sync::atomic::Ordering;
use format::LaneKind;
use sys::OsError;
use units::{MemberSet, PAGE_BYTES};

impl Inode {
    /// Writes `bytes` from `src` at `offset`, as one whole, or with an error nothing that changes
    /// the file's size. Less is written, and returned, only if no more fits: below the process'
    /// limit of file sizes, or onto the members.
    ///
    /// # Errors
    /// `FAULT` if `src` is a bad pointer (bytes before the bad page may have been written),
    /// `NOSPC`, `DQUOT`, `FBIG` at the limit, and `IO` if more members failed than the level bears.
    ///
    /// # Safety
    /// `src` is the program's: it may be invalid.
    #[inline]
    pub unsafe fn write_at(&self, offset: u64, src: *const u8, bytes: usize) -> Result<usize, OsError> {
        // SAFETY: as the caller promises.
        self.with_lanes(|| unsafe { self.write_where(offset, src, bytes) })
    }

    #[inline]
    unsafe fn write_where(&self, offset: u64, src: *const u8, bytes: usize) -> Result<usize, OsError> {
        if bytes == 0 {
            return Ok(0);
        }
        self.files.array().before_change()?;
        let end = end_of(offset, bytes)?;
        let bytes = (end - offset) as usize;
        self.drop_privileges()?;
        self.require_borne()?;
        let shared = self.shared();
        while end <= shared.size() {
            let held = self.lock_stripes(Blocks::of(&self.geometry, offset, bytes as u64))?;
            if end > shared.size() {
                // Truncated while we waited.
                continue;
            }
            let mut end = end;
            if self.has_holes() {
                end = fitting(offset, end, |end| self.fill_holes(offset, end))?;
            }
            let bytes = (end - offset) as usize;
            // SAFETY: as the caller promises; the stripes are locked.
            unsafe { self.store(offset, src, bytes) }?;
            drop(held);
            self.touch();
            // Who went out since lacks these bytes: that is on record before they count as written.
            self.files.array().before_change()?;
            return Ok(bytes);
        }
        // SAFETY: as the caller promises.
        unsafe { self.write_growing(Some(offset), src, bytes) }.map(|(_, bytes)| bytes)
    }

    /// Writes at the end of the file, wherever that is. Returns the offset after the last byte
    /// written, and how many were.
    ///
    /// # Errors
    /// As [`Self::write_at`].
    ///
    /// # Safety
    /// `src` is the program's: it may be invalid.
    pub unsafe fn append(&self, src: *const u8, bytes: usize) -> Result<(u64, usize), OsError> {
        if bytes == 0 {
            return Ok((self.size(), 0));
        }
        self.files.array().before_change()?;
        self.with_lanes(|| {
            self.drop_privileges()?;
            // SAFETY: as the caller promises.
            unsafe { self.write_growing(None, src, bytes) }
        })
    }

    /// Asks whether the file's level bears the loss of the members that are out. Nothing of a file
    /// that does not is changed: what it holds is whole again when the members are back.
    ///
    /// # Errors
    /// `IO` if it does not.
    #[inline]
    pub(crate) fn require_borne(&self) -> Result<(), OsError> {
        if !self.files.array().may_have_shapes() {
            // The array as a whole would not go on.
            return Ok(());
        }
        let out = self.out();
        if out.is_empty() || self.geometry.survives(out) { Ok(()) } else { Err(OsError::IO) }
    }

    /// A write that may end past the size. Returns the offset after its last byte, and its bytes.
    unsafe fn write_growing(&self, offset: Option<u64>, src: *const u8, bytes: usize) -> Result<(u64, usize), OsError> {
        self.change_size_locked(|size| {
            let offset = offset.unwrap_or(size);
            let end = end_of(offset, bytes)?;
            // SAFETY: as the caller promises.
            if offset == size && unsafe { self.write_called(size, end, src)? } {
                return Ok((end, (end - offset) as usize));
            }
            let end = fitting(offset, end, |end| {
                if end > size {
                    self.make_room(size, offset, end)?;
                    self.set_copy_bytes(end)?;
                }
                if self.has_holes() { self.fill_holes(offset, end) } else { Ok(()) }
            })?;
            let bytes = (end - offset) as usize;
            let held = self.lock_stripes(Blocks::of(&self.geometry, offset, bytes as u64))?;
            // SAFETY: as the caller promises; the stripes are locked.
            if let Err(error) = unsafe { self.store(offset, src, bytes) } {
                drop(held);
                if end > size {
                    // Some of it may lie behind the end.
                    self.leave_tail();
                    if self.gives_privileges() {
                        // Whoever comes next may have to take them away for that, which this
                        // process need not. If it fails, somebody else tries again.
                        let _ = self.finish_tail();
                    }
                }
                // Pieces that went through the journal may have made the file longer: they are
                // written, and nobody must append them once more.
                let reached = self.size().min(end);
                if reached <= size.max(offset) {
                    return Err(error);
                }
                self.touch();
                return Ok((reached, (reached - offset) as usize));
            }
            if end > size {
                persist::fence();
                self.set_size(end);
            }
            drop(held);
            self.touch();
            Ok((end, bytes))
        })
    }

    /// Announces and stores. The stripes are locked, the space is there. After a member's failure
    /// it is done again on the rest.
    ///
    /// # Safety
    /// `src` is the program's: it may be invalid.
    #[inline]
    unsafe fn store(&self, offset: u64, src: *const u8, bytes: usize) -> Result<(), OsError> {
        if !self.shared().is_mapped() {
            // SAFETY: as the caller promises.
            return unsafe { self.store_directly(offset, src, bytes) };
        }
        // SAFETY: as above.
        unsafe { self.store_mapped(offset, src, bytes) }
    }

    /// Stores while there are mappings: by way of their shared copy, if there is one.
    #[cold]
    unsafe fn store_mapped(&self, offset: u64, src: *const u8, bytes: usize) -> Result<(), OsError> {
        let Some(copy) = self.copy()? else {
            // SAFETY: as the caller promises.
            return unsafe { self.store_directly(offset, src, bytes) };
        };
        // A bad pointer is to be found before the copy has bytes that the members lack.
        // SAFETY: as the caller promises.
        unsafe { self.striper(self.out()).probe_source(src, bytes) }.or_else(|fault| self.after_fault(fault))?;
        // SAFETY: as above; the copy reaches as far as the file, and further if the write makes it
        // grow.
        match unsafe { self.fill_copy(&copy, offset, src, bytes) } {
            Ok(()) => self.store_copy(&copy, offset, bytes),
            Err(fault) => self.after_fault(fault),
        }
    }

    /// Announces and stores on the members.
    ///
    /// # Safety
    /// As [`Self::store`].
    #[inline]
    pub(crate) unsafe fn store_directly(&self, offset: u64, src: *const u8, bytes: usize) -> Result<(), OsError> {
        if let Some(journal) = self.files.journal() {
            // SAFETY: as the caller promises.
            return unsafe { self.store_journaled(journal, offset, src, bytes, After::FileEnds) };
        }
        loop {
            self.announce(LaneKind::Write, offset, bytes as u64, self.out())?;
            // A member may have failed in that, or be about to go out.
            let (may_be_out, out) = (self.out_or_leaving(), self.out());
            if undo::is_needed(&self.geometry, may_be_out) {
                // SAFETY: as the caller promises.
                return unsafe { self.store_undoably(offset, src, bytes) };
            }
            // SAFETY: as the caller promises.
            match unsafe { self.striper(out).write(offset, src, bytes) } {
                Ok(()) => return Ok(()),
                Err(fault) => self.after_write_fault(fault, offset, bytes as u64)?,
            }
        }
    }

    /// Stores with a member out. The range is announced.
    ///
    /// # Safety
    /// As [`Self::store`].
    #[inline(never)]
    unsafe fn store_undoably(&self, offset: u64, src: *const u8, bytes: usize) -> Result<(), OsError> {
        let mut undo = self.take_undo(self.out_or_leaving())?;
        loop {
            let striper = Striper { undo: undo.as_ref().map(Undo::record), ..self.striper(self.out()) };
            // SAFETY: as the caller promises.
            match (unsafe { striper.write(offset, src, bytes) }, &mut undo) {
                (Ok(()), _) => return Ok(()),
                (Err(fault), Some(undo)) => self.undo_after_fault(undo, fault)?,
                (Err(fault), None) => self.after_write_fault(fault, offset, bytes as u64)?,
            }
        }
    }

    /// What follows from a fault in a write that no undo record waits with: Ok if it can be done again
    /// on the members that are left.
    #[cold]
    pub(crate) fn after_write_fault(&self, fault: IoFault, offset: u64, bytes: u64) -> Result<(), OsError> {
        if let Err(error) = self.after_fault(fault) {
            // Some of the stripes may be half written, also where a member is only full: their
            // redundancy must follow.
            if !matches!(fault, IoFault::Lost) {
                self.make_fit(offset, bytes);
            }
            return Err(error);
        }
        if self.geometry.level().parity_count() == 2 {
            // Data may be new already that Q knows nothing of, since P's member has failed in
            // between: what is done again would see no change to put into Q.
            self.make_fit(offset, bytes);
        }
        // The member that failed goes on record before the write is done without it.
        self.files.array().before_change()
    }

    /// Puts a change into this thread's lane on every member in use.
    ///
    /// # Errors
    /// `BADF` if this process has mapped the backing files for reading only: a store would fault,
    /// and a fault there is taken for a failure of the member.
    #[inline]
    pub(crate) fn announce(&self, kind: LaneKind, offset: u64, length: u64, out: MemberSet) -> Result<(), OsError> {
        if !self.writable {
            return Err(OsError::BADF);
        }
        let runtime = self.files.array().runtime();
        let (lanes, me) = (self.files.lanes(), runtime.me());
        let is_alive = |owner| sync::Liveness::is_alive(runtime, owner);
        let lane = lanes.own(runtime.lanes(), me, is_alive, |lane| self.files.note_lane(lane));
        self.announce_in(lane, kind, offset, length, out)
    }

    /// Stores a new size on every member and for every process. The size lock is held.
    pub(crate) fn set_size(&self, size: u64) {
        // Not every change of the size takes stripe locks.
        self.files.array().note_change(self.shared(), self.number);
        self.files.table().set_size(self.files.array(), self.number, self.generation, size);
        // A process that dies in the middle leaves the size lock to one that gives the copy the
        // size found here. So a file that becomes shorter has its new size before the copy is cut.
        // Otherwise the copy would be made longer again, with zeros.
        let is_cut = size < self.shared().size();
        if is_cut {
            self.shared().size.store(size, Ordering::Release);
        }
        // If it cannot follow, mappings show a file as long as before.
        let _ = self.set_copy_bytes(size);
        self.shared().size.store(size, Ordering::Release);
    }
}

/// The offset after the last of `bytes` (at least 1), or of as many as a file may have; `FBIG` if
/// that is none.
#[inline]
fn end_of(offset: u64, bytes: usize) -> Result<u64, OsError> {
    let (end, limit) = (offset.saturating_add(bytes as u64), sys::file_limit::bytes());
    if end <= limit {
        Ok(end)
    } else if offset < limit {
        Ok(limit)
    } else {
        Err(OsError::FBIG)
    }
}

/// Makes room from `offset` to `end`, or as far as half of it, a quarter of it and so on, to a
/// page's end, if there is no space for more. Returns where the room ends. A program that writes on
/// after a short write comes as far as there is space.
#[inline]
fn fitting(offset: u64, mut end: u64, make_room: impl Fn(u64) -> Result<(), OsError>) -> Result<u64, OsError> {
    loop {
        match make_room(end) {
            Ok(()) => return Ok(end),
            Err(error @ (OsError::NOSPC | OsError::DQUOT)) => {
                end = (offset + (end - offset) / 2) & !(PAGE_BYTES as u64 - 1);
                if end <= offset {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
    }
}
