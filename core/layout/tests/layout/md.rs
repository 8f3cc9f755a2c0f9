//! Left-symmetric parity against Linux md: `raid5_compute_sector` in drivers/md/raid5.c,
//! `ALGORITHM_LEFT_SYMMETRIC`.

use crate::reference::all_geometries;
use cxlraid_layout::{Geometry, Level};
use units::{ChunkBytes, MEMBER_COUNT_MAX, Slot};

/// What md computes for one logical sector, in its own words.
struct MdSector {
    new_sector: u64,
    dd_idx: Slot,
    pd_idx: Slot,
    qd_idx: Option<Slot>,
}

fn raid5_compute_sector(r_sector: u64, raid_disks: u64, max_degraded: u64, sectors_per_chunk: u64) -> MdSector {
    let data_disks = raid_disks - max_degraded;
    let chunk_offset = r_sector % sectors_per_chunk;
    let chunk_number = r_sector / sectors_per_chunk;
    let stripe = chunk_number / data_disks;
    let dd_idx = chunk_number % data_disks;
    let (pd_idx, qd_idx, dd_idx) = if max_degraded == 1 {
        let pd_idx = data_disks - stripe % raid_disks;
        (pd_idx, None, (pd_idx + 1 + dd_idx) % raid_disks)
    } else {
        let pd_idx = raid_disks - 1 - stripe % raid_disks;
        (pd_idx, Some((pd_idx + 1) % raid_disks), (pd_idx + 2 + dd_idx) % raid_disks)
    };
    MdSector {
        new_sector: stripe * sectors_per_chunk + chunk_offset,
        dd_idx: dd_idx as Slot,
        pd_idx: pd_idx as Slot,
        qd_idx: qd_idx.map(|slot| slot as Slot),
    }
}

#[test]
fn raid5_and_raid6_lie_where_md_puts_them() {
    let rotating = |geometry: &Geometry| matches!(geometry.level(), Level::Raid5 | Level::Raid6);
    let md_chunk = |geometry: &Geometry| matches!(geometry.chunk().bytes(), 4096 | 65536);
    for geometry in all_geometries(MEMBER_COUNT_MAX).filter(|g| rotating(g) && md_chunk(g)) {
        let parity_count = geometry.level().parity_count();
        let stripes = 2 * geometry.member_count() as u64 + 1;
        for sector in (0..stripes * geometry.stripe_bytes() / 512).step_by(5) {
            let md =
                raid5_compute_sector(sector, geometry.member_count() as u64, parity_count as u64, geometry.chunk().bytes() / 512);
            let place = geometry.locate(sector * 512);
            assert_eq!(geometry.data_slot(place.stripe, place.column, 0), md.dd_idx);
            assert_eq!(geometry.member_offset(place.stripe) + place.within, md.new_sector * 512);
            assert_eq!(geometry.parity_slot(place.stripe, 0), md.pd_idx);
            assert_eq!((parity_count == 2).then(|| geometry.parity_slot(place.stripe, 1)), md.qd_idx);
        }
    }
}

#[test]
fn parity_starts_on_the_last_member_and_moves_down() {
    let raid5 = Geometry::new(Level::Raid5, 4, ChunkBytes::DEFAULT).unwrap();
    assert!((0..6).map(|stripe| raid5.parity_slot(stripe, 0)).eq([3, 2, 1, 0, 3, 2]));
    assert!((0..3).map(|column| raid5.data_slot(1, column, 0)).eq([3, 0, 1]));
    let raid6 = Geometry::new(Level::Raid6, 5, ChunkBytes::DEFAULT).unwrap();
    assert!((0..6).map(|stripe| raid6.parity_slot(stripe, 0)).eq([4, 3, 2, 1, 0, 4]));
    assert!((0..6).map(|stripe| raid6.parity_slot(stripe, 1)).eq([0, 4, 3, 2, 1, 0]));
    let raid4 = Geometry::new(Level::Raid4, 5, ChunkBytes::DEFAULT).unwrap();
    assert!((0..6).all(|stripe| raid4.parity_slot(stripe, 0) == 4));
}

#[test]
fn parity_and_first_columns_are_shared_out_evenly() {
    for geometry in all_geometries(MEMBER_COUNT_MAX).filter(|g| g.chunk() == ChunkBytes::MIN) {
        if !matches!(geometry.level(), Level::Raid5 | Level::Raid6) {
            continue;
        }
        let members = geometry.member_count();
        for which in 0..geometry.level().parity_count() {
            let mut held = vec![0; members];
            (0..7 * members as u64).for_each(|stripe| held[geometry.parity_slot(stripe, which)] += 1);
            assert_eq!(held, vec![7; members], "{geometry:?}");
        }
    }
}
