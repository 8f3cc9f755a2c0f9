//! `cxlraid examine`: a member's superblock, both copies, as text.
//!
//! Nothing is changed: the file is opened for reading only.

use crate::{
    failure::Failure,
    inspect::{self, read_superblock, superblock_file},
    journal,
    spec::chunk_text,
    view::{JournalSummary, tree},
};
use format::{COPY_BYTES, MemberState, Superblock, SuperblockError};
use jiff::Timestamp;
use std::{io, os::unix::ffi::OsStrExt as _, path::Path};

/// The report on a member; an error if it has no usable superblock.
pub(crate) fn report(member: &Path) -> Result<String, Failure> {
    let file = superblock_file(member);
    let absolute = std::path::absolute(member).unwrap_or_else(|_| member.to_owned());
    array::check_rights(absolute.as_os_str().as_bytes()).map_err(|error| inspect::refused("array", &error.to_string()))?;
    let bytes = read_superblock(member).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound if member.is_dir() => {
            Failure::new(member.display(), "has no superblock", "name a member directory, and check that its device is mounted")
        }
        io::ErrorKind::NotFound => Failure::new(member.display(), "no such directory", "name a member directory"),
        _ => Failure::new(file.display(), error, "check the path and its permissions"),
    })?;
    let (superblock, used) = Superblock::choose(&bytes).map_err(|error| {
        let text = error.to_string();
        let (what, todo) = text.rsplit_once("; ").unwrap_or((&text, ""));
        Failure::new(file.display(), what, todo)
    })?;
    let journal = journal::summary_of_member(member, &superblock);
    Ok(text(member, &superblock, &copies(&bytes, used), journal.as_ref(), Timestamp::now()))
}

/// One phrase per copy.
fn copies(bytes: &[u8], used: usize) -> [String; 2] {
    [0, 1].map(|copy| {
        let state = match decode(bytes, copy) {
            Ok(superblock) => format!("valid, sequence {}", superblock.copy_sequence),
            Err(SuperblockError::BadChecksum { .. }) => "damaged (wrong checksum)".to_owned(),
            Err(SuperblockError::NotASuperblock) => "empty".to_owned(),
            Err(error) => error.to_string(),
        };
        let used = if copy == used { ", in use" } else { "" };
        format!("Copy {copy}: {state}{used}")
    })
}

fn decode(bytes: &[u8], copy: usize) -> Result<Superblock, SuperblockError> {
    let rest = bytes.get(copy * COPY_BYTES..).unwrap_or_default();
    match rest.first_chunk::<COPY_BYTES>() {
        Some(bytes) => Superblock::decode(bytes),
        None => Err(SuperblockError::Truncated { bytes: rest.len() }),
    }
}

fn text(
    member: &Path,
    superblock: &Superblock,
    copies: &[String; 2],
    journal: Option<&JournalSummary>,
    now: Timestamp,
) -> String {
    let name = match superblock.array_name.as_str() {
        "" => "none",
        name => name,
    };
    let mut array = vec![
        format!("Name: {name}"),
        format!("UUID: {}", superblock.array_uuid),
        format!("RAID Level: {}", superblock.level),
        format!("Members: {}", superblock.member_count),
        format!("Created: {}", age(superblock.created_ns, now)),
        journal.map_or_else(
            || "Journal: none".to_owned(),
            |journal| format!("Journal: {}, {}", journal.place, journal.state_text()),
        ),
    ];
    if superblock.has_shapes() {
        array.push("File Levels: files may have their own, by rules ('cxlraid policy')".to_owned());
    }
    if superblock.level.keeps_copies() {
        array.push(format!("Read Policy: {}", superblock.read_policy().name()));
    }
    if superblock.has_sums() {
        array.push("Checksum: crc32c".to_owned());
        array.push(format!("Reads Verified: {}", if superblock.verifies_reads() { "yes" } else { "no" }));
    }
    if superblock.level.has_chunks() {
        array.insert(3, format!("Chunk: {}", chunk_text(superblock.chunk)));
    }
    let access = superblock.access;
    let mut this = vec![
        format!("UUID: {}", superblock.member_uuid),
        format!("Slot: {}", superblock.slot),
        format!("Event Count: {}", superblock.event_count),
        format!("Written: {}", age(superblock.update_ns, now)),
        format!("Access: uid {}, gid {}, mode {:04o}", access.owner_uid, access.owner_gid, access.mode),
        copies[0].clone(),
        copies[1].clone(),
    ];
    let own = superblock.members[superblock.slot];
    if own.is_replaced() && !own.state.is_in_use() {
        this.insert(2, "Place: replaced, another directory has its place in the array".to_owned());
    }
    let seen = superblock.members.iter().enumerate().filter(|(_, entry)| entry.state != MemberState::Absent);
    let seen: Vec<String> = seen
        .map(|(slot, entry)| {
            let uuid = if entry.uuid.is_nil() { String::new() } else { format!(", {}", entry.uuid) };
            let mostly = if entry.is_write_mostly() { ", write-mostly" } else { "" };
            let fast = if entry.is_fast() { ", fast" } else { "" };
            format!("Slot {slot}: {}{mostly}{fast}{uuid}", state_text(entry.state))
        })
        .collect();
    let sections = [
        tree(&format!("Member {}", member.display()), &this),
        tree("Array", &array),
        tree("Members as this one last saw them", &seen),
    ];
    sections.join("\n")
}

const fn state_text(state: MemberState) -> &'static str {
    match state {
        MemberState::Absent => "absent",
        MemberState::InSync => "in sync",
        MemberState::Missing => "missing",
        MemberState::Failed => "failed",
        MemberState::Stale => "stale",
        MemberState::Spare => "spare",
        MemberState::Rebuilding => "rebuilding",
    }
}

/// "2023-11-14T22:13:20Z, 3 h ago": the time in UTC (RFC 3339), and how long that was.
fn age(ns: u64, now: Timestamp) -> String {
    let Ok(then) = Timestamp::from_second((ns / 1_000_000_000) as i64) else { return "at no time".to_owned() };
    let Ok(elapsed) = u64::try_from(now.as_second() - then.as_second()) else { return format!("{then}, in the future") };
    let text = match elapsed {
        0..120 => format!("{elapsed} s"),
        120..7_200 => format!("{} min", elapsed / 60),
        7_200..172_800 => format!("{} h", elapsed / 3_600),
        _ => format!("{} days", elapsed / 86_400),
    };
    format!("{then}, {text} ago")
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::{Access, ArrayName, Features, MemberEntry, Uuid};
    use layout::Level;
    use std::fs;
    use units::{ChunkBytes, MEMBER_COUNT_MAX};

    fn superblock() -> Superblock {
        let mut members = [MemberEntry::default(); MEMBER_COUNT_MAX];
        members[0] = MemberEntry { uuid: Uuid([1; 16]), state: MemberState::InSync, out_count: 0, flags: 0 };
        members[1] = MemberEntry { uuid: Uuid::NIL, state: MemberState::Missing, out_count: 0, flags: 0 };
        members[2] = MemberEntry { uuid: Uuid([3; 16]), state: MemberState::InSync, out_count: 0, flags: 0 };
        Superblock {
            journal: None,
            features: Features::default(),
            array_uuid: Uuid([9; 16]),
            array_name: ArrayName::new("db").unwrap(),
            member_uuid: Uuid([3; 16]),
            slot: 2,
            member_count: 3,
            level: Level::Raid5,
            chunk: ChunkBytes::DEFAULT,
            access: Access { owner_uid: 1000, owner_gid: 1000, mode: 0o600 },
            created_ns: 1_700_000_000 * 1_000_000_000,
            event_count: 4,
            use_count: 0,
            clean_count: 0,
            update_id: 0,
            previous_update_id: 0,
            read_policy: 0,
            update_ns: 1_700_000_000 * 1_000_000_000 + 7,
            copy_sequence: 6,
            members,
        }
    }

    fn member_with(bytes: &[u8]) -> tempfile::TempDir {
        let member = tempfile::tempdir().unwrap();
        fs::create_dir(member.path().join(".cxlraid")).unwrap();
        fs::write(member.path().join(".cxlraid/superblock"), bytes).unwrap();
        member
    }

    #[test]
    fn a_member_is_described() {
        let copies = ["Copy 0: a".to_owned(), "Copy 1: b".to_owned()];
        let now = Timestamp::from_second(1_700_000_000 + 3 * 3600).unwrap();
        let expected = "\
Member /mnt/c
├─ UUID: 03030303-0303-0303-0303-030303030303
├─ Slot: 2
├─ Event Count: 4
├─ Written: 2023-11-14T22:13:20Z, 3 h ago
├─ Access: uid 1000, gid 1000, mode 0600
├─ Copy 0: a
└─ Copy 1: b

Array
├─ Name: db
├─ UUID: 09090909-0909-0909-0909-090909090909
├─ RAID Level: 5
├─ Chunk: 64K
├─ Members: 3
├─ Created: 2023-11-14T22:13:20Z, 3 h ago
└─ Journal: none

Members as this one last saw them
├─ Slot 0: in sync, 01010101-0101-0101-0101-010101010101
├─ Slot 1: missing
└─ Slot 2: in sync, 03030303-0303-0303-0303-030303030303
";
        assert_eq!(text(Path::new("/mnt/c"), &superblock(), &copies, None, now), expected);
    }

    #[test]
    fn a_member_that_was_replaced_says_so() {
        let mut replaced = superblock();
        replaced.members[2].state = MemberState::Stale;
        replaced.members[2].flags = MemberEntry::REPLACED;
        let copies = ["Copy 0: a".to_owned(), "Copy 1: b".to_owned()];
        let text = text(Path::new("/mnt/c"), &replaced, &copies, None, Timestamp::now());
        assert!(text.contains("├─ Slot: 2\n├─ Place: replaced, another directory has its place in the array\n"), "{text}");
    }

    #[test]
    fn a_torn_copy_is_shown_and_the_other_used() {
        let mut bytes = [superblock().encode(), superblock().encode()].concat();
        bytes[COPY_BYTES + 100] ^= 1;
        let report_text = report(member_with(&bytes).path()).unwrap();
        assert!(report_text.contains("├─ Copy 0: valid, sequence 6, in use\n└─ Copy 1: damaged (wrong checksum)\n"));
        bytes.truncate(COPY_BYTES);
        assert!(report(member_with(&bytes).path()).unwrap().contains("└─ Copy 1: empty\n") || bytes.len() == COPY_BYTES);
    }

    #[test]
    fn what_is_not_a_member_is_refused() {
        let line = |path: &Path| report(path).unwrap_err().to_string();
        let empty = tempfile::tempdir().unwrap();
        assert!(line(empty.path()).contains("has no superblock; name a member directory"));
        assert!(line(&empty.path().join("none")).contains("no such directory; name a member directory"));
        assert!(line(member_with(b"").path()).contains("not a cxlraid superblock"));
        let mut damaged = superblock().encode();
        damaged[200] ^= 1;
        assert!(line(member_with(&damaged).path()).contains("copy 0 is damaged"));
    }
}
