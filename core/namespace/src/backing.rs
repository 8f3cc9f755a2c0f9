//! Which file of the array a backing file belongs to.
//!
//! The backing file's attribute says so, and its owner can write what he likes there. It is believed unless the member's table of backing files names another one (core/file's
//! `backings`); then the file counts as one without an attribute: put there by other hands.

use crate::Namespace;
use crate::located::{Located, open_below};
use format::{ATTRIBUTE_BYTES, ATTRIBUTE_NAME, Attribute};
use sys::rustix::fs::{Mode, OFlags, Stat, XattrFlags, fchmod, fgetxattr, fsetxattr, fstat, getxattr, lgetxattr};
use sys::{AsFd, AsRawFd, BorrowedFd, OsError, OwnedFd, Result};
use units::{MemberSet, Slot};

impl Namespace {
    /// The attribute of an open backing file on a member in use, if that is its own; None if it has none, or another one's.
    pub(crate) fn attribute_on(&self, fd: impl AsFd) -> Result<Option<Attribute>> {
        match read_attribute(&fd)? {
            Some(attribute) => Ok(self.own(attribute, &fstat(&fd)?)),
            None => Ok(None),
        }
    }

    /// The same of a descriptor that this process may have had for long, or from another one: it may lie on a member that is out. It may only name something (O_PATH).
    pub fn attribute_open(&self, fd: BorrowedFd<'_>) -> Result<Option<Attribute>> {
        let Some(attribute) = attribute_behind(fd)? else { return Ok(None) };
        let stat = fstat(fd)?;
        let among = MemberSet::first(self.array().members().len());
        Ok(match self.files.is_backing_of(attribute, [stat.st_dev, stat.st_ino], among) {
            Some(is_own) => is_own.then_some(attribute),
            // Its member's table cannot be seen; who has it open has noted what it is.
            None => self.files.attribute_of_anchor(fd).or(Some(attribute)),
        })
    }

    /// The same as of an open backing file, of what lies there on one member.
    pub(crate) fn attribute_at(&self, at: &Located<'_>) -> Result<Option<Attribute>> {
        let mut value = [0; ATTRIBUTE_BYTES];
        match decode(lgetxattr(at.path(), ATTRIBUTE_NAME, &mut value), &value)? {
            Some(attribute) => Ok(self.own(attribute, &at.stat()?)),
            None => Ok(None),
        }
    }

    /// An attribute that was read from the backing file with this stat, which lies on a member in use, if it is that one's own.
    fn own(&self, attribute: Attribute, stat: &Stat) -> Option<Attribute> {
        let is_own = self.files.is_backing_of(attribute, [stat.st_dev, stat.st_ino], self.array().in_use());
        (is_own != Some(false)).then_some(attribute)
    }

    /// Whether what was opened on a member is the backing file of the inode that `attribute` names. That it is, is noted if it was not known.
    pub(crate) fn is_bound(&self, slot: Slot, fd: &OwnedFd, attribute: Attribute) -> Result<bool> {
        if read_attribute(fd)? != Some(attribute) {
            return Ok(false);
        }
        let stat = fstat(fd)?;
        let is_own = self.own(attribute, &stat).is_some();
        if is_own {
            self.files.learn_backing(slot, attribute, stat.st_ino);
        }
        Ok(is_own)
    }

    /// Makes a file of a member the backing file of the inode that `attribute` names.
    pub(crate) fn bind(&self, slot: Slot, fd: &OwnedFd, attribute: Attribute) -> Result<()> {
        self.files.note_backing(slot, attribute, fstat(fd)?.st_ino);
        let set = || fsetxattr(fd, ATTRIBUTE_NAME, &attribute.encode(), XattrFlags::empty());
        match set() {
            // User attributes need write permission on the file, not on the descriptor; its maker may not have given itself any.
            Err(OsError::ACCESS) => {
                let mode = Mode::from_raw_mode(fstat(fd)?.st_mode & 0o7777);
                fchmod(fd, mode | Mode::RUSR | Mode::WUSR)?;
                let result = set();
                fchmod(fd, mode)?;
                result
            }
            result => result,
        }
    }

    /// The same of an empty file whose maker died before.
    pub(crate) fn bind_at(&self, slot: Slot, relative: &[u8], attribute: Attribute) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        self.bind(slot, &open_below(self.root(slot)?, relative, flags, Mode::empty())?, attribute)
    }
}

/// Whether a descriptor leads to a member's copy of a file, of whatever array.
#[must_use]
pub fn is_backing(fd: impl AsFd) -> bool {
    matches!(read_attribute(fd), Ok(Some(_)))
}

/// What the attribute of an open file says; None if it has none.
fn read_attribute(fd: impl AsFd) -> Result<Option<Attribute>> {
    let mut value = [0; ATTRIBUTE_BYTES];
    decode(fgetxattr(fd, ATTRIBUTE_NAME, &mut value), &value)
}

/// What the attribute of something open on a member says, which a descriptor may only name (O_PATH).
pub(crate) fn attribute_behind(fd: BorrowedFd<'_>) -> Result<Option<Attribute>> {
    let mut value = [0; ATTRIBUTE_BYTES];
    let link = crate::descriptor::link(fd.as_raw_fd());
    decode(getxattr(link.as_slice(), ATTRIBUTE_NAME, &mut value), &value)
}

/// The attribute in what a call that gets attributes has left in `value`. A damaged one counts as none.
fn decode(result: Result<usize>, value: &[u8; ATTRIBUTE_BYTES]) -> Result<Option<Attribute>> {
    match result {
        Ok(bytes) => Ok(Attribute::decode(&value[..bytes]).ok()),
        Err(OsError::NODATA | OsError::OPNOTSUPP | OsError::RANGE) => Ok(None),
        Err(error) => Err(error),
    }
}
