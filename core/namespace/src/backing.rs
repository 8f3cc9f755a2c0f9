//! Which file of the array a backing file belongs to.
//!
//! The backing file's attribute says so, and the file's owner can write anything there. The
//! attribute is believed unless the member's table of backing files names another file (core/file's
//! `backings`). A file that is not believed counts as one without an attribute: somebody put it
//! there.

use crate::Namespace;
use crate::create::with_owner_access;
use crate::located::{Located, open_below};
use format::{ATTRIBUTE_BYTES, ATTRIBUTE_NAME, Attribute};
use sys::rustix::fs::{
    AtFlags, Mode, OFlags, Stat, StatxFlags, XattrFlags, fgetxattr, flistxattr, fsetxattr, fstat, getxattr, lgetxattr, statx,
};
use sys::{AsFd, AsRawFd, BorrowedFd, OsError, OwnedFd, Result};
use units::{MemberSet, Slot};

impl Namespace {
    /// Reads the attribute of an open backing file of a member. The result is None if the file has
    /// none, or another file's.
    pub(crate) fn attribute_on(&self, slot: Slot, fd: impl AsFd) -> Result<Option<Attribute>> {
        match read_attribute(&fd)? {
            Some(attribute) => Ok(self.own(slot, attribute, &fstat(&fd)?)),
            None => Ok(None),
        }
    }

    /// Reads the attribute of a backing file that this process may have had open for long, or was
    /// handed: the file may lie on a member that is out. `fd` may be opened with O_PATH. The result
    /// is None if the file has none, or another file's.
    pub fn attribute_open(&self, fd: BorrowedFd<'_>) -> Result<Option<Attribute>> {
        let Some(attribute) = attribute_behind(fd)? else { return Ok(None) };
        let stat = fstat(fd)?;
        let among = MemberSet::first(self.array().members().len());
        Ok(match self.files.is_backing_of(attribute, [stat.st_dev, stat.st_ino], among) {
            Some(is_own) => is_own.then_some(attribute),
            None => match self.slot_of(fd) {
                Some(slot) => self.own(slot, attribute, &stat),
                // This process cannot see the member's table. Processes that have the file open
                // have noted what it is.
                None => self.files.attribute_of_anchor(fd).or(Some(attribute)),
            },
        })
    }

    /// Reads the attribute of a member's backing file through a descriptor that may be opened with
    /// O_PATH. The result is None if the file has none, or another file's.
    pub(crate) fn attribute_named(&self, slot: Slot, fd: BorrowedFd<'_>) -> Result<Option<Attribute>> {
        match attribute_behind(fd)? {
            Some(attribute) => Ok(self.own(slot, attribute, &fstat(fd)?)),
            None => Ok(None),
        }
    }

    /// Reads the attribute of a backing file by its name on a member. The result is None if the
    /// file has none, or another file's.
    pub(crate) fn attribute_at(&self, slot: Slot, at: &Located<'_>) -> Result<Option<Attribute>> {
        let mut value = [0; ATTRIBUTE_BYTES];
        match decode(lgetxattr(at.path(), ATTRIBUTE_NAME, &mut value), &value)? {
            Some(attribute) => Ok(self.own(slot, attribute, &at.stat()?)),
            None => Ok(None),
        }
    }

    /// Returns `attribute`, which was read from the backing file with this stat on a member, unless
    /// it is another file's. The member's own table alone is asked: members may share a file
    /// system, and one that this process cannot see would leave the question open.
    fn own(&self, slot: Slot, attribute: Attribute, stat: &Stat) -> Option<Attribute> {
        let is_own = self.files.is_backing_of(attribute, [stat.st_dev, stat.st_ino], MemberSet::EMPTY.with(slot));
        (is_own != Some(false)).then_some(attribute)
    }

    /// Tells whether an open file of a member is the backing file of the inode that `attribute`
    /// names. If so, the member's table notes it where nothing was known.
    pub(crate) fn is_bound(&self, slot: Slot, fd: &OwnedFd, attribute: Attribute) -> Result<bool> {
        if read_attribute(fd)? != Some(attribute) {
            return Ok(false);
        }
        let stat = fstat(fd)?;
        let is_own = self.own(slot, attribute, &stat).is_some();
        if is_own {
            self.files.learn_backing(slot, attribute, stat.st_ino);
        }
        Ok(is_own)
    }

    /// Makes a file of a member the backing file of the inode that `attribute` names.
    pub(crate) fn bind(&self, slot: Slot, fd: &OwnedFd, attribute: Attribute) -> Result<()> {
        // Nothing but the number is asked for: a file whose times somebody has seen gets another
        // ctime by the attribute, and a new file has that of its birth.
        let found = statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::INO)?;
        self.files.note_backing(slot, attribute, found.stx_ino);
        // User attributes need write permission on the file, not on the descriptor; its maker may
        // not have given itself any.
        with_owner_access(fd, || fsetxattr(fd, ATTRIBUTE_NAME, &attribute.encode(), XattrFlags::empty()))
    }

    /// Makes an empty file, by its name on a member, a backing file as [`Self::bind`] does: its
    /// maker died before.
    pub(crate) fn bind_at(&self, slot: Slot, relative: &[u8], attribute: Attribute) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        self.bind(slot, &open_below(self.root(slot)?, relative, flags, Mode::empty())?, attribute)
    }
}

/// Tells whether a descriptor is open on a backing file, of any array. To read the attribute takes
/// the right to read the file, whatever the descriptor may be used for, and a process may have given
/// that up since: then a file that has an attribute of the name counts as a backing file.
#[must_use]
pub fn is_backing(fd: impl AsFd) -> bool {
    match read_attribute(&fd) {
        Err(OsError::ACCESS) => has_attribute(fd),
        found => matches!(found, Ok(Some(_))),
    }
}

/// Tells whether an open file has the attribute. The question takes no rights on the file. A file with
/// more attributes than have room here counts as one that has it.
#[cold]
fn has_attribute(fd: impl AsFd) -> bool {
    let mut names = [0u8; 1024];
    match flistxattr(fd, &mut names) {
        Ok(bytes) => names[..bytes].split(|&byte| byte == 0).any(|name| name == ATTRIBUTE_NAME.to_bytes()),
        Err(error) => error == OsError::RANGE,
    }
}

/// Reads what the attribute of an open file says, which may be another file's. The result is None
/// if there is none.
fn read_attribute(fd: impl AsFd) -> Result<Option<Attribute>> {
    let mut value = [0; ATTRIBUTE_BYTES];
    decode(fgetxattr(fd, ATTRIBUTE_NAME, &mut value), &value)
}

/// Reads the same as [`read_attribute`] through a descriptor that may be opened with O_PATH.
pub(crate) fn attribute_behind(fd: BorrowedFd<'_>) -> Result<Option<Attribute>> {
    let mut value = [0; ATTRIBUTE_BYTES];
    let link = crate::descriptor::link(fd.as_raw_fd());
    decode(getxattr(link.as_slice(), ATTRIBUTE_NAME, &mut value), &value)
}

/// Reads the same of what has a name below a directory, which may be `AT_FDCWD`. A symlink is not
/// followed.
pub(crate) fn attribute_below(directory: BorrowedFd<'_>, name: &[u8]) -> Result<Option<Attribute>> {
    let mut value = [0; ATTRIBUTE_BYTES];
    let path = match directory.as_raw_fd() {
        // The path is relative to the current directory.
        ..0 => name.to_vec(),
        fd => [crate::descriptor::link(fd).as_slice(), b"/", name].concat(),
    };
    decode(lgetxattr(path, ATTRIBUTE_NAME, &mut value), &value)
}

/// Decodes the attribute that a getxattr(2) call has left in `value`. A damaged one counts as none.
fn decode(result: Result<usize>, value: &[u8; ATTRIBUTE_BYTES]) -> Result<Option<Attribute>> {
    match result {
        Ok(bytes) => Ok(Attribute::decode(&value[..bytes]).ok()),
        Err(OsError::NODATA | OsError::OPNOTSUPP | OsError::RANGE) => Ok(None),
        Err(error) => Err(error),
    }
}
