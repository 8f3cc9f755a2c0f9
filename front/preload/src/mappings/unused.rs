//! A shared copy of a file is kept for a second after this process' last mapping of the file is
//! gone.
//!
//! SQLite maps its database anew for each transaction. To copy the file each time costs more than
//! all else: with a database of 133 MB, four processes and a missing member there were 85
//! transactions per second without this, and 2900 with it. A copy takes memory, and every write
//! goes into it too. So it is removed in the first round of the library's thread after a second.
//! If the process closes the file before, `core/file` removes the copy then, and the entry here has
//! no effect.

use super::helper;
use core::sync::atomic::{AtomicBool, Ordering};
use file::Mapped;
use format::Attribute;
use heap::vec::Vec;

/// How long a shared copy is kept after this process' last mapping of the file is gone.
const KEEP_NS: u64 = 1_000_000_000;

/// False only if there is nothing to drop, so that this is seen without the lock of the mappings.
/// It may stay true for a while when the last entry is gone.
static MAY_HAVE_ANY: AtomicBool = AtomicBool::new(false);

/// The files whose copies are kept, each with the time in ns since when this process has no mapping
/// of it. The table of mappings holds it, under its lock.
pub(super) struct Copies(Vec<(Attribute, u64)>);

impl Copies {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Keeps the copy of a file whose last mapping in this process is gone, if there is one.
    /// Otherwise the drop of `mapped` removes it.
    pub(super) fn keep(&mut self, mapped: Mapped) {
        // A process that may not write to the file cannot remove the copy when it closes the file.
        // If rounds of the library's thread are further apart than the time to keep it, the copy
        // would stay for too long.
        if !mapped.file().is_copied() || !mapped.file().is_writable() || helper::period_ns() > KEEP_NS {
            return;
        }
        self.0.push((mapped.file().attribute(), helper::now_ns()));
        MAY_HAVE_ANY.store(true, Ordering::Release);
        mapped.leave_copy();
    }

    /// Forgets a file that is mapped again: its copy is in use.
    pub(super) fn take(&mut self, attribute: Attribute) {
        self.0.retain(|(kept, _)| *kept != attribute);
    }

    /// Drops all copies that are kept: the process ends, or another program takes its place.
    pub(super) fn drop_all(&mut self) {
        self.drop_where(|_| true);
    }

    /// Forgets all files and drops no copy. For a child of fork: the copies are its parent's to
    /// drop.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }

    /// Drops the copies that are due, going by the time since when they are kept.
    fn drop_where(&mut self, is_due: impl Fn(u64) -> bool) {
        let Ok(namespace) = crate::array::namespace() else { return };
        for (attribute, _) in self.0.extract_if(.., |(_, since_ns)| is_due(*since_ns)) {
            namespace.files().drop_unused_copy(attribute);
        }
        MAY_HAVE_ANY.store(!self.0.is_empty(), Ordering::Release);
    }
}

/// Drops the copies that have been kept for [`KEEP_NS`]. The library's thread does it in each
/// round.
pub(super) fn drop_old() {
    if MAY_HAVE_ANY.load(Ordering::Acquire) {
        let now_ns = helper::now_ns();
        super::table().unused.drop_where(|since_ns| since_ns + KEEP_NS <= now_ns);
    }
}

/// Whether shared copies may be kept.
pub(super) fn any() -> bool {
    MAY_HAVE_ANY.load(Ordering::Acquire)
}

/// For a deputy, whose table of mappings is a new one: the copies are to be dropped by the process
/// that forked it.
pub(super) fn abandon() {
    MAY_HAVE_ANY.store(false, Ordering::Release);
}
