//! A name that an array is about to get: reserved before the array is made, saved when it is there.
//!
//! Invariants: who holds a [`NewName`] is the only one to make a name in that directory
//! ([`NamesLocks`]); the file appears whole or not at all, and never replaces another; what is given up
//! leaves the directories as they were.

use crate::{
    failure::Failure,
    name::ArrayName,
    names_lock::NamesLocks,
    registry::{NamedArray, cannot, to_toml},
};
use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

/// The modes of what is made here. The system's get exactly these, so that every user can read
/// them; a user's umask may take bits away from the user's own.
const DIRECTORY_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;

/// A name that nobody else makes meanwhile.
pub(crate) struct NewName {
    name: ArrayName,
    file: PathBuf,
    /// Where the file is written before it has its name.
    temporary: PathBuf,
    /// Every user may read it.
    for_all: bool,
    lock: NamesLocks,
    /// Directories that were made for it, the outermost first.
    made: Vec<PathBuf>,
    saved: bool,
}

impl NewName {
    /// Reserves `file` for the array called `name`: makes the directories above it, and a file
    /// beside it, so that it is known that this can be done.
    #[cfg(test)]
    pub(crate) fn begin(name: &ArrayName, file: PathBuf, for_all: bool) -> Result<Self, Failure> {
        Self::begin_among(name, file, for_all, &[])
    }

    /// As [`Self::begin`], with the locks of `directories` as well.
    pub(crate) fn begin_among(name: &ArrayName, file: PathBuf, for_all: bool, directories: &[PathBuf]) -> Result<Self, Failure> {
        let directory = file.parent().unwrap_or(Path::new("/"));
        let mut made = Vec::new();
        make_directories(directory, for_all, &mut made).map_err(|error| cannot(directory, "be created", &error))?;
        let lock = NamesLocks::take(name, directories, directory)?;
        // A name beginning with '.' is never an array's, so a leftover of a crash is not read.
        let temporary = directory.join(format!(".{name}.{}", std::process::id()));
        let new = Self { name: name.clone(), file, temporary, for_all, lock, made, saved: false };
        if fs::symlink_metadata(&new.file).is_ok() {
            return Err(taken(name, &new.file));
        }
        // A crash may have left it, of a process with the same number.
        let _ = fs::remove_file(&new.temporary);
        new.write("").map_err(|error| cannot(&new.file, "be written", &error))?;
        Ok(new)
    }

    /// The name itself.
    pub(crate) const fn name(&self) -> &ArrayName {
        &self.name
    }

    /// Writes the file.
    pub(crate) fn save(mut self, array: &NamedArray) -> Result<(), Failure> {
        let text = to_toml(array)?;
        let written = fs::remove_file(&self.temporary)
            .and_then(|()| self.write(&text))
            .and_then(|()| fs::hard_link(&self.temporary, &self.file))
            .and_then(|()| File::open(self.file.parent().unwrap_or(Path::new("/")))?.sync_all());
        match written {
            Ok(()) => {
                self.saved = true;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(taken(&self.name, &self.file)),
            Err(error) => Err(cannot(&self.file, "be written", &error)),
        }
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let mut out = File::options().write(true).create_new(true).mode(FILE_MODE).open(&self.temporary)?;
        if self.for_all {
            out.set_permissions(fs::Permissions::from_mode(FILE_MODE))?;
        }
        out.write_all(text.as_bytes())?;
        out.sync_all()
    }
}

impl Drop for NewName {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.temporary);
        self.lock.release();
        if !self.saved {
            // Only those that are empty go.
            self.made.iter().rev().for_each(|directory| _ = fs::remove_dir(directory));
        }
    }
}

/// The failure for a name that an array has.
pub(crate) fn taken(name: &ArrayName, file: &Path) -> Failure {
    let todo = format!("choose another name, or 'cxlraid forget {name}' first");
    Failure::new(name, format!("an array has this name: {} exists", file.display()), todo)
}

/// Makes every missing directory of `path`, and notes which.
fn make_directories(path: &Path, for_all: bool, made: &mut Vec<PathBuf>) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
        Err(_) => {}
    }
    path.parent().map_or(Ok(()), |parent| make_directories(parent, for_all, made))?;
    match fs::DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
        Ok(()) => made.push(path.to_owned()),
        // Another creation was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => return Ok(()),
        Err(error) => return Err(error),
    }
    if for_all { fs::set_permissions(path, fs::Permissions::from_mode(DIRECTORY_MODE)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_up_leaves_nothing() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("config/cxlraid/arrays/db.toml");
        let new = NewName::begin(&"db".parse().unwrap(), file.clone(), false).unwrap();
        assert!(new.temporary.exists() && !file.exists());
        drop(new);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
        // A directory that others use meanwhile stays.
        let new = NewName::begin(&"db".parse().unwrap(), file, false).unwrap();
        fs::write(home.path().join("config/mine"), "").unwrap();
        drop(new);
        assert_eq!(fs::read_dir(home.path().join("config")).unwrap().count(), 1);
    }

    #[test]
    fn what_is_no_directory_is_named() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("arrays"), "").unwrap();
        let line = NewName::begin(&"db".parse().unwrap(), home.path().join("arrays/db.toml"), false).err().unwrap().to_string();
        assert!(line.contains("/arrays: cannot be created: not a directory; "), "{line}");
    }
}
