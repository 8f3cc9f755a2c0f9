//! How other processes learn that a process has become another program (execve(2)), one that knows
//! nothing of the array.
//!
//! Such an exec ends all other threads of the process, wherever they are, and the process goes on
//! under its pid. A thread that ends so inside a store leaves a lock, and its owner seems to live.
//! So before the exec the calling thread opens the segment's file once more, close-on-exec, takes a
//! read lock on a byte that belongs to the slot (an OFD lock, fcntl(2)), and counts itself in the
//! slot. The kernel closes that description when no other thread of the process runs any more.
//!
//! Invariant: while a program runs that uses the slot, at least as many descriptions hold the byte
//! as the slot counts threads. So if the slot counts a thread and nobody holds the byte, the
//! process is another program, and for the array it has died.
//!
//! A child that another thread forks meanwhile has the description too, and keeps the byte until it
//! executes or ends: so long the process seems to live.

use super::attach::slot_of;
use super::{Runtime, entry};
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use sys::high_fd::Raised;
use sys::rustix::fs::{self, Mode};
use sys::{AsFd, ofd_lock};

/// The byte of slot 0, far behind the bytes that segments have and that other locks are on; each
/// slot has the one at its number behind it.
const FIRST_BYTE: i64 = 1 << 40;
/// States what a thread that executes adds to the lower half of a slot's word.
const THREAD: u64 = 1;
/// States what every change adds to the upper half of the word, so that a thread which gave up is
/// not mistaken for the next one.
const CHANGE: u64 = 1 << 32;

/// Holds what is given back if the exec fails ([`Runtime::end_executing`]).
#[derive(Default)]
pub struct Executing(Cell<Option<Raised>>);

impl Executing {
    /// Tells whether nothing was noted.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        let held = self.0.take();
        let is_nothing = held.is_none();
        self.0.set(held);
        is_nothing
    }
}

const fn byte_of(slot: usize) -> i64 {
    FIRST_BYTE + slot as i64
}

impl Runtime {
    /// Notes that the calling thread is about to execute a program that does not attach. Nothing is
    /// noted if this process is not attached, or if the segment cannot be opened: then locks of
    /// threads that the exec ends are held until that program ends.
    #[must_use]
    pub fn begin_executing(&self) -> Executing {
        Executing(Cell::new(self.own().and_then(|own| self.note_executing(slot_of(own)))))
    }

    fn note_executing(&self, slot: usize) -> Option<Raised> {
        let file = fs::open(self.path.as_str(), entry::OPEN, Mode::empty()).and_then(Raised::new).ok()?;
        let (found, own) = (fs::fstat(&file).ok()?, fs::fstat(&self.file).ok()?);
        if (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino) {
            return None;
        }
        ofd_lock::hold(file.as_fd(), byte_of(slot), 1).ok()?;
        self.executing(slot).fetch_add(THREAD | CHANGE, Ordering::SeqCst);
        Some(file)
    }

    /// Takes back what [`Self::begin_executing`] has noted: the exec failed.
    pub fn end_executing(&self, executing: &Executing) {
        if let (Some(file), Some(own)) = (executing.0.take(), self.own()) {
            self.executing(slot_of(own)).fetch_add(CHANGE - THREAD, Ordering::SeqCst);
            // The lock ends with the description: not before the thread is not counted any more.
            drop(file);
        }
    }

    /// Tells whether the process of a slot has become a program that does not attach. The answer is
    /// false also if that cannot be told.
    #[inline(never)]
    pub(super) fn has_become_another(&self, slot: usize) -> bool {
        let word = self.executing(slot);
        let before = word.load(Ordering::SeqCst);
        let is_counted = before & (CHANGE - 1) != 0;
        // The byte is looked at between two looks at the word: if they agree, the count was so when
        // the byte was looked at.
        is_counted
            && ofd_lock::is_held_by_others(self.file.as_fd(), byte_of(slot), 1) == Ok(false)
            && word.load(Ordering::SeqCst) == before
    }

    fn executing(&self, slot: usize) -> &AtomicU64 {
        &self.segment().attach[slot].executing
    }
}

#[cfg(test)]
mod tests {
    use super::super::attach::tests::segment;
    use super::*;
    use sync::Liveness as _;

    #[test]
    fn a_process_that_has_become_another_program_has_died() {
        let runtime = segment(0x71);
        let me = runtime.me();
        assert!(runtime.is_alive(me));
        let (first, second) = (runtime.begin_executing(), runtime.begin_executing());
        assert!(!first.is_nothing() && !second.is_nothing());
        assert!(runtime.is_alive(me), "an exec is under way");
        runtime.end_executing(&first);
        assert!(runtime.is_alive(me), "another one is under way");
        runtime.end_executing(&second);
        assert!(runtime.is_alive(me), "both have failed");
        // The kernel does the same at an exec that succeeds: it closes the description, and nobody
        // tells the slot.
        let third = runtime.begin_executing();
        drop(third);
        assert!(!runtime.is_alive(me));
        assert_eq!(runtime.attached().count(), 0);
        assert_eq!(runtime.reap(), 0, "its slot is given back");
        sys::rustix::fs::unlink(runtime.path.as_str()).unwrap();
    }

    #[test]
    fn a_slot_is_not_judged_by_who_had_it_before() {
        let runtime = segment(0x72);
        drop(runtime.begin_executing());
        let former = slot_of(runtime.me());
        assert_eq!(runtime.reap(), 0);
        let me = runtime.attach().unwrap();
        assert_eq!(slot_of(me), former);
        assert!(runtime.is_alive(me));
        sys::rustix::fs::unlink(runtime.path.as_str()).unwrap();
    }

    #[test]
    fn without_its_file_nothing_is_noted() {
        let runtime = segment(0x73);
        sys::rustix::fs::unlink(runtime.path.as_str()).unwrap();
        assert!(runtime.begin_executing().is_nothing());
        assert!(runtime.is_alive(runtime.me()));
    }
}
