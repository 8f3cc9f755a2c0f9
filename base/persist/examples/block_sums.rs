//! What it costs to sum what is stored, in a bare loop without any engine: copies and stripes of 1 MiB
//! in sequence through 64 MiB of each member, out of a buffer that stays in the caches. Without sums,
//! with the kernels that sum what they store, and with a pass over the source before the stores.

use cxlraid_persist::{CRC_BLOCK_BYTES, crc32c_block, fence, kernels};
use std::alloc::{Layout, alloc_zeroed};
use std::hint::black_box;
use std::ptr::null_mut;
use std::time::Instant;

const MEMBER_BYTES: usize = 64 << 20;
const CALL_BYTES: usize = 1 << 20;
const ROUNDS: usize = 31;

fn area(bytes: usize) -> *mut u8 {
    let layout = Layout::from_size_align(bytes, 2 << 20).unwrap();
    // SAFETY: the layout has a size.
    let start = unsafe { alloc_zeroed(layout) };
    // SAFETY: allocated above. The pages are there before anything is timed.
    unsafe { start.write_bytes(1, bytes) };
    start
}

fn main() {
    let kernels = kernels();
    let Some(blocks) = kernels.blocks() else {
        println!("this processor has no kernels that sum blocks");
        return;
    };
    let source = area(CALL_BYTES);
    let members: [*mut u8; 6] = std::array::from_fn(|_| area(MEMBER_BYTES));
    println!("{:22} {:>12} {:>10} {:>10}   medians, µs a MiB of data; × without sums", "", "without", "summed", "own pass");
    // Columns and parities; no parity: copies.
    for (name, columns, parities) in
        [("2 copies", 2, 0), ("3 copies", 3, 0), ("2 data, P", 2, 1), ("4 data, P", 4, 1), ("3 data, P, Q", 3, 2)]
    {
        let step = if parities == 0 { CRC_BLOCK_BYTES } else { columns * CRC_BLOCK_BYTES };
        let mut times = [const { Vec::new() }; 3];
        let mut at = 0;
        for _ in 0..ROUNDS {
            for (way, times) in times.iter_mut().enumerate() {
                let start = Instant::now();
                for _ in 0..16 {
                    let mut done = 0;
                    while done + step <= CALL_BYTES {
                        let from = |column: usize| source.wrapping_add(done + column * CRC_BLOCK_BYTES).cast_const();
                        let place = |member: usize| members[member].wrapping_add(at);
                        let mut sums = [0; 8];
                        // SAFETY: all places lie within the areas.
                        unsafe {
                            if way == 2 {
                                (0..step / CRC_BLOCK_BYTES).for_each(|column| _ = black_box(crc32c_block(from(column))));
                            }
                            let places: [*mut u8; 6] = std::array::from_fn(place);
                            let news: [*const u8; 6] = std::array::from_fn(from);
                            let (datas, news) = (&places[..columns], &news[..columns]);
                            let [p, q] =
                                [1, 2].map(|which| if which <= parities { places[columns + which - 1] } else { null_mut() });
                            match (way, parities) {
                                (1, 0) => _ = black_box(blocks.mirror(datas, news[0])),
                                (1, _) => _ = black_box(blocks.stripe(news, datas, [p, q], u32::MAX, &mut sums[..columns])),
                                (_, 0) => kernels.mirror_to_media(datas, news[0], CRC_BLOCK_BYTES),
                                (_, 1) => kernels.stripe_p(news, datas, p, CRC_BLOCK_BYTES),
                                _ => kernels.stripe_pq(news, datas, p, q, CRC_BLOCK_BYTES),
                            }
                        }
                        black_box(sums);
                        done += step;
                        at = (at + CRC_BLOCK_BYTES) % MEMBER_BYTES;
                    }
                    fence();
                }
                times.push(start.elapsed().as_secs_f64() * 1e6 / 16.0);
            }
        }
        let [without, summed, passed] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        });
        println!("{name:22} {without:12.1} {:10.2} {:10.2}", summed / without, passed / without);
    }
}
