//! The open files of one array: sizes, growth, locks between threads and processes.
//!
//! [`Files`] holds what this process has open; [`Inode`] is one file, shared by all descriptors on
//! it; `table` is the inode table on the members. `read`, `write` and `space` are what can be done
//! to a file; `journal` makes writes atomic, `full_journal` sees to room in it; `unfinished`,
//! `undo`, `recovery` and `resync` make good what a death or a crash cut short. Names are
//! core/namespace's.
//!
//! Order of locks: the process' own table of open files, the open-files lock of the runtime
//! segment, a file's size lock, its stripe locks in ascending index, the superblock lock. Nobody
//! waits for a lock inside a fault guard.
#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod anew;
mod backings;
mod beside;
mod cached;
mod called;
mod clean;
mod copies;
mod copy_access;
mod copy_name;
mod copy_view;
mod files;
mod freed;
mod full_journal;
mod full_tmpfs;
mod glob;
mod holes;
mod idle;
mod inode;
mod join;
mod journal;
mod locks;
mod mapped;
mod nameless;
mod pieces;
mod privileges;
mod reach;
mod read;
mod rebuild;
mod recovery;
mod resync;
mod rules;
mod scrub;
mod shared_copy;
mod shortened;
mod slices;
mod space;
mod stripes;
mod sums;
mod table;
mod told;
mod undo;
mod unfinished;
mod unrecorded;
mod watches;
mod write;
mod zeros;

pub use cached::Cached;
pub use dax::parked;
pub use files::{BackingFds, FileRef, Files, Shown};
pub use glob::{BadGlob, Glob};
pub use idle::Keep;
pub use inode::{Inode, key};
pub use join::Refusal;
pub use journal::Waiting;
pub use locks::{FileLock, LockKind, RESERVED_OFFSET, has_locked, keeps_locks};
pub use mapped::Mapped;
pub use nameless::{Name, orphan_path};
pub use pieces::Piece;
pub use privileges::{CAPABILITIES, SET_ID};
pub use rebuild::{KeptFiles, Unbuilt, times_of};
pub use rules::{ReadyRule, WEIGHT_MAX};
pub use scrub::{Mended, ScrubMode, Scrubbed, Watch};
pub use table::InodeTable;
pub use told::Told;
