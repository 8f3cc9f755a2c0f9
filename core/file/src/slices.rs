//! Reading and writing with slices, for callers whose buffers are their own: the mount and the
//! operator's command.
//!
//! A slice is valid memory that is borrowed for the whole call, which is all that the calls on
//! pointers ask for.

use crate::Inode;
use sys::OsError;

impl Inode {
    /// As [`Self::read_at`], into a slice.
    ///
    /// # Errors
    /// As [`Self::read_at`], but for `FAULT`.
    #[inline]
    pub fn read_slice(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, OsError> {
        // SAFETY: the slice is valid for writes of its length, and borrowed for the whole call.
        unsafe { self.read_at(offset, buffer.as_mut_ptr(), buffer.len()) }
    }

    /// As [`Self::write_at`], from a slice.
    ///
    /// # Errors
    /// As [`Self::write_at`], but for `FAULT`.
    #[inline]
    pub fn write_slice(&self, offset: u64, bytes: &[u8]) -> Result<usize, OsError> {
        // SAFETY: the slice is valid for reads of its length, and borrowed for the whole call.
        unsafe { self.write_at(offset, bytes.as_ptr(), bytes.len()) }
    }

    /// As [`Self::append`], from a slice.
    ///
    /// # Errors
    /// As [`Self::append`], but for `FAULT`.
    #[inline]
    pub fn append_slice(&self, bytes: &[u8]) -> Result<(u64, usize), OsError> {
        // SAFETY: the slice is valid for reads of its length, and borrowed for the whole call.
        unsafe { self.append(bytes.as_ptr(), bytes.len()) }
    }
}
