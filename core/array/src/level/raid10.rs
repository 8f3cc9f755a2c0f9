//! RAID 10: a stripe of mirrored pairs. One failure is always borne, more if no pair is hit twice.

use super::LevelTable;
use crate::mirror;
use crate::write::zero_stripes;
use layout::Level;
use medium::Medium;

pub(super) const fn table<M: Medium>() -> LevelTable<M> {
    LevelTable {
        level: Level::Raid10,
        members_min: 4,
        failures_max: |_| 1,
        read: mirror::read,
        write: mirror::write,
        zero: |io, offset, bytes| zero_stripes(io, offset, bytes, mirror::write),
        resync: mirror::resync,
        rebuild: mirror::rebuild,
        verify: mirror::verify,
    }
}
