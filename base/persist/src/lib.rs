//! Moving bytes to and from memory that outlives the process: copy and parity kernels, fences, and
//! the guard that turns a memory fault inside them into an error.
//!
//! - [`fault`]: the guard. Every access to member memory or to a program's buffer runs inside it.
//! - [`stand_in`]: what becomes of shared memory whose file is cut short.
//! - [`Kernels`]: copies and parity arithmetic, chosen once by what the processor can do.
//! - [`BlockKernels`]: those that sum the blocks of 4096 bytes that they store (CRC-32C).
//! - [`fence`], [`write_back`], [`store_line`]: ordering and the write-intent record's one-line
//!   store.
//! - [`PersistenceDomain`], [`Flush`]: what it takes until a store survives a power failure.
//!
//! Invariants: nothing here allocates, takes a lock, makes a system call (but
//! [`fault::install_handlers`] and [`stand_in`]) or knows what a member is. Kernels never fence:
//! the caller orders its stores with [`fence`]. Everything that depends on the processor is in
//! `arch/`, behind what `arch/mod.rs` lists.
#![cfg_attr(not(test), no_std)]

mod arch;
mod blocks;
mod crc;
mod domain;
pub mod fault;
mod gf;
mod kernels;
mod line;
pub mod stand_in;
mod template;

pub use arch::{Isa, fence, timestamp, timestamp_in_order, write_back};
pub use blocks::BlockKernels;
pub use crc::{CRC_BLOCK_BYTES, CRC_OF_ZEROS, crc32c_block};
pub use domain::{Flush, PersistenceDomain};
pub use kernels::{Kernels, kernels, kernels_for, store_line};
