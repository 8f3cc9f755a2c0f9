//! RAID 6: stripes, P and Q on two members that change from stripe to stripe.

use super::LevelTable;
use crate::read::read_columns;
use crate::rebuild::rebuild_stripes;
use crate::resync::{resync_stripes, verify_stripes};
use crate::write::{write_stripes, zero_stripes};
use layout::Level;
use medium::Medium;

pub(super) const fn table<M: Medium>() -> LevelTable<M> {
    LevelTable {
        level: Level::Raid6,
        members_min: 4,
        failures_max: |_| 2,
        read: read_columns::<M, 2>,
        write: write_stripes::<M, 2>,
        zero: |io, offset, bytes| zero_stripes(io, offset, bytes, write_stripes::<M, 2>),
        resync: resync_stripes::<M, 2>,
        rebuild: rebuild_stripes::<M, 2>,
        verify: verify_stripes::<M, 2>,
    }
}
