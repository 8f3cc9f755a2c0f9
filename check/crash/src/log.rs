//! What a recorded run did to the members, in order, and what it was told to do.
//!
//! Stores are what the processor executed: every one traps (`record`), so there is no store that the log does not have. An object is a
//! file of a member's file system, whatever names it has; trees say which names lead to it.

use crate::image::{Image, Tree};
use crate::model::{Progress, Shown};
use crate::record::stacks::places;
use serde::{Deserialize, Serialize};

/// A file of a member's file system, by the order in which it was met.
pub(crate) type ObjectId = usize;

/// One thing that happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Event {
    /// A store instruction; `streamed` if it was non-temporal.
    Store { thread: u8, object: ObjectId, at: u64, bytes: Vec<u8>, streamed: bool, stack: usize },
    /// clwb, clflushopt or clflush of the line at `at`.
    Flush { thread: u8, object: ObjectId, at: u64, stack: usize },
    /// sfence or mfence.
    Fence { thread: u8, stack: usize },
    /// A file got another length (ftruncate, fallocate).
    Length { object: ObjectId, bytes: u64 },
    /// A range became zeros (punched).
    Zero { object: ObjectId, at: u64, bytes: u64 },
    /// pwrite: in the page cache of the member's file system until it is synced.
    Put { object: ObjectId, at: u64, bytes: Vec<u8>, stack: usize },
    /// fsync or fdatasync of a file, or msync of some of it.
    Sync { object: ObjectId, stack: usize },
    /// Names, modes or attributes of a member became these.
    Tree { member: usize, tree: Tree, stack: usize },
    /// The program's call begins.
    Begin { operation: usize },
    /// It has returned: from now on its effect is acknowledged. `value` is what it returned.
    End { operation: usize, value: u64 },
    /// The recovery that is recorded is over: what it has shown is there from now on.
    Recovered,
}

/// A source line that an instruction came from, innermost function first where functions were inlined.
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

/// A run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Log {
    /// The members when the first operation began; all of it durable.
    pub(crate) base: Image,
    pub(crate) events: Vec<Event>,
    /// How far another run had come, in which the machine crashed, if this one is the recovery from that.
    pub(crate) crashed: Option<Progress>,
    /// What that has shown when it was over.
    pub(crate) shown: Option<Shown>,
    /// Whether something was stored through a mapping that does not begin where its file does.
    pub(crate) has_later_windows: bool,
    /// What events were done by: addresses of this program, innermost first.
    pub(crate) stacks: Vec<Vec<usize>>,
}

impl Log {
    /// The source lines of a stack.
    pub(crate) fn places(&self, stack: usize) -> Vec<Place> {
        self.stacks.get(stack).map(|frames| places(frames)).unwrap_or_default()
    }
}

impl Event {
    /// The calls it was done by, as an index of the log's stacks.
    pub(crate) const fn stack(&self) -> Option<usize> {
        match self {
            Self::Store { stack, .. }
            | Self::Flush { stack, .. }
            | Self::Fence { stack, .. }
            | Self::Put { stack, .. }
            | Self::Sync { stack, .. }
            | Self::Tree { stack, .. } => Some(*stack),
            _ => None,
        }
    }
}
