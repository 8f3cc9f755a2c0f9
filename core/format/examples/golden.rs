//! Writes the golden images that are missing in tests/golden; never touches one that is there,
//! because a released format is frozen. `cargo run -p cxlraid-format --example golden`
//!
//! What no program of this version would write (a newer version, damage, nonsense under a right
//! checksum) is made by patching bytes at offsets taken from docs/format, not from the code.

#[path = "../tests/format/fixture.rs"]
mod fixture;

use crc::{CRC_32_ISCSI, Crc};
use cxlraid_format::*;
use std::{fs, io, path::Path};

const CHECKSUM_AT: usize = 4092;
const MAJOR_AT: usize = 8;
const MINOR_AT: usize = 10;
const RECORD_BYTES_AT: usize = 12;
const INCOMPATIBLE_AT: usize = 24;
const READ_ONLY_COMPATIBLE_AT: usize = 32;
const LEVEL_AT: usize = 182;
const JOURNAL_KIND_AT: usize = 1216;
const LANE_COUNT_AT: usize = 48;

fn main() -> io::Result<()> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    fs::create_dir_all(&directory)?;
    let images = superblocks()
        .into_iter()
        .chain(inode_tables())
        .chain(backing_tables())
        .chain(changed_tables())
        .chain(attributes())
        .chain(lane_files())
        .chain(name_logs())
        .chain(journals());
    for (name, bytes) in images {
        let path = directory.join(format!("{name}.bin"));
        if path.exists() {
            println!("kept     {name}");
            continue;
        }
        fs::write(&path, bytes)?;
        println!("written  {name}");
    }
    Ok(())
}

type Image = (&'static str, Vec<u8>);

/// `block` with `patch` at `at`, under a right checksum.
fn patched(mut block: [u8; 4096], at: usize, patch: &[u8]) -> [u8; 4096] {
    block[at..at + patch.len()].copy_from_slice(patch);
    let checksum = Crc::<u32>::new(&CRC_32_ISCSI).checksum(&block[..CHECKSUM_AT]);
    block[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
    block
}

/// The header of a table as version 1 had it: without member and marks.
fn header_1(kind: TableKind, minor: u8) -> [u8; 4096] {
    let mut header = fixture::table(kind).encode();
    header[32..CHECKSUM_AT].fill(0);
    if kind == TableKind::Backings {
        header[RECORD_BYTES_AT] = 16;
    }
    patched(header, MAJOR_AT, &[1, 0, minor, 0])
}

/// The record of a table of version 1: without checks of size and notes.
fn record_1(inode: u64, record: InodeRecord) -> [u8; 64] {
    let mut bytes = record.encode(inode);
    bytes[52..].fill(0);
    bytes
}

/// `bytes` with one byte changed.
fn damaged(mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
    bytes[at] ^= 0x10;
    bytes
}

fn superblocks() -> Vec<Image> {
    // What 1.0 has not: the minor version, and the journal.
    let as_1_0 = |superblock: Superblock| patched(superblock.encode(), MINOR_AT, &[0, 0]);
    let (old, new) = (as_1_0(fixture::superblock()), as_1_0(fixture::superblock_next()));
    let journals = fixture::superblocks_1_1().map(|superblock| patched(superblock.encode(), MINOR_AT, &[1, 0]));
    let valid = [old, new].concat();
    let torn = [old, [&new[..1000], &[0; 3096]].concat().try_into().expect("4096 bytes")].concat();
    let both_damaged = damaged(damaged(valid.clone(), 100), 4096 + 4000);
    let other = as_1_0(Superblock { array_uuid: fixture::OTHER_ARRAY, ..fixture::superblock_next() });
    let foreign: Vec<u8> = (0..8192u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    vec![
        ("superblock-1.0", valid.clone()),
        ("superblock-1.1", journals.concat()),
        ("superblock-1.1-rebuilding", patched(fixture::superblock_rebuilding().encode(), MINOR_AT, &[1, 0]).to_vec()),
        ("superblock-1.2", fixture::superblocks_1_2().map(|superblock| patched(superblock.encode(), MINOR_AT, &[2, 0])).concat()),
        ("superblock-1.3", fixture::superblocks_1_3().map(|superblock| patched(superblock.encode(), MINOR_AT, &[3, 0])).concat()),
        ("superblock-1.4", fixture::superblocks_1_4().map(|superblock| patched(superblock.encode(), MINOR_AT, &[4, 0])).concat()),
        ("superblock-1.5", fixture::superblocks_1_5().map(|superblock| patched(superblock.encode(), MINOR_AT, &[5, 0])).concat()),
        ("superblock-1.6", fixture::superblocks_1_6().map(|superblock| superblock.encode()).concat()),
        ("superblock-journal-invalid", journals.map(|copy| patched(copy, JOURNAL_KIND_AT, &[9])).concat()),
        ("superblock-torn", torn),
        ("superblock-corrupt", both_damaged),
        ("superblock-newer", [old, patched(new, MAJOR_AT, &[2, 0, 3, 0])].concat()),
        ("superblock-newer-minor", [old, patched(new, MAJOR_AT, &[1, 0, 9, 0])].concat()),
        ("superblock-incompatible", [old, patched(new, INCOMPATIBLE_AT, &[0, 0, 0, 0x40])].concat()),
        ("superblock-read-only", [old, patched(new, READ_ONLY_COMPATIBLE_AT, &[0x02])].concat()),
        ("superblock-invalid", [old, patched(new, LEVEL_AT, &[7])].concat()),
        ("superblock-disagree", [old, other].concat()),
        ("superblock-truncated", valid[..5000].to_vec()),
        ("superblock-cut-short", valid[..1000].to_vec()),
        ("superblock-foreign", foreign),
        ("superblock-zeros", vec![0; 8192]),
    ]
}

fn inode_tables() -> Vec<Image> {
    let encoded = |records: [Option<InodeRecord>; 5], encode: fn(u64, InodeRecord) -> [u8; 64]| -> Vec<u8> {
        (1..).zip(records).flat_map(|(inode, record)| record.map_or([0; 64], |record| encode(inode, record))).collect()
    };
    let records = encoded(fixture::inodes(), record_1);
    let valid = [&header_1(TableKind::Inodes, 0)[..], &records].concat();
    // The record of inode 1 where that of inode 2 should be: whole, in the wrong place.
    let mut misplaced = valid.clone();
    misplaced.copy_within(4096..4160, 4160);
    let header = fixture::table(TableKind::Inodes).encode();
    let checked = [&header[..], &encoded(fixture::inodes_1_1(), |inode, record| record.encode(inode))].concat();
    // The second mark is the newer one, and it was cut short in the other.
    let mut marked = checked.clone();
    for use_count in [44, 46] {
        let (at, mark) = TableHeader::next_mark(TableKind::Inodes, &marked, use_count).expect("a table");
        marked[at as usize..][..TABLE_MARK_BYTES].copy_from_slice(&mark);
    }
    let mut torn = marked.clone();
    torn[72] ^= 1;
    vec![
        ("inodes-1.0", valid.clone()),
        ("inodes-1.1", [&header_1(TableKind::Inodes, 1)[..], &encoded(fixture::inodes_1_1(), record_1)].concat()),
        ("inodes-2.0", checked.clone()),
        ("inodes-2.0-marked", marked),
        ("inodes-2.0-torn-mark", torn),
        ("inodes-2.0-corrupt-size", damaged(checked.clone(), 4096 + 3)),
        ("inodes-2.0-corrupt-notes", damaged(checked, 4096 + 24)),
        ("inodes-corrupt-record", damaged(valid.clone(), 4096 + 17)),
        ("inodes-misplaced-record", misplaced),
        ("inodes-corrupt-header", damaged(valid, 20)),
        ("inodes-newer-3", {
            let mut newer = header;
            newer[MAJOR_AT] = 3;
            let checksum = Crc::<u32>::new(&CRC_32_ISCSI).checksum(&newer[..64]);
            newer[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
            [&newer[..], &records].concat()
        }),
    ]
}

fn backing_tables() -> Vec<Image> {
    let records = fixture::BACKINGS.map(|[file, generation]| [file.to_le_bytes(), generation.to_le_bytes()].concat());
    let checked = (0..).zip(fixture::BACKINGS).flat_map(|(inode, [file, generation])| {
        let check = if file == 0 { 0 } else { backing_check(inode, file, generation) };
        [file, generation, check, 0].map(u64::to_le_bytes).concat()
    });
    vec![
        ("backings-1.0", [&header_1(TableKind::Backings, 0)[..], &records.concat()].concat()),
        ("backings-2.0", fixture::table(TableKind::Backings).encode().into_iter().chain(checked).collect()),
    ]
}

fn changed_tables() -> Vec<Image> {
    let mut table = vec![0; CHANGED_MARKS_OFFSET as usize + 8];
    table[..TABLE_HEADER_BYTES].copy_from_slice(&fixture::table(TableKind::Changed).encode());
    for (slot, leave) in fixture::LEAVES {
        table[changed_record_offset(slot) as usize..][..CHANGED_RECORD_BYTES].copy_from_slice(&leave.encode(slot));
    }
    for (index, update_id) in fixture::UPDATES.into_iter().enumerate() {
        let record = encode_changed_update(index, update_id);
        table[changed_update_offset(index) as usize..][..CHANGED_RECORD_BYTES].copy_from_slice(&record);
    }
    for mark in 0..4 {
        let bytes = if mark == 2 { CHANGED } else { unchanged_mark(fixture::ARRAY, fixture::member(1), mark) };
        table[8192 + 2 * mark..][..2].copy_from_slice(&bytes);
    }
    let mut void = table.clone();
    void[changed_void_offset() as usize..][..CHANGED_RECORD_BYTES].copy_from_slice(&changed_void());
    let torn = damaged(table.clone(), 4096 + 2 * 32 + 8);
    vec![
        ("changed-2.0", table),
        ("changed-2.0-void", void),
        ("changed-2.0-torn", torn),
        ("kept-1", fixture::KEPT.encode().to_vec()),
    ]
}

fn attributes() -> Vec<Image> {
    let valid = fixture::ATTRIBUTE.encode().to_vec();
    let mut newer = valid.clone();
    newer[0] = 2;
    let checksum = Crc::<u32>::new(&CRC_32_ISCSI).checksum(&newer[..20]);
    newer[20..].copy_from_slice(&checksum.to_le_bytes());
    vec![("attribute-1", valid.clone()), ("attribute-corrupt", damaged(valid, 9)), ("attribute-newer", newer)]
}

fn name_logs() -> Vec<Image> {
    let mut valid = header_1(TableKind::Names, 0).to_vec();
    for record in fixture::NAMES {
        valid.extend([&record.encode_head()[..], record.path, record.to].concat());
        valid.resize(valid.len().next_multiple_of(NAME_RECORD_ALIGN), 0);
    }
    let newer = [&fixture::table(TableKind::Names).encode()[..], &valid[4096..]].concat();
    vec![("names-1.0", valid.clone()), ("names-2.0", newer), ("names-corrupt-record", damaged(valid, 4096 + 66))]
}

fn lane_files() -> Vec<Image> {
    let mut valid = header_1(TableKind::Lanes, 0).to_vec();
    valid.extend(fixture::LANES.iter().flat_map(LaneRecord::encode));
    valid.resize(LANE_FILE_BYTES, 0);
    // Lane 0: the first half of a new record over the old one.
    let mut torn = valid.clone();
    let next = LaneRecord { offset: 0x5000, sequence: 78, ..fixture::LANES[0] }.encode();
    torn[4096..4096 + 32].copy_from_slice(&next[..32]);
    let newer = [&fixture::table(TableKind::Lanes).encode()[..], &valid[4096..]].concat();
    vec![("lanes-1.0", valid), ("lanes-2.0", newer), ("lanes-torn", torn)]
}

fn journals() -> Vec<Image> {
    let header = fixture::JOURNAL_HEADER;
    let mut valid = header.encode().to_vec();
    valid.resize(header.file_bytes() as usize, 0);
    for (lane, record) in fixture::JOURNAL_RECORDS.into_iter().enumerate() {
        let at = header.lane_offset(lane) as usize;
        valid[at..at + 64].copy_from_slice(&record.encode(header.seed(), 0));
    }
    // The second record is settled.
    let at = header.lane_offset(1) as usize;
    valid.copy_within(at + 24..at + 32, at + 56);
    let mut torn = valid.clone();
    let next = JournalRecord { offset: 0x5000, sequence: 78, ..fixture::JOURNAL_RECORDS[0] }.encode(header.seed(), 0);
    let at = header.lane_offset(0) as usize;
    torn[at..at + 32].copy_from_slice(&next[..32]);
    let patched_header = |at, patch: &[u8]| [&patched(header.encode(), at, patch)[..], &valid[4096..]].concat();
    vec![
        ("journal-1.0", valid.clone()),
        ("journal-torn", torn),
        ("journal-corrupt", damaged(valid.clone(), 20)),
        ("journal-newer", patched_header(MAJOR_AT, &[2, 0])),
        ("journal-invalid", patched_header(LANE_COUNT_AT, &[0, 1])),
    ]
}
