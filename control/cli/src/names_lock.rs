//! The lock of a directory of names: who holds it is the only one that makes or changes the file of an
//! array there.
//!
//! It lies on a file of its own that only the directory's owner may open: the directory is readable by
//! every user, and whoever may open a thing may keep it locked for good.
//!
//! A command that also keeps an array to itself takes this lock first. In the other order two commands
//! could wait for each other.

use crate::{failure::Failure, registry::cannot};
use std::{
    fmt,
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// The file's name. A name that begins with '.' is never an array's.
const FILE_NAME: &str = ".lock";
const FILE_MODE: u32 = 0o600;
/// How long another command is waited for, and how often it is looked at.
const PATIENCE: Duration = Duration::from_secs(60);
const REST: Duration = Duration::from_millis(20);

/// The right to make and change names in all directories of names that this user may write to, until
/// this is dropped. Those who make or change a name have it, so what they find of other names stays so
/// meanwhile.
pub(crate) struct NamesLocks(Vec<NamesLock>);

impl NamesLocks {
    /// Waits for the locks of `directories`, in their order, which is the same for everybody. A
    /// directory in which this user can make no lock is left out, unless it is `required`.
    pub(crate) fn take(thing: impl fmt::Display, directories: &[PathBuf], required: &Path) -> Result<Self, Failure> {
        let mut locks = Self(Vec::new());
        let rest = (!directories.iter().any(|path| path == required)).then_some(required);
        for directory in directories.iter().map(PathBuf::as_path).chain(rest) {
            let is_left_out = || directory != required && open(&directory.join(FILE_NAME)).is_err();
            if !locks.is_of(directory) && !is_left_out() {
                locks.0.push(NamesLock::take(&thing, directory)?);
            }
        }
        Ok(locks)
    }

    /// Tells whether the lock of a directory is among these.
    pub(crate) fn is_of(&self, directory: &Path) -> bool {
        let identity = fs::metadata(directory).map(|found| (found.dev(), found.ino())).ok();
        self.0.iter().any(|lock| lock.directory == directory || lock.identity == identity && identity.is_some())
    }

    /// Lets others have the locks.
    pub(crate) fn release(&mut self) {
        self.0.clear();
    }
}

/// The right to make and change names in a directory, until this is dropped.
struct NamesLock {
    directory: PathBuf,
    /// The directory's device and number; None if they cannot be told.
    identity: Option<(u64, u64)>,
    /// None on a file system without locks, where nobody is kept out.
    held: Option<File>,
}

impl NamesLock {
    /// Waits for the lock of a directory. `thing` is what a message is about.
    fn take(thing: impl fmt::Display, directory: &Path) -> Result<Self, Failure> {
        let identity = fs::metadata(directory).map(|found| (found.dev(), found.ino())).ok();
        let begun = Instant::now();
        let path = directory.join(FILE_NAME);
        loop {
            let opened = open(&path).map_err(|error| cannot(&path, "be opened", &error))?;
            match opened.try_lock() {
                // Who gives the lock up removes the file with the lock held.
                Ok(()) if !is_at(&opened, &path) => {}
                Ok(()) => return Ok(Self { directory: directory.to_owned(), identity, held: Some(opened) }),
                Err(TryLockError::WouldBlock) if begun.elapsed() < PATIENCE => std::thread::sleep(REST),
                Err(TryLockError::WouldBlock) => {
                    let what = format!("another process makes or changes an array and keeps {} locked", path.display());
                    return Err(Failure::new(thing, what, "wait for it, or see which with 'fuser' and end it"));
                }
                Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                    return Ok(Self { directory: directory.to_owned(), identity, held: None });
                }
                Err(TryLockError::Error(error)) => return Err(cannot(&path, "be locked", &error)),
            }
        }
    }

    /// Lets others have the lock. Its file goes, so that the directory can be removed.
    fn release(&mut self) {
        if let Some(held) = self.held.take() {
            // While it is locked: who waits for it looks whether it is still there.
            let _ = fs::remove_file(self.directory.join(FILE_NAME));
            drop(held);
        }
    }
}

impl Drop for NamesLock {
    fn drop(&mut self) {
        self.release();
    }
}

fn open(path: &Path) -> io::Result<File> {
    let flags = sys::rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    File::options().write(true).create(true).truncate(false).mode(FILE_MODE).custom_flags(flags).open(path)
}

/// Tells whether a file that was opened by a path is still there.
fn is_at(opened: &File, path: &Path) -> bool {
    let (Ok(opened), Ok(there)) = (opened.metadata(), fs::symlink_metadata(path)) else { return false };
    (opened.dev(), opened.ino()) == (there.dev(), there.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_lies_on_a_file_that_nobody_else_can_open() {
        let home = tempfile::tempdir().unwrap();
        let lock = NamesLock::take("db", home.path()).unwrap();
        let file = fs::metadata(home.path().join(FILE_NAME)).unwrap();
        assert_eq!(file.mode() & 0o777, FILE_MODE);
        // Who may only read the directory keeps nobody out.
        let directory = File::open(home.path()).unwrap();
        directory.lock().unwrap();
        assert!(open(&home.path().join(FILE_NAME)).unwrap().try_lock().is_err());
        drop(lock);
        let begun = Instant::now();
        drop(NamesLock::take("db", home.path()).unwrap());
        assert!(begun.elapsed() < PATIENCE / 2);
    }

    #[test]
    fn a_directory_by_two_paths_is_locked_once() {
        let home = tempfile::tempdir().unwrap();
        let (own, link) = (home.path().join("own"), home.path().join("link"));
        fs::create_dir(&own).unwrap();
        std::os::unix::fs::symlink(&own, &link).unwrap();
        let begun = Instant::now();
        let locks = NamesLocks::take("db", &[own.clone(), home.path().join("none"), link.clone()], &own).unwrap();
        assert_eq!((locks.0.len(), locks.is_of(&own), locks.is_of(&link)), (1, true, true));
        assert!(!locks.is_of(home.path()) && begun.elapsed() < PATIENCE / 2);
    }

    #[test]
    fn a_lock_whose_file_was_removed_counts_for_nothing() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(FILE_NAME);
        let waiting = open(&path).unwrap();
        drop(NamesLock::take("db", home.path()).unwrap());
        waiting.lock().unwrap();
        assert!(!is_at(&waiting, &path));
        let second = NamesLock::take("db", home.path()).unwrap();
        assert!(is_at(second.held.as_ref().unwrap(), &path));
        drop(second);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
    }
}
