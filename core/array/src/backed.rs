//! Backed arrays: fast members, which a restart of the machine empties, beside members that keep
//! what they hold, the backing ([`format::MemberEntry::FAST`]; BDIO's SSD-backed RAM).
//!
//! Reads come from the fast members, and the backing is what fsync(2) is about. So a request to make
//! something durable fails while no member of the backing is whole: what only fast members hold is
//! not durable, whatever the kernel said of them. That a fast member is blank is no failure: it is
//! filled again from the backing.

use crate::assemble::Array;
use crate::member::{Member, Standing};
use crate::why;
use format::{MemberEntry, Superblock};
use sys::OsError;
use units::{MemberSet, Slot};

/// The members that a superblock says are fast.
#[must_use]
pub fn fast(superblock: &Superblock) -> MemberSet {
    (0..superblock.member_count).filter(|&slot| superblock.members[slot].is_fast()).collect()
}

/// Tells whether a member that is not used holds nothing: its directory is empty, or not there.
#[must_use]
pub fn is_blank(member: &Member) -> bool {
    member.standing == Standing::Missing && matches!(member.reason(), Some(why::EMPTY | why::NO_DIRECTORY))
}

/// Tells whether a member that is not used holds nothing, or is about to be filled.
#[must_use]
pub fn is_awaited(member: &Member) -> bool {
    is_blank(member) || member.reason() == Some(why::BEGUN)
}

impl Array {
    /// The members that a restart of the machine empties.
    #[inline]
    #[must_use]
    pub fn fast(&self) -> MemberSet {
        self.runtime().shares().fast()
    }

    /// Answers a request to make something durable, which was carried out on `members`: those that
    /// hold what is meant, as far as they are in use.
    ///
    /// # Errors
    /// `IO` if the array has a backing and no member of it is among these and whole.
    pub fn require_backing(&self, members: MemberSet) -> Result<(), OsError> {
        let fast = self.fast();
        // In the stand-in for a segment that was cut short no member is fast, and none is in use.
        if fast.is_empty() && self.fast.is_empty() {
            return Ok(());
        }
        let whole = members.minus(self.runtime().rebuilding()).minus(fast);
        if whole.is_empty() { Err(OsError::IO) } else { Ok(()) }
    }

    /// Says of a member that it is fast, or that it is not: in the superblocks, and to all processes
    /// that use the array.
    ///
    /// # Errors
    /// What the kernel says where a superblock cannot be written; `ACCESS` for a user who may not.
    /// Processes then go on as before.
    pub fn set_fast(&self, slot: Slot, is_so: bool) -> Result<(), OsError> {
        self.before_change()?;
        let change = |superblock: &mut Superblock| superblock.members[slot].set_flag(MemberEntry::FAST, is_so);
        self.recording(|| {
            self.rewrite_superblocks(change)?;
            let others = self.fast().without(slot);
            self.runtime().shares().set_fast(if is_so { others.with(slot) } else { others });
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_array::three_members;
    use layout::Level;

    #[test]
    fn a_process_that_runs_goes_by_which_members_are_fast_now() {
        let (_home, config) = three_members("backed-now", Level::Raid1);
        let [running, other] = [(); 2].map(|()| Array::attach(&config).unwrap());
        let (memory, all) = (MemberSet::EMPTY.with(0), MemberSet::first(3));
        assert_eq!([memory, all].map(|members| running.require_backing(members)), [Ok(()); 2]);
        other.set_fast(0, true).unwrap();
        assert_eq!(running.fast(), memory);
        assert_eq!([memory, all].map(|members| running.require_backing(members)), [Err(OsError::IO), Ok(())]);
        let started = Array::attach(&config).unwrap();
        other.set_fast(0, false).unwrap();
        assert_eq!([&running, &started].map(|array| array.require_backing(memory)), [Ok(()); 2]);
        std::fs::remove_file(crate::runtime::segment_path(running.uuid())).unwrap();
    }
}
