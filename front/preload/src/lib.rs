//! `libcxlraid.so`: the system calls of an unmodified program, served inside it.
//!
//! The way of a call: a patched site in libc ([`patch`]) jumps to a trampoline, which calls the
//! entry stub ([`arch`]); the stub drops numbers and descriptors that are not ours within a few
//! nanoseconds and hands the rest to [`dispatch`], which looks the number up in [`table`] and calls
//! one function of [`calls`]. Its [`call::Verdict`] says whether the instruction still runs.
//!
//! Invariants:
//! - The library has no NEEDED entry and no undefined symbol: it never calls into the program's
//!   libraries.
//! - No asynchronous signal handler of the program runs while a thread is inside ([`signals`]).
//! - A process that names no array (no `CXLRAID_*` setting) is left alone: nothing is patched
//!   ([`start`]).
#![cfg_attr(not(test), no_std)]
#![cfg_attr(test, allow(dead_code))]

extern crate alloc as heap;

mod abort;
mod alloc;
mod apart;
mod arch;
mod arena;
mod array;
mod call;
mod calls;
mod counts;
mod coverage;
mod deputy;
mod descriptors;
mod dispatch;
mod environment;
mod exec;
mod filter;
mod guest;
mod handover;
mod inherit;
mod loader;
mod lock;
mod mappings;
mod maps;
mod mask;
mod needed;
mod own;
mod patch;
mod process;
mod program;
mod renewal;
mod report;
#[cfg(not(test))]
mod runtime;
mod scarce;
mod shortage;
mod signals;
mod stack;
mod start;
mod stored;
mod sud;
mod table;
#[cfg(test)]
mod tests;
mod thread;
mod uapi;
mod unreached;
mod width;
