//! Members that come into use while programs run.
//!
//! A member that is made anew is *begun*: its directory gets a new superblock and empty tables. A
//! process that attaches afterwards opens them, although the member is out. Once every living
//! process has done so, the member can get what the others have, and *join*: it comes into use for
//! all of them at once.
//!
//! The segment counts the beginnings. A process notes how many there were when it looked at the
//! members, and which of the begun ones it reaches. Its children, which share what it has open,
//! note the same.
//!
//! Invariants:
//! - a member joins only if every attached process has noted its beginning. A child that attaches
//!   later and whose parent had not noted it takes the member out again, before it does anything
//!   else;
//! - from [`Runtime::begin_joining`] on, every change of inode records is stored on the joining
//!   member too; whoever takes it out ([`Runtime::add_out`]) ends that first, and then it does not
//!   come into use;
//! - whoever writes superblocks puts a join that its process did not live to put on record on
//!   record first.

use super::Runtime;
use super::attach::slot_of;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use format::Uuid;
use units::{MEMBER_COUNT_MAX, MemberSet, Slot};

/// What the segment knows of members that were begun.
pub(super) struct Joins {
    /// How many members were begun since the segment was made.
    count: AtomicU32,
    /// The count at the last beginning of each member; 0 if there was none.
    begun: [AtomicU32; MEMBER_COUNT_MAX],
    /// The UUID that each got.
    uuids: [[AtomicU64; 2]; MEMBER_COUNT_MAX],
    /// Members on which changes of inode records are stored although they are out.
    joining: AtomicU32,
    /// Members that came into use, or were about to, since the array was assembled, and were not
    /// begun anew since.
    joined: AtomicU32,
    /// Members whose answers do not count while another member is in use.
    behind: AtomicU32,
    /// Members that may still lack bytes of files.
    rebuilding: AtomicU32,
    /// Members that came into use and are still out by the superblocks.
    unrecorded: AtomicU32,
}

/// Which beginnings a process has seen: how many members had been begun when it looked at the
/// members, in the upper half, and which of these it reaches, as bits.
#[derive(Default)]
pub(super) struct Reach {
    word: AtomicU64,
    /// Whether it has opened their tables.
    is_whole: AtomicBool,
}

impl Joins {
    /// Whether a process with this word of [`Reach`] can follow the last beginning of a member.
    fn is_seen(&self, slot: Slot, word: u64) -> bool {
        let begun = self.begun[slot].load(Ordering::SeqCst);
        (word >> 32) as u32 >= begun && MemberSet::from_bits(word as u32).contains(slot)
    }
}

impl Runtime {
    /// Notes that a member was begun. The segment's file is locked, so nobody attaches meanwhile.
    pub(crate) fn note_begun(&self, slot: Slot, uuid: Uuid) {
        let joins = &self.segment().joins;
        joins.joined.fetch_and(!MemberSet::EMPTY.with(slot).bits(), Ordering::SeqCst);
        for (word, bytes) in joins.uuids[slot].iter().zip(uuid.0.as_chunks().0) {
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        let count = joins.count.load(Ordering::Relaxed) + 1;
        joins.begun[slot].store(count, Ordering::Relaxed);
        joins.count.store(count, Ordering::SeqCst);
    }

    /// Notes that what was begun in a member's place is not there any more. The segment's file is
    /// locked.
    pub(crate) fn forget_begun(&self, slot: Slot) {
        if let Some(begun) = self.segment().joins.begun.get(slot) {
            begun.store(0, Ordering::SeqCst);
        }
    }

    /// The UUID that a member got when it was begun; None if it was not begun since the segment was
    /// made.
    #[must_use]
    pub fn begun(&self, slot: Slot) -> Option<Uuid> {
        let joins = &self.segment().joins;
        if joins.begun.get(slot)?.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut uuid = Uuid::NIL;
        for (word, bytes) in joins.uuids[slot].iter().zip(uuid.0.as_chunks_mut().0) {
            *bytes = word.load(Ordering::Relaxed).to_le_bytes();
        }
        Some(uuid)
    }

    /// The members that were begun since the segment was made.
    #[must_use]
    pub fn all_begun(&self) -> MemberSet {
        (0..MEMBER_COUNT_MAX).filter(|&slot| self.begun(slot).is_some()).collect()
    }

    /// Notes which of the begun members this process reaches, which is attaching. The segment's
    /// file is locked.
    pub(crate) fn note_reach(&self, reached: MemberSet) {
        let count = self.segment().joins.count.load(Ordering::Acquire);
        self.reach.word.store(u64::from(count) << 32 | u64::from(reached.bits()), Ordering::Relaxed);
    }

    /// Notes that this process has opened the tables of all members but those in `lacking`. Begun
    /// members that it reaches may join from then on.
    pub fn end_opening(&self, lacking: MemberSet) {
        self.reach.word.fetch_and(!u64::from(lacking.bits()), Ordering::Relaxed);
        self.reach.is_whole.store(true, Ordering::Relaxed);
        self.segment().attach[slot_of(self.me())].reach.store(self.reach_told(), Ordering::SeqCst);
    }

    /// What this process tells others that it reaches: nothing before it has opened the tables.
    pub(super) fn reach_told(&self) -> u64 {
        if self.reach.is_whole.load(Ordering::Relaxed) { self.reach.word.load(Ordering::Relaxed) } else { 0 }
    }

    /// Whether this process could use a member that was begun.
    #[must_use]
    pub fn reaches(&self, slot: Slot) -> bool {
        self.begun(slot).is_some() && self.segment().joins.is_seen(slot, self.reach_told())
    }

    /// Takes members out that have joined and that this process, a child that has just attached,
    /// does not reach.
    pub(super) fn leave_unreached(&self) {
        let joined = self.joined();
        if joined.is_empty() {
            return;
        }
        let word = self.reach.word.load(Ordering::Relaxed);
        let unreached: MemberSet = joined.iter().filter(|&slot| !self.segment().joins.is_seen(slot, word)).collect();
        if !unreached.is_empty() {
            self.note_disorder(unreached);
            self.add_out(unreached);
        }
    }

    /// The living processes, by pid, that do not reach a member that was begun: they started
    /// before, or cannot open it.
    #[must_use]
    pub fn not_reaching(&self, slot: Slot) -> Vec<u32> {
        let segment = self.segment();
        let lacks = |&index: &usize| !segment.joins.is_seen(slot, segment.attach[index].reach.load(Ordering::SeqCst));
        let processes = self.taken_slots().filter(lacks).filter(|&index| self.slot_lives(index));
        processes.map(|index| self.slot_process(index).pid).collect()
    }

    /// From now on changes of inode records are stored on a member that is out, too. The inode lock
    /// is held, and the open-files lock. Whoever attaches from now on without reaching the member
    /// keeps it from coming into use.
    pub fn begin_joining(&self, slot: Slot) {
        let (joins, one) = (&self.segment().joins, MemberSet::EMPTY.with(slot));
        joins.joining.fetch_or(one.bits(), Ordering::SeqCst);
        joins.joined.fetch_or(one.bits(), Ordering::SeqCst);
        // The member whose answers count stays the same, also if all that are in use have joined.
        let in_use = self.members.minus(self.out());
        let first = self.first_of(in_use).map_or(MemberSet::EMPTY, |first| MemberSet::EMPTY.with(first));
        let behind = if in_use.minus(self.behind()).is_empty() { in_use.minus(first) } else { self.behind() };
        joins.behind.store(behind.union(one).bits(), Ordering::SeqCst);
    }

    /// Of members in use the one whose answers count: what programs have open lies on it. That is
    /// the lowest of those that are not behind others, or the lowest of all.
    #[inline]
    pub(crate) fn first_of(&self, in_use: MemberSet) -> Option<Slot> {
        in_use.minus(self.behind()).lowest().or(in_use.lowest())
    }

    /// The members whose answers do not count while another member is in use: they joined after
    /// that one.
    #[inline]
    pub(crate) fn behind(&self) -> MemberSet {
        self.known(self.segment().joins.behind.load(Ordering::SeqCst))
    }

    /// The members that may still lack bytes of files: the others must not be put on record as out
    /// while these cannot stand in for them.
    #[must_use]
    pub fn rebuilding(&self) -> MemberSet {
        self.known(self.segment().joins.rebuilding.load(Ordering::SeqCst))
    }

    /// Notes at assembly which members may lack bytes of files.
    pub(crate) fn set_rebuilding(&self, members: MemberSet) {
        self.segment().joins.rebuilding.store(members.bits(), Ordering::SeqCst);
    }

    /// Notes that members lack nothing any more.
    pub(crate) fn end_rebuilding(&self, members: MemberSet) {
        self.segment().joins.rebuilding.fetch_and(!members.bits(), Ordering::SeqCst);
    }

    /// Changes of inode records are not stored any more on members that are out.
    pub fn end_joining(&self, members: MemberSet) {
        let joining = &self.segment().joins.joining;
        if joining.load(Ordering::SeqCst) & members.bits() != 0 {
            joining.fetch_and(!members.bits(), Ordering::SeqCst);
        }
    }

    /// The members on which changes of inode records are stored although they are out. Whoever asks
    /// for the members in use as well asks for those afterwards: then none is missed that joins
    /// meanwhile.
    #[inline]
    #[must_use]
    pub fn joining(&self) -> MemberSet {
        self.known(self.segment().joins.joining.load(Ordering::SeqCst))
    }

    /// The members that joined since the array was assembled, or tried to, and were not begun anew
    /// since.
    #[inline]
    #[must_use]
    pub fn joined(&self) -> MemberSet {
        self.known(self.segment().joins.joined.load(Ordering::SeqCst))
    }

    /// Brings a member into use that is joining. Files that are open go on without it. Returns
    /// false, and leaves the member out, if somebody has taken it out since
    /// [`Self::begin_joining`]. The superblock lock and the open-files lock are held, and every
    /// open file says so ([`super::SharedFile::without`]).
    pub(crate) fn take_in(&self, slot: Slot) -> bool {
        let (segment, one) = (self.segment(), MemberSet::EMPTY.with(slot));
        // The loss of this member will have to be put on record again, and told. How it left before
        // says nothing of that.
        self.forget_leaves(one);
        segment.out_recorded.fetch_and(!one.bits(), Ordering::SeqCst);
        segment.out_told.fetch_and(!one.bits(), Ordering::SeqCst);
        segment.joins.rebuilding.fetch_or(one.bits(), Ordering::SeqCst);
        segment.joins.unrecorded.fetch_or(one.bits(), Ordering::SeqCst);
        segment.out.fetch_and(!one.bits(), Ordering::SeqCst);
        let is_in = self.joining().contains(slot);
        if is_in {
            self.end_joining(one);
        } else {
            segment.out.fetch_or(one.bits(), Ordering::SeqCst);
            segment.joins.unrecorded.fetch_and(!one.bits(), Ordering::SeqCst);
        }
        segment.epoch.fetch_add(1, Ordering::SeqCst);
        is_in
    }

    /// The members in use that the superblocks call out. The superblock lock is held.
    #[must_use]
    pub(crate) fn join_unrecorded(&self) -> MemberSet {
        self.known(self.segment().joins.unrecorded.load(Ordering::SeqCst))
    }

    /// Notes that the superblocks say of a member what it is. The superblock lock is held.
    pub(crate) fn end_join(&self, slot: Slot) {
        self.segment().joins.unrecorded.fetch_and(!MemberSet::EMPTY.with(slot).bits(), Ordering::SeqCst);
    }

    /// Nobody is attached but this process, which assembles the array.
    pub(super) fn forget_joins(&self) {
        let joins = &self.segment().joins;
        for word in [&joins.joining, &joins.joined, &joins.behind, &joins.rebuilding, &joins.unrecorded] {
            word.store(0, Ordering::SeqCst);
        }
    }
}
