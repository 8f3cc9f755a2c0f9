//! `.cxlraid/names`: changes of names, each noted before the first member is changed, so that a
//! crash leaves all members before or after it.
//!
//! A ring of [`NAMES_RING_BYTES`] in which records lie one after the other, each at a multiple of
//! 64 bytes and in one piece: a record that would not fit before the end begins at 0. Records are
//! numbered; the newest whole one is the end of the log, and what the ring still holds before it
//! without a gap can be done again.
//!
//! Invariants: a record is found by its checksum alone. Paths hold no NUL, so no part of a path can
//! be taken for the beginning of a record, which has some.

use crate::Attribute;
use crate::checksum::crc32c;
use core::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the ring, behind the header of the file.
pub const NAMES_RING_BYTES: usize = 1 << 20;
/// Bytes of the file.
pub const NAMES_FILE_BYTES: usize = crate::TABLE_HEADER_BYTES + NAMES_RING_BYTES;
/// Records begin at multiples of this.
pub const NAME_RECORD_ALIGN: usize = 64;
/// The most bytes of a record: two of the longest paths.
pub const NAME_RECORD_BYTES_MAX: usize = NAME_RECORD_ALIGN + 2 * PATH_BYTES_MAX;
/// The longest path in a record (PATH_MAX without its NUL, rounded up).
pub const PATH_BYTES_MAX: usize = 4096;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Bytes {
    sequence: U64,
    inode: U64,
    generation: U64,
    replaced_inode: U64,
    replaced_generation: U64,
    kind: u8,
    flags: u8,
    path_bytes: U16,
    to_bytes: U16,
    reserved_46: [u8; 14],
    checksum: U32,
}

const _: () = assert!(size_of::<Bytes>() == NAME_RECORD_ALIGN);
const _: () = assert!(offset_of!(Bytes, checksum) == 60);

const FLAG_VOID: u8 = 1;
const FLAG_EXCHANGE: u8 = 2;

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum NameKind {
    /// A file with this attribute, or a directory, symlink or special file, gets the name `path`.
    Make = 1,
    /// The name `path` of a file or of something else than a directory goes.
    Unlink = 2,
    /// The directory `path` goes.
    RemoveDirectory = 3,
    /// `path` becomes `to`; what had that name is replaced, or gets the other.
    Rename = 4,
    /// What is at `path` gets the name `to` as well. Without `path`: an open file without a name.
    Link = 5,
    /// Mode, owner, times or extended attributes of `path` change.
    Attributes = 6,
}

impl NameKind {
    /// The number stored on media.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The kind stored as `code`.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Make,
            2 => Self::Unlink,
            3 => Self::RemoveDirectory,
            4 => Self::Rename,
            5 => Self::Link,
            6 => Self::Attributes,
            _ => return None,
        })
    }
}

/// One change of names. Paths are logical: absolute as the program sees them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NameRecord<'a> {
    /// Its number; each record's is one higher than that of the one before.
    pub sequence: u64,
    /// What is done.
    pub kind: NameKind,
    /// Whether it was not done after all: a member refused it, and it was undone.
    pub void: bool,
    /// Whether a renaming exchanges two names.
    pub exchange: bool,
    /// What is at `path`, if it is a file.
    pub file: Option<Attribute>,
    /// The file whose last name goes; in an exchange the file at `to`.
    pub replaced: Option<Attribute>,
    /// The name.
    pub path: &'a [u8],
    /// The other name; empty if there is none.
    pub to: &'a [u8],
}

impl<'a> NameRecord<'a> {
    /// How much of the ring it takes.
    #[must_use]
    pub const fn ring_bytes(&self) -> usize {
        (NAME_RECORD_ALIGN + self.path.len() + self.to.len()).next_multiple_of(NAME_RECORD_ALIGN)
    }

    /// Whether nothing on a member tells if this change is made there: an exchange of two things of
    /// which neither is a file, and so neither has an attribute.
    #[must_use]
    pub const fn leaves_no_trace(&self) -> bool {
        self.exchange && self.file.is_none() && self.replaced.is_none()
    }

    /// The first 64 bytes of the record; `path` and `to` follow, then nothing that matters. Paths
    /// are at most [`PATH_BYTES_MAX`] long.
    #[must_use]
    pub fn encode_head(&self) -> [u8; NAME_RECORD_ALIGN] {
        let number = |attribute: Option<Attribute>| attribute.map_or((0, 0), |attribute| (attribute.inode, attribute.generation));
        let ((inode, generation), (replaced_inode, replaced_generation)) = (number(self.file), number(self.replaced));
        let mut bytes = Bytes {
            sequence: self.sequence.into(),
            inode: inode.into(),
            generation: generation.into(),
            replaced_inode: replaced_inode.into(),
            replaced_generation: replaced_generation.into(),
            kind: self.kind.code(),
            flags: if self.void { FLAG_VOID } else { 0 } | if self.exchange { FLAG_EXCHANGE } else { 0 },
            path_bytes: (self.path.len() as u16).into(),
            to_bytes: (self.to.len() as u16).into(),
            reserved_46: [0; 14],
            checksum: U32::ZERO,
        };
        bytes.checksum = crc32c(&[&bytes.as_bytes()[..offset_of!(Bytes, checksum)], self.path, self.to]).into();
        zerocopy::transmute!(bytes)
    }

    /// The record that begins with `bytes`; None if there is none, or not a whole one.
    #[must_use]
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (head, rest) = Bytes::ref_from_prefix(bytes).ok()?;
        let kind = NameKind::from_code(head.kind)?;
        let (path_bytes, to_bytes) = (usize::from(head.path_bytes.get()), usize::from(head.to_bytes.get()));
        if path_bytes > PATH_BYTES_MAX || to_bytes > PATH_BYTES_MAX {
            return None;
        }
        let path = rest.get(..path_bytes)?;
        let to = rest.get(path_bytes..path_bytes + to_bytes)?;
        if head.checksum.get() != crc32c(&[&head.as_bytes()[..offset_of!(Bytes, checksum)], path, to]) {
            return None;
        }
        let attribute = |inode: U64, generation: U64| {
            let (inode, generation) = (inode.get(), generation.get());
            (inode != 0).then_some(Attribute { inode, generation })
        };
        Some(Self {
            sequence: head.sequence.get(),
            kind,
            void: head.flags & FLAG_VOID != 0,
            exchange: head.flags & FLAG_EXCHANGE != 0,
            file: attribute(head.inode, head.generation),
            replaced: attribute(head.replaced_inode, head.replaced_generation),
            path,
            to,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documented::assert_documented;

    #[test]
    fn a_record_is_as_documented() {
        assert_documented!(
            "names.md",
            "Record",
            Bytes,
            [
                sequence,
                inode,
                generation,
                replaced_inode,
                replaced_generation,
                kind,
                flags,
                path_bytes,
                to_bytes,
                reserved_46,
                checksum
            ]
        );
    }

    #[test]
    fn a_record_is_read_as_written_and_any_change_of_it_is_found() {
        let file = Some(Attribute { inode: 7, generation: 3 });
        let record = NameRecord {
            sequence: 12,
            kind: NameKind::Rename,
            void: false,
            exchange: true,
            file,
            replaced: None,
            path: b"/data/a",
            to: b"/data/b/c",
        };
        let mut bytes = [&record.encode_head()[..], record.path, record.to].concat();
        assert_eq!(NameRecord::decode(&bytes), Some(record));
        for at in 0..bytes.len() {
            bytes[at] ^= 4;
            assert_eq!(NameRecord::decode(&bytes), None, "byte {at}");
            bytes[at] ^= 4;
        }
        assert_eq!(NameRecord::decode(&bytes[..bytes.len() - 1]), None);
    }
}
