//! The kernels that sum what they store, against those that only store and against [`crc32c_block`]
//! of what is there afterwards; also while the program changes its buffer.

mod common;

use cxlraid_persist::{BlockKernels, CRC_BLOCK_BYTES, CRC_OF_ZEROS, Flush, Isa, Kernels, crc32c_block};
use std::ptr::null_mut;

#[repr(align(4096))]
#[derive(Clone, PartialEq, Eq)]
struct Block([u8; CRC_BLOCK_BYTES]);

impl Block {
    fn new(seed: u64) -> Box<Self> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut block = Box::new(Self([0; CRC_BLOCK_BYTES]));
        block.0.fill_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        });
        block
    }

    fn sum(&self) -> u32 {
        // SAFETY: the block is aligned and has CRC_BLOCK_BYTES.
        unsafe { crc32c_block(self.0.as_ptr()) }
    }
}

/// Returns the kernels of this processor that sum blocks, for each way of storing, each beside the
/// kernels that store in the same way and do not sum.
fn variants() -> Vec<(BlockKernels, Kernels)> {
    let all = Isa::ALL.into_iter().flat_map(|isa| [Flush::NotNeeded, Flush::Needed].map(|flush| Kernels::for_isa(isa, flush)));
    let all = all.flatten().flat_map(|k| [*k, k.always_streaming(), k.never_streaming()]);
    let found: Vec<_> = all.filter_map(|k| Some((k.blocks()?, k))).collect();
    if found.is_empty() {
        eprintln!("this processor has no kernels that sum blocks: nothing is tested");
    }
    found
}

#[test]
fn copies_and_their_sum() {
    for (blocks, _) in variants() {
        for (seed, count) in [(1, 1), (2, 2), (3, 5)] {
            let source = Block::new(seed);
            let mut copies: Vec<_> = (0..count).map(|copy| Block::new(copy + 90)).collect();
            let places: Vec<_> = copies.iter_mut().map(|copy| copy.0.as_mut_ptr()).collect();
            // SAFETY: all blocks have CRC_BLOCK_BYTES.
            let sum = unsafe { blocks.mirror(&places, source.0.as_ptr()) };
            assert_eq!(sum, source.sum());
            assert!(copies.iter().all(|copy| *copy == source));
        }
    }
}

#[test]
fn updates_and_their_sums() {
    for (blocks, plain) in variants() {
        for (seed, run_bytes) in [(1, CRC_BLOCK_BYTES), (2, 1 << 20)] {
            let new = Block::new(seed);
            let olds = [1, 2, 3].map(|index| Block::new(seed * 10 + index));
            let ([mut data, mut p, mut q], [mut data_too, mut p_too, mut q_too]) = (olds.clone(), olds.clone());
            // SAFETY: all blocks have CRC_BLOCK_BYTES.
            let [of_new, of_old, change] = unsafe {
                plain.update_pq(data_too.0.as_mut_ptr(), p_too.0.as_mut_ptr(), q_too.0.as_mut_ptr(), new.0.as_ptr(), 29, 4096);
                let parities = [p.0.as_mut_ptr(), q.0.as_mut_ptr()];
                blocks.update_pq(data.0.as_mut_ptr(), parities, new.0.as_ptr(), 29, run_bytes)
            };
            assert!(data == data_too && p == p_too && q == q_too);
            assert_eq!((of_new, of_old), (new.sum(), olds[0].sum()));
            assert_eq!(olds[2].sum() ^ change, q.sum(), "the sum of Q changes by that of its change");
            assert_eq!(olds[1].sum() ^ of_old ^ of_new, p.sum(), "the sum of P follows from the others");

            let [mut data, mut p, _] = olds;
            // SAFETY: all blocks have CRC_BLOCK_BYTES.
            let sum = unsafe { blocks.update_p(data.0.as_mut_ptr(), p.0.as_mut_ptr(), new.0.as_ptr(), run_bytes) };
            assert_eq!(sum, new.sum());
            assert!(data == data_too && p == p_too);
        }
    }
}

#[test]
fn stripes_and_their_sums() {
    for (blocks, plain) in variants() {
        // One column, a few, and as many as there can be. Columns with a bit in `unstored` are not
        // stored.
        for (columns, unstored) in [(1u32, 0u32), (2, 0b10), (3, 0), (5, 0b10011), (31, 1 << 30)] {
            for has_q in [false, true] {
                let sources: Vec<_> = (0..columns).map(|column| Block::new(u64::from(column) + 7)).collect();
                let news: Vec<_> = sources.iter().map(|block| block.0.as_ptr()).collect();
                let made = |sum: &mut dyn FnMut(&[*mut u8], [*mut u8; 2])| {
                    let mut stored: Vec<_> = (0..columns + 2).map(|_| Block::new(1000)).collect();
                    let mut places: Vec<_> = stored.iter_mut().map(|block| block.0.as_mut_ptr()).collect();
                    let (q, p) = (places.pop().unwrap(), places.pop().unwrap());
                    let is_stored = |column: usize| unstored >> column & 1 == 0;
                    places
                        .iter_mut()
                        .enumerate()
                        .filter(|(column, _)| !is_stored(*column))
                        .for_each(|(_, place)| *place = null_mut());
                    sum(&places, [p, if has_q { q } else { null_mut() }]);
                    stored
                };
                let mut sums = vec![0; columns as usize];
                let mut of_q = 0;
                // SAFETY: all blocks have CRC_BLOCK_BYTES.
                let stored = made(&mut |datas, parities| unsafe {
                    of_q = blocks.stripe(&news, datas, parities, u32::MAX, &mut sums);
                });
                // SAFETY: all blocks have CRC_BLOCK_BYTES.
                let expected = made(&mut |datas, [p, q]| unsafe {
                    if has_q { plain.stripe_pq(&news, datas, p, q, 4096) } else { plain.stripe_p(&news, datas, p, 4096) }
                });
                assert!(stored == expected, "{columns} columns");
                assert!(sums.iter().zip(&sources).all(|(sum, source)| *sum == source.sum()), "{columns} columns");
                assert!(!has_q || of_q == stored[columns as usize + 1].sum(), "{columns} columns");
                let all = sums.iter().fold(if columns % 2 == 0 { CRC_OF_ZEROS } else { 0 }, |all, sum| all ^ sum);
                assert_eq!(all, stored[columns as usize].sum(), "the sum of P follows from the others");
            }
        }
    }
}

#[test]
fn sums_fit_what_was_stored_while_the_buffer_changes() {
    common::with_changing_buffer(CRC_BLOCK_BYTES, |new| {
        for (blocks, _) in variants() {
            for round in 0..1000 {
                let [mut a, mut b, mut p, mut q] = [1, 2, 3, 4].map(Block::new);
                let [a_at, b_at, p_at, q_at] = [&mut a, &mut b, &mut p, &mut q].map(|block| block.0.as_mut_ptr());
                let (old_p, old_q) = (p.sum(), q.sum());
                let mut sums = [0; 2];
                // SAFETY: all blocks have CRC_BLOCK_BYTES. The race on `new` is what is tested: the
                // kernels load each line once, into a register.
                unsafe {
                    match round % 3 {
                        0 => {
                            let sum = blocks.mirror(&[a_at, b_at], new);
                            assert!(a == b && sum == a.sum(), "copies");
                        }
                        1 => {
                            let [of_new, of_old, change] = blocks.update_pq(a_at, [p_at, q_at], new, 3, 4096);
                            assert_eq!([of_new, old_p ^ of_old ^ of_new, old_q ^ change], [a.sum(), p.sum(), q.sum()], "update");
                        }
                        _ => {
                            let of_q = blocks.stripe(&[new, new], &[a_at, b_at], [p_at, q_at], 3, &mut sums);
                            assert_eq!([sums[0], sums[1], of_q], [a.sum(), b.sum(), q.sum()], "stripe");
                            assert_eq!(sums[0] ^ sums[1] ^ CRC_OF_ZEROS, p.sum(), "P");
                        }
                    }
                }
            }
        }
    });
}
