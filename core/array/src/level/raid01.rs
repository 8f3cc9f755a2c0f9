//! RAID 01: a mirror of two stripe sets. One failure is always borne, more if no column is hit in
//! both sets.

use super::LevelTable;
use crate::mirror;
use crate::write::zero_stripes;
use layout::Level;
use medium::Medium;

pub(super) const fn table<M: Medium>() -> LevelTable<M> {
    LevelTable {
        level: Level::Raid01,
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
