//! Walking a file range: pieces of chunks, and stripes cut into rows. Where a range begins is worked out once per call, not per piece.

use layout::{Geometry, Level};
use units::Slot;

/// A stripe: where its chunks lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// The member offset of its chunks.
    pub(crate) member_offset: u64,
    /// The member that holds P. Q and the data columns follow, wrapping around; 0 where there is no parity.
    pub(crate) parity: Slot,
}

impl Row {
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

    /// The member at `distance` (less than `members`) after the one with P.
    #[inline(always)]
    pub(crate) const fn slot(&self, distance: usize, members: usize) -> Slot {
        let slot = self.parity + distance;
        if slot >= members { slot - members } else { slot }
    }
}

/// A run of file bytes within one chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) row: Row,
    pub(crate) column: usize,
    /// Offset within the chunk.
    pub(crate) within: u64,
    pub(crate) bytes: usize,
}

impl Piece {
    /// Where it lies on its members.
    #[inline(always)]
    pub(crate) const fn member_offset(&self) -> u64 {
        self.row.member_offset + self.within
    }
}

/// The pieces of a range in ascending order; for levels with chunks.
pub(crate) struct Pieces<'a> {
    geometry: &'a Geometry,
    row: Row,
    column: usize,
    within: u64,
    left: u64,
}

impl<'a> Pieces<'a> {
    #[inline]
    pub(crate) fn new(geometry: &'a Geometry, offset: u64, bytes: u64) -> Self {
        let place = geometry.locate(offset);
        Self { geometry, row: Row::new(geometry, place.stripe), column: place.column, within: place.within, left: bytes }
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
        let piece = Piece { row: self.row, column: self.column, within: self.within, bytes: bytes as usize };
        (self.left, self.within) = (self.left - bytes, 0);
        self.column += 1;
        if self.column == self.geometry.data_columns() {
            self.column = 0;
            self.row.advance(self.geometry);
        }
        Some(piece)
    }
}

/// The part of a range that lies in one stripe; `start..end` are file bytes counted from the start of the stripe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StripePart {
    pub(crate) row: Row,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// The stripes of a range in ascending order; for levels with chunks.
pub(crate) struct Stripes<'a> {
    geometry: &'a Geometry,
    row: Row,
    start: u64,
    left: u64,
}

impl<'a> Stripes<'a> {
    #[inline]
    pub(crate) fn new(geometry: &'a Geometry, offset: u64, bytes: u64) -> Self {
        let stripe = geometry.stripe_of(offset);
        let start = offset - stripe * geometry.stripe_bytes();
        Self { geometry, row: Row::new(geometry, stripe), start, left: bytes }
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
        let part = StripePart { row: self.row, start: self.start, end };
        self.left -= end - self.start;
        self.start = 0;
        self.row.advance(self.geometry);
        Some(part)
    }
}

/// Rows: the bytes at one offset of every chunk of a stripe. A run of their data columns is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rows {
    /// Offset within the chunks.
    pub(crate) start: u64,
    /// How many bytes of each chunk.
    pub(crate) bytes: usize,
    /// The columns `first..end`.
    pub(crate) first: usize,
    pub(crate) end: usize,
}

impl StripePart {
    /// Cuts the part into rows on each of which the columns it covers are the same: at most three.
    #[inline]
    pub(crate) fn rows(&self, geometry: &Geometry) -> impl Iterator<Item = Rows> {
        let shift = geometry.chunk().shift();
        let chunk = geometry.chunk().bytes();
        let last = self.end - 1;
        let (column, last_column) = ((self.start >> shift) as usize, (last >> shift) as usize);
        let (from, to) = (self.start & (chunk - 1), (last & (chunk - 1)) + 1);
        let rows = |start: u64, end: u64, first: usize, end_column: usize| Rows {
            start,
            bytes: end.saturating_sub(start) as usize,
            first,
            end: end_column,
        };
        // Below `from` the first column is not covered, from `to` on the last is not.
        let (low, high) = (from.min(to), from.max(to));
        let mut next = if column == last_column { Cut::Only } else { Cut::Low };
        core::iter::from_fn(move || {
            loop {
                let (found, then) = match next {
                    Cut::Only => (rows(from, to, column, column + 1), Cut::None),
                    Cut::Low => (rows(0, low, column + 1, last_column + 1), Cut::Middle),
                    Cut::Middle if from < to => (rows(low, high, column, last_column + 1), Cut::High),
                    Cut::Middle => (rows(low, high, column + 1, last_column), Cut::High),
                    Cut::High => (rows(high, chunk, column, last_column), Cut::None),
                    Cut::None => return None,
                };
                next = then;
                if found.bytes > 0 && found.first < found.end {
                    return Some(found);
                }
            }
        })
    }
}

/// Which rows of a [`StripePart`] come next.
#[derive(Clone, Copy)]
enum Cut {
    /// The part lies in one column.
    Only,
    Low,
    Middle,
    High,
    None,
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
                assert_eq!(piece.row.member_offset, geometry.member_offset(place.stripe));
                let parities = level.parity_count();
                if parities > 0 {
                    assert_eq!(piece.row.slot(0, members), geometry.parity_slot(place.stripe, 0));
                    let data = piece.row.slot(parities + piece.column, members);
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
                let part = StripePart { row: Row::new(&geometry, 0), start, end };
                for rows in part.rows(&geometry) {
                    for column in rows.first..rows.end {
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
