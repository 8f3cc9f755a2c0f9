//! Walking a range of a file: pieces of chunks, or stripes cut into rows.
//!
//! [`Pieces::new`] and [`Stripes::new`] divide once to find the first place. Each further place is
//! found by additions: from one stripe to the next the member offset grows by a chunk, and where
//! parity rotates, P moves down by one slot.

use layout::{Geometry, Level};
use units::Slot;

/// Where one stripe lies on the members.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stripe {
    /// The offset, in the backing file of every member, at which the chunk of this stripe begins.
    pub(crate) member_offset: u64,
    /// The slot of the member that holds P. The next higher slots hold Q (RAID 6), then the data
    /// columns in order; slot 0 comes after the highest slot. At levels without parity this is 0
    /// and means nothing.
    pub(crate) parity: Slot,
}

impl Stripe {
    /// The stripe with number `stripe`. At RAID 5 and 6 stripe 0 has P on the highest slot.
    #[inline]
    pub(crate) fn new(geometry: &Geometry, stripe: u64) -> Self {
        let last = geometry.member_count() - 1;
        let parity = match geometry.level() {
            Level::Raid4 => last,
            Level::Raid5 | Level::Raid6 => last - geometry.turn(stripe),
            _ => 0,
        };
        Self { member_offset: geometry.member_offset(stripe), parity }
    }

    /// Goes on to the next stripe.
    #[inline]
    pub(crate) fn advance(&mut self, geometry: &Geometry) {
        self.member_offset += geometry.chunk().bytes();
        if matches!(geometry.level(), Level::Raid5 | Level::Raid6) {
            self.parity = if self.parity == 0 { geometry.member_count() - 1 } else { self.parity - 1 };
        }
    }

    /// The slot that comes `distance` slots after the one with P, counted around; `members` is the
    /// number of members, and greater than `distance`. For levels with parity.
    #[inline(always)]
    pub(crate) const fn slot(&self, distance: usize, members: usize) -> Slot {
        let slot = self.parity + distance;
        if slot >= members { slot - members } else { slot }
    }
}

/// A run of file bytes within one chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) stripe: Stripe,
    /// The number of the data column; P and Q are not counted.
    pub(crate) column: usize,
    /// Offset within the chunk.
    pub(crate) within: u64,
    /// Length of the run.
    pub(crate) bytes: usize,
}

impl Piece {
    /// The offset of the piece in the backing file of each member that holds it (several at levels
    /// with copies).
    #[inline(always)]
    pub(crate) const fn member_offset(&self) -> u64 {
        self.stripe.member_offset + self.within
    }
}

/// The pieces of a range in ascending order; for every level but RAID 1, which has no chunks.
pub(crate) struct Pieces<'a> {
    geometry: &'a Geometry,
    stripe: Stripe,
    column: usize,
    within: u64,
    left: u64,
}

impl<'a> Pieces<'a> {
    #[inline]
    pub(crate) fn new(geometry: &'a Geometry, offset: u64, bytes: u64) -> Self {
        let place = geometry.locate(offset);
        Self { geometry, stripe: Stripe::new(geometry, place.stripe), column: place.column, within: place.within, left: bytes }
    }
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    #[inline]
    fn next(&mut self) -> Option<Piece> {
        if self.left == 0 {
            return None;
        }
        let bytes = self.left.min(self.geometry.chunk().bytes() - self.within);
        let piece = Piece { stripe: self.stripe, column: self.column, within: self.within, bytes: bytes as usize };
        (self.left, self.within) = (self.left - bytes, 0);
        self.column += 1;
        if self.column == self.geometry.data_columns() {
            self.column = 0;
            self.stripe.advance(self.geometry);
        }
        Some(piece)
    }
}

/// The part of a range that lies in one stripe: the file bytes `start..end`, counted from the start
/// of the stripe, at least one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StripePart {
    pub(crate) stripe: Stripe,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// The stripes of a range in ascending order; for every level but RAID 1, which has no chunks.
pub(crate) struct Stripes<'a> {
    geometry: &'a Geometry,
    stripe: Stripe,
    start: u64,
    left: u64,
}

impl<'a> Stripes<'a> {
    #[inline]
    pub(crate) fn new(geometry: &'a Geometry, offset: u64, bytes: u64) -> Self {
        let stripe = geometry.stripe_of(offset);
        let start = offset - stripe * geometry.stripe_bytes();
        Self { geometry, stripe: Stripe::new(geometry, stripe), start, left: bytes }
    }
}

impl Iterator for Stripes<'_> {
    type Item = StripePart;

    #[inline]
    fn next(&mut self) -> Option<StripePart> {
        if self.left == 0 {
            return None;
        }
        let end = self.geometry.stripe_bytes().min(self.start + self.left);
        let part = StripePart { stripe: self.stripe, start: self.start, end };
        self.left -= end - self.start;
        self.start = 0;
        self.stripe.advance(self.geometry);
        Some(part)
    }
}

/// A run of rows of a stripe, and of these the bytes in a run of data columns: the bytes
/// `start..start + bytes` of each chunk in the data columns `first_column..end_column`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rows {
    /// Offset within the chunks.
    pub(crate) start: u64,
    /// How many bytes of each chunk.
    pub(crate) bytes: usize,
    pub(crate) first_column: usize,
    pub(crate) end_column: usize,
}

impl StripePart {
    /// Cuts the part into at most three runs of rows. In all rows of a run the part covers the same
    /// data columns.
    #[inline]
    pub(crate) fn rows(&self, geometry: &Geometry) -> impl Iterator<Item = Rows> {
        let shift = geometry.chunk().shift();
        let chunk = geometry.chunk().bytes();
        let last_byte = self.end - 1;
        let (first, last) = ((self.start >> shift) as usize, (last_byte >> shift) as usize);
        // The part covers the first column from the chunk offset `from` on, and the last column up
        // to `to`.
        let (from, to) = (self.start & (chunk - 1), (last_byte & (chunk - 1)) + 1);
        let rows = |start: u64, end: u64, first_column: usize, end_column: usize| Rows {
            start,
            bytes: (end - start) as usize,
            first_column,
            end_column,
        };
        let (low, high) = (from.min(to), from.max(to));
        let mut next = if first == last { Cut::Only } else { Cut::Low };
        core::iter::from_fn(move || {
            loop {
                let (found, then) = match next {
                    Cut::Only => (rows(from, to, first, first + 1), Cut::Done),
                    Cut::Low => (rows(0, low, first + 1, last + 1), Cut::Middle),
                    Cut::Middle if from < to => (rows(low, high, first, last + 1), Cut::High),
                    Cut::Middle => (rows(low, high, first + 1, last), Cut::High),
                    Cut::High => (rows(high, chunk, first, last), Cut::Done),
                    Cut::Done => return None,
                };
                next = then;
                if found.bytes > 0 && found.first_column < found.end_column {
                    return Some(found);
                }
            }
        })
    }
}

/// Which rows of a [`StripePart`] come next.
#[derive(Clone, Copy)]
enum Cut {
    /// All: the part lies in one column.
    Only,
    /// Those below both `from` and `to`.
    Low,
    /// Those between `from` and `to`.
    Middle,
    /// Those above both.
    High,
    /// None any more.
    Done,
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::ChunkBytes;

    fn geometry(level: Level, members: usize, chunk: u64) -> Geometry {
        Geometry::new(level, members, ChunkBytes::new(chunk).unwrap()).unwrap()
    }

    #[test]
    fn pieces_follow_the_geometry() {
        for (level, members) in [(Level::Raid0, 3), (Level::Raid4, 4), (Level::Raid5, 5), (Level::Raid6, 6), (Level::Raid10, 4)] {
            let geometry = geometry(level, members, 64);
            let mut at = 777;
            for piece in Pieces::new(&geometry, at, 5000) {
                let place = geometry.locate(at);
                assert_eq!((piece.column, piece.within), (place.column, place.within));
                assert_eq!(piece.stripe.member_offset, geometry.member_offset(place.stripe));
                let parities = level.parity_count();
                if parities > 0 {
                    assert_eq!(piece.stripe.slot(0, members), geometry.parity_slot(place.stripe, 0));
                    let data = piece.stripe.slot(parities + piece.column, members);
                    assert_eq!(data, geometry.data_slot(place.stripe, place.column, 0));
                }
                at += piece.bytes as u64;
            }
            assert_eq!(at, 5777);
        }
    }

    #[test]
    fn rows_cover_each_byte_once() {
        let geometry = geometry(Level::Raid5, 5, 64);
        for start in 0..256u64 {
            for end in start + 1..=256 {
                let mut seen = [0u8; 256];
                let part = StripePart { stripe: Stripe::new(&geometry, 0), start, end };
                for rows in part.rows(&geometry) {
                    for column in rows.first_column..rows.end_column {
                        let at = column * 64 + rows.start as usize;
                        seen[at..at + rows.bytes].iter_mut().for_each(|seen| *seen += 1);
                    }
                }
                let right = |(at, &seen): (usize, &u8)| seen == u8::from((start..end).contains(&(at as u64)));
                assert!(seen.iter().enumerate().all(right), "{start}..{end}");
            }
        }
    }
}
