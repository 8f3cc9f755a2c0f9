//! Locks between processes that may die while they hold them.
//!
//! glibc owns a thread's robust list, so this is our own protocol on futexes: a lock word names its owner (an attach slot of the
//! runtime segment), a waiter that has waited long enough asks whether that owner still lives, and takes the lock over if not.
//! Whoever takes over is told, and repairs what the dead owner may have left half done.
#![cfg_attr(not(test), no_std)]

#[cfg(all(test, loom))]
mod interleavings;
mod kernel;
mod owned_lock;
mod stripe_lock;

pub use owned_lock::{Acquired, Liveness, OwnedLock, OwnerId};
pub use stripe_lock::StripeLock;
