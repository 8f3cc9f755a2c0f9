//! Everything under `.cxlraid`, and the attribute of a backing file.

use crc::{CRC_32_ISCSI, Crc};
use format::{
    Attribute, INODE_RECORD_BYTES, InodeRecord, JOURNAL_HEADER_BYTES, JOURNAL_RECORD_BYTES, JournalHeader, JournalRecord,
    LANE_RECORD_BYTES, LaneKind, LaneRecord, NAME_RECORD_ALIGN, NAME_RECORD_BYTES_MAX, NAMES_RING_BYTES, NameRecord, Superblock,
    TABLE_HEADER_BYTES, TableHeader, TableKind,
};
use units::MemberSet;

const CRC32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// The input without its first byte, whose lowest bit asks for right checksums.
fn split(input: &[u8]) -> Option<(bool, &[u8])> {
    let (first, rest) = input.split_first()?;
    Some((first & 1 == 1, rest))
}

/// The first bytes of `input` as an array, zeros behind them.
fn padded<const BYTES: usize>(input: &[u8]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    let count = input.len().min(BYTES);
    bytes[..count].copy_from_slice(&input[..count]);
    bytes
}

/// Stores the CRC-32C of all before the last four bytes there.
fn seal(bytes: &mut [u8]) {
    let end = bytes.len() - 4;
    let sum = CRC32C.checksum(&bytes[..end]);
    bytes[end..].copy_from_slice(&sum.to_le_bytes());
}

pub(super) fn superblock(input: &[u8]) {
    let Some((whole, rest)) = split(input) else { return };
    let mut bytes = rest.to_vec();
    if whole {
        bytes.resize(format::SUPERBLOCK_BYTES, 0);
        // Small inputs reach both copies.
        let (first, second) = bytes.split_at_mut(format::COPY_BYTES);
        if second.iter().all(|&byte| byte == 0) {
            second.copy_from_slice(first);
        }
        seal(first);
        seal(second);
    }
    let Ok((found, copy)) = Superblock::choose(&bytes) else { return };
    assert!(copy < 2 && found.slot < found.member_count && found.member_count <= units::MEMBER_COUNT_MAX);
    let again = Superblock::decode(&found.encode()).expect("what was accepted is accepted as it is written");
    assert_eq!(again, found);
    let _ = (found.geometry(), found.validate(), found.unknown_read_only_features());
    let _ = format!("{found:?}");
}

pub(super) fn table(input: &[u8]) {
    let Some((whole, rest)) = split(input) else { return };
    let mut bytes: [u8; TABLE_HEADER_BYTES] = padded(rest);
    if whole {
        seal(&mut bytes);
    }
    for kind in [TableKind::Inodes, TableKind::Lanes, TableKind::Names, TableKind::Backings, TableKind::Changed] {
        let _ = TableHeader::decode(kind, rest);
        if let Ok(header) = TableHeader::decode(kind, &bytes) {
            // What is written is of the version with checks.
            let written = TableHeader { is_checked: true, ..header };
            assert_eq!(TableHeader::decode(kind, &header.encode()), Ok(written));
        }
    }
}

pub(super) fn inode(input: &[u8]) {
    let Some((whole, rest)) = split(input) else { return };
    let number = u64::from_le_bytes(padded(rest));
    let mut bytes: [u8; INODE_RECORD_BYTES] = padded(rest.get(8..).unwrap_or_default());
    if whole {
        let constant = [&number.to_le_bytes()[..], &bytes[format::GENERATION_OFFSET..format::STATE_OFFSET]].concat();
        bytes[format::CHECKSUM_OFFSET..][..4].copy_from_slice(&CRC32C.checksum(&constant).to_le_bytes());
        bytes = format::with_checks(number, bytes);
    }
    let copies = [bytes, padded(rest.get(72..).unwrap_or_default())];
    if let Some(right) = format::judge(number, copies.iter(), !whole) {
        assert!(format::is_whole(number, &right));
        assert!(!format::is_whole(number, &copies[0]) || format::is_whole(number, &copies[1]) || right == copies[0]);
    }
    let _ = InodeRecord::decode_version_1(number, &bytes);
    let _ = InodeRecord::generation_of(&bytes);
    let Ok(Some(record)) = InodeRecord::decode(number, &bytes) else { return };
    assert_eq!(InodeRecord::decode(number, &record.encode(number)), Ok(Some(record)));
    assert_eq!(record.shape.slots().count(), record.shape.members().len());
    let geometry = record.geometry();
    assert!(geometry.file_bytes(geometry.member_bytes(record.size)) >= record.size);
}

pub(super) fn lane(input: &[u8]) {
    let bytes: [u8; LANE_RECORD_BYTES] = padded(input);
    if let Ok(record) = LaneRecord::decode(&bytes) {
        assert_eq!(LaneRecord::decode(&record.encode()).map(|again| again.encode()), Ok(record.encode()));
    }
    // Its checksum is nobody's to make right but the encoder's.
    let [inode, generation, offset, length, sequence, rest] = words(input);
    let Some(kind) = LaneKind::from_code(rest as u8) else { return };
    let record = LaneRecord { kind, inode, generation, offset, length, sequence, owner: (rest >> 16) as u16 };
    let mut bytes = record.encode();
    if bytes != [0; LANE_RECORD_BYTES] {
        assert_eq!(LaneRecord::decode(&bytes), Ok(record));
        let bit = (rest >> 32) as usize % (LANE_RECORD_BYTES * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(LaneRecord::decode(&bytes).is_err());
    }
}

/// The records of the table of changed files, what is there of a member that left or comes back,
/// and a mark.
pub(super) fn changed(input: &[u8]) {
    let [event, token, left_ns, first, second, rest] = words(input);
    let slot = rest as usize % (units::MEMBER_COUNT_MAX + 1);
    let bit = (rest >> 32) as usize;
    let uuid = |word: u64| format::Uuid([word.to_le_bytes(), (!word).to_le_bytes()].concat().try_into().expect("16 bytes"));
    let raw: [u8; format::CHANGED_RECORD_BYTES] = padded(input);
    if let Some(leave) = format::Leave::decode(slot, &raw) {
        assert_eq!(leave.encode(slot), raw);
        assert!(slot == units::MEMBER_COUNT_MAX || format::is_sound_changed_record(slot, &raw));
    }
    let index = slot % format::CHANGED_UPDATE_COUNT;
    if let Some(update_id) = format::decode_changed_update(index, &raw) {
        assert_eq!(format::encode_changed_update(index, update_id), raw);
        assert!(format::is_sound_changed_record(units::MEMBER_COUNT_MAX + 1 + index, &raw));
    }
    let mut update = format::encode_changed_update(index, token);
    update[bit / 8 % update.len()] ^= 1 << (bit % 8);
    assert_eq!(format::decode_changed_update(index, &update), None);
    assert!(format::is_changed_void(&raw) || raw == [0; format::CHANGED_RECORD_BYTES]);
    let mut record = format::Leave { event: event.max(1), token, left_ns }.encode(slot);
    record[bit / 8 % record.len()] ^= 1 << (bit % 8);
    assert_eq!(format::Leave::decode(slot, &record), None);
    if let Some(kept) = format::Kept::decode(&padded(input)) {
        assert_eq!(kept.encode(), padded::<{ format::KEPT_BYTES }>(input));
    }
    let mut kept = format::Kept { member_uuid: uuid(first), event, left_ns }.encode();
    kept[bit / 8 % kept.len()] ^= 1 << (bit % 8);
    assert_eq!(format::Kept::decode(&kept), None);
    let mut left = format::encode_left(token);
    left[bit / 8 % left.len()] ^= 1 << (bit % 8);
    assert_eq!(format::decode_left(&left), None);
    let mark = second as usize % format::CHANGED_MARK_COUNT;
    for mut bytes in [format::CHANGED, format::unchanged_mark(uuid(first), uuid(second), mark)] {
        assert!(format::is_sound_mark(uuid(first), uuid(second), mark, bytes));
        bytes[bit / 8 % 2] ^= 1 << (bit % 8);
        assert!(!format::is_sound_mark(uuid(first), uuid(second), mark, bytes));
    }
}

/// The first six words of the input; what lies behind its end counts as zeros.
fn words(input: &[u8]) -> [u64; 6] {
    std::array::from_fn(|index| u64::from_le_bytes(padded(input.get(index * 8..).unwrap_or_default())))
}

/// A ring as the log's reader goes through it.
pub(super) fn names(input: &[u8]) {
    let mut at = 0;
    while at < input.len().min(NAMES_RING_BYTES) {
        let end = input.len().min(at + NAME_RECORD_BYTES_MAX);
        let Some(record) = NameRecord::decode(&input[at..end]) else {
            at += NAME_RECORD_ALIGN;
            continue;
        };
        let bytes = record.ring_bytes();
        assert!(
            bytes >= NAME_RECORD_ALIGN
                && bytes.is_multiple_of(NAME_RECORD_ALIGN)
                && bytes <= NAME_RECORD_BYTES_MAX.next_multiple_of(NAME_RECORD_ALIGN)
        );
        let written = [&record.encode_head()[..], record.path, record.to].concat();
        let again = NameRecord::decode(&written).expect("what was accepted is accepted as it is written");
        assert_eq!((again.sequence, again.path, again.to, again.void), (record.sequence, record.path, record.to, record.void));
        at += bytes;
    }
}

pub(super) fn journal(input: &[u8]) {
    let Some((whole, rest)) = split(input) else { return };
    let mut bytes: [u8; JOURNAL_HEADER_BYTES] = padded(rest);
    if whole {
        seal(&mut bytes);
    }
    let seed = match JournalHeader::decode(&bytes) {
        Ok(header) => {
            assert!((1..=format::JOURNAL_LANE_COUNT_MAX).contains(&header.lane_count));
            let last = header.lane_offset(header.lane_count - 1) + header.lane_bytes as u64;
            assert!(last <= header.file_bytes() && header.payload_bytes_max() < header.lane_bytes);
            header.seed()
        }
        Err(_) => u64::from_le_bytes(padded(rest)),
    };
    let [inode, generation, offset, sequence, sizes, tail] = words(rest.get(8..).unwrap_or_default());
    let (length, payload_bytes) = (sizes as u32 as usize, (sizes >> 32) as usize);
    let (out, grows) = (MemberSet::from_bits(tail as u32), tail >> 32 & 1 == 1);
    let made = JournalRecord { inode, generation, offset, length, payload_bytes, out, grows, sequence };
    let made = made.encode(seed, sequence.wrapping_sub(1));
    if let Some((record, _)) = JournalRecord::decode(&made, seed) {
        assert!(record.end() >= record.offset && record.length > 0 && record.sequence != 0);
    }
    let record: [u8; JOURNAL_RECORD_BYTES] = padded(rest.get(8..).unwrap_or_default());
    if let Some((record, settled)) = JournalRecord::decode(&record, seed) {
        let _ = (record.end(), record.is_hole());
        let again = JournalRecord::decode(
            &record.encode(seed, if settled { record.sequence } else { record.sequence.wrapping_sub(1) }),
            seed,
        );
        assert!(again.is_some());
    }
}

pub(super) fn attribute(input: &[u8]) {
    if let Ok(attribute) = Attribute::decode(input) {
        assert_eq!(Attribute::decode(&attribute.encode()), Ok(attribute));
    }
}
