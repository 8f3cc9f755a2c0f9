//! Whether a member has the array's tables under `.cxlraid`, as far as their beginnings tell.

use crate::member::read_fully;
use crate::regular::open_regular;
use core::ffi::CStr;
use format::{LANE_FILE_BYTES, TABLE_BEGINNING_BYTES, TableHeader, TableKind, Uuid};
use sys::rustix::fs::{OFlags, fstat};
use sys::{AsFd as _, OsError, OwnedFd};

/// Whether a table may be missing, or empty: an older program made the member without it, and programs that start at once make it.
#[must_use]
pub const fn is_optional(kind: TableKind) -> bool {
    matches!(kind, TableKind::Names | TableKind::Backings)
}

/// Whether the tables of a member are there and are this array's.
pub(crate) fn are_whole(meta: &OwnedFd, array: Uuid) -> bool {
    let tables = [
        (TableKind::Inodes, format::INODES_FILE),
        (TableKind::Lanes, format::LANES_FILE),
        (TableKind::Names, format::NAMES_FILE),
        (TableKind::Backings, format::BACKINGS_FILE),
    ];
    tables.into_iter().all(|(kind, name)| is_whole(meta, kind, name, array))
}

fn is_whole(meta: &OwnedFd, kind: TableKind, name: &CStr, array: Uuid) -> bool {
    let file = match open_regular(meta.as_fd(), name, OFlags::RDONLY) {
        Err(OsError::NOENT) => return is_optional(kind),
        Err(_) => return false,
        Ok(file) => file,
    };
    let mut bytes = [0; TABLE_BEGINNING_BYTES];
    match read_fully(&file, &mut bytes) {
        Ok(0) => is_optional(kind),
        // The lanes have one length, which every write counts upon.
        Ok(_) if kind == TableKind::Lanes && !fstat(&file).is_ok_and(|stat| stat.st_size as u64 >= LANE_FILE_BYTES as u64) => {
            false
        }
        Ok(_) => TableHeader::begins(kind, array, &bytes),
        Err(_) => false,
    }
}
