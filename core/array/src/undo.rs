//! Undo records. They put a *block* right if its change ends half way while a member that holds
//! data of it is out. A block is up to [`BLOCK_BYTES`] at one offset of each member of a stripe.
//! The runtime segment keeps a record until the change is done.
//!
//! If all members are in use, the process that inherits a half-written stripe computes its parity
//! from its data. With a data chunk out that is not possible: the parity *is* that chunk, and
//! parity that does not fit the bytes stored beside it turns bytes of the chunk into something that
//! nobody wrote. So before a thread stores to a block, it saves the block's bytes of each member in
//! a record. In a read-modify-write it saves the old bytes, to go back to them. In a
//! reconstruct-write it saves the new bytes, to go on to them, so that it need not load what it
//! stores over. If a process dies in the middle of a block, the record's bytes are put on the
//! members: that block is old or new, and the blocks before it are new. A change that stores one
//! parity and nothing else needs no record: each byte is old or new, and so is the byte of the lost
//! chunk for which it stands. A member that is about to go out (`runtime::leaving`) counts as out
//! here: the process may die after it has gone.
//!
//! The runtime segment survives the death of a process but not a crash. After a crash only a
//! journal can put blocks right.
//!
//! Invariants:
//! - A record belongs to one thread, from [`UndoRecords::take`] to the drop of the [`Undo`] that
//!   `take` returned. It is armed only while that thread's stores may be half done, and only under
//!   the stripe locks of what it names.
//! - An armed record whose owner died is given to nobody until its bytes are put back. A process
//!   that inherits a lock of the file first puts them back, and only then touches the file's
//!   stripes. [`crate::Runtime::with_undo`] lets one process at a time do so. So a record can
//!   overwrite nothing that is newer.

use crate::striper::BLOCK_BYTES;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, compiler_fence};
use sync::OwnerId;
use units::{CACHE_LINE_BYTES, MemberSet, Slot};

/// Records per array: how many threads can change blocks with a member out at the same time.
pub const UNDO_COUNT: usize = 128;
/// Bytes a record can save: a whole block of each of up to 8 members, and less of each if there are
/// more.
const UNDO_BYTES: usize = 8 * BLOCK_BYTES;

/// Values of [`Head::armed`]. The record is disarmed.
const DISARMED: u32 = 0;
/// The record has saved bytes.
const SAVED: u32 = 1;
/// The owner is zeroing a range on every member.
const ZEROED: u32 = 2;
/// The owner holds locks and stores nothing under them.
const LOOKING: u32 = 3;
/// As [`LOOKING`], but the owner is storing the saved bytes of one member.
const MENDING: u32 = 4;

/// The head of a record: its owner, and which bytes of which members it names.
#[repr(C, align(64))]
struct Head {
    owner: AtomicU32,
    /// [`DISARMED`], [`SAVED`], [`ZEROED`], [`LOOKING`] or [`MENDING`]. [`UndoRecord::arm`] stores
    /// `DISARMED` before it changes the other fields, and the kind after them.
    armed: AtomicU32,
    /// The key of the file in the runtime segment.
    key: AtomicU64,
    /// The offset on each member.
    offset: AtomicU64,
    /// Bytes of each member from `offset` on.
    bytes: AtomicU64,
    members: AtomicU32,
    /// Of a record that is [`LOOKING`] or [`MENDING`], the stripe locks that are held: bit i stands
    /// for lock i.
    locks: AtomicU64,
    /// 1 once the pages of the record's [`Data`] have been allocated in the segment's file, so that
    /// stores to them cannot fault.
    has_space: AtomicU32,
}

/// The saved bytes: for each saved member, in ascending order, room for [`UndoRecord::step_bytes`],
/// of which [`Head::bytes`] are used.
#[repr(C, align(4096))]
struct Data([AtomicU8; UNDO_BYTES]);

/// The records of an array. In a segment of zeros all records are free.
#[repr(C, align(4096))]
pub(crate) struct UndoRecords {
    heads: [Head; UNDO_COUNT],
    datas: [Data; UNDO_COUNT],
}

/// A reference to a record, of which the caller need not be the owner.
#[derive(Clone, Copy)]
pub struct UndoRecord<'a> {
    head: &'a Head,
    data: &'a Data,
    leaving: MemberSet,
}

/// A thread's ownership of a record. To drop it frees the record, even while it is armed: the
/// thread has ended its change.
#[derive(Debug)]
pub struct Undo<'a>(UndoRecord<'a>);

/// What a dead owner left to be done on members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unfinished {
    /// The saved bytes go to their members ([`crate::Striper::put_back`]).
    Saved,
    /// The owner was zeroing this range on every member; the process that inherits must zero all of
    /// it.
    Zeroed {
        /// First byte on each member.
        offset: u64,
        /// Bytes on each member.
        bytes: u64,
    },
    /// Nothing: the owner held these stripe locks of the file and stored nothing to the blocks that
    /// they guard.
    Looking {
        /// Bit i stands for lock i.
        locks: u64,
    },
    /// The saved bytes go to their members ([`crate::Striper::put_back`]). Nothing else: the owner
    /// held these stripe locks and stored only those bytes to the blocks that they guard.
    Mending {
        /// Bit i stands for lock i.
        locks: u64,
    },
}

impl UndoRecords {
    /// Takes a free record for file `key`, beginning the search at index `hint`. Ok(None) if all
    /// records are taken. The first time that a record is taken, `allocate` is called with the
    /// address and the length of its data, to allocate shared memory; its error is returned.
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

    /// The records whose owner is dead, armed or not.
    pub(crate) fn abandoned(&self, is_alive: impl Fn(OwnerId) -> bool) -> impl Iterator<Item = UndoRecord<'_>> {
        let owner = |index: usize| OwnerId::new(self.heads[index].owner.load(Ordering::Acquire));
        let is_abandoned = move |index: &usize| owner(*index).is_some_and(|owner| !is_alive(owner));
        (0..UNDO_COUNT).filter(is_abandoned).map(|index| self.record(index))
    }

    fn record(&self, index: usize) -> UndoRecord<'_> {
        UndoRecord { head: &self.heads[index], data: &self.datas[index], leaving: MemberSet::EMPTY }
    }
}

impl<'a> UndoRecord<'a> {
    /// The members of [`Undo::guard_also`].
    pub(crate) const fn leaving(&self) -> MemberSet {
        self.leaving
    }

    /// The key of the file that the record is about.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.head.key.load(Ordering::Relaxed)
    }

    /// What the record's owner was in the middle of, if anything.
    #[must_use]
    pub fn unfinished(&self) -> Option<Unfinished> {
        match self.head.armed.load(Ordering::Acquire) {
            DISARMED => None,
            ZEROED => {
                let (offset, bytes) = (self.head.offset.load(Ordering::Relaxed), self.head.bytes.load(Ordering::Relaxed));
                Some(Unfinished::Zeroed { offset, bytes })
            }
            LOOKING => Some(Unfinished::Looking { locks: self.head.locks.load(Ordering::Relaxed) }),
            MENDING => Some(Unfinished::Mending { locks: self.head.locks.load(Ordering::Relaxed) }),
            // SAVED. Another value is damage: `saved` checks what the record names.
            _ => Some(Unfinished::Saved),
        }
    }

    /// Makes the record free: nothing is to be done any more. A living owner calls this when it
    /// drops its [`Undo`]; for a dead owner's record only a process inside
    /// [`crate::Runtime::with_undo`] may call it.
    pub fn free(&self) {
        self.disarm();
        self.head.owner.store(0, Ordering::Release);
    }

    /// How many bytes of each of `saved_members` members a record can save, a multiple of a line.
    pub(crate) const fn step_bytes(saved_members: usize) -> usize {
        let most = UNDO_BYTES / saved_members / CACHE_LINE_BYTES * CACHE_LINE_BYTES;
        if most < BLOCK_BYTES { most } else { BLOCK_BYTES }
    }

    /// The address where the record saves bytes of the `index`th of `saved_members` members.
    pub(crate) fn place(&self, index: usize, saved_members: usize) -> *mut u8 {
        let first = self.data.0.as_ptr().cast::<u8>().cast_mut();
        first.wrapping_add(index * Self::step_bytes(saved_members))
    }

    /// The members whose bytes the record has saved, their offset, and the bytes of each, in an
    /// array of `array_members`. None if the head is damaged, as any process can damage it that can
    /// write to the segment: memory outside of the record must not be stored on members.
    pub(crate) fn saved(&self, array_members: usize) -> Option<(MemberSet, u64, usize)> {
        let members = MemberSet::from_bits(self.head.members.load(Ordering::Relaxed));
        let (offset, bytes) = (self.head.offset.load(Ordering::Relaxed), self.head.bytes.load(Ordering::Relaxed) as usize);
        let exist = !members.is_empty() && members.minus(MemberSet::first(array_members)).is_empty();
        let fits = exist && bytes <= Self::step_bytes(members.len()) && offset.checked_add(bytes as u64).is_some();
        fits.then_some((members, offset, bytes))
    }

    /// Arms the record: the caller has saved, at [`Self::place`], bytes that make `members` agree
    /// if they are put on them. After this the caller may store to these members.
    pub(crate) fn arm_saved(&self, members: MemberSet, offset: u64, bytes: usize) {
        self.arm(SAVED, members, offset, bytes as u64);
    }

    /// Arms the record: from now on the caller may zero `bytes` bytes at `offset` of every member.
    pub fn arm_zeros(&self, offset: u64, bytes: u64) {
        self.arm(ZEROED, MemberSet::EMPTY, offset, bytes);
    }

    /// Arms the record to tell that the owner holds `locks` (bit i: stripe lock i of the file) and
    /// stores nothing under them, so that who inherits them has nothing to make good. The caller
    /// calls this after it has taken the locks; it calls [`Self::disarm`] before its first store
    /// under them, and before it releases them.
    pub fn arm_looking(&self, locks: u64) {
        self.head.locks.store(locks, Ordering::Relaxed);
        self.arm(LOOKING, MemberSet::EMPTY, 0, 0);
    }

    /// Arms the record: the caller has saved, at [`Self::place`], what `member` ought to have at
    /// `offset`, and may store it there. If the record told that its owner only looks, it says so
    /// at every instant of what else the locks guard.
    pub(crate) fn arm_mending(&self, member: Slot, offset: u64, bytes: usize) {
        let members = MemberSet::EMPTY.with(member);
        if self.head.armed.load(Ordering::Relaxed) != LOOKING {
            return self.arm_saved(members, offset, bytes);
        }
        // Nobody reads these three of a record that is `LOOKING`.
        self.head.members.store(members.bits(), Ordering::Relaxed);
        self.head.offset.store(offset, Ordering::Relaxed);
        self.head.bytes.store(bytes as u64, Ordering::Relaxed);
        self.head.armed.store(MENDING, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
    }

    /// The bytes of [`Self::arm_mending`] are stored, or their member has failed and is out.
    pub(crate) fn end_mending(&self) {
        let left = if self.head.armed.load(Ordering::Relaxed) == MENDING { LOOKING } else { DISARMED };
        compiler_fence(Ordering::SeqCst);
        self.head.armed.store(left, Ordering::Release);
    }

    fn arm(&self, what: u32, members: MemberSet, offset: u64, bytes: u64) {
        // After a fault the record can still be armed. It is disarmed first, so that a process that
        // dies between these stores never leaves an armed record with the kind of one change and
        // the place of another.
        self.head.armed.store(DISARMED, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        self.head.members.store(members.bits(), Ordering::Relaxed);
        self.head.offset.store(offset, Ordering::Relaxed);
        self.head.bytes.store(bytes, Ordering::Relaxed);
        self.head.armed.store(what, Ordering::Release);
        // Others read the record only after this thread is dead, and see all of its stores up to
        // some instruction. So only the compiler must not move stores (to the record, or to
        // members) over this line.
        compiler_fence(Ordering::SeqCst);
    }

    /// Disarms the record: the caller has stored all that it wanted to store, or nothing.
    pub fn disarm(&self) {
        compiler_fence(Ordering::SeqCst);
        self.head.armed.store(DISARMED, Ordering::Release);
    }
}

impl core::fmt::Debug for UndoRecord<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("UndoRecord").field("key", &self.key()).field("unfinished", &self.unfinished()).finish_non_exhaustive()
    }
}

impl<'a> Undo<'a> {
    /// Says that these members, which are in use, may go out before the change ends: the record saves
    /// what is changed in stripes of which they hold data, as if they were out already.
    pub const fn guard_also(&mut self, leaving: MemberSet) {
        self.0.leaving = leaving;
    }

    /// A reference to the record.
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

    /// Runs `act` with a record of new ones.
    fn with_record(act: impl FnOnce(UndoRecord<'_>)) {
        let layout = std::alloc::Layout::new::<UndoRecords>();
        // SAFETY: all zeros is a value of it; freed below.
        let records = unsafe { &*std::alloc::alloc_zeroed(layout).cast::<UndoRecords>() };
        act(records.record(UNDO_COUNT - 1));
        // SAFETY: allocated above, and not used any more.
        unsafe { std::alloc::dealloc(core::ptr::from_ref(records).cast_mut().cast(), layout) };
    }

    #[test]
    fn who_mends_while_it_looks_goes_on_saying_so() {
        with_record(|record| {
            record.arm_looking(0b101);
            record.arm_mending(2, 4096, 64);
            assert_eq!(record.unfinished(), Some(Unfinished::Mending { locks: 0b101 }));
            assert_eq!(record.saved(3), Some((MemberSet::EMPTY.with(2), 4096, 64)));
            record.end_mending();
            assert_eq!(record.unfinished(), Some(Unfinished::Looking { locks: 0b101 }));
            record.disarm();
            record.arm_mending(1, 0, 64);
            assert_eq!(record.unfinished(), Some(Unfinished::Saved));
            record.end_mending();
            assert_eq!(record.unfinished(), None);
        });
    }

    #[test]
    fn a_record_with_a_damaged_head_is_refused() {
        with_record(|record| {
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
        });
    }
}
