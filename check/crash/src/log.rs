//! The log of a recorded run: what the run did to the members, in order, and when each operation of
//! its workload began and ended. The operations themselves are in the workload.
//!
//! A store is an instruction of the processor. Each store traps into `record`, so the log has all
//! of them; what a system call writes is a [`Event::Put`]. An object is a file (an inode) of a
//! member's file system; a [`Tree`] says which names lead to it.

use crate::image::{Image, Tree};
use crate::model::{Progress, Shown};
use crate::record::stacks;
use serde::{Deserialize, Serialize};

/// The number of an object: the recorder counts them from 0, in the order in which it meets them.
pub(crate) type ObjectId = usize;

/// One thing that happened. In all kinds `at` is an offset in the object, and `stack` the index in
/// [`Log::stacks`] of the calls that the event came from. `Length` and `Zero` have no stack.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Event {
    /// A store instruction; `streamed` if it was non-temporal.
    Store { thread: u8, object: ObjectId, at: u64, bytes: Vec<u8>, streamed: bool, stack: usize },
    /// clwb, clflushopt or clflush of the cache line that begins at `at`.
    Flush { thread: u8, object: ObjectId, at: u64, stack: usize },
    /// sfence or mfence.
    Fence { thread: u8, stack: usize },
    /// A file got another length, `bytes` (ftruncate, fallocate).
    Length { object: ObjectId, bytes: u64 },
    /// fallocate made `bytes` bytes read as zeros: it punched a hole, or zeroed the range.
    Zero { object: ObjectId, at: u64, bytes: u64 },
    /// pwrite. The bytes are only in the page cache of the member's file system until a `Sync` of
    /// the range.
    Put { object: ObjectId, at: u64, bytes: Vec<u8>, stack: usize },
    /// The pages of the bytes `start..end` are synced: by msync, or, all of the file, by fsync or
    /// fdatasync.
    Sync { object: ObjectId, start: u64, end: u64, stack: usize },
    /// A system call has changed names, modes or attributes on a member; `tree` is what they are
    /// afterwards.
    Tree { member: usize, tree: Tree, stack: usize },
    /// The workload's operation number `operation` begins.
    Begin { operation: usize },
    /// The workload's operation number `operation` has returned `value`. From here on a crash must
    /// not lose its effect.
    End { operation: usize, value: u64 },
    /// The recorded run is a recovery ([`Log::crashed`]), and has recovered the array. From here on
    /// a crash must not change what it has shown ([`Log::shown`]).
    Recovered,
}

/// A source line that an instruction came from, and the function that it is in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) function: String,
    pub(crate) file: String,
    pub(crate) line: u32,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// The log of one run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Log {
    /// What the members held when the first event was recorded. All of that is durable.
    pub(crate) base: Image,
    pub(crate) events: Vec<Event>,
    /// For the log of a recovery: how far the workload had come when the machine crashed. None for
    /// every other log.
    pub(crate) crashed: Option<Progress>,
    /// For the log of a recovery: what a reader saw of the array when the recovery had ended. None
    /// for every other log.
    pub(crate) shown: Option<Shown>,
    /// Whether a store went through a mapping of a window other than the file's first. A workload
    /// that is to reach such a window is checked by it.
    pub(crate) has_later_windows: bool,
    /// The stacks of calls that events came from: addresses in this program, which records itself,
    /// innermost first.
    pub(crate) stacks: Vec<Vec<usize>>,
}

impl Log {
    /// The source lines of stack number `stack`, innermost first; an inlined call has a line of its
    /// own. Empty if there is no such stack.
    pub(crate) fn places(&self, stack: usize) -> Vec<Place> {
        self.stacks.get(stack).map(|frames| stacks::places(frames)).unwrap_or_default()
    }
}

impl Event {
    /// The index in [`Log::stacks`] of the calls that the event came from; None for kinds of events
    /// that record none.
    pub(crate) const fn stack(&self) -> Option<usize> {
        match self {
            Self::Store { stack, .. }
            | Self::Flush { stack, .. }
            | Self::Fence { stack, .. }
            | Self::Put { stack, .. }
            | Self::Sync { stack, .. }
            | Self::Tree { stack, .. } => Some(*stack),
            Self::Length { .. } | Self::Zero { .. } | Self::Begin { .. } | Self::End { .. } | Self::Recovered => None,
        }
    }
}
