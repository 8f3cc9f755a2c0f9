//! The values that the golden images hold. `examples/golden.rs` writes the images from them,
//! `golden` compares the images with them.
//!
//! Never change a value here: the images are frozen. A new version of a structure gets values of
//! its own.

use cxlraid_format::*;
use layout::Level;
use units::{ChunkBytes, MemberSet};

pub(crate) const ARRAY: Uuid =
    Uuid([0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0x46, 0xa7, 0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf]);
pub(crate) const OTHER_ARRAY: Uuid = Uuid([0xee; 16]);

pub(crate) const fn member(slot: usize) -> Uuid {
    let mut bytes = [0xb0; 16];
    bytes[15] = slot as u8;
    Uuid(bytes)
}

/// Four members of RAID 5, one of them stale, one never given, and a spare.
pub(crate) fn superblock() -> Superblock {
    use MemberState::{InSync, Missing, Spare, Stale};
    let mut members = [MemberEntry::default(); 32];
    members[0] = MemberEntry { uuid: member(0), state: InSync, out_count: 0, flags: 0 };
    members[1] = MemberEntry { uuid: member(1), state: InSync, out_count: 0, flags: 0 };
    members[2] = MemberEntry { uuid: Uuid::NIL, state: Missing, out_count: 0, flags: 0 };
    members[3] = MemberEntry { uuid: member(3), state: Stale, out_count: 0, flags: 0 };
    members[4] = MemberEntry { uuid: member(4), state: Spare, out_count: 0, flags: 0 };
    Superblock {
        features: Features { compatible: 0x8000_0000_0000_0001, incompatible: 0, read_only_compatible: 0 },
        array_uuid: ARRAY,
        array_name: ArrayName::new("golden päckchen").unwrap(),
        member_uuid: member(1),
        slot: 1,
        member_count: 4,
        level: Level::Raid5,
        chunk: ChunkBytes::DEFAULT,
        access: Access { owner_uid: 1000, owner_gid: 100, mode: 0o660 },
        created_ns: 1_700_000_000_123_456_789,
        event_count: 41,
        use_count: 0,
        clean_count: 0,
        update_id: 0,
        previous_update_id: 0,
        read_policy: 0,
        update_ns: 1_700_000_100_000_000_000,
        copy_sequence: 7,
        members,
        journal: None,
    }
}

/// The next one: member 3 was rebuilt.
pub(crate) fn superblock_next() -> Superblock {
    let mut next = superblock();
    next.members[3].state = MemberState::InSync;
    next.event_count = 42;
    next.copy_sequence = 8;
    next.update_ns += 1_000_000_000;
    next
}

/// Member 2 was replaced, and is being rebuilt.
pub(crate) fn superblock_rebuilding() -> Superblock {
    let mut next = superblock_next();
    next.members[2] = MemberEntry { uuid: member(2), state: MemberState::Rebuilding, out_count: 0, flags: 0 };
    next.event_count = 43;
    next.copy_sequence = 9;
    next
}

/// The same with what version 1.1 added: a journal elsewhere, then one on the members.
pub(crate) fn superblocks_1_1() -> [Superblock; 2] {
    let path = JournalPath::new(b"/mnt/journal/cxlraid.journal");
    [
        Superblock { journal: Some(JournalEntry { uuid: JOURNAL, path }), ..superblock() },
        Superblock { journal: Some(JournalEntry { uuid: JOURNAL, path: None }), ..superblock_next() },
    ]
}

/// The same with what version 1.2 added.
pub(crate) fn superblocks_1_2() -> [Superblock; 2] {
    superblocks_1_1().map(|superblock| Superblock { use_count: 40, ..superblock })
}

/// The same with what version 1.3 added: the first was ended in order, the second is in use since.
pub(crate) fn superblocks_1_3() -> [Superblock; 2] {
    superblocks_1_2().map(|superblock| Superblock { clean_count: 41, ..superblock })
}

/// The same with what version 1.4 added: the second follows the first, and says when member 3 went
/// out.
pub(crate) fn superblocks_1_4() -> [Superblock; 2] {
    let [first, second] = superblocks_1_3();
    let first = Superblock { update_id: 0x1111_2222_3333_4444, previous_update_id: 0x5555_6666_7777_8888, ..first };
    let mut second = Superblock { update_id: u64::MAX, previous_update_id: first.update_id, ..second };
    second.members[3] = MemberEntry { uuid: member(3), state: MemberState::Missing, out_count: 41, flags: 0 };
    [first, second]
}

/// Returns the superblocks of version 1.4 with what version 1.5 added: members 1 and 3 are written
/// mostly, and member 3 has a bit of a later version.
pub(crate) fn superblocks_1_5() -> [Superblock; 2] {
    superblocks_1_4().map(|mut superblock| {
        superblock.members[1].flags = MemberEntry::WRITE_MOSTLY;
        superblock.members[3].flags = MemberEntry::WRITE_MOSTLY | 0x80;
        superblock
    })
}

/// Returns the superblocks of version 1.5 with what version 1.6 added: the read policy, in the second
/// one of a later version; and the second one says that another directory has its member's place.
pub(crate) fn superblocks_1_6() -> [Superblock; 2] {
    let [first, mut second] = superblocks_1_5();
    let own = second.slot;
    second.members[own].state = MemberState::Stale;
    second.members[own].flags |= MemberEntry::REPLACED;
    [Superblock { read_policy: ReadPolicy::Latency.code(), ..first }, Superblock { read_policy: 0xf3, ..second }]
}

pub(crate) const JOURNAL: Uuid =
    Uuid([0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0x46, 0xc7, 0xa8, 0xc9, 0xca, 0xcb, 0xcc, 0xcd, 0xce, 0xcf]);

/// A journal of two short lanes.
pub(crate) const JOURNAL_HEADER: JournalHeader =
    JournalHeader { array_uuid: ARRAY, journal_uuid: JOURNAL, lane_count: 2, lane_bytes: 8192 };

/// The records of its lanes; the second is settled.
pub(crate) const JOURNAL_RECORDS: [JournalRecord; 2] = [
    JournalRecord {
        inode: 0x0102_0304_0506_0708,
        generation: 9,
        offset: 0x0001_0000_0040,
        length: 100,
        payload_bytes: 256,
        out: MemberSet::from_bits(0b100),
        grows: true,
        sequence: 77,
    },
    JournalRecord {
        inode: 1,
        generation: u64::MAX,
        offset: 0,
        length: 4096,
        payload_bytes: 4096,
        out: MemberSet::EMPTY,
        grows: false,
        sequence: u64::MAX,
    },
];

/// Inodes 1, 2, ...; `None` is a free record.
pub(crate) fn inodes() -> [Option<InodeRecord>; 5] {
    let shape = |level, shift, members: &[usize], start| {
        let members: MemberSet = members.iter().copied().collect();
        Shape::new(level, ChunkBytes::from_shift(shift).unwrap(), members, start).unwrap()
    };
    let record = |generation, shape| InodeRecord::new(generation, shape);
    [
        Some(InodeRecord {
            size: 0x0012_3456_789a_bcde,
            flags: FLAG_HOLES | FLAG_SLACK,
            ..record(1, shape(Level::Raid5, 16, &[0, 1, 2, 3], 2))
        }),
        Some(InodeRecord { size: 5, ..record(u64::MAX, shape(Level::Raid1, 16, &[1, 3], 1)) }),
        None,
        Some(InodeRecord { state: InodeState::Orphan, ..record(9, shape(Level::Raid10, 6, &[0, 1, 2, 31], 31)) }),
        Some(record(10, shape(Level::Raid01, 26, &[0, 1, 2, 3], 0))),
    ]
}

/// The same with what version 1.1 added.
pub(crate) fn inodes_1_1() -> [Option<InodeRecord>; 5] {
    let mut inodes = inodes();
    let lost = MemberSet::EMPTY.with(1).with(3);
    let resyncs = [Resync { start: 0x1000, end: 0x0002_0000_1000, lost: MemberSet::EMPTY }, Resync { start: 0, end: 5, lost }];
    for (record, resync) in inodes.iter_mut().flatten().zip(resyncs) {
        record.resync = Some(resync);
    }
    if let Some(record) = &mut inodes[3] {
        record.flags |= FLAG_DOUBTFUL;
    }
    inodes
}

pub(crate) const ATTRIBUTE: Attribute = Attribute { inode: 0x0102_0304_0506_0708, generation: 0x1112_1314_1516_1718 };

/// The table's own number and the backing files of inodes 1 to 3, each with its generation; nothing
/// is known of inode 2.
pub(crate) const BACKINGS: [[u64; 2]; 4] =
    [[0x0102_0304, 1], [0x1112_1314_1516_1718, 7], [0, 0], [0x2122, 0x3132_3334_3536_3738]];

/// States how the members in slots 0 and 2 left.
pub(crate) const LEAVES: [(usize, Leave); 2] = [
    (0, Leave { event: 41, token: 0, left_ns: 1_700_000_100_000_000_000 }),
    (2, Leave { event: 43, token: 0x0102_0304_0506_0708, left_ns: 1_700_000_200_000_000_000 }),
];
/// The updates of the superblocks that a table of changed files names.
pub(crate) const UPDATES: [u64; CHANGED_UPDATE_COUNT] = [0x1112_1314_1516_1718, 0x2122_2324_2526_2728];
/// A member that was begun anew keeps its files.
pub(crate) const KEPT: Kept = Kept { member_uuid: member(2), event: 43, left_ns: 1_700_000_200_000_000_000 };

/// The header of a table of version 2.0.
pub(crate) fn table(kind: TableKind) -> TableHeader {
    TableHeader::new(kind, ARRAY, member(1), 40)
}

/// Lanes 0, 1, ...
pub(crate) const LANES: [LaneRecord; 3] = [
    LaneRecord {
        kind: LaneKind::Write,
        inode: 1,
        generation: 1,
        offset: 0x0001_0000_0000,
        length: 4096,
        sequence: 77,
        owner: 0x0203,
    },
    LaneRecord { kind: LaneKind::Truncate, inode: 4, generation: 9, offset: 1, length: u64::MAX - 1, sequence: 1, owner: 0 },
    LaneRecord { kind: LaneKind::Clean, inode: 0, generation: 0, offset: 0, length: 0, sequence: 78, owner: 0xffff },
];

/// Records of the log of names, one after the other.
pub(crate) const NAMES: [NameRecord<'static>; 3] = [
    NameRecord {
        sequence: 41,
        kind: NameKind::Make,
        void: false,
        exchange: false,
        file: Some(Attribute { inode: 5, generation: 9 }),
        replaced: None,
        path: b"/data/new",
        to: b"",
    },
    NameRecord {
        sequence: 42,
        kind: NameKind::Rename,
        void: false,
        exchange: true,
        file: Some(Attribute { inode: 5, generation: 9 }),
        replaced: Some(Attribute { inode: 4, generation: 1 }),
        path: b"/data/new",
        to: b"/data/a directory with a name that makes the record longer than one line/old",
    },
    NameRecord {
        sequence: 43,
        kind: NameKind::RemoveDirectory,
        void: true,
        exchange: false,
        file: None,
        replaced: None,
        path: b"/data/full",
        to: b"",
    },
];
