//! A member that this process did not find when it started, while others still reach it, goes out of use: what processes left half done when they died is made good
//! first, while its bytes can be read ([`array::Array::let_go`]).

use crate::Namespace;

impl Namespace {
    /// Takes such members out.
    pub(crate) fn let_members_go(&self) {
        self.array().let_go(|| {
            // A change of names that a process did not finish. What cannot be made good now is tried again by the next change.
            let _ = self.locked(|_| Ok(()));
            let left = self.files.left_unfinished();
            if !left.is_empty() {
                // What may not be opened is left.
                self.open_wanted(left);
            }
        });
    }
}
