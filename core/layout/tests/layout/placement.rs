//! Where bytes lie, against a reference that deals them out one by one.

use crate::reference::{Content, Members, all_geometries, geometries, lay_out};
use cxlraid_layout::{Geometry, Level, Place};
use proptest::prelude::*;
use units::{ChunkBytes, MEMBER_COUNT_MAX};

/// Asserts that every byte the reference put somewhere is where the geometry says, and counts them.
fn assert_placed_as_in(reference: &Members, geometry: &Geometry) -> usize {
    let mut placed = 0;
    for (slot, member) in reference.iter().enumerate() {
        for (member_offset, content) in member.iter().enumerate() {
            let (expected_slot, expected_offset) = match *content {
                None => continue,
                Some(Content::Data { offset, copy }) => {
                    let place = geometry.locate(offset);
                    let slot = geometry.data_slot(place.stripe, place.column, copy);
                    (slot, geometry.member_offset(place.stripe) + place.within)
                }
                Some(Content::Parity { stripe, which, within }) => {
                    (geometry.parity_slot(stripe, which), geometry.member_offset(stripe) + within)
                }
            };
            assert_eq!((slot, member_offset as u64), (expected_slot, expected_offset), "{content:?} of {geometry:?}");
            placed += 1;
        }
    }
    placed
}

proptest! {
    // Two different contents cannot share a place, as a place of the reference holds one content;
    // so agreement on all of them, and their number, says that the geometry is injective and
    // complete.
    #[test]
    fn every_byte_lies_where_the_reference_puts_it(geometry in geometries(), file_bytes in 0u64..20_000) {
        let reference = lay_out(&geometry, file_bytes);
        let placed = assert_placed_as_in(&reference, &geometry);
        let data = file_bytes as usize * geometry.copy_count();
        let last = file_bytes % geometry.stripe_bytes();
        let unit = geometry.chunk().bytes();
        let parity_each = file_bytes / geometry.stripe_bytes() * unit + last.min(unit);
        prop_assert_eq!(placed, data + geometry.level().parity_count() * parity_each as usize);
    }

    #[test]
    fn member_bytes_is_what_the_longest_member_has(geometry in geometries(), file_bytes in 0u64..20_000) {
        let longest = lay_out(&geometry, file_bytes).iter().map(Vec::len).max();
        prop_assert_eq!(Some(geometry.member_bytes(file_bytes) as usize), longest);
    }

    #[test]
    fn member_bytes_is_monotone(geometry in geometries(), file_bytes in 0..u64::MAX) {
        prop_assert!(geometry.member_bytes(file_bytes) <= geometry.member_bytes(file_bytes + 1));
    }

    #[test]
    fn file_bytes_is_the_largest_file_that_fits(geometry in geometries(), member_bytes in 0u64..20_000) {
        let largest = geometry.file_bytes(member_bytes);
        prop_assert!(geometry.member_bytes(largest) <= member_bytes);
        prop_assert!(geometry.member_bytes(largest + 1) > member_bytes);
    }

    #[test]
    fn offset_of_is_the_inverse_of_locate(geometry in geometries(), offset in any::<u64>()) {
        let place = geometry.locate(offset);
        prop_assert!(place.column < geometry.data_columns());
        prop_assert_eq!(geometry.offset_of(place), offset);
    }

    #[test]
    fn locate_is_the_inverse_of_offset_of(geometry in geometries(), stripe in 0u64..1 << 40, seed in any::<u64>()) {
        let unit = geometry.stripe_bytes() / geometry.data_columns() as u64;
        let place = Place { stripe, column: (seed % geometry.data_columns() as u64) as usize, within: seed / 8 % unit };
        prop_assert_eq!(geometry.locate(geometry.offset_of(place)), place);
    }
}

#[test]
fn a_stripe_and_its_neighbours_are_on_every_member_once() {
    for geometry in all_geometries(MEMBER_COUNT_MAX).filter(|geometry| geometry.chunk() == ChunkBytes::MIN) {
        for stripe in [0, 1, 2, 31, 32, 33, 1 << 57] {
            let data = (0..geometry.data_columns())
                .flat_map(|column| (0..geometry.copy_count()).map(move |copy| (column, copy)))
                .map(|(column, copy)| geometry.data_slot(stripe, column, copy));
            let parity = (0..geometry.level().parity_count()).map(|which| geometry.parity_slot(stripe, which));
            let mut slots: Vec<_> = data.chain(parity).collect();
            slots.sort_unstable();
            assert!(slots.into_iter().eq(0..geometry.member_count()), "stripe {stripe} of {geometry:?}");
        }
    }
}

#[test]
fn the_largest_offsets_do_not_overflow() {
    const LARGEST: [u64; 5] = [1 << 62, (1 << 63) - 4096, (1 << 63) - 1, 1 << 63, u64::MAX];
    for geometry in all_geometries(MEMBER_COUNT_MAX) {
        for offset in LARGEST {
            let place = geometry.locate(offset);
            assert_eq!(geometry.offset_of(place), offset);
            let member_offset = geometry.member_offset(place.stripe);
            assert!(member_offset.checked_add(place.within).unwrap() <= offset);
            assert!(geometry.member_bytes(offset) <= offset);
            assert!(geometry.member_bytes(geometry.file_bytes(offset)) <= offset);
        }
    }
}

#[test]
fn lock_blocks_are_whole_stripes_of_at_least_64_kib() {
    for geometry in all_geometries(MEMBER_COUNT_MAX) {
        let (block, stripe) = (geometry.lock_block_bytes(), geometry.stripe_bytes());
        assert_eq!(block % stripe, 0);
        assert!(block >= 64 << 10 && block - stripe < 64 << 10, "{geometry:?}");
    }
}

#[test]
fn raid1_copies_are_the_file() {
    let geometry = Geometry::new(Level::Raid1, 3, ChunkBytes::MIN).unwrap();
    for offset in [0, 1, 65535, 65536, 1 << 40] {
        let place = geometry.locate(offset);
        assert_eq!(geometry.member_offset(place.stripe) + place.within, offset);
    }
}
