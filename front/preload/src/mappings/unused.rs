//! Shared copies of files that this process has no mappings of any more: kept for a moment.
//!
//! SQLite maps its database anew for each transaction. To copy the file each time costs more than
//! all else (133 MB, a member missing, four processes: 85 transactions per second, and 2900 with
//! this). A copy takes memory, and every write goes into it too. So it is removed after a second,
//! or earlier if the file is closed.

use super::helper;
use core::sync::atomic::{AtomicBool, Ordering};
use file::Mapped;
use format::Attribute;
use heap::vec::Vec;

/// How long a shared copy is kept after this process' last mapping of the file.
const KEEP_NS: u64 = 1_000_000_000;

/// Whether any shared copies are kept.
static SOME: AtomicBool = AtomicBool::new(false);

/// Which files, and since when.
pub(super) struct Copies(Vec<(Attribute, u64)>);

impl Copies {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// The last mapping of a file is gone.
    pub(super) fn leave(&mut self, mapped: Mapped) {
        // Whoever may not write cannot see to it that the copy goes when it closes the file.
        if !mapped.file().is_copied() || !mapped.file().is_writable() || helper::period_ns() > KEEP_NS {
            return;
        }
        self.0.push((mapped.file().attribute(), helper::now_ns()));
        SOME.store(true, Ordering::Release);
        mapped.leave_copy();
    }

    /// A file is mapped again.
    pub(super) fn take(&mut self, attribute: Attribute) {
        self.0.retain(|(left, _)| *left != attribute);
    }

    /// Nobody will come back to them: the process ends, or another program takes its place.
    pub(super) fn drop_all(&mut self) {
        self.drop_where(|_| true);
    }

    /// In a child of fork: they are the parent's.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }

    fn drop_where(&mut self, is_due: impl Fn(u64) -> bool) {
        let Ok(namespace) = crate::array::namespace() else { return };
        for (attribute, _) in self.0.extract_if(.., |(_, since_ns)| is_due(*since_ns)) {
            namespace.files().drop_unused_copy(attribute);
        }
        SOME.store(!self.0.is_empty(), Ordering::Release);
    }
}

/// Drops those that have been kept long enough.
pub(super) fn drop_old() {
    if SOME.load(Ordering::Acquire) {
        let now_ns = helper::now_ns();
        super::table().unused.drop_where(|since_ns| since_ns + KEEP_NS <= now_ns);
    }
}

/// Whether any shared copies are kept.
pub(super) fn any() -> bool {
    SOME.load(Ordering::Acquire)
}

/// In a deputy: they are its process'.
pub(super) fn abandon() {
    SOME.store(false, Ordering::Release);
}
