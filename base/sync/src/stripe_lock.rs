//! A writer's lock with a sequence count for readers that take none.
//!
//! The count is odd while a writer changes what the lock guards. A reader notes an even count,
//! copies, and compares: unchanged means that the copy is not torn.

use crate::kernel::{AtomicU32, Ordering, fence};
use crate::{Acquired, Liveness, OwnedLock, OwnerId};

/// The lock. All zeros is free and even.
#[repr(C)]
#[derive(Default)]
pub struct StripeLock {
    lock: OwnedLock,
    sequence: AtomicU32,
}

impl StripeLock {
    /// Waits until the lock is ours and makes the count odd. `Inherited` means that a dead writer
    /// may have left redundancy inconsistent.
    #[inline]
    pub fn write_begin(&self, me: OwnerId, live: &impl Liveness) -> Acquired {
        let acquired = self.lock.lock(me, live);
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence | 1, Ordering::Relaxed);
        // The count is seen odd before any of the writer's stores.
        fence(Ordering::Release);
        acquired
    }

    /// Makes the count even and releases the lock. Non-temporal stores must have been fenced
    /// before.
    #[inline]
    pub fn write_end(&self) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1) & !1, Ordering::Release);
        self.lock.unlock();
    }

    /// Whether somebody waits for the lock, or has waited for it before its holder had it.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        self.lock.is_waited_for()
    }

    /// The process that holds the lock.
    #[must_use]
    pub fn owner(&self) -> Option<OwnerId> {
        self.lock.owner()
    }

    /// The even count to compare with, or None while a writer is at work.
    #[inline]
    pub fn read_begin(&self) -> Option<u32> {
        let sequence = self.sequence.load(Ordering::Acquire);
        if sequence & 1 == 0 { Some(sequence) } else { None }
    }

    /// Whether nothing was written since `read_begin` gave `sequence`.
    #[inline]
    pub fn read_validate(&self, sequence: u32) -> bool {
        self.read_end() == sequence
    }

    /// The count after a copy: what `read_begin` gave, if nothing was written since.
    #[inline]
    pub fn read_end(&self) -> u32 {
        fence(Ordering::Acquire);
        self.sequence.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    struct AllAlive;
    impl Liveness for AllAlive {
        fn is_alive(&self, _: OwnerId) -> bool {
            true
        }
    }

    #[test]
    fn a_validated_read_is_never_torn() {
        #[derive(Default)]
        struct Shared {
            lock: StripeLock,
            pair: [AtomicU64; 2],
            stop: AtomicBool,
        }
        let shared = Arc::new(Shared::default());
        let writer = {
            let shared = shared.clone();
            std::thread::spawn(move || {
                let me = OwnerId::new(1).unwrap();
                for value in 1..200_000u64 {
                    let _ = shared.lock.write_begin(me, &AllAlive);
                    shared.pair[0].store(value, Ordering::Relaxed);
                    shared.pair[1].store(value, Ordering::Relaxed);
                    shared.lock.write_end();
                }
                shared.stop.store(true, Ordering::Release);
            })
        };
        let mut validated = 0u64;
        while !shared.stop.load(Ordering::Acquire) || validated == 0 {
            let Some(sequence) = shared.lock.read_begin() else { continue };
            let pair = (shared.pair[0].load(Ordering::Relaxed), shared.pair[1].load(Ordering::Relaxed));
            if shared.lock.read_validate(sequence) {
                assert_eq!(pair.0, pair.1);
                validated += 1;
            }
        }
        writer.join().unwrap();
    }

    #[test]
    fn an_inherited_lock_ends_even() {
        struct Dead;
        impl Liveness for Dead {
            fn is_alive(&self, _: OwnerId) -> bool {
                false
            }
        }
        let lock = StripeLock::default();
        let (dead, me) = (OwnerId::new(1).unwrap(), OwnerId::new(2).unwrap());
        assert_eq!(lock.write_begin(dead, &AllAlive), Acquired::Clean);
        assert_eq!(lock.read_begin(), None);
        assert_eq!(lock.write_begin(me, &Dead), Acquired::Inherited);
        assert_eq!(lock.read_begin(), None);
        lock.write_end();
        assert_eq!(lock.read_begin(), Some(2));
    }
}
