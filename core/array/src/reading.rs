//! Which copies are read, on record: the read policy, and members that are written mostly, slow
//! ones whose copies are read only where no other member in use has one (mdadm(8),
//! --write-mostly); and whether reads compare what they return with its sums.
//!
//! The superblocks keep all that, the runtime segment tells the processes that run
//! ([`crate::shares`]). All bytes are the same whichever copy is read, so nothing waits for a
//! change to reach the processes.

use crate::assemble::Array;
use crate::backed;
use crate::member::Member;
use crate::nodes;
use crate::runtime::Runtime;
use crate::shares::NODE_COUNT;
use format::{MemberEntry, ReadPolicy, Superblock};
use sys::OsError;
use units::{MemberSet, Slot};

/// The members that a superblock says are written mostly.
fn write_mostly(superblock: &Superblock) -> MemberSet {
    (0..superblock.member_count).filter(|&slot| superblock.members[slot].is_write_mostly()).collect()
}

/// Tells the processes to come what the superblocks say.
pub(crate) fn begin(runtime: &Runtime, superblock: &Superblock, members: &[Member]) {
    let policy = superblock.read_policy();
    runtime.shares().set(policy, write_mostly(superblock), &near(policy, members), members.len());
    runtime.shares().set_verifies_reads(superblock.verifies_reads());
    runtime.shares().set_fast(backed::fast(superblock));
}

/// The members nearest to each node's processors, where the policy asks for that.
fn near(policy: ReadPolicy, members: &[Member]) -> [MemberSet; NODE_COUNT] {
    if policy == ReadPolicy::Local { nodes::near(members) } else { [MemberSet::EMPTY; NODE_COUNT] }
}

impl Array {
    /// The members that are written mostly.
    #[must_use]
    pub fn write_mostly(&self) -> MemberSet {
        self.runtime().read_last()
    }

    /// The read policy.
    #[must_use]
    pub fn read_policy(&self) -> ReadPolicy {
        self.runtime().shares().policy()
    }

    /// Says of a member that it is written mostly, or that it is not: in the superblocks, and to
    /// all processes that use the array.
    ///
    /// # Errors
    /// What the kernel says where a superblock cannot be written; `ACCESS` for a user who may not.
    /// Processes then go on as before.
    pub fn set_write_mostly(&self, slot: Slot, is_so: bool) -> Result<(), OsError> {
        self.before_change()?;
        let change = |superblock: &mut Superblock| superblock.members[slot].set_flag(MemberEntry::WRITE_MOSTLY, is_so);
        self.recording(|| {
            self.rewrite_superblocks(change)?;
            let others = self.write_mostly().without(slot);
            self.tell_reading(self.read_policy(), if is_so { others.with(slot) } else { others });
            Ok(())
        })
    }

    /// Changes the read policy: in the superblocks, and for all processes that use the array.
    ///
    /// # Errors
    /// As for [`Self::set_write_mostly`].
    pub fn set_read_policy(&self, policy: ReadPolicy) -> Result<(), OsError> {
        self.before_change()?;
        self.recording(|| {
            self.rewrite_superblocks(|superblock| superblock.read_policy = policy.code())?;
            self.tell_reading(policy, self.write_mostly());
            Ok(())
        })
    }

    /// Tells whether reads compare the blocks that they return with their sums.
    #[inline(always)]
    #[must_use]
    pub fn verifies_reads(&self) -> bool {
        self.runtime().shares().verifies_reads()
    }

    /// Says whether reads compare the blocks that they return with their sums: in the superblocks, and
    /// to all processes that use the array. The array's files have sums.
    ///
    /// # Errors
    /// As for [`Self::set_write_mostly`].
    pub fn set_verifies_reads(&self, is_so: bool) -> Result<(), OsError> {
        self.before_change()?;
        self.recording(|| {
            self.rewrite_superblocks(|superblock| superblock.set_verifies_reads(is_so))?;
            self.runtime().shares().set_verifies_reads(is_so);
            Ok(())
        })
    }

    /// Looks anew at where the memory of the members is, after one of them has become another. The
    /// superblock lock is held, under which policies change.
    pub(crate) fn find_nodes_again(&self) {
        if self.read_policy() == ReadPolicy::Local {
            self.tell_reading(ReadPolicy::Local, self.write_mostly());
        }
    }

    fn tell_reading(&self, policy: ReadPolicy, write_mostly: MemberSet) {
        self.runtime().shares().set(policy, write_mostly, &near(policy, self.members()), self.members().len());
    }
}
