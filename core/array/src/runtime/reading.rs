//! Which members are read from last.

use super::Runtime;
use core::sync::atomic::Ordering;
use units::MemberSet;

impl Runtime {
    /// The members that are read from only where no other member in use has a copy of the bytes.
    #[inline]
    pub fn read_last(&self) -> MemberSet {
        MemberSet::from_bits(self.segment().read_last.load(Ordering::Relaxed))
    }

    /// Sets these members. Every process follows from its next read on.
    pub fn set_read_last(&self, members: MemberSet) {
        self.segment().read_last.store(members.bits(), Ordering::Relaxed);
    }
}
