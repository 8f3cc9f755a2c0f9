//! Files that are open and have no name.
//!
//! A process that never had such a file open may be given a descriptor of it (over exec, or by
//! SCM_RIGHTS). It then has to find the backing files of the other members, which no path leads to.
//! So a file that loses its last name while it is open is linked as
//! `.cxlraid/orphan-<inode>-<generation>` on every member. A file that never had a name (O_TMPFILE)
//! is linked in this way before it is handed on.
//!
//! Invariants: the link is made before the last name goes, and goes before the inode is freed. The
//! process that frees the inode removes the link; after the death of all processes that had the
//! file open, the next process to attach does.

use crate::files::{FileRef, Files};
use crate::inode::key;
use alloc::ffi::CString;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use format::{Attribute, InodeState, Shape};
use sys::rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, linkat, openat, statat, unlinkat};
use sys::{AsRawFd, OsError};
use units::Slot;

/// Whether an open file has a name, and if not, whether it may get one (`SharedFile::unlinked`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Name {
    /// It has.
    Has = 0,
    /// It has none at all. Whether it may get one the kernel knows: only if it was made so
    /// (O_TMPFILE).
    None = 1,
    /// It lost its last one, and lies in `.cxlraid`.
    Lost = 2,
    /// Made without one, it lies in `.cxlraid` and may still get one.
    Kept = 3,
    /// Made without one, never to get one (O_TMPFILE with O_EXCL); it does not lie in `.cxlraid`
    /// yet.
    Never = 4,
}

impl Name {
    pub(crate) fn of(word: &AtomicU32) -> Self {
        match word.load(Ordering::Acquire) {
            0 => Self::Has,
            2 => Self::Lost,
            3 => Self::Kept,
            4 => Self::Never,
            _ => Self::None,
        }
    }

    const fn is_kept(self) -> bool {
        matches!(self, Self::Lost | Self::Kept)
    }
}

/// What a file without a name is called, below a member's directory.
#[must_use]
pub fn orphan_path(attribute: Attribute) -> Vec<u8> {
    [format::DIRECTORY.to_bytes(), b"/", orphan_name(attribute).as_bytes()].concat()
}

fn orphan_name(attribute: Attribute) -> CString {
    let name = alloc::format!("{}{}-{}", format::ORPHAN_PREFIX, attribute.inode, attribute.generation);
    CString::new(name).unwrap_or_default()
}

fn parse(name: &[u8]) -> Option<Attribute> {
    let (inode, generation) = core::str::from_utf8(name).ok()?.strip_prefix(format::ORPHAN_PREFIX)?.split_once('-')?;
    Some(Attribute { inode: inode.parse().ok()?, generation: generation.parse().ok()? })
}

impl FileRef {
    /// Keeps a file that was made without a name, before it is handed on. What cannot be linked
    /// cannot be handed on.
    pub fn keep_nameless(&self) {
        if matches!(self.name(), Name::None | Name::Never) {
            self.files.keep_nameless(self);
        }
    }
}

impl crate::Inode {
    /// A descriptor of it is sent to another process: while it is on its way it must not be freed.
    pub fn send(&self) {
        self.files.array().runtime().send_file(self.entry);
    }

    /// A descriptor sent was received here, or was not sent after all.
    pub fn receive(&self) {
        self.files.array().runtime().receive_file(self.entry);
    }

    /// Whether it has a name.
    #[must_use]
    pub fn name(&self) -> Name {
        Name::of(&self.shared().unlinked)
    }
}

impl Files {
    /// Whether any process has the file open.
    #[must_use]
    pub fn is_open(&self, attribute: Attribute) -> bool {
        self.shared_if_open(attribute).is_some()
    }

    /// Whether any process has the file open. A close that gives back the file's space just now has
    /// ended when this returns.
    #[must_use]
    pub fn is_open_after_closes(&self, attribute: Attribute) -> bool {
        self.array().runtime().with_open_files(|_| self.is_open(attribute))
    }

    /// Whether the file has no name though it is open.
    #[must_use]
    pub fn is_nameless(&self, attribute: Attribute) -> bool {
        self.shared_if_open(attribute).is_some_and(|shared| shared.unlinked.load(Ordering::Acquire) != 0)
    }

    /// Tells whether the file has no name, be it open or not. The last close frees a file without a
    /// name, and takes the link of it in `.cxlraid` away first: a backing file's link count that was
    /// read before may count that link.
    #[must_use]
    pub fn lacks_name(&self, attribute: Attribute) -> bool {
        match self.shared_if_open(attribute) {
            Some(shared) => Name::of(&shared.unlinked) != Name::Has,
            None => !self.record(attribute).is_ok_and(|record| record.state == InodeState::Used),
        }
    }

    /// Gives out an inode for a new file of this shape that has no name yet, as
    /// [`Files::create_nameless_inode`] does.
    ///
    /// # Errors
    /// The kernel's error if a member has no room for the record.
    pub fn create_nameless_inode_of(&self, shape: Shape) -> Result<Attribute, OsError> {
        self.array().before_change()?;
        let (inode, generation) = self.table().create(self.array(), shape)?;
        Ok(Attribute { inode, generation })
    }

    /// Links a file in `.cxlraid` on every member in use, or on none; `link` makes the link on one.
    /// The namespace lock is held.
    pub fn keep_orphan(&self, attribute: Attribute, link: impl Fn(Slot, &[u8]) -> Result<(), OsError>) -> Result<(), OsError> {
        let path = orphan_path(attribute);
        for slot in self.array().in_use().iter() {
            match link(slot, &path) {
                Ok(()) | Err(OsError::EXIST) => {}
                Err(error) => {
                    self.discard_orphan(attribute);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn keep_nameless(&self, file: &FileRef) {
        let name = file.name();
        let link = |slot: Slot, path: &[u8]| {
            let root = self.array().members()[slot].root().ok_or(OsError::NODEV)?;
            let own = file.backing_on(slot).ok_or(OsError::IO)?.fd()?;
            let from = alloc::format!("/proc/thread-self/fd/{}", own.as_raw_fd());
            linkat(CWD, from.as_str(), root, path, AtFlags::SYMLINK_FOLLOW)
        };
        self.array().runtime().with_open_files(|_| {
            let shared = file.shared();
            if Name::of(&shared.unlinked) == name && self.keep_orphan(file.attribute(), link).is_ok() {
                let kept = if name == Name::Never { Name::Lost } else { Name::Kept };
                shared.unlinked.store(kept as u32, Ordering::Release);
            }
        });
    }

    /// Removes the links of a file in `.cxlraid`.
    pub fn discard_orphan(&self, attribute: Attribute) {
        self.discard_links(attribute, |_| true);
    }

    /// Removes the link of a file in `.cxlraid` on each member for whose number of links of the file
    /// `goes` holds.
    fn discard_links(&self, attribute: Attribute, goes: impl Fn(u32) -> bool) {
        let name = orphan_name(attribute);
        for slot in self.array().in_use().iter() {
            let Some(meta) = self.array().members()[slot].meta() else { continue };
            let links = || statat(meta, name.as_c_str(), AtFlags::SYMLINK_NOFOLLOW).map(|stat| stat.st_nlink as u32);
            if links().is_ok_and(&goes) {
                let _ = unlinkat(meta, name.as_c_str(), AtFlags::empty());
            }
        }
    }

    /// Removes them if there are any. The open-files lock is held.
    pub(crate) fn discard_if_kept(&self, attribute: Attribute, name: Name) {
        if name.is_kept() {
            self.discard_orphan(attribute);
        }
    }

    /// Removes the links of files that nobody has open any more, and of files whose last name did
    /// not go after all, and frees the former.
    pub fn clear_orphans(&self) {
        let mut found: Vec<Attribute> = Vec::new();
        for slot in self.array().in_use().iter() {
            found.extend(self.orphans_on(slot).unwrap_or_default());
        }
        found.sort_unstable_by_key(|attribute| key(attribute.inode, attribute.generation));
        found.dedup();
        for attribute in found {
            self.array().runtime().with_open_files(|_| self.clear_orphan(attribute));
        }
    }

    /// Frees every file without a name that no process has open, also one that is not linked in
    /// `.cxlraid`. The caller is alone with the array, no change of names is unfinished, and the
    /// namespace lock is held.
    ///
    /// # Errors
    /// The kernel's error if the records cannot be read.
    pub fn free_nameless(&self) -> Result<(), OsError> {
        let (array, mut found) = (self.array(), Vec::new());
        self.table().each_odd(array, |number, state| {
            found.extend(Some(number).filter(|_| state == InodeState::Orphan.code()));
            Ok(())
        })?;
        for inode in found {
            if let Some(record) = self.table().load(array, inode)? {
                let attribute = Attribute { inode, generation: record.generation };
                array.runtime().with_open_files(|_| self.clear_orphan(attribute));
            }
        }
        Ok(())
    }

    /// Notes, durably, that an open file that was made without a name has been given one. Its links
    /// in `.cxlraid` go if it has the name `on_all` members: on another one the link is all that
    /// there is of the file.
    pub fn takes_name(&self, attribute: Attribute, on_all: bool) {
        if on_all {
            self.linked(attribute);
        } else {
            self.array().runtime().with_open_files(|_| {
                self.table().set_state(self.array(), attribute.inode, InodeState::Used);
                if let Some(shared) = self.shared_if_open(attribute) {
                    shared.unlinked.store(Name::Has as u32, Ordering::Release);
                }
            });
        }
        // A member that fails here goes out, as with every store to the table.
        let _ = self.table().persist(self.array(), attribute.inode);
    }

    fn clear_orphan(&self, attribute: Attribute) {
        match self.record(attribute) {
            Ok(record) if record.state == InodeState::Orphan => {
                if self.shared_if_open(attribute).is_none() {
                    self.discard_orphan(attribute);
                    self.table().free(self.array(), attribute.inode);
                    self.remove_sums(attribute);
                }
            }
            // It has its name. On a member that has refused the name the link is all that there is
            // of it.
            Ok(record) if record.state == InodeState::Used => self.discard_links(attribute, |links| links > 1),
            // It is another file by now.
            _ => self.discard_orphan(attribute),
        }
    }

    /// Whether a member has the link of a file in `.cxlraid`.
    pub(crate) fn has_orphan(&self, slot: Slot, attribute: Attribute) -> bool {
        let meta = self.array().members()[slot].meta();
        meta.is_some_and(|meta| statat(meta, orphan_name(attribute).as_c_str(), AtFlags::SYMLINK_NOFOLLOW).is_ok())
    }

    fn orphans_on(&self, slot: Slot) -> Result<Vec<Attribute>, OsError> {
        let meta = self.array().members()[slot].meta().ok_or(OsError::NODEV)?;
        let directory = openat(meta, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let mut found = Vec::new();
        for entry in Dir::read_from(&directory)? {
            found.extend(parse(entry?.file_name().to_bytes()));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let attribute = Attribute { inode: 12, generation: 345 };
        assert_eq!(parse(orphan_name(attribute).as_bytes()), Some(attribute));
        for other in [&b"orphan-"[..], b"orphan-1", b"orphan-x-1", b"aside-1", b"superblock"] {
            assert_eq!(parse(other), None);
        }
    }
}
