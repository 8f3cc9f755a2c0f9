//! Which process lets the kernel keep pages of which file that programs may store to, in the runtime
//! segment: the process that serves a mount, while a program has the file open there such that it
//! can have a shared mapping to store to.
//!
//! Nobody sees those stores until the kernel writes the pages back, whole, and no store of another
//! process shows in those pages. So while a process caches a file nobody else may store to the file
//! through mappings, and the other way round: whoever comes second is refused.
//!
//! A process has a bit for each file that it caches. The bits of a process that has died count no
//! more, from its death on.
//!
//! Invariants: bits are set under the open-files lock, after a look at the records of
//! [`crate::mapped`], and such a record says that its process stores ([`MappedRecord::is_storing`])
//! only after a look at the bits under the same lock. `SharedFile::cached` is at least the number of
//! processes with a bit for the file.

use super::attach::slot_of;
use super::{FileEntry, OPEN_WORDS, Runtime};
use crate::mapped::MappedRecord;
use core::sync::atomic::Ordering;
use sync::{Acquired, Liveness as _};
use sys::OsError;

impl Runtime {
    /// This process begins to cache an entered file; called once, until [`Self::end_caching`].
    ///
    /// # Errors
    /// `BUSY` if another process stores to the file through mappings, or caches it.
    pub fn begin_caching(&self, key: u64, entry: FileEntry) -> Result<(), OsError> {
        let (segment, slot) = (self.segment(), slot_of(self.me()));
        self.with_open_files(|_: Acquired| {
            let stores = |(record, owner): (&MappedRecord, _)| record.is_storing() && owner != self.me() && self.is_alive(owner);
            let is_mapped = segment.files[entry.index].mapped.load(Ordering::Acquire) != 0;
            if is_mapped && segment.mapped.of(key).any(stores) || self.is_cached_by_others(entry) {
                return Err(OsError::BUSY);
            }
            // In this order: who is killed in between has counted too much, which is harmless.
            segment.attach[slot].cached_count.fetch_add(1, Ordering::Relaxed);
            segment.files[entry.index].cached.fetch_add(1, Ordering::SeqCst);
            segment.cached_by_slot[slot][entry.index / 64].fetch_or(1 << (entry.index % 64), Ordering::SeqCst);
            Ok(())
        })
    }

    /// This process caches the file no more: the kernel has written all pages back.
    pub fn end_caching(&self, entry: FileEntry) {
        self.end_caching_word(slot_of(self.me()), entry.index / 64, 1 << (entry.index % 64));
    }

    fn end_caching_word(&self, slot: usize, word: usize, wanted: u64) {
        let segment = self.segment();
        let mut bits = segment.cached_by_slot[slot][word].fetch_and(!wanted, Ordering::SeqCst) & wanted;
        while bits != 0 {
            let file = word * 64 + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            segment.files[file].cached.fetch_sub(1, Ordering::SeqCst);
            segment.attach[slot].cached_count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The process of a slot is gone, or begins.
    pub(super) fn end_caching_in(&self, slot: usize) {
        let count = &self.segment().attach[slot].cached_count;
        if count.load(Ordering::Relaxed) != 0 {
            (0..OPEN_WORDS).for_each(|word| self.end_caching_word(slot, word, u64::MAX));
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Tells whether another process than this one, which lives, caches an entered file.
    #[must_use]
    pub fn is_cached_by_others(&self, entry: FileEntry) -> bool {
        let segment = self.segment();
        if segment.files[entry.index].cached.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let me = self.own().map(slot_of);
        let caches =
            |slot: &usize| segment.cached_by_slot[*slot][entry.index / 64].load(Ordering::SeqCst) >> (entry.index % 64) & 1 == 1;
        self.taken_slots().any(|slot| Some(slot) != me && caches(&slot) && self.slot_lives(slot))
    }

    /// Notes in a record of this process that what it says may be stored to from now on.
    ///
    /// # Errors
    /// `NODEV` if another process caches the file.
    pub fn begin_storing(&self, record: &MappedRecord, entry: FileEntry) -> Result<(), OsError> {
        if record.is_storing() {
            return Ok(());
        }
        self.with_open_files(|_: Acquired| {
            if self.is_cached_by_others(entry) {
                return Err(OsError::NODEV);
            }
            record.set_storing();
            Ok(())
        })
    }
}
