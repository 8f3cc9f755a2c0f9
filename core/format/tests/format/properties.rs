//! For every value: it is read as it was written, and damage to its bytes is found.

use crate::fixture;
use cxlraid_format::*;
use layout::Level;
use proptest::prelude::*;
use units::{ChunkBytes, MEMBER_COUNT_MAX, MemberSet};

fn uuids() -> impl Strategy<Value = Uuid> {
    any::<[u8; 16]>().prop_map(Uuid::from_random)
}

fn member_tables(member_count: usize) -> impl Strategy<Value = [MemberEntry; MEMBER_COUNT_MAX]> {
    use MemberState::*;
    let members = (uuids(), prop::sample::select(&[InSync, Missing, Failed, Stale, Rebuilding][..]));
    let spares = (uuids(), prop::sample::select(&[Absent, Spare][..]));
    let table = (prop::collection::vec(members, member_count), prop::collection::vec(spares, MEMBER_COUNT_MAX - member_count));
    table.prop_map(|(members, spares)| {
        let entries: Vec<_> = members
            .into_iter()
            .chain(spares)
            .map(|(uuid, state)| MemberEntry {
                uuid: if state == Absent { Uuid::NIL } else { uuid },
                state,
                out_count: u64::from(uuid.0[0]),
                flags: uuid.0[1],
            })
            .collect();
        entries.try_into().unwrap()
    })
}

fn shapes() -> impl Strategy<Value = Shape> {
    let level = prop::sample::select(&Level::ALL[..]);
    (level, 6u32..=26, any::<u32>(), any::<prop::sample::Index>()).prop_filter_map("shape", |(level, shift, bits, start)| {
        let members = MemberSet::from_bits(bits);
        let start_slot = members.iter().nth(start.index(members.len().max(1)))?;
        Shape::new(level, ChunkBytes::from_shift(shift)?, members, start_slot).ok()
    })
}

pub(crate) fn superblocks() -> impl Strategy<Value = Superblock> {
    let level = (prop::sample::select(&Level::ALL[..]), 1usize..=32, 6u32..=26);
    let level = level.prop_filter_map("level", |(level, member_count, shift)| {
        let chunk = ChunkBytes::from_shift(shift)?;
        layout::Geometry::new(level, member_count, chunk).ok().map(|_| (level, member_count, chunk))
    });
    let numbers = any::<[u64; 6]>();
    level.prop_flat_map(move |(level, member_count, chunk)| {
        let table = member_tables(member_count);
        let access = (any::<u32>(), any::<u32>(), 0u32..=0o7777);
        (table, 0..member_count, uuids(), r"[^/\p{Cc}]{3,15}", numbers, access).prop_map(
            move |(mut members, slot, array_uuid, name, [compatible, ro, created_ns, events, update_ns, sequence], access)| {
                let (owner_uid, owner_gid, mode) = access;
                members[slot] = MemberEntry { uuid: array_uuid, state: MemberState::InSync, out_count: 0, flags: 0 };
                Superblock {
                    features: Features { compatible, incompatible: 0, read_only_compatible: ro },
                    array_uuid,
                    array_name: ArrayName::new(&name).unwrap(),
                    member_uuid: members[slot].uuid,
                    slot,
                    member_count,
                    level,
                    chunk,
                    access: Access { owner_uid, owner_gid, mode },
                    created_ns,
                    event_count: events,
                    use_count: events / 2,
                    clean_count: events - events % 3,
                    update_id: events / 3,
                    previous_update_id: events / 5,
                    read_policy: events as u8,
                    update_ns,
                    copy_sequence: sequence,
                    members,
                    journal: (ro & 1 == 0).then(|| JournalEntry {
                        uuid: array_uuid,
                        path: JournalPath::new(b"/mnt/journal").filter(|_| ro & 2 == 0),
                    }),
                }
            },
        )
    })
}

fn journal_records() -> impl Strategy<Value = JournalRecord> {
    let numbers = (1..u64::MAX, any::<u64>(), 0..u64::MAX >> 1, 1..u64::MAX);
    let writes = (1..=JOURNAL_DATA_BYTES_MAX, 0..3usize << 20, any::<bool>());
    let writes = writes.prop_map(|(length, more, grows)| (length, length + more, grows));
    let holes = (1..=u32::MAX as usize).prop_map(|length| (length, 0, false));
    (numbers, prop_oneof![writes, holes], any::<u32>()).prop_map(
        |((inode, generation, offset, sequence), (length, payload_bytes, grows), out)| JournalRecord {
            inode,
            generation,
            offset,
            length,
            payload_bytes,
            out: MemberSet::from_bits(out),
            grows,
            sequence,
        },
    )
}

/// A record of a lane and a later one: of any write, or of one that differs from it in little, such
/// as the next sequence alone.
fn successive_journal_records() -> impl Strategy<Value = (JournalRecord, JournalRecord)> {
    let later = prop_oneof![Just(1), 1..4u64, 1..=u64::MAX];
    (journal_records(), journal_records(), any::<[bool; 4]>(), later).prop_map(|(old, other, same, later)| {
        let sequence = old.sequence + later.min(u64::MAX - old.sequence);
        let mut new = JournalRecord { sequence, ..other };
        let [inode, generation, offset, rest] = same;
        if inode {
            new.inode = old.inode;
        }
        if generation {
            new.generation = old.generation;
        }
        if offset {
            new.offset = old.offset;
        }
        if rest {
            new = JournalRecord { inode: new.inode, generation: new.generation, offset: new.offset, sequence, ..old };
        }
        (old, new)
    })
}

proptest! {
    #[test]
    fn journal_records_are_read_as_written_and_any_change_of_a_word_is_found(
        record in journal_records(), seed in any::<u64>(), word in 0usize..7, change in 1..u64::MAX,
    ) {
        let mut bytes = record.encode(seed, 0);
        prop_assert_eq!(JournalRecord::decode(&bytes, seed), Some((record, false)));
        bytes[JOURNAL_SETTLED_OFFSET..].copy_from_slice(&record.sequence.to_le_bytes());
        prop_assert_eq!(JournalRecord::decode(&bytes, seed), Some((record, true)));
        prop_assert_eq!(JournalRecord::decode(&bytes, seed ^ change), None);
        let at = 8 * word;
        let found = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        bytes[at..at + 8].copy_from_slice(&(found ^ change).to_le_bytes());
        prop_assert_eq!(JournalRecord::decode(&bytes, seed), None);
    }

    // The old record's payload is gone by then: it must stay settled.
    #[test]
    fn a_journal_record_of_which_any_words_arrived_is_the_old_the_new_or_none(
        (old, new) in successive_journal_records(), arrived in any::<[bool; 8]>(), seed in any::<u64>(),
    ) {
        let mut bytes = old.encode(seed, !old.sequence);
        bytes[JOURNAL_SETTLED_OFFSET..].copy_from_slice(&old.sequence.to_le_bytes());
        for (index, word) in new.encode(seed, old.sequence).chunks(8).enumerate().filter(|(index, _)| arrived[*index]) {
            bytes[8 * index..][..8].copy_from_slice(word);
        }
        match JournalRecord::decode(&bytes, seed) {
            None => {}
            Some((found, settled)) if found == new => prop_assert!(!settled),
            Some(found) => prop_assert_eq!(found, (old, true)),
        }
    }
}

fn lanes() -> impl Strategy<Value = LaneRecord> {
    let kind = prop::sample::select(&[LaneKind::Clean, LaneKind::Write, LaneKind::Truncate, LaneKind::Journaled][..]);
    (kind, any::<[u64; 5]>(), any::<u16>()).prop_map(|(kind, [inode, generation, offset, length, sequence], owner)| LaneRecord {
        kind,
        inode,
        generation,
        offset,
        length,
        sequence,
        owner,
    })
}

fn records() -> impl Strategy<Value = InodeRecord> {
    let state = prop::sample::select(&[InodeState::Used, InodeState::Orphan][..]);
    let resync = prop::option::of((any::<u64>(), 1..=u64::MAX, any::<u32>()).prop_map(|(start, end, lost)| Resync {
        start,
        end,
        lost: MemberSet::from_bits(lost),
    }));
    (0..=i64::MAX as u64, any::<u64>(), shapes(), state, any::<u32>(), resync)
        .prop_map(|(size, generation, shape, state, flags, resync)| InodeRecord { size, generation, shape, state, flags, resync })
}

proptest! {
    #[test]
    fn superblocks_are_read_as_written(superblock in superblocks()) {
        prop_assert_eq!(superblock.validate(), Ok(()));
        prop_assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
    }

    #[test]
    fn inode_records_are_read_as_written(record in records(), inode in 1..=u64::MAX) {
        prop_assert_eq!(InodeRecord::decode(inode, &record.encode(inode)), Ok(Some(record)));
    }

    #[test]
    fn a_changed_constant_part_of_an_inode_record_is_found(
        record in records(), inode in 1..=u64::MAX, at in 8usize..23, flip in 1u8..,
    ) {
        let mut bytes = record.encode(inode);
        bytes[at] ^= flip;
        prop_assert!(InodeRecord::decode(inode, &bytes).is_err());
        prop_assert_eq!(InodeRecord::decode_version_1(inode, &bytes), Err(InodeError::BadChecksum { inode }));
    }

    #[test]
    fn an_inode_record_belongs_to_its_number(record in records(), inode in 1..=u64::MAX, other in 1..=u64::MAX) {
        prop_assume!(inode != other);
        prop_assert!(InodeRecord::decode(other, &record.encode(inode)).is_err());
    }

    #[test]
    fn size_and_notes_change_in_place_with_their_checks(record in records(), size in 0..=i64::MAX as u64, flags in any::<u32>()) {
        let mut bytes = record.encode(1);
        bytes[SIZE_OFFSET..][..8].copy_from_slice(&size.to_le_bytes());
        bytes[SIZE_CHECK_OFFSET..].copy_from_slice(&size_check(1, record.generation, size).to_le_bytes());
        prop_assert_eq!(InodeRecord::decode(1, &bytes), Ok(Some(InodeRecord { size, ..record })));
        bytes[FLAGS_OFFSET..][..4].copy_from_slice(&flags.to_le_bytes());
        bytes[STATE_OFFSET] = InodeState::Orphan.code();
        let check = notes_check(1, &bytes);
        bytes[NOTES_CHECK_OFFSET..SIZE_CHECK_OFFSET].copy_from_slice(&check.to_le_bytes());
        let changed = InodeRecord { size, flags, state: InodeState::Orphan, ..record };
        prop_assert_eq!(InodeRecord::decode(1, &bytes), Ok(Some(changed)));
        prop_assert_eq!(changed.encode(1), bytes);
        bytes[STATE_OFFSET] = InodeState::Free.code();
        prop_assert!(InodeRecord::decode(1, &bytes).is_err());
        prop_assert_eq!(InodeRecord::decode(1, &with_checks(1, bytes)), Ok(None));
    }

    #[test]
    fn any_changed_bit_of_an_inode_record_is_found_and_another_copy_counts(
        record in records(), inode in 1..=INODE_COUNT_MAX, at in 0usize..64, bit in 0..8, place in 0usize..3, count in 2usize..4,
    ) {
        let right = record.encode(inode);
        let mut damaged = right;
        damaged[at] ^= 1u8 << bit;
        prop_assert!(!is_whole(inode, &damaged));
        let mut copies = [right; 3];
        copies[place.min(count - 1)] = damaged;
        for volatile_order in [false, true] {
            prop_assert_eq!(judge(inode, copies[..count].iter(), volatile_order), Some(right));
        }
    }

    // A size and its check are two stores, in this order, on one member after the other; and a bit
    // of another member's copy is flipped.
    #[test]
    fn a_size_cut_short_on_one_member_is_the_old_or_the_new(
        record in records(), size in 0..=i64::MAX as u64, done in 0usize..4, at in 8usize..56,
    ) {
        let (old, new) = (record.encode(7), InodeRecord { size, ..record }.encode(7));
        let mut torn = old;
        torn[..8].copy_from_slice(&new[..8]);
        let copies: Vec<_> = (0..3).map(|slot| if slot < done { new } else if slot == done { torn } else { old }).collect();
        let found = judge(7, copies.iter(), false);
        prop_assert!(found == Some(old) || found == Some(new));
        // Nowhere a whole copy: the sizes agree, and the notes of the others count.
        let mut flipped = torn;
        flipped[at] ^= 0x20;
        if at >= 28 || at == 23 || (24..28).contains(&at) {
            prop_assert_eq!(judge(7, [torn, flipped, torn].iter(), false), Some(new));
        }
    }

    // One member's medium has lost the last store, or has one that nobody else has: two whole
    // copies count more than a third, wherever it lies; of two that differ the lowest's counts.
    #[test]
    fn of_whole_copies_that_differ_the_most_count_and_never_just_the_lowest(
        record in records(), size in 0..=i64::MAX as u64, flags in any::<u32>(), odd in 0usize..3, volatile_order in any::<bool>(),
    ) {
        prop_assume!(record.size != size);
        let (right, wrong) = (record.encode(7), InodeRecord { size, flags, ..record }.encode(7));
        let copies: Vec<_> = (0..3).map(|slot| if slot == odd { wrong } else { right }).collect();
        prop_assert_eq!(judge(7, copies.iter(), volatile_order), Some(right));
        prop_assert_eq!(judge(7, [right, wrong].iter(), volatile_order), Some(right));
        prop_assert_eq!(judge(7, [wrong, right].iter(), volatile_order), Some(wrong));
        // Size and notes are judged apart: each of three copies may lack another store.
        let sized = InodeRecord { size, ..record }.encode(7);
        let noted = InodeRecord { flags, ..record }.encode(7);
        prop_assert_eq!(judge(7, [right, sized, wrong].iter(), volatile_order), Some(sized));
        if flags != record.flags {
            prop_assert_eq!(judge(7, [sized, noted, right].iter(), volatile_order), Some(right));
        }
        // Two that were put back from the same older copy know less than one of a newer generation.
        let newer = InodeRecord { generation: record.generation.wrapping_add(1).max(1), ..record };
        if newer.generation > record.generation {
            let mut copies = [right; 3];
            copies[odd] = newer.encode(7);
            prop_assert_eq!(judge(7, copies.iter(), volatile_order), Some(newer.encode(7)));
        }
    }

    // A crash has torn the store of a size on every member that still has the record, and the
    // medium of another has lost it.
    #[test]
    fn a_torn_size_is_not_given_up_for_a_copy_that_is_lost(
        record in records(), size in 0..=i64::MAX as u64, lost in 0usize..3, count in 2usize..4, volatile_order in any::<bool>(),
    ) {
        prop_assume!(record.size != size);
        let record = InodeRecord { state: InodeState::Used, ..record };
        let mut torn = record.encode(7);
        torn[..8].copy_from_slice(&size.to_le_bytes());
        let copies: Vec<_> = (0..count).map(|slot| if slot == lost % count { [0; INODE_RECORD_BYTES] } else { torn }).collect();
        prop_assert_eq!(judge(7, copies.iter(), volatile_order), Some(InodeRecord { size, ..record }.encode(7)));
    }

    #[test]
    fn a_shape_lists_each_member_once_from_its_start_on(shape in shapes()) {
        let slots: Vec<_> = shape.slots().collect();
        prop_assert_eq!(slots[0], shape.start_slot());
        prop_assert_eq!(slots.len(), shape.geometry().member_count());
        prop_assert_eq!(slots.iter().copied().collect::<MemberSet>(), shape.members());
        let turns = slots.windows(2).filter(|pair| pair[0] > pair[1]).count();
        prop_assert!(turns <= 1, "{slots:?}");
    }

    #[test]
    fn attributes_are_read_as_written_and_damage_is_found(
        inode in 1..=u64::MAX, generation in any::<u64>(), at in 0..ATTRIBUTE_BYTES, flip in 1u8..,
    ) {
        let attribute = Attribute { inode, generation };
        let mut bytes = attribute.encode();
        prop_assert_eq!(Attribute::decode(&bytes), Ok(attribute));
        bytes[at] ^= flip;
        prop_assert_eq!(Attribute::decode(&bytes), Err(AttributeError::BadChecksum));
    }

    #[test]
    fn lanes_are_read_as_written(lane in lanes()) {
        prop_assert_eq!(LaneRecord::decode(&lane.encode()), Ok(lane));
    }

    #[test]
    fn a_lane_with_one_word_changed_is_torn(lane in lanes(), word in 0usize..8, flip in 1..=u64::MAX) {
        let mut bytes = lane.encode();
        bytes[8 * word..][..8].iter_mut().zip(flip.to_le_bytes()).for_each(|(byte, flip)| *byte ^= flip);
        prop_assert_eq!(LaneRecord::decode(&bytes), Err(LaneError::Torn));
    }

    #[test]
    fn nothing_on_media_makes_decode_panic(bytes in prop::collection::vec(any::<u8>(), 64), length in 0usize..64) {
        let record: &[u8; 64] = bytes.as_slice().try_into().unwrap();
        let _ = InodeRecord::decode(1, record);
        let _ = LaneRecord::decode(record);
        let _ = Attribute::decode(&bytes[..length]);
        let _ = Superblock::choose(&bytes[..length]);
        let _ = TableHeader::decode(TableKind::Lanes, &bytes[..length]);
    }
}

#[test]
fn every_changed_byte_of_a_superblock_is_found() {
    let valid = fixture::superblock().encode();
    for at in 0..COPY_BYTES {
        let mut bytes = valid;
        bytes[at] ^= 1 << (at % 8);
        let error = Superblock::decode(&bytes).unwrap_err();
        let expected = if at < 8 { SuperblockError::NotASuperblock } else { SuperblockError::BadChecksum { copy: 0 } };
        assert_eq!(error, expected, "byte {at}");
    }
}

#[test]
fn every_changed_byte_of_a_table_header_is_found() {
    let kind = TableKind::Lanes;
    let valid = fixture::table(kind).encode();
    // The other mark and reserved bytes say nothing.
    for at in (0..80).chain(4092..TABLE_HEADER_BYTES) {
        let mut bytes = valid;
        bytes[at] ^= 1 << (at % 8);
        let expected = if at < 8 { TableError::NotATable { kind } } else { TableError::BadChecksum { kind } };
        assert_eq!(TableHeader::decode(kind, &bytes), Err(expected), "byte {at}");
    }
}

#[test]
fn superblocks_that_make_no_sense_are_refused() {
    type Change = fn(&mut Superblock);
    let changes: [(&str, Change); 12] = [
        ("array UUID", |s| s.array_uuid = Uuid::NIL),
        ("member UUID", |s| s.member_uuid = Uuid::NIL),
        ("slot", |s| s.slot = MEMBER_COUNT_MAX),
        ("member count", |s| s.member_count = 2),
        ("member count", |s| s.member_count = 33),
        ("mode", |s| s.access.mode = 0o10000),
        ("member table", |s| s.slot = 0),
        ("member table", |s| s.members[0].state = MemberState::Absent),
        ("member table", |s| s.members[0].state = MemberState::Spare),
        ("member table", |s| s.members[0].uuid = Uuid::NIL),
        ("member table", |s| s.members[4].state = MemberState::InSync),
        ("member table", |s| s.members[4].uuid = Uuid::NIL),
    ];
    for (field, change) in changes {
        let mut superblock = fixture::superblock();
        change(&mut superblock);
        assert_eq!(superblock.validate(), Err(SuperblockError::Invalid { field }));
        assert_eq!(Superblock::decode(&superblock.encode()), Err(SuperblockError::Invalid { field }));
    }
}

#[test]
fn a_file_starts_on_one_of_its_members() {
    let members = MemberSet::first(4).without(1);
    let shape = Shape::new(Level::Raid5, ChunkBytes::DEFAULT, members, 1);
    assert_eq!(shape, Err(ShapeError::StartOutside { start_slot: 1 }));
    let shape = Shape::new(Level::Raid5, ChunkBytes::DEFAULT, members, 2).unwrap();
    assert!(shape.slots().eq([2, 3, 0]));
}
