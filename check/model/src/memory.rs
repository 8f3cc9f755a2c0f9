//! Media for the models: memory of a fixed length that is mapped wholly, in small windows or not at
//! all; and unnamed files on tmpfs behind the real mapped medium.

use dax::{Access, Backing, PersistenceDomain};
use medium::{Medium, Span};
use std::cell::UnsafeCell;
use std::ptr::NonNull;
use sys::OsError;
use sys::rustix::fs::{CWD, Mode, OFlags, openat};

/// Which face a [`Memory`] shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Face {
    /// Mapped in one piece.
    Mapped,
    /// Mapped in windows of this many bytes.
    Windows(u64),
    /// Only the byte-range face.
    Bytes,
}

/// A backing file that is a piece of memory. It does not grow, and says so if asked to.
pub struct Memory {
    bytes: Box<[UnsafeCell<u8>]>,
    face: Face,
}

impl Memory {
    /// `bytes` zeros.
    #[must_use]
    pub fn new(bytes: u64, face: Face) -> Self {
        Self { bytes: (0..bytes).map(|_| UnsafeCell::new(0)).collect(), face }
    }

    fn at(&self, offset: u64, bytes: usize) -> Result<*mut u8, OsError> {
        let cells = self.bytes.get(offset as usize..).and_then(|cells| cells.get(..bytes)).ok_or(OsError::FBIG)?;
        Ok(cells.as_ptr().cast::<u8>().cast_mut())
    }
}

impl Medium for Memory {
    fn span(&self, offset: u64) -> Option<Span> {
        let length = self.bytes.len() as u64;
        let end = match self.face {
            Face::Mapped => length,
            Face::Windows(window) => length.min((offset / window + 1) * window),
            Face::Bytes => return None,
        };
        let start = NonNull::new(self.at(offset, 1).ok()?)?;
        Some(Span { start, bytes: (end - offset) as usize })
    }

    unsafe fn get(&self, offset: u64, dst: *mut u8, bytes: usize) -> Result<(), OsError> {
        let there = (self.bytes.len() as u64).saturating_sub(offset).min(bytes as u64) as usize;
        // SAFETY: `there` bytes are in the box; `dst` is the caller's promise.
        unsafe {
            dst.copy_from(self.at(offset, there).unwrap_or(dst), there);
            dst.add(there).write_bytes(0, bytes - there);
        }
        Ok(())
    }

    unsafe fn put(&self, offset: u64, src: *const u8, bytes: usize) -> Result<(), OsError> {
        // SAFETY: `at` checked the destination; `src` is the caller's promise.
        unsafe { self.at(offset, bytes)?.copy_from(src, bytes) };
        Ok(())
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<(), OsError> {
        self.at(offset, bytes as usize).map(|_| ())
    }

    fn set_len(&self, _: u64) -> Result<(), OsError> {
        Err(OsError::NOTSUP)
    }

    fn punch(&self, offset: u64, bytes: u64) -> Result<(), OsError> {
        // SAFETY: `at` checked the range.
        unsafe { self.at(offset, bytes as usize)?.write_bytes(0, bytes as usize) };
        Ok(())
    }

    fn persist(&self, _: u64, _: u64) -> Result<(), OsError> {
        Ok(())
    }

    fn owns(&self, address: usize) -> bool {
        self.bytes.as_ptr_range().contains(&(address as *const UnsafeCell<u8>))
    }
}

/// `count` unnamed files of `bytes` on tmpfs, mapped.
#[must_use]
pub fn mapped_files(count: usize, bytes: u64) -> Vec<Option<Backing>> {
    let file = |_| {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let fd = openat(CWD, "/dev/shm", flags, Mode::RUSR | Mode::WUSR).expect("an unnamed file in /dev/shm");
        let backing = Backing::new(fd, Access::ReadWrite, PersistenceDomain::Volatile);
        backing.set_len(bytes).expect("space in /dev/shm");
        Some(backing)
    };
    (0..count).map(file).collect()
}
