//! The images in tests/golden, byte by byte. They were written by `cargo run -p cxlraid-format
//! --example golden` when their version was frozen; one that no longer decodes to the same values
//! is a bug in the code, never in the image.

use crate::fixture;
use cxlraid_format::*;
use std::{fs, path::Path};

fn image(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn record<const N: usize>(file: &[u8], offset: u64) -> &[u8; N] {
    file[offset as usize..][..N].try_into().unwrap()
}

/// The header of a table of version 1.
fn table_1(kind: TableKind) -> TableHeader {
    TableHeader { member_uuid: Uuid::NIL, use_count: 0, is_checked: false, ..fixture::table(kind) }
}

#[test]
fn superblock_1_0_is_read() {
    let file = image("superblock-1.0.bin");
    assert_eq!(Superblock::choose(&file), Ok((fixture::superblock_next(), 1)));
    assert_eq!(Superblock::decode(record(&file, 0)), Ok(fixture::superblock()));
    assert_eq!(fixture::superblock().unknown_read_only_features(), 0);
}

#[test]
fn superblock_1_1_is_read() {
    let (file, [first, second]) = (image("superblock-1.1.bin"), fixture::superblocks_1_1());
    assert_eq!(Superblock::choose(&file), Ok((second.clone(), 1)));
    assert_eq!(Superblock::decode(record(&file, 0)), Ok(first.clone()));
    let decoded = Superblock::choose(&image("superblock-journal-invalid.bin"));
    assert_eq!(decoded, Err(SuperblockError::Invalid { field: "journal" }));
}

#[test]
fn a_superblock_with_a_member_that_is_being_rebuilt_is_read() {
    let (file, superblock) = (image("superblock-1.1-rebuilding.bin"), fixture::superblock_rebuilding());
    assert_eq!(Superblock::choose(&file), Ok((superblock.clone(), 0)));
    // The feature bit by which older programs refuse it is on media alone.
    assert_eq!((file[24], superblock.features.incompatible), (2, 0));
}

#[test]
fn superblock_1_2_is_read() {
    let (file, [first, second]) = (image("superblock-1.2.bin"), fixture::superblocks_1_2());
    assert_eq!(Superblock::choose(&file), Ok((second, 1)));
    assert_eq!(Superblock::decode(record(&file, 0)), Ok(first.clone()));
    assert!(!first.is_clean());
}

#[test]
fn superblock_1_3_is_read() {
    let (file, [first, second]) = (image("superblock-1.3.bin"), fixture::superblocks_1_3());
    assert_eq!(Superblock::choose(&file), Ok((second.clone(), 1)));
    assert_eq!(Superblock::decode(record(&file, 0)), Ok(first.clone()));
    assert!(first.is_clean() && !second.is_clean());
    // Its updates have no names: the counts alone decide.
    assert!(first.is_current(&second) && first.is_current(&fixture::superblocks_1_4()[1]));
}

#[test]
fn superblock_1_4_is_read() {
    let (file, [first, second]) = (image("superblock-1.4.bin"), fixture::superblocks_1_4());
    assert_eq!(Superblock::choose(&file), Ok((second.clone(), 1)));
    assert_eq!(Superblock::decode(record(&file, 0)), Ok(first.clone()));
    assert!(first.is_current(&second) && second.is_current(&second) && !second.is_current(&first));
    let other = Superblock { update_id: 1, ..first };
    assert!(!other.is_current(&second) && !Superblock { event_count: 42, ..other }.is_current(&second));
}

#[test]
fn superblock_1_6_is_read_and_written_the_same() {
    let (file, [first, second]) = (image("superblock-1.6.bin"), fixture::superblocks_1_6());
    assert_eq!(Superblock::choose(&file), Ok((second.clone(), 1)));
    assert_eq!([first.encode(), second.encode()].concat(), file);
    // The second one has a policy that this version does not know, and keeps it.
    assert_eq!((first.read_policy(), second.read_policy()), (ReadPolicy::Latency, ReadPolicy::RoundRobin));
    assert_eq!((file[2288], file[COPY_BYTES + 2288]), (2, 0xf3));
    let replaced = |superblock: &Superblock| superblock.members.iter().filter(|entry| entry.is_replaced()).count();
    assert_eq!((replaced(&first), replaced(&second)), (0, 1));
    assert!(second.members[second.slot].is_replaced() && !second.is_own_in_use());
}

#[test]
fn superblock_1_5_is_read() {
    let (file, [first, second]) = (image("superblock-1.5.bin"), fixture::superblocks_1_5());
    assert_eq!(Superblock::choose(&file), Ok((second.clone(), 1)));
    assert_eq!(Superblock::decode(record(&file, 0)), Ok(first.clone()));
    assert_eq!(first.read_policy(), ReadPolicy::RoundRobin);
    let mostly = |superblock: &Superblock| superblock.members.map(|entry| entry.is_write_mostly());
    assert_eq!((mostly(&first)[..4].to_vec(), mostly(&first)), (vec![false, true, false, true], mostly(&second)));
}

#[test]
fn the_older_copy_serves_where_the_newer_is_torn_or_cut_off() {
    for name in ["superblock-torn.bin", "superblock-truncated.bin"] {
        assert_eq!(Superblock::choose(&image(name)), Ok((fixture::superblock(), 0)), "{name}");
    }
}

#[test]
fn superblocks_that_cannot_be_used_say_why() {
    use SuperblockError::*;
    let newer = NewerVersion { found: Version { major: 2, minor: 3 }, supported: Version { major: 1, minor: 6 } };
    for (name, error) in [
        ("superblock-corrupt.bin", BadChecksum { copy: 0 }),
        ("superblock-newer.bin", newer),
        ("superblock-incompatible.bin", UnknownIncompatibleFeatures { bits: 0x4000_0000 }),
        ("superblock-invalid.bin", Invalid { field: "level" }),
        ("superblock-disagree.bin", CopiesDisagree),
        ("superblock-cut-short.bin", Truncated { bytes: 1000 }),
        ("superblock-foreign.bin", NotASuperblock),
        ("superblock-zeros.bin", NotASuperblock),
    ] {
        assert_eq!(Superblock::choose(&image(name)), Err(error), "{name}");
    }
    assert_eq!(Superblock::choose(&[]), Err(NotASuperblock));
}

#[test]
fn the_outline_of_a_superblock_is_known_whatever_its_version() {
    let newest = |name| Outline::of(&image(name));
    let known = |superblock: Superblock| Some(Outline { array_uuid: superblock.array_uuid, event_count: superblock.event_count });
    for name in ["superblock-newer.bin", "superblock-incompatible.bin", "superblock-newer-minor.bin"] {
        assert_eq!(newest(name), known(fixture::superblock_next()), "{name}");
    }
    assert_eq!(newest("superblock-torn.bin"), known(fixture::superblock()));
    for name in ["superblock-corrupt.bin", "superblock-cut-short.bin", "superblock-foreign.bin", "superblock-zeros.bin"] {
        assert_eq!(newest(name), None, "{name}");
    }
    assert_eq!(Outline::of(&[]), None);
}

#[test]
fn a_newer_copy_is_newer_wherever_it_lies() {
    let mut file = image("superblock-newer.bin");
    file.rotate_left(COPY_BYTES);
    assert!(matches!(Superblock::choose(&file), Err(SuperblockError::NewerVersion { .. })));
}

#[test]
fn a_newer_minor_version_is_read() {
    assert_eq!(Superblock::choose(&image("superblock-newer-minor.bin")), Ok((fixture::superblock_next(), 1)));
}

#[test]
fn an_unknown_read_only_feature_allows_reading() {
    let (superblock, copy) = Superblock::choose(&image("superblock-read-only.bin")).unwrap();
    assert_eq!((superblock.unknown_read_only_features(), copy), (2, 1));
}

/// The records of a table of version 1, which have no checks of size and notes.
fn assert_inodes_1(file: &[u8], inodes: &[Option<InodeRecord>]) {
    assert_eq!(TableHeader::decode(TableKind::Inodes, file), Ok(table_1(TableKind::Inodes)));
    assert_eq!(file.len() as u64, inode_table_bytes(inodes.len() as u64));
    for (inode, expected) in (1..).zip(inodes) {
        let bytes = record(file, inode_record_offset(inode));
        assert_eq!(InodeRecord::decode_version_1(inode, bytes), Ok(*expected));
        assert_eq!(expected.map_or([0; 64], |record| record.encode(inode)), with_checks(inode, *bytes));
    }
}

#[test]
fn inodes_1_0_and_1_1_are_read() {
    assert_inodes_1(&image("inodes-1.0.bin"), &fixture::inodes());
    assert_inodes_1(&image("inodes-1.1.bin"), &fixture::inodes_1_1());
}

#[test]
fn inodes_2_0_are_read_and_written_the_same() {
    let file = image("inodes-2.0.bin");
    let header = fixture::table(TableKind::Inodes);
    assert_eq!(TableHeader::decode(TableKind::Inodes, &file), Ok(header));
    assert_eq!(header.encode(), *record::<TABLE_HEADER_BYTES>(&file, 0));
    for (inode, expected) in (1..).zip(fixture::inodes_1_1()) {
        let bytes = record(&file, inode_record_offset(inode));
        assert_eq!(InodeRecord::decode(inode, bytes), Ok(expected));
        assert_eq!(expected.map_or([0; 64], |record| record.encode(inode)), *bytes);
        assert!(is_whole(inode, bytes));
    }
}

#[test]
fn the_newest_whole_mark_counts() {
    let use_count = |name| TableHeader::decode(TableKind::Inodes, &image(name)).unwrap().use_count;
    assert_eq!(["inodes-2.0.bin", "inodes-2.0-marked.bin", "inodes-2.0-torn-mark.bin"].map(use_count), [40, 46, 44]);
    // The next one goes over the older.
    let next = |name| TableHeader::next_mark(TableKind::Inodes, &image(name), 48).unwrap().0;
    assert_eq!(["inodes-2.0.bin", "inodes-2.0-marked.bin", "inodes-2.0-torn-mark.bin"].map(next), [128, 128, 64]);
    let mut none = image("inodes-2.0.bin");
    none[64] ^= 1;
    let kind = TableKind::Inodes;
    assert_eq!(TableHeader::decode(kind, &none), Err(TableError::BadChecksum { kind }));
}

#[test]
fn damaged_parts_of_records_are_told() {
    let decode = |name| InodeRecord::decode(1, record(&image(name), inode_record_offset(1)));
    assert_eq!(decode("inodes-2.0-corrupt-size.bin"), Err(InodeError::BadCheck { inode: 1, part: "size" }));
    assert_eq!(decode("inodes-2.0-corrupt-notes.bin"), Err(InodeError::BadCheck { inode: 1, part: "notes" }));
}

#[test]
fn damaged_inode_tables_say_what_is_damaged() {
    let decode = |name, inode| InodeRecord::decode_version_1(inode, record(&image(name), inode_record_offset(inode)));
    let bad = |inode| Err(InodeError::BadChecksum { inode });
    assert_eq!(decode("inodes-corrupt-record.bin", 1), bad(1));
    assert_eq!(decode("inodes-corrupt-record.bin", 2), Ok(fixture::inodes()[1]));
    assert_eq!(decode("inodes-misplaced-record.bin", 1), Ok(fixture::inodes()[0]));
    assert_eq!(decode("inodes-misplaced-record.bin", 2), bad(2));

    let kind = TableKind::Inodes;
    let header = |name| TableHeader::decode(kind, &image(name));
    let (found, supported) = (Version { major: 3, minor: 0 }, Version { major: 2, minor: 0 });
    assert_eq!(header("inodes-corrupt-header.bin"), Err(TableError::BadChecksum { kind }));
    assert_eq!(header("inodes-newer-3.bin"), Err(TableError::NewerVersion { kind, found, supported }));
    // It says 2.0, and its checksum is made as in version 1.
    assert_eq!(header("inodes-newer.bin"), Err(TableError::BadChecksum { kind }));
    assert_eq!(header("lanes-1.0.bin"), Err(TableError::NotATable { kind }));
    assert_eq!(header("superblock-zeros.bin"), Err(TableError::NotATable { kind }));
    assert_eq!(header("attribute-1.bin"), Err(TableError::NotATable { kind }));
}

#[test]
fn a_table_of_another_array_is_refused() {
    let header = TableHeader::decode(TableKind::Inodes, &image("inodes-1.0.bin")).unwrap();
    assert_eq!(header.check_array(fixture::ARRAY), Ok(()));
    let expected = fixture::OTHER_ARRAY;
    let error = TableError::OtherArray { kind: TableKind::Inodes, found: fixture::ARRAY, expected };
    assert_eq!(header.check_array(expected), Err(error));
}

#[test]
fn attribute_1_is_read_and_written_the_same() {
    assert_eq!(Attribute::decode(&image("attribute-1.bin")), Ok(fixture::ATTRIBUTE));
    assert_eq!(fixture::ATTRIBUTE.encode().to_vec(), image("attribute-1.bin"));
}

#[test]
fn attributes_that_cannot_be_used_say_why() {
    assert_eq!(Attribute::decode(&image("attribute-corrupt.bin")), Err(AttributeError::BadChecksum));
    assert_eq!(Attribute::decode(&image("attribute-newer.bin")), Err(AttributeError::NewerVersion { found: 2 }));
    assert_eq!(Attribute::decode(b"short"), Err(AttributeError::Length { bytes: 5 }));
}

#[test]
fn backings_1_0_are_where_they_were() {
    let file = image("backings-1.0.bin");
    assert_eq!(TableHeader::decode(TableKind::Backings, &file), Ok(table_1(TableKind::Backings)));
    for (inode, expected) in fixture::BACKINGS.into_iter().enumerate() {
        let word = |at| u64::from_le_bytes(*record(&file, (TABLE_HEADER_BYTES + 16 * inode + at) as u64));
        assert_eq!([word(0), word(8)], expected, "inode {inode}");
    }
}

#[test]
fn backings_2_0_are_where_they_were() {
    let file = image("backings-2.0.bin");
    let header = fixture::table(TableKind::Backings);
    assert_eq!(TableHeader::decode(TableKind::Backings, &file), Ok(header));
    assert_eq!(header.encode(), *record::<TABLE_HEADER_BYTES>(&file, 0));
    for (inode, [number, generation]) in (0..).zip(fixture::BACKINGS) {
        let bytes: &[u8; BACKING_RECORD_BYTES] = record(&file, backing_record_offset(inode));
        let word = |at| u64::from_le_bytes(*record(bytes, at as u64));
        assert_eq!([word(BACKING_FILE_OFFSET), word(BACKING_GENERATION_OFFSET)], [number, generation], "inode {inode}");
        let check = if number == 0 { 0 } else { backing_check(inode, number, generation) };
        assert_eq!(word(BACKING_CHECK_OFFSET), check, "inode {inode}");
    }
}

#[test]
fn changed_2_0_is_where_it_was() {
    let file = image("changed-2.0.bin");
    let header = fixture::table(TableKind::Changed);
    assert_eq!(TableHeader::decode(TableKind::Changed, &file), Ok(header));
    assert_eq!(header.encode(), *record::<TABLE_HEADER_BYTES>(&file, 0));
    let leave = |file: &[u8], slot| Leave::decode(slot, record(file, (4096 + 32 * slot) as u64));
    for slot in 0..4 {
        let expected = fixture::LEAVES.iter().find(|(other, _)| *other == slot).map(|(_, leave)| *leave);
        assert_eq!(leave(&file, slot), expected, "slot {slot}");
    }
    assert_eq!(leave(&image("changed-2.0-torn.bin"), 2), None);
    for (index, update_id) in fixture::UPDATES.into_iter().enumerate() {
        assert_eq!(decode_changed_update(index, record(&file, (4096 + 32 * (33 + index)) as u64)), Some(update_id));
    }
    let is_void = |name| is_changed_void(record(&image(name), 4096 + 32 * 32));
    assert!(is_void("changed-2.0-void.bin") && !is_void("changed-2.0.bin"));
    let is_marked =
        |&mark: &usize| *record::<2>(&file, 8192 + 2 * mark as u64) != unchanged_mark(fixture::ARRAY, fixture::member(1), mark);
    assert_eq!((0..4).filter(is_marked).collect::<Vec<_>>(), [changed_mark(2)]);
    let kept = image("kept-1.bin");
    assert_eq!(Kept::decode(record(&kept, 0)), Some(fixture::KEPT));
    assert_eq!(kept, fixture::KEPT.encode());
}

#[test]
fn lanes_1_0_and_2_0_are_read_and_written_the_same() {
    let (old, file) = (image("lanes-1.0.bin"), image("lanes-2.0.bin"));
    assert_eq!((file.len(), &file[TABLE_HEADER_BYTES..]), (LANE_FILE_BYTES, &old[TABLE_HEADER_BYTES..]));
    let header = fixture::table(TableKind::Lanes);
    assert_eq!(TableHeader::decode(TableKind::Lanes, &old), Ok(table_1(TableKind::Lanes)));
    assert_eq!(TableHeader::decode(TableKind::Lanes, &file), Ok(header));
    assert_eq!(header.encode(), *record::<TABLE_HEADER_BYTES>(&file, 0));
    for index in 0..LANE_COUNT {
        let bytes = record(&file, lane_offset(index));
        let expected = fixture::LANES.get(index).copied().unwrap_or(LaneRecord::CLEAN);
        assert_eq!(LaneRecord::decode(bytes), Ok(expected), "lane {index}");
        if index < fixture::LANES.len() {
            assert_eq!(expected.encode(), *bytes, "lane {index}");
        }
    }
}

#[test]
fn a_torn_lane_announces_nothing_and_leaves_the_others() {
    let file = image("lanes-torn.bin");
    assert_eq!(LaneRecord::decode(record(&file, lane_offset(0))), Err(LaneError::Torn));
    assert_eq!(LaneRecord::decode(record(&file, lane_offset(1))), Ok(fixture::LANES[1]));
}

#[test]
fn names_1_0_and_2_0_are_read_and_written_the_same() {
    let (old, file) = (image("names-1.0.bin"), image("names-2.0.bin"));
    assert_eq!(file[TABLE_HEADER_BYTES..], old[TABLE_HEADER_BYTES..]);
    assert_eq!(TableHeader::decode(TableKind::Names, &old), Ok(table_1(TableKind::Names)));
    let header = fixture::table(TableKind::Names);
    assert_eq!(TableHeader::decode(TableKind::Names, &file), Ok(header));
    assert_eq!(header.encode(), *record::<TABLE_HEADER_BYTES>(&file, 0));
    let mut at = TABLE_HEADER_BYTES;
    for record in fixture::NAMES {
        assert_eq!(NameRecord::decode(&file[at..]), Some(record));
        assert_eq!(record.encode_head(), file[at..][..NAME_RECORD_ALIGN]);
        at += record.ring_bytes();
    }
    assert_eq!(at, file.len());
}

#[test]
fn a_damaged_record_of_names_is_none_and_leaves_the_others() {
    let file = image("names-corrupt-record.bin");
    let first = fixture::NAMES[0].ring_bytes();
    assert_eq!(NameRecord::decode(&file[TABLE_HEADER_BYTES..]), None);
    assert_eq!(NameRecord::decode(&file[TABLE_HEADER_BYTES + first..]), Some(fixture::NAMES[1]));
}

#[test]
fn journal_1_0_is_read_and_written_the_same() {
    let (file, header) = (image("journal-1.0.bin"), fixture::JOURNAL_HEADER);
    assert_eq!((JournalHeader::decode(&file), file.len() as u64), (Ok(header), header.file_bytes()));
    assert_eq!(header.encode(), *record::<JOURNAL_HEADER_BYTES>(&file, 0));
    for (lane, expected) in fixture::JOURNAL_RECORDS.into_iter().enumerate() {
        let bytes = record::<JOURNAL_RECORD_BYTES>(&file, header.lane_offset(lane));
        assert_eq!(JournalRecord::decode(bytes, header.seed()), Some((expected, lane == 1)));
        assert_eq!(expected.encode(header.seed(), 0)[..JOURNAL_SETTLED_OFFSET], bytes[..JOURNAL_SETTLED_OFFSET]);
    }
}

#[test]
fn journals_that_cannot_be_used_say_why() {
    use JournalError::*;
    let newer = NewerVersion { found: Version { major: 2, minor: 0 }, supported: JOURNAL_SUPPORTED };
    for (name, error) in [
        ("journal-corrupt.bin", BadChecksum),
        ("journal-newer.bin", newer),
        ("journal-invalid.bin", Invalid { field: "number of lanes" }),
        ("lanes-1.0.bin", NotAJournal),
    ] {
        assert_eq!(JournalHeader::decode(&image(name)), Err(error), "{name}");
    }
    let header = fixture::JOURNAL_HEADER;
    assert_eq!(header.check(fixture::ARRAY, fixture::JOURNAL), Ok(()));
    assert_eq!(header.check(fixture::OTHER_ARRAY, fixture::JOURNAL), Err(OtherArray { found: fixture::ARRAY }));
    assert_eq!(header.check(fixture::ARRAY, fixture::OTHER_ARRAY), Err(OtherJournal));
}

#[test]
fn a_torn_record_of_the_journal_is_none_and_so_is_another_journals() {
    let (file, header) = (image("journal-torn.bin"), fixture::JOURNAL_HEADER);
    let bytes = record(&file, header.lane_offset(0));
    assert_eq!(JournalRecord::decode(bytes, header.seed()), None);
    let whole = image("journal-1.0.bin");
    assert_eq!(JournalRecord::decode(record(&whole, header.lane_offset(0)), header.seed() ^ 1), None);
    assert_eq!(JournalRecord::decode(&[0; JOURNAL_RECORD_BYTES], header.seed()), None);
}
