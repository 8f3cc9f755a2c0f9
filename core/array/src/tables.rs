//! The tables under a member's `.cxlraid`: whether they are there and are the array's, and the
//! marks in them that say when they were last used.
//!
//! The fault that marks exist for: one table of a member is put back from an older copy, and every
//! record in it looks right. Before the first change of each use of the array the tables are marked
//! with an event count, and only then the superblocks ask for that mark ([`Array::record_use`]); so
//! a crash in between leaves tables with a higher mark than is asked for, never with a lower one.

use crate::limited::write_fully;
use crate::member::{read_fully, read_fully_at};
use crate::regular::{NOT_A_FILE, open_regular};
use crate::superblock::open_new;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ffi::CStr;
use format::{Access, LANE_FILE_BYTES, Superblock, TABLE_HEADER_BYTES, TableError, TableHeader, TableKind, Uuid, Version};
use sys::rustix::fs::{AtFlags, OFlags, fdatasync, fstat, fsync, unlinkat};
use sys::{AsFd as _, OsError, OwnedFd, Result};

/// The tables that are marked: an older one of these says something wrong. An older copy of the
/// lanes costs needless resyncs at most, and an older log of names lacks records that other members
/// have.
const MARKED: [(TableKind, &CStr); 3] = [
    (TableKind::Inodes, format::INODES_FILE),
    (TableKind::Backings, format::BACKINGS_FILE),
    (TableKind::Changed, format::CHANGED_FILE),
];

/// Whether a table may be missing, or empty: an older program made the member without it, and
/// programs that start at once make it.
#[must_use]
pub const fn is_optional(kind: TableKind) -> bool {
    matches!(kind, TableKind::Names | TableKind::Backings | TableKind::Changed)
}

/// The tables of a member.
const TABLES: [(TableKind, &CStr); 4] = [
    (TableKind::Inodes, format::INODES_FILE),
    (TableKind::Lanes, format::LANES_FILE),
    (TableKind::Names, format::NAMES_FILE),
    (TableKind::Backings, format::BACKINGS_FILE),
];

/// The headers of a member's tables, compared with the superblock beside them.
pub(crate) struct Headers {
    /// True if the superblock is not that of the member in whose `.cxlraid` it lies: two of the
    /// tables there at least name one other member of the array, and none names the superblock's.
    ///
    /// The fault it exists for: the superblock of a member that is away, put in the place of
    /// another's. What lies there would be taken for the other member's share of each file. One
    /// table that was put there by hand says nothing against the rest.
    pub(crate) belong_to_another: bool,
    /// A table that a program with a newer format has written, and that format.
    pub(crate) newer: Option<(TableKind, Version)>,
}

impl Headers {
    /// Reads the headers of the tables in `meta`, beside which `superblock` lies.
    pub(crate) fn read(meta: &OwnedFd, superblock: &Superblock) -> Self {
        let (mut others, mut is_own, mut newer) = (Vec::new(), false, None);
        for (kind, name) in TABLES {
            let mut bytes = [0; TABLE_HEADER_BYTES];
            let length = open_regular(meta.as_fd(), name, OFlags::RDONLY).and_then(|file| read_fully(&file, &mut bytes));
            match TableHeader::decode(kind, &bytes[..length.unwrap_or(0)]) {
                Err(TableError::NewerVersion { found, .. }) => newer = newer.or(Some((kind, found))),
                Err(_) => {}
                Ok(header) if header.array_uuid != superblock.array_uuid || header.member_uuid == Uuid::NIL => {}
                Ok(header) if header.member_uuid == superblock.member_uuid => is_own = true,
                Ok(header) => others.push(header.member_uuid),
            }
        }
        let is_other =
            |uuid: Uuid| superblock.members.iter().enumerate().any(|(slot, entry)| slot != superblock.slot && entry.uuid == uuid);
        let is_one = others.len() >= 2 && others.iter().all(|&other| other == others[0]);
        Self { belong_to_another: !is_own && is_one && is_other(others[0]), newer }
    }
}

impl crate::Array {
    /// Puts right what is wrong in the headers of the members' tables and on which nothing depends
    /// ([`TableHeader::flaw`]). The table of changed files has a function of its own
    /// ([`Self::mend_changed`]).
    ///
    /// # Errors
    /// What the kernel says of a member.
    pub fn mend_headers(&self) -> Result<()> {
        // No start of a use marks a table from here on.
        self.before_change()?;
        for meta in self.in_use().iter().filter_map(|slot| self.members().get(slot)?.meta()) {
            for (kind, name) in TABLES {
                let file = match open_regular(meta.as_fd(), name, OFlags::RDWR) {
                    Err(OsError::NOENT) if is_optional(kind) => continue,
                    result => result?,
                };
                let mut bytes = [0; TABLE_HEADER_BYTES];
                let length = read_fully(&file, &mut bytes)?;
                if length == TABLE_HEADER_BYTES
                    && let Some(right) = TableHeader::mended(kind, &bytes)
                {
                    write_fully(&file, &right, 0)?;
                    fdatasync(&file)?;
                }
            }
        }
        Ok(())
    }
}

/// Whether the tables of a member are there and are this array's.
pub(crate) fn are_whole(meta: &OwnedFd, array: Uuid, use_count: u64) -> bool {
    TABLES.into_iter().all(|(kind, name)| flaw_of(meta, kind, name, array, use_count).is_none())
}

/// Says which table of a member is wrong, and what is wrong with it: ".cxlraid/inodes is missing".
/// None if all are there and are this array's.
pub(crate) fn flaw(meta: &OwnedFd, array: Uuid, use_count: u64) -> Option<String> {
    TABLES.into_iter().find_map(|(kind, name)| {
        let flaw = flaw_of(meta, kind, name, array, use_count)?;
        Some(format!(".cxlraid/{} {flaw}", name.to_string_lossy()))
    })
}

/// Says what is wrong with a table, in words that follow its name. None if it can be used.
fn flaw_of(meta: &OwnedFd, kind: TableKind, name: &CStr, array: Uuid, use_count: u64) -> Option<&'static str> {
    let file = match open_regular(meta.as_fd(), name, OFlags::RDONLY) {
        Err(OsError::NOENT) => return (!is_optional(kind)).then_some("is missing"),
        Err(OsError::LOOP) => return Some("is a symbolic link"),
        Err(NOT_A_FILE) => return Some("is not a regular file"),
        Err(OsError::ACCESS) => return Some("may not be opened by this user"),
        // This process or the machine lacks something now; the table does not.
        Err(OsError::MFILE | OsError::NFILE | OsError::NOMEM | OsError::INTR) => return None,
        Err(_) => return Some("cannot be opened"),
        Ok(file) => file,
    };
    let mut bytes = [0; TABLE_HEADER_BYTES];
    match read_fully(&file, &mut bytes) {
        Ok(0) => (!is_optional(kind)).then_some("is empty"),
        // The lanes have one length, which every write counts upon.
        Ok(_) if kind == TableKind::Lanes && !fstat(&file).is_ok_and(|stat| stat.st_size as u64 >= LANE_FILE_BYTES as u64) => {
            Some("is cut short")
        }
        Ok(length) if is_usable(kind, array, use_count, &bytes[..length]) => None,
        Ok(length) => {
            let is_mended =
                kind == TableKind::Inodes && is_cut(&bytes[..length]) && header_to_be(meta, array, use_count).is_some();
            (!is_mended).then(|| match TableHeader::decode(kind, &bytes[..length]) {
                Ok(header) if header.array_uuid != array => "is another array's",
                Ok(_) => "is an older copy",
                Err(TableError::NewerVersion { .. }) => "is of a newer version of cxlraid",
                Err(_) => "is damaged",
            })
        }
        Err(_) => Some("cannot be read"),
    }
}

/// Whether a file that begins with `header` is a table of the array, and not of an earlier use. One
/// of backing files that is not is emptied when it is opened, so it is none that is in the way,
/// unless a newer program made it.
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

/// Whether a file that begins with `header` is the inode table of this member, as it was in an
/// earlier use: somebody has put it back from a copy. What the other members have replaces it.
#[must_use]
pub fn is_outdated(array: Uuid, member: Uuid, use_count: u64, header: &[u8]) -> bool {
    TableHeader::decode(TableKind::Inodes, header).is_ok_and(|header| {
        header.array_uuid == array && [member, Uuid::NIL].contains(&header.member_uuid) && header.use_count < use_count
    })
}

/// Whether a member's tables are whole but for an inode table of an earlier use.
pub(crate) fn are_outdated(meta: &OwnedFd, array: Uuid, member: Uuid, use_count: u64) -> bool {
    let mut bytes = [0; TABLE_HEADER_BYTES];
    let length = open_regular(meta.as_fd(), format::INODES_FILE, OFlags::RDONLY).and_then(|file| read_fully(&file, &mut bytes));
    length.is_ok_and(|length| is_outdated(array, member, use_count, &bytes[..length])) && are_whole(meta, array, 0)
}

/// Marks a member's tables with `use_count`. Their marks must be `least` at least: what somebody
/// has put in the place of one meanwhile does not become a current table by this. Returns whether
/// all could be marked: a table of version 1 cannot, until a program that opens files has brought
/// it up to date.
///
/// # Errors
/// `IO` for a table that is damaged, of another array or too old, and what the kernel says.
pub(crate) fn mark(meta: &OwnedFd, array: Uuid, least: u64, use_count: u64) -> Result<bool> {
    for (kind, name) in MARKED {
        let file = match open_regular(meta.as_fd(), name, OFlags::RDWR) {
            Err(OsError::NOENT) if is_optional(kind) => continue,
            // It is not believed without the mark.
            Err(_) if kind == TableKind::Changed => continue,
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
            // The next start empties it, or it is not believed (`changed`).
            continue;
        }
        let next = TableHeader::next_mark(kind, &bytes[..length], use_count).ok().filter(|_| is_current);
        let (offset, mark) = next.ok_or(OsError::IO)?;
        write_fully(&file, &mark, offset)?;
        fdatasync(&file)?;
    }
    Ok(true)
}

/// Has the table of backing files of a new member name itself, as the table of a member that was
/// not copied does.
pub(crate) fn name_itself(meta: &OwnedFd) -> Result<()> {
    const GENERATION: u64 = 1;
    let file = open_regular(meta.as_fd(), format::BACKINGS_FILE, OFlags::RDWR)?;
    let own = fstat(&file)?.st_ino;
    let mut record = [0; format::BACKING_RECORD_BYTES];
    let mut put = |at: usize, word: u64| record[at..][..8].copy_from_slice(&word.to_le_bytes());
    put(format::BACKING_FILE_OFFSET, own);
    put(format::BACKING_GENERATION_OFFSET, GENERATION);
    put(format::BACKING_CHECK_OFFSET, format::backing_check(0, own, GENERATION));
    write_fully(&file, &record, format::backing_record_offset(0))?;
    fsync(&file)
}

/// Tells whether the table of backing files of a member is its own and names itself: that of a
/// member that was copied does not.
pub(crate) fn names_itself(meta: &OwnedFd, array: Uuid, member: Uuid) -> bool {
    let Ok(file) = open_regular(meta.as_fd(), format::BACKINGS_FILE, OFlags::RDONLY) else { return false };
    let (mut header, mut record) = ([0; TABLE_HEADER_BYTES], [0; format::BACKING_RECORD_BYTES]);
    let are_read = read_fully(&file, &mut header).is_ok_and(|length| length == header.len())
        && read_fully_at(&file, &mut record, format::backing_record_offset(0)).is_ok_and(|length| length == record.len());
    let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| record[at + index]));
    let (named, generation) = (word(format::BACKING_FILE_OFFSET), word(format::BACKING_GENERATION_OFFSET));
    are_read
        && TableHeader::decode(TableKind::Backings, &header)
            .is_ok_and(|header| header.is_checked && header.array_uuid == array && header.member_uuid == member)
        && word(format::BACKING_CHECK_OFFSET) == format::backing_check(0, named, generation)
        && fstat(&file).is_ok_and(|own| own.st_ino == named)
}

/// Gives a member's inode table a header of another version. No part of a header can be overwritten
/// such that each half of it is one, so the new one is durable in a file of its own before: a power
/// cut in between costs nothing ([`finish_header`]).
pub(crate) fn replace_header(meta: &OwnedFd, header: &TableHeader, access: Access) -> Result<()> {
    let bytes = header.encode();
    let beside = open_new(meta, format::INODES_HEADER_FILE, access)?;
    write_fully(&beside, &bytes, 0)?;
    fsync(&beside)?;
    fsync(meta)?;
    put_header(meta, &bytes)
}

/// Goes on where [`replace_header`] was cut short. The caller has the array alone.
///
/// # Errors
/// The kernel's error; then the table is what it was before the call.
pub(crate) fn finish_header(meta: &OwnedFd, array: Uuid, use_count: u64) -> Result<()> {
    let mut bytes = [0; TABLE_HEADER_BYTES];
    let beside = match open_regular(meta.as_fd(), format::INODES_HEADER_FILE, OFlags::RDONLY) {
        Err(OsError::NOENT) => return Ok(()),
        beside => beside?,
    };
    drop(beside);
    let length = read_fully(&open_regular(meta.as_fd(), format::INODES_FILE, OFlags::RDONLY)?, &mut bytes)?;
    match header_to_be(meta, array, use_count).filter(|_| is_cut(&bytes[..length])) {
        Some(header) => put_header(meta, &header),
        None => unlinkat(meta, format::INODES_HEADER_FILE, AtFlags::empty()),
    }
}

fn put_header(meta: &OwnedFd, bytes: &[u8]) -> Result<()> {
    let file = open_regular(meta.as_fd(), format::INODES_FILE, OFlags::RDWR)?;
    write_fully(&file, bytes, 0)?;
    fsync(&file)?;
    unlinkat(meta, format::INODES_HEADER_FILE, AtFlags::empty())
}

/// Whether a header may be what is left of one that was being overwritten by another.
fn is_cut(header: &[u8]) -> bool {
    matches!(TableHeader::decode(TableKind::Inodes, header), Err(TableError::BadChecksum { .. }))
}

/// The header that a member's inode table was to get, if there is one, whole, of the array, and of
/// no earlier use.
fn header_to_be(meta: &OwnedFd, array: Uuid, use_count: u64) -> Option<[u8; TABLE_HEADER_BYTES]> {
    let file = open_regular(meta.as_fd(), format::INODES_HEADER_FILE, OFlags::RDONLY).ok()?;
    let mut bytes = [0; TABLE_HEADER_BYTES];
    let is_whole = read_fully(&file, &mut bytes) == Ok(TABLE_HEADER_BYTES);
    let header = TableHeader::decode(TableKind::Inodes, &bytes).ok().filter(|header| header.is_checked && is_whole)?;
    (header.array_uuid == array && header.use_count >= use_count).then_some(bytes)
}
