//! What is known to be allocated: one bit per granule of a window.
//!
//! A set bit means "the file system has given this granule space, and the file reaches its end"; a
//! clear bit means nothing. So a lost bit costs one system call and a wrong bit would cost a
//! SIGBUS: bits are set only after fallocate succeeded, and cleared before anything takes space
//! away.

use core::sync::atomic::{AtomicU64, Ordering};

/// The logarithm of a granule's bytes: 64 KiB.
pub(crate) const GRANULE_SHIFT: u32 = 16;
/// Bytes of a granule.
pub(crate) const GRANULE_BYTES: u64 = 1 << GRANULE_SHIFT;
const WORDS: usize = 1 << (crate::windows::WINDOW_SHIFT - GRANULE_SHIFT - 6);

/// One bit per granule of one window (2 KiB for a window of 1 GiB).
pub(crate) struct Granules([AtomicU64; WORDS]);

impl Granules {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }

    /// Whether all granules of `first..end` (indices in the window) are known to be allocated.
    #[inline]
    pub(crate) fn contains(&self, first: usize, end: usize) -> bool {
        if end - first == 1 {
            return self.0[first / 64].load(Ordering::Acquire) >> (first % 64) & 1 == 1;
        }
        self.words(first, end).all(|(word, mask)| word.load(Ordering::Acquire) & mask == mask)
    }

    /// The bits from `first` on to the end of its word, the lowest first; 0 behind the last.
    #[inline]
    pub(crate) fn bits_from(&self, first: usize) -> u64 {
        self.0.get(first / 64).map_or(0, |word| word.load(Ordering::Acquire) >> (first % 64))
    }

    pub(crate) fn insert(&self, first: usize, end: usize) {
        self.words(first, end).for_each(|(word, mask)| _ = word.fetch_or(mask, Ordering::Release));
    }

    pub(crate) fn remove(&self, first: usize, end: usize) {
        self.words(first, end).for_each(|(word, mask)| _ = word.fetch_and(!mask, Ordering::AcqRel));
    }

    /// The words that hold `first..end`, each with the mask of the bits meant.
    fn words(&self, first: usize, end: usize) -> impl Iterator<Item = (&AtomicU64, u64)> {
        (first / 64..end.div_ceil(64)).map(move |index| {
            let low = first.saturating_sub(index * 64).min(63);
            let high = (end - index * 64).min(64);
            let mask = u64::MAX << low & u64::MAX >> (64 - high);
            (&self.0[index], mask)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_set_and_cleared_are_exact() {
        let granules = Granules::new();
        granules.insert(60, 200);
        assert!(granules.contains(60, 200) && granules.contains(64, 128) && granules.contains(199, 200));
        assert!(!granules.contains(59, 61) && !granules.contains(199, 201) && !granules.contains(0, 60));
        granules.remove(127, 129);
        assert!(granules.contains(60, 127) && granules.contains(129, 200) && !granules.contains(60, 200));
        assert!(!granules.contains(127, 128) && !granules.contains(128, 129));
        granules.insert(0, WORDS * 64);
        assert!(granules.contains(0, WORDS * 64));
    }
}
