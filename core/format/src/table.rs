//! The first 4096 bytes of `.cxlraid/inodes`, `.cxlraid/lanes`, `.cxlraid/names`,
//! `.cxlraid/backings` and `.cxlraid/changed`: what kind of table follows, and which array and
//! member it belongs to.
//!
//! That part of the header is written once, when the file is created. Two marks follow, which say
//! in which use of the array the table was last in use. They are overwritten in turn, so that a
//! mark that is cut short leaves the one before it. A table with a lower mark than the superblocks
//! ask for was put back from an older copy.
//!
//! Invariant: magic, version and checksum stay where they are in every version to come.

use crate::checksum::crc32c;
use crate::lane::words_checksum;
use crate::{
    BACKING_RECORD_BYTES, CHANGED_RECORD_BYTES, INODE_RECORD_BYTES, LANE_RECORD_BYTES, NAME_RECORD_ALIGN, Uuid, Version,
};
use core::fmt;
use core::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a header; the first record follows.
pub const TABLE_HEADER_BYTES: usize = 4096;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Bytes {
    magic: [u8; 8],
    version_major: U16,
    version_minor: U16,
    record_bytes: U32,
    array_uuid: Uuid,
    member_uuid: Uuid,
    reserved_48: [u8; 16],
    first_use: U64,
    first_check: U64,
    reserved_80: [u8; 48],
    second_use: U64,
    second_check: U64,
    reserved_144: [u8; 3948],
    checksum: U32,
}

/// What the checksum covers since version 2.0: the marks behind it change.
const CONSTANT_BYTES: usize = offset_of!(Bytes, first_use);
/// Bytes of a mark.
pub const TABLE_MARK_BYTES: usize = 16;
/// A version 1 table: no marks, and records without checks.
const UNMARKED: u16 = 1;

const _: () = assert!(size_of::<Bytes>() == TABLE_HEADER_BYTES);
const _: () = assert!(CONSTANT_BYTES == 64 && offset_of!(Bytes, second_use) == 128);
const _: () = assert!(offset_of!(Bytes, array_uuid) == 16);
const _: () = assert!(offset_of!(Bytes, checksum) == 4092);

/// Which table a header begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableKind {
    /// `.cxlraid/inodes`.
    Inodes,
    /// `.cxlraid/lanes`.
    Lanes,
    /// `.cxlraid/names`.
    Names,
    /// `.cxlraid/backings`.
    Backings,
    /// `.cxlraid/changed`.
    Changed,
}

impl TableKind {
    const fn magic(self) -> [u8; 8] {
        match self {
            Self::Inodes => *b"CXLRINO\0",
            Self::Lanes => *b"CXLRLAN\0",
            Self::Names => *b"CXLRNAM\0",
            Self::Backings => *b"CXLRBAK\0",
            Self::Changed => *b"CXLRCHA\0",
        }
    }

    /// The version of this table that this program writes, and the highest it reads.
    #[must_use]
    pub const fn supported(self) -> Version {
        // 1.1 of the inode table: what waits for resync. 2.0: the member, the marks, and checks in
        // the records of inodes and backing files.
        Version { major: 2, minor: 0 }
    }

    /// Bytes of one record.
    #[must_use]
    pub const fn record_bytes(self) -> usize {
        match self {
            Self::Inodes => INODE_RECORD_BYTES,
            Self::Lanes => LANE_RECORD_BYTES,
            Self::Names => NAME_RECORD_ALIGN,
            Self::Backings => BACKING_RECORD_BYTES,
            Self::Changed => CHANGED_RECORD_BYTES,
        }
    }

    /// Bytes of one record in a table of a major version.
    const fn record_bytes_in(self, major: u16) -> usize {
        match (self, major) {
            (Self::Backings, UNMARKED) => BACKING_RECORD_BYTES / 2,
            _ => self.record_bytes(),
        }
    }
}

impl fmt::Display for TableKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inodes => "inode table",
            Self::Lanes => "lane file",
            Self::Names => "log of names",
            Self::Backings => "table of backing files",
            Self::Changed => "table of changed files",
        })
    }
}

/// The header of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableHeader {
    /// What the records are.
    pub kind: TableKind,
    /// The array the table belongs to.
    pub array_uuid: Uuid,
    /// The member it was made on. Nil in a table of version 1.
    pub member_uuid: Uuid,
    /// The mark: the use of the array in which the table was last used. 0 in a table of version 1,
    /// and in one that was not used yet.
    pub use_count: u64,
    /// Whether records have checks of everything in them: the table is none of version 1.
    pub is_checked: bool,
}

/// Why a table cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TableError {
    /// No magic, or the file is shorter than a header.
    #[error("not a cxlraid {kind} (no magic, or too short); restore it from another member")]
    NotATable {
        /// What was expected.
        kind: TableKind,
    },
    /// The magic is right, the checksum is not.
    #[error("the header of the {kind} is damaged (wrong checksum); restore it from another member")]
    BadChecksum {
        /// Which table.
        kind: TableKind,
    },
    /// Written by a program with a newer format.
    #[error("the {kind} has format version {found}, this program reads up to {supported}; use a newer cxlraid")]
    NewerVersion {
        /// Which table.
        kind: TableKind,
        /// On media.
        found: Version,
        /// The highest this program reads.
        supported: Version,
    },
    /// The checksum is right and a field makes no sense: written by a faulty program.
    #[error("the header of the {kind} is whole but its {field} makes no sense; report this")]
    Invalid {
        /// Which table.
        kind: TableKind,
        /// Which field.
        field: &'static str,
    },
    /// The table is another array's.
    #[error("the {kind} belongs to array {found}, not to {expected}; do not mix files of different arrays")]
    OtherArray {
        /// Which table.
        kind: TableKind,
        /// On media.
        found: Uuid,
        /// The array being assembled.
        expected: Uuid,
    },
}

impl TableHeader {
    /// The header of a new table.
    #[must_use]
    pub const fn new(kind: TableKind, array_uuid: Uuid, member_uuid: Uuid, use_count: u64) -> Self {
        Self { kind, array_uuid, member_uuid, use_count, is_checked: true }
    }

    /// The bytes of the header, in the version that this program writes.
    #[must_use]
    pub fn encode(&self) -> [u8; TABLE_HEADER_BYTES] {
        let version = self.kind.supported();
        let mut bytes = Bytes {
            magic: self.kind.magic(),
            version_major: version.major.into(),
            version_minor: version.minor.into(),
            record_bytes: (self.kind.record_bytes() as u32).into(),
            array_uuid: self.array_uuid,
            member_uuid: self.member_uuid,
            reserved_48: [0; 16],
            first_use: self.use_count.into(),
            first_check: U64::ZERO,
            reserved_80: [0; 48],
            second_use: U64::ZERO,
            second_check: U64::ZERO,
            reserved_144: [0; 3948],
            checksum: U32::ZERO,
        };
        bytes.first_check = bytes.mark_check(self.use_count).into();
        bytes.checksum = bytes.compute_checksum().into();
        zerocopy::transmute!(bytes)
    }

    /// The header of a file that should be a table of `kind`; `file` is all of it or at least its
    /// header.
    pub fn decode(kind: TableKind, file: &[u8]) -> Result<Self, TableError> {
        let bytes = Bytes::check(kind, file)?;
        let found = Version { major: bytes.version_major.get(), minor: bytes.version_minor.get() };
        let supported = kind.supported();
        if found.major > supported.major {
            return Err(TableError::NewerVersion { kind, found, supported });
        }
        if found.major == 0 {
            return Err(TableError::Invalid { kind, field: "version" });
        }
        if bytes.record_bytes.get() as usize != kind.record_bytes_in(found.major) {
            return Err(TableError::Invalid { kind, field: "record size" });
        }
        if found.major == UNMARKED {
            return Ok(Self { kind, array_uuid: bytes.array_uuid, member_uuid: Uuid::NIL, use_count: 0, is_checked: false });
        }
        let (use_count, _) = bytes.newest_mark().ok_or(TableError::BadChecksum { kind })?;
        Ok(Self { kind, array_uuid: bytes.array_uuid, member_uuid: bytes.member_uuid, use_count, is_checked: true })
    }

    /// Where the mark of a use goes, and its bytes: over the older of the two that the header has.
    /// `file` holds at least the header.
    pub fn next_mark(kind: TableKind, file: &[u8], use_count: u64) -> Result<(u64, [u8; TABLE_MARK_BYTES]), TableError> {
        let bytes = Bytes::check(kind, file)?;
        let (_, newest) = bytes.newest_mark().ok_or(TableError::BadChecksum { kind })?;
        let offset = if newest == 0 { offset_of!(Bytes, second_use) } else { offset_of!(Bytes, first_use) };
        let mark = [U64::new(use_count), U64::new(bytes.mark_check(use_count))];
        Ok((offset as u64, zerocopy::transmute!(mark)))
    }

    /// What in a header that can be used is not as this program leaves it: a mark that does not fit
    /// its check, or a reserved byte that is not 0. Nothing depends on it; a scrub tells of it.
    /// `file` holds at least the header. Headers of version 1 have no marks, and a checksum of
    /// everything.
    #[must_use]
    pub fn flaw(kind: TableKind, file: &[u8]) -> Option<&'static str> {
        let bytes = Bytes::check(kind, file).ok().filter(|bytes| bytes.version_major.get() != UNMARKED)?;
        let reserved = [&bytes.reserved_48[..], &bytes.reserved_80[..], &bytes.reserved_144[..]];
        if reserved.iter().any(|bytes| bytes.iter().any(|&byte| byte != 0)) {
            return Some("a reserved byte of its header is not 0");
        }
        let marks = [(bytes.first_use, bytes.first_check), (bytes.second_use, bytes.second_check)];
        let is_sound =
            |(count, check): (U64, U64)| check.get() == bytes.mark_check(count.get()) || (count.get(), check.get()) == (0, 0);
        (!marks.into_iter().all(is_sound)).then_some("a mark in its header does not fit its check")
    }

    /// A header in which nothing is wrong any more of what [`Self::flaw`] tells: reserved bytes are 0,
    /// and so is a mark that does not fit its check. None if nothing is wrong, or the header cannot be
    /// used. `file` holds at least the header.
    #[must_use]
    pub fn mended(kind: TableKind, file: &[u8]) -> Option<[u8; TABLE_HEADER_BYTES]> {
        Self::flaw(kind, file)?;
        let mut bytes = *Bytes::check(kind, file).ok()?;
        (bytes.reserved_48, bytes.reserved_80, bytes.reserved_144) = ([0; 16], [0; 48], [0; 3948]);
        // The checksum covers some of them.
        bytes.checksum = bytes.compute_checksum().into();
        if bytes.first_check.get() != bytes.mark_check(bytes.first_use.get()) {
            (bytes.first_use, bytes.first_check) = (U64::ZERO, U64::ZERO);
        }
        if bytes.second_check.get() != bytes.mark_check(bytes.second_use.get()) {
            (bytes.second_use, bytes.second_check) = (U64::ZERO, U64::ZERO);
        }
        bytes.newest_mark()?;
        Some(zerocopy::transmute!(bytes))
    }

    /// Fails if the table is not that of array `expected`.
    pub fn check_array(&self, expected: Uuid) -> Result<(), TableError> {
        if self.array_uuid == expected {
            return Ok(());
        }
        Err(TableError::OtherArray { kind: self.kind, found: self.array_uuid, expected })
    }
}

impl Bytes {
    /// The header, if magic and checksum are right.
    fn check(kind: TableKind, file: &[u8]) -> Result<&Self, TableError> {
        let (bytes, _) = Self::ref_from_prefix(file).map_err(|_| TableError::NotATable { kind })?;
        if bytes.magic != kind.magic() {
            return Err(TableError::NotATable { kind });
        }
        if bytes.checksum.get() != bytes.compute_checksum() {
            return Err(TableError::BadChecksum { kind });
        }
        Ok(bytes)
    }

    fn compute_checksum(&self) -> u32 {
        let covered = if self.version_major.get() == UNMARKED { offset_of!(Self, checksum) } else { CONSTANT_BYTES };
        crc32c(&[&self.as_bytes()[..covered]])
    }

    /// The highest use that a whole mark names, and which mark that is.
    fn newest_mark(&self) -> Option<(u64, usize)> {
        let marks = [(self.first_use, self.first_check), (self.second_use, self.second_check)];
        let whole = marks.into_iter().enumerate().filter(|(_, (count, check))| check.get() == self.mark_check(count.get()));
        whole.map(|(index, (count, _))| (count.get(), index)).max_by_key(|&(count, index)| (count, core::cmp::Reverse(index)))
    }

    /// The check of a mark of this table: that of another table's mark is another one.
    fn mark_check(&self, use_count: u64) -> u64 {
        let words = |uuid: Uuid| [0, 8].map(|at| u64::from_le_bytes(core::array::from_fn(|index| uuid.0[at + index])));
        let ([a, b], [c, d]) = (words(self.array_uuid), words(self.member_uuid));
        words_checksum([use_count, a, b, c, d, u64::from_le_bytes(self.magic), 0])
    }
}

#[cfg(test)]
mod tests {
    use super::Bytes;
    use crate::documented::assert_documented;

    /// Each table's page has a section "Header".
    macro_rules! assert_header_documented {
        ($page:literal) => {
            assert_documented!(
                $page,
                "Header",
                Bytes,
                [
                    magic,
                    version_major,
                    version_minor,
                    record_bytes,
                    array_uuid,
                    member_uuid,
                    reserved_48,
                    first_use,
                    first_check,
                    reserved_80,
                    second_use,
                    second_check,
                    reserved_144,
                    checksum
                ]
            )
        };
    }

    #[test]
    fn every_table_begins_as_documented() {
        assert_header_documented!("inodes.md");
        assert_header_documented!("names.md");
        assert_header_documented!("lanes.md");
        assert_header_documented!("backings.md");
        assert_header_documented!("changed.md");
    }
}
