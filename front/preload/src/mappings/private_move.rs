//! mremap(2) of a private mapping that the program made as one and that is several for the kernel:
//! on a striped array it is composed of the members' chunks. The kernel moves or enlarges one
//! mapping at a time (EFAULT), so its parts are moved one after the other, and what it grows by is
//! mapped anew.
//!
//! Invariant: the kernel has found nothing else wrong with the call.

use super::change::make_way;
use super::compose::{Wish, reserve};
use super::table;
use crate::calls::map;
use crate::maps::Area;
use file::FileRef;
use linux_raw_sys::general::{
    __NR_mremap, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_PRIVATE, MREMAP_DONTUNMAP, MREMAP_FIXED, MREMAP_MAYMOVE,
};
use sys::OsError;
use sys::raw::{check, syscall};

/// What mremap(2) was asked for, whole pages, of a mapping of `file` from `offset` on that ends at
/// `end`.
pub(super) struct Move {
    pub(super) file: FileRef,
    pub(super) offset: u64,
    pub(super) end: usize,
    pub(super) address: usize,
    pub(super) old_bytes: usize,
    pub(super) new_bytes: usize,
    pub(super) flags: usize,
    pub(super) target: usize,
}

impl Move {
    const fn has(&self, flag: u32) -> bool {
        self.flags & flag as usize != 0
    }

    /// Does it. The address where the mapping is then.
    pub(super) fn make(mut self) -> Result<usize, OsError> {
        let moved_bytes = self.old_bytes.min(self.new_bytes);
        if self.has(MREMAP_FIXED) && self.address.saturating_add(moved_bytes) > self.end {
            return Err(OsError::FAULT);
        }
        if self.new_bytes < self.old_bytes {
            // What lies there may be shared mappings of the array as well.
            table().unmap(self.address + self.new_bytes, self.address.saturating_add(self.old_bytes))?;
            self.old_bytes = self.new_bytes;
        }
        let old_end = self.address.checked_add(self.old_bytes).ok_or(OsError::INVAL)?;
        if old_end > self.end || self.old_bytes == 0 {
            return Err(OsError::FAULT);
        }
        let protection = self.protection(old_end)?;
        let stays = !self.has(MREMAP_FIXED) && !self.has(MREMAP_DONTUNMAP);
        if stays {
            if self.new_bytes == self.old_bytes
                || self.old_bytes < self.new_bytes && self.grow(old_end, protection, MAP_FIXED_NOREPLACE).is_ok()
            {
                return Ok(self.address);
            }
            if !self.has(MREMAP_MAYMOVE) {
                return Err(OsError::NOMEM);
            }
        }
        let start = if self.has(MREMAP_FIXED) {
            let there = Wish { address: self.target, bytes: self.new_bytes, protection: 0, flags: MAP_FIXED as usize, offset: 0 };
            make_way(&there, self.new_bytes, || reserve(self.target, self.new_bytes, MAP_FIXED as usize))?
        } else {
            reserve(if stays { 0 } else { self.target }, self.new_bytes, 0)?
        };
        self.move_parts(old_end, start)?;
        {
            let mut table = table();
            table.forget_private(start, start + self.new_bytes);
            if !self.has(MREMAP_DONTUNMAP) {
                table.forget_private(self.address, old_end);
            }
            table.note_private(&self.file, start, start + self.old_bytes, self.offset);
        }
        if self.old_bytes < self.new_bytes {
            self.grow(start + self.old_bytes, protection, MAP_FIXED)?;
        }
        Ok(start)
    }

    /// The protection of all of it.
    ///
    /// # Errors
    /// `FAULT` if it is not all of one kind: then it is several mappings for the program, too.
    fn protection(&self, old_end: usize) -> Result<usize, OsError> {
        let (mut at, mut found) = (self.address, None);
        while at < old_end {
            let area = Area::around(at).filter(|area| !area.is_shared).ok_or(OsError::FAULT)?;
            if *found.get_or_insert(area.protection) != area.protection {
                return Err(OsError::FAULT);
            }
            at = area.addresses.end;
        }
        found.ok_or(OsError::FAULT)
    }

    /// Maps at `at` what follows the old part in the file.
    fn grow(&self, at: usize, protection: usize, place: u32) -> Result<(), OsError> {
        let wish = Wish {
            address: at,
            bytes: self.new_bytes - self.old_bytes,
            protection,
            flags: (MAP_PRIVATE | place) as usize,
            offset: self.offset + self.old_bytes as u64,
        };
        map::map_private(&self.file, &wish).map(|_| ())
    }

    /// Moves the parts to reserved addresses, with what the program has stored to them.
    fn move_parts(&self, old_end: usize, start: usize) -> Result<(), OsError> {
        let flags = self.flags & MREMAP_DONTUNMAP as usize | (MREMAP_MAYMOVE | MREMAP_FIXED) as usize;
        let mut at = self.address;
        while at < old_end {
            let area = Area::around(at).ok_or(OsError::FAULT)?;
            let bytes = area.addresses.end.min(old_end) - at;
            let goal = start + (at - self.address);
            // SAFETY: the program's own private memory, to where it was asked for or to what was
            // reserved for it.
            check(unsafe { syscall(__NR_mremap as usize, [at, bytes, bytes, flags, goal, 0]) })?;
            at += bytes;
        }
        Ok(())
    }
}
