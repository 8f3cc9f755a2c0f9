//! Write-intent lanes: which bytes of which file may disagree between members after a crash.
//!
//! Before a thread stores the first byte of a write, its lane on every member in use names inode,
//! offset and length, and a fence has passed. The record stays until the lane's next use: a stale
//! one costs one needless resync. (The write-intent log of md, per thread and without a bitmap.)
//!
//! A lane whose owner died may name a change that was cut short. The lane is about to be
//! overwritten, so a thread that takes it over first stores what it names in the inode table, where
//! it is not forgotten (`inherit` of [`Lanes::own`]). So what the lanes and the inode table name
//! together covers, at every moment, all bytes that may disagree.
//!
//! A lane belongs to one thread: the thread block remembers the lane, and the runtime segment's
//! owner word proves that it is still the thread's (a child of fork inherits the block, not the
//! lane). Or a lane belongs to a process' writable mappings of one file, for as long as there are
//! any.
#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod journal;
mod names;

pub use journal::{Journal, NoLane};
pub use names::{Found, NameLog, Records};

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use format::{LANE_COUNT, LANE_RECORD_BYTES, LaneKind, LaneRecord, lane_offset};
use medium::Medium;
use persist::fault::guard;
use persist::{Flush, Kernels};
use sync::OwnerId;
use sys::rustix::thread::gettid;
use units::{MemberSet, Slot};

/// The lanes of one array, by member.
pub struct Lanes<M> {
    files: Vec<Option<M>>,
    /// Where lane 0 lies in memory on each member; 0 if not mapped.
    bases: Vec<usize>,
    kernels: &'static Kernels,
}

/// In an owner word in the place of the thread: the lane belongs to a file's writable mappings, not
/// to a thread.
const OF_MAPPINGS: u64 = 1 << 31;
/// At most every this many lanes one is given to mappings: threads that write wait for theirs.
const MAPPINGS_SHARE: usize = 2;

/// How often all lanes are looked at before one is taken that belongs to mappings of a dead
/// process.
const PATIENCE: u32 = 1000;

/// Takes a free lane for a process' writable mappings of one file, which their `record` stands for;
/// it stays taken until [`release`]d, also after the process' death: what it announces must first
/// be made good. None if too few are free.
pub fn reserve(owners: &[AtomicU64], me: OwnerId, record: u32) -> Option<usize> {
    let word = u64::from(me.get()) << 32 | OF_MAPPINGS | u64::from(record);
    let take = |lane: &usize| owners[*lane].compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    (0..owners.len()).step_by(MAPPINGS_SHARE).find(take)
}

/// Whether a lane is that of the mappings that `record` stands for.
#[must_use]
pub fn is_reserved(owners: &[AtomicU64], lane: usize, record: u32) -> bool {
    owners.get(lane).is_some_and(|owner| owner.load(Ordering::Acquire) & u64::from(u32::MAX) == OF_MAPPINGS | u64::from(record))
}

/// Gives back a lane of mappings. The caller has the record.
pub fn release(owners: &[AtomicU64], lane: usize, record: u32) {
    if is_reserved(owners, lane, record) {
        owners[lane].store(0, Ordering::Release);
    }
}

/// The lanes of the mappings that `record` stands for: more than one if their process died while it
/// changed to another.
pub fn reserved(owners: &[AtomicU64], record: u32) -> impl Iterator<Item = usize> {
    (0..owners.len()).step_by(MAPPINGS_SHARE).filter(move |&lane| is_reserved(owners, lane, record))
}

/// Gives back the lanes of process `me` whose changes are complete: the calling thread's, and those
/// of threads that have ended. `empty` is called for each before it is free. No thread of the
/// process is in the middle of a change that it announced in one of these.
pub fn give_back(owners: &[AtomicU64], me: OwnerId, mut empty: impl FnMut(usize)) {
    let pid = sys::rustix::process::getpid().as_raw_nonzero().get() as u32;
    let word = u64::from(me.get()) << 32 | gettid().as_raw_nonzero().get() as u64;
    for (lane, owner) in owners.iter().enumerate() {
        let present = owner.load(Ordering::Relaxed);
        if present >> 32 != u64::from(me.get()) || present & OF_MAPPINGS != 0 {
            continue;
        }
        // Another thread may take over the lane of one that has ended.
        let is_ended = || !sys::task::is_there(pid, present as u32);
        let take = || owner.compare_exchange(present, word, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if present == word || is_ended() && take() {
            empty(lane);
            owner.store(0, Ordering::Release);
        }
    }
    sys::thread::block().lane.store(0, Ordering::Relaxed);
}

/// What is about to change.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// What kind of change.
    pub kind: LaneKind,
    /// The file.
    pub inode: u64,
    /// Its generation.
    pub generation: u64,
    /// First byte of the file that changes.
    pub offset: u64,
    /// How many bytes change.
    pub length: u64,
}

impl<M: Medium> Lanes<M> {
    /// The lanes' files on the members that have one.
    pub fn files(&self) -> impl Iterator<Item = &M> {
        self.files.iter().flatten()
    }

    /// The lanes in these files, one per member (None for a member that is missing); `kernels` as
    /// for the members' data.
    #[must_use]
    pub fn new(files: Vec<Option<M>>, kernels: &'static Kernels) -> Self {
        let base = |file: &Option<M>| {
            let span = file.as_ref()?.span(lane_offset(0))?;
            (span.bytes >= LANE_COUNT * LANE_RECORD_BYTES).then_some(span.start.as_ptr() as usize)
        };
        let bases = files.iter().map(|file| base(file).unwrap_or(0)).collect();
        Self { files, bases, kernels }
    }

    /// Whether a member has lanes that can be stored to.
    #[must_use]
    pub fn has(&self, slot: Slot) -> bool {
        self.bases.get(slot).is_some_and(|&base| base != 0)
    }

    /// The calling thread's lane. `owners` are the owner words of the runtime segment, `is_alive`
    /// tells of an owner whether it lives. `inherit` sees to what a lane names whose owner died,
    /// before this returns it.
    #[inline]
    pub fn own(
        &self,
        owners: &[AtomicU64],
        me: OwnerId,
        is_alive: impl Fn(OwnerId) -> bool,
        inherit: impl FnOnce(usize),
    ) -> usize {
        let held = sys::thread::block().lane.load(Ordering::Relaxed) as usize;
        match owners.get(held.wrapping_sub(1)) {
            Some(owner) if owner.load(Ordering::Relaxed) >> 32 == u64::from(me.get()) => held - 1,
            _ => acquire(owners, me, is_alive, inherit),
        }
    }

    /// What a lane names: of the whole records on `members` the last. None if nothing.
    #[must_use]
    pub fn record(&self, lane: usize, members: MemberSet) -> Option<LaneRecord> {
        let records = members.iter().filter_map(|slot| self.load(slot, lane)).filter_map(|line| LaneRecord::decode(&line).ok());
        records.filter(|record| record.kind != LaneKind::Clean).max_by_key(|record| record.sequence)
    }

    fn load(&self, slot: Slot, lane: usize) -> Option<[u8; LANE_RECORD_BYTES]> {
        let base = Some(self.bases[slot]).filter(|&base| base != 0)?;
        let mut line = [0; LANE_RECORD_BYTES];
        let out = line.as_mut_ptr();
        // SAFETY: the span reaches to the last lane (checked in `new`); the closure owns nothing.
        unsafe { guard(|| out.copy_from_nonoverlapping((base as *const u8).add(lane * LANE_RECORD_BYTES), LANE_RECORD_BYTES)) }
            .ok()
            .map(|()| line)
    }

    /// Empties every lane on `members`: what they named is seen to, and nobody uses them. Durable
    /// after [`Self::persist`]. Returns the members whose memory failed.
    pub fn clear(&self, members: MemberSet) -> MemberSet {
        self.empty(0..LANE_COUNT, members)
    }

    /// Empties some lanes on `members`, as [`Self::clear`] does all. The caller owns them.
    pub fn empty(&self, lanes: core::ops::Range<usize>, members: MemberSet) -> MemberSet {
        debug_assert!(lanes.end <= LANE_COUNT);
        let clean = LaneRecord { sequence: next_sequence(), ..LaneRecord::CLEAN }.encode();
        let store_all = |slot: Slot| {
            let base = self.bases[slot];
            // SAFETY: as in `load`; lanes are aligned to 64 bytes.
            base == 0
                || unsafe {
                    guard(|| {
                        for lane in lanes.clone() {
                            self.store((base as *mut u8).add(lane * LANE_RECORD_BYTES), &clean);
                        }
                        persist::fence();
                    })
                }
                .is_ok()
        };
        members.iter().filter(|&slot| !store_all(slot)).collect()
    }

    /// Makes the lanes of `members` durable: a fence, or a system call where it takes one. Returns
    /// the members that failed.
    pub fn persist(&self, members: MemberSet) -> MemberSet {
        let (start, bytes) = (lane_offset(0), (LANE_COUNT * LANE_RECORD_BYTES) as u64);
        let fails = |slot: &Slot| self.files[*slot].as_ref().is_some_and(|file| file.persist(start, bytes).is_err());
        members.iter().filter(fails).collect()
    }

    /// Stores `change` in `lane` on every member in `members`, and fences. Runs inside a guard.
    ///
    /// # Safety
    /// The caller owns the lane and is inside a `persist::fault::guard`.
    #[inline]
    pub unsafe fn announce(&self, lane: usize, owner: OwnerId, change: &Change, members: MemberSet) {
        let record = LaneRecord {
            kind: change.kind,
            inode: change.inode,
            generation: change.generation,
            offset: change.offset,
            length: change.length,
            sequence: next_sequence(),
            owner: owner.get() as u16,
        };
        let line = record.encode();
        for slot in members.iter() {
            let base = self.bases[slot];
            if base != 0 {
                // SAFETY: the span reaches to the last lane (checked in `new`), lines are 64-byte
                // aligned, and the lane is ours.
                unsafe { self.store((base as *mut u8).add(lane * LANE_RECORD_BYTES), &line) };
            }
        }
        persist::fence();
    }

    /// Stores a record. Where it need not leave the caches it stays there until the lane's next
    /// use: with its fence it then costs 3 ns and not 94 per member.
    ///
    /// # Safety
    /// As [`Self::announce`]; `to` is a lane.
    #[inline(always)]
    unsafe fn store(&self, to: *mut u8, line: &[u8; LANE_RECORD_BYTES]) {
        if self.kernels.flush() == Flush::Needed {
            // SAFETY: the caller's promise.
            return unsafe { self.kernels.store_line(to, line) };
        }
        // Word by word from registers: a vector load of the line would wait until its parts have
        // left the store buffer.
        for (index, word) in line.as_chunks().0.iter().enumerate() {
            // SAFETY: as above; a lane is aligned to 64 bytes. Nothing else happens to it, so the
            // order of the words does not matter.
            unsafe { to.cast::<u64>().add(index).write_volatile(u64::from_le_bytes(*word)) };
        }
    }

    /// The member whose lanes hold `address`: how a fault in `announce` is traced.
    #[must_use]
    pub fn member_at(&self, address: usize) -> Option<Slot> {
        self.files.iter().position(|file| file.as_ref().is_some_and(|file| file.owns(address)))
    }
}

/// Numbers this thread's records: later ones are higher, across owners of a lane too.
fn next_sequence() -> u64 {
    persist::timestamp()
}

#[cold]
fn acquire(owners: &[AtomicU64], me: OwnerId, is_alive: impl Fn(OwnerId) -> bool, inherit: impl FnOnce(usize)) -> usize {
    let thread = gettid().as_raw_nonzero().get() as u32;
    let word = u64::from(me.get()) << 32 | u64::from(thread);
    let start = thread as usize % owners.len();
    // The lanes of this process' threads that have ended are taken first. Otherwise a program that
    // starts and ends many threads would have all lanes in the end: another process does not ask
    // whether the threads of a living one live.
    for (lane, owner) in owners.iter().enumerate() {
        let present = owner.load(Ordering::Relaxed);
        let is_own = present & OF_MAPPINGS == 0 && present >> 32 == u64::from(me.get());
        if is_own
            && is_abandoned(present, me, &is_alive, false)
            && owner.compare_exchange(present, word, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            sys::thread::block().lane.store(lane as u32 + 1, Ordering::Relaxed);
            return lane;
        }
    }
    for pass in 0u32.. {
        for step in 0..owners.len() {
            let lane = (start + step) % owners.len();
            let present = owners[lane].load(Ordering::Relaxed);
            let free = present == 0 || pass > 0 && is_abandoned(present, me, &is_alive, pass > PATIENCE);
            if free && owners[lane].compare_exchange(present, word, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                // What a thread of ours announced that has ended since is complete.
                if present >> 32 != 0 && present >> 32 != u64::from(me.get()) {
                    inherit(lane);
                }
                sys::thread::block().lane.store(lane as u32 + 1, Ordering::Relaxed);
                return lane;
            }
        }
        if pass > 0 {
            // More threads than lanes are writing at this moment; one will end.
            sys::rustix::thread::sched_yield();
        }
    }
    unreachable!("the loop ends by returning a lane")
}

/// Whether a lane's owner is gone: its process, or its thread of our own process. A lane of
/// mappings waits for whoever makes good what they left, unless there is `need`: then what it names
/// is put where it is not forgotten, as of any other.
fn is_abandoned(word: u64, me: OwnerId, is_alive: &impl Fn(OwnerId) -> bool, need: bool) -> bool {
    let Some(owner) = OwnerId::new((word >> 32) as u32) else { return true };
    if word & OF_MAPPINGS != 0 {
        return need && owner != me && !is_alive(owner);
    }
    if owner != me {
        return !is_alive(owner);
    }
    let pid = sys::rustix::process::getpid().as_raw_nonzero().get() as u32;
    !sys::task::is_there(pid, word as u32)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn threads_that_end_leave_their_lane_to_the_next_one() {
        let owners: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];
        let me = OwnerId::new(7).unwrap();
        for _ in 0..40 {
            std::thread::scope(|scope| {
                scope.spawn(|| acquire(&owners, me, |_| true, |_| panic!("nothing is inherited from this process")));
            });
        }
        // A thread's number may be another one's before the kernel has quite ended it.
        let taken = owners.iter().filter(|owner| owner.load(Ordering::Relaxed) != 0).count();
        assert!((1..=4).contains(&taken), "{taken} lanes");
    }
}
