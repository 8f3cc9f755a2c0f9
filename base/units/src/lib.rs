//! Words and sizes every other crate shares.
//!
//! Invariant: nothing here depends on another crate, performs I/O or allocates.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod text;

use core::fmt;

pub use text::{Shown, ShownTo};

/// Bytes of one cache line, the unit of a write-intent record and of a streaming store.
pub const CACHE_LINE_BYTES: usize = 64;
/// Bytes of one base page of memory.
pub const PAGE_BYTES: usize = 4096;
/// The most members an array may have.
pub const MEMBER_COUNT_MAX: usize = 32;

/// The position of a member in its array, `0..MEMBER_COUNT_MAX`.
pub type Slot = usize;

/// A set of members, one bit per slot.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct MemberSet(u32);

impl MemberSet {
    /// No member.
    pub const EMPTY: Self = Self(0);

    /// The first `member_count` slots.
    #[must_use]
    pub const fn first(member_count: usize) -> Self {
        if member_count >= 32 { Self(u32::MAX) } else { Self((1 << member_count) - 1) }
    }

    /// From one bit per slot.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// One bit per slot.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether `slot` is in the set.
    #[inline]
    #[must_use]
    pub const fn contains(self, slot: Slot) -> bool {
        slot < MEMBER_COUNT_MAX && self.0 >> slot & 1 == 1
    }

    /// The set with `slot` added.
    #[must_use]
    pub const fn with(self, slot: Slot) -> Self {
        Self(self.0 | 1 << slot)
    }

    /// The set with `slot` taken out.
    #[must_use]
    pub const fn without(self, slot: Slot) -> Self {
        Self(self.0 & !(1 << slot))
    }

    /// The members that are in either set.
    #[inline]
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The members that are not in `other`.
    #[inline]
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// How many members are in the set.
    #[must_use]
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether no member is in the set.
    #[inline]
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The lowest slot in the set.
    #[must_use]
    pub const fn lowest(self) -> Option<Slot> {
        if self.0 == 0 { None } else { Some(self.0.trailing_zeros() as usize) }
    }

    /// The slots in ascending order.
    pub fn iter(self) -> impl Iterator<Item = Slot> {
        let mut bits = self.0;
        core::iter::from_fn(move || {
            if bits == 0 {
                return None;
            }
            let slot = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            Some(slot)
        })
    }
}

impl fmt::Debug for MemberSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl FromIterator<Slot> for MemberSet {
    fn from_iter<I: IntoIterator<Item = Slot>>(slots: I) -> Self {
        slots.into_iter().fold(Self::EMPTY, Self::with)
    }
}

/// The bytes of a chunk (stripe unit): a power of two from 64 B to 64 MiB, held as its logarithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct ChunkBytes(u8);

impl ChunkBytes {
    /// The smallest chunk, 64 B.
    pub const MIN: Self = Self(6);
    /// The largest chunk, 64 MiB.
    pub const MAX: Self = Self(26);
    /// 64 KiB.
    pub const DEFAULT: Self = Self(16);

    /// `bytes`, if it is a power of two within the limits.
    #[must_use]
    pub const fn new(bytes: u64) -> Option<Self> {
        if bytes.is_power_of_two() { Self::from_shift(bytes.trailing_zeros()) } else { None }
    }

    /// `1 << shift` bytes, if within the limits.
    #[must_use]
    pub const fn from_shift(shift: u32) -> Option<Self> {
        if shift >= Self::MIN.0 as u32 && shift <= Self::MAX.0 as u32 { Some(Self(shift as u8)) } else { None }
    }

    /// The size in bytes.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> u64 {
        1 << self.0
    }

    /// The base-2 logarithm of the size.
    #[inline]
    #[must_use]
    pub const fn shift(self) -> u32 {
        self.0 as u32
    }
}

/// Parses "64", "4K", "64KiB", "1M": a count of bytes with an optional binary suffix.
#[must_use]
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, suffix) = text.split_at(digits_end);
    let value: u64 = digits.parse().ok()?;
    let shift = match suffix.trim() {
        "" | "B" => 0,
        "K" | "k" | "KiB" => 10,
        "M" | "m" | "MiB" => 20,
        "G" | "g" | "GiB" => 30,
        "T" | "t" | "TiB" => 40,
        _ => return None,
    };
    value.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_accepts_powers_of_two_within_limits_only() {
        assert_eq!(ChunkBytes::new(64), Some(ChunkBytes::MIN));
        assert_eq!(ChunkBytes::new(64 << 20), Some(ChunkBytes::MAX));
        assert_eq!(ChunkBytes::new(32), None);
        assert_eq!(ChunkBytes::new(128 << 20), None);
        assert_eq!(ChunkBytes::new(3 << 10), None);
        assert_eq!(ChunkBytes::new(0), None);
        assert_eq!(ChunkBytes::DEFAULT.bytes(), 65536);
    }

    #[test]
    fn member_set_keeps_ascending_slots() {
        let set: MemberSet = [5, 0, 31].into_iter().collect();
        assert!(set.iter().eq([0, 5, 31]));
        assert_eq!(set.len(), 3);
        assert!(!set.contains(32));
        assert_eq!(MemberSet::first(32).len(), 32);
        assert_eq!(set.minus(MemberSet::first(4)).lowest(), Some(5));
    }

    #[test]
    fn sizes_parse_with_binary_suffixes() {
        assert_eq!(parse_bytes("64K"), Some(65536));
        assert_eq!(parse_bytes("1MiB"), Some(1 << 20));
        assert_eq!(parse_bytes("4096"), Some(4096));
        assert_eq!(parse_bytes("4Q"), None);
        assert_eq!(parse_bytes("-1"), None);
        assert_eq!(parse_bytes("99999999999999999999"), None);
    }
}
