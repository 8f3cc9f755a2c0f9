//! What the members of a file hold, by the definition of its level and nothing else: slow and
//! obvious.

use layout::{Geometry, Place};
use parity::{mul, q_coefficient};

/// The bytes of each member for a file of these bytes; each `geometry.member_bytes(file.len())`
/// long. Past the end of the file are zeros.
#[must_use]
pub fn members_of(geometry: &Geometry, file: &[u8]) -> Vec<Vec<u8>> {
    let member_bytes = geometry.member_bytes(file.len() as u64) as usize;
    if !geometry.level().has_chunks() {
        return vec![file.to_vec(); geometry.member_count()];
    }
    let mut members = vec![vec![0; member_bytes]; geometry.member_count()];
    let chunk = geometry.chunk().bytes();
    for stripe in 0..(file.len() as u64).div_ceil(geometry.stripe_bytes()) {
        let base = geometry.member_offset(stripe) as usize;
        let rows = member_bytes.saturating_sub(base).min(chunk as usize);
        for column in 0..geometry.data_columns() {
            let start = geometry.offset_of(Place { stripe, column, within: 0 }) as usize;
            let mut data = vec![0; rows];
            let there = &file[start.min(file.len())..(start + rows).min(file.len())];
            data[..there.len()].copy_from_slice(there);
            for copy in 0..geometry.copy_count() {
                members[geometry.data_slot(stripe, column, copy)][base..base + rows].copy_from_slice(&data);
            }
            for which in 0..geometry.level().parity_count() {
                let coefficient = if which == 0 { 1 } else { q_coefficient(column) };
                let products: [u8; 256] = std::array::from_fn(|byte| mul(coefficient, byte as u8));
                let parity = &mut members[geometry.parity_slot(stripe, which)][base..base + rows];
                parity.iter_mut().zip(&data).for_each(|(parity, &byte)| *parity ^= products[byte as usize]);
            }
        }
    }
    members
}
