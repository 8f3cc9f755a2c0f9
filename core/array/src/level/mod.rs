//! The levels. Each is one small file that states its fault tolerance as data and names its
//! operations.

mod raid0;
mod raid01;
mod raid1;
mod raid10;
mod raid4;
mod raid5;
mod raid6;

use crate::striper::{Done, Io, Stop};
use layout::Level;
use medium::Medium;
use units::MemberSet;

/// What a level promises and how it does it. All operations run inside a guard.
pub(crate) struct LevelTable<M> {
    /// The level this is.
    #[cfg_attr(not(test), expect(dead_code, reason = "the tests hold the tables to core/layout"))]
    pub(crate) level: Level,
    /// The fewest members it works with.
    #[cfg_attr(not(test), expect(dead_code, reason = "as above"))]
    pub(crate) members_min: usize,
    /// How many members, whichever they are, may be out.
    #[cfg_attr(not(test), expect(dead_code, reason = "as above"))]
    pub(crate) failures_max: fn(member_count: usize) -> usize,
    pub(crate) read: unsafe fn(&Io<'_, M>, offset: u64, dst: *mut u8, bytes: usize) -> Done,
    pub(crate) write: unsafe fn(&Io<'_, M>, offset: u64, src: *const u8, bytes: usize) -> Done,
    pub(crate) zero: fn(&Io<'_, M>, offset: u64, bytes: u64) -> Done,
    /// Makes redundancy fit the data.
    pub(crate) resync: fn(&Io<'_, M>, offset: u64, bytes: u64) -> Done,
    /// Computes whole stripes of members, in place, from the others; false if that cannot be done
    /// in place.
    pub(crate) rebuild: fn(&Io<'_, M>, lost: MemberSet, offset: u64, bytes: u64) -> Result<bool, Stop>,
    /// Counts bytes of redundancy that do not fit the data.
    pub(crate) verify: fn(&Io<'_, M>, offset: u64, bytes: u64) -> Result<u64, Stop>,
}

/// The table of a level.
#[inline(always)]
pub(crate) fn table<M: Medium>(level: Level) -> LevelTable<M> {
    match level {
        Level::Raid0 => raid0::table(),
        Level::Raid1 => raid1::table(),
        Level::Raid4 => raid4::table(),
        Level::Raid5 => raid5::table(),
        Level::Raid6 => raid6::table(),
        Level::Raid01 => raid01::table(),
        Level::Raid10 => raid10::table(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_promise_what_the_layout_says() {
        for level in Level::ALL {
            let table = table::<dax::Backing>(level);
            assert_eq!(table.level, level);
            assert_eq!(table.members_min, level.members_min());
            for member_count in [level.members_min(), 8, 32] {
                assert_eq!((table.failures_max)(member_count), level.failures_max(member_count));
            }
        }
    }
}
