//! Whether anybody may watch files of the array (inotify, fanotify, dnotify).
//!
//! The kernel tells watchers what system calls do. A store to or load from an array's file makes no
//! system call. So while somebody may watch, a process that has stored or loaded makes another call
//! that raises the event. To know whether that is needed costs one load: the segment counts the
//! attached processes that have such watches, or may have them. A process counts from its first
//! watch to its end.

use super::Runtime;
use super::attach::slot_of;
use core::sync::atomic::Ordering;

/// After so many events that were told, it is asked whether the processes that watch still live.
const EVENTS_PER_INQUIRY: u32 = 4096;

impl Runtime {
    /// Whether any attached process may watch files of the array.
    #[inline]
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.segment().watchers.load(Ordering::Relaxed) != 0
    }

    /// This process may watch files of the array from now on. To be called before it begins to.
    pub fn begin_watching(&self) {
        let slot = &self.segment().attach[slot_of(self.me())];
        if slot.watches.swap(1, Ordering::AcqRel) == 0 {
            self.segment().watchers.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// The process in an attach slot watches nothing any more: it gives the slot back, or is dead.
    pub(super) fn end_watching_in(&self, slot: usize) {
        if self.segment().attach[slot].watches.swap(0, Ordering::AcqRel) != 0 {
            let one_less = |count: u32| count.checked_sub(1);
            let _ = self.segment().watchers.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_less);
        }
    }

    /// Notes that watchers are told of something. Now and then the slots of those that have died
    /// are given back, so that nobody goes on telling them.
    pub fn note_told(&self) {
        if self.segment().events_told.fetch_add(1, Ordering::Relaxed) % EVENTS_PER_INQUIRY == EVENTS_PER_INQUIRY - 1 {
            self.reap();
        }
    }

    /// With nobody attached nobody watches.
    pub(super) fn forget_watchers(&self) {
        self.segment().watchers.store(0, Ordering::Release);
    }
}
