//! Members that are about to go out of use while their memory can still be read.
//!
//! A process that starts is usually the first to notice that a member's directory is gone.
//! Processes that have the member open go on loading and storing there. Two things that only that
//! member has must reach the others before it counts as out: what processes left half done when
//! they died, and what was stored through mappings and not followed yet. So the process that
//! notices the loss announces it first. While the loss is announced, nobody stores through mappings
//! that show members, and each process with such mappings makes redundancy follow them. Then the
//! member goes out, and stores go on when all mappings show other members.
//!
//! A write that was begun before the announcement saves nothing with which it could be undone once
//! the member is out. So the process that announces waits until each stripe lock that is held then
//! has been given back, or its owner has died. Whoever takes such a lock later sees the announcement
//! and saves what it changes ([`crate::undo`]).
//!
//! Invariants: one process announces at a time, and if it dies nothing is announced any more. A
//! process announces before it rings the bell; the others look at the announcement after they have
//! heard the bell.

use super::{ANSWER_STEP, Runtime, slot_of};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use sync::{Liveness as _, OwnerId, StripeLock};
use units::MemberSet;

/// How often it is asked at most whether all others have followed their mappings. One that is
/// stopped does not, and is not waited for any longer.
const ANSWER_STEPS: u32 = 10_000;
/// How often it is asked whether another process' announcement has ended: who made it waits three
/// times, and makes good what the dead have left.
const TURN_STEPS: u32 = 5 * ANSWER_STEPS;

/// The announcement: who made it in the upper half, the members in the lower. 0 for none.
#[derive(Default)]
pub(super) struct Leaving(AtomicU64);

impl Runtime {
    /// The members that are about to go out.
    #[inline]
    #[must_use]
    pub fn leaving(&self) -> MemberSet {
        let word = self.segment().leaving.0.load(Ordering::SeqCst);
        if word == 0 { MemberSet::EMPTY } else { self.leaving_by(word) }
    }

    #[cold]
    fn leaving_by(&self, word: u64) -> MemberSet {
        if OwnerId::new((word >> 32) as u32).is_some_and(|owner| owner == self.me() || self.is_alive(owner)) {
            return self.known(word as u32);
        }
        let _ = self.segment().leaving.0.compare_exchange(word, 0, Ordering::SeqCst, Ordering::Relaxed);
        MemberSet::EMPTY
    }

    /// Takes members out that other processes still reach. Announces it, and waits until every
    /// other process with mappings has followed them, or one does not answer; then, after `settle`,
    /// the members go out, and when no mapping shows them any more the announcement ends. No lock
    /// is held.
    ///
    /// Nothing of that is done if `may_be_out` does not hold of what would be out then. It is asked
    /// when nobody else can announce, so two processes that each take one member too many out do
    /// not both find that the others suffice. False if it does not hold.
    pub fn let_go(&self, members: MemberSet, may_be_out: impl Fn(MemberSet) -> bool, settle: impl Fn()) -> bool {
        if !self.announce(members) {
            let may = may_be_out(self.out().union(members));
            if may {
                self.add_out(members);
            }
            return may;
        }
        if !may_be_out(self.out().union(members)) {
            self.segment().leaving.0.store(0, Ordering::SeqCst);
            return false;
        }
        self.await_writers();
        self.await_all(self.ring());
        settle();
        self.add_out(members);
        // Who stored to another member now would not be seen by who still loads from these.
        self.await_all(self.ring());
        self.segment().leaving.0.store(0, Ordering::SeqCst);
        self.ring();
        true
    }

    /// False if another process has announced the same, and the members are out, or does not come
    /// to an end.
    fn announce(&self, members: MemberSet) -> bool {
        let word = u64::from(self.me().get()) << 32 | u64::from(members.bits());
        for _ in 0..TURN_STEPS {
            if members.minus(self.out()).is_empty() {
                return false;
            }
            // Takes back what a dead process announced.
            let is_free = self.leaving().is_empty();
            if is_free && self.segment().leaving.0.compare_exchange(0, word, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                return true;
            }
            let _ = sys::rustix::thread::nanosleep(&ANSWER_STEP);
        }
        false
    }

    /// Waits until whoever holds a stripe lock now has given it back or has died, or one does not come
    /// to an end: a process that is stopped.
    fn await_writers(&self) {
        // Between the announcement and the looks at the locks; who takes a lock does so by an atomic
        // operation that is such a fence, too.
        fence(Ordering::SeqCst);
        let files = self.entered_files();
        let held = files.flat_map(|file| &file.stripes).filter_map(|lock| Some((lock, lock.owner()?, lock.read_end())));
        let mut held: Vec<_> = held.collect();
        for _ in 0..ANSWER_STEPS {
            let is_held = |&(lock, owner, count): &(&StripeLock, OwnerId, u32)| {
                lock.owner() == Some(owner)
                    && lock.read_end() | 1 == count | 1
                    && (owner == self.me() || self.is_alive(owner) && !self.was_this_process(slot_of(owner)))
            };
            held.retain(is_held);
            if held.is_empty() {
                return;
            }
            let _ = sys::rustix::thread::nanosleep(&ANSWER_STEP);
        }
    }

    /// Waits until all others with mappings have looked at them since the bell was rung for the
    /// `rings`th time, or one does not answer.
    fn await_all(&self, rings: u32) {
        for _ in 0..ANSWER_STEPS {
            if self.unheard_by(None, rings).next().is_none() {
                return;
            }
            let _ = sys::rustix::thread::nanosleep(&ANSWER_STEP);
        }
    }

    /// The files of which a process that died left something to be made good: it held a lock, was
    /// in the middle of a change or, if `mappings`, had mappings that may have been stored to.
    #[must_use]
    pub fn left_unfinished(&self, mappings: bool) -> Vec<u64> {
        let segment = self.segment();
        let mut known = BTreeSet::new();
        let mut is_dead = |owner: Option<OwnerId>| {
            let Some(owner) = owner.filter(|owner| !known.contains(&owner.get())) else { return false };
            if owner == self.me() || self.is_alive(owner) {
                known.insert(owner.get());
                return false;
            }
            true
        };
        let mut found: BTreeSet<u64> =
            self.abandoned_undo().filter(|record| record.unfinished().is_some()).map(|record| record.key()).collect();
        for index in self.used_entries() {
            let (key, file) = (segment.keys[index].load(Ordering::Acquire), &segment.files[index]);
            if key == 0 || found.contains(&key) {
                continue;
            }
            let noted = file.tail_unfinished.load(Ordering::Relaxed) != 0 || file.stripes_unfinished.load(Ordering::Relaxed) != 0;
            if noted
                || is_dead(file.size_lock.owner())
                || file.stripes.iter().any(|lock| is_dead(lock.owner()))
                || mappings
                    && file.mapped.load(Ordering::Acquire) != 0
                    && segment.mapped.of(key).any(|(_, owner)| is_dead(Some(owner)))
            {
                found.insert(key);
            }
        }
        found.into_iter().collect()
    }
}
