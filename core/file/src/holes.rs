//! Where a file's holes are (lseek(2) SEEK_DATA, SEEK_HOLE).
//!
//! The members know: a stripe of which no member holds data is a hole. A range that was written is
//! never called a hole, also with a member out, since what was stored on that member left its mark
//! in the redundancy. A stripe with data on any member counts as data, whole; on a mirror the
//! members' own answer is exact.

use crate::Inode;
use core::ops::Range;
use dax::Backing;
use sys::AsFd as _;
use sys::rustix::fs::{SeekFrom, seek};
use sys::{BorrowedFd, OsError};

impl Inode {
    /// The next data (`data`) or hole at or after `offset`. The end of the file is a hole.
    ///
    /// # Errors
    /// `NXIO` behind the end, or if there is no more data.
    pub fn seek_extent(&self, offset: u64, data: bool) -> Result<u64, OsError> {
        let size = self.size();
        if offset >= size {
            return Err(OsError::NXIO);
        }
        // What mappings have stored into a copy is not on the members yet.
        let found = match (self.has_holes() && self.copy()?.is_none(), data) {
            (false, true) => Some(offset),
            (false, false) => None,
            (true, true) => self.data_from(offset)?,
            (true, false) => self.hole_from(offset, size)?,
        };
        match (found.filter(|&found| found < size), data) {
            (Some(found), _) => Ok(found),
            (None, true) => Err(OsError::NXIO),
            (None, false) => Ok(size),
        }
    }

    /// The first byte at or after `offset` that some member has data of, or a byte before it in its
    /// stripe; None if none has any.
    pub(crate) fn data_from(&self, offset: u64) -> Result<Option<u64>, OsError> {
        let stripe = self.geometry.stripe_of(offset);
        let from = if self.is_mirror() { offset } else { self.geometry.member_offset(stripe) };
        let Some(found) = self.first_data(from)? else { return Ok(None) };
        Ok(Some(if self.is_mirror() { found } else { offset.max(self.stripe_at(found) * self.geometry.stripe_bytes()) }))
    }

    fn hole_from(&self, offset: u64, size: u64) -> Result<Option<u64>, OsError> {
        let mut at = offset;
        while at < size {
            let stripe = self.geometry.stripe_of(at);
            let (from, to) = if self.is_mirror() {
                (at, at + 1)
            } else {
                (self.geometry.member_offset(stripe), self.geometry.member_offset(stripe + 1))
            };
            // On to where the data of the member ends that has some here.
            let Some(end) = self.end_of_data(from, to)? else { return Ok(Some(at)) };
            at = if self.is_mirror() {
                end
            } else {
                self.stripe_at(end - 1).max(stripe).saturating_add(1) * self.geometry.stripe_bytes()
            };
        }
        Ok(None)
    }

    /// The first data of any member at or after `from`.
    fn first_data(&self, from: u64) -> Result<Option<u64>, OsError> {
        let mut first = None;
        for (_, backing) in self.in_use() {
            let fd = backing.fd()?;
            if let Some(found) = seek_member(fd.as_fd(), SeekFrom::Data(from))? {
                first = Some(first.map_or(found, |first: u64| first.min(found)));
            }
        }
        Ok(first)
    }

    /// Where the data end that a member has between `from` and `to`; None if none has any.
    fn end_of_data(&self, from: u64, to: u64) -> Result<Option<u64>, OsError> {
        for (_, backing) in self.in_use() {
            let fd = backing.fd()?;
            let found = seek_member(fd.as_fd(), SeekFrom::Data(from))?;
            if let Some(start) = found.filter(|&start| start < to) {
                return Ok(Some(seek_member(fd.as_fd(), SeekFrom::Hole(start))?.unwrap_or(to).max(from + 1)));
            }
        }
        Ok(None)
    }

    /// The first bytes of the backing files from `from` on, and before `limit`, that some member in use
    /// has data of, up to where no member has any. None if there are none. What members cannot tell
    /// counts as data.
    pub(crate) fn next_run(&self, from: u64, limit: u64) -> Option<Range<u64>> {
        let start = match self.first_data(from) {
            Ok(found) => found.filter(|&start| start < limit)?,
            Err(_) => return (from < limit).then_some(from..limit),
        };
        // Some member has this byte at least.
        let mut end = start;
        loop {
            let further = self.in_use().fold(end, |end, (_, backing)| data_end(backing, end).unwrap_or(limit));
            if further == end || further >= limit {
                return Some(start..further.max(start + 1).min(limit));
            }
            end = further;
        }
    }

    /// Calls `found` with each part of a range of the backing files that is allocated on a member
    /// in use, and whether it is so on all of them.
    pub(crate) fn each_there(
        &self,
        range: Range<u64>,
        mut found: impl FnMut(Range<u64>, bool) -> Result<(), OsError>,
    ) -> Result<(), OsError> {
        let mut at = range.start;
        while let Some(start) = self.first_data(at)?.filter(|&start| start < range.end) {
            let (mut end, mut on_all) = (range.end, true);
            for (_, backing) in self.in_use() {
                let fd = backing.fd()?;
                let change = match seek_member(fd.as_fd(), SeekFrom::Data(start))? {
                    Some(data) if data == start => seek_member(fd.as_fd(), SeekFrom::Hole(start))?,
                    later => {
                        on_all = false;
                        later
                    }
                };
                end = end.min(change.unwrap_or(range.end));
            }
            found(start..end, on_all)?;
            at = end;
        }
        Ok(())
    }

    /// Tells whether a range of the file is data on every member in use, parity included. Space that
    /// was only allocated may count as a hole, as for lseek(2).
    #[must_use]
    pub fn is_filled(&self, start: u64, end: u64) -> bool {
        let end = end.min(self.size());
        if start >= end {
            return true;
        }
        let from = if self.is_mirror() { start } else { self.geometry.member_offset(self.geometry.stripe_of(start)) };
        let to = self.geometry.member_bytes(end);
        self.in_use().all(|(_, backing)| {
            let hole = backing.fd().and_then(|fd| seek_member(fd.as_fd(), SeekFrom::Hole(from)));
            hole.is_ok_and(|hole| hole.is_some_and(|hole| hole >= to))
        })
    }

    fn is_mirror(&self) -> bool {
        !self.geometry.level().has_chunks()
    }

    /// The stripe that a member's byte belongs to.
    fn stripe_at(&self, member_offset: u64) -> u64 {
        self.geometry.stripe_of(self.geometry.file_bytes(member_offset))
    }
}

/// Returns where the data end that a backing file has at `from`; `from` if there are none.
fn data_end(backing: &Backing, from: u64) -> Result<u64, OsError> {
    let fd = backing.fd()?;
    if seek_member(fd.as_fd(), SeekFrom::Data(from))? != Some(from) {
        return Ok(from);
    }
    Ok(seek_member(fd.as_fd(), SeekFrom::Hole(from))?.unwrap_or(from).max(from))
}

/// None behind the end of a backing file, or of its data. Nobody uses the position of these
/// descriptors.
pub(crate) fn seek_member(fd: BorrowedFd<'_>, to: SeekFrom) -> Result<Option<u64>, OsError> {
    match seek(fd, to) {
        Ok(found) => Ok(Some(found)),
        Err(OsError::NXIO) => Ok(None),
        Err(error) => Err(error),
    }
}
