//! The processes that are attached: each has a slot of the runtime segment, and owns locks by the
//! slot's number and the count of its tenancies.
//!
//! What looks through all processes goes by a bit for each slot that is taken, so it costs as much
//! as there are processes, however many slots there are.
//!
//! Invariants:
//! - the tenancy alone says whether a slot is taken. The slot's bit is set before its process is
//!   named, and cleared before the slot is free; so each process that is named has its bit;
//! - a process that dies between those steps leaves a slot that nobody has, until the segment is
//!   made anew.

use super::{Runtime, Segment};
use crate::liveness::{ProcessId, exists, process_lives};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sync::OwnerId;
use sys::{AsRawFd, OsError, Result};

/// Processes that can be attached at once.
pub const ATTACH_SLOT_COUNT: usize = 16384;
const SLOT_BITS: u32 = ATTACH_SLOT_COUNT.trailing_zeros();
/// As many slots are used however few processes there are: a slot, and with it the name of a lock's
/// owner, comes again the later the more there are.
const WINDOW_MIN: usize = 1024;
/// So many processes are looked at closely by each that starts, at some 10 us each.
const LOOK_COUNT: usize = 64;

/// One attached process.
#[repr(C)]
pub(super) struct AttachSlot {
    pub(super) pid: AtomicU32,
    /// How often the slot was taken or freed: odd while it is taken. The count of a taken slot is
    /// part of its process' owner id, so that a lock held by a dead process is not mistaken for the
    /// slot's next owner's.
    pub(super) tenancy: AtomicU32,
    /// Start time in clock ticks since boot (proc(5)), so that a reused pid is recognised.
    pub(super) start_ticks: AtomicU64,
    /// How often the bell had been rung when its process last looked at all of its mappings.
    pub(super) heard: AtomicU32,
    /// The thread that hears the bell for it; 0 for none.
    pub(super) listener: AtomicU32,
    /// Files it has mappings of, at most.
    pub(super) shown_count: AtomicU32,
    /// Files that it caches, at most (caching.rs).
    pub(super) cached_count: AtomicU32,
    /// The process whose lock it waits for (waits.rs) in the lower half, when that was noted in the
    /// upper one; 0 for none.
    pub(super) waits_for: AtomicU64,
    /// 1 if its process may watch files of the array (watchers.rs).
    pub(super) watches: AtomicU32,
    /// 1 once its process changes nothing more and is about to detach (last.rs).
    pub(super) leaves: AtomicU32,
    /// The beginnings of members that its process can follow (joining.rs).
    pub(super) reach: AtomicU64,
    /// Its process' threads that are about to execute a program which does not attach
    /// (executing.rs).
    pub(super) executing: AtomicU64,
}

impl Runtime {
    /// This process as a lock owner. A child of fork attaches itself here.
    #[inline]
    pub fn me(&self) -> OwnerId {
        // SAFETY: the page is mapped for the life of self.
        let me = unsafe { self.me.as_ref() }.owner.load(Ordering::Relaxed);
        match OwnerId::new(me) {
            Some(me) => me,
            None => self.attach_child(),
        }
    }

    #[cold]
    fn attach_child(&self) -> OwnerId {
        if self.is_elsewhere() {
            self.stand_aside();
        }
        loop {
            if let Ok(me) = self.attach() {
                self.leave_unreached();
                return me;
            }
            // All slots are taken by living processes; one will end.
            sys::rustix::thread::sched_yield();
        }
    }

    pub(super) fn attach(&self) -> Result<OwnerId> {
        let me = self.attach_as(ProcessId::current())?;
        // SAFETY: the page is mapped for the life of self.
        let myself = unsafe { self.me.as_ref() };
        myself.file.store(self.file.as_raw_fd() as u32, Ordering::Relaxed);
        myself.owner.store(me.get(), Ordering::Relaxed);
        Ok(me)
    }

    /// Takes a slot for `process`, which must be alive.
    pub(super) fn attach_as(&self, process: ProcessId) -> Result<OwnerId> {
        // Few processes share few slots, so that the memory of slots which nobody needs is never
        // touched.
        let mut window = (2 * self.taken_slots().count()).next_power_of_two().clamp(WINDOW_MIN, ATTACH_SLOT_COUNT);
        loop {
            if let Some(owner) = self.attach_within(window, process) {
                return Ok(owner);
            }
            if window == ATTACH_SLOT_COUNT {
                break;
            }
            window *= 2;
        }
        self.reap();
        self.attach_within(ATTACH_SLOT_COUNT, process).ok_or(OsError::USERS)
    }

    /// Takes one of the first `window` slots, if one is free.
    fn attach_within(&self, window: usize, process: ProcessId) -> Option<OwnerId> {
        let segment = self.segment();
        let start = process.pid as usize % window;
        for index in (start..window).chain(0..start) {
            let slot = &segment.attach[index];
            let free = slot.tenancy.load(Ordering::Acquire);
            let taken = free.wrapping_add(1);
            if free & 1 == 0 && slot.tenancy.compare_exchange(free, taken, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                slot.start_ticks.store(process.start_ticks, Ordering::Relaxed);
                slot.heard.store(self.rings(), Ordering::Relaxed);
                slot.waits_for.store(0, Ordering::Relaxed);
                slot.leaves.store(0, Ordering::Relaxed);
                slot.executing.store(0, Ordering::Relaxed);
                slot.reach.store(self.reach_told(), Ordering::Relaxed);
                // Before the process is named: whoever looks for processes finds it from then on.
                segment.attached[index / 64].fetch_or(1 << (index % 64), Ordering::AcqRel);
                slot.pid.store(process.pid, Ordering::SeqCst);
                return Some(owner_id(index, taken));
            }
        }
        None
    }

    /// The slots that processes have taken.
    pub(super) fn taken_slots(&self) -> impl Iterator<Item = usize> {
        taken_slots_in(self.segment())
    }

    /// Gives back everything this process holds. Called when a program ends in order.
    pub fn detach(&self) {
        // SAFETY: the page is mapped for the life of self.
        let me = unsafe { self.me.as_ref() }.owner.swap(0, Ordering::Relaxed);
        if let Some(me) = OwnerId::new(me) {
            self.release_lane(me);
            self.release_slot(slot_of(me));
        }
    }

    /// What the calling thread announced is complete: its lane names nothing that others would have
    /// to see to. Other threads may be in the middle of a write, and end with the process there.
    fn release_lane(&self, me: OwnerId) {
        let held = &sys::thread::block().lane;
        if let Some(lane) = self.segment().lanes.get((held.load(Ordering::Relaxed) as usize).wrapping_sub(1))
            && lane.load(Ordering::Relaxed) >> 32 == u64::from(me.get())
        {
            held.store(0, Ordering::Relaxed);
            lane.store(0, Ordering::Release);
        }
    }

    /// Gives back what dead processes held. Returns how many processes live; 0 only if none does.
    ///
    /// Of many processes most are only asked whether they are there. One that has died and is still
    /// there (its parent has not waited for it, or it is just ending) is given back by whoever
    /// meets a lock of it, or by a process that starts later: each looks closely at others.
    pub fn reap(&self) -> usize {
        let first = sys::rustix::process::getpid().as_raw_nonzero().get() as usize % self.taken_slots().count().max(1);
        let mut living = 0;
        for (order, index) in self.taken_slots().skip(first).chain(self.taken_slots().take(first)).enumerate() {
            let process = self.slot_process(index);
            // Until one is known to live, a process that is only there is not enough.
            let is_near = order < LOOK_COUNT || living == 0;
            if process.pid != 0 && (!is_near && exists(process) || !self.reclaim_if_dead(index)) {
                living += 1;
            }
        }
        living
    }

    /// Whether this process has found that another had died.
    pub fn has_reaped(&self) -> bool {
        self.reaped.load(Ordering::Relaxed)
    }

    /// Whether this process has found that the last to have a file without a name open had died.
    pub fn has_reaped_nameless(&self) -> bool {
        self.reaped_nameless.load(Ordering::Relaxed)
    }

    /// With nobody attached no file is open, whatever processes left behind that died between fork
    /// and their first call.
    pub(super) fn forget_open_files(&self) {
        let segment = self.segment();
        for index in self.used_entries() {
            if segment.keys[index].load(Ordering::Relaxed) != 0 {
                segment.files[index].users.store(0, Ordering::Relaxed);
                segment.files[index].idle.store(0, Ordering::Relaxed);
                segment.files[index].in_flight.store(0, Ordering::Relaxed);
            }
        }
        segment.idle_count.store(0, Ordering::Relaxed);
        self.forget_watchers();
    }

    fn slot_is_taken(&self, index: usize) -> bool {
        self.segment().attach[index].tenancy.load(Ordering::Acquire) & 1 == 1
    }

    pub(super) fn slot_process(&self, index: usize) -> ProcessId {
        let slot = &self.segment().attach[index];
        ProcessId { pid: slot.pid.load(Ordering::Acquire), start_ticks: slot.start_ticks.load(Ordering::Relaxed) }
    }

    /// Whether a slot's process lives, and is still the program that took the slot.
    #[inline(never)]
    pub(super) fn slot_lives(&self, index: usize) -> bool {
        let process = self.slot_process(index);
        process.pid != 0 && process_lives(process) && !self.has_become_another(index)
    }

    /// Tells whether a slot is that of an earlier program of this very process, which exec ended.
    pub(super) fn was_this_process(&self, index: usize) -> bool {
        self.own().map(slot_of).is_some_and(|mine| mine != index && self.slot_process(index) == self.slot_process(mine))
    }

    fn reclaim_if_dead(&self, index: usize) -> bool {
        let slot = &self.segment().attach[index];
        let process = self.slot_process(index);
        if !self.slot_is_taken(index) || process.pid == 0 || process_lives(process) && !self.has_become_another(index) {
            return false;
        }
        // Only one of several reapers goes on.
        if slot.pid.compare_exchange(process.pid, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        self.segment().unclean.store(1, Ordering::Relaxed);
        self.reaped.store(true, Ordering::Relaxed);
        self.release_slot(index);
        true
    }

    /// Gives back what earlier programs of this very process held, which exec ended. What they left
    /// open and this program has too must be its own by now.
    pub fn forget_former_programs(&self) {
        let process = ProcessId::current();
        let mine = slot_of(self.me());
        let former = |&index: &usize| index != mine && self.slot_process(index) == process;
        for index in self.taken_slots().filter(former) {
            // Another process may find at the same time that the former program has ended: only one
            // of the two goes on.
            let pid = &self.segment().attach[index].pid;
            if pid.compare_exchange(process.pid, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                self.release_slot(index);
            }
        }
    }

    fn release_slot(&self, index: usize) {
        let segment = self.segment();
        self.end_showing_in(index);
        self.end_caching_in(index);
        self.end_watching_in(index);
        for (word_index, word) in segment.open_by_slot[index].iter().enumerate() {
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                let file = word_index * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let file = &segment.files[file];
                if file.users.fetch_sub(1, Ordering::AcqRel) == 1 && file.unlinked.load(Ordering::Acquire) != 0 {
                    self.reaped_nameless.store(true, Ordering::Relaxed);
                }
            }
        }
        for place in &segment.idle_by_slot[index] {
            self.end_idle_in(place);
        }
        segment.attach[index].pid.store(0, Ordering::Relaxed);
        // Before the slot is free: whoever takes it next sets the bit again.
        segment.attached[index / 64].fetch_and(!(1 << (index % 64)), Ordering::AcqRel);
        segment.attach[index].tenancy.fetch_add(1, Ordering::AcqRel);
    }

    /// The processes attached now, pids of living ones.
    pub fn attached(&self) -> impl Iterator<Item = u32> {
        self.taken_slots().filter(|&index| self.slot_lives(index)).map(|index| self.slot_process(index).pid)
    }
}

/// The slots of a segment that processes have taken.
pub(super) fn taken_slots_in(segment: &Segment) -> impl Iterator<Item = usize> {
    segment.attached.iter().enumerate().flat_map(|(word_index, word)| {
        let mut bits = word.load(Ordering::Acquire);
        core::iter::from_fn(move || {
            let bit = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
            bits &= bits - 1;
            Some(word_index * 64 + bit)
        })
    })
}

/// Slot index in the lower bits, tenancy above, never 0 because tenancy is odd, below 2^31 for the
/// bit that marks waiters.
pub(super) fn owner_id(slot: usize, tenancy: u32) -> OwnerId {
    let id = (tenancy << SLOT_BITS | slot as u32) & (u32::MAX >> 1);
    OwnerId::new(id).unwrap_or(OwnerId::MAX)
}

pub(super) const fn slot_of(owner: OwnerId) -> usize {
    owner.get() as usize % ATTACH_SLOT_COUNT
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use format::{Access, Uuid};

    /// A segment of this process alone.
    pub(in crate::runtime) fn segment(number: u8) -> Runtime {
        let mut uuid = [number; 16];
        uuid[..4].copy_from_slice(&std::process::id().to_le_bytes());
        let (uid, gid) = (sys::rustix::process::geteuid().as_raw(), sys::rustix::process::getegid().as_raw());
        let access = Access { mode: 0o600, owner_uid: uid, owner_gid: gid };
        Runtime::open(Uuid(uuid), access, |_, _| Ok(false)).unwrap().0
    }

    /// A process that lives for as long as this machine.
    const INIT: ProcessId = ProcessId { pid: 1, start_ticks: 0 };
    /// One that nobody has: more than the kernel gives out.
    const NOBODY: ProcessId = ProcessId { pid: (1 << 22) + 1, start_ticks: 0 };

    #[test]
    fn few_processes_share_few_slots_and_many_have_one_each() {
        let runtime = segment(1);
        for _ in 0..WINDOW_MIN / 2 - 1 {
            assert!(slot_of(runtime.attach_as(INIT).unwrap()) < WINDOW_MIN);
        }
        for _ in WINDOW_MIN / 2..ATTACH_SLOT_COUNT {
            runtime.attach_as(INIT).unwrap();
        }
        assert_eq!(runtime.attach_as(INIT), Err(OsError::USERS));
        let mut slots: Vec<usize> = runtime.taken_slots().collect();
        slots.dedup();
        assert_eq!(slots, (0..ATTACH_SLOT_COUNT).collect::<Vec<_>>());
        // One of them ends in order.
        runtime.release_slot(7);
        assert!(runtime.taken_slots().all(|slot| slot != 7));
        assert_eq!(runtime.attach_as(INIT).map(slot_of), Ok(7));
        sys::rustix::fs::unlink(runtime.path.as_str()).unwrap();
    }

    #[test]
    fn all_that_are_gone_are_given_back_however_many_there_are() {
        let runtime = segment(3);
        for count in [1, LOOK_COUNT, 20 * LOOK_COUNT] {
            for _ in 0..count {
                runtime.attach_as(NOBODY).unwrap();
            }
            // This process lives.
            assert_eq!(runtime.reap(), 1, "{count}");
            assert_eq!(runtime.taken_slots().count(), 1, "{count}");
        }
        sys::rustix::fs::unlink(runtime.path.as_str()).unwrap();
    }

    #[test]
    fn the_slots_of_the_dead_are_taken_when_no_other_is_free() {
        let runtime = segment(2);
        while runtime.attach_within(ATTACH_SLOT_COUNT, NOBODY).is_some() {}
        let owner = runtime.attach_as(INIT).unwrap();
        // This process has the other one.
        assert_eq!(runtime.taken_slots().count(), 2);
        assert_eq!(runtime.attached().filter(|&pid| pid == INIT.pid).count(), 1);
        assert_eq!(runtime.slot_process(slot_of(owner)), INIT);
        sys::rustix::fs::unlink(runtime.path.as_str()).unwrap();
    }
}
