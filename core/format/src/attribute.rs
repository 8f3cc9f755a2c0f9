//! The extended attribute `user.cxlraid` of each backing file: which inode it belongs to.
//!
//! It exists against two faults: a backing file that was put into a member by hand or restored from
//! a backup, and an inode number that was used again while a member was out. In both the attribute
//! is absent or its generation is not the record's.
//!
//! Invariant: written when the file is created, after its inode record is in use, and never
//! changed. So an attribute never refers to a record that was not there; a crash in between leaves
//! a record that no file refers to.

use crate::checksum::crc32c;
use core::ffi::CStr;
use core::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The attribute's name.
pub const ATTRIBUTE_NAME: &CStr = c"user.cxlraid";
/// Bytes of the attribute's value.
pub const ATTRIBUTE_BYTES: usize = 24;

const VERSION: u16 = 1;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Bytes {
    version: U16,
    reserved_2: [u8; 2],
    inode: U64,
    generation: U64,
    checksum: U32,
}

const _: () = assert!(size_of::<Bytes>() == ATTRIBUTE_BYTES);
const _: () = assert!(offset_of!(Bytes, checksum) == 20);

/// The value of the attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attribute {
    /// The file's inode number, from 1 on.
    pub inode: u64,
    /// The generation its record has.
    pub generation: u64,
}

/// Why the attribute cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AttributeError {
    /// Not 24 bytes.
    #[error(
        "the attribute user.cxlraid has {bytes} bytes instead of {ATTRIBUTE_BYTES}; adopt the file, or restore it by a scrub"
    )]
    Length {
        /// Bytes found.
        bytes: usize,
    },
    /// The checksum is wrong.
    #[error("the attribute user.cxlraid is damaged (wrong checksum); scrub restores it from another member")]
    BadChecksum,
    /// Written by a program with a newer format.
    #[error("the attribute user.cxlraid has format version {found}, this program reads {VERSION}; use a newer cxlraid")]
    NewerVersion {
        /// On media.
        found: u16,
    },
    /// The checksum is right and a field makes no sense: written by a faulty program.
    #[error("the attribute user.cxlraid is whole but its {field} makes no sense; report this")]
    Invalid {
        /// Which field.
        field: &'static str,
    },
}

impl Attribute {
    /// The bytes of the attribute.
    #[must_use]
    pub fn encode(&self) -> [u8; ATTRIBUTE_BYTES] {
        let mut bytes = Bytes {
            version: VERSION.into(),
            reserved_2: [0; 2],
            inode: self.inode.into(),
            generation: self.generation.into(),
            checksum: U32::ZERO,
        };
        bytes.checksum = bytes.compute_checksum().into();
        zerocopy::transmute!(bytes)
    }

    /// The meaning of the attribute's bytes.
    pub fn decode(value: &[u8]) -> Result<Self, AttributeError> {
        let bytes = Bytes::ref_from_bytes(value).map_err(|_| AttributeError::Length { bytes: value.len() })?;
        if bytes.checksum.get() != bytes.compute_checksum() {
            return Err(AttributeError::BadChecksum);
        }
        match bytes.version.get() {
            VERSION => {}
            0 => return Err(AttributeError::Invalid { field: "version" }),
            found => return Err(AttributeError::NewerVersion { found }),
        }
        if bytes.inode.get() == 0 {
            return Err(AttributeError::Invalid { field: "inode number" });
        }
        Ok(Self { inode: bytes.inode.get(), generation: bytes.generation.get() })
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
    fn the_attribute_is_as_documented() {
        assert_documented!("attribute.md", "", Bytes, [version, reserved_2, inode, generation, checksum]);
    }
}
