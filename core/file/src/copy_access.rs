//! Rights of the shared copy of a file: the users who may open the file may open the copy.
//!
//! The copy has the file's owner, group, mode and access control list. A process that makes the
//! copy may not be able to give it away (only root may). Then the copy stays the maker's, and an
//! access control list names the file's owner and group with what they may do to the file.
//!
//! Directories above the file that keep users out do not keep them out of the copy: programs reach
//! a copy by a name in shared memory.

use alloc::vec::Vec;
use array::access::ACL_NAME;
use sys::rustix::fs::{Gid, Mode, Uid, XattrFlags, fchmod, fchown, fremovexattr, fsetxattr, fstat, getxattr};
use sys::{AsRawFd, BorrowedFd, OsError};

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const NOBODY: u32 = u32::MAX;
const READ_WRITE: u16 = 6;
/// A list of more is not looked for; what such a one grants beyond the mode is not granted.
const ENTRIES_MAX: usize = 64;

/// An entry of an access control list, as the kernel has it (`struct posix_acl_xattr_entry`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Entry {
    tag: u16,
    id: u32,
    rights: u16,
}

/// Lets those open `copy` who may open `file`.
///
/// # Errors
/// What the kernel says. Then the copy may be opened by its maker only.
pub(crate) fn give(copy: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<(), OsError> {
    let wanted = fstat(file)?;
    let _ = fchown(copy, None, Some(Gid::from_raw(wanted.st_gid)));
    let _ = fchown(copy, Some(Uid::from_raw(wanted.st_uid)), None);
    let own = fstat(copy)?;
    let list = list_of(file, wanted.st_mode);
    if list.is_none() && (own.st_uid, own.st_gid) == (wanted.st_uid, wanted.st_gid) {
        // A list of before goes with it.
        let _ = fremovexattr(copy, ACL_NAME);
        return fchmod(copy, Mode::from_raw_mode(wanted.st_mode & 0o666));
    }
    let list = list.unwrap_or_else(|| of_mode(wanted.st_mode));
    let list = given(&list, (wanted.st_uid, wanted.st_gid), (own.st_uid, own.st_gid));
    match fsetxattr(copy, ACL_NAME, &encode(&list), XattrFlags::empty()) {
        // No such lists here: nobody gets more than the file gives everybody.
        Err(OsError::OPNOTSUPP) => {
            let owner = if own.st_uid == wanted.st_uid { wanted.st_mode & 0o600 } else { 0o600 };
            fchmod(copy, Mode::from_raw_mode(owner | (wanted.st_mode & 0o006)))
        }
        result => result,
    }
}

/// The file's list; None if it has none beyond its mode. One that cannot be read grants its group
/// nothing.
fn list_of(file: BorrowedFd<'_>, mode: u32) -> Option<Vec<Entry>> {
    let mut bytes = [0u8; 4 + 8 * ENTRIES_MAX];
    // By its name, since the descriptor may only name it (O_PATH).
    let name = alloc::format!("/proc/thread-self/fd/{}", file.as_raw_fd());
    match getxattr(name.as_str(), ACL_NAME, bytes.as_mut_slice()) {
        Ok(filled) => Some(bytes.get(4..filled)?.chunks_exact(8).map(decode).collect()),
        Err(OsError::NODATA | OsError::OPNOTSUPP) => None,
        Err(_) => Some(of_mode(mode & !0o070)),
    }
}

fn decode(bytes: &[u8]) -> Entry {
    let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    Entry { tag: word(0), rights: word(2), id: u32::from(word(4)) | u32::from(word(6)) << 16 }
}

fn encode(list: &[Entry]) -> Vec<u8> {
    let mut bytes = VERSION.to_le_bytes().to_vec();
    for entry in list {
        bytes.extend_from_slice(&entry.tag.to_le_bytes());
        bytes.extend_from_slice(&entry.rights.to_le_bytes());
        bytes.extend_from_slice(&entry.id.to_le_bytes());
    }
    bytes
}

fn of_mode(mode: u32) -> Vec<Entry> {
    let entry = |tag, shift: u32| Entry { tag, id: NOBODY, rights: (mode >> shift & 6) as u16 };
    [entry(USER_OBJ, 6), entry(GROUP_OBJ, 3), entry(OTHER, 0)].to_vec()
}

/// The list of a copy that belongs to `own` (user and group), of a file with `list` that belongs to
/// `file`.
fn given(list: &[Entry], file: (u32, u32), own: (u32, u32)) -> Vec<Entry> {
    let rights_of = |tag| list.iter().find(|entry| entry.tag == tag).map(|entry| entry.rights & READ_WRITE);
    let mask = rights_of(MASK).unwrap_or(READ_WRITE);
    let owner = rights_of(USER_OBJ).unwrap_or(0);
    let group = rights_of(GROUP_OBJ).unwrap_or(0) & mask;
    // The file's owner has what the owner has, whatever else the list says.
    let named = |tag, id, rights| Entry { tag, id, rights };
    let mut result: Vec<Entry> = list
        .iter()
        .filter(|entry| entry.tag == USER && entry.id != own.0 && entry.id != file.0 || entry.tag == GROUP)
        .map(|entry| named(entry.tag, entry.id, entry.rights & mask & READ_WRITE))
        .collect();
    let is_owners = own.0 == file.0;
    if !is_owners {
        result.push(named(USER, file.0, owner));
    }
    let is_groups = own.1 == file.1;
    if !is_groups {
        match result.iter_mut().find(|entry| entry.tag == GROUP && entry.id == file.1) {
            Some(present) => present.rights |= group,
            None => result.push(named(GROUP, file.1, group)),
        }
    }
    result.push(named(USER_OBJ, NOBODY, if is_owners { owner } else { READ_WRITE }));
    result.push(named(GROUP_OBJ, NOBODY, if is_groups { group } else { 0 }));
    result.push(named(MASK, NOBODY, READ_WRITE));
    result.push(named(OTHER, NOBODY, rights_of(OTHER).unwrap_or(0)));
    // As the kernel wants them: the order of the tags is that of their numbers.
    result.sort_unstable();
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(list: &[(u16, u32, u16)]) -> Vec<Entry> {
        list.iter().map(|&(tag, id, rights)| Entry { tag, id, rights }).collect()
    }

    #[test]
    fn a_copy_that_cannot_be_given_away_names_the_files_owner_and_group() {
        let list = given(&of_mode(0o100_640), (1000, 2000), (7, 8));
        let expected = [
            (USER_OBJ, NOBODY, 6),
            (USER, 1000, 6),
            (GROUP_OBJ, NOBODY, 0),
            (GROUP, 2000, 4),
            (MASK, NOBODY, 6),
            (OTHER, NOBODY, 0),
        ];
        assert_eq!(list, entries(&expected));
        let own = given(&of_mode(0o100_464), (1000, 2000), (1000, 2000));
        assert_eq!(own, entries(&[(USER_OBJ, NOBODY, 4), (GROUP_OBJ, NOBODY, 6), (MASK, NOBODY, 6), (OTHER, NOBODY, 4)]));
    }

    #[test]
    fn a_list_gives_no_more_than_its_mask() {
        let list = [
            (USER_OBJ, NOBODY, 7),
            (USER, 5, 7),
            (USER, 7, 0),
            (GROUP_OBJ, NOBODY, 6),
            (GROUP, 2000, 4),
            (MASK, NOBODY, 4),
            (OTHER, NOBODY, 0),
        ];
        let expected = [
            (USER_OBJ, NOBODY, 6),
            (USER, 5, 4),
            (USER, 1000, 6),
            (GROUP_OBJ, NOBODY, 0),
            (GROUP, 2000, 4),
            (MASK, NOBODY, 6),
            (OTHER, NOBODY, 0),
        ];
        assert_eq!(given(&entries(&list), (1000, 2000), (7, 8)), entries(&expected));
        let bytes = encode(&entries(&expected));
        assert_eq!(bytes[4..].chunks_exact(8).map(decode).collect::<Vec<_>>(), entries(&expected));
    }
}
