//! RAID 1: every member holds the file as it is, a plain file.

use super::LevelTable;
use crate::mirror;
use layout::Level;
use medium::Medium;

pub(super) const fn table<M: Medium>() -> LevelTable<M> {
    LevelTable {
        level: Level::Raid1,
        members_min: 1,
        failures_max: |member_count| member_count - 1,
        read: mirror::read,
        write: mirror::write,
        zero: |io, offset, bytes| io.zero_members(offset, bytes),
        resync: mirror::resync,
        rebuild: mirror::rebuild,
        verify: mirror::verify,
    }
}
