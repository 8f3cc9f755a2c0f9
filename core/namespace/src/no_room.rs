//! A change of names that a process left half made when it died, and a member that has no room for
//! it. If every start were refused for that, nobody could get at the array to make room.
//!
//! The last change is undone, as if the member had refused it to the program that asked. Where it
//! cannot be undone, the member goes out, if the array can bear that. The namespace lock is held,
//! and `replay` begins anew afterwards.

use crate::Namespace;
use crate::change::remove_on;
use crate::recover::Item;
use file::Name;
use format::{InodeState, NameKind, NameRecord};
use sys::rustix::fs::{AtFlags, FileType};
use sys::{OsError, Result};
use units::{MemberSet, Slot};

/// Whether an error says that there is no room.
pub(crate) fn is_full(error: OsError) -> bool {
    matches!(error, OsError::NOSPC | OsError::DQUOT)
}

impl Namespace {
    /// Takes members out that have no room for what the others have.
    ///
    /// # Errors
    /// `error` if it is another one, or if they cannot be spared.
    pub(crate) fn take_out_full(&self, full: MemberSet, error: OsError) -> Result<()> {
        if !is_full(error) || !self.array().bears(self.array().runtime().out().union(full)) {
            return Err(error);
        }
        for slot in full.iter() {
            self.array().fail_member(slot)?;
        }
        self.array().before_change()
    }

    /// Undoes the last change on the members that have made it, for which `full` has no room, and
    /// notes that it is void. `is_alone` says that the members differ by nothing else.
    ///
    /// # Errors
    /// `NOTSUP` if something would be lost with it, or it is not the kind of change that asks for
    /// room and is easily undone.
    pub(crate) fn undo_last(&self, record: &NameRecord<'_>, offset: u64, full: Slot, is_alone: bool) -> Result<()> {
        self.array().before_change()?;
        match record.kind {
            NameKind::Make => self.undo_make(record)?,
            NameKind::Link if !record.path.is_empty() => self.undo_link(record)?,
            NameKind::Attributes if is_alone => {
                let Some(item) = self.item_or_none(full, record.path)? else { return Err(OsError::NOTSUP) };
                for slot in self.array().in_use().without(full).iter() {
                    if self.item_or_none(slot, record.path)?.is_some_and(|own| own.is_like(&item)) {
                        self.equalise_with(full, record.path, slot, record.path, &item)?;
                    }
                }
            }
            _ => return Err(OsError::NOTSUP),
        }
        // Before that a crash may take back that it was undone, and it must be done again.
        self.sync_members()?;
        // From now on nobody does it: a member that is away and has made it must not come back as
        // it is.
        self.array().before_change()?;
        self.store_record(self.log()?, offset, &NameRecord { void: true, ..*record })
    }

    fn undo_make(&self, record: &NameRecord<'_>) -> Result<()> {
        let is_new = |item: &Item| match record.file {
            // Its attribute may not have come to be on it.
            Some(_) => {
                item.is_file()
                    && item.stat.st_nlink == 1
                    && (item.attribute == record.file || item.attribute.is_none() && item.stat.st_size == 0)
            }
            None => !item.is_file(),
        };
        let state = |file| self.files().state_of(file);
        if let Some(file) = record.file
            && (!matches!(state(file), Some(InodeState::Used | InodeState::Orphan)) || self.files().size_on_members(file)? != 0)
        {
            return Err(OsError::NOTSUP);
        }
        let mut made = MemberSet::EMPTY;
        for slot in self.array().in_use().iter() {
            let Some(item) = self.item_or_none(slot, record.path)? else { continue };
            if !is_new(&item) {
                return Err(OsError::NOTSUP);
            }
            made = made.with(slot);
        }
        for slot in made.iter() {
            let is_directory = self.item(slot, record.path)?.kind == FileType::Directory;
            let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            remove_on(self.root(slot)?, &record.path[1..], flags)?;
        }
        if let Some(file) = record.file.filter(|&file| state(file) == Some(InodeState::Used)) {
            self.files().unlinked(file, Name::Lost, || false);
        }
        Ok(())
    }

    fn undo_link(&self, record: &NameRecord<'_>) -> Result<()> {
        for slot in self.array().in_use().iter() {
            if self.lacks(slot, record.path, record.file)? {
                return Err(OsError::NOTSUP);
            }
        }
        for slot in self.array().in_use().iter() {
            if !self.lacks(slot, record.to, record.file)? {
                remove_on(self.root(slot)?, &record.to[1..], AtFlags::empty())?;
            }
        }
        Ok(())
    }
}
