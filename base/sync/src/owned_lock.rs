//! A mutual-exclusion lock in shared memory. It outlives the process that holds it: another process
//! inherits it.
//!
//! The lock is one word. 0: it is free. Otherwise bits 0..=30 are the owner, and bit 31 says that
//! somebody may sleep in the kernel, so that `unlock` has to wake.
//!
//! Invariant: the owner in a word changes only by that owner's `unlock`, or when another process
//! inherits the lock after it has found the owner dead. Waiters set bit 31 at any time.

use crate::kernel::{AtomicU32, Ordering, sleep, spin_loop, wake};
use core::num::NonZeroU32;

/// The number of a process that may hold locks, from 1 to 2^31 - 1. The threads of a process have
/// one number. The lock excludes them from each other too, so a thread that asks for a lock which
/// it holds waits for ever.
pub type OwnerId = NonZeroU32;

/// The bit of the word that says that somebody may sleep.
const WAITERS: u32 = 1 << 31;
/// How often a thread tries to take the lock before it sleeps: about as long as a stripe lock is
/// held (a microsecond), at a few nanoseconds per try.
const SPIN_COUNT: u32 = if cfg!(all(test, loom)) { 0 } else { 200 };
/// How long a waiter sleeps before it asks whether the owner lives. A waiter may have to do so several
/// times in a row, and is to go on within 100 ms of a death.
const DOUBT_AFTER_NS: i64 = 10_000_000;

/// Tells whether an owner still lives.
pub trait Liveness {
    /// False only if `owner` is certainly gone.
    fn is_alive(&self, owner: OwnerId) -> bool;

    /// Whether `owner` was found dead a short while ago. A process that dies often holds several
    /// locks; a waiter then sleeps for the first of them only. The answer is a hint: an owner's
    /// number may be given to a new process, so [`Self::is_alive`] decides.
    fn was_found_dead(&self, owner: OwnerId) -> bool {
        let _ = owner;
        false
    }
}

/// How a lock was obtained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Acquired {
    /// The lock was free: nobody left half changed what it guards.
    Clean,
    /// The last holder died while it held the lock, or the word named no holder. What the lock
    /// guards may be half changed, and the caller has to make it good.
    Inherited,
}

/// The lock. All zeros is free.
#[repr(transparent)]
#[derive(Default)]
pub struct OwnedLock(AtomicU32);

impl OwnedLock {
    /// A free lock.
    #[cfg(not(all(test, loom)))]
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Takes the lock for `me`. Waits for a living owner as long as that takes, and inherits the
    /// lock from a dead one.
    #[inline]
    pub fn lock(&self, me: OwnerId, live: &impl Liveness) -> Acquired {
        if self.0.compare_exchange(0, me.get(), Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return Acquired::Clean;
        }
        self.lock_slow(me, live)
    }

    /// Takes the lock for `me` if it is free, and returns whether it did. Never inherits.
    #[inline]
    #[must_use]
    pub fn try_lock(&self, me: OwnerId) -> bool {
        self.0.compare_exchange(0, me.get(), Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes the lock as [`Self::lock`] does, where it was not free a moment ago.
    #[cold]
    fn lock_slow(&self, me: OwnerId, live: &impl Liveness) -> Acquired {
        for _ in 0..SPIN_COUNT {
            spin_loop();
            if self.0.load(Ordering::Relaxed) == 0 && self.try_lock(me) {
                return Acquired::Clean;
            }
        }
        loop {
            let word = self.0.load(Ordering::Relaxed);
            if word == 0 {
                // Other threads may still sleep: the bit is set, so that our unlock wakes the next.
                if self.0.compare_exchange(0, me.get() | WAITERS, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return Acquired::Clean;
                }
                continue;
            }
            let marked = word | WAITERS;
            if word != marked && self.0.compare_exchange(word, marked, Ordering::Relaxed, Ordering::Relaxed).is_err() {
                continue;
            }
            // The bit without an owner is never stored by this code: a process has damaged the
            // word. There is nobody to wait for.
            let Some(owner) = OwnerId::new(marked & !WAITERS) else {
                if self.0.compare_exchange(marked, me.get() | WAITERS, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return Acquired::Inherited;
                }
                continue;
            };
            let is_known_dead = live.was_found_dead(owner) && !live.is_alive(owner);
            // `sleep` returns true if all of DOUBT_AFTER_NS has passed. A waiter that is woken before
            // that has no reason to doubt that the owner lives.
            let is_dead = is_known_dead || sleep(&self.0, marked, DOUBT_AFTER_NS) && !live.is_alive(owner);
            if is_dead && self.0.compare_exchange(marked, me.get() | WAITERS, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Acquired::Inherited;
            }
        }
    }

    /// Releases the lock. To be called by a thread of the owner; that is not checked.
    #[inline]
    pub fn unlock(&self) {
        if self.0.swap(0, Ordering::Release) & WAITERS != 0 {
            wake(&self.0);
        }
    }

    /// Tells whether somebody waits for the lock, or waited for it before its holder took it.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        self.0.load(Ordering::Relaxed) & WAITERS != 0
    }

    /// The process that holds the lock, for reports.
    #[must_use]
    pub fn owner(&self) -> Option<OwnerId> {
        OwnerId::new(self.0.load(Ordering::Relaxed) & !WAITERS)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;
    use std::sync::Arc;

    struct AllAliveBut(u32);
    impl Liveness for AllAliveBut {
        fn is_alive(&self, owner: OwnerId) -> bool {
            owner.get() != self.0
        }
    }

    struct Counter {
        lock: OwnedLock,
        value: UnsafeCell<u64>,
    }
    // SAFETY: `value` is touched only by the holder of `lock`.
    unsafe impl Sync for Counter {}

    #[test]
    fn threads_exclude_each_other() {
        let counter = Arc::new(Counter { lock: OwnedLock::new(), value: UnsafeCell::new(0) });
        let threads: Vec<_> = (1..=4u32)
            .map(|id| {
                let counter = counter.clone();
                std::thread::spawn(move || {
                    for _ in 0..20_000 {
                        assert_eq!(counter.lock.lock(OwnerId::new(id).unwrap(), &AllAliveBut(0)), Acquired::Clean);
                        // SAFETY: the lock is held.
                        unsafe { *counter.value.get() += 1 };
                        counter.lock.unlock();
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        // SAFETY: all threads are gone.
        assert_eq!(unsafe { *counter.value.get() }, 80_000);
        assert_eq!(counter.lock.owner(), None);
    }

    #[test]
    fn a_dead_owners_lock_is_inherited_within_100_ms() {
        let lock = OwnedLock::new();
        let (dead, me) = (OwnerId::new(7).unwrap(), OwnerId::new(8).unwrap());
        assert_eq!(lock.lock(dead, &AllAliveBut(0)), Acquired::Clean);
        let start = std::time::Instant::now();
        assert_eq!(lock.lock(me, &AllAliveBut(7)), Acquired::Inherited);
        assert!(start.elapsed().as_millis() < 100);
        assert_eq!(lock.owner(), Some(me));
        lock.unlock();
        assert!(lock.try_lock(dead));
    }

    #[test]
    fn a_word_that_names_no_owner_is_inherited() {
        let lock = Arc::new(OwnedLock(AtomicU32::new(WAITERS)));
        let (sender, receiver) = std::sync::mpsc::channel();
        let waiter = lock.clone();
        std::thread::spawn(move || sender.send(waiter.lock(OwnerId::new(8).unwrap(), &AllAliveBut(0))));
        assert_eq!(receiver.recv_timeout(std::time::Duration::from_secs(10)), Ok(Acquired::Inherited));
        lock.unlock();
        assert_eq!(lock.owner(), None);
    }

    #[test]
    fn many_locks_of_a_dead_owner_are_inherited_within_100_ms() {
        struct Remembers(AtomicU32);
        impl Liveness for Remembers {
            fn is_alive(&self, owner: OwnerId) -> bool {
                self.0.store(owner.get(), Ordering::Relaxed);
                false
            }
            fn was_found_dead(&self, owner: OwnerId) -> bool {
                self.0.load(Ordering::Relaxed) == owner.get()
            }
        }
        let locks: Vec<OwnedLock> = (0..64).map(|_| OwnedLock::new()).collect();
        let (dead, me, live) = (OwnerId::new(7).unwrap(), OwnerId::new(8).unwrap(), Remembers(AtomicU32::new(0)));
        assert!(locks.iter().all(|lock| lock.lock(dead, &live) == Acquired::Clean));
        let start = std::time::Instant::now();
        assert!(locks.iter().all(|lock| lock.lock(me, &live) == Acquired::Inherited));
        assert!(start.elapsed().as_millis() < 100, "{} ms", start.elapsed().as_millis());
    }

    #[test]
    fn a_living_owners_lock_is_never_inherited() {
        let lock = Arc::new(OwnedLock::new());
        assert_eq!(lock.lock(OwnerId::new(1).unwrap(), &AllAliveBut(0)), Acquired::Clean);
        let waiter = {
            let lock = lock.clone();
            std::thread::spawn(move || lock.lock(OwnerId::new(2).unwrap(), &AllAliveBut(0)))
        };
        std::thread::sleep(std::time::Duration::from_millis(60));
        assert_eq!(lock.owner(), OwnerId::new(1));
        lock.unlock();
        assert_eq!(waiter.join().unwrap(), Acquired::Clean);
    }
}
