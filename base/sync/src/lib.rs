//! Locks between processes that may die while they hold them, and one between the threads of a
//! process ([`LocalLock`]).
//!
//! glibc owns a thread's robust list, so this is a protocol of our own on futexes. A lock word
//! names its owner (an attach slot of the runtime segment). A waiter that has waited long enough
//! asks whether that owner still lives, and takes the lock over if not. The process that takes a
//! lock over is told so, and repairs what the dead owner may have left half done.
#![cfg_attr(not(test), no_std)]

#[cfg(all(test, loom))]
mod interleavings;
mod kernel;
#[cfg(not(all(test, loom)))]
mod local_lock;
mod owned_lock;
mod stripe_lock;

#[cfg(not(all(test, loom)))]
pub use local_lock::{LocalGuard, LocalLock};
pub use owned_lock::{Acquired, Liveness, OwnedLock, OwnerId};
pub use stripe_lock::StripeLock;
