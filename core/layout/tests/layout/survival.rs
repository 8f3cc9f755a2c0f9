//! Which members may be lost, against a reference that looks whether every byte can still be
//! computed.

use crate::reference::{Content, Members, all_geometries, lay_out};
use cxlraid_layout::{Geometry, GeometryError, Level};
use units::{ChunkBytes, MEMBER_COUNT_MAX, MemberSet};

/// Enough stripes for parity to have been everywhere.
fn stripe_count(geometry: &Geometry) -> u64 {
    if geometry.level() == Level::Raid1 { 1 } else { geometry.member_count() as u64 }
}

/// Whether every byte of a file of some stripes can be read or solved for: per position within a
/// stripe, no more data bytes may be unreadable than parity bytes are left.
fn solvable(reference: &Members, geometry: &Geometry, missing: MemberSet) -> bool {
    let unit = if geometry.level() == Level::Raid1 { geometry.stripe_bytes() } else { geometry.chunk().bytes() };
    (0..stripe_count(geometry)).all(|stripe| {
        // One position stands for all: chunks are held or missing as a whole.
        let position = (stripe * unit) as usize;
        let left = || (0..geometry.member_count()).filter(|&slot| !missing.contains(slot));
        let mut readable: Vec<u64> = left()
            .filter_map(|slot| match reference[slot][position] {
                Some(Content::Data { offset, .. }) => Some(offset),
                _ => None,
            })
            .collect();
        readable.sort_unstable();
        readable.dedup();
        let parity_left = left().filter(|&slot| matches!(reference[slot][position], Some(Content::Parity { .. }))).count();
        geometry.data_columns() - readable.len() <= parity_left
    })
}

#[test]
fn survives_is_true_exactly_if_every_byte_can_be_computed() {
    for geometry in all_geometries(8).filter(|geometry| geometry.chunk() == ChunkBytes::MIN) {
        let reference = lay_out(&geometry, stripe_count(&geometry) * geometry.stripe_bytes());
        for bits in 0..1u32 << geometry.member_count() {
            let missing = MemberSet::from_bits(bits);
            assert_eq!(geometry.survives(missing), solvable(&reference, &geometry, missing), "{missing:?} out of {geometry:?}");
        }
    }
}

#[test]
fn failures_max_is_the_number_of_arbitrary_members_that_may_fail() {
    for geometry in all_geometries(10).filter(|geometry| geometry.chunk() == ChunkBytes::MIN) {
        let max = geometry.level().failures_max(geometry.member_count());
        let lost = |count| {
            (0..1u32 << geometry.member_count())
                .map(MemberSet::from_bits)
                .filter(move |missing| missing.len() == count)
                .any(|missing| !geometry.survives(missing))
        };
        assert!((0..=max).all(|count| !lost(count)) && lost(max + 1), "{geometry:?}");
    }
}

#[test]
fn members_that_do_not_fit_the_level_are_refused() {
    let chunk = ChunkBytes::DEFAULT;
    for level in Level::ALL {
        let min = level.members_min();
        assert!(Geometry::new(level, min, chunk).is_ok());
        assert!(Geometry::new(level, MEMBER_COUNT_MAX, chunk).is_ok());
        let too_few = GeometryError::TooFewMembers { level, given: min - 1, min };
        assert_eq!(Geometry::new(level, min - 1, chunk), Err(too_few));
        let too_many = GeometryError::TooManyMembers { given: MEMBER_COUNT_MAX + 1 };
        assert_eq!(Geometry::new(level, MEMBER_COUNT_MAX + 1, chunk), Err(too_many));
        let odd = Geometry::new(level, 5, chunk);
        assert_eq!(odd.is_err(), matches!(level, Level::Raid10 | Level::Raid01));
    }
}

#[test]
fn levels_are_read_as_they_are_written() {
    for level in Level::ALL {
        assert_eq!(Level::from_code(level.code()), Some(level));
        assert_eq!(level.to_string().parse(), Ok(level));
    }
    assert_eq!(Level::from_code(2), None);
    assert!("100".parse::<Level>().is_err());
}
