//! RAID 6 arithmetic: GF(2^8), and which combination of what is left gives what is missing.
//!
//! The field has polynomial x^8+x^4+x^3+x^2+1 (0x11d) and generator 2, as md's and ISA-L's (H. P.
//! Anvin, "The mathematics of RAID-6"). With data columns D0..Dk-1: P = sum of Di, Q = sum of 2^i *
//! Di; addition is exclusive or.
//!
//! Here are the numbers; the kernels that apply them to memory are `persist::Kernels`.
//!
//! Invariant: no I/O, clock, allocation or randomness.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod field;
mod recovery;
pub mod reference;

pub use field::{div, inv, mul, pow, q_coefficient};
pub use recovery::{Recovery, SOURCES_MAX};
