//! Whether the array can be changed for good without some members while others are being rebuilt.
//!
//! What is changed without a member makes it stale, and its bytes are given up. A member that is
//! being rebuilt may still need these bytes: the inode tables say which files wait. How a member
//! stands (`Rebuilding`) does not say it, since that lasts until a command finds that nothing waits
//! any more.

use crate::member::{Member, read_fully_at};
use crate::regular::open_regular;
use alloc::vec;
use format::{INODE_RECORD_BYTES, INODES_FILE, InodeRecord, inode_record_offset};
use layout::Geometry;
use sys::rustix::fs::OFlags;
use sys::{AsFd as _, OsError, Result};
use units::MemberSet;

/// Records that are read at once.
const RUN_COUNT: usize = 1024;

/// Whether the array can be changed without the members in `out`: the others are enough, and no
/// file waits on a member in `rebuilding` for bytes that only these can give.
pub(crate) fn is_enough(geometry: &Geometry, members: &[Member], out: MemberSet, rebuilding: MemberSet) -> bool {
    geometry.survives(out.union(rebuilding)) || geometry.survives(out) && !some_file_needs(members, out)
}

/// Whether some file cannot be given without the members in `out`, by the inode tables of the
/// others. What cannot be read may be such a file.
fn some_file_needs(members: &[Member], out: MemberSet) -> bool {
    let mut others = members.iter().filter(|member| !out.contains(member.slot));
    others.any(|member| member.meta().is_none_or(|_| some_record_needs(member, out).unwrap_or(true)))
}

fn some_record_needs(member: &Member, out: MemberSet) -> Result<bool> {
    let table = open_regular(member.meta().ok_or(OsError::NODEV)?.as_fd(), INODES_FILE, OFlags::RDONLY)?;
    let mut bytes = vec![0; RUN_COUNT * INODE_RECORD_BYTES];
    let mut number = 1;
    loop {
        let length = read_fully_at(&table, &mut bytes, inode_record_offset(number))?;
        for record in bytes[..length].as_chunks().0 {
            // A record that fits no check says nothing of what waits.
            let Ok(record) = InodeRecord::decode(number, record) else { return Ok(true) };
            let needs = |record: InodeRecord| {
                let lost = record.resync.map_or(MemberSet::EMPTY, |resync| resync.lost);
                record.size > 0 && !lost.is_empty() && !record.geometry().survives(out.union(lost))
            };
            if record.is_some_and(needs) {
                return Ok(true);
            }
            number += 1;
        }
        if length < bytes.len() {
            return Ok(false);
        }
    }
}
