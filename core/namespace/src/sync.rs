//! Names made durable: fsync(2) of a directory, syncfs(2).
//!
//! A file system commits its own journal only, so a name is durable when every member's has been.
//! Where a member loses everything with the power anyway (tmpfs) nothing is done.

use crate::Namespace;
use crate::located::open_below;
use dax::PersistenceDomain;
use sys::rustix::fs::{Mode, OFlags, fsync, syncfs};
use sys::{BorrowedFd, OsError, OwnedFd, Result};

impl Namespace {
    /// Makes the names in a directory durable on every member in use. `fd` is the program's
    /// descriptor of it.
    pub fn sync_directory(&self, fd: BorrowedFd<'_>) -> Result<()> {
        let Some(path) = self.logical_path_of(fd)? else { return Ok(()) };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.on_durable_members(|root| match open_below(root, &path[1..], flags, Mode::empty()) {
            Ok(directory) => fsync(directory),
            // Renamed or removed meanwhile, or not to be read by this process any more: all of the
            // member then.
            Err(OsError::NOENT | OsError::NOTDIR | OsError::LOOP | OsError::ACCESS) => syncfs(root),
            Err(error) => Err(error),
        })
    }

    /// Makes everything on every member in use durable.
    pub fn sync_file_systems(&self) -> Result<()> {
        self.on_durable_members(syncfs)
    }

    /// Runs `sync` on the members that keep anything; one that fails in it goes out.
    fn on_durable_members(&self, sync: impl Fn(&'static OwnedFd) -> Result<()>) -> Result<()> {
        for slot in self.array().in_use().iter() {
            if self.files.domains()[slot] == PersistenceDomain::Volatile {
                continue;
            }
            match sync(self.root(slot)?) {
                Err(error) if self.array().has_member_failed(slot, error) => self.array().spare(slot, error)?,
                result => result?,
            }
        }
        self.array().before_change()?;
        self.array().require_backing(self.array().in_use())
    }
}
