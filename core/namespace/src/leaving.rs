//! Makes good what processes left half done when they died, before the loss of a member makes that
//! impossible. It does so when a process starts and finds that others have died, and when a member
//! goes out that this process did not find while others still reach it ([`array::Array::let_go`]).

use crate::Namespace;
use sys::Result;
use units::{MemberSet, Slot};

impl Namespace {
    /// This process has attached: it sees to what the dead left, and to members that are missing.
    pub(crate) fn begin(&self) {
        if self.array().runtime().has_reaped() {
            // Stores through mappings are the affair of those that have mappings of the same file,
            // or open it: most deaths leave some, and files are searched by name.
            self.settle_files(false);
        }
        self.array().let_go(|| self.settle_all());
    }

    /// Takes a member out of use that works, after it has helped to make good what dead processes
    /// left. `may_be_out` is asked of the members that would be out then.
    ///
    /// # Errors
    /// `BUSY` if `may_be_out` does not hold: the member stays. What the kernel says where
    /// superblocks cannot be written.
    pub fn take_out(&self, slot: Slot, may_be_out: impl Fn(MemberSet) -> bool) -> Result<()> {
        self.array().take_out(slot, may_be_out, || self.settle_all())
    }

    fn settle_all(&self) {
        // A change of names that a process did not finish. What cannot be made good now is tried
        // again by the next change.
        let _ = self.locked(|_| Ok(()));
        self.settle_files(true);
    }

    fn settle_files(&self, mappings: bool) {
        let left = self.files.left_unfinished(mappings);
        if !left.is_empty() {
            // What may not be opened is left.
            self.open_wanted(left);
        }
    }
}
