//! Which copies are read, and which rules count.

use super::Runtime;
use crate::shares::{Reading, Shares};
use core::sync::atomic::Ordering;
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

    /// A number that changes with the array's rules ([`crate::Array::write_rules`]); 0 if they have
    /// not changed since the segment was made.
    #[inline]
    #[must_use]
    pub fn rules_epoch(&self) -> u64 {
        self.segment().rules_epoch.load(Ordering::Acquire)
    }

    /// Has all processes read the rules again: a process died that may have been changing them. The
    /// namespace lock is held, under which rules change.
    #[cold]
    pub(super) fn note_rules_unfinished(&self) {
        if self.rules_epoch() != 0 {
            self.raise_rules_epoch();
        }
    }

    /// Tells all processes that the rules have changed.
    pub(crate) fn raise_rules_epoch(&self) {
        self.segment().rules_epoch.fetch_add(1, Ordering::AcqRel);
    }
}
