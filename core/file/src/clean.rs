//! An orderly end: what lanes name is complete, so the lanes are emptied, and the next start has
//! nothing to compare.
//!
//! The fault it exists for: a lane names the last write of its thread also when that is complete.
//! After the machine starts again, the first process to open that file for writing made its parity
//! from the data, and its later copies from the first. What had rotted there in the meantime was
//! then made to fit, and no scrub could find it.
//!
//! Invariants: a lane is emptied only if no lock is held behind which its change may be half made;
//! and, where a page cache writes back in an order of its own, only after all that members hold is
//! durable.

use crate::{Files, Inode};
use array::{Member, SharedFile};
use core::ops::Range;
use dax::PersistenceDomain;
use sync::OwnerId;
use sys::OsError;
use sys::rustix::fs::syncfs;

impl Files {
    /// Empties the lanes of this process whose changes are complete, as its last act. `open`: what
    /// it still has open. A program may end in a handler that interrupted a write, or while other
    /// threads write: then locks are held, and nothing is emptied.
    pub(crate) fn give_back_lanes<'a>(&self, mut open: impl Iterator<Item = &'a Inode>) {
        let (array, runtime) = (self.array(), self.array().runtime());
        let Some(me) = runtime.own() else { return };
        let is_behind_a_page_cache = self.domains().contains(&PersistenceDomain::PageCache);
        if is_behind_a_page_cache || runtime.is_lost() || open.any(|inode| is_locked_by(inode.shared(), me)) {
            return;
        }
        // A member whose memory fails keeps what its lane says: that costs one resync.
        let empty = |lanes: Range<usize>| _ = self.lanes().empty(lanes, array.in_use());
        intent::give_back(runtime.lanes(), me, |lane| empty(lane..lane + 1));
    }

    /// Makes all durable that members hold, and empties the lanes, if nothing waits to be made good
    /// that processes left which are gone. Returns whether that is so. The caller has the array
    /// alone and holds it.
    ///
    /// # Errors
    /// What the kernel says where something cannot be made durable; then the lanes are as they
    /// were.
    pub fn end_in_order(&self) -> Result<bool, OsError> {
        let (array, runtime) = (self.array(), self.array().runtime());
        let is_whole = runtime.out_unrecorded().is_empty()
            && runtime.known_here_alone() == 0
            && runtime.left_unfinished(true).is_empty()
            && !runtime.are_names_unfinished()
            && self.waiting_records().is_empty();
        if !is_whole {
            return Ok(false);
        }
        let roots = || array.in_use().iter().filter_map(|slot| array.members().get(slot).and_then(Member::root));
        roots().try_for_each(syncfs)?;
        let failed = self.lanes().clear(array.in_use()).union(self.lanes().persist(array.in_use()));
        Ok(failed.is_empty())
    }
}

/// Whether a process holds a lock behind which a change of the file may be half made.
fn is_locked_by(file: &SharedFile, process: OwnerId) -> bool {
    let is_its = |owner: Option<OwnerId>| owner == Some(process);
    is_its(file.size_lock.owner()) || file.stripes.iter().any(|lock| is_its(lock.owner()))
}
