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
use crate::rebuild::NO_BYTES;
use alloc::ffi::CString;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use dax::Backing;
use format::Resync;
use sys::rustix::fs::{fstat, readlink};
use sys::{AsRawFd as _, OsError};
use units::{MemberSet, Slot};

impl Inode {
    /// The members that count as out for this file alone.
    #[inline]
    pub(crate) fn left_out(&self) -> MemberSet {
        let shared = self.shared();
        match shared.cut.load(Ordering::Acquire) | shared.without.load(Ordering::Acquire) {
            0 => MemberSet::EMPTY,
            bits => self.members_of(bits),
        }
    }

    /// The members on which the file's owner has cut the backing file.
    pub(crate) fn cut_by_owner(&self) -> MemberSet {
        self.members_of(self.shared().cut.load(Ordering::Acquire))
    }

    /// The members that joined while the file was open: it goes on without them until the last
    /// process closes it.
    pub fn without(&self) -> MemberSet {
        self.members_of(self.shared().without.load(Ordering::Acquire))
    }

    /// The members that these bits stand for. Another process may have stored any.
    fn members_of(&self, bits: u32) -> MemberSet {
        MemberSet::from_bits(bits & MemberSet::first(self.backing.len()).bits())
    }

    /// Takes a member out for this file if the file's owner may have cut its backing file there.
    /// Returns whether that is so: then the operation can be done again without the member.
    ///
    /// # Errors
    /// `IO` if the file does not bear the loss of that member.
    #[cold]
    pub(crate) fn leave_out_if_cut(&self, slot: Slot) -> Result<bool, OsError> {
        let Some(backing) = self.backing.get(slot).and_then(Option::as_ref) else { return Ok(false) };
        // A member that fails does not say how long its files are.
        let Ok(stat) = backing.fd().and_then(fstat) else { return Ok(false) };
        let (array, size) = (self.files.array(), self.size());
        let expected_bytes = self.geometry.member_bytes(size).max(self.shared().allocated_end());
        if array.trusts(stat.st_uid) || stat.st_size as u64 >= expected_bytes {
            return Ok(false);
        }
        if !self.geometry.survives(self.out().with(slot)) {
            return Err(OsError::IO);
        }
        self.leave_out_noted(MemberSet::EMPTY, || {
            let is_short = backing.fd().and_then(fstat).is_ok_and(|stat| (stat.st_size as u64) < expected_bytes);
            // If not, another process has just made the backing file anew.
            if is_short { MemberSet::EMPTY.with(slot) } else { MemberSet::EMPTY }
        })?;
        Ok(true)
    }

    /// Takes members out for this file: those in `noted`, of which the inode table says already
    /// that they have lost its bytes, and those that `find_lost` gives, of which it says so
    /// afterwards. The note and the bits are changed together, with the inode lock held, as at the
    /// end of a resync: whoever takes the note away has seen the bits.
    ///
    /// # Errors
    /// `IO`, with nothing changed, if the file does not bear the loss of these members and of those
    /// that are noted.
    fn leave_out_noted(&self, noted: MemberSet, find_lost: impl FnOnce() -> MemberSet) -> Result<(), OsError> {
        let (array, table, shared) = (self.files.array(), self.files.table(), self.shared());
        array.runtime().with_inodes(|_| {
            let lost = find_lost();
            let known = table.resync(array, self.number).map_or(MemberSet::EMPTY, |resync| resync.lost);
            if lost.union(noted).is_empty() {
                return Ok(());
            }
            if !self.geometry.survives(self.out().union(known).union(noted).union(lost)) {
                return Err(OsError::IO);
            }
            if !lost.is_empty() {
                table.add_resync_locked(array, self.number, Resync { lost, ..NO_BYTES });
                shared.resync_waits.store(1, Ordering::Release);
            }
            shared.cut.fetch_or(noted.union(lost).bits(), Ordering::AcqRel);
            Ok(())
        })
    }

    /// A file that others have open already, and that this process opens: members whose backing
    /// files somebody has cut go out, for the file alone where its owner may have done that. A load
    /// from what was cut off the last page gives zeros, and no fault that would tell.
    ///
    /// # Errors
    /// `IO` if the file does not bear the loss of those members.
    pub(crate) fn leave_out_short(&self) -> Result<(), OsError> {
        // Whoever opens the file to use it asks for these members next, and makes them anew where
        // it may.
        let is_seen_to = || self.shared().resync_waits.load(Ordering::Acquire) == 1;
        if is_seen_to() || !self.is_short(self.size()) {
            return Ok(());
        }
        // Another process may just have made the file shorter.
        self.with_size_locked(|_| {
            if is_seen_to() {
                return Ok(());
            }
            for slot in self.short(self.size()).iter() {
                if !self.leave_out_if_cut(slot)? {
                    self.files.array().fail_member(slot)?;
                }
            }
            Ok(())
        })
    }

    /// Does what [`Self::leave_out_short`] does for a file that this process has open already, if a
    /// member of a backing has lost bytes of it. Reads do not go there, so nothing else would tell
    /// before a restart of the machine. Another array is not asked: that takes a system call for each
    /// member at each opening.
    #[inline]
    pub(crate) fn leave_out_short_of_backing(&self) -> Result<(), OsError> {
        let fast = self.files.array().fast();
        if fast.is_empty() { Ok(()) } else { self.leave_out_short_but(fast) }
    }

    #[cold]
    fn leave_out_short_but(&self, fast: MemberSet) -> Result<(), OsError> {
        let wanted = self.geometry.member_bytes(self.size());
        let is_short = |backing: &Backing| backing.bytes().is_ok_and(|bytes| bytes < wanted);
        let is_any = self.in_use().any(|(slot, backing)| !fast.contains(slot) && is_short(backing));
        if is_any { self.leave_out_short() } else { Ok(()) }
    }

    /// Runs `rebuild`, which makes anew what the members held that count as out for this file, and
    /// what others have lost ([`Self::hide`]). The size lock and all stripe locks are held, which
    /// keeps readers and writers out, but not those who compose mappings. If `rebuild` fails, all
    /// these members count as out for this file.
    pub(crate) fn with_cut_back<T>(&self, rebuild: impl FnOnce(MemberSet) -> Result<T, OsError>) -> Result<T, OsError> {
        let shared = self.shared();
        let mut bits = shared.cut.load(Ordering::Acquire);
        loop {
            self.hide(self.members_of(bits));
            match shared.cut.compare_exchange(bits, 0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => bits = now,
            }
        }
        let cut = self.members_of(bits);
        let result = rebuild(cut);
        if result.is_err() {
            let unready = self.members_of(shared.anew.load(Ordering::Acquire));
            let left = if self.geometry.survives(self.out().union(unready)) { unready } else { cut };
            shared.cut.fetch_or(left.bits(), Ordering::AcqRel);
            return result;
        }
        shared.anew.store(0, Ordering::Release);
        if !cut.is_empty() {
            // Its backing file has the length that the data need; what was allocated behind them is
            // not there any more.
            shared.allocated_end.store(self.geometry.member_bytes(self.size()), Ordering::Release);
            shared.allocation_epoch.fetch_add(1, Ordering::AcqRel);
        }
        result
    }

    /// Keeps mappings from showing members before their backing files are made anew. All stripe
    /// locks are held.
    pub(crate) fn hide(&self, members: MemberSet) {
        self.shared().anew.fetch_or(members.bits(), Ordering::AcqRel);
    }

    /// The members whose backing files mappings do not show: those that are out, and those whose
    /// bytes are being made anew.
    #[inline]
    pub(crate) fn hidden(&self) -> MemberSet {
        // Loaded after the members that count as out for this file: these are hidden before they
        // come back.
        let out = self.out();
        match self.shared().anew.load(Ordering::Acquire) {
            0 => out,
            bits => out.union(self.members_of(bits)),
        }
    }

    /// Whether the bytes that members have lost must wait: a process stores through a mapping that
    /// shows another copy than the one that would be shown if those members came back. What such a
    /// process stores before it looks at the file again would be overwritten by the older bytes
    /// when it is followed. The size lock is held, so no process begins to store to members
    /// meanwhile. Members that would not be shown, or that stay out in any case, are not waited
    /// for.
    pub(crate) fn must_wait(&self, lost: MemberSet) -> bool {
        let back = lost.minus(self.files.array().runtime().out()).minus(self.without());
        let out = self.out().minus(back);
        let shown = |column| self.primary(0, column, out).is_some_and(|slot| back.contains(slot));
        !back.is_empty()
            && (0..self.geometry.data_columns()).any(shown)
            && self.has_stores_on_a_copy()
            && self.geometry.survives(self.out().union(lost))
    }

    /// Whether a process, alive or dead, has a writable mapping that shows one of several copies.
    pub(crate) fn has_stores_on_a_copy(&self) -> bool {
        self.geometry.copy_count() > 1 && self.shared().is_mapped() && {
            let records = self.files.array().runtime().mapped();
            records.of(self.key()).any(|(record, _)| record.is_direct())
        }
    }

    /// Takes out for this file the members that have lost bytes of it, in a process that makes
    /// nothing good. Another process that makes their bytes anew, or cuts the file, holds the size
    /// lock: what is seen under it is settled.
    ///
    /// # Errors
    /// `IO`, with nothing changed, if the members that have all their bytes do not suffice.
    #[cold]
    pub(crate) fn leave_out_waiting(&self) -> Result<(), OsError> {
        self.with_size_lock(|| self.leave_out_waiting_locked())
    }

    /// Does what [`Self::leave_out_waiting`] does. The size lock is held.
    pub(crate) fn leave_out_waiting_locked(&self) -> Result<(), OsError> {
        if self.shared().resync_waits.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        // Who joined while the file was open is out for it in any case.
        let noted = self.noted().map_or(MemberSet::EMPTY, |noted| noted.lost).minus(self.without());
        let short = self.short(self.size());
        let left = self.leave_out_noted(noted, || short.minus(noted));
        if left.is_err() {
            self.tell_short(short);
        }
        left
    }

    /// Notes which members have lost bytes of this file because their backing files are too short,
    /// and takes these members out for it. Nothing is noted if the file does not bear their loss:
    /// nobody will ever compute those bytes. All stripe locks that concern the file's end are held.
    #[cold]
    pub(crate) fn leave_out_short_before_replay(&self) {
        if !self.short(self.size()).is_empty() {
            let _ = self.leave_out_noted(MemberSet::EMPTY, || self.short(self.size()));
        }
    }

    /// Tells which backing files are too short for this file to be used.
    #[cold]
    pub(crate) fn tell_short(&self, short: MemberSet) {
        for (slot, backing) in self.in_use().filter(|(slot, _)| short.contains(*slot)) {
            self.files.array().tell_short(slot, &Self::host_path(backing));
        }
    }

    /// Where a backing file lies; empty if the kernel does not say.
    pub(crate) fn host_path(backing: &Backing) -> Vec<u8> {
        let path = backing.fd().and_then(|fd| readlink(alloc::format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new()));
        path.map(CString::into_bytes).unwrap_or_default()
    }

    /// Takes members out for this file that a process was making anew when it died. The caller
    /// holds a stripe lock, so nobody makes them anew meanwhile.
    #[cold]
    pub(crate) fn leave_out_unfinished(&self) {
        if self.shared().resync_waits.load(Ordering::Acquire) != 0
            && let Some(noted) = self.files.table().resync(self.files.array(), self.number)
        {
            self.shared().cut.fetch_or(noted.lost.bits(), Ordering::AcqRel);
        }
    }
}
