//! The tables under a member's `.cxlraid`: whether they are there and are the array's, and the marks in them that say when they were last used.
//!
//! The fault that marks exist for: one table of a member is put back from an older copy, and every record in it looks right. Before the first change of each use of the array the tables are marked with
//! an event count, and only then the superblocks ask for that mark ([`Array::record_use`]); so a crash in between leaves tables with a higher mark than is asked for, never with a lower one.

use crate::member::read_fully;
use crate::regular::open_regular;
use core::ffi::CStr;
use format::{LANE_FILE_BYTES, TABLE_HEADER_BYTES, TableError, TableHeader, TableKind, Uuid};
use sys::rustix::fs::{OFlags, fdatasync, fstat};
use sys::{AsFd as _, OsError, OwnedFd, Result};

/// The tables that are marked: an older one of these says something wrong. An older copy of the lanes costs needless resyncs at most, and an older log of names lacks records that other members have.
const MARKED: [(TableKind, &CStr); 2] = [(TableKind::Inodes, format::INODES_FILE), (TableKind::Backings, format::BACKINGS_FILE)];

/// Whether a table may be missing, or empty: an older program made the member without it, and programs that start at once make it.
#[must_use]
pub const fn is_optional(kind: TableKind) -> bool {
    matches!(kind, TableKind::Names | TableKind::Backings)
}

/// Whether the tables of a member are there and are this array's.
pub(crate) fn are_whole(meta: &OwnedFd, array: Uuid, use_count: u64) -> bool {
    let tables = [
        (TableKind::Inodes, format::INODES_FILE),
        (TableKind::Lanes, format::LANES_FILE),
        (TableKind::Names, format::NAMES_FILE),
        (TableKind::Backings, format::BACKINGS_FILE),
    ];
    tables.into_iter().all(|(kind, name)| is_whole(meta, kind, name, array, use_count))
}

fn is_whole(meta: &OwnedFd, kind: TableKind, name: &CStr, array: Uuid, use_count: u64) -> bool {
    let file = match open_regular(meta.as_fd(), name, OFlags::RDONLY) {
        Err(OsError::NOENT) => return is_optional(kind),
        Err(_) => return false,
        Ok(file) => file,
    };
    let mut bytes = [0; TABLE_HEADER_BYTES];
    match read_fully(&file, &mut bytes) {
        Ok(0) => is_optional(kind),
        // The lanes have one length, which every write counts upon.
        Ok(_) if kind == TableKind::Lanes && !fstat(&file).is_ok_and(|stat| stat.st_size as u64 >= LANE_FILE_BYTES as u64) => {
            false
        }
        Ok(length) => is_usable(kind, array, use_count, &bytes[..length]),
        Err(_) => false,
    }
}

/// Whether a file that begins with `header` is a table of the array, and not of an earlier use. One of backing files that is not is emptied when it is opened, so it is none that is in the way, unless a newer
/// program made it.
#[must_use]
pub fn is_usable(kind: TableKind, array: Uuid, use_count: u64, header: &[u8]) -> bool {
    match TableHeader::decode(kind, header) {
        Err(TableError::NewerVersion { .. }) => false,
        _ if kind == TableKind::Backings => true,
        header => {
            header.is_ok_and(|header| header.array_uuid == array && (kind != TableKind::Inodes || header.use_count >= use_count))
        }
    }
}

/// Marks a member's tables with `use_count`. Their marks must be `least` at least: what somebody has put in the place of one meanwhile does not become a current table by this. Returns whether all could be marked: a table of version 1
/// cannot, until a program that opens files has brought it up to date.
///
/// # Errors
/// `IO` for a table that is damaged, of another array or too old, and what the kernel says.
pub(crate) fn mark(meta: &OwnedFd, array: Uuid, least: u64, use_count: u64) -> Result<bool> {
    for (kind, name) in MARKED {
        let file = match open_regular(meta.as_fd(), name, OFlags::RDWR) {
            Err(OsError::NOENT) if is_optional(kind) => continue,
            file => file?,
        };
        let mut bytes = [0; TABLE_HEADER_BYTES];
        let length = read_fully(&file, &mut bytes)?;
        let header = TableHeader::decode(kind, &bytes[..length]).ok().filter(|header| header.array_uuid == array);
        if least == 0 && header.is_some_and(|header| !header.is_checked) {
            return Ok(false);
        }
        let is_current = header.is_some_and(|header| header.is_checked && header.use_count >= least);
        if !is_current && is_optional(kind) {
            // The next start empties it.
            continue;
        }
        let next = TableHeader::next_mark(kind, &bytes[..length], use_count).ok().filter(|_| is_current);
        let (offset, mark) = next.ok_or(OsError::IO)?;
        crate::superblock::write_fully(&file, &mark, offset)?;
        fdatasync(&file)?;
    }
    Ok(true)
}
