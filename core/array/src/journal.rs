//! The array's journal as a file: where it is, how it is made, and whether the file found there is
//! the journal that the array was last used with.
//!
//! Invariants:
//! - an array that has a journal is not attached without it: its last writes may be in the journal.
//!   Only the operator can give it up ([`Array::set_journal`]);
//! - a file that another array may need is not overwritten;
//! - superblocks may name any path. A file there is read or written only if it carries the array's
//!   UUID, and no file is made that nobody asked for;
//! - the superblocks name a journal only when it is whole.

use crate::Array;
use crate::access;
use crate::config::{Config, JournalPlace};
use crate::error::AttachError;
use crate::limited::write_fully;
use crate::member::{Member, Standing, has_failed, read_fully, read_fully_at};
use crate::regular::{NOT_A_FILE, open_regular};
use crate::superblock::{self, open_new, random_uuid};
use alloc::vec::Vec;
use core::ffi::CStr;
use format::{
    Access, JOURNAL_HEADER_BYTES, JOURNAL_RECORD_BYTES, JournalEntry, JournalError, JournalHeader, JournalPath, JournalRecord,
    Superblock, Uuid,
};
use layout::{Geometry, Level};
use sys::rustix::fs::{self, AtFlags, FallocateFlags, Mode, OFlags};
use sys::{AsFd, BorrowedFd, OsError, OwnedFd};
use units::{MemberSet, Slot};

/// What the file is called where a directory is given.
const NAME_IN_DIRECTORY: &[u8] = b"/cxlraid.journal";

/// The journal of an attached array.
pub struct ArrayJournal {
    /// What its header says.
    pub header: JournalHeader,
    /// Where it is; None if on members.
    pub path: Option<JournalPath>,
    /// The members that hold it, as far as they were in sync; empty if it is elsewhere.
    pub holders: MemberSet,
    /// The members that should hold it as well, and have lost it: they are damaged.
    pub(crate) lost: MemberSet,
}

/// The members that hold a journal which lies on members: with all of these out the array is lost
/// too. The lowest ones, or the copies of one column.
#[must_use]
pub fn holders(geometry: &Geometry) -> MemberSet {
    if geometry.copy_count() == 1 {
        return MemberSet::first(geometry.level().parity_count() + 1);
    }
    (0..geometry.copy_count()).map(|copy| geometry.data_slot(0, 0, copy)).collect()
}

/// The authority that says where a journal is to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SaidBy {
    /// The operator's command.
    Operator,
    /// The members' superblocks, in which their owner can write anything: a journal is made or
    /// given away there only in the place of a journal of the array.
    Superblocks,
}

/// A journal that is being made.
pub(crate) struct New {
    header: JournalHeader,
    pub(crate) entry: JournalEntry,
}

impl New {
    /// A journal for an array, with a UUID of its own.
    pub(crate) fn draw(place: &JournalPlace, lanes: usize, array: Uuid, level: Level) -> Result<Self, AttachError> {
        let shown = |error| AttachError::os(place.shown(), "make the journal at", error);
        let uuid = random_uuid().map_err(shown)?;
        let path = match place {
            JournalPlace::Members => None,
            JournalPlace::File(path) => {
                let path = resolved(path);
                Some(JournalPath::new(&path).ok_or_else(|| shown(OsError::NAMETOOLONG))?)
            }
        };
        let header = JournalHeader::new(array, uuid, lanes, level.parity_count());
        Ok(Self { header, entry: JournalEntry { uuid, path } })
    }

    pub(crate) const fn is_elsewhere(&self) -> bool {
        self.entry.path.is_some()
    }

    /// Makes the file, or one on each of the holders among `metas` (by slot, below `mounts`).
    /// Returns whether there was nothing at the file's path before.
    pub(crate) fn make(
        &self,
        mounts: &[Vec<u8>],
        metas: &[Option<&OwnedFd>],
        geometry: &Geometry,
        access: Access,
        said_by: SaidBy,
    ) -> Result<bool, AttachError> {
        if let Some(path) = &self.entry.path {
            return self.make_at(path.as_bytes(), access, said_by);
        }
        for slot in holders(geometry).iter() {
            if let Some(meta) = metas[slot] {
                let made = open_new(meta, format::JOURNAL_FILE, access).and_then(|file| fill(&file, &self.header, &[]));
                made.map_err(|error| self.not_made([&mounts[slot][..], b"/.cxlraid/journal"].concat(), error))?;
            }
        }
        Ok(false)
    }

    const fn not_made(&self, path: Vec<u8>, error: OsError) -> AttachError {
        AttachError::JournalNotMade { path, bytes: self.header.file_bytes(), error }
    }

    /// Makes the file, empty, in which this journal is to be made outside of the members, before
    /// anything is made on these. Returns the path if there was nothing there before.
    ///
    /// # Errors
    /// That the journal cannot be made there.
    pub(crate) fn reserve(&self, access: Access) -> Result<Option<&[u8]>, AttachError> {
        let Some(path) = self.entry.path.as_ref().map(JournalPath::as_bytes) else { return Ok(None) };
        let failed = |error| self.not_made(path.to_vec(), error);
        if let Some(present) = replaceable(path, self.header.array_uuid, SaidBy::Operator)? {
            return present.map(|_| None).map_err(failed);
        }
        let made = fs::open(path, OPEN | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(access.mode));
        made.map(|_| Some(path)).map_err(failed)
    }

    /// Empties the file in which this journal is to be made, where it is what a creation left that was
    /// cut short: `begun` are its superblocks, which name the file.
    pub(crate) fn empty_what_is_left_of(&self, begun: &[Superblock]) {
        let Some(path) = &self.entry.path else { return };
        let is_named = |superblock: &&Superblock| superblock.journal.is_some_and(|entry| entry.path.as_ref() == Some(path));
        let named: Vec<&Superblock> = begun.iter().filter(is_named).collect();
        if named.is_empty() {
            return;
        }
        let Ok(file) = open_journal(fs::CWD, path.as_bytes()) else { return };
        let is_left = match header_of(&file) {
            Ok((header, _)) => named.iter().any(|superblock| superblock.array_uuid == header.array_uuid),
            // The header comes last.
            Err(_) => holds_zeros_only(&file) == Ok(true),
        };
        if is_left {
            let _ = fs::ftruncate(&file, 0);
        }
    }

    fn make_at(&self, path: &[u8], access: Access, said_by: SaidBy) -> Result<bool, AttachError> {
        let failed = |error| self.not_made(path.to_vec(), error);
        let mode = Mode::from_raw_mode(access.mode);
        let present = replaceable(path, self.header.array_uuid, said_by)?;
        let is_new = present.is_none();
        let file = match present {
            Some(present) => present.map_err(failed)?,
            None => fs::open(path, OPEN | OFlags::CREATE | OFlags::EXCL, mode).map_err(failed)?,
        };
        let given = if said_by == SaidBy::Operator { access::give(&file, access, access.mode) } else { Ok(()) };
        let made = given.and_then(|()| fill(&file, &self.header, &[]));
        if made.is_err() && is_new {
            let _ = fs::unlink(path);
        }
        made.and_then(|()| fs::fsync(parent(path)?)).map_err(failed)?;
        Ok(is_new)
    }
}

/// Tells whether a file has no byte that is not zero.
fn holds_zeros_only(file: &OwnedFd) -> sys::Result<bool> {
    let mut buffer = alloc::vec![0; 1 << 16];
    let mut offset = 0;
    loop {
        match read_fully_at(file, &mut buffer, offset)? {
            0 => return Ok(true),
            count if buffer.iter().take(count).any(|&byte| byte != 0) => return Ok(false),
            count => offset += count as u64,
        }
    }
}

/// A lane, and the record that it holds.
type Head = (usize, [u8; JOURNAL_RECORD_BYTES]);

/// Gives a journal's file all its space, so that no write fails for want of it, then the records,
/// and the header last.
fn fill(file: &OwnedFd, header: &JournalHeader, heads: &[Head]) -> sys::Result<()> {
    let bytes = header.file_bytes();
    if bytes > sys::file_limit::bytes() {
        return Err(OsError::FBIG);
    }
    fs::ftruncate(file, 0)?;
    match fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => {}
        Err(OsError::OPNOTSUPP) => fs::ftruncate(file, bytes)?,
        Err(error) => return Err(error),
    }
    heads.iter().try_for_each(|(lane, record)| write_fully(file, record, header.lane_offset(*lane)))?;
    fs::fsync(file)?;
    write_fully(file, &header.encode(), 0)?;
    fs::fsync(file)
}

/// Gives a member that is made anew its copy of a journal that lies on members, if it is to hold
/// one. Nothing waits in the journal. The copy gets the records of the members in `in_use`, so that
/// it says what they say, but no payloads, which nobody needs.
pub(crate) fn copy_onto(array: &Array, slot: Slot, meta: &OwnedFd, access: Access) -> sys::Result<()> {
    match &array.journal {
        Some(journal) if journal.path.is_none() && holders(&array.geometry).contains(slot) => {
            let others = journal.holders.without(slot).iter().filter(|&other| array.in_use().contains(other));
            let metas: Vec<_> = others.filter_map(|other| array.members[other].meta()).collect();
            fill(&open_new(meta, format::JOURNAL_FILE, access)?, &journal.header, &settled_heads(&journal.header, &metas))
        }
        _ => {
            remove_from(&[Some(meta)]);
            Ok(())
        }
    }
}

/// Of each lane the last settled record in these copies of a journal. What cannot be read there is
/// left out: a lane without a record holds nothing that waits.
fn settled_heads(header: &JournalHeader, metas: &[&OwnedFd]) -> Vec<Head> {
    let is_same = |file: &OwnedFd| header_of(file).is_ok_and(|(found, _)| found == *header);
    let open = |meta: &&OwnedFd| open_journal(meta.as_fd(), format::JOURNAL_FILE.to_bytes()).ok().filter(is_same);
    let copies: Vec<OwnedFd> = metas.iter().filter_map(open).collect();
    let head = |lane| {
        let of_copy = |file: &OwnedFd| {
            let mut bytes = [0; JOURNAL_RECORD_BYTES];
            let read = read_fully_at(file, &mut bytes, header.lane_offset(lane)).ok()?;
            let (record, is_settled) = JournalRecord::decode(&bytes, header.seed()).filter(|_| read == bytes.len())?;
            is_settled.then_some((record.sequence, bytes))
        };
        let last = copies.iter().filter_map(of_copy).max_by_key(|(sequence, _)| *sequence);
        last.map(|(_, bytes)| (lane, bytes))
    };
    (0..header.lane_count).filter_map(head).collect()
}

/// Removes the journal from members.
fn remove_from(metas: &[Option<&OwnedFd>]) {
    for meta in metas.iter().flatten() {
        let name: &CStr = format::JOURNAL_FILE;
        let _ = fs::unlinkat(meta, name, AtFlags::empty());
    }
}

/// The file meant by a path: one inside it if it is a directory.
fn resolved(path: &[u8]) -> Vec<u8> {
    let mut path = path.to_vec();
    if fs::stat(&path[..]).is_ok_and(|stat| fs::FileType::from_raw_mode(stat.st_mode) == fs::FileType::Directory) {
        path.extend_from_slice(NAME_IN_DIRECTORY);
    }
    path
}

/// The directory that holds a file.
fn parent(path: &[u8]) -> sys::Result<OwnedFd> {
    let end = path.iter().rposition(|&byte| byte == b'/').unwrap_or(0).max(1);
    fs::open(&path[..end], OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// The header of the file, and the file's length.
fn header_of(file: &OwnedFd) -> Result<(JournalHeader, u64), Problem> {
    let mut bytes = [0u8; JOURNAL_HEADER_BYTES];
    let length = read_fully(file, &mut bytes).map_err(Problem::Os)?;
    let header = JournalHeader::decode(&bytes[..length]).map_err(Problem::Journal)?;
    let stat = fs::fstat(file).map_err(Problem::Os)?;
    Ok((header, stat.st_size as u64))
}

/// How a journal's file is made.
const OPEN: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Opens a journal's file.
fn open_journal(directory: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Problem> {
    open_regular(directory, name, OFlags::RDWR).map_err(|error| match error {
        NOT_A_FILE => Problem::Journal(JournalError::NotAJournal),
        error => Problem::Os(error),
    })
}

/// The file at `path`, where a journal of `array` is to be made; none if there is no file, and the
/// inner error if it cannot be opened. It is one that this very array had before or, where the
/// operator named the path, one that is empty.
fn replaceable(path: &[u8], array: Uuid, said_by: SaidBy) -> Result<Option<sys::Result<OwnedFd>>, AttachError> {
    let unfit = || match said_by {
        SaidBy::Operator => AttachError::JournalInTheWay { path: path.to_vec() },
        SaidBy::Superblocks => AttachError::JournalNotThere { path: path.to_vec() },
    };
    let is_operators = said_by == SaidBy::Operator;
    let file = match open_journal(fs::CWD, path) {
        Ok(file) => file,
        Err(Problem::Os(OsError::NOENT)) if is_operators => return Ok(None),
        Err(Problem::Os(error)) if is_operators => return Ok(Some(Err(error))),
        Err(_) => return Err(unfit()),
    };
    if is_operators && fs::fstat(&file).is_ok_and(|stat| stat.st_size == 0) {
        return Ok(Some(Ok(file)));
    }
    match header_of(&file).map(|(header, _)| header.array_uuid) {
        Ok(found) if found == array => Ok(Some(Ok(file))),
        Ok(found) if is_operators => Err(AttachError::journal(path, JournalError::OtherArray { found })),
        _ => Err(unfit()),
    }
}

enum Problem {
    Os(OsError),
    Journal(JournalError),
}

/// Opens a file that should be journal `uuid` of array `array`, named as `path` in errors.
fn check(
    at: Option<&OwnedFd>,
    name: &[u8],
    path: &[u8],
    array: Uuid,
    uuid: Uuid,
) -> Result<(JournalHeader, OwnedFd), AttachError> {
    let failed = |problem| match problem {
        Problem::Os(error) => AttachError::JournalLost { path: path.to_vec(), error },
        Problem::Journal(error) => AttachError::journal(path, error),
    };
    let file = open_journal(at.map_or(fs::CWD, AsFd::as_fd), name).map_err(failed)?;
    let (header, bytes) = header_of(&file).map_err(failed)?;
    header.check(array, uuid).map_err(|error| AttachError::journal(path, error))?;
    header.check_bytes(bytes).map_err(|error| AttachError::journal(path, error))?;
    Ok((header, file))
}

/// The array's journal, if it has one; changes nothing.
pub(crate) fn find(config: &Config, superblock: &Superblock, members: &[Member]) -> Result<Option<ArrayJournal>, AttachError> {
    let (entry, mut path) = match (&superblock.journal, &config.journal) {
        (None, None) => return Ok(None),
        (None, Some(place)) => return Err(AttachError::NoJournal { asked: place.shown().to_vec() }),
        (Some(entry), None) => (entry, entry.path),
        (Some(entry), Some(place)) => match (entry.path, place) {
            (None, JournalPlace::Members) => (entry, None),
            // The device may be mounted elsewhere today; its UUID tells.
            (Some(_), JournalPlace::File(path)) => (entry, JournalPath::new(&resolved(path))),
            (found, _) => {
                let found = found.map_or_else(|| b"internal".to_vec(), |path| path.as_bytes().to_vec());
                return Err(AttachError::OtherJournalPlace { asked: place.shown().to_vec(), found });
            }
        },
    };
    let geometry = superblock.geometry()?;
    let is_out = |member: &&Member| member.standing != Standing::InSync;
    if !geometry.survives(members.iter().filter(is_out).map(|member| member.slot).collect()) {
        // To give the journal up would not help, and would lose what waits in it.
        return Err(AttachError::too_many_out(&geometry, members));
    }
    let mut found = None;
    let mut held_by = MemberSet::EMPTY;
    let mut lost = MemberSet::EMPTY;
    let mut reason = None;
    match &mut path {
        Some(path) => {
            let path = path.as_bytes();
            found = Some(check(None, path, path, superblock.array_uuid, entry.uuid)?.0);
        }
        None => {
            for slot in holders(&geometry).iter() {
                let member = &members[slot];
                let Some(meta) = member.meta().filter(|_| member.standing == Standing::InSync) else { continue };
                let name = format::JOURNAL_FILE.to_bytes();
                let path = [&member.path[..], b"/.cxlraid/journal"].concat();
                match check(Some(meta), name, &path, superblock.array_uuid, entry.uuid) {
                    Ok((header, _)) => found = Some(header),
                    // The others hold the same.
                    Err(error) if is_lost(&error, meta, superblock.access) => {
                        lost = lost.with(slot);
                        reason.get_or_insert(error);
                        continue;
                    }
                    Err(error) => return Err(error),
                }
                held_by = held_by.with(slot);
            }
        }
    }
    match found {
        Some(header) => Ok(Some(ArrayJournal { header, path, holders: held_by, lost })),
        // With all that hold it out more are out than the level bears, so this is not met; but
        // never without it.
        None => Err(reason.unwrap_or_else(|| AttachError::JournalLost { path: config.mounts[0].clone(), error: OsError::NODEV })),
    }
}

/// Whether an error says that a member has lost its copy of the journal: its file system fails, or
/// the file is gone, too short, or not whole, or shuts out users whom the array is open to. What is
/// a journal, but not the one in use, was put there by somebody, and is not lost.
fn is_lost(error: &AttachError, meta: &OwnedFd, access: Access) -> bool {
    match error {
        AttachError::JournalLost { error: OsError::ACCESS, .. } => access::is_shut(meta, format::JOURNAL_FILE, access),
        AttachError::Os { error: OsError::ROFS, .. } | AttachError::JournalLost { error: OsError::ROFS, .. } => {
            crate::is_read_only(meta.as_fd())
        }
        AttachError::Os { error, .. } | AttachError::JournalLost { error, .. } => {
            has_failed(*error) || matches!(*error, OsError::NOENT | OsError::LOOP | OsError::ISDIR)
        }
        AttachError::JournalForeign { error, .. } => {
            matches!(error, JournalError::NotAJournal | JournalError::BadChecksum | JournalError::Cut { .. })
        }
        _ => false,
    }
}

impl ArrayJournal {
    /// Opens the journal's file where it is not on members, and the directory that holds it.
    pub fn open(&self) -> Option<sys::Result<(OwnedFd, OwnedFd)>> {
        let path = self.path.as_ref()?.as_bytes();
        // Another file may lie there since it was found.
        let checked = check(None, path, path, self.header.array_uuid, self.header.journal_uuid);
        let file = checked.map(|(_, file)| file).map_err(|error| error.os_error());
        Some(file.and_then(|file| Ok((file, parent(path)?))))
    }
}

impl Array {
    /// The array's journal.
    #[must_use]
    pub const fn journal(&self) -> Option<&ArrayJournal> {
        self.journal.as_ref()
    }

    /// Gives the array a new, empty journal at `place`, or none, whatever the one it had holds. The
    /// caller is alone with the array, has replayed that one or has been told to give it up, and
    /// uses the array no further. It holds the array meanwhile ([`Array::attach_holding`]), or who
    /// starts in the middle of this would go on with the old one. A member that is away is put on
    /// record: it would come back with the journal from before, or without one.
    pub fn set_journal(&self, place: Option<(&JournalPlace, SaidBy)>) -> Result<(), AttachError> {
        self.before_change().map_err(|error| AttachError::os(&self.config.mounts[0], "write the superblock of", error))?;
        let metas: Vec<_> =
            self.members.iter().map(|member| member.meta().filter(|_| self.in_use().contains(member.slot))).collect();
        // Where files have levels of their own, some may have more parity than the array's level.
        let level = if self.may_have_shapes() { layout::Level::Raid6 } else { self.geometry.level() };
        let new = match place {
            None => None,
            Some((place, said_by)) => {
                let new = New::draw(place, self.config.journal_lanes, self.uuid, level)?;
                new.make(&self.config.mounts, &metas, &self.geometry, self.access, said_by).inspect_err(|_| {
                    // One that was there is given up anyway, and is found to be damaged; where
                    // there was none there is none.
                    if self.journal.as_ref().is_none_or(|present| present.path.is_some()) {
                        remove_from(&metas);
                    }
                })?;
                Some(new)
            }
        };
        let entry = new.map(|new| new.entry);
        let write = || self.recording(|| self.rewrite_superblocks(|superblock| superblock.journal = entry));
        write().map_err(|error| AttachError::os(&self.config.mounts[0], "write the superblock of", error))?;
        if entry.is_none_or(|entry| entry.path.is_some()) {
            remove_from(&metas);
        }
        // Lanes of the one before, and its failure, are nothing to this one.
        self.runtime.renew_journal();
        Ok(())
    }

    /// Whether a journal may be made at `place`; changes nothing.
    pub fn check_journal_place(&self, place: &JournalPlace, said_by: SaidBy) -> Result<(), AttachError> {
        match place {
            JournalPlace::Members => Ok(()),
            JournalPlace::File(path) => replaceable(&resolved(path), self.uuid, said_by).map(drop),
        }
    }

    /// Where the superblocks say the journal is; the place to make a new one at.
    pub fn journal_place(&self) -> Result<Option<JournalPlace>, OsError> {
        let meta = self.members[self.first_in_use()?].meta().ok_or(OsError::NODEV)?;
        let (superblock, _) = superblock::read(meta)?;
        Ok(superblock.journal.map(|entry| match entry.path {
            Some(path) => JournalPlace::File(path.as_bytes().to_vec()),
            None => JournalPlace::Members,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_shuts_out_users_whom_the_array_is_open_to_is_lost() {
        use std::os::unix::fs::PermissionsExt as _;
        let home = std::env::temp_dir().join(std::format!("cxlraid-journal-shut.{}", std::process::id()));
        std::fs::create_dir_all(&home).unwrap();
        let file = home.join("journal");
        std::fs::write(&file, "").unwrap();
        let meta = OwnedFd::from(std::fs::File::open(&home).unwrap());
        let refused = AttachError::JournalLost { path: Vec::new(), error: OsError::ACCESS };
        let access = Access { owner_uid: 0, owner_gid: 0, mode: 0o600 };
        for (mode, expected) in [(0o000, true), (0o400, true), (0o600, false), (0o660, false)] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(is_lost(&refused, &meta, access), expected, "{mode:o}");
        }
        std::fs::remove_dir_all(&home).unwrap();
    }
}
