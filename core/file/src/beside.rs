//! Reading beside writers, for who must not wait for one.
//!
//! The fault it exists for: a program writes to a file from memory that is a mapping of the same
//! file through the mount. It holds the stripe locks when it meets a page that is not there yet,
//! and waits for the page. The process that serves the mount would wait for the locks.

use crate::stripes::{Blocks, Snapshot};
use crate::{Inode, undo};
use array::Rot;
use sys::OsError;

impl Inode {
    /// Reads as [`Self::read_slice`] does, but without waiting for a writer: the result is None if
    /// one is in the way. `is_torn_good`: what a writer is storing meanwhile may be read in part,
    /// as a mapping shows it. Bytes that have to be computed are never read so, since what is
    /// computed beside a writer is what nobody wrote.
    ///
    /// # Errors
    /// As for [`Self::read_slice`].
    pub fn read_slice_at_once(&self, offset: u64, buffer: &mut [u8], is_torn_good: bool) -> Result<Option<usize>, OsError> {
        let shared = self.shared();
        let size = shared.size();
        if offset >= size || buffer.is_empty() {
            return self.ended().map(Some);
        }
        let count = (buffer.len() as u64).min(size - offset) as usize;
        let blocks = Blocks::of(&self.geometry, offset, count as u64);
        let snapshot = Snapshot::take(shared, blocks);
        let may_tear = is_torn_good && !undo::is_needed(&self.geometry, self.out());
        if self.waits_for_undo(blocks) || snapshot.is_none() && !may_tear {
            return Ok(None);
        }
        let mut rot = Rot::default();
        let to = buffer.as_mut_ptr();
        let result = if snapshot.is_none() && !shared.is_mapped() {
            // A writer's bytes and their sums are not there at once, so nothing is verified.
            // SAFETY: the slice is valid for writes of its length, and borrowed for the whole call.
            unsafe { self.reader().read(offset, to, count) }
        } else {
            // SAFETY: as above.
            unsafe { self.read_range(offset, to, count, &mut rot) }
        };
        let is_whole = snapshot.is_some_and(|snapshot| snapshot.is_current(shared)) && shared.size() >= offset + count as u64;
        if result.is_ok() && is_whole {
            self.tell_rot(&rot);
        }
        match result {
            // A member that has gone out meanwhile may have been computed, and what does not fit its
            // sum.
            Ok(()) if is_whole || may_tear && self.out().is_empty() && rot.block.is_none() => Ok(Some(count)),
            Ok(()) => Ok(None),
            // Bytes and sums that a writer is storing need not fit.
            Err(_) if rot.block.is_some() && !is_whole => Ok(None),
            // A member has failed, which the way with locks sees to.
            Err(_) => self.read_slice(offset, buffer).map(Some),
        }
    }
}
