//! The table of backing files, `.cxlraid/backings`: its record of 32 bytes for each inode says
//! which backing file belongs to the inode on this member. The table differs from member to member.
//!
//! The attribute of a backing file says to which inode it belongs, and the owner of the file can
//! write another file's attribute on it. Only the array's own processes write this table. A backing
//! file belongs to an inode if the attribute names the inode and the inode's record names the file.
//!
//! Invariants: record 0 names the table itself, by the inode number that the table has in the
//! member's file system. If the table has another inode number, the member was copied file by file:
//! all inode numbers have changed, and no record is valid. A record with another generation than
//! the file's says nothing about the file. A record that does not fit its check is not believed.

use crate::lane::words_checksum;
use core::mem::{offset_of, size_of};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of one record.
pub const BACKING_RECORD_BYTES: usize = 32;
/// Offset of the backing file's inode number (u64) within a record.
pub const BACKING_FILE_OFFSET: usize = offset_of!(Bytes, file);
/// Offset of the inode's generation (u64) within a record. The generation is stored after the other
/// fields.
pub const BACKING_GENERATION_OFFSET: usize = offset_of!(Bytes, generation);
/// Offset of the record's check (u64) within a record.
pub const BACKING_CHECK_OFFSET: usize = offset_of!(Bytes, check);

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Bytes {
    file: U64,
    generation: U64,
    check: U64,
    reserved_24: [u8; 8],
}

const _: () = assert!(size_of::<Bytes>() == BACKING_RECORD_BYTES);

/// The check of the record of `inode` that names backing file `file` (an inode number of the
/// member's file system).
#[must_use]
pub fn backing_check(inode: u64, file: u64, generation: u64) -> u64 {
    words_checksum([inode, file, generation, 0, 0, 0, 0])
}

/// Whether the record of `inode` fits its check or is all zeros (no backing file). Nothing in any
/// other record is believed.
#[must_use]
pub fn is_sound_backing(inode: u64, record: &[u8; BACKING_RECORD_BYTES]) -> bool {
    let bytes: &Bytes = zerocopy::transmute_ref!(record);
    let fits = bytes.check.get() == backing_check(inode, bytes.file.get(), bytes.generation.get());
    record.iter().all(|&byte| byte == 0) || fits && bytes.reserved_24 == [0; 8]
}

/// The byte offset of the record of `inode` (0 for the table itself, to [`crate::INODE_COUNT_MAX`])
/// within the file.
#[must_use]
pub const fn backing_record_offset(inode: u64) -> u64 {
    crate::TABLE_HEADER_BYTES as u64 + inode * BACKING_RECORD_BYTES as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documented::assert_documented;

    #[test]
    fn a_record_is_as_documented() {
        assert_documented!("backings.md", "Record", Bytes, [file, generation, check, reserved_24]);
    }

    #[test]
    fn any_flipped_bit_of_a_record_is_found() {
        let words = [1234, 5, backing_check(7, 1234, 5), 0u64];
        let whole: [u8; BACKING_RECORD_BYTES] = zerocopy::transmute!(words.map(U64::new));
        for record in [whole, [0; BACKING_RECORD_BYTES]] {
            assert!(is_sound_backing(7, &record));
            for bit in 0..8 * BACKING_RECORD_BYTES {
                let mut flipped = record;
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(!is_sound_backing(7, &flipped), "bit {bit}");
            }
        }
    }
}
