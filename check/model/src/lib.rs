//! The engine against a byte vector.
//!
//! A [`StriperModel`] does random operations, members dropping out and coming back among them, on a
//! striper and on a plain vector, and holds the striper to two things: a read returns the vector's
//! bytes, and every member that is in holds, byte for byte, what [`encoding`] says by the
//! definition of the level. A member that is out holds garbage, so nobody can use it unnoticed.
//!
//! Everything follows from a seed, which is part of every failure's message. Faults stay within
//! what the level promises, so every failure is a bug.

pub mod encoding;
mod memory;
mod rng;
mod striper;

pub use memory::{Face, Memory, mapped_files};
pub use rng::Rng;
pub use striper::{Member, StriperModel};
