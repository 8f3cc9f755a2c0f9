//! Names whose records a crash has taken, and records without a name.
//!
//! The page cache writes the inode table back in an order of its own, and a file system commits
//! names in another. So a power cut can leave a name whose file has no record any more, or not yet,
//! and a record whose file's name never became durable. No file is concerned that an fsync(2) was
//! answered for and that was not removed since: its name and its record were durable by then.
//!
//! Only arrays are treated whose files are copies and all have the array's own shape. There the
//! backing files tell how long a file is, so a record can be made again, and one that is freed in
//! error can be made again as well. `namespace` compares the names (its `unrecorded`).

use crate::files::Files;
use crate::nameless::Name;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use dax::PersistenceDomain;
use format::{Attribute, FLAG_SLACK, InodeRecord, InodeState, Resync};
use layout::Level;
use sys::OsError;
use units::MemberSet;

impl Files {
    /// Tells whether records can be made again from names, and are to be freed where there are none:
    /// all files are copies, some member lies behind a page cache, and no member is away that may
    /// have other names and is not on record.
    #[must_use]
    pub fn may_match_records(&self) -> bool {
        let array = self.array();
        let keeps_copies = array.default_geometry().level() == Level::Raid1 && !array.may_have_shapes();
        array.journal().is_none()
            && keeps_copies
            && self.is_cached()
            && array.runtime().out_unrecorded().minus(array.fast()).is_empty()
    }

    /// Tells whether a member in use writes names and records back in an order of its own.
    #[must_use]
    pub fn is_cached(&self) -> bool {
        let is_cached = |slot| self.domains()[slot] == PersistenceDomain::PageCache;
        self.array().in_use().iter().any(is_cached) || !self.array().fast().is_empty()
    }

    /// Frees the records of files that have a name by their record, and are not among `named`, which
    /// holds inode number and generation of every file that any member in use has a name for. The
    /// namespace lock is held, and no name waits for a replay. Returns how many there were.
    ///
    /// # Errors
    /// Those of reading the table.
    pub fn free_unnamed(&self, named: &BTreeSet<(u64, u64)>) -> Result<usize, OsError> {
        let mut unnamed = Vec::new();
        self.each_record(|number, record| {
            let file = Attribute { inode: number, generation: record.generation };
            let is_named = record.state != InodeState::Used || named.contains(&(number, record.generation));
            if !is_named && !self.is_open(file) {
                unnamed.push(file);
            }
            Ok(())
        })?;
        if !unnamed.is_empty() {
            self.array().before_change()?;
        }
        unnamed.iter().for_each(|&file| self.unlinked(file, Name::Lost, || false));
        Ok(unnamed.len())
    }

    /// Gives a file of `size` bytes, which has a name, its record again. `lost` are the members in use
    /// that do not have all of its bytes. The namespace lock is held. Returns whether it has one now.
    ///
    /// # Errors
    /// Those of storing the record.
    pub fn record_again(&self, file: Attribute, size: u64, lost: MemberSet) -> Result<bool, OsError> {
        let array = self.array();
        if !array.runtime().out().is_empty() {
            // Where that cannot be marked, no member that comes back keeps any file.
            let _ = array.mark_changed(file.inode);
        }
        let resync = Resync { start: 0, end: size.max(1), lost };
        let record = InodeRecord {
            size,
            flags: FLAG_SLACK,
            resync: (size != 0).then_some(resync),
            ..InodeRecord::new(file.generation, self.policy().own())
        };
        if !self.table().create_again(array, file.inode, &record)? {
            return Ok(false);
        }
        self.remove_sums(file);
        self.table().persist(array, file.inode)?;
        Ok(true)
    }
}
