//! `.cxlraid/changed`, which files changed while a member was out; `.cxlraid/kept` of a member that
//! keeps its files while it is made anew; and `.cxlraid/left` of a member that has left in order.
//! docs/format/changed.md
//!
//! Behind the header of `changed` there is a record for each slot: how the member in it left. Three
//! more say whether a mark may be missing, and which updates of the superblocks were made by
//! programs that keep the table. From [`CHANGED_MARKS_OFFSET`] on there is a mark of two bytes for
//! each inode number (modulo [`CHANGED_MARK_COUNT`]). It is not [`unchanged_mark`] if bytes of the
//! file changed while a member was out.

use crate::Uuid;
use crate::lane::words_checksum;
use core::cmp::Ordering;
use units::{MEMBER_COUNT_MAX, Slot};

/// Bytes of a record.
pub const CHANGED_RECORD_BYTES: usize = 32;
/// States where the marks begin.
pub const CHANGED_MARKS_OFFSET: u64 = 8192;
/// States how many marks there are.
pub const CHANGED_MARK_COUNT: usize = 1 << 17;
/// Bytes of a mark.
pub const CHANGED_MARK_BYTES: usize = 2;
/// States how many updates of the superblocks the table names at most: the last one, and the one
/// that is about to be made.
pub const CHANGED_UPDATE_COUNT: usize = 2;
/// States where the records end; zeros follow up to the marks.
pub const CHANGED_RECORDS_END: u64 = changed_update_offset(CHANGED_UPDATE_COUNT);
/// Bytes of the file.
pub const CHANGED_FILE_BYTES: usize = CHANGED_MARKS_OFFSET as usize + CHANGED_MARK_COUNT * CHANGED_MARK_BYTES;
/// Bytes of `.cxlraid/kept`.
pub const KEPT_BYTES: usize = 64;
/// Bytes of `.cxlraid/left`.
pub const LEFT_BYTES: usize = 16;

const KEPT_MAGIC: u64 = u64::from_le_bytes(*b"CXLRKEP\0");
const LEFT_MAGIC: u64 = u64::from_le_bytes(*b"CXLRLEF\0");
/// In the last record, which is no slot's: a mark may be missing, and nothing is to be recorded.
const VOID: u64 = 1;

const _: () = assert!(CHANGED_RECORDS_END <= CHANGED_MARKS_OFFSET);

/// The mark of a file that has not changed, in the table of a member. Neither byte is 0. Any other
/// mark says that the file has changed: what was lost or damaged says so, too.
#[must_use]
pub fn unchanged_mark(array: Uuid, member: Uuid, mark: usize) -> [u8; CHANGED_MARK_BYTES] {
    let ([a, b], [c, d]) = (uuid_words(array), uuid_words(member));
    let sum = words_checksum([mark as u64, a, b, c, d, 0, 0]);
    let sum = sum ^ sum >> 32;
    [(sum ^ sum >> 16) as u8 | 1, (sum >> 8) as u8 | 0x80]
}

/// Tells whether a mark is one that programs store. One that is not says that the file has changed,
/// as all but [`unchanged_mark`] do, and that it was damaged.
#[must_use]
pub fn is_sound_mark(array: Uuid, member: Uuid, mark: usize, bytes: [u8; CHANGED_MARK_BYTES]) -> bool {
    bytes == CHANGED || bytes == unchanged_mark(array, member, mark)
}

/// The mark of a file that has changed.
pub const CHANGED: [u8; CHANGED_MARK_BYTES] = [0; CHANGED_MARK_BYTES];

/// Tells how a member left: what is known of the instant from which on the marks tell what it
/// lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leave {
    /// The event count of the superblocks before they said that the member is out. At least 1.
    pub event: u64,
    /// What the member had written to it then, drawn at random. If the array had been ended in
    /// order, and nothing was changed since: the name of the last update of the superblocks.
    pub token: u64,
    /// When: ns since 1970.
    pub left_ns: u64,
}

/// Returns where the record of a slot is.
#[must_use]
pub const fn changed_record_offset(slot: Slot) -> u64 {
    (crate::TABLE_HEADER_BYTES + slot * CHANGED_RECORD_BYTES) as u64
}

/// Returns where the record is that says that a mark may be missing.
#[must_use]
pub const fn changed_void_offset() -> u64 {
    changed_record_offset(MEMBER_COUNT_MAX)
}

/// Returns where the record is that names an update of the superblocks: the first or the second of
/// [`CHANGED_UPDATE_COUNT`].
#[must_use]
pub const fn changed_update_offset(index: usize) -> u64 {
    changed_record_offset(MEMBER_COUNT_MAX + 1 + index)
}

/// The bytes of a record that names an update of the superblocks
/// ([`crate::Superblock::update_id`]).
#[must_use]
pub fn encode_changed_update(index: usize, update_id: u64) -> [u8; CHANGED_RECORD_BYTES] {
    encode_words(MEMBER_COUNT_MAX + 1 + index, [update_id, 0, 0])
}

/// The update of the superblocks that a record names; None if it names none, or does not fit its
/// check.
#[must_use]
pub fn decode_changed_update(index: usize, record: &[u8; CHANGED_RECORD_BYTES]) -> Option<u64> {
    let [update_id, ..] = words(record);
    (update_id != 0 && encode_changed_update(index, update_id) == *record).then_some(update_id)
}

/// The bytes of the record that says that a mark may be missing.
#[must_use]
pub fn changed_void() -> [u8; CHANGED_RECORD_BYTES] {
    encode_words(MEMBER_COUNT_MAX, [VOID, 0, 0])
}

/// Tells whether a table says that a mark may be missing. A record that does not fit its check says
/// so as well.
#[must_use]
pub fn is_changed_void(record: &[u8; CHANGED_RECORD_BYTES]) -> bool {
    *record != [0; CHANGED_RECORD_BYTES]
}

/// Tells whether the record of a slot, or one of those behind them, is all zeros or fits its check.
#[must_use]
pub fn is_sound_changed_record(slot: Slot, record: &[u8; CHANGED_RECORD_BYTES]) -> bool {
    let [first, second, third, _] = words(record);
    let is_known = match slot.cmp(&MEMBER_COUNT_MAX) {
        Ordering::Less => first != 0,
        Ordering::Equal => *record == changed_void(),
        Ordering::Greater => [second, third] == [0, 0] && first != 0,
    };
    *record == [0; CHANGED_RECORD_BYTES] || is_known && encode_words(slot, [first, second, third]) == *record
}

/// The bytes of `.cxlraid/left`: the token that a member has got as it left in order.
#[must_use]
pub fn encode_left(token: u64) -> [u8; LEFT_BYTES] {
    let mut bytes = [0; LEFT_BYTES];
    let words = [token, words_checksum([LEFT_MAGIC, token, 0, 0, 0, 0, 0])];
    for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
    bytes
}

/// The token in `.cxlraid/left`, which is never 0; None if the bytes do not fit their check.
#[must_use]
pub fn decode_left(bytes: &[u8; LEFT_BYTES]) -> Option<u64> {
    let token = u64::from_le_bytes(core::array::from_fn(|index| bytes[index]));
    (token != 0 && encode_left(token) == *bytes).then_some(token)
}

/// Returns which of the marks is that of an inode number.
#[must_use]
pub const fn changed_mark(number: u64) -> usize {
    (number % CHANGED_MARK_COUNT as u64) as usize
}

impl Leave {
    /// The bytes of a slot's record.
    #[must_use]
    pub fn encode(&self, slot: Slot) -> [u8; CHANGED_RECORD_BYTES] {
        encode_words(slot, [self.event, self.token, self.left_ns])
    }

    /// Returns what a slot's record says; None if nothing, or if it does not fit its check.
    #[must_use]
    pub fn decode(slot: Slot, record: &[u8; CHANGED_RECORD_BYTES]) -> Option<Self> {
        let [event, token, left_ns, _] = words(record);
        let is_whole = encode_words(slot, [event, token, left_ns]) == *record;
        (is_whole && event != 0).then_some(Self { event, token, left_ns })
    }
}

/// Holds what a member that is made anew keeps: the bytes of the files that have no mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kept {
    /// The UUID that the member has got with its new beginning.
    pub member_uuid: Uuid,
    /// [`Leave::event`] of the leave since which the marks tell what the member lacks.
    pub event: u64,
    /// [`Leave::left_ns`] of it.
    pub left_ns: u64,
}

impl Kept {
    /// The bytes of `.cxlraid/kept`.
    #[must_use]
    pub fn encode(&self) -> [u8; KEPT_BYTES] {
        let mut bytes = [0; KEPT_BYTES];
        let [first, second] = uuid_words(self.member_uuid);
        let check = words_checksum([KEPT_MAGIC, first, second, self.event, self.left_ns, 0, 0]);
        let words = [KEPT_MAGIC, first, second, self.event, self.left_ns, check];
        for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        bytes
    }

    /// Returns what `.cxlraid/kept` says; None if it is not whole.
    #[must_use]
    pub fn decode(bytes: &[u8; KEPT_BYTES]) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[8 * at + index]));
        let member_uuid = Uuid(core::array::from_fn(|index| bytes[8 + index]));
        let found = Self { member_uuid, event: word(3), left_ns: word(4) };
        (found.encode() == *bytes).then_some(found)
    }
}

fn uuid_words(uuid: Uuid) -> [u64; 2] {
    [0, 8].map(|at| u64::from_le_bytes(core::array::from_fn(|index| uuid.0[at + index])))
}

fn encode_words(slot: Slot, [first, second, third]: [u64; 3]) -> [u8; CHANGED_RECORD_BYTES] {
    let mut bytes = [0; CHANGED_RECORD_BYTES];
    let check = words_checksum([slot as u64, first, second, third, 0, 0, 0]);
    for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip([first, second, third, check]) {
        *place = word.to_le_bytes();
    }
    bytes
}

fn words(record: &[u8; CHANGED_RECORD_BYTES]) -> [u64; 4] {
    core::array::from_fn(|at| u64::from_le_bytes(core::array::from_fn(|index| record[8 * at + index])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_that_of_its_slot_and_whole() {
        let leave = Leave { event: 9, token: 1 << 60, left_ns: 12 };
        let bytes = leave.encode(3);
        assert_eq!(Leave::decode(3, &bytes), Some(leave));
        assert_eq!(Leave::decode(2, &bytes), None);
        assert_eq!(Leave::decode(3, &[0; CHANGED_RECORD_BYTES]), None);
        for at in 0..CHANGED_RECORD_BYTES {
            let mut damaged = bytes;
            damaged[at] ^= 4;
            assert_eq!(Leave::decode(3, &damaged), None, "{at}");
            assert!(!is_sound_changed_record(3, &damaged), "{at}");
            let mut void = changed_void();
            void[at] ^= 4;
            assert!(!is_sound_changed_record(MEMBER_COUNT_MAX, &void) && is_changed_void(&void), "{at}");
        }
        assert!(is_sound_changed_record(3, &bytes) && is_sound_changed_record(3, &[0; CHANGED_RECORD_BYTES]));
        assert!(is_sound_changed_record(MEMBER_COUNT_MAX, &changed_void()));
        assert!(is_changed_void(&changed_void()) && !is_changed_void(&[0; CHANGED_RECORD_BYTES]));
    }

    #[test]
    fn an_update_is_named_by_a_whole_record_in_its_place() {
        let bytes = encode_changed_update(1, 1 << 63);
        assert_eq!(decode_changed_update(1, &bytes), Some(1 << 63));
        assert_eq!(decode_changed_update(0, &bytes), None);
        assert_eq!(decode_changed_update(0, &[0; CHANGED_RECORD_BYTES]), None);
        assert_eq!(decode_changed_update(0, &encode_changed_update(0, 0)), None);
        assert!(is_sound_changed_record(MEMBER_COUNT_MAX + 2, &bytes));
        for at in 0..CHANGED_RECORD_BYTES {
            let mut damaged = bytes;
            damaged[at] ^= 1;
            assert_eq!(decode_changed_update(1, &damaged), None, "{at}");
            assert!(!is_sound_changed_record(MEMBER_COUNT_MAX + 2, &damaged), "{at}");
        }
    }

    #[test]
    fn what_is_kept_is_said_of_one_member() {
        let kept = Kept { member_uuid: Uuid([7; 16]), event: 5, left_ns: u64::MAX };
        let bytes = kept.encode();
        assert_eq!(Kept::decode(&bytes), Some(kept));
        for at in 0..KEPT_BYTES {
            let mut damaged = bytes;
            damaged[at] ^= 1;
            assert_eq!(Kept::decode(&damaged), None, "{at}");
        }
        assert_eq!(Kept::decode(&[0; KEPT_BYTES]), None);
    }

    #[test]
    fn a_token_of_which_a_byte_has_changed_is_none() {
        let bytes = encode_left(u64::MAX - 5);
        assert_eq!(decode_left(&bytes), Some(u64::MAX - 5));
        for at in 0..LEFT_BYTES {
            let mut damaged = bytes;
            damaged[at] ^= 0x80;
            assert_eq!(decode_left(&damaged), None, "{at}");
        }
        assert_eq!((decode_left(&[0; LEFT_BYTES]), decode_left(&encode_left(0))), (None, None));
    }

    #[test]
    fn a_mark_of_which_a_bit_has_changed_is_not_sound() {
        let [one, other] = [1, 2].map(|byte| Uuid([byte; 16]));
        for (mark, bit) in (0..2000).flat_map(|mark| (0..16).map(move |bit| (mark, bit))) {
            for sound in [CHANGED, unchanged_mark(one, other, mark)] {
                assert!(is_sound_mark(one, other, mark, sound));
                let damaged = (u16::from_le_bytes(sound) ^ 1 << bit).to_le_bytes();
                assert!(!is_sound_mark(one, other, mark, damaged), "{mark} {bit}");
            }
        }
    }

    #[test]
    fn every_number_has_a_mark_within_the_file() {
        for number in [0, 1, CHANGED_MARK_COUNT as u64 - 1, CHANGED_MARK_COUNT as u64, u64::MAX] {
            assert!(changed_mark(number) < CHANGED_MARK_COUNT);
        }
        assert_eq!(changed_mark(5), changed_mark(5 + CHANGED_MARK_COUNT as u64));
        let [one, other] = [1, 2].map(|byte| Uuid([byte; 16]));
        let marks: Vec<_> = (0..1000).map(|mark| unchanged_mark(one, other, mark)).collect();
        assert!(marks.iter().all(|mark| !mark.contains(&0)));
        let of_another = (0..1000).filter(|&mark| unchanged_mark(one, one, mark) == marks[mark]).count();
        let shifted = marks.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!(of_another < 5 && shifted < 5, "{of_another} {shifted}");
    }
}
