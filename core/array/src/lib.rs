//! One array: its members and their states, its levels, and what processes share while they use it.
//!
//! `config` and `assemble` bring an array up from its member directories; `runtime` is the segment
//! that attached processes share; `striper` with `level/*` reads and writes the bytes of one file
//! across the members. Locks, sizes and allocation of files are core/file's.
#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod access;
mod assemble;
pub mod backed;
mod changed;
mod checked;
mod claim;
pub mod config;
mod creation;
mod emptied;
mod error;
pub mod events;
mod exclusive;
mod fill;
mod join;
pub mod journal;
mod judge;
mod lent;
mod level;
mod limited;
pub mod liveness;
pub mod mapped;
mod member;
mod mirror;
mod needed;
mod nodes;
pub mod proc_file;
mod read;
mod read_only;
mod reading;
mod rebuild;
mod redo;
mod regular;
mod replace;
mod resync;
mod rules;
pub mod runtime;
pub mod sampling;
mod scrub;
mod scrub_sums;
pub mod shares;
pub mod split;
mod spread;
mod state;
mod stripe;
mod striper;
mod summed_write;
pub mod sums;
mod sums_files;
pub mod superblock;
pub mod tables;
#[cfg(test)]
mod test_array;
mod undo;
mod waiting;
mod walk;
pub mod why;
mod write;

pub use assemble::{Array, Tell};
pub use changed::{Marks, Unproven};
pub use checked::{Rot, RottenBlock};
pub use config::{Config, ConfigError, Creation, JournalPlace};
pub use creation::awaited_mount;
pub use emptied::{holds_names, is_empty};
pub use error::AttachError;
pub use fill::check_blank;
pub use journal::{ArrayJournal, SaidBy};
pub use judge::check_all_rights;
pub use member::{Member, Standing, check_rights, has_failed, is_no_space, is_of_process};
pub use read_only::is_read_only;
pub use regular::open_regular;
pub use replace::{Successor, Swapped, Twins, gave_place, note_replaced};
pub use runtime::{Executing, FileEntry, NamesLog, Recovery, Runtime, SharedFile};
pub use scrub::{Mismatch, Role, UNIT_BYTES, Verdict};
pub use shares::{Reading, Shares};
pub use spread::{Spread, Way};
pub use striper::{IoFault, Striper, absent};
pub use undo::{UNDO_COUNT, Undo, UndoRecord, Unfinished};
