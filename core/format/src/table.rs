//! The first 4096 bytes of `.cxlraid/inodes`, `.cxlraid/lanes`, `.cxlraid/names` and `.cxlraid/backings`: what follows, and whose it is.
//!
//! Written once, when the file is created, and never changed; so there is one copy. A damaged one is restored from another
//! member, where it is the same.
//!
//! Invariant: magic, version and checksum stay where they are in every version to come.

use crate::checksum::crc32c;
use crate::{BACKING_RECORD_BYTES, INODE_RECORD_BYTES, LANE_RECORD_BYTES, NAME_RECORD_ALIGN, Uuid, Version};
use core::fmt;
use core::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a header; the first record follows.
pub const TABLE_HEADER_BYTES: usize = 4096;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Bytes {
    magic: [u8; 8],
    version_major: U16,
    version_minor: U16,
    record_bytes: U32,
    array_uuid: Uuid,
    reserved_32: [u8; 4060],
    checksum: U32,
}

const _: () = assert!(size_of::<Bytes>() == TABLE_HEADER_BYTES);
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
}

impl TableKind {
    const fn magic(self) -> [u8; 8] {
        match self {
            Self::Inodes => *b"CXLRINO\0",
            Self::Lanes => *b"CXLRLAN\0",
            Self::Names => *b"CXLRNAM\0",
            Self::Backings => *b"CXLRBAK\0",
        }
    }

    /// The version of this table that this program writes, and the highest it reads.
    #[must_use]
    pub const fn supported(self) -> Version {
        match self {
            // 1.1: what waits for resync.
            Self::Inodes => Version { major: 1, minor: 1 },
            Self::Lanes | Self::Names | Self::Backings => Version { major: 1, minor: 0 },
        }
    }

    /// Bytes of one record.
    #[must_use]
    pub const fn record_bytes(self) -> usize {
        match self {
            Self::Inodes => INODE_RECORD_BYTES,
            Self::Lanes => LANE_RECORD_BYTES,
            Self::Names => NAME_RECORD_ALIGN,
            Self::Backings => BACKING_RECORD_BYTES,
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
        })
    }
}

/// How much of a table [`TableHeader::begins`] looks at.
pub const TABLE_BEGINNING_BYTES: usize = 32;

/// The header of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableHeader {
    /// What the records are.
    pub kind: TableKind,
    /// The array the table belongs to.
    pub array_uuid: Uuid,
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
    /// The bytes of the header.
    #[must_use]
    pub fn encode(&self) -> [u8; TABLE_HEADER_BYTES] {
        let version = self.kind.supported();
        let mut bytes = Bytes {
            magic: self.kind.magic(),
            version_major: version.major.into(),
            version_minor: version.minor.into(),
            record_bytes: (self.kind.record_bytes() as u32).into(),
            array_uuid: self.array_uuid,
            reserved_32: [0; 4060],
            checksum: U32::ZERO,
        };
        bytes.checksum = bytes.compute_checksum().into();
        zerocopy::transmute!(bytes)
    }

    /// Whether a file begins as a table of `kind` of an array does, in a version that this program reads: a quick look without the checksum, for every start.
    #[must_use]
    pub fn begins(kind: TableKind, array_uuid: Uuid, file: &[u8; TABLE_BEGINNING_BYTES]) -> bool {
        let major = u16::from_le_bytes([file[8], file[9]]);
        file[..8] == kind.magic() && major == kind.supported().major && file[16..] == array_uuid.0
    }

    /// The header of a file that should be a table of `kind`; `file` is all of it or at least its header.
    pub fn decode(kind: TableKind, file: &[u8]) -> Result<Self, TableError> {
        let (bytes, _) = Bytes::ref_from_prefix(file).map_err(|_| TableError::NotATable { kind })?;
        if bytes.magic != kind.magic() {
            return Err(TableError::NotATable { kind });
        }
        if bytes.checksum.get() != bytes.compute_checksum() {
            return Err(TableError::BadChecksum { kind });
        }
        let found = Version { major: bytes.version_major.get(), minor: bytes.version_minor.get() };
        let supported = kind.supported();
        if found.major > supported.major {
            return Err(TableError::NewerVersion { kind, found, supported });
        }
        if found.major == 0 {
            return Err(TableError::Invalid { kind, field: "version" });
        }
        if bytes.record_bytes.get() as usize != kind.record_bytes() {
            return Err(TableError::Invalid { kind, field: "record size" });
        }
        Ok(Self { kind, array_uuid: bytes.array_uuid })
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
    fn compute_checksum(&self) -> u32 {
        crc32c(&[&self.as_bytes()[..offset_of!(Self, checksum)]])
    }
}

#[cfg(test)]
mod tests {
    use super::Bytes;
    use crate::documented::assert_documented;

    #[test]
    fn the_inode_table_begins_as_documented() {
        assert_documented!(
            "inodes.md",
            "Header",
            Bytes,
            [magic, version_major, version_minor, record_bytes, array_uuid, reserved_32, checksum]
        );
    }

    #[test]
    fn the_log_of_names_begins_as_documented() {
        assert_documented!(
            "names.md",
            "Header",
            Bytes,
            [magic, version_major, version_minor, record_bytes, array_uuid, reserved_32, checksum]
        );
    }

    #[test]
    fn the_lanes_begin_as_documented() {
        assert_documented!(
            "lanes.md",
            "Header",
            Bytes,
            [magic, version_major, version_minor, record_bytes, array_uuid, reserved_32, checksum]
        );
    }

    #[test]
    fn the_table_of_backing_files_begins_as_documented() {
        assert_documented!(
            "backings.md",
            "Header",
            Bytes,
            [magic, version_major, version_minor, record_bytes, array_uuid, reserved_32, checksum]
        );
    }
}
