//! Where each byte of a file lies on the members: pure arithmetic.
//!
//! A file is cut into stripes. A stripe has `data_columns()` chunks of data and `parity_count()`
//! chunks of parity; every chunk of stripe `s` starts at member offset `s * chunk`. RAID 1 has no
//! chunks: member offset equals file offset, and the whole file is its one column.
//!
//! Parity rotates left-symmetric (as md's default): stripe 0 has its parity on the last member,
//! stripe 1 on the one before it (thesis section 4.2), and data columns start on the member after
//! the parity and wrap around. RAID 6 puts Q on the member after P. RAID 4 keeps parity on the last
//! member.
//!
//! RAID 10 is a stripe of mirrored pairs (members 2i and 2i+1 hold the same); RAID 01 is a mirror
//! of two stripe sets (the first half of the members and the second).
//!
//! Bytes past the end of the file inside a stripe count as zeros in every parity (thesis section
//! 4.11.2).
//!
//! Invariant: no I/O, clock, allocation or randomness.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod divisor;
mod geometry;
mod level;

pub use geometry::{Geometry, GeometryError, Place};
pub use level::Level;
