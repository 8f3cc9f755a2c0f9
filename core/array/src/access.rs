//! Who may use an array: its owner alone, its group as well, or everybody.
//!
//! The superblocks say it ([`Access`]). Everything under the members' `.cxlraid`, the journal and
//! the runtime segment has that owner, group and mode. A process that attaches opens all of these
//! files for reading and writing, so the kernel checks at each attach whether it may. A user who
//! may do that is trusted with the whole array. Files of the array have owners and modes of their
//! own.
//!
//! Invariant: a file that is made here gets its owner, group and mode before other users can find
//! it in its place, or is of no use to them until then.

use crate::Array;
use crate::error::AttachError;
use crate::regular::open_regular;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use format::Access;
use sys::rustix::fs::{self, AtFlags, Dir, Gid, Mode, OFlags, Stat, Uid};
use sys::rustix::process::{getegid, geteuid, getgroups};
use sys::{AsFd, BorrowedFd, OsError, OwnedFd, Result};

/// The permission bits that an array may have: a user who may use it reads and writes its tables.
pub const MODES: [u32; 3] = [0o600, 0o660, 0o666];

/// The permission bits of a directory that the array keeps for itself: whoever may read may also search.
pub(crate) const fn directory_mode(mode: u32) -> u32 {
    mode | (mode & 0o444) >> 2
}

/// Gives an open file, or directory, of the array its owner, group and mode. Where they are right nothing is asked of the kernel: only the owner may.
///
/// # Errors
/// What the kernel says. A user who is not the owner may make a file that the group, or everybody, may use.
pub(crate) fn give(file: impl AsFd, access: Access, mode: u32) -> Result<()> {
    let (uid, gid) = (Uid::from_raw(access.owner_uid), Gid::from_raw(access.owner_gid));
    let stat = fs::fstat(&file)?;
    if stat.st_uid != access.owner_uid || stat.st_gid != access.owner_gid {
        match fs::fchown(&file, Some(uid), Some(gid)) {
            Err(OsError::PERM) if access.mode & 0o006 == 0o006 => {}
            Err(OsError::PERM) if access.mode & 0o060 == 0o060 => fs::fchown(&file, None, Some(gid))?,
            result => result?,
        }
    }
    // A change of the owner may take bits away.
    if fs::fstat(&file)?.st_mode & 0o7777 == mode { Ok(()) } else { fs::fchmod(&file, Mode::from_raw_mode(mode)) }
}

/// Whether this process' user is among those whom `access` lets in.
fn lets_in(access: Access) -> bool {
    let user = geteuid();
    let of_group = || {
        let group = Gid::from_raw(access.owner_gid);
        getegid() == group || getgroups().is_ok_and(|groups| groups.contains(&group))
    };
    if user.is_root() || user.as_raw() == access.owner_uid {
        return true;
    }
    let bit = if of_group() { 0o020 } else { 0o002 };
    access.mode & bit != 0
}

/// What a permission error on `name` in a directory (or on the path itself) means: that this user may not use the array, if the rights of what is there say so.
pub(crate) fn denied(directory: BorrowedFd<'_>, name: &[u8], path: &[u8], action: &'static str) -> AttachError {
    let access = |stat: Stat| Access { owner_uid: stat.st_uid, owner_gid: stat.st_gid, mode: stat.st_mode & 0o777 };
    match fs::statat(directory, name, AtFlags::empty()).map(access) {
        Ok(access) if !lets_in(access) => AttachError::NotOpen { path: path.to_vec(), to: shown(access) },
        _ => AttachError::os(path, action, OsError::ACCESS),
    }
}

/// Whether this user may read and write the tables of a member, as a start needs.
///
/// # Errors
/// The first that the user may not.
pub(crate) fn check_tables(meta: &OwnedFd, path: &[u8]) -> core::result::Result<(), AttachError> {
    let wanted = fs::Access::READ_OK | fs::Access::WRITE_OK;
    for name in [format::INODES_FILE, format::LANES_FILE, format::NAMES_FILE, format::BACKINGS_FILE] {
        if let Err(OsError::ACCESS) = fs::accessat(meta, name, wanted, AtFlags::empty()) {
            return Err(denied(meta.as_fd(), name.to_bytes(), path, "open the tables under .cxlraid of"));
        }
    }
    Ok(())
}

/// "group db and its owner alice": whom an array is open to.
#[must_use]
pub fn shown(access: Access) -> String {
    let owner = name_of("/etc/passwd", access.owner_uid);
    match access.mode {
        mode if mode & 0o002 != 0 => "everybody".into(),
        mode if mode & 0o020 != 0 => format!("group {} and its owner {owner}", name_of("/etc/group", access.owner_gid)),
        _ => format!("user {owner}"),
    }
}

/// The name of a user or group, as passwd(5) and group(5) have it; its number if they do not.
fn name_of(file: &str, id: u32) -> String {
    let text = crate::proc_file::read(file);
    let of_line = |line: &[u8]| {
        let mut fields = line.split(|&byte| byte == b':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        let is_it = core::str::from_utf8(number).is_ok_and(|number| number.parse() == Ok(id));
        is_it.then(|| crate::member::show(name))
    };
    text.split(|&byte| byte == b'\n').find_map(of_line).unwrap_or_else(|| format!("{id}"))
}

/// The regular files in a directory, opened to read.
fn files_in(meta: &OwnedFd) -> Result<Vec<OwnedFd>> {
    let mut files = Vec::new();
    for entry in Dir::read_from(meta)? {
        match open_regular(meta.as_fd(), entry?.file_name(), OFlags::RDONLY) {
            Ok(file) => files.push(file),
            // Not of the array's.
            Err(OsError::LOOP | crate::regular::NOT_A_FILE | OsError::NOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(files)
}

impl Array {
    /// Opens the array to others, or closes it. The caller is alone with it, holds it ([`Array::attach_holding`]) and is its owner, or root. If this is cut short, some files have the rights of
    /// before; it can be done again.
    ///
    /// # Errors
    /// The first thing that could not be given away.
    pub fn set_access(&self, access: Access) -> core::result::Result<(), AttachError> {
        let first = &self.config.mounts[0];
        self.before_change().map_err(|error| AttachError::os(first, "write the superblock of", error))?;
        // What superblocks say comes first: it is what an interrupted change is finished by.
        let write = || self.runtime.with_superblocks(|| self.rewrite_superblocks(|superblock| superblock.access = access));
        write().map_err(|error| AttachError::os(first, "write the superblock of", error))?;
        for member in self.in_use().iter().map(|slot| &self.members[slot]) {
            let Some(meta) = member.meta() else { continue };
            let give_all = || {
                files_in(meta)?.iter().try_for_each(|file| give(file, access, access.mode))?;
                give(meta, access, directory_mode(access.mode))?;
                fs::fsync(meta)
            };
            give_all().map_err(|error| AttachError::os(&member.path, "give the files under .cxlraid away on", error))?;
        }
        if let Some(opened) = self.journal.as_ref().and_then(crate::journal::ArrayJournal::open) {
            let given = opened.and_then(|(file, _)| give(&file, access, access.mode));
            given.map_err(|error| AttachError::os(first, "give the journal away of", error))?;
        }
        self.runtime.give(access).map_err(|error| AttachError::os(first, "give the runtime segment away of", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_an_array_is_open_to_is_said_by_name() {
        let shown = |mode, uid, gid| shown(Access { owner_uid: uid, owner_gid: gid, mode });
        assert_eq!(shown(0o600, 0, 0), "user root");
        assert_eq!(shown(0o700, 4_000_000_001, 0), "user 4000000001");
        assert_eq!(shown(0o660, 0, 4_000_000_002), "group 4000000002 and its owner root");
        assert_eq!(shown(0o666, 0, 0), "everybody");
    }

    #[test]
    fn who_may_read_may_search() {
        assert_eq!(MODES.map(directory_mode), [0o700, 0o770, 0o777]);
    }
}
