//! The array's files as a [`Tree`]: `add` and `retrieve` use the same core as programs do, in this process.

use crate::{
    failure::Failure,
    tree::{Content, Stat, Tree},
};
use array::Array;
use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

/// The files of an attached array.
pub(crate) struct ArrayFiles {
    array: Array,
}

impl ArrayFiles {
    /// Takes over an attached array.
    #[expect(clippy::unnecessary_wraps, reason = "the namespace starts here")]
    pub(crate) fn open(array: Array) -> Result<Self, Failure> {
        Ok(Self { array })
    }

    /// Programs could not reach a file outside the array's paths.
    pub(crate) fn require_inside(&self, path: &Path) -> Result<(), Failure> {
        let config = self.array.config();
        if config.owns(&array::config::normalise(path.as_os_str().as_bytes())) {
            return Ok(());
        }
        let prefixes: Vec<_> =
            config.prefixes.iter().map(|prefix| Path::new(OsStr::from_bytes(prefix)).display().to_string()).collect();
        Err(Failure::new(
            path.display(),
            format!("is not below the array's paths ({})", prefixes.join(", ")),
            "give a path below one of them",
        ))
    }
}

impl Tree for ArrayFiles {
    fn stat(&self, _path: &Path, _follow: bool) -> io::Result<Stat> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn list(&self, _path: &Path) -> io::Result<Vec<OsString>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn read_link(&self, _path: &Path) -> io::Result<PathBuf> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn open(&self, _path: &Path) -> io::Result<Box<dyn Content>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn create(&self, _path: &Path) -> io::Result<Box<dyn Content>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn make_directory(&self, _path: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn make_symlink(&self, _target: &Path, _path: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn set_attributes(&self, _path: &Path, _stat: &Stat) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
