//! A layout without arithmetic: it deals out the bytes of a file one by one, stripe after stripe.
//!
//! Written from the definitions (module docs of the crate, md's tables), not from the code under
//! test.

use cxlraid_layout::{Geometry, Level};
use proptest::prelude::*;
use units::ChunkBytes;

/// What one byte of a member holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Content {
    /// This copy of this byte of the file.
    Data { offset: u64, copy: usize },
    /// Byte `within` of parity `which` (0 = P, 1 = Q) of this stripe.
    Parity { stripe: u64, which: usize, within: u64 },
}

/// All members, byte by byte; `None` where nothing was put.
pub(crate) type Members = Vec<Vec<Option<Content>>>;

/// What the members hold of one row of chunks: per member a list of (data column, copy), or a
/// parity.
#[derive(Clone, Copy)]
enum Chunk {
    Data { column: usize, copy: usize },
    Parity(usize),
}

/// Who holds what in `stripe`, listed by member.
fn row(geometry: &Geometry, stripe: u64) -> Vec<Chunk> {
    let members = geometry.member_count();
    let data = |column| Chunk::Data { column, copy: 0 };
    let mut row: Vec<Chunk> = match geometry.level() {
        Level::Raid0 => (0..members).map(data).collect(),
        Level::Raid1 => (0..members).map(|copy| Chunk::Data { column: 0, copy }).collect(),
        Level::Raid4 | Level::Raid5 => (0..members - 1).map(data).chain([Chunk::Parity(0)]).collect(),
        // The row of stripe 0 of RAID 6: Q follows P, so it wraps around to member 0.
        Level::Raid6 => [Chunk::Parity(1)].into_iter().chain((0..members - 2).map(data)).chain([Chunk::Parity(0)]).collect(),
        Level::Raid10 => (0..members).map(|m| Chunk::Data { column: m / 2, copy: m % 2 }).collect(),
        Level::Raid01 => (0..members).map(|m| Chunk::Data { column: m % (members / 2), copy: m / (members / 2) }).collect(),
    };
    if matches!(geometry.level(), Level::Raid5 | Level::Raid6) {
        // Left-symmetric: each stripe is the one before it, moved by one member to the left.
        for _ in 0..stripe {
            row.rotate_left(1);
        }
    }
    row
}

/// Lays out a file of `file_bytes`. Parity is as long as the longest data chunk of its stripe.
pub(crate) fn lay_out(geometry: &Geometry, file_bytes: u64) -> Members {
    let mut members: Members = vec![Vec::new(); geometry.member_count()];
    let unit = if geometry.level() == Level::Raid1 { geometry.stripe_bytes() } else { geometry.chunk().bytes() };
    let (mut stripe, mut start) = (0, 0);
    while start < file_bytes {
        let row = row(geometry, stripe);
        let columns = row.iter().filter(|chunk| matches!(chunk, Chunk::Data { copy: 0, .. })).count() as u64;
        for (member, chunk) in members.iter_mut().zip(row) {
            member.resize((stripe * unit) as usize, None);
            for within in 0..unit {
                let content = match chunk {
                    Chunk::Data { column, copy } => {
                        let offset = start + column as u64 * unit + within;
                        (offset < file_bytes).then_some(Content::Data { offset, copy })
                    }
                    Chunk::Parity(which) => (start + within < file_bytes).then_some(Content::Parity { stripe, which, within }),
                };
                member.extend(content.map(Some));
            }
        }
        start += columns * unit;
        stripe += 1;
    }
    members
}

/// Every level with up to eight members and chunks from 64 to 4096 bytes.
pub(crate) fn geometries() -> impl Strategy<Value = Geometry> {
    (proptest::sample::select(&Level::ALL[..]), 1usize..=8, 6u32..=12)
        .prop_filter_map("members", |(level, members, shift)| Geometry::new(level, members, ChunkBytes::from_shift(shift)?).ok())
}

/// Every geometry there is.
pub(crate) fn all_geometries(members_max: usize) -> impl Iterator<Item = Geometry> {
    Level::ALL.into_iter().flat_map(move |level| {
        (1..=members_max).flat_map(move |members| {
            (ChunkBytes::MIN.shift()..=ChunkBytes::MAX.shift())
                .filter_map(move |shift| Geometry::new(level, members, ChunkBytes::from_shift(shift)?).ok())
        })
    })
}
