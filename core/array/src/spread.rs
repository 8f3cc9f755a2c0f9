//! How the bytes of a call are spread over the members: for what is told of members' load. Nothing
//! is read or written by what is found here.

use crate::mirror::{preferred_copy, region_left};
use crate::shares::{Choice, Shares};
use crate::walk::{Pieces, Stripes};
use layout::Geometry;
use units::{MEMBER_COUNT_MAX, MemberSet, Slot};

/// Which way a call moves bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Way {
    /// From the members.
    Read = 0,
    /// To the members.
    Write = 1,
}

/// A call that moved bytes of a file.
#[derive(Clone, Copy, Debug)]
pub struct Spread<'a> {
    /// The shape of the file.
    pub geometry: &'a Geometry,
    /// The file's place where copies take turns ([`crate::Striper::turn`]).
    pub turn: u64,
    /// Which way the bytes went.
    pub way: Way,
    /// Where the range begins.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
}

/// How many pieces or stripes of a call are looked at: the rest of a long call is spread as these.
const LOOK_COUNT: usize = 64;

impl Spread<'_> {
    /// The bytes on each member. A read of a member that is out is one of as many others as there
    /// are columns of data. What a write loads to compute parity is not told.
    #[must_use]
    pub(crate) fn on_members(&self, out: MemberSet, shares: &Shares) -> [u64; MEMBER_COUNT_MAX] {
        let mut on = Tally { bytes: [0; MEMBER_COUNT_MAX], out };
        let seen = match self.way {
            _ if self.bytes == 0 => 0,
            Way::Write => self.written(&mut on),
            Way::Read => self.read(&mut on, shares),
        };
        if seen > 0 && seen < self.bytes {
            let whole = |part: &mut u64| *part = (u128::from(*part) * u128::from(self.bytes) / u128::from(seen)) as u64;
            on.bytes.iter_mut().for_each(whole);
        }
        on.bytes
    }

    /// Returns how many bytes of the range were looked at.
    fn written(&self, on: &mut Tally) -> u64 {
        let geometry = self.geometry;
        if !geometry.level().has_chunks() {
            (0..geometry.copy_count()).for_each(|copy| on.add(geometry.data_slot(0, 0, copy), self.bytes));
            return self.bytes;
        }
        let mut seen = 0;
        for piece in Pieces::new(geometry, self.offset, self.bytes).take(LOOK_COUNT) {
            let stripe = geometry.stripe_of(self.offset + seen);
            let slot = |copy| geometry.data_slot(stripe, piece.column, copy);
            (0..geometry.copy_count()).for_each(|copy| on.add(slot(copy), piece.bytes as u64));
            seen += piece.bytes as u64;
        }
        for (part, index) in Stripes::new(geometry, self.offset, seen).zip(0..) {
            let rows = (part.end - part.start).min(geometry.chunk().bytes());
            let stripe = geometry.stripe_of(self.offset) + index;
            (0..geometry.level().parity_count()).for_each(|which| on.add(geometry.parity_slot(stripe, which), rows));
        }
        seen
    }

    /// Returns how many bytes of the range were looked at.
    fn read(&self, on: &mut Tally, shares: &Shares) -> u64 {
        let geometry = self.geometry;
        let mut seen = 0;
        if !geometry.level().has_chunks() {
            while seen < self.bytes && seen < (LOOK_COUNT as u64) << 20 {
                let at = self.offset + seen;
                let step = region_left(at).min(self.bytes - seen);
                self.read_copy(on, shares, (0, 0), at, step);
                seen += step;
            }
            return seen;
        }
        for piece in Pieces::new(geometry, self.offset, self.bytes).take(LOOK_COUNT) {
            let (stripe, bytes) = (geometry.stripe_of(self.offset + seen), piece.bytes as u64);
            if geometry.copy_count() > 1 {
                self.read_copy(on, shares, (stripe, piece.column), piece.member_offset(), bytes);
            } else if on.out.contains(geometry.data_slot(stripe, piece.column, 0)) {
                let data = (0..geometry.data_columns()).map(|column| geometry.data_slot(stripe, column, 0));
                let parity = (0..geometry.level().parity_count()).map(|which| geometry.parity_slot(stripe, which));
                let out = on.out;
                let others = data.chain(parity).filter(|&slot| !out.contains(slot));
                others.take(geometry.data_columns()).for_each(|slot| on.add(slot, bytes));
            } else {
                on.add(geometry.data_slot(stripe, piece.column, 0), bytes);
            }
            seen += bytes;
        }
        seen
    }

    /// A read of bytes that have copies, at `at` of the members.
    fn read_copy(&self, on: &mut Tally, shares: &Shares, (stripe, column): (u64, usize), at: u64, bytes: u64) {
        let geometry = self.geometry;
        let slots = (0..geometry.copy_count()).map(|copy| geometry.data_slot(stripe, column, copy));
        let there: MemberSet = slots.filter(|&slot| !on.out.contains(slot)).collect();
        let first = geometry.data_slot(stripe, column, preferred_copy(geometry, at, self.turn));
        let asked = shares.reading().asked.contains(first) || on.out.contains(first);
        let choice = Choice { there, first, region: crate::mirror::region_of(at).wrapping_add(self.turn) };
        let slot = if asked { shares.choose(&choice) } else { Some(first) };
        if let Some(slot) = slot {
            on.add(slot, bytes);
        }
    }
}

/// Bytes by slot.
struct Tally {
    bytes: [u64; MEMBER_COUNT_MAX],
    out: MemberSet,
}

impl Tally {
    fn add(&mut self, slot: Slot, bytes: u64) {
        if let Some(sum) = self.bytes.get_mut(slot).filter(|_| !self.out.contains(slot)) {
            *sum = sum.saturating_add(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::Level;
    use units::ChunkBytes;

    fn on(level: Level, members: usize, way: Way, (offset, bytes): (u64, u64), out: &[Slot]) -> Vec<u64> {
        let geometry = Geometry::new(level, members, ChunkBytes::new(4096).unwrap()).unwrap();
        let spread = Spread { geometry: &geometry, turn: 0, way, offset, bytes };
        spread.on_members(out.iter().copied().collect(), &Shares::default())[..members].to_vec()
    }

    #[test]
    fn bytes_lie_where_levels_put_them() {
        use Way::{Read, Write};
        // Stripe 0 of RAID 5 has P on the last member and data from the first on.
        assert_eq!(on(Level::Raid5, 3, Read, (0, 4096), &[]), [4096, 0, 0]);
        assert_eq!(on(Level::Raid5, 3, Read, (4096, 100), &[]), [0, 100, 0]);
        assert_eq!(on(Level::Raid5, 3, Write, (4096, 100), &[]), [0, 100, 100]);
        assert_eq!(on(Level::Raid5, 3, Write, (0, 8192), &[]), [4096; 3]);
        // Two whole rounds of stripes, more than are looked at one by one.
        assert_eq!(on(Level::Raid5, 3, Write, (0, 8192 * 96), &[]), [4096 * 96; 3]);
        assert_eq!(on(Level::Raid5, 3, Read, (4096, 100), &[1]), [100, 0, 100]);
        assert_eq!(on(Level::Raid6, 4, Write, (0, 10), &[]).iter().sum::<u64>(), 30);
        assert_eq!(on(Level::Raid6, 4, Read, (0, 10), &[0, 1]).iter().sum::<u64>(), 20);
        assert_eq!(on(Level::Raid0, 2, Write, (4096, 10), &[]), [0, 10]);
        assert_eq!(on(Level::Raid1, 2, Write, (5, 10), &[]), [10, 10]);
        assert_eq!(on(Level::Raid1, 2, Write, (5, 10), &[0]), [0, 10]);
        // Regions of a MiB are read from one copy after the other.
        assert_eq!(on(Level::Raid1, 2, Read, (0, 2 << 20), &[]), [1 << 20; 2]);
        assert_eq!(on(Level::Raid1, 2, Read, (0, 2 << 20), &[1]), [2 << 20, 0]);
        assert_eq!(on(Level::Raid10, 4, Write, (4096, 10), &[]), [0, 0, 10, 10]);
        assert_eq!(on(Level::Raid10, 4, Read, (4096, 10), &[2]), [0, 0, 0, 10]);
    }

    #[test]
    fn no_range_is_too_much() {
        for (offset, bytes) in [(0, 0), (u64::from(u32::MAX) << 30, 1 << 40), (i64::MAX as u64 - 7, 7)] {
            for (level, members) in [(Level::Raid5, 3), (Level::Raid1, 2), (Level::Raid10, 4), (Level::Raid0, 1)] {
                for way in [Way::Read, Way::Write] {
                    assert!(on(level, members, way, (offset, bytes), &[]).iter().sum::<u64>() >= bytes / 2);
                }
            }
        }
    }
}
