//! How far an inode table reaches, and which of its records can belong to any file.
//!
//! The fault it exists for: a table that is a sparse file of 1 TiB. A user who can write a member's
//! table can give it any length, which costs nothing. Every program that starts alone with the
//! array would then look at 2^34 records of it, and would fill shared memory by looking.
//!
//! A record in a hole is all zeros, and so free. So only ranges for which members hold data are
//! looked at (lseek(2), SEEK_DATA). To fill a range with data costs the user as much as it costs
//! programs to look at it.

use crate::holes::seek_member;
use crate::table::InodeTable;
use array::Array;
use core::ops::Range;
use dax::Backing;
use format::{INODE_COUNT_MAX, INODE_RECORD_BYTES, inode_record_offset};
use medium::Medium;
use sys::AsFd as _;
use sys::OsError;
use sys::rustix::fs::SeekFrom;
use units::Slot;

impl InodeTable {
    /// The number of records of a member's table that can be those of files: the records up to the
    /// end of the table's last data.
    pub(crate) fn count(&self, slot: Slot) -> Result<u64, OsError> {
        let mut count = 0;
        while let Some(run) = self.run_on(slot, count + 1)? {
            count = run.end - 1;
        }
        Ok(count)
    }

    /// The next numbers, from `first` on, for which the table of any member in use has data; None
    /// if there are none. A member whose table cannot be asked goes out.
    pub(crate) fn next_run(&self, array: &Array, first: u64) -> Result<Option<Range<u64>>, OsError> {
        let mut next: Option<Range<u64>> = None;
        for slot in array.in_use().iter() {
            let found = match self.run_on(slot, first) {
                Ok(found) => found,
                Err(error) => {
                    array.after_call(slot, Err(error))?;
                    continue;
                }
            };
            let Some(found) = found else { continue };
            if next.as_ref().is_none_or(|next| (found.start, next.end) < (next.start, found.end)) {
                next = Some(found);
            }
        }
        Ok(next)
    }

    /// The next numbers, from `first` on, for which the table of one member has data; None if there
    /// are none.
    fn run_on(&self, slot: Slot, first: u64) -> Result<Option<Range<u64>>, OsError> {
        let table = self.member(slot).ok_or(OsError::NODEV)?;
        if first > INODE_COUNT_MAX {
            return Ok(None);
        }
        let from = inode_record_offset(first);
        // A record that reaches beyond the data counts as none. Nobody uses the position of these
        // descriptors, which lseek(2) moves.
        let first_in = |offset: u64| (offset - inode_record_offset(1)) / INODE_RECORD_BYTES as u64 + 1;
        let fd = table.fd()?;
        let (start, end) = match seek_member(fd.as_fd(), SeekFrom::Data(from)) {
            Ok(Some(start)) => (start, seek_member(fd.as_fd(), SeekFrom::Hole(start))?.unwrap_or(start)),
            Ok(None) => return Ok(None),
            // A file system that cannot tell holes counts as full of data.
            Err(OsError::INVAL | OsError::OPNOTSUPP) => (from, table.bytes()?),
            Err(error) => return Err(error),
        };
        let run = first_in(start)..first_in(end.max(from)).min(INODE_COUNT_MAX + 1);
        Ok(Some(run).filter(|run| !run.is_empty()))
    }

    /// Makes every table as long as records reach in any of them, since the table may have been
    /// grown on some members only.
    pub(crate) fn equal_lengths(&self, array: &Array) -> Result<(), OsError> {
        let mut reach = 0;
        for slot in array.in_use().iter() {
            match self.count(slot) {
                Ok(count) => reach = reach.max(inode_record_offset(count + 1)),
                Err(error) => array.after_call(slot, Err(error))?,
            }
        }
        for slot in array.in_use().iter() {
            let is_long = |table: &Backing| table.bytes().is_ok_and(|bytes| bytes >= reach);
            if self.member(slot).is_some_and(is_long) {
                continue;
            }
            if reach > sys::file_limit::bytes() {
                // The kernel would kill a program that exceeds its limit on file sizes.
                return Err(OsError::FBIG);
            }
            let lengthened = self.member(slot).map_or(Err(OsError::NODEV), |table| table.set_len(reach));
            array.after_call(slot, lengthened)?;
        }
        Ok(())
    }
}
