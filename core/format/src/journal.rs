//! The journal: redo records of writes under way, so that each is old or new as a whole, with its
//! redundancy.
//!
//! A lane holds one record and its payload: the new data and the parities they make. The payload is
//! durable before the record is stored, and the record before anything is stored in place. When all
//! of that is durable the record is *settled*: its sequence is stored a second time, in the
//! record's settled word. So a record that is whole and not settled stands for a write that a crash
//! or a death may have cut short, and its payload holds the new contents of all that the write
//! touches. The record of a hole has no payload.
//!
//! The checksum of a record tells a torn record from a whole one. The journal's random UUID goes
//! into the checksum, so records of another journal are told as well. The checksum is computed as
//! that of a write-intent lane (`lane.rs`), which is fast, since every write computes one.
//!
//! Invariant: an all-zero record, as in a file just created, means that the lane has no record.

use crate::checksum::crc32c;
use crate::lane::words_checksum;
use crate::{Uuid, Version};
use core::mem::{offset_of, size_of};
use units::MemberSet;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header; the first lane follows.
pub const JOURNAL_HEADER_BYTES: usize = 4096;
/// Bytes of a record.
pub const JOURNAL_RECORD_BYTES: usize = 64;
/// Bytes of a lane before its payload.
pub const JOURNAL_LANE_HEAD_BYTES: usize = 4096;
/// The most bytes of a file that one record holds. A write of up to so many bytes is old or new as
/// a whole after a failure.
pub const JOURNAL_DATA_BYTES_MAX: usize = 1 << 20;
/// The most lanes.
pub const JOURNAL_LANE_COUNT_MAX: usize = 128;
/// Where a record's settled word lies.
pub const JOURNAL_SETTLED_OFFSET: usize = offset_of!(RecordBytes, settled);
/// The version this program writes, and the highest it reads.
pub const JOURNAL_SUPPORTED: Version = Version { major: 1, minor: 0 };

const MAGIC: [u8; 8] = *b"CXLRJNL\0";
const KIND_WRITE: u8 = 1;
const KIND_HOLE: u8 = 2;
const FLAG_GROWS: u8 = 1;
/// Room in a payload for filling up the data and each run of rows of the parities to whole lines.
/// The first and the last stripe of a range have at most three runs of rows each; the runs of the
/// other stripes are whole chunks.
const ROUNDING_BYTES: usize = 4096;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HeaderBytes {
    magic: [u8; 8],
    version_major: U16,
    version_minor: U16,
    record_bytes: U32,
    array_uuid: Uuid,
    journal_uuid: Uuid,
    lane_count: U32,
    lane_bytes: U32,
    reserved_56: [u8; 4036],
    checksum: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RecordBytes {
    inode: U64,
    generation: U64,
    offset: U64,
    sequence: U64,
    length: U32,
    payload_bytes: U32,
    out_mask: U32,
    kind: u8,
    flags: u8,
    reserved_46: [u8; 2],
    checksum: U64,
    settled: U64,
}

const _: () = assert!(size_of::<HeaderBytes>() == JOURNAL_HEADER_BYTES);
const _: () = assert!(size_of::<RecordBytes>() == JOURNAL_RECORD_BYTES);
const _: () = assert!(offset_of!(RecordBytes, checksum) == 48);

/// The header of a journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JournalHeader {
    /// The array it belongs to.
    pub array_uuid: Uuid,
    /// The UUID of the journal; the superblocks of the array hold it too.
    pub journal_uuid: Uuid,
    /// How many lanes the journal has, `1..=JOURNAL_LANE_COUNT_MAX`.
    pub lane_count: usize,
    /// Bytes of a lane: its head and the longest payload.
    pub lane_bytes: usize,
}

/// Why a file cannot be used as the journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JournalError {
    /// The file has no magic, or is shorter than a header.
    #[error("not a cxlraid journal (no magic, or too short)")]
    NotAJournal,
    /// The magic is right, the checksum is not.
    #[error("its header is damaged (wrong checksum)")]
    BadChecksum,
    /// The journal was written by a program with a newer format.
    #[error("it has format version {found}, this program reads up to {supported}; use a newer cxlraid")]
    NewerVersion {
        /// The version in the header.
        found: Version,
        /// The highest this program reads.
        supported: Version,
    },
    /// The checksum is right and a field makes no sense, so a faulty program wrote the header.
    #[error("its header is whole but its {field} makes no sense; report this")]
    Invalid {
        /// Which field.
        field: &'static str,
    },
    /// The file is shorter than its header says.
    #[error("it was cut: {found} of its {expected} bytes are left")]
    Cut {
        /// Bytes that are there.
        found: u64,
        /// Bytes that its header counts.
        expected: u64,
    },
    /// The journal belongs to another array.
    #[error("it belongs to array {found}")]
    OtherArray {
        /// The array that the header names.
        found: Uuid,
    },
    /// The journal belongs to the array but is not the one in use: the file is an older journal of
    /// the array, or the journal was made anew while this copy of it was away.
    #[error("it is not the journal that the array was last used with")]
    OtherJournal,
}

impl JournalHeader {
    /// A journal of `lane_count` lanes for files with up to `parity_count` parities.
    #[must_use]
    pub const fn new(array_uuid: Uuid, journal_uuid: Uuid, lane_count: usize, parity_count: usize) -> Self {
        let lane_bytes = JOURNAL_LANE_HEAD_BYTES + (1 + parity_count) * JOURNAL_DATA_BYTES_MAX + ROUNDING_BYTES;
        Self { array_uuid, journal_uuid, lane_count, lane_bytes }
    }

    /// The most parity chunks per stripe of a file for whose writes the lanes have room.
    #[must_use]
    pub const fn parity_max(&self) -> usize {
        (self.lane_bytes - JOURNAL_LANE_HEAD_BYTES).saturating_sub(ROUNDING_BYTES) / JOURNAL_DATA_BYTES_MAX - 1
    }

    /// Bytes of the whole file.
    #[must_use]
    pub const fn file_bytes(&self) -> u64 {
        self.lane_offset(self.lane_count)
    }

    /// Whether a file of so many bytes can be the journal.
    ///
    /// # Errors
    /// [`JournalError::Cut`] if it is too short.
    pub const fn check_bytes(&self, found: u64) -> Result<(), JournalError> {
        let expected = self.file_bytes();
        if found < expected { Err(JournalError::Cut { found, expected }) } else { Ok(()) }
    }

    /// The byte offset of a lane within the file.
    #[must_use]
    pub const fn lane_offset(&self, lane: usize) -> u64 {
        (JOURNAL_HEADER_BYTES + lane * self.lane_bytes) as u64
    }

    /// Bytes of the longest payload that a lane holds.
    #[must_use]
    pub const fn payload_bytes_max(&self) -> usize {
        self.lane_bytes - JOURNAL_LANE_HEAD_BYTES
    }

    /// What goes into the checksums of this journal's records.
    #[must_use]
    pub fn seed(&self) -> u64 {
        let [low, high]: [U64; 2] = zerocopy::transmute!(self.journal_uuid.0);
        low.get() ^ high.get()
    }

    /// The bytes of the header.
    #[must_use]
    pub fn encode(&self) -> [u8; JOURNAL_HEADER_BYTES] {
        let mut bytes = HeaderBytes {
            magic: MAGIC,
            version_major: JOURNAL_SUPPORTED.major.into(),
            version_minor: JOURNAL_SUPPORTED.minor.into(),
            record_bytes: (JOURNAL_RECORD_BYTES as u32).into(),
            array_uuid: self.array_uuid,
            journal_uuid: self.journal_uuid,
            lane_count: (self.lane_count as u32).into(),
            lane_bytes: (self.lane_bytes as u32).into(),
            reserved_56: [0; 4036],
            checksum: U32::ZERO,
        };
        bytes.checksum = bytes.compute_checksum().into();
        zerocopy::transmute!(bytes)
    }

    /// The header of a file that should be a journal; `file` is all of it or at least its header.
    pub fn decode(file: &[u8]) -> Result<Self, JournalError> {
        let (bytes, _) = HeaderBytes::ref_from_prefix(file).map_err(|_| JournalError::NotAJournal)?;
        if bytes.magic != MAGIC {
            return Err(JournalError::NotAJournal);
        }
        if bytes.checksum.get() != bytes.compute_checksum() {
            return Err(JournalError::BadChecksum);
        }
        let found = Version { major: bytes.version_major.get(), minor: bytes.version_minor.get() };
        if found.major > JOURNAL_SUPPORTED.major {
            return Err(JournalError::NewerVersion { found, supported: JOURNAL_SUPPORTED });
        }
        let require = |holds: bool, field| if holds { Ok(()) } else { Err(JournalError::Invalid { field }) };
        let (lane_count, lane_bytes) = (bytes.lane_count.get() as usize, bytes.lane_bytes.get() as usize);
        require(found.major != 0, "version")?;
        require(bytes.record_bytes.get() as usize == JOURNAL_RECORD_BYTES, "record size")?;
        require((1..=JOURNAL_LANE_COUNT_MAX).contains(&lane_count), "number of lanes")?;
        let lane_bytes_max = Self::new(Uuid::NIL, Uuid::NIL, 1, 2).lane_bytes;
        let fits = lane_bytes > JOURNAL_LANE_HEAD_BYTES && lane_bytes <= lane_bytes_max && lane_bytes.is_multiple_of(4096);
        require(fits, "lane size")?;
        require(!bytes.journal_uuid.is_nil(), "UUID")?;
        Ok(Self { array_uuid: bytes.array_uuid, journal_uuid: bytes.journal_uuid, lane_count, lane_bytes })
    }

    /// Fails unless this is journal `journal` of array `array`.
    pub fn check(&self, array: Uuid, journal: Uuid) -> Result<(), JournalError> {
        if self.array_uuid != array {
            return Err(JournalError::OtherArray { found: self.array_uuid });
        }
        if self.journal_uuid == journal { Ok(()) } else { Err(JournalError::OtherJournal) }
    }
}

impl HeaderBytes {
    fn compute_checksum(&self) -> u32 {
        crc32c(&[&self.as_bytes()[..offset_of!(Self, checksum)]])
    }
}

/// A write, or the making of a hole, as its record in the journal describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JournalRecord {
    /// The file, never 0.
    pub inode: u64,
    /// The generation of the file.
    pub generation: u64,
    /// The first byte of the file that is written.
    pub offset: u64,
    /// How many bytes are written: `1..=JOURNAL_DATA_BYTES_MAX`; of a hole up to `u32::MAX`.
    pub length: usize,
    /// Bytes of the payload: data, parities, and what fills them up to whole lines. 0 means that
    /// whole stripes become a hole.
    pub payload_bytes: usize,
    /// Members that were out when the payload was made; the payload does not hold what belongs on
    /// them.
    pub out: MemberSet,
    /// Whether the write makes a shorter file end after the last byte written.
    pub grows: bool,
    /// The sequence: one more than that of the previous record in the lane, never 0.
    pub sequence: u64,
}

impl JournalRecord {
    /// Whether the record is of this file.
    #[must_use]
    pub const fn is_of(&self, inode: u64, generation: u64) -> bool {
        self.inode == inode && self.generation == generation
    }

    /// The bytes of the record before it is settled. `settled` is the lane's present settled word,
    /// the sequence of the previous record, and is stored unchanged. So a store that is cut short
    /// cannot make the previous record, whose payload is overwritten by now, look as if it were not
    /// settled.
    #[inline]
    #[must_use]
    pub fn encode(&self, seed: u64, settled: u64) -> [u8; JOURNAL_RECORD_BYTES] {
        debug_assert_ne!(self.sequence, settled);
        let kind = u64::from(if self.is_hole() { KIND_HOLE } else { KIND_WRITE })
            | u64::from(if self.grows { FLAG_GROWS } else { 0 }) << 8;
        let words = [
            self.inode,
            self.generation,
            self.offset,
            self.sequence,
            self.length as u64 | (self.payload_bytes as u64) << 32,
            u64::from(self.out.bits()) | kind << 32,
        ];
        let [a, b, c, d, e, f] = words.map(U64::new);
        zerocopy::transmute!([a, b, c, d, e, f, checksum(words, seed).into(), settled.into()])
    }

    /// The record in `bytes`, and whether it is settled. None if `bytes` hold no record, or one
    /// that is torn, that belongs to another journal, or whose kind this program does not know. The
    /// caller compares `payload_bytes` with the lane.
    #[must_use]
    pub fn decode(bytes: &[u8; JOURNAL_RECORD_BYTES], seed: u64) -> Option<(Self, bool)> {
        let words: &[U64; 8] = zerocopy::transmute_ref!(bytes);
        let [a, b, c, d, e, f, found, settled] = words.map(U64::get);
        if found != checksum([a, b, c, d, e, f], seed) {
            return None;
        }
        let bytes: &RecordBytes = zerocopy::transmute_ref!(bytes);
        let record = Self {
            inode: bytes.inode.get(),
            generation: bytes.generation.get(),
            offset: bytes.offset.get(),
            length: bytes.length.get() as usize,
            payload_bytes: bytes.payload_bytes.get() as usize,
            out: MemberSet::from_bits(bytes.out_mask.get()),
            grows: bytes.flags & FLAG_GROWS != 0,
            sequence: bytes.sequence.get(),
        };
        let fits = match bytes.kind {
            KIND_WRITE => record.length <= JOURNAL_DATA_BYTES_MAX && record.payload_bytes >= record.length,
            KIND_HOLE => record.is_hole() && !record.grows,
            _ => false,
        };
        let sound = record.inode != 0
            && record.sequence != 0
            && record.length != 0
            && record.offset.checked_add(record.length as u64).is_some()
            && fits;
        sound.then_some((record, settled >= record.sequence))
    }

    /// Whether the record is of a hole: whole stripes become one.
    #[inline]
    #[must_use]
    pub const fn is_hole(&self) -> bool {
        self.payload_bytes == 0
    }

    /// The offset after the last byte written.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset + self.length as u64
    }
}

#[inline]
fn checksum([a, b, c, d, e, f]: [u64; 6], seed: u64) -> u64 {
    words_checksum([a, b, c, d, e, f, seed])
}

#[cfg(test)]
mod tests {
    use super::{HeaderBytes, RecordBytes};
    use crate::documented::assert_documented;

    #[test]
    fn a_header_is_as_documented() {
        assert_documented!(
            "journal.md",
            "Header",
            HeaderBytes,
            [
                magic,
                version_major,
                version_minor,
                record_bytes,
                array_uuid,
                journal_uuid,
                lane_count,
                lane_bytes,
                reserved_56,
                checksum
            ]
        );
    }

    #[test]
    fn a_record_is_as_documented() {
        assert_documented!(
            "journal.md",
            "Lane",
            RecordBytes,
            [inode, generation, offset, sequence, length, payload_bytes, out_mask, kind, flags, reserved_46, checksum, settled]
        );
    }
}
