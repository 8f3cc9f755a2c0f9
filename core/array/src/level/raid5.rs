//! RAID 5: stripes, P on a member that changes from stripe to stripe.

use super::LevelTable;
use crate::read::read_columns;
use crate::rebuild::rebuild_stripes;
use crate::resync::{resync_stripes, verify_stripes};
use crate::write::{write_stripes, zero_stripes};
use layout::Level;
use medium::Medium;

pub(super) const fn table<M: Medium>() -> LevelTable<M> {
    LevelTable {
        level: Level::Raid5,
        members_min: 3,
        failures_max: |_| 1,
        read: read_columns::<M, 1>,
        write: write_stripes::<M, 1>,
        zero: |io, offset, bytes| zero_stripes(io, offset, bytes, write_stripes::<M, 1>),
        resync: resync_stripes::<M, 1>,
        rebuild: rebuild_stripes::<M, 1>,
        verify: verify_stripes::<M, 1>,
    }
}
