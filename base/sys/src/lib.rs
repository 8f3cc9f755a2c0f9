//! Linux without libc: system calls, errors, and the block of memory every thread has.
//!
//! Everything that runs inside an application's process reaches the kernel through this crate
//! (rustix' raw backend and [`raw`]), never through libc, so that it cannot re-enter its own hooks.
#![cfg_attr(not(test), no_std)]

pub mod clock;
pub mod faults;
pub mod file_limit;
pub mod file_ring;
pub mod high_fd;
pub mod inherited;
pub mod low_limit;
pub mod node;
pub mod ofd_lock;
pub mod place;
pub mod random;
pub mod raw;
pub mod rest;
pub mod task;
pub mod thread;
pub mod tracking;
pub mod waiting;

pub use rustix;
pub use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
pub use rustix::io::Errno as OsError;

/// What a system call gives back.
pub type Result<T> = core::result::Result<T, OsError>;
