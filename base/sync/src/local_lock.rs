//! A lock between the threads of one process.

use crate::{Liveness, OwnedLock, OwnerId};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

/// A value behind a lock that sleeps in the kernel when it must wait.
///
/// A thread that forks holds all local locks of its process meanwhile, so that the child finds them
/// free and their values whole.
pub struct LocalLock<T> {
    lock: OwnedLock,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through the lock.
unsafe impl<T: Send> Sync for LocalLock<T> {}

struct NeverDead;
impl Liveness for NeverDead {
    fn is_alive(&self, _: OwnerId) -> bool {
        true
    }
}

impl<T> LocalLock<T> {
    /// `value` behind a free lock.
    pub const fn new(value: T) -> Self {
        Self { lock: OwnedLock::new(), value: UnsafeCell::new(value) }
    }

    /// Waits until the value is ours.
    pub fn lock(&self) -> LocalGuard<'_, T> {
        let _ = self.lock.lock(OwnerId::MIN, &NeverDead);
        LocalGuard(self)
    }
}

impl<T> LocalLock<T> {
    /// Makes the lock free, whatever it says: the caller is the only thread of a copy of the process,
    /// and whoever held the lock is a thread of the original's.
    pub fn begin_anew(&self) {
        self.lock.unlock();
    }

    /// The value, if the lock is free.
    pub fn try_lock(&self) -> Option<LocalGuard<'_, T>> {
        self.lock.try_lock(OwnerId::MIN).then(|| LocalGuard(self))
    }
}

/// The value, until dropped.
pub struct LocalGuard<'a, T>(&'a LocalLock<T>);

impl<T> Deref for LocalGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for LocalGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock, and is borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for LocalGuard<'_, T> {
    fn drop(&mut self) {
        self.0.lock.unlock();
    }
}
