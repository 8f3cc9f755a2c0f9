//! The host's directories in which an array's own files lie: its members, and where it is mounted.
//!
//! `add` and `retrieve` copy nothing from or to these directories. A file that is copied onto
//! itself would be cut before it is read, and one member would get names and bytes that the others
//! lack.

use crate::tree::Identity;
use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
};

/// The directories that are there, each with its identity.
#[derive(Default)]
pub(crate) struct Own(Vec<(Identity, PathBuf)>);

impl Own {
    /// The members of `array` and the directories in `mounted`.
    pub(crate) fn of(array: &array::Array, mounted: Vec<PathBuf>) -> Self {
        let members = array.config().mounts.iter().map(|member| PathBuf::from(OsStr::from_bytes(member)));
        Self(members.chain(mounted).filter_map(|path| Some((identity(&path)?, path))).collect())
    }

    /// The one of these directories that has this identity.
    pub(crate) fn with(&self, identity: Identity) -> Option<&Path> {
        self.0.iter().find(|(own, _)| *own == identity).map(|(_, path)| path.as_path())
    }

    /// The one of these directories that `path` lies in, or would lie in if it were made. Symbolic
    /// links are followed.
    pub(crate) fn around(&self, path: &Path) -> Option<&Path> {
        let real = path.ancestors().find_map(|above| fs::canonicalize(above).ok())?;
        real.ancestors().find_map(|above| self.with(identity(above)?))
    }
}

fn identity(path: &Path) -> Option<Identity> {
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

#[cfg(test)]
impl Own {
    /// These directories, which must be there.
    pub(crate) fn directories(paths: &[&Path]) -> Self {
        Self(paths.iter().map(|path| (identity(path).unwrap(), path.to_path_buf())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_in_own_directories_are_known_by_any_name() {
        let home = tempfile::tempdir().unwrap();
        let (member, link) = (home.path().join("member"), home.path().join("link"));
        fs::create_dir_all(member.join("data")).unwrap();
        std::os::unix::fs::symlink(member.join("data"), &link).unwrap();
        let own = Own::directories(&[&member]);
        for inside in [member.clone(), member.join("data/none/x"), link.join("x"), home.path().join("member/../member")] {
            assert_eq!(own.around(&inside), Some(member.as_path()), "{}", inside.display());
        }
        assert_eq!(own.around(home.path()), None);
        assert_eq!(own.around(&home.path().join("member2/data")), None);
    }
}
