//! Every level against a vector: many shapes, mapped and not.

use cxlraid_model::{Face, Memory, StriperModel, mapped_files};
use layout::{Geometry, Level};
use medium::Medium;
use units::ChunkBytes;

/// Member counts worth trying for a level: the fewest, odd ones, and many.
fn member_counts(level: Level) -> &'static [usize] {
    match level {
        Level::Raid0 => &[1, 2, 5, 32],
        Level::Raid1 => &[1, 2, 3, 4, 8],
        Level::Raid4 | Level::Raid5 => &[3, 4, 5, 8, 32],
        Level::Raid6 => &[4, 5, 6, 8, 32],
        Level::Raid01 | Level::Raid10 => &[4, 6, 8, 32],
    }
}

/// A few stripes and a bit, within 1 MiB if one stripe is.
fn file_bytes(geometry: &Geometry, odd: usize) -> usize {
    let stripes = 3 * geometry.member_count() as u64 + 2;
    (stripes * geometry.stripe_bytes()).clamp(20_000, (1 << 20).max(geometry.stripe_bytes())) as usize + odd
}

fn run<M: Medium>(level: Level, chunks: &[u64], steps: usize, members: impl Fn(usize, u64) -> Vec<Option<M>>) {
    persist::fault::install_handlers().unwrap();
    for &member_count in member_counts(level) {
        for &chunk in chunks {
            let geometry = Geometry::new(level, member_count, ChunkBytes::new(chunk).unwrap()).unwrap();
            let bytes = file_bytes(&geometry, 77 * member_count + 1);
            let media = members(member_count, geometry.member_bytes(bytes as u64));
            StriperModel::new(geometry, media, bytes, chunk + member_count as u64).run(steps);
        }
    }
}

fn memory(face: Face) -> impl Fn(usize, u64) -> Vec<Option<Memory>> {
    move |count, bytes| (0..count).map(|_| Some(Memory::new(bytes, face))).collect()
}

fn all(level: Level) {
    run(level, &[64, 1 << 10, 4 << 10, 64 << 10], 120, memory(Face::Mapped));
    run(level, &[128, 8 << 10], 100, memory(Face::Windows(4 << 10)));
    run(level, &[64, 16 << 10], 60, memory(Face::Bytes));
    run(level, &[64, 4 << 10, 64 << 10], 80, mapped_files);
}

#[test]
fn raid0() {
    all(Level::Raid0);
}

#[test]
fn raid1() {
    all(Level::Raid1);
}

#[test]
fn raid4() {
    all(Level::Raid4);
}

#[test]
fn raid5() {
    all(Level::Raid5);
}

#[test]
fn raid6() {
    all(Level::Raid6);
}

#[test]
fn raid01() {
    all(Level::Raid01);
}

#[test]
fn raid10() {
    all(Level::Raid10);
}
