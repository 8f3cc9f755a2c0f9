//! Undo records: they make a block of stripes whole again if its change ends half way while a
//! member that holds data of it is out. The runtime segment keeps a record until the change is
//! done.
//!
//! With all members in, a stripe that a dead process left half written is mended: its parity is
//! computed from its data. With a data chunk out that is not possible: the parity *is* that chunk,
//! and parity that does not fit the bytes stored beside it turns bytes of the chunk into something
//! that nobody wrote. So before a block of rows is stored to, a record gets the bytes of each
//! member in it. Where parities are updated, the record gets the old bytes. Where parities are
//! computed from the new data, it gets the new bytes (so nothing that is stored over need be
//! loaded). If a process dies in the middle of a block, the record's bytes are put on the members:
//! that block is old or new, and the blocks before it are new. A single parity that is stored alone
//! needs no record: each of its bytes is old or new. The segment outlives processes and not the
//! machine; after a crash only a journal does the same.
//!
//! Invariants:
//! - A record belongs to one thread, from [`UndoRecords::take`] to its drop. It is armed only while
//!   that thread's stores may be half done, and only under the stripe locks of what it names.
//! - An armed record whose owner died is given to nobody until its bytes are put back. A process
//!   that inherits any lock of the file does that before it does anything else to the file's
//!   stripes, alone among all processes ([`crate::Runtime::with_undo`]). So nothing newer can be
//!   overwritten by a record.

use crate::striper::BLOCK_BYTES;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, compiler_fence};
use sync::OwnerId;
use units::{CACHE_LINE_BYTES, MemberSet};

/// Threads that can be in the middle of such a change at once.
pub const UNDO_COUNT: usize = 128;
/// Bytes a record can save: a block of each of 8 members, or less of more.
const UNDO_BYTES: usize = 8 * BLOCK_BYTES;

const NOTHING: u32 = 0;
const SAVED: u32 = 1;
const ZEROED: u32 = 2;
const LOOKING: u32 = 3;

/// Whose a record is and what it names.
#[repr(C, align(64))]
struct Head {
    owner: AtomicU32,
    /// [`NOTHING`], [`SAVED`], [`ZEROED`] or [`LOOKING`]. Stored last, and taken back first.
    armed: AtomicU32,
    /// The file.
    key: AtomicU64,
    /// Where on each member; while looking, the locks that are held, a bit each.
    offset: AtomicU64,
    /// How much of each.
    bytes: AtomicU64,
    members: AtomicU32,
    /// 1 once shared memory has been allocated for what it saves.
    has_space: AtomicU32,
}

/// What a record saves: of each member so many bytes, in ascending order of members.
#[repr(C, align(4096))]
struct Data([AtomicU8; UNDO_BYTES]);

/// The records of an array. All zeros: all free.
#[repr(C, align(4096))]
pub(crate) struct UndoRecords {
    heads: [Head; UNDO_COUNT],
    datas: [Data; UNDO_COUNT],
}

/// A record.
#[derive(Clone, Copy)]
pub struct UndoRecord<'a> {
    head: &'a Head,
    data: &'a Data,
}

/// A record while it is its thread's. Dropped, it is free, whatever it names.
#[derive(Debug)]
pub struct Undo<'a>(UndoRecord<'a>);

/// What a dead owner left to be done on members, all of it bytes of backing files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unfinished {
    /// The saved bytes go to their members ([`crate::Striper::put_back`]).
    Saved,
    /// These were becoming zeros, and are to be.
    Zeroed {
        /// First byte on each member.
        offset: u64,
        /// Bytes on each member.
        bytes: u64,
    },
    /// Nothing: the owner held these locks of the file, a bit each, and has stored nothing behind them. What they guard is as whole as it was before.
    Looking {
        /// The locks.
        locks: u64,
    },
}

impl UndoRecords {
    /// Takes a free record for file `key`, beginning the search at `hint`. None if there is none. `allocate` sees to shared memory for the record's data (address and
    /// bytes), once for each.
    pub(crate) fn take<E>(
        &self,
        me: OwnerId,
        key: u64,
        hint: usize,
        allocate: impl FnOnce(usize, usize) -> Result<(), E>,
    ) -> Result<Option<Undo<'_>>, E> {
        let take = |index: &usize| {
            let owner = &self.heads[*index].owner;
            owner.load(Ordering::Relaxed) == 0 && owner.compare_exchange(0, me.get(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let Some(index) = (0..UNDO_COUNT).map(|step| (hint + step) % UNDO_COUNT).find(take) else { return Ok(None) };
        let undo = Undo(self.record(index));
        let head = undo.0.head;
        if head.has_space.load(Ordering::Relaxed) == 0 {
            allocate(undo.0.data.0.as_ptr() as usize, UNDO_BYTES)?;
            head.has_space.store(1, Ordering::Relaxed);
        }
        head.key.store(key, Ordering::Relaxed);
        Ok(Some(undo))
    }

    /// The records whose owner is gone.
    pub(crate) fn abandoned(&self, is_alive: impl Fn(OwnerId) -> bool) -> impl Iterator<Item = UndoRecord<'_>> {
        let owner = |index: usize| OwnerId::new(self.heads[index].owner.load(Ordering::Acquire));
        let is_abandoned = move |index: &usize| owner(*index).is_some_and(|owner| !is_alive(owner));
        (0..UNDO_COUNT).filter(is_abandoned).map(|index| self.record(index))
    }

    fn record(&self, index: usize) -> UndoRecord<'_> {
        UndoRecord { head: &self.heads[index], data: &self.datas[index] }
    }
}

impl<'a> UndoRecord<'a> {
    /// The file it is about.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.head.key.load(Ordering::Relaxed)
    }

    /// What its owner was in the middle of, if anything.
    #[must_use]
    pub fn unfinished(&self) -> Option<Unfinished> {
        match self.head.armed.load(Ordering::Acquire) {
            NOTHING => None,
            ZEROED => {
                let (offset, bytes) = (self.head.offset.load(Ordering::Relaxed), self.head.bytes.load(Ordering::Relaxed));
                Some(Unfinished::Zeroed { offset, bytes })
            }
            LOOKING => Some(Unfinished::Looking { locks: self.head.offset.load(Ordering::Relaxed) }),
            _ => Some(Unfinished::Saved),
        }
    }

    /// Makes the record of a dead owner free: there is nothing to be done any more. [`crate::Runtime::with_undo`] is held.
    pub fn free(&self) {
        self.disarm();
        self.head.owner.store(0, Ordering::Release);
    }

    /// How many bytes of each of `member_count` members it can save, a multiple of a line.
    pub(crate) const fn step_bytes(member_count: usize) -> usize {
        let most = UNDO_BYTES / member_count / CACHE_LINE_BYTES * CACHE_LINE_BYTES;
        if most < BLOCK_BYTES { most } else { BLOCK_BYTES }
    }

    /// Where it saves what the member has that comes `index`th of `member_count`.
    pub(crate) fn place(&self, index: usize, member_count: usize) -> *mut u8 {
        let first = self.data.0.as_ptr().cast::<u8>().cast_mut();
        first.wrapping_add(index * Self::step_bytes(member_count))
    }

    /// The members whose bytes it saves, where, and how many of each. None if that cannot be: whoever may write to the segment may have damaged it, and what lies
    /// behind the record is not to be stored on members.
    pub(crate) fn saved(&self, member_count: usize) -> Option<(MemberSet, u64, usize)> {
        let members = MemberSet::from_bits(self.head.members.load(Ordering::Relaxed));
        let (offset, bytes) = (self.head.offset.load(Ordering::Relaxed), self.head.bytes.load(Ordering::Relaxed) as usize);
        let exist = !members.is_empty() && members.minus(MemberSet::first(member_count)).is_empty();
        let fits = exist && bytes <= Self::step_bytes(members.len()) && offset.checked_add(bytes as u64).is_some();
        fits.then_some((members, offset, bytes))
    }

    /// What was saved at [`Self::place`] makes `members` agree: from here on they may be stored to.
    pub(crate) fn arm_saved(&self, members: MemberSet, offset: u64, bytes: usize) {
        self.arm(SAVED, members, offset, bytes as u64);
    }

    /// From here on every member may be zeroed there.
    pub fn arm_zeros(&self, offset: u64, bytes: u64) {
        self.arm(ZEROED, MemberSet::EMPTY, offset, bytes);
    }

    /// The owner has these locks of the file, a bit each, and stores nothing until it says otherwise: who inherits them need not make anything behind them good. To be said once the locks are held, and disarmed before they are
    /// let go.
    pub fn arm_looking(&self, locks: u64) {
        self.arm(LOOKING, MemberSet::EMPTY, locks, 0);
    }

    fn arm(&self, what: u32, members: MemberSet, offset: u64, bytes: u64) {
        // It may still be armed, after a fault: a death in between is not to find the one kind at the other's place.
        self.head.armed.store(NOTHING, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        self.head.members.store(members.bits(), Ordering::Relaxed);
        self.head.offset.store(offset, Ordering::Relaxed);
        self.head.bytes.store(bytes, Ordering::Relaxed);
        self.head.armed.store(what, Ordering::Release);
        // Who reads it finds the thread stopped at some instruction: only the order of instructions counts.
        compiler_fence(Ordering::SeqCst);
    }

    /// All that was to be stored is stored.
    pub fn disarm(&self) {
        compiler_fence(Ordering::SeqCst);
        self.head.armed.store(NOTHING, Ordering::Release);
    }
}

impl core::fmt::Debug for UndoRecord<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("UndoRecord").field("key", &self.key()).field("unfinished", &self.unfinished()).finish_non_exhaustive()
    }
}

impl<'a> Undo<'a> {
    /// The record.
    #[must_use]
    pub const fn record(&self) -> UndoRecord<'a> {
        self.0
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        self.0.free();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_saves_no_more_than_it_has_room_for() {
        let layout = std::alloc::Layout::new::<UndoRecords>();
        // SAFETY: all zeros is a value of it; freed below.
        let records = unsafe { &*std::alloc::alloc_zeroed(layout).cast::<UndoRecords>() };
        let record = records.record(UNDO_COUNT - 1);
        let two = MemberSet::first(2);
        record.arm_saved(two, 4096, BLOCK_BYTES);
        assert_eq!(record.saved(3), Some((two, 4096, BLOCK_BYTES)));
        for (members, offset, bytes) in [
            (two, 4096, 256 << 20),
            (two, 4096, BLOCK_BYTES + 1),
            (MemberSet::first(32), 0, BLOCK_BYTES),
            (MemberSet::EMPTY, 0, 64),
            (MemberSet::EMPTY.with(3), 0, 64),
            (two, u64::MAX, 64),
        ] {
            record.arm_saved(members, offset, bytes);
            assert_eq!(record.saved(3), None, "{members:?} {offset} {bytes}");
        }
        // SAFETY: allocated above, and not used any more.
        unsafe { std::alloc::dealloc(core::ptr::from_ref(records).cast_mut().cast(), layout) };
    }
}
