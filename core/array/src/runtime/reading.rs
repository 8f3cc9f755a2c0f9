//! Which copies are read.

use super::Runtime;
use crate::shares::{Reading, Shares};
use units::MemberSet;

impl Runtime {
    /// The shares of the members in reads.
    #[inline]
    #[must_use]
    pub fn shares(&self) -> &Shares {
        &self.segment().shares
    }

    /// How a read chooses among copies.
    #[inline(always)]
    #[must_use]
    pub fn reading(&self) -> Reading<'_> {
        self.shares().reading()
    }

    /// The members that are read from only where no other member in use has a copy of the bytes.
    #[must_use]
    pub fn read_last(&self) -> MemberSet {
        self.known(self.shares().write_mostly().bits())
    }
}
