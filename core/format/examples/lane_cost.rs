//! What a lane record costs before it is stored, beside a CRC-32C of the same bytes.
//! `cargo run --release -p cxlraid-format --example lane_cost`

use crc::{CRC_32_ISCSI, Crc};
use cxlraid_format::{LaneKind, LaneRecord};
use std::{hint::black_box, time::Instant};

const ROUNDS: u64 = 10_000_000;

fn main() {
    let mut scratch =
        LaneRecord { kind: LaneKind::Write, inode: 5, generation: 1, offset: 0, length: 4096, sequence: 0, owner: 3 };
    print_cost("encode", |round| {
        let LaneRecord { inode, generation, length, owner, .. } = *black_box(&mut scratch);
        let kind = LaneKind::Write;
        let record = LaneRecord { kind, inode, generation, offset: round << 12, length, sequence: round, owner };
        black_box(&record.encode());
    });
    let bytes = scratch.encode();
    print_cost("decode", |_| assert!(LaneRecord::decode(black_box(&bytes)).is_ok()));
    let crc32c = Crc::<u32>::new(&CRC_32_ISCSI);
    print_cost("crc32c", |_| {
        black_box(crc32c.checksum(black_box(&bytes[..56])));
    });
}

fn print_cost(what: &str, mut work: impl FnMut(u64)) {
    let start = Instant::now();
    (0..ROUNDS).for_each(&mut work);
    println!("{what}  {:.1} ns", start.elapsed().as_nanos() as f64 / ROUNDS as f64);
}
