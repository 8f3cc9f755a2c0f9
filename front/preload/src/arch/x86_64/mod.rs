//! x86-64: the `syscall` instruction, `jmp rel32`, the System V calling convention.

pub(crate) mod bytes;
pub(crate) mod context;
pub(crate) mod decode;
pub(crate) mod detour;
#[cfg(not(test))]
pub(crate) mod entry;
#[cfg(test)]
#[path = "entry_absent.rs"]
pub(crate) mod entry;
pub(crate) mod helper;
#[cfg(not(test))]
mod memory;
