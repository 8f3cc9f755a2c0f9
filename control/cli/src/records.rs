//! The inode table of a member, read as a file: nothing is attached or changed.

use crate::inspect;
use format::{INODE_RECORD_BYTES, InodeRecord, inode_record_offset};
use std::{
    os::{fd::AsFd as _, unix::fs::FileExt as _},
    path::Path,
};
use sys::rustix::fs::{SeekFrom, seek};

/// Calls `visit` with the records of all files, by the inode table under a member's `.cxlraid`.
/// None if this user may not read it.
pub(crate) fn each(meta: &Path, mut visit: impl FnMut(&InodeRecord)) -> Option<()> {
    let table = inspect::open_regular(&meta.join("inodes")).ok()?;
    let mut record = [0; INODE_RECORD_BYTES];
    let mut number = 1;
    // Only what the file has data for, whatever its length.
    while let Ok(data) = seek(table.as_fd(), SeekFrom::Data(inode_record_offset(number))) {
        let end = seek(table.as_fd(), SeekFrom::Hole(data)).ok()?;
        number = number.max((data.saturating_sub(inode_record_offset(1))) / INODE_RECORD_BYTES as u64 + 1);
        while inode_record_offset(number + 1) <= end {
            table.read_exact_at(&mut record, inode_record_offset(number)).ok()?;
            if let Ok(Some(found)) = InodeRecord::decode(number, &record) {
                visit(&found);
            }
            number += 1;
        }
        // A record that the data end in the middle of.
        number += 1;
    }
    Some(())
}
