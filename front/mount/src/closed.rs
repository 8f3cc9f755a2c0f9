//! What the kernel knows and has not asked for lately: its descriptors are closed, and it is opened
//! again when it is asked for by number.
//!
//! The mount keeps its path, and how the file systems of two members call it themselves
//! ([`FileHandle`]): the member whose answers count, and of what is no file also the member of its twin
//! ([`namespace::Twin`]). Meanwhile the other door may rename it, and the directories on the way. It is
//! found then
//!
//! - by its file handle, where this process may open things so;
//! - else by its path, if that leads to what has the handle;
//! - else, a directory, by its name in the directory in which the kernel has it, which is found in the
//!   same ways;
//! - else, a directory that was asked for itself, by a search of the whole tree while no directory is
//!   renamed. One thread searches at a time, and what no search finds is gone: it is not searched for
//!   again.

use crate::{
    caller,
    file_handle::FileHandle,
    names::opened_again,
    nodes::{DIRECTORY, FILE, Identity, Nodes},
};
use namespace::{DELETED, Twin};
use std::sync::{
    Arc, Mutex, OnceLock, PoisonError,
    atomic::{AtomicU32, Ordering},
};
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

/// So many requests search the tree, or wait until they may. The threads that are left serve others.
const SEARCHER_COUNT_MAX: u32 = 32;

/// How a directory is looked for that is no more where it was.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Search {
    /// It is not.
    No,
    /// In its directory, by this number, which the kernel knows it by. It lies so many directories
    /// above the first one that was asked for.
    Of(u64, u32),
}

/// What is found when a thing is opened again.
pub(crate) type Found = (OwnedFd, Identity);

/// Whose turn it is to search the tree.
#[derive(Default)]
pub(crate) struct Searches {
    turn: Mutex<()>,
    searcher_count: AtomicU32,
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

    /// Opens the thing on the member whose answers count. To be called as root. The result is None if
    /// it is not where it was.
    ///
    /// # Errors
    /// `STALE` if it is gone; those of the members.
    pub(crate) fn open(&self, nodes: &Nodes, identity: &Identity, search: Search) -> Result<Option<Found>> {
        let array = nodes.names.files().array();
        let (first, in_use) = (array.first_in_use()?, array.in_use());
        let mut refusal = None;
        for noted in self.known(first, in_use) {
            match self.open_on(nodes, noted).and_then(|fd| fd.map(|fd| settled(nodes, noted.slot, first, fd)).transpose()) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                // Other members have nothing that has gone there.
                Err(OsError::STALE) if noted.slot == first => return Err(OsError::STALE),
                Err(error) => refusal = Some(error),
            }
        }
        // Of a file nothing else may be known.
        if identity[2] != DIRECTORY && !self.lies_on(in_use) {
            return nodes.found(&self.path).map(|found| (found.1 == *identity).then_some(found));
        }
        if let Some(fd) = self.open_in_its_place(nodes, identity, search) {
            return settled(nodes, first, first, fd).map(Some);
        }
        refusal.map_or(Ok(None), Err)
    }

    /// Tells whether nothing that is known of it is lost, and no more would be known if it were opened
    /// now.
    pub(crate) fn is_known_on(&self, in_use: MemberSet) -> bool {
        self.at.len() >= in_use.len().min(2) && self.at.iter().all(|noted| in_use.contains(noted.slot))
    }

    /// Returns what is noted on members in use, that of the first one before the others.
    fn known(&self, first: Slot, in_use: MemberSet) -> impl Iterator<Item = &Noted> {
        let those = move |is_first: bool| self.at.iter().filter(move |noted| (noted.slot == first) == is_first);
        those(true).chain(those(false)).filter(move |noted| in_use.contains(noted.slot))
    }

    /// Opens the thing on one member, by its handle or its path.
    fn open_on(&self, nodes: &Nodes, noted: &Noted) -> Result<Option<OwnedFd>> {
        match nodes.root_to_open_by(noted.slot).and_then(|root| noted.handle.open(root)) {
            // Of a file the kernel need not know a path then.
            Ok(fd) if noted.is_placed(nodes, &fd) => return Ok(Some(fd)),
            Err(OsError::STALE) => return Err(OsError::STALE),
            _ => {}
        }
        match nodes.names.look_at_on(noted.slot, &self.path) {
            Ok(fd) => Ok(noted.is_it(nodes, &fd).then_some(fd)),
            Err(OsError::NOENT | OsError::NOTDIR | OsError::LOOP | OsError::STALE) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens a directory by its name in the directory in which the kernel has it.
    fn open_in_its_place(&self, nodes: &Nodes, identity: &Identity, search: Search) -> Option<OwnedFd> {
        let Search::Of(number, depth) = search else { return None };
        if identity[2] != DIRECTORY || depth == DEPTH_MAX {
            return None;
        }
        let (above, name) = nodes.place_of(number)?;
        let above = nodes.get_below(above, depth + 1).ok()?;
        let fd = openat(above.fd(), name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).ok()?;
        self.at.iter().any(|noted| noted.is_it(nodes, &fd)).then_some(fd)
    }
}

impl Noted {
    fn is_placed(&self, nodes: &Nodes, fd: &OwnedFd) -> bool {
        nodes.placed(fd.as_fd()).is_ok_and(|(_, at)| at == Some(self.slot))
    }

    /// Tells whether a descriptor is of this thing on this member.
    fn is_it(&self, nodes: &Nodes, fd: &OwnedFd) -> bool {
        FileHandle::of(fd.as_fd()).as_ref() == Some(&self.handle) && self.is_placed(nodes, fd)
    }
}

/// Returns what was found on the member in `slot`, as it is on the one whose answers count.
fn settled(nodes: &Nodes, slot: Slot, first: Slot, fd: OwnedFd) -> Result<Found> {
    if slot == first {
        return nodes.identified(Ok(fd));
    }
    // The descriptor tells what it is called by now, and another thing is to have that name no sooner
    // than it is looked up.
    let look = || match nodes.placed(fd.as_fd())? {
        (path, _) if path.ends_with(DELETED) => Err(OsError::STALE),
        (path, _) => nodes.found(&path),
    };
    nodes.names.with_names_still(|| Some(look())).unwrap_or(Err(OsError::STALE))
}

impl Nodes {
    /// Searches the whole tree for a directory that [`Closed::open`] has not found. To be called as
    /// root. The result is None if others have found it, or given it up, meanwhile.
    ///
    /// # Errors
    /// `STALE` if it is not found. It is held to be gone then, if all could be read.
    pub(crate) fn search(&self, number: u64, closed: &Arc<Closed>) -> Result<Option<Found>> {
        let waiting = self.searches.searcher_count.fetch_add(1, Ordering::AcqRel);
        let found = if waiting < SEARCHER_COUNT_MAX { self.search_in_turn(number, closed) } else { Err(OsError::STALE) };
        self.searches.searcher_count.fetch_sub(1, Ordering::AcqRel);
        found
    }

    fn search_in_turn(&self, number: u64, closed: &Arc<Closed>) -> Result<Option<Found>> {
        let _turn = self.searches.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_closed(number, closed) {
            return Ok(None);
        }
        let array = self.names.files().array();
        let (first, in_use) = (array.first_in_use()?, array.in_use());
        let noted = closed.known(first, in_use).next().ok_or(OsError::STALE)?;
        let found = self.names.with_names_still(|| searched(self, noted));
        match found.ok_or(OsError::STALE)? {
            Some(fd) => settled(self, noted.slot, first, fd).map(Some),
            None => {
                // Whose turn is next asks whether it is given up.
                self.give_up(number, closed);
                Err(OsError::STALE)
            }
        }
    }
}

/// Looks for a directory in the whole tree of a member. The result is `Some(None)` if it is nowhere,
/// and None if it is not found, and may lie where the member could not be read.
fn searched(nodes: &Nodes, noted: &Noted) -> Option<Option<OwnedFd>> {
    let (mut rest, mut is_whole) = (vec![nodes.prefix.clone()], true);
    // A directory that was removed meanwhile, or that this process may not read, holds nothing that the
    // process may open.
    let holds_nothing = |error: OsError| matches!(error, OsError::NOENT | OsError::NOTDIR | OsError::ACCESS);
    while let Some(path) = rest.pop() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = nodes.names.look_at_on(noted.slot, &path).and_then(|directory| {
            let listing = opened_again(directory.as_fd(), flags).and_then(Dir::new)?;
            Ok((directory, listing))
        });
        let (directory, listing) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                is_whole &= holds_nothing(error);
                continue;
            }
        };
        for entry in listing {
            let Ok(entry) = entry else {
                is_whole = false;
                break;
            };
            let name = entry.file_name().to_bytes();
            let may_be_one = matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
            if !may_be_one || matches!(name, b"." | b"..") || nodes.names.hides(&path, name) {
                continue;
            }
            if entry.ino() == noted.inode {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                match openat(&directory, name, flags, Mode::empty()) {
                    Ok(fd) if noted.is_it(nodes, &fd) => return Some(Some(fd)),
                    Ok(_) => {}
                    Err(error) => is_whole &= holds_nothing(error),
                }
            }
            rest.push([path.as_slice(), b"/", name].concat());
        }
    }
    is_whole.then_some(None)
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
