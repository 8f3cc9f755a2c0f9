//! The stripe locks a range of a file needs.

use array::runtime::STRIPE_LOCK_COUNT;
use array::{Array, SharedFile};
use layout::Geometry;
use sync::{Acquired, StripeLock};

/// The lock blocks of a range, and the locks that guard them: block index modulo the number of
/// locks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    first: u64,
    last: u64,
}

impl Blocks {
    /// The blocks that `bytes` (at least 1) from `offset` touch.
    #[inline]
    pub(crate) const fn of(geometry: &Geometry, offset: u64, bytes: u64) -> Self {
        Self { first: geometry.lock_block_of(offset), last: geometry.lock_block_of(offset + (bytes - 1)) }
    }

    /// Every block of a file.
    pub(crate) const ALL: Self = Self { first: 0, last: u64::MAX };

    /// One bit per lock.
    #[inline]
    pub(crate) fn mask(self) -> u64 {
        let count = self.last - self.first;
        if count >= STRIPE_LOCK_COUNT as u64 - 1 {
            return u64::MAX;
        }
        // `count + 1` ones, rotated to the first block's place.
        (u64::MAX >> (63 - count)).rotate_left((self.first % STRIPE_LOCK_COUNT as u64) as u32)
    }
}

/// The sequence counts of the locks of a range, to be compared after a copy.
///
/// Their sum is enough: counts only rise, so it stays the same only if all do.
#[derive(Clone, Copy)]
pub(crate) struct Snapshot {
    blocks: Blocks,
    sum: u32,
}

impl Snapshot {
    /// Ranges of more blocks are read under their locks.
    const BLOCK_COUNT_MAX: u64 = 20;

    /// Notes the counts; None if a writer is at work or the range has too many blocks.
    #[inline]
    pub(crate) fn take(shared: &SharedFile, blocks: Blocks) -> Option<Self> {
        let mut sum = lock(shared, blocks.first).read_begin()?;
        if blocks.first != blocks.last {
            if blocks.last - blocks.first >= Self::BLOCK_COUNT_MAX {
                return None;
            }
            for block in blocks.first + 1..=blocks.last {
                sum = sum.wrapping_add(lock(shared, block).read_begin()?);
            }
        }
        Some(Self { blocks, sum })
    }

    /// Whether no writer was at work since.
    #[inline]
    pub(crate) fn is_current(self, shared: &SharedFile) -> bool {
        let Blocks { first, last } = self.blocks;
        let mut sum = lock(shared, first).read_end();
        if first != last {
            for block in first + 1..=last {
                sum = sum.wrapping_add(lock(shared, block).read_end());
            }
        }
        sum == self.sum
    }
}

/// The lock of a block.
#[inline]
fn lock(shared: &SharedFile, block: u64) -> &StripeLock {
    &shared.stripes[block as usize % STRIPE_LOCK_COUNT]
}

/// The locks of a range, held until dropped.
pub(crate) struct StripesHeld<'a> {
    array: &'a Array,
    shared: &'a SharedFile,
    number: u64,
    mask: u64,
    /// Locks whose last holder died with them: one bit each.
    pub(crate) inherited: u64,
}

impl<'a> StripesHeld<'a> {
    /// Waits for the locks in `mask` of the file `number`, in ascending index. If a member is out
    /// the file is marked as changed without it.
    #[inline]
    pub(crate) fn lock(array: &'a Array, shared: &'a SharedFile, number: u64, mask: u64) -> Self {
        let (me, runtime) = (array.runtime().me(), array.runtime());
        let mut inherited = 0;
        let mut bits = mask;
        while bits != 0 {
            let index = bits.trailing_zeros() as usize;
            if shared.stripes[index].write_begin(me, runtime) == Acquired::Inherited {
                inherited |= 1 << index;
            }
            bits &= bits - 1;
        }
        array.note_change(shared, number);
        Self { array, shared, number, mask, inherited }
    }
}

impl StripesHeld<'_> {
    /// The locks, one bit each.
    #[inline]
    pub(crate) const fn mask(&self) -> u64 {
        self.mask
    }
}

impl Drop for StripesHeld<'_> {
    #[inline]
    fn drop(&mut self) {
        // Non-temporal stores must be visible before the locks are free.
        persist::fence();
        // A member that went out since may lack what was stored.
        self.array.note_change(self.shared, self.number);
        let mut bits = self.mask;
        while bits != 0 {
            self.shared.stripes[bits.trailing_zeros() as usize].write_end();
            bits &= bits - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::Level;
    use units::ChunkBytes;

    #[test]
    fn masks_cover_exactly_the_blocks_locks() {
        let geometry = |members| Geometry::new(Level::Raid5, members, ChunkBytes::new(32 << 10).unwrap()).unwrap();
        for (offset, bytes, expected) in [
            (0u64, 1u64, 1u64),
            (65535, 2, 0b11),
            (63 << 16, 2 << 16, 1 << 63 | 1),
            (5 << 16, 63 << 16, u64::MAX ^ 1 << 4),
            (0, 64 << 16, u64::MAX),
            (3, 1 << 40, u64::MAX),
        ] {
            assert_eq!(Blocks::of(&geometry(3), offset, bytes).mask(), expected, "{offset} {bytes}");
        }
        assert_eq!(Blocks::ALL.mask(), u64::MAX);
        assert_eq!(Blocks::of(&geometry(4), (3 << 15) - 1, 2).mask(), 0b11);
    }
}
