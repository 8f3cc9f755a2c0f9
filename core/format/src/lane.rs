//! `.cxlraid/lanes`: what each thread is about to change, so that a crash costs the resync of a few
//! stripes.
//!
//! A lane is one cache line on every in-sync member, owned by one thread at a time. A record is
//! stored and fenced before the first byte it announces, and stays until the lane's next use: a
//! record whose change was long complete costs one needless resync. When a record is stored, the
//! change that the lane announced before is complete and fenced; therefore a torn record announces
//! nothing, on the member where it is torn.
//!
//! The checksum is on the path of every write of the program, where a table-driven CRC-32C of 56
//! bytes (100 to 150 ns) would cost more than the store and its fence; this takes about 4 ns. It
//! only has to tell a torn record from a whole one. Each of the seven words goes through a
//! bijection of its own (xor, odd multiplication, xor-shift, rotation) and the results are added: a
//! change within one word is always found, and a mixture of old and new words with all but a chance
//! of 2^-64. The seven chains do not depend on each other, so the processor runs them side by side.
//! The rotations are different so that changes of the highest bits of two words, which a
//! multiplication does not spread, cannot cancel.
//!
//! Invariant: an all-zero record, as in a file just created, is a clean one.

use core::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Lanes in the file: the most threads that can write at the same time.
pub const LANE_COUNT: usize = 1024;
/// Bytes of one record.
pub const LANE_RECORD_BYTES: usize = 64;
/// Bytes of the file.
pub const LANE_FILE_BYTES: usize = crate::TABLE_HEADER_BYTES + LANE_COUNT * LANE_RECORD_BYTES;

const CHECKED_WORDS: usize = 7;
/// The initial state of SHA-512: constants that nobody chose.
const CONSTANTS: [u64; CHECKED_WORDS] = [
    0x6a09_e667_f3bc_c908,
    0xbb67_ae85_84ca_a73b,
    0x3c6e_f372_fe94_f82b,
    0xa54f_f53a_5f1d_36f1,
    0x510e_527f_ade6_82d1,
    0x9b05_688c_2b3e_6c1f,
    0x1f83_d9ab_fb41_bd6b,
];

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Bytes {
    inode: U64,
    generation: U64,
    offset: U64,
    length: U64,
    sequence: U64,
    kind: u8,
    reserved_41: u8,
    owner: U16,
    reserved_44: [u8; 4],
    reserved_48: [u8; 8],
    checksum: U64,
}

const _: () = assert!(size_of::<Bytes>() == LANE_RECORD_BYTES);
const _: () = assert!(offset_of!(Bytes, kind) == 40);
const _: () = assert!(offset_of!(Bytes, checksum) == 8 * CHECKED_WORDS);

/// The byte offset of lane `index` (`0..LANE_COUNT`) within the file.
#[must_use]
pub const fn lane_offset(index: usize) -> u64 {
    (crate::TABLE_HEADER_BYTES + index * LANE_RECORD_BYTES) as u64
}

/// What is announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum LaneKind {
    /// Nothing.
    Clean = 0,
    /// Bytes of the file, and with them their copies and parity.
    Write = 1,
    /// The file's size, from `offset + length` to `offset`.
    Truncate = 2,
    /// Bytes of the file that a record of the journal is about: nothing is to be made good as long
    /// as that journal is believed.
    Journaled = 3,
}

impl LaneKind {
    /// The number stored on media.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The kind stored as `code`.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Clean),
            1 => Some(Self::Write),
            2 => Some(Self::Truncate),
            3 => Some(Self::Journaled),
            _ => None,
        }
    }
}

/// One lane's record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneRecord {
    /// What is about to happen.
    pub kind: LaneKind,
    /// To which inode; 0 if clean.
    pub inode: u64,
    /// The inode's generation.
    pub generation: u64,
    /// The first byte of the file that changes.
    pub offset: u64,
    /// How many bytes of the file change.
    pub length: u64,
    /// Raised by each record of this lane: among the members' records of one lane the highest is
    /// the last.
    pub sequence: u64,
    /// The attach slot (in the runtime segment) of the process that owns the lane; means nothing
    /// after a restart.
    pub owner: u16,
}

/// Why a record says nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LaneError {
    /// The checksum is wrong: the record was cut short, or damaged later.
    #[error("a lane record is torn; if no other member has it whole, scrub the array")]
    Torn,
    /// Whole, and of a kind this program does not know.
    #[error("a lane record has the unknown kind {kind}; use a newer cxlraid to recover the array")]
    UnknownKind {
        /// On media.
        kind: u8,
    },
}

impl LaneRecord {
    /// A record that announces nothing.
    pub const CLEAN: Self = Self { kind: LaneKind::Clean, inode: 0, generation: 0, offset: 0, length: 0, sequence: 0, owner: 0 };

    /// The bytes of the record.
    #[inline]
    #[must_use]
    pub fn encode(&self) -> [u8; LANE_RECORD_BYTES] {
        let tail = u64::from(self.kind.code()) | u64::from(self.owner) << 16;
        let words = [self.inode, self.generation, self.offset, self.length, self.sequence, tail, 0];
        let [a, b, c, d, e, f, g] = words.map(U64::new);
        zerocopy::transmute!([a, b, c, d, e, f, g, words_checksum(words).into()])
    }

    /// The meaning of the record.
    pub fn decode(bytes: &[u8; LANE_RECORD_BYTES]) -> Result<Self, LaneError> {
        if *bytes == [0; LANE_RECORD_BYTES] {
            return Ok(Self::CLEAN);
        }
        let words: &[U64; CHECKED_WORDS + 1] = zerocopy::transmute_ref!(bytes);
        let [a, b, c, d, e, f, g, found] = words.map(U64::get);
        if found != words_checksum([a, b, c, d, e, f, g]) {
            return Err(LaneError::Torn);
        }
        let bytes: &Bytes = zerocopy::transmute_ref!(bytes);
        Ok(Self {
            kind: LaneKind::from_code(bytes.kind).ok_or(LaneError::UnknownKind { kind: bytes.kind })?,
            inode: bytes.inode.get(),
            generation: bytes.generation.get(),
            offset: bytes.offset.get(),
            length: bytes.length.get(),
            sequence: bytes.sequence.get(),
            owner: bytes.owner.get(),
        })
    }
}

/// The sum of the seven words, each after a bijection of its own.
#[inline]
pub(crate) fn words_checksum(words: [u64; CHECKED_WORDS]) -> u64 {
    let mut sum = 0u64;
    for (index, word) in words.into_iter().enumerate() {
        let product = (word ^ CONSTANTS[index]).wrapping_mul(CONSTANTS[index] | 1);
        sum = sum.wrapping_add((product ^ product >> 32).rotate_left(9 * index as u32));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::Bytes;
    use crate::documented::assert_documented;

    #[test]
    fn a_record_is_as_documented() {
        assert_documented!(
            "lanes.md",
            "Record",
            Bytes,
            [inode, generation, offset, length, sequence, kind, reserved_41, owner, reserved_44, reserved_48, checksum]
        );
    }
}
