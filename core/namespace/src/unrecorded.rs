//! After a power cut: names and inode records are matched where a page cache has kept one without
//! the other (core/file's `unrecorded`).
//!
//! Invariants: nothing is judged unless all names of all members in use can be seen, also those
//! that lie outside of the prefixes, and no mount below a member may hide names from this process.
//! Records without a name are freed first, since their numbers may be those of files that were made
//! later. No backing file is changed but by who truncates it.

use crate::Namespace;
use crate::located::{Located, names_in, open_below};
use crate::mounts::may_hide_names;
use crate::recover::{ASIDE, key};
use crate::resolve::{Found, join};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use format::{ATTRIBUTE_BYTES, ATTRIBUTE_NAME, Attribute};
use sys::high_fd::Raised;
use sys::rustix::fs::{FileType, Mode, OFlags, ftruncate, lgetxattr};
use sys::{AsFd as _, OsError, Result};
use units::{MemberSet, Slot};

/// The names of all members.
#[derive(Default)]
struct Named {
    /// Inode number and generation of all files that a name, or a link in `.cxlraid`, refers to.
    files: BTreeSet<(u64, u64)>,
    /// The bytes of their backing files, of those that have names which programs see.
    bytes: BTreeMap<(u64, u64), BTreeMap<Slot, u64>>,
}

impl Namespace {
    /// Frees the records of files that have no name on any member, and gives files that have names
    /// their records again. Tells whether there were any.
    ///
    /// # Errors
    /// `ACCESS` or `PERM` if this process may not see all names; otherwise what the kernel says.
    /// Nothing is changed then, or a part of that.
    pub fn match_records(&self) -> Result<bool> {
        self.locked(|whole| whole.and_then(|()| self.match_records_locked()))
    }

    /// Does what [`Self::match_records`] does. The namespace lock is held, and no change of names is
    /// unfinished.
    pub(crate) fn match_records_locked(&self) -> Result<bool> {
        let (files, array) = (self.files(), self.array());
        if !files.may_match_records() || may_hide_names(array) {
            return Ok(false);
        }
        self.has_matched.store(true, Ordering::Relaxed);
        let named = self.named()?;
        let mut is_any = files.free_unnamed(&named.files)? != 0;
        for (&(inode, generation), found) in &named.bytes {
            let file = Attribute { inode, generation };
            if files.state_of(file).is_some() {
                continue;
            }
            // What a member holds that is being rebuilt is computed by the record.
            let is_whole = |slot: &Slot| !array.runtime().rebuilding().contains(*slot);
            let Some(&size) = found.iter().filter(|(slot, _)| is_whole(slot)).map(|(_, bytes)| bytes).max() else { continue };
            let has = |slot: &Slot| is_whole(slot) && found.get(slot) == Some(&size);
            let lost: MemberSet = array.in_use().iter().filter(|slot| size != 0 && !has(slot)).collect();
            is_any |= files.record_again(file, size, lost)?;
        }
        Ok(is_any)
    }

    /// Does what [`Self::match_records_locked`] does, once in the life of the process. Tells whether
    /// there was anything.
    pub(crate) fn match_records_once(&self) -> bool {
        !self.has_matched.load(Ordering::Relaxed) && self.match_records_locked().unwrap_or(false)
    }

    /// Tells whether what was found is a file that the inode table does not know, and a crash may have
    /// taken its record.
    pub(crate) fn lacks_record(&self, found: &Found) -> bool {
        let attribute = self.attribute_named(found.slot, found.fd.as_fd());
        self.files().is_cached() && matches!(attribute, Ok(Some(file)) if self.files().is_free(file) == Ok(true))
    }

    /// Gives a file, which the inode table does not know and which is to be truncated, its record, as
    /// that of an empty file. Tells whether it did. Files of any level can be treated so.
    ///
    /// # Errors
    /// Those of opening its backing files for writing, and of truncating them.
    pub(crate) fn record_emptied(&self, found: &Found) -> Result<bool> {
        let is_away = !self.array().runtime().out_unrecorded().minus(self.array().fast()).is_empty();
        let Some(file) = self.attribute_named(found.slot, found.fd.as_fd())?.filter(|_| !is_away) else { return Ok(false) };
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mut backings = Vec::new();
        for slot in self.array().in_use().iter() {
            let backing = open_below(self.root(slot)?, &found.path[1..], flags, Mode::empty())?;
            if self.attribute_on(slot, &backing)? != Some(file) {
                return Ok(false);
            }
            backings.push(Raised::new(backing)?);
        }
        if !self.files().record_again(file, 0, MemberSet::EMPTY)? {
            return Ok(false);
        }
        // A record whose file may be longer on the members is there by now.
        backings.iter().try_for_each(|backing| ftruncate(&**backing, 0))?;
        Ok(true)
    }

    /// The names of all members in use.
    fn named(&self) -> Result<Named> {
        let mut named = Named::default();
        let own = format::DIRECTORY.to_bytes();
        for slot in self.array().in_use().iter() {
            let root = self.root(slot)?;
            let top = names_in(root, b".")?.into_iter().filter(|name| name != own);
            for (path, item) in self.tree_below(slot, top.map(|name| join(b"/", &name)).collect())? {
                match item.attribute {
                    Some(file) => {
                        named.files.insert(key(file));
                        if !self.owns(&path) {
                            continue;
                        }
                        named.bytes.entry(key(file)).or_default().insert(slot, item.stat.st_size as u64);
                    }
                    // One that is not believed may be the file's all the same.
                    None if item.kind == FileType::RegularFile => {
                        named.files.extend(self.attribute_said(slot, &path[1..])?.map(key));
                    }
                    None => {}
                }
            }
            for name in names_in(root, own)? {
                if name.starts_with(ASIDE) || name.starts_with(format::ORPHAN_PREFIX.as_bytes()) {
                    named.files.extend(self.attribute_said(slot, &join(own, &name))?.map(key));
                }
            }
        }
        Ok(named)
    }

    /// The attribute of a backing file of a member, whether or not it is believed.
    fn attribute_said(&self, slot: Slot, relative: &[u8]) -> Result<Option<Attribute>> {
        let mut bytes = [0; ATTRIBUTE_BYTES];
        match lgetxattr(Located::below(self.root(slot)?.as_fd(), relative)?.path(), ATTRIBUTE_NAME, &mut bytes[..]) {
            Ok(_) => Ok(Attribute::decode(&bytes).ok()),
            Err(OsError::NODATA | OsError::NOENT | OsError::OPNOTSUPP | OsError::RANGE) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
