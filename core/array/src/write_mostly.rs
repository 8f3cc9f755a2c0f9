//! Members that are written mostly: slow ones, whose copies are read only where no other member in
//! use has one (mdadm(8), --write-mostly).
//!
//! The superblocks say which members these are, the runtime segment tells the processes that run.
//! All bytes are the same whichever copy is read, so nothing waits for a change to reach the
//! processes.

use crate::assemble::Array;
use format::{MemberEntry, Superblock};
use sys::OsError;
use units::{MemberSet, Slot};

/// The members that a superblock says are written mostly.
pub(crate) fn among(superblock: &Superblock) -> MemberSet {
    (0..superblock.member_count).filter(|&slot| superblock.members[slot].is_write_mostly()).collect()
}

impl Array {
    /// The members that are written mostly.
    #[must_use]
    pub fn write_mostly(&self) -> MemberSet {
        self.runtime().read_last()
    }

    /// Says of a member that it is written mostly, or that it is not: in the superblocks, and to
    /// all processes that use the array.
    ///
    /// # Errors
    /// What the kernel says where a superblock cannot be written; `ACCESS` for a user who may not.
    /// Processes then go on as before.
    pub fn set_write_mostly(&self, slot: Slot, is_so: bool) -> Result<(), OsError> {
        self.before_change()?;
        let bit = MemberEntry::WRITE_MOSTLY;
        let change = |superblock: &mut Superblock| {
            let flags = &mut superblock.members[slot].flags;
            *flags = if is_so { *flags | bit } else { *flags & !bit };
        };
        self.recording(|| {
            self.rewrite_superblocks(change)?;
            let others = self.write_mostly().without(slot);
            self.runtime().set_read_last(if is_so { others.with(slot) } else { others });
            Ok(())
        })
    }
}
