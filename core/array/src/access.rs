//! Who may use an array: its owner alone, its group as well, or everybody.
//!
//! Every superblock names the owner, the group and the mode ([`Access`]). The array's own files
//! (those in the members' `.cxlraid`, the journal, the runtime segment) have that group and mode,
//! and that owner; but a file that another user of the array has made keeps its maker as owner. A
//! process that attaches opens all of these files for reading and writing, so the kernel checks at
//! each attach whether it may. A user who may do that is trusted with the whole array. The files
//! that programs keep on the array have owners and modes of their own.
//!
//! Invariant: whoever creates one of the array's own files calls [`give`] on it before the file has
//! its final name, or before its contents are of use to anybody.

use crate::Array;
use crate::error::AttachError;
use crate::regular::open_regular;
use crate::sums_files;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use format::Access;
use sys::rustix::fs::{self, AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Uid};
use sys::rustix::process::{getegid, geteuid, getgroups};
use sys::{AsFd, BorrowedFd, OsError, OwnedFd, Result};

/// The extended attribute in which a file has its access control list (acl(5)).
pub const ACL_NAME: &str = "system.posix_acl_access";

/// The modes that an array may have. Reading and writing go together, because every user of an
/// array both reads and writes its tables. The command offers no others.
pub const MODES: [u32; 3] = [0o600, 0o660, 0o666];

/// The permission bits of a directory that the array keeps for itself: whoever may read may also
/// search.
pub(crate) const fn directory_mode(mode: u32) -> u32 {
    mode | (mode & 0o444) >> 2
}

/// Gives an open file or directory of the array the owner and group of `access`, and the mode
/// `mode` (which for a directory is another than that of `access`). What is right already is not
/// set again: only the owner may set it.
///
/// # Errors
/// Those of fstat, fchown and fchmod. If this process may not change the owner, that is no error in
/// an array of a group or of everybody: the file keeps its maker as owner, and in an array of a
/// group it gets the group.
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

/// Tells whether everybody who may write to the tables of a member may write to its superblock too,
/// as this process left it. Somebody has changed modes by hand if not, and a program may then have
/// changed files without a trace in the superblock.
///
/// # Errors
/// Those of fstatat and lgetxattr.
pub(crate) fn is_superblock_open(meta: &OwnedFd, access: Access) -> Result<bool> {
    const WRITERS: u32 = 0o222;
    const OF_GROUP: u32 = 0o020;
    const OF_OTHERS: u32 = 0o022;
    /// No attribute is longer (xattr(7)).
    const LIST_BYTES_MAX: usize = 1 << 16;
    let wanted = access.mode & WRITERS;
    let of = |name: &core::ffi::CStr| fs::statat(meta, name, AtFlags::SYMLINK_NOFOLLOW);
    let (superblock, table) = (of(format::SUPERBLOCK_FILE)?, of(format::INODES_FILE)?);
    // Of a file that another user has made the group or all others decide.
    let has_owner = |stat: &Stat| stat.st_uid == access.owner_uid || wanted & OF_OTHERS != 0;
    let has_group =
        |stat: &Stat| stat.st_gid == access.owner_gid || stat.st_mode & OF_GROUP == 0 || wanted & OF_OTHERS == OF_OTHERS;
    let list_of = |name: &core::ffi::CStr| {
        let mut list = alloc::vec![0u8; LIST_BYTES_MAX];
        let file = open_regular(meta.as_fd(), name, OFlags::RDONLY)?;
        match fs::fgetxattr(&file, ACL_NAME, &mut list[..]) {
            Ok(bytes) => {
                list.truncate(bytes);
                Ok(Some(list))
            }
            Err(OsError::NODATA | OsError::OPNOTSUPP) => Ok(None),
            Err(error) => Err(error),
        }
    };
    // A directory may give all files that are made in it the same list.
    let have_one_list = list_of(format::SUPERBLOCK_FILE)? == list_of(format::INODES_FILE)?;
    let is_open = superblock.st_mode & WRITERS == wanted && has_owner(&superblock) && has_group(&superblock);
    Ok(is_open && table.st_mode & WRITERS & !wanted == 0 && has_owner(&table) && has_group(&table) && have_one_list)
}

/// Whether `access` lets this process' effective user in: root and the owner always; a user of the
/// group if the group may write; any other user if others may. As in the kernel, the bits of others
/// say nothing about a user of the group.
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

/// The error to report when the kernel has refused access to `name` in `directory`. If owner and
/// mode of that file shut this user out, it says whom they let in; else it is `EACCES` for `action`
/// on `path`, which stands for the array.
pub(crate) fn denied(directory: BorrowedFd<'_>, name: &[u8], path: &[u8], action: &'static str) -> AttachError {
    let access = |stat: Stat| Access { owner_uid: stat.st_uid, owner_gid: stat.st_gid, mode: stat.st_mode & 0o777 };
    match fs::statat(directory, name, AtFlags::empty()).map(access) {
        Ok(access) if !lets_in(access) => AttachError::NotOpen { path: path.to_vec(), to: shown(access) },
        _ => AttachError::os(path, action, OsError::ACCESS),
    }
}

/// Whether a file in a member's `.cxlraid` shuts out users whom the array is open to, as after a
/// mistaken chmod: then the kernel's refusal says something of the member, and nothing of the user.
pub(crate) fn is_shut(meta: &OwnedFd, name: &core::ffi::CStr, access: Access) -> bool {
    fs::statat(meta, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| stat.st_mode & access.mode != access.mode)
}

/// Checks that this process' real user may read and write the tables of the member at `path`, as
/// attaching needs; `meta` is its `.cxlraid`. False if a table shuts out users whom `access` lets
/// in. Only the command asks, whose real user is its effective one.
///
/// # Errors
/// [`denied`] for the first table that the user may not read and write. Other errors, as of a
/// missing table, are for others to find.
pub(crate) fn check_tables(meta: &OwnedFd, path: &[u8], access: Access) -> core::result::Result<bool, AttachError> {
    let wanted = fs::Access::READ_OK | fs::Access::WRITE_OK;
    for name in [format::INODES_FILE, format::LANES_FILE, format::NAMES_FILE, format::BACKINGS_FILE, format::CHANGED_FILE] {
        // What a symlink in a table's place leads to says nothing of this user's rights.
        let is_table = |stat: Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !fs::statat(meta, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(is_table) {
            continue;
        }
        if let Err(OsError::ACCESS) = fs::accessat(meta, name, wanted, AtFlags::empty()) {
            if is_shut(meta, name, access) {
                return Ok(false);
            }
            return Err(denied(meta.as_fd(), name.to_bytes(), path, "open the tables under .cxlraid of"));
        }
    }
    Ok(true)
}

/// The text that says whom an array is open to, for example "group db and its owner alice".
#[must_use]
pub fn shown(access: Access) -> String {
    let owner = name_of("/etc/passwd", access.owner_uid);
    match access.mode {
        mode if mode & 0o002 != 0 => "everybody".into(),
        mode if mode & 0o020 != 0 => format!("group {} and its owner {owner}", name_of("/etc/group", access.owner_gid)),
        _ => format!("user {owner}"),
    }
}

/// The name of a user or group from `file`, which is passwd(5) or group(5); the number if it is not
/// there, as for users of a directory service.
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

/// The regular files directly in a member's `.cxlraid`, opened to read.
pub(crate) fn files_in(meta: &OwnedFd) -> Result<Vec<OwnedFd>> {
    let mut files = Vec::new();
    for entry in Dir::read_from(meta)? {
        match open_regular(meta.as_fd(), entry?.file_name(), OFlags::RDONLY) {
            Ok(file) => files.push(file),
            // A symlink, another kind of file, or one that is gone again: none of the array's own
            // files.
            Err(OsError::LOOP | crate::regular::NOT_A_FILE | OsError::NOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(files)
}

impl Array {
    /// Changes who may use the array. The caller has attached with [`Array::attach_holding`], is
    /// the only process attached, and is the array's owner or root. After an interruption some
    /// files have their former rights; calling it again finishes the change. A member that is out
    /// keeps its former rights until it is made anew.
    ///
    /// # Errors
    /// The first failure, of writing the superblocks or of changing the rights of a file.
    pub fn set_access(&self, access: Access) -> core::result::Result<(), AttachError> {
        let first = &self.config.mounts[0];
        self.before_change().map_err(|error| AttachError::os(first, "write the superblock of", error))?;
        // What was begun in the place of such a member has the former rights, too, and is begun
        // again.
        self.runtime.all_begun().iter().for_each(|slot| self.runtime.forget_begun(slot));
        // The superblocks first: files that are made after an interruption get the new rights.
        let write = || self.recording(|| self.rewrite_superblocks(|superblock| superblock.access = access));
        write().map_err(|error| AttachError::os(first, "write the superblock of", error))?;
        for member in self.in_use().iter().map(|slot| &self.members[slot]) {
            let Some(meta) = member.meta() else { continue };
            let give_all = || {
                files_in(meta)?.iter().try_for_each(|file| give(file, access, access.mode))?;
                sums_files::give_all(meta, access)?;
                give(meta, access, directory_mode(access.mode))?;
                fs::fsync(meta)
            };
            give_all()
                .map_err(|error| AttachError::os(&member.path, "change owner and mode of the files under .cxlraid of", error))?;
        }
        if let Some(opened) = self.journal.as_ref().and_then(crate::journal::ArrayJournal::open) {
            let given = opened.and_then(|(file, _)| give(&file, access, access.mode));
            given.map_err(|error| AttachError::os(first, "change owner and mode of the journal of", error))?;
        }
        self.runtime
            .give(access)
            .map_err(|error| AttachError::os(first, "change owner and mode of the runtime segment of", error))
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
