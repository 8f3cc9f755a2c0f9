//! RAID 0: stripes without redundancy. Data column and member are the same number.

use super::LevelTable;
use crate::read::read_columns;
use crate::striper::{Done, Io};
use crate::walk::Pieces;
use crate::write::zero_stripes;
use layout::Level;
use medium::Medium;

pub(super) const fn table<M: Medium>() -> LevelTable<M> {
    LevelTable {
        level: Level::Raid0,
        members_min: 1,
        failures_max: |_| 0,
        read: read_columns::<M, 0>,
        write,
        zero: |io, offset, bytes| zero_stripes(io, offset, bytes, write),
        resync: |_, _, _| Ok(()),
        rebuild: |_, _, _, _| Ok(false),
        verify: |_, _, _| Ok(0),
    }
}

unsafe fn write<M: Medium>(io: &Io<'_, M>, offset: u64, mut src: *const u8, bytes: usize) -> Done {
    for piece in Pieces::new(io.geometry, offset, bytes as u64) {
        // SAFETY: the pieces make up the program's buffer.
        unsafe { io.store(piece.column, piece.member_offset(), src, piece.bytes)? };
        src = src.wrapping_add(piece.bytes);
    }
    Ok(())
}
