//! Members whose tree was removed by hand: only `.cxlraid` is left of them, or only the directories
//! of the prefixes.

use crate::member::{Member, Standing};
use crate::why;
use alloc::vec::Vec;
use core::mem::MaybeUninit;
use sys::high_fd::Raised;
use sys::rustix::fs::{Dir, FileType, Mode, OFlags, RawDir, ResolveFlags, openat, openat2};
use sys::{AsFd as _, BorrowedFd, OsError, OwnedFd};
use units::{MemberSet, Slot};

/// How a directory is opened to be listed.
const TO_LIST: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// The bytes of a directory's records that are read at a time.
const LISTED_BYTES: usize = 1024;

/// Members out of which everything but `.cxlraid` was removed have not what the others have: each
/// member has the directories of the prefixes since the array was made.
pub(crate) fn without_trees(mut members: Vec<Member>) -> Vec<Member> {
    let in_sync = |member: &&mut Member| member.standing == Standing::InSync;
    let emptied: MemberSet =
        members.iter_mut().filter(in_sync).filter(|member| member.is_emptied()).map(|member| member.slot).collect();
    // If nobody has anything, nothing is lost.
    if members.iter_mut().filter(in_sync).count() > emptied.len() {
        for member in members.iter_mut().filter(|member| emptied.contains(member.slot)) {
            (member.standing, member.finding) = (Standing::Emptied, Some(why::EMPTIED.into()));
        }
    }
    members
}

/// What a start without programs in the array comes to: members whose directory of a prefix is
/// empty, while another member has files there, go out when the names are looked at.
pub(crate) fn without_names(prefixes: &[Vec<u8>], mut members: Vec<Member>) -> Vec<Member> {
    for prefix in prefixes {
        let in_sync = || members.iter().filter(|member| member.standing == Standing::InSync);
        let holds = |member: &&Member, wanted| member.root().is_some_and(|root| holds_names(root.as_fd(), prefix) == Ok(wanted));
        let has_files = |member: &Member| member.root().is_some_and(|root| holds_file(root.as_fd(), prefix));
        let empty: Vec<Slot> = in_sync().filter(|member| holds(member, false)).map(|member| member.slot).collect();
        if !empty.is_empty() && in_sync().any(has_files) {
            empty.iter().for_each(|&slot| members[slot].standing = Standing::Emptied);
        }
    }
    members
}

/// Whether a directory below a member's root holds any names; false if there is no such directory.
/// `path` is logical.
pub fn holds_names(root: BorrowedFd<'_>, path: &[u8]) -> sys::Result<bool> {
    let directory = match open_beneath(root, if path.len() > 1 { &path[1..] } else { b"." }) {
        Err(OsError::NOENT) => return Ok(false),
        opened => opened?,
    };
    holds_any(&directory)
}

/// Tells whether a member's directory holds nothing but what mkfs puts into a new file system, and
/// `.cxlraid`.
///
/// # Errors
/// The kernel's, of looking into the directory.
pub fn is_empty(root: BorrowedFd<'_>) -> sys::Result<bool> {
    // The offset of a descriptor that is read from is shared with whoever has a copy of it.
    let directory = openat(root, c".", TO_LIST, Mode::empty())?;
    Ok(!holds_any(&directory)?)
}

/// Tells whether a directory, which was opened to be listed once, holds any names of its own.
fn holds_any(directory: &OwnedFd) -> sys::Result<bool> {
    let mut buffer = [MaybeUninit::uninit(); LISTED_BYTES];
    let mut entries = RawDir::new(directory, &mut buffer);
    while let Some(entry) = entries.next() {
        if !is_of_member(entry?.file_name().to_bytes()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether there is a file anywhere below a directory.
fn holds_file(root: BorrowedFd<'_>, path: &[u8]) -> bool {
    let Ok(directory) = open_beneath(root, if path.len() > 1 { &path[1..] } else { b"." }) else { return false };
    let mut pending = alloc::vec![directory];
    while let Some(directory) = pending.pop() {
        let Ok(entries) = Dir::read_from(&*directory) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name().to_bytes();
            match entry.file_type() {
                _ if is_of_member(name) => {}
                FileType::RegularFile => return true,
                FileType::Directory => pending.extend(open_beneath(directory.as_fd(), name)),
                _ => {}
            }
        }
    }
    false
}

/// Whether a name is one of those that the array or the file system keeps in a member's root, or a
/// directory's own.
fn is_of_member(name: &[u8]) -> bool {
    matches!(name, b"." | b".." | b"lost+found" | b".cxlraid")
}

fn open_beneath(directory: BorrowedFd<'_>, path: &[u8]) -> sys::Result<Raised> {
    openat2(directory, path, TO_LIST, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS).and_then(Raised::new)
}
