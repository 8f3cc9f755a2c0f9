//! The files that keep the sums of files' blocks: `.cxlraid/sums/<inode>-<generation>` on each
//! member, both numbers in hexadecimal. docs/format/sums.md has the bytes.
//!
//! A generation is given out once for a number, so a file that was left by a death is never taken
//! for another one's. A member that gets a new beginning loses them all.

use crate::access;
use crate::assemble::Array;
use crate::regular::open_regular;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use format::{Access, Attribute, SUMS_DIRECTORY};
use sys::rustix::fs::{self, AtFlags, Dir, Mode, OFlags};
use sys::{AsFd as _, OsError, OwnedFd, Result};
use units::Slot;

fn name_of(file: Attribute) -> String {
    format!("{:x}-{:x}", file.inode, file.generation)
}

fn file_of(name: &[u8]) -> Option<Attribute> {
    let (inode, generation) = core::str::from_utf8(name).ok()?.split_once('-')?;
    let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let file = Attribute { inode: number(inode)?, generation: number(generation)? };
    (name_of(file).as_bytes() == name).then_some(file)
}

fn open_directory(meta: &OwnedFd) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    fs::openat(meta, SUMS_DIRECTORY, flags, Mode::empty())
}

fn make_directory(meta: &OwnedFd, whom: Access) -> Result<OwnedFd> {
    let mode = access::directory_mode(whom.mode);
    match fs::mkdirat(meta, SUMS_DIRECTORY, Mode::from_raw_mode(mode)) {
        Ok(()) => {
            let made = open_directory(meta)?;
            access::give(&made, whom, mode)?;
            Ok(made)
        }
        Err(OsError::EXIST) => open_directory(meta),
        Err(error) => Err(error),
    }
}

impl Array {
    /// Tells whether the array's files have sums of their blocks.
    #[inline]
    #[must_use]
    pub const fn has_sums(&self) -> bool {
        self.sums
    }

    /// Opens what keeps a file's sums on a member, and makes it if there is none. None if there is
    /// none and no space for one.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open_sums(&self, slot: Slot, file: Attribute) -> Result<Option<OwnedFd>> {
        let meta = self.members.get(slot).and_then(|member| member.meta()).ok_or(OsError::NODEV)?;
        let (name, whom) = (name_of(file), self.access);
        let directory = match open_directory(meta) {
            Err(OsError::NOENT) => match make_directory(meta, whom) {
                Err(OsError::NOSPC | OsError::DQUOT) => return Ok(None),
                made => made?,
            },
            opened => opened?,
        };
        match open_regular(directory.as_fd(), name.as_str(), OFlags::RDWR) {
            Err(OsError::NOENT) => {}
            opened => return opened.map(Some),
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match fs::openat(&directory, name.as_str(), flags, Mode::from_raw_mode(whom.mode)) {
            Ok(made) => {
                access::give(&made, whom, whom.mode)?;
                Ok(Some(made))
            }
            // Another process was faster.
            Err(OsError::EXIST) => open_regular(directory.as_fd(), name.as_str(), OFlags::RDWR).map(Some),
            Err(OsError::NOSPC | OsError::DQUOT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The files of which a member keeps sums.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn files_with_sums(&self, slot: Slot) -> Result<Vec<Attribute>> {
        let meta = self.members.get(slot).and_then(|member| member.meta()).ok_or(OsError::NODEV)?;
        let directory = match open_directory(meta) {
            Err(OsError::NOENT) => return Ok(Vec::new()),
            opened => opened?,
        };
        let mut files = Vec::new();
        for entry in Dir::read_from(&directory)? {
            files.extend(file_of(entry?.file_name().to_bytes()));
        }
        Ok(files)
    }

    /// Removes what keeps the sums of a file that is gone. What stays costs its space, and nothing
    /// else.
    pub fn remove_sums(&self, file: Attribute) {
        if !self.sums {
            return;
        }
        let name = name_of(file);
        for meta in self.in_use().iter().filter_map(|slot| self.members.get(slot)?.meta()) {
            if let Ok(directory) = open_directory(meta) {
                let _ = fs::unlinkat(directory, name.as_str(), AtFlags::empty());
            }
        }
    }
}

/// Removes all sums of a member, which gets a new beginning: nothing that is stored to it from now
/// on is known to fit them.
pub(crate) fn remove_all(meta: &OwnedFd) -> Result<()> {
    let directory = match open_directory(meta) {
        Err(OsError::NOENT) => return Ok(()),
        Err(OsError::LOOP | OsError::NOTDIR) => return fs::unlinkat(meta, SUMS_DIRECTORY, AtFlags::empty()),
        opened => opened?,
    };
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            fs::unlinkat(&directory, entry.file_name(), AtFlags::empty())?;
        }
    }
    fs::fsync(&directory)?;
    fs::unlinkat(meta, SUMS_DIRECTORY, AtFlags::REMOVEDIR)
}

/// Changes whom the files that keep a member's sums are open to.
pub(crate) fn give_all(meta: &OwnedFd, whom: Access) -> Result<()> {
    let directory = match open_directory(meta) {
        Err(OsError::NOENT) => return Ok(()),
        opened => opened?,
    };
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        // One at a time: there may be more than a process may have open.
        match open_regular(directory.as_fd(), entry.file_name(), OFlags::RDONLY) {
            Ok(file) => access::give(&file, whom, whom.mode)?,
            // A directory, or gone.
            Err(OsError::MEDIUMTYPE | OsError::NOENT | OsError::ISDIR | OsError::LOOP) => {}
            Err(error) => return Err(error),
        }
    }
    access::give(&directory, whom, access::directory_mode(whom.mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let file = Attribute { inode: 0x1f, generation: 345 };
        assert_eq!(file_of(name_of(file).as_bytes()), Some(file));
        for other in [&b"1f"[..], b"1f-", b"01-2", b"+1-2", b"1F-2", b".", b"x-1"] {
            assert_eq!(file_of(other), None);
        }
    }
}
