//! Where a name lies on one member: its directory as a descriptor, and the last component.
//!
//! The first member's path says where a name is. But on every member, the first included, a user
//! who owns a directory on the way may have put a symlink in its place since, which leads out of
//! the array. So no call that concerns a member gets a path of several components. The kernel
//! resolves the directory beneath the member's root without a symlink (openat2), and the call is
//! made on that descriptor. It follows no symlink as the last component either.
//!
//! A name directly below the root needs no resolving. A directory is resolved once per member and
//! operation ([`Directories`]), which costs an openat2(2) and a close(2).

use crate::mounts::open_deep;
use crate::resolve::{split_last, without_slashes};
use alloc::collections::BTreeMap;
use alloc::ffi::CString;
use alloc::vec::Vec;
use core::cell::OnceCell;
use sys::high_fd::Raised;
use sys::rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, chmodat, fstat, openat, readlinkat, statat, unlinkat,
};
use sys::{AsFd, AsRawFd, BorrowedFd, OsError, OwnedFd, Result};
use units::{MEMBER_COUNT_MAX, Slot};

/// How the kernel resolves a path below a member's root.
pub(crate) const SAFELY: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// A name on one member.
pub(crate) struct Located<'a> {
    directory: Directory<'a>,
    /// The last component, with the slashes that the program wrote behind it.
    name: &'a [u8],
}

enum Directory<'a> {
    /// The member's root, or the directory of another name.
    Known(BorrowedFd<'a>),
    Opened(Raised),
}

impl<'a> Located<'a> {
    /// Finds the directory of a name below a member's root, or below another directory of the
    /// member.
    ///
    /// # Errors
    /// `LOOP` if a symlink is on the way, and what the kernel says of a directory that is not there
    /// or not to be searched.
    pub(crate) fn below(root: BorrowedFd<'a>, relative: &'a [u8]) -> Result<Self> {
        let (parent, name) = split_last(relative);
        Ok(Self { directory: open_directory(root, parent)?, name })
    }

    /// Where a second name lies on this member. Its directory may be the first name's.
    pub(crate) fn and<'b>(&'b self, root: &'b OwnedFd, own: &[u8], other: &'b [u8]) -> Result<Located<'b>> {
        let (parent, name) = split_last(other);
        let is_beside = split_last(own).0 == parent;
        let directory = if is_beside { Directory::Known(self.directory()) } else { open_directory(root.as_fd(), parent)? };
        Ok(Located { directory, name })
    }

    /// The descriptor of the directory.
    pub(crate) fn directory(&self) -> BorrowedFd<'_> {
        match &self.directory {
            Directory::Known(fd) => *fd,
            Directory::Opened(fd) => fd.as_fd(),
        }
    }

    /// The descriptor of the directory, if it was opened for this name alone.
    pub(crate) fn into_directory(self) -> Option<Raised> {
        match self.directory {
            Directory::Known(_) => None,
            Directory::Opened(fd) => Some(fd),
        }
    }

    /// The last component: what the kernel is told beside the directory's descriptor.
    pub(crate) fn name(&self) -> &'a [u8] {
        self.name
    }

    /// The name without slashes behind it, with which the kernel would follow a symlink.
    fn bare(&self) -> &'a [u8] {
        without_slashes(self.name)
    }

    /// A path to it for calls that take no directory, and must not follow a last symlink. Good for
    /// as long as this lives.
    pub(crate) fn path(&self) -> Vec<u8> {
        [crate::descriptor::link(self.directory().as_raw_fd()).as_slice(), b"/", self.bare()].concat()
    }

    pub(crate) fn stat(&self) -> Result<Stat> {
        statat(self.directory(), self.bare(), AtFlags::SYMLINK_NOFOLLOW)
    }

    pub(crate) fn readlink(&self) -> Result<Vec<u8>> {
        readlinkat(self.directory(), self.bare(), Vec::new()).map(CString::into_bytes)
    }

    /// Opens what is there, with O_NOFOLLOW.
    pub(crate) fn open(&self, flags: OFlags) -> Result<Raised> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(self.directory(), self.bare(), flags, Mode::empty()).and_then(Raised::new)
    }

    /// Changes the mode of what is there.
    ///
    /// # Errors
    /// `LOOP` for a symlink.
    pub(crate) fn chmod(&self, mode: Mode) -> Result<()> {
        // fchmodat(2) follows, and fchmodat2(2) is Linux 6.6.
        let itself = self.open(OFlags::PATH)?;
        if FileType::from_raw_mode(fstat(&itself)?.st_mode) == FileType::Symlink {
            return Err(OsError::LOOP);
        }
        chmodat(CWD, crate::descriptor::link(itself.as_raw_fd()), mode, AtFlags::empty())
    }

    /// Removes what the first member does not have, with all that is in it. `is_needed` is asked
    /// for each file below a directory.
    ///
    /// # Errors
    /// `NOTEMPTY` if a file is needed. It stays, and so do the directories above it.
    pub(crate) fn clear(&self, is_needed: &dyn Fn(&Located<'_>) -> Result<bool>) -> Result<()> {
        clear(self.directory(), self.bare(), is_needed)
    }
}

/// The directory of a name on each member, found when it is first asked for and kept for the other
/// calls of the same operation.
#[derive(Default)]
pub(crate) struct Directories([OnceCell<Raised>; MEMBER_COUNT_MAX]);

impl Directories {
    /// Where a name lies that is in this directory.
    ///
    /// # Errors
    /// As for [`Located::below`].
    pub(crate) fn locate<'a>(&'a self, slot: Slot, root: BorrowedFd<'a>, relative: &'a [u8]) -> Result<Located<'a>> {
        let (parent, name) = split_last(relative);
        let kept = &self.0[slot];
        let directory = match kept.get() {
            Some(kept) => Directory::Known(kept.as_fd()),
            None => match open_directory(root, parent)? {
                Directory::Opened(fd) => Directory::Known(kept.get_or_init(|| fd).as_fd()),
                root => root,
            },
        };
        Ok(Located { directory, name })
    }
}

fn open_directory<'a>(root: BorrowedFd<'a>, parent: &[u8]) -> Result<Directory<'a>> {
    // The current directory is a negative number.
    let is_own = i64::from(root.as_raw_fd()) >= i64::from(sys::high_fd::base());
    let parent = match parent {
        b"" if is_own => return Ok(Directory::Known(root)),
        // Another thread of the program may close its descriptor at any time, and the number be
        // another directory's.
        b"" => b".",
        parent => parent,
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // Out of the program's way: its next descriptor has the number it would have on a plain
    // directory.
    open_deep(root, parent, flags, Mode::empty(), SAFELY).and_then(Raised::new).map(Directory::Opened)
}

/// Opens or makes a file or directory below a member's root. No symlink is followed anywhere.
pub(crate) fn open_below(root: &OwnedFd, relative: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    open_deep(root.as_fd(), relative, flags, mode, SAFELY)
}

fn clear(directory: BorrowedFd<'_>, name: &[u8], is_needed: &dyn Fn(&Located<'_>) -> Result<bool>) -> Result<()> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(OsError::NOENT) => return Ok(()),
        Err(OsError::ISDIR | OsError::PERM | OsError::NOTDIR) => {}
        Err(error) => return Err(error),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let inner = openat(directory, name, flags, Mode::empty())?;
    for name in &names_of(&inner)? {
        if is_needed(&Located { directory: Directory::Known(inner.as_fd()), name })? {
            return Err(OsError::NOTEMPTY);
        }
        clear(inner.as_fd(), name, is_needed)?;
    }
    unlinkat(directory, name, AtFlags::REMOVEDIR)
}

/// How a directory is opened to be listed.
pub(crate) const LISTED: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The names in a directory below a member's root.
pub(crate) fn names_in(root: &OwnedFd, directory: &[u8]) -> Result<Vec<Vec<u8>>> {
    names_of(&*open_below(root, directory, LISTED, Mode::empty()).and_then(Raised::new)?)
}

/// The names in a directory below a member's root, and of what kind the file system says each is.
pub(crate) fn kinds_in(root: &OwnedFd, directory: &[u8]) -> Result<BTreeMap<Vec<u8>, FileType>> {
    let opened = open_below(root, directory, LISTED, Mode::empty()).and_then(Raised::new)?;
    let mut kinds = BTreeMap::new();
    each_name(&opened, |name, kind| _ = kinds.insert(name.to_vec(), kind))?;
    Ok(kinds)
}

fn names_of(directory: &OwnedFd) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    each_name(directory, |name, _| names.push(name.to_vec()))?;
    Ok(names)
}

fn each_name(directory: &OwnedFd, mut visit: impl FnMut(&[u8], FileType)) -> Result<()> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            visit(name, entry.file_type());
        }
    }
    Ok(())
}
