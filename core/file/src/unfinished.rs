//! What a process that died in the middle of a change left behind, and how the next process makes
//! it good.
//!
//! A lock that is inherited tells of the death. What the lock guards is repaired before anybody
//! uses it. A process that may not store into the file leaves a note in the runtime segment for one
//! that may.
//!
//! A process that opens the file or calls fsync inherits all locks of dead processes at once
//! (`settle_dead`), since until then the loss of a member would find stripes that do not fit (the
//! write hole).
//!
//! - Behind a stripe lock, redundancy may not fit its data. It is computed from the data, or, with
//!   a data chunk out, what was being stored is undone.
//! - Behind the size lock, the file was growing or shrinking. The size is whole, since it is stored
//!   in one word, but members may differ in it, and bytes that had been stored behind it are no
//!   zeros: the next growth would show them.

use crate::Inode;
use crate::files::Files;
use crate::inode::{key, number_of};
use crate::stripes::{Blocks, StripesHeld};
use crate::undo;
use alloc::vec::Vec;
use array::runtime::STRIPE_LOCK_COUNT;
use core::sync::atomic::Ordering;
use format::Attribute;
use medium::Medium;
use sync::{Acquired, Liveness as _, OwnerId};
use sys::OsError;

impl Files {
    /// The files of which processes that died left something to be made good, writes or (if `mappings`) stores through mappings. Who opens them for writing does that.
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

impl Inode {
    /// Takes the locks, and repairs what a writer that died with one of them may have left half done.
    pub(crate) fn lock_stripes(&self, blocks: Blocks) -> Result<StripesHeld<'_>, OsError> {
        self.lock_masked(blocks.mask())
    }

    /// Takes the locks of several ranges, as [`Self::lock_stripes`]. `mask` is the union of their masks.
    pub(crate) fn lock_masked(&self, mask: u64) -> Result<StripesHeld<'_>, OsError> {
        let held = StripesHeld::lock(self.files.array(), self.shared(), mask);
        let inherited = if held.inherited == 0 { 0 } else { held.inherited & !self.only_looked_at(held.inherited) };
        let unfinished = inherited | self.shared().stripes_unfinished.load(Ordering::Relaxed) & held.mask();
        if unfinished != 0 {
            self.finish_stripes(unfinished)?;
        }
        Ok(held)
    }

    /// Makes good what processes that died left behind any lock of this file, if this process may. What cannot be made good now is tried again by the next one.
    ///
    /// Cost: the owner words are read, and each owner is looked for (three system calls) that is another process' and is not the one before.
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
            // A member that is away and that nobody has missed yet must not come back as if nothing had been stored.
            self.files.array().before_change()?;
            self.replay_behind(locks)?;
            self.undo_dead()?;
            self.repair_blocks(locks)?;
            if undo::is_needed(&self.geometry, self.out()) && locks & self.last_stripe_mask() != 0 {
                self.doubt_tail(self.size());
            }
            self.shared().stripes_unfinished.fetch_and(!locks, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The locks of a last stripe that the file does not fill; 0 if there is none.
    fn last_stripe_mask(&self) -> u64 {
        let (size, stripe) = (self.size(), self.geometry.stripe_bytes());
        let rest = size.next_multiple_of(stripe) - size;
        if rest == 0 { 0 } else { Blocks::of(&self.geometry, size, rest).mask() }
    }

    /// With data of them out, stripes up to `end` may not have fitted their parity: if the last one is among them, what is computed as lying behind the end of the file may
    /// be no zeros.
    pub(crate) fn doubt_tail(&self, end: u64) {
        let (size, stripe) = (self.size(), self.geometry.stripe_bytes());
        if !size.is_multiple_of(stripe) && end > size / stripe * stripe {
            self.leave_tail();
        }
    }

    /// What lies behind the end of the file may be no zeros: they are made before it grows, by the first to open it if need be.
    #[cold]
    pub(crate) fn leave_tail(&self) {
        self.add_flags(format::FLAG_SLACK);
        self.shared().tail_unfinished.store(1, Ordering::Relaxed);
    }

    /// Makes the redundancy of every block behind these locks follow its data.
    fn repair_blocks(&self, locks: u64) -> Result<(), OsError> {
        let block_bytes = self.geometry.lock_block_bytes();
        let size = self.size();
        let mut block = 0;
        while block < size.div_ceil(block_bytes) {
            // A size that nobody stored may be any: only what members hold data of is looked at. Where they cannot be asked there is data.
            match self.data_from(block * block_bytes).unwrap_or(Some(block * block_bytes)) {
                None => break,
                Some(data) if data >= size => break,
                Some(data) => block = block.max(data / block_bytes),
            }
            if locks >> (block % STRIPE_LOCK_COUNT as u64) & 1 == 1 {
                let offset = block * block_bytes;
                self.resync(offset, block_bytes.min(size - offset))?;
            }
            block += 1;
        }
        Ok(())
    }

    pub(crate) fn resync(&self, offset: u64, bytes: u64) -> Result<(), OsError> {
        loop {
            match self.striper(self.out()).resync(offset, bytes) {
                Ok(()) => return Ok(()),
                Err(fault) => self.after_fault(fault)?,
            }
        }
    }

    /// Runs `change` with the size lock held; it gets the size.
    pub(crate) fn with_size_locked<T>(&self, change: impl FnOnce(u64) -> Result<T, OsError>) -> Result<T, OsError> {
        let shared = self.shared();
        let runtime = self.files.array().runtime();
        if shared.size_lock.lock(runtime.me(), runtime) == Acquired::Inherited {
            shared.tail_unfinished.store(1, Ordering::Relaxed);
        }
        let finished = if shared.tail_unfinished.load(Ordering::Relaxed) == 0 { Ok(()) } else { self.finish_tail() };
        let result = finished.and_then(|()| change(shared.size()));
        shared.size_lock.unlock();
        result
    }

    /// Runs a change of the file under the size lock. It does not begin while the file's end is not finished.
    pub(crate) fn change_size_locked<T>(&self, change: impl FnOnce(u64) -> Result<T, OsError>) -> Result<T, OsError> {
        self.with_size_locked(|_| {
            if undo::is_needed(&self.geometry, self.out()) {
                // Who died in the last stripe may have left what would now be shown.
                drop(self.lock_masked(self.last_stripe_mask())?);
            }
            // A member may have gone out since the caller saw to those that are out: then the end was left alone.
            while self.writable && self.shared().tail_unfinished.load(Ordering::Relaxed) != 0 {
                self.files.array().before_change()?;
                self.finish_tail()?;
            }
            let result = change(self.size())?;
            // Who went out since lacks some of that, the size perhaps: it is on record before the change counts as made.
            self.files.array().before_change()?;
            Ok(result)
        })
    }

    /// The size as programs are told it. What a writer that died had committed to the journal may still be about to make the file longer; who was told that it is not there
    /// must not be told later that it is.
    #[inline]
    #[must_use]
    pub fn settled_size(&self) -> u64 {
        // Whoever has the lock may be dead, or have inherited it from the dead.
        if self.files.has_journal() && self.writable && self.shared().size_lock.owner().is_some() {
            // What fails is done by the next one to take it.
            let _ = self.with_size_locked(|_| Ok(()));
        }
        self.size()
    }

    /// Whether a member is away that nobody has missed yet: it comes back in sync if nothing is stored meanwhile. Who changes the file puts it on
    /// record first (`Array::before_change`).
    pub(crate) fn is_left_alone(&self) -> bool {
        !self.files.array().runtime().out_unrecorded().is_empty()
    }

    /// Gives every member the size, and makes what lies behind it zeros. The size lock is held.
    #[cold]
    fn finish_tail(&self) -> Result<(), OsError> {
        if !self.writable || self.is_left_alone() {
            return Ok(());
        }
        self.files.array().before_change()?;
        let held = self.lock_stripes(Blocks::ALL)?;
        // What is in the journal comes first: it may make the file longer, and nothing may be computed from stripes that do not fit.
        self.replay_behind(u64::MAX)?;
        let (shared, size, stripe) = (self.shared(), self.size(), self.geometry.stripe_bytes());
        if shared.resync_waits.load(Ordering::Relaxed) != 0 {
            // Before redundancy of the last stripe is made anew: it may be all there is of what a member has lost. And a backing file that is too short is not to be
            // lengthened unnoticed.
            self.undo_dead()?;
            self.resync_noted()?;
        }
        self.set_size(size);
        let kept = self.geometry.member_bytes(size);
        shared.allocated_end.store(kept, Ordering::Release);
        self.on_members(|backing| backing.set_len(kept).and_then(|()| backing.persist_layout()))?;
        shared.allocation_epoch.fetch_add(1, Ordering::AcqRel);
        let end = size.next_multiple_of(stripe);
        if self.geometry.level().has_chunks() && end > size {
            // Chunks of the last stripe that lie behind the end, as far as its first one reaches.
            self.fill_holes(size, end)?;
            self.with_stripe_noted(end - stripe, || {
                self.zero(size, end - size)?;
                self.resync(end - stripe, stripe)
            })?;
            self.on_members(|backing| backing.set_len(kept))?;
        }
        shared.tail_unfinished.store(0, Ordering::Relaxed);
        drop(held);
        Ok(())
    }
}
