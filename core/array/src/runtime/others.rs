//! Files that are held for a process that cannot hold them itself: it has descriptors of them, but
//! has not attached to the segment yet, or may not.
//!
//! The fault it exists for: a child of vfork inherits a file without a name, and its parent closes
//! the file. The parent was the file's last user, so the file's bytes would be freed under an open
//! descriptor before the program that the child executes has begun.
//!
//! Such a process gets a slot of its own. The slot ends as any other does: with the process, or
//! when the next program of that process has found what it was given and gives back what was held
//! for it ([`Runtime::forget_former_programs`]).

use super::Runtime;
use super::attach::slot_of;
use crate::liveness::ProcessId;
use core::sync::atomic::Ordering;
use sys::Result;

impl Runtime {
    /// Counts process `pid` as a user of the file `key`, if any process has that open. It ends with
    /// that process, or as its next program does begin. Takes no lock.
    ///
    /// # Errors
    /// `USERS` if all slots are taken.
    pub fn hold_for(&self, pid: u32, key: u64) -> Result<()> {
        let Some(file) = self.find_file(key) else { return Ok(()) };
        let one_more = |users: u32| users.checked_add(1).filter(|_| users != 0);
        if file.users.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).is_err() {
            return Ok(());
        }
        let slot = match self.slot_for(pid) {
            Ok(slot) => slot,
            Err(error) => {
                file.users.fetch_sub(1, Ordering::AcqRel);
                return Err(error);
            }
        };
        let index = self.index_of(file);
        let bit = 1 << (index % 64);
        if self.segment().open_by_slot[slot][index / 64].fetch_or(bit, Ordering::AcqRel) & bit != 0 {
            // It was held already.
            file.users.fetch_sub(1, Ordering::AcqRel);
        }
        Ok(())
    }

    fn slot_for(&self, pid: u32) -> Result<usize> {
        let process = ProcessId::of(pid);
        match self.taken_slots().find(|&index| self.slot_process(index) == process && !self.has_become_another(index)) {
            Some(index) => Ok(index),
            None => self.attach_as(process).map(slot_of),
        }
    }
}
