//! A lock between the threads of one process: a futex word, one bit of it for "somebody sleeps".
//!
//! It is held only while inside the library, where no handler of the program runs, so it cannot be
//! left locked by an unwinding thread. Before a fork every such lock is taken (`process`), so the
//! child finds none held by a thread it lacks. A guest ([`crate::guest`]) takes none of them, since
//! it may be killed at any instruction while its process lives on.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};
use linux_raw_sys::general::{__NR_futex, FUTEX_PRIVATE_FLAG, FUTEX_WAIT, FUTEX_WAKE};
use sys::raw::syscall;

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;
const SPIN_COUNT: usize = 64;

/// The word itself, for structures that carry their own data.
pub(crate) struct RawLock(AtomicU32);

impl RawLock {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(FREE))
    }

    #[inline]
    pub(crate) fn acquire(&self) {
        if self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.acquire_slowly();
        }
    }

    #[cold]
    fn acquire_slowly(&self) {
        for _ in 0..SPIN_COUNT {
            if self.0.load(Ordering::Relaxed) == FREE
                && self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
            core::hint::spin_loop();
        }
        while self.0.swap(CONTENDED, Ordering::Acquire) != FREE {
            self.futex(FUTEX_WAIT, CONTENDED);
        }
    }

    /// Gives the lock back. The caller must hold it.
    #[inline]
    pub(crate) fn release(&self) {
        if self.0.swap(FREE, Ordering::Release) == CONTENDED {
            self.futex(FUTEX_WAKE, 1);
        }
    }

    /// Whether a lock with these bytes, read from another process, is free.
    pub(crate) const fn is_free(word: u32) -> bool {
        word == FREE
    }

    /// Frees the lock, whoever held it. For the only thread of a copy of the memory: the holder is
    /// not there.
    pub(crate) fn reset(&self) {
        self.0.store(FREE, Ordering::Relaxed);
    }

    fn futex(&self, operation: u32, value: u32) {
        futex(&self.0, operation, value);
    }
}

fn futex(word: &AtomicU32, operation: u32, value: u32) {
    let arguments = [word.as_ptr() as usize, (operation | FUTEX_PRIVATE_FLAG) as usize, value as usize, 0, 0, 0];
    // SAFETY: the futex word is borrowed, so it lives as long as the call; waiting and waking
    // change no memory.
    unsafe { syscall(__NR_futex as usize, arguments) };
}

/// Where threads wait for a change of many words, each of which says by itself whether it has come.
pub(crate) struct Waiters {
    /// How many threads wait.
    count: AtomicU32,
    /// How often they were woken.
    turns: AtomicU32,
}

impl Waiters {
    pub(crate) const fn new() -> Self {
        Self { count: AtomicU32::new(0), turns: AtomicU32::new(0) }
    }

    /// Returns when `is_to_come` is false. That reads a word with sequentially consistent order.
    #[cold]
    pub(crate) fn wait_while(&self, is_to_come: impl Fn() -> bool) {
        for _ in 0..SPIN_COUNT {
            if !is_to_come() {
                return;
            }
            core::hint::spin_loop();
        }
        self.count.fetch_add(1, Ordering::SeqCst);
        loop {
            let turns = self.turns.load(Ordering::SeqCst);
            if !is_to_come() {
                break;
            }
            futex(&self.turns, FUTEX_WAIT, turns);
        }
        self.count.fetch_sub(1, Ordering::SeqCst);
    }

    /// Has all of them look. The caller has changed a word with sequentially consistent order.
    #[inline]
    pub(crate) fn wake(&self) {
        if self.count.load(Ordering::SeqCst) != 0 {
            self.turns.fetch_add(1, Ordering::SeqCst);
            futex(&self.turns, FUTEX_WAKE, i32::MAX as u32);
        }
    }

    /// Forgets who waited. For the only thread of a copy of the memory.
    pub(crate) fn reset(&self) {
        self.count.store(0, Ordering::Relaxed);
    }
}

/// A value behind a [`RawLock`].
pub(crate) struct Lock<T> {
    raw: RawLock,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a Guard, and only one Guard exists at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { raw: RawLock::new(), value: UnsafeCell::new(value) }
    }

    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.raw.acquire();
        Guard(self)
    }

    /// The bare lock, to hold it across a fork.
    pub(crate) const fn raw(&self) -> &RawLock {
        &self.raw
    }
}

/// The right to the value; gives the lock back when dropped.
pub(crate) struct Guard<'a, T>(&'a Lock<T>);

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock and is borrowed exclusively.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.0.raw.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn counts_of_many_threads_add_up() {
        let lock = Arc::new(Lock::new(0u64));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let lock = lock.clone();
                std::thread::spawn(move || (0..20_000).for_each(|_| *lock.lock() += 1))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*lock.lock(), 80_000);
    }
}
