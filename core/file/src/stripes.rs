//! The stripe locks a range of a file needs.

use array::runtime::STRIPE_LOCK_COUNT;
use array::{Array, SharedFile};
use sync::Acquired;

/// The lock blocks of a range, and the locks that guard them: block index modulo the number of locks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    first: u64,
    last: u64,
}

impl Blocks {
    /// The blocks that `bytes` (at least 1) from `offset` touch.
    #[inline]
    pub(crate) fn of(lock_block_bytes: u64, offset: u64, bytes: u64) -> Self {
        if lock_block_bytes.is_power_of_two() {
            let shift = lock_block_bytes.trailing_zeros();
            return Self { first: offset >> shift, last: (offset + (bytes - 1)) >> shift };
        }
        Self { first: offset / lock_block_bytes, last: (offset + (bytes - 1)) / lock_block_bytes }
    }

    /// Every block of a file.
    pub(crate) const ALL: Self = Self { first: 0, last: u64::MAX };

    /// One bit per lock.
    #[inline]
    fn mask(self) -> u64 {
        let count = self.last - self.first;
        if count >= STRIPE_LOCK_COUNT as u64 - 1 {
            return u64::MAX;
        }
        // `count + 1` ones, rotated to the first block's place.
        (u64::MAX >> (63 - count)).rotate_left((self.first % STRIPE_LOCK_COUNT as u64) as u32)
    }
}

/// The sequence counts of a few locks, to be compared after a copy.
pub(crate) struct Snapshot {
    first: u64,
    count: usize,
    sequences: [u32; Self::BLOCK_COUNT_MAX],
}

impl Snapshot {
    /// Ranges of more blocks are read under their locks.
    const BLOCK_COUNT_MAX: usize = 20;

    /// Notes the counts; None if a writer is at work or the range has too many blocks.
    #[inline]
    pub(crate) fn take(shared: &SharedFile, blocks: Blocks) -> Option<Self> {
        let count = blocks.last - blocks.first + 1;
        if count > Self::BLOCK_COUNT_MAX as u64 {
            return None;
        }
        let mut snapshot = Self { first: blocks.first, count: count as usize, sequences: [0; Self::BLOCK_COUNT_MAX] };
        for step in 0..snapshot.count {
            snapshot.sequences[step] = snapshot.lock(shared, step).read_begin()?;
        }
        Some(snapshot)
    }

    /// Whether no writer was at work since.
    #[inline]
    pub(crate) fn is_current(&self, shared: &SharedFile) -> bool {
        (0..self.count).all(|step| self.lock(shared, step).read_validate(self.sequences[step]))
    }

    #[inline]
    fn lock<'a>(&self, shared: &'a SharedFile, step: usize) -> &'a sync::StripeLock {
        &shared.stripes[(self.first + step as u64) as usize % STRIPE_LOCK_COUNT]
    }
}

/// The locks of a range, held until dropped.
pub(crate) struct StripesHeld<'a> {
    shared: &'a SharedFile,
    mask: u64,
    /// Locks whose last holder died with them: one bit each.
    pub(crate) inherited: u64,
}

impl<'a> StripesHeld<'a> {
    /// Waits for the locks, in ascending index.
    #[inline]
    pub(crate) fn lock(array: &Array, shared: &'a SharedFile, blocks: Blocks) -> Self {
        let mask = blocks.mask();
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
        Self { shared, mask, inherited }
    }
}

impl Drop for StripesHeld<'_> {
    #[inline]
    fn drop(&mut self) {
        // Non-temporal stores must be visible before the locks are free.
        persist::fence();
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

    #[test]
    fn masks_cover_exactly_the_blocks_locks() {
        for (offset, bytes, expected) in [
            (0u64, 1u64, 1u64),
            (65535, 2, 0b11),
            (63 << 16, 2 << 16, 1 << 63 | 1),
            (5 << 16, 63 << 16, u64::MAX ^ 1 << 4),
            (0, 64 << 16, u64::MAX),
            (3, 1 << 40, u64::MAX),
        ] {
            assert_eq!(Blocks::of(1 << 16, offset, bytes).mask(), expected, "{offset} {bytes}");
        }
        assert_eq!(Blocks::ALL.mask(), u64::MAX);
        assert_eq!(Blocks::of(3 << 16, (3 << 16) - 1, 2).mask(), 0b11);
    }
}
