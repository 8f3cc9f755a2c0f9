//! A lock between the threads of one process.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use sync::{Liveness, OwnedLock, OwnerId};

/// A value behind a lock that sleeps in the kernel when it must wait.
///
/// A process that forks holds all its local locks meanwhile (`Files::around_fork`), so that a child
/// finds them free and their values whole.
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
