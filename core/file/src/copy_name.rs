//! The name of a file's shared copy, and how the copy is recognised.
//!
//! The fault it exists for: every user may make names in /dev/shm. If another user can guess a
//! copy's name, that user can make the file first. Then programs cannot map the file, or they store
//! what they have into the other user's file.
//!
//! The name ends with a number drawn at random. The runtime segment keeps that number beside the
//! copy's inode number: a file with the copy's name and another inode number is not opened, given
//! rights or stored to. In a directory with the sticky bit, as /dev/shm is, no other user can
//! rename or remove a copy.

use crate::files::Files;
use array::SharedFile;
use core::sync::atomic::Ordering;
use sys::rustix::fs::{FileType, Mode, OFlags, Stat, fstat, ftruncate, open, unlink};
use sys::{OsError, OwnedFd};

/// How often another name is drawn, should one be taken.
const TRY_COUNT: u32 = 8;

const CAREFULLY: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

impl Files {
    fn copy_path(&self, name: u64) -> alloc::string::String {
        alloc::format!("{}-map-{name:016x}", array::runtime::segment_path(self.array().uuid()))
    }

    /// Makes the file of a file's next copy, for its maker alone. The size lock and all stripe
    /// locks are held.
    pub(crate) fn make_shared_copy(&self, shared: &SharedFile) -> Result<OwnedFd, OsError> {
        // What a process left that died while it made one.
        self.remove_shared_copy(shared);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | CAREFULLY;
        let mut result = Err(OsError::EXIST);
        for _ in 0..TRY_COUNT {
            let name = u64::from_le_bytes(sys::random::bytes()?) | 1;
            // Before it exists: whoever dies now leaves it to be removed.
            shared.copy_name.store(name, Ordering::Release);
            result = open(self.copy_path(name).as_str(), flags, Mode::RUSR | Mode::WUSR);
            if !matches!(result, Err(OsError::EXIST)) {
                break;
            }
        }
        let file = result?;
        shared.copy_inode.store(fstat(&file)?.st_ino, Ordering::Release);
        Ok(file)
    }

    /// Opens a file's copy.
    ///
    /// # Errors
    /// `IO` if what has its name is not what its maker made.
    pub(crate) fn open_shared_copy(&self, shared: &SharedFile, access: OFlags) -> Result<OwnedFd, OsError> {
        let (name, inode) = (shared.copy_name.load(Ordering::Acquire), shared.copy_inode.load(Ordering::Acquire));
        let file = open(self.copy_path(name).as_str(), access | CAREFULLY, Mode::empty()).map_err(|error| match error {
            OsError::NOENT | OsError::LOOP | OsError::NXIO | OsError::ISDIR => OsError::IO,
            error => error,
        })?;
        let stat = fstat(&file)?;
        let is_it = |stat: Stat| Ok(stat.st_ino == inode && stat.st_dev == self.array().runtime().device()?);
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && is_it(stat)? { Ok(file) } else { Err(OsError::IO) }
    }

    /// Removes the newest copy's file, if it is there. Only its maker and root may (the directory
    /// is sticky): another user empties it, and leaves its name to the next who comes here.
    pub(crate) fn remove_shared_copy(&self, shared: &SharedFile) {
        let name = shared.copy_name.swap(0, Ordering::AcqRel);
        if name == 0 || !matches!(unlink(self.copy_path(name).as_str()), Err(OsError::PERM | OsError::ACCESS)) {
            return;
        }
        let _ = shared.copy_name.compare_exchange(0, name, Ordering::AcqRel, Ordering::Relaxed);
        let _ = self.open_shared_copy(shared, OFlags::RDWR).and_then(|file| ftruncate(&file, 0));
    }
}
