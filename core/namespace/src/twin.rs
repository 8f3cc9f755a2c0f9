//! Where an open directory is when the member that its descriptor lies on is lost.
//!
//! The kernel tells by a descriptor what a directory is called now, but on one member only. Once
//! that member is out, directories are renamed and removed on the others, and the descriptor goes
//! on telling the old name. So an open directory of the array has a *twin*: a descriptor that only
//! names (O_PATH) the same directory on another member, and was opened while both members had the
//! same names. When the members have changed and the first descriptor tells the truth no more, the
//! twin stands for the directory, and gets a twin of its own on a member that is left.
//!
//! A directory without a twin has one descriptor to go by, as before: where no other member is in
//! use, where the process has no descriptor left or may not search the directories on the way, and
//! where the kernel does not tell the directory's path.
//!
//! Invariants:
//! - a twin is opened while the names stand still: no directory is renamed from the moment at which
//!   the path was right until the twin is open, and the first descriptor's member is in use at that
//!   moment;
//! - a member that comes back is emptied first ([`crate::fill`]), so a directory that lay there is
//!   told as removed by its descriptor, and is not taken for another one.

use crate::located::LISTED;
use crate::resolve::Found;
use crate::{DELETED, Namespace, Node};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use once_cell::race::OnceBox;
use sys::high_fd::{self, Raised};
use sys::rustix::fs::{CWD, FileType, Mode, SeekFrom, fstat, openat, readlinkat, seek};
use sys::{AsFd, AsRawFd, BorrowedFd, OsError, OwnedFd, Result};
use units::Slot;

/// How often a twin is looked for while names may change. After that they are kept from changing.
const LOOK_COUNT: u32 = 4;

/// The twin of an open directory. Cheap to copy.
#[derive(Clone)]
pub struct Twin(Arc<State>);

struct State {
    names: Namespace,
    fd: Raised,
    /// The state of the members in which the twin was opened (`Runtime::epoch`).
    members_epoch: u64,
    /// What was found when the members had changed.
    next: OnceBox<Next>,
    /// The directory once more, to be listed instead of the first descriptor.
    listed: OnceBox<Raised>,
}

/// What holds after a change of members.
struct Next {
    /// The twin stands for the directory from then on.
    has_moved: bool,
    /// The twin of what stands for the directory then.
    twin: Twin,
}

/// A path that the kernel tells of a directory.
struct Told {
    is_in_use: bool,
    is_removed: bool,
}

impl Told {
    const fn is_right(&self) -> bool {
        self.is_in_use && !self.is_removed
    }
}

impl Twin {
    /// The twin's own descriptor.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }

    /// The descriptor that tells where the directory is: `first`, which the twin was opened for, or
    /// after a loss the twin, or a later twin.
    #[inline]
    #[must_use]
    pub fn present<'a>(&'a self, first: BorrowedFd<'a>) -> BorrowedFd<'a> {
        if self.0.is_of_these_members() { first } else { self.after_changes(first).0 }
    }

    /// The descriptor that stands for the directory now, and whose twin has led there; no twin has
    /// if that is `first`.
    #[cold]
    fn after_changes<'a>(&'a self, first: BorrowedFd<'a>) -> (BorrowedFd<'a>, Option<&'a State>) {
        let (mut now, mut twin) = ((first, None), &*self.0);
        while !twin.is_of_these_members() {
            let then = |has_moved: bool| if has_moved { (twin.fd.as_fd(), Some(twin)) } else { now };
            if let Some(next) = twin.next.get() {
                now = then(next.has_moved);
                twin = &next.twin.0;
                continue;
            }
            let has_moved = twin.names.has_moved(now.0, twin.fd.as_fd());
            let Some(new) = twin.names.twin_of(then(has_moved).0) else { return then(has_moved) };
            // Another thread may have come to the same meanwhile.
            let _ = twin.next.set(Box::new(Next { has_moved, twin: new }));
        }
        now
    }

    /// The descriptor by which the directory is to be listed, if that is not `first`: `first` lists
    /// what was there when its member was lost. A listing that has begun before goes on as it is
    /// until the program goes back to its beginning.
    #[must_use]
    pub fn listed<'a>(&'a self, first: BorrowedFd<'a>) -> Option<BorrowedFd<'a>> {
        if self.0.is_of_these_members() {
            return None;
        }
        let (now, led) = self.after_changes(first);
        let led = led?;
        if let Some(listed) = led.listed.get() {
            return Some(listed.as_fd());
        }
        if seek(first, SeekFrom::Current(0)) != Ok(0) {
            return None;
        }
        let open = || openat(now, c".", LISTED, Mode::empty()).and_then(out_of_the_way).map(Box::new);
        led.listed.get_or_try_init(open).ok().map(AsFd::as_fd)
    }
}

impl State {
    fn is_of_these_members(&self) -> bool {
        self.names.array().runtime().epoch() == self.members_epoch
    }
}

impl Namespace {
    /// Opens the twin of a directory of the array; `directory` may be `AT_FDCWD`. The result is
    /// None if there can be none.
    #[must_use]
    pub fn twin_of(&self, directory: BorrowedFd<'_>) -> Option<Twin> {
        let look = || {
            let (path, slot) = self.told_place_of(directory).ok()?;
            self.twin_at(slot, &path)
        };
        if self.has_other_members() { self.with_names_still(look) } else { None }
    }

    /// Gives what a descriptor stands for its twin, if it is a directory that has none.
    #[must_use]
    pub fn with_twin(&self, fd: BorrowedFd<'_>, node: Node) -> Node {
        match node {
            Node::Directory(None) => Node::Directory(self.twin_of(fd)),
            Node::Path(None) if is_directory(fd) => Node::Path(self.twin_of(fd)),
            node => node,
        }
    }

    /// Opens the twin of a directory that was found by a look that began in the state `epoch` of
    /// the names.
    pub(crate) fn twin_of_found(&self, found: &Found, epoch: Option<u64>) -> Option<Twin> {
        if !self.has_other_members() {
            return None;
        }
        if epoch.is_some() {
            let twin = self.twin_at(found.slot, &found.path);
            if self.array().runtime().names_epoch() == epoch {
                return twin;
            }
        }
        self.twin_of(found.fd.as_fd())
    }

    /// Runs `look` so that no directory is renamed meanwhile.
    pub fn with_names_still<T>(&self, look: impl Fn() -> Option<T>) -> Option<T> {
        for _ in 0..LOOK_COUNT {
            let Some(epoch) = self.array().runtime().names_epoch() else { break };
            let found = look();
            if self.array().runtime().names_epoch() == Some(epoch) {
                return found;
            }
        }
        let mut found = None;
        self.with_names_held(|| {
            found = look();
            Ok(found.is_some())
        })
        .ok()?;
        found
    }

    fn has_other_members(&self) -> bool {
        self.array().in_use().len() > 1
    }

    /// Opens what has a logical path on another member than `slot`, which is in use.
    fn twin_at(&self, slot: Slot, path: &[u8]) -> Option<Twin> {
        let array = self.array();
        let members_epoch = array.runtime().epoch();
        let other = array.in_order(array.in_use()).find(|&other| other != slot)?;
        let fd = self.look_at_on(other, path).and_then(out_of_the_way).ok()?;
        // Had the member gone out before, its names might be old ones.
        let is_right = array.in_use().contains(slot) && array.runtime().epoch() == members_epoch;
        let state = State { names: *self, fd, members_epoch, next: OnceBox::new(), listed: OnceBox::new() };
        is_right.then(|| Twin(Arc::new(state)))
    }

    /// The logical path of a directory, and the member that it lies on.
    ///
    /// # Errors
    /// `STALE` if that is no member in use, or if the directory was removed.
    fn told_place_of(&self, directory: BorrowedFd<'_>) -> Result<(Vec<u8>, Slot)> {
        match self.place_of(directory)? {
            Some((path, Some(slot))) if !path.ends_with(DELETED) => Ok((path, slot)),
            _ => Err(OsError::STALE),
        }
    }

    /// Tells whether the twin stands for a directory, and not the descriptor `first`, after the
    /// members have changed.
    fn has_moved(&self, first: BorrowedFd<'_>, twin: BorrowedFd<'_>) -> bool {
        let (first, twin) = (self.told_of(first), self.told_of(twin));
        !first.is_right() && (twin.is_right() || twin.is_in_use && !first.is_in_use)
    }

    fn told_of(&self, directory: BorrowedFd<'_>) -> Told {
        let Ok(host) = host_path_of(directory) else { return Told { is_in_use: false, is_removed: true } };
        let slot = self.place_told(directory, &host).and_then(|(_, slot)| slot);
        let is_in_use = slot.is_some_and(|slot| self.array().in_use().contains(slot));
        Told { is_in_use, is_removed: host.ends_with(DELETED) }
    }
}

fn is_directory(fd: BorrowedFd<'_>) -> bool {
    fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Moves a descriptor out of the program's way.
///
/// # Errors
/// `MFILE` if there is no room there: the program is to find the number free.
fn out_of_the_way(fd: OwnedFd) -> Result<Raised> {
    let raised = Raised::new(fd)?;
    if (raised.as_raw_fd() as u32) < high_fd::base() { Err(OsError::MFILE) } else { Ok(raised) }
}

/// Returns what the kernel calls a directory that is open, or the current one (`AT_FDCWD`).
pub(crate) fn host_path_of(directory: BorrowedFd<'_>) -> Result<Vec<u8>> {
    if directory.as_raw_fd() == CWD.as_raw_fd() {
        return crate::deep::current_directory_by_link();
    }
    readlinkat(CWD, crate::descriptor::link(directory.as_raw_fd()).as_slice(), Vec::new()).map(|path| path.into_bytes())
}
