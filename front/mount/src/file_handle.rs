//! The name that a file system itself has for a file or directory (name_to_handle_at(2)): it is the
//! same whatever the thing is called and wherever it was moved, and no later thing gets it, as one
//! may get the inode number of one that is gone.
//!
//! Anybody may ask for a file handle and compare it. To open a thing by it takes the right to pass
//! over the rights of directories (CAP_DAC_READ_SEARCH), which a mount without root does not have.
#![allow(unsafe_code)] // Two system calls that rustix lacks.

use linux_raw_sys::general::{__NR_name_to_handle_at, __NR_open_by_handle_at, AT_EMPTY_PATH};
use sys::rustix::fs::OFlags;
use sys::{AsRawFd as _, BorrowedFd, FromRawFd as _, OsError, OwnedFd, Result};

/// The number of bytes and the kind of a handle stand before it.
const HEAD_BYTES: usize = 8;
/// MAX_HANDLE_SZ of linux/exportfs.h.
const HANDLE_BYTES_MAX: usize = 128;
/// AT_HANDLE_FID: a handle that need not serve to open the thing (Linux 6.5).
const ONLY_TO_COMPARE: usize = 0x200;

/// A file handle, as the kernel has it in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FileHandle {
    bytes: Box<[u8]>,
    opens: bool,
}

impl FileHandle {
    /// Returns the handle of what a descriptor is open on. The result is None where the file system has
    /// none.
    pub(crate) fn of(fd: BorrowedFd<'_>) -> Option<Self> {
        [(0, true), (ONLY_TO_COMPARE, false)].into_iter().find_map(|(flags, opens)| {
            let mut buffer = [0_u8; HEAD_BYTES + HANDLE_BYTES_MAX];
            buffer[..4].copy_from_slice(&(HANDLE_BYTES_MAX as u32).to_le_bytes());
            // The kernel may store eight bytes there.
            let mut mount = [0_u64; 1];
            let flags = AT_EMPTY_PATH as usize | flags;
            let (path, fd) = (c"".as_ptr() as usize, fd.as_raw_fd() as usize);
            let arguments = [fd, path, buffer.as_mut_ptr() as usize, mount.as_mut_ptr() as usize, flags, 0];
            // SAFETY: the kernel stores at most as many bytes as the buffer says that it has room
            // for behind its head, and a number in `mount`; both live until the call returns.
            sys::raw::check(unsafe { sys::raw::syscall(__NR_name_to_handle_at as usize, arguments) }).ok()?;
            let length = buffer.first_chunk().copied().map(u32::from_le_bytes)? as usize;
            let bytes = buffer.get(..HEAD_BYTES + length)?.into();
            Some(Self { bytes, opens })
        })
    }

    /// Opens the thing (O_PATH) on the file system of an open directory, which must not be open
    /// with O_PATH itself.
    ///
    /// # Errors
    /// `STALE` if it is gone; `PERM` without the right to open by handles; `OPNOTSUPP` for a handle
    /// that serves only to compare.
    pub(crate) fn open(&self, on: BorrowedFd<'_>) -> Result<OwnedFd> {
        if !self.opens {
            return Err(OsError::OPNOTSUPP);
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let arguments = [on.as_raw_fd() as usize, self.bytes.as_ptr() as usize, flags.bits() as usize, 0, 0, 0];
        // SAFETY: the kernel reads the handle, whose head says how long it is.
        let number = sys::raw::check(unsafe { sys::raw::syscall(__NR_open_by_handle_at as usize, arguments) })?;
        // SAFETY: the descriptor is new, and nobody else has it.
        Ok(unsafe { OwnedFd::from_raw_fd(number as i32) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, fs::File};
    use sys::AsFd as _;

    #[test]
    fn a_directory_is_known_by_its_handle_whatever_it_is_called() {
        let home = tempfile::tempdir_in("/dev/shm").unwrap();
        let (from, to) = (home.path().join("from"), home.path().join("to"));
        fs::create_dir(&from).unwrap();
        let handle = FileHandle::of(File::open(&from).unwrap().as_fd()).unwrap();
        fs::rename(&from, &to).unwrap();
        fs::create_dir(&from).unwrap();
        assert_eq!(FileHandle::of(File::open(&to).unwrap().as_fd()).unwrap(), handle);
        assert_ne!(FileHandle::of(File::open(&from).unwrap().as_fd()).unwrap(), handle);
        let on = File::open(home.path()).unwrap();
        match handle.open(on.as_fd()) {
            Ok(fd) => assert_eq!(fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap(), to),
            Err(error) => assert_eq!(error, OsError::PERM),
        }
        fs::remove_dir(&to).unwrap();
        assert!(handle.open(on.as_fd()).is_err());
    }
}
