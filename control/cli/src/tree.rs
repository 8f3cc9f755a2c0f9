//! A tree of files, as `add` and `retrieve` need it: the host's and the array's look the same to them.
//!
//! Errors are `io::Error`, so that the host's and the array's errno read alike.

use std::{
    ffi::OsString,
    fs::{self, File, FileTimes, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, lchown, symlink},
    path::{Path, PathBuf},
    time::SystemTime,
};

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    /// A pipe, socket or device.
    Other,
}

/// The attributes that a copy keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stat {
    pub(crate) kind: Kind,
    pub(crate) bytes: u64,
    /// Permission bits, `0o7777`.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) accessed: SystemTime,
    pub(crate) modified: SystemTime,
}

/// Set-user-ID and set-group-ID.
const RUNS_AS_ANOTHER: u32 = 0o6000;

impl Stat {
    /// The mode of a copy. As with `cp -p`, a program whose owner or group could not be kept does not run with the rights of those that it got instead.
    pub(crate) const fn kept_mode(&self, owner_is_kept: bool) -> u32 {
        if owner_is_kept { self.mode } else { self.mode & !RUNS_AS_ANOTHER }
    }
}

/// Whether the owner was set: a user may not give everything away.
pub(crate) fn owner_is_kept(set: io::Result<()>) -> io::Result<bool> {
    match set {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(false),
        Err(error) => Err(error),
    }
}

/// An open file.
pub(crate) trait Content {
    /// Bytes read; 0 at the end only.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes the file this long; what is added reads as zeros.
    fn set_bytes(&self, bytes: u64) -> io::Result<()>;
    /// Returns when the content is as safe as its medium keeps it.
    fn sync(&self) -> io::Result<()>;
}

/// A tree of files. Paths are absolute.
pub(crate) trait Tree {
    /// Attributes; of the link itself unless `follow`.
    fn stat(&self, path: &Path, follow: bool) -> io::Result<Stat>;
    /// Names in a directory, without `.` and `..`.
    fn list(&self, path: &Path) -> io::Result<Vec<OsString>>;
    fn read_link(&self, path: &Path) -> io::Result<PathBuf>;
    fn open(&self, path: &Path) -> io::Result<Box<dyn Content>>;
    /// An empty file, new or cut to nothing, readable by its owner only.
    fn create(&self, path: &Path) -> io::Result<Box<dyn Content>>;
    /// A directory that only its owner may use; it may be there already.
    fn make_directory(&self, path: &Path) -> io::Result<()>;
    fn make_symlink(&self, target: &Path, path: &Path) -> io::Result<()>;
    /// Owner (where permitted), mode ([`Stat::kept_mode`]) and times. Only the owner of a symbolic link is set.
    fn set_attributes(&self, path: &Path, stat: &Stat) -> io::Result<()>;
}

/// The host's own files.
pub(crate) struct Host;

impl Tree for Host {
    fn stat(&self, path: &Path, follow: bool) -> io::Result<Stat> {
        let metadata = if follow { fs::metadata(path) } else { fs::symlink_metadata(path) }?;
        let kind = match metadata.file_type() {
            kind if kind.is_file() => Kind::File,
            kind if kind.is_dir() => Kind::Directory,
            kind if kind.is_symlink() => Kind::Symlink,
            _ => Kind::Other,
        };
        Ok(Stat {
            kind,
            bytes: metadata.len(),
            mode: metadata.mode() & 0o7777,
            uid: metadata.uid(),
            gid: metadata.gid(),
            accessed: metadata.accessed()?,
            modified: metadata.modified()?,
        })
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.file_name())).collect()
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        fs::read_link(path)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn Content>> {
        Ok(Box::new(File::open(path)?))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Content>> {
        Ok(Box::new(OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?))
    }

    fn make_directory(&self, path: &Path) -> io::Result<()> {
        match fs::DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            result => result,
        }
    }

    fn make_symlink(&self, target: &Path, path: &Path) -> io::Result<()> {
        symlink(target, path)
    }

    fn set_attributes(&self, path: &Path, stat: &Stat) -> io::Result<()> {
        let owner_is_kept = owner_is_kept(lchown(path, Some(stat.uid), Some(stat.gid)))?;
        if stat.kind == Kind::Symlink {
            return Ok(());
        }
        let file = File::open(path)?;
        file.set_permissions(fs::Permissions::from_mode(stat.kept_mode(owner_is_kept)))?;
        file.set_times(FileTimes::new().set_accessed(stat.accessed).set_modified(stat.modified))
    }
}

impl Content for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        loop {
            match std::os::unix::fs::FileExt::read_at(self, buffer, offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(self, bytes, offset)
    }

    fn set_bytes(&self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use sys::rustix::{
        process::{Gid, Uid, geteuid},
        thread::{set_thread_res_gid, set_thread_res_uid},
    };

    /// Runs `act` as a user without rights, in a directory of this user's on a file system with attributes.
    pub(crate) fn as_somebody(act: impl FnOnce(&Path) + Send) {
        const SOMEBODY: u32 = 65534;
        let home = tempfile::tempdir_in("/dev/shm").unwrap();
        let is_root = geteuid().is_root();
        if is_root {
            lchown(home.path(), Some(SOMEBODY), Some(SOMEBODY)).unwrap();
        }
        // The credentials of one thread, not of the other tests.
        let enter = || {
            if is_root {
                let (user, group) = (Uid::from_raw(SOMEBODY), Gid::from_raw(SOMEBODY));
                set_thread_res_gid(group, group, group).unwrap();
                set_thread_res_uid(user, user, user).unwrap();
            }
            act(home.path());
        };
        std::thread::scope(|scope| scope.spawn(enter).join().unwrap());
    }

    /// A file of root's.
    pub(crate) fn stat_of_another(mode: u32) -> Stat {
        let then = SystemTime::UNIX_EPOCH;
        Stat { kind: Kind::File, bytes: 0, mode, uid: 0, gid: 0, accessed: then, modified: then }
    }
}
