//! A name that a call makes, takes away or changes, and where it lies on each member.

use crate::ProgramPath;
use crate::everywhere::On;
use crate::located::{Directories, Located, SAFELY, open_below};
use crate::mounts::open_within;
use crate::resolve::split_last;
use alloc::rc::Rc;
use alloc::vec::Vec;
use sys::rustix::fs::{Mode, OFlags};
use sys::{AsFd, BorrowedFd, OwnedFd, Result};
use units::Slot;

/// A name to be changed: its directory has been found, itself has not been looked at.
pub(crate) struct Target<'a> {
    /// Logical.
    pub(crate) path: Vec<u8>,
    /// Below a member's root, with the program's trailing slash if there was one.
    relative: Vec<u8>,
    /// The path that the program gave for the name: it says which open directory leads there.
    from: ProgramPath<'a>,
    /// The directory of the name, on each member where it was looked up.
    directories: Rc<Directories>,
}

impl<'a> Target<'a> {
    /// The name at a logical path. `from` is the program's path that led there.
    pub(crate) fn new(from: ProgramPath<'a>, path: Vec<u8>, slash: bool) -> Self {
        let mut relative = path[1..].to_vec();
        if slash {
            relative.push(b'/');
        }
        Self { path, relative, from, directories: Rc::new(Directories::default()) }
    }

    /// Another name that the same path of the program led to.
    pub(crate) fn instead(&self, path: Vec<u8>) -> Self {
        Self::new(self.from, path, false)
    }

    /// Where the name lies below a member's root, with the program's trailing slash if there was
    /// one.
    pub(crate) fn relative(&self) -> &[u8] {
        &self.relative
    }

    /// Where the name lies on a member.
    ///
    /// # Errors
    /// As for [`Located::below`].
    pub(crate) fn on(&self, on: &On) -> Result<Located<'_>> {
        let (directory, relative) = self.start_on(on.slot).unwrap_or((on.root.as_fd(), &self.relative));
        if on.afresh { Located::below(directory, relative) } else { self.directories.locate(on.slot, directory, relative) }
    }

    /// Opens or makes what has the name on a member. No symlink is followed anywhere.
    pub(crate) fn open(&self, on: &On, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        match self.start_on(on.slot) {
            Some((directory, rest)) => open_within(directory, rest, flags, mode, SAFELY),
            None => open_below(on.root, &self.relative, flags, mode),
        }
    }

    /// The open directory that the program's path starts from, if it lies on this member and the
    /// name below it, and the name relative to that.
    fn start_on(&self, slot: Slot) -> Option<(BorrowedFd<'_>, &[u8])> {
        let (directory, rest) = self.from.leading_to(&self.path).on(slot)?;
        Some((directory, &self.relative[self.path.len() - 1 - rest.len()..]))
    }

    /// This target after another one of the same operation: what has been found of the other's
    /// directory serves both if they are in the same.
    pub(crate) fn beside(mut self, other: &Self) -> Self {
        if self.from.starts_like(&other.from) && split_last(&self.relative).0 == split_last(&other.relative).0 {
            self.directories = Rc::clone(&other.directories);
        }
        self
    }
}
