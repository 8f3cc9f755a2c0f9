//! What the kernel knows and has not asked for lately: its descriptors are closed, and it is opened
//! again when it is asked for by number.
//!
//! What is kept of it is its path, and how the file systems of two members call it themselves
//! ([`FileHandle`]): the member whose answers count, and of what is no file also the member of its twin
//! ([`namespace::Twin`]). Meanwhile the other door may rename it, and the directories on the way. It is
//! found then
//!
//! - by its file handle, where this process may open things so;
//! - else by its path, if that leads to what has the handle;
//! - else, a directory, by its name in the directory in which the kernel has it, which is found in the
//!   same ways;
//! - else, a directory, by a search of the whole tree while no directory is renamed.

use crate::{
    caller,
    file_handle::FileHandle,
    names::opened_again,
    nodes::{DIRECTORY, FILE, Identity, Nodes},
};
use namespace::{DELETED, Twin};
use std::sync::OnceLock;
use sys::rustix::fs::{Dir, FileType, Mode, OFlags, fstat, openat};
use sys::{AsFd as _, BorrowedFd, OsError, OwnedFd, Result};
use units::{MemberSet, Slot};

/// So many directories above a directory are looked for by their own directories, before it is searched
/// for.
const DEPTH_MAX: u32 = 64;

/// What is kept of a thing whose descriptors are closed.
pub(crate) struct Closed {
    /// Its logical path when they were closed.
    pub(crate) path: Vec<u8>,
    /// The members on which it is known where it lies, the one whose answers count first.
    at: Vec<Noted>,
}

/// What the file system of a member calls a thing.
struct Noted {
    slot: Slot,
    handle: FileHandle,
    /// Directories list it with this number.
    inode: u64,
}

/// How a directory is looked for that is no more where it was.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Search {
    /// It is not.
    No,
    /// By this number, which the kernel knows it by, and so many directories below the first one
    /// that was asked for: in its directory, and then everywhere.
    Of(u64, u32),
}

impl Closed {
    /// Returns what is to be kept of a thing before its descriptors are closed. The result is None
    /// if it could not be opened again: it has no name any more, or it is a directory and its file
    /// system has no handles.
    pub(crate) fn of(nodes: &Nodes, fd: BorrowedFd<'_>, twin: Option<&Twin>, identity: &Identity) -> Option<Self> {
        let mut at = Vec::new();
        let mut note = |fd: BorrowedFd<'_>| {
            let (path, slot) = nodes.placed(fd).ok()?;
            if path.ends_with(DELETED) {
                return None;
            }
            at.extend(slot.and_then(|slot| Some(Noted { slot, handle: FileHandle::of(fd)?, inode: fstat(fd).ok()?.st_ino })));
            Some(path)
        };
        let path = note(fd)?;
        if let Some(twin) = twin {
            let _ = note(twin.fd());
        }
        (identity[2] != DIRECTORY || !at.is_empty()).then_some(Self { path, at })
    }

    /// Tells whether what was found on a member with the inode number of this thing may be this
    /// thing, and is not a later one that has got the number.
    pub(crate) fn may_be(&self, slot: Slot, fd: BorrowedFd<'_>) -> bool {
        let noted = self.at.iter().find(|noted| noted.slot == slot);
        noted.is_none_or(|noted| FileHandle::of(fd).is_none_or(|found| found == noted.handle))
    }

    /// Tells whether it lies on a member that is in use, as far as is known.
    pub(crate) fn lies_on(&self, in_use: MemberSet) -> bool {
        self.at.iter().any(|noted| in_use.contains(noted.slot))
    }

    /// Opens the thing on the member whose answers count. To be called as root.
    ///
    /// # Errors
    /// `STALE` if it is gone, or cannot be found; those of the members.
    pub(crate) fn open(&self, nodes: &Nodes, identity: &Identity, search: Search) -> Result<(OwnedFd, Identity)> {
        let array = nodes.names.files().array();
        let (first, in_use) = (array.first_in_use()?, array.in_use());
        let mut refusal = OsError::STALE;
        let known = |is_first: bool| self.at.iter().filter(move |noted| (noted.slot == first) == is_first);
        for noted in known(true).chain(known(false)).filter(|noted| in_use.contains(noted.slot)) {
            let found = self.open_on(nodes, noted, identity, search).and_then(|fd| match noted.slot {
                slot if slot == first => nodes.identified(Ok(fd)),
                // The descriptor tells what it is called by now.
                _ => match nodes.placed(fd.as_fd())? {
                    (path, _) if path.ends_with(DELETED) => Err(OsError::STALE),
                    (path, _) => nodes.found(&path),
                },
            });
            match found {
                Err(error) => refusal = error,
                found => return found,
            }
        }
        // Of a file nothing else may be known.
        if identity[2] != DIRECTORY && !self.lies_on(in_use) {
            return nodes.found(&self.path).and_then(|found| if found.1 == *identity { Ok(found) } else { Err(OsError::STALE) });
        }
        Err(refusal)
    }

    fn open_on(&self, nodes: &Nodes, noted: &Noted, identity: &Identity, search: Search) -> Result<OwnedFd> {
        let Noted { slot, ref handle, inode } = *noted;
        let is_placed = |fd: &OwnedFd| nodes.placed(fd.as_fd()).is_ok_and(|(_, at)| at == Some(slot));
        let is_it = |fd: &OwnedFd| FileHandle::of(fd.as_fd()).as_ref() == Some(handle) && is_placed(fd);
        match nodes.root_to_open_by(slot).and_then(|root| handle.open(root)) {
            // Of a file the kernel need not know a path then.
            Ok(fd) if is_placed(&fd) => return Ok(fd),
            Err(OsError::STALE) => return Err(OsError::STALE),
            _ => {}
        }
        match nodes.names.look_at_on(slot, &self.path) {
            Ok(fd) if is_it(&fd) => return Ok(fd),
            Ok(_) | Err(OsError::NOENT | OsError::NOTDIR | OsError::LOOP | OsError::STALE) => {}
            Err(error) => return Err(error),
        }
        let Search::Of(number, depth) = search else { return Err(OsError::STALE) };
        if identity[2] != DIRECTORY {
            return Err(OsError::STALE);
        }
        if depth < DEPTH_MAX
            && let Some((above, name)) = nodes.place_of(number)
            && let Ok(above) = nodes.get_below(above, depth + 1)
            && let Ok(fd) = openat(above.fd(), name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
            && is_it(&fd)
        {
            return Ok(fd);
        }
        nodes.names.with_names_still(|| searched(nodes, slot, inode, &is_it)).ok_or(OsError::STALE)
    }
}

/// Looks for a directory with an inode number in the whole tree of a member.
fn searched(nodes: &Nodes, slot: Slot, inode: u64, is_it: &impl Fn(&OwnedFd) -> bool) -> Option<OwnedFd> {
    let mut rest = vec![nodes.prefix.clone()];
    while let Some(path) = rest.pop() {
        // What cannot be read is left out.
        let Ok(directory) = nodes.names.look_at_on(slot, &path) else { continue };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(listing) = opened_again(directory.as_fd(), flags).and_then(Dir::new) else { continue };
        for entry in listing.filter_map(core::result::Result::ok) {
            let name = entry.file_name().to_bytes();
            let may_be_one = matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
            if !may_be_one || matches!(name, b"." | b"..") || nodes.names.hides(&path, name) {
                continue;
            }
            if entry.ino() == inode {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                if let Some(found) = openat(&directory, name, flags, Mode::empty()).ok().filter(is_it) {
                    return Some(found);
                }
            }
            rest.push([path.as_slice(), b"/", name].concat());
        }
    }
    None
}

/// The root of each member, to open things by their handles.
pub(crate) type Roots = [OnceLock<Option<OwnedFd>>; units::MEMBER_COUNT_MAX];

impl Nodes {
    /// Returns a descriptor of a member's root by which things on its file system may be opened.
    ///
    /// # Errors
    /// `PERM` if there is none.
    fn root_to_open_by(&self, slot: Slot) -> Result<BorrowedFd<'_>> {
        let open = || {
            let root = self.names.files().array().members().get(slot)?.root()?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            caller::as_root(|| openat(root, c".", flags, Mode::empty())).ok()
        };
        let root = self.roots.get(slot).and_then(|root| root.get_or_init(open).as_ref());
        root.map(|root| root.as_fd()).ok_or(OsError::PERM)
    }
}

/// The number of descriptors that are open of something: what is no file has a twin.
pub(crate) const fn weight(identity: &Identity) -> usize {
    if identity[2] == FILE { 1 } else { 2 }
}
