//! Finding the `syscall` instructions of the loaded objects and putting a jump before each.
//!
//! - [`elf`]: what a loaded object says of itself; [`scan`]: its sites, found by decoding;
//!   [`site`]: one site, and how the displaced instructions are moved; [`cache`]: the sites of
//!   objects seen before; [`trampoline`]: the code a site jumps to; [`objects`]: which objects,
//!   when; [`original`]: an object as its file has it; [`go`]: what tells objects of Go.
//!
//! Invariant: a site is patched only while no thread can execute it: by the constructor, before the
//! program's first instruction of its own, or between ld.so's mapping of an object and its first
//! use.

pub(crate) mod cache;
pub(crate) mod elf;
pub(crate) mod go;
pub(crate) mod objects;
pub(crate) mod original;
pub(crate) mod scan;
pub(crate) mod site;
pub(crate) mod trampoline;
