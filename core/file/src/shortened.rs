//! A backing file that somebody else has made shorter while the array uses it.
//!
//! The fault it exists for: the owner of a file may cut its backing file on one member by hand. A
//! load from or a store to the array's file behind the new end is answered by SIGBUS, as where the
//! member's memory has failed. But the member works, and a user without rights to the array must
//! not be able to put a member out. So the member counts as out for this one file
//! ([`array::SharedFile::cut`]): the bytes it held are computed from the others. The inode table
//! notes that they are lost before anything is stored without the member, and the next open that
//! may write makes the backing file anew (`resync`).
//!
//! Where only root and the array's owner may cut a backing file, one that is too short is the
//! member's failure.

use crate::Inode;
use alloc::ffi::CString;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use format::Resync;
use sys::rustix::fs::{fstat, readlink};
use sys::{AsRawFd as _, OsError};
use units::{MemberSet, Slot};

impl Inode {
    /// The members that count as out for this file alone.
    #[inline]
    pub(crate) fn left_out(&self) -> MemberSet {
        match self.shared().cut.load(Ordering::Acquire) {
            0 => MemberSet::EMPTY,
            bits => MemberSet::from_bits(bits & MemberSet::first(self.backing.len()).bits()),
        }
    }

    /// Takes a member out for this file if the file's owner may have cut its backing file there. Returns whether that is so: then the operation can be done again without the member.
    ///
    /// # Errors
    /// `IO` if the file does not bear the loss of that member.
    #[cold]
    pub(crate) fn leave_out_if_cut(&self, slot: Slot) -> Result<bool, OsError> {
        let Some(backing) = self.backing.get(slot).and_then(Option::as_ref) else { return Ok(false) };
        // A member that fails does not say how long its files are.
        let Ok(stat) = fstat(backing.fd()) else { return Ok(false) };
        let (array, size) = (self.files.array(), self.size());
        let expected_bytes = self.geometry.member_bytes(size).max(self.shared().allocated_end());
        if array.trusts(stat.st_uid) || stat.st_size as u64 >= expected_bytes {
            return Ok(false);
        }
        let lost = MemberSet::EMPTY.with(slot);
        if !self.geometry.survives(self.out().union(lost)) {
            return Err(OsError::IO);
        }
        array.before_change()?;
        self.files.table().add_resync(array, self.number, Resync { start: 0, end: size.max(1), lost });
        self.shared().resync_waits.store(1, Ordering::Release);
        self.shared().cut.fetch_or(lost.bits(), Ordering::AcqRel);
        Ok(true)
    }

    /// A file that others have open already, and that this process opens: members whose backing files somebody has cut go out, for the file alone where its owner may have done that. A load
    /// from what was cut off the last page gives zeros, and no fault that would tell.
    ///
    /// # Errors
    /// `IO` if the file does not bear the loss of those members.
    pub(crate) fn leave_out_short(&self) -> Result<(), OsError> {
        if !self.is_short(self.size()) {
            return Ok(());
        }
        // Another process may just have made the file shorter.
        self.with_size_locked(|_| {
            for slot in self.short(self.size()).iter() {
                if !self.leave_out_if_cut(slot)? {
                    self.files.array().fail_member(slot)?;
                }
            }
            Ok(())
        })
    }

    /// Runs `rebuild`, which makes anew what the members held that count as out for this file. The size lock and all stripe locks are held.
    pub(crate) fn with_cut_back<T>(&self, rebuild: impl FnOnce(MemberSet) -> Result<T, OsError>) -> Result<T, OsError> {
        let (shared, cut) = (self.shared(), self.left_out());
        shared.cut.store(0, Ordering::Release);
        let result = rebuild(cut);
        if result.is_err() {
            shared.cut.fetch_or(cut.bits(), Ordering::AcqRel);
        } else if !cut.is_empty() {
            // Its backing file has the length that the data need; what was allocated behind them is not there any more.
            shared.allocated_end.store(self.geometry.member_bytes(self.size()), Ordering::Release);
            shared.allocation_epoch.fetch_add(1, Ordering::AcqRel);
        }
        result
    }

    /// Takes members out for this file in a process that may only read it, and that has found their backing files too
    /// short. Nobody stores to the file before a process that may write has opened it, and has made them anew.
    #[cold]
    pub(crate) fn leave_out_for_reading(&self, short: MemberSet) {
        self.shared().cut.fetch_or(short.bits(), Ordering::AcqRel);
    }

    /// Tells which backing files are too short for this file to be used.
    #[cold]
    pub(crate) fn tell_short(&self, short: MemberSet) {
        for (slot, backing) in self.in_use().filter(|(slot, _)| short.contains(*slot)) {
            let link = alloc::format!("/proc/self/fd/{}", backing.fd().as_raw_fd());
            let path = readlink(link, Vec::new()).map(CString::into_bytes);
            self.files.array().tell_short(slot, &path.unwrap_or_default());
        }
    }

    /// Takes members out for this file that a process was making anew when it died.
    #[cold]
    pub(crate) fn leave_out_unfinished(&self) {
        if self.shared().resync_waits.load(Ordering::Acquire) != 0
            && let Some(noted) = self.files.table().resync(self.files.array(), self.number)
        {
            self.shared().cut.fetch_or(noted.lost.bits(), Ordering::AcqRel);
        }
    }
}
