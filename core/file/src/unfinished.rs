//! What a process that died in the middle of a change left behind, and how the next process makes
//! it good.
//!
//! A process notices such a death when it inherits a lock. It repairs what the lock guards before
//! anybody uses that. A process that may not store into the file leaves a note in the runtime
//! segment for a process that may.
//!
//! A process that opens the file or calls fsync inherits all locks of dead processes at once
//! (`settle_dead`): if a member were lost before that, stripes whose redundancy does not fit would
//! give wrong bytes (the write hole).
//!
//! - In what a stripe lock guards, redundancy may not fit the data. The redundancy is computed from
//!   the data, or, if a data chunk's member is out, the unfinished store is undone.
//! - Under the size lock, the file was growing or shrinking. The size itself is whole, since it is
//!   stored in one word. But members may differ in it, and bytes that were stored behind the end
//!   need not be zeros: the next growth would show them.

use crate::Inode;
use crate::files::Files;
use crate::inode::{key, number_of};
use crate::stripes::{Blocks, StripesHeld};
use crate::undo;
use alloc::vec::Vec;
use array::SharedFile;
use array::runtime::STRIPE_LOCK_COUNT;
use core::sync::atomic::Ordering;
use format::Attribute;
use medium::Medium;
use sync::{Acquired, Liveness as _, OwnerId};
use sys::OsError;
use sys::rustix::fs::{SeekFrom, seek};

impl Files {
    /// The files in which dead processes left something to be made good: writes or, if `mappings`,
    /// stores through mappings. A process that opens such a file for writing makes it good.
    #[must_use]
    pub fn left_unfinished(&self, mappings: bool) -> Vec<Attribute> {
        self.array().runtime().left_unfinished(mappings).into_iter().filter_map(|key| self.attribute_of(key)).collect()
    }

    /// The file with this key.
    pub(crate) fn attribute_of(&self, wanted: u64) -> Option<Attribute> {
        let record = self.table().load(self.array(), number_of(wanted)).ok()??;
        let found = Attribute { inode: number_of(wanted), generation: record.generation };
        (key(found.inode, found.generation) == wanted).then_some(found)
    }
}

/// The number that says of the end of a file that its last user closed it in order, and that
/// somebody has made a backing file longer by hand since. Any other number but 0 says that its last
/// user did not come to an end with it.
pub(crate) const TAIL_LONG: u32 = 2;
/// A value of `SharedFile::tail_unfinished`: a living process has left bytes behind the end, by a write
/// that failed or before it heard that the file was cut; all else is in order.
const TAIL_OF_FAILED: u32 = 3;
/// A value of `SharedFile::tail_unfinished`: who computed what members have lost, or made redundancy
/// fit, has left it in doubt what lies behind the end, or has died. Nobody has written.
pub(crate) const TAIL_OF_MEND: u32 = 4;

impl Inode {
    /// Takes the stripe locks of `blocks`, and repairs what a writer that died holding one of them
    /// may have left half done.
    pub(crate) fn lock_stripes(&self, blocks: Blocks) -> Result<StripesHeld<'_>, OsError> {
        self.lock_masked(blocks.mask())
    }

    /// Does as [`Self::lock_stripes`] for several ranges. `mask` is the union of their masks
    /// ([`Blocks::mask`]).
    pub(crate) fn lock_masked(&self, mask: u64) -> Result<StripesHeld<'_>, OsError> {
        let held = StripesHeld::lock(self.files.array(), self.shared(), self.number, mask);
        if !self.missed().is_empty() {
            // The process has closed the file as its last act, and a thread of it still works.
            // Others have opened the file anew meanwhile, and use a member that this process does
            // not have the file open on. Who inherited a lock here leaves to these what is half
            // done.
            self.shared().stripes_unfinished.fetch_or(held.inherited, Ordering::AcqRel);
            return Err(OsError::IO);
        }
        if self.has_sums
            && self.writable
            && let Err(error) = self.ready_sums()
        {
            // Nothing may be stored without them.
            self.shared().stripes_unfinished.fetch_or(held.inherited, Ordering::AcqRel);
            return Err(error);
        }
        let inherited = if held.inherited == 0 { 0 } else { held.inherited & !self.only_looked_at(held.inherited) };
        let unfinished = inherited | self.shared().stripes_unfinished.load(Ordering::Relaxed) & held.mask();
        if unfinished != 0 {
            self.finish_stripes(unfinished)?;
        }
        Ok(held)
    }

    /// Makes good what dead processes left half done under any lock of this file, if this process
    /// may store into the file. What cannot be made good now is left to the next process that
    /// tries.
    ///
    /// Cost: a load of each lock's owner word, and three system calls for each owner that is
    /// neither this process nor the previous owner.
    pub(crate) fn settle_dead(&self) {
        let (shared, runtime) = (self.shared(), self.files.array().runtime());
        if !self.writable || self.is_left_alone() {
            return;
        }
        let mut living = runtime.me();
        let mut is_dead = |owner: OwnerId| {
            let dead = owner != living && owner != runtime.me() && !runtime.is_alive(owner);
            if !dead {
                living = owner;
            }
            dead
        };
        if shared.size_lock.owner().is_some_and(&mut is_dead) {
            let _ = self.with_size_locked(|_| Ok(()));
        }
        let locks = shared.stripes.iter().enumerate().filter(|(_, lock)| lock.owner().is_some_and(&mut is_dead));
        let mask = locks.fold(shared.stripes_unfinished.load(Ordering::Relaxed), |mask, (index, _)| mask | 1 << index);
        if mask != 0 {
            let _ = self.lock_masked(mask);
        }
    }

    #[cold]
    fn finish_stripes(&self, locks: u64) -> Result<(), OsError> {
        self.shared().stripes_unfinished.fetch_or(locks, Ordering::Relaxed);
        self.leave_out_unfinished();
        if self.writable {
            // A member that is away unnoticed must not come back in sync after this process has
            // stored something without it.
            self.files.array().before_change()?;
            self.replay_behind(locks)?;
            self.undo_dead()?;
            self.repair_blocks(locks)?;
            if undo::is_needed(&self.geometry, self.out()) && locks & self.last_stripe_mask() != 0 {
                self.doubt_tail(self.size(), TAIL_OF_FAILED);
            }
            self.shared().stripes_unfinished.fetch_and(!locks, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The mask of the locks of the last stripe if the file ends within it; 0 otherwise.
    fn last_stripe_mask(&self) -> u64 {
        let (size, stripe) = (self.size(), self.geometry.stripe_bytes());
        let rest = size.next_multiple_of(stripe) - size;
        if rest == 0 { 0 } else { Blocks::of(&self.geometry, size, rest).mask() }
    }

    /// Notes that bytes behind the end of the file may be no zeros, if the file's last stripe is
    /// among those before `end`. The caller has found that parity may not fit the data of these
    /// stripes, and a member with data of them is out: what is computed of them may be anything. `kind`
    /// tells who has left it so.
    pub(crate) fn doubt_tail(&self, end: u64, kind: u32) {
        let (size, stripe) = (self.size(), self.geometry.stripe_bytes());
        if !size.is_multiple_of(stripe) && end > size / stripe * stripe {
            self.leave_tail_of(kind);
        }
    }

    /// Notes that a write has left bytes behind the end of the file that may be no zeros. They are made
    /// zeros before the file grows, if need be by the next process that opens the file.
    pub(crate) fn leave_tail(&self) {
        self.leave_tail_of(TAIL_OF_FAILED);
    }

    #[cold]
    fn leave_tail_of(&self, kind: u32) {
        self.add_flags(format::FLAG_SLACK);
        // If a dead process has left something there, that has still to be finished.
        let next = |left| match left {
            0 | TAIL_LONG => Some(kind),
            TAIL_OF_MEND if kind == TAIL_OF_FAILED => Some(kind),
            _ => None,
        };
        let _ = self.shared().tail_unfinished.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// Computes from the data the redundancy of every lock block that these locks guard. Where
    /// there is a shared copy, its bytes are the data.
    fn repair_blocks(&self, locks: u64) -> Result<(), OsError> {
        let block_bytes = self.geometry.lock_block_bytes();
        let size = self.size();
        // A writer that died may have stored to the copy alone, which readers have seen.
        let copy = self.copy()?;
        let mut block = 0;
        while block < size.div_ceil(block_bytes) {
            // A damaged size may be any number, so only blocks of which members hold data are
            // looked at. Members that cannot answer count as having data.
            let start = block * block_bytes;
            let held = self.data_from(start).unwrap_or(Some(start));
            let shown = copy.as_ref().and_then(|copy| copy.fd().and_then(|fd| seek(fd, SeekFrom::Data(start))).ok());
            match held.into_iter().chain(shown).min() {
                None => break,
                Some(data) if data >= size => break,
                Some(data) => block = block.max(data / block_bytes),
            }
            if locks >> (block % STRIPE_LOCK_COUNT as u64) & 1 == 1 {
                let offset = block * block_bytes;
                let bytes = block_bytes.min(size - offset);
                if self.striper(self.out()).verify(offset, bytes) != Ok(0) {
                    self.resync(offset, bytes)?;
                }
                if let Some(copy) = &copy {
                    self.follow_block(copy, offset, bytes as usize)?;
                }
            }
            block += 1;
        }
        Ok(())
    }

    /// Makes copies and parity of a range agree with its data after a change that ended with an
    /// error. What cannot be done now is left to whoever locks the stripes next. They are locked.
    #[cold]
    pub(crate) fn make_fit(&self, offset: u64, bytes: u64) {
        if self.resync(offset, bytes).is_err() {
            let mask = Blocks::of(&self.geometry, offset, bytes).mask();
            self.shared().stripes_unfinished.fetch_or(mask, Ordering::Relaxed);
        }
    }

    /// Makes copies and parity of a range agree with its data. The stripes are locked.
    pub(crate) fn resync(&self, offset: u64, bytes: u64) -> Result<(), OsError> {
        loop {
            match self.striper(self.out()).resync(offset, bytes) {
                Ok(()) => return Ok(()),
                Err(fault) => self.after_fault(fault)?,
            }
        }
    }

    /// Runs `change` with the size lock held. The argument of `change` is the size. The file's end is
    /// repaired first. But where nothing is unfinished besides what a failed write of a living process
    /// has left behind it, that waits for the next process that opens the file if it would take
    /// set-user-id or set-group-id from a file that nobody has written to.
    pub(crate) fn with_size_locked<T>(&self, change: impl FnOnce(u64) -> Result<T, OsError>) -> Result<T, OsError> {
        let shared = self.shared();
        self.with_size_lock(|| {
            let is_due = match shared.tail_unfinished.load(Ordering::Relaxed) {
                0 => false,
                TAIL_LONG | TAIL_OF_FAILED | TAIL_OF_MEND => !self.would_lose_set_id(),
                _ => true,
            };
            let finished = if is_due { self.finish_tail() } else { Ok(()) };
            finished.and_then(|()| change(shared.size()))
        })
    }

    /// Runs `look` with the size lock held. What a process that died may have left at the file's
    /// end stays as it is.
    pub(crate) fn with_size_lock<T>(&self, look: impl FnOnce() -> T) -> T {
        let (shared, runtime) = (self.shared(), self.files.array().runtime());
        if shared.size_lock.lock(runtime.me(), runtime) == Acquired::Inherited {
            note_dead_owner(shared);
        }
        let result = look();
        shared.size_lock.unlock();
        result
    }

    /// Runs a change of the file under the size lock. The change does not begin before the file's
    /// end has been repaired.
    pub(crate) fn change_size_locked<T>(&self, change: impl FnOnce(u64) -> Result<T, OsError>) -> Result<T, OsError> {
        self.with_size_locked(|_| {
            if undo::is_needed(&self.geometry, self.out()) {
                // A process that died in the last stripe may have left bytes behind the end, which
                // a growth would show.
                drop(self.lock_masked(self.last_stripe_mask())?);
            }
            // If a member went out after the caller's `before_change`, `finish_tail` has done
            // nothing. So it is called again.
            while self.writable && self.shared().tail_unfinished.load(Ordering::Relaxed) != 0 {
                self.files.array().before_change()?;
                self.finish_tail()?;
            }
            self.require_borne()?;
            let result = change(self.size())?;
            // A member that went out during the change lacks a part of it, perhaps the size. That
            // is put on record before the change counts as made.
            self.files.array().before_change()?;
            Ok(result)
        })
    }

    /// The size that programs are told. A write that a dead writer committed to the journal and
    /// that is not in place yet would make the file longer. It is put in place first: a program
    /// that has been told the shorter size must not see the write appear later.
    #[inline]
    #[must_use]
    pub fn settled_size(&self) -> u64 {
        // The owner of the lock may be dead, or may just be repairing what a dead owner left.
        if self.files.has_journal() && self.writable && self.shared().size_lock.owner().is_some() {
            // If this fails, the next process that takes the lock tries again.
            let _ = self.with_size_locked(|_| Ok(()));
        }
        self.size()
    }

    /// Whether a member is away without that being on record: it comes back in sync if nothing is
    /// stored meanwhile. A process that changes the file puts it on record first
    /// (`Array::before_change`).
    pub(crate) fn is_left_alone(&self) -> bool {
        !self.files.array().runtime().out_unrecorded().is_empty()
    }

    /// Repairs the end of the file: gives every member the size, and makes the bytes behind the end
    /// zeros. The size lock is held. Does nothing if this process may not store into the file, or
    /// must not yet.
    #[cold]
    pub(crate) fn finish_tail(&self) -> Result<(), OsError> {
        if !self.writable || self.is_left_alone() {
            return Ok(());
        }
        self.files.array().before_change()?;
        // Of these nobody has written what is mended, so the file is as old as before. Who inherits the
        // stripe locks may store already.
        let left = self.shared().tail_unfinished.load(Ordering::Relaxed);
        let is_unwritten = matches!(left, TAIL_LONG | TAIL_OF_MEND);
        let times = if is_unwritten { self.times_from_others_than(self.lost_bytes()) } else { None };
        let held = self.lock_stripes(Blocks::ALL)?;
        self.keeping_set_id(|| self.finish_tail_locked())?;
        self.keep_times(times);
        self.shared().tail_unfinished.store(0, Ordering::Relaxed);
        drop(held);
        Ok(())
    }

    /// Does the work of [`Self::finish_tail`]. All stripe locks are held.
    fn finish_tail_locked(&self) -> Result<(), OsError> {
        // What waits in the journal comes first. It may make the file longer, and nothing may be
        // computed from stripes that do not fit.
        self.replay_behind(u64::MAX)?;
        let (shared, size, stripe) = (self.shared(), self.size(), self.geometry.stripe_bytes());
        if shared.resync_waits.load(Ordering::Relaxed) != 0 {
            // This comes before the redundancy of the last stripe is computed anew, since bytes
            // that a member has lost may be computable from the old redundancy only. It also comes
            // before a backing file that is too short is lengthened, which would hide the loss.
            self.undo_dead()?;
            self.resync_noted()?;
        }
        self.set_size(size);
        self.forget_sums_behind(size)?;
        let kept = self.geometry.member_bytes(size);
        shared.allocated_end.store(kept, Ordering::Release);
        self.on_members(|backing| backing.set_len(kept).and_then(|()| backing.persist_layout()))?;
        shared.allocation_epoch.fetch_add(1, Ordering::AcqRel);
        let end = size.next_multiple_of(stripe);
        if self.geometry.level().has_chunks() && end > size {
            // The rest of the last stripe behind the end becomes zeros on all members, and its
            // redundancy is computed.
            self.fill_holes(size, end)?;
            self.with_stripe_noted(end - stripe, || {
                self.zero(size, end - size)?;
                self.resync(end - stripe, stripe)
            })?;
            self.on_members(|backing| backing.set_len(kept))?;
        }
        Ok(())
    }
}

/// Notes that the last owner of a file's size lock has died, of whom it is not known how far it came.
pub(crate) fn note_dead_owner(shared: &SharedFile) {
    // Who computes what members have lost does nothing else under the lock. These members count as out
    // for the file again when that has failed.
    let was_mend = shared.anew.load(Ordering::Acquire) & !shared.cut.load(Ordering::Acquire) != 0;
    let next = |left| match left {
        0 | TAIL_LONG if was_mend => Some(TAIL_OF_MEND),
        TAIL_OF_FAILED | TAIL_OF_MEND if was_mend => None,
        _ => Some(1),
    };
    let _ = shared.tail_unfinished.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
}
