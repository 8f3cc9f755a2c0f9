//! This module has the part of a scrub that reads members' `.cxlraid`: superblocks, tables, the log
//! of names, the journal.
//!
//! Everything is read as files, before the array is attached: a start heals some of it, and then
//! nobody would hear that a member had rotted.
//!
//! While programs run records change between two reads. So what looks wrong is read again: it is
//! wrong if its bytes stay as they are. A record that goes on changing is being stored, whole, by
//! those who change it.

use crate::inspect::open_regular;
use format::{
    BACKING_RECORD_BYTES, CHANGED_FILE_BYTES, CHANGED_MARK_BYTES, CHANGED_MARK_COUNT, CHANGED_MARKS_OFFSET, CHANGED_RECORD_BYTES,
    CHANGED_RECORDS_END, CHANGED_UPDATE_COUNT, COPY_BYTES, INODE_RECORD_BYTES, InodeState, JOURNAL_HEADER_BYTES,
    JOURNAL_LANE_HEAD_BYTES, JOURNAL_RECORD_BYTES, JournalHeader, JournalRecord, KEPT_BYTES, Kept, LANE_COUNT, LANE_RECORD_BYTES,
    LEFT_BYTES, LaneRecord, NAMES_RING_BYTES, STATE_OFFSET, SUPERBLOCK_BYTES, Sound, Superblock, TABLE_HEADER_BYTES, TableHeader,
    TableKind, Uuid, changed_record_offset, decode_left, is_sound_backing, is_sound_changed_record, is_sound_mark,
};
use std::{
    ffi::{CStr, OsStr},
    fs::File,
    os::{
        fd::AsFd as _,
        unix::{ffi::OsStrExt as _, fs::FileExt as _},
    },
    path::{Path, PathBuf},
    thread,
    time::Duration,
};
use sys::rustix::fs::{SeekFrom, seek};
use units::{MEMBER_COUNT_MAX, Slot};

/// How often what looks wrong is read again, and how long the bytes must stay as they are.
const LOOK_COUNT: u32 = 20;
const SETTLED: Duration = Duration::from_millis(3);
/// Bytes of a table that are read at a time.
const STEP_BYTES: usize = 1 << 20;
/// The log of names, and the journal, are compared in units of so many bytes.
const UNIT_BYTES: usize = 64;
/// So many faults of one file on one member are told one by one.
const FAULTS_MAX: usize = 1000;

/// Something wrong under a member's `.cxlraid`, or in the journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    /// The member; None where it is the array's journal elsewhere, or nothing says which member is
    /// wrong.
    pub(crate) slot: Option<Slot>,
    /// The file.
    pub(crate) file: String,
    /// Where in it.
    pub(crate) offset: u64,
    /// How many bytes were looked at as one.
    pub(crate) bytes: u64,
    pub(crate) what: String,
}

/// A member to be looked at.
pub(crate) struct Place {
    pub(crate) slot: Slot,
    pub(crate) meta: PathBuf,
}

impl Place {
    pub(crate) fn new(slot: Slot, member: &Path) -> Self {
        Self { slot, meta: member.join(OsStr::from_bytes(format::DIRECTORY.to_bytes())) }
    }

    fn file(&self, name: &CStr) -> PathBuf {
        self.meta.join(OsStr::from_bytes(name.to_bytes()))
    }

    /// The member's UUID.
    fn member(&self) -> Option<Uuid> {
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        let count = read_at(&open_regular(&self.file(format::SUPERBLOCK_FILE)).ok()?, &mut bytes, 0);
        Superblock::choose(&bytes[..count]).ok().map(|(superblock, _)| superblock.member_uuid)
    }
}

/// Looks at everything. `journal` is where the array has one outside its members.
pub(crate) fn look(places: &[Place], array: Uuid, journal: Option<&Path>) -> Vec<Fault> {
    let mut faults = Vec::new();
    places.iter().for_each(|place| superblock(place, &mut faults));
    let kinds = [
        (TableKind::Inodes, format::INODES_FILE),
        (TableKind::Backings, format::BACKINGS_FILE),
        (TableKind::Lanes, format::LANES_FILE),
        (TableKind::Names, format::NAMES_FILE),
        (TableKind::Changed, format::CHANGED_FILE),
    ];
    for (kind, name) in kinds {
        let tables: Vec<Table> = places.iter().filter_map(|place| Table::open(place, kind, name, array, &mut faults)).collect();
        match kind {
            TableKind::Inodes => inodes(&tables, &mut faults),
            TableKind::Backings => tables.iter().for_each(|table| backings(table, &mut faults)),
            TableKind::Lanes => tables.iter().for_each(|table| lanes(table, &mut faults)),
            TableKind::Changed => tables.iter().for_each(|table| changed(table, array, &mut faults)),
            TableKind::Names => {
                alike(&tables, TABLE_HEADER_BYTES as u64, (TABLE_HEADER_BYTES + NAMES_RING_BYTES) as u64, &mut faults)
            }
        }
    }
    places.iter().for_each(|place| leave(place, &mut faults));
    match journal {
        Some(path) => journals(&[(None, path.to_owned())], &mut faults),
        None => {
            let there = places.iter().map(|place| (Some(place.slot), place.file(format::JOURNAL_FILE)));
            journals(&there.filter(|(_, path)| path.exists()).collect::<Vec<_>>(), &mut faults);
        }
    }
    faults
}

/// Reads again what looks wrong, until it is not, or its bytes stay as they are. What goes on
/// changing is no fault.
fn settled<T: PartialEq>(mut first: T, is_wrong: impl Fn(&T) -> bool, mut read: impl FnMut() -> Option<T>) -> Option<T> {
    for _ in 0..LOOK_COUNT {
        if !is_wrong(&first) {
            return None;
        }
        thread::sleep(SETTLED);
        let again = read()?;
        if again == first {
            return Some(first);
        }
        first = again;
    }
    None
}

fn superblock(place: &Place, faults: &mut Vec<Fault>) {
    let path = place.file(format::SUPERBLOCK_FILE);
    let mut fault = |offset: usize, bytes: usize, what: String| {
        faults.push(Fault { slot: Some(place.slot), file: shown(&path), offset: offset as u64, bytes: bytes as u64, what });
    };
    let read = || -> Option<Vec<u8>> {
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        let count = read_at(&open_regular(&path).ok()?, &mut bytes, 0);
        bytes.truncate(count);
        Some(bytes)
    };
    let Some(first) = read() else { return fault(0, SUPERBLOCK_BYTES, "cannot be read".to_owned()) };
    for copy in 0..2 {
        let part =
            |bytes: &Vec<u8>| bytes.get(copy * COPY_BYTES..(copy + 1) * COPY_BYTES).map(<[u8]>::to_vec).unwrap_or_default();
        let flaw = |bytes: &Vec<u8>| match bytes.first_chunk::<COPY_BYTES>() {
            Some(bytes) if bytes.iter().all(|&byte| byte == 0) => None,
            Some(bytes) => Superblock::decode(bytes).err().map(|error| error.to_string()),
            None => Some("is cut short".to_owned()),
        };
        if let Some(bytes) = settled(part(&first), |bytes| flaw(bytes).is_some(), || read().map(|bytes| part(&bytes))) {
            fault(copy * COPY_BYTES, COPY_BYTES, flaw(&bytes).unwrap_or_default());
        }
    }
}

/// One member's table.
struct Table {
    slot: Slot,
    /// The member whose table it is, as its superblock says.
    member: Option<Uuid>,
    path: PathBuf,
    file: File,
    bytes: u64,
    /// Its records have checks.
    is_checked: bool,
}

impl Table {
    /// Opens a table and looks at its header.
    fn open(place: &Place, kind: TableKind, name: &CStr, array: Uuid, faults: &mut Vec<Fault>) -> Option<Self> {
        let path = place.file(name);
        let mut fault = |what: String| {
            let (slot, file, bytes) = (Some(place.slot), shown(&path), TABLE_HEADER_BYTES as u64);
            faults.push(Fault { slot, file, offset: 0, bytes, what });
        };
        let file = match open_regular(&path) {
            Ok(file) => file,
            // A start makes the one that an older program did not know.
            Err(error) if kind == TableKind::Changed && error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => {
                fault(format!("cannot be read: {}", crate::failure::without_numbers(error.to_string())));
                return None;
            }
        };
        let header = |file: &File| {
            let mut bytes = vec![0; TABLE_HEADER_BYTES];
            read_at(file, &mut bytes, 0);
            bytes
        };
        let flaw = |bytes: &Vec<u8>| match TableHeader::decode(kind, bytes) {
            Err(error) => Some(error.to_string()),
            Ok(header) => header
                .check_array(array)
                .err()
                .map(|error| error.to_string())
                .or_else(|| TableHeader::flaw(kind, bytes).map(str::to_owned)),
        };
        let bytes = header(&file);
        if let Some(bytes) = settled(bytes.clone(), |bytes| flaw(bytes).is_some(), || Some(header(&file))) {
            fault(flaw(&bytes).unwrap_or_default());
        }
        let is_checked = TableHeader::decode(kind, &bytes).is_ok_and(|header| header.is_checked);
        let bytes = file.metadata().map_or(0, |metadata| metadata.len());
        Some(Self { slot: place.slot, member: place.member(), path, file, bytes, is_checked })
    }

    fn read(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        read_at(&self.file, &mut read, offset);
        read
    }

    /// Where data are at or behind `offset`.
    fn data_from(&self, offset: u64) -> Option<u64> {
        seek(self.file.as_fd(), SeekFrom::Data(offset)).ok()
    }

    fn fault(&self, offset: u64, bytes: usize, what: &str) -> Fault {
        Fault { slot: Some(self.slot), file: shown(&self.path), offset, bytes: bytes as u64, what: what.to_owned() }
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// What is behind the end of the file, or cannot be read, stays as it is in the buffer: zeros.
/// Returns how much could be read.
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> usize {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    done
}

/// Calls `visit` with pieces of the range that some table has data in: the offset, and each table's
/// bytes.
fn each_piece(tables: &[Table], start: u64, end: u64, step: usize, mut visit: impl FnMut(u64, &[Vec<u8>])) {
    let mut at = start;
    while at < end {
        let Some(data) = tables.iter().filter_map(|table| table.data_from(at)).min().filter(|&data| data < end) else { return };
        // Pieces begin at multiples of the step behind the start.
        at = at.max(start + (data.max(start) - start) / step as u64 * step as u64);
        let bytes = (end - at).min(step as u64) as usize;
        let read: Vec<Vec<u8>> = tables.iter().map(|table| table.read(at, bytes)).collect();
        visit(at, &read);
        at += bytes as u64;
    }
}

/// The records of all members, side by side: each must fit its checks, and all must be the same.
fn inodes(tables: &[Table], faults: &mut Vec<Fault>) {
    let end = tables.iter().map(|table| table.bytes).max().unwrap_or(0);
    each_piece(tables, TABLE_HEADER_BYTES as u64, end, STEP_BYTES, |offset, pieces| {
        let count = pieces[0].len() / INODE_RECORD_BYTES;
        for index in 0..count {
            let (from, at) = (index * INODE_RECORD_BYTES, offset + (index * INODE_RECORD_BYTES) as u64);
            let number = (at - TABLE_HEADER_BYTES as u64) / INODE_RECORD_BYTES as u64 + 1;
            let first: Vec<Vec<u8>> = pieces.iter().map(|piece| piece[from..][..INODE_RECORD_BYTES].to_vec()).collect();
            let is_wrong = |copies: &Vec<Vec<u8>>| {
                copies
                    .iter()
                    .zip(tables)
                    .any(|(copy, table)| *copy != copies[0] && table.is_checked || unsound(number, copy, table).is_some())
            };
            let read = || Some(tables.iter().map(|table| table.read(at, INODE_RECORD_BYTES)).collect());
            let Some(copies) = settled(first, is_wrong, read) else { continue };
            let mut is_told = false;
            for (copy, table) in copies.iter().zip(tables) {
                if let Some(part) = unsound(number, copy, table) {
                    is_told = true;
                    faults.push(table.fault(
                        at,
                        INODE_RECORD_BYTES,
                        &format!("record of inode {number}: its {part} does not fit its check"),
                    ));
                }
            }
            if !is_told {
                differ(tables, at, &copies, &format!("record of inode {number}"), faults);
            }
        }
    });
}

/// The part of a record that does not fit its check.
fn unsound(number: u64, record: &[u8], table: &Table) -> Option<&'static str> {
    let record = record.first_chunk::<INODE_RECORD_BYTES>().filter(|_| table.is_checked)?;
    let sound = Sound::of(number, record);
    let is_free = record[STATE_OFFSET] == InodeState::Free.code();
    match sound {
        // Of a free record nothing but the generation means anything, and its last size may be from
        // a store that was cut short.
        Sound { constant: false, .. } => Some("shape"),
        Sound { notes: false, .. } => Some("state"),
        Sound { size: false, .. } if !is_free => Some("size"),
        _ => None,
    }
}

/// Tells which members differ from most, or that they do.
fn differ(tables: &[Table], at: u64, copies: &[Vec<u8>], thing: &str, faults: &mut Vec<Fault>) {
    let most = copies.iter().find(|copy| 2 * copies.iter().filter(|other| other == copy).count() > copies.len());
    let (Some(table), Some(copy)) = (tables.first(), copies.first()) else { return };
    match most {
        Some(right) => {
            let wrong = tables.iter().zip(copies).filter(|(_, copy)| *copy != right);
            faults.extend(
                wrong.map(|(table, copy)| table.fault(at, copy.len(), &format!("{thing}: it differs from that of most members"))),
            );
        }
        None => {
            let what = format!("{thing}: members differ, and nothing says which is right");
            faults.push(Fault { slot: None, ..table.fault(at, copy.len(), &what) });
        }
    }
}

fn backings(table: &Table, faults: &mut Vec<Fault>) {
    let table = std::slice::from_ref(table);
    if !table[0].is_checked {
        return;
    }
    each_piece(table, TABLE_HEADER_BYTES as u64, table[0].bytes, STEP_BYTES, |offset, pieces| {
        for (index, record) in pieces[0].chunks_exact(BACKING_RECORD_BYTES).enumerate() {
            let at = offset + (index * BACKING_RECORD_BYTES) as u64;
            let number = (at - TABLE_HEADER_BYTES as u64) / BACKING_RECORD_BYTES as u64;
            let is_wrong = |record: &Vec<u8>| record.first_chunk().is_some_and(|record| !is_sound_backing(number, record));
            if settled(record.to_vec(), is_wrong, || Some(table[0].read(at, BACKING_RECORD_BYTES))).is_some() {
                faults.push(table[0].fault(
                    at,
                    BACKING_RECORD_BYTES,
                    &format!("record of inode {number}: it does not fit its check"),
                ));
            }
        }
    });
}

fn lanes(table: &Table, faults: &mut Vec<Fault>) {
    let all = table.read(TABLE_HEADER_BYTES as u64, LANE_COUNT * LANE_RECORD_BYTES);
    for (lane, record) in all.chunks_exact(LANE_RECORD_BYTES).enumerate() {
        let at = format::lane_offset(lane);
        let flaw = |record: &Vec<u8>| record.first_chunk().and_then(|record| LaneRecord::decode(record).err());
        let read = || Some(table.read(at, LANE_RECORD_BYTES));
        if let Some(error) = settled(record.to_vec(), |record| flaw(record).is_some(), read).as_ref().and_then(flaw) {
            faults.push(table.fault(at, LANE_RECORD_BYTES, &format!("lane {lane}: {error}")));
        }
    }
}

/// The table of changed files: a mark is one of two, a record fits its check, and the rest is
/// zeros, or is not there.
fn changed(table: &Table, array: Uuid, faults: &mut Vec<Fault>) {
    let end = CHANGED_FILE_BYTES as u64;
    let behind = table.bytes.saturating_sub(end);
    match table.bytes {
        bytes if bytes < end => return faults.push(table.fault(bytes, (end - bytes) as usize, "is cut short")),
        bytes if bytes > end => faults.push(table.fault(end, behind as usize, "is longer than programs make it")),
        _ => {}
    }
    for slot in 0..=MEMBER_COUNT_MAX + CHANGED_UPDATE_COUNT {
        let at = changed_record_offset(slot);
        let is_wrong = |record: &Vec<u8>| record.first_chunk().is_some_and(|record| !is_sound_changed_record(slot, record));
        let read = || Some(table.read(at, CHANGED_RECORD_BYTES));
        if settled(table.read(at, CHANGED_RECORD_BYTES), is_wrong, read).is_some() {
            let record = match slot {
                MEMBER_COUNT_MAX => "the record of marks that may be missing".to_owned(),
                _ if slot > MEMBER_COUNT_MAX => "the name of an update of the superblocks".to_owned(),
                _ => format!("the record of how member {slot} left"),
            };
            faults.push(table.fault(at, CHANGED_RECORD_BYTES, &format!("{record} does not fit its check")));
        }
    }
    let reserved = CHANGED_RECORDS_END;
    let read = || Some(table.read(reserved, (CHANGED_MARKS_OFFSET - reserved) as usize));
    let is_wrong = |bytes: &Vec<u8>| bytes.iter().any(|&byte| byte != 0);
    if let Some(bytes) = read().and_then(|bytes| settled(bytes, is_wrong, read)) {
        let at = bytes.iter().position(|&byte| byte != 0).unwrap_or(0);
        faults.push(table.fault(reserved + at as u64, 1, "a reserved byte is not 0"));
    }
    // Without its superblock nothing tells whose marks they should be; that is a fault by itself.
    let Some(member) = table.member else { return };
    let marks = table.read(CHANGED_MARKS_OFFSET, CHANGED_MARK_COUNT * CHANGED_MARK_BYTES);
    let mut wrong = 0;
    for (mark, bytes) in marks.as_chunks::<CHANGED_MARK_BYTES>().0.iter().enumerate() {
        let at = CHANGED_MARKS_OFFSET + (mark * CHANGED_MARK_BYTES) as u64;
        let read = || table.read(at, CHANGED_MARK_BYTES).first_chunk().copied();
        let is_wrong = |bytes: &[u8; CHANGED_MARK_BYTES]| !is_sound_mark(array, member, mark, *bytes);
        if wrong < FAULTS_MAX && is_wrong(bytes) && settled(*bytes, is_wrong, read).is_some() {
            wrong += 1;
            faults.push(table.fault(at, CHANGED_MARK_BYTES, "a file's mark is neither of the two that there are"));
        }
    }
}

/// What is there of a member that has left, or comes back.
fn leave(place: &Place, faults: &mut Vec<Fault>) {
    let is_right = [
        (format::LEFT_FILE, (|bytes| bytes.first_chunk().is_some_and(|left| decode_left(left).is_some())) as fn(&[u8]) -> bool),
        (format::KEPT_FILE, |bytes| bytes.first_chunk().is_some_and(|kept| Kept::decode(kept).is_some())),
    ];
    for (name, is_right) in is_right {
        let path = place.file(name);
        let bytes_max = KEPT_BYTES + 1;
        let read = || {
            let mut bytes = vec![0; bytes_max];
            let count = read_at(&open_regular(&path).ok()?, &mut bytes, 0);
            bytes.truncate(count);
            Some(bytes)
        };
        let expected = if name == format::KEPT_FILE { KEPT_BYTES } else { LEFT_BYTES };
        let is_wrong = |bytes: &Vec<u8>| bytes.len() != expected || !is_right(bytes);
        if let Some(bytes) = read().and_then(|first| settled(first, is_wrong, read)) {
            let (slot, file, bytes) = (Some(place.slot), shown(&path), bytes.len() as u64);
            faults.push(Fault { slot, file, offset: 0, bytes, what: "does not fit its check".to_owned() });
        }
    }
}

/// Compares what members have byte for byte the same.
fn alike(tables: &[Table], start: u64, end: u64, faults: &mut Vec<Fault>) {
    let before = faults.len();
    each_piece(tables, start, end, STEP_BYTES, |offset, pieces| {
        if pieces.iter().all(|piece| *piece == pieces[0]) {
            return;
        }
        for from in (0..pieces[0].len()).step_by(UNIT_BYTES) {
            let at = offset + from as u64;
            let length = UNIT_BYTES.min(pieces[0].len() - from);
            let first: Vec<Vec<u8>> = pieces.iter().map(|piece| piece[from..from + length].to_vec()).collect();
            let is_wrong = |copies: &Vec<Vec<u8>>| copies.iter().any(|copy| *copy != copies[0]);
            if faults.len() - before >= FAULTS_MAX || !is_wrong(&first) {
                continue;
            }
            let read = || Some(tables.iter().map(|table| table.read(at, length)).collect());
            if let Some(copies) = settled(first, is_wrong, read) {
                differ(tables, at, &copies, "copies of the same bytes", faults);
            }
        }
    });
}

/// The copies of the journal: headers and records must fit their checks, records must be the same
/// on all copies, and so must the payload of a record that waits. A payload has no checksum, and
/// that of a settled record is not used any more. Copies may differ in it: a writer that was killed
/// did not come to each, and a member that was made anew has none. So it is not looked at.
fn journals(copies: &[(Option<Slot>, PathBuf)], faults: &mut Vec<Fault>) {
    let mut tables = Vec::new();
    let mut header = None;
    for (slot, path) in copies {
        let mut fault = |what: String| {
            faults.push(Fault { slot: *slot, file: shown(path), offset: 0, bytes: JOURNAL_HEADER_BYTES as u64, what });
        };
        let file = match open_regular(path) {
            Ok(file) => file,
            Err(error) => {
                fault(format!("cannot be read: {}", crate::failure::without_numbers(error.to_string())));
                continue;
            }
        };
        let bytes = file.metadata().map_or(0, |metadata| metadata.len());
        let table = Table { slot: slot.unwrap_or(0), member: None, path: path.clone(), file, bytes, is_checked: true };
        match JournalHeader::decode(&table.read(0, JOURNAL_HEADER_BYTES)) {
            Ok(found) => header = header.or(Some(found)),
            Err(error) => {
                fault(error.to_string());
                continue;
            }
        }
        tables.push(table);
    }
    let Some(header) = header else { return };
    for lane in 0..header.lane_count {
        let before = faults.len();
        tables.iter().for_each(|table| journal_lane(table, &header, lane, faults));
        if tables.len() < 2 {
            continue;
        }
        let at = header.lane_offset(lane);
        if faults.len() == before {
            alike(&tables, at, at + JOURNAL_RECORD_BYTES as u64, faults);
        }
        let payload = at + JOURNAL_LANE_HEAD_BYTES as u64;
        alike(&tables, payload, payload + waiting_bytes(&tables, &header, lane), faults);
    }
    if copies.first().is_some_and(|(slot, _)| slot.is_none()) {
        faults.iter_mut().filter(|fault| fault.file == shown(&copies[0].1)).for_each(|fault| fault.slot = None);
    }
}

/// How many bytes of a lane's payload replay may need: those of a record that waits on a copy.
fn waiting_bytes(tables: &[Table], header: &JournalHeader, lane: usize) -> u64 {
    let records: Vec<_> = tables
        .iter()
        .filter_map(|table| {
            let bytes = table.read(header.lane_offset(lane), JOURNAL_RECORD_BYTES);
            JournalRecord::decode(bytes.first_chunk()?, header.seed())
        })
        .collect();
    // A record that any copy has settled is not replayed, and one that some copies lack has no
    // payload there.
    let Some((last, false)) = records.iter().copied().max_by_key(|(record, is_settled)| (record.sequence, *is_settled)) else {
        return 0;
    };
    let is_on_all = records.len() == tables.len() && records.iter().all(|(record, _)| record.sequence == last.sequence);
    if is_on_all { last.payload_bytes.min(header.payload_bytes_max()) as u64 } else { 0 }
}

fn journal_lane(table: &Table, header: &JournalHeader, lane: usize, faults: &mut Vec<Fault>) {
    let at = header.lane_offset(lane);
    let flaw = |head: &Vec<u8>| {
        let record = head.first_chunk::<JOURNAL_RECORD_BYTES>()?;
        if head[JOURNAL_RECORD_BYTES..].iter().any(|&byte| byte != 0) {
            return Some("a reserved byte is not 0");
        }
        if record.iter().all(|&byte| byte == 0) {
            return None;
        }
        let Some((found, is_settled)) = JournalRecord::decode(record, header.seed()) else { return Some("its record is torn") };
        let settled = u64::from_le_bytes(*record[format::JOURNAL_SETTLED_OFFSET..].first_chunk()?);
        match is_settled {
            true if settled != found.sequence => Some("its record is settled by a number that is none of its"),
            false => Some("a write waits in it to be replayed"),
            true => None,
        }
    };
    let read = || Some(table.read(at, JOURNAL_LANE_HEAD_BYTES));
    let Some(first) = read() else { return };
    if let Some(what) = settled(first, |head| flaw(head).is_some(), read).as_ref().and_then(flaw) {
        faults.push(table.fault(at, JOURNAL_LANE_HEAD_BYTES, &format!("lane {lane} of the journal: {what}")));
    }
}
