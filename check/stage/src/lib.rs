//! What the programs that check have in common: the frame of their command lines, running programs,
//! and cleaning up after them.
//!
//! [`door`] mounts an array; [`goal`] is a figure held against one; [`janitor`] ends and removes
//! whatever a run leaves; [`options`] is the frame of `main`; [`process`] the environment of
//! programs and how their ends are told; [`run`] a program run to its end, and [`report`] the lines
//! about such runs; [`scrub`] an array's redundancy, seen from outside; [`segment`] the shared
//! memory of arrays; [`watch`] the log of Syscall User Dispatch.

pub mod door;
pub mod goal;
pub mod janitor;
pub mod options;
pub mod process;
pub mod readd;
pub mod report;
pub mod run;
pub mod scrub;
pub mod segment;
pub mod watch;

pub use janitor::{Janitor, remove};
pub use watch::Watch;
