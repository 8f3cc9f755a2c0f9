//! Writing superblocks: creation, and the record of members that went out.
//!
//! Creation writes superblocks with event count 0 first, then everything else that a member needs,
//! then superblocks with count 1 on all members. From the first of these on the array exists. If a
//! creation is cut short before, nothing can have been stored, and the next start begins it again.
//! A creation that fails before takes away what it made.

use crate::Array;
use crate::access;
use crate::changed;
use crate::config::Config;
use crate::error::AttachError;
use crate::journal::{New, SaidBy};
use crate::limited::write_fully;
use crate::member::{Member, Standing, read_fully};
use crate::regular::{open_or_make, open_regular};
use crate::tables;
use alloc::vec::Vec;
use format::{Access, ArrayName, Features, LANE_FILE_BYTES, MemberEntry, MemberState, Superblock, TableHeader, TableKind, Uuid};
use sys::rustix::fs::{self, AtFlags, FileType, Mode, OFlags, XattrFlags};
use sys::rustix::process::{getegid, geteuid};
use sys::{AsFd, OsError, OwnedFd, Result};
use units::{ChunkBytes, MEMBER_COUNT_MAX, MemberSet, Slot};

/// Permission bits of everything under `.cxlraid` when nothing else is asked for: the creator
/// alone.
const MODE_DEFAULT: u32 = 0o600;
/// The name under `.cxlraid` of a superblock that is to replace another one, until it is whole.
const SUPERBLOCK_TO_BE: &core::ffi::CStr = c"superblock-new";

/// Makes the directories of `config` members of a new array.
pub(crate) fn create(config: &Config, roots: &[&OwnedFd]) -> core::result::Result<(), AttachError> {
    for (path, root) in config.mounts.iter().zip(roots) {
        probe(path, root)?;
    }
    let mut superblock = blank(config).map_err(|error| AttachError::os(&config.mounts[0], "create", error))?;
    let draw = |place| New::draw(place, config.journal_lanes, superblock.array_uuid, config.level);
    let journal = config.journal.as_ref().map(draw).transpose()?;
    superblock.journal = journal.as_ref().map(|journal| journal.entry);
    // A journal that is not on the members comes after superblocks of count 0 that name it: what a
    // death leaves there is known by these.
    let elsewhere = journal.as_ref().filter(|journal| journal.is_elsewhere());
    if let Some(journal) = elsewhere {
        let begun: Vec<Superblock> = roots.iter().filter_map(|root| unfinished(root)).collect();
        journal.empty_what_is_left_of(&begun);
    }
    // Where it cannot be made nothing is changed.
    let reserved = elsewhere.map_or(Ok(None), |journal| journal.reserve(superblock.access))?;
    let metas = prepare_members(config, roots, &superblock, journal.as_ref())
        .and_then(|metas| {
            if let Some(journal) = elsewhere {
                journal.make(&config.mounts, &[], &superblock.geometry()?, superblock.access, SaidBy::Operator)?;
            }
            Ok(metas)
        })
        .inspect_err(|_| {
            roots.iter().for_each(|root| unmake(root, &config.prefixes));
            if let Some(path) = reserved {
                let _ = fs::unlink(path);
            }
        })?;
    // From the first of these superblocks on the array exists, and nothing of it is taken away any
    // more.
    // They follow those of count 0, so members that a death keeps from getting theirs are one update
    // behind, and the next start finishes that.
    let previous_update_id = superblock.update_id;
    let update_id = draw_update_id().map_err(|error| AttachError::os(&config.mounts[0], "create", error))?;
    for (slot, meta) in metas.iter().enumerate() {
        let counts = Superblock { event_count: 1, copy_sequence: 1, update_id, previous_update_id, ..superblock.clone() };
        let finished = for_slot(&counts, slot);
        write_copy(meta, &finished, 1).map_err(|error| AttachError::os(&config.mounts[slot], "create", error))?;
    }
    Ok(())
}

/// The superblock in a member directory of a creation that was cut short, if there is one.
fn unfinished(root: &OwnedFd) -> Option<Superblock> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let meta = fs::openat(root, format::DIRECTORY, flags, Mode::empty()).ok()?;
    read(&meta).ok().map(|(superblock, _)| superblock).filter(|superblock| superblock.event_count == 0)
}

/// Makes all that members need but the superblocks of count 1. Returns their `.cxlraid`
/// directories.
fn prepare_members(
    config: &Config,
    roots: &[&OwnedFd],
    superblock: &Superblock,
    journal: Option<&New>,
) -> core::result::Result<Vec<OwnedFd>, AttachError> {
    let mut metas = Vec::with_capacity(roots.len());
    for (slot, root) in roots.iter().enumerate() {
        let path = &config.mounts[slot];
        metas.push(begin(superblock, slot, root).map_err(|error| AttachError::os(path, "create", error))?);
    }
    for (slot, meta) in metas.iter().enumerate() {
        make_tables(&for_slot(superblock, slot), meta).map_err(|error| AttachError::os(&config.mounts[slot], "create", error))?;
    }
    if let Some(journal) = journal.filter(|journal| !journal.is_elsewhere()) {
        let metas: Vec<_> = metas.iter().map(Some).collect();
        journal.make(&config.mounts, &metas, &superblock.geometry()?, superblock.access, SaidBy::Operator)?;
    }
    // The directories come last, when nothing else needs space.
    for (slot, root) in roots.iter().enumerate() {
        let made = config.prefixes.iter().try_for_each(|prefix| make_directories(root, prefix, config.access));
        made.map_err(|error| AttachError::os(&config.mounts[slot], "create", error))?;
    }
    Ok(metas)
}

/// The files of `.cxlraid` beside the superblock.
const TABLES: [&core::ffi::CStr; 10] = [
    format::INODES_FILE,
    format::BACKINGS_FILE,
    format::LANES_FILE,
    format::NAMES_FILE,
    format::CHANGED_FILE,
    format::LEFT_FILE,
    format::KEPT_FILE,
    format::JOURNAL_FILE,
    format::RULES_FILE,
    format::RULES_NEW_FILE,
];

/// Takes away what a creation that has failed made on one member, whose directory was empty before.
fn unmake(root: &OwnedFd, prefixes: &[Vec<u8>]) {
    prefixes.iter().for_each(|prefix| remove_directories(root, prefix));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let Ok(meta) = fs::openat(root, format::DIRECTORY, flags, Mode::empty()) else { return };
    // The superblock goes last: it shows that the other files are those of a creation.
    for name in TABLES.into_iter().chain([SUPERBLOCK_TO_BE, format::SUPERBLOCK_FILE]) {
        let _ = fs::unlinkat(&meta, name, AtFlags::empty());
    }
    let _ = fs::unlinkat(root, format::DIRECTORY, AtFlags::REMOVEDIR);
}

/// Checks whether files with extended attributes can be made in a directory. Leaves nothing behind.
pub(crate) fn probe(path: &[u8], root: &OwnedFd) -> core::result::Result<(), AttachError> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = match fs::openat(root, c".", flags, Mode::from_raw_mode(0o600)) {
        Ok(file) => file,
        // This file system has no unnamed files: creation itself will meet the error, if there is
        // one.
        Err(OsError::OPNOTSUPP | OsError::ISDIR) => return Ok(()),
        Err(error) => return Err(AttachError::os(path, "write to", error)),
    };
    match fs::fsetxattr(&file, format::ATTRIBUTE_NAME, &[0], XattrFlags::empty()) {
        Ok(()) => Ok(()),
        Err(OsError::OPNOTSUPP) => Err(AttachError::NoAttributes { path: path.to_vec() }),
        Err(error) => Err(AttachError::os(path, "write to", error)),
    }
}

/// The superblock of a new array, as of slot 0, with event count 0.
fn blank(config: &Config) -> Result<Superblock> {
    let now_ns = sys::clock::realtime_coarse_ns();
    let mut members = [MemberEntry::default(); MEMBER_COUNT_MAX];
    for member in &mut members[..config.mounts.len()] {
        *member = MemberEntry { uuid: random_uuid()?, state: MemberState::InSync, ..MemberEntry::default() };
    }
    let name = if config.name.is_empty() { "unnamed" } else { &config.name };
    let superblock = Superblock {
        features: Features::default(),
        array_uuid: random_uuid()?,
        array_name: ArrayName::new(name).map_err(|_| OsError::INVAL)?,
        member_uuid: members[0].uuid,
        slot: 0,
        member_count: config.mounts.len(),
        level: config.level,
        chunk: config.chunk.unwrap_or(ChunkBytes::DEFAULT),
        access: config.access.unwrap_or_else(|| Access {
            owner_uid: geteuid().as_raw(),
            owner_gid: getegid().as_raw(),
            mode: MODE_DEFAULT,
        }),
        created_ns: now_ns,
        event_count: 0,
        use_count: 0,
        clean_count: 0,
        update_id: draw_update_id()?,
        previous_update_id: 0,
        read_policy: 0,
        update_ns: now_ns,
        copy_sequence: 0,
        members,
        journal: None,
    };
    Ok(if config.sums { superblock.with_sums() } else { superblock })
}

/// Returns the superblock of the member in `slot` that says what another member's superblock says.
/// That a member was replaced is said by its own superblock alone.
pub(crate) fn for_slot(superblock: &Superblock, slot: Slot) -> Superblock {
    let mut own = Superblock { slot, member_uuid: superblock.members[slot].uuid, ..superblock.clone() };
    for (_, entry) in own.members.iter_mut().enumerate().filter(|(place, _)| *place != slot || superblock.slot != slot) {
        entry.set_flag(MemberEntry::REPLACED, false);
    }
    own
}

pub(crate) fn random_uuid() -> Result<Uuid> {
    sys::random::bytes().map(Uuid::from_random)
}

/// Makes `.cxlraid` with a superblock of count 0 in it, which is there whole or not at all.
fn begin(superblock: &Superblock, slot: Slot, root: &OwnedFd) -> Result<OwnedFd> {
    let meta = open_meta(root, superblock.access)?;
    start_superblock(&meta, &for_slot(superblock, slot))?;
    access::give(&meta, superblock.access, access::directory_mode(superblock.access.mode))?;
    Ok(meta)
}

/// Opens a member's `.cxlraid`, which is made if it is not there.
pub(crate) fn open_meta(root: &OwnedFd, access: Access) -> Result<OwnedFd> {
    let mode = access::directory_mode(access.mode);
    match fs::mkdirat(root, format::DIRECTORY, Mode::from_raw_mode(mode)) {
        Ok(()) | Err(OsError::EXIST) => {}
        Err(error) => return Err(error),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    fs::openat(root, format::DIRECTORY, flags, Mode::empty())
}

/// Removes what is no regular file and lies where files of `.cxlraid` are to be made: somebody put
/// it there.
///
/// # Errors
/// `NOTEMPTY` for a directory with something in it, which is not removed, and what the kernel says.
pub(crate) fn clear_way(meta: &OwnedFd) -> Result<()> {
    for name in TABLES.into_iter().chain([format::SUPERBLOCK_FILE, SUPERBLOCK_TO_BE, format::INODES_HEADER_FILE]) {
        let flags = match fs::statat(meta, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(OsError::NOENT) => continue,
            stat => match FileType::from_raw_mode(stat?.st_mode) {
                FileType::RegularFile => continue,
                FileType::Directory => AtFlags::REMOVEDIR,
                _ => AtFlags::empty(),
            },
        };
        fs::unlinkat(meta, name, flags)?;
    }
    Ok(())
}

/// Makes a member's superblock whole or not at all, in the place of the old one if there is one.
/// The old one belongs to another member UUID, and both copies in a file name the same member. So
/// the new one is a new file.
pub(crate) fn start_superblock(meta: &OwnedFd, superblock: &Superblock) -> Result<()> {
    let file = open_new(meta, SUPERBLOCK_TO_BE, superblock.access)?;
    fs::ftruncate(&file, 0)?;
    // Both copies have their space, also if what follows fills the member: its next update needs
    // none.
    write_fully(&file, &[0; format::SUPERBLOCK_BYTES], 0)?;
    write_copy_to(&file, superblock, 0)?;
    fs::fsync(&file)?;
    fs::renameat(meta, SUPERBLOCK_TO_BE, meta, format::SUPERBLOCK_FILE)?;
    fs::fsync(meta)
}

/// Makes a member's tables, without records.
pub(crate) fn make_tables(superblock: &Superblock, meta: &OwnedFd) -> Result<()> {
    let tables = [
        (TableKind::Inodes, format::INODES_FILE, format::TABLE_HEADER_BYTES),
        (TableKind::Backings, format::BACKINGS_FILE, format::TABLE_HEADER_BYTES),
        (TableKind::Lanes, format::LANES_FILE, LANE_FILE_BYTES),
        (TableKind::Names, format::NAMES_FILE, format::NAMES_FILE_BYTES),
    ];
    for (kind, name, bytes) in tables {
        let header = TableHeader::new(kind, superblock.array_uuid, superblock.member_uuid, superblock.use_count);
        let file = begin_table(meta, &header, name, superblock.access)?;
        fs::ftruncate(&file, format::TABLE_HEADER_BYTES as u64)?;
        if bytes > format::TABLE_HEADER_BYTES {
            match fs::fallocate(&file, fs::FallocateFlags::empty(), 0, bytes as u64) {
                Ok(()) => {}
                Err(OsError::OPNOTSUPP) => fs::ftruncate(&file, bytes as u64)?,
                Err(error) => return Err(error),
            }
        }
        fs::fsync(&file)?;
    }
    changed::make(meta, superblock.array_uuid, superblock.member_uuid, superblock.use_count, superblock.access)?;
    fs::fsync(meta)
}

/// Makes a table that the program which made the member did not know, or gives a table a new
/// header. Several processes may do that at once: all of them write the same.
pub(crate) fn make_table(meta: &OwnedFd, header: &TableHeader, name: &core::ffi::CStr, access: Access) -> Result<()> {
    fs::fsync(begin_table(meta, header, name, access)?)
}

/// Opens or makes a table's file, and writes its header. What the file holds besides stays.
fn begin_table(meta: &OwnedFd, header: &TableHeader, name: &core::ffi::CStr, access: Access) -> Result<OwnedFd> {
    let file = open_new(meta, name, access)?;
    write_fully(&file, &header.encode(), 0)?;
    Ok(file)
}

/// Removes the empty directories on the way to `path` below a member, the innermost first. `path`
/// is absolute and normalised. No symlink is followed.
fn remove_directories(root: &OwnedFd, path: &[u8]) {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut above: Vec<(OwnedFd, &[u8])> = Vec::new();
    let mut names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).peekable();
    while let Some(name) = names.next() {
        let directory = above.last().map_or(root, |(directory, _)| directory);
        if names.peek().is_none() {
            let _ = fs::unlinkat(directory, name, AtFlags::REMOVEDIR);
            break;
        }
        match fs::openat(directory, name, flags, Mode::empty()) {
            Ok(next) => above.push((next, name)),
            Err(_) => break,
        }
    }
    while let Some((_, name)) = above.pop() {
        let _ = fs::unlinkat(above.last().map_or(root, |(directory, _)| directory), name, AtFlags::REMOVEDIR);
    }
}

/// Whether a directory below a member is missing, and this process may make it. `path` is absolute
/// and normalised. No symlink is followed.
pub(crate) fn could_make(root: &OwnedFd, path: &[u8]) -> bool {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut above: Option<OwnedFd> = None;
    for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
        let directory = above.as_ref().unwrap_or(root);
        match fs::openat(directory, name, flags, Mode::empty()) {
            Ok(next) => above = Some(next),
            Err(OsError::NOENT) => {
                let wanted = fs::Access::WRITE_OK | fs::Access::EXEC_OK;
                return fs::accessat(directory, c".", wanted, AtFlags::EACCESS).is_ok();
            }
            Err(_) => return false,
        }
    }
    false
}

/// Whether a member has an empty directory at `path`, which is absolute and normalised. No symlink
/// is followed.
pub(crate) fn has_empty(root: &OwnedFd, path: &[u8]) -> bool {
    let beneath = fs::ResolveFlags::BENEATH | fs::ResolveFlags::NO_SYMLINKS;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = fs::openat2(root, path.strip_prefix(b"/").unwrap_or(path), flags, Mode::empty(), beneath);
    let mut entries = match opened.and_then(fs::Dir::new) {
        Ok(entries) => entries,
        Err(_) => return false,
    };
    entries.all(|entry| entry.is_ok_and(|entry| matches!(entry.file_name().to_bytes(), b"." | b"..")))
}

/// Makes the missing directories of `path` below a member, as `mkdir -p` does. `path` is absolute
/// and normalised. If the last directory is new, it gets the owner and the rights of `access`, if
/// there is one. If `access` gives others than the owner any rights, all users may pass through the
/// new directories on the way, whatever the umask is. No symlink is followed: whoever owns a
/// directory on the way could lead other users out of the member.
pub(crate) fn make_directories(root: &OwnedFd, path: &[u8], access: Option<Access>) -> Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut above: Option<OwnedFd> = None;
    let mut names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).peekable();
    while let Some(name) = names.next() {
        let directory = above.as_ref().unwrap_or(root);
        match (fs::mkdirat(directory, name, Mode::from_raw_mode(0o755)), access) {
            (Ok(()), Some(access)) if names.peek().is_none() => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                access::give(fs::openat(directory, name, flags, Mode::empty())?, access, access::directory_mode(access.mode))?;
            }
            (Ok(()), Some(access)) if access.mode & 0o077 != 0 => {
                let directory = fs::openat(directory, name, OFlags::RDONLY | flags.difference(OFlags::PATH), Mode::empty())?;
                fs::fchmod(&directory, Mode::from_raw_mode(0o755))?;
            }
            (Ok(()) | Err(OsError::EXIST), _) => {}
            (Err(error), _) => return Err(error),
        }
        // What is there at the end of the path need not be a directory.
        if names.peek().is_some() {
            above = Some(fs::openat(directory, name, flags, Mode::empty())?);
        }
    }
    Ok(())
}

pub(crate) fn open_new(meta: &OwnedFd, name: &core::ffi::CStr, access: Access) -> Result<OwnedFd> {
    let file = open_or_make(meta.as_fd(), name, Mode::from_raw_mode(access.mode))?;
    access::give(&file, access, access.mode)?;
    Ok(file)
}

pub(crate) fn write_copy(meta: &OwnedFd, superblock: &Superblock, copy: usize) -> Result<()> {
    write_copy_to(&open_regular(meta.as_fd(), format::SUPERBLOCK_FILE, OFlags::RDWR)?, superblock, copy)
}

fn write_copy_to(file: &OwnedFd, superblock: &Superblock, copy: usize) -> Result<()> {
    #[cfg(test)]
    death::before_write()?;
    write_fully(file, &superblock.encode(), Superblock::copy_offset(copy))?;
    fs::fdatasync(file)
}

/// Tests end the writing of superblocks after some writes, as a death does.
#[cfg(test)]
pub(crate) mod death {
    use super::OsError;
    use std::cell::Cell;

    std::thread_local! {
        static WRITES_LEFT: Cell<u32> = const { Cell::new(u32::MAX) };
        static FAILING: Cell<u32> = const { Cell::new(u32::MAX) };
    }

    /// Has one of this thread's next writes fail, as if the member could not be written: the first
    /// one is number 0.
    pub(crate) fn failing(number: u32) {
        FAILING.set(number);
    }

    /// Lets this thread write so many superblocks more.
    pub(crate) fn after(writes: u32) {
        WRITES_LEFT.set(writes);
    }

    pub(super) fn before_write() -> super::Result<()> {
        match FAILING.get() {
            0 => {
                FAILING.set(u32::MAX);
                return Err(OsError::IO);
            }
            u32::MAX => {}
            left => FAILING.set(left - 1),
        }
        match WRITES_LEFT.get() {
            // This error says nothing of the member.
            0 => Err(OsError::ACCESS),
            u32::MAX => Ok(()),
            left => {
                WRITES_LEFT.set(left - 1);
                Ok(())
            }
        }
    }
}

/// Reads a member's superblock afresh; also tells which copy it came from.
pub fn read(meta: &OwnedFd) -> Result<(Superblock, usize)> {
    read_from(&open_regular(meta.as_fd(), format::SUPERBLOCK_FILE, OFlags::RDONLY)?)
}

fn read_from(file: &OwnedFd) -> Result<(Superblock, usize)> {
    let mut bytes = [0u8; format::SUPERBLOCK_BYTES];
    let length = read_fully(file, &mut bytes)?;
    Superblock::choose(&bytes[..length]).map_err(|_| OsError::IO)
}

/// Whether the superblocks have been updated since `newest` was read.
pub(crate) fn is_outdated(newest: &Superblock, members: &[Member]) -> bool {
    let now = members.iter().filter_map(|member| read_from(member.superblock().ok()?).ok());
    now.map(|(superblock, _)| superblock.event_count).max().is_some_and(|event_count| event_count > newest.event_count)
}

/// Finishes an update of superblocks that a death or a crash cut short: the members in sync to
/// which it did not come get what the others have. The caller is alone with the array. Returns the
/// members that could not be written.
pub(crate) fn finish_update(newest: &Superblock, members: &[Member]) -> MemberSet {
    let finish = |member: &Member| {
        let meta = member.meta().ok_or(OsError::NODEV)?;
        let (own, copy) = read(meta)?;
        if own.event_count >= newest.event_count {
            return Ok(());
        }
        let finished = Superblock { copy_sequence: own.copy_sequence + 1, ..for_slot(newest, member.slot) };
        write_copy(meta, &finished, Superblock::next_copy(copy))
    };
    let in_sync = members.iter().filter(|member| member.standing == Standing::InSync);
    in_sync.filter(|member| finish(member).is_err()).map(|member| member.slot).collect()
}

impl Array {
    /// Takes an array away that this process has created and has held since
    /// ([`Array::attach_holding`]), so that nobody else has used it. Other files on its members
    /// stay.
    ///
    /// # Errors
    /// `BUSY` if this process did not create the array. Otherwise the member that could not be
    /// written, and the kernel's error.
    pub fn unmake(self) -> core::result::Result<(), (usize, OsError)> {
        if !self.created || !self.alone {
            return Err((0, OsError::BUSY));
        }
        let roots: Vec<_> =
            self.members.iter().filter_map(|member| Some((member.slot, member.root()?, member.meta()?))).collect();
        // First the superblocks say that creation is unfinished: if this process dies here, the
        // next creation begins anew.
        for &(slot, _, meta) in &roots {
            let again = read(meta).and_then(|(superblock, copy)| {
                let unfinished = Superblock { event_count: 0, copy_sequence: superblock.copy_sequence + 1, ..superblock };
                write_copy(meta, &unfinished, Superblock::next_copy(copy))
            });
            again.map_err(|error| (slot, error))?;
        }
        for &(_, root, _) in &roots {
            unmake(root, &self.config.prefixes);
        }
        if let Some(Ok((file, _))) = self.journal.as_ref().and_then(crate::journal::ArrayJournal::open) {
            // Nobody knows any more whether the journal's file was there before. If it is empty, a
            // journal can have its place again.
            let _ = fs::ftruncate(&file, 0);
        }
        let _ = self.runtime.remove();
        Ok(())
    }

    /// Records on every member in use which members are out, with a higher event count. By that
    /// count the members that are out are stale from now on. A member whose superblock cannot be
    /// written goes out too. The caller holds the superblock lock.
    ///
    /// # Errors
    /// `IO` if the others are not enough; one that is being rebuilt does not count, since it may
    /// need what is out. Then nothing is recorded, and the next use of the array has the members
    /// again that are out.
    pub(crate) fn record_out(&self) -> Result<()> {
        loop {
            let out = self.runtime.out();
            if !self.is_enough_without(out) {
                return Err(OsError::IO);
            }
            self.record_leaves(self.runtime.out_unrecorded());
            let failed = self.record_out_once(out)?;
            if failed.is_empty() {
                self.runtime.set_out_recorded(out);
                return Ok(());
            }
            self.runtime.note_disorder(failed);
            self.runtime.add_out(failed);
        }
    }

    /// Raises the event count of every member in use by two, in two updates. Each update goes from
    /// member to member, so one that is cut short leaves the members at most one apart. A member
    /// that is put back from a copy made in an earlier use is then two behind at least, and stale.
    /// Between the updates the members' tables are marked with the count; the second update has the
    /// superblocks ask for that mark. The caller holds the superblock lock. A process that may not
    /// write superblocks leaves this to others.
    pub(crate) fn record_use(&self) -> Result<()> {
        let is_known = |slot: &Slot| self.runtime.reaches(*slot) || self.runtime.begun(*slot).is_none();
        let in_use = MemberSet::first(self.members.len()).minus(self.runtime.out());
        self.runtime.note_directories(in_use.iter().filter(is_known).map(|slot| (slot, self.members[slot].directory())));
        self.record(false)?;
        if self.runtime.is_use_recorded() {
            self.runtime.end_noting_directories();
        }
        Ok(())
    }

    /// Does what [`Self::record_use`] does, at the end of a use. `is_clean` says that nothing waits
    /// to be made good, and that all that the members hold is durable. The superblocks say so until
    /// their next update.
    pub(crate) fn record_end(&self, is_clean: bool) -> Result<()> {
        // From then on the event counts tell copies that were made in this use.
        self.record(is_clean)
    }

    fn record(&self, is_clean: bool) -> Result<()> {
        let Some(use_count) = self.raise(|_| {})? else { return Ok(()) };
        let least = self.runtime.use_count();
        let mut is_marked = true;
        let mut failed = MemberSet::EMPTY;
        for slot in MemberSet::first(self.members.len()).minus(self.runtime.out()).iter() {
            let meta = self.members[slot].meta().ok_or(OsError::NODEV);
            match meta.and_then(|meta| tables::mark(meta, self.uuid, least, use_count)) {
                Ok(marked) => is_marked &= marked,
                // This process has the superblocks open, and cannot open the tables: it has no
                // right to that any more, or no descriptor left. The superblocks go on asking for
                // the mark before this one.
                Err(error) if may_not(error) || has_no_room(error) => is_marked = false,
                Err(_) => failed = failed.with(slot),
            }
        }
        // Members that were begun and have not joined yet keep tables that can be used then.
        for slot in self.runtime.all_begun().minus(self.runtime.joined()).iter().filter(|&slot| self.runtime.out().contains(slot))
        {
            if let Some(member) = self.members.get(slot).filter(|member| self.runtime.begun(slot) == Some(member.uuid))
                && let Some(meta) = member.meta()
            {
                // What cannot be marked is begun again.
                let _ = tables::mark(meta, self.uuid, least, use_count);
            }
        }
        self.go_on_without(failed)?;
        let asked = if is_marked { use_count } else { least };
        let mark = |superblock: &mut Superblock| {
            superblock.use_count = asked;
            if is_clean {
                superblock.clean_count = superblock.event_count;
            }
        };
        if self.raise(mark)?.is_some() {
            self.runtime.set_use_count(asked);
            // The next change, if there is one before all processes are gone, ends the mark of an
            // orderly end.
            self.runtime.set_use_recorded(!is_clean);
        }
        Ok(())
    }

    /// Changes the superblocks of the members in use, and records the loss of members that cannot
    /// be written. Returns the new event count; None if this process may not write superblocks. A
    /// member that another process has just taken out, which nobody has put on record yet, gets the
    /// count too: without it that member would be stale, also if the others turn out not to suffice
    /// ([`Self::record_out`]).
    fn raise(&self, change: impl Fn(&mut Superblock)) -> Result<Option<u64>> {
        let out = self.runtime.out();
        let (failed, event_count) = match self.rewrite(out.minus(self.runtime.out_unrecorded()), change) {
            Err(OsError::ACCESS) => return Ok(None),
            result => result?,
        };
        self.go_on_without(failed)?;
        Ok(Some(event_count))
    }

    /// Takes members out, and records that. The caller holds the superblock lock.
    pub(crate) fn go_on_without(&self, failed: MemberSet) -> Result<()> {
        if failed.is_empty() {
            return Ok(());
        }
        self.runtime.note_disorder(failed);
        self.runtime.add_out(failed);
        self.record_out()
    }

    /// Records once, on every member but those in `out`, that these are out. Returns the members
    /// that could not be written.
    fn record_out_once(&self, out: MemberSet) -> Result<MemberSet> {
        self.rewrite(out, |superblock| {
            for gone in out.iter() {
                let entry = &mut superblock.members[gone];
                if entry.state.is_in_use() {
                    entry.state = self.members[gone].state_when_out();
                    entry.out_count = superblock.event_count - 1;
                }
            }
        })
        .map(|(failed, _)| failed)
    }

    /// Writes both copies of the superblock of every member in use anew, because one of them may be
    /// damaged.
    ///
    /// # Errors
    /// `IO` if a member's superblock cannot be written.
    pub fn renew_superblocks(&self) -> Result<()> {
        self.before_change()?;
        self.recording(|| {
            self.rewrite_superblocks(|_| {})?;
            self.rewrite_superblocks(|_| {})
        })
    }

    /// Changes the superblocks of the members in use, with a higher event count. The caller holds
    /// the superblock lock.
    pub(crate) fn rewrite_superblocks(&self, change: impl Fn(&mut Superblock)) -> Result<()> {
        let (failed, _) = self.rewrite(self.runtime.out(), change)?;
        if failed.is_empty() { Ok(()) } else { Err(OsError::IO) }
    }

    /// Changes the superblocks of all members but those in `out`. Returns the members that could
    /// not be written, and the event count of the others.
    ///
    /// # Errors
    /// `ACCESS` if this process may not write them, `FBIG` if its limit for files does not let it
    /// (setrlimit(2)): that says nothing of the members.
    pub(crate) fn rewrite(&self, out: MemberSet, change: impl Fn(&mut Superblock)) -> Result<(MemberSet, u64)> {
        let mut failed = MemberSet::EMPTY;
        let mut current = Vec::new();
        for slot in MemberSet::first(self.members.len()).minus(out).iter() {
            match self.members[slot].superblock().and_then(read_from) {
                Ok(found) => current.push((slot, found)),
                Err(error) if may_not(error) => return Err(OsError::ACCESS),
                Err(_) => failed = failed.with(slot),
            }
        }
        let newest =
            current.iter().map(|(_, (superblock, _))| superblock).max_by_key(|superblock| superblock.event_count).cloned();
        let event_count = newest.as_ref().map_or(0, |newest| newest.event_count) + 1;
        // Members to which the update of a dead process did not come get that update first, so
        // members are never more than one apart.
        if let Some(newest) = &newest {
            for (slot, (superblock, copy)) in &mut current {
                if superblock.event_count == newest.event_count {
                    continue;
                }
                *superblock = Superblock { copy_sequence: superblock.copy_sequence + 1, ..for_slot(newest, *slot) };
                *copy = Superblock::next_copy(*copy);
                match self.members[*slot].superblock().and_then(|file| write_copy_to(file, superblock, *copy)) {
                    Ok(()) => {}
                    Err(error) if may_not(error) => return Err(OsError::ACCESS),
                    Err(OsError::FBIG) => return Err(OsError::FBIG),
                    Err(_) => failed = failed.with(*slot),
                }
            }
        }
        let update_id = draw_update_id()?;
        let followed = current.iter().map(|(slot, _)| *slot).collect::<MemberSet>().minus(failed);
        self.follow_update(followed, newest.as_ref().map_or(0, |newest| newest.update_id), update_id);
        for (slot, (mut superblock, copy)) in current {
            superblock.event_count = event_count;
            superblock.previous_update_id = superblock.update_id;
            superblock.update_id = update_id;
            superblock.copy_sequence += 1;
            superblock.update_ns = sys::clock::realtime_coarse_ns();
            change(&mut superblock);
            let file = self.members[slot].superblock();
            match file.and_then(|file| write_copy_to(file, &superblock, Superblock::next_copy(copy))) {
                Ok(()) => {}
                Err(error) if may_not(error) => return Err(OsError::ACCESS),
                Err(OsError::FBIG) => return Err(OsError::FBIG),
                Err(_) => failed = failed.with(slot),
            }
        }
        Ok((failed, event_count))
    }
}

/// A name for an update of the superblocks, which no other has.
pub(crate) fn draw_update_id() -> Result<u64> {
    // 0 says that an update has no name.
    sys::random::bytes().map(|bytes| u64::from_le_bytes(bytes).max(1))
}

/// Whether an error says that this process may not do something, which says nothing of the member.
pub(crate) const fn may_not(error: OsError) -> bool {
    matches!(error, OsError::ACCESS | OsError::PERM | OsError::BADF)
}

/// Whether an error says that this process or the machine has no room for an open file, which says
/// nothing of the member.
pub(crate) const fn has_no_room(error: OsError) -> bool {
    matches!(error, OsError::MFILE | OsError::NFILE | OsError::NOMEM | OsError::INTR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    use sys::rustix::thread::UnshareFlags;

    fn access(mode: u32) -> Access {
        let (owner_uid, owner_gid) = (sys::rustix::process::geteuid().as_raw(), sys::rustix::process::getegid().as_raw());
        Access { mode, owner_uid, owner_gid }
    }

    #[test]
    fn both_copies_of_a_new_superblock_have_their_space() {
        let home = tempfile::tempdir_in("/dev/shm").unwrap();
        let mounts = ["m0", "m1"].map(|member| home.path().join(member).as_os_str().as_bytes().to_vec());
        let config = Config::new(layout::Level::Raid1, None, &mounts, &[b"/data".to_vec()], String::new()).unwrap();
        let superblock = Superblock { access: access(0o600), ..blank(&config).unwrap() };
        let meta = OwnedFd::from(std::fs::File::open(home.path()).unwrap());
        start_superblock(&meta, &superblock).unwrap();
        let file = home.path().join(format::SUPERBLOCK_FILE.to_str().unwrap());
        assert!(file.metadata().unwrap().blocks() * 512 >= format::SUPERBLOCK_BYTES as u64);
        assert_eq!(read(&meta).unwrap(), (superblock, 0));
    }

    /// Each of the first three writes is the beginning of a member, each of the last three the end of
    /// its creation.
    #[test]
    fn a_creation_that_was_cut_short_is_gone_on_with() {
        for writes in 0..6 {
            let (home, config) = crate::test_array::three_members("cut-creation", layout::Level::Raid5);
            death::after(writes);
            let cut = Array::attach(&config).map(drop);
            death::after(u32::MAX);
            cut.unwrap_err();
            let array = Array::attach(&config).unwrap();
            assert_eq!((array.in_use(), array.was_created()), (MemberSet::first(3), writes <= 3), "after {writes} writes");
            let _ = array.runtime.remove();
            let counts = |slot: usize| {
                let meta = std::fs::File::open(home.path(std::format!("m{slot}/.cxlraid"))).unwrap();
                let (superblock, _) = read(&meta.into()).unwrap();
                (superblock.event_count, superblock.update_id)
            };
            assert!((0..3).all(|slot| counts(slot) == counts(0) && counts(slot).0 == 1), "after {writes} writes");
        }
    }

    #[test]
    fn those_whom_the_array_is_open_to_come_to_a_prefix_whatever_the_umask_is() {
        let home = tempfile::tempdir_in("/dev/shm").unwrap();
        let root = OwnedFd::from(std::fs::File::open(home.path()).unwrap());
        let make = |path: &[u8], mode| {
            std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    // SAFETY: only the umask of this thread is concerned.
                    unsafe { sys::rustix::thread::unshare_unsafe(UnshareFlags::FS) }.unwrap();
                    sys::rustix::process::umask(Mode::from_raw_mode(0o077));
                    make_directories(&root, path, Some(access(mode))).unwrap();
                });
                thread.join().unwrap();
            });
        };
        make(b"/open/way/data", 0o666);
        make(b"/own/way/data", 0o600);
        let modes = |path: &str| {
            home.path()
                .join(path)
                .ancestors()
                .take(3)
                .map(|path| path.metadata().unwrap().permissions().mode() & 0o777)
                .collect::<Vec<_>>()
        };
        assert_eq!(modes("open/way/data"), [0o777, 0o755, 0o755]);
        assert_eq!(modes("own/way/data"), [0o700, 0o700, 0o700]);
    }
}
